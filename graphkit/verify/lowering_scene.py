"""What is run to find out why host and lowered models differ from the originals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.contract import Port
from graphkit.host import Host
from graphkit.verify.original_pipeline import Reference

__all__ = ["NOISE", "STEPS", "AlteredHost", "Scene"]

STEPS = 4  # that are looked into
NOISE = 3.0  # standard deviation of what takes the place of something that must not count

Alter = Callable[[Port, Sequence[int], np.ndarray], np.ndarray]
Differ = Callable[[np.ndarray, np.ndarray], bool]


class AlteredHost(Host):
    """A host whose inputs can be altered.

    Attributes:
        alter: Gives another array for an input, from the port, the token ids and the array; None for none.
    """

    alter: Alter | None = None

    def _input(self, port: Port, ids: list[int]) -> np.ndarray:
        made = super()._input(port, ids)
        return made if self.alter is None else self.alter(port, ids, made)


@dataclass(frozen=True, eq=False)
class Scene:
    """What is run to find causes.

    Attributes:
        host: The host.
        reference: The original pipeline.
        source: Token ids of the source.
        tokens: What the decoder is given.
        user: Inputs that the caller makes.
        differ: Whether an array is not what it should be, that being the second.
    """

    host: AlteredHost
    reference: Reference
    source: list[int]
    tokens: list[int]
    user: Mapping[str, np.ndarray]
    differ: Differ
