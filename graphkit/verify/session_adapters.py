"""Sessions that look like others: with other names, or with fewer outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from graphkit.runtime.session import Runner

__all__ = ["Called", "Only"]


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
