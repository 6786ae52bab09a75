"""Compute an attention that is one node, such as Attention or GroupQueryAttention, by plain operators."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from msgspec import Struct
from onnx import TensorProto, helper

from graphkit.dtypes import FLOATS
from graphkit.graph.new_nodes import make_concat, make_gather, make_reshape, make_slice
from graphkit.graph.operator_traits import ANGLES, COSINES, GROUPED, KEY_LENGTHS, PAST_KEYS, RESHAPING, SCORE_BIASES
from graphkit.graph.view import Node, Value, unwrap_value
from graphkit.rewrite import ROUNDING, Builder, Editor, MatchFailure, NewNode, NodeInput, Premise, Rewrite
from graphkit.rewrite.element_bounds import UNBOUNDED, ElementBounds, Interval
from graphkit.shapes import Expr, Shapes

AXES_ARE_INPUTS_SINCE = 13
SHORT_MASKS_SINCE = 24  # masks that end before the keys do, which hide the rest
MULTI = "com.microsoft.MultiHeadAttention"
ATTENTIONS = tuple(PAST_KEYS)
HEADS = {
    "Attention": ("q_num_heads", "kv_num_heads"),
    GROUPED: ("num_heads", "kv_num_heads"),
    MULTI: ("num_heads",) * 2,
}
SINKS = 11  # the input of a GroupQueryAttention: a score of each head for no key at all
ROTARY = slice(COSINES[GROUPED], COSINES[GROUPED] + 2)
(POSITIONS,), (LENGTHS,) = ANGLES[GROUPED], KEY_LENGTHS[GROUPED]
UNSUPPORTED: Mapping[str, tuple[Sequence[int], str]] = {  # operator -> inputs, and what it is with them
    "Attention": ((6,), "it has lengths of its own: export it without nonpad_kv_seqlen"),
    GROUPED: ((12, 13), "it has scales of its own: export GroupQueryAttention without them"),
    MULTI: ((3, 4, 8, 9), "it has a bias, a mask of keys or lengths of its own: export it without them"),
}


class HeadSizes(Struct, frozen=True):
    """The heads of an attention."""

    heads: int  # of queries, and of keys and values
    groups: int
    size: int  # of a head of queries and keys, and of values
    value_size: int
    is_flat: bool  # whether heads of queries lie side by side, `[batch, length, heads * size]`
    has_flat_keys: bool  # whether those of keys and values do so too
    is_packed: bool  # whether queries, keys and values do so too


class _MaskBounds(ElementBounds):
    """Bounds of masks: those that a model is given may hold -inf."""

    def transfer(self, value: Value) -> Interval:
        return UNBOUNDED if value.producer is None and value.constant is None else super().transfer(value)


def _head_sizes(editor: Editor, node: Node) -> HeadSizes:
    operands = [value for value in node.inputs[:3] if value is not None]
    dims = [shape for value in operands if (shape := editor.shapes[value].dims) is not None]
    is_packed, ranks = len(operands) == 1, [len(shape) for shape in dims]
    if len(dims) != len(operands) or ranks not in ([3], [3, 3, 3], [4, 4, 4], [3, 4, 4]):
        raise MatchFailure("queries, keys and values are not three tensors of rank 3 or of rank 4, or one of rank 3")
    is_flat, has_flat_keys = ranks[0] == 3, ranks[-1] == 3
    told = [node.attr(name, 0) or 0 for name in HEADS[node.operator]]
    heads, groups, *rest = told if is_flat else [shape[1].constant or 0 for shape in dims]
    last = [shape[-1].constant or 0 for shape in dims]
    if heads < 1 or groups < 1 or heads % groups or min(last) < 1:
        raise MatchFailure("its heads and their size are not known numbers")
    if rest not in ([], [groups]) or (not is_flat and any(told) and told != [heads, groups]):
        raise MatchFailure("its attributes, keys and values do not have the same heads")
    if is_flat and not has_flat_keys and any(shape[1].constant != groups for shape in dims[1:]):
        raise MatchFailure("its keys and values do not have as many heads as its attributes say")
    of_keys = groups if has_flat_keys else 1
    columns = [heads + 2 * groups] if is_packed else [heads if is_flat else 1, of_keys, of_keys]
    size, *others = (width // count for width, count in zip(last, columns, strict=True))
    if any(width % count for width, count in zip(last, columns, strict=True)) or size != (others or [size])[0]:
        raise MatchFailure("its queries and keys are not heads of one size")
    layout = {"is_flat": is_flat, "has_flat_keys": has_flat_keys, "is_packed": is_packed}
    return HeadSizes(heads, groups, size, (others or [size])[-1], **layout)


def _check_parts(node: Node) -> None:
    if node.scope.opset() < AXES_ARE_INPUTS_SINCE:
        raise MatchFailure(f"its operator set is below {AXES_ARE_INPUTS_SINCE}")
    if any(attribute.ref_attr_name for attribute in node.attributes.values()):
        raise MatchFailure("the call of a function gives its attributes: run inline-functions first")
    if len(node.outputs) > 3 and node.outputs[3] is not None:
        raise MatchFailure("it gives its scores too: export it without a fourth output")
    inputs, reason = UNSUPPORTED[node.operator]
    if any(node.input(index) is not None for index in inputs):
        raise MatchFailure(reason)
    if node.operator == "Attention":
        if node.attr("softmax_precision", 0):
            raise MatchFailure("its softmax has a dtype of its own: export it without softmax_precision")
        if any(node.attr(f"{side}_window_size", -1) != -1 for side in ("left", "right")):
            raise MatchFailure("it has a window, which has no plain spelling here")
    if node.operator != GROUPED:
        return
    odd = ("qk_output", "sliding_window_cache", "kv_cache_bit_width")
    if name := next((name for name in odd if node.attr(name, 0)), ""):
        raise MatchFailure(f"its {name} is set, which has no plain spelling here")
    if node.attr("do_rotary", 0) and (len(node.inputs[ROTARY]) < 2 or None in node.inputs[ROTARY]):
        raise MatchFailure("it has no tables of rotary embeddings")


def _check_angles(node: Node, shapes: Shapes) -> None:
    """Raise a MatchFailure for tables that are no matrices, and positions that are not those of its tokens."""
    if any(shapes[value].rank not in (None, 2) for value in node.inputs[ROTARY]):
        raise MatchFailure("its tables of rotary embeddings are no matrices")
    given = node.input(POSITIONS)
    dims, tokens = ((shapes[value].dims if value is not None else None) for value in (given, node.input(0)))
    pairs = zip(dims or (), tokens or (), strict=False)
    if dims is not None and (len(dims) != 2 or any((own - of_tokens).constant for own, of_tokens in pairs)):
        raise MatchFailure("its positions are not those of its tokens")


@dataclass(frozen=True)
class DecomposeAttention(Rewrite):
    """Compute Attention, GroupQueryAttention and MultiHeadAttention by MatMul, Softmax, and the masks between them.

    NPU compilers take the parts, and the other passes see caches, masks and positions in them. Sums may be added up in
    another order: the last digits of results may change. A query for which the mask leaves no key gives 0: all that is
    added to its scores is -inf or, as in onnxruntime's kernels for float32 and float16, the least number of the dtype.
    That of a MultiHeadAttention, which knows no such case, gives what Softmax does.

    Legality: heads and their size are known numbers. A GroupQueryAttention has a past that grows, and lengths that are
    past and new tokens together. Biases of a MultiHeadAttention, windows of opset 25, quantised caches, caches of a
    window's length, and scores as an output are declined.

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

    largest_error = ROUNDING
    unpadded: bool = False

    def edit(self, editor: Editor) -> None:
        bounds = _MaskBounds(editor.model, editor.shapes)
        for scope in editor.scopes:
            for node in filter(editor.is_free, scope.nodes_of(*ATTENTIONS)):
                with editor.matching(node):
                    _Parts(editor, node, bounds, is_unpadded=self.unpadded).compute()
                    editor.note("attention(s) computed by plain operators")

    def premise(self) -> Premise:
        return super().premise() | Premise(is_unpadded=self.unpadded)


class _Parts(Builder):
    """The nodes that compute an attention."""

    def __init__(self, editor: Editor, node: Node, bounds: ElementBounds, *, is_unpadded: bool) -> None:
        super().__init__(editor, node)
        is_grouped = node.operator == GROUPED
        _check_parts(node)
        if is_grouped and node.attr("do_rotary", 0):
            _check_angles(node, editor.shapes)
        self.sizes, self.dtype = _head_sizes(editor, node), editor.shapes[node.inputs[0]].dtype
        if self.dtype not in FLOATS:
            raise MatchFailure("it is not of floats")
        scale, self.softcap = node.attr("scale", 0.0) or self.sizes.size**-0.5, node.attr("softcap", 0.0) or 0.0
        if scale < 0:
            raise MatchFailure("its scale is negative")
        past = PAST_KEYS[node.operator]
        self.mask, keys, values = map(node.input, (*SCORE_BIASES[node.operator], past, past + 1))
        self.cache = (keys, values) if keys is not None and values is not None else None
        is_causal = node.attr("unidirectional" if node.operator == MULTI else "is_causal", 0) == 1
        self.is_causal, self.scale = is_grouped or is_causal, scale
        self.sinks = node.input(SINKS) if is_grouped else None
        self.has_sinks = self.sinks is not None or bool(is_grouped and node.attr("smooth_softmax", 0))
        self.window = max(node.attr("local_window_size", -1) or 0, 0) if is_grouped else 0
        self.tables = node.inputs[ROTARY] if is_grouped and node.attr("do_rotary", 0) else ()
        self.is_interleaved = is_grouped and bool(node.attr("rotary_interleaved", 0))  # neighbours turn, not halves
        if is_grouped and not is_unpadded:  # all sequences have to be as long as the past and the new tokens
            lengths, total = node.input(LENGTHS), self._count_keys()
            last = unwrap_value(lengths, ("Cast", "Expand", "Identity", *RESHAPING)) if lengths is not None else None
            elements = editor.shapes[last].elements
            if not elements or total is None or any(element != total - 1 for element in elements):
                hint = "where there is none, run decompose-attention{unpadded=true}"
                raise MatchFailure(f"its lengths may leave out padding - {hint}")
        self.may_hide_all = False  # of a query
        if self.mask is not None:
            shape = editor.shapes[self.mask]
            self.is_boolean = shape.dtype == TensorProto.BOOL
            if not shape.dims or len(shape.dims) > 4 or shape.dtype not in (self.dtype, TensorProto.BOOL):
                text = "its mask is not known to be of booleans, or of the dtype of its scores, and of rank 1 to 4"
                raise MatchFailure(text)
            may_hide_all = self.is_boolean or not bounds.of(self.mask).low > self.lowest
            self.may_hide_all = node.operator != MULTI and may_hide_all  # which computes a plain softmax

    def _count_keys(self) -> Expr | None:
        dims = self.editor.shapes.dims
        new = dims(self.node.input(1) or self.node.input(0))
        old = dims(self.cache[0]) if self.cache else None
        if self.cache and (new is None or old is None):
            return None
        return new[-2] + (old[2] if old is not None else 0) if new is not None else None

    def compute(self) -> None:
        sizes = self.sizes
        heads, widths = (sizes.heads, sizes.groups, sizes.groups), (sizes.size, sizes.size, sizes.value_size)
        self.qkv: Sequence[NodeInput] = self.node.inputs[:3]
        if sizes.is_packed:
            self.qkv = self._split_columns(self.node.inputs[0], list(map(operator.mul, heads, widths)), "qkv")
        operands = list(self.qkv)
        flat = "qkv" if sizes.has_flat_keys else "q" if sizes.is_flat else ""
        for index, name in enumerate(flat):  # [batch, heads, length, size]
            shape = self.integers([0, 0, heads[index], widths[index]], f"{name}_heads")
            apart = self.append(make_reshape(operands[index], shape), f"{name}_apart")
            operands[index] = self.add("Transpose", apart, role=name, perm=[0, 2, 1, 3])
        query, key, value = operands
        if self.tables:  # of cosines and sines, at the new positions
            dims = self.editor.shapes.dims(self.tables[0])
            half = (dims[-1].constant if dims else None) or sizes.size // 2
            cos, sin = self._angles()
            query, key = (self._rotate_heads(each, name, cos, sin, half) for each, name in ((query, "q"), (key, "k")))
        self.keys, self.values = self._join_past(key, 0), self._join_past(value, 1)
        values = self._repeat_heads(self.values, "values", sizes.value_size)
        mixed = self.add("MatMul", self._weights(query), values, role="mixed")
        if sizes.is_flat:
            turned = self.add("Transpose", mixed, role="turned", perm=[0, 2, 1, 3])
            self.append(make_reshape(turned, self.integers([0, 0, sizes.heads * sizes.value_size], "flat")))
        self.replace()

    def _split_columns(self, value: NodeInput, columns: list[int], name: str) -> list[str]:
        parts = [self.name(f"{name}_part") for _ in columns]
        self.nodes.append(NewNode("Split", [value, self.integers(columns, f"{name}_sizes")], parts, {"axis": -1}))
        return parts

    def _number(self, number: float, name: str, dtype: int = 0) -> str:
        return self.constant(np.array(number, helper.tensor_dtype_to_np_dtype(dtype or self.dtype)), name)

    def _join_past(self, new: NodeInput, index: int) -> NodeInput:
        """Return past and new tokens joined, under the name of the output that gives them, where there is one."""
        outputs = self.node.outputs
        present = outputs[index + 1] if len(outputs) > index + 1 else None
        if self.cache is None and present is None:
            return new
        name = present.name if present is not None else self.name(("keys", "values")[index])
        joined = make_concat([self.cache[index], new], 2, name) if self.cache else None
        self.nodes.append(joined or NewNode("Identity", [new], [name]))
        return name

    def _repeat_heads(self, value: NodeInput, name: str, size: int) -> NodeInput:
        sizes = self.sizes
        times = sizes.heads // sizes.groups
        if times == 1:
            return value
        apart = self.add("Unsqueeze", value, self.integers([2], "axis"), role=f"{name}_apart")
        wide = self.add("Expand", apart, self.integers([1, 1, times, 1, 1], "times"), role=f"{name}_wide")
        shape = self.integers([0, sizes.heads, -1, size], f"{name}_shape")
        return self.append(make_reshape(wide, shape), f"{name}_repeated")

    def _weights(self, query: NodeInput) -> str:
        repeated = self._repeat_heads(self.keys, "k", self.sizes.size)
        keys = self.add("Transpose", repeated, role="keys", perm=[0, 1, 3, 2])
        scaled = self.add("Mul", query, self._number(self.scale, "scale"), role="scaled")
        scores = self.add("MatMul", scaled, keys, role="scores")
        if self.softcap > 0:
            limit = self._number(self.softcap, "softcap")
            share = self.add("Tanh", self.add("Div", scores, limit, role="share"), role="limited")
            scores = self.add("Mul", share, limit, role="capped")
        if (bias := self._score_bias()) is not None:
            scores = self.add("Add", scores, bias, role="masked")
        if self.has_sinks:
            scores = self._join_sinks(scores, query)
        weights = self.add("Softmax", scores, role="weights", axis=-1)
        if self.has_sinks:
            places = (self.integers([number], name) for number, name in ((0, "first"), (-1, "sink"), (-1, "axis")))
            weights = self.append(make_slice(weights, *places), "weights_of_keys")
        if not self.may_hide_all:
            return weights
        largest = self.add("ReduceMax", bias, self.integers([-1], "last"), role="largest")
        is_empty = self.add("LessOrEqual", largest, self._number(self.lowest, "lowest"), role="without_keys")
        return self.add("Where", is_empty, self._number(0, "nothing"), weights, role="kept")

    def _join_sinks(self, scores: str, query: NodeInput) -> str:
        """Return scores with those of sinks behind those of keys: numbers of each head, or 0."""
        sinks = self._number(0, "nothing") if self.sinks is None else self.sinks
        if self.sinks is not None:
            sinks = self._reshaped(sinks, [1, self.sizes.heads, 1, 1], "sinks_apart")
        rows = self.add("Shape", query, role="rows_of_sinks", end=3)
        dims = self.append(make_concat([rows, self.integers([1], "one_sink")], 0), "dims_of_sinks")
        wide = self.add("Expand", sinks, dims, role="sinks")
        return self.append(make_concat([scores, wide], -1), "scores_and_sinks")

    @property
    def lowest(self) -> float:
        """The bias of keys that do not count, as in onnxruntime, which has no kernel for float64."""
        return -np.inf if self.dtype == TensorProto.DOUBLE else float(np.finfo(FLOATS[self.dtype]).min)

    def _score_bias(self) -> NodeInput:
        """Return what is added to scores: the least number where keys do not count."""
        mask = None if self.mask is None else self._whole(self.mask)
        causal = self._causal_mask() if self.is_causal else None
        bias = None if self.mask is not None and self.is_boolean else mask
        counted = causal if bias is mask else mask if causal is None else self.add("And", mask, causal, role="counted")
        if counted is None:
            return bias
        otherwise, lowest = bias or self._number(0, "nothing"), self._number(self.lowest, "lowest")
        return self.add("Where", counted, otherwise, lowest, role="bias")

    def _whole(self, mask: Value) -> NodeInput:
        """Return a mask that is as long as the keys, of which it hides those that it does not reach."""
        dims = self.editor.shapes[mask].dims or ()
        is_whole = self.node.operator != "Attention" or self.node.scope.opset() < SHORT_MASKS_SINCE
        if is_whole or dims[-1] == self._count_keys():
            return mask
        length = self.add("Shape", mask, role="mask_length", start=len(dims) - 1)
        whole = self.add("Unsqueeze", self.total, self.integers([0], "first_axis"), role="whole")
        missing = self.add("Sub", whole, length, role="missing")
        pads = self.append(make_concat([self.integers([0] * (2 * len(dims) - 1), "none"), missing], 0), "pads")
        hidden = self._number(*((0, "hidden", TensorProto.BOOL) if self.is_boolean else (-np.inf, "hidden")))
        return self.add("Pad", mask, pads, hidden, role="mask")

    def _causal_mask(self) -> str:
        """Return booleans: which keys come no later than a query, and are in its window."""
        step = self._number(1, "step", TensorProto.INT64)
        columns = self.add("Range", self._number(0, "first", TensorProto.INT64), self.total, step, role="columns")
        end = self.add("Add", self.past, self._length_of(self.qkv[0], "queries"), role="end")
        rows = self.add("Range", self.past, end, step, role="places")
        rows = self.add("Unsqueeze", rows, self.integers([1], "column"), role="rows")
        counted = self.add("LessOrEqual", columns, rows, role="causal")
        if not self.window:
            return counted
        window = self._number(self.window, "window", TensorProto.INT64)
        is_near = self.add("Greater", columns, self.add("Sub", rows, window, role="from"), role="near")
        return self.add("And", counted, is_near, role="in_window")

    def _length_of(self, value: NodeInput, name: str) -> str:
        place = self._number(-2, "axis", TensorProto.INT64)
        return self.append(make_gather(self.add("Shape", value, role=f"{name}_dims"), place, 0), name)

    @cached_property
    def past(self) -> str:
        """How many tokens came before."""
        return self._length_of(self.cache[0], "past") if self.cache else self._number(0, "first", TensorProto.INT64)

    @cached_property
    def total(self) -> str:
        """How many keys there are, with those of the past."""
        new = self._length_of(self.qkv[1], "new")
        return self.add("Add", self.past, new, role="total") if self.cache else new

    def _angles(self) -> Iterator[str]:
        """Yield cosines and sines at the positions of the new tokens.

        As in onnxruntime, positions that are given count for tokens after a past; without one the first of them alone
        does, from which all rows count.
        """
        given, step = self.node.input(POSITIONS), self._number(1, "step", TensorProto.INT64)
        if given is None:
            places = self.add("Range", self.past, self.total, step, role="rotary_places")
        else:
            zero = self._number(0, "first", TensorProto.INT64)
            count = self.add("Range", zero, self._length_of(self.qkv[0], "queries"), step, role="counted")
            corner = self.append(make_slice(given, *(self.integers([each] * 2, "corner") for each in (0, 1))), "corner")
            places = self.add("Add", corner, count, role="rotary_places")
            if self.cache:
                is_first = self.add("Equal", self.past, zero, role="is_first")
                places = self.add("Where", is_first, places, given, role="rotary_places")
        for table in self.tables:
            angles = self.append(make_gather(table, places, 0), "angles")
            axes = [1] * (given is not None) + [-1] * self.is_interleaved  # of heads, and of the sides of a pair
            yield self.add("Unsqueeze", angles, self.integers(axes, "axes"), role="angles_apart") if axes else angles

    def _rotate_heads(self, value: NodeInput, name: str, cos: str, sin: str, half: int) -> str:
        rest = [self.sizes.size - 2 * half] if self.sizes.size > 2 * half else []
        if self.is_interleaved:
            turned, *unturned = self._split_columns(value, [2 * half, *rest], f"{name}_all") if rest else (value,)
            first, second = self._split_columns(
                self._reshaped(turned, [0, 0, 0, half, 2], f"{name}_pairs"), [1, 1], name
            )
        else:
            first, second, *unturned = self._split_columns(value, [half, half, *rest], name)

        def times(part: str, table: str) -> str:
            return self.add("Mul", part, table, role=f"{name}_times")

        first_side = self.add("Sub", times(first, cos), times(second, sin), role=f"{name}_first")
        second_side = self.add("Add", times(first, sin), times(second, cos), role=f"{name}_second")
        if self.is_interleaved:
            both = self.append(make_concat([first_side, second_side], -1), f"{name}_both")
            sides = [self._reshaped(both, [0, 0, 0, 2 * half], f"{name}_sides")]
        else:
            sides = [first_side, second_side]
        joined = make_concat([*sides, *unturned], -1)
        return self.append(joined, f"{name}_turned") if len(joined.inputs) > 1 else sides[0]

    def _reshaped(self, value: NodeInput, dims: list[int], name: str) -> str:
        return self.append(make_reshape(value, self.integers(dims, f"{name}_shape")), name)
