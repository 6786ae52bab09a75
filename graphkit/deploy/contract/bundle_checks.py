"""Whether the parts of `bundle.json` fit together, so that a host may rely on it: names, sizes, places, files."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from graphkit.deploy.contract.bundle_contract import (
    ALIGNMENT,
    FED,
    BundleContract,
    BundleMethod,
    BundlePort,
    StateTensor,
)
from graphkit.deploy.contract.contract_checks import shared_problems

__all__ = ["bundle_problems"]

MOST = 1 << 44  # bytes of an arena
MOST_FED = 1 << 28  # elements of an input of a caller, of a row
KINDS = {
    "init": (),
    "reorder": ("state", "indices"),
    "once": (*FED, "state", "length", "kept"),
    "step": (*FED, "state", "length", "kept"),
}


def bundle_problems(contract: BundleContract) -> Iterator[str]:
    """Yield the contradictions of the contract of a bundle, a clause each."""
    if not contract.methods:
        yield "it has no method"
    if contract.sizes.get("batch", 0) < 1 or min(contract.sizes.values(), default=0) < 1:
        yield "a size is below 1, or there is no batch"
    if min((length.most for length in contract.lengths), default=1) < 1:
        yield "a length is always 0"
    end = max((state.end for state in contract.states), default=0)
    if not 0 <= contract.arena <= min(MOST, end + ALIGNMENT):
        yield f"an arena of {contract.arena} bytes for states of {end}"
    lengths = {length.name for length in contract.lengths}
    files = [*(method.file for method in contract.methods), *([contract.data] if contract.data else [])]
    yield from shared_problems(contract, {"length": [length.name for length in contract.lengths]}, files)
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
    if state.batch is not None and not 0 <= state.batch < len(state.shape):
        yield f"has no axis {state.batch}"
    if state.offset < 0 or state.offset % ALIGNMENT or state.end > arena:
        yield f"does not lie in the arena, aligned to {ALIGNMENT} bytes, at {state.offset}"
    is_of_length = not state.length or state.length in lengths
    if (state.update in ("slots", "ring")) != (state.axis is not None) or not is_of_length:
        yield "grows along no axis, or by a length that is not there"


def _takes_prefix(state: StateTensor, methods: Sequence[BundleMethod]) -> bool:
    """Whether all methods but `init` take a state with any number of slots, which come first."""
    ports = (port for method in methods if method.when != "init" for port in (*method.inputs, *method.outputs))
    dims = [port.shape[:1] for port in ports if port.state == state.name]
    return state.axis == 0 and bool(state.length) and all(isinstance(dim, str) for (dim,) in filter(None, dims))


def _overlaps(contract: BundleContract) -> Iterator[str]:
    placed = sorted(contract.states, key=lambda state: state.offset)
    for state, after in itertools.pairwise(placed):
        if state.end > after.offset:
            yield f"states '{state.name}' and '{after.name}' overlap"


def _method(method: BundleMethod, states: dict[str, StateTensor], lengths: set[str]) -> Iterator[str]:
    if set(method.access) != set(states):
        yield "it does not say what it does with each state"
        return
    for kind, ports in (("input", method.inputs), ("output", method.outputs)):
        for port in ports:
            state = states.get(port.state)
            if state is not None and not (port.dtype == state.dtype and _fits(port.shape, state.shape)):
                yield f"{kind} '{port.name}' does not fit state '{port.state}'"
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
        allowed = ("write", "read and write") if name in written else ("read",) if name in read else ("none",)
        if access not in allowed:
            yield f"it says '{access}' of state '{name}', and its ports say '{allowed[-1]}'"
    fed = {p.name: p for p in method.inputs if p.source is not None and p.source.kind in FED}
    for change in method.changes:
        port_fed = fed.get(change.input)
        if change.length not in lengths or port_fed is None or not 0 <= change.axis < len(port_fed.shape):
            yield f"it changes length '{change.length}' by an input that is not there"


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
