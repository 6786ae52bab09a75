"""The positions that a Gather with constant indices takes: along each axis, in their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphkit.graph.names import runs_of
from graphkit.graph.view import Node, Value
from graphkit.rewrite.editor import Editor
from graphkit.shapes.tensor import Dims, numbers

__all__ = ["GatherPattern", "NoGatherPatternError", "gather_pattern_of", "runs_of"]

MAX_INDICES = 1 << 16

Integers = npt.NDArray[np.int64]


class NoGatherPatternError(Exception):
    """Why the positions that a node takes are not known, or not the same for all that it reads."""


@dataclass(frozen=True)
class GatherPattern:
    """The positions that a node takes of its data.

    Attributes:
        positions: By axis, in order; of other axes it takes all. None is negative, none outside of its axis.
    """

    data: Value
    dims: Dims
    positions: Mapping[int, tuple[int, ...]]

    def size(self, axis: int) -> int:
        """Return the dim of an axis that it takes positions of."""
        size = self.dims[axis].constant
        assert size is not None
        return size


def gather_pattern_of(editor: Editor, node: Node) -> GatherPattern:
    """Return the positions that a Gather, GatherND or GatherElements takes.

    Raises:
        NoGatherPatternError: It is not known, or not a product of positions along axes.
    """
    data = node.input(0)
    dims = editor.shapes.dims(data)
    if data is None or dims is None:
        raise NoGatherPatternError("the rank of its data is not known")
    if data.is_constant:
        raise NoGatherPatternError("its table is a constant: extract-embedding makes an input of it")
    indices = _indices(editor, node.input(1))
    found = RULES[node.op_type](node, dims, indices)
    return GatherPattern(data, dims, {axis: _counted(dims, axis, found[axis]) for axis in sorted(found)})


def _indices(editor: Editor, value: Value | None) -> Integers:
    tensor = editor.shapes[value] if value is not None else None
    if value is None or tensor is None:
        raise NoGatherPatternError("it has no indices")
    found = numbers(tensor)
    if found is None and value.constant is not None and 0 < (tensor.count() or 0) <= MAX_INDICES:
        found = editor.model.array(value.constant)
    if found is None:
        raise NoGatherPatternError("its indices are computed")
    if found.size == 0:
        raise NoGatherPatternError("it takes nothing")
    return found.astype(np.int64)


def _counted(dims: Dims, axis: int, positions: Integers) -> tuple[int, ...]:
    """Return positions as they count from the start."""
    size = dims[axis].constant
    if size is None:
        raise NoGatherPatternError(f"its data has no fixed dim along axis {axis}")
    if not ((-size <= positions) & (positions < size)).all():
        raise NoGatherPatternError("an index is outside of its data")
    return tuple(int(position) % size for position in positions)


def _axis(node: Node, rank: int) -> int:
    axis = node.attr("axis", 0)
    if axis is None or not -rank <= axis < rank:
        raise NoGatherPatternError("its data has no such axis")
    return axis % rank


def _gather(node: Node, dims: Dims, indices: Integers) -> dict[int, Integers]:
    return {_axis(node, len(dims)): indices.ravel()}


def _gather_elements(node: Node, dims: Dims, indices: Integers) -> dict[int, Integers]:
    axis = _axis(node, len(dims))
    if indices.ndim != len(dims):
        raise NoGatherPatternError("its indices have another rank than its data")
    rows = np.moveaxis(indices, axis, 0).reshape(indices.shape[axis], -1)
    if not (rows == rows[:, :1]).all():
        raise NoGatherPatternError("its indices differ along other axes")
    others = {
        other: np.arange(size)
        for other, size in enumerate(indices.shape)
        if other != axis and dims[other].constant != size
    }
    return {axis: rows[:, 0], **others}


def _gather_nd(node: Node, dims: Dims, indices: Integers) -> dict[int, Integers]:
    batch = node.attr("batch_dims", 0) or 0
    if not 0 <= batch < indices.ndim or batch + indices.shape[-1] > len(dims):
        raise NoGatherPatternError("its indices have more columns than its data has axes")
    each = indices.reshape((-1, *indices.shape[batch:]))
    if not (each == each[:1]).all():
        raise NoGatherPatternError("its indices differ along the batch")
    tuples = each[0].reshape(-1, indices.shape[-1])
    moving = [column for column in range(tuples.shape[1]) if not (tuples[:, column] == tuples[0, column]).all()]
    if len(moving) > 1:
        raise NoGatherPatternError("its indices move along several axes")
    own = moving or [0]
    return {batch + column: tuples[:, column][: None if column in own else 1] for column in range(tuples.shape[1])}


RULES: Mapping[str, Callable[[Node, Dims, Integers], dict[int, Integers]]] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
}
