"""The state of a bundle with only as many slots as are needed, which a host may give."""

from __future__ import annotations

import math

import numpy as np

from graphkit.contract.bundle import BundleContract, StateTensor
from graphkit.host.bundle_state import BundleState

__all__ = ["FEWER_SLOTS", "FewerSlots", "spoil"]

FEWER_SLOTS = "fewer slots change nothing"  # the check that takes them


def spoil(array: np.ndarray) -> None:
    """Fill an array with NaN, and with 1 where its dtype has none."""
    array[...] = np.nan if array.dtype.kind == "f" else 1


class FewerSlots(BundleState):
    """State of which each symbolic tensor has no more slots than it is given: none at first.

    Args:
        contract: What says how it lies.
        block: Slots come in multiples of it.

    Attributes:
        block: The same.
        slots: How many each symbolic tensor has.

    Raises:
        UsageError: There is no memory for it.
    """

    def __init__(self, contract: BundleContract, block: int) -> None:
        super().__init__(contract)
        self.block, self.slots = block, 0

    def shape(self, state: StateTensor, rows: int | None = None) -> tuple[int, ...]:
        """Return the dims of a state as it is: those of slots that are a symbol, with as many as it has."""
        dims = super().shape(state, rows)
        if not state.symbolic:
            return dims
        return tuple(self.slots if axis == state.axis else size for axis, size in enumerate(dims))

    def give(self, count: int) -> None:
        """Give symbolic tensors slots for so many tokens, spoilt ones; where that is more, their rows move apart."""
        if count <= self.slots:
            return
        states = [state for state in self.contract.states if state.symbolic]
        before = [self[state.name].copy() for state in states]
        most = min(length.most for length in self.contract.lengths)
        self.slots = min(math.ceil(count / self.block) * self.block, most)
        self.version += 1
        for state, kept in zip(states, before, strict=True):
            place = self.view(state)
            spoil(place)
            place[tuple(map(slice, kept.shape))] = kept
