"""Contracts as files: read and checked, compared, their JSON Schema, and the files beside them that they record."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from graphkit.contract.bundle_contract import VERSION as BUNDLE_VERSION
from graphkit.contract.bundle_contract import BundleContract
from graphkit.contract.contract_checks import bundle_problems, contract_problems, record_problems
from graphkit.contract.host_contract import VERSION, AnyContract, Contract, FileRecord, is_unsealed
from graphkit.errors import ModelError
from graphkit.io.toml import locate_problem
from graphkit.render.document_blocks import printable

LONGEST = 300  # characters of an error
SHOWN = 60  # of a value in it
FOR_PEOPLE = (".md", ".mjs")  # suffixes of files that no host reads
AGAIN = "make the folder again, or copy it again from where it was made"


class _Form(NamedTuple):
    """A kind of contract: its type and version, its name and that of the command that writes it, its problems."""

    kind: type[AnyContract]
    version: int
    what: str
    command: str
    problems: Callable[[Any], Iterator[str]]


LOWERED = _Form(Contract, VERSION, "contract", "lower", contract_problems)
BUNDLED = _Form(BundleContract, BUNDLE_VERSION, "bundle", "bundle", bundle_problems)


def read_contract(path: Path, *, altered: bool = False) -> Contract:
    """Read `contract.json`.

    Args:
        path: The file.
        altered: Whether to take one that was changed after it was written, if what it says fits together.

    Raises:
        ModelError: It is not a contract, one of another version, was changed, or what it says does not fit together.
    """
    contract: Contract = _read_contract(path, LOWERED, altered)
    return contract


def read_bundle(path: Path, *, altered: bool = False) -> BundleContract:
    """Read `bundle.json`; see `read_contract`."""
    contract: BundleContract = _read_contract(path, BUNDLED, altered)
    return contract


def _read_contract(path: Path, form: _Form, altered: bool) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        plain = msgspec.json.decode(text)
    except OSError as error:
        hint = f"write it with `graphkit {form.command}`"
        raise ModelError(f"it cannot be read: {error.strerror}", file=str(path), hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise _no_contract_error(path, form, str(error)) from error
    version = plain.get("version") if isinstance(plain, dict) else None
    if type(version) is int and version != form.version:
        hint = f"make it again with `graphkit {form.command}`, which writes version {form.version}"
        raise ModelError(f"it is a {form.what} of version {version}", file=str(path), hint=hint)
    has_checksum = isinstance(plain, dict) and isinstance(plain.pop("checksum", None), str)
    try:
        contract: Any = msgspec.convert(plain, form.kind)
    except msgspec.ValidationError as error:
        place, problem = locate_problem(error, plain, form.kind)
        # the place comes first, so that a long value does not hide it
        raise _no_contract_error(path, form, f"{place}: {problem}" if place else problem) from error
    read = {"legal": {}, **plain} if form is BUNDLED else plain  # which bundles lack that were written before
    made = msgspec.to_builtins(dataclasses.asdict(contract))  # with the defaults, which msgspec leaves to the class
    faults = chain(
        filter(None, [first_difference(read, made, by=f"a {form.what} has")]),
        form.problems(contract),
        record_problems(contract.proof, contract.files, contract.read_files),
    )
    fault = next(faults, "" if has_checksum else "it has no 'checksum'")  # each relies on those before it
    if fault:
        raise _no_contract_error(path, form, fault)
    if not altered and is_unsealed(text):
        seal = f"`graphkit verify EXPORT {path.parent} --record` seals them"
        hint = f"{form.command} again; where only texts for people were changed, {seal}"
        raise ModelError("it was changed after it was written: its checksum is another", file=str(path), hint=hint)
    return contract


def _no_contract_error(path: Path, form: _Form, problem: str) -> ModelError:
    said = printable(problem)[:LONGEST]  # anybody may have written what it quotes
    hint = f"write it with `graphkit {form.command}`"
    return ModelError(f"it is not a {form.what}: {said}", file=str(path), hint=hint)


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
    sha256 = named["FileRecord"]["properties"]["sha256"]
    top["properties"]["checksum"] = sha256
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
    """Return a value as JSON, in ASCII and not too long."""
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
