"""Contracts as files: read, checked, compared, their JSON Schema, and the files beside them that they record."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from graphkit.contract.bundle_contract import ALIGNMENT, FED, BundleContract, BundleMethod, BundlePort, StateTensor
from graphkit.contract.host_contract import (
    FILE_NAME,
    SIZES,
    AnyContract,
    Contract,
    FileRecord,
    Port,
    ProofRecord,
    is_unsealed,
)
from graphkit.dtypes import BITS, FLOATS, INTEGERS, dtype_name
from graphkit.errors import ModelError
from graphkit.io.toml import locate_problem
from graphkit.render.document_blocks import printable

MOST = 1 << 44  # elements of an array
MOST_FED = 1 << 28  # elements of an input of a caller, of a row
TOKENS = ("pad", "start")
CHOOSING = {"embedding": ("token", "source", "type"), "rows": ("position", "valid_length", "largest_id", "first_token")}
BYTES = {dtype_name(dtype): BITS[dtype] // 8 for dtype in (*INTEGERS, *FLOATS)}  # of an element
KINDS = {
    "init": (),
    "reorder": ("state", "indices"),
    "once": (*FED, "state", "length", "kept"),
    "step": (*FED, "state", "length", "kept"),
}  # of sources of a bundle's inputs, by when the method runs
LONGEST = 300  # characters of an error
SHOWN = 60  # of a value in it
FOR_PEOPLE = (".md", ".mjs")  # suffixes of files that no host reads
Kind = TypeVar("Kind", bound=AnyContract)
AGAIN = "make the folder again, or copy it again from where it was made"


def record_problems(proof: ProofRecord, files: Mapping[str, FileRecord], read: Iterable[str]) -> Iterator[str]:
    """Yield the contradictions in a record, a clause each; `read` has the files that hosts read."""
    if proof.passed == bool(proof.reason):
        yield "its proof passed for a reason, or did not for none"
    if proof.proven and not proof.passed:
        yield "its proof did not pass, and outputs are proven"
    if proof.outcome == "not run" and (proof.tolerance, proof.tokens_rate) != (None, 1):
        yield "its proof was not run, and has a tolerance or a rate of tokens"
    yield from (f"'{name}' is not the name of a file beside it" for name in files if not re.search(FILE_NAME, name))
    if (missing := [name for name in read if name not in files]) and (files or proof.passed):
        yield f"it records no file '{missing[0]}'"


def _shared_problems(contract: AnyContract, kind: str, names: Sequence[str]) -> Iterator[str]:
    """Yield the contradictions that any contract may have, a clause each; names are those of another kind of things."""
    yield from _find_duplicates(kind, names)
    yield from _find_duplicates("method", [method.name for method in contract.methods])
    yield from _find_duplicates("state", [state.name for state in contract.states])
    for state in contract.states:
        if not _is_array(state.shape, state.dtype):
            yield f"state '{state.name}' has no size, or no dtype of whole bytes"
        elif state.bytes != math.prod(state.shape) * BYTES[state.dtype]:
            yield f"state '{state.name}' does not take {state.bytes} bytes"
        if state.axis is not None and state.axis >= len(state.shape):
            yield f"state '{state.name}' has no axis {state.axis}"
    states = {state.name: state for state in contract.states}
    for method in contract.methods:
        for kind, ports in (("input", method.inputs), ("output", method.outputs)):
            for text in _find_duplicates(kind, [port.name for port in ports]):
                yield f"{method.name}: {text}"
            for port in ports:
                whose = f"{method.name}: {kind} '{port.name}'"
                if not _is_array(port.shape, port.dtype):
                    yield f"{whose} has no size, or no dtype of whole bytes"
                if port.state and port.state not in states:
                    yield f"{whose} is state '{port.state}', which is not there"
                if port.kind == "state" and not port.of:
                    yield f"{whose} is a state without a name"


def _find_duplicates(kind: str, names: Sequence[str]) -> Iterator[str]:
    return (f"two have the name of {kind} '{name}'" for name in sorted(set(names)) if names.count(name) > 1)


def _is_array(shape: Sequence[int | str], dtype: str) -> bool:
    return dtype in BYTES and math.prod(max(1, dim) for dim in shape if isinstance(dim, int)) <= MOST


def contract_problems(contract: Contract) -> Iterator[str]:
    """Yield the contradictions of the contract of lowered models, a clause each."""
    if missing := [name for name in SIZES if contract.sizes.get(name, -1) < 0]:
        yield f"sizes.{missing[0]} is missing, or below 0"
        return
    if missing := [name for name in TOKENS if name not in contract.tokens]:
        yield f"tokens.{missing[0]} is missing"
        return
    sizes = contract.sizes
    if "sound" in sizes and not {"stride", "offset"} <= sizes.keys():
        yield "sizes.sound is there without sizes.stride and sizes.offset"
    sound, stride, offset = sizes.get("sound", 0), sizes.get("stride", 1), sizes.get("offset", 0)
    if sound < 0 or stride < 1:
        yield "sizes.sound is below 0, or sizes.stride below 1"
    elif sound and (sound + offset) // stride < max(1, sizes["source"]):
        yield f"a sound of {sound} has fewer valid positions than the source has"
    if sound and contract.takes_text:
        yield "its source is both text and a sound"
    for port in (port for method in contract.methods for port in method.inputs):
        if port.is_sound and (sound < 1 or sound not in port.shape[1:]):
            yield f"input '{port.name}' holds no sound of {sound}"
    yield from _shared_problems(contract, "table", [table.name for table in contract.tables])
    for table in contract.tables:
        if not _is_array((table.rows, *table.shape), table.dtype):
            yield f"table '{table.name}' has no size, or no dtype of whole bytes"
    for place, method in enumerate(contract.methods):
        for port in method.inputs:
            yield from (f"{method.name}: input '{port.name}' {text}" for text in _check_input(contract, place, port))
        for port in method.outputs:
            state = next((state for state in contract.states if state.name == port.writes), None)
            shape = list(state.shape) if state is not None else []
            if state is not None and state.axis is not None:
                shape[state.axis : state.axis + 1] = [1]
            if state is not None and (list(port.shape), port.dtype) != (shape, state.dtype):
                yield f"{method.name}: output '{port.name}' does not fit state '{port.writes}'"
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


def _check_input(contract: Contract, place: int, port: Port) -> Iterator[str]:
    if (source := port.source) is None:
        yield "has no source"
        return
    if source.kind == "slots_mask" and port.shape[-1:] != (contract.sizes["capacity"] + 1,):
        yield "is a mask over the slots of another length"
    if source.kind == "source_mask" and port.shape[-1:] != (contract.sizes["source"],):
        yield "is a mask over the source of another length"
    is_of_sequences = source.kind in ("embedding", "source_mask", "rows") and source.by != "position"
    if is_of_sequences and not _is_shared(next((dim for dim in port.shape if dim != 1), 1), contract):
        yield f"does not hold {contract.sequences} sequences one behind the other"
    if source.kind == "state":
        state = next((state for state in contract.states if state.name == source.of), None)
        if state is not None and (state.shape, state.dtype) != (port.shape, port.dtype):
            yield f"does not fit state '{source.of}'"
    if source.kind == "output":
        before = contract.methods[:place]
        named = {f"{method.name}/{output.name}": output for method in before for output in method.outputs}
        output = named.get(source.of)
        if output is None or (output.shape, output.dtype) != (port.shape, port.dtype):
            yield f"is not the output '{source.of}' of a method that runs before"
    if source.by not in CHOOSING.get(source.kind, (source.by,)):
        yield f"does not say what chooses from '{source.of}'"
    if source.by == "first_token" and contract.tokens.get("pooled") is None:
        yield "is chosen by a token, and tokens.pooled is missing"
    if source.kind in ("embedding", "rows"):
        table = next((table for table in contract.tables if table.name == source.of), None)
        count, row = math.prod(port.shape), math.prod(table.shape) if table is not None else 0
        if table is None or table.dtype != port.dtype or row == 0 or count < row or count % row:
            yield f"is not made of rows of table '{source.of}'"
        elif source.kind == "rows":
            by_position = source.by == "position"  # of which one row is enough for all sequences
            if count // row not in (1 if by_position else contract.sequences, contract.sequences):
                yield f"is not one row of table '{source.of}'"
            elif table.rows < contract.sizes["positions" if by_position else "source"]:
                yield f"has more places than table '{source.of}' has rows"


def _is_shared(count: int, contract: Contract) -> bool:
    return contract.sequences == 1 or (count > 0 and count % contract.sequences == 0)


def bundle_problems(contract: BundleContract) -> Iterator[str]:
    """Yield the contradictions of the contract of a bundle, a clause each."""
    if "batch" not in contract.sizes:
        yield "sizes.batch is missing"
    end = max((state.end for state in contract.states), default=0)
    if contract.arena > end + ALIGNMENT:
        yield f"an arena of {contract.arena} bytes for states of {end}"
    lengths = {length.name for length in contract.lengths}
    yield from _shared_problems(contract, "length", [length.name for length in contract.lengths])
    for state in contract.states:
        if state.batch is not None and state.batch >= len(state.shape):
            yield f"state '{state.name}' has no axis {state.batch}"
        if state.end > contract.arena:
            yield f"state '{state.name}' does not lie in the arena, at {state.offset}"
        is_of_length = not state.length or state.length in lengths
        if (state.update in ("slots", "ring")) != (state.axis is not None) or not is_of_length:
            yield f"state '{state.name}' grows along no axis, or by a length that is not there"
    for before, after in itertools.pairwise(sorted(contract.states, key=lambda state: state.offset)):
        if before.end > after.offset:
            yield f"states '{before.name}' and '{after.name}' overlap"
    states = {state.name: state for state in contract.states}
    for method in contract.methods:
        yield from (f"{method.name}: {text}" for text in _check_method(method, states, lengths))
    running = [method for method in contract.methods if method.when != "init"]
    ports = [port for method in running for port in (*method.inputs, *method.outputs)]
    for state in contract.states:
        dims = [port.shape[0] for port in ports if port.state == state.name and port.shape]
        is_prefix = state.axis == 0 and bool(state.length) and all(isinstance(dim, str) for dim in dims)
        if state.prefix != is_prefix:  # a prefix has any number of slots
            takes = "all slots" if state.prefix else "the slots in use alone"
            yield f"state '{state.name}': prefix is {str(state.prefix).lower()}, and the methods take {takes}"
    sizes, most = contract.sizes, {length.name: length.most for length in contract.lengths}
    for name, count in most.items():
        if sizes.get("slots", count) != count:
            yield f"sizes.slots is {sizes['slots']}, and length '{name}' may be {count}"
    for name, legal in contract.legal.items():
        if legal.least > (legal.most or legal.least):
            yield f"legal.{name} has no sizes"
        elif legal.nearest(0) > sizes.get(name, 0):
            yield f"legal.{name} has no size up to sizes.{name}"
    for state in contract.states:
        if state.batch is not None and state.shape[state.batch : state.batch + 1] != (sizes.get("batch"),):
            yield f"sizes.batch is {sizes.get('batch')}, and state '{state.name}' has other rows: {list(state.shape)}"
        slots = state.shape[state.axis] if state.axis is not None else 0
        if state.update == "slots" and slots < most.get(state.length, 0):
            yield f"length '{state.length}' may be {most[state.length]}, and state '{state.name}' has {slots} slots"


def _check_method(method: BundleMethod, states: dict[str, StateTensor], lengths: set[str]) -> Iterator[str]:
    if set(method.access) != set(states):
        yield "it does not say what it does with each state"
        return
    for kind, ports in (("input", method.inputs), ("output", method.outputs)):
        for port in ports:
            if (state := states.get(port.state)) is None:
                continue
            pairs = zip(port.shape, state.shape, strict=False)
            fits = all(isinstance(dim, str) or dim == size for dim, size in pairs)
            if not fits or (len(port.shape), port.dtype) != (len(state.shape), state.dtype):
                yield f"{kind} '{port.name}' does not fit state '{port.state}'"
    for port in method.inputs:
        yield from (f"input '{port.name}' {text}" for text in _method_input(port, method, lengths))
    if method.when == "reorder" and [port.kind for port in method.inputs].count("indices") != 1:
        yield "it takes no indices, or takes them twice"
    written = [port.writes for port in method.outputs if port.writes]
    if len(set(written)) < len(written) or (method.when in ("init", "reorder") and len(written) < len(method.outputs)):
        yield "two outputs are one state, or one is none"
    read = {port.of for port in method.inputs if port.kind == "state"}
    for name, access in method.access.items():
        allowed = ("write", "read and write") if name in written else ("read",) if name in read else ("none",)
        if access not in allowed:
            yield f"it says '{access}' of state '{name}', and its ports say '{allowed[-1]}'"
    fed = {p.name: p for p in method.inputs if p.kind in FED}
    for change in method.changes:
        port_fed = fed.get(change.input)
        if change.length not in lengths or port_fed is None or change.axis >= len(port_fed.shape):
            yield f"it changes length '{change.length}' by an input that is not there"


def _method_input(port: BundlePort, method: BundleMethod, lengths: set[str]) -> Iterator[str]:
    if (source := port.source) is None or port.writes:
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


def read_contract(path: Path, *, altered: bool = False) -> Contract:
    """Read `contract.json`; with `altered`, one too that was changed after it was written, if what it says fits.

    Raises ModelError where it is no contract, one of another version, was changed, or does not fit together.
    """
    return _read_contract(path, Contract, contract_problems, altered)


def read_bundle(path: Path, *, altered: bool = False) -> BundleContract:
    """Read `bundle.json`; see `read_contract`."""
    return _read_contract(path, BundleContract, bundle_problems, altered)


def _read_contract(path: Path, kind: type[Kind], problems: Callable[[Kind], Iterator[str]], altered: bool) -> Kind:
    what = kind.FILE.removesuffix(".json")
    try:
        text = path.read_text(encoding="utf-8")
        plain = msgspec.json.decode(text)
    except OSError as error:
        hint = f"write it with `graphkit {kind.COMMAND}`"
        raise ModelError(f"it cannot be read: {error.strerror}", file=str(path), hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise _no_contract_error(path, kind, str(error)) from error
    version = plain.get("version") if isinstance(plain, dict) else None
    if type(version) is int and version != kind.version:
        hint = f"make it again with `graphkit {kind.COMMAND}`, which writes version {kind.version}"
        raise ModelError(f"it is a {what} of version {version}", file=str(path), hint=hint)
    has_checksum = isinstance(plain, dict) and isinstance(plain.pop("checksum", None), str)
    try:
        contract = msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        place, problem = locate_problem(error, plain, kind)
        # the place comes first, so that a long value does not hide it
        raise _no_contract_error(path, kind, f"{place}: {problem}" if place else problem) from error
    read = {"legal": {}, **plain} if kind is BundleContract else plain  # which bundles lack that were written before
    # with the defaults, which msgspec leaves to the class
    made = msgspec.to_builtins(dataclasses.asdict(contract))  # type: ignore[call-overload]
    faults = chain(
        filter(None, [first_difference(read, made, by=f"a {what} has")]),
        problems(contract),
        record_problems(contract.proof, contract.files, contract.read_files),
    )
    fault = next(faults, "" if has_checksum else "it has no 'checksum'")  # each relies on those before it
    if fault:
        raise _no_contract_error(path, kind, fault)
    if not altered and is_unsealed(text):
        seal = f"`graphkit verify EXPORT {path.parent} --record` seals them"
        hint = f"{kind.COMMAND} again; where only texts for people were changed, {seal}"
        raise ModelError("it was changed after it was written: its checksum is another", file=str(path), hint=hint)
    return contract


def _no_contract_error(path: Path, kind: type[AnyContract], problem: str) -> ModelError:
    said = printable(problem)[:LONGEST]  # anybody may have written what it quotes
    hint = f"write it with `graphkit {kind.COMMAND}`"
    return ModelError(f"it is not a {kind.FILE.removesuffix('.json')}: {said}", file=str(path), hint=hint)


def contract_schema(kind: type[AnyContract]) -> dict[str, Any]:
    """Return the JSON Schema of a contract, which allows nothing but what its types say, and the checksum."""
    _, named = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    for part in named.values():
        properties = {name: {**schema} for name, schema in part["properties"].items()}
        for schema in properties.values():
            schema.pop("default", None)
        part |= {"additionalProperties": False, "properties": properties}
        part |= {"required": [name for name in properties if name != "legal"]}
        part["description"] = part["description"].partition("\n")[0]
    top = named.pop(kind.__name__)
    (version,) = top["properties"]["version"]["enum"]
    top["description"] = f"Version {version}. graphkit.contract.{kind.__name__} says what each field means."
    top["properties"]["checksum"] = named["FileRecord"]["properties"]["sha256"]
    top["required"].append("checksum")
    method = next(part for name, part in named.items() if name.endswith("Method"))["properties"]
    made = {"source": {"type": "object"}, "writes": {"const": ""}}
    for ports, known in (("inputs", made), ("outputs", {"source": {"type": "null"}})):
        method[ports]["items"] = {"allOf": [method[ports]["items"]], "properties": known}
    top["properties"]["files"]["propertyNames"] = method["file"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **top, "$defs": named}


def first_difference(recorded: Any, made: Any, *, by: str = "the export gives", leave_out: Collection[str] = ()) -> str:
    """Return the first difference of a contract from the one that its export gives, as a clause, "" for none.

    Both are dataclasses, or plain lists and dicts; texts of dataclasses for people may differ, and fields to leave out.
    `by` says who gives what has to be there, with the verb.
    """
    path, there, expected = next(_find_differences(recorded, made, "", leave_out), ("", "", ""))
    return f"{path} {there}, and {by} {expected}" if path else ""


def _find_differences(
    recorded: Any, made: Any, at: str, leave_out: Collection[str] = ()
) -> Iterator[tuple[str, str, str]]:
    """Yield where values differ, as a path, with what is there and what has to be."""
    if dataclasses.is_dataclass(made) and type(recorded) is type(made):
        for field in dataclasses.fields(made):
            if "text" not in field.metadata and field.name not in leave_out:
                path = f"{at}.{field.name}" if at else field.name
                yield from _find_differences(getattr(recorded, field.name), getattr(made, field.name), path)
    elif isinstance(made, (tuple, list)) and isinstance(recorded, (tuple, list)):
        if len(recorded) != len(made):
            yield at, f"has {len(recorded)} parts", str(len(made))
        for place, pair in enumerate(zip(recorded, made, strict=False)):
            yield from _find_differences(*pair, f"{at}[{place}]")
    elif isinstance(made, Mapping) and isinstance(recorded, Mapping):
        for name in dict.fromkeys((*made, *recorded)):
            path = f"{at}.{_short_json(name)[1:-1]}".removeprefix(".")
            if name in recorded and name in made:
                yield from _find_differences(recorded[name], made[name], path)
            else:
                yield path, *(("is missing", _short_json(made[name])) if name in made else ("is there", "none"))
    elif recorded != made or isinstance(recorded, bool) != isinstance(made, bool):
        yield at, f"is {_short_json(recorded)}", _short_json(made)


def _short_json(value: Any) -> str:
    text = json.dumps(value, default=vars)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def record_files(folder: Path, names: Iterable[str]) -> dict[str, FileRecord]:
    """Return the records of files, in the order of their names; ModelError for one that cannot be read."""
    records = {}
    for name in sorted(names):
        try:
            records[name] = FileRecord.of(folder / name)
        except OSError as error:
            raise ModelError(f"it cannot be read: {error.strerror}", file=str(folder / name), hint=AGAIN) from error
    return records


def check_files(folder: Path, files: Mapping[str, FileRecord], record: str, *, checksums: bool = False) -> None:
    """Raise ModelError for a file that is not as `record` says: by size for those that hosts read, or by checksums."""
    hint = f"{AGAIN}; what was changed on purpose is proven by `graphkit verify EXPORT {folder} --record`"
    for name, expected in files.items():
        path = folder / name
        if not checksums and path.suffix in FOR_PEOPLE:
            continue
        try:
            size = path.stat().st_size
            is_same = not checksums or FileRecord.of(path).sha256 == expected.sha256
        except OSError as error:
            raise ModelError(f"it cannot be read: {error.strerror}", file=str(path), hint=AGAIN) from error
        if size != expected.bytes:
            problem = f"it has {size:,} bytes, and {record} records {expected.bytes:,}"
            raise ModelError(problem, file=str(path), hint=hint)
        if not is_same:
            raise ModelError(f"its SHA-256 is not the one that {record} records", file=str(path), hint=hint)
