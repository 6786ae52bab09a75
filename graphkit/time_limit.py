"""A limit of time on work of this process, kept by the loops that may take long: rewriting, and inferring shapes.

    with time_limit("folding", 5.0):
        fold(model)

Runs of a model have limits of their own, for they go on in a process that can be ended: see `graphkit.runtime.limits`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from graphkit.errors import GraphkitError

__all__ = ["OutOfTimeError", "check_time", "time_limit"]


class OutOfTimeError(GraphkitError):
    """Work that took longer than it may."""


@dataclass(frozen=True)
class _Limit:
    what: str
    seconds: float
    end: float


_CURRENT: ContextVar[_Limit | None] = ContextVar("time_limit", default=None)


@contextlib.contextmanager
def time_limit(what: str, seconds: float | None) -> Iterator[None]:
    """Let `check_time` raise an error that names the work, once so many seconds have passed; None for no limit."""
    token = _CURRENT.set(None if seconds is None else _Limit(what, seconds, time.monotonic() + seconds))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def check_time() -> None:
    """Check that the work may go on.

    Raises:
        OutOfTimeError: Its time is over.
    """
    limit = _CURRENT.get()
    if limit is not None and time.monotonic() > limit.end:
        raise OutOfTimeError(f"{limit.what} does not finish in {limit.seconds:g} s - raise --timeout to allow more")
