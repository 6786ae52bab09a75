"""The constants of a contract for code in any language: numbers, and names as unique identifiers."""

from __future__ import annotations

import itertools
import math
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np

from graphkit.contract.contract import By, Contract, Kind, Method, Port, State, Table
from graphkit.errors import UsageError
from graphkit.render.blocks import printable

__all__ = [
    "Facts",
    "Group",
    "Number",
    "Slots",
    "comment",
    "facts",
    "item_bytes",
    "place_of",
    "row_bytes",
    "single",
    "slots_of",
    "state_of",
    "tensor_bytes",
]

SIZES = {
    "batch": "Sequences at a time.",
    "source": "Positions of the padded source; 0 for none.",
    "capacity": "Slots of the cache; 0 for none.",
    "positions": "Tokens that the decoder takes at most; 0 for no decoder.",
    "layers": "Layers of the decoder's cache; 0 for none.",
    "heads": "Heads of keys and values in a layer; 0 where layers differ.",
    "head_dim": "Numbers of a head; 0 where layers differ.",
    "vocabulary": "Logits of a step; 0 for none.",
    "sound": "Samples or frames of a padded sound; 0 for none, and for one all of which counts.",
    "stride": "Samples or frames of a sound that make a position of the source.",
    "offset": "Added to the valid ones before they are divided by that.",
}
NO_SOUND = {"sound": 0, "stride": 1, "offset": 0}
TOKENS = {
    "pad": "Pads the source; -1 where the export does not say.",
    "start": "Decoding starts with it; -1 where the export does not say.",
    "pooled": "Its first place in the source chooses a row; -1 where no row is chosen by it.",
}


@dataclass(frozen=True)
class Number:
    """A constant.

    Attributes:
        name: Its words in lower case, joined by underscores.
        value: Its value.
        comment: What it means.
    """

    name: str
    value: int
    comment: str


@dataclass(frozen=True)
class Group:
    """Things of one kind, each at its place.

    Attributes:
        what: The kind, in words.
        name: Of the list of them: an identifier in lower case.
        items: An identifier in lower case for the place of each, and its name in the contract.
    """

    what: str
    name: str
    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Slots:
    """Where the slots of a state lie.

    Attributes:
        axis: Along which.
        count: How many.
        stride: Bytes of one slot that lie together, from each to the next.
        blocks: How often the slots are repeated.
    """

    axis: int
    count: int
    stride: int
    blocks: int


@dataclass(frozen=True)
class Facts:
    """The constants to write.

    Attributes:
        contract: The contract.
        numbers: Its numbers.
        floor: What is added to scores that do not count, as a float32 has it.
        floor_half: The bits of that as a float16, the nearest finite one.
        tables, states, methods: Names for their places.
        inputs, outputs: The same for the ports of each method.
    """

    contract: Contract
    numbers: tuple[Number, ...]
    floor: float
    floor_half: int
    tables: Group
    states: Group
    methods: Group
    inputs: tuple[Group, ...]
    outputs: tuple[Group, ...]

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups."""
        return (self.tables, self.states, self.methods, *itertools.chain(*zip(self.inputs, self.outputs, strict=True)))


def facts(contract: Contract) -> Facts:
    """Return the constants of a contract.

    Raises:
        UsageError: The floor is not a float32, or a dtype has no size in bytes.
    """
    sizes = {**NO_SOUND, **contract.sizes}
    tokens = [Number(f"token_{name}", _token(contract, name), text) for name, text in TOKENS.items()]
    state = Number("state_bytes", sum(state.bytes for state in contract.states), "Bytes of all states.")
    version = Number("contract_version", contract.version, "Version of this form.")
    proven = Number("proven", int(contract.proof.passed), "1 where the proof of models and host passed; 0 where not.")
    numbers = [
        version,
        proven,
        *(Number(name, sizes[name], text) for name, text in SIZES.items()),
        *tokens,
        state,
    ]
    unique = _unique(number.name for number in numbers)
    methods = contract.methods
    return Facts(
        contract=contract,
        numbers=tuple(numbers),
        floor=single(contract.floor),
        floor_half=_half(single(contract.floor)),  # a host rounds masks to float32 first
        tables=_group(unique, "table", "tables", [table.name for table in contract.tables]),
        states=_group(unique, "state", "states", [state.name for state in contract.states]),
        methods=_group(unique, "method", "methods", [method.name for method in methods]),
        inputs=tuple(_ports(unique, method, "input", method.inputs) for method in methods),
        outputs=tuple(_ports(unique, method, "output", method.outputs) for method in methods),
    )


def _token(contract: Contract, name: str) -> int:
    token = contract.tokens.get(name)
    return -1 if token is None else token


def single(number: float) -> float:
    """Return a number as a float32 has it.

    Raises:
        UsageError: It is too large.
    """
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError as error:
        raise UsageError(
            f"the mask floor {number:g} is not a float32 - lower again with another --mask-floor"
        ) from error


def _half(number: float) -> int:
    try:
        return int(struct.unpack("<H", struct.pack("<e", number))[0])
    except OverflowError:
        return (
            0xFBFF if number < 0 else 0x7BFF
        )  # the largest finite one: a score that an infinity is added to may be NaN


def _unique(reserved: Iterable[str]) -> Callable[[str], str]:
    """Return a function that makes text an identifier in lower case which nothing else has."""
    taken = {*reserved, "mask_floor", "mask_floor_half", "max_rank", "contract_h", "end_tokens", "end_token_count"}
    taken |= {"files", *(f"{what}_count" for what in ("file", "table", "state", "method"))}
    taken |= {f"source_{kind}" for kind in ("none", *get_args(Kind))} | {f"by_{by}" for by in ("none", *get_args(By))}

    def unique(text: str) -> str:
        plain = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
        plain = plain if plain[:1].isalpha() else f"n_{plain}"
        numbered = (f"{plain}_{number}" for number in itertools.count(2))
        found = next(name for name in itertools.chain([plain], numbered) if name not in taken)
        taken.add(found)
        return found

    return unique


def _group(unique: Callable[[str], str], what: str, name: str, names: Sequence[str]) -> Group:
    return Group(what, unique(name), tuple((unique(f"{what}_{one}"), one) for one in names))


def _ports(unique: Callable[[str], str], method: Method, what: str, ports: Sequence[Port]) -> Group:
    found = _group(unique, f"{method.name}_{what}", f"{method.name}_{what}s", [port.name for port in ports])
    return replace(found, what=f"{what} of {method.name}")


def place_of(contract: Contract, port: Port) -> tuple[int, int]:
    """Return the place of an input's source, -1 for none; of an output, its method and its place there."""
    source = port.source
    if source is None or source.kind not in ("embedding", "rows", "state", "output"):
        return -1, -1
    if source.kind == "output":
        outputs = [
            (f"{method.name}/{output.name}", place, at)
            for place, method in enumerate(contract.methods)
            for at, output in enumerate(method.outputs)
        ]
        return next((place, at) for name, place, at in outputs if name == source.of)
    states, tables = [state.name for state in contract.states], [table.name for table in contract.tables]
    return (states if source.kind == "state" else tables).index(source.of), -1


def item_bytes(dtype: str) -> int:
    """Return the bytes of an element.

    Raises:
        UsageError: It has no whole number of bytes.
    """
    try:
        return np.dtype(dtype).itemsize
    except TypeError as error:
        raise UsageError(f"dtype '{dtype}' has no size that a host program can count on") from error


def tensor_bytes(each: Port | State) -> int:
    """Return the bytes of a tensor."""
    return math.prod(each.shape) * item_bytes(each.dtype)


def row_bytes(table: Table) -> int:
    """Return the bytes from one row of a table to the next."""
    return math.prod(table.shape) * item_bytes(table.dtype)


def slots_of(state: State) -> Slots | None:
    """Return where the slots of a state lie, None where it does not grow."""
    axis = state.axis
    if axis is None:
        return None
    stride = math.prod(state.shape[axis + 1 :]) * item_bytes(state.dtype)
    return Slots(axis, state.shape[axis], stride, math.prod(state.shape[:axis]))


def state_of(contract: Contract, port: Port) -> int | None:
    """Return the place of the state that an output goes to, None for none."""
    return next((place for place, state in enumerate(contract.states) if state.name == port.writes), None)


def comment(text: str) -> str:
    """Return text as one line of ASCII that neither ends a comment nor begins one, in any of the languages."""
    plain = printable(text).encode("ascii", "backslashreplace").decode()
    return plain.replace("*/", "* /").replace("/*", "/ *").replace("??/", "?? /").rstrip("\\")
