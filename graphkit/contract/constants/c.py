"""The constants of a contract as a header for C99 and C++."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

from graphkit.contract.constants.facts import (
    Facts,
    Group,
    Slots,
    comment,
    facts,
    item_bytes,
    place_of,
    row_bytes,
    slots_of,
    state_of,
    tensor_bytes,
)
from graphkit.contract.contract import By, Contract, Kind, Port
from graphkit.errors import UsageError

__all__ = ["c_header"]

KINDS = ("none", *get_args(Kind))
CHOICES = ("none", *get_args(By))
TYPES = """
typedef enum HostSource {{ /* who makes an input */
{kinds}
}} HostSource;

typedef enum HostBy {{ /* what chooses rows of a table */
{choices}
}} HostBy;

typedef struct HostFile {{ /* a file beside the contract, as it was when that was written */
    const char *name;
    size_t bytes;
    const char *sha256; /* in hexadecimal digits */
}} HostFile;

typedef struct HostTable {{ /* rows in a raw little-endian file */
    const char *name;
    const char *file;
    const char *dtype;
    size_t offset;    /* of the first row, in bytes */
    size_t rows;
    size_t row_bytes; /* from one row to the next */
}} HostTable;

typedef struct HostState {{ /* a tensor that the host keeps between steps */
    const char *name;
    const char *dtype;
    size_t rank;
    size_t dims[HOST_MAX_RANK];
    int axis;          /* along which its slots lie; -1 where it does not grow */
    size_t slots;      /* how many; 0 where it does not grow */
    size_t slot_bytes; /* of one slot that lie together, from each to the next */
    size_t blocks;     /* how often the slots are repeated */
    size_t bytes;
}} HostState;

typedef struct HostPort {{ /* an input or output of a method */
    const char *name;
    const char *dtype;
    size_t rank;
    size_t dims[HOST_MAX_RANK];
    size_t item_bytes;
    size_t bytes;
    HostSource source; /* HOST_SOURCE_NONE for an output */
    int of;            /* the table, the state, or the method that it is made of; -1 for none */
    int output;        /* of that method; -1 for none */
    HostBy by;
    size_t window;     /* of a mask over slots: how many tokens count, the new one included; 0 for all */
    int writes;        /* the state that an output goes to; -1 for none */
}} HostPort;

typedef struct HostMethod {{ /* a lowered model */
    const char *name;
    const char *file;
    int each_step; /* 1: runs for each token; 0: once for a source */
    const HostPort *inputs;
    size_t input_count;
    const HostPort *outputs;
    size_t output_count;
}} HostMethod;
"""


def c_header(contract: Contract) -> str:
    """Return a header with the constants of a contract.

    Raises:
        UsageError: A name holds a NUL, which ends a string in C.
    """
    return "\n".join(_lines(facts(contract))) + "\n"


def _lines(found: Facts) -> Iterator[str]:
    contract = found.contract
    yield f"/* Host contract of lowered models for {comment(contract.target)}, written by `graphkit contract`. */"
    yield from ("#ifndef HOST_CONTRACT_H", "#define HOST_CONTRACT_H", "", "#include <stddef.h>", "")
    for number in found.numbers:
        yield f"#define HOST_{number.name.upper()} {_integer(number.value)} /* {comment(number.comment)} */"
    ends = contract.ends
    yield f"#define HOST_END_TOKEN_COUNT {len(ends)} /* Decoding stops at any of HOST_END_TOKENS. */"
    yield f"#define HOST_MASK_FLOOR ({found.floor!r}f) /* Added to scores that do not count. */"
    yield f"#define HOST_MASK_FLOOR_HALF 0x{found.floor_half:04x} /* The bits of the nearest finite float16. */"
    shapes = [p.shape for m in contract.methods for p in (*m.inputs, *m.outputs)] + [s.shape for s in contract.states]
    yield f"#define HOST_MAX_RANK {max((1, *map(len, shapes)))} /* The most dims of a tensor. */"
    yield f"#define HOST_FILE_COUNT {len(contract.files)}"
    for group in (found.tables, found.states, found.methods):
        yield f"#define HOST_{group.what.upper()}_COUNT {len(group.items)}"
    listed = ", ".join(map(str, ends or (-1,)))  # C has no empty arrays
    yield f"static const long long HOST_END_TOKENS[] = {{{listed}}};"
    yield TYPES.format(kinds=_enumerated("SOURCE", KINDS), choices=_enumerated("BY", CHOICES)).rstrip("\n")
    for group in found.groups:
        if group.items:
            yield from ("", f"enum {{ /* places in HOST_{group.name.upper()} */")
            yield from (f"    HOST_{name.upper()} = {place}," for place, (name, _) in enumerate(group.items))
            yield "};"
    files = [[f"{_text(name)}, {file.bytes}, {_text(file.sha256)}"] for name, file in contract.files.items()]
    yield from _array("HostFile", Group("file", "files", ()), files)
    yield from _array("HostTable", found.tables, list(_tables(contract)))
    yield from _array("HostState", found.states, list(_states(contract)))
    for inputs, outputs, method in zip(found.inputs, found.outputs, contract.methods, strict=True):
        yield from _array("HostPort", inputs, [_port(contract, port) for port in method.inputs])
        yield from _array("HostPort", outputs, [_port(contract, port) for port in method.outputs])
    yield from _array("HostMethod", found.methods, list(_methods(found)))
    yield from ("", "#endif /* HOST_CONTRACT_H */")


def _integer(value: int) -> str:
    return str(value) if value >= 0 else f"({value})"


def _enumerated(kind: str, names: Sequence[str]) -> str:
    return "\n".join(f"    HOST_{kind}_{name.upper()} = {place}," for place, name in enumerate(names))


def _array(kind: str, group: Group, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield an array of structs; C has no empty arrays."""
    yield ""
    if not rows:
        yield f"static const {kind} *const HOST_{group.name.upper()} = NULL; /* there are none */"
        return
    yield f"static const {kind} HOST_{group.name.upper()}[] = {{"
    for *comments, fields in rows:
        yield from (f"    /* {text} */" for text in comments)
        yield f"    {{{fields}}},"
    yield "};"


def _tables(contract: Contract) -> Iterator[list[str]]:
    for table in contract.tables:
        names = ", ".join(map(_text, (table.name, table.file, table.dtype)))
        yield [comment(table.meaning), f"{names}, {table.offset}, {table.rows}, {row_bytes(table)}"]


def _states(contract: Contract) -> Iterator[list[str]]:
    for state in contract.states:
        slots = slots_of(state) or Slots(-1, 0, tensor_bytes(state), 1)
        numbers = f"{slots.axis}, {slots.count}, {slots.stride}, {slots.blocks}, {tensor_bytes(state)}"
        yield [f"{_text(state.name)}, {_text(state.dtype)}, {_dims(state.shape)}, {numbers}"]


def _port(contract: Contract, port: Port) -> list[str]:
    of, output = place_of(contract, port)
    kind, by = (port.source.kind, port.source.by or "none") if port.source is not None else ("none", "none")
    window = port.source.window if port.source is not None else 0
    state = state_of(contract, port)
    fields = (
        f"{_text(port.name)}, {_text(port.dtype)}, {_dims(port.shape)}, {item_bytes(port.dtype)}, "
        f"{tensor_bytes(port)}, HOST_SOURCE_{kind.upper()}, {of}, {output}, HOST_BY_{by.upper()}, {window}, "
        f"{-1 if state is None else state}"
    )
    return [comment(port.meaning), fields]


def _methods(found: Facts) -> Iterator[list[str]]:
    for method, inputs, outputs in zip(found.contract.methods, found.inputs, found.outputs, strict=True):
        ports = ", ".join(f"HOST_{group.name.upper()}, {len(group.items)}" for group in (inputs, outputs))
        yield [f"{_text(method.name)}, {_text(method.file)}, {int(method.when == 'step')}, {ports}"]


def _dims(shape: Sequence[int]) -> str:
    return f"{len(shape)}, {{{', '.join(map(str, shape)) or '0'}}}"


def _text(text: str) -> str:
    """Return a string literal of UTF-8 bytes; a question mark is escaped because of trigraphs."""
    content = text.encode()
    if b"\0" in content:
        raise UsageError(f"{text!r} holds a NUL, which ends a string in C - rename it in the model")
    return '"' + "".join(map(_byte, content)) + '"'


def _byte(byte: int) -> str:
    if chr(byte) in '"\\?':
        return f"\\{chr(byte)}"
    return chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}"
