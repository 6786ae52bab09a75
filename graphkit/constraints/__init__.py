"""Constraints on dims: preconditions of nodes, relations of expressions, and the sizes that meet them."""

from graphkit.constraints.collect import SharedPrecondition
from graphkit.constraints.precondition import Precondition, Violation
from graphkit.constraints.triggers import Trigger, Triggers, find_triggers

__all__ = ["Precondition", "SharedPrecondition", "Trigger", "Triggers", "Violation", "find_triggers"]
