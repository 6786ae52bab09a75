"""A lowering beside its export: one sequence through both, a host whose inputs may change, and what leaks there."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from graphkit.contract import Method, Port
from graphkit.equivalence.originals import Originals
from graphkit.errors import UsageError
from graphkit.graph.roles import dim_at
from graphkit.graph.view import Value
from graphkit.hosts import Host
from graphkit.hosts.method_feeds import Inputs
from graphkit.hosts.numpy_host import Ids, Tokens, source_and_inputs
from graphkit.model import Model
from graphkit.progress import FEW_RUNS
from graphkit.runtime.providers import CPU, Provider
from graphkit.runtime.session import IsolatedSession
from graphkit.verify.cause_search import Differ, largest_multiple, with_attributes
from graphkit.verify.comparator import (
    LOWERING_TOLERANCE,
    ColumnTolerance,
    computes_in_half,
    distance_of_spread,
    elementwise_difference,
)
from graphkit.verify.input_generator import ExportInputs, InputSpec, index_bound
from graphkit.verify.oracle import OneSequence, Oracle, repeat_along
from graphkit.verify.probe_inputs import nearest_length

Alter = Callable[[Port, Sequence[int], np.ndarray], np.ndarray]
Changing = Callable[[Sequence[int], np.ndarray], np.ndarray]
STEPS = 4  # that are looked into
BEGUN = 128  # steps before some are left out
TRIED = 7  # tokens of a prompt that is read at once, and token by token


class AlteredHost(Host):
    """A host whose inputs can be altered, of which one sequence is looked at: those beside it are random."""

    sound: int | None = None  # how many samples or frames of its sound are valid; None for all, or for no sound
    alter: Alter | None = None  # gives another array for an input, from port, token ids and array; None for none
    sequence: int = 0
    vocabulary: int = 1
    rng = np.random.default_rng(0)

    def start(
        self, source: Tokens | Inputs = (), /, inputs: Inputs | None = None, **named: npt.ArrayLike
    ) -> dict[str, np.ndarray]:
        """Run a source in its sequence, and return its outputs."""
        source, user = source_and_inputs(source, inputs, named)
        if self.sound is not None:
            longest = self.contract.sizes["sound"]
            valid = [int(length) for length in self.rng.integers(self.least_sound, longest + 1, self.batch)]
            valid[self.sequence] = self.sound
            return {name: self.own(array) for name, array in super().start(valid, user).items()}
        if self.batch == 1:
            return super().start(source, user)
        most = self.contract.sizes["source"] if self.contract.takes_text else 0
        rows: list[Sequence[int]] = [
            self._random_tokens(int(self.rng.integers(1, most + 1))) if most else [] for _ in range(self.batch)
        ]
        rows[self.sequence] = source  # type: ignore[assignment]
        return {name: self.own(array) for name, array in super().start(rows if most else (), user).items()}

    @property
    def least_sound(self) -> int:
        """The fewest samples or frames of a sound of which a position is valid."""
        return max(1, self.contract.sizes.get("stride", 1) - self.contract.sizes.get("offset", 0))

    def step(self, token: int | Sequence[int]) -> np.ndarray:
        """Run a token in its sequence, and return its logits."""
        if self.batch == 1:
            return super().step(token)
        rows = self._random_tokens(self.batch)
        rows[self.sequence] = token  # type: ignore[assignment]
        return np.asarray(super().step(rows)[self.sequence])

    def repeat_past(self, count: int) -> None:
        """Let as many tokens follow in the cache as if those in it were read again, without reading them."""
        for name, axis in self.axis.items():
            if axis is not None:
                slots = np.moveaxis(self.state[name], axis, 0)[: self.position + count]
                slots[...] = repeat_along(slots[: self.position], 0, count)
        self.position += count

    def alter_input(self, port: Port, change: Changing) -> AbstractContextManager[None]:
        """Return a context in which an input is changed, from the token ids and the array, besides others that are."""
        before = self.alter

        def alter(fed_port: Port, ids: Sequence[int], fed: np.ndarray) -> np.ndarray:
            fed = fed if before is None else before(fed_port, ids, fed)
            return np.ascontiguousarray(change(ids, fed)).reshape(fed.shape) if fed_port is port else fed

        return with_attributes(self, alter=alter)

    def own(self, array: np.ndarray) -> np.ndarray:
        """Return the part of the sequence that is looked at, all of it where the batch is the caller's."""
        if self.batch == 1:
            return array
        part = array.shape[0] // self.batch
        return array[self.sequence * part : (self.sequence + 1) * part]

    def _random_tokens(self, count: int) -> list[int]:
        return [int(token) for token in self.rng.integers(0, self.vocabulary, count)]

    def _input(self, port: Port, ids: Ids) -> np.ndarray:
        array = super()._input(port, ids)
        if self.alter is None:
            return array
        if self.batch == 1 or port.kind != "embedding":
            return self.alter(port, ids[self.sequence], array).astype(array.dtype, copy=False)
        parts = np.split(array.reshape(-1), self.batch)
        parts[self.sequence] = self.alter(port, ids[self.sequence], parts[self.sequence]).reshape(-1)
        return np.concatenate(parts).reshape(port.shape)


class IsolatedMethods:
    """Methods in a process that may die."""

    def __init__(self, folder: Path, provider: Provider = CPU) -> None:
        self.folder, self.provider = folder, provider
        self.placed: Counter[str] = Counter()  # how many nodes of what ran are on each provider but the CPU
        self.models: Mapping[str, Model] = {}  # what runs in place of a file, by method
        self.fed: dict[str, Mapping[str, np.ndarray]] = {}  # what each method was fed last
        self._opened: dict[str, tuple[Model | None, IsolatedSession]] = {}

    def __call__(self, method: Method, feed: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Run a method."""
        model, opened = self.models.get(method.name), self._opened.get(method.name)
        if opened is None or opened[0] is not model:
            source = self.folder / method.file if model is None else model
            is_cpu = self.provider.is_cpu
            opened = model, IsolatedSession(source, optimize=not is_cpu, provider=self.provider, held_runs=FEW_RUNS)
            self.placed.update(opened[1].placed)
            self._opened[method.name] = opened
        self.fed[method.name] = {name: array.copy() for name, array in feed.items()}
        return opened[1].run(feed)


class LoweringCase(Struct, frozen=True, eq=False):
    """A case of both pipelines, in which causes are sought."""

    host: AlteredHost
    reference: OneSequence  # the original pipeline
    source: list[int]
    tokens: list[int]  # what the decoder is given
    user: Mapping[str, np.ndarray]  # inputs that the caller makes
    allowance: ColumnTolerance  # how large a difference counts as none
    skipped: int = 0  # positions after `BEGUN` steps that nothing is run at: the cache repeats what it has

    @property
    def differ(self) -> Differ:
        """Whether an actual array differs from the expected one, which is the second argument."""
        return self.allowance.differ

    @property
    def own(self) -> Mapping[str, np.ndarray]:
        """The inputs in `user` of the sequence that is looked at."""
        return {name: self.host.own(array) for name, array in self.user.items()}

    def distance(self, actual: np.ndarray, expected: np.ndarray) -> float:
        """Return the largest difference from the expected array, in multiples of the tolerance."""
        if actual.shape != expected.shape or np.isnan(expected).any():
            return math.inf
        return largest_multiple(elementwise_difference(expected, actual), self.allowance.of(expected))

    def start(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Start both, and return the outputs of host and original that are computed once for the source."""
        return self.host.start(self.source, self.user), self.reference.start(self.source, self.own)

    def once(self) -> Iterator[float]:
        """Let both begin, and yield how far the outputs of the methods that run once are off, at valid positions."""
        outputs, expected = self.start()
        for name, right in expected.items():
            valid = tuple(slice(size) for size in right.shape)
            yield self.distance(outputs[name][valid], right) if name in outputs else math.inf

    def walk_tokens(self, *runners: AlteredHost | OneSequence) -> Iterator[int]:
        """Yield the token of each step, which the caller lets these run."""
        for number, token in enumerate(self.tokens):
            for runner in runners if number == BEGUN and self.skipped else ():
                runner.repeat_past(self.skipped)
            yield token

    def steps(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Go on with the tokens, and yield the logits of host and original."""
        both = self.host, self.reference
        return ((self.host.step(token), self.reference.step(token)) for token in self.walk_tokens(*both))

    def distances(self) -> Iterator[float]:
        """Run the whole case, and yield how far each output is off."""
        yield from self.once()
        if self.reference.originals.step is not None:
            yield from itertools.starmap(self.distance, self.steps())


def find_leaks(case: LoweringCase, rng: np.random.Generator) -> Iterator[str]:
    """Yield the leaks, a sentence each: outputs that change with padding or unused slots."""
    plain, sound, sizes = _run_padded(case), case.host.sound, case.host.contract.sizes

    def fill_padding(port: Port, ids: Sequence[int], fed: np.ndarray) -> np.ndarray:
        if (port.kind, port.by) != ("embedding", "source") or port.source is None:
            return fed
        rows, table = fed.reshape(sizes["source"], -1).copy(), case.host.tables[port.source.of]
        padding = rows[len(ids) :]
        padding[...] = table[rng.integers(0, len(table), len(padding))].reshape(padding.shape)
        return np.asarray(rows.reshape(fed.shape))

    if case.source:
        with with_attributes(case.host, alter=fill_padding):
            once, steps = (any(map(case.differ, a, b)) for a, b in zip(_run_padded(case), plain, strict=True))
        if once:
            yield "What padding holds changes what runs once for a source: the mask over the source does nothing there."
        elif steps:
            yield "What padding holds changes the logits: the mask over the source does nothing in the step."
    if sound is not None and sound < sizes["sound"] and sizes["capacity"] > 0:  # only the decoder tells what is valid
        methods = case.host.contract.methods
        masks = [(m, port) for m in methods for port in m.inputs if port.kind == "source_mask"]
        for method, port in masks:
            with case.host.alter_input(port, lambda _, mask: 0 * mask):
                runs = zip(_run_padded(case), plain, strict=True)
            if all(np.array_equal(a, b) for alike in runs for a, b in zip(*alike, strict=True)):  # to the last bit
                yield f"'{port.name}' of {method.name} changes nothing: the mask over the source does nothing there."
    _, noisy = _run_padded(case, rng)
    if any(map(case.differ, noisy, plain[1])):
        yield "What unused slots of the cache hold changes the logits: the mask over the slots does nothing."


def measure_prompt(originals: Originals, alone: Originals) -> float:
    """Return how far the logits after a prompt are apart, read at once and token by token.

    They are 0 apart where a first step reads one token. `alone` are the decoders of later steps, which start from no
    token. Raises UsageError for rows of embeddings that not one model beside it makes of tokens.
    """
    first, step = originals.first, alone.step
    assert first is not None
    assert step is not None
    rows = first.roles.first("embeddings")
    value = (step if rows is not None else first).roles.first("tokens")
    fixed = dim_at(value, 1) if rows is None and value is not None else None
    count = fixed if isinstance(fixed, int) else nearest_length(first, TRIED) or TRIED  # chunks may have to divide it
    single = [model for model in originals.parts if model.roles.first("tokens") and len(model.graph.outputs) == 1]
    tables = [m for m in single if rows is not None and dim_at(m.graph.outputs[0], -1) == dim_at(rows, -1)]
    if value is None or count < 2:
        return 0.0
    if rows is not None and len(tables) != 1:
        names = " and ".join(model.name for model in tables) or "no model here"
        problem = f"{names} may make its '{rows.name}' of tokens, so that its prompt cannot be compared with steps"
        hint = f"leave one such table beside it, or lower {step.name} alone"
        raise UsageError(f"{first.name}: {problem} - {hint}")
    tokens = _random_tokens(value, first if rows is None else step, step, count)
    prompt, mask, later = tokens, np.ones_like(tokens), Oracle(alone)
    if rows is not None:
        (feed,) = (each.name for each in tables[0].graph.inputs if each.tensor is None)
        (prompt,) = IsolatedSession(tables[0].path or tables[0]).run({feed: tokens}).values()
    expected = Oracle(originals).start(prompt, mask, {})[:, -1]
    found = later.start(tokens[:, :1], mask[:, :1], {})
    for at in range(1, count):
        found = later.step(tokens[:, at : at + 1])
    return distance_of_spread(expected, found[:, -1])


def _random_tokens(value: Value, model: Model, step: Model, count: int) -> np.ndarray:
    batch = dim_at(step.roles.first("tokens"), 0)
    shape = batch if isinstance(batch, int) else 1, count
    return np.random.default_rng(0).integers(1, index_bound(value, model) or 16, shape)


def starts_with_zeros(step: Model, axes: Mapping[str, int], count: int) -> bool:
    """Whether states that so many tokens fill, along these axes, hold zeros before the first ones."""
    oracle, value = Oracle(Originals(None, step, step)), step.roles.first("tokens")
    tokens = [] if value is None else np.split(_random_tokens(value, step, step, count - 1), count - 1, 1)
    for used, token in enumerate(tokens, 1):
        oracle.first(token, np.ones_like(token)) if used == 1 else oracle.step(token)
        given = ((oracle.outputs[s.next.name], axes[s.past.name]) for s in step.roles.states if s.past.name in axes)
        if any(np.moveaxis(array, axis, 0)[:-used].any() for array, axis in given):
            return False
    return bool(tokens)


def zeros_change_results(originals: Originals, models: Mapping[str, Model], folder: Path) -> bool:
    """Whether zeros behind a sound make results of lowered models others than the original's, or nothing tells.

    The models are by method, in a folder that has `contract.json` and the tables; ModelError where one does not run.
    """
    run, inputs = IsolatedMethods(folder), ExportInputs(originals.models, np.random.default_rng(0))
    run.models = models
    host, reference = AlteredHost(folder, run, unchecked=True), OneSequence(originals)
    users = [port for method in host.contract.methods for port in method.inputs if port.kind == "user"]
    user = {port.name: inputs.array(InputSpec(port.name, port.dtype), port.shape) for port in users}
    allowance = ColumnTolerance(LOWERING_TOLERANCE, is_half=any(map(computes_in_half, originals.models)))
    case, is_known = LoweringCase(host, reference, [], [1], user, allowance), False
    for length in sound_lengths(host, reference)[:-1]:
        host.sound = reference.valid = length
        if reference.alone([], case.own):
            is_known = True
            if max(case.distances(), default=0.0) > 1:
                return True
    return not is_known


def sound_lengths(host: AlteredHost, reference: OneSequence) -> list[int]:
    """Return lengths of a sound to try, up to the longest one; those at which the original runs where that is known."""
    sizes, least = host.contract.sizes, host.least_sound
    most = sizes["sound"]
    tried = (least, most // 3, most // 3 + sizes["stride"] // 2, (least + most) // 2, most - 1)
    legal = [reference.nearest_source(length) or length for length in tried]
    return sorted({length for length in legal if least <= length < most} | {most})


def _run_padded(
    case: LoweringCase, rng: np.random.Generator | None = None
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return outputs at valid positions, and logits of steps; `rng` fills unused slots with what a run before wrote."""
    host, length = case.host, len(case.source)
    used = {name: state[state != 0] for name, state in host.state.items() if host.axis[name] is not None}
    outputs = host.start(case.source, case.user)
    for name, elements in used.items():
        if rng is not None and elements.size:  # others may count for more than masks hide
            host.state[name][...] = rng.choice(elements, host.state[name].shape)
    written = {port.name for method in host.contract.methods for port in method.outputs if port.writes}
    size = host.contract.sizes["source"]
    once = [array for name, array in outputs.items() if name not in written]
    valid = [array[:, :length] if length and array.shape[1:2] == (size,) else array for array in once]
    return valid, [host.step(token) for token in case.tokens[:STEPS]]
