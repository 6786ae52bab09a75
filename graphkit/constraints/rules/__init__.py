"""Preconditions by operator: each rule yields those of a node that do not hold at all legal sizes.

The messages are those of onnxruntime's CPU kernels.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphkit.constraints.broadcast import PreconditionRule
from graphkit.constraints.rules import arithmetic, data_movement
from graphkit.graph.operators import joined

__all__ = ["RULES"]

RULES: Mapping[str, PreconditionRule] = joined(data_movement.RULES, arithmetic.RULES)
