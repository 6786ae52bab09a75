"""Inputs of a model that are constants at fixed sizes: positions, and masks of all that counts."""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from graphkit.deploy.deploy_sizes import Setting
from graphkit.dtypes import dtype_name
from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.shapes import infer

__all__ = ["counted_positions", "zeros_of"]


def counted_positions(model: Model, setting: Setting, name: str) -> dict[str, np.ndarray]:
    """Return the positions of a model that runs once: they count from 0.

    Args:
        model: The model.
        setting: The sizes.
        name: The name of its file.

    Raises:
        UsageError: The shape of one is not fixed.
    """
    positions = [value for value, role in model.roles.inputs.items() if role == "positions"]
    shapes, arrays = infer(model), dict[str, np.ndarray]()
    for value in positions:
        dims = [dim.substitute(setting.dims) for dim in shapes[value].dims or ()]
        sizes = [dim.constant for dim in dims if dim.constant is not None]
        if not dims or len(sizes) < len(dims):
            raise UsageError(f"{name}: '{value.name}' has no fixed shape: {shapes[value]} - give its dims with --dim")
        arrays[value.name] = np.broadcast_to(np.arange(sizes[-1]), sizes).astype(dtype_name(shapes[value].dtype))
    return arrays


def zeros_of(model: Model, names: Set[str], setting: Setting) -> dict[str, np.ndarray]:
    """Return zeros for the inputs of these names whose shapes are fixed."""
    shapes, zeros = infer(model), dict[str, np.ndarray]()
    for value in model.graph.inputs:
        dims = [dim.substitute(setting.dims).constant for dim in shapes[value].dims or ()]
        if value.name in names and None not in dims:
            zeros[value.name] = np.zeros([dim or 0 for dim in dims], dtype_name(shapes[value].dtype))
    return zeros
