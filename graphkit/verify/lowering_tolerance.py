"""How far an output of lowered models may be from the original's: a share of how far each of its columns varies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from graphkit.graph.operators import MOVING
from graphkit.graph.view import Node, all_nodes
from graphkit.model import Model
from graphkit.shapes.infer import infer

__all__ = ["TOLERANCE", "Allowance", "computes_in_half", "distance"]

TOLERANCE = 1e-4
HALF_TOLERANCE = 2.0**-8  # of float16, whose errors grow with the magnitude, that of a bias too
ROUNDED = 2  # units in the last place


class Allowance:
    """What counts as equal.

    A column of large numbers, such as the logit of a token that is never to come, allows no more to the others. What is
    the same at all steps, such as a bias, allows no more to its own column.

    Args:
        tolerance: A share of how far a column varies, or of how far half of them do, or of 1.
        is_half: Whether models compute in float16.
    """

    def __init__(self, tolerance: float, *, is_half: bool) -> None:
        self.is_half = is_half
        self.tolerance = max(tolerance, HALF_TOLERANCE) if is_half else tolerance
        self._varies = np.zeros(0)

    def learn(self, logits: Sequence[np.ndarray]) -> None:
        """Take the logits of the original, [vocabulary] at each step, as those to compare with from now on."""
        rows = np.stack(logits).astype(np.float64)
        if not self.is_half:
            rows = rows - np.where(np.isfinite(rows), rows, 0).mean(axis=0)
        self._varies = _largest(rows)

    def of(self, wanted: np.ndarray) -> np.ndarray:
        """Return the largest difference from each element that counts as none."""
        is_logits = wanted.ndim == 1 and wanted.shape == self._varies.shape
        varies = self._varies if is_logits else _largest(wanted.astype(np.float64))
        usual = float(np.median(varies)) if varies.size else 0.0
        with np.errstate(invalid="ignore", over="ignore"):
            rounded = ROUNDED * np.nan_to_num(np.spacing(np.abs(wanted)).astype(np.float64), posinf=0.0)
        return np.asarray(self.tolerance * np.maximum(varies, max(usual, 1.0)) + rounded)

    def differ(self, found: np.ndarray, wanted: np.ndarray) -> bool:
        """Whether an output is not the original's."""
        return found.shape != wanted.shape or not bool(np.all(_apart(found, wanted) <= self.of(wanted)))

    def is_tie(self, wanted: np.ndarray, one: int, other: int) -> bool:
        """Whether two logits of a step are so near that either may be the largest."""
        allowed = self.of(wanted)
        return float(wanted[one]) - float(wanted[other]) <= float(allowed[one] + allowed[other])


def computes_in_half(model: Model) -> bool:
    """Whether a model rounds to float16 on its way; weights that are stored in it and read as float32 round nothing."""
    shapes = infer(model)
    rounding = (node for node in all_nodes(model.scopes) if _rounds(node))
    made = (value for node in rounding for value in node.outputs if value is not None)
    return any(shapes[value].dtype == TensorProto.FLOAT16 for value in made)


def _rounds(node: Node) -> bool:
    source = node.input(0)
    return source is not None and source.constant is None and node.operator not in MOVING


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    """Return the largest difference, infinity for other dims or a NaN."""
    if found.shape != wanted.shape:
        return float("inf")
    largest = float(np.max(_apart(found, wanted), initial=0.0))
    return float("inf") if np.isnan(largest) else largest


def _apart(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the difference of each element, 0 for equal infinities."""
    one, two = found.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.where(one == two, 0.0, np.abs(one - two))


def _largest(rows: np.ndarray) -> np.ndarray:
    """Return the largest finite magnitude in each column."""
    if not rows.ndim or not rows.shape[-1]:
        return np.zeros(rows.shape)
    finite = np.where(np.isfinite(rows), np.abs(rows), 0.0)
    return np.asarray(finite.reshape(-1, rows.shape[-1]).max(axis=0, initial=0.0))
