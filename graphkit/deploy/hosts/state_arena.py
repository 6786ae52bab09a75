"""The state of a bundle in memory: one arena, each tensor a view of it at its offset."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from graphkit.deploy.contract.bundle_contract import ALIGNMENT, BundleContract, StateTensor
from graphkit.errors import UsageError

__all__ = ["BundleState"]


def _zeros(size: int) -> np.ndarray:
    return np.zeros(size, np.uint8)


class BundleState(Mapping[str, np.ndarray]):
    """The state of one user of a bundle: each tensor by name, as a view of the arena.

    Before the first run a state has all rows, and what is written there is what the first run reads of the rows that it
    has; where that would be lost, because a method that starts a sequence gives it another value, it is read-only.

    Args:
        contract: What says how it lies.
        initial: The initial values of states of which they are not one number, by name.
        allocate: Gives so many bytes of 0.

    Attributes:
        contract, initial: The same.
        lengths: How many slots are in use, by name: int64 arrays of one element, which methods read.
        version: Another number whenever a state has got another place or other dims.

    Raises:
        UsageError: There is not so much memory.
    """

    def __init__(
        self,
        contract: BundleContract,
        initial: Mapping[str, np.ndarray] = {},
        allocate: Callable[[int], np.ndarray] = _zeros,
    ) -> None:
        self.contract, self.initial, self._allocate = contract, initial, allocate
        self.lengths = {length.name: np.zeros(1, np.int64) for length in contract.lengths}
        self.version = 0
        self._rows = 0
        self._states = {state.name: state for state in contract.states}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._turn = dict.fromkeys(self._states, 0)  # of two places, the one that holds a state that swaps
        self._arena = self._aligned()
        self._spare: np.ndarray | None = None
        self._started = _started_states(contract)
        for state in contract.states:
            if state.axis is None and state.initial != 0:
                self.view(state, state.shape)[...] = self.initial_of(state)

    def __getitem__(self, name: str) -> np.ndarray:
        """Return a state, a view: all slots of the rows in use, or the tensor last written."""
        view = self.view(self._states[name])
        if not self.rows and (self._states[name].axis is not None or name in self._started):
            view.flags.writeable = False
        return view

    def initial_of(self, state: StateTensor) -> np.ndarray:
        """Return the initial value of a state, which broadcasts to its shape."""
        number = self.initial.get(state.name, 0) if state.initial is None else state.initial
        return np.asarray(number, state.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    @property
    def rows(self) -> int:
        """How many rows are in use; 0 before the first run."""
        return self._rows

    @rows.setter
    def rows(self, rows: int) -> None:
        self.version += rows != self._rows
        kept = self._before_first(rows) if not self._rows else {}
        self._rows = rows
        for name, array in kept.items():  # of all rows, those in use move together
            self.view(self._states[name])[...] = array

    def _before_first(self, rows: int) -> dict[str, np.ndarray]:
        """Return the rows of states that no method has written yet."""
        states = [s for s in self._states.values() if s.axis is None and s.batch is not None]
        return {
            state.name: self.view(state, state.shape).take(range(rows), state.batch)
            for state in states
            if state.name not in self._shapes and rows
        }

    def moves(self, name: str) -> bool:
        """Whether a state has two places, so that each run writes it to another."""
        return bool(name) and self._states[name].update == "swap"

    @property
    def address(self) -> int:
        """Where the arena begins in memory."""
        return int(self._arena.ctypes.data)

    def shape(self, state: StateTensor) -> tuple[int, ...]:
        """Return the dims of a state as it is."""
        if state.axis is None and state.name in self._shapes:
            return self._shapes[state.name]
        if not self.rows and state.axis is None:
            return state.shape
        return tuple(self.rows if axis == state.batch else size for axis, size in enumerate(state.shape))

    def view(
        self, state: StateTensor, shape: Sequence[int] | None = None, *, spare: bool = False, after: bool = False
    ) -> np.ndarray:
        """Return a view of where a state lies.

        Args:
            state: Which.
            shape: Its dims, if not those that it has.
            spare: Whether it is that of the other arena, which `exchange` takes.
            after: Whether it is where a method writes it: of a state that swaps, the other place.

        Raises:
            UsageError: It has no room for these dims.
        """
        turn = self._turn[state.name]
        place = (turn + after) % state.places
        offset = state.offset + place * state.stride
        if spare and self._spare is None:
            self._spare = self._aligned()
        arena = self._spare if spare and self._spare is not None else self._arena
        dims = self.shape(state) if shape is None else tuple(shape)
        if math.prod(dims) * np.dtype(state.dtype).itemsize > state.bytes:
            raise UsageError(f"state '{state.name}' is {list(dims)}, and has room for {list(state.shape)}")
        view: np.ndarray = np.ndarray(dims, state.dtype, arena.data, offset)
        return view

    def in_use(self, state: StateTensor) -> np.ndarray:
        """Return a view of a state as a method reads it: where its slots come first, only those in use."""
        view = self[state.name]
        return view[: state.in_use(int(self.lengths[state.length][0]))] if state.prefix else view

    def written(self, state: StateTensor, shape: Sequence[int]) -> None:
        """Take note that a method has replaced a state as a whole."""
        self.version += self._shapes.get(state.name) != tuple(shape)
        self._shapes[state.name] = tuple(shape)
        if state.update == "swap":
            self._turn[state.name] = 1 - self._turn[state.name]

    def exchange(self) -> None:
        """Let the other arena be the state."""
        assert self._spare is not None
        self._arena, self._spare = self._spare, self._arena
        self.version += 1

    def clear(self, lengths: Collection[str] | None = None) -> None:
        """Let no slot be in use, of these lengths or of all; then no row is either."""
        for name, length in self.lengths.items():
            if lengths is None or name in lengths:
                length[0] = 0
        if lengths is None:
            self.rows = 0
            self._shapes.clear()
            self.version += 1

    def _aligned(self) -> np.ndarray:
        size = self.contract.arena
        try:
            memory = self._allocate(size + ALIGNMENT)
        except (MemoryError, ValueError, OSError) as error:
            problem = f"there is no memory for {size:,} bytes of state - make a bundle of fewer slots"
            raise UsageError(problem) from error
        start = -memory.ctypes.data % ALIGNMENT
        arena: np.ndarray = memory[start : start + size]
        return arena

    def restart(self, names: Iterable[str]) -> None:
        """Give those of these states that swap their initial value."""
        for name in filter(self.moves, names):
            self._shapes.pop(name, None)
            state = self._states[name]
            self.view(state)[...] = self.initial_of(state)
            self.version += 1


def _started_states(contract: BundleContract) -> frozenset[str]:
    """Return the states to which a method that starts a sequence gives a value."""
    methods = [method for method in contract.methods if method.when == "once"]
    return frozenset(name for method in methods for name, access in method.access.items() if "write" in access)
