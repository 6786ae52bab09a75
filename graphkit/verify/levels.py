"""The rewritten model at onnxruntime's default level, where it fuses and reorders, as users run it.

There bits differ, for fusions add numbers up in another order. The measure of an output is its largest difference from
what the original gives without optimizations, relative to the largest magnitude in that output. It may be as large as
a tolerance for the types in the model, or `FACTOR` times what the original itself differs by at the default level
(for a quantised one, `ROUNDED_FACTOR` times what any of its outputs does). The latter is only measured where it
matters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.errors import ModelError
from graphkit.runtime.session import RunError, Runner
from graphkit.verify.comparator import Difference, Output, compare_outputs
from graphkit.verify.evidence import LevelProof
from graphkit.verify.running import Run
from graphkit.verify.tolerances import QUANTIZED_TOLERANCE

__all__ = [
    "FACTOR",
    "LevelRuns",
    "largest_own_difference",
    "prove_level",
]

FACTOR = 2.0
ROUNDED_FACTOR = 4.0  # for quantised models: which numbers fall on the other side differs from run to run
Feed = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class LevelRuns:
    """How to run a model again: its session, made when it is needed, and its feeds."""

    open: Callable[[], Runner]
    feed: Callable[[Run], Feed]


def largest_own_difference(runs: Sequence[Run], original: LevelRuns) -> float | None:
    """Return how far a model at the default level is from itself without optimizations, None if it does not run."""
    found = _measured(runs, list(runs[0].expected), original)
    scaled = [one for run in found.differences for one in run.values() if one < float("inf")]
    return max(scaled, default=None)


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
    a little count as the original does: see `graphkit.verify.rounding_ties`.
    """
    found = _measured(
        runs,
        outputs,
        rewritten,
        lambda run, one, actual: one.scaled > tolerance and explains(run, one, actual, tolerance),
    )
    worst = max((one for run in found.differences for one in run.values()), default=0.0)
    if not found.problem and worst <= tolerance:
        return LevelProof(len(runs), tolerance, worst, None, "", "")
    allowed = _measured(runs, outputs, original)
    if allowed.problem:
        note = f"At the default level nothing is compared, for the original does not load there: {allowed.problem}"
        return LevelProof(0, tolerance, None, None, "", note)
    if found.problem:
        return LevelProof(0, tolerance, None, None, found.problem, "")
    for copy in moved:
        allowed = _larger(allowed, _measured(runs, outputs, copy))
    return _judged(runs, tolerance, found, allowed)


@dataclass(frozen=True)
class _Measured:
    """The scaled differences of each run by output, or why the model does not load; the failure of each run."""

    differences: list[dict[str, float]]
    reasons: list[str]
    problem: str = ""


def _measured(
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
    for run in runs:
        actual: Mapping[str, Output] | None = None
        try:
            actual = session.run(model.feed(run))
        except RunError as error:
            differences.append(dict.fromkeys(outputs, float("inf")))
            reasons.append(error.problem)
            continue
        found = compare_outputs({name: run.expected[name] for name in outputs if name in actual}, actual)
        counted = (one for one in found if one.output in run.expected)
        differences.append({one.output: one.scaled for one in counted if not is_left_out(run, one, actual[one.output])})
        reasons.append("")
    return _Measured(differences, reasons)


def _larger(one: _Measured, two: _Measured) -> _Measured:
    """Return the larger differences of two that were measured for the same runs; one that does not run counts not."""
    if two.problem:
        return one
    pairs = zip(one.differences, two.differences, two.reasons, strict=True)
    differences = [
        a if reason else {name: max(scaled, b.get(name, 0.0)) for name, scaled in a.items()} for a, b, reason in pairs
    ]
    return _Measured(differences, one.reasons)


def _judged(runs: Sequence[Run], tolerance: float, found: _Measured, allowed: _Measured) -> LevelProof:
    """Allow each output the tolerance, or the difference of the original in any run."""
    own: dict[str, float] = {}
    for differences, reason in zip(allowed.differences, allowed.reasons, strict=True):
        for name, scaled in differences.items() if not reason else ():
            own[name] = max(own.get(name, 0.0), scaled)
    counted = [index for index, reason in enumerate(allowed.reasons) if not reason]
    factor = FACTOR
    if tolerance >= QUANTIZED_TOLERANCE:  # what falls on the other side of a rounding reaches all outputs behind it
        factor, most = ROUNDED_FACTOR, max((scaled for scaled in own.values() if scaled < float("inf")), default=0.0)
        own = {name: max(scaled, most) for name, scaled in own.items()}
    worst, reference, failures = 0.0, 0.0, list[str]()
    found_there = [(at, name, scaled) for at in counted for name, scaled in found.differences[at].items()]
    for at, name, scaled in found_there:
        if own.get(name, 0.0) == float("inf"):
            continue
        worst, reference = max(worst, scaled), max(reference, own.get(name, 0.0))
        if scaled > max(tolerance, factor * own.get(name, 0.0)):
            failures.append(f"{name} at {runs[at]}: {found.reasons[at] or _apart(scaled)}")
    silent = sorted(name for name, scaled in own.items() if scaled == float("inf"))
    note = f"Output {', '.join(silent)} is not compared at the default level: the original's own differs there."
    failure = failures[0] + (f", and {len(failures) - 1} more" if len(failures) > 1 else "") if failures else ""
    largest = worst if worst < float("inf") else None
    return LevelProof(len(counted), tolerance, largest, reference, failure, note if silent else "")


def _apart(scaled: float) -> str:
    return f"differs by {scaled:.3g} of its largest magnitude" if scaled < float("inf") else "differs"
