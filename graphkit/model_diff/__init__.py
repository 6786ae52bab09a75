"""The differences between two files, section by section."""

SECTIONS = ("findings", "blockers", "interface", "opsets", "metadata", "nodes", "weights", "shapes")
COSTS = "costs"  # which follow from differences of these
