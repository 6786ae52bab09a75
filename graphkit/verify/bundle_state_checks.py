"""A bundle in a process of its own, and checks of its state: nothing leaks, and a step writes its own slot alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import structs

from graphkit.contract.bundle_contract import BundleContract, BundlePort, StateTensor
from graphkit.equivalence.originals import Originals
from graphkit.errors import GraphkitError, ModelError, UsageError
from graphkit.graph.dataflow import readers_beside
from graphkit.hosts.bound_state import BundleState
from graphkit.hosts.bundle_host import Bundle
from graphkit.hosts.method_feeds import Inputs, Tokens
from graphkit.model import Model, load
from graphkit.runtime.session import IsolatedSession, RunError
from graphkit.runtime.shared_memory import shared_zeros
from graphkit.verify.bundle_prompts import Prompt
from graphkit.verify.comparator import has_float16
from graphkit.verify.rounding import in_float32, without_rounding

UNUSED = "unused slots may hold NaN"
STEPS = 6  # after the first prompt, where more would not go round a ring


class Subject:
    """The subject of the checks: a bundle in a folder, and its logits from a fresh state, decoded once."""

    def __init__(self, bundle: Bundle, prompts: Sequence[Prompt], folder: Path, junk: float = np.nan) -> None:
        self.bundle, self.folder = bundle, folder
        self.prompts = prompts  # what to decode, the shortest first
        self.junk = junk  # what unused slots may hold: NaN, or a number where the export itself reads all of them
        rings = [state.shape[state.axis or 0] for state in bundle.contract.states if state.update == "ring"]
        steps, around = prompts[0].steps, min(rings, default=0) + 2
        count = max(around, STEPS) if around <= len(steps) else STEPS  # as many as go once round the shortest ring
        self.first, self.last = structs.replace(prompts[0], steps=steps[:count]), prompts[-1]
        self._known: dict[int, list[np.ndarray]] = {}

    def fresh(self, prompt: Prompt) -> list[np.ndarray]:
        """Return the logits of the first or the last prompt and of its steps, from a state of zeros."""
        if id(prompt) not in self._known:
            self._known[id(prompt)] = _decode_prompt(self.bundle.fork(), prompt)
        return self._known[id(prompt)]


def try_check(check: Callable[[], str]) -> str:
    """Return the fault that a check finds, or the error of a bundle that does not run; one that died is raised."""
    try:
        return check()
    except GraphkitError as error:
        if isinstance(error, RunError) and error.signal:
            raise
        return str(error)


def start_bundle(bundle: Bundle, prompt: Prompt) -> np.ndarray:
    """Run a bundle on a prompt, and return its logits: those of each token, or of the last one of a long prompt."""
    mask = prompt.mask if prompt.has_mask else None
    logits = bundle.start(prompt.tokens, prompt.inputs, mask=mask, all_logits=prompt.all_logits)
    return logits if prompt.all_logits or can_choose(bundle.contract) else logits[:, -1:].copy()


def can_choose(contract: BundleContract) -> bool:
    """Whether a bundle gives the logits of as many of the last tokens as its caller asks for."""
    method = contract.method("once")
    return method is not None and any(port.kind == "kept" for port in method.inputs)


def _decode_prompt(bundle: Bundle, prompt: Prompt) -> list[np.ndarray]:
    return [start_bundle(bundle, prompt), *(bundle.step(tokens) for tokens in prompt.steps)]


def _are_same(arrays: Sequence[np.ndarray], other_arrays: Sequence[np.ndarray]) -> bool:
    return [array.tobytes() for array in arrays] == [array.tobytes() for array in other_arrays]


def _unused_slots(subject: Subject) -> str:
    for prompt in (subject.first, subject.last):  # the first leaves slots free in the shortest ring
        spoilt = subject.bundle.fork()
        _fill_state(spoilt, subject.junk)
        if not _are_same(subject.fresh(prompt), _decode_prompt(spoilt, prompt)):
            return "what unused slots hold changes the logits"
    return ""


def _fill_state(bundle: Bundle, junk: float = np.nan) -> None:
    for state in bundle.contract.states:
        array = bundle.state.view(state, state.shape)
        array[...] = junk if array.dtype.kind == "f" else 1


def _check_initial_state(subject: Subject) -> str:
    fork = subject.bundle.fork()
    _fill_state(fork)
    fork.reset()
    for state in fork.contract.states:
        if (fork.state.view(state, state.shape) != fork.state.initial_of(state)).any():
            return f"'{state.name}' does not have its initial value after a reset"
    return ""


def _check_readers(subject: Subject) -> str:
    """Look for nodes that read state beside the node that writes it in place."""
    contract = subject.bundle.contract
    places = {state.name for state in contract.states if state.update in ("slots", "ring")}
    for method in contract.methods:
        if method.when == "reorder":  # which writes to another arena
            continue
        values = load(subject.folder / method.file).graph.values
        outputs = {port.writes: port.name for port in method.outputs if port.writes in places}
        for port in method.inputs:
            if port.kind != "state" or port.of not in outputs:
                continue
            for node in readers_beside(values[port.name], values[outputs[port.of]]):
                return f"'{node.label}' ({node.operator}) of {method.name} reads '{port.of}' beside its writer"
    return ""


def _check_leaks(subject: Subject) -> str:
    used = subject.bundle.fork()
    _decode_prompt(used, subject.last)
    if not _are_same(_decode_prompt(used, subject.first), subject.fresh(subject.first)):
        return "what was decoded before changes the logits"
    used.reset()
    if not _are_same(_decode_prompt(used, subject.first), subject.fresh(subject.first)):
        return "what was decoded before a reset changes the logits"
    return ""


def _check_forks(subject: Subject) -> str:
    pair = subject.first, subject.last
    alone = [subject.fresh(prompt) for prompt in pair]
    forks = [subject.bundle.fork() for _ in pair]
    together = [[start_bundle(fork, prompt)] for fork, prompt in zip(forks, pair, strict=True)]
    for step in range(max(len(prompt.steps) for prompt in pair)):
        for fork, prompt, logits in zip(forks, pair, together, strict=True):
            if step < len(prompt.steps):
                logits.append(fork.step(prompt.steps[step]))
    return "" if all(map(_are_same, alone, together)) else "a fork changes what another decodes"


def _check_writes(subject: Subject) -> str:
    """Compare the bytes of the state before and after: only the new slot may change, and no state that is only read."""
    prompt, fork = subject.first, subject.bundle.fork()
    once, step = fork.contract.method("once"), fork.contract.method("step")
    assert once is not None
    assert step is not None
    place, states = fork.state.address, fork.contract.states
    whole = {state.name: fork.state.view(state, state.shape).reshape(-1).view(np.uint8) for state in states}
    for array in whole.values():
        array[...] = 1
    start_bundle(fork, prompt)
    for name, array in whole.items():
        if once.access[name] in ("none", "read") and (array != 1).any():
            return f"{once.name} changes '{name}', which it does not write"
    for tokens in prompt.steps:
        before = {name: fork.state[name].copy() for name in fork.state}
        past = fork.length
        fork.step(tokens)
        for state in states:
            old, new = before[state.name], fork.state[state.name]
            if step.access[state.name] in ("none", "read"):
                if old.tobytes() != new.tobytes():
                    return f"a step changes '{state.name}', which it only reads"
            elif state.axis is not None:
                slot = past % state.shape[state.axis]
                other_slots = [at for at in range(state.shape[state.axis]) if at != slot]
                if np.take(old, other_slots, state.axis).tobytes() != np.take(new, other_slots, state.axis).tobytes():
                    return f"a step changes '{state.name}' at other slots than {slot}"
    return "" if fork.state.address == place else "the state has moved"


def _check_rows(subject: Subject) -> str:
    """Reorder as many rows as there are, each to other places, and compare all state in use with these rows."""
    fork = subject.bundle.fork()
    if fork.contract.method("reorder") is None:
        return ""
    prompt = max(subject.prompts, key=lambda prompt: (len(prompt.tokens), -prompt.tokens.size))
    count = len(prompt.tokens)
    for rows in ([*range(count)][::-1], [count - 1] * count, [count - 1], [*range(1, count), 0]):
        start_bundle(fork, prompt)
        before = {state.name: _in_use(fork, state).copy() for state in fork.contract.states}
        fork.reorder(rows)
        for state in fork.contract.states:
            expected = before[state.name]
            if state.batch is not None:
                expected = np.take(expected, rows, state.batch)
            if _in_use(fork, state).tobytes() != expected.tobytes():
                return f"'{state.name}' has other rows than {rows} after these were asked for"
    return ""


def _in_use(bundle: Bundle, state: StateTensor) -> np.ndarray:
    array = bundle.state[state.name]
    if state.axis is None or not state.length:
        return array
    return array[(slice(None),) * state.axis + (slice(0, state.in_use(int(bundle.state.lengths[state.length][0]))),)]


def _check_layouts(subject: Subject) -> str:
    contract = subject.bundle.contract
    moved = tuple(replace(state, name=f"{state.name}'") for state in contract.states)
    fork = subject.bundle.fork()
    try:
        fork.state = BundleState(replace(contract, states=moved))
    except UsageError:
        return ""
    return "a state of another layout is taken"


def _check_refusals(subject: Subject) -> str:
    """Step before a start, past the last slot and with other rows: refused, and the state is as before."""
    fork = subject.bundle.fork()
    prompt = max(subject.prompts, key=lambda prompt: (len(prompt.tokens), -prompt.tokens.size))
    rows, length = len(prompt.tokens), fork.contract.lengths[0]

    def step_fault(rows: int, what: str) -> str:
        before = {name: fork.state[name].tobytes() for name in fork.state}
        with suppress(UsageError):
            fork.step(np.ones((rows, 1), np.int64))
            return f"a step {what} is taken"
        is_kept = before == {name: fork.state[name].tobytes() for name in fork.state}
        return "" if is_kept else "a refused step changes state"

    if fault := step_fault(1, "before a start"):
        return fault
    start_bundle(fork, prompt)
    if fault := step_fault(rows + 1, "of other rows"):
        return fault
    fork.state.lengths[length.name][0] = length.most
    return step_fault(rows, "past the last slot")


CHECKS: Mapping[str, Callable[[Subject], str]] = {
    "what reads state reads what was written": _check_readers,
    "a reset gives state its initial value": _check_initial_state,
    UNUSED: _unused_slots,
    "no state is left of an earlier sequence": _check_leaks,
    "sequences stay independent": _check_forks,
    "a step writes its slot alone, and the state stays where it is": _check_writes,
    "rows are those that were asked for": _check_rows,
    "a state of another layout is refused": _check_layouts,
    "what cannot run is refused, and the state is as before": _check_refusals,
}


HALF, SINGLE = "float16", "float32"


class IsolatedBundle(Bundle):
    """A bundle whose models run in a process that may die, on state that both processes have."""

    _open = IsolatedSession

    @property
    def placed(self) -> Mapping[str, int]:
        """How many nodes of the models that ran are on each provider, where that is not the CPU."""
        return sum((Counter(getattr(session, "placed", {})) for session in self._sessions.opened.values()), Counter())

    def _fresh(self, initial: Mapping[str, np.ndarray]) -> BundleState:
        return BundleState(self.contract, initial, shared_zeros)

    def start_keeping(self, kept: int, tokens: Tokens, mask: Tokens | None, inputs: Inputs) -> np.ndarray:
        """Start a sequence, and return the logits of so many of the last tokens; a host asks for one, or for all."""
        return next(iter(self._decode(self._method("once"), tokens, mask, inputs, kept).values()))


class AlteredBundle(IsolatedBundle):
    """A bundle that runs other models in the place of its files."""

    def __init__(self, folder: Path, contract: BundleContract, sessions: Mapping[str, IsolatedSession]) -> None:
        super().__init__(folder, prepack=False, unchecked=True)
        self.contract = contract
        self._sessions.opened.update(sessions)
        self._begin(self._fresh(self._state.initial))


class WideBundle(NamedTuple):
    """A bundle of float16, or with activations in 8 bits, and the models that it was made of, in float32."""

    originals: Originals
    contract: BundleContract
    models: Mapping[str, Model]

    def open(self, folder: Path, *, optimize: bool, prepack: bool) -> AlteredBundle:
        """Return the bundle in float32."""
        models = self.models.items()
        sessions = {file: IsolatedSession(model, optimize=optimize, prepack=prepack) for file, model in models}
        return AlteredBundle(folder, self.contract, sessions)


def widen_model(model: Model) -> Model:
    """Return a model of float16 in float32, and without activations in 8 bits; ModelError if it is not converted."""
    return without_rounding(in_float32(model, wide_inputs=True)[0] if has_float16(model) else model)


def widen_bundle(originals: Originals, folder: Path, contract: BundleContract) -> WideBundle | None:
    """Return a bundle, of twice the arena, and its originals, all widened; None where a model is not converted."""

    def widen(port: BundlePort) -> BundlePort:
        return replace(port, dtype=SINGLE if port.dtype == HALF else port.dtype)

    try:
        wide = originals.map_models(widen_model)
        files = dict.fromkeys(method.file for method in contract.methods)
        models = {file: widen_model(load(folder / file)) for file in files}
    except ModelError:
        return None
    states = []
    for state in contract.states:
        is_half = state.dtype == HALF
        dtype = SINGLE if is_half else state.dtype
        states.append(replace(state, dtype=dtype, bytes=state.bytes << is_half, offset=2 * state.offset))
    methods = [
        replace(each, inputs=tuple(map(widen, each.inputs)), outputs=tuple(map(widen, each.outputs)))
        for each in contract.methods
    ]
    wide_contract = replace(contract, arena=2 * contract.arena, states=tuple(states), methods=tuple(methods))
    return WideBundle(wide, wide_contract, models)
