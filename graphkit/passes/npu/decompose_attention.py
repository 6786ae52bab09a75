"""Compute an attention that is one node, Attention or GroupQueryAttention, by plain operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from onnx import TensorProto, helper

from graphkit.dtypes import FLOATS
from graphkit.graph.view import Node, Value
from graphkit.rewrite import ROUNDING, Builder, Editor, MatchFailure, NewNode, NodeInput, Rewrite

__all__ = ["ATTENTIONS", "AttentionNode", "DecomposeAttention", "HeadSizes", "read_attention"]

AXES_ARE_INPUTS_SINCE = 13
GROUPED = "com.microsoft.GroupQueryAttention"
ATTENTIONS = ("Attention", GROUPED)
ROTARY = (7, 8)  # inputs of a GroupQueryAttention
UNKNOWN = range(9, 14)


@dataclass(frozen=True)
class HeadSizes:
    """The heads of an attention.

    Attributes:
        heads, groups: Of queries, and of keys and values.
        size, value_size: Of a head of queries and keys, and of values.
        is_flat: Whether heads lie side by side, `[batch, length, heads * size]`.
        is_packed: Whether queries, keys and values do so too.
    """

    heads: int
    groups: int
    size: int
    value_size: int
    is_flat: bool
    is_packed: bool


@dataclass(frozen=True, eq=False)
class AttentionNode:
    """The computation of a node of either operator.

    Attributes:
        mask: A bias of scores, or booleans of those that count.
        past: The caches of keys and values.
        window: How many tokens count, 0 for all.
        softcap: The limit of scores, 0 for none.
        rotary: Tables of cosines and sines, by position.
    """

    node: Node
    sizes: HeadSizes
    dtype: int
    mask: Value | None
    past: tuple[Value, Value] | None
    is_causal: bool
    window: int
    scale: float
    softcap: float
    rotary: tuple[Value, Value] | None = None


def read_attention(editor: Editor, node: Node) -> AttentionNode:
    """Return the computation of a node.

    Raises:
        MatchFailure: Plain operators cannot compute it.
    """
    is_grouped = node.operator == GROUPED
    if node.scope.opset() < AXES_ARE_INPUTS_SINCE:
        raise MatchFailure(f"its operator set is below {AXES_ARE_INPUTS_SINCE}")
    _check_parts(node)
    shapes = _head_sizes(editor, node)
    dtype = editor.shapes[node.inputs[0]].dtype
    if dtype not in FLOATS:
        raise MatchFailure("it is not of floats")
    scale, softcap, window = node.attr("scale", 0.0), node.attr("softcap", 0.0), node.attr("local_window_size", -1)
    if scale is None or softcap is None or window is None:
        raise MatchFailure("its scale, softcap or window is not known")
    cos, sin = (node.input(index) for index in ROTARY)
    if (is_turned := bool(is_grouped and node.attr("do_rotary", 0))) and (cos is None or sin is None):
        raise MatchFailure("it has no tables of rotary embeddings")
    keys, values = (node.input(index) for index in ((3, 4) if is_grouped else (4, 5)))
    return AttentionNode(
        node=node,
        sizes=shapes,
        dtype=dtype,
        mask=None if is_grouped else node.input(3),
        past=(keys, values) if keys is not None and values is not None else None,
        is_causal=bool(is_grouped or node.attr("is_causal", 0)),
        window=max(window, 0) if is_grouped else 0,
        scale=scale or shapes.size**-0.5,
        softcap=softcap,
        rotary=(cos, sin) if is_turned and cos is not None and sin is not None else None,
    )


def _head_sizes(editor: Editor, node: Node) -> HeadSizes:
    """Return the heads of a node."""
    operands = [value for value in node.inputs[:3] if value is not None]
    dims = [shape for value in operands if (shape := editor.shapes[value].dims) is not None]
    is_packed, ranks = len(operands) == 1, {len(shape) for shape in dims}
    if len(dims) not in (1, 3) or len(dims) != len(operands) or len(ranks) != 1 or not ranks <= {3, 4}:
        raise MatchFailure("queries, keys and values are not three tensors of rank 3 or of rank 4, or one of rank 3")
    is_flat = ranks == {3}
    if is_flat:
        names = ("num_heads" if node.operator == GROUPED else "q_num_heads", "kv_num_heads")
        heads, groups = (node.attr(name, 0) or 0 for name in names)
    else:
        heads, groups = (shape[1].constant or 0 for shape in dims[:2])
    last = [shape[-1].constant or 0 for shape in dims]
    if heads < 1 or groups < 1 or heads % groups or min(last) < 1 or (is_packed and not is_flat):
        raise MatchFailure("its heads and their size are not known numbers")
    if is_packed:
        size = last[0] // (heads + 2 * groups)
        return HeadSizes(heads, groups, size, size, is_flat, is_packed)
    if not is_flat:
        return HeadSizes(heads, groups, last[0], last[2], is_flat, is_packed)
    return HeadSizes(heads, groups, last[0] // heads, last[2] // groups, is_flat, is_packed)


def _check_parts(node: Node) -> None:
    """Check that all parts of a node are supported here."""
    if len(node.outputs) > 3 and node.outputs[3] is not None:
        raise MatchFailure("it gives its scores too")
    if node.operator != GROUPED:
        if node.input(6) is not None or node.attr("softmax_precision", 0):
            lengths = "it has lengths of its own, or a softmax of another type: export without nonpad_kv_seqlen"
            raise MatchFailure(lengths)
        return
    if any(node.input(index) is not None for index in UNKNOWN):
        more = "it has positions, a bias, sinks or scales of its own: export GroupQueryAttention without them"
        raise MatchFailure(more)
    odd = ("rotary_interleaved", "smooth_softmax", "qk_output", "sliding_window_cache", "kv_cache_bit_width")
    if name := next((name for name in odd if node.attr(name, 0)), ""):
        raise MatchFailure(f"its {name} is set, which has no plain spelling here")


@dataclass(frozen=True)
class DecomposeAttention(Rewrite):
    """Compute Attention and GroupQueryAttention by MatMul, Softmax, and the masks and rotations between them.

    NPU compilers take the parts, and the other passes see caches, masks and positions in them. Sums may be added up in
    another order: the last digits of results may change.

    Legality: heads and their size are known numbers. A GroupQueryAttention reads queries, keys and values apart, has a
    past that grows, and no padding: what its lengths say is taken to be past and new tokens. Sinks, an additive bias,
    interleaved rotary embeddings, quantised caches and scores as an output are declined.

    Before (opset 23):

        agraph (float[N, 2, S, 4] q, float[N, 2, S, 4] k, float[N, 2, S, 4] v) => (float[N, 2, S, 4] y) {
            y = Attention (q, k, v)
        }

    After:

        agraph (float[N, 2, S, 4] q, float[N, 2, S, 4] k, float[N, 2, S, 4] v) => (float[N, 2, S, 4] y)
        <float y_scale = {0.5}> {
            y_keys = Transpose <perm: ints = [0, 1, 3, 2]> (k)
            y_product = MatMul (q, y_keys)
            y_scaled = Mul (y_product, y_scale)
            y_weights = Softmax <axis: int = -1> (y_scaled)
            y = MatMul (y_weights, v)
        }
    """

    largest_error: ClassVar[float] = ROUNDING

    def edit(self, editor: Editor) -> None:
        for scope in editor.scopes:
            for node in scope.nodes:
                if node.operator not in ATTENTIONS or not editor.is_free(node):
                    continue
                with editor.matching(node):
                    parts = _Parts(editor, read_attention(editor, node))
                    parts.compute()
                    parts.replace()
                    editor.note("attention(s) computed by plain operators")


class _Parts(Builder):
    """The nodes that compute an attention."""

    def __init__(self, editor: Editor, attention: AttentionNode) -> None:
        super().__init__(editor, attention.node)
        self.attention = attention

    def compute(self) -> None:
        """Add the nodes."""
        attention, node = self.attention, self.node
        self.qkv = self._apart() if attention.sizes.is_packed else node.inputs[:3]
        query, key, value = map(self._split, self.qkv, ("q", "k", "v"), self._heads(), self._sizes())
        if attention.rotary is not None:
            dims = self.editor.shapes[attention.rotary[0]].dims
            half = (dims[-1].constant if dims else None) or attention.sizes.size // 2
            tables = self._tables()
            query, key = self._turned(query, "q", tables, half), self._turned(key, "k", tables, half)
        self.keys, self.values = self._joined(key, 0), self._joined(value, 1)
        weights = self._weights(query)
        values = self._repeated(self.values, "values", attention.sizes.value_size)
        mixed = self.add("MatMul", weights, values, role="mixed")
        if attention.sizes.is_flat:
            turned = self.add("Transpose", mixed, role="turned", perm=[0, 2, 1, 3])
            shape = self.integers([0, 0, attention.sizes.heads * attention.sizes.value_size], "flat")
            self.add("Reshape", turned, shape)

    def _heads(self) -> tuple[int, int, int]:
        """Return the heads of queries, keys and values."""
        sizes = self.attention.sizes
        return sizes.heads, sizes.groups, sizes.groups

    def _sizes(self) -> tuple[int, int, int]:
        """Return the size of a head of each."""
        sizes = self.attention.sizes
        return sizes.size, sizes.size, sizes.value_size

    def _apart(self) -> list[str]:
        """Return queries, keys and values that lie side by side."""
        columns = [heads * size for heads, size in zip(self._heads(), self._sizes(), strict=True)]
        return self._parts(self.attention.node.inputs[0], columns, "qkv")

    def _parts(self, value: NodeInput, columns: list[int], name: str) -> list[str]:
        parts = [self.name(f"{name}_part") for _ in columns]
        self.nodes.append(NewNode("Split", [value, self.integers(columns, f"{name}_sizes")], parts, {"axis": -1}))
        return parts

    def _number(self, number: float, name: str, dtype: int = 0) -> str:
        kind = helper.tensor_dtype_to_np_dtype(dtype or self.attention.dtype)
        return self.constant(np.array(number, kind), name)

    def _split(self, value: NodeInput, name: str, heads: int, size: int) -> NodeInput:
        """Return `[batch, heads, length, size]`."""
        if not self.attention.sizes.is_flat:
            return value
        apart = self.add("Reshape", value, self.integers([0, 0, heads, size], f"{name}_heads"), role=f"{name}_apart")
        return self.add("Transpose", apart, role=name, perm=[0, 2, 1, 3])

    def _joined(self, new: NodeInput, index: int) -> NodeInput:
        """Return past and new tokens joined, under the name of the output that gives them, where there is one."""
        attention = self.attention
        outputs = attention.node.outputs
        present = outputs[index + 1] if len(outputs) > index + 1 else None
        if attention.past is None and present is None:
            return new
        name = present.name if present is not None else self.name(("keys", "values")[index])
        if attention.past is None:
            self.nodes.append(NewNode("Identity", [new], [name]))
        else:
            self.nodes.append(NewNode("Concat", [attention.past[index], new], [name], {"axis": 2}))
        return name

    def _repeated(self, value: NodeInput, name: str, size: int) -> NodeInput:
        """Return keys or values with a head for each of the queries."""
        sizes = self.attention.sizes
        times = sizes.heads // sizes.groups
        if times == 1:
            return value
        apart = self.add("Unsqueeze", value, self.integers([2], "axis"), role=f"{name}_apart")
        wide = self.add("Expand", apart, self.integers([1, 1, times, 1, 1], "times"), role=f"{name}_wide")
        shape = self.integers([0, sizes.heads, -1, size], f"{name}_shape")
        return self.add("Reshape", wide, shape, role=f"{name}_repeated")

    def _weights(self, query: NodeInput) -> str:
        attention = self.attention
        keys = self.add(
            "Transpose", self._repeated(self.keys, "k", attention.sizes.size), role="keys", perm=[0, 1, 3, 2]
        )
        product = self.add("MatMul", query, keys, role="product")
        scores = self.add("Mul", product, self._number(attention.scale, "scale"), role="scaled")
        if attention.softcap > 0:
            limit = self._number(attention.softcap, "softcap")
            share = self.add("Tanh", self.add("Div", scores, limit, role="share"), role="limited")
            scores = self.add("Mul", share, limit, role="capped")
        if attention.mask is not None:
            scores = self.add("Add", scores, self._bias(attention.mask), role="masked")
        if attention.is_causal:
            scores = self._causal(scores)
        return self.add("Softmax", scores, role="weights", axis=-1)

    def _lowest(self) -> str:
        kind = helper.tensor_dtype_to_np_dtype(self.attention.dtype)
        return self._number(float(np.finfo(kind).min), "lowest") if kind.kind == "f" else self._number(-1e9, "lowest")

    def _bias(self, mask: Value) -> NodeInput:
        if self.editor.shapes[mask].dtype != TensorProto.BOOL:
            return mask
        return self.add("Where", mask, self._number(0, "nothing"), self._lowest(), role="bias")

    def _causal(self, scores: NodeInput) -> str:
        past, _, total = self._lengths()
        step = self._number(1, "step", TensorProto.INT64)
        columns = self.add("Range", self._number(0, "first", TensorProto.INT64), total, step, role="columns")
        rows = self.add("Range", past, total, step, role="places")
        rows = self.add("Unsqueeze", rows, self.integers([1], "column"), role="rows")
        hidden = self.add("Greater", columns, rows, role="future")
        if self.attention.window:
            window = self._number(self.attention.window, "window", TensorProto.INT64)
            old = self.add("LessOrEqual", columns, self.add("Sub", rows, window, role="from"), role="old")
            hidden = self.add("Or", hidden, old, role="hidden")
        return self.add("Where", hidden, self._lowest(), scores, role="causal")

    def _lengths(self) -> tuple[str, str, str]:
        """Return how many tokens came before, how many are new, and both together, as scalars."""
        attention, third = self.attention, self._number(2, "third", TensorProto.INT64)
        axis = self._number(1, "second", TensorProto.INT64) if attention.sizes.is_flat else third

        def length(value: NodeInput, axis: str, name: str) -> str:
            return self.add("Gather", self.add("Shape", value, role=f"{name}_dims"), axis, role=name, axis=0)

        new = length(self.qkv[1], axis, "new")
        if attention.past is None:
            return self._number(0, "first", TensorProto.INT64), new, new
        past = length(attention.past[0], third, "past")
        return past, new, self.add("Add", past, new, role="total")

    def _tables(self) -> tuple[str, str]:
        """Return the cosines and sines at the new positions."""
        rotary = self.attention.rotary
        assert rotary is not None
        past, _, total = self._lengths()
        places = self.add("Range", past, total, self._number(1, "step", TensorProto.INT64), role="rotary_places")
        cos, sin = (
            self.add("Gather", table, places, role=name, axis=0)
            for table, name in zip(rotary, ("cos", "sin"), strict=True)
        )
        return cos, sin

    def _turned(self, value: NodeInput, name: str, tables: tuple[str, str], half: int) -> str:
        """Return queries or keys turned by their positions."""
        cos, sin = tables
        rest = self.attention.sizes.size - 2 * half
        first, second, *unturned = self._parts(value, [half, half, *([rest] if rest else [])], name)

        def times(part: str, table: str) -> str:
            return self.add("Mul", part, table, role=f"{name}_times")

        first_half = self.add("Sub", times(first, cos), times(second, sin), role=f"{name}_first")
        second_half = self.add("Add", times(first, sin), times(second, cos), role=f"{name}_second")
        return self.add("Concat", first_half, second_half, *unturned, role=f"{name}_turned", axis=-1)
