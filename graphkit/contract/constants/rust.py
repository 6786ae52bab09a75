"""The constants of a contract as a Rust module."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from graphkit.contract.constants.facts import (
    Facts,
    Group,
    comment,
    facts,
    place_of,
    row_bytes,
    slots_of,
    state_of,
    tensor_bytes,
)
from graphkit.contract.contract import Contract, Port, State

__all__ = ["rust_module"]

TYPES = """
/// A file beside the contract, as it was when that was written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RecordedFile {
    pub name: &'static str,
    pub bytes: u64,
    /// In hexadecimal digits.
    pub sha256: &'static str,
}

/// Rows in a raw little-endian file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Table {
    pub name: &'static str,
    pub file: &'static str,
    pub dtype: &'static str,
    /// Of the first row, in bytes.
    pub offset: usize,
    pub rows: usize,
    /// From one row to the next.
    pub row_bytes: usize,
}

/// A tensor that the host keeps between steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct State {
    pub name: &'static str,
    pub dtype: &'static str,
    pub dims: &'static [usize],
    /// None where it does not grow.
    pub slots: Option<Slots>,
    pub bytes: usize,
}

/// Where the slots of a state lie.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slots {
    pub axis: usize,
    pub count: usize,
    /// Bytes of one slot that lie together, from each to the next.
    pub stride: usize,
    /// How often the slots are repeated.
    pub blocks: usize,
}

/// What chooses rows of a table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum By {
    Source,
    Token,
    Type,
    Position,
    ValidLength,
    LargestId,
    FirstToken,
}

/// Who makes an input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Source {
    /// Rows of a table at token ids.
    Embedding { table: usize, by: By },
    /// One row of a table.
    Rows { table: usize, by: By },
    /// 0 at the slots in use and, last, at the new token; the floor elsewhere. A window of 0 means all tokens.
    SlotsMask { window: usize },
    /// 0 at the valid positions of the source, the floor at its padding.
    SourceMask,
    State { state: usize },
    Output { method: usize, output: usize },
    /// Whoever calls.
    User,
}

/// An input of a method.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Input {
    pub name: &'static str,
    pub dtype: &'static str,
    pub dims: &'static [usize],
    pub bytes: usize,
    pub source: Source,
}

/// An output of a method.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Output {
    pub name: &'static str,
    pub dtype: &'static str,
    pub dims: &'static [usize],
    pub bytes: usize,
    /// The state that it goes to.
    pub writes: Option<usize>,
}

/// A lowered model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Method {
    pub name: &'static str,
    pub file: &'static str,
    /// Runs for each token; else once for a source.
    pub each_step: bool,
    pub inputs: &'static [Input],
    pub outputs: &'static [Output],
}
"""


def rust_module(contract: Contract) -> str:
    """Return a Rust module with the constants of a contract."""
    return "\n".join(_lines(facts(contract))) + "\n"


def _lines(found: Facts) -> Iterator[str]:
    contract = found.contract
    yield f"//! Host contract of lowered models for {comment(contract.target)}, written by `graphkit contract`."
    yield "#![allow(dead_code)]"
    yield ""
    for number in found.numbers:
        kind = "i64" if number.name.startswith("token_") or number.name == "offset" else "usize"
        yield from (f"/// {comment(number.comment)}", f"pub const {number.name.upper()}: {kind} = {number.value};")
    ends = ", ".join(map(str, contract.ends))
    yield from ("/// Decoding stops at any of these.", f"pub const END_TOKENS: [i64; {len(contract.ends)}] = [{ends}];")
    yield from ("/// Added to scores that do not count.", f"pub const MASK_FLOOR: f32 = {found.floor!r};")
    yield "/// The bits of the nearest finite float16."
    yield f"pub const MASK_FLOOR_HALF: u16 = 0x{found.floor_half:04x};"
    yield TYPES.rstrip("\n")
    for group in found.groups:
        if group.items:
            yield ""
            for place, (name, original) in enumerate(group.items):
                yield f"/// Place of the {comment(group.what)} `{comment(original)}`."
                yield f"pub const {name.upper()}: usize = {place};"
    files = [
        f"name: {_text(name)}, bytes: {file.bytes}, sha256: {_text(file.sha256)}"
        for name, file in contract.files.items()
    ]
    yield from _array("RecordedFile", Group("file", "files", ()), files)
    yield from _array("Table", found.tables, [_table(contract, place) for place in range(len(contract.tables))])
    yield from _array("State", found.states, [_state(state) for state in contract.states])
    for inputs, outputs, method in zip(found.inputs, found.outputs, contract.methods, strict=True):
        yield from _array("Input", inputs, [_input(contract, port) for port in method.inputs])
        yield from _array("Output", outputs, [_output(contract, port) for port in method.outputs])
    yield from _array("Method", found.methods, list(_methods(found)))


def _array(kind: str, group: Group, rows: Sequence[str]) -> Iterator[str]:
    yield ""
    if not rows:
        yield f"pub static {group.name.upper()}: [{kind}; 0] = [];"
        return
    yield f"pub static {group.name.upper()}: [{kind}; {len(rows)}] = ["
    yield from (f"    {kind} {{ {row} }}," for row in rows)
    yield "];"


def _table(contract: Contract, place: int) -> str:
    table = contract.tables[place]
    names = f"name: {_text(table.name)}, file: {_text(table.file)}, dtype: {_text(table.dtype)}"
    return f"{names}, offset: {table.offset}, rows: {table.rows}, row_bytes: {row_bytes(table)}"


def _tensor(each: Port | State) -> str:
    return f"name: {_text(each.name)}, dtype: {_text(each.dtype)}, dims: &{list(each.shape)}"


def _state(state: State) -> str:
    found, slots = slots_of(state), "None"
    if found is not None:
        fields = ", ".join(f"{name}: {number}" for name, number in asdict(found).items())
        slots = f"Some(Slots {{ {fields} }})"
    return f"{_tensor(state)}, slots: {slots}, bytes: {tensor_bytes(state)}"


def _input(contract: Contract, port: Port) -> str:
    source = port.source
    assert source is not None
    of, output = place_of(contract, port)
    by = "".join(word.capitalize() for word in source.by.split("_"))
    kind = "".join(word.capitalize() for word in source.kind.split("_"))
    fields = {
        "embedding": f" {{ table: {of}, by: By::{by} }}",
        "rows": f" {{ table: {of}, by: By::{by} }}",
        "slots_mask": f" {{ window: {source.window} }}",
        "state": f" {{ state: {of} }}",
        "output": f" {{ method: {of}, output: {output} }}",
    }
    return f"{_tensor(port)}, bytes: {tensor_bytes(port)}, source: Source::{kind}{fields.get(source.kind, '')}"


def _output(contract: Contract, port: Port) -> str:
    state = state_of(contract, port)
    writes = "None" if state is None else f"Some({state})"
    return f"{_tensor(port)}, bytes: {tensor_bytes(port)}, writes: {writes}"


def _methods(found: Facts) -> Iterator[str]:
    for method, inputs, outputs in zip(found.contract.methods, found.inputs, found.outputs, strict=True):
        step = json.dumps(method.when == "step")
        ports = f"inputs: &{inputs.name.upper()}, outputs: &{outputs.name.upper()}"
        yield f"name: {_text(method.name)}, file: {_text(method.file)}, each_step: {step}, {ports}"


def _text(text: str) -> str:
    return '"' + "".join(map(_char, text)) + '"'


def _char(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    return char if " " <= char <= "~" else f"\\u{{{ord(char):x}}}"
