"""What each node needs of its dims for onnxruntime to run it as meant, and the smallest dims at which it lacks that."""

from graphkit.constraints.collect import SharedPrecondition
from graphkit.constraints.precondition import Precondition, Violation
from graphkit.constraints.triggers import Trigger, Triggers, find_triggers

__all__ = ["Precondition", "SharedPrecondition", "Trigger", "Triggers", "Violation", "find_triggers"]
