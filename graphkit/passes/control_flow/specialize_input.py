"""Bind an input to a value, and inline the branch of every If that this decides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from graphkit.dtypes import INTEGERS, dtype_name
from graphkit.errors import ModelError, UsageError
from graphkit.graph.declared_types import TensorType, declared_type, shape_text
from graphkit.graph.traversal import walk_postorder
from graphkit.graph.view import Node, Scope, Value, build_scopes
from graphkit.model import Model
from graphkit.passes.control_flow.inline_constant_if import decide_branches, inline_branches, why_undecided
from graphkit.rewrite import Declined, Outcome, Pass, Premise, copy_proto, drop_inputs
from graphkit.rewrite.dead_code import live_names, remove_dead_code, without_outputs
from graphkit.runtime.isolated_session import IsolatedSession
from graphkit.suggest import did_you_mean

__all__ = ["SpecializeInput"]

MAX_ELEMENTS = 1 << 20  # of the constant in the place of an input
MAX_EVALUATED = 200  # nodes between an input and a condition
BOOL = 9
IR_VERSION = 10  # of the model that computes a condition


@dataclass(frozen=True)
class SpecializeInput(Pass):
    """Bind a boolean or integer input to a value, and inline the branch of every If that this decides.

    An If is decided where its condition is computed from this input and constants alone, through any
    operators (Cast, Not, Equal, ...), at any depth. Its branch moves to the place of the If; names that
    would clash are changed, and the outputs of the If keep theirs. A constant replaces all other uses of the input.

    Legality: the input exists, is a boolean or an integer, and has the same value in every run. The pass declines
    an If whose condition depends on anything else, and a model without outputs.

    Before:

        agraph (float[N] x, bool flag) => (float[N] y) {
            y = If (flag) <
                then_branch = g1 () => (float[N] a) { a = Neg (x) },
                else_branch = g2 () => (float[N] b) { b = Abs (x) }
            >
        }

    After `specialize-input{input=flag,value=true}`:

        agraph (float[N] x) => (float[N] y) {
            y = Neg (x)
        }

    Attributes:
        input: The input that is bound.
        value: The value that it always has: true, false, or an integer.
    """

    input: str
    value: bool | int

    def premise(self) -> Premise:
        return Premise(values={self.input: self.value})

    def run(self, model: Model) -> Outcome:
        proto = copy_proto(model)
        scopes = build_scopes(proto)
        bound = _find_input(scopes[0], self.input, model.label)
        declared = _check_type(bound, self.value, model.label)
        if (left_alone := without_outputs(model)) is not None:
            return Outcome(model, declined=(left_alone,))
        decisions, undecided = decide_branches(scopes, lambda node: _condition_value(node, bound, declared, self.value))
        inline_branches(proto, scopes, decisions)
        changes = [f"'{node.path}' always runs {body.path.rpartition('/')[2]}" for node, body in decisions.items()]
        proto = _without_dead_readers(model.with_proto(proto), bound.name)
        changes += _bind_input(proto, bound, declared, self.value, model.label)
        reason = f"its condition does not follow from '{self.input}' alone"
        declined = tuple(Declined(node.path, why_undecided(node, reason)) for node in undecided)
        return Outcome(model.with_proto(proto), tuple(changes), declined)


def _find_input(main: Scope, name: str, label: str) -> Value:
    inputs = {value.name: value for value in main.inputs}
    if name not in inputs:
        raise UsageError(f"{label}: no input '{name}' - {did_you_mean(name, inputs)}")
    return inputs[name]


def _without_dead_readers(model: Model, name: str) -> onnx.ModelProto:
    """Return a model without dead code, where that is all that reads an input."""
    value = model.graph.values[name]
    is_dead = bool(value.consumers) and name not in live_names(model.proto.graph)
    return remove_dead_code(model).model.proto if is_dead else model.proto


def _check_type(value: Value, number: bool | int, label: str) -> TensorType:
    declared = declared_type(value)
    if declared is None or declared.dtype not in INTEGERS:
        kind = dtype_name(declared.dtype) if declared is not None else "not a tensor"
        raise UsageError(f"{label}: input '{value.name}' is {kind} - only a boolean or an integer can be bound")
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(declared.dtype))
    if declared.dtype != BOOL and not np.iinfo(dtype).min <= number <= np.iinfo(dtype).max:
        raise UsageError(f"{label}: input '{value.name}' is {dtype_name(declared.dtype)} - it cannot be {number}")
    return declared


def _filled_array(declared: TensorType, number: bool | int, shape: tuple[int, ...]) -> np.ndarray:
    return np.full(shape, number, onnx.helper.tensor_dtype_to_np_dtype(declared.dtype))


def _condition_value(node: Node, bound: Value, declared: TensorType, number: bool | int) -> bool | None:
    """Return the value of an If's condition, or None where it does not follow from the bound input."""
    value = node.input(0)
    if value is bound:
        return bool(number)
    nodes, constants = _nodes_from_input(value, bound)
    if nodes is None or value is None:
        return None
    used = (used for member in nodes for used in (*member.inputs, *member.outputs))
    names: dict[Value | None, str] = {v: f"v{i}" for i, v in enumerate(dict.fromkeys((value, *filter(None, used))))}
    names[None] = ""
    graph = onnx.GraphProto(name="condition")
    for member in nodes:
        graph.node.append(member.proto)
        graph.node[-1].input[:] = [names[read] for read in member.inputs]
        graph.node[-1].output[:] = [names[output] for output in member.outputs]
    for constant in constants:
        if constant in names and constant.tensor is not None:
            graph.initializer.append(constant.tensor)
            graph.initializer[-1].name = names[constant]
    shape, fed = [1] * len(declared.dims or ()), names.get(bound, "unused")
    graph.input.append(onnx.helper.make_tensor_value_info(fed, declared.dtype, shape))
    graph.output.append(onnx.helper.make_tensor_value_info(names[value], BOOL, None))
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in node.scope.opsets.items()]
    proto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    try:
        with IsolatedSession(Model.from_proto(proto), threads=1) as session:
            (result,) = session.run({fed: _filled_array(declared, number, tuple(shape))}).values()
    except ModelError:  # then nothing is known
        return None
    return bool(result.reshape(-1)[0]) if result.size == 1 else None


def _nodes_from_input(value: Value | None, bound: Value) -> tuple[list[Node] | None, list[Value]]:
    """Return the nodes that compute a value from the bound input, in order; None where they need anything else."""

    def sources(value: Value) -> Sequence[Value | None]:
        return value.producer.inputs if value.producer is not None and _is_plain(value.producer) else ()

    values = [each for each in walk_postorder([value] if value is not None else [], sources) if each is not bound]
    constants = [each for each in values if each.kind == "initializer"]
    nodes = [each.producer for each in values if each.kind != "initializer"]
    known = [node for node in dict.fromkeys(nodes) if node is not None and _is_plain(node)]
    return (known, constants) if len(known) == len(set(nodes)) <= MAX_EVALUATED else (None, [])


def _is_plain(node: Node) -> bool:
    return not (node.bodies or node.domain)


def _bind_input(
    proto: onnx.ModelProto, bound: Value, declared: TensorType, number: bool | int, label: str
) -> list[str]:
    """Put a constant in the place of the input, where something still reads it."""
    live = bound.name in live_names(proto.graph)
    dims = declared.dims if declared.dims is not None else ("?",)
    shape = tuple(dim for dim in dims if isinstance(dim, int))
    if live and len(shape) != len(dims):
        raise UsageError(
            f"{label}: input '{bound.name}' is read at a shape that is not fixed: {shape_text(declared.dims)} - "
            "declare its dims as numbers first"
        )
    if live and math.prod(shape) > MAX_ELEMENTS:
        raise UsageError(
            f"{label}: input '{bound.name}' is read, and its shape {shape_text(declared.dims)} is too large for a "
            f"constant - at most {MAX_ELEMENTS:,} elements are written"
        )
    drop_inputs(proto.graph, (bound.name,))
    if live:
        proto.graph.initializer.append(onnx.numpy_helper.from_array(_filled_array(declared, number, shape), bound.name))
    return [f"input '{bound.name}' is {str(number).lower() if isinstance(number, bool) else number}"]
