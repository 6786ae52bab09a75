from .base import (
    ROUNDING,
    Declined,
    Matched,
    MatchFailure,
    Outcome,
    Pass,
    Premise,
    copy_proto,
    drop_inputs,
    keep_members,
    replace_members,
)
from .editor import Builder, Editor
from .edits import NewNode, NodeInput, attributes_of, copy_node
from .fixpoint import NodeRewrite, Rewrite, run_to_fixpoint

__all__ = [
    "ROUNDING",
    "Builder",
    "Declined",
    "Editor",
    "MatchFailure",
    "Matched",
    "NewNode",
    "NodeInput",
    "NodeRewrite",
    "Outcome",
    "Pass",
    "Premise",
    "Rewrite",
    "attributes_of",
    "copy_node",
    "copy_proto",
    "drop_inputs",
    "keep_members",
    "replace_members",
    "run_to_fixpoint",
]
