"""The shape rules of all operators, by operator (with its domain unless that is the default one)."""

from __future__ import annotations

from graphkit.graph.operators import joined
from graphkit.shapes.context import Rule
from graphkit.shapes.rules import (
    attention,
    control,
    elementwise,
    indexing,
    linear,
    makers,
    movement,
    normalisation,
    quantised,
    reduction,
    repetition,
    sequences,
    signal,
    spatial,
)

__all__ = ["RULES"]

RULES: dict[str, Rule] = joined(
    elementwise.RULES,
    movement.RULES,
    indexing.RULES,
    repetition.RULES,
    signal.RULES,
    makers.RULES,
    reduction.RULES,
    linear.RULES,
    spatial.RULES,
    normalisation.RULES,
    quantised.RULES,
    attention.RULES,
    sequences.RULES,
    control.RULES,
)
