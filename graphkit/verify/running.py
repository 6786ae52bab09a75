"""Run an original model at sizes that are legal, until it ran at enough of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from graphkit.constraints.input_matching import fed_inputs
from graphkit.constraints.legal_sizes import LegalSizes
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.runtime.session import RunError, Runner
from graphkit.verify.assignments import Proposal, assignments
from graphkit.verify.compare import Output, compare_outputs
from graphkit.verify.inputs import InputMaker, is_flag
from graphkit.verify.lengths import lengths_of
from graphkit.verify.proof import RunSizes, SkippedRun

__all__ = ["Feeder", "Found", "Run", "run_original", "run_with", "unsteady_runs"]

ENOUGH = 5  # assignments; fewer are worth a note
STATIC_RUNS = 3  # where all dims are fixed: other values each time
MAX_ATTEMPTS = 40
MAX_FLAGS = 2  # flags of which all combinations are run
Flags = dict[str, bool]


@dataclass(frozen=True, eq=False)
class Run(RunSizes):
    """What was fed, and what the original gave for it."""

    seed: int
    expected: Mapping[str, Output]


@dataclass(frozen=True)
class Found:
    """What an original runs at.

    Attributes:
        skipped: Those at which onnxruntime fails.
        notes: What to know of them, a sentence each.
    """

    runs: list[Run] = field(default_factory=list)
    skipped: list[SkippedRun] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Feeder:
    """Makes the inputs of a model at its legal sizes, from a seed; arrays that are given stand for generated ones."""

    def __init__(self, model: Model, legal: LegalSizes, given: Mapping[str, np.ndarray], seed: int) -> None:
        self.sizes, self.given = legal, given
        self.inputs: Mapping[str, Value] = fed_inputs(model)
        self.maker = InputMaker(model, seed)
        self.lengths = lengths_of(model)
        merged = model.roles.decoder
        self.reading = {} if merged is None else {merged.condition.input.name: merged.cache_when}
        self.flag_shapes = {} if merged is None else {merged.condition.input.name: merged.condition.shape}

    def flags(self) -> list[Flags]:
        """Return the combinations of flags to run, at least one."""
        found = [*(name for name, value in self.inputs.items() if is_flag(value)), *self.reading]
        values = {name: self._values(name) for name in dict.fromkeys(found)}
        if sum(len(choices) > 1 for choices in values.values()) > MAX_FLAGS:
            return [{name: choices[at] for name, choices in values.items()} for at in (0, -1)]
        return [dict(zip(values, flags, strict=True)) for flags in itertools.product(*values.values())]

    def _values(self, name: str) -> tuple[bool, ...]:
        """Return the values that a flag gets: that of its array where one is given."""
        return (bool(self.given[name].all()),) if name in self.given else (False, True)

    def legal(self, flags: Flags) -> LegalSizes:
        """Return the legal sizes with these flags."""
        return self.sizes.for_branch(is_first=self.is_first(flags), reads_past=self._reads_past(flags))

    def _reads_past(self, flags: Flags) -> bool:
        return any(flags.get(name) == flag for name, flag in self.reading.items())

    def is_first(self, flags: Flags) -> bool:
        """Whether a merged decoder runs its first step with these flags."""
        return any(flags.get(name) == (not flag) for name, flag in self.reading.items())

    def feed(self, dims: Mapping[str, int], flags: Flags, seed: int) -> dict[str, np.ndarray]:
        """Return the inputs of a run."""
        is_first = self.is_first(flags)
        shapes = self.sizes.shapes(dims, is_first=is_first)
        booleans = {
            name: np.full(self.flag_shapes.get(name, shapes.get(name) or ()), flag) for name, flag in flags.items()
        }
        past = 0 if is_first else self.sizes.past_size(dims)
        feed = self.maker.arrays(shapes, past=past, given={**self.given, **booleans}, seed=seed)
        return {**feed, **booleans}  # a condition with a default is fed too


def run_original(session: Runner, feeder: Feeder, wanted: int) -> Found:
    """Run a model at so many assignments, if there are as many, with each combination of flags.

    Raises:
        ModelError: No input can be made for it.
    """
    found = Found()
    for flags in feeder.flags():
        run_with(session, feeder, flags, wanted, found)
    return found


def unsteady_runs(session: Runner, feeder: Feeder, runs: Sequence[Run]) -> list[Run]:
    """Return the runs whose outputs differ when they are run again, after others than at first.

    onnxruntime accepts some dims that an operator does not allow, and then gives what was in memory before.
    """
    found: set[Run] = set()
    for run in (*reversed(runs), *runs):
        again = session.run(feeder.feed(run.dims, run.flags, run.seed))
        if not all(difference.within(0.0) for difference in compare_outputs(run.expected, again)):
            found.add(run)
    return [run for run in runs if run in found]


def run_with(session: Runner, feeder: Feeder, flags: Flags, wanted: int, found: Found) -> None:
    """Run a model at so many assignments with one combination of flags, and add what was found."""
    legal, successes = feeder.legal(flags), list[dict[str, int]]()
    for seed, proposal in enumerate(_proposals(legal, feeder, flags, successes)):
        dims = proposal.dims
        try:
            expected = session.run(feeder.feed(dims, flags, seed))
        except RunError as error:
            if not proposal.is_probe:
                found.skipped.append(SkippedRun(dims, flags, error.problem))
            continue
        successes.append(dims)
        found.runs.append(Run(dims, flags, seed, expected))
        if len(successes) == wanted:
            return
    if legal.variables and len(successes) < min(wanted, ENOUGH):
        where = "".join(f" with {name}={str(flag).lower()}" for name, flag in flags.items())
        few = {0: "No sizes were", 1: "Only one set of sizes was"}.get(
            len(successes), f"Only {len(successes)} sets of sizes were"
        )
        found.notes.append(f"{few} found at which it runs{where}.")


def _proposals(legal: LegalSizes, feeder: Feeder, flags: Flags, successes: list[dict[str, int]]) -> Iterator[Proposal]:
    if not legal.variables:
        return iter([Proposal({}, False)] * (STATIC_RUNS if feeder.inputs else 1))
    found = assignments(legal, successes, lengths=feeder.lengths, is_first=feeder.is_first(flags))
    return itertools.islice(found, MAX_ATTEMPTS)
