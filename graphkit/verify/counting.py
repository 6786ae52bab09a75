"""Runs that are counted while they go: the model, which run of how many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from graphkit.runtime.session import Runner

__all__ = ["Counted", "numbered"]

T = TypeVar("T")
Progress = Callable[[str], None]


def numbered(items: Sequence[T], what: str, progress: Progress, unit: str = "run") -> Iterator[T]:
    """Yield items, each after its number was told: `proving: run 3 of 14`."""
    for number, item in enumerate(items, start=1):
        progress(f"{what}: {unit} {number:,} of {len(items):,}")
        yield item


class Counted:
    """A session that tells the number of each run before it starts.

    Args:
        session: The session.
        what: What is done.
        total: How many runs there will be, where none fails: those that fail are made up for.
        progress: Called with the text.
    """

    def __init__(self, session: Runner, what: str, total: int, progress: Progress) -> None:
        self.label = session.label
        self._session, self._what, self._total, self._progress = session, what, total, progress
        self._number = 0

    @property
    def inputs(self) -> Sequence[str]:
        """Names, in order."""
        return self._session.inputs

    @property
    def outputs(self) -> Sequence[str]:
        """Names, in order."""
        return self._session.outputs

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return every output by name."""
        self._number += 1
        more = f" of {self._total:,}" if self._number <= self._total else ""
        self._progress(f"{self._what}: run {self._number:,}{more}")
        return self._session.run(feed)
