"""Inputs for a run: token ids within the vocabulary, masks with real padding, floats from a seeded generator."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.helper
from onnx import TensorProto

from graphkit.analysis.architecture import architecture
from graphkit.constraints.symbol_sizes import Sizes, input_shape, symbol_sizes
from graphkit.dtypes import FLOATS, dtype_name
from graphkit.errors import ModelError
from graphkit.graph.roles import MASKS
from graphkit.graph.types import TensorType, declared_type, type_text
from graphkit.graph.uses import lookups, table_entries
from graphkit.graph.view import Value, all_nodes
from graphkit.model import ModelLike, as_model
from graphkit.shapes import declarations

__all__ = ["InputMaker", "index_bound", "is_flag"]

SMALL_VOCABULARY = 8  # ids to draw from where the vocabulary is unknown
MASK_TYPES = {TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL}
DRAWN: Mapping[int, int] = {
    TensorProto.INT8: 100,
    TensorProto.INT16: SMALL_VOCABULARY,
    TensorProto.INT32: SMALL_VOCABULARY,
    TensorProto.INT64: SMALL_VOCABULARY,
    TensorProto.UINT8: 256,
    TensorProto.UINT16: SMALL_VOCABULARY,
    TensorProto.UINT32: SMALL_VOCABULARY,
    TensorProto.UINT64: SMALL_VOCABULARY,
}  # dtype -> numbers to draw from, where nothing says more
SEARCH = {"max_length": 20, "min_length": 1, "num_beams": 2, "num_return_sequences": 1}  # of BeamSearch and its kin
# Operators that take the count of a row's ones for the end of its cache: padding may not reach into the new tokens.
COUNTING = {"GroupQueryAttention", "SparseAttention", "PagedAttention"}


class InputMaker:
    """Makes inputs for one model.

    Args:
        model: The model, or its path.
        seed: Of the generator; the same seed and sizes give the same inputs.
    """

    def __init__(self, model: ModelLike, seed: int = 0) -> None:
        model = as_model(model)
        self.model, self.seed = declarations(model).model, seed
        self.vocabulary = architecture(model).vocabulary or SMALL_VOCABULARY
        self.bounds = {value.name: index_bound(value) for value in self.model.graph.inputs}
        self.counts_masks = any(node.op_type in COUNTING for node in all_nodes(self.model.scopes))

    def make(self, sizes: Sizes, given: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """Return an array for each input of the model that has no default, those given as they are.

        Raises:
            ModelError: An input has a type or shape that no array can be made for.
        """
        roles, symbols = self.model.roles, symbol_sizes(self.model, sizes)
        shapes = {value.name: input_shape(value, roles, symbols, sizes) for value in roles.inputs}
        return self.arrays(shapes, past=sizes.past, given=given)

    def arrays(
        self,
        shapes: Mapping[str, tuple[int, ...] | None],
        *,
        past: int = 0,
        given: Mapping[str, np.ndarray] | None = None,
        seed: int = 0,
    ) -> dict[str, np.ndarray]:
        """Return an array of a given shape for each input of the model that has no default, those given as they are.

        Positions begin at `past`, the number of those in the KV cache; `seed` is added to that of the maker.

        Raises:
            ModelError: An input has a type or shape that no array can be made for.
        """
        rng = np.random.default_rng(self.seed + seed)
        feed: dict[str, np.ndarray] = {}
        for value in self.model.roles.inputs:
            known = given.get(value.name) if given is not None else None
            feed[value.name] = self._array(value, shapes.get(value.name), past, rng) if known is None else known
        return feed

    def _array(self, value: Value, shape: tuple[int, ...] | None, past: int, rng: np.random.Generator) -> np.ndarray:
        declared = declared_type(value)
        if declared is None or shape is None:
            raise self._impossible(value)
        name, dtype = value.name, declared.dtype
        if self.model.roles.of(value) in MASKS and dtype in MASK_TYPES:
            kept = shape[-1] - past if self.counts_masks and len(shape) == 2 else 1
            return padding_mask(shape, rng, kept).astype(onnx.helper.tensor_dtype_to_np_dtype(dtype))
        if dtype in DRAWN:
            numbers = self._integers(value, declared, shape, past, rng)
            return numbers.astype(onnx.helper.tensor_dtype_to_np_dtype(dtype))
        if dtype == TensorProto.BOOL:
            return np.zeros(shape, np.bool_) if is_flag(value) else rng.random(shape) < 0.5
        if dtype in FLOATS:
            is_penalty = name.endswith("_penalty")
            numbers = np.ones(shape) if is_penalty else rng.standard_normal(shape)
            return numbers.astype(onnx.helper.tensor_dtype_to_np_dtype(dtype))
        if dtype == TensorProto.STRING:
            return rng.choice(np.array(["a", "bc", "a bc", ""], dtype=object), shape)
        raise ModelError(f"no input can be made for it: {dtype_name(dtype)}", file=self.model.label, tensor=name)

    def _impossible(self, value: Value) -> ModelError:
        info = self.model.graph.infos.get(value.name)
        kind = info.type.WhichOneof("value") if info is not None else None
        is_tensor = kind in (None, "tensor_type") or info is None
        why = "its shape or type is not declared" if is_tensor or info is None else f"it is {type_text(info.type)[0]}"
        return ModelError(
            f"no input can be made for it: {why}",
            file=self.model.label,
            tensor=value.name,
            hint="declare the shape of this input" if is_tensor else "only tensors can be made up",
        )

    def _integers(
        self, value: Value, declared: TensorType, shape: tuple[int, ...], past: int, rng: np.random.Generator
    ) -> np.ndarray:
        name, bound, role = value.name, self.bounds[value.name], self.model.roles.of(value)
        if role == "positions" and len(shape) == 2:
            positions = np.arange(past, past + shape[1])
            return np.broadcast_to(positions if bound is None else np.minimum(positions, bound - 1), shape)
        if name in SEARCH:
            return np.full(shape, SEARCH[name])
        if not shape:
            return rng.integers(0, min(bound or 4, 4), shape)
        if bound is None and role == "token types":
            return np.zeros(shape, np.int64)
        high = self.vocabulary if role in ("tokens", "encoder tokens") else DRAWN[declared.dtype]
        return rng.integers(0, high if bound is None else bound, shape)


def is_flag(value: Value) -> bool:
    """Whether an input is one boolean, such as `use_cache_branch`."""
    declared = declared_type(value)
    is_bool = declared is not None and declared.dtype == TensorProto.BOOL
    return is_bool and declared is not None and declared.dims in ((), (1,))


def index_bound(value: Value) -> int | None:
    """Return the entries of the smallest constant table that an input looks up in, or None where it does not."""
    sizes = (table_entries(*found) for found in lookups(value))
    return min((size for size in sizes if size is not None), default=None)


def padding_mask(shape: tuple[int, ...], rng: np.random.Generator, kept: int = 1) -> np.ndarray:
    """Return ones, with zeros at the end of every row but the first; each row keeps at least `kept` ones, and one."""
    mask = np.ones(shape, np.int64)
    kept = max(kept, 1)
    if len(shape) == 2 and shape[1] > kept:
        for row in range(1, shape[0]):
            mask[row, shape[1] - int(rng.integers(1, shape[1] - kept + 1)) :] = 0
    return mask
