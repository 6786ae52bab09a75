"""Compute an attention that is one node, Attention or GroupQueryAttention, by plain operators."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from onnx import TensorProto, helper

from graphkit.dtypes import FLOATS
from graphkit.graph.operator_traits import RESHAPING
from graphkit.graph.view import Node, Value, unwrapped
from graphkit.rewrite import ROUNDING, Builder, Editor, MatchFailure, NewNode, NodeInput, Rewrite
from graphkit.rewrite.base import Premise
from graphkit.rewrite.element_bounds import UNBOUNDED, FloatBounds, Interval
from graphkit.shapes import Expr

__all__ = ["DecomposeAttention"]

AXES_ARE_INPUTS_SINCE = 13
SHORT_MASKS_SINCE = 24  # masks that end before the keys do, which hide the rest
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


@dataclass(frozen=True)
class Mask:
    """The mask of an attention.

    Attributes:
        value: A bias of scores, or booleans: which keys count.
        rank: Its rank.
        is_boolean: Whether it is booleans.
        may_be_short: Whether it may end before the keys do.
        may_hide_all: Whether it may leave a query without any key.
    """

    value: Value
    rank: int
    is_boolean: bool
    may_be_short: bool
    may_hide_all: bool


@dataclass(frozen=True, eq=False)
class AttentionNode:
    """The computation of a node of either operator.

    Attributes:
        past: The caches of keys and values.
        window: How many tokens count, 0 for all.
        softcap: The limit of scores, 0 for none.
        rotary: Tables of cosines and sines, by position.
    """

    node: Node
    sizes: HeadSizes
    dtype: int
    mask: Mask | None
    past: tuple[Value, Value] | None
    is_causal: bool
    window: int
    scale: float
    softcap: float
    rotary: tuple[Value, Value] | None = None


class _MaskBounds(FloatBounds):
    """Bounds of masks: those that a model is given may hold -inf."""

    def transfer(self, value: Value) -> Interval:
        return UNBOUNDED if value.producer is None and value.constant is None else super().transfer(value)


def _read_attention(editor: Editor, node: Node, bounds: FloatBounds, *, is_unpadded: bool) -> AttentionNode:
    """Return the computation of a node.

    Raises:
        MatchFailure: Plain operators cannot compute it.
    """
    is_grouped = node.operator == GROUPED
    if node.scope.opset() < AXES_ARE_INPUTS_SINCE:
        raise MatchFailure(f"its operator set is below {AXES_ARE_INPUTS_SINCE}")
    _check_parts(node)
    sizes = _head_sizes(editor, node)
    dtype = editor.shapes[node.inputs[0]].dtype
    if dtype not in FLOATS:
        raise MatchFailure("it is not of floats")
    scale, softcap, window = node.attr("scale", 0.0), node.attr("softcap", 0.0), node.attr("local_window_size", -1)
    if scale is None or softcap is None or window is None or scale < 0:
        raise MatchFailure("its scale is negative, or an attribute has another type than it should")
    keys, values = (node.input(index) for index in ((3, 4) if is_grouped else (4, 5)))
    past = (keys, values) if keys is not None and values is not None else None
    total = _total(editor, node, keys)
    if is_grouped and not is_unpadded:
        _check_lengths(editor, node, total)
    cos, sin = (node.input(index) for index in ROTARY) if is_grouped and node.attr("do_rotary", 0) else (None, None)
    return AttentionNode(
        node=node,
        sizes=sizes,
        dtype=dtype,
        mask=None if is_grouped else _read_mask(editor, node, dtype, total, bounds),
        past=past,
        is_causal=bool(is_grouped or node.attr("is_causal", 0)),
        window=max(window, 0) if is_grouped else 0,
        scale=scale or sizes.size**-0.5,
        softcap=softcap,
        rotary=(cos, sin) if cos is not None and sin is not None else None,
    )


def _total(editor: Editor, node: Node, past: Value | None) -> Expr | None:
    """Return how many keys there are, with those of the past."""
    keys = editor.shapes.dims(node.input(1) or node.input(0))
    before = editor.shapes.dims(past) if past is not None else None
    if keys is None or (past is not None and before is None):
        return None
    return keys[-2] + before[2] if before is not None else keys[-2]


def _read_mask(editor: Editor, node: Node, dtype: int, total: Expr | None, bounds: FloatBounds) -> Mask | None:
    if (mask := node.input(3)) is None:
        return None
    shape = editor.shapes[mask]
    if not shape.dims or len(shape.dims) > 4 or shape.dtype not in (dtype, TensorProto.BOOL):
        raise MatchFailure("its mask is not known to be of booleans, or of the dtype of its scores, and of rank 1 to 4")
    is_boolean = shape.dtype == TensorProto.BOOL
    return Mask(
        mask,
        rank=len(shape.dims),
        is_boolean=is_boolean,
        may_be_short=node.scope.opset() >= SHORT_MASKS_SINCE and shape.dims[-1] != total,
        may_hide_all=is_boolean or not bounds.of(mask).low > np.finfo(FLOATS[dtype]).min,
    )


def _check_lengths(editor: Editor, node: Node, total: Expr | None) -> None:
    """Check that all sequences of a GroupQueryAttention are as long as its past and the new tokens."""
    lengths = node.input(5)
    last = unwrapped(lengths, ("Cast", "Expand", "Identity", *RESHAPING)) if lengths is not None else None
    elements = editor.shapes[last].elements if last is not None else None
    if not elements or total is None or any(element != total - 1 for element in elements):
        raise MatchFailure(
            "its lengths may leave out padding - where there is none, run decompose-attention{unpadded=true}"
        )


def _head_sizes(editor: Editor, node: Node) -> HeadSizes:
    """Return the heads of a node."""
    operands = [value for value in node.inputs[:3] if value is not None]
    dims = [shape for value in operands if (shape := editor.shapes[value].dims) is not None]
    is_packed, ranks = len(operands) == 1, {len(shape) for shape in dims}
    if len(dims) not in (1, 3) or len(dims) != len(operands) or len(ranks) != 1 or not ranks <= {3, 4}:
        raise MatchFailure("queries, keys and values are not three tensors of rank 3 or of rank 4, or one of rank 3")
    is_flat = ranks == {3}
    names = ("num_heads" if node.operator == GROUPED else "q_num_heads", "kv_num_heads")
    told = [node.attr(name, 0) or 0 for name in names]
    heads, groups, *rest = told if is_flat else [shape[1].constant or 0 for shape in dims]
    last = [shape[-1].constant or 0 for shape in dims]
    if heads < 1 or groups < 1 or heads % groups or min(last) < 1 or (is_packed and not is_flat):
        raise MatchFailure("its heads and their size are not known numbers")
    if rest not in ([], [groups]) or (not is_flat and any(told) and told != [heads, groups]):
        raise MatchFailure("its attributes, keys and values do not have the same heads")
    columns = [heads + 2 * groups] if is_packed else [heads, groups, groups] if is_flat else [1, 1, 1]
    size, *others = (width // count for width, count in zip(last, columns, strict=True))
    if any(width % count for width, count in zip(last, columns, strict=True)) or size != (others or [size])[0]:
        raise MatchFailure("its queries and keys are not heads of one size")
    return HeadSizes(heads, groups, size, (others or [size])[-1], is_flat, is_packed)


def _check_parts(node: Node) -> None:
    """Check that all parts of a node are supported here."""
    if any(attribute.ref_attr_name for attribute in node.attributes.values()):
        raise MatchFailure("the call of a function gives its attributes: run inline-functions first")
    if len(node.outputs) > 3 and node.outputs[3] is not None:
        raise MatchFailure("it gives its scores too")
    if node.operator != GROUPED:
        if node.input(6) is not None or node.attr("softmax_precision", 0):
            lengths = "it has lengths of its own, or a softmax of another type: export without nonpad_kv_seqlen"
            raise MatchFailure(lengths)
        if any(node.attr(f"{side}_window_size", -1) != -1 for side in ("left", "right")):
            raise MatchFailure("it has a window, which has no plain spelling here")
        return
    if any(node.input(index) is not None for index in UNKNOWN):
        more = "it has positions, a bias, sinks or scales of its own: export GroupQueryAttention without them"
        raise MatchFailure(more)
    odd = ("rotary_interleaved", "smooth_softmax", "qk_output", "sliding_window_cache", "kv_cache_bit_width")
    if name := next((name for name in odd if node.attr(name, 0)), ""):
        raise MatchFailure(f"its {name} is set, which has no plain spelling here")
    if node.attr("do_rotary", 0) and any(node.input(index) is None for index in ROTARY):
        raise MatchFailure("it has no tables of rotary embeddings")


@dataclass(frozen=True)
class DecomposeAttention(Rewrite):
    """Compute Attention and GroupQueryAttention by MatMul, Softmax, and the masks and rotations between them.

    NPU compilers take the parts, and the other passes see caches, masks and positions in them. Sums may be added up in
    another order: the last digits of results may change. A query for which the mask leaves no key gives 0: all that is
    added to its scores is -inf or, as in onnxruntime, the least number of the dtype.

    Legality: heads and their size are known numbers. A GroupQueryAttention reads queries, keys and values apart, has a
    past that grows, and lengths that are past and new tokens together. Sinks, an additive bias, interleaved rotary
    embeddings, windows of opset 25, quantised caches and scores as an output are declined.

    Attributes:
        unpadded: Whether lengths of a GroupQueryAttention that depend on data are taken to be past and new tokens too.

    Before (opset 23):

        agraph (float[N, 2, S, 4] q, float[N, 2, S, 4] k, float[N, 2, S, 4] v) => (float[N, 2, S, 4] y) {
            y = Attention (q, k, v)
        }

    After:

        agraph (float[N, 2, S, 4] q, float[N, 2, S, 4] k, float[N, 2, S, 4] v) => (float[N, 2, S, 4] y)
        <float y_scale = {0.5}> {
            y_keys = Transpose <perm: ints = [0, 1, 3, 2]> (k)
            y_scaled = Mul (q, y_scale)
            y_scores = MatMul (y_scaled, y_keys)
            y_weights = Softmax <axis: int = -1> (y_scores)
            y = MatMul (y_weights, v)
        }
    """

    largest_error: ClassVar[float] = ROUNDING
    unpadded: bool = False

    def edit(self, editor: Editor) -> None:
        bounds = _MaskBounds(editor.model, editor.shapes)
        for scope in editor.scopes:
            for node in scope.nodes:
                if node.operator not in ATTENTIONS or not editor.is_free(node):
                    continue
                with editor.matching(node):
                    parts = _Parts(editor, _read_attention(editor, node, bounds, is_unpadded=self.unpadded))
                    parts.compute()
                    parts.replace()
                    editor.note("attention(s) computed by plain operators")

    def premise(self) -> Premise:
        return super().premise() | Premise(is_unpadded=self.unpadded)


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
        scaled = self.add("Mul", query, self._number(attention.scale, "scale"), role="scaled")
        scores = self.add("MatMul", scaled, keys, role="scores")
        if attention.softcap > 0:
            limit = self._number(attention.softcap, "softcap")
            share = self.add("Tanh", self.add("Div", scores, limit, role="share"), role="limited")
            scores = self.add("Mul", share, limit, role="capped")
        if (bias := self._bias()) is None:
            return self.add("Softmax", scores, role="weights", axis=-1)
        weights = self.add("Softmax", self.add("Add", scores, bias, role="masked"), role="weights", axis=-1)
        if attention.mask is None or not attention.mask.may_hide_all:
            return weights
        largest = self.add("ReduceMax", bias, self.integers([-1], "last"), role="largest")
        is_empty = self.add("LessOrEqual", largest, self._lowest(), role="without_keys")
        return self.add("Where", is_empty, self._number(0, "nothing"), weights, role="kept")

    def _lowest(self) -> str:
        return self._number(float(np.finfo(FLOATS[self.attention.dtype]).min), "lowest")

    def _bias(self) -> NodeInput:
        """Return what is added to scores: the least number where keys do not count."""
        mask = self._whole_mask()
        causal = self._causal() if self.attention.is_causal else None
        if self.attention.mask is None or not self.attention.mask.is_boolean:
            if causal is None:
                return mask
            return self.add("Where", causal, mask or self._number(0, "nothing"), self._lowest(), role="bias")
        counted = mask if causal is None else self.add("And", mask, causal, role="counted")
        return self.add("Where", counted, self._number(0, "nothing"), self._lowest(), role="bias")

    def _whole_mask(self) -> NodeInput:
        """Return a mask that is as long as the keys."""
        mask = self.attention.mask
        if mask is None or not mask.may_be_short:
            return None if mask is None else mask.value
        length = self.add("Shape", mask.value, role="mask_length", start=mask.rank - 1)
        whole = self.add("Unsqueeze", self.total, self.integers([0], "first_axis"), role="whole")
        missing = self.add("Sub", whole, length, role="missing")
        before = self.integers([0] * (2 * mask.rank - 1), "none_missing")
        pads = self.add("Concat", before, missing, role="pads", axis=0)
        dtype = TensorProto.BOOL if mask.is_boolean else self.attention.dtype
        hidden = self._number(False if mask.is_boolean else -np.inf, "hidden", dtype)
        return self.add("Pad", mask.value, pads, hidden, role="mask")

    def _causal(self) -> str:
        """Return booleans: which keys come no later than a query, and are in its window."""
        step = self._number(1, "step", TensorProto.INT64)
        columns = self.add("Range", self._number(0, "first", TensorProto.INT64), self.total, step, role="columns")
        end = self.add("Add", self.past, self._length(self.qkv[0], -2, "queries"), role="end")
        rows = self.add("Range", self.past, end, step, role="places")
        rows = self.add("Unsqueeze", rows, self.integers([1], "column"), role="rows")
        counted = self.add("LessOrEqual", columns, rows, role="causal")
        if not self.attention.window:
            return counted
        window = self._number(self.attention.window, "window", TensorProto.INT64)
        is_near = self.add("Greater", columns, self.add("Sub", rows, window, role="from"), role="near")
        return self.add("And", counted, is_near, role="in_window")

    def _length(self, value: NodeInput, axis: int, name: str) -> str:
        """Return a dim of a value, as a scalar."""
        place = self._number(axis, "axis", TensorProto.INT64)
        return self.add("Gather", self.add("Shape", value, role=f"{name}_dims"), place, role=name, axis=0)

    @cached_property
    def past(self) -> str:
        """How many tokens came before."""
        past = self.attention.past
        return self._length(past[0], -2, "past") if past else self._number(0, "first", TensorProto.INT64)

    @cached_property
    def total(self) -> str:
        """How many keys there are, with those of the past."""
        new = self._length(self.qkv[1], -2, "new")
        return self.add("Add", self.past, new, role="total") if self.attention.past else new

    def _tables(self) -> tuple[str, str]:
        """Return the cosines and sines at the new positions."""
        rotary = self.attention.rotary
        assert rotary is not None
        step = self._number(1, "step", TensorProto.INT64)
        places = self.add("Range", self.past, self.total, step, role="rotary_places")
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
