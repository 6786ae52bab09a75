"""How far long work has come: its current step, and the share of the work that is done before that."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Progress", "Step", "portion"]

Progress = Callable[[str], None]


class Step(str):
    """The name of a step.

    Attributes:
        share: The share of the work that is done before it, from 0 to 1.
    """

    share: float

    @classmethod
    def at(cls, share: float, name: str) -> Step:
        """Return a step with a share."""
        step = cls(name)
        step.share = share
        return step


def portion(progress: Progress, begin: float, end: float) -> Progress:
    """Return what tells the steps of a portion of some work.

    Args:
        progress: Called with the steps of the whole work.
        begin: The share of the whole work that is done before the portion.
        end: The same after it.
    """

    def tell(name: str) -> None:
        progress(Step.at(begin + (end - begin) * name.share, name) if isinstance(name, Step) else name)

    return tell
