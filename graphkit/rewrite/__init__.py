"""Passes: one a file, in pipeline order here, and pipelines of them."""

from __future__ import annotations

from graphkit.rewrite.base import Pass
from graphkit.rewrite.canonicalize_expand import CanonicalizeExpand
from graphkit.rewrite.canonicalize_reshape import CanonicalizeReshape
from graphkit.rewrite.canonicalize_slice import CanonicalizeSlice
from graphkit.rewrite.drop_broadcasts import DropBroadcasts
from graphkit.rewrite.drop_empty_outputs import DropEmptyOutputs
from graphkit.rewrite.drop_empty_parts import DropEmptyParts
from graphkit.rewrite.drop_unused_inputs import DropUnusedInputs
from graphkit.rewrite.drop_zero_adds import DropZeroAdds
from graphkit.rewrite.eliminate_dead_code import EliminateDeadCode
from graphkit.rewrite.eliminate_identity import EliminateIdentity
from graphkit.rewrite.flatten_free_matmul import FlattenFreeMatmul
from graphkit.rewrite.fold_constants import FoldConstants
from graphkit.rewrite.fold_shapes import FoldShapes
from graphkit.rewrite.freeze_dims import FreezeDims
from graphkit.rewrite.infer_output_shapes import InferOutputShapes
from graphkit.rewrite.inline_constant_if import InlineConstantIf
from graphkit.rewrite.inline_functions import InlineFunctions
from graphkit.rewrite.merge_chains import MergeChains
from graphkit.rewrite.merge_common_subexpressions import MergeCommonSubexpressions
from graphkit.rewrite.rematerialize_shapes import RematerializeShapes
from graphkit.rewrite.simplify_scatter import SimplifyScatter
from graphkit.rewrite.specialize_input import SpecializeInput
from graphkit.rewrite.strip_merged_suffixes import StripMergedSuffixes

__all__ = ["PASSES"]

PASSES: tuple[type[Pass], ...] = (
    InlineFunctions,
    SpecializeInput,
    FreezeDims,
    InlineConstantIf,
    DropEmptyOutputs,
    EliminateIdentity,
    DropEmptyParts,
    FoldShapes,
    CanonicalizeReshape,
    CanonicalizeExpand,
    CanonicalizeSlice,
    SimplifyScatter,
    MergeChains,
    FlattenFreeMatmul,
    DropBroadcasts,
    FoldConstants,
    DropZeroAdds,
    MergeCommonSubexpressions,
    RematerializeShapes,
    EliminateDeadCode,
    DropUnusedInputs,
    InferOutputShapes,
    StripMergedSuffixes,
)
