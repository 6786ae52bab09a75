"""The machinery of passes: their base class, the editor that records changes, the builder of new nodes."""

from graphkit.rewrite.base import (
    ROUNDING,
    Declined,
    Matched,
    MatchFailure,
    Outcome,
    Pass,
    Premise,
    copy_proto,
    drop_inputs,
    keep,
)
from graphkit.rewrite.builder import Builder
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode, NodeInput, attributes_of
from graphkit.rewrite.fixpoint import NodeRewrite, Rewrite, run_to_fixpoint

__all__ = [
    "ROUNDING", "Builder", "Declined", "Editor", "MatchFailure", "Matched", "NewNode", "NodeInput", "NodeRewrite",
    "Outcome", "Pass", "Premise", "Rewrite", "attributes_of", "copy_proto", "drop_inputs", "keep", "run_to_fixpoint",
]  # fmt: skip
