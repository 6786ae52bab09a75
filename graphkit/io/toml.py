"""TOML files, converted to types that say what a key may be; a fault is one error that names the file and the key."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, TypeVar

from graphkit.errors import TargetError
from graphkit.io.stream_files import shown_path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["convert_toml", "read_toml"]

T = TypeVar("T")
MAX_BYTES = 1 << 20


def read_toml(path: Path) -> dict[str, Any]:
    """Return the contents of a TOML file.

    Raises:
        TargetError: It is missing, no file, too large, or not TOML.
    """
    try:
        if not path.is_file():
            raise TargetError("there is no such file", file=shown_path(path), hint="name another one")
        if path.stat().st_size > MAX_BYTES:
            raise TargetError(
                f"it has more than {MAX_BYTES:,} bytes", file=shown_path(path), hint="a few KB are enough"
            )
        plain: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return plain
    except OSError as error:
        raise TargetError(
            f"it cannot be read: {error.strerror}", file=shown_path(path), hint="check its path"
        ) from error
    except RecursionError as error:
        raise TargetError("it is nested too deep", file=shown_path(path), hint="four levels are enough") from error
    except ValueError as error:  # what tomllib, UTF-8 and int raise, and a path with a null byte
        raise TargetError(f"it is not TOML: {error!s:.200}", file=shown_path(path), hint="correct it") from error


def convert_toml(path: Path, plain: object, kind: type[T]) -> T:
    """Return what a file holds, or a part of it, as a type.

    Raises:
        TargetError: It is something else, with the key.
    """
    import msgspec

    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        problem, _, at = str(error).rpartition(" - at ")
        key = at.strip("`").removeprefix("$").removeprefix(".")
        raise TargetError(
            problem or at, file=shown_path(path), key=key if problem else "", hint="correct it"
        ) from error
