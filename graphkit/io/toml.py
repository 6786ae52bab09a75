"""TOML files, converted to types that say what a key may be; a fault is one error that names the file and the key."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, TypeVar

from graphkit.errors import TargetError
from graphkit.io.byte_source import shown_path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")
# Of a path of msgspec: any key of a mapping, an index, a field
STEP = re.compile(r"(\[\.\.\.\])|\[(\d+)\]|([^.\[\]]+)")
MAX_BYTES = 1 << 20


def read_toml(path: Path) -> dict[str, Any]:
    """Return the contents of a TOML file. Raises TargetError where it is missing, no file, too large, or not TOML."""
    file = shown_path(path)
    try:
        if not path.is_file():
            raise TargetError("there is no such file", file=file, hint="name another one")
        if path.stat().st_size > MAX_BYTES:
            raise TargetError(f"it has more than {MAX_BYTES:,} bytes", file=file, hint="a few KB are enough")
        plain: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return plain
    except OSError as error:
        raise TargetError(f"it cannot be read: {error.strerror}", file=file, hint="check its path") from error
    except RecursionError as error:
        raise TargetError("it is nested too deep", file=file, hint="four levels are enough") from error
    except ValueError as error:  # what tomllib, UTF-8 and int raise, and a path with a null byte
        raise TargetError(f"it is not TOML: {error!s:.200}", file=file, hint="correct it") from error


def convert_toml(path: Path, plain: object, kind: type[T]) -> T:
    """Return what a file holds, or a part of it, as a type; TargetError with the key where it is something else."""
    import msgspec

    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        key, problem = locate_problem(error, plain, kind)
        raise toml_error(path, key, problem, "correct it") from error


def toml_error(path: Path, key: str, problem: str, hint: str) -> TargetError:
    """Return the error of a key in a TOML file."""
    return TargetError(problem, file=shown_path(path), key=key, hint=hint)


def locate_problem(error: Exception, plain: object, kind: Any) -> tuple[str, str]:
    """Return the path of what msgspec finds wrong in plain data, keys of mappings included, and what it says of it."""
    problem, found, at = str(error).rpartition(" - at ")
    if not found:
        return "", str(error)
    place: Any = plain
    path = ""
    for gap, index, name in STEP.findall(at.strip("`").removeprefix("$")):
        step: int | str | None = _faulty_key(error, plain, place, kind) if gap else int(index) if index else name
        if step is None:
            return path, problem
        is_there = isinstance(place, list) or (isinstance(place, dict) and step in place)
        place = place[step] if is_there else None
        path += f"[{step}]" if index else f".{step}" if path else f"{step}"
    return path, problem


def _faulty_key(error: Exception, plain: object, mapping: Any, kind: Any) -> str | None:
    """Return the first key of a mapping with which alone the same is wrong."""
    import msgspec

    for key, value in [*mapping.items()] if isinstance(mapping, dict) else ():
        every = dict(mapping)
        mapping.clear()
        mapping[key] = value
        try:
            msgspec.convert(plain, kind)
        except msgspec.ValidationError as again:
            if str(again) == str(error):
                return str(key)
        finally:
            mapping.clear()
            mapping.update(every)
    return None
