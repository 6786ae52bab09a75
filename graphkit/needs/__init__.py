"""What each node needs of its dims for onnxruntime to run it as meant, and the smallest dims at which it lacks that."""

from graphkit.needs.collect import Needed
from graphkit.needs.need import Need, Trouble
from graphkit.needs.search import Trigger, Triggers, find_triggers

__all__ = ["Need", "Needed", "Trigger", "Triggers", "Trouble", "find_triggers"]
