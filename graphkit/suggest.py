"""Words of messages: what is meant by a name that does not exist, and counts of things."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable


def count_things(count: int, text: str) -> str:
    """Return a text with its number: `1 node removed` or `3 nodes removed` for "node(s) removed"."""
    return f"{count:,} {text.replace('(s)', '' if count == 1 else 's')}"


MOST = 20_000  # names to look through, and
LONGEST = 300  # characters of one: comparing takes the product of two lengths
MEANT = 3  # names that one may have meant
LISTED = 16  # names of those that there are


def did_you_mean(wanted: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return `did you mean 'batch_size'?`, or where no name is close `otherwise`, or which names there are.

    Example:
        >>> did_you_mean("batch", ["batch_size", "sequence_length"])
        "did you mean 'batch_size'?"
        >>> did_you_mean("x", ["batch_size", "sequence_length"])
        'there are batch_size, sequence_length'
    """
    names = list(dict.fromkeys(known))
    if meant := _close_names(wanted, names):
        quoted = (f"'{name}'" for name in meant)
        return f"did you mean {' or '.join(quoted)}?"
    if otherwise:
        return otherwise
    more = f" and {len(names) - LISTED:,} more" if len(names) > LISTED else ""
    return f"there are {', '.join(names[:LISTED]) or 'none'}{more}"


def _close_names(wanted: str, names: list[str]) -> list[str]:
    """Return the names that are like another one, the closest first; also those that it is a part of."""
    plain = wanted.casefold()[:LONGEST]
    by_plain: dict[str, str] = {}
    for name in itertools.islice(names, MOST):
        if len(name) <= LONGEST:
            by_plain.setdefault(name.casefold(), name)
    close = difflib.get_close_matches(plain, by_plain, MEANT)
    if len(plain) >= MEANT:
        close += sorted((name for name in by_plain if plain in name and name not in close), key=len)
    return [by_plain[name] for name in close[:MEANT]]
