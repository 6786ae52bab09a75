"""What the differences of logits look like, from step to step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.graph.view import all_scopes
from graphkit.model import Model

__all__ = ["lost_bias"]

CLOSE = 0.01  # relative, of what counts as the same number


def _offset(differences: Sequence[np.ndarray], tolerance: float) -> np.ndarray | None:
    """Return by what the logits are off at every step, None where that is not the same numbers."""
    offset = differences[0] if differences else None
    if offset is None or not all(np.allclose(one, offset, CLOSE, 10 * tolerance) for one in differences):
        return None
    return offset


def lost_bias(model: Model, differences: Sequence[np.ndarray], tolerance: float) -> str:
    """Return which constant of the original the logits lack, or have twice, in a sentence; "" for none."""
    offset = _offset(differences, tolerance)
    for value in (value for scope in all_scopes(model.scopes) for value in scope.initializers):
        tensor = value.tensor
        if offset is None or tensor is None or int(np.prod(tensor.dims)) != offset.size:
            continue
        array = model.array(tensor).reshape(-1).astype(np.float64)
        for sign, what in ((-1, "is lost"), (1, "is added twice")):
            if np.allclose(offset, sign * array, CLOSE, 10 * tolerance):
                return f"Logits are off by the same numbers at every step: '{value.name}' of the original {what}."
    return ""
