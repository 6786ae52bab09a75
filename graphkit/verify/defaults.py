"""Inputs with a default: the values that override it in a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from graphkit.errors import ModelError
from graphkit.graph.value_inputs import value_inputs
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.verify.draws import Draw

__all__ = ["Defaults"]

MAX_BYTES = 16 << 20  # of all defaults that are overridden together


@dataclass(frozen=True)
class Defaults:
    """The defaults of inputs that runs may override.

    Attributes:
        arrays: By name.
        kept: Inputs whose defaults no run overrides: they are large, or decide the sizes of tensors.
    """

    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    kept: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: Model, others: Sequence[Model] = ()) -> Defaults:
        """Return those of a model that all others take as inputs too."""
        arrays, kept, size = dict[str, np.ndarray](), list[str](), 0
        for value in model.graph.inputs:
            if value.tensor is None or not value.consumers or not all(_takes(other, value.name) for other in others):
                continue
            array = _array(model, value)
            if (
                array is None
                or size + array.nbytes > MAX_BYTES
                or any(i in value_inputs(n) for n, i in value.consumers)
            ):
                kept.append(value.name)
                continue
            size += array.nbytes
            arrays[value.name] = array
        return cls(arrays, tuple(kept))

    def overridden(self, draw: Draw) -> dict[str, np.ndarray]:
        """Return other elements for each of them: integers in another order, as they may be indices."""
        rng = np.random.default_rng(draw.number)
        return {name: _other(array, rng) for name, array in self.arrays.items()}


def _takes(model: Model, name: str) -> bool:
    return any(value.name == name for value in model.graph.inputs)


def _array(model: Model, value: Value) -> np.ndarray | None:
    assert value.tensor is not None
    try:
        return model.array(value.tensor)
    except ModelError:  # its data file is missing
        return None


def _other(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if array.dtype.kind == "f":
        return (array * 0.75 + rng.standard_normal(array.shape) * 0.1).astype(array.dtype)
    if array.dtype.kind == "b":
        return ~array
    if array.size == 1 and array.dtype.kind in "iu":
        return (array + 1).astype(array.dtype)
    return np.roll(array, 1)
