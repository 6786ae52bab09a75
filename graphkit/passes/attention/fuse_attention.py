"""Find self-attention among plain operators by its arithmetic, and make it one node that onnxruntime has a kernel for.

However the heads are moved there and back, the layout of each tensor is followed: a dim is a row of atoms, the first of
which counts slowest. `[batch, rows, columns]`, reshaped and transposed to heads, is `[batch, heads, rows, size]`, where
heads and size are two atoms of the columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import onnx
import onnx.parser
from msgspec import Struct
from msgspec.structs import replace
from onnx import TensorProto

from graphkit.graph.operator_traits import CUTTING, REARRANGING, SAME_ORDER, cut_bounds, joined_parts
from graphkit.graph.view import Node, Value, all_nodes, chain_end, functions_of
from graphkit.ops.tensor import Dims, dims_product
from graphkit.passes.fusion.fold_into_weights import Linear, affine_of, linear_of
from graphkit.passes.shapes.simplify_reshape import reshape_spec
from graphkit.rewrite import ROUNDING, Editor, MatchFailure, NewNode, NodeInput, NodeRewrite
from graphkit.rewrite.edits import INITIALIZERS_SINCE
from graphkit.rewrite.weight_arithmetic import columns_of, read_elements, round_numbers
from graphkit.shapes import Expr, const
from graphkit.symbolic.algebra import divide_exactly
from graphkit.symbolic.expr import TooComplexError

SCALING = ("Mul", "Div")
TAKING = CUTTING - {"Compress"} | {"Gather"}

Kind = Literal["batch", "row", "column"]
BODY_SINCE = 13  # of the operators that the function is made of
MASKING = ("Add", "Sub", "Where")
Columns = tuple[np.ndarray, np.ndarray, np.ndarray]
ROLES = ("queries", "keys", "values")
ROWS_AND_BATCH = (1, 0, 2)  # the order that swaps these two
DOMAIN, NAME = "com.microsoft", "Attention"
SAYS = (
    "Self-attention of an input, whose queries, keys and values are input * weights + bias, side by side. onnxruntime "
    "has a kernel of this name; other runtimes inline the function."
)
TEXT = """
<domain: "com.microsoft", opset_import: ["" : {opset}]>
Attention <num_heads, qkv_hidden_sizes, scale> (input, weights, bias) => (output) {{
    hidden_sizes = Constant <value_ints: ints = @qkv_hidden_sizes> ()
    heads = Constant <value_int: int = @num_heads> ()
    factor = Constant <value_float: float = @scale> ()
    head_sizes = Div (hidden_sizes, heads)
    each = Constant <value_ints: ints = [1, 1, 1]> ()
    head_size, key_size, value_size = Split <axis: int = 0> (head_sizes, each)
    queries_size, keys_size, values_size = Split <axis: int = 0> (hidden_sizes, each)
    batch_and_rows = Constant <value_ints: ints = [0, 0]> ()
    first = Constant <value_ints: ints = [0]> ()
    head_count = Unsqueeze (heads, first)
    by_heads = Concat <axis: int = 0> (batch_and_rows, head_count, head_size)
    values_by_heads = Concat <axis: int = 0> (batch_and_rows, head_count, value_size)
    side_by_side = Concat <axis: int = 0> (batch_and_rows, values_size)
    product = MatMul (input, weights)
    projected = Add (product, bias)
    queries, keys, values = Split <axis: int = -1> (projected, hidden_sizes)
    queries_apart = Reshape (queries, by_heads)
    keys_apart = Reshape (keys, by_heads)
    values_apart = Reshape (values, values_by_heads)
    q = Transpose <perm: ints = [0, 2, 1, 3]> (queries_apart)
    k = Transpose <perm: ints = [0, 2, 3, 1]> (keys_apart)
    v = Transpose <perm: ints = [0, 2, 1, 3]> (values_apart)
    scores = MatMul (q, k)
    scaled = Mul (scores, factor)
    probabilities = Softmax <axis: int = -1> (scaled)
    mixed = MatMul (probabilities, v)
    mixed_by_rows = Transpose <perm: ints = [0, 2, 1, 3]> (mixed)
    output = Reshape (mixed_by_rows, side_by_side)
}}
"""


class Atom(Struct, frozen=True):
    """A dim, or a factor of one."""

    kind: Kind  # the thing that it counts
    size: Expr  # how many there are
    stride: int = 1  # how far apart they are, counted in single batches, rows or columns


Group = tuple[Atom, ...]


class Layout(Struct, frozen=True):
    """The meaning of a tensor's dims."""

    dims: tuple[Group, ...]  # the atoms of each dim, none for a dim of 1
    first: int = 0  # the first column; the others are counted from it
    scale: float = 1.0  # what all elements are multiplied by

    def reshape_layout(self, dims: Dims) -> Layout | None:
        """Return that of the same elements in other dims, None where a dim is no row of atoms."""
        rest = [atom for group in self.dims for atom in group]
        try:
            groups = [_take_atoms(rest, dim) for dim in dims]
        except TooComplexError:
            return None
        regrouped = tuple(group for group in groups if group is not None)
        return replace(self, dims=regrouped) if len(regrouped) == len(groups) and not rest else None

    def part(self, axis: int, start: int, count: int) -> Layout | None:
        """Return that of some neighbours on an axis of columns."""
        if not (group := self.dims[axis]) or group[0].kind != "column":
            return None
        inner = math.prod(int(atom.size) for atom in group[1:])
        if start % inner or count % inner or count < 1:
            return None
        atom = replace(group[0], size=const(count // inner))
        dims = (*self.dims[:axis], join_atoms([atom, *group[1:]]), *self.dims[axis + 1 :])
        return replace(self, dims=dims, first=self.first + start // inner * atom.stride)

    def columns(self, *groups: Sequence[Atom]) -> np.ndarray:
        """Return which column each element along some atoms is, the last atom counting fastest."""
        columns = np.array([self.first])
        for atom in (atom for group in groups for atom in group if atom.kind == "column"):
            columns = (columns[:, None] + np.arange(int(atom.size)) * atom.stride).reshape(-1)
        return columns


def join_atoms(atoms: Iterable[Atom]) -> Group:
    """Return atoms without those of 1, and as one where they count on from each other."""
    merged: list[Atom] = []
    for atom in atoms:
        if atom.size == const(1):
            continue
        before = merged[-1] if merged else None
        size = atom.size.constant
        if before is not None and size and (before.kind, before.stride) == (atom.kind, atom.stride * size):
            merged[-1] = replace(atom, size=before.size * size)
        else:
            merged.append(atom)
    return tuple(merged)


def _take_atoms(rest: list[Atom], dim: Expr) -> Group | None:
    """Take the atoms of a dim from the first ones of a list; cut one where the dim ends inside of it."""
    group: list[Atom] = []
    size = const(1)
    while size != dim:
        if not rest or size == const(0):
            return None
        atom = rest.pop(0)
        factor = divide_exactly(dim, size)
        cut, whole = factor.constant, atom.size.constant
        if factor * size == dim and cut and whole and whole > cut:
            if whole % cut:
                return None
            inner = whole // cut
            rest.insert(0, replace(atom, size=const(inner)))
            atom = replace(atom, size=factor, stride=atom.stride * inner)
        group.append(atom)
        size = size * atom.size
    return join_atoms(group)


def layout_after(editor: Editor, node: Node, value: Value, out: Value, before: Layout) -> Layout | None:
    """Return the layout of a node's output from that of a tensor that it reads; None where it does anything else."""
    dims = editor.shapes[out].dims
    if dims is None or node.domain or [operand is value for operand in node.inputs].count(True) != 1:
        return None
    if node.is_op(*SCALING):
        factor = next((operand for operand in node.operands if operand is not value), None)
        number = editor.uniform(factor) if factor is not None and factor.is_constant else None
        if number is None or editor.shapes[value].dims != dims:
            return None
        if node.is_op("Mul"):
            return replace(before, scale=before.scale * number)
        return replace(before, scale=before.scale / number) if number and node.inputs[0] is value else None
    if node.inputs[0] is not value:
        return None
    if node.is_op("Transpose"):
        perm = node.attr("perm", tuple(reversed(range(len(dims))))) or ()
        is_order = sorted(perm) == list(range(len(before.dims)))
        return replace(before, dims=tuple(before.dims[axis] for axis in perm)) if is_order else None
    if node.is_op(*SAME_ORDER):
        return before.reshape_layout(dims)
    return _layout_after_part(editor, node, out, dims, before) if node.is_op(*TAKING) else None


def _layout_after_part(editor: Editor, node: Node, out: Value, dims: Dims, before: Layout) -> Layout | None:
    """Return the layout behind a node that takes neighbours on an axis of columns."""
    axis, places = node.axis(len(before.dims)), editor.known_integers(node.input(1))
    if bounds := cut_bounds(node):
        axes, steps = map(editor.known_integers, bounds[2:])
        is_plain = steps in ([1], None if bounds[3] is None else [1])
        axis = axes[0] % len(before.dims) if is_plain and axes is not None and len(axes) == 1 else None
    if axis is None:
        return None
    if node.is_op("Split"):
        shapes = [editor.shapes[value].dims for value in node.outputs[: out.output_index + 1]]
        sizes = [size for each in shapes if each is not None and (size := each[axis].constant) is not None]
        return before.part(axis, sum(sizes[:-1]), sizes[-1]) if len(sizes) == len(shapes) else None
    whole = dims_product(atom.size for atom in before.dims[axis]).constant
    if whole is None or places is None or len(places) != 1:
        return None
    (start,) = places
    if node.is_op("Gather"):
        part = before.part(axis, start % whole, 1) if -whole <= start < whole else None
        return part.reshape_layout(dims) if part is not None else None
    count = dims[axis].constant
    start = max(start + whole, 0) if start < 0 else min(start, whole)
    return before.part(axis, start, count) if count is not None else None


class Projection(Struct, frozen=True, eq=False):
    """Queries, keys or values: columns of the product of a tensor and a constant weight."""

    linear: Linear  # the MatMul
    weight: Value  # its weight
    add: Node | None  # the node that adds a bias, where one does
    shift: np.ndarray  # the bias, one number for each column or one
    layout: Layout  # how the columns lie in the operand
    nodes: tuple[Node, ...]  # all nodes from the MatMul to the operand


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
    """Return the queries, keys or values that a value is, or raise a MatchFailure; rows may come before the batch."""
    path: list[tuple[Node, Value, Value]] = []
    while value is not None and value.producer is not None and value.producer.is_op(*REARRANGING, *SCALING, *TAKING):
        if (source := moved_operand(value.producer)) is None:
            raise MatchFailure(f"its {role} are constant")
        path.append((value.producer, source, value))
        value = source
    node = value.producer if value is not None else None
    if value is None or node is None or joined_parts(node):
        raise MatchFailure(f"its {role} are an input, or joined with others, such as a past")
    linear, add, shift = _match_product(editor, node, value, role)
    batch, rows = batch_and_rows(editor, value, is_turned=is_turned)
    columns = join_atoms([Atom("column", const(linear.result.count))])
    layout = Layout((rows, batch, columns) if is_turned else (batch, rows, columns))
    for mover, source, out in reversed(path):
        if (moved := layout_after(editor, mover, source, out, layout)) is None:
            raise MatchFailure(f"'{mover.label}' does something else to its {role} than to tell heads apart")
        layout = moved
    nodes = (linear.node, *([add] if add is not None else []), *(mover for mover, _, _ in path))
    return Projection(linear, linear.node.operand(linear.weight), add, shift, layout, nodes)


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


class Joined(Struct, frozen=True, eq=False):
    """The result of an attention, its heads joined."""

    value: Value  # the value
    nodes: tuple[Node, ...]  # those between the product and it
    is_turned: bool  # whether rows come before the batch
    spec: tuple[int, ...] | None  # the shape that makes it of `[batch, rows, hidden]`, None where it has these dims


def self_attention(editor: Editor, softmax: Node) -> SelfAttention:
    """Return the attention that a Softmax belongs to; raise a MatchFailure where no kernel computes it."""
    readers = softmax.outputs[0].consumers if softmax.outputs[0] is not None else []
    product = next((reader for reader, index in readers if reader.is_op("MatMul") and index == 0), None)

    def before(node: Node) -> Node | None:
        if not node.is_op(*SCALING, *MASKING):
            return None
        makers = [value.producer for value in node.operands if value.producer is not None]
        makers = [maker for maker in makers if maker.is_op("MatMul", *SCALING, *MASKING)]
        return min(makers, key=lambda maker: not maker.is_op("MatMul"), default=None)

    value = softmax.input(0)
    node = chain_end(value.producer, before) if value is not None and value.producer is not None else softmax
    scores = node if node.is_op("MatMul") and len(node.inputs) == 2 else None
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
        try:
            return SelfAttention(editor, softmax, scores, product, scaled, projections, is_turned=is_turned)
        except MatchFailure as failure:
            failures.append(failure)
    raise failures[0]


def _match_scale(editor: Editor, softmax: Node, scores: Node) -> tuple[float, tuple[Node, ...]]:
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


class SelfAttention:
    """Softmax(scale * q k') v for each head, q, k and v being linear in one tensor."""

    def __init__(
        self,
        editor: Editor,
        softmax: Node,
        scores: Node,
        product: Node,
        scaled: tuple[float, tuple[Node, ...]],
        projections: Sequence[Projection],
        *,
        is_turned: bool,
    ) -> None:
        query, key, value = self.projections = projections
        self.editor, self.product, self.is_turned = editor, product, is_turned
        self.data = query.linear.node.operand(0)  # [batch, rows, hidden], or [rows, batch, hidden] if it is turned
        self._batch, self._rows = batch_and_rows(editor, self.data, is_turned=is_turned)
        self.heads, self.columns = self._read_heads()  # those of each projection that are its queries, keys or values
        self.scale = scaled[0] * query.layout.scale * key.layout.scale
        if value.layout.scale != 1:
            raise MatchFailure("its values are scaled")
        with np.errstate(over="ignore", under="ignore"):
            if not np.float32(self.scale) or not np.isfinite(np.float32(self.scale)):
                raise MatchFailure("its scale is 0 or not finite")
        if (result := self._find_result()) is None:
            raise MatchFailure("what it gives is not put side by side by heads")
        self.result = result
        before = (node for projection in projections for node in projection.nodes)
        linears = [projection.linear for projection in projections]
        is_ordered = np.array_equal(np.concatenate(self.columns), np.arange(linears[0].result.count))
        self.is_whole = is_ordered and all(linear.node is linears[0].node for linear in linears)
        self.nodes = frozenset([softmax, scores, product, *scaled[1], *before, *result.nodes])
        nodes = self.nodes
        if any(node.scope is not softmax.scope for node in nodes):
            raise MatchFailure("its nodes are in several graphs")
        inside = [inner for node in nodes for inner in node.results if inner is not self.result.value]
        for inner in sorted(inside, key=lambda inner: inner.name):
            if inner.is_output:
                raise MatchFailure(f"'{inner.name}' is an output")
            if any(reader not in nodes for reader, _ in inner.consumers):
                raise MatchFailure(f"'{inner.name}' is read elsewhere too")

    def _read_heads(self) -> tuple[int, Columns]:
        layouts = [projection.layout for projection in self.projections]
        query, key, value = layouts
        ranks = {len(layout.dims) for layout in layouts}
        if len(ranks) != 1 or ranks.pop() < 3:
            raise MatchFailure("its queries, keys and values are not of one rank")
        rows = (query.dims[-2], key.dims[-1], value.dims[-2])
        inner = (query.dims[-1], key.dims[-2], value.dims[-1])
        are_columns = all(atom.kind == "column" for group in inner for atom in group)
        if any(group != self._rows for group in rows) or not are_columns:
            raise MatchFailure("it does not compare the rows of each batch")

        def shared_fields(group: Group) -> list[object]:
            return [(atom.kind, atom.size, atom.kind == "column" or atom.stride) for atom in group]

        outer = [list(map(shared_fields, each.dims[:-2])) for each in layouts]
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
        query, value = self.projections[0].layout, self.projections[2].layout
        out, layout = self.product.outputs[0], Layout((*value.dims[:-2], query.dims[-2], value.dims[-1]))
        columns = join_atoms([atom for group in layout.dims for atom in group if atom.kind == "column"])
        plain, turned = (self._batch, self._rows, columns), (self._rows, self._batch, columns)
        path: list[Node] = []
        fallback: Joined | None = None
        while out is not None:
            if layout.dims in (plain, turned):
                return Joined(out, tuple(path), layout.dims != plain, None)
            atoms = ([atom for group in dims for atom in group] for dims in (layout.dims, plain, turned))
            flat, flat_plain, flat_turned = map(join_atoms, atoms)
            if (dims := self.editor.shapes[out].dims) is not None and flat in (flat_plain, flat_turned):
                is_turned = flat != flat_plain
                sizes = ([atom.size for atom in group] for group in (self._batch, self._rows))
                batch, rows = map(dims_product, sizes)
                count = const(len(value.columns(*value.dims)))
                spec = reshape_spec((rows, batch, count) if is_turned else (batch, rows, count), dims)
                if spec is not None:  # a value of other dims, which a constant shape gives
                    fallback = Joined(out, tuple(path), is_turned, spec)
            node = out.consumers[0][0] if out.consumers else None
            moved_out = node.outputs[0] if node is not None and node.is_op(*REARRANGING) else None
            if node is None or moved_out is None:
                break
            if (moved := layout_after(self.editor, node, out, moved_out, layout)) is None:
                break
            path.append(node)
            out, layout = moved_out, moved
        return fallback


def attention_function(opset: int) -> onnx.FunctionProto:
    """Return the function, in operators of a version that is at least 13."""
    function = onnx.parser.parse_function(TEXT.format(opset=opset))
    function.doc_string = SAYS
    return function


class FuseAttention(NodeRewrite):
    """Make self-attention, from the projections to the heads side by side, one com.microsoft.Attention.

    onnxruntime has a kernel of that name. The model gets a function of the same name, in standard operators, so that it
    stays standard ONNX: every other runtime and compiler can inline it, as `inline-functions` does. Sums may be added
    up in another order: the last digits of results may change.

    Legality: queries, keys and values are columns of products of one tensor of rank 3 and constant weights, float32, in
    one MatMul or several, with or without biases, moved to heads in whatever way; constant numbers scale queries, keys
    or scores. Nothing masks the scores, no past is joined, and nothing else reads what is in between. The operator set
    is at least 13. The model has no other function of that name, and no nodes of it without a function.

    Before:

        agraph (float[N, 3, 2] x) => (float[N, 3, 2] y)
        <float[2, 6] w = {1.0, 0.0, 1.0, 0.0, 1.0, 2.0, 0.0, 1.0, 0.0, 1.0, 3.0, 1.0},
         float[6] bias = {0.0, 1.0, 0.0, 2.0, 0.0, 0.0}, int64[4] heads = {0, 0, 2, 1}, int64[3] flat = {0, 0, 2}> {
            product = MatMul (x, w)
            qkv = Add (product, bias)
            q, k, v = Split <axis: int = 2> (qkv)
            a = Reshape (q, heads)
            b = Reshape (k, heads)
            c = Reshape (v, heads)
            d = Transpose <perm: ints = [0, 2, 1, 3]> (a)
            e = Transpose <perm: ints = [0, 2, 3, 1]> (b)
            f = Transpose <perm: ints = [0, 2, 1, 3]> (c)
            g = MatMul (d, e)
            h = Softmax (g)
            i = MatMul (h, f)
            j = Transpose <perm: ints = [0, 2, 1, 3]> (i)
            y = Reshape (j, flat)
        }

    After:

        agraph (float[N, 3, 2] x) => (float[N, 3, 2] y)
        <float[2, 6] w = {1.0, 0.0, 1.0, 0.0, 1.0, 2.0, 0.0, 1.0, 0.0, 1.0, 3.0, 1.0},
         float[6] bias = {0.0, 1.0, 0.0, 2.0, 0.0, 0.0}> {
            y = com.microsoft.Attention
                <num_heads: int = 2, qkv_hidden_sizes: ints = [2, 2, 2], scale: float = 1> (x, w, bias)
        }
    """

    largest_error = ROUNDING
    operators = ("Softmax",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        attention = self_attention(editor, node)
        if not all(map(editor.is_free, attention.nodes)):
            return
        function = attention_function(attention.product.scope.opset())
        if editor.model.proto.ir_version < INITIALIZERS_SINCE:
            raise MatchFailure(f"its IR version is below {INITIALIZERS_SINCE}, and functions need 8")
        has, name = functions_of(editor.model.proto).get((DOMAIN, NAME, "")), f"{DOMAIN}.{NAME}"
        if has is not None and (list(has.node) != list(function.node) or list(has.input) != list(function.input)):
            raise MatchFailure(f"the model has another function '{name}'")
        if has is None and any(each.operator == name for each in all_nodes(editor.model.scopes)):
            raise MatchFailure(f"the model has nodes of {name}, which the function would redefine for other runtimes")
        nodes = _make_nodes(editor, attention, _joined_weight(editor, attention), _joined_bias(editor, attention))
        last = attention.result.value.producer
        assert last is not None
        editor.functions[DOMAIN, NAME] = function
        editor.replace(last, *nodes)
        for gone in attention.nodes - {last}:
            editor.take(gone)
        editor.note("attention(s) fused: onnxruntime has a kernel for the node, other runtimes inline its function")


def _make_nodes(editor: Editor, attention: SelfAttention, weight: NodeInput, bias: NodeInput) -> list[NewNode]:
    """Return the node, with the Transposes of its rows before and of its result after it where they lie otherwise."""
    result, out = attention.result, attention.result.value.name
    data: NodeInput = attention.data
    nodes: list[NewNode] = []
    if attention.is_turned:
        data = editor.unique_name(f"{out}_data")
        nodes.append(NewNode("Transpose", [attention.data], [data], {"perm": ROWS_AND_BATCH}))
    sizes = [len(columns) for columns in attention.columns]
    attributes = {"num_heads": attention.heads, "qkv_hidden_sizes": sizes, "scale": attention.scale}
    count = result.is_turned + (result.spec is not None)  # of the nodes after it
    names = [*(editor.unique_name(f"{out}_mixed") for _ in range(count)), out]
    nodes.append(NewNode(NAME, [data, weight, bias], names[:1], attributes, domain=DOMAIN, like=attention.product))
    if result.is_turned:
        nodes.append(NewNode("Transpose", names[:1], names[1:2], {"perm": ROWS_AND_BATCH}))
    if result.spec is not None:
        nodes.append(editor.make_reshape(names[-2], result.spec, out))
    return nodes


def _joined_weight(editor: Editor, attention: SelfAttention) -> NodeInput:
    """Return the weight of queries, keys and values side by side, the old one where it is so."""
    first = attention.projections[0]
    if attention.is_whole:
        return first.weight
    for projection in attention.projections:
        if any(reader not in attention.nodes for reader, _ in projection.weight.consumers):
            raise MatchFailure(f"its weight '{projection.weight.name}' is read elsewhere too")
    weights = [read_elements(editor.model, projection.linear.tensor) for projection in attention.projections]
    dims = [weights[0].shape[0], sum(map(len, attention.columns))]
    parts = columns_of(weights, attention.columns)
    return editor.weight(f"{first.weight.name.removesuffix('_joined')}_qkv", first.linear.tensor.data_type, dims, parts)


def _joined_bias(editor: Editor, attention: SelfAttention) -> NodeInput:
    """Return the bias of queries, keys and values side by side, the old one where it is so; zeros for none."""
    first = attention.projections[0]
    added = [value for value in first.add.operands if value.constant is not None] if first.add is not None else []
    for value in added if attention.is_whole else ():
        if value.constant is not None and list(value.constant.dims) == [first.linear.result.count]:
            return value
    pairs = zip(attention.projections, attention.columns, strict=True)
    numbers = [np.broadcast_to(each.shift, (each.linear.result.count,))[columns] for each, columns in pairs]
    rounded = round_numbers(np.concatenate(numbers), first.linear.tensor.data_type)
    return editor.constant(rounded, f"{first.weight.name}_bias")
