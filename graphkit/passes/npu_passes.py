"""The passes that the last step of lowering runs, in the order in which they may take a node."""

from __future__ import annotations

from graphkit.passes.clean_up.eliminate_identity import EliminateIdentity
from graphkit.passes.clean_up.fold_constants import FoldConstants
from graphkit.passes.clean_up.redundant_nodes import MergeCommonSubexpressions
from graphkit.passes.npu.canonical_spelling import MoveConstantsRight, WriteLayerNormDefaults
from graphkit.passes.npu.cast_int64_away import CastInt64Away
from graphkit.passes.npu.gather_to_slice import GatherToSlice
from graphkit.passes.npu.reduce_rank import ReduceRank
from graphkit.passes.npu.rotary_sign_to_table import RotarySignToTable
from graphkit.passes.shapes.simplify_concat import JoinBeforeReshape
from graphkit.passes.shapes.simplify_expand import ExpandToBroadcast
from graphkit.passes.shapes.simplify_reshape import CanonicalizeReshape, MergeChains
from graphkit.rewrite import Rewrite

__all__ = ["NPU_PASSES"]

# What a fold does to raise ranks is not among them.
NPU_PASSES: tuple[type[Rewrite], ...] = (
    EliminateIdentity,
    CanonicalizeReshape,
    MergeChains,
    GatherToSlice,
    ExpandToBroadcast,
    ReduceRank,
    JoinBeforeReshape,
    RotarySignToTable,
    CastInt64Away,
    MoveConstantsRight,
    WriteLayerNormDefaults,
    FoldConstants,
    MergeCommonSubexpressions,
)
