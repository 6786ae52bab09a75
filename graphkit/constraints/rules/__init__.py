"""What each operator needs: a rule from a node's inputs to preconditions, those left out that hold at all legal dims.

The messages are those of onnxruntime's CPU kernels.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphkit.constraints.rules import arithmetic, attention, movement
from graphkit.constraints.rules.common import PreconditionRule
from graphkit.graph.tables import joined

__all__ = ["RULES"]

RULES: Mapping[str, PreconditionRule] = joined(movement.RULES, arithmetic.RULES, attention.RULES)
