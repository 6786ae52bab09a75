"""Causes of a bundle's differences: a change whose undoing mends them, or the first node that differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from graphkit.deploy.contract.bundle_contract import BundleContract, BundleMethod, BundlePort
from graphkit.deploy.hosts.bundle_host import Bundle
from graphkit.deploy.hosts.state_arena import BundleState
from graphkit.errors import GraphkitError
from graphkit.model import Model, load
from graphkit.runtime.isolated_session import IsolatedSession
from graphkit.runtime.session import Session
from graphkit.verify.bundle_prompts import Prompt
from graphkit.verify.bundle_state_checks import start
from graphkit.verify.bundle_undo import Call, Models, Undo, calls_of, growing_axis, undos
from graphkit.verify.comparator import distance_of_spread
from graphkit.verify.first_difference import first_node, order
from graphkit.verify.originals import Originals
from graphkit.verify.weight_faults import WrongAttribute, WrongWeight, mended

__all__ = ["Fact", "causes", "is_sure"]

CLEAR = 1e-6  # what is more than the last digits
Fact = WrongWeight | WrongAttribute


def causes(
    originals: Originals,
    folder: Path,
    contract: BundleContract,
    failing: Sequence[Prompt],
    facts: Sequence[Fact],
    near: float,
) -> list[str]:
    """Return the causes of wrong logits, a sentence each; none where known differences of the files explain them.

    Args:
        originals: The models that the bundle was made of.
        folder: The bundle.
        contract: What `bundle.json` says.
        failing: Prompts whose logits are not those of the export.
        facts: Weights and attributes that are not, or may not be, those of the export.
        near: How far logits may be.
    """
    if originals.first is None or originals.step is None:
        return []
    chosen = sorted(failing, key=lambda prompt: (prompt.is_padded, prompt.tokens.size))[:1]
    chosen += [prompt for prompt in failing if prompt.is_padded and prompt is not chosen[0]][:1]
    files = {method.file: load(folder / method.file) for method in contract.methods}
    models = {file: _mended(model, [fact for fact in facts if is_sure(fact)]) for file, model in files.items()}
    scene = _Scene(originals, folder, contract, models, chosen, near)
    if scene.is_right():
        return []
    if any(models[file] is not files[file] for file in files):
        return _several(scene)
    return list(scene.named([fact for fact in facts if isinstance(fact, WrongWeight) and not fact.is_sure]))


def _several(scene: _Scene) -> list[str]:
    return [f"More is wrong than weights; {scene.begin(scene.wrong())}."]


def is_sure(fact: Fact) -> bool:
    """Whether the difference is certain, and no constant of another origin."""
    return not isinstance(fact, WrongWeight) or fact.is_sure


def _mended(model: Model, facts: Sequence[Fact]) -> Model:
    found = [fact for fact in facts if fact.file == model.name]
    return mended(model, found) if found else model


class _Altered(Bundle):
    """A bundle of other models, or with another contract, than its files."""

    def __init__(self, folder: Path, contract: BundleContract, models: Models) -> None:
        super().__init__(folder, optimize=False, prepack=False, unchecked=True)
        self.contract = contract
        opened = {file: Session(model, optimize=False, prepack=False) for file, model in models.items()}
        self._sessions.opened.update(opened)
        self._begin(BundleState(contract, self._state.initial))


class _Scene:
    """The prompts that fail, and the calls that they make."""

    def __init__(
        self,
        originals: Originals,
        folder: Path,
        contract: BundleContract,
        models: Models,
        prompts: Sequence[Prompt],
        near: float,
    ) -> None:
        self.originals, self.folder, self.contract = originals, folder, contract
        self.models, self.prompts, self.near = models, prompts, near
        self.calls = [calls_of(originals, contract, prompt) for prompt in prompts]
        self._sessions: dict[Model, IsolatedSession] = {}

    def is_right(self, contract: BundleContract | None = None) -> bool:
        """Whether the bundle decodes the prompts as the export does."""
        bundle = _Altered(self.folder, contract or self.contract, self.models)
        return all(self._decodes(bundle, *pair) for pair in zip(self.prompts, self.calls, strict=True))

    def _decodes(self, bundle: Bundle, prompt: Prompt, calls: Sequence[Call]) -> bool:
        try:
            found = [start(bundle, prompt), *(bundle.step(tokens) for tokens in prompt.steps[: len(calls) - 1])]
        except GraphkitError:
            return False
        return all(self._is_near(call, logits) for call, logits in zip(calls, found, strict=False))

    def _is_near(self, call: Call, logits: np.ndarray) -> bool:
        same = call.logits.shape == logits.shape
        return same and distance_of_spread(call.counted(call.logits), call.counted(logits)) <= self.near

    def named(self, suspects: Sequence[WrongWeight]) -> Iterator[str]:
        """Yield the one change whose undoing mends the difference, else the first node that differs."""
        contract = _by_name(self.contract)
        if contract != self.contract and self.is_right(contract):
            yield from _renamed(self.contract, contract)
            return
        wrong = self.wrong()
        if not wrong:
            yield self._kept()
            return
        tried = list(undos(self.originals, self.contract, self.models, suspects))
        found = [undo for undo in tried if undo.parts == 1 and self._mends(undo)]
        found = found or [undo for undo in tried if undo.parts > 1 and self._mends(undo)]
        yield found[0].words if len(found) == 1 else f"No simple cause; {self.begin(wrong)}."

    def wrong(self) -> list[Call]:
        """Return the calls that are wrong on the state of the export."""
        return [call for calls in self.calls for call in calls if not self._runs(call, self.models[call.method.file])]

    def _mends(self, undo: Undo) -> bool:
        """Whether all calls are right without it."""
        calls = (call for calls in self.calls for call in calls)
        return all(self._runs(c, undo.models.get(c.method.file, self.models[c.method.file]), undo) for c in calls)

    def _runs(self, call: Call, model: Model, undo: Undo | None = None) -> bool:
        """Whether a model gives the logits of the export on its state."""
        more = {} if undo is None or model is self.models[call.method.file] else undo.more(call)
        try:
            if model not in self._sessions:
                self._sessions[model] = IsolatedSession(model, prepack=False)
            session = self._sessions[model]
            known = {name: array for name, array in {**call.feed, **more}.items() if name in session.inputs}
            outputs = session.run(known)
        except GraphkitError:
            return False
        logits = next(port.name for port in call.method.outputs if not port.writes)
        return self._is_near(call, outputs[logits])

    def begin(self, wrong: Sequence[Call]) -> str:
        """Return where the difference begins, in a clause."""
        if not wrong:
            return "each call is right on the state of the export"
        call, model = wrong[0], self.models[wrong[0].method.file]
        for near in (max(self.near, CLEAR), self.near):  # what is clear first

            def differ(array: np.ndarray, right: np.ndarray, near: float = near) -> bool:
                return not distance_of_spread(_valid(right, call), _valid(array, call)) <= near

            if node := first_node(call.exports, model, call.feed, differ, is_padded=True):
                return f"it begins at '{node}' of {call.method.file}"
        return f"it is in {call.method.file}"

    def _kept(self) -> str:
        """Return the state that differs from the cache of the export, in a clause."""
        bundle = _Altered(self.folder, self.contract, self.models)
        for prompt, calls in zip(self.prompts, self.calls, strict=True):
            for number, call in enumerate(calls[1:]):
                try:
                    start(bundle, prompt) if number == 0 else bundle.step(prompt.steps[number - 1])
                except GraphkitError:
                    break
                for name, known in call.states.items():
                    words = self._held(name, bundle.state[name], known, call)
                    if words:
                        return f"Each call is right on the state of the export: {words}"
        return "No simple cause; each call is right on the state of the export."

    def _held(self, name: str, state: np.ndarray, known: np.ndarray, call: Call) -> str:
        tensor = self.contract.state(name)
        if tensor.update == "ring" and call.past > tensor.shape[tensor.axis or 0]:
            return ""

        def differ(array: np.ndarray, right: np.ndarray) -> bool:
            return not distance_of_spread(right, array) <= self.near

        axis = None
        if tensor.axis is not None and self.originals.step is not None:
            axis = growing_axis(self.originals.step, tensor)
            state = np.moveaxis(state, tensor.axis, axis)
        part = state[tuple(slice(size) for size in known.shape)]
        if known.dtype.kind != "f":
            return "" if np.array_equal(part, known) else f"'{name}' does not hold what the original keeps."
        if part.shape == known.shape and not differ(_valid(part, call), _valid(known, call)):
            return ""
        return order(name, state, known, axis, differ)


def _valid(array: np.ndarray, call: Call) -> np.ndarray:
    """Return an array with zeros at tokens that pad, along each axis that is as long as there are tokens."""
    mask = call.mask[:, : call.past] if call.past else call.mask
    if mask.all() or array.ndim < 2 or len(array) != len(mask):
        return array
    array = array.copy()
    for axis in range(1, array.ndim):
        for places in {call.mask.shape[1], mask.shape[1]}:
            if array.shape[axis] == places:
                shape = [len(mask), *(places if at == axis else 1 for at in range(1, array.ndim))]
                array = np.where(call.mask[:, :places].reshape(shape) != 0, array, np.zeros((), array.dtype))
    return array


def _by_name(contract: BundleContract) -> BundleContract:
    """Return a contract in which each input and output is of the state that it is called after."""
    names = {state.name for state in contract.states}

    def right(port: BundlePort) -> BundlePort:
        own = port.name.removesuffix("_after")
        if own not in names or not port.state:
            return port
        if port.source is not None:
            return replace(port, source=replace(port.source, of=own))
        return replace(port, writes=own)

    def method(each: BundleMethod) -> BundleMethod:
        if each.when not in ("once", "step"):
            return each
        return replace(each, inputs=tuple(map(right, each.inputs)), outputs=tuple(map(right, each.outputs)))

    return replace(contract, methods=tuple(map(method, contract.methods)))


def _renamed(wrong: BundleContract, right: BundleContract) -> Iterator[str]:
    """Yield the ports whose state differs between two contracts, a sentence each."""
    for before, after in zip(wrong.methods, right.methods, strict=True):
        for one, other in zip((*before.inputs, *before.outputs), (*after.inputs, *after.outputs), strict=True):
            if one.state != other.state:
                does = "reads" if one.source is not None else "writes"
                yield f"'{one.name}' of {before.name} {does} state '{one.state}': it is right with '{other.state}'."
