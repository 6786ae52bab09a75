"""Constraints on dims: preconditions of nodes, relations of expressions, and the sizes that meet them."""

from graphkit.shapes.constraints.collect_preconditions import SharedPrecondition
from graphkit.shapes.constraints.failing_sizes import Trigger, Triggers, find_triggers
from graphkit.shapes.constraints.preconditions import Precondition, Violation

__all__ = ["Precondition", "SharedPrecondition", "Trigger", "Triggers", "Violation", "find_triggers"]
