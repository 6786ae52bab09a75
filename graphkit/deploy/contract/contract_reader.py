"""Read `contract.json`: plain JSON becomes a `Contract`, or an error that says where it is none."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from graphkit.deploy.contract.bundle_contract import VERSION as BUNDLE_VERSION
from graphkit.deploy.contract.bundle_contract import BundleContract
from graphkit.deploy.contract.contract_checks import bundle_problems, contract_problems
from graphkit.deploy.contract.host_contract import VERSION, Contract
from graphkit.deploy.contract.sealed_record import is_unsealed, record_problems
from graphkit.errors import ModelError
from graphkit.render.document_blocks import printable

__all__ = ["read_bundle", "read_contract"]

MOST = 1 << 53  # integers that every language has
LONGEST = 300  # characters of an error


def read_contract(path: Path, *, altered: bool = False) -> Contract:
    """Read `contract.json`.

    Args:
        path: The file.
        altered: Whether to take one that was changed after it was written, if what it says fits together.

    Raises:
        ModelError: It is not a contract, one of another version, was changed, or what it says does not fit together.
    """
    contract: Contract = _read_contract(path, _Form(Contract, VERSION, "contract", "lower", contract_problems), altered)
    return contract


def read_bundle(path: Path, *, altered: bool = False) -> BundleContract:
    """Read `bundle.json`.

    Args:
        path: The file.
        altered: Whether to take one that was changed after it was written, if what it says fits together.

    Raises:
        ModelError: It is not that of a bundle, one of another version, was changed, or what it says does not fit
            together.
    """
    contract: BundleContract = _read_contract(
        path, _Form(BundleContract, BUNDLE_VERSION, "bundle", "bundle", bundle_problems), altered
    )
    return contract


class _Form(NamedTuple):
    """A kind of contract: its type and version, its name and that of the command that writes it, its problems."""

    kind: Any
    version: int
    what: str
    command: str
    problems: Callable[[Any], Iterator[str]]


def _read_contract(path: Path, form: _Form, altered: bool) -> Any:
    kind, version, what, command, find_problems = form
    try:
        text = path.read_text(encoding="utf-8")
        plain = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise _no_contract_error(path, what, command, str(error)) from error
    version_read = plain.get("version") if isinstance(plain, dict) else None
    if type(version_read) is int and version_read != version:
        hint = f"make it again with `graphkit {command}`, which writes version {version}"
        raise ModelError(f"it is a {what} of version {version_read}", file=str(path), hint=hint)
    has_checksum = isinstance(plain, dict) and isinstance(plain.pop("checksum", None), str)
    try:
        contract = _build_value(kind, plain, "it")
    except ValueError as error:
        raise _no_contract_error(path, what, command, str(error)) from error
    faults = chain(find_problems(contract), record_problems(contract.proof, contract.files, contract.read_files))
    fault = next(faults, "" if has_checksum else "it has no 'checksum'")  # each relies on those before it
    if fault:
        raise _no_contract_error(path, what, command, fault)
    if not altered and is_unsealed(text):
        raise ModelError(
            "it was changed after it was written: its checksum is another",
            file=str(path),
            hint=f"{command} again; where only texts for people were changed, "
            f"`graphkit verify EXPORT {path.parent} --record` seals them",
        )
    return contract


def _no_contract_error(path: Path, what: str, command: str, problem: str) -> ModelError:
    said = printable(problem)[:LONGEST]  # anybody may have written what it quotes
    return ModelError(f"it is not a {what}: {said}", file=str(path), hint=f"write it with `graphkit {command}`")


def _build_value(kind: Any, plain: Any, at: str) -> Any:
    """Return a value of a type, from JSON.

    Raises:
        ValueError: The JSON is something else.
    """
    if dataclasses.is_dataclass(kind):
        return _build_record(kind, plain, at)
    origin, options = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _one_of(options, plain, at)
    if origin is Literal and isinstance(plain, str) and plain in options:
        return plain
    if origin is tuple and isinstance(plain, list):
        return tuple(_build_value(options[0], item, f"{at}[{place}]") for place, item in enumerate(plain))
    if origin is Mapping and isinstance(plain, dict):
        return {
            _build_value(str, key, at): _build_value(options[1], item, f"{at}.{key}") for key, item in plain.items()
        }
    if kind is float and (type(plain) is float or (type(plain) is int and abs(plain) <= MOST)):
        return float(plain)
    if kind is str and isinstance(plain, str):
        plain.encode()  # half of a surrogate pair is no text
        return plain
    if (kind is int and type(plain) is int and abs(plain) <= MOST) or (kind is bool and type(plain) is bool):
        return plain
    raise ValueError(f"{at} is not {_type_words(kind)}")


def _build_record(kind: Any, plain: Any, at: str) -> Any:
    hints = _type_hints(kind)
    if not isinstance(plain, dict):
        raise ValueError(f"{at} is no object")
    absent = {name for name in set(hints) - set(plain) if _may_be_absent(kind, name)}
    if odd := sorted(set(plain) ^ (set(hints) - absent)):
        raise ValueError(f"{at} has no '{odd[0]}'" if odd[0] in hints else f"{at} has '{odd[0]}', which means nothing")
    return kind(
        **{name: _build_value(hint, plain[name], f"{at}.{name}") for name, hint in hints.items() if name in plain}
    )


def _may_be_absent(kind: Any, name: str) -> bool:
    return any(field.name == name and "may_be_absent" in field.metadata for field in dataclasses.fields(kind))


@cache
def _type_hints(kind: Any) -> Mapping[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _one_of(options: tuple[Any, ...], plain: Any, at: str) -> Any:
    if plain is None and types.NoneType in options:
        return None
    literals = tuple(text for option in options if get_origin(option) is Literal for text in get_args(option))
    kinds = [option for option in options if option is not types.NoneType and get_origin(option) is not Literal]
    texts = Literal[literals] if literals else str if str in kinds else None
    return _build_value(texts if texts is not None and (isinstance(plain, str) or not kinds) else kinds[0], plain, at)


def _type_words(kind: Any) -> str:
    names = {str: "text", int: f"an integer up to {MOST:,}", float: "a number", bool: "true or false"}
    if get_origin(kind) is Literal:
        return " or ".join(repr(option) for option in get_args(kind))
    return names.get(kind) or {tuple: "a list", Mapping: "an object"}[get_origin(kind)]
