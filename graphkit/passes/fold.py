"""The pipeline of `graphkit fold`: fold what is constant, and simplify how shapes are computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from graphkit.model import Model
from graphkit.passes import FOLDING
from graphkit.passes.clean_up.fold_constants import FoldConstants
from graphkit.passes.control_flow.inline_constant_if import InlineConstantIf
from graphkit.passes.shapes.freeze_dims import FreezeDims
from graphkit.passes.shapes.infer_output_shapes import InferOutputShapes
from graphkit.passes.shapes.rematerialize_shapes import RematerializeShapes
from graphkit.rewrite.base import Declined, Outcome
from graphkit.rewrite.dead_code import remove_dead_code
from graphkit.rewrite.fixpoint import Counts, Rewrite, described, run_to_fixpoint
from graphkit.shapes import declarations
from graphkit.shapes.inputs import Inputs

__all__ = ["FOLD_LIMIT", "fold"]

FOLD_LIMIT = 1 << 20  # bytes of the largest constant that folding makes
MAX_ROUNDS = 4


def fold(
    model: Model,
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    ranges: Mapping[str, tuple[int | None, int | None]] | None = None,
    limit: int = FOLD_LIMIT,
    keep_fusions: bool = True,
) -> Outcome:
    """Fold the shape plumbing of a model: what is static becomes constant, what is dynamic is computed once.

    Without `dims` and `inputs` the model stays as dynamic as it is, and gives the same results for every legal input.

    Args:
        model: The model, which stays as it is.
        dims: Numbers to freeze symbols to, such as `{"batch_size": 1}`.
        inputs: Shapes to freeze inputs to, such as `{"pixel_values": (1, 3, 800, 800)}`.
        ranges: Bounds of symbols, None for an open end; a symbol without is at least 1, one named `past...` or along
            which a KV cache grows at least 0.
        limit: Bytes of the largest constant to make; all of them together add at most 64 times as many.
        keep_fusions: Whether what onnxruntime's own fusions look for stays as it is; without, for other runtimes,
            fewer nodes are left.

    Where declared dims of the inputs contradict what the nodes compute, they are declared anew first: see
    `graphkit.shapes.declarations`.

    Raises:
        UsageError: An input or a symbol does not exist, or the numbers contradict each other.
    """
    declared = declarations(model)
    model = InferOutputShapes().run(declared.model).model if declared.corrections else model
    numbers = Inputs(model, dims or {}, inputs or {}, ranges or {}, {}).numbers
    limits = tuple((name, low, high) for name, (low, high) in (ranges or {}).items())
    shapes = tuple((name, tuple(shape)) for name, shape in (inputs or {}).items())
    frozen = FreezeDims(tuple((dims or {}).items()), shapes, ranges=limits).run(model)
    bounds = tuple(limit for limit in limits if limit[0] not in numbers)
    changes = [f"{FreezeDims.name()}: {change}" for change in frozen.changes]
    model = remove_dead_code(frozen.model).model
    declined: tuple[Declined, ...] = ()
    counts: Counts = Counter()
    for _ in range(MAX_ROUNDS):
        outcome = run_to_fixpoint(model, _rewrites(limit), bounds, counts, keep_fusions=keep_fusions)
        declined = outcome.declined
        inlined = InlineConstantIf(ranges=bounds).run(outcome.model)
        changes += [f"{InlineConstantIf.name()}: {change}" for change in inlined.changes]
        last = run_to_fixpoint(inlined.model, [RematerializeShapes()], bounds, counts, keep_fusions=keep_fusions).model
        is_done = last is outcome.model
        model = last
        if is_done:
            break
    return Outcome(model, (*changes, *described(counts)), declined)


def _rewrites(limit: int) -> tuple[Rewrite, ...]:
    return tuple(FoldConstants(limit) if kind is FoldConstants else kind() for kind in FOLDING)
