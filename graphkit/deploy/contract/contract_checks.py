"""Whether the parts of a contract fit together, so that a host may rely on it: names, dims, files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from graphkit.deploy.contract.host_contract import Contract, Method, Port, Source
from graphkit.dtypes import BITS, FLOATS, INTEGERS, dtype_name

__all__ = ["problems"]

SIZES = ("batch", "source", "capacity", "positions", "layers", "heads", "head_dim", "vocabulary")
MOST = 1 << 48  # elements
TOKENS = ("pad", "start")
CHOOSING = {"embedding": ("token", "source", "type"), "rows": ("position", "valid_length", "largest_id", "first_token")}
BYTES = {dtype_name(dtype): BITS[dtype] // 8 for dtype in (*INTEGERS, *FLOATS)}  # of an element


def problems(contract: Contract) -> Iterator[str]:
    """Yield the contradictions, a clause each."""
    if missing := [name for name in SIZES if contract.sizes.get(name, -1) < 0]:
        yield f"sizes.{missing[0]} is missing, or below 0"
        return
    if missing := [name for name in TOKENS if name not in contract.tokens]:
        yield f"tokens.{missing[0]} is missing"
        return
    yield from _sound(contract)
    if not math.isfinite(contract.floor):
        yield "the floor is not a finite number"
    for what, named in (("method", contract.methods), ("table", contract.tables), ("state", contract.states)):
        names = [thing.name for thing in named]
        yield from (f"a {what} has no name" for name in names if not name)
        yield from (f"two have the name of {what} '{name}'" for name in set(names) if names.count(name) > 1)
    for file in (*(method.file for method in contract.methods), *(table.file for table in contract.tables)):
        if file in ("", ".", "..") or any(char in file for char in "/\\\0"):
            yield f"'{file}' is not the name of a file beside it"
    for table in contract.tables:
        if table.dtype not in BYTES:
            yield f"table '{table.name}' has no dtype of whole bytes"
        if table.offset < 0 or not _is_size((table.rows, *table.shape)):
            yield f"table '{table.name}' has no size"
    for state in contract.states:
        if not _is_size(state.shape) or (state.axis is not None and not 0 <= state.axis < len(state.shape)):
            yield f"state '{state.name}' has no size, or no axis {state.axis}"
        elif state.bytes != math.prod(state.shape) * BYTES.get(state.dtype, 0):
            yield f"state '{state.name}' of {state.dtype} does not take {state.bytes} bytes"
    for place, method in enumerate(contract.methods):
        for port in (*method.inputs, *method.outputs):
            if not _is_size(port.shape) or port.dtype not in BYTES:
                yield f"'{port.name}' has no size, or no dtype of whole bytes"
        for port in method.inputs:
            yield from (f"input '{port.name}' of {method.name} {text}" for text in _input(contract, place, port))
        for port in method.outputs:
            yield from (f"output '{port.name}' of {method.name} {text}" for text in _output(contract, port))
    yield from _steps(contract)


def _sound(contract: Contract) -> Iterator[str]:
    """Yield the faults of a sound that may be shorter, and of the inputs that hold it."""
    sizes = contract.sizes
    if "sound" in sizes and not {"stride", "offset"} <= sizes.keys():
        yield "sizes.sound is there without sizes.stride and sizes.offset"
    sound, stride, offset = sizes.get("sound", 0), sizes.get("stride", 1), sizes.get("offset", 0)
    inputs = [port for method in contract.methods for port in method.inputs]
    held = [port for port in inputs if port.is_sound]
    if sound < 0 or stride < 1:
        yield "sizes.sound is below 0, or sizes.stride below 1"
    elif sound and (sound + offset) // stride < max(1, sizes["source"]):
        yield f"a sound of {sound} has fewer valid positions than the source has"
    if sound and contract.takes_text:
        yield "its source is both text and a sound"
    for port in held:
        if sound < 1 or sound not in port.shape[1:]:
            yield f"input '{port.name}' holds no sound of {sound}"


def _is_size(shape: Sequence[int]) -> bool:
    return min((0, *shape)) == 0 and math.prod(shape) <= MOST


def _steps(contract: Contract) -> Iterator[str]:
    steps = [method for method in contract.methods if method.when == "step"]
    if len(steps) > 1:
        yield "it has several methods for a step"
    scores = next((port for port in steps[0].outputs if not port.writes), None) if steps else None
    if steps and scores is None:
        yield f"no output of {steps[0].name} gives the logits"
    if scores is not None and not _is_shared(math.prod(scores.shape), contract):
        yield f"output '{scores.name}' of {steps[0].name} has no logits for each of {contract.sequences} sequences"
    if bool(steps) != bool(contract.sizes["positions"]):
        yield "sizes.positions is not 0 where nothing runs at each step, or 0 where something does"


def _input(contract: Contract, place: int, port: Port) -> Iterator[str]:
    source = port.source
    if source is None:
        yield "has no source"
        return
    if source.kind == "slots_mask" and port.shape[-1:] != (contract.sizes["capacity"] + 1,):
        yield "is a mask over the slots of another length"
    if source.kind == "source_mask" and port.shape[-1:] != (contract.sizes["source"],):
        yield "is a mask over the source of another length"
    if _is_of_sequences(source) and not _is_shared(_first(port.shape), contract):
        yield f"does not hold {contract.sequences} sequences one behind the other"
    if source.window < 0:
        yield "has a window below 0"
    if source.kind == "state":
        found = next((state for state in contract.states if state.name == source.of), None)
        if found is None or (found.shape, found.dtype) != (port.shape, port.dtype):
            yield f"is not the state '{source.of}'"
    if source.kind == "output" and not _is_output(contract.methods[:place], source.of, port):
        yield f"is not the output '{source.of}' of a method that runs before"
    if source.by not in CHOOSING.get(source.kind, (source.by,)):
        yield f"does not say what chooses from '{source.of}'"
    if source.by == "first_token" and contract.tokens.get("pooled") is None:
        yield "is chosen by a token, and tokens.pooled is missing"
    if source.kind in ("embedding", "rows"):
        table = next((table for table in contract.tables if table.name == source.of), None)
        if table is None or table.dtype != port.dtype or not _is_filled(port.shape, table.shape):
            yield f"is not made of rows of table '{source.of}'"
        elif source.kind == "rows" and math.prod(port.shape) // math.prod(table.shape) not in _rows(contract, source):
            yield f"is not one row of table '{source.of}'"
        elif (
            source.kind == "rows" and table.rows < contract.sizes["positions" if source.by == "position" else "source"]
        ):
            yield f"has more places than table '{source.of}' has rows"


def _is_of_sequences(source: Source) -> bool:
    """Whether an input has a part for each sequence."""
    return source.kind in ("embedding", "source_mask", "rows") and source.by != "position"


def _is_shared(count: int, contract: Contract) -> bool:
    """Whether so many of something are as many for each sequence, and not none."""
    return contract.sequences == 1 or (count > 0 and count % contract.sequences == 0)


def _first(shape: Sequence[int]) -> int:
    """Return the first dim that is not 1."""
    return next((dim for dim in shape if dim != 1), 1)


def _rows(contract: Contract, source: Source) -> tuple[int, ...]:
    """Return how many rows an input may have: of the position one is enough for all sequences."""
    count = contract.sequences
    return (1, count) if source.by == "position" else (count,)


def _is_filled(shape: Sequence[int], row: Sequence[int]) -> bool:
    return math.prod(row) > 0 and math.prod(shape) % math.prod(row) == 0


def _is_output(methods: Sequence[Method], of: str, port: Port) -> bool:
    named = {f"{method.name}/{output.name}": output for method in methods for output in method.outputs}
    found = named.get(of)
    return found is not None and (found.shape, found.dtype) == (port.shape, port.dtype)


def _output(contract: Contract, port: Port) -> Iterator[str]:
    if not port.writes:
        return
    state = next((state for state in contract.states if state.name == port.writes), None)
    if state is None or state.dtype != port.dtype:
        yield f"is not for the state '{port.writes}'"
        return
    axis = state.axis
    shape = state.shape if axis is None else (*state.shape[:axis], 1, *state.shape[axis + 1 :])
    if port.shape != shape:
        yield f"does not fit the state '{port.writes}'"
