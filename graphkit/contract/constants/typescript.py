"""The constants of a contract as a TypeScript module."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
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
from graphkit.contract.contract import Contract, Method, Port, State, Table

__all__ = ["typescript_module"]

TYPES = """
/** A file beside the contract, as it was when that was written. */
export interface RecordedFile {
  readonly name: string;
  readonly bytes: number;
  /** In hexadecimal digits. */
  readonly sha256: string;
}

/** Rows in a raw little-endian file. */
export interface Table {
  readonly name: string;
  readonly file: string;
  readonly dtype: string;
  /** Of the first row, in bytes. */
  readonly offset: number;
  readonly rows: number;
  /** From one row to the next. */
  readonly rowBytes: number;
}

/** Where the slots of a state lie. */
export interface Slots {
  readonly axis: number;
  readonly count: number;
  /** Bytes of one slot that lie together, from each to the next. */
  readonly stride: number;
  /** How often the slots are repeated. */
  readonly blocks: number;
}

/** A tensor that the host keeps between steps. */
export interface State {
  readonly name: string;
  readonly dtype: string;
  readonly dims: readonly number[];
  /** Null where it does not grow. */
  readonly slots: Slots | null;
  readonly bytes: number;
}

/** What chooses rows of a table. */
export type By = "source" | "token" | "type" | "position" | "valid_length" | "largest_id" | "first_token";

/** Who makes an input. A window of 0 means all tokens. */
export type Source =
  | { readonly kind: "embedding" | "rows"; readonly table: number; readonly by: By }
  | { readonly kind: "slots_mask"; readonly window: number }
  | { readonly kind: "source_mask" | "user" }
  | { readonly kind: "state"; readonly state: number }
  | { readonly kind: "output"; readonly method: number; readonly output: number };

/** An input of a method. */
export interface Input {
  readonly name: string;
  readonly dtype: string;
  readonly dims: readonly number[];
  readonly bytes: number;
  readonly source: Source;
}

/** An output of a method. */
export interface Output {
  readonly name: string;
  readonly dtype: string;
  readonly dims: readonly number[];
  readonly bytes: number;
  /** The state that it goes to. */
  readonly writes: number | null;
}

/** A lowered model. */
export interface Method {
  readonly name: string;
  readonly file: string;
  /** Runs for each token; else once for a source. */
  readonly eachStep: boolean;
  readonly inputs: readonly Input[];
  readonly outputs: readonly Output[];
}
"""


def typescript_module(contract: Contract) -> str:
    """Return a TypeScript module with the constants of a contract."""
    return "\n".join(_lines(facts(contract))) + "\n"


def _lines(found: Facts) -> Iterator[str]:
    contract = found.contract
    yield f"/* Host contract of lowered models for {comment(contract.target)}, written by `graphkit contract`. */"
    yield ""
    for number in found.numbers:
        yield from (f"/** {comment(number.comment)} */", f"export const {number.name.upper()} = {number.value};")
    ends = ", ".join(map(str, contract.ends))
    yield from ("/** Decoding stops at any of these. */", f"export const END_TOKENS: readonly number[] = [{ends}];")
    yield from ("/** Added to scores that do not count. */", f"export const MASK_FLOOR = {found.floor!r};")
    yield "/** The bits of the nearest finite float16. */"
    yield f"export const MASK_FLOOR_HALF = 0x{found.floor_half:04x};"
    yield TYPES.rstrip("\n")
    for group in found.groups:
        if group.items:
            yield ""
            for place, (name, original) in enumerate(group.items):
                yield f"/** Place of the {comment(group.what)} `{comment(original)}`. */"
                yield f"export const {name.upper()} = {place};"
    files = [_object({"name": name, **asdict(file)}) for name, file in contract.files.items()]
    yield from _array("RecordedFile", Group("file", "files", ()), files)
    yield from _array("Table", found.tables, [_table(table) for table in contract.tables])
    yield from _array("State", found.states, [_state(state) for state in contract.states])
    for inputs, outputs, method in zip(found.inputs, found.outputs, contract.methods, strict=True):
        yield from _array("Input", inputs, [_input(contract, port) for port in method.inputs])
        yield from _array("Output", outputs, [_output(contract, port) for port in method.outputs])
    ports = zip(found.inputs, found.outputs, strict=True)
    methods = [_method(*each) for each in zip(contract.methods, ports, strict=True)]
    yield from _array("Method", found.methods, methods)


def _array(kind: str, group: Group, rows: Sequence[str]) -> Iterator[str]:
    yield ""
    if not rows:
        yield f"export const {group.name.upper()}: readonly {kind}[] = [];"
        return
    yield f"export const {group.name.upper()}: readonly {kind}[] = ["
    yield from (f"  {row}," for row in rows)
    yield "];"


def _table(table: Table) -> str:
    names = {"name": table.name, "file": table.file, "dtype": table.dtype}
    return _object({**names, "offset": table.offset, "rows": table.rows, "rowBytes": row_bytes(table)})


def _tensor(each: Port | State) -> dict[str, object]:
    return {"name": each.name, "dtype": each.dtype, "dims": list(each.shape)}


def _state(state: State) -> str:
    slots = slots_of(state)
    fields = asdict(slots) if slots is not None else None
    return _object({**_tensor(state), "slots": fields, "bytes": tensor_bytes(state)})


def _input(contract: Contract, port: Port) -> str:
    source = port.source
    assert source is not None
    of, output = place_of(contract, port)
    more: dict[str, dict[str, object]] = {
        "embedding": {"table": of, "by": source.by},
        "rows": {"table": of, "by": source.by},
        "slots_mask": {"window": source.window},
        "state": {"state": of},
        "output": {"method": of, "output": output},
    }
    made = {"kind": source.kind, **more.get(source.kind, {})}
    return _object({**_tensor(port), "bytes": tensor_bytes(port), "source": made})


def _output(contract: Contract, port: Port) -> str:
    return _object({**_tensor(port), "bytes": tensor_bytes(port), "writes": state_of(contract, port)})


def _method(method: Method, ports: tuple[Group, Group]) -> str:
    plain = _object({"name": method.name, "file": method.file, "eachStep": method.when == "step"})
    inputs, outputs = ports
    return f"{plain[:-2]}, inputs: {inputs.name.upper()}, outputs: {outputs.name.upper()} }}"


def _object(fields: Mapping[str, object]) -> str:
    """Return an object literal; text is ASCII with escapes, as in JSON."""
    return f"{{ {', '.join(f'{name}: {_value(value)}' for name, value in fields.items())} }}"


def _value(value: object) -> str:
    return _object(value) if isinstance(value, dict) else json.dumps(value)
