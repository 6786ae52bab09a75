"""The proof of a split: branch by branch, then as a decoding loop, against the merged decoder."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from graphkit.errors import ModelError, UsageError
from graphkit.graph.names import join_words
from graphkit.model import Model, ModelLike, as_model
from graphkit.options import SplitProofOptions
from graphkit.progress import portion_of, with_share
from graphkit.runtime.session import IsolatedSession, Runner, check_files
from graphkit.shapes import AS_DECLARED, DimSpec, declarations
from graphkit.shapes.constraints.dim_equalities import Pair, fixed_by, solve_dims
from graphkit.shapes.constraints.legal_sizes import legal_sizes
from graphkit.shapes.constraints.symbol_sizes import Role, Sizes
from graphkit.verify.candidate_runs import prove_level, with_level, with_weights, with_zeros
from graphkit.verify.candidate_sessions import Counted, tell_each
from graphkit.verify.comparator import Difference
from graphkit.verify.critical_sizes import MARGIN
from graphkit.verify.decoding import Decoded, Decoder, decode
from graphkit.verify.equivalence.equivalence_summary import EquivalenceSummary, limited_equivalence
from graphkit.verify.equivalence.result import Equivalence
from graphkit.verify.fatal_node import fatal_error, run_isolated
from graphkit.verify.interface_changes import Branch, find_narrowing, interface_failures, narrowed_change
from graphkit.verify.original_runs import (
    Feeder,
    Flags,
    LevelRuns,
    Run,
    RunRecord,
    at_both_levels,
    coverage_text,
    proof_caveats,
    run_empty,
    run_with,
)
from graphkit.verify.proof_engine import Step, follow_steps, repeat_calls, yield_outcomes
from graphkit.verify.split_proof import BranchProof, LoopProof, SplitProof
from graphkit.verify.tolerances import level_tolerance
from graphkit.verify.weight_comparison import foreign_weights

__all__ = ["BranchProof", "Loop", "LoopProof", "SplitProof", "verify_split"]

BATCH, ENCODER = 2, 5


@dataclass(frozen=True)
class Loop:
    """A merged decoder and a pair, to decode side by side.

    Attributes:
        pair: Decoder of the first step, decoder of later steps.
        first, later: What makes inputs for these; None where nothing fits both.
        record: What the merged decoder runs at on the first step.
        fits: Whether the pair has the inputs and outputs of the merged decoder's branches.
    """

    merged: Model
    pair: tuple[Model, Model]
    first: Feeder | None
    later: Feeder | None
    record: RunRecord
    steps: int
    fits: bool

    @property
    def note(self) -> str:
        """Why there is no loop to run, "" where there is one."""
        if not self.fits or self.first is None or self.later is None or not self.record.runs:
            return "No greedy loop was run: the pair does not fit the merged decoder."
        if "past" in self.later.sizes.fixed_roles:
            return "No greedy loop was run: the decoder of later steps takes a past of one length."
        return ""

    @property
    def is_possible(self) -> bool:
        """Whether there is a loop to run."""
        return not self.note

    @property
    def sizes(self) -> Sizes:
        """Batch, prompt and encoder's length, such that the steps pass a length at which the model may change."""
        assert self.first is not None
        return Sizes(self._fixed_size("batch", BATCH), self._prompt_length(), 0, self._fixed_size("encoder", ENCODER))

    def _fixed_size(self, role: Role, size: int) -> int:
        assert self.first is not None
        assert self.later is not None
        return self.first.sizes.fixed_roles.get(role, self.later.sizes.fixed_roles.get(role, size))

    def _prompt_length(self) -> int:
        assert self.first is not None
        legal = self.first.sizes
        if "sequence" in legal.fixed_roles:
            return legal.fixed_roles["sequence"]
        longest = max((legal.tokens.evaluate(run.dims) for run in self.record.runs), default=1) if legal.tokens else 1
        beyond = next((length for length in self.first.lengths.beyond if length <= longest), longest)
        return max(min(longest - self.steps + 1, beyond - MARGIN - self.steps // 2), 1)

    def expected(self, session: Runner) -> Decoded:
        """Return the tokens and logits of the merged decoder."""
        return decode(Decoder(self.merged, self.merged, session, session), sizes=self.sizes, steps=self.steps)

    def _actual_path(self) -> Decoded:
        first, later = self.pair
        assert first.path is not None
        assert later.path is not None
        with (
            IsolatedSession(first.path, prepack=False, known=first) as first_session,
            IsolatedSession(later.path, prepack=False, known=later) as later_session,
        ):
            return decode(
                Decoder(first, later, first_session, later_session),
                sizes=self.sizes,
                steps=self.steps,
                like=self.merged,
            )

    def compared(self, expected: Decoded, tolerance: float) -> LoopProof:
        """Decode with the pair on the same inputs, and compare."""
        prompt = self.sizes.sequence
        try:
            actual = self._actual_path()
        except ModelError as error:
            return LoopProof(prompt, self.steps, None, error.problem)
        return LoopProof(prompt, self.steps, *_compare_loops(expected, actual, tolerance))


def _compare_loops(expected: Decoded, actual: Decoded, tolerance: float) -> tuple[float | None, str]:
    def rule(step: Step, difference: Difference, _: object) -> tuple[float, str]:
        if difference.output == "tokens":
            return 0.0, "" if difference.exact else f"tokens of {step.where} differ"
        fault = difference.problem or f"differ by {difference.absolute:.3g}"
        return difference.absolute, "" if difference.within(tolerance) else f"logits of {step.where}: {fault}"

    pairs = zip(expected.steps(), actual.steps(), strict=True)
    steps = (Step(f"step {at}", mine, partial(dict, theirs)) for at, (mine, theirs) in enumerate(pairs, start=1))
    agreement = follow_steps(steps, rule, any_width=False)
    return agreement.worst if math.isfinite(agreement.worst) else None, agreement.failure


RUNS = 7  # sizes to run each branch at


def verify_split(
    merged: ModelLike,
    first: ModelLike,
    with_past: ModelLike,
    options: SplitProofOptions = SplitProofOptions(),
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> SplitProof:
    """Run a merged decoder and the pair made of it, and compare.

    Inputs and outputs of each model must be those of its branch, its weights those of the merged decoder, byte by byte.
    onnxruntime runs without graph optimizations, so that equal graphs give equal bits; then the pair once more at the
    default level, within a tolerance of its own (see `graphkit.verify.candidate_runs`). Sizes are legal for both, short
    ones and such as reach past windows and to the end of tables (see `graphkit.verify.critical_sizes`).

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
        ModelError: A data file is missing, onnxruntime does not load the merged decoder, or that fails at all sizes.

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
    merged, first, with_past = as_model(merged), as_model(first), as_model(with_past)
    with run_isolated(options.limits):
        return _prove_split(merged, first, with_past, options, progress)


def _prove_split(
    merged: Model, first: Model, with_past: Model, options: SplitProofOptions, progress: Callable[[str], None]
) -> SplitProof:
    tolerance = options.tolerance or 0.0
    if not merged.roles.merged:
        raise UsageError(f"{merged.label}: is not a merged decoder - give the model that was split first")
    for model in (merged, first, with_past):
        _model_path(model)
        check_files(model)
    contradictions = declarations(merged).notes
    merged, first, with_past = (declarations(model).model for model in (merged, first, with_past))
    source = merged if contradictions else _model_path(merged)  # onnxruntime plans its memory by symbols that are equal
    decoder = merged.roles.merged[0]
    parts = [
        _Part.of(Branch.of(merged, decoder, is_cache=is_cache), model, options.seed)
        for model, is_cache in ((first, False), (with_past, True))
    ]
    progress("comparing the weights")
    parts = [_weigh_part(part, is_exact=not tolerance) for part in parts]
    parts = [part.with_equivalence(options.limits.seconds, progress) for part in parts]
    progress("proving: loading the merged decoder")
    with IsolatedSession(source, prepack=False, known=merged) as session:
        is_proven = all(part.is_proven for part in parts)
        parts = [part.run(session, portion_of(progress, 0.3, 0.5), is_proven=is_proven) for part in parts]
        _check_runs(merged, parts)
        loop = _decode_loop(parts, options.steps)
        expected = loop.expected(session) if loop.is_possible else None
    parts = [_compare_part(part, tolerance, portion_of(progress, 0.5, 0.7)) for part in parts]
    progress(with_share(0.7, "proving: decoding with the pair"))
    outcome = loop.compared(expected, tolerance) if expected is not None else LoopProof(0, 0, None, "", loop.note)
    last = portion_of(progress, 0.8, 1.0)
    branches = tuple(_at_default(part, source, tolerance, last).proof for part in parts)
    return SplitProof(tolerance, branches, outcome, tuple(contradictions))


def _model_path(model: Model) -> Path:
    if model.path is None:
        raise UsageError("a model that was never written cannot be run - save it first")
    return model.path


@dataclass(frozen=True)
class _Part:
    """A branch of the merged decoder, the model made of it, and the findings about the two so far.

    Attributes:
        feeder: Makes inputs that both take; None where there are none.
        fits: Whether the model has the inputs and outputs of the branch.
        equal: Dims of the merged decoder that the model takes for equal, or for another size than they have.
        record: What the merged decoder gave.
        forms: What normal forms show.
    """

    branch: Branch
    model: Model
    feeder: Feeder | None
    fits: bool
    proof: BranchProof
    equal: Sequence[Pair] = ()
    spec: DimSpec = AS_DECLARED
    record: RunRecord = field(default_factory=RunRecord)
    forms: Equivalence = field(default_factory=lambda: Equivalence(()))

    @classmethod
    def of(cls, branch: Branch, model: Model, seed: int) -> _Part:
        """Compare the interfaces, and find the sizes that both take."""
        mismatches, notes = interface_failures(branch, model), list[str]()
        failures = [*mismatches.outputs, *mismatches.inputs]
        feeder, equal, spec = None, list[Pair](), AS_DECLARED
        try:
            if not mismatches.inputs:
                pairs, spec = fixed_by(branch.merged, model)
                equal = [pair for pair in pairs if pair.size.constant is None]
                feeder = _make_feeder(branch.merged, model, pairs, spec, seed)
                fixed = ", ".join(f"{name}={size}" for name, size in feeder.sizes.fixed.items())
                notes += [f"it takes {fixed} only."] if fixed else []
        except UsageError as error:
            failures.append(str(error))
        proof = BranchProof(model.name, notes=tuple(notes), failures=tuple(failures))
        return cls(branch, model, feeder, not failures, proof, equal, spec)

    def with_equivalence(self, seconds: float | None, progress: Callable[[str], None]) -> _Part:
        """Add the outputs that are equal at every size and for every input."""
        if not self.fits:
            return self
        progress(f"proving: normal forms of {self.model.name}")
        merged, ports = self.branch.merged, {*self.branch.inputs(), *self.branch.outputs()}
        forms = limited_equivalence(
            merged,
            self.model,
            narrower=True,
            values={self.branch.condition: [self.branch.flag]},
            seconds=seconds,
            unread=[value.name for value in merged.graph.inputs if value.name not in ports],
            unwritten=[value.name for value in merged.graph.outputs if value.name not in ports],
        )
        return replace(self, proof=replace(self.proof, equivalence=EquivalenceSummary.of(forms)), forms=forms)

    @property
    def is_proven(self) -> bool:
        """Whether all outputs are proven bit for bit."""
        return self.feeder is not None and self.proof.equivalence.is_exact

    def run(self, session: Runner, progress: Callable[[str], None], *, is_proven: bool) -> _Part:
        """Run the merged decoder: once, where that is enough."""
        if self.feeder is None:
            return self
        others = {name: flag for name, flag in self.feeder.flags()[0].items() if name != self.branch.condition}
        record = RunRecord()
        flags = {**others, self.branch.condition: self.branch.flag}
        count = 1 if is_proven else RUNS
        counted_session = Counted(session, f"proving: the merged decoder as {self.model.name}", count, progress)
        run_with(
            counted_session, self.feeder, flags, count, record, has_edges=not is_proven, differing=self.forms.differing
        )
        run_empty(counted_session, self.feeder, flags, record)
        skipped = tuple(f"{run}: {run.reason}" for run in record.skipped)
        covered = coverage_text(self.feeder, record.runs), proof_caveats(self.feeder, record, is_exact=True)
        shown = EquivalenceSummary.of(self.forms.at([run.dims for run in record.runs]))
        proof = replace(self.proof, skipped=skipped, coverage=covered[0], caveats=covered[1], equivalence=shown)
        return replace(self, record=record, proof=proof).narrowed(session, flags)

    def narrowed(self, session: Runner, flags: Flags) -> _Part:
        """Let it fail where the merged decoder runs at sizes that the model does not take."""
        assert self.feeder is not None
        whole = partial(self.feeder.at, legal_sizes(self.branch.merged, self.spec))
        pairs = find_narrowing(lambda: session, self.equal, {}, whole, [flags])
        if not pairs:
            return self
        change = narrowed_change(pairs, self.branch.merged, self.model, hint="declare what the merged decoder does")
        return replace(self, proof=replace(self.proof, equivalence=EquivalenceSummary())).failed(change.text)

    def feed(self, run: Run) -> dict[str, np.ndarray]:
        """Return the inputs of a run of the merged decoder."""
        assert self.feeder is not None
        return self.feeder.again(run)

    def known(self, run: Run) -> dict[str, np.ndarray]:
        """Return those that the model has."""
        names = {value.name for value in self.model.graph.inputs}
        return {name: array for name, array in self.feed(run).items() if name in names}

    def failed(self, *failures: str) -> _Part:
        """Return it with more failures."""
        return replace(self, proof=replace(self.proof, failures=(*self.proof.failures, *failures)))


def _make_feeder(merged: Model, model: Model, pairs: Sequence[Pair], spec: DimSpec, seed: int) -> Feeder:
    """Return a feeder for inputs that a merged decoder and another model take.

    Raises:
        UsageError: They take none of the same dims.
    """
    numbers, relations = solve_dims(pairs, {})
    return Feeder(merged, legal_sizes(merged, spec | DimSpec.of(numbers), relations), {}, seed, others=(model,))


def _weigh_part(part: _Part, *, is_exact: bool) -> _Part:
    """Compare the weights of a part with those that its branch reads."""
    weights = foreign_weights(part.branch.merged, part.branch.scopes(), part.model)
    return replace(part, proof=with_weights(part.proof, weights, is_exact=is_exact))


def _check_runs(merged: Model, parts: Sequence[_Part]) -> None:
    for part in parts:
        if part.feeder is not None and not part.record.runs and not part.feeder.sizes.fixed:
            for run, problem in part.record.fatal:
                raise fatal_error(merged, part.feed(run), problem)
            tried = "; ".join(part.proof.skipped[:2])
            raise ModelError(
                f"the merged decoder fails at all sizes tried ({tried})",
                file=merged.label,
                hint="skip the proof with --no-verify, and report the model",
            )


def _decode_loop(parts: Sequence[_Part], steps: int) -> Loop:
    (first, later) = parts
    fits = all(part.fits for part in parts)
    return Loop(
        merged=first.branch.merged,
        pair=(first.model, later.model),
        first=first.feeder,
        later=later.feeder,
        record=first.record,
        steps=steps,
        fits=fits,
    )


def _compare_part(part: _Part, tolerance: float, progress: Callable[[str], None]) -> _Part:
    """Run the model made of a branch without optimizations, and compare."""
    if part.feeder is None:
        return part
    if not part.record.runs:
        return part.failed("the merged decoder runs at no sizes that it takes, so nothing is proven")
    try:
        session = IsolatedSession(_model_path(part.model), prepack=False, known=part.model)
    except ModelError as error:
        return part.failed(error.problem)
    outputs = [name for name in part.branch.outputs() if name in session.outputs]
    worst, failures, runs = Difference("", 0.0, 0.0, 0.0, exact=True), list[str](), list[str]()
    at_zero, refused = dict[str, None](), dict[str, None]()
    record = (*part.record.runs, *part.record.empty)
    numbered_runs = tell_each(record, f"proving: {part.model.name}, plain level", progress)
    for outcome in yield_outcomes(repeat_calls(numbered_runs, lambda run: session.run(part.known(run)), outputs)):
        empty = outcome.call.empty
        if outcome.failure and empty:
            refused |= {join_words(empty): None} if not refused.keys() & {*empty} else {}
            continue
        if outcome.failure:
            failures.append(f"it fails at {outcome.call}: {outcome.failure}")
            continue
        if empty:
            at_zero |= dict.fromkeys(empty)
        else:
            runs.append(str(outcome.call))
        for difference in outcome.differences:
            worst = max(worst, difference, key=lambda measured: measured.absolute)
            if not difference.within(tolerance):
                failures.append(f"{difference.output} at {outcome.call}: {difference}")
    more = [f"so do {len(failures) - 1} other outputs or runs"] if len(failures) > 1 else []
    numbers = (None, None) if worst.problem else (worst.absolute, worst.relative)
    proof = replace(part.proof, outputs=len(outputs), runs=tuple(runs), absolute=numbers[0], relative=numbers[1])
    proof = with_zeros(proof, at_zero, refused)
    return replace(part, proof=proof).failed(*failures[:1], *more)


def _at_default(part: _Part, merged_source: Path | Model, tolerance: float, progress: Callable[[str], None]) -> _Part:
    """Run the model at the default level, unless something differs already."""
    if not part.proof.is_equal:
        return part
    allowed, runs = max(level_tolerance(part.branch.merged), tolerance), at_both_levels(part.record.runs)

    def opened(source: Path | Model, known: Model, what: str) -> Runner:
        session = IsolatedSession(source, optimize=True, known=known)
        return Counted(session, f"proving: {what}, default level", len(runs), progress)

    of_model = LevelRuns(lambda: opened(_model_path(part.model), part.model, part.model.name), part.known)
    merged = LevelRuns(lambda: opened(merged_source, part.branch.merged, "the merged decoder"), part.feed)
    level = prove_level(allowed, runs, part.branch.outputs(), of_model, merged)
    return replace(part, proof=with_level(part.proof, level))
