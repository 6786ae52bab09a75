"""Whether what `bundle.json` says fits together, so that a host may rely on it: names, sizes, places, files."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from graphkit.contract.bundle import ALIGNMENT, BundleContract, BundleMethod, StateTensor
from graphkit.contract.checks import BYTES

__all__ = ["bundle_problems"]

MOST = 1 << 44  # bytes of an arena


def bundle_problems(contract: BundleContract) -> Iterator[str]:
    """Yield what does not fit together, a clause each."""
    named = (("method", contract.methods), ("state", contract.states), ("length", contract.lengths))
    for what, each in named:
        names = [one.name for one in each]
        yield from (f"a {what} has no name" for name in names if not name)
        yield from (f"two have the name of {what} '{name}'" for name in sorted(set(names)) if names.count(name) > 1)
    if contract.sizes.get("batch", 0) < 1 or min(contract.sizes.values(), default=0) < 1:
        yield "a size is below 1, or there is no batch"
    if min((length.most for length in contract.lengths), default=1) < 1:
        yield "a length is always 0"
    if not 0 <= contract.arena <= MOST:
        yield f"an arena of {contract.arena} bytes"
    for file in (*(method.file for method in contract.methods), *([contract.data] if contract.data else [])):
        if file in ("", ".", "..") or any(char in file for char in "/\\\0"):
            yield f"'{file}' is not the name of a file beside it"
    lengths = {length.name for length in contract.lengths}
    for state in contract.states:
        yield from (f"state '{state.name}' {text}" for text in _state(state, lengths, contract.arena))
    yield from _overlaps(contract)
    states = {state.name: state for state in contract.states}
    for method in contract.methods:
        yield from (f"{method.name}: {text}" for text in _method(method, states, lengths))


def _state(state: StateTensor, lengths: set[str], arena: int) -> Iterator[str]:
    if state.dtype not in BYTES or min((1, *state.shape)) < 0:
        yield "has no size, or no dtype of whole bytes"
    elif state.bytes != math.prod(state.shape) * np.dtype(state.dtype).itemsize:
        yield f"does not take {state.bytes} bytes"
    for axis in (state.axis, state.batch):
        if axis is not None and not 0 <= axis < len(state.shape):
            yield f"has no axis {axis}"
    if state.offset < 0 or state.offset % ALIGNMENT or state.offset + _room(state) > arena:
        yield f"does not lie in the arena, aligned to {ALIGNMENT} bytes, at {state.offset}"
    if (state.update in ("slots", "ring")) != (state.axis is not None) or (state.length or None) not in {
        None,
        *lengths,
    }:
        yield "grows along no axis, or by a length that is not there"


def _room(state: StateTensor) -> int:
    aligned = -(-state.bytes // ALIGNMENT) * ALIGNMENT
    return aligned + state.bytes if state.update == "swap" else state.bytes


def _overlaps(contract: BundleContract) -> Iterator[str]:
    placed = sorted(contract.states, key=lambda state: state.offset)
    for one, other in itertools.pairwise(placed):
        if one.offset + _room(one) > other.offset:
            yield f"states '{one.name}' and '{other.name}' overlap"


def _method(method: BundleMethod, states: dict[str, StateTensor], lengths: set[str]) -> Iterator[str]:
    inputs = {port.name: port for port in method.inputs}
    if set(method.access) != set(states):
        yield "it does not say what it does with each state"
    for port in (*method.inputs, *method.outputs):
        if port.dtype not in BYTES or any(isinstance(dim, int) and dim < 0 for dim in port.shape):
            yield f"'{port.name}' has no size, or no dtype of whole bytes"
    for port in method.inputs:
        if port.source is None:
            yield f"nobody makes input '{port.name}'"
        elif port.source.kind == "state" and port.source.of not in states:
            yield f"input '{port.name}' is state '{port.source.of}', which is not there"
        elif port.source.kind == "length" and port.source.of not in lengths:
            yield f"input '{port.name}' is length '{port.source.of}', which is not there"
    for port in method.outputs:
        if port.writes and port.writes not in states:
            yield f"output '{port.name}' is state '{port.writes}', which is not there"
    for change in method.changes:
        port_ = inputs.get(change.input)
        if change.length not in lengths or port_ is None or not 0 <= change.axis < len(port_.shape):
            yield f"it changes length '{change.length}' by an input that is not there"
