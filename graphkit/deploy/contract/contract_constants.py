"""The constants of a contract for code in any language: numbers, and names as unique identifiers."""

from __future__ import annotations

import itertools
import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from graphkit.deploy.contract.contract_parts import FileRecord
from graphkit.deploy.contract.host_contract import By, Contract, Kind, Method, Port, Source, State, Table
from graphkit.errors import UsageError
from graphkit.render.document_blocks import printable

__all__ = [
    "RULES",
    "Array",
    "Facts",
    "Fields",
    "Group",
    "MadeBy",
    "Number",
    "Record",
    "Slots",
    "comment_text",
    "contract_facts",
    "item_bytes",
]

Fields = Mapping[str, Any]  # values by name: text, numbers, dims, `Slots`, `MadeBy`, the `Group` of an array

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
RULES = {
    "max_length": "Most tokens, with those of the prompt; -1 where the export does not say.",
    "max_new_tokens": "Most tokens behind the prompt, before that; -1 where the export does not say.",
    "min_length": "No sequence ends before it has so many tokens, with those of the prompt.",
    "min_new_tokens": "The same behind the prompt.",
    "forced_bos_token_id": "Follows a prompt of one token; -1 for any.",
}
LISTS = {
    "end": ("", "Decoding stops at any of these."),
    "prompt": ("prompt", "Behind the start token, decoding begins with these."),
    "forced_eos": ("forced_eos_token_id", "The last one of as many as there may be is one of these."),
    "bad_words": ("bad_words_ids", "Not chosen unless they are forced."),
    "suppress": ("suppress_tokens", "Never chosen."),
    "begin_suppress": ("begin_suppress_tokens", "Not chosen first or, where a first token is forced, second."),
}  # of tokens, each with its name among the rules for choosing them


@dataclass(frozen=True)
class Number:
    """A constant.

    Attributes:
        name: Its words in lower case, joined by underscores.
        value: Its value.
        comment: Its meaning.
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
class MadeBy:
    """Who makes an input, with places for names.

    Attributes:
        kind, by, window: As in the contract.
        of: The place of the table, the state, or the method; -1 for none.
        output: The place among the outputs of that method; -1 for none.
    """

    kind: str
    by: str
    window: int
    of: int
    output: int

    @property
    def fields(self) -> Fields:
        """The fields that this kind has."""
        if self.kind in ("embedding", "rows"):
            return {"table": self.of, "by": self.by}
        known: dict[str, Fields] = {
            "slots_mask": {"window": self.window},
            "state": {"state": self.of},
            "output": {"method": self.of, "output": self.output},
        }
        return known.get(self.kind, {})


@dataclass(frozen=True)
class Record:
    """A constant of several fields, and its meaning, "" where its name says it."""

    fields: Fields
    meaning: str = ""


@dataclass(frozen=True)
class Array:
    """Records of one kind, under an identifier in lower case."""

    kind: str
    name: str
    records: tuple[Record, ...]


@dataclass(frozen=True)
class Facts:
    """The constants to write.

    Attributes:
        numbers: The numbers of the contract.
        lists: Lists of tokens by their names, such as `end`, each with its meaning.
        floor: What is added to scores that do not count, as a float32 has it.
        floor_half: The bits of that as a float16, the nearest finite one.
        max_rank: The most dims of a tensor, at least 1.
        groups: Names for places: of tables, states, methods, and of the ports of each method.
        arrays: Files, tables, states, the ports of each method, methods.
    """

    numbers: tuple[Number, ...]
    lists: Mapping[str, tuple[str, tuple[int, ...]]]
    floor: float
    floor_half: int
    max_rank: int
    groups: tuple[Group, ...]
    arrays: tuple[Array, ...]


def contract_facts(contract: Contract) -> Facts:
    """Return the constants of a contract.

    Raises:
        UsageError: The floor is not a float32, or a dtype has no size in bytes.
    """
    numbers, methods, floor = tuple(_number_constants(contract)), contract.methods, _as_float32(contract.floor)
    unique = _unique_namer(number.name for number in numbers)
    named = [
        _name_group(unique, "table", "tables", [table.name for table in contract.tables]),
        _name_group(unique, "state", "states", [state.name for state in contract.states]),
        _name_group(unique, "method", "methods", [method.name for method in methods]),
    ]
    inputs = [_port_group(unique, method, "input", method.inputs) for method in methods]
    outputs = [_port_group(unique, method, "output", method.outputs) for method in methods]
    ports = [group for pair in zip(inputs, outputs, strict=True) for group in pair]
    ranks = [len(port.shape) for method in methods for port in (*method.inputs, *method.outputs)]
    ranks += [len(state.shape) for state in contract.states]
    return Facts(
        numbers=numbers,
        lists={
            name: (meaning, getattr(contract.generation, rule) if rule else contract.ends)
            for name, (rule, meaning) in LISTS.items()
        },
        floor=floor,
        floor_half=_half_bits(floor),  # a host rounds masks to float32 first
        max_rank=max((1, *ranks)),
        groups=(*named, *ports),
        arrays=tuple(_array_constants(contract, named, inputs, outputs)),
    )


def _number_constants(contract: Contract) -> Iterator[Number]:
    sizes = {**NO_SOUND, **contract.sizes}
    yield Number("contract_version", contract.version, "Version of this form.")
    yield Number("proven", int(contract.proof.passed), "1 where the proof of models and host passed; 0 where not.")
    yield from (Number(name, sizes[name], text) for name, text in SIZES.items())
    yield from (Number(f"token_{name}", _or_none(contract.tokens.get(name)), text) for name, text in TOKENS.items())
    rules = vars(contract.generation)
    yield from (Number(name, _or_none(rules[name]), text) for name, text in RULES.items())
    yield Number("state_bytes", sum(state.bytes for state in contract.states), "Bytes of all states.")


def _array_constants(
    contract: Contract, named: Sequence[Group], inputs: Sequence[Group], outputs: Sequence[Group]
) -> Iterator[Array]:
    tables, states, methods = (group.name for group in named)
    yield Array("RecordedFile", "files", tuple(_file_record(name, file) for name, file in contract.files.items()))
    yield Array("Table", tables, tuple(map(_table_record, contract.tables)))
    yield Array("State", states, tuple(map(_state_record, contract.states)))
    records = []
    for method, ins, outs in zip(contract.methods, inputs, outputs, strict=True):
        yield Array("Input", ins.name, tuple(_input_record(contract, port) for port in method.inputs))
        yield Array("Output", outs.name, tuple(_output_record(contract, port) for port in method.outputs))
        is_step = method.when == "step"
        names = {"name": method.name, "file": method.file}
        records.append(Record({**names, "each_step": is_step, "inputs": ins, "outputs": outs}))
    yield Array("Method", methods, tuple(records))


def _file_record(name: str, file: FileRecord) -> Record:
    return Record({"name": name, "bytes": file.bytes, "sha256": file.sha256})


def _table_record(table: Table) -> Record:
    names = {"name": table.name, "file": table.file, "dtype": table.dtype}
    row = math.prod(table.shape) * item_bytes(table.dtype)
    return Record({**names, "offset": table.offset, "rows": table.rows, "row_bytes": row}, table.meaning)


def _tensor_fields(tensor: Port | State) -> Fields:
    return {"name": tensor.name, "dtype": tensor.dtype, "dims": tensor.shape}


def _state_record(state: State) -> Record:
    return Record({**_tensor_fields(state), "slots": _state_slots(state), "bytes": _tensor_bytes(state)})


def _input_record(contract: Contract, port: Port) -> Record:
    source = port.source
    assert source is not None
    of, output = _place_of(contract, source)
    maker = MadeBy(kind=source.kind, by=source.by, window=source.window, of=of, output=output)
    return Record({**_tensor_fields(port), "bytes": _tensor_bytes(port), "source": maker}, port.meaning)


def _output_record(contract: Contract, port: Port) -> Record:
    state = next((place for place, state in enumerate(contract.states) if state.name == port.writes), None)
    return Record({**_tensor_fields(port), "bytes": _tensor_bytes(port), "writes": state}, port.meaning)


def _or_none(number: int | None) -> int:
    return -1 if number is None else number


def _as_float32(number: float) -> float:
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


def _half_bits(number: float) -> int:
    try:
        return int(struct.unpack("<H", struct.pack("<e", number))[0])
    except OverflowError:
        return (
            0xFBFF if number < 0 else 0x7BFF
        )  # the largest finite one: a score that an infinity is added to may be NaN


def _unique_namer(reserved: Iterable[str]) -> Callable[[str], str]:
    """Return a function that makes text an identifier in lower case which nothing else has."""
    taken = {*reserved, "mask_floor", "mask_floor_half", "max_rank", "contract_h"}
    taken |= {f"{name}_token{suffix}" for name in LISTS for suffix in ("s", "_count")}
    taken |= {"files", *(f"{what}_count" for what in ("file", "table", "state", "method"))}
    taken |= {f"source_{kind}" for kind in ("none", *get_args(Kind))} | {f"by_{by}" for by in ("none", *get_args(By))}

    def unique(text: str) -> str:
        plain = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
        plain = plain if plain[:1].isalpha() else f"n_{plain}"
        numbered = (f"{plain}_{number}" for number in itertools.count(2))
        name = next(name for name in itertools.chain([plain], numbered) if name not in taken)
        taken.add(name)
        return name

    return unique


def _name_group(unique: Callable[[str], str], what: str, name: str, names: Sequence[str]) -> Group:
    return Group(what, unique(name), tuple((unique(f"{what}_{named}"), named) for named in names))


def _port_group(unique: Callable[[str], str], method: Method, what: str, ports: Sequence[Port]) -> Group:
    group = _name_group(unique, f"{method.name}_{what}", f"{method.name}_{what}s", [port.name for port in ports])
    return replace(group, what=f"{what} of {method.name}")


def _place_of(contract: Contract, source: Source) -> tuple[int, int]:
    """Return the place of a source, -1 for none; of an output, its method and its place there."""
    if source.kind not in ("embedding", "rows", "state", "output"):
        return -1, -1
    if source.kind == "output":
        outputs = [
            (f"{method.name}/{output.name}", place, at)
            for place, method in enumerate(contract.methods)
            for at, output in enumerate(method.outputs)
        ]
        return next((place, at) for name, place, at in outputs if name == source.of)
    named: Sequence[State | Table] = contract.states if source.kind == "state" else contract.tables
    return [thing.name for thing in named].index(source.of), -1


def item_bytes(dtype: str) -> int:
    """Return the bytes of an element.

    Raises:
        UsageError: It has no whole number of bytes.
    """
    try:
        return np.dtype(dtype).itemsize
    except TypeError as error:
        raise UsageError(f"dtype '{dtype}' has no size that a host program can count on") from error


def _tensor_bytes(tensor: Port | State) -> int:
    return math.prod(tensor.shape) * item_bytes(tensor.dtype)


def _state_slots(state: State) -> Slots | None:
    """Return where the slots of a state lie, None where it does not grow."""
    axis = state.axis
    if axis is None:
        return None
    stride = math.prod(state.shape[axis + 1 :]) * item_bytes(state.dtype)
    return Slots(axis, state.shape[axis], stride, math.prod(state.shape[:axis]))


def comment_text(text: str) -> str:
    """Return text as one line of ASCII that neither ends a comment nor begins one, in any of the languages."""
    plain = printable(text).encode("ascii", "backslashreplace").decode()
    return plain.replace("*/", "* /").replace("/*", "/ *").replace("??/", "?? /").rstrip("\\")
