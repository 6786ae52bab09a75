"""Preconditions by operator: each rule yields those of a node that do not hold at all legal sizes.

The messages are those of onnxruntime's CPU kernels.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphkit.constraints.rules import arithmetic, attention, movement
from graphkit.constraints.rules.common import PreconditionRule
from graphkit.graph.tables import joined

__all__ = ["RULES"]

RULES: Mapping[str, PreconditionRule] = joined(movement.RULES, arithmetic.RULES, attention.RULES)
