"""The lengths at which an encoder runs."""

from __future__ import annotations

from functools import lru_cache

from graphkit.constraints.symbol_sizes import symbol_roles
from graphkit.constraints.triggers import SizeCheck
from graphkit.graph.types import declared_type
from graphkit.model import Model

__all__ = ["nearest_length"]

REACH = 1024  # how far a length is looked for at which the original runs


@lru_cache(maxsize=4)
def _size_check(encoder: Model) -> SizeCheck:
    return SizeCheck(encoder)


def nearest_length(encoder: Model, length: int) -> int | None:
    """Return the length of a source at which an encoder runs that is nearest to this one, None for none."""
    ids = encoder.roles.first("tokens")
    declared = declared_type(ids) if ids is not None else None
    fixed = declared.dims[-1] if declared is not None and declared.dims else None
    if isinstance(fixed, int):
        return fixed
    roles = symbol_roles(encoder)
    names = frozenset(name for name, role in roles.items() if role in ("encoder", "sequence", "total"))
    rows = dict.fromkeys((name for name in roles if roles[name] == "batch"), 1)
    return _size_check(encoder).nearest(rows, names, length, REACH)
