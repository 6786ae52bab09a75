"""The passes that `graphkit fold --fuse` runs too: they change the last digits of results."""

from __future__ import annotations

from graphkit.passes.clean_up.fold_constants import SoftmaxToConstant
from graphkit.passes.fusion.fold_into_weights import FoldIntoWeights
from graphkit.passes.fusion.fuse_attention import FuseAttention
from graphkit.passes.fusion.fuse_into_linear import FusePads, MatmulAddToGemm
from graphkit.passes.fusion.fuse_layer_norm import FuseLayerNorm
from graphkit.passes.fusion.merge_sibling_matmuls import MergeSiblingMatmuls
from graphkit.passes.fusion.share_kv_heads import ShareKvHeads
from graphkit.rewrite.fixpoint import Rewrite

__all__ = ["FUSING", "SHARING"]

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
