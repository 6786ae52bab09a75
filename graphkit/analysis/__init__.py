"""Analyses: plain functions from a Model to a Result; one a file. They never change a graph."""

from __future__ import annotations

__all__ = ["SECTIONS"]

# The sections of a report, in order; `report.py` says which analysis makes each.
SECTIONS = (
    "summary",
    "architecture",
    "interface",
    "kv-cache",
    "shape-ops",
    "origins",
    "what-if",
    "hazards",
    "control-flow",
)
