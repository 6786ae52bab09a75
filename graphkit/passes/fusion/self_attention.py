"""Find self-attention among plain operators: by what they compute, whatever way the heads are moved there and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from graphkit.graph.view import Node, Value
from graphkit.rewrite.affine import Affine, Reason, affine_of
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.layouts import MOVERS, Group, Layout, after, joined
from graphkit.rewrite.linear import Linear, linear_of

__all__ = ["Projection", "SelfAttention", "self_attention"]

BODY_SINCE = 13  # of the operators that the function is made of
SCALING = ("Mul", "Div")
TAKING = ("Split", "Slice", "Gather")
MASKING = ("Add", "Sub", "Where")
MAX_STEPS = 8  # between scores and their Softmax
ROLES = ("queries", "keys", "values")


@dataclass(frozen=True, eq=False)
class Projection:
    """Queries, keys or values: columns of the product of a tensor and a constant weight.

    Attributes:
        linear: The MatMul.
        weight: Its weight.
        add: The node that adds a bias, where one does.
        shift: What it adds, one number for each column or one.
        layout: How the columns lie in the operand.
        nodes: All nodes from the MatMul to the operand.
    """

    linear: Linear
    weight: Value
    add: Node | None
    shift: np.ndarray
    layout: Layout
    nodes: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class SelfAttention:
    """Softmax(scale * q k') v for each head, q, k and v being linear in one tensor.

    Attributes:
        data: That tensor, `[batch, rows, hidden]`.
        projections: Those of queries, keys and values.
        columns: Which columns of each they are, by heads.
        heads: How many there are.
        scale: What scores are multiplied by.
        product: The MatMul of probabilities and values.
        result: The value that has all heads side by side.
        nodes: All nodes that compute it.
    """

    data: Value
    projections: tuple[Projection, Projection, Projection]
    columns: tuple[np.ndarray, np.ndarray, np.ndarray]
    heads: int
    scale: float
    product: Node
    result: Value
    nodes: frozenset[Node]


def self_attention(editor: Editor, softmax: Node) -> SelfAttention | Reason:
    """Return the attention that a Softmax belongs to, or why no kernel computes it; "" where it is none."""
    product = _reader(softmax.outputs[0])
    if product is None or not product.is_op("MatMul") or product.inputs[0] is not softmax.outputs[0]:
        return Reason()
    scores = _scores(softmax)
    if scores is None:
        return Reason()
    if softmax.scope.opset() < BODY_SINCE:
        return Reason(f"its operator set is below {BODY_SINCE}")
    scaled = _scale(editor, softmax, scores)
    if isinstance(scaled, Reason):
        return scaled
    found: list[Projection] = []
    for role, value in zip(ROLES, (*scores.inputs[:2], product.inputs[1]), strict=True):
        one = _projection(editor, value, role)
        if isinstance(one, Reason):
            return one
        found.append(one)
    return _Parts(editor, softmax, scores, product, scaled, found).attention()


def _reader(value: Value | None) -> Node | None:
    """Return the node that reads a value, any one where there are several."""
    return value.consumers[0][0] if value is not None and value.consumers else None


def _scores(softmax: Node) -> Node | None:
    """Return the MatMul that scores come from, through what scales and masks them."""
    value = softmax.input(0)
    node = value.producer if value is not None else None
    for _ in range(MAX_STEPS):
        if node is None or not node.is_op(*SCALING, *MASKING):
            break
        makers = [value.producer for value in node.inputs if value is not None and value.producer is not None]
        makers = [maker for maker in makers if maker.is_op("MatMul", *SCALING, *MASKING)]
        node = min(makers, key=lambda maker: not maker.is_op("MatMul"), default=None)
    return node if node is not None and node.is_op("MatMul") and len(node.inputs) == 2 else None


def _scale(editor: Editor, softmax: Node, scores: Node) -> tuple[float, tuple[Node, ...]] | Reason:
    """Return what scores are multiplied by before the Softmax, and the nodes that do so."""
    value, dims = softmax.input(0), editor.shapes[softmax.inputs[0]].dims if softmax.inputs[0] is not None else None
    if dims is None or softmax.attr("axis", -1) not in (-1, len(dims) - 1):
        return Reason("the rank of its scores is not known, or its Softmax is over another axis than the last one")
    layout = Layout(((),) * len(dims))
    path: list[Node] = []
    while value is not None and (node := value.producer) is not scores:
        if node is None or not node.is_op(*SCALING):
            return Reason("a mask or a bias is added to its scores, which the fused node would need as an input")
        path.append(node)
        source = _operand(node)
        scaled = after(editor, node, source, value, layout) if source is not None else None
        if scaled is None:
            return Reason(f"'{node.label}' scales its scores by other than one constant number")
        value, layout = source, scaled
    return layout.scale, tuple(path)


def _operand(node: Node) -> Value | None:
    """Return what a node moves, takes a part of, or scales."""
    if node.is_op(*SCALING):
        return next((value for value in node.inputs if value is not None and not value.is_constant), None)
    return node.input(0)


def _projection(editor: Editor, value: Value | None, role: str) -> Projection | Reason:
    path: list[tuple[Node, Value, Value]] = []
    while value is not None and value.producer is not None and value.producer.is_op(*MOVERS, *SCALING, *TAKING):
        source = _operand(value.producer)
        if source is None:
            return Reason(f"its {role} are constant")
        path.append((value.producer, source, value))
        value = source
    node = value.producer if value is not None else None
    if value is None or node is None or node.is_op("Concat"):
        return Reason(f"its {role} are an input, or joined with others, such as a past")
    found = _product(editor, node, value, role)
    if isinstance(found, Reason):
        return found
    linear, add, shift = found
    batch, rows, _ = editor.shapes[value].dims or ()
    layout = Layout.of(batch, rows, linear.result.count)
    for mover, source, out in reversed(path):
        moved = after(editor, mover, source, out, layout)
        if moved is None:
            return Reason(f"'{mover.label}' does something else to its {role} than to tell heads apart")
        layout = moved
    nodes = (linear.node, *([add] if add is not None else []), *(mover for mover, _, _ in path))
    weight = linear.node.inputs[linear.weight]
    assert weight is not None
    return Projection(linear, weight, add, shift, layout, nodes)


def _product(editor: Editor, node: Node, value: Value, role: str) -> tuple[Linear, Node | None, np.ndarray] | Reason:
    """Return the MatMul that gives a value of rank 3, with the Add behind it, if any, and what that adds."""
    add = node if node.is_op("Add") else None
    if add is not None:
        made = [one.producer for one in add.inputs if one is not None and not one.is_constant]
        node = made[0] if len(made) == 1 and made[0] is not None else add
    linear = linear_of(node, editor.shapes)
    if isinstance(linear, Reason):
        return Reason(f"its {role} are not made by a MatMul with a constant weight{': ' * bool(linear)}{linear}")
    if node.op_type != "MatMul" or linear.data != 0 or len(linear.view) != 2 or editor.shapes[value].rank != 3:
        return Reason(f"its {role} are not made by a MatMul of a tensor of rank 3 and a matrix")
    if linear.tensor.data_type != TensorProto.FLOAT:
        return Reason("it is not of float32, for which alone onnxruntime has a kernel on the CPU")
    if add is None:
        return linear, None, np.zeros(1)
    product = node.outputs[0]
    assert product is not None
    shift = affine_of(editor.model, add, product, linear.result, linear.tensor.data_type)
    if not isinstance(shift, Affine) or editor.shapes[product].dims != editor.shapes[value].dims:
        return Reason(f"what is added to its {role} is not one constant number for each column")
    return linear, add, shift.shift


@dataclass(frozen=True, eq=False)
class _Parts:
    """The nodes that may be an attention."""

    editor: Editor
    softmax: Node
    scores: Node
    product: Node
    scaled: tuple[float, tuple[Node, ...]]
    found: Sequence[Projection]

    def attention(self) -> SelfAttention | Reason:
        """Return the attention, or why it is none."""
        query, key, value = self.found
        data = {projection.linear.node.inputs[0] for projection in self.found}
        source = data.pop()
        if data or source is None:
            return Reason("its queries, keys and values are made from different tensors")
        split = self._heads()
        if isinstance(split, Reason):
            return split
        heads, columns = split
        scale = self.scaled[0] * query.layout.scale * key.layout.scale
        if value.layout.scale != 1:
            return Reason("its values are scaled")
        if not np.float32(scale) or not np.isfinite(np.float32(scale)):
            return Reason("its scale is 0 or not finite")
        end = self._result()
        if end is None:
            return Reason("what it gives is not put side by side by heads")
        result, after_it = end
        before = (node for projection in self.found for node in projection.nodes)
        nodes = frozenset([self.softmax, self.scores, self.product, *self.scaled[1], *before, *after_it])
        if reason := self._shared(nodes, result):
            return reason
        return SelfAttention(source, (query, key, value), columns, heads, scale, self.product, result, nodes)

    def _heads(self) -> tuple[int, tuple[np.ndarray, np.ndarray, np.ndarray]] | Reason:
        """Return the number of heads, and which columns queries, keys and values are."""
        query, key, value = (projection.layout for projection in self.found)
        rows_of_data = self._unsplit()[1]
        ranks = {len(layout.dims) for layout in (query, key, value)}
        if len(ranks) != 1 or ranks.pop() < 3:
            return Reason("its queries, keys and values are not of one rank")
        rows = (query.dims[-2], key.dims[-1], value.dims[-2])
        inner = (query.dims[-1], key.dims[-2], value.dims[-1])
        kinds = {atom.kind for group in inner for atom in group}
        if any(group != rows_of_data for group in rows) or kinds - {"column"}:
            return Reason("it does not compare the rows of each batch")
        outer = [[_alike(group) for group in layout.dims[:-2]] for layout in (query, key, value)]
        if outer[0] != outer[1] or outer[0] != outer[2]:
            return Reason("its queries, keys and values have not the same heads")
        every = [
            layout.columns(*layout.dims[:-2], group) for layout, group in zip((query, key, value), inner, strict=True)
        ]
        sizes = [len(layout.columns(group)) for layout, group in zip((query, key, value), inner, strict=True)]
        if sizes[0] != sizes[1]:
            return Reason("its queries and keys are not of one size")
        return len(every[0]) // sizes[0], (every[0], every[1], every[2])

    def _unsplit(self) -> tuple[Group, ...]:
        """Return the batch and the rows of the data."""
        data = self.found[0].linear.node.inputs[0]
        assert data is not None
        batch, rows, _ = self.editor.shapes[data].dims or ()
        return Layout.of(batch, rows, 1).dims[:2]

    def _result(self) -> tuple[Value, list[Node]] | None:
        """Return the value that has the heads side by side, and the nodes between the product and it."""
        query, value = self.found[0].layout, self.found[2].layout
        out, layout = self.product.outputs[0], Layout((*value.dims[:-2], query.dims[-2], value.dims[-1]))
        columns = [atom for group in layout.dims for atom in group if atom.kind == "column"]
        wanted = (*self._unsplit(), joined(columns))
        path: list[Node] = []
        while out is not None and layout.dims != wanted:
            node = _reader(out)
            if node is None or not node.is_op(*MOVERS) or node.outputs[0] is None:
                return None
            moved = after(self.editor, node, out, node.outputs[0], layout)
            if moved is None:
                return None
            path.append(node)
            out, layout = node.outputs[0], moved
        return (out, path) if out is not None else None

    def _shared(self, nodes: frozenset[Node], result: Value) -> Reason:
        """Return what of an attention is needed besides its result, "" for nothing."""
        if any(node.scope is not self.softmax.scope for node in nodes):
            return Reason("its nodes are in several graphs")
        inside = [value for node in nodes for value in node.outputs if value is not None and value is not result]
        for value in sorted(inside, key=lambda one: one.name):
            if self.editor.is_output(value):
                return Reason(f"'{value.name}' is an output")
            if any(reader not in nodes for reader, _ in value.consumers):
                return Reason(f"'{value.name}' is read elsewhere too")
        return Reason()


def _alike(group: Group) -> list[tuple[str, object]]:
    return [(atom.kind, atom.size) for atom in group]
