"""Constraints on dims: preconditions of nodes, relations of expressions, and the sizes that meet them."""

from importlib import import_module
from typing import TYPE_CHECKING

from graphkit.ops.preconditions import Precondition, Violation
from graphkit.shapes.constraints.node_constraints import SharedPrecondition

if TYPE_CHECKING:
    from graphkit.shapes.constraints.failing_sizes import Trigger, Triggers, find_triggers

__all__ = ["Precondition", "SharedPrecondition", "Trigger", "Triggers", "Violation", "find_triggers"]


def __getattr__(name: str) -> object:
    """Import the search for sizes that fail when it is first used."""
    if name not in ("Trigger", "Triggers", "find_triggers"):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module("graphkit.shapes.constraints.failing_sizes"), name)
