"""The passes of `graphkit fold`, in the order in which they may take a node."""

from __future__ import annotations

from graphkit.passes.clean_up.drop_zeros import DropZeroAdds, DropZeroStates
from graphkit.passes.clean_up.eliminate_identity import EliminateIdentity
from graphkit.passes.clean_up.exporter_idioms import CastlikeToCast, SequenceToSplit
from graphkit.passes.clean_up.fold_constants import FoldConstants, FoldShapes
from graphkit.passes.clean_up.redundant_nodes import MergeCommonSubexpressions
from graphkit.passes.shapes.flatten_free_matmul import FlattenFreeMatmul
from graphkit.passes.shapes.simplify_concat import DropEmptyParts, MergeConcats
from graphkit.passes.shapes.simplify_expand import CanonicalizeExpand, DropBroadcasts
from graphkit.passes.shapes.simplify_reshape import CancelReshapes, CanonicalizeReshape, MergeChains
from graphkit.passes.shapes.simplify_scatter import SimplifyScatter
from graphkit.passes.shapes.simplify_slice import CanonicalizeSlice, MergeSlices
from graphkit.rewrite.fixpoint import Rewrite

__all__ = ["FOLDING"]

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
