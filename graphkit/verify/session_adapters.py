"""Sessions that look like others: with other names, with fewer outputs, or with runs that are counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from graphkit.runtime.session import Runner

__all__ = ["Called", "Counted", "Only", "numbered"]


class Called:
    """A session whose inputs and outputs go by other names.

    Args:
        session: The session.
        names: Those by which they go, by the names that they have, where these differ.
    """

    def __init__(self, session: Runner, names: Mapping[str, str]) -> None:
        self.session, self.names, self.label = session, names, session.label
        self.own = {names.get(name, name): name for name in session.inputs}

    @property
    def inputs(self) -> Sequence[str]:
        """Names, in order."""
        return list(self.own)

    @property
    def outputs(self) -> Sequence[str]:
        """Names, in order."""
        return [self.names.get(name, name) for name in self.session.outputs]

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return every output by name."""
        found = self.session.run({self.own[name]: array for name, array in feed.items()})
        return {self.names.get(name, name): array for name, array in found.items()}


class Only:
    """A session with some of its outputs."""

    def __init__(self, session: Runner, outputs: Sequence[str]) -> None:
        self.session, self.outputs, self.label = session, outputs, session.label

    @property
    def inputs(self) -> Sequence[str]:
        """Names, in order."""
        return self.session.inputs

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return these outputs by name."""
        found = self.session.run(feed)
        return {name: found[name] for name in self.outputs}


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
