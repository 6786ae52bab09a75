"""What each operator needs: a rule from a node's inputs to needs, those left out that hold at all legal dims.

The messages are those of onnxruntime's CPU kernels.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphkit.graph.tables import joined
from graphkit.needs import attention, computing, moving
from graphkit.needs.common import NeedRule

__all__ = ["RULES"]

RULES: Mapping[str, NeedRule] = joined(moving.RULES, computing.RULES, attention.RULES)
