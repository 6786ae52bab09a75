"""Targets: operators that compilers take, as TOML files of facts with their sources, and the reader of these.

target = load_target("ethos-u65")  # or the path of a file of your own
target.operators["Gather"]         # a Fact, or None where no source says
"""

from __future__ import annotations

from graphkit.deploy.targets.target import (
    NAMES,
    Condition,
    Fact,
    Facts,
    Limit,
    Source,
    Spelling,
    Target,
    Verdict,
    load_target,
    tflite_spellings,
)

__all__ = [
    "NAMES",
    "Condition",
    "Fact",
    "Facts",
    "Limit",
    "Source",
    "Spelling",
    "Target",
    "Verdict",
    "load_target",
    "tflite_spellings",
]
