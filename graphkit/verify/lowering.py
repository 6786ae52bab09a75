"""The proof of a lowering: the original pipeline, unpadded, against host and lowered models at fixed, padded shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from graphkit.contract import Contract, Method
from graphkit.graph.view import all_scopes
from graphkit.host import Host
from graphkit.render.blocks import Block, Column, Prose, Table
from graphkit.render.result import Result
from graphkit.runtime.isolated import IsolatedSession
from graphkit.runtime.isolation import isolation
from graphkit.runtime.limits import DEFAULT_LIMITS, Limits
from graphkit.verify.original_pipeline import Originals, Reference

__all__ = ["LoweringProof", "SourceRun", "verify_lowering"]

TOLERANCE = 1e-4  # of logits and encoder output, times their largest magnitude where that is above 1
HALF_TOLERANCE = 2.0**-8  # where there is float16: 4 of its steps at the largest magnitude
NOISE = 3.0  # standard deviation of what unused slots and padding are filled with
GREEDY = 16  # most tokens to decode greedily


@dataclass(frozen=True)
class SourceRun:
    """One source, or one prompt, through both pipelines.

    Attributes:
        length: Tokens of the source; 0 without one.
        encoder: The largest difference of what runs once, at valid positions; None without it.
        steps: Steps decoded with given tokens.
        logits: The largest difference of logits over these, None without a decoder.
        greedy: Steps decoded greedily.
        tokens: Different tokens among those that the original chose greedily.
        failure: Why it fails, "" for nothing.
    """

    length: int
    encoder: float | None
    steps: int
    logits: float | None
    greedy: int
    tokens: int
    failure: str


@dataclass(frozen=True)
class LoweringProof(Result):
    """Whether host and lowered models give what the originals give.

    Attributes:
        tolerance: The largest difference that counts as equal, times the largest magnitude where that is above 1.
        runs: The runs, by length of the source.
        causes: What the differences look like, a sentence each.
        notes: What to know of the proof, a sentence each.
    """

    title: ClassVar[str] = "Proof"
    tolerance: float
    runs: tuple[SourceRun, ...]
    causes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether it ran, and nothing differs by more than the tolerance."""
        return bool(self.runs) and not self.findings()

    def findings(self) -> tuple[str, ...]:
        """Return why the proof failed, a sentence each."""
        failures = [f"source of {run.length} tokens: {run.failure}" for run in self.runs if run.failure]
        return (*failures, *self.causes, *(() if self.runs else ("nothing was run",)))

    def blocks(self) -> Iterator[Block]:
        """Yield the runs as a table, then what they show."""
        yield Table(
            (
                Column("Source", "number"),
                Column("Encoder", "number"),
                Column("Steps", "number"),
                Column("Logits", "number"),
                Column("Greedy", "number"),
                Column("Result"),
            ),
            [
                (r.length or None, _number(r.encoder), r.steps, _number(r.logits), r.greedy, r.failure or "equal")
                for r in self.runs
            ],
        )
        yield from (Prose(cause, "warning") for cause in self.causes)
        yield from (Prose(note) for note in self.notes)
        if self.passed:
            yield Prose(f"Host and lowered models give what the originals give, within {self.tolerance:g}.")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def verify_lowering(
    originals: Originals,
    folder: Path,
    *,
    tolerance: float = TOLERANCE,
    seed: int = 0,
    limits: Limits = DEFAULT_LIMITS,
    progress: Callable[[str], None] = lambda _: None,
) -> LoweringProof:
    """Prove that host and lowered models compute what the originals did.

    Sources of 1 token up to the fixed length run through both: the original without padding, the host with it. The
    decoder is given tokens until the cache is full and one more, then decodes greedily. Unused slots and the
    embeddings of padding are filled with noise in one more run, which must change nothing.

    Args:
        originals: What was lowered, read from files.
        folder: The folder of `contract.json`.
        tolerance: The largest difference that counts as equal, times the largest magnitude where that is above 1;
            models in float16 are compared within 2**-8.
        seed: Of the token ids.
        limits: What a model may take of time and memory.
        progress: Called with the name of each step before it starts.

    Raises:
        ModelError: A model does not load or run.
    """
    with isolation(limits):
        return _Proof(originals, folder, tolerance, seed, progress).run()


class _Proof:
    def __init__(
        self, originals: Originals, folder: Path, tolerance: float, seed: int, progress: Callable[[str], None]
    ) -> None:
        self.progress = progress
        self.rng = np.random.default_rng(seed)
        self.host = Host(folder, _Isolated(folder))
        self.contract = self.host.contract
        self.tolerance = max(tolerance, HALF_TOLERANCE) if _is_half(self.contract) else tolerance
        self.reference = Reference(originals)
        self.differences: list[np.ndarray] = []  # of logits, at each step of the last source
        self.vocabulary = _vocabulary(self.contract)
        self.user = {
            port.name: port
            for method in self.contract.methods
            for port in method.inputs
            if port.source is not None and port.source.kind == "user"
        }

    def run(self) -> LoweringProof:
        lengths, runs = self._lengths(), []
        for length in lengths:
            self.progress(f"proving: source of {length} tokens" if length else "proving")
            runs.append(self._one(length))
        failed = [run for run in runs if run.failure]
        causes = [*self._noise(lengths[len(lengths) // 2]), *(self._causes(runs) if failed else ())]
        notes = list(self._left_out(lengths))
        if self.contract.sizes["capacity"] and all(run.tokens <= 1 for run in runs):
            notes.append("The original chooses one token all the way: equal tokens tell nothing here, logits do.")
        return LoweringProof(self.tolerance, tuple(runs), tuple(causes), tuple(notes))

    def _lengths(self) -> list[int]:
        """Return lengths of the source, from 1 to the fixed one, as far as the original runs at them; 0 for no text."""
        source = self.contract.sizes["source"]
        if not self.contract.takes_text:
            return [0]
        found = (self.reference.nearest_source(length) for length in (1, 2, max(1, source // 3), source - 1, source))
        return sorted({length for length in found if length is not None and 0 < length <= source})

    def _left_out(self, lengths: Sequence[int]) -> Iterator[str]:
        source = self.contract.sizes["source"]
        if self.contract.takes_text and self.reference.nearest_source(1) != 1:
            told = ", ".join(map(str, lengths))
            yield f"The original does not run at all lengths up to {source}: it was compared at {told}."

    def _ids(self, count: int) -> list[int]:
        pad = self.contract.tokens["pad"]
        allowed = [token for token in range(self.vocabulary) if token != pad]
        return [int(self.rng.choice(allowed)) for _ in range(count)]

    def _one(self, length: int) -> SourceRun:
        source = self._ids(length)
        user = {name: self.rng.normal(0, 1, port.shape).astype(port.dtype) for name, port in self.user.items()}
        outputs = self.host.start(source, **user)
        expected = self.reference.start(source, user)
        difference, failure = None, ""
        for name, wanted in expected.items():
            if name not in outputs:
                failure = failure or f"'{name}' is not given"
                continue
            part = tuple(slice(size) for size in wanted.shape)
            found = self._distance(outputs[name][part], wanted)
            difference = max(found, difference or 0.0)
            if found > self._allowed(wanted):
                failure = failure or f"'{name}' differs by {found:.1e} at valid positions"
        if not self.contract.sizes["capacity"]:
            return SourceRun(length, difference, 0, None, 0, 0, failure)
        steps = self.contract.sizes["positions"]
        worst, at = self._forced(steps)
        failure = failure or at
        self.host.start(source, **user)
        self.reference.start(source, user)
        chosen, differs = self._greedy(min(GREEDY, steps))
        return SourceRun(length, difference, steps, worst, min(GREEDY, steps), len(set(chosen)), failure or differs)

    def _causes(self, runs: Sequence[SourceRun]) -> Iterator[str]:
        """Yield which of the usual mistakes the differences look like."""
        full = next((run for run in runs if run.length == self.contract.sizes["source"]), None)
        if len(runs) > 1 and full is not None and not full.failure:
            yield "Only padded sources differ: padding is not masked."
        if self.differences:
            offset = self.differences[0]
            if all(np.allclose(other, offset, atol=self.tolerance, rtol=0.01) for other in self.differences):
                yield f"Logits are off by the same numbers at every step: {self._bias(offset)}"
            elif np.max(np.abs(offset)) <= self.tolerance * 10 and len(self.differences) > 1:
                yield "The first step is right and later ones are not: look at what the cache holds, and at positions."

    def _bias(self, offset: np.ndarray) -> str:
        """Return which constant of the original a difference is."""
        model = self.reference.originals.step
        assert model is not None
        for value in (value for scope in all_scopes(model.scopes) for value in scope.initializers):
            tensor = value.tensor
            if tensor is None or int(np.prod(tensor.dims)) != offset.size:
                continue
            array = model.array(tensor).reshape(-1).astype(np.float64)
            for sign, what in ((-1, "is lost"), (1, "is added twice")):
                if np.allclose(offset, sign * array, atol=10 * self.tolerance, rtol=0.01):
                    return f"'{value.name}' of the original {what}."
        return "a bias is lost or added twice."

    def _forced(self, steps: int) -> tuple[float, str]:
        worst, failure = 0.0, ""
        self.differences = []
        for number, token in enumerate(self._ids(steps)):
            wanted, logits = self.reference.step(token), self.host.step(token)
            if logits.shape == wanted.shape:
                self.differences.append(logits.astype(np.float64) - wanted.astype(np.float64))
            found = self._distance(logits, wanted)
            worst = max(worst, found)
            if found > self._allowed(wanted) and not failure:
                failure = f"logits differ by {found:.1e} at step {number + 1}"
        return worst, failure

    def _greedy(self, steps: int) -> tuple[list[int], str]:
        token, chosen = self._ids(1)[0], []
        for number in range(steps):
            wanted, found = self.reference.step(token), self.host.step(token)
            token = int(wanted.argmax())
            chosen.append(token)
            if int(found.argmax()) != token and wanted[token] - wanted[int(found.argmax())] > self._allowed(wanted):
                return chosen, f"greedy token {number + 1} is {int(found.argmax())}, not {token}"
        return chosen, ""

    def _noise(self, length: int) -> Iterator[str]:
        """Fill what must not count with noise, and yield what changes."""
        if not self.contract.sizes["capacity"]:
            return
        source, tokens = self._ids(length), self._ids(3)
        user = {name: np.zeros(port.shape, port.dtype) for name, port in self.user.items()}
        self.host.start(source, **user)
        plain = [self.host.step(token) for token in tokens]
        self.host.start(source, **user)
        for name, axis in self.host.axis.items():
            if axis is not None:
                state = self.host.state[name]
                state[...] = self.rng.normal(0, NOISE, state.shape)
        noisy = [self.host.step(token) for token in tokens]
        if any(self._distance(a, b) > self._allowed(a) for a, b in zip(plain, noisy, strict=True)):
            yield "What unused slots of the cache hold changes the logits: the mask over the slots does nothing."

    def _distance(self, found: np.ndarray, wanted: np.ndarray) -> float:
        if found.shape != wanted.shape:
            return float("inf")
        if wanted.size == 0:
            return 0.0
        largest = float(np.max(np.abs(found.astype(np.float64) - wanted.astype(np.float64))))
        return float("inf") if np.isnan(largest) else largest

    def _allowed(self, wanted: np.ndarray) -> float:
        return self.tolerance * max(1.0, float(np.max(np.abs(wanted), initial=0.0)))


class _Isolated:
    """Methods in a process that may die."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: dict[str, IsolatedSession] = {}

    def __call__(self, method: Method, feed: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        if method.name not in self.opened:
            self.opened[method.name] = IsolatedSession(self.folder / method.file)
        return self.opened[method.name].run(feed)


def _is_half(contract: Contract) -> bool:
    return any(port.dtype == "float16" for each in contract.methods for port in (*each.inputs, *each.outputs))


def _vocabulary(contract: Contract) -> int:
    sources = {port.source.of for method in contract.methods for port in method.inputs if port.source is not None}
    rows = [table.rows for table in contract.tables if table.name in sources and table.name.endswith("inputs_embeds")]
    return min(rows, default=2)
