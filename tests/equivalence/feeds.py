"""Feeds for real exports: distinct small sizes, tokens that a small vocabulary has, masks with holes."""

from __future__ import annotations

import numpy as np
from onnx import helper

from graphkit.graph.declared_types import declared_type
from graphkit.model import Model
from graphkit.shapes.graph_inputs import Inputs

__all__ = ["feed"]

SIZES = (2, 3, 5, 7, 4, 6, 9, 8)


def feed(model: Model, seed: int) -> dict[str, np.ndarray]:
    """Return an array for each input of a model."""
    rng = np.random.default_rng(seed)
    inputs = Inputs(model)
    sizes = {name: SIZES[(index + seed) % len(SIZES)] for index, name in enumerate(inputs.names)}
    for value in model.graph.inputs:
        for dim in (inputs.symbolic[value.name] or ())[2:] if "pixel" in value.name else ():
            sizes.update(dict.fromkeys(dim.symbols, 64))
    past = sum(size for name, size in sizes.items() if "past" in name)
    found = {}
    for value in model.graph.inputs:
        kind = declared_type(value)
        assert kind is not None
        shape = [dim.evaluate(sizes) for dim in inputs.symbolic[value.name] or ()]
        if "mask" in value.name and len(shape) == 2 and "encoder" not in value.name and past:
            length = next((sizes[name] for name in sizes if name.endswith("sequence_length") and "past" not in name), 1)
            shape[1] = past + length
        dtype = helper.tensor_dtype_to_np_dtype(kind.dtype)
        if "mask" in value.name:
            array = (rng.random(shape) < 0.8).astype(dtype)
            array[..., -1:] = 1
        elif dtype.kind == "b":
            array = np.full(shape, bool(seed % 2))
        elif dtype.kind in "iu":
            array = rng.integers(0, 12, shape).astype(dtype)
        else:
            array = rng.normal(size=shape).astype(dtype)
        found[value.name] = array
    return found
