"""Long work: its current step, the share of the work that is done before that, and a limit of its time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from graphkit.errors import GraphkitError

__all__ = ["OutOfTimeError", "Progress", "check_time", "portion_of", "share_of", "time_limit", "with_share"]

Progress = Callable[[str], None]


class _Step(str):
    """The name of a step, which knows the share of the work that is done before it."""

    share: float


def with_share(share: float, name: str) -> str:
    """Return the name of a step, with the share of the work that is done before it, from 0 to 1."""
    step = _Step(name)
    step.share = share
    return step


def share_of(name: str) -> float | None:
    """Return the share of the work that is done before a step, None where it is not known."""
    return name.share if isinstance(name, _Step) else None


def portion_of(progress: Progress, begin: float, end: float) -> Progress:
    """Return what tells the steps of a portion of some work.

    Args:
        progress: Called with the steps of the whole work.
        begin: The share of the whole work that is done before the portion.
        end: The same after it.
    """

    def tell(name: str) -> None:
        share = share_of(name)
        progress(name if share is None else with_share(begin + (end - begin) * share, name))

    return tell


# A limit of time on work of this process, kept by the loops that may take long: rewriting, and inferring shapes.
#
#     with time_limit("folding", 5.0):
#         fold(model)
#
# Runs of a model have limits of their own, for they go on in a process that can be ended: see
# `graphkit.runtime.limits`.


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
