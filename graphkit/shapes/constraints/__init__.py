"""Constraints on dims: preconditions of nodes, relations of expressions, and the sizes that meet them."""

from graphkit.shapes.constraints.collect import SharedPrecondition
from graphkit.shapes.constraints.precondition import Precondition, Violation
from graphkit.shapes.constraints.triggers import Trigger, Triggers, find_triggers

__all__ = ["Precondition", "SharedPrecondition", "Trigger", "Triggers", "Violation", "find_triggers"]
