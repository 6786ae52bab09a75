"""Make every mask of an attention an addition to its scores, and drop the guards against NaN behind it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from graphkit.dtypes import FLOATS
from graphkit.errors import UsageError
from graphkit.graph.view import Node, Value, unwrap_value
from graphkit.passes.npu.mask_floors import FLOOR, MAX_CONSTANT, NO_BFLOAT16, MaskFloors, floor_of
from graphkit.passes.npu.scores import ENOUGH, NEGLIGIBLE, Reach, Scores
from graphkit.passes.shapes.simplify_expand import broadcast_dims
from graphkit.rewrite import Editor, MatchFailure, NewNode, Rewrite
from graphkit.rewrite.element_bounds import FloatBounds
from graphkit.rewrite.host_values import find_dependences
from graphkit.rewrite.pattern import Op, Pattern

__all__ = ["DropNanGuard", "MaskedFillToAdd"]


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
        known = find_dependences(editor.model, editor.shapes)
        scores, bounds = Scores(editor, known), FloatBounds(editor.model, editor.shapes)
        _Fills(editor, self.floor, scores, bounds).replace()
        MaskFloors(editor, self.floor, scores, bounds).raise_all()


class _Fills:
    """The masks of a model that are not added to scores, in one round."""

    def __init__(self, editor: Editor, floor: float, scores: Scores, bounds: FloatBounds) -> None:
        self.editor, self.floor, self.scores, self.bounds, self.known = editor, floor, scores, bounds, scores.known
        self.masks: dict[tuple[Value, bool, int, float], str] = {}

    def replace(self) -> None:
        """Replace masks that are not added, in node order: the first one makes the nodes that others share."""
        for node in sorted(self.editor.nodes("Where", "Attention"), key=lambda node: node.index):
            if node.is_op("Attention"):
                with self.editor.matching(node):
                    self._boolean_mask(node)
            elif (side := self._fill_side(node)) is not None:
                with self.editor.matching(node):
                    self._replace(node, side, self._legal_reach(node, side))

    # Where(cond, fill, scores)

    def _fill_side(self, node: Node) -> int | None:
        """Return which input is a fill, where the other one is no constant but scores."""
        if node.outputs[0] is None or len(node.inputs) != 3:
            return None
        for side in (1, 2):
            fill, scores = node.inputs[side], node.inputs[3 - side]
            if fill is not None and self.editor.shapes[fill].dtype not in (*FLOATS, TensorProto.BFLOAT16):
                return None
            if fill is None or scores is None or scores.is_constant or not self._is_uniform(fill):
                continue
            if self.bounds.of(fill).high < 0 and (node.scope.path or self.scores.are(scores)):
                return side
        return None

    def _is_uniform(self, value: Value) -> bool:
        """Whether a value is a constant, or one that is made as large as a shape."""
        source = unwrap_value(value, ("Expand", "Cast", "Reshape", "Unsqueeze"))
        return source.is_constant or (source.producer is not None and source.producer.is_op("ConstantOfShape"))

    def _legal_reach(self, node: Node, side: int) -> Reach:
        """Return how the masked scores reach a Softmax.

        Raises:
            MatchFailure: The fill is no mask, or an addition would not give the same.
        """
        cond, fill, scores, out = node.operand(0), node.operand(side), node.operand(3 - side), node.result()
        if node.scope.path:
            raise MatchFailure("it fills what is in a body of another node; inline that first")
        if self.editor.shapes[fill].dtype not in FLOATS:
            raise MatchFailure(NO_BFLOAT16)
        if self.bounds.of(fill).high > NEGLIGIBLE:
            raise MatchFailure(f"its fill is more than {NEGLIGIBLE:,.0f}: it may be data")
        known = self.known.get(cond)
        if known is not None and known.data:
            raise MatchFailure("its condition depends on data: it is no mask")
        before = self.bounds.of(scores)
        if before.may_be_nan or before.high == math.inf:
            raise MatchFailure(
                f"'{scores.name}' may be infinite or NaN where it does not count, which an addition keeps"
            )
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
        if with_fill is not None and all(dim == 1 for dim in with_fill):
            rank = shapes[scores].rank
            if len(with_fill) <= max(len(over), rank or 0):
                return
        before, after = shapes[scores].dims, shapes[out].dims
        if before is None or after is None or broadcast_dims([before, over]) != after:
            raise MatchFailure("its fill may be larger than its scores and its condition")

    def _replace(self, node: Node, side: int, reach: Reach) -> None:
        cond, fill, scores, out = node.operand(0), node.operand(side), node.operand(3 - side), node.result()
        dtype = self.editor.shapes[fill].dtype
        mask, made = self.mask(cond, dtype, fills_true=side == 1, floor=floor_of(self.floor, dtype, reach))
        self.editor.replace(node, *made, NewNode("Add", [scores, mask], [out.name], like=node))
        self.editor.note("fill(s) of masked scores turned into additions")

    def mask(self, cond: Value, dtype: int, *, fills_true: bool, floor: float) -> tuple[str, list[NewNode]]:
        """Return the name of an additive mask, and the nodes that make it where none does yet."""
        key = (cond, fills_true, dtype, floor)
        if key in self.masks:
            return self.masks[key], []
        kind = helper.tensor_dtype_to_np_dtype(dtype)
        low, zero = np.array(floor, kind), np.array(0, kind)
        array = self.editor.read_constant(cond, MAX_CONSTANT, kind.itemsize)
        if array is not None:
            filled = np.where(array, low, zero) if fills_true else np.where(array, zero, low)
            self.masks[key] = self.editor.constant(filled.astype(kind), f"{cond.name}_mask")
            return self.masks[key], []
        name = self.masks[key] = self.editor.unique_name(f"{cond.name}_mask")
        ends = [self.editor.constant(low, "mask_floor"), self.editor.constant(zero, "mask_zero")]
        return name, [NewNode("Where", [cond, *(ends if fills_true else ends[::-1])], [name])]

    # Attention(query, key, value, boolean mask)

    def _boolean_mask(self, node: Node) -> None:
        mask, query = node.input(3), node.input(0)
        if mask is None or query is None or self.editor.shapes[mask].dtype != TensorProto.BOOL:
            return
        dtype = self.editor.shapes[query].dtype
        self._check_mask(node, mask, dtype)
        name, made = self.mask(mask, dtype, fills_true=False, floor=floor_of(self.floor, dtype))
        if made:
            self.editor.insert_before(node, *made)
        self.editor.set_inputs(node, {3: name})
        self.editor.note("boolean mask(s) of Attentions made additive")

    def _check_mask(self, node: Node, mask: Value, dtype: int) -> None:
        if node.scope.path:
            raise MatchFailure("it is in a body of another node; inline that first")
        known, dims = self.known.get(mask), self.editor.shapes[mask].dims
        if known is not None and known.data:
            raise MatchFailure("its boolean mask depends on data")
        if dtype not in FLOATS:
            raise MatchFailure("the dtype of its scores is not known, or has no additive masks here")
        if dims is None:
            raise MatchFailure(f"the shape of its boolean mask is not known: {self.editor.shapes.reason(mask)}")
        if dims and dims[-1] == 1:
            raise MatchFailure("its boolean mask masks whole rows, which an addition does not")


GUARDED, FILL = Pattern(), Pattern()
IS_NAN = Op("IsNaN", GUARDED)
GUARD = Op("Where", IS_NAN, FILL, GUARDED) | Op("Where", Op("Not", IS_NAN), GUARDED, FILL)


@dataclass(frozen=True)
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
        bounds = FloatBounds(editor.model, editor.shapes)
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
