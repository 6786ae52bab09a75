"""Reads TOML into the types that a key must have; a fault is one error that names the file and the key."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

from graphkit.errors import TargetError
from graphkit.io.stream_files import shown_path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Section", "read_toml"]

MAX_BYTES = 1 << 20
MAX_TEXT = 2000  # characters of one text
SHOWN = 40  # characters of a wrong value in an error


def read_toml(path: Path) -> Section:
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
        return Section(shown_path(path), "", tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise TargetError(
            f"it cannot be read: {error.strerror}", file=shown_path(path), hint="check its path"
        ) from error
    except RecursionError as error:
        raise TargetError("it is nested too deep", file=shown_path(path), hint="four levels are enough") from error
    except ValueError as error:  # what tomllib, UTF-8 and int raise, and a path with a null byte
        raise TargetError(f"it is not TOML: {error!s:.200}", file=shown_path(path), hint="correct it") from error


@dataclass(frozen=True)
class Section:
    """A table of a TOML file.

    Attributes:
        file: Its path, as messages name it.
        key: The path of the table in it.
        values: What it holds.
    """

    file: str
    key: str
    values: Mapping[str, Any]

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def wrong(self, name: str, problem: str, hint: str) -> TargetError:
        """Return an error about a key of this table."""
        return TargetError(problem, file=self.file, key=self.path(name), hint=hint)

    def path(self, name: str) -> str:
        """Return the path of a key."""
        return f"{self.key}.{name}" if self.key and name else self.key or name

    def only(self, *known: str) -> None:
        """Check that it has no other keys than these.

        Raises:
            TargetError: It has one.
        """
        for name in self.values:
            if name not in known:
                raise self.wrong(f"{name:.{SHOWN}}", "no such key is known", f"there are {', '.join(known)}")

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text."""
        text: str = self._get_field(name, str, "a text", default)
        if len(text) > MAX_TEXT:
            raise self.wrong(name, f"it has more than {MAX_TEXT:,} characters", "shorten it")
        return text

    def date(self, name: str) -> date:
        """Return a date."""
        value = self._get_field(name, date, "a date, such as 2026-03-06")
        return value.date() if isinstance(value, datetime) else value

    def number(self, name: str) -> int:
        """Return a whole number of at least 0."""
        number: int = self._get_field(name, int, "a whole number")
        if isinstance(number, bool) or not 0 <= number < 1000:
            raise self._unfit_error(name, number, "a whole number below 1000")
        return number

    def flag(self, name: str) -> bool:
        """Return true or false."""
        flag: bool = self._get_field(name, bool, "true or false")
        return flag

    def choice(self, name: str, choices: Collection[str]) -> str:
        """Return one of a few words."""
        choice: str = self._get_field(name, str, f"one of {', '.join(choices)}")
        if choice not in choices:
            raise self._unfit_error(name, choice, f"one of {', '.join(choices)}")
        return choice

    def texts(self, name: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Return a list of texts, none of them twice."""
        items = self._get_field(name, list, "a list of texts", default)
        for item in items:
            if not isinstance(item, str) or len(item) > MAX_TEXT:
                raise self._unfit_error(name, item, "a list of texts")
            if list(items).count(item) > 1:
                raise self.wrong(name, f"'{item:.{SHOWN}}' is there twice", "name it once")
        return tuple(items)

    def section(self, name: str) -> Section:
        """Return a table of it, an empty one where it is missing."""
        return Section(self.file, self.path(name), self._get_field(name, dict, "a table", {}))

    def sections(self, name: str) -> Iterator[Section]:
        """Yield the tables of an array of tables, none where it is missing."""
        for number, item in enumerate(self._get_field(name, list, "an array of tables", [])):
            if not isinstance(item, dict):
                raise self._unfit_error(f"{name}[{number}]", item, "a table")
            yield Section(self.file, self.path(f"{name}[{number}]"), item)

    def mapping(self, name: str, is_value: Callable[[object], bool], expected: str) -> dict[str, Any]:
        """Return a table of plain values."""
        table: dict[str, Any] = self._get_field(name, dict, "a table", {})
        for key, value in table.items():
            if not is_value(value):
                raise self._unfit_error(f"{name}.{key:.{SHOWN}}", value, expected)
        return table

    def _get_field(self, name: str, kind: type, expected: str, default: Any = None) -> Any:
        value = self.values.get(name, default)
        if value is None:
            raise self.wrong(name, "it is missing", f"write {expected}")
        if not isinstance(value, kind) and value is not default:
            raise self._unfit_error(name, value, expected)
        return value

    def _unfit_error(self, name: str, value: object, expected: str) -> TargetError:
        return self.wrong(name, f"{str(value)[:SHOWN]!r} is not what it takes", f"write {expected}")
