"""Passes in folders by purpose, and all of them here in pipeline order."""

from __future__ import annotations

from graphkit.passes.clean_up.drop_zeros import DropZeroAdds, DropZeroStates
from graphkit.passes.clean_up.eliminate_identity import EliminateIdentity
from graphkit.passes.clean_up.exporter_idioms import CastlikeToCast, SequenceToSplit
from graphkit.passes.clean_up.fold_constants import FoldConstants, FoldShapes, SoftmaxToConstant
from graphkit.passes.clean_up.redundant_nodes import (
    DropEmptyOutputs,
    DropUnusedInputs,
    EliminateDeadCode,
    MergeCommonSubexpressions,
)
from graphkit.passes.control_flow.inline_constant_if import InlineConstantIf
from graphkit.passes.control_flow.inline_functions import InlineFunctions
from graphkit.passes.control_flow.specialize_input import SpecializeInput
from graphkit.passes.control_flow.split_merged import StripMergedSuffixes
from graphkit.passes.fusion.fold_into_weights import FoldIntoWeights
from graphkit.passes.fusion.fuse_attention import FuseAttention
from graphkit.passes.fusion.fuse_into_linear import FusePads, MatmulAddToGemm
from graphkit.passes.fusion.fuse_layer_norm import FuseLayerNorm
from graphkit.passes.fusion.merge_sibling_matmuls import MergeSiblingMatmuls
from graphkit.passes.fusion.share_kv_heads import ShareKvHeads
from graphkit.passes.fusion.squeeze_token_axis import SqueezeTokenAxis
from graphkit.passes.interface.extract_subgraph import ExtractSubgraph
from graphkit.passes.interface.rename import Rename
from graphkit.passes.npu.attention_masks import DropNanGuard, MaskedFillToAdd
from graphkit.passes.npu.cache_interface import ReduceCacheRank, SplitCrossKv, StackCaches
from graphkit.passes.npu.canonical_spelling import MoveConstantsRight, WriteLayerNormDefaults
from graphkit.passes.npu.cast_int64_away import CastInt64Away
from graphkit.passes.npu.decompose_attention import DecomposeAttention
from graphkit.passes.npu.decompose_operators import (
    GeluToTanh,
    LayerNormToPrimitives,
    NegToMul,
    PowToMul,
    ReciprocalToDiv,
)
from graphkit.passes.npu.dequantize import Dequantize
from graphkit.passes.npu.einsum_to_matmul import EinsumToMatmul
from graphkit.passes.npu.gather_to_slice import GatherToSlice
from graphkit.passes.npu.host_inputs import DequantizeAfterGather, ExtractEmbedding, ExtractHostValues
from graphkit.passes.npu.insert_attention_mask import InsertAttentionMask
from graphkit.passes.npu.mask_arithmetic import TrilToConstant, WhereToArithmetic
from graphkit.passes.npu.pool_row_by_one_hot import PoolRowByOneHot
from graphkit.passes.npu.reduce_rank import ReduceInterfaceRank, ReduceRank
from graphkit.passes.npu.rotary_sign_to_table import RotarySignToTable
from graphkit.passes.npu.static_kv_cache import StaticKvCache
from graphkit.passes.opset.convert_opset import ConvertOpset
from graphkit.passes.shapes.declare_shapes import DeclareShapes, InferOutputShapes
from graphkit.passes.shapes.flatten_free_matmul import FlattenFreeMatmul
from graphkit.passes.shapes.freeze_dims import FreezeDims, SetDims
from graphkit.passes.shapes.rematerialize_shapes import RematerializeShapes
from graphkit.passes.shapes.simplify_concat import DropEmptyParts, JoinBeforeReshape, MergeConcats
from graphkit.passes.shapes.simplify_expand import CanonicalizeExpand, DropBroadcasts, ExpandToBroadcast
from graphkit.passes.shapes.simplify_reshape import CancelReshapes, CanonicalizeReshape, MergeChains
from graphkit.passes.shapes.simplify_scatter import SimplifyScatter
from graphkit.passes.shapes.simplify_slice import CanonicalizeSlice, MergeSlices
from graphkit.passes.state.keep_last_logits import KeepLastLogits
from graphkit.passes.state.unpack_logits_weight import UnpackLogitsWeight
from graphkit.passes.state.update_cache_in_place import UpdateCacheInPlace
from graphkit.rewrite import Pass, Rewrite

__all__ = ["FOLDING", "FUSING", "PASSES", "SHARING"]

# What `graphkit fold` runs to a fixpoint, in the order in which they may take a node.
FOLDING: tuple[type[Rewrite], ...] = (
    EliminateIdentity,
    CastlikeToCast,
    SequenceToSplit,
    DropEmptyParts,
    FoldShapes,
    CanonicalizeReshape,
    CanonicalizeExpand,
    CanonicalizeSlice,
    SimplifyScatter,
    MergeChains,
    MergeConcats,
    MergeSlices,
    FlattenFreeMatmul,
    CancelReshapes,
    DropBroadcasts,
    FoldConstants,
    DropZeroAdds,
    DropZeroStates,
    MergeCommonSubexpressions,
)

# What `graphkit fold --fuse` runs too: it changes the last digits of results.
SHARING: tuple[type[Rewrite], ...] = (ShareKvHeads,)  # before the others, which move the Reshapes that it looks for
FUSING: tuple[type[Rewrite], ...] = (
    SoftmaxToConstant,
    FuseLayerNorm,
    FoldIntoWeights,
    FusePads,
    FuseAttention,
    MergeSiblingMatmuls,
    MatmulAddToGemm,
)

PASSES: tuple[type[Pass], ...] = (
    InlineFunctions,
    SpecializeInput,
    ExtractSubgraph,
    Rename,
    FreezeDims,
    SetDims,
    InlineConstantIf,
    DropEmptyOutputs,
    *SHARING,
    *FOLDING,
    *FUSING,
    RematerializeShapes,
    EliminateDeadCode,
    DropUnusedInputs,
    InferOutputShapes,
    DeclareShapes,
    StripMergedSuffixes,
    ConvertOpset,
    Dequantize,
    DecomposeAttention,
    MaskedFillToAdd,
    DropNanGuard,
    SplitCrossKv,
    DequantizeAfterGather,
    ExtractEmbedding,
    InsertAttentionMask,
    PoolRowByOneHot,
    ExtractHostValues,
    StaticKvCache,
    TrilToConstant,
    WhereToArithmetic,
    ReduceInterfaceRank,
    ReduceCacheRank,
    StackCaches,
    GatherToSlice,
    ExpandToBroadcast,
    EinsumToMatmul,
    ReduceRank,
    JoinBeforeReshape,
    RotarySignToTable,
    CastInt64Away,
    MoveConstantsRight,
    WriteLayerNormDefaults,
    PowToMul,
    NegToMul,
    ReciprocalToDiv,
    LayerNormToPrimitives,
    GeluToTanh,
    UpdateCacheInPlace,
    SqueezeTokenAxis,
    KeepLastLogits,
    UnpackLogitsWeight,
)
