"""Preconditions by operator: each rule yields those of a node that do not hold at all legal sizes.

The messages are those of onnxruntime's CPU kernels.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphkit.graph.operators import joined
from graphkit.shapes.constraints.broadcast import PreconditionRule
from graphkit.shapes.constraints.rules import arithmetic, data_movement

__all__ = ["RULES"]

RULES: Mapping[str, PreconditionRule] = joined(data_movement.RULES, arithmetic.RULES)
