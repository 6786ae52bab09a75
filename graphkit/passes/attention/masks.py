"""Masks of an attention: how scores reach a Softmax, and what is added to them, which becomes finite."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import Struct
from onnx import TensorProto, helper

from graphkit.dtypes import FLOATS, INTEGERS
from graphkit.errors import UsageError
from graphkit.graph.names import group_pairs
from graphkit.graph.operator_traits import COPYING, PICKING, PRESERVING, REARRANGING, RESHAPING, joined_parts
from graphkit.graph.view import Node, Value, unwrap_value, walk_breadth_first, walk_postorder
from graphkit.passes.shapes.simplify_expand import broadcast_dims
from graphkit.rewrite import Editor, MatchFailure, NewNode, NodeInput, Rewrite
from graphkit.rewrite.pattern import Op, Pattern
from graphkit.targets import Target

ELEMENTWISE = ("Add", "Cast", "Div", "Dropout", "Expand", "Identity", "Max", "Mul", "Sub", "Sum", "Where")
PASSING = (*ELEMENTWISE, *RESHAPING, "Transpose")
PRODUCTS = ("Einsum", "Gemm", "MatMul", "MatMulInteger", "com.microsoft.FusedMatMul", "com.microsoft.MatMulNBits")
WIDE = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.BFLOAT16)
ENOUGH = -20.0  # exp of it is 2e-9: with less a mask lets scores through
SUMS = "ReduceLogSumExp"  # beside a Softmax: what an attention that may look nowhere weighs its result by
NEGLIGIBLE = -1e4  # what is filled in for scores that do not count is at most this, in any export
FLOOR, QUANTIZED_FLOOR = -1e9, -100.0  # for targets that take float models alone, and for those that take 8 bits
TIMES = (
    2  # how many times the largest score a floor is to be, and `ENOUGH` more: so far below all others it counts nothing
)
LEAST_QUANTIZED = -1e3  # with less, scores that are close to each other share a step of 8 bits
NO_BFLOAT16 = "it masks in bfloat16, of which no constants are made here"
HALF_FLOOR = -3e4  # a sum of it and of scores is finite in float16
MAX_CONSTANT = 64 << 20  # bytes of a mask that is computed here
KEEPS_WHOLE = PRESERVING | PICKING | {"Cast", "Mul", "Sub"}
MASKING = COPYING | {"Add", "Cast", "Clip", "ConstantOfShape", "Max", "Min", "Mul", "Sub", "Sum"}


class Reach(Struct, frozen=True):
    """How scores reach a Softmax."""

    axis: int  # over which it sums, counted from the end
    scale: float = 1.0  # the factor of scores on the way, the least of all ways
    is_half: bool = False  # whether they are float16 somewhere on the way


class Scores:
    """The values of a graph that reach a Softmax as scores."""

    def __init__(self, editor: Editor) -> None:
        self.editor = editor
        self._reaches: dict[Value, Reach | MatchFailure] = {}

    def are(self, value: Value) -> bool:
        """Whether a value is made of data, or is a product: a mask is neither."""
        known = self.editor.dependences.get(value)
        return (known is not None and known.data) or is_product(value)

    def reach(self, value: Value) -> Reach:
        """Return how a value reaches the one Softmax axis of all its consumers, or raise a MatchFailure."""

        def passed_on(value: Value) -> Sequence[Value | None]:
            uses = score_readers(value) if value not in self._reaches else ()
            inside = (node for node, _ in uses if node.scope is value.scope)
            passing = [node for node in inside if node.is_op(*PASSING) or joined_parts(node)]
            return [out for node in passing for out in node.outputs[:1]]

        for each in walk_postorder([value], passed_on):
            if each not in self._reaches:
                try:
                    self._reaches[each] = self._compute_reach(each)
                except MatchFailure as failure:
                    self._reaches[each] = failure
        return self._reach(value)

    def _reach(self, value: Value) -> Reach:
        reach = self._reaches[value]
        if isinstance(reach, MatchFailure):
            raise MatchFailure(reach.reason)
        return reach

    def _compute_reach(self, value: Value) -> Reach:
        if value.is_output:
            raise MatchFailure("what it gives is an output of the graph")
        if not (ways := [self._reach_through(node, index, value) for node, index in score_readers(value)]):
            raise MatchFailure("what it gives reaches no Softmax")
        if any(way.axis != ways[0].axis for way in ways):
            raise MatchFailure("what it gives reaches Softmaxes over different axes")
        is_half = self.editor.shapes[value].dtype == TensorProto.FLOAT16 or any(way.is_half for way in ways)
        return Reach(ways[0].axis, min(way.scale for way in ways), is_half)

    def _reach_through(self, node: Node, index: int, value: Value) -> Reach:
        out = node.outputs[0] if node.outputs else None
        if node.is_op("Softmax"):
            is_flat = node.scope.opset() < 13  # over all axes from this one on
            axis, rank = node.attr("axis", 1 if is_flat else -1), self.editor.shapes[value].rank
            if axis is not None and rank is not None and axis >= 0:
                axis -= rank
            first = -math.inf if rank is None else -rank
            if axis is None or not first <= axis < 0 or (is_flat and (rank is None or axis != -1)):
                raise MatchFailure(f"'{node.label}' is not known to be over one axis of its scores")
            return Reach(axis)
        if node.is_op(SUMS) and any(each.is_op("Softmax") for each, _ in value.consumers):
            axes: Sequence[int] = self.editor.known_integers(node.input(1)) or node.attr("axes", ()) or ()
            if not (rank := self.editor.shapes[value].rank) or len(axes) != 1:
                raise MatchFailure(f"the axes of '{node.label}' are not known")
            return Reach(axes[0] % rank - rank)
        if out is None or node.scope is not value.scope:
            raise MatchFailure(f"'{node.label}' reads it in another graph")
        if node.is_op(*ELEMENTWISE):
            return self._reach_of_elementwise(node, index, out)
        if node.operator in RESHAPING and index == 0:
            reach = self._reach(out)
            before, after = self.editor.shapes[value].dims, self.editor.shapes[out].dims
            if reach.axis == -1 and before and after and before[-1] == after[-1]:
                return reach
            raise MatchFailure(f"'{node.label}' does not keep the axis of the Softmax")
        if node.is_op("Transpose"):
            reach, rank = self._reach(out), self.editor.shapes[out].rank
            perm = node.attr("perm", tuple(range(rank or 0))[::-1])
            if rank is None or perm is None or sorted(perm) != list(range(rank)) or reach.axis < -rank:
                raise MatchFailure(f"the axes of '{node.label}' are not known")
            return Reach(perm[reach.axis] - rank, reach.scale, reach.is_half)
        if joined_parts(node):
            return self._reach(out)  # beside scores of no mask, such as those of sinks
        raise MatchFailure(f"'{node.label}' ({node.operator}) reads what it gives, before any Softmax")

    def _reach_of_elementwise(self, node: Node, index: int, out: Value) -> Reach:
        scale = 1.0
        others = [self.editor.uniform(each) for at, each in enumerate(node.inputs) if at != index and each is not None]
        if (node.is_op("Where") and index == 0) or (node.is_op("Expand", "Dropout") and index > 0):
            raise MatchFailure(f"'{node.label}' takes it for a condition or an option")
        if node.is_op("Mul", "Div"):
            factor = others[0] if others and not (node.is_op("Div") and index == 1) else None
            if factor is None or factor <= 0:
                raise MatchFailure(f"'{node.label}' scales it by what is no positive constant")
            scale = 1 / factor if node.is_op("Div") else factor
        elif node.is_op("Sub") and index == 1:
            raise MatchFailure(f"'{node.label}' subtracts it")
        elif node.is_op("Max") and not all(each is not None and each <= NEGLIGIBLE for each in others):
            raise MatchFailure(f"'{node.label}' compares it with what may count")
        elif node.is_op("Cast") and self.editor.shapes[out].dtype not in (*WIDE, TensorProto.FLOAT16):
            raise MatchFailure(f"'{node.label}' makes it no floating-point number")
        reach = self._reach(out)
        return Reach(reach.axis, reach.scale * scale, reach.is_half)


def score_readers(value: Value) -> Sequence[tuple[Node, int]]:
    """Return the readers of scores, without the ReduceMax whose result is only subtracted from them."""

    def is_shift(node: Node) -> bool:
        uses = node.outputs[0].consumers if node.is_op("ReduceMax") and node.outputs and node.outputs[0] else ()
        return bool(uses) and all(each.is_op("Sub") and at == 1 and each.inputs[0] is value for each, at in uses)

    return [(node, index) for node, index in value.consumers if not is_shift(node)]


def is_product(value: Value) -> bool:
    """Whether a value is a product of matrices, scaled, shifted, chosen or moved."""

    def scaled_inputs(value: Value) -> Sequence[Value | None]:
        if (node := value.producer) is not None and node.is_op(*ELEMENTWISE):
            return node.inputs[node.is_op("Where") :]
        return node.inputs[:1] if node is not None and node.is_op(*REARRANGING, *PICKING) else ()

    sources = walk_breadth_first([value], scaled_inputs)
    return any(source.producer is not None and source.producer.operator in PRODUCTS for source in sources)


def floor_of(floor: float, dtype: int, reach: Reach | None = None) -> float:
    """Return the floor of masks of a dtype."""
    is_half = dtype == TensorProto.FLOAT16 or (reach is not None and reach.is_half)
    return max(floor, HALF_FLOOR) if is_half else floor


def mask_floor(target: Target, wanted: float | None = None) -> float:
    """Return the floor of masks for a target, the one that the user wants or the default.

    A UsageError says that it would spoil the scale of a target that takes quantised models only, or is infinite.
    """
    if wanted is None:
        return QUANTIZED_FLOOR if target.takes_8_bits else FLOOR
    if wanted < float(np.finfo(np.float32).min):
        raise UsageError(f"a mask floor of {wanted:g} is infinite in float32 - give one from -1e30 on")
    if target.is_quantized and wanted < LEAST_QUANTIZED:
        raise UsageError(
            f"a mask floor of {wanted:g} for {target.name}, which takes quantised models only: the steps of 8 bits "
            f"would be {-wanted / 255:,.0f} apart, and scores that differ by less would be equal - give one from -50 "
            f"to {LEAST_QUANTIZED:,.0f}, of at least twice the largest score and {-ENOUGH:g} more"
        )
    return wanted


def floor_under(largest: float, floor: float) -> float:
    """Return a floor that is low enough for scores of this magnitude: this one, or the next whole number that is."""
    return min(floor, ENOUGH - math.ceil(TIMES * largest))


def told_floor(largest: float, floor: float) -> str:
    """Return a sentence on the floor of masks that the range of scores asks for in a quantised model."""
    said = f"Scores reach {largest:.3g} in a run of random tokens, and masks add {floor:g}"
    if floor_under(largest, floor) == floor:
        return f"{said}."
    return f"{said}: what is masked may count - give {floor_under(largest, floor):g} with --mask-floor."


def _is_made_here(value: Value) -> bool:
    return value.constant is not None or (value.producer is not None and value.producer.is_op("ConstantOfShape"))


@dataclass(frozen=True)
class MaskedFillToAdd(Rewrite):
    """Make every mask of an attention an addition to its scores: 0 where they count, the floor where they do not.

    `Where(cond, fill, scores)` becomes `Add(scores, Where(cond, floor, 0))`, whichever side the fill is on and however
    the condition is computed; masks of one condition share one value. The additive mask is a constant where the
    condition is, and depends on no data in any case, so that a host can compute it. A boolean mask of an Attention
    becomes an additive one. Masks that are added already are raised to the floor, so that no -inf is left.

    This changes numerics, by less than rounding where the floor is far below the scores: a score that does not count
    keeps an influence of about exp(floor), where the floor is scaled as the scores are after it. A row in which nothing
    counts has no meaning: its weights used to be equal or NaN, and are now those of its scores, as far as the floor
    leaves their digits.

    Legality: the condition depends on no data, and the fill is a constant of at most -1e4. The scores are finite
    where they do not count, too; what inputs and products of matrices give is taken to be. They reach a Softmax, over
    an axis along which the mask varies, through additions, positive constant scales and reshapes alone. In float16 the
    floor is at least -3e4. It works at symbolic dims and at fixed ones.

    Before:

        agraph (float[N, 2, L, L] scores, bool[N, 1, 1, L] padding) => (float[N, 2, L, L] y)
        <float least = {-3.4e38}> {
            filled = Where (padding, least, scores)
            y = Softmax <axis = -1> (filled)
        }

    After:

        agraph (float[N, 2, L, L] scores, bool[N, 1, 1, L] padding) => (float[N, 2, L, L] y)
        <float mask_floor = {-1e9}, float mask_zero = {0.0}> {
            padding_mask = Where (padding, mask_floor, mask_zero)
            filled = Add (scores, padding_mask)
            y = Softmax <axis = -1> (filled)
        }

    Attributes:
        floor: The number that is added to scores that do not count.
    """

    floor: float = FLOOR

    def __post_init__(self) -> None:
        if not (math.isfinite(self.floor) and self.floor <= ENOUGH):
            raise UsageError(f"a mask floor of {self.floor:g} does not mask - give one of at most {ENOUGH:g}")

    def edit(self, editor: Editor) -> None:
        masks = _Masks(editor, self.floor)
        masks.replace()
        masks.raise_all()


class _Masks:
    """The masks of a model, in one round."""

    def __init__(self, editor: Editor, floor: float) -> None:
        self.editor, self.floor, self.scores = editor, floor, Scores(editor)
        self.masks: dict[tuple[Value, bool, int, float], str] = {}

    def replace(self) -> None:
        """Replace masks that are not added, in node order: the first one makes the nodes that others share."""
        for node in sorted(self.editor.nodes("Where", "Attention"), key=lambda node: node.index):
            if node.is_op("Attention"):
                with self.editor.matching(node):
                    self._boolean_mask(node)
            elif (side := self._fill_side(node)) is not None:
                with self.editor.matching(node):
                    reach, fill, scores = self._legal_reach(node, side), node.operand(side), node.operand(3 - side)
                    dtype = self.editor.shapes[fill].dtype
                    floor = floor_of(self.floor, dtype, reach)
                    mask, made = self.mask(node.operand(0), dtype, fills_true=side == 1, floor=floor)
                    self.editor.replace(node, *made, NewNode("Add", [scores, mask], [node.result().name], like=node))
                    self.editor.note("fill(s) of masked scores turned into additions")

    # Where(cond, fill, scores)

    def _fill_side(self, node: Node) -> int | None:
        """Return which input is a fill, where the other one is no constant but scores."""
        for side in (1, 2):
            fill, scores = node.operand(side), node.operand(3 - side)
            if node.outputs[0] is None or self.editor.shapes[fill].dtype not in (*FLOATS, TensorProto.BFLOAT16):
                return None
            is_low = _is_made_here(unwrap_value(fill, PRESERVING | {"Cast"})) and self.editor.bounds.of(fill).high < 0
            if is_low and not scores.is_constant and (node.scope.path or self.scores.are(scores)):
                return side
        return None

    def _legal_reach(self, node: Node, side: int) -> Reach:
        """Return how masked scores reach a Softmax; raise a MatchFailure where an addition would not give the same."""
        cond, fill, scores, out = node.operand(0), node.operand(side), node.operand(3 - side), node.result()
        if node.scope.path:
            raise MatchFailure("it fills what is in a body of another node; inline that first")
        if self.editor.shapes[fill].dtype not in FLOATS:
            raise MatchFailure(NO_BFLOAT16)
        if self.editor.bounds.of(fill).high > NEGLIGIBLE:
            raise MatchFailure(f"its fill is more than {NEGLIGIBLE:,.0f}: it may be data")
        if (known := self.editor.dependences.get(cond)) is not None and known.data:
            raise MatchFailure("its condition depends on data: it is no mask")
        before = self.editor.bounds.of(scores)
        if before.may_be_nan or before.high == math.inf:
            why = "may be infinite or NaN where it does not count, which an addition keeps"
            raise MatchFailure(f"'{scores.name}' {why}")
        try:
            reach = self.scores.reach(out)
        except MatchFailure as failure:
            raise MatchFailure(f"it is no mask: {failure.reason}") from failure
        if floor_of(self.floor, self.editor.shapes[fill].dtype, reach) * reach.scale > ENOUGH:
            raise MatchFailure(f"its floor would be scaled by {reach.scale:g} and mask nothing")
        self._check_dims(cond, fill, scores, out, reach)
        return reach

    def _check_dims(self, cond: Value, fill: Value, scores: Value, out: Value, reach: Reach) -> None:
        shapes = self.editor.shapes
        over, with_fill = shapes[cond].dims, shapes[fill].dims
        if over is None:
            raise MatchFailure(f"the shape of its condition is not known: {shapes.reason(cond)}")
        if len(over) < -reach.axis or over[reach.axis] == 1:
            raise MatchFailure("it masks whole rows of a Softmax, which an addition does not")
        most = max(len(over), shapes[scores].rank or 0)
        if with_fill is not None and len(with_fill) <= most and all(dim == 1 for dim in with_fill):
            return
        before, after = shapes[scores].dims, shapes[out].dims
        if before is None or after is None or broadcast_dims([before, over]) != after:
            raise MatchFailure("its fill may be larger than its scores and its condition")

    def mask(self, cond: Value, dtype: int, *, fills_true: bool, floor: float) -> tuple[str, list[NewNode]]:
        """Return the name of an additive mask, and the nodes that make it where none does yet."""
        key = (cond, fills_true, dtype, floor)
        if key in self.masks:
            return self.masks[key], []
        kind = helper.tensor_dtype_to_np_dtype(dtype)
        low, zero = np.array(floor, kind), np.array(0, kind)
        if (array := self.editor.read_constant(cond, MAX_CONSTANT, kind.itemsize)) is not None:
            filled = np.where(array == fills_true, low, zero).astype(kind)
            self.masks[key] = self.editor.constant(filled, f"{cond.name}_mask")
            return self.masks[key], []
        name = self.masks[key] = self.editor.unique_name(f"{cond.name}_mask")
        ends = [self.editor.constant(low, "mask_floor"), self.editor.constant(zero, "mask_zero")]
        return name, [NewNode("Where", [cond, *(ends if fills_true else ends[::-1])], [name])]

    # Attention(query, key, value, boolean mask)

    def _boolean_mask(self, node: Node) -> None:
        mask, query, shapes = node.input(3), node.input(0), self.editor.shapes
        if mask is None or query is None or shapes[mask].dtype != TensorProto.BOOL:
            return
        dtype, known, dims = shapes[query].dtype, self.editor.dependences.get(mask), shapes[mask].dims
        if node.scope.path:
            raise MatchFailure("it is in a body of another node; inline that first")
        if known is not None and known.data:
            raise MatchFailure("its boolean mask depends on data")
        if dtype not in FLOATS:
            raise MatchFailure("the dtype of its scores is not known, or has no additive masks here")
        if dims is None:
            raise MatchFailure(f"the shape of its boolean mask is not known: {shapes.reason(mask)}")
        if dims and dims[-1] == 1:
            raise MatchFailure("its boolean mask masks whole rows, which an addition does not")
        name, made = self.mask(mask, dtype, fills_true=False, floor=floor_of(self.floor, dtype))
        if made:
            self.editor.insert_before(node, *made)
        self.editor.set_inputs(node, {3: name})
        self.editor.note("boolean mask(s) of Attentions made additive")

    # Masks that are added

    def raise_all(self) -> None:
        """Let no additive mask go below the floor."""
        low = (each for each in self._find_additions() if self._is_low(*each[2:]))
        for mask, places in group_pairs((mask, (node, index, reach)) for node, index, mask, reach in low).items():
            dtype = self.editor.shapes[mask].dtype
            floor = max(floor_of(self.floor, dtype, reach) for _, _, reach in places)
            name = self._raise_mask(mask, floor, places[0][0])
            for node, index, _ in places:
                self.editor.set_inputs(node, {index: name})
            self.editor.note("additive mask(s) given a finite floor")

    def _find_additions(self) -> Iterator[tuple[Node, int, Value, Reach]]:
        """Yield where a mask is added to scores: the node, which input it is, the mask, and the way to the Softmax."""
        for node in sorted(self.editor.nodes("Add", "Attention"), key=lambda node: node.index):
            if node.scope.path:
                continue
            for index in (0, 1) if node.is_op("Add") else (3,):
                mask, scores = node.input(index), node.input(1 - index) if node.is_op("Add") else node.input(0)
                out, is_attention = node.outputs[0], node.is_op("Attention")
                if mask is None or scores is None or out is None or self.scores.are(mask):
                    continue
                if not (is_attention or self.scores.are(scores)):
                    continue
                try:
                    reach, dtype = Reach(-1) if is_attention else self.scores.reach(out), self.editor.shapes[mask].dtype
                except MatchFailure:
                    continue
                if dtype in FLOATS:
                    yield node, index, mask, reach
                elif dtype == TensorProto.BFLOAT16 and self._has_fill(mask):
                    self.editor.decline(node, NO_BFLOAT16)

    def _is_low(self, mask: Value, reach: Reach) -> bool:
        """Whether elements of a mask may be less than the floor, because of a fill in it."""
        dtype = self.editor.shapes[mask].dtype
        floor = float(helper.tensor_dtype_to_np_dtype(dtype).type(floor_of(self.floor, dtype, reach)))
        node = mask.producer
        if node is not None and (node.is_op("Max") or self._factor_at(node) is not None):
            ends = [self.editor.uniform(source) for source in node.operands if source.is_constant]
            if any(end is not None and floor <= end <= ENOUGH for end in ends):
                return False  # nothing in it is less: bounds do not know that its integers are 0 and 1
        return self.editor.bounds.of(mask).low < floor and self._has_fill(mask)

    def _factor_at(self, node: Node) -> int | None:
        """Return which input of a product is the factor of its other input, which holds whole numbers."""
        for index in (0, 1) if node.is_op("Mul") else ():
            factor, counted = node.inputs[index], node.inputs[1 - index]
            if factor is None or counted is None or not self._is_whole(counted):
                continue
            if (number := self.editor.uniform(factor)) is not None and number <= ENOUGH:
                return index
        return None

    def _is_whole(self, value: Value) -> bool:
        """Whether all elements are whole numbers, because they are made of integers."""

        def is_integer(value: Value) -> bool:
            return self.editor.shapes[value].dtype in INTEGERS

        def sources(value: Value) -> Sequence[Value | None]:
            if (node := value.producer) is None or value.is_constant or is_integer(value):
                return ()
            return node.inputs if node.is_op("Sub", "Mul") else node.inputs[:1]

        def keeps_whole(value: Value) -> bool:
            if value.is_constant:
                return self.editor.uniform(value) in (0, 1)
            return is_integer(value) or (value.producer is not None and value.producer.is_op(*KEEPS_WHOLE))

        return all(map(keeps_whole, walk_breadth_first([value], sources)))

    def _has_fill(self, mask: Value) -> bool:
        """Whether a mask is made of a constant, of one element or more, that masks."""

        def sources(value: Value) -> Sequence[Value | None]:
            node = value.producer
            if node is None or _is_made_here(value) or node.domain or node.op_type not in MASKING:
                return ()
            return node.inputs[node.is_op("Where") :]

        made = filter(_is_made_here, walk_breadth_first([mask], sources))
        floats = (value for value in made if self.editor.shapes[value].dtype in (*FLOATS, TensorProto.BFLOAT16))
        return any(self.editor.bounds.of(value).low <= NEGLIGIBLE for value in floats)

    def _raise_mask(self, mask: Value, floor: float, before: Node) -> str:
        """Return the name of a mask raised to the floor; a node makes it, before one that reads it."""
        kind = helper.tensor_dtype_to_np_dtype(self.editor.shapes[mask].dtype)

        def raise_mask(value: Value | None, name: str) -> str | None:
            if (array := self.editor.read_constant(value, MAX_CONSTANT, kind.itemsize)) is None:
                return None
            name = name or ("mask_floor" if array.size == 1 and array.min() < floor else "mask_zero")
            return self.editor.constant(np.maximum(array, kind.type(floor)), name)

        if (constant := raise_mask(mask, f"{mask.name}_floor")) is not None:
            return constant
        low = self.editor.constant(np.array(floor, kind), "mask_floor")
        name = self.editor.unique_name(f"{mask.name}_floor")
        node, made = mask.producer, NewNode("Max", [mask, low], [name])
        ends = [raise_mask(end, "") for end in node.inputs[1:]] if node is not None and node.is_op("Where") else [None]
        if node is not None and None not in ends:
            made = NewNode("Where", [node.inputs[0], *ends], [name])
        elif node is not None and (index := self._factor_at(node)) is not None:
            inputs: list[NodeInput] = list(node.inputs)
            sizes = self.editor.shapes[node.inputs[index]].sizes()
            inputs[index] = self.editor.constant(np.full(sizes or (), floor, kind), "mask_floor")
            made = NewNode("Mul", inputs, [name])
        self.editor.insert_before(before, made)
        return name


GUARDED, FILL = Pattern(), Pattern()
IS_NAN = Op("IsNaN", GUARDED)
GUARD = Op("Where", IS_NAN, FILL, GUARDED) | Op("Where", Op("Not", IS_NAN), GUARDED, FILL)


class DropNanGuard(Rewrite):
    """Remove `Where(IsNaN(p), 0, p)` where p is a Softmax of finite scores, and `Max(scores, least)` before it.

    A Softmax gives NaN for a row that is -inf throughout, which exporters guard against. With a finite floor there is
    no such row; where masks hold -inf, run `masked-fill-to-add` first. Nor is any score less than the least number.

    Legality: p is a Softmax, or a cast of one, of scores that cannot be infinite: the bounds of all masks that are
    added are finite, and so are their sums. What inputs and products of matrices give is taken to be finite.

    Before:

        agraph (float[N, L] x, bool[L] padding) => (float[N, L] y)
        <float floor = {-1e9}, float zero = {0.0}> {
            mask = Where (padding, floor, zero)
            scores = Add (x, mask)
            p = Softmax <axis = -1> (scores)
            none = IsNaN (p)
            q = Where (none, zero, p)
            y = Neg (q)
        }

    After:

        agraph (float[N, L] x, bool[L] padding) => (float[N, L] y)
        <float floor = {-1e9}, float zero = {0.0}> {
            mask = Where (padding, floor, zero)
            scores = Add (x, mask)
            p = Softmax <axis = -1> (scores)
            y = Neg (p)
        }
    """

    def edit(self, editor: Editor) -> None:
        bounds = editor.bounds
        for node in editor.nodes("Where"):
            if (match := GUARD.match(editor, node.outputs[0])) is None:
                continue
            guarded = match[GUARDED]
            softmax = unwrap_value(guarded, ("Cast", "Identity")).producer
            if softmax is None or not softmax.is_op("Softmax"):
                editor.decline(node, "what it guards is not a Softmax")
            elif not bounds.of(guarded).is_finite:
                editor.decline(node, "the scores of its Softmax may be -inf; run masked-fill-to-add first")
            elif not _keeps_shape(editor, match[GUARD], guarded, match[FILL]):
                editor.decline(node, "it may change the shape of what it guards")
            elif editor.bypass(node, guarded):
                editor.note("guard(s) against NaN removed")
        for node in editor.nodes("Max"):
            least = [value for value in node.operands if value.is_constant and bounds.of(value).high <= NEGLIGIBLE]
            scores = [value for value in node.operands if value not in least]
            if len(least) != 1 or len(scores) != 1 or not bounds.of(scores[0]).is_finite:
                continue
            is_above = bounds.of(scores[0]).low >= bounds.of(least[0]).high
            if is_above and _keeps_shape(editor, node.result(), scores[0], least[0]) and editor.bypass(node, scores[0]):
                editor.note("guard(s) against -inf removed")


def _keeps_shape(editor: Editor, out: Value, guarded: Value, fill: Value) -> bool:
    before, after, of_fill = (editor.shapes[value].dims for value in (guarded, out, fill))
    if before is not None and before == after:
        return True
    is_one = of_fill is not None and of_fill == (1,) * len(of_fill)
    return of_fill == () or (is_one and before is not None and len(of_fill or ()) <= len(before))
