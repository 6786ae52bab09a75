"""The search for the cause of a difference, the same for compared tensors, lowered models and bundles.

A cause is a fault that a candidate may have, with a way to undo it. It is named only where undoing it mends the
difference, clearly. Each table of causes says what a fault is called and what undoes it; what runs here is the same.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

__all__ = [
    "CLEAR",
    "Cause",
    "Kind",
    "Undo",
    "find_first_cause",
    "find_sole_cause",
    "is_mended",
    "largest_multiple",
    "with_attributes",
]

CLEAR = 10.0  # how many times smaller the difference is without its cause: less may be chance, in a small model
Kind = Literal[
    "padding",
    "mask",
    "dims",
    "offset",
    "scale",
    "transposed",
    "permuted",
    "shifted",
    "positions",
    "term",
    "weights",
    "unknown",
]
Undo = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, eq=False)
class Cause:
    """A fault that a candidate may have.

    Attributes:
        kind: What it is.
        text: The fault, in a sentence.
        initializer: The constant that it names, "" for none.
        undo: Makes the context in which the candidate runs without it.
    """

    kind: Kind
    text: str
    initializer: str = ""
    undo: Undo = field(default=contextlib.nullcontext, repr=False, metadata={"in_json": False})


Distances = Callable[[], Iterable[float]]  # of each call from the original's, in multiples of the tolerance


def find_sole_cause(distances: Distances, *rounds: Iterable[Cause]) -> Cause | None:
    """Return the one cause whose undoing mends a difference; None where none or several do, or nothing is to be mended.

    Args:
        distances: Runs the candidate as it is then, and yields how far each call is from the original's.
        rounds: The causes, the simple ones first: later rounds are tried where nothing of the earlier ones mends it.
    """
    before = max(distances(), default=0.0)
    for causes in rounds if before > 1.0 else ():
        mending = [cause for cause in causes if _mends_difference(cause, distances, before)]
        if mending:
            return mending[0] if len(mending) == 1 else None
    return None


def find_first_cause(distances: Distances, causes: Iterable[Cause]) -> Cause | None:
    """Return the first cause whose undoing mends a difference: of several names for one fault, the best comes first."""
    before = max(distances(), default=0.0)
    return (
        next((cause for cause in causes if _mends_difference(cause, distances, before)), None) if before > 1.0 else None
    )


def _mends_difference(cause: Cause, distances: Distances, before: float) -> bool:
    with cause.undo():
        return is_mended(distances(), before)


def is_mended(distances: Iterable[float], before: float = math.inf) -> bool:
    """Whether all distances are within the tolerance, and clearly less than the largest was before."""
    most = min(1.0, before / CLEAR)
    return all(distance <= most for distance in distances)


def largest_multiple(apart: np.ndarray | float, allowed: np.ndarray | float) -> float:
    """Return the largest of some distances, in multiples of those that are allowed."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratios = np.where(np.asarray(apart) > 0, np.divide(apart, allowed), 0.0)
    return float(np.nan_to_num(ratios, nan=0.0, posinf=np.inf).max(initial=0.0))  # any distance is allowed: 0


@contextmanager
def with_attributes(subject: object, **attributes: object) -> Iterator[None]:
    """Give an object other attributes for as long as the context lasts."""
    before = {name: getattr(subject, name) for name in attributes}
    for name, value in attributes.items():
        setattr(subject, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(subject, name, value)
