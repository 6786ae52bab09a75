"""The sliding windows of a decoder's attentions: how many of the last tokens the masks let each of them see.

A mask compares the position of a key with that of the new token. The positions of all keys that are so far back, or
farther, are followed through the nodes that make the mask: where these bounds say that no such key counts, whatever the
inputs are, the window is no longer. Windows that cannot be followed are unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from onnx import TensorProto

from graphkit.graph.cache_entries import CacheEntry
from graphkit.graph.mask_polarity import DATA, HIDES, ElementBounds, Elements, is_boolean
from graphkit.graph.operator_traits import (
    COMPARING,
    CUTTING,
    MEASURING,
    PRESERVING,
    SAME_ORDER,
    SCORE_BIASES,
    joined_parts,
)
from graphkit.graph.view import Node, Value, chain_end, follow_chain, unwrap_value, walk_breadth_first
from graphkit.model import Model
from graphkit.shapes import Expr, Shapes, infer
from graphkit.shapes.input_dims import input_dims

PAST = 1 << 24  # tokens, more than any window has
LARGEST = PAST // 4  # of a window
POWERS = tuple(1 << power for power in range(25))
MOVED = PRESERVING | {"Cast", "Neg"}
GUARDING = SAME_ORDER | CUTTING | {"Cast", "Dropout", "Mul", "Where"}  # probabilities, on the way to values


@lru_cache(maxsize=4)  # the sections of a report ask several times
def find_windows(model: Model) -> Mapping[CacheEntry, int]:
    """Return the tensors of a cache of which a step reads the last tokens alone, and how many, the new one included."""
    shapes, cut = infer(model), cut_caches(model)
    found = dict[CacheEntry, int]()
    bounds = dict[tuple[int, int], _MaskBounds]()
    for past, entry in model.roles.pasts.items():
        if model.roles.is_cross(entry) or entry.axis is None:
            continue
        if entry in cut:  # the new one may count beside those that are kept
            full = _sizes_of_step(model, cut[entry])
            windows = {
                None if isinstance(mask, Node) else _count_slots(shapes, mask, -1, full) for mask in _find_masks(past)
            }
        else:
            windows = {_window_of(model, mask, shapes, bounds) for mask in dict.fromkeys(_find_masks(past))}
        if len(windows) == 1 and (window := windows.pop()) is not None:
            found[entry] = window
    return found


def cut_caches(model: Model) -> Mapping[CacheEntry, int]:
    """Return the tensors of a cache that the model itself cuts to their last tokens, and how many it keeps."""
    shapes, sizes = infer(model), _sizes_of_step(model, PAST)
    found = dict[CacheEntry, int]()
    for past, entry in model.roles.pasts.items():
        if not model.roles.is_cross(entry) and entry.axis is not None:
            before, kept = (_count_slots(shapes, value, entry.axis, sizes) for value in (past, entry.present))
            if before == PAST and kept is not None and kept < LARGEST:
                found[entry] = kept
    return found


def _sizes_of_step(model: Model, past: int) -> Mapping[str, int]:
    of_axes = {"batch": 1, "sequence": 1, "past": past, "total": past + 1}
    sizes = dict[str, int]()
    for value in model.roles.inputs:
        for at, dim in enumerate(input_dims(model).get(value.name) or ()):
            if dim.name is not None and (size := of_axes.get(model.roles.axis(value, at))) is not None:
                sizes.setdefault(dim.name, size)
    return sizes


def _count_slots(shapes: Shapes, value: Value | None, axis: int, sizes: Mapping[str, int]) -> int | None:
    dims = (None if value is None else shapes[value].dims) or ()
    return dims[axis].substitute(sizes).constant if -len(dims) <= axis < len(dims) else None


def _find_masks(past: Value) -> Iterator[Value | Node]:
    """Yield the masked scores, or the nodes of attention, that a cache tensor goes into."""
    seen, pending = {past}, [past]
    while pending:
        for node, index in pending.pop().consumers:
            if node.is_op("Softmax"):
                yield _without_sinks(node.operand(0))
            elif node.operator in SCORE_BIASES:
                yield node
            elif node.is_op("MatMul") and index == 1 and (scores := _scores_behind(node.input(0))) is not None:
                yield scores
            elif not node.is_op(*MEASURING):
                made = [value for value in node.results if value not in seen]
                seen.update(made)
                pending += made


def _scores_behind(probabilities: Value | None) -> Value | None:
    """Return the scores that a Softmax makes probabilities of, None where they are something else."""

    def before(value: Value) -> Value | None:
        node = value.producer
        if node is None or not node.is_op(*GUARDING):
            return None
        inputs = node.operands[1:] if node.is_op("Where") else node.operands[:1]
        return next((each for each in inputs if not each.is_constant), None)

    made = (value.producer for value in follow_chain(probabilities, before))
    scores = next((node.input(0) for node in made if node is not None and node.is_op("Softmax")), None)
    return None if scores is None else _without_sinks(scores)


def _without_sinks(scores: Value) -> Value:
    """Return the scores of keys, behind which there may be one that no key has, and from which their largest goes."""

    def before(value: Value) -> Value | None:
        node = value.producer
        if node is None or joined_parts(node):
            return None if node is None else node.input(0)
        taken = node.operands[-1].producer if node.is_op("Sub") and node.operands else None
        return node.operand(0) if taken is not None and taken.is_op("ReduceMax") else None

    return chain_end(scores, before)


class _MaskBounds(ElementBounds):
    """Bounds of what masks are made of, where a token follows so many, and all keys are some distance before it."""

    def __init__(self, model: Model, shapes: Shapes, distance: int, past: int) -> None:
        super().__init__({}, ())
        self.shapes, self.sizes, self.distance, self.past = shapes, _sizes_of_step(model, past), distance, past

    def transfer(self, value: Value) -> Elements:
        node = value.producer
        if node is not None and node.is_op("Range") and len(node.operands) == 3:
            start, end, step = map(self._numbers, node.operands)
            if start and end and step == [1]:
                is_of_keys = (start[0], end[0]) == (0, self.past + 1)
                return Elements(start[0], self.past - self.distance if is_of_keys else end[0] - 1)
        if node is not None and (numbers := self._numbers(value)):
            return Elements(min(numbers), max(numbers))
        return DATA if node is not None and node.is_op("Div", "Mod", "MatMul") else super().transfer(value)

    def _numbers(self, value: Value) -> list[int] | None:
        """Return the elements of a small tensor of integers at the sizes, None where they are unknown."""
        elements = self.shapes[value].elements
        numbers = [each.substitute(self.sizes).constant if isinstance(each, Expr) else None for each in elements or ()]
        return [number for number in numbers if number is not None] if elements and None not in numbers else None


def _window_of(
    model: Model, mask: Value | Node, shapes: Shapes, bounds: dict[tuple[int, int], _MaskBounds]
) -> int | None:
    """Return how many of the last tokens count for an attention, None for all of them, or where that is unknown."""
    if isinstance(mask, Node):
        if (window := mask.attr("local_window_size", int)) is not None and window > 0:
            return window
        bias = mask.input(SCORE_BIASES[mask.operator][0])
        if bias is None:
            return None
        mask = bias

    def hides(distance: int, past: int) -> bool:
        if (distance, past) not in bounds:
            bounds[distance, past] = _MaskBounds(model, shapes, distance, past)
        fact = bounds[distance, past].of(mask)
        return fact.truth is False if is_boolean(mask) else fact.high <= HIDES

    def read(value: Value) -> Sequence[Value]:
        node = value.producer
        return () if node is None or node.is_op("MatMul", *MEASURING) else node.operands

    makers = (value.producer for value in walk_breadth_first([mask], read))
    deciding = [node for node in makers if node is not None and node.is_op("Add", "Sub", *COMPARING)]
    near = set[int]()
    for operand in (unwrap_value(value, MOVED) for node in deciding for value in node.operands):
        tensor = operand.constant
        is_integer = tensor is not None and tensor.data_type in (TensorProto.INT32, TensorProto.INT64)
        if tensor is not None and is_integer and math.prod(tensor.dims) == 1:
            number = abs(int(model.array(tensor).reshape(())))
            near |= {number - 1, number, number + 1} if 2 < number < LARGEST else set()
    distance = next((each for each in sorted(near) if hides(each, PAST)), None)
    if distance is None:
        return None
    # a mask may be another one where fewer tokens came before
    pasts = {distance, *(number + more for number in (*near, *POWERS) for more in (0, distance))}
    return distance if all(hides(distance, past) for past in pasts if distance <= past <= PAST) else None
