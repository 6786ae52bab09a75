"""The shape rules of all operators, by operator (with its domain unless that is the default one)."""

from __future__ import annotations

from graphkit.graph.operator_traits import join_tables
from graphkit.shapes.rule_context import Rule
from graphkit.shapes.rules import (
    attention,
    control,
    data_movement,
    elementwise,
    indexing,
    matmul_and_recurrent,
    quantized,
    reduction,
    sequences,
    spatial,
    tensor_creation,
)

__all__ = ["RULES"]

RULES: dict[str, Rule] = join_tables(
    elementwise.RULES,
    data_movement.RULES,
    indexing.RULES,
    tensor_creation.RULES,
    reduction.RULES,
    matmul_and_recurrent.RULES,
    spatial.RULES,
    quantized.RULES,
    attention.RULES,
    sequences.RULES,
    control.RULES,
)
