"""Passes: one a file, in pipeline order here, and pipelines of them."""

from __future__ import annotations

from graphkit.rewrite.base import Pass
from graphkit.rewrite.drop_empty_outputs import DropEmptyOutputs
from graphkit.rewrite.drop_unused_inputs import DropUnusedInputs
from graphkit.rewrite.eliminate_dead_code import EliminateDeadCode
from graphkit.rewrite.infer_output_shapes import InferOutputShapes
from graphkit.rewrite.specialize_input import SpecializeInput
from graphkit.rewrite.strip_merged_suffixes import StripMergedSuffixes

__all__ = ["PASSES"]

PASSES: tuple[type[Pass], ...] = (
    SpecializeInput,
    DropEmptyOutputs,
    EliminateDeadCode,
    DropUnusedInputs,
    InferOutputShapes,
    StripMergedSuffixes,
)
