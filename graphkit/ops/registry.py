"""All operators: their rules by operator (with its domain unless that is the default one)."""

from __future__ import annotations

from graphkit.graph.operator_traits import join_tables
from graphkit.ops import (
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
from graphkit.ops.rule_context import Rule

__all__ = ["RULES"]

RULES: dict[str, Rule] = join_tables(
    attention.RULES,
    control.RULES,
    data_movement.RULES,
    elementwise.RULES,
    indexing.RULES,
    matmul_and_recurrent.RULES,
    quantized.RULES,
    reduction.RULES,
    sequences.RULES,
    spatial.RULES,
    tensor_creation.RULES,
)
