"""The calls of a bundle on the state that the export has at that time: whether each is right by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from graphkit.contract.bundle import BundleContract, BundleMethod, StateTensor
from graphkit.verify.begins import Export
from graphkit.verify.bundle_prompts import Prompt
from graphkit.verify.oracle import Oracle
from graphkit.verify.originals import Originals

__all__ = ["ENCODER", "Call", "calls_of"]

ENCODER = "encoder/"  # before the names of what a bundle takes from the encoder
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Call:
    """A call of a method.

    Attributes:
        method: The method.
        feed: What it is fed.
        past: How many tokens there are before.
        exports: The models that it was made of, with what they are fed.
        logits: Those of the export.
        mask: 1 for each token up to now that counts, [rows, tokens].
        states: What the states hold before, of rows and slots in use, by name.
    """

    method: BundleMethod
    feed: Arrays
    past: int
    exports: tuple[Export, ...]
    logits: np.ndarray
    mask: np.ndarray
    states: Arrays

    def counted(self, logits: np.ndarray) -> np.ndarray:
        """Return the logits of tokens that are no padding."""
        if self.past or logits.shape[1] != self.mask.shape[1]:
            return logits
        return np.asarray(logits[self.mask.astype(bool)])


def calls_of(originals: Originals, contract: BundleContract, prompt: Prompt) -> list[Call]:
    """Return the calls of a prompt and its steps, as far as the export knows what the state holds."""
    assert originals.first is not None
    assert originals.step is not None
    once, step = contract.method("once"), contract.method("step")
    if once is None or step is None:
        return []
    oracle = Oracle(originals, prepack=False)
    oracle.encode(prompt.inputs)
    exports: tuple[Export, ...] = ((originals.first, oracle.first_feed(prompt.tokens, prompt.mask), ""),)
    if originals.encoder is not None:
        exports = ((originals.encoder, oracle.encoder_feed(prompt.inputs), ENCODER), *exports)
    rows, mask = len(prompt.tokens), prompt.mask
    logits = oracle.first(prompt.tokens, mask)
    begun = {state.name: _filled(state, rows, None, 0) for state in contract.states}
    feed = _feed(once, prompt, prompt.tokens, mask, begun, 0)
    kept = logits if prompt.all_logits else logits[:, -1:]
    calls = [Call(method=once, feed=feed, past=0, exports=exports, logits=kept, mask=mask, states={})]
    for tokens in prompt.steps:
        past = mask.shape[1]
        fed = oracle.later_feed(tokens)
        mask = np.concatenate([mask, np.ones_like(tokens)], 1)
        known = dict(_states(contract, fed, past))
        if known.keys() != begun.keys():
            break
        held = {state.name: _filled(state, rows, known[state.name], past) for state in contract.states}
        feed = _feed(step, prompt, tokens, np.ones_like(tokens), held, past)
        calls.append(
            Call(
                method=step,
                feed=feed,
                past=past,
                exports=((originals.step, fed, ""),),
                logits=oracle.step(tokens),
                mask=mask,
                states=known,
            )
        )
    return calls


def _states(contract: BundleContract, fed: Arrays, past: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what the export has for each state, of which it has an input of that name; slots in use alone."""
    for state in contract.states:
        if state.name not in fed:
            continue
        array = fed[state.name]
        if state.axis is None:
            yield state.name, array.astype(state.dtype)
        elif array.ndim == len(state.shape) and array.shape[state.axis] >= past:
            yield state.name, np.take(array, range(past), state.axis).astype(state.dtype)


def _filled(state: StateTensor, rows: int, known: np.ndarray | None, past: int) -> np.ndarray:
    """Return a state as a method takes it, with what is known of its slots."""
    if state.axis is None:
        if known is not None:
            return known
        return np.zeros([rows if axis == state.batch else size for axis, size in enumerate(state.shape)], state.dtype)
    shape = [rows if axis == state.batch else size for axis, size in enumerate(state.shape)]
    made = np.zeros(shape, state.dtype)
    if known is not None:
        slots = state.shape[state.axis]
        into, of = np.moveaxis(made, state.axis, 0), np.moveaxis(known, state.axis, 0)
        for place in range(max(0, past - slots), past):
            into[place % slots] = of[place]
    return made


def _feed(
    method: BundleMethod, prompt: Prompt, tokens: np.ndarray, mask: np.ndarray, states: Arrays, past: int
) -> dict[str, np.ndarray]:
    feed: dict[str, np.ndarray] = {}
    for port in method.inputs:
        kind = port.source.kind if port.source is not None else ""
        if kind == "user":
            made = prompt.inputs[port.name]
        elif kind in ("tokens", "mask"):
            made = tokens if kind == "tokens" else mask
        elif kind == "state" and port.source is not None:
            made = states[port.source.of]
        else:
            made = np.array([past if kind == "length" else 0 if past or prompt.all_logits else 1])
        feed[port.name] = np.ascontiguousarray(made, port.dtype)
    return feed
