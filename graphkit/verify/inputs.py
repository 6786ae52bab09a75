"""Inputs for a run: token ids within the vocabulary, masks with real padding, floats from a seeded generator."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.helper

from graphkit.analysis.architecture import TOKEN_INPUT, architecture
from graphkit.errors import ModelError
from graphkit.graph.types import declared_type, dtype_name
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.verify.sizes import Sizes, input_shape, symbol_sizes

__all__ = ["InputMaker"]

SMALL_VOCABULARY = 8  # ids to draw from where the vocabulary is unknown


class InputMaker:
    """Makes inputs for one model.

    Args:
        model: The model.
        seed: Of the generator; the same seed and sizes give the same inputs.
    """

    def __init__(self, model: Model, seed: int = 0) -> None:
        self.model, self.seed = model, seed
        self.vocabulary = architecture(model).vocabulary or SMALL_VOCABULARY

    def make(self, sizes: Sizes, given: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """Return an array for each input of the model that has no default.

        Args:
            sizes: What to run at.
            given: Arrays to take as they are.

        Raises:
            ModelError: An input has a type or shape that no array can be made for.
        """
        rng = np.random.default_rng(self.seed)
        symbols = symbol_sizes(self.model.graph, sizes)
        feed: dict[str, np.ndarray] = {}
        for value in self.model.graph.inputs:
            if value.tensor is None:
                made = self._array(value, symbols, sizes, rng)
                feed[value.name] = given[value.name] if given and value.name in given else made
        return feed

    def _array(self, value: Value, symbols: Mapping[str, int], sizes: Sizes, rng: np.random.Generator) -> np.ndarray:
        declared, shape = declared_type(value), input_shape(value, symbols, sizes)
        if declared is None or shape is None:
            raise ModelError(
                "no input can be made for it: its shape or type is not declared",
                file=self.model.label,
                tensor=value.name,
                hint="declare the shape of this input",
            )
        name = value.name
        if "mask" in name and declared.dtype in (6, 7, 9):
            return padding_mask(shape, rng).astype(onnx.helper.tensor_dtype_to_np_dtype(declared.dtype))
        if declared.dtype in (6, 7):
            return self._integers(name, shape, sizes, rng).astype(np.int32 if declared.dtype == 6 else np.int64)
        if declared.dtype == 9:
            return np.zeros(shape, np.bool_)
        if declared.dtype in (1, 10, 11):
            return rng.standard_normal(shape).astype(onnx.helper.tensor_dtype_to_np_dtype(declared.dtype))
        if declared.dtype in (2, 3):
            return rng.integers(0, 100, shape).astype(np.uint8 if declared.dtype == 2 else np.int8)
        raise ModelError(
            f"no input can be made for it: {dtype_name(declared.dtype)}", file=self.model.label, tensor=name
        )

    def _integers(self, name: str, shape: tuple[int, ...], sizes: Sizes, rng: np.random.Generator) -> np.ndarray:
        if "position" in name and len(shape) == 2:
            return np.broadcast_to(np.arange(sizes.past, sizes.past + shape[1]), shape)
        if "token_type" in name or not shape:
            return np.zeros(shape, np.int64)
        high = self.vocabulary if TOKEN_INPUT.search(name) else SMALL_VOCABULARY
        return rng.integers(0, high, shape)


def padding_mask(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Return ones, with zeros at the end of every row but the first; each row keeps at least one."""
    mask = np.ones(shape, np.int64)
    if len(shape) == 2 and shape[1] > 1:
        for row in range(1, shape[0]):
            mask[row, shape[1] - int(rng.integers(1, shape[1])) :] = 0
            mask[row, 0] = 1
    return mask
