"""The proof of a split: each model as a rewrite of its branch of the merged decoder, then both in a decoding loop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from graphkit.errors import ModelError, UsageError
from graphkit.graph.roles import Axis, dim_at
from graphkit.model import Model, ModelLike, as_model
from graphkit.options import RewriteProofOptions, SplitProofOptions
from graphkit.progress import Progress, portion_of, with_share
from graphkit.runtime.session import IsolatedSession, RunError, as_read, check_files
from graphkit.shapes import AS_DECLARED, declarations
from graphkit.shapes.constraints.legal_sizes import Sizes
from graphkit.verify.comparator import Difference
from graphkit.verify.decoding import Decoder, decode
from graphkit.verify.feeder import MARGIN, Feeder
from graphkit.verify.interface_changes import Branch, Part, interface_failures
from graphkit.verify.proof_engine import Step, follow_steps, run_isolated
from graphkit.verify.rewrite_proof import LoopProof, RewriteProof, SplitProof
from graphkit.verify.rewrite_verifier import RewriteVerifier

BATCH, ENCODER = 2, 5  # of the loop, where nothing fixes them
NO_FIT = "No greedy loop was run: the pair does not fit the merged decoder."
SHORTER = "The merged decoder does not run from a prompt of {:,} tokens, so that the loop starts with {:,}: {}."
ONE_LENGTH = "No greedy loop was run: the decoder of later steps takes a past of one length."


def verify_split(
    merged: ModelLike,
    first: ModelLike,
    with_past: ModelLike,
    options: SplitProofOptions = SplitProofOptions(),
    *,
    progress: Progress = lambda _: None,
) -> SplitProof:
    """Run a merged decoder and the pair made of it, and compare.

    Inputs and outputs of each model must be those of its branch, its weights those of the merged decoder, byte by byte.
    It is proven as any rewrite is (see `graphkit.verify.rewrite_verifier`), with the condition at the value that
    chooses the branch. Then both decode greedily, as the merged decoder does.

    Args:
        merged: The merged decoder, read from a file.
        first: The decoder of the first step, read from a file.
        with_past: The decoder of later steps, read from a file.
        options: How to prove it; above a tolerance of 0, changed weights are a note.
        progress: Called with the name of each step before it starts.

    Returns:
        The proof: `proof.passed` says whether it holds. A pair that does not load, or that has other inputs or outputs,
        fails it.

    Raises:
        UsageError: `merged` is not a merged decoder, or a model was not read from a file.
        ModelError: A data file is missing, or onnxruntime does not load the merged decoder.

    Example:
        >>> import tempfile
        >>> options = graphkit.SplitProofOptions(steps=2)
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     made = graphkit.split_merged(graphkit.load("example:merged-decoder"))
        ...     paths = Path(folder) / "first.onnx", Path(folder) / "later.onnx"
        ...     saved = graphkit.save_models(dict(zip(paths, (made.first, made.with_past))))
        ...     pair = map(graphkit.load, paths)
        ...     proof = graphkit.verify_split(graphkit.load("example:merged-decoder"), *pair, options)
        >>> proof.passed
        True
    """
    merged, pair = as_model(merged), (as_model(first), as_model(with_past))
    if not merged.roles.merged:
        raise UsageError(f"{merged.label}: is not a merged decoder - give the model that was split first")
    for model in (merged, *pair):
        check_files(model)
    with run_isolated(options.limits):
        shares = portion_of(progress, 0.0, 0.4), portion_of(progress, 0.4, 0.8)
        proven = [_prove_branch(merged, pair[at], options, shares[at], is_cache=bool(at)) for at in (0, 1)]
        progress(with_share(0.8, "proving: decoding with the pair"))
        branches, feeders = zip(*proven, strict=True)
        loop = _prove_loop(merged, pair, feeders, [run.dims for run in branches[0].runs], options)
    return SplitProof(options.tolerance or 0.0, branches, loop)


def _prove_branch(
    merged: Model, model: Model, options: SplitProofOptions, progress: Progress, *, is_cache: bool
) -> tuple[RewriteProof, Feeder | None]:
    """Prove that a model gives what a branch gives; return what makes inputs for both too, where they fit."""
    tolerance, decoder = options.tolerance or 0.0, merged.roles.merged[0]
    branch = Branch.of(merged, decoder, is_cache=is_cache)
    blank = RewriteProof(merged.name, model.name, tolerance=tolerance, fixed={})
    if failures := interface_failures(branch, model):
        return replace(blank, failures=failures), None
    flag = np.full(decoder.condition.shape, branch.flag)
    rewrite = RewriteProofOptions(
        tolerance=tolerance, exact=True, values={branch.condition: flag}, seed=options.seed, limits=options.limits
    )
    part = Part((), tuple(value.name for value in model.graph.outputs), branch)
    sources = as_read(merged), as_read(model)
    try:
        verifier = RewriteVerifier((merged, model), sources, AS_DECLARED, rewrite, progress, part)
    except UsageError as error:
        return replace(blank, failures=(str(error),)), None
    return verifier.run(), verifier.two.feeder


def _prove_loop(
    merged: Model,
    pair: tuple[Model, Model],
    feeders: tuple[Feeder | None, Feeder | None],
    first_runs: Sequence[Mapping[str, int]],
    options: SplitProofOptions,
) -> LoopProof:
    """Decode with the merged decoder and with the pair on the same inputs, and compare.

    A branch that does not fit its model has no feeder; `first_runs` are sizes at which the first step runs.
    """
    first, later = feeders
    if first is None or later is None or not first_runs:
        return LoopProof(0, 0, None, "", NO_FIT)
    growing = [entry for entry in merged.roles.pasts.values() if not merged.roles.is_cross(entry)]
    if "past" in later.sizes.fixed_roles or any(isinstance(dim_at(each.past, each.axis), int) for each in growing):
        return LoopProof(0, 0, None, "", ONE_LENGTH)

    def fixed_size(role: Axis, size: int) -> int:
        return first.sizes.fixed_roles.get(role, later.sizes.fixed_roles.get(role, size))

    def fit_sizes(prompt: int) -> Sizes:
        return Sizes(fixed_size("batch", BATCH), prompt, 0, fixed_size("encoder", ENCODER))

    corrected = declarations(merged)  # onnxruntime plans its memory by symbols that are equal
    source = corrected.model if corrected.notes else as_read(merged)
    merged, pair = corrected.model, (declarations(pair[0]).model, declarations(pair[1]).model)
    steps = options.steps
    with IsolatedSession(source, prepack=False, known=merged) as session:
        prompts, note = _prompt_lengths(first, first_runs, steps), ""
        for prompt in prompts:
            try:
                expected = decode(Decoder(merged, merged, session, session), sizes=fit_sizes(prompt), steps=steps)
                break
            except RunError as error:
                if prompt == prompts[-1]:
                    raise
                note = SHORTER.format(prompt, prompts[-1], f"{error.problem}".rstrip("."))
    try:
        sessions = [IsolatedSession(as_read(model), prepack=False, known=model) for model in pair]
        actual = decode(Decoder(*pair, *sessions), sizes=fit_sizes(prompt), steps=steps, like=merged)
    except ModelError as error:
        return LoopProof(prompt, steps, None, error.problem, note)

    def rule(step: Step, difference: Difference, _: object) -> tuple[float, str]:
        if difference.output == "tokens":
            return 0.0, "" if difference.exact else f"tokens of {step.where} differ"
        fault = difference.problem or f"differ by {difference.absolute:.3g}"
        is_near = difference.within(options.tolerance or 0.0)
        return difference.absolute, "" if is_near else f"logits of {step.where}: {fault}"

    pairs = enumerate(zip(expected.steps(), actual.steps(), strict=True), start=1)
    repeated = (Step(f"step {at}", mine, partial(dict, theirs)) for at, (mine, theirs) in pairs)
    agreement = follow_steps(repeated, rule, any_width=False)
    worst = agreement.worst if math.isfinite(agreement.worst) else None
    return LoopProof(prompt, steps, worst, agreement.failure, note)


def _prompt_lengths(first: Feeder, runs: Sequence[Mapping[str, int]], steps: int) -> list[int]:
    """Return lengths of a prompt from which the steps pass a length at which the model may change, the last one sure.

    A branch that is proven ran at few sizes, so that nobody knows yet whether it runs at longer ones.
    """
    if "sequence" in first.sizes.fixed_roles:
        return [first.sizes.fixed_roles["sequence"]]
    ran = max(first.sizes.tokens.evaluate(dims) for dims in runs) if first.sizes.tokens else 1
    prompts = []
    for longest in (max(ran, *first.lengths.ends, *first.lengths.beyond, 1), ran):
        beyond = next((length for length in first.lengths.beyond if length <= longest), longest)
        prompts.append(max(min(longest - steps + 1, beyond - MARGIN - steps // 2), 1))
    return list(dict.fromkeys(prompts))
