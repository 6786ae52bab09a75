"""All passes, in the order in which a pipeline runs them."""

from __future__ import annotations

from graphkit.passes.clean_up.redundant_nodes import DropEmptyOutputs, DropUnusedInputs, EliminateDeadCode
from graphkit.passes.control_flow.inline_constant_if import InlineConstantIf
from graphkit.passes.control_flow.inline_functions import InlineFunctions
from graphkit.passes.control_flow.specialize_input import SpecializeInput
from graphkit.passes.control_flow.split_merged import StripMergedSuffixes
from graphkit.passes.fold_passes import FOLDING
from graphkit.passes.fuse_passes import FUSING, SHARING
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
from graphkit.passes.shapes.freeze_dims import FreezeDims, SetDims
from graphkit.passes.shapes.rematerialize_shapes import RematerializeShapes
from graphkit.passes.shapes.simplify_concat import JoinBeforeReshape
from graphkit.passes.shapes.simplify_expand import ExpandToBroadcast
from graphkit.passes.state.keep_last_logits import KeepLastLogits
from graphkit.passes.state.unpack_logits_weight import UnpackLogitsWeight
from graphkit.passes.state.update_cache_in_place import UpdateCacheInPlace
from graphkit.rewrite.base import Pass

__all__ = ["PASSES"]

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
