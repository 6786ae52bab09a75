"""Joining tables with one entry for each operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

__all__ = ["joined"]

Entry = TypeVar("Entry")


def joined(*tables: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return all entries of some tables.

    Raises:
        ValueError: Two of them name the same operator.

    Example:
        >>> joined({"Relu": 1}, {"Add": 2})
        {'Relu': 1, 'Add': 2}
    """
    result: dict[str, Entry] = {}
    for table in tables:
        if twice := sorted(result.keys() & table.keys()):
            raise ValueError(f"{', '.join(twice)}: registered twice")
        result.update(table)
    return result
