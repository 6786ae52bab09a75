"""Run a rewritten model on the inputs of its original, and compare every output."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphkit.runtime.session import RunError, Runner
from graphkit.verify.comparator import Difference, Output, compare_outputs, element_counts
from graphkit.verify.rewrite_proof import OutputProof, RewriteProof, RunProof
from graphkit.verify.rounding import Rounding
from graphkit.verify.running import Run

__all__ = ["compared"]


def compared(
    proof: RewriteProof,
    runs: Sequence[Run],
    session: Runner,
    feed: Callable[[Run], Mapping[str, np.ndarray]],
    hollow: Collection[str] = (),
    rounding: Rounding | None = None,
) -> RewriteProof:
    """Run the rewritten model on the inputs of the original, and add the differences to a proof.

    Args:
        proof: What is known so far.
        runs: Of the original.
        session: The rewritten model.
        feed: Returns the inputs of a run.
        hollow: Outputs that have no elements at any size, so that their dims are all there is to compare.
        rounding: Judges what exceeds the tolerance of a model in float16.
    """
    tallies = {name: _Tally() for name in runs[0].expected}
    results = []
    for number, run in enumerate(runs, start=1):
        try:
            actual = session.run(feed(run))
        except RunError as error:
            results.append(RunProof(run.dims, run.flags, run.seed, None, None, error.problem, elements=run.elements))
            continue
        found = [one for one in compare_outputs(run.expected, actual) if one.output in tallies]
        failing = [one for one in found if not proof.covers(one)]
        if rounding is not None:
            failing = [one for one in failing if not rounding.explains(run, one, actual[one.output], proof.tolerance)]
        for difference in found:
            tallies[difference.output].add(difference, run.expected[difference.output], number, difference in failing)
        results.append(_run_proof(run, found, failing))
    failures = [*_interface_failures(list(tallies), session.outputs), *_run_failures(results)]
    empty = [name for name, tally in tallies.items() if not tally.finite and not failures]
    never = [name for name in empty if name not in hollow]
    notes = [f"Output {', '.join(name for name in empty if name in hollow)} has no elements at any size."] * (
        len(empty) > len(never)
    )
    failures += [f"nothing is compared of output {', '.join(never)}, which never has a finite element"] if never else []
    return replace(
        proof,
        runs=tuple(results),
        outputs=tuple(tally.proof(name, name in session.outputs) for name, tally in tallies.items()),
        notes=(*proof.notes, *notes),
        failures=tuple(failures),
    )


@dataclass
class _Tally:
    """One output in all runs so far."""

    worst: Difference | None = None
    run: int = 0
    elements: int = 0
    finite: int = 0
    failure: str = ""

    def add(self, difference: Difference, expected: Output, run: int, is_failing: bool) -> None:
        elements, finite = element_counts(expected)
        self.elements, self.finite = self.elements + elements, self.finite + finite
        if not difference.exact and (self.worst is None or difference.absolute > self.worst.absolute):
            self.worst, self.run = difference, run
        if not self.failure and is_failing:
            self.failure = str(difference)

    def proof(self, name: str, is_there: bool) -> OutputProof:
        if self.worst is None:
            return OutputProof(name, 0.0, 0.0, 0, self.elements, "" if is_there else "it is missing")
        absolute, relative = _numbers([self.worst])
        return OutputProof(name, absolute, relative, self.run, self.elements, self.failure)


def _numbers(found: Sequence[Difference]) -> tuple[float | None, float | None]:
    """Return the largest differences, None where elements that differ are no numbers."""
    if any(one.problem for one in found):
        return None, None
    return max((one.absolute for one in found), default=0.0), max((one.relative for one in found), default=0.0)


def _run_proof(run: Run, found: Sequence[Difference], failing: Sequence[Difference]) -> RunProof:
    failure = f"{failing[0].output} {failing[0]}" if failing else ""
    failure += f", and {len(failing) - 1} more outputs" if len(failing) > 1 else ""
    return RunProof(run.dims, run.flags, run.seed, *_numbers(found), failure, elements=run.elements)


def _run_failures(results: Sequence[RunProof]) -> list[str]:
    """Return the first failure, and in how many runs there is one."""
    failing = [run for run in results if run.failure]
    if not failing:
        return []
    return [f"{len(failing)} of {len(results)} runs differ, the first at {failing[0]}: {failing[0].failure}"]


def _interface_failures(before: Sequence[str], after: Sequence[str]) -> list[str]:
    missing, new = ([name for name in one if name not in other] for one, other in ((before, after), (after, before)))
    failures = [f"output {', '.join(missing)} is missing"] if missing else []
    failures += [f"output {', '.join(new)} is none of the original's"] if new else []
    if not failures and list(before) != list(after):
        failures.append(f"the outputs come in another order: {', '.join(after)}")
    return failures
