"""Recompute the shapes that must stay dynamic, directly from the dims of the graph inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx

from graphkit.dtypes import INTEGERS
from graphkit.graph.slice_bounds import INT32_MAX, INT64_MAX
from graphkit.graph.view import Node, Value
from graphkit.passes.shapes.canonicalize_expand import expand_spec
from graphkit.passes.shapes.canonicalize_slice import slice_bounds
from graphkit.passes.shapes.emit_dims import DimsEmitter
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.fixpoint import Rewrite
from graphkit.rewrite.reshape_spec import open_spec
from graphkit.shapes import Expr, is_known, lower

__all__ = ["RematerializeShapes"]

Elements = tuple[Expr, ...]


@dataclass(frozen=True)
class DynamicInput:
    """An input of a node whose elements have to be computed at run time."""

    node: Node
    index: int
    elements: Elements
    rank: int
    dtype: int


@dataclass(frozen=True)
class RematerializeShapes(Rewrite):
    """Recompute shapes that stay dynamic: read each symbol once, from one graph input, and each expression once.

    Each node gets the simplest shape that serves it: a Reshape copies and infers what it can, an Expand gets only the
    dims that grow. Bodies read values of the main graph. Legality: the elements are expressions in the dims of the main
    graph's inputs, and the operator set has the operators to compute them. Anything else stays unchanged, and nothing
    is changed unless fewer nodes result.

    Before:

        agraph (float[N, L] x, float[1] w) => (float[N, L] y) <int64[1] one = {1}, int64[1] zero = {0}> {
            a = Neg (x)
            s = Shape (a)
            n = Gather (s, zero)
            b = Abs (a)
            t = Shape (b)
            l = Gather (t, one)
            to = Concat <axis = 0> (n, l)
            y = Expand (w, to)
        }

    After:

        agraph (float[N, L] x, float[1] w) => (float[N, L] y) {
            ["dims/N"] "dims/N" = Shape <end = 1, start = 0> (x)
            ["dims/L"] "dims/L" = Shape <end = 2, start = 1> (x)
            ["dims/N,L"] "dims/N,L" = Concat <axis = 0> ("dims/N", "dims/L")
            y = Expand (w, "dims/N,L")
        }
    """

    def edit(self, editor: Editor) -> None:
        if not any(True for _ in editor.nodes("Shape", "Size")):
            return
        nodes = {node for scope in editor.scopes for node in scope.nodes if _computes_shapes(editor, node)}
        emitter = DimsEmitter(editor)
        met = {(need.node, need.index): need for need in _needs(editor, nodes) if emitter.can_emit(need.elements)}
        dying = len(nodes - _still_needed(editor, nodes, met))
        plan = [(need, emitter.tensor(need.elements, need.rank, need.dtype)) for need in met.values()]
        if not met or emitter.count >= dying:
            return
        for scope_node in emitter.nodes:
            editor.insert_first(editor.model.graph, scope_node)
        for need, name in plan:
            editor.set_inputs(need.node, {need.index: name})
        editor.note("node(s) for computing shapes removed", dying)
        editor.note("node(s) added to compute shapes from the graph inputs", emitter.count)


def _computes_shapes(editor: Editor, node: Node) -> bool:
    if node.bodies or node.is_op("Constant"):
        return False
    outputs = [value for value in node.outputs if value is not None]
    return bool(outputs) and all(_elements(editor, value) is not None for value in outputs)


def _elements(editor: Editor, value: Value) -> Elements | None:
    found = editor.shapes[value]
    if found.dtype not in INTEGERS or not found.may_have_data or (elements := found.elements) is None:
        return None
    known = tuple(element for element in elements if isinstance(element, Expr) and is_known(element))
    return known if len(known) == len(elements) else None


def _needs(editor: Editor, nodes: set[Node]) -> Iterator[DynamicInput]:
    """Yield the inputs at which other nodes read a shape."""
    for scope in editor.scopes:
        for node in scope.nodes:
            if node in nodes or editor.is_taken(node):
                continue
            for index, value in enumerate(node.inputs):
                if value is None or (editor.is_fused(node) and editor.is_fused(value.producer)):
                    continue
                if value.producer in nodes and not value.is_constant:
                    need = _need(editor, node, index, value)
                    if need is not None:
                        yield need


def _need(editor: Editor, node: Node, index: int, value: Value) -> DynamicInput | None:
    found, elements = editor.shapes[value], _elements(editor, value)
    if elements is None or found.rank is None or found.rank > 1:
        return None
    if found.dtype not in (onnx.TensorProto.INT64, onnx.TensorProto.INT32):
        return None
    return DynamicInput(node, index, _least(editor, node, index, value, elements), found.rank, found.dtype)


def _least(editor: Editor, node: Node, index: int, value: Value, elements: Elements) -> Elements:
    """Return the simplest elements that serve a node as well."""
    before, after = map(editor.shapes.dims, (node.input(0), node.outputs[0] if node.outputs else None))
    plain: Sequence[Expr | int] | None = None
    if before is None or after is None:
        return elements
    if node.is_op("Reshape") and index == 1 and node.attr("allowzero", 0) == 0:
        plain = open_spec(before, after)
        if any(isinstance(size, Expr) and lower(size) < 1 for size in plain):  # where it is 0, it would mean "copy"
            return elements
    elif node.is_op("Expand") and index == 1:
        plain = expand_spec(before, after)
    elif node.is_op("Slice") and index in (1, 2) and (bounds := slice_bounds(editor, node)) is not None:
        most = INT32_MAX if editor.shapes[value].dtype == onnx.TensorProto.INT32 else INT64_MAX
        plain = [bound if isinstance(bound := pair[index - 1], Expr) else min(bound, most) for pair in bounds]
    return elements if plain is None else tuple(Expr.of(element) for element in plain)


def _still_needed(editor: Editor, nodes: set[Node], met: dict[tuple[Node, int], DynamicInput]) -> set[Node]:
    """Return the shape nodes that are needed by inputs other than those recomputed."""
    needed: set[Node] = set()
    for scope in editor.scopes:
        pending = [value.producer for value in scope.outputs]
        for node in scope.nodes:
            if node not in nodes:
                read = [value for index, value in enumerate(node.inputs) if (node, index) not in met]
                pending += [value.producer for value in read if value is not None]
        while pending:
            producer = pending.pop()
            if producer is None or producer not in nodes or producer in needed:
                continue
            needed.add(producer)
            pending += [value.producer for value in producer.inputs if value is not None]
    return needed
