"""Whether the parts of `bundle.json` fit together, so that a host may rely on it: names, sizes, places, files."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from graphkit.deploy.contract.bundle_contract import (
    ALIGNMENT,
    FED,
    BundleContract,
    BundleMethod,
    BundlePort,
    StateTensor,
)
from graphkit.deploy.contract.contract_checks import BYTES

__all__ = ["bundle_problems"]

MOST = 1 << 44  # bytes of an arena
MOST_FED = 1 << 28  # elements of an input of a caller, of a row
RANK = 32  # axes that numpy has everywhere
KINDS = {
    "init": (),
    "reorder": ("state", "indices"),
    "once": (*FED, "state", "length", "kept"),
    "step": (*FED, "state", "length", "kept"),
}


def bundle_problems(contract: BundleContract) -> Iterator[str]:
    """Yield the contradictions, a clause each."""
    named = (("method", contract.methods), ("state", contract.states), ("length", contract.lengths))
    for what, each in named:
        names = [one.name for one in each]
        yield from (f"a {what} has no name" for name in names if not name)
        yield from (f"two have the name of {what} '{name}'" for name in sorted(set(names)) if names.count(name) > 1)
    if not contract.methods:
        yield "it has no method"
    if contract.sizes.get("batch", 0) < 1 or min(contract.sizes.values(), default=0) < 1:
        yield "a size is below 1, or there is no batch"
    if min((length.most for length in contract.lengths), default=1) < 1:
        yield "a length is always 0"
    end = max((state.end for state in contract.states), default=0)
    if not 0 <= contract.arena <= min(MOST, end + ALIGNMENT):
        yield f"an arena of {contract.arena} bytes for states of {end}"
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
    for state in contract.states:
        if state.prefix != _takes_prefix(state, contract.methods):
            takes = "all slots" if state.prefix else "the slots in use alone"
            yield f"state '{state.name}': prefix is {str(state.prefix).lower()}, and the methods take {takes}"
    yield from _sizes(contract)


def _sizes(contract: BundleContract) -> Iterator[str]:
    """Yield contradictions between sizes, lengths, state and the changes of methods."""
    sizes, most = contract.sizes, {length.name: length.most for length in contract.lengths}
    for name, count in most.items():
        if sizes.get("slots", count) != count:
            yield f"sizes.slots is {sizes['slots']}, and length '{name}' may be {count}"
    for state in contract.states:
        if state.batch is not None and state.shape[state.batch : state.batch + 1] != (sizes.get("batch"),):
            yield f"sizes.batch is {sizes.get('batch')}, and state '{state.name}' has other rows: {list(state.shape)}"
        slots = state.shape[state.axis] if state.axis is not None and state.axis < len(state.shape) else 0
        if state.update == "slots" and slots < most.get(state.length, 0):
            yield f"length '{state.length}' may be {most[state.length]}, and state '{state.name}' has {slots} slots"
    kept = {state.name: state.length for state in contract.states if state.update in ("slots", "ring") and state.length}
    for method in contract.methods:
        takes_tokens = any(port.source is not None and port.source.kind == "tokens" for port in method.inputs)
        changed = {change.length for change in method.changes}
        for port in method.outputs if takes_tokens else ():
            if kept.get(port.writes, "") not in {"", *changed}:
                name = kept[port.writes]
                yield f"{method.name}: it writes slots of state '{port.writes}', and changes no length '{name}'"


def _state(state: StateTensor, lengths: set[str], arena: int) -> Iterator[str]:
    if state.dtype not in BYTES or not _is_size(state.shape):
        yield "has no size, or no dtype of whole bytes"
    elif state.bytes != math.prod(state.shape) * np.dtype(state.dtype).itemsize:
        yield f"does not take {state.bytes} bytes"
    for axis in (state.axis, state.batch):
        if axis is not None and not 0 <= axis < len(state.shape):
            yield f"has no axis {axis}"
    if state.offset < 0 or state.offset % ALIGNMENT or state.end > arena:
        yield f"does not lie in the arena, aligned to {ALIGNMENT} bytes, at {state.offset}"
    if (state.update in ("slots", "ring")) != (state.axis is not None) or (state.length or None) not in {
        None,
        *lengths,
    }:
        yield "grows along no axis, or by a length that is not there"


def _takes_prefix(state: StateTensor, methods: Sequence[BundleMethod]) -> bool:
    """Whether all methods but `init` take a state with any number of slots, which come first."""
    ports = (port for method in methods if method.when != "init" for port in (*method.inputs, *method.outputs))
    dims = [port.shape[:1] for port in ports if port.state == state.name]
    return state.axis == 0 and bool(state.length) and all(isinstance(dim, str) for (dim,) in filter(None, dims))


def _is_size(shape: Sequence[int | str]) -> bool:
    """Whether dims can be those of an array; a name stands for any size."""
    sizes = [dim for dim in shape if isinstance(dim, int)]
    if len(shape) > RANK or min((0, *sizes)) < 0:
        return False
    return math.prod(max(1, size) for size in sizes) <= MOST


def _overlaps(contract: BundleContract) -> Iterator[str]:
    placed = sorted(contract.states, key=lambda state: state.offset)
    for one, other in itertools.pairwise(placed):
        if one.end > other.offset:
            yield f"states '{one.name}' and '{other.name}' overlap"


def _method(method: BundleMethod, states: dict[str, StateTensor], lengths: set[str]) -> Iterator[str]:
    if set(method.access) != set(states):
        yield "it does not say what it does with each state"
        return
    for what, ports in (("input", method.inputs), ("output", method.outputs)):
        names = [port.name for port in ports]
        yield from (f"two have the name of {what} '{name}'" for name in sorted(set(names)) if names.count(name) > 1)
        yield from (f"{what} '{port.name}' {text}" for port in ports for text in _port(port, states))
    for port in method.inputs:
        yield from (f"input '{port.name}' {text}" for text in _input(port, method, lengths))
    kinds = [port.source.kind for port in method.inputs if port.source is not None]
    if method.when == "reorder" and kinds.count("indices") != 1:
        yield "it takes no indices, or takes them twice"
    written = [port.writes for port in method.outputs if port.writes]
    if len(set(written)) < len(written) or (method.when in ("init", "reorder") and len(written) < len(method.outputs)):
        yield "two outputs are one state, or one is none"
    read = {port.source.of for port in method.inputs if port.source is not None and port.source.kind == "state"}
    for name, access in method.access.items():
        wanted = ("write", "read and write") if name in written else ("read",) if name in read else ("none",)
        if access not in wanted:
            yield f"it says '{access}' of state '{name}', and its ports say '{wanted[-1]}'"
    fed = {p.name: p for p in method.inputs if p.source is not None and p.source.kind in FED}
    for change in method.changes:
        given = fed.get(change.input)
        if change.length not in lengths or given is None or not 0 <= change.axis < len(given.shape):
            yield f"it changes length '{change.length}' by an input that is not there"


def _port(port: BundlePort, states: Mapping[str, StateTensor]) -> Iterator[str]:
    """Yield the faults of a port, of either kind."""
    if not port.name or "" in port.shape:
        yield "has no name, or a dim of none"
    if port.dtype not in BYTES or not _is_size(port.shape):
        yield "has no size, or no dtype of whole bytes"
    if not port.state:
        return
    state = states.get(port.state)
    if state is None:
        yield f"is state '{port.state}', which is not there"
    elif port.dtype != state.dtype or not _fits(port.shape, state.shape):
        yield f"does not fit state '{port.state}'"


def _fits(shape: Sequence[int | str], sizes: Sequence[int]) -> bool:
    return len(shape) == len(sizes) and all(
        isinstance(dim, str) or dim in sizes[at : at + 1] for at, dim in enumerate(shape)
    )


def _input(port: BundlePort, method: BundleMethod, lengths: set[str]) -> Iterator[str]:
    source = port.source
    if source is None or port.writes:
        yield "is made by nobody, or is an output"
    elif source.kind not in KINDS[method.when]:
        yield f"is of kind '{source.kind}', which a method for '{method.when}' does not take"
    elif source.kind == "state" and not source.of:
        yield "is a state without a name"
    elif source.kind == "length" and (source.of not in lengths or (port.dtype, port.shape) != ("int64", (1,))):
        yield f"is length '{source.of}', which is not there or another tensor"
    elif source.kind == "kept" and (port.dtype, port.shape) != ("int64", (1,)):
        yield "is no count of logits"
    elif source.kind == "indices" and (port.dtype != "int64" or len(port.shape) != 1):
        yield "is no list of rows"
    elif source.kind in FED and math.prod(max(1, dim) for dim in port.shape if isinstance(dim, int)) > MOST_FED:
        yield "is larger than what a caller can give"
    elif source.kind in ("tokens", "mask") and not port.shape:
        yield "has no axis of rows"
