"""The first difference between two contracts, as its path and both values; texts for people may differ."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

__all__ = ["first_difference"]

LONGEST = 60  # characters of a value that are shown


def first_difference(recorded: Any, made: Any, *, by: str = "the export gives", leave_out: Collection[str] = ()) -> str:
    """Return the first difference of a contract from the one that its export gives, as a clause, "" for none.

    Args:
        recorded: What a file says, a dataclass.
        made: What it has to say.
        by: Who says so, and the verb.
        leave_out: Fields that are not compared.
    """
    path, there, other = next(_find_differences(recorded, made, "", leave_out), ("", "", ""))
    return f"{path} {there}, and {by} {other}" if path else ""


def _find_differences(
    recorded: Any, made: Any, at: str, leave_out: Collection[str] = ()
) -> Iterator[tuple[str, str, str]]:
    """Yield where values differ, as a path, with what is there and what has to be."""
    if dataclasses.is_dataclass(made) and type(recorded) is type(made):
        for field in dataclasses.fields(made):
            if "text" not in field.metadata and field.name not in leave_out:
                path = f"{at}.{field.name}" if at else field.name
                yield from _find_differences(getattr(recorded, field.name), getattr(made, field.name), path)
    elif isinstance(made, tuple) and isinstance(recorded, tuple):
        if len(recorded) != len(made):
            yield at, f"has {len(recorded)} parts", str(len(made))
        for place, pair in enumerate(zip(recorded, made, strict=False)):
            yield from _find_differences(*pair, f"{at}[{place}]")
    elif isinstance(made, Mapping) and isinstance(recorded, Mapping):
        for name in dict.fromkeys((*made, *recorded)):
            path = f"{at}.{_short_json(name)[1:-1]}"
            if name in recorded and name in made:
                yield from _find_differences(recorded[name], made[name], path)
            else:
                yield path, *(("is missing", _short_json(made[name])) if name in made else ("is there", "none"))
    elif _is_other(recorded, made):
        yield at, f"is {_short_json(recorded)}", _short_json(made)


def _is_other(recorded: Any, made: Any) -> bool:
    """Whether two values differ; NaN is NaN, and true is no number."""
    return type(recorded) is not type(made) or (recorded != made and not (recorded != recorded and made != made))


def _short_json(value: Any) -> str:
    """Return a value as JSON, in ASCII and not too long."""
    text = json.dumps(value, default=vars)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
