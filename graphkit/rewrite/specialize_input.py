"""Bind an input to a value, and inline the branch of every If that this decides."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from graphkit.errors import UsageError
from graphkit.graph.types import TensorType, declared_type, dtype_name, shape_text
from graphkit.graph.view import Node, Scope, Value, all_scopes, body_graphs, build_scopes
from graphkit.model import Model
from graphkit.rewrite.base import Declined, Outcome, Pass, copy_proto, keep
from graphkit.rewrite.eliminate_dead_code import live_values

__all__ = ["SpecializeInput"]

MAX_CONE = 200  # nodes between an input and a condition
INTEGERS = {2, 3, 4, 5, 6, 7, 12, 13}  # TensorProto.DataType: 8 to 64 bits, signed and unsigned
BOOL = 9


@dataclass(frozen=True)
class SpecializeInput(Pass):
    """Bind a boolean or integer input to a value, and inline the branch of every If that this decides.

    An If is decided where its condition is computed from this input and constants alone, through any
    operators (Cast, Not, Equal, ...), at any depth. Its branch moves to where the If stood: the nodes before
    and after it stay, names that would clash are changed, the outputs of the If keep theirs. Where the input
    is read besides, a constant takes its place.

    Legality: the input exists, is a boolean or an integer, and has the same value in every run. An If whose
    condition depends on anything else is left, and said so.

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
        input: Name of the input.
        value: What it is bound to: true, false, or an integer.
    """

    input: str
    value: bool | int

    def run(self, model: Model) -> Outcome:
        proto = copy_proto(model)
        scopes = build_scopes(proto)
        bound = _find_input(scopes[0], self.input, model.label)
        declared = _check_type(bound, model.label)
        decisions, undecided = _decide(scopes, bound, declared, self.value)
        for scope in scopes:
            for graph, nodes in _emissions(proto, scopes, scope, decisions):
                del graph.node[:]
                graph.node.extend(nodes)
        changes = [f"'{node.path}' always runs {body.path.rpartition('/')[2]}" for node, body in decisions.items()]
        changes += _bind(proto, bound, declared, self.value, model.label)
        declined = tuple(
            Declined(node.path, f"its condition does not follow from '{self.input}' alone") for node in undecided
        )
        return Outcome(model.with_proto(proto), tuple(changes), declined)


def _find_input(main: Scope, name: str, label: str) -> Value:
    names = [value.name for value in main.inputs]
    for value in main.inputs:
        if value.name == name:
            return value
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    raise UsageError(f"{label}: no input '{name}' - its inputs are {shown}")


def _check_type(value: Value, label: str) -> TensorType:
    declared = declared_type(value)
    if declared is None or declared.dtype not in INTEGERS | {BOOL}:
        kind = dtype_name(declared.dtype) if declared is not None else "not a tensor"
        raise UsageError(f"{label}: input '{value.name}' is {kind} - only a boolean or an integer can be bound")
    return declared


def _array(declared: TensorType, number: bool | int, shape: tuple[int, ...]) -> np.ndarray:
    return np.full(shape, number, onnx.helper.tensor_dtype_to_np_dtype(declared.dtype))


def _decide(
    scopes: tuple[Scope, ...], bound: Value, declared: TensorType, number: bool | int
) -> tuple[dict[Node, Scope], list[Node]]:
    """Return the branch that each decided If runs, outer Ifs first, and the Ifs that stay undecided."""
    decisions: dict[Node, Scope] = {}
    undecided: list[Node] = []
    dropped: set[Scope] = set()
    for scope in all_scopes(scopes):
        if scope.owner is not None and (scope.parent in dropped or scope in dropped):
            dropped.add(scope)
            continue
        for node in scope.nodes:
            if not node.is_op("If"):
                continue
            taken = _condition(node, bound, declared, number)
            branch = node.bodies.get("then_branch" if taken else "else_branch")
            if taken is None or branch is None:
                undecided.append(node)
                continue
            decisions[node] = branch
            dropped.update(body for body in node.bodies.values() if body is not branch)
    return decisions, undecided


def _condition(node: Node, bound: Value, declared: TensorType, number: bool | int) -> bool | None:
    """Return the value of an If's condition, or None where it does not follow from the bound input."""
    value = node.input(0)
    if value is bound:
        return bool(number)
    nodes, constants = _cone(value, bound)
    if nodes is None or value is None:
        return None
    from onnx.reference import ReferenceEvaluator

    ids = {id(v): f"v{i}" for i, v in enumerate(_values(nodes))}
    graph = onnx.GraphProto(name="condition")
    for member in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(member.proto)
        copy.input[:] = [ids[id(v)] if v is not None else "" for v in member.inputs]
        copy.output[:] = [ids[id(v)] if v is not None else "" for v in member.outputs]
        graph.node.append(copy)
    for constant in constants:
        if id(constant) in ids and constant.tensor is not None:
            graph.initializer.add().CopyFrom(constant.tensor)
            graph.initializer[-1].name = ids[id(constant)]
    shape = [1] * len(declared.dims or ())
    graph.input.append(onnx.helper.make_tensor_value_info(ids.get(id(bound), "unused"), declared.dtype, shape))
    graph.output.append(onnx.helper.make_tensor_value_info(ids[id(value)], BOOL, None))
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in node.scope.opsets.items()]
    try:
        evaluator = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=opsets))
        (result,) = evaluator.run(None, {ids.get(id(bound), "unused"): _array(declared, number, tuple(shape))})
    except Exception:  # the evaluator raises what its operators do; then nothing is known
        return None
    return bool(np.asarray(result).reshape(-1)[0]) if np.asarray(result).size == 1 else None


def _values(nodes: list[Node]) -> Iterator[Value]:
    seen: set[Value] = set()
    for node in nodes:
        for value in (*node.inputs, *node.outputs):
            if value is not None and value not in seen:
                seen.add(value)
                yield value


def _cone(value: Value | None, bound: Value) -> tuple[list[Node] | None, list[Value]]:
    """Return the nodes that compute a value from the bound input, in order; None where they need anything else."""
    nodes: list[Node] = []
    constants: list[Value] = []
    done: set[Value] = {bound}
    todo = [value]
    while todo:
        here = todo[-1]
        if here is None or here in done:
            todo.pop()
            continue
        if here.kind == "initializer":
            constants.append(here)
            done.add(here)
            continue
        producer = here.producer
        if producer is None or producer.bodies or producer.domain or len(nodes) > MAX_CONE:
            return None, []
        missing = [source for source in producer.inputs if source is not None and source not in done]
        if missing:
            if any(source in todo for source in missing):
                return None, []
            todo += missing
            continue
        nodes.append(producer)
        done.update(output for output in producer.outputs if output is not None)
    return nodes, constants


def _emissions(
    proto: onnx.ModelProto, scopes: tuple[Scope, ...], scope: Scope, decisions: dict[Node, Scope]
) -> Iterator[tuple[onnx.GraphProto | onnx.FunctionProto, list[onnx.NodeProto]]]:
    """Yield each graph or function that keeps its nodes, with the nodes that it is to have."""
    if not decisions:
        return
    target: onnx.GraphProto | onnx.FunctionProto
    target = proto.graph if scope is scopes[0] else proto.functions[scopes.index(scope) - 1]
    yield target, _Inliner(scopes, decisions).emit(scope, target)


class _Inliner:
    """Assigns final names to the values of inlined branches, and builds the node lists."""

    def __init__(self, scopes: tuple[Scope, ...], decisions: dict[Node, Scope]) -> None:
        self.decisions = decisions
        inlined = set(decisions.values())
        self.used = {name for kept in self._kept(scopes) if kept not in inlined for name in kept.values}
        self.final: dict[Value, str] = {}
        for scope in scopes:
            self._assign(scope)

    def _kept(self, scopes: tuple[Scope, ...]) -> Iterator[Scope]:
        todo = list(scopes)
        while todo:
            scope = todo.pop()
            yield scope
            for node in scope.nodes:
                chosen = self.decisions.get(node)
                todo += [chosen] if chosen is not None else list(node.bodies.values())

    def _assign(self, scope: Scope) -> None:
        """Name the values of the branches that are inlined into a scope, and of those inlined into these."""
        for node in scope.nodes:
            body = self.decisions.get(node)
            if body is None:
                for inner in node.bodies.values():
                    self._assign(inner)
                continue
            for outer, inner_value in zip(node.outputs, body.outputs, strict=False):
                if outer is not None and self._takes_name(inner_value, body):
                    self.final[inner_value] = self.name(outer)
            for value in body.values.values():
                if value not in self.final:
                    self.final[value] = self._fresh(value.name)
            self._assign(body)

    def _takes_name(self, value: Value, body: Scope) -> bool:
        return value.scope is body and value.kind == "node" and value not in self.final

    def _fresh(self, name: str) -> str:
        stem, number = re.sub(r"__\d+$", "", name), 1
        while name in self.used:
            name, number = f"{stem}__{number}", number + 1
        self.used.add(name)
        return name

    def name(self, value: Value | None) -> str:
        """Return the final name of a value, "" for none."""
        return "" if value is None else self.final.get(value, value.name)

    def emit(self, scope: Scope, target: onnx.GraphProto | onnx.FunctionProto) -> list[onnx.NodeProto]:
        """Return the nodes of a scope with its decided Ifs replaced; what else the branches hold goes to `target`."""
        nodes: list[onnx.NodeProto] = []
        for node in scope.nodes:
            body = self.decisions.get(node)
            if body is None:
                nodes.append(self._rewired(node))
                continue
            graph = next(a.g for a in node.proto.attribute if a.name == body.path.rpartition("/")[2])
            self._hoist(graph, body, target, nodes)
            nodes += self.emit(body, target)
            nodes += self._aliases(node, body)
        return nodes

    def _rewired(self, node: Node) -> onnx.NodeProto:
        proto = node.proto
        names = [self.name(value) for value in node.inputs]
        if names != list(proto.input):
            proto.input[:] = names
        names = [self.name(value) for value in node.outputs]
        if names != list(proto.output):
            proto.output[:] = names
        for (_, graph), body in zip(body_graphs(proto), node.bodies.values(), strict=True):
            nodes = self.emit(body, graph)
            outputs = [self.name(value) for value in body.outputs]
            copies = _copies(nodes)
            del graph.node[:]
            graph.node.extend(copies)
            for info, name in zip(graph.output, outputs, strict=True):
                info.name = name
        return proto

    def _hoist(
        self,
        graph: onnx.GraphProto,
        body: Scope,
        target: onnx.GraphProto | onnx.FunctionProto,
        nodes: list[onnx.NodeProto],
    ) -> None:
        """Move initializers, declared types and annotations of an inlined branch; a function takes constants."""
        for tensor in graph.initializer:
            tensor.name = self.name(body.values[tensor.name])
            if isinstance(target, onnx.GraphProto):
                target.initializer.append(tensor)
            else:
                nodes.append(onnx.helper.make_node("Constant", [], [tensor.name], value=tensor))
        for sparse in graph.sparse_initializer:
            sparse.values.name = self.name(body.values[sparse.values.name])
            if isinstance(target, onnx.GraphProto):
                target.sparse_initializer.append(sparse)
            else:
                nodes.append(onnx.helper.make_node("Constant", [], [sparse.values.name], sparse_value=sparse))
        outputs = {info.name for info in target.output} if isinstance(target, onnx.GraphProto) else set(target.output)
        for info in [*graph.value_info, *graph.output]:
            value = body.values.get(info.name)
            if value is not None and self.name(value) not in outputs:
                info.name = self.name(value)
                target.value_info.append(info)
        if isinstance(target, onnx.GraphProto):
            for annotation in graph.quantization_annotation:
                annotation.tensor_name = self.name(body.find(annotation.tensor_name)) or annotation.tensor_name
                for entry in annotation.quant_parameter_tensor_names:
                    entry.value = self.name(body.find(entry.value)) or entry.value
                target.quantization_annotation.append(annotation)

    def _aliases(self, node: Node, body: Scope) -> Iterator[onnx.NodeProto]:
        """Yield an Identity for each output that is not computed in the branch under a name of its own."""
        for outer, inner in zip(node.outputs, body.outputs, strict=False):
            if outer is not None and self.name(inner) != self.name(outer):
                name = f"{node.label}/{outer.name}"
                yield onnx.helper.make_node("Identity", [self.name(inner)], [self.name(outer)], name=name)


def _copies(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return copies, which outlive the deletion of the list that the originals are in."""
    copies = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copies.append(copy)
    return copies


def _bind(proto: onnx.ModelProto, bound: Value, declared: TensorType, number: bool | int, label: str) -> list[str]:
    """Put a constant in the place of the input, where something still reads it."""
    scopes = build_scopes(proto)
    live = scopes[0].values[bound.name] in live_values(scopes)
    dims = declared.dims if declared.dims is not None else ("?",)
    shape = tuple(dim for dim in dims if isinstance(dim, int))
    if live and len(shape) != len(dims):
        raise UsageError(
            f"{label}: input '{bound.name}' is read at a shape that is not fixed: {shape_text(declared.dims)} - "
            "declare its dims as numbers first"
        )
    keep(proto.graph.input, [info.name != bound.name for info in proto.graph.input])
    keep(proto.graph.initializer, [tensor.name != bound.name for tensor in proto.graph.initializer])
    if live:
        proto.graph.initializer.append(onnx.numpy_helper.from_array(_array(declared, number, shape), bound.name))
    return [f"input '{bound.name}' is {str(number).lower() if isinstance(number, bool) else number}"]
