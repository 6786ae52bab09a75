"""Passes in folders by purpose, and all of them here in pipeline order."""

from __future__ import annotations

from graphkit.passes.clean_up.castlike_to_cast import CastlikeToCast
from graphkit.passes.clean_up.drop_zeros import DropZeroAdds, DropZeroStates
from graphkit.passes.clean_up.eliminate_dead_code import DropEmptyOutputs, DropUnusedInputs, EliminateDeadCode
from graphkit.passes.clean_up.eliminate_identity import EliminateIdentity
from graphkit.passes.clean_up.fold_constants import FoldConstants, FoldShapes
from graphkit.passes.clean_up.merge_common_subexpressions import MergeCommonSubexpressions
from graphkit.passes.control_flow.inline_constant_if import InlineConstantIf
from graphkit.passes.control_flow.inline_functions import InlineFunctions
from graphkit.passes.control_flow.specialize_input import SpecializeInput
from graphkit.passes.control_flow.split_merged import StripMergedSuffixes
from graphkit.passes.fusion.fuse_attention import FuseAttention
from graphkit.passes.fusion.fuse_constants import FuseConstants
from graphkit.passes.fusion.fuse_into_linear import FusePads, MatmulAddToGemm
from graphkit.passes.fusion.fuse_layer_norm import FuseLayerNorm
from graphkit.passes.fusion.merge_sibling_matmuls import MergeSiblingMatmuls
from graphkit.passes.fusion.share_kv_heads import ShareKvHeads
from graphkit.passes.fusion.softmax_to_constant import SoftmaxToConstant
from graphkit.passes.fusion.squeeze_token_axis import SqueezeTokenAxis
from graphkit.passes.interface.extract_subgraph import ExtractSubgraph
from graphkit.passes.interface.rename import Rename
from graphkit.passes.npu.cast_int64_away import CastInt64Away
from graphkit.passes.npu.decompose_attention import DecomposeAttention
from graphkit.passes.npu.drop_nan_guard import DropNanGuard
from graphkit.passes.npu.einsum_to_matmul import EinsumToMatmul
from graphkit.passes.npu.expand_to_broadcast import ExpandToBroadcast
from graphkit.passes.npu.extract_embedding import DequantizeAfterGather, ExtractEmbedding
from graphkit.passes.npu.extract_host_values import ExtractHostValues
from graphkit.passes.npu.gather_to_slice import GatherToSlice
from graphkit.passes.npu.gelu_to_tanh import GeluToTanh
from graphkit.passes.npu.insert_attention_mask import InsertAttentionMask
from graphkit.passes.npu.masked_fill_to_add import MaskedFillToAdd
from graphkit.passes.npu.pool_by_product import PoolByProduct
from graphkit.passes.npu.reduce_cache_rank import ReduceCacheRank
from graphkit.passes.npu.reduce_rank import ReduceInterfaceRank, ReduceRank
from graphkit.passes.npu.rotary_sign_to_table import RotarySignToTable
from graphkit.passes.npu.spell_plainly import LayerNormToPrimitives, NegToMul, PowToMul
from graphkit.passes.npu.split_cross_kv import SplitCrossKv
from graphkit.passes.npu.stack_caches import StackCaches
from graphkit.passes.npu.static_kv_cache import StaticKvCache
from graphkit.passes.npu.tril_to_constant import TrilToConstant
from graphkit.passes.npu.where_to_arithmetic import WhereToArithmetic
from graphkit.passes.opset.convert_opset import ConvertOpset
from graphkit.passes.quantization.dequantize import Dequantize
from graphkit.passes.shapes.cancel_reshapes import CancelReshapes
from graphkit.passes.shapes.declare_shapes import DeclareShapes, InferOutputShapes
from graphkit.passes.shapes.flatten_free_matmul import FlattenFreeMatmul
from graphkit.passes.shapes.freeze_dims import FreezeDims, SetDims
from graphkit.passes.shapes.rematerialize_shapes import RematerializeShapes
from graphkit.passes.shapes.sequence_to_split import SequenceToSplit
from graphkit.passes.shapes.simplify_concat import DropEmptyParts, MergeConcats
from graphkit.passes.shapes.simplify_expand import CanonicalizeExpand, DropBroadcasts
from graphkit.passes.shapes.simplify_reshape import CanonicalizeReshape, MergeChains
from graphkit.passes.shapes.simplify_scatter import SimplifyScatter
from graphkit.passes.shapes.simplify_slice import CanonicalizeSlice, MergeSlices
from graphkit.passes.state.keep_last_logits import KeepLastLogits
from graphkit.passes.state.update_cache_in_place import UpdateCacheInPlace
from graphkit.rewrite.base import Pass
from graphkit.rewrite.fixpoint import Rewrite

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
    FuseConstants,
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
    PoolByProduct,
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
    RotarySignToTable,
    CastInt64Away,
    PowToMul,
    NegToMul,
    LayerNormToPrimitives,
    GeluToTanh,
    UpdateCacheInPlace,
    SqueezeTokenAxis,
    KeepLastLogits,
)
