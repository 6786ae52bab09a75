"""How far long work has come: its current step, and the share of the work that is done before that."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Progress", "portion_of", "share_of", "with_share"]

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
