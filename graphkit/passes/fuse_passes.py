"""The passes that `graphkit fold --fuse` runs too: they change the last digits of results."""

from __future__ import annotations

from graphkit.passes.attention.fuse_attention import FuseAttention
from graphkit.passes.attention.share_kv_heads import ShareKvHeads
from graphkit.passes.clean_up.fold_constants import SoftmaxToConstant
from graphkit.passes.fusion.fold_into_weights import FoldIntoWeights
from graphkit.passes.fusion.fuse_into_linear import FusePads, MatmulAddToGemm, MergeSiblingMatmuls
from graphkit.passes.fusion.fuse_layer_norm import FuseLayerNorm
from graphkit.rewrite.fixpoint import Rewrite

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
