"""Runs of a rewritten model on the inputs of its original, every output compared, at both of onnxruntime's levels.

At the default level bits differ, for fusions add numbers up in another order. The measure of an output is its largest
difference from what the original gives without optimizations, relative to the largest magnitude in that output. It may
be as large as a tolerance for the types in the model, or `FACTOR` times what the original itself differs by at the
default level (for a quantised one, `ROUNDED_FACTOR` times what any of its outputs does). The latter is only measured
where it matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from graphkit.errors import ModelError
from graphkit.graph.names import join_words
from graphkit.runtime.session import Runner, is_timeout
from graphkit.verify.comparator import Difference, Output, element_counts
from graphkit.verify.feeder import Run
from graphkit.verify.original_runs import LevelRuns
from graphkit.verify.proof_engine import repeat_calls, yield_outcomes
from graphkit.verify.rewrite_proof import LevelProof, OutputProof, RewriteProof, RunProof, WeightProof
from graphkit.verify.tolerances import QUANTIZED_TOLERANCE

if TYPE_CHECKING:
    from graphkit.verify.rounding import RoundingJudge

FACTOR = 2.0
ROUNDED_FACTOR = 4.0  # for quantised models: which numbers fall on the other side differs from run to run
Feeds = Callable[[Run], Mapping[str, np.ndarray]]


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
    rounding: RoundingJudge | None = None,
) -> RewriteProof:
    """Run the rewritten model on the inputs of the original, and add the differences to a proof.

    Of outputs that are empty at any size there are dims to compare alone. What normal forms have proven needs no run
    that compares it. What exceeds the tolerance is judged by `rounding`.
    """
    tallies = {name: _Tally() for name in outputs}
    results, at_zero, refused, timeouts = list[RunProof](), dict[str, None](), dict[str, None](), 0
    repeated = yield_outcomes(repeat_calls(runs, lambda run: session.run(feed(run)), tallies))
    for number, outcome in enumerate(repeated, start=1):
        run, differences = outcome.call, outcome.differences
        failing = [difference for difference in differences if not proof.covers(difference)]
        if rounding is not None:
            explains = partial(rounding.explains, run, tolerance=proof.tolerance)
            failing = [each for each in failing if not explains(each, outcome.actual[each.output])]
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
        failures.append(f"nothing is compared of output {', '.join(unproven)}, which never has a finite element")
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
        proof = proof.plus(caveats=[f"{join_words(list(refused))} of 0, at which the rewritten model fails"])
    return proof


def with_empty_outputs(proof: RewriteProof, empty: Sequence[str], empty_outputs: Collection[str]) -> RewriteProof:
    """Add to a proof which outputs have no finite element in any run, and which cannot have any."""
    never, none = ([name for name in empty if (name in empty_outputs) == is_none] for is_none in (False, True))
    gaps = [f"finite elements of output {', '.join(never)}, of which no run has any"] if never else []
    return proof.plus(caveats=gaps, notes=[f"Output {', '.join(none)} has no elements at any size."] if none else [])


@dataclass
class _Tally:
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
    """Return the largest differences, None where elements that differ are no numbers."""
    if any(d.problem for d in differences):
        return None, None
    return max((d.absolute for d in differences), default=0.0), max((d.relative for d in differences), default=0.0)


def prove_level(
    tolerance: float,
    runs: Sequence[Run],
    outputs: Sequence[str],
    rewritten: LevelRuns,
    original: LevelRuns,
    explains: Callable[[Run, Difference, Output, float], bool] = lambda *_: False,
    moved: Sequence[LevelRuns] = (),
) -> LevelProof:
    """Run a rewritten model at the default level, and compare; the original only where the tolerance does not do.

    What exceeds the tolerance is left out where it is explained otherwise. Copies of the original whose data is moved
    a little count as the original does: see `graphkit.verify.quantized_rounding`.
    """

    def is_left_out(run: Run, difference: Difference, actual: Output) -> bool:
        return difference.scaled > tolerance and explains(run, difference, actual, tolerance)

    measured = _measure_levels(runs, outputs, rewritten, is_left_out)
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
    return _judge_level(runs, tolerance, measured, allowed)


@dataclass(frozen=True)
class _Measured:
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


def _judge_level(runs: Sequence[Run], tolerance: float, measured: _Measured, allowed: _Measured) -> LevelProof:
    """Allow each output the tolerance, or the difference of the original in any run."""
    drift: dict[str, float] = {}
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
