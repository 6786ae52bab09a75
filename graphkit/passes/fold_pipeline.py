"""The pipeline of `graphkit fold`: fold constants, and simplify the computation of shapes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from graphkit.errors import count_things
from graphkit.model import Model, ModelLike, as_model
from graphkit.options import FoldingOptions
from graphkit.passes.clean_up.eliminate_identity import DropZeroAdds, DropZeroStates, EliminateIdentity
from graphkit.passes.clean_up.exporter_idioms import (
    CastlikeToCast,
    SequenceToSplit,
    keep_outputs_float,
    with_sorted_nodes,
    with_unique_node_names,
)
from graphkit.passes.clean_up.fold_constants import FoldConstants, FoldShapes
from graphkit.passes.clean_up.redundant_nodes import MergeCommonSubexpressions
from graphkit.passes.shapes.declare_shapes import FreezeDims, InferOutputShapes
from graphkit.passes.shapes.flatten_free_matmul import FlattenFreeMatmul
from graphkit.passes.shapes.rematerialize_shapes import RematerializeShapes
from graphkit.passes.shapes.simplify_expand import CanonicalizeExpand, DropBroadcasts
from graphkit.passes.shapes.simplify_reshape import (
    CancelReshapes,
    CanonicalizeReshape,
    MergeChains,
    MoveReshapeBeforeTranspose,
)
from graphkit.passes.shapes.simplify_scatter import MORE_NODES, SimplifyGather, SimplifyScatter
from graphkit.passes.shapes.simplify_slice import CanonicalizeSlice, DropEmptyParts, MergeConcats, MergeSlices
from graphkit.rewrite import Outcome, Rewrite, run_to_fixpoint
from graphkit.rewrite.base import PassChange
from graphkit.rewrite.edits import remove_dead_code
from graphkit.rewrite.fixpoint import Counts, describe_counts
from graphkit.shapes import AS_DECLARED, Bounds, DimSpec, declarations
from graphkit.shapes.graph_inputs import Inputs

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
    SimplifyGather,
    MergeChains,
    MoveReshapeBeforeTranspose,
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
LAST: tuple[type[Rewrite], ...] = (RematerializeShapes, MergeCommonSubexpressions)  # of what then reads the same
MAX_ROUNDS = 4


def fold(
    model: ModelLike,
    spec: DimSpec = AS_DECLARED,
    options: FoldingOptions = FoldingOptions(),
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    ranges: Mapping[str, Bounds] | None = None,
    without: Collection[type[Rewrite]] = (),
) -> Outcome:
    """Return a model with its shape computations folded: static ones are constants, dynamic ones are computed once.

    Without sizes and shapes the model stays as dynamic as before, with the same results for every legal input. Declared
    input dims that contradict what the nodes compute are corrected first: see `graphkit.shapes.corrected_declarations`.

    Args:
        model: The model, which is not changed, or its path.
        spec: The known facts about the input dims; `dims`, `inputs` and `ranges` add to it.
        options: How to fold.
        dims: Sizes to freeze symbols to, such as `{"batch_size": 1}`.
        inputs: Shapes to freeze inputs to, such as `{"pixel_values": (1, 3, 800, 800)}`.
        ranges: Bounds of symbols, such as `{"sequence_length": (1, 512)}`; None for an open end.
        without: Rewrites to leave out.

    Raises:
        UsageError: An input or a symbol does not exist, or the numbers contradict each other.

    Example:
        >>> graphkit.fold(graphkit.load("example:causal-attention"), dims={"batch_size": 1}).changes[0]
        'freeze-dims: batch_size is 1'
    """
    model = with_sorted_nodes(as_model(model))
    spec, declared = spec | DimSpec.of(dims, inputs, ranges), declarations(model)
    base = InferOutputShapes().run(declared.model).model if declared.corrections else model
    frozen = FreezeDims(spec.dims, spec.inputs, ranges=spec.ranges).run(base)
    model, spec = remove_dead_code(frozen.model).model, spec.open_ranges(Inputs(base, spec).numbers)
    outcome = _fold_repeatedly(model, spec, options, without, sparing=options.keep_fusions or options.fuse)
    if any(each.reason == MORE_NODES for each in outcome.declined):  # unless later ones write over most of these nodes
        whole = _fold_repeatedly(model, spec, options, without, sparing=False)
        outcome = min(whole, outcome, key=lambda each: len(each.model.nodes))
    changes = [*(PassChange(change, FreezeDims.name()) for change in frozen.changes), *outcome.changes]
    model, renamed = with_unique_node_names(outcome.model)
    model, kept = keep_outputs_float(model)
    if renamed:
        changes.append(PassChange(f"{count_things(renamed, 'node(s)')} got a name that no other one has", "fold"))
    if kept:
        outputs = count_things(kept, "output(s)")
        changes.append(PassChange(f"{outputs} kept from being quantised by onnxruntime", "fold"))
    return Outcome(model, tuple(changes), outcome.declined)


def _fold_repeatedly(
    model: Model, spec: DimSpec, options: FoldingOptions, without: Collection[type[Rewrite]], *, sparing: bool
) -> Outcome:
    changes, counts = list[PassChange](), Counts()
    kinds = FOLDING
    if options.fuse:
        from graphkit.passes.fuse_passes import FUSING, SHARING

        kinds = (*SHARING, *FOLDING, *FUSING)
    configured = {
        DropZeroAdds: DropZeroAdds(signs=not options.fuse),
        FoldConstants: FoldConstants(options.limit, half=options.fuse),
        SimplifyScatter: SimplifyScatter(sparing=sparing),
    }
    rewrites = tuple(configured.get(kind) or kind() for kind in kinds if kind not in without)
    last = [kind() for kind in LAST if kind not in without]
    keep_fusions = options.keep_fusions and not options.fuse
    for _ in range(MAX_ROUNDS):
        outcome = run_to_fixpoint(model, rewrites, spec, counts, last=last, keep_fusions=keep_fusions)
        model = outcome.model
        if not any(node.is_op("If") for node in model.nodes):
            break
        from graphkit.passes.control_flow.inline_constant_if import InlineConstantIf  # which few models need

        inlined = InlineConstantIf(ranges=spec.ranges).run(model)
        changes += [PassChange(change, InlineConstantIf.name()) for change in inlined.changes]
        model = inlined.model
        if model is outcome.model:
            break
    return Outcome(model, (*changes, *describe_counts(counts)), outcome.declined)
