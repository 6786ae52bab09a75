"""Constraints on dims: preconditions of nodes, relations of expressions, and the sizes that meet them."""

from graphkit.ops.preconditions import Precondition, Violation
from graphkit.shapes.constraints.failing_sizes import Trigger, Triggers, find_triggers
from graphkit.shapes.constraints.node_constraints import SharedPrecondition

__all__ = ["Precondition", "SharedPrecondition", "Trigger", "Triggers", "Violation", "find_triggers"]
