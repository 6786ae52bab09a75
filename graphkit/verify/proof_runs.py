"""Runs of an original at legal sizes and at edges, and of its rewrite on the same inputs, every output compared.

The rewrite runs at both of onnxruntime's levels. At the default level bits differ, for fusions add numbers up in
another order. The measure of an output is its largest difference from what the original gives without optimizations,
relative to the largest magnitude in that output. It may be as large as a tolerance for the types in the model, or
`FACTOR` times what the original itself differs by at the default level (for a quantised one, `ROUNDED_FACTOR` times
what any of its outputs does). The latter is only measured where it matters.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import Struct, field, structs

from graphkit.errors import ModelError, count_things
from graphkit.graph.names import join_words
from graphkit.graph.roles import MASKS
from graphkit.model import Model
from graphkit.progress import Progress
from graphkit.runtime.isolation import current_limits
from graphkit.runtime.providers import CPU, Provider
from graphkit.runtime.session import IsolatedSession, RunError, Runner, is_timeout
from graphkit.shapes import Expr, symbol
from graphkit.shapes.constraints.legal_sizes import Variable
from graphkit.verify.comparator import QUANTIZED_TOLERANCE, Difference, Output, compare_outputs, element_counts
from graphkit.verify.feeder import Feeder, Flags, Run
from graphkit.verify.input_elements import NAMES, USUAL, Draw, Padding
from graphkit.verify.input_generator import TooLargeError
from graphkit.verify.interface_changes import Part
from graphkit.verify.proof_engine import Called, Counted, repeat_calls, yield_outcomes
from graphkit.verify.rewrite_proof import LevelProof, OutputProof, RewriteProof, RunProof, SkippedRun, WeightProof
from graphkit.verify.run_sizes import MAX_COST, MOST, ONE, ROWS, Edge, Edges, Proposal, propose_assignments

ENOUGH = 5  # assignments; fewer are worth a note
STATIC_RUNS = 3  # where all dims are fixed: other values each time
MAX_ATTEMPTS = 40
NUMBERS: Mapping[Padding, str] = {"above": "numbers in masks above 1", "below": "numbers in masks below 0"}
SPECIAL: Mapping[Padding, str] = {"empty": "rows of masks that hide all", **NUMBERS}
FURTHER, NO_TIME = "further sizes and values", "for which the limit of time leaves no time"
MAX_EMPTY = 16  # dims that are tried at 0, and legal sizes that are looked through for each
MAX_DIMS = 6  # whose sizes a text names
PADDINGS: Mapping[Padding, str] = {
    "full": "without padding", "right": "padded on the right", "left": "padded on the left", "holes": "with holes",
    "empty": "that hide all",
}  # fmt: skip
FACTOR = 2.0
ROUNDED_FACTOR = 4.0  # for quantised models: which numbers fall on the other side differs from run to run
Feeds = Callable[[Run], Mapping[str, np.ndarray]]
Explains = Callable[[Run, Difference, Output, float], bool]  # whether a difference above the tolerance counts as none


class RunRecord(Struct, frozen=True):
    """The sizes and flags that an original runs at."""

    runs: list[Run] = field(default_factory=list)
    skipped: list[SkippedRun] = field(default_factory=list)  # those at which onnxruntime fails
    notes: list[str] = field(default_factory=list)  # what to know of them, a sentence each
    uncovered: dict[str, str] = field(default_factory=dict)  # edges at which it fails, and why
    # the runs that end the process, and how, the edges not among them
    fatal: list[tuple[Run, str]] = field(default_factory=list)
    # runs at which a dim is 0, for each dim that may be, and at which all of these are
    empty: list[Run] = field(default_factory=list)
    refused: list[Run] = field(default_factory=list)  # runs at which dims are 0, and it fails
    unlike: list[Run] = field(default_factory=list)  # runs at which dims of one name differ


class LevelRuns(Struct, frozen=True):
    """How to run a model again: its session, made when it is needed, and its feeds."""

    open: Callable[[], Runner]
    feed: Feeds


class TwoModels(Struct, frozen=True):
    """An original and its rewrite, to be loaded one after the other."""

    sources: tuple[Path | Model, Path | Model]
    models: tuple[Model, Model]
    feeder: Feeder
    input_names: frozenset[str]  # the inputs of the rewritten model, by their names in the original
    # names in the original by names in the rewritten model, where these differ
    names: Mapping[str, str] = field(default_factory=dict)
    part: Part | None = None  # what to expose of the original, where the rewritten model is a part of it
    provider: Provider = CPU  # where the rewritten model runs; on a device at the default level, as its users have it
    # how many of its nodes are on each provider, once it is loaded on a device
    placed: dict[str, int] = field(default_factory=dict)

    def original(self, *, optimize: bool = False) -> Runner:
        """Return a session of the original with all of its outputs, and all that a part needs of it."""
        return self._session(0, optimize=optimize)

    def rewritten_session(self, *, optimize: bool = False) -> Runner:
        """Return a session of the rewritten model, by the names of the original."""
        session = self._session(1, optimize=optimize or not self.provider.is_cpu)
        self.placed.update(session.placed)
        return Called(session, self.names, self.input_names)

    def begin_loading(self) -> Callable[[], Runner]:
        """Begin to load the rewritten model at the default level beside other work; return what waits for its session.

        That raises ModelError where onnxruntime does not load it, or ends with it.
        """
        session = self._session(1, optimize=True, beside=True)

        def wait() -> Runner:
            session.wait()
            return Called(session, self.names, self.input_names)

        return wait

    def _session(self, index: int, *, optimize: bool, beside: bool = False) -> IsolatedSession:
        source, known, provider = self.sources[index], self.models[index], self.provider if index else CPU
        return IsolatedSession(
            source, optimize=optimize, prepack=optimize, known=known, provider=provider, beside=beside
        )

    def outputs(self, run: Run) -> Sequence[str]:
        """Return the outputs of the original that the rewritten model has to give."""
        return list(run.expected) if self.part is None else self.part.ends

    def feed(self, run: Run) -> dict[str, np.ndarray]:
        """Return the inputs of a run of the original."""
        return self.feeder.again(run)

    def known(self, run: Run) -> dict[str, np.ndarray]:
        """Return the inputs that the rewritten model still has, and the values that the original computed for it."""
        fed = {name: array for name, array in self.feed(run).items() if name in self.input_names}
        cuts = self.part.cuts if self.part is not None else ()
        return {**fed, **{name: np.asarray(run.expected[name]) for name in cuts}}

    def moved_originals(self, runs: int, progress: Progress) -> list[LevelRuns]:
        """Return how to run copies of the original in which roundings to 8 bits meet other ties, so many times."""
        if self.part is not None:
            return []
        from graphkit.verify.quantized_rounding import moved_copies  # which few proofs need

        def with_progress(model: Model) -> Runner:
            session = IsolatedSession(model, optimize=False, prepack=False, known=model)
            return Counted(session, "proving: the original with its data moved", runs, progress)

        return [LevelRuns(partial(with_progress, copy), self.feed) for copy in moved_copies(self.models[0])]

    def at_default(self, runs: int, progress: Progress) -> tuple[LevelRuns, LevelRuns]:
        """Return how to run the rewritten model and the original at the default level, so many times."""

        def open_counted(opened: Callable[..., Runner], name: str) -> Runner:
            return Counted(opened(optimize=True), f"proving: {name}, default level", runs, progress)

        rewritten = partial(open_counted, self.rewritten_session, "the rewritten model")
        original = partial(open_counted, self.original, "the original")
        return LevelRuns(rewritten, self.known), LevelRuns(original, self.feed)


def run_original(
    session: Runner, feeder: Feeder, count: int, *, has_edges: bool = True, differing: Sequence[tuple[Expr, Expr]] = ()
) -> RunRecord:
    """Run a model at so many assignments, if there are as many, with each combination of flags, and at edges.

    Edges are sizes too at which expressions of two models differ. Raises ModelError where no input can be made for it.
    """
    record = RunRecord()
    for flags in feeder.flags():
        recorder = _Recorder(session, feeder, flags, record)
        recorder.run_sizes(count, has_edges=has_edges, differing=differing)
        recorder.run_empty()
    return record


def unsteady_runs(session: Runner, feeder: Feeder, runs: Sequence[Run]) -> list[Run]:
    """Return the runs whose outputs differ when they are run again, after others than at first.

    onnxruntime accepts some dims that an operator does not allow, and then gives what was in memory before.
    """
    unsteady: set[Run] = set()
    for run in (*reversed(runs), *runs):
        repeated = session.run(feeder.again(run))
        if not all(difference.within(0.0) for difference in compare_outputs(run.expected, repeated)):
            unsteady.add(run)
    return [run for run in runs if run in unsteady]


class _Recorder(Struct, frozen=True):
    """Runs a model with one combination of flags, and records that."""

    session: Runner
    feeder: Feeder
    flags: Flags
    record: RunRecord

    def run_sizes(self, count: int, *, has_edges: bool, differing: Sequence[tuple[Expr, Expr]]) -> None:
        """Run it at so many assignments, then at edges."""
        feeder, flags, record = self.feeder, self.flags, self.record
        legal, successes, cost = feeder.legal(flags), list[dict[str, int]](), 0
        end = time.monotonic() + current_limits().search()
        proposals = iter([Proposal({}, False)] * (STATIC_RUNS if feeder.inputs else 1))
        if legal.variables:
            is_first, rows = feeder.is_first(flags), ROWS if has_edges else (ONE, *ROWS)
            proposals = propose_assignments(legal, successes, lengths=feeder.lengths, is_first=is_first, rows=rows)
        for seed, proposal in enumerate(itertools.islice(proposals, MAX_ATTEMPTS)):
            if seed and time.monotonic() > end:
                record.uncovered[FURTHER] = NO_TIME
                return
            dims, draw = proposal.dims, Draw.usual(seed)
            try:
                expected = self.outputs(dims, seed, draw)
            except (RunError, TooLargeError) as error:
                if not proposal.is_probe:
                    record.skipped.append(SkippedRun(dims, flags, error.problem))
                if isinstance(error, RunError) and error.signal:
                    record.fatal.append((Run(dims, flags, seed, {}, draw), error.problem))
                if isinstance(error, RunError) and error.is_final:
                    break
                continue
            successes.append(dims)
            cost += legal.cost(dims)
            record.runs.append(Run(dims, flags, seed, expected, draw))
            if len(successes) == count or cost > MAX_COST:
                break
        if successes and (has_edges or differing):
            edges = Edges(feeder, flags, list(successes), differing)
            self.run_edges(edges if has_edges else edges.where_models_differ(), successes, end)
        if successes and has_edges:
            dims = min(successes, key=lambda dims: (sum(size < 2 for size in dims.values()), legal.cost(dims)))
            for unlike in feeder.unlike(dims):
                with suppress(RunError, TooLargeError):
                    record.unlike.append(Run(unlike, flags, 0, self.outputs(unlike, 0)))
        if legal.variables and len(successes) < min(count, ENOUGH):
            where = "".join(f" with {name}={str(flag).lower()}" for name, flag in flags.items())
            known = {0: "No sizes were", 1: "Only one set of sizes was"}
            few = known.get(len(successes), f"Only {len(successes)} sets of sizes were")
            record.notes.append(f"{few} found at which it runs{where}.")

    def run_edges(self, edges: Iterable[Edge], usual: Sequence[dict[str, int]], end: float) -> None:
        """Run it at edges of sizes and values until a time; those at which it fails are not covered."""
        feeder, flags, record = self.feeder, self.flags, self.record
        if min(map(feeder.legal(flags).cost, usual)) > MOST:
            record.uncovered["edges of sizes and values"] = "which take too long at the only sizes at which it runs"
            return
        for seed, edge in enumerate(edges, start=MAX_ATTEMPTS):
            if time.monotonic() > end:
                record.uncovered[FURTHER] = NO_TIME
                return
            reason, runs = "at which the original fails" if edge.choices else "which take too long", len(record.runs)
            edged = [v.name for v in feeder.maker.model.roles.inputs if feeder.maker.has_edges(v, edge.draw)]
            for dims in edge.choices:
                for draw in edge.draw.milder(edged):
                    if (expected := self.outputs_if_any(dims, seed, draw)) is None:
                        continue
                    counts = map(element_counts, expected.values())
                    if "empty" in draw.padding and not feeder.is_exact and any(n != finite for n, finite in counts):
                        reason = "at which the original gives no numbers"
                        continue
                    found = [text for padding, text in SPECIAL.items() if padding in draw.padding]
                    special = ["defaults overridden"] * draw.overridden + [NAMES.get(draw.kind, ""), *found]
                    elements = next(filter(None, special), "")
                    record.runs.append(Run(dims, flags, seed, expected, draw, elements=elements))
                    if not draw.only:
                        break
                if len(record.runs) > runs or reason.endswith("no numbers"):
                    break
                if edge.draw.kind != "usual" and self.outputs_if_any(dims, seed, USUAL) is not None:
                    break  # the sizes are legal, other ones teach nothing
            if len(record.runs) == runs and edge.what:
                record.uncovered.setdefault(edge.what, reason)

    def outputs(self, dims: Mapping[str, int], seed: int, draw: Draw = USUAL) -> Mapping[str, Output]:
        return self.session.run(self.feeder.feed(dims, self.flags, seed, draw))

    def outputs_if_any(self, dims: Mapping[str, int], seed: int, draw: Draw) -> Mapping[str, Output] | None:
        with suppress(RunError, TooLargeError):
            return self.outputs(dims, seed, draw)
        return None

    def run_empty(self) -> None:
        """Run it with each dim at 0, then with all that it takes: no length is too short for a caller."""
        feeder, flags, record = self.feeder, self.flags, self.record
        legal = feeder.sizes.for_branch(is_first=feeder.is_first(flags), reads_past=False)
        known = [run.dims for run in record.runs if run.flags == flags]
        usual, taken = min(known, key=legal.cost, default={}), list[Variable]()
        variables = [each for each in legal.variables[:MAX_EMPTY] if known and each.name not in legal.bounded]
        for number, empty in enumerate([*([each] for each in variables), taken]):
            names = tuple(each.name for each in empty)
            if (empty is taken and len(taken) < 2) or any(all(dims.get(name) == 0 for name in names) for dims in known):
                continue
            shorter = tuple(structs.replace(each, low=0) if each in empty else each for each in legal.variables)
            wish = structs.replace(legal, variables=shorter).near({**usual, **dict.fromkeys(names, 0)})
            few = itertools.islice(wish, MAX_EMPTY)
            dims = next((dims for dims in few if not any(dims[name] for name in names)), None)
            if dims is None:
                continue
            try:
                expected = self.outputs(dims, number)
            except RunError as error:
                record.refused.append(Run(dims, flags, number, {}, empty=names))
                if error.signal or error.timed_out:  # the next one may end the process, too
                    return
                continue
            taken += empty if empty is not taken else []
            record.empty.append(Run(dims, flags, number, expected, empty=names))


def at_both_levels(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that count at the default level: fusions may treat values that are not finite as they like."""
    steady = (run for run in runs if not run.empty and run.draw.kind in ("usual", "edges"))
    return [run for run in steady if not {"empty", *NUMBERS} & {*run.draw.padding}]


def coverage_text(feeder: Feeder, runs: Sequence[Run]) -> str:
    """Return the coverage of runs: sizes, masks, edges of values; "" without runs."""
    if not runs:
        return ""
    ends: dict[str, tuple[int, int]] = {}
    for name, size in (item for run in runs for item in run.dims.items()):
        low, high = ends.get(name, (size, size))
        ends[name] = min(low, size), max(high, size)
    sizes = [f"{symbol(name)} {low:,}" + (f" to {high:,}" if low < high else "") for name, (low, high) in ends.items()]
    if len(sizes) > MAX_DIMS:
        sizes[MAX_DIMS:] = [f"{count_things(len(sizes) - MAX_DIMS, 'dim(s)')} more"]
    values = ", ".join(dict.fromkeys(run.elements for run in runs if run.elements))
    return "; ".join(filter(None, [", ".join(sizes), _masks_text(feeder, runs), values]))


def _masks_text(feeder: Feeder, runs: Sequence[Run]) -> str:
    if not feeder.maker.model.roles.all(*MASKS):
        return ""
    if feeder.maker.is_unpadded:
        return "masks without padding"
    if feeder.maker.counts_masks:
        return "masks without padding and padded on the right"
    rows = (feeder.rows(run) for run in runs)
    seen = {run.draw.row(row) for run, count in zip(runs, rows, strict=True) for row in range(count)}
    return f"masks {', '.join(text for padding, text in PADDINGS.items() if padding in seen)}"


def proof_caveats(feeder: Feeder, record: RunRecord, *, is_exact: bool) -> tuple[str, ...]:
    """Return the gaps of a proof, and why they exist."""
    gaps = [f"{gap}, {why}" for gap, why in record.uncovered.items()]
    if feeder.maker.is_unpadded and feeder.maker.model.roles.all(*MASKS):
        gaps.append("masks with padding, of which the rewrite takes there to be none")
    if feeder.defaults.kept:
        gaps.append(f"other values of {', '.join(feeder.defaults.kept)} than the default")
    if steering := feeder.maker.counting_inputs:
        verb = "decides" if len(steering) == 1 else "decide"
        gaps.append(f"large numbers for {', '.join(steering)}, which {verb} sizes, counts or loops")
    if not is_exact and any(feeder.maker.has_edges(v, Draw("extremes")) for v in feeder.maker.model.roles.inputs):
        gaps.append("extreme values, NaN and infinities, where rounding decides")
    return tuple(gaps)


def with_weights(proof: RewriteProof, weights: WeightProof, *, is_exact: bool) -> RewriteProof:
    """Return a proof with that of the weights; where a tolerance was asked for, those that differ are no failure."""
    proof = proof.plus(failures=weights.failures) if is_exact else proof.plus(notes=weights.failures)
    return replace(proof, weights=weights)


def with_level(proof: RewriteProof, level: LevelProof) -> RewriteProof:
    """Return a proof with that of onnxruntime's default level."""
    failures = [f"at onnxruntime's default level: {level.failure}"] if level.failure else []
    return replace(proof.plus(failures=failures, notes=filter(None, [level.note])), level=level)


def compare_runs(
    proof: RewriteProof,
    runs: Sequence[Run],
    session: Runner,
    feed: Feeds,
    outputs: Sequence[str],
    empty_outputs: Collection[str] = (),
    proven: Collection[str] = (),
    explains: Explains = lambda *_: False,
) -> RewriteProof:
    """Run the rewritten model on the inputs of the original, and add the differences to a proof.

    Of outputs that are empty at any size there are dims to compare alone. What normal forms have proven needs no run
    that compares it. What exceeds the tolerance may be explained.
    """
    tallies = {name: _Tally() for name in outputs}
    results, at_zero, refused, timeouts = list[RunProof](), dict[str, None](), dict[str, None](), 0
    repeated = yield_outcomes(repeat_calls(runs, lambda run: session.run(feed(run)), tallies))
    for number, outcome in enumerate(repeated, start=1):
        run, differences = outcome.call, outcome.differences
        exceeding = [difference for difference in differences if not proof.covers(difference)]
        failing = [d for d in exceeding if not explains(run, d, outcome.actual[d.output], proof.tolerance)]
        for difference in differences:
            tallies[difference.output].add(difference, run.expected[difference.output], number, difference in failing)
        if run.empty and outcome.failure:
            refused |= {join_words(run.empty): None} if not refused.keys() & {*run.empty} else {}
        elif run.empty and not failing:
            at_zero |= dict.fromkeys(run.empty)
        else:
            failure = f"{failing[0].output} {failing[0]}" if failing else outcome.failure
            failure += f", and {len(failing) - 1} more outputs" if len(failing) > 1 else ""
            timeouts += outcome.error is not None and is_timeout(outcome.error)
            numbers = (None, None) if outcome.failure else _largest_numbers(differences)
            results.append(RunProof(run.dims, run.flags, run.seed, *numbers, failure, elements=run.elements))
    before, after = list(tallies), list(session.outputs)
    missing, new = ([name for name in a if name not in b] for a, b in ((before, after), (after, before)))
    failures = [f"output {', '.join(missing)} is missing"] if missing else []
    failures += [f"output {', '.join(new)} is none of the original's"] if new else []
    if not failures and before != after:
        failures.append(f"the outputs come in another order: {', '.join(after)}")
    if failed := [run for run in results if run.failure]:
        how = "do not end in time" if timeouts == len(failed) else "differ"
        count = f"{len(failed)} of {len(results)} runs {how}"
        failures.append(f"{count}, the first at {failed[0]}: {failed[0].failure}")
    proof = with_zeros(proof, at_zero, refused)
    empty = [name for name, tally in tallies.items() if not tally.finite and not failures]
    if unproven := [name for name in empty if name not in (*empty_outputs, *proven)]:
        why = f"nothing is compared of output {', '.join(unproven)}, which never has a finite element"
        failures.append(f"{why} - compare both on inputs of your own, with graphkit compare --inputs")
        empty = [name for name in empty if name in empty_outputs]
    return replace(
        with_empty_outputs(proof, empty, empty_outputs),
        runs=tuple(results),
        outputs=tuple(tally.proof(name, name in session.outputs) for name, tally in tallies.items()),
        failures=tuple(failures),
        is_unrun=0 < timeouts == len(results) and len(failures) == 1,
    )


def with_zeros(proof: RewriteProof, at_zero: Collection[str], refused: Collection[str] = ()) -> RewriteProof:
    """Add to a proof which dims it covers at 0, and at which of them the rewritten model fails."""
    if at_zero:
        proof = replace(proof, coverage=f"{proof.coverage}; {join_words(list(dict.fromkeys(at_zero)))} of 0")
    if refused:
        proof = proof.plus(caveats=[f"{join_words([*refused])} of 0, where the rewritten model fails or dims differ"])
    return proof


def with_empty_outputs(proof: RewriteProof, empty: Sequence[str], empty_outputs: Collection[str]) -> RewriteProof:
    """Add to a proof which outputs have no finite element in any run, and which cannot have any."""
    never, none = ([name for name in empty if (name in empty_outputs) == is_none] for is_none in (False, True))
    gaps = [f"finite elements of output {', '.join(never)}, of which no run has any"] if never else []
    return proof.plus(caveats=gaps, notes=[f"Output {', '.join(none)} has no elements at any size."] if none else [])


class _Tally(Struct):
    worst: Difference | None = None
    scaled: float = 0.0
    run: int = 0
    elements: int = 0
    finite: int = 0
    failure: str = ""

    def add(self, difference: Difference, expected: Output, run: int, is_failing: bool) -> None:
        elements, finite = element_counts(expected)
        self.elements, self.finite = self.elements + elements, self.finite + finite
        self.scaled = max(self.scaled, difference.scaled)
        if not difference.exact and (self.worst is None or difference.absolute > self.worst.absolute):
            self.worst, self.run = difference, run
        if not self.failure and is_failing:
            self.failure = str(difference)

    def proof(self, name: str, is_there: bool) -> OutputProof:
        if self.worst is None:
            return OutputProof(name, elements=self.elements, failure="" if is_there else "it is missing")
        scaled = self.scaled if math.isfinite(self.scaled) else None
        return OutputProof(name, *_largest_numbers([self.worst]), scaled, self.run, self.elements, self.failure)


def _largest_numbers(differences: Sequence[Difference]) -> tuple[float | None, float | None]:
    if any(d.problem for d in differences):
        return None, None
    return max((d.absolute for d in differences), default=0.0), max((d.relative for d in differences), default=0.0)


def prove_level(
    tolerance: float,
    runs: Sequence[Run],
    outputs: Sequence[str],
    rewritten: LevelRuns,
    original: LevelRuns,
    explains: Explains = lambda *_: False,
    moved: Sequence[LevelRuns] = (),
) -> LevelProof:
    """Run a rewritten model at the default level, and compare; the original only where the tolerance does not do.

    What exceeds the tolerance is left out where it is explained otherwise. Copies of the original whose data is moved
    a little count as the original does: see `graphkit.verify.quantized_rounding`.
    """
    measured = _measure_levels(
        runs, outputs, rewritten, lambda run, d, actual: d.scaled > tolerance and explains(run, d, actual, tolerance)
    )
    worst = max((scaled for run in measured.differences for scaled in run.values()), default=0.0)
    if not measured.problem and worst <= tolerance:
        return LevelProof(len(runs), tolerance, worst)
    allowed = _measure_levels(runs, outputs, original)
    if allowed.problem:
        note = f"At the default level nothing is compared, for the original does not load there: {allowed.problem}"
        return LevelProof(0, tolerance, note=note)
    if measured.problem:
        return LevelProof(0, tolerance, failure=measured.problem)
    for of_copy in (_measure_levels(runs, outputs, copy) for copy in moved):
        for own, theirs, reason in zip(allowed.differences, of_copy.differences, of_copy.reasons, strict=False):
            own.update({} if reason else {name: max(scaled, theirs.get(name, 0.0)) for name, scaled in own.items()})
    drift: dict[str, float] = {}  # of each output, the difference of the original in any run
    for differences, reason in zip(allowed.differences, allowed.reasons, strict=True):
        for name, scaled in differences.items() if not reason else ():
            drift[name] = max(drift.get(name, 0.0), scaled)
    counted = [index for index, reason in enumerate(allowed.reasons) if not reason]
    factor = FACTOR
    if tolerance >= QUANTIZED_TOLERANCE:  # what falls on the other side of a rounding reaches all outputs behind it
        factor, most = ROUNDED_FACTOR, max((scaled for scaled in drift.values() if scaled < float("inf")), default=0.0)
        drift = {name: max(scaled, most) for name, scaled in drift.items()}
    worst, reference, failures = 0.0, 0.0, list[str]()
    measurements = [(at, name, scaled) for at in counted for name, scaled in measured.differences[at].items()]
    for at, name, scaled in measurements:
        if drift.get(name, 0.0) == float("inf"):
            continue
        worst, reference = max(worst, scaled), max(reference, drift.get(name, 0.0))
        if scaled > max(tolerance, factor * drift.get(name, 0.0)):
            apart = f"differs by {scaled:.3g} of its largest magnitude" if scaled < float("inf") else "differs"
            failures.append(f"{name} at {runs[at]}: {measured.reasons[at] or apart}")
    silent = sorted(name for name, scaled in drift.items() if scaled == float("inf"))
    note = f"Output {', '.join(silent)} is not compared at the default level: the original's own differs there."
    failure = failures[0] + (f", and {len(failures) - 1} more" if len(failures) > 1 else "") if failures else ""
    largest = worst if worst < float("inf") else None
    return LevelProof(len(counted), tolerance, largest, reference, failure, note if silent else "")


class _Measured(Struct, frozen=True):
    """The scaled differences of each run by output, or why the model does not load; the failure of each run."""

    differences: list[dict[str, float]]
    reasons: list[str]
    problem: str = ""


def _measure_levels(
    runs: Sequence[Run],
    outputs: Sequence[str],
    model: LevelRuns,
    is_left_out: Callable[[Run, Difference, Output], bool] = lambda *_: False,
) -> _Measured:
    try:
        session = model.open()
    except ModelError as error:
        return _Measured([], [], error.problem)
    differences, reasons = list[dict[str, float]](), list[str]()
    for outcome in repeat_calls(runs, lambda run: session.run(model.feed(run)), outputs):
        counting = [d for d in outcome.differences if not is_left_out(outcome.call, d, outcome.actual[d.output])]
        failed = dict.fromkeys(outputs, float("inf")) if outcome.failure else {}
        differences.append(failed or {d.output: d.scaled for d in counting})
        reasons.append(outcome.failure)
    return _Measured(differences, reasons)
