"""The engine of all proofs: an oracle's calls, repeated by a candidate, every output compared.

A proof adds its calls, in the order in which state goes on; the candidate that repeats them; and the rule by which a
difference counts. Inputs, the oracle, the comparator and the greedy loop are the same in all of them. What normal forms
prove beforehand, of an output or of all, belongs in front of `outcomes`: the rule may then ask less of the runs.

A beam search needs a search to be compared with, and the one of hosts is the only one: to write a second one would
check one author's idea of the rule against the same author's. So hosts search with their own states, the oracle is
searched by the same code with the original's, and tests hold that code against `generate` of transformers. The greedy
loop is the proof's own, for there nothing but an argmax is to be got right.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

import numpy as np
import onnx
from msgspec import Struct

from graphkit.errors import GraphkitError, ModelError
from graphkit.model import Model, load
from graphkit.progress import Limits, Progress, with_share
from graphkit.rewrite.base import copy_proto
from graphkit.runtime.isolation import DiedError, shared_isolation
from graphkit.runtime.session import IsolatedSession, RunError, Runner
from graphkit.verify.comparator import Difference, Output, compare_outputs

Outputs = Mapping[str, Output]


class Call(Protocol):
    """A call of the oracle."""

    @property
    def expected(self) -> Outputs:
        """The outputs of the oracle, by name."""
        ...


C = TypeVar("C", bound=Call)
Item = TypeVar("Item")


class Outcome(Struct, Generic[C], frozen=True, eq=False):
    """A call, repeated by a candidate."""

    call: C
    actual: Outputs  # of the candidate; none where it does not run
    differences: tuple[Difference, ...] = ()
    error: GraphkitError | None = None  # why it does not run

    @property
    def failure(self) -> str:
        """Why it does not run, in words, "" where it does."""
        return self.error.problem if isinstance(self.error, ModelError) else str(self.error or "")


def repeat_calls(
    calls: Iterable[C],
    candidate: Callable[[C], Outputs],
    outputs: Collection[str] | None = None,
    *,
    any_width: bool = False,
) -> Iterator[Outcome[C]]:
    """Repeat calls with a candidate, one after the other, and compare its outputs, or some of them.

    With `any_width` floats may have another dtype of floats.
    """
    for call in calls:
        try:
            computed = candidate(call)
        except GraphkitError as error:
            yield Outcome(call, {}, error=error)
            continue
        actual = {name: computed[name] for name in (computed if outputs is None else outputs) if name in computed}
        yield Outcome(call, actual, tuple(compare_outputs(call.expected, actual, any_width=any_width)))


def yield_outcomes(found: Iterable[Outcome[C]]) -> Iterator[Outcome[C]]:
    """Yield outcomes of a candidate that runs at all. Raises RunError where each call ends the process."""
    fatal, runs = list[RunError](), False
    for outcome in found:
        error = outcome.error
        if isinstance(error, RunError) and (error.signal or error.is_final):
            fatal.append(error)
        else:
            runs = True
        yield outcome
    if fatal and not runs:
        raise fatal[0]


class Step(Struct, frozen=True, eq=False):
    """A call in a sequence of calls that share state."""

    where: str  # which one it is, in words
    expected: Outputs  # the outputs of the oracle, by name
    run: Callable[[], Outputs]  # repeats it


class Agreement(Struct, frozen=True):
    """How far a candidate follows an oracle."""

    worst: float = 0.0  # the largest distance
    failure: str = ""  # the first failure, "" for none
    steps: int = 0  # the calls that were compared
    error: GraphkitError | None = None  # why the candidate stopped, None where it did not


# How far an output of the candidate is from the oracle's, and why that is too far, "" where it is not.
Rule = Callable[[Step, Difference, Output], tuple[float, str]]


def follow_steps(steps: Iterable[Step], rule: Rule, *, to_the_end: bool = False, any_width: bool = True) -> Agreement:
    """Let a candidate repeat a sequence up to the first failure, or, for the largest distance, to the end.

    Each step is made when the one before has been compared. With `any_width` floats may have another dtype of floats.
    """
    worst, failure, count = 0.0, "", 0
    for count, outcome in enumerate(repeat_calls(steps, lambda step: step.run(), any_width=any_width), start=1):
        if isinstance(outcome.error, RunError) and outcome.error.signal:
            raise outcome.error
        if outcome.error is not None:
            return Agreement(worst, failure or str(outcome.error), count - 1, outcome.error)
        for difference in outcome.differences:
            distance, fault = rule(outcome.call, difference, outcome.actual[difference.output])
            worst, failure = max(worst, distance), failure or fault
        if failure and not to_the_end:
            break
    return Agreement(worst, failure, count)


# Sessions of candidates: by other names, and with runs counted.


class Called:
    """A session whose inputs and outputs go by other names; it takes those that it has of what it is given.

    `more` are inputs that it has besides, by those names: `Runner.inputs` lack what has a default.
    """

    def __init__(self, session: Runner, names: Mapping[str, str] = {}, more: Iterable[str] = ()) -> None:
        self.session, self.names, self.label = session, names, session.label
        own = {old: new for new, old in names.items()}
        self.inputs: Sequence[str] = [names.get(name, name) for name in session.inputs]
        self.own = {name: own.get(name, name) for name in more} | dict(zip(self.inputs, session.inputs, strict=True))
        self.outputs = [names.get(name, name) for name in session.outputs]

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return every output by name."""
        found = self.session.run({self.own[name]: array for name, array in feed.items() if name in self.own})
        return {self.names.get(name, name): array for name, array in found.items()}


def tell_each(
    items: Sequence[Item],
    what: str,
    progress: Progress,
    unit: str = "run",
    work: Callable[[Item], float] = lambda _: 1.0,
) -> Iterator[Item]:
    """Yield items, each after its number was told: `proving: run 3 of 14`; some may be more work than others."""
    done, total = 0.0, sum(map(work, items))
    for number, item in enumerate(items, start=1):
        progress(with_share(done / total, f"{what}: {unit} {number:,} of {len(items):,}"))
        yield item
        done += work(item)


class Counted:
    """A session that tells the number of each run before it starts.

    `total` is how many runs there will be, where none fails: those that fail are made up for.
    """

    def __init__(self, session: Runner, what: str, total: int, progress: Progress) -> None:
        self.label = session.label
        self._session, self._what, self._total, self._progress = session, what, total, progress
        self._number = 0
        self.inputs, self.outputs = session.inputs, session.outputs

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return every output by name."""
        self._number += 1
        more, share = f" of {self._total:,}" * (self._number <= self._total), (self._number - 1) / max(self._total, 1)
        self._progress(with_share(min(share, 1.0), f"{self._what}: run {self._number:,}{more}"))
        return self._session.run(feed)


@contextmanager
def run_isolated(limits: Limits) -> Iterator[None]:
    """Let models run in a process with limits; what ends it ends the proof, by a ModelError that names the node."""
    with shared_isolation(limits):
        try:
            yield
        except RunError as error:
            if not error.signal or error.model is None:
                raise
            model = error.model if isinstance(error.model, Model) else load(error.model)
            raise fatal_error(model, error.feed, error.message) from error


def fatal_error(model: Model, feed: Mapping[str, np.ndarray], problem: str) -> ModelError:
    """Return the error for a model that ends its process on all inputs, with how, and the first node that does."""
    runs, ends = 0, len(model.proto.graph.node)  # how many of the first nodes run, and how many end the process
    while ends - runs > 1:
        count = (runs + ends) // 2
        is_end, proto = False, copy_proto(model)
        del proto.graph.node[count:], proto.graph.output[:]
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in proto.graph.node[-1].output if name)
        try:
            with IsolatedSession(model.with_proto(proto), prepack=False) as session:
                session.run(feed)
        except ModelError as error:
            is_end = isinstance(error.__cause__, DiedError)
        runs, ends = (runs, count) if is_end else (count, ends)
    where = model.graph.nodes[ends - 1].path
    return ModelError(f"onnxruntime cannot run it: {problem}", file=model.label, node=where, hint="correct the node")
