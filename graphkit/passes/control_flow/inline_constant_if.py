"""Inline the branch of every If whose condition is known before the model runs, or once an input is bound."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
from onnx import TensorProto

from graphkit.dtypes import INTEGERS, dtype_name, integer_range
from graphkit.errors import ModelError, UsageError, did_you_mean
from graphkit.graph.declared_types import TensorType, declared_type, shape_text
from graphkit.graph.view import Node, Scope, Value, all_nodes, all_scopes, body_graphs, branch_fault, walk_postorder
from graphkit.model import Model
from graphkit.passes.clean_up.fold_constants import run_nodes
from graphkit.rewrite import Declined, Outcome, Pass, Premise, copy_proto, drop_inputs, replace_members
from graphkit.rewrite.edits import live_names, remove_dead_code, without_outputs
from graphkit.shapes import Expr, Shapes, infer
from graphkit.shapes.graph_inputs import DimSpec, SymbolRanges

Holder = onnx.GraphProto | onnx.FunctionProto
MAX_ELEMENTS = 1 << 20  # of the constant in the place of an input
MAX_EVALUATED = 200  # nodes between an input and a condition


def decide_branches(
    scopes: tuple[Scope, ...], condition: Callable[[Node], bool | None]
) -> tuple[dict[Node, Scope], list[Node]]:
    """Return the branch that each decided If runs, outer Ifs first, and the Ifs that stay undecided.

    An If stays where its condition is not known (None), or where it is broken, so that no runtime loads it.
    """
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
            taken = condition(node)
            branch = node.bodies.get("then_branch" if taken else "else_branch")
            if taken is None or branch is None or branch_fault(node):
                undecided.append(node)
                continue
            decisions[node] = branch
            dropped.update(body for body in node.bodies.values() if body is not branch)
    return decisions, undecided


def inline_branches(proto: onnx.ModelProto, scopes: tuple[Scope, ...], decisions: Mapping[Node, Scope]) -> None:
    """Replace Ifs by the branches that they run, in place; the scopes of the proto are of no use afterwards.

    Names that would clash are changed; the outputs of an If keep theirs.
    """
    if not decisions:
        return
    inliner = _Inliner(scopes, decisions)
    holders: list[Holder] = [proto.graph, *proto.functions]
    for scope, holder in zip(scopes, holders, strict=True):
        replace_members(holder.node, inliner.emit(scope, holder))


class _Inliner:
    """Assigns final names to the values of inlined branches, and builds the node lists."""

    def __init__(self, scopes: tuple[Scope, ...], decisions: Mapping[Node, Scope]) -> None:
        self.decisions = decisions
        inlined = set(decisions.values())
        pending, self.used = list(scopes), set[str]()
        while pending:  # the scopes that stay, those of undecided Ifs included
            scope = pending.pop()
            self.used.update(() if scope in inlined else scope.values)
            for node in scope.nodes:
                chosen = decisions.get(node)
                pending += [chosen] if chosen is not None else list(node.bodies.values())
        self.final: dict[Value, str] = {}
        for scope in scopes:
            self._assign_names(scope)

    def _assign_names(self, scope: Scope) -> None:
        """Name the values of the branches that are inlined into a scope, and of those inlined into these."""
        for node in scope.nodes:
            if (body := self.decisions.get(node)) is None:
                for inner in node.bodies.values():
                    self._assign_names(inner)
                continue
            for outer, inner_value in zip(node.outputs, body.outputs, strict=False):
                is_unnamed = inner_value.scope is body and inner_value.kind == "node" and inner_value not in self.final
                if outer is not None and is_unnamed:
                    self.final[inner_value] = self.name(outer)
            for value in body.values.values():
                if value not in self.final:
                    self.final[value] = _unique_name(value.name, self.used)
            self._assign_names(body)

    def name(self, value: Value | None) -> str:
        return "" if value is None else self.final.get(value, value.name)

    def emit(self, scope: Scope, target: Holder, taken: set[str] | None = None) -> list[onnx.NodeProto]:
        """Return the nodes of a scope, its decided Ifs replaced; the branches' initializers and types go to `target`.

        In a branch, nodes get other names than those taken around it, or onnxruntime does not load the model.
        """
        nodes: list[onnx.NodeProto] = []
        labels = {node.proto.name for node in scope.nodes if node.proto.name}
        clashing = sorted(labels & taken) if taken is not None else ()
        taken = labels if taken is None else taken
        renamed = {name: _unique_name(name, taken) for name in clashing}
        taken |= labels
        for node in scope.nodes:
            if (body := self.decisions.get(node)) is None:
                nodes.append(self._rewire_node(node))
                if node.proto.name in renamed:
                    nodes[-1].name = renamed[node.proto.name]
                continue
            graph = next(a.g for a in node.proto.attribute if a.name == body.path.rpartition("/")[2])
            self._hoist_from_body(graph, body, target, nodes)
            nodes += self.emit(body, target, taken)
            for outer, inner in zip(node.outputs, body.outputs, strict=False):  # computed elsewhere, or another output
                if outer is not None and self.name(inner) != self.name(outer):
                    name = f"{node.label}/{outer.name}"
                    nodes.append(onnx.helper.make_node("Identity", [self.name(inner)], [self.name(outer)], name=name))
        return nodes

    def _rewire_node(self, node: Node) -> onnx.NodeProto:
        proto = node.proto
        for names, values in ((proto.input, node.inputs), (proto.output, node.outputs)):
            if (new := [self.name(value) for value in values]) != list(names):
                names[:] = new
        for (_, graph), body in zip(body_graphs(proto), node.bodies.values(), strict=True):
            replace_members(graph.node, self.emit(body, graph))
            for info, value in zip(graph.output, body.outputs, strict=True):
                info.name = self.name(value)
        return proto

    def _hoist_from_body(
        self, graph: onnx.GraphProto, body: Scope, target: Holder, nodes: list[onnx.NodeProto]
    ) -> None:
        """Move initializers, declared types and annotations of an inlined branch; a function takes constants."""
        for tensors, attribute in (("initializer", "value"), ("sparse_initializer", "sparse_value")):
            for tensor in getattr(graph, tensors):
                named = tensor if attribute == "value" else tensor.values
                named.name = self.name(body.values[named.name])
                if isinstance(target, onnx.GraphProto):
                    getattr(target, tensors).append(tensor)
                else:
                    nodes.append(onnx.helper.make_node("Constant", [], [named.name], **{attribute: tensor}))
        outputs = {info.name for info in target.output} if isinstance(target, onnx.GraphProto) else set(target.output)
        for info in [*graph.value_info, *graph.output]:
            if (value := body.values.get(info.name)) is not None and self.name(value) not in outputs:
                info.name = self.name(value)
                target.value_info.append(info)
        if isinstance(target, onnx.GraphProto):
            for annotation in graph.quantization_annotation:
                annotation.tensor_name = self.name(body.find(annotation.tensor_name)) or annotation.tensor_name
                for entry in annotation.quant_parameter_tensor_names:
                    entry.value = self.name(body.find(entry.value)) or entry.value
                target.quantization_annotation.append(annotation)


def _unique_name(name: str, used: set[str]) -> str:
    stem, number = re.sub(r"__\d+$", "", name), 1
    while name in used:
        name, number = f"{stem}__{number}", number + 1
    used.add(name)
    return name


@dataclass(frozen=True)
class InlineConstantIf(Pass):
    """Inline the branch of every If whose condition is a constant, or follows from the shapes of tensors.

    Exporters put an If around a Squeeze, for instance, to test the dim that it removes. The branch moves to the place
    of the If. Names that would clash are changed, the outputs of the If keep theirs, and nodes that only the condition
    or the other branch needed are removed. Legality: the condition is the same at all legal input dims; in a function,
    whose calls differ, it is a constant.

    Before:

        agraph (float[N, 1, 4] x) => (float[N, 4] y) <int64[1] one = {1}, int64[1] axis = {1}> {
            d = Shape <start = 1, end = 2> (x)
            c = Equal (d, one)
            y = If (c) <
                then_branch = g1 () => (float[N, 4] a) { a = Squeeze (x, axis) },
                else_branch = g2 () => (float[N, 1, 4] b) { b = Identity (x) }
            >
        }

    After:

        agraph (float[N, 1, 4] x) => (float[N, 4] y) <int64[1] axis = {1}> {
            y = Squeeze (x, axis)
        }

    Attributes:
        ranges: Bounds of symbols, (name, least, largest), None for an open end.
    """

    ranges: SymbolRanges = field(default=(), kw_only=True)

    def run(self, model: Model) -> Outcome:
        if not any(node.is_op("If") for node in all_nodes(model.scopes)):
            return Outcome(model)
        shapes = cache(lambda: infer(model, DimSpec(ranges=self.ranges)))  # which few conditions need
        decisions, undecided = decide_branches(model.scopes, lambda node: _known_condition(model, node, shapes))
        reason = "its condition is only known at run time"
        declined = tuple(Declined(node.path, branch_fault(node) or reason) for node in undecided)
        if not decisions:
            return Outcome(model, declined=declined)
        branches = {node: body.path.rpartition("/")[2] for node, body in decisions.items()}
        changes = [f"'{node.path}' always runs {branch}" for node, branch in branches.items()]
        copy = model.with_proto(copy_proto(model))
        same = dict(zip(all_nodes(model.scopes), all_nodes(copy.scopes), strict=True))
        inline_branches(copy.proto, copy.scopes, {same[node]: same[node].bodies[branches[node]] for node in decisions})
        return Outcome(remove_dead_code(copy.with_proto(copy.proto)).model, tuple(changes), declined)


def _known_condition(model: Model, node: Node, shapes: Callable[[], Shapes]) -> bool | None:
    if (value := node.input(0)) is None or (value.kind == "input" and value.tensor is None):
        return None
    if value.constant is not None:
        elements = model.array(value.constant).ravel()
        return bool(elements[0]) if elements.size == 1 else None
    if not model.graph.contains(node.scope) or any(body.contains(node.scope) for body in shapes().impossible):
        return None
    first, *more = shapes()[value].elements or (None,)
    number = first.constant if isinstance(first, Expr) and not more else None
    return None if number is None else number != 0


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
        copied = model.with_proto(copy_proto(model))
        proto, scopes = copied.proto, copied.scopes
        inputs = {value.name: value for value in scopes[0].inputs}
        if self.input not in inputs:
            raise UsageError(f"{model.label}: no input '{self.input}' - {did_you_mean(self.input, inputs)}")
        bound = inputs[self.input]
        declared = _check_type(bound, self.value, model.label)
        if (left_alone := without_outputs(model)) is not None:
            return Outcome(model, declined=(left_alone,))
        array = np.full((1,) * len(declared.dims or ()), self.value, declared.numpy_dtype)
        decisions, undecided = decide_branches(scopes, lambda node: _condition_value(copied, node, bound, array))
        inline_branches(proto, scopes, decisions)
        changes = [f"'{node.path}' always runs {body.path.rpartition('/')[2]}" for node, body in decisions.items()]
        inlined = model.with_proto(proto)
        if inlined.graph.values[bound.name].consumers and bound.name not in live_names(proto.graph):
            proto = remove_dead_code(inlined).model.proto  # which alone reads the input
        live, text = bound.name in live_names(proto.graph), shape_text(declared.dims)
        dims = declared.dims if declared.dims is not None else ("?",)
        shape = tuple(dim for dim in dims if isinstance(dim, int))
        if live and len(shape) != len(dims):
            problem = f"input '{bound.name}' is read at a shape that is not fixed: {text}"
            raise UsageError(f"{model.label}: {problem} - declare its dims as numbers first")
        if live and math.prod(shape) > MAX_ELEMENTS:
            problem = f"input '{bound.name}' is read, and its shape {text} is too large for a constant"
            raise UsageError(f"{model.label}: {problem} - at most {MAX_ELEMENTS:,} elements are written")
        drop_inputs(proto.graph, (bound.name,))
        if live:
            constant = np.full(shape, self.value, declared.numpy_dtype)
            proto.graph.initializer.append(onnx.numpy_helper.from_array(constant, bound.name))
        number = str(self.value).lower() if isinstance(self.value, bool) else self.value
        changes.append(f"input '{bound.name}' is {number}")
        reason = f"its condition does not follow from '{self.input}' alone"
        declined = tuple(Declined(node.path, branch_fault(node) or reason) for node in undecided)
        return Outcome(model.with_proto(proto), tuple(changes), declined)


def _check_type(value: Value, number: bool | int, label: str) -> TensorType:
    if (declared := declared_type(value)) is None or declared.dtype not in INTEGERS:
        kind = dtype_name(declared.dtype) if declared is not None else "not a tensor"
        raise UsageError(f"{label}: input '{value.name}' is {kind} - only a boolean or an integer can be bound")
    least, most = integer_range(declared.dtype)
    if declared.dtype != TensorProto.BOOL and not least <= number <= most:
        raise UsageError(f"{label}: input '{value.name}' is {dtype_name(declared.dtype)} - it cannot be {number}")
    return declared


def _condition_value(model: Model, node: Node, bound: Value, array: np.ndarray) -> bool | None:
    """Return the value of an If's condition, or None where it does not follow from the bound input."""

    def sources(value: Value) -> Sequence[Value | None]:
        return value.producer.inputs if value.producer is not None and _is_plain(value.producer) else ()

    value = node.input(0)
    values = list(walk_postorder([value] if value is not None else [], sources))
    nodes = list(dict.fromkeys(each.producer for each in values if each is not bound and each.constant is None))
    plain = [each for each in nodes if each is not None and _is_plain(each)]
    if value is None or len(plain) < len(nodes) or len(nodes) > MAX_EVALUATED:
        return None
    try:
        if plain:
            (array,) = run_nodes(model, plain, [value], {bound: array})
        elif value.constant is not None:
            array = model.array(value.constant)
    except ModelError:  # then nothing is known
        return None
    return bool(array.reshape(-1)[0]) if array.size == 1 else None


def _is_plain(node: Node) -> bool:
    return not (node.bodies or node.domain)
