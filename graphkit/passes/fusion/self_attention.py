"""Find self-attention among plain operators by its arithmetic, however the heads are moved there and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from graphkit.graph.traversal import chain_end
from graphkit.graph.view import Node, Value
from graphkit.passes.fusion.head_layout import MOVERS, Atom, Group, Layout, join_atoms, layout_after
from graphkit.passes.fusion.linear_operators import Linear, affine_of, linear_of
from graphkit.rewrite import Editor, MatchFailure
from graphkit.rewrite.reshape_spec import reshape_spec
from graphkit.shapes import const

__all__ = [
    "SCALING",
    "Projection",
    "SelfAttention",
    "batch_and_rows",
    "moved_operand",
    "projection_of",
    "self_attention",
]

SCALING = ("Mul", "Div")
TAKING = ("Split", "Slice", "Gather")


@dataclass(frozen=True, eq=False)
class Projection:
    """Queries, keys or values: columns of the product of a tensor and a constant weight.

    Attributes:
        linear: The MatMul.
        weight: Its weight.
        add: The node that adds a bias, where one does.
        shift: The bias, one number for each column or one.
        layout: How the columns lie in the operand.
        nodes: All nodes from the MatMul to the operand.
    """

    linear: Linear
    weight: Value
    add: Node | None
    shift: np.ndarray
    layout: Layout
    nodes: tuple[Node, ...]


def batch_and_rows(editor: Editor, data: Value, *, is_turned: bool) -> tuple[Group, Group]:
    """Return the groups that count batch and rows in data of rank 3, whose rows come first if it is turned."""
    first, second, _ = editor.shapes[data].dims or ()
    batch, rows = (second, first) if is_turned else (first, second)
    return join_atoms([Atom("batch", batch)]), join_atoms([Atom("row", rows)])


def moved_operand(node: Node) -> Value | None:
    """Return the input that a node moves, takes a part of, or scales."""
    if node.is_op(*SCALING):
        return next((value for value in node.operands if not value.is_constant), None)
    return node.input(0)


def projection_of(editor: Editor, value: Value | None, role: str, *, is_turned: bool) -> Projection:
    """Return the queries, keys or values that a value is; rows may come before the batch.

    Raises:
        MatchFailure: It is none of them.
    """
    path: list[tuple[Node, Value, Value]] = []
    while value is not None and value.producer is not None and value.producer.is_op(*MOVERS, *SCALING, *TAKING):
        source = moved_operand(value.producer)
        if source is None:
            raise MatchFailure(f"its {role} are constant")
        path.append((value.producer, source, value))
        value = source
    node = value.producer if value is not None else None
    if value is None or node is None or node.is_op("Concat"):
        raise MatchFailure(f"its {role} are an input, or joined with others, such as a past")
    linear, add, shift = _match_product(editor, node, value, role)
    batch, rows = batch_and_rows(editor, value, is_turned=is_turned)
    columns = join_atoms([Atom("column", const(linear.result.count))])
    layout = Layout((rows, batch, columns) if is_turned else (batch, rows, columns))
    for mover, source, out in reversed(path):
        moved = layout_after(editor, mover, source, out, layout)
        if moved is None:
            raise MatchFailure(f"'{mover.label}' does something else to its {role} than to tell heads apart")
        layout = moved
    nodes = (linear.node, *([add] if add is not None else []), *(mover for mover, _, _ in path))
    weight = linear.node.operand(linear.weight)
    return Projection(linear, weight, add, shift, layout, nodes)


def _match_product(editor: Editor, node: Node, value: Value, role: str) -> tuple[Linear, Node | None, np.ndarray]:
    """Return the MatMul that gives a value of rank 3, with the Add behind it, if any, and its bias."""
    add = node if node.is_op("Add") else None
    if add is not None:
        made = [operand.producer for operand in add.operands if not operand.is_constant]
        node = made[0] if len(made) == 1 and made[0] is not None else add
    try:
        linear = linear_of(node, editor.shapes)
    except MatchFailure as failure:
        why = f": {failure.reason}" if failure.reason else ""
        raise MatchFailure(f"its {role} are not made by a MatMul with a constant weight{why}") from failure
    if node.op_type != "MatMul" or linear.data != 0 or len(linear.view) != 2 or editor.shapes[value].rank != 3:
        raise MatchFailure(f"its {role} are not made by a MatMul of a tensor of rank 3 and a matrix")
    if linear.tensor.data_type != TensorProto.FLOAT:
        raise MatchFailure("it is not of float32, for which alone onnxruntime has a kernel on the CPU")
    if add is None:
        return linear, None, np.zeros(1)
    product = node.result()
    added = MatchFailure(f"what is added to its {role} is not one constant number for each column")
    try:
        shift = affine_of(editor.model, add, product, linear.result, linear.tensor.data_type).shift
    except MatchFailure:
        raise added from None
    if editor.shapes[product].dims != editor.shapes[value].dims:
        raise added
    return linear, add, shift


BODY_SINCE = 13  # of the operators that the function is made of
MASKING = ("Add", "Sub", "Where")
Columns = tuple[np.ndarray, np.ndarray, np.ndarray]
ROLES = ("queries", "keys", "values")


@dataclass(frozen=True, eq=False)
class Joined:
    """The result of an attention, its heads joined.

    Attributes:
        value: The value.
        nodes: Those between the product and it.
        is_turned: Whether rows come before the batch.
        spec: The shape that makes it of `[batch, rows, hidden]`, None where it has these dims.
    """

    value: Value
    nodes: tuple[Node, ...]
    is_turned: bool
    spec: tuple[int, ...] | None


@dataclass(frozen=True, eq=False)
class SelfAttention:
    """Softmax(scale * q k') v for each head, q, k and v being linear in one tensor.

    Attributes:
        data: That tensor, `[batch, rows, hidden]`.
        is_turned: Whether it is `[rows, batch, hidden]` instead.
        projections: Those of queries, keys and values.
        columns: Which columns of each they are, by heads.
        heads: How many there are.
        scale: The factor of scores.
        product: The MatMul of probabilities and values.
        result: The result with all heads side by side.
        nodes: All nodes that compute it.
    """

    data: Value
    is_turned: bool
    projections: tuple[Projection, Projection, Projection]
    columns: Columns
    heads: int
    scale: float
    product: Node
    result: Joined
    nodes: frozenset[Node]


def self_attention(editor: Editor, softmax: Node) -> SelfAttention:
    """Return the attention that a Softmax belongs to.

    Raises:
        MatchFailure: It belongs to none, or no kernel computes it.
    """
    readers = softmax.outputs[0].consumers if softmax.outputs[0] is not None else []
    product = next((reader for reader, index in readers if reader.is_op("MatMul") and index == 0), None)
    scores = _match_scores(softmax)
    if product is None or scores is None:
        raise MatchFailure
    if softmax.scope.opset() < BODY_SINCE:
        raise MatchFailure(f"its operator set is below {BODY_SINCE}: run convert-opset first")
    scaled = _match_scale(editor, softmax, scores)
    operands = list(zip(ROLES, (*scores.inputs[:2], product.inputs[1]), strict=True))
    failures: list[MatchFailure] = []
    for is_turned in (False, True):
        projections = [projection_of(editor, value, role, is_turned=is_turned) for role, value in operands]
        data = projections[0].linear.node.inputs[0]
        if data is None or any(projection.linear.node.inputs[0] is not data for projection in projections):
            raise MatchFailure("its queries, keys and values are made from different tensors")
        batch, rows = batch_and_rows(editor, data, is_turned=is_turned)
        parts = _Parts(
            editor=editor,
            softmax=softmax,
            scores=scores,
            product=product,
            batch=batch,
            rows=rows,
            scaled=scaled,
            found=projections,
        )
        try:
            return parts.attention(data, is_turned=is_turned)
        except MatchFailure as failure:
            failures.append(failure)
    raise failures[0]


def _any_reader(value: Value | None) -> Node | None:
    """Return the node that reads a value, any one where there are several."""
    return value.consumers[0][0] if value is not None and value.consumers else None


def _match_scores(softmax: Node) -> Node | None:
    """Return the MatMul that computes scores, through the nodes that scale and mask them."""
    value = softmax.input(0)
    if value is None or value.producer is None:
        return None
    node = chain_end(value.producer, _before_scaling)
    return node if node.is_op("MatMul") and len(node.inputs) == 2 else None


def _before_scaling(node: Node) -> Node | None:
    """Return the producer of the scores that a node scales or masks."""
    if not node.is_op(*SCALING, *MASKING):
        return None
    makers = [value.producer for value in node.operands if value.producer is not None]
    makers = [maker for maker in makers if maker.is_op("MatMul", *SCALING, *MASKING)]
    return min(makers, key=lambda maker: not maker.is_op("MatMul"), default=None)


def _match_scale(editor: Editor, softmax: Node, scores: Node) -> tuple[float, tuple[Node, ...]]:
    """Return the factor of scores before the Softmax, and the nodes that apply it."""
    value, dims = softmax.input(0), editor.shapes[softmax.inputs[0]].dims
    if dims is None or softmax.attr("axis", -1) not in (-1, len(dims) - 1):
        raise MatchFailure("the rank of its scores is not known, or its Softmax is over another axis than the last one")
    layout = Layout(((),) * len(dims))
    path: list[Node] = []
    while value is not None and (node := value.producer) is not scores:
        if node is None or not node.is_op(*SCALING):
            raise MatchFailure("a mask or a bias is added to its scores, which the fused node would need as an input")
        path.append(node)
        source = moved_operand(node)
        scaled = layout_after(editor, node, source, value, layout) if source is not None else None
        if scaled is None:
            raise MatchFailure(f"'{node.label}' scales its scores by other than one constant number")
        value, layout = source, scaled
    return layout.scale, tuple(path)


@dataclass(frozen=True, eq=False)
class _Parts:
    """The nodes that may be an attention.

    Attributes:
        batch, rows: The dims of the data that count these.
        scaled: The factor of scores, and the nodes that apply it.
        found: Queries, keys and values.
    """

    editor: Editor
    softmax: Node
    scores: Node
    product: Node
    batch: Group
    rows: Group
    scaled: tuple[float, tuple[Node, ...]]
    found: Sequence[Projection]

    def attention(self, data: Value, *, is_turned: bool) -> SelfAttention:
        """Return the attention, of data that may have its rows first."""
        query, key, value = self.found
        heads, columns = self._read_heads()
        scale = self.scaled[0] * query.layout.scale * key.layout.scale
        if value.layout.scale != 1:
            raise MatchFailure("its values are scaled")
        with np.errstate(over="ignore", under="ignore"):
            if not np.float32(scale) or not np.isfinite(np.float32(scale)):
                raise MatchFailure("its scale is 0 or not finite")
        result = self._find_result()
        if result is None:
            raise MatchFailure("what it gives is not put side by side by heads")
        before = (node for projection in self.found for node in projection.nodes)
        nodes = frozenset([self.softmax, self.scores, self.product, *self.scaled[1], *before, *result.nodes])
        self._check_readers(nodes, result.value)
        return SelfAttention(
            data=data,
            is_turned=is_turned,
            projections=(query, key, value),
            columns=columns,
            heads=heads,
            scale=scale,
            product=self.product,
            result=result,
            nodes=nodes,
        )

    def _read_heads(self) -> tuple[int, Columns]:
        """Return the number of heads, and which columns queries, keys and values are."""
        layouts = [projection.layout for projection in self.found]
        query, key, value = layouts
        ranks = {len(layout.dims) for layout in layouts}
        if len(ranks) != 1 or ranks.pop() < 3:
            raise MatchFailure("its queries, keys and values are not of one rank")
        rows = (query.dims[-2], key.dims[-1], value.dims[-2])
        inner = (query.dims[-1], key.dims[-2], value.dims[-1])
        if any(group != self.rows for group in rows) or any(atom.kind != "column" for group in inner for atom in group):
            raise MatchFailure("it does not compare the rows of each batch")
        outer = [[_shared_properties(group) for group in layout.dims[:-2]] for layout in layouts]
        if outer[0] != outer[1] or outer[0] != outer[2]:
            raise MatchFailure("its queries, keys and values have not the same heads")
        pairs = list(zip(layouts, inner, strict=True))
        sizes = [len(layout.columns(group)) for layout, group in pairs]
        if sizes[0] != sizes[1] or 0 in sizes:
            raise MatchFailure("its queries and keys are not of one size")
        of_query, of_key, of_value = (layout.columns(*layout.dims[:-2], group) for layout, group in pairs)
        return len(of_query) // sizes[0], (of_query, of_key, of_value)

    def _find_result(self) -> Joined | None:
        """Return the first value that has the heads side by side as three dims, else the last one in others."""
        query, value = self.found[0].layout, self.found[2].layout
        out, layout = self.product.outputs[0], Layout((*value.dims[:-2], query.dims[-2], value.dims[-1]))
        columns = join_atoms([atom for group in layout.dims for atom in group if atom.kind == "column"])
        plain, turned = (self.batch, self.rows, columns), (self.rows, self.batch, columns)
        path: list[Node] = []
        fallback: Joined | None = None
        while out is not None:
            if layout.dims in (plain, turned):
                return Joined(out, tuple(path), layout.dims != plain, None)
            flat = join_atoms([atom for group in layout.dims for atom in group])
            if flat in (_flatten_groups(plain), _flatten_groups(turned)):
                fallback = self._reshaped_value(out, path, is_turned=flat != _flatten_groups(plain)) or fallback
            node = _any_reader(out)
            after_it = node.outputs[0] if node is not None and node.is_op(*MOVERS) else None
            moved = (
                layout_after(self.editor, node, out, after_it, layout)
                if node is not None and after_it is not None
                else None
            )
            if node is None or moved is None:
                break
            path.append(node)
            out, layout = after_it, moved
        return fallback

    def _reshaped_value(self, out: Value, path: Sequence[Node], *, is_turned: bool) -> Joined | None:
        """Return a value of other dims, where a constant shape gives them."""
        dims = self.editor.shapes[out].dims
        if dims is None:
            return None
        columns = len(self.found[2].layout.columns(*self.found[2].layout.dims))
        sizes = {group: math.prod((atom.size for atom in group), start=const(1)) for group in (self.batch, self.rows)}
        order = (self.rows, self.batch) if is_turned else (self.batch, self.rows)
        spec = reshape_spec((*(sizes[group] for group in order), const(columns)), dims)
        return Joined(out, tuple(path), is_turned, spec) if spec is not None else None

    def _check_readers(self, nodes: frozenset[Node], result: Value) -> None:
        """Check that no tensor of an attention is needed besides its result."""
        if any(node.scope is not self.softmax.scope for node in nodes):
            raise MatchFailure("its nodes are in several graphs")
        inside = [value for node in nodes for value in node.results if value is not result]
        for value in sorted(inside, key=lambda value: value.name):
            if self.editor.is_output(value):
                raise MatchFailure(f"'{value.name}' is an output")
            if any(reader not in nodes for reader, _ in value.consumers):
                raise MatchFailure(f"'{value.name}' is read elsewhere too")


def _flatten_groups(dims: Sequence[Group]) -> Group:
    return join_atoms([atom for group in dims for atom in group])


def _shared_properties(group: Group) -> list[tuple[object, ...]]:
    """Return the properties that queries, keys and values must share."""
    return [(atom.kind, atom.size, atom.stride if atom.kind != "column" else 0) for atom in group]
