"""Raise elements below the floor in masks that are added to scores, so that no -inf is left."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from onnx import TensorProto, helper

from graphkit.deploy.targets import Target
from graphkit.dtypes import FLOATS, INTEGERS
from graphkit.errors import UsageError
from graphkit.graph.operator_traits import MOVING
from graphkit.graph.traversal import walk_breadth_first
from graphkit.graph.view import Node, Value
from graphkit.passes.npu.scores import ENOUGH, NEGLIGIBLE, Reach, Scores
from graphkit.rewrite import Editor, MatchFailure, NewNode, NodeInput
from graphkit.rewrite.element_bounds import FloatBounds

__all__ = [
    "FLOOR",
    "LEAST_QUANTIZED",
    "MAX_CONSTANT",
    "NO_BFLOAT16",
    "MaskFloors",
    "floor_of",
    "floor_under",
    "mask_floor",
    "told_floor",
]

FLOOR, QUANTIZED_FLOOR = -1e9, -100.0  # for targets that take float models alone, and for those that take 8 bits
# A masked score that is 50 below another one has a weight of exp(-50), which float32 loses beside 1.
TIMES = 2  # how many times the largest score a floor is to be, so that a masked one stays below all others
LEAST_QUANTIZED = -1e3  # with less, scores that are close to each other share a step of 8 bits
NO_BFLOAT16 = "it masks in bfloat16, of which no constants are made here"
HALF_FLOOR = -3e4  # a sum of it and of scores is finite in float16
MAX_CONSTANT = 64 << 20  # bytes of a mask that is computed here
KEEPS_WHOLE = ("Cast", "Sub", "Mul", "Expand", "Reshape", "Unsqueeze", "Slice", "Squeeze")
MASKING = MOVING | {"Add", "Cast", "Clip", "ConstantOfShape", "Max", "Min", "Mul", "ScatterElements", "ScatterND"}
MASKING |= {"Sub", "Sum", "Trilu", "Where"}


def floor_of(floor: float, dtype: int, reach: Reach | None = None) -> float:
    """Return the floor of masks of a dtype."""
    is_half = dtype == TensorProto.FLOAT16 or (reach is not None and reach.is_half)
    return max(floor, HALF_FLOOR) if is_half else floor


def mask_floor(target: Target, wanted: float | None = None) -> float:
    """Return the floor of masks for a target.

    Args:
        target: The compiler that is to take the model.
        wanted: The floor that the user wants, None for the default.

    Raises:
        UsageError: The target takes quantised models only, and the floor would spoil their scale; or it is infinite.
    """
    if wanted is None:
        return QUANTIZED_FLOOR if target.takes_8_bits else FLOOR
    if wanted < float(np.finfo(np.float32).min):
        raise UsageError(f"a mask floor of {wanted:g} is infinite in float32 - give one from -1e30 on")
    if target.is_quantized and wanted < LEAST_QUANTIZED:
        raise UsageError(
            f"a mask floor of {wanted:g} for {target.name}, which takes quantised models only: the steps of 8 bits "
            f"would be {-wanted / 255:,.0f} apart, and scores that differ by less would be equal - give one from -50 "
            f"to {LEAST_QUANTIZED:,.0f}, at least twice the largest score"
        )
    return wanted


def floor_under(largest: float, floor: float) -> float:
    """Return a floor that is low enough for scores of this magnitude: this one, or the next whole number that is."""
    return min(floor, -float(math.ceil(TIMES * largest)))


def told_floor(largest: float, floor: float) -> str:
    """Return a sentence on the floor of masks that the range of scores asks for in a quantised model."""
    said = f"Scores reach {largest:.3g} in a run of random tokens, and masks add {floor:g}"
    if floor_under(largest, floor) == floor:
        return f"{said}."
    return f"{said}: what is masked may count - give {floor_under(largest, floor):g} with --mask-floor."


class MaskFloors:
    """The masks of a model that are added to scores, in one round.

    Args:
        editor: The editor that records the changes.
        floor: The least element of a mask.
        scores: The scores, and their ways to a Softmax.
        bounds: The bounds of elements.
    """

    def __init__(self, editor: Editor, floor: float, scores: Scores, bounds: FloatBounds) -> None:
        self.editor, self.floor, self.scores, self.bounds = editor, floor, scores, bounds

    def raise_all(self) -> None:
        """Let no additive mask go below the floor."""
        uses: dict[Value, list[tuple[Node, int, Reach]]] = defaultdict(list)
        for node, index, mask, reach in self._find_additions():
            if self._is_low(mask, reach):
                uses[mask].append((node, index, reach))
        for mask, places in uses.items():
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
                if mask is None or scores is None or self.scores.are(mask) or not self._is_added(node, scores):
                    continue
                try:
                    reach, dtype = self._reach_of(node), self.editor.shapes[mask].dtype
                except MatchFailure:
                    continue
                if dtype in FLOATS:
                    yield node, index, mask, reach
                elif dtype == TensorProto.BFLOAT16 and self._has_fill(mask):
                    self.editor.decline(node, NO_BFLOAT16)

    def _is_added(self, node: Node, scores: Value) -> bool:
        return node.is_op("Attention") or self.scores.are(scores)

    def _reach_of(self, node: Node) -> Reach:
        out = node.outputs[0]
        if node.is_op("Attention"):
            return Reach(-1)
        if out is None:
            raise MatchFailure
        return self.scores.reach(out)

    def _is_low(self, mask: Value, reach: Reach) -> bool:
        """Whether elements of a mask may be less than the floor, because of a fill in it."""
        dtype = self.editor.shapes[mask].dtype
        floor = float(helper.tensor_dtype_to_np_dtype(dtype).type(floor_of(self.floor, dtype, reach)))
        node = mask.producer
        if node is not None and (node.is_op("Max") or self._factor_at(node) is not None):
            ends = [self.editor.uniform(source) for source in node.operands if source.is_constant]
            if any(end is not None and floor <= end <= ENOUGH for end in ends):
                return False  # nothing in it is less: bounds do not know that its integers are 0 and 1
        return self.bounds.of(mask).low < floor and self._has_fill(mask)

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
        return all(self._is_whole_source(source) for source in walk_breadth_first([value], self._whole_sources))

    def _is_whole_source(self, value: Value) -> bool:
        """Whether a value holds whole numbers, or whole numbers where its sources do."""
        if value.is_constant:
            return self.editor.uniform(value) in (0, 1)
        if self.editor.shapes[value].dtype in INTEGERS:
            return True
        return value.producer is not None and value.producer.is_op(*KEEPS_WHOLE)

    def _whole_sources(self, value: Value) -> Sequence[Value | None]:
        node = value.producer
        if node is None or value.is_constant or self.editor.shapes[value].dtype in INTEGERS:
            return ()
        return node.inputs if node.is_op("Sub", "Mul") else node.inputs[:1]

    def _has_fill(self, mask: Value) -> bool:
        return any(self._is_fill(value) for value in walk_breadth_first([mask], _masked_from))

    def _is_fill(self, value: Value) -> bool:
        """Whether a value is a constant, of one element or more, that masks."""
        if not _is_made_here(value):
            return False
        is_float = self.editor.shapes[value].dtype in (*FLOATS, TensorProto.BFLOAT16)
        return is_float and self.bounds.of(value).low <= NEGLIGIBLE

    def _raise_mask(self, mask: Value, floor: float, before: Node) -> str:
        """Return the name of a mask raised to the floor; a node makes it, before one that reads it."""
        kind = helper.tensor_dtype_to_np_dtype(self.editor.shapes[mask].dtype)
        array = self.editor.read_constant(mask, MAX_CONSTANT, kind.itemsize)
        if array is not None:
            return self.editor.constant(np.maximum(array, kind.type(floor)), f"{mask.name}_floor")
        low = self.editor.constant(np.array(floor, kind), "mask_floor")
        name = self.editor.unique_name(f"{mask.name}_floor")
        node = mask.producer
        if node is not None and node.is_op("Where"):
            ends = [self._raised_end(end, floor, kind) for end in node.inputs[1:]]
            if None not in ends:
                self.editor.insert_before(before, NewNode("Where", [node.inputs[0], *ends], [name]))
                return name
        if node is not None and (index := self._factor_at(node)) is not None:
            inputs: list[NodeInput] = list(node.inputs)
            factor = node.inputs[index]
            sizes = self.editor.shapes[factor].sizes()
            inputs[index] = self.editor.constant(np.full(sizes or (), floor, kind), "mask_floor")
            self.editor.insert_before(before, NewNode("Mul", inputs, [name]))
            return name
        self.editor.insert_before(before, NewNode("Max", [mask, low], [name]))
        return name

    def _raised_end(self, value: Value | None, floor: float, kind: np.dtype[np.generic]) -> str | None:
        """Return a constant raised to the floor."""
        array = self.editor.read_constant(value, MAX_CONSTANT, kind.itemsize)
        if array is None:
            return None
        name = "mask_floor" if array.size == 1 and array.min() < floor else "mask_zero"
        return self.editor.constant(np.maximum(array, kind.type(floor)), name)


def _is_made_here(value: Value) -> bool:
    """Whether a value is a constant, or filled with one number."""
    return value.constant is not None or (value.producer is not None and value.producer.is_op("ConstantOfShape"))


def _masked_from(value: Value) -> Sequence[Value | None]:
    """Return the inputs that the elements of a mask come from."""
    node = value.producer
    if node is None or _is_made_here(value) or node.domain or node.op_type not in MASKING:
        return ()
    return node.inputs[node.is_op("Where") :]
