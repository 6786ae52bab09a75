"""Symbols: named integers, such as the dim `batch_size`, with bounds.

A name is a name, whatever its text: models call dims `-1`, `2*n` or `batch-size`. As text such a name is in quotes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from weakref import WeakValueDictionary

__all__ = ["INF", "WORD", "Bound", "Symbol"]

Bound = int | float  # an integer, or an infinity
INF = math.inf
WORD = r"[A-Za-z_][A-Za-z0-9_.:]*"
BARE = re.compile(rf"{WORD}|\?.*", re.DOTALL)  # what is unknown has a name that begins with `?`


class Symbol:
    """A named integer with its known range. Equal symbols are identical."""

    __slots__ = ("__weakref__", "key", "lower", "name", "text", "upper")
    _known: WeakValueDictionary[tuple[str, Bound, Bound], Symbol] = WeakValueDictionary()
    size = 1  # atoms in it

    name: str
    lower: Bound
    upper: Bound
    key: tuple[int, str, Bound, Bound]
    text: str

    def __new__(cls, name: str, lower: Bound, upper: Bound) -> Symbol:
        """Return the one symbol of this name and these bounds."""
        known = cls._known.get((name, lower, upper))
        if known is None:
            known = super().__new__(cls)
            known.name, known.lower, known.upper = name, lower, upper
            known.key = (0, name, lower, upper)
            known.text = name if BARE.fullmatch(name) else "'" + name.replace("'", "''") + "'"
            cls._known[(name, lower, upper)] = known
        return known

    def __reduce__(self) -> tuple[type[Symbol], tuple[str, Bound, Bound]]:
        return Symbol, (self.name, self.lower, self.upper)

    def __repr__(self) -> str:
        return self.text

    def evaluate(self, assignment: Mapping[str, int]) -> int:
        """Return its value; KeyError if it has none."""
        return assignment[self.name]
