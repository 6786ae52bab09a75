"""The state of a bundle in memory, one arena, and its methods in onnxruntime, which read and write it where it lies."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from msgspec import Struct

from graphkit.contract.bundle_contract import ALIGNMENT, BundleContract, BundleMethod, BundlePort, StateTensor
from graphkit.errors import ModelError, UsageError
from graphkit.runtime.providers import CPU, Provider
from graphkit.runtime.session import BoundSession, DeviceArray, IsolatedBinding, IsolatedSession, Session

Binding = BoundSession | IsolatedBinding


class BundleState(Mapping[str, np.ndarray]):
    """The state of one user of a bundle: each tensor by name, as a view of the arena.

    Before the first run a state has all rows, and what is written there is what the first run reads of the rows that it
    has; where that would be lost, because a method that starts a sequence gives it another value, it is read-only.

    A state that is in the memory of a device is copied to the arena when it is asked for, and back at the next run that
    reads it: ask for it again after a run.

    Args:
        contract: What says how it lies.
        initial: The initial values of states of which they are not one number, by name.
        allocate: Gives so many bytes of 0.

    Attributes:
        lengths: How many slots are in use, by name: int64 arrays of one element, which methods read.
        version: Another number whenever a state has got another place or other dims.
        devices: Room in the memory of a device, by state, place and arena; None where it could not be had.

    Raises:
        UsageError: There is not so much memory.
    """

    def __init__(
        self,
        contract: BundleContract,
        initial: Mapping[str, np.ndarray] = {},
        allocate: Callable[[int], np.ndarray] = lambda size: np.zeros(size, np.uint8),
    ) -> None:
        self.contract, self.initial, self._allocate = contract, initial, allocate
        self.lengths = {length.name: np.zeros(1, np.int64) for length in contract.lengths}
        self.version = 0
        self._rows = 0
        self._states = {state.name: state for state in contract.states}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._turn = dict.fromkeys(self._states, 0)  # of two places, the one that holds a state that swaps
        self._arena = self._aligned_array()
        self._spare: np.ndarray | None = None
        self._side = 0  # which of the two arenas is the state
        self._there: dict[str, DeviceArray] = {}  # states of which a device has what is newest, and not the arena
        self.devices: dict[tuple[str, int, int], DeviceArray | None] = {}
        accesses = [each for method in contract.methods if method.when == "once" for each in method.access.items()]
        self._started = {name for name, access in accesses if "write" in access}  # by what starts a sequence
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
        return np.asarray(self.initial.get(state.name, 0) if state.initial is None else state.initial, state.dtype)

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
        is_first = rows and not self._rows  # of states that no method has written yet, the rows in use move together
        moving = [s for s in self._states.values() if s.axis is None and s.batch is not None] if is_first else []
        moving = [state for state in moving if state.name not in self._shapes]
        kept = [self.view(state, state.shape).take(range(rows), state.batch) for state in moving]
        self._rows = rows
        for state, array in zip(moving, kept, strict=True):
            self.view(state)[...] = array

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
        """Return a view of where a state lies, with these dims or its own; UsageError where it has no room for them.

        With `spare` it lies in the other arena, which `exchange` takes. With `after` it is where a method writes it,
        which of a state that swaps is the other place.
        """
        if state.name in self._there:
            self._fetch(state)
        offset = state.offset + self._place(state, after) * state.stride
        if spare and self._spare is None:
            self._spare = self._aligned_array()
        arena = self._spare if spare and self._spare is not None else self._arena
        dims = self.shape(state) if shape is None else tuple(shape)
        _check_room(state, dims)
        view: np.ndarray = np.ndarray(dims, state.dtype, arena.data, offset)
        return view

    def _place(self, state: StateTensor, after: bool) -> int:
        return (self._turn[state.name] + after) % state.places

    def in_use(self, state: StateTensor) -> tuple[int, ...]:
        """Return the dims of a state as a method reads it: where its slots come first, only those in use."""
        shape = self.shape(state)
        return (state.in_use(int(self.lengths[state.length][0])), *shape[1:]) if state.prefix else shape

    def on_device(
        self, state: StateTensor, memory: object, *, spare: bool = False
    ) -> tuple[DeviceArray, DeviceArray] | None:
        """Return where a state lies on a device, and where a method writes it; None if it cannot be there.

        With `spare` it is written into the other arena, which `exchange` takes.
        """
        content = self._content(state)
        if memory is None or not content.size:
            return None
        places = []
        for after, side in ((False, self._side), (True, self._side ^ spare)):
            key = state.name, self._place(state, after), side
            if key not in self.devices:
                try:
                    self.devices[key] = DeviceArray(memory, content)
                except Exception:  # onnxruntime's errors have no common base
                    self.devices[key] = None
            elif not after and state.name not in self._there and (there := self.devices[key]) is not None:
                there.write(content)
            places.append(self.devices[key])
        now, new = places
        if now is None or new is None:
            return None
        self._there[state.name] = now
        return now, new

    def settle(self, memories: Mapping[str, object]) -> None:
        """Let these states be up to date where a method is bound to them: on a device, or in the arena for None."""
        for name, memory in memories.items():
            if memory is None and name in self._there:
                self._fetch(self._states[name])
            elif memory is not None and name not in self._there:
                self.on_device(self._states[name], memory)

    def note_device(self, name: str) -> None:
        """Take note that a method has written a state on the device, where it is now."""
        written = self.devices[name, self._turn[name], self._side]
        assert written is not None
        self._there[name] = written

    def _content(self, state: StateTensor) -> np.ndarray:
        offset = state.offset + self._place(state, after=False) * state.stride
        content: np.ndarray = np.ndarray(state.shape, state.dtype, self._arena.data, offset)
        return content

    def _fetch(self, state: StateTensor) -> None:
        self._content(state)[...] = self._there[state.name].read()
        del self._there[state.name]

    def note_written(self, state: StateTensor, shape: Sequence[int]) -> None:
        """Take note that a method has replaced a state as a whole."""
        self.version += self._shapes.get(state.name) != tuple(shape)
        self._shapes[state.name] = tuple(shape)
        if state.update == "swap":
            self._turn[state.name] = 1 - self._turn[state.name]

    def exchange(self) -> None:
        """Let the other arena be the state; there is none where all states are on a device."""
        if self._spare is not None:
            self._arena, self._spare = self._spare, self._arena
        self._side = 1 - self._side
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

    def _aligned_array(self) -> np.ndarray:
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
            self._there.pop(name, None)
            state = self._states[name]
            initial = np.broadcast_to(self.initial_of(state), state.shape)
            self.view(state)[...] = initial if state.batch is None else initial.take(range(self.rows), state.batch)
            self.version += 1


def _check_room(state: StateTensor, dims: Sequence[int]) -> None:
    if math.prod(dims) * np.dtype(state.dtype).itemsize > state.bytes:
        raise UsageError(f"state '{state.name}' is {list(dims)}, and has room for {list(state.shape)}")


@dataclass
class Sessions:
    """The sessions of a bundle, which its users share; each is opened when it is first run."""

    folder: Path
    threads: int  # threads inside an operator; 0 for onnxruntime's choice
    prepack: bool | None  # whether kernels may keep a copy of the weights; None for those of the files in `packed`
    optimize: bool  # whether onnxruntime may fuse operators
    packed: frozenset[str] = frozenset()  # whose kernels keep weights in the layout that they like
    open: type[Session | IsolatedSession] = Session
    provider: Provider = CPU
    opened: dict[str, Session | IsolatedSession] = field(default_factory=dict, repr=False)

    def of(self, method: BundleMethod) -> Session | IsolatedSession:
        """Return the session of a method's file. Raises ModelError where it does not load, or has other ports."""
        if method.file not in self.opened:
            prepack = method.file in self.packed if self.prepack is None else self.prepack
            path, provider = self.folder / method.file, self.provider
            self.opened[method.file] = self.open(
                path, optimize=self.optimize, threads=self.threads, prepack=prepack, provider=provider
            )
        session = self.opened[method.file]
        sides = ("inputs", method.inputs, session.inputs), ("outputs", method.outputs, session.outputs)
        for what, ports, there in sides:
            if odd := sorted({port.name for port in ports} ^ set(there)):
                problem = f"its {what} are not those that bundle.json says, such as '{odd[0]}'"
                raise ModelError(problem, file=session.label, hint="make the bundle again")
        return session


class _StatePorts(Struct, frozen=True):
    state: StateTensor
    inputs: tuple[str, ...]
    outputs: Mapping[str, BundlePort]  # by name; of those that replace it as a whole there is one
    is_prefix: bool  # whether the method takes the slots in use alone

    @property
    def names(self) -> list[str]:
        return [*self.inputs, *self.outputs]


class _Ports(Struct, frozen=True):
    """The ports of a method by how each is treated, which is the same at every run."""

    fed: tuple[BundlePort, ...]  # inputs that are neither state nor length
    lengths: tuple[BundlePort, ...]
    states: tuple[_StatePorts, ...]
    whole: tuple[BundlePort, ...]  # outputs that replace a state as a whole
    results: tuple[BundlePort, ...]  # outputs that are no state
    moves: bool  # whether a state has two places, so that each run writes it to another

    @classmethod
    def of(cls, method: BundleMethod, contract: BundleContract) -> _Ports:
        states = tuple(
            _StatePorts(
                contract.state(name),
                tuple(port.name for port in method.inputs if port.state == name),
                {port.name: port for port in method.outputs if port.state == name},
                contract.state(name).prefix and method.when != "init",
            )
            for name in dict.fromkeys(port.state for port in (*method.inputs, *method.outputs) if port.state)
        )
        whole = {port for each in states if each.state.axis is None for port in each.outputs.values()}
        return cls(
            tuple(port for port in method.inputs if port.kind not in ("", "state", "length")),
            tuple(port for port in method.inputs if port.kind == "length"),
            states,
            tuple(port for port in method.outputs if port in whole),
            tuple(port for port in method.outputs if not port.writes),
            any(each.outputs and each.state.update == "swap" for each in states),
        )


class _Prefix(Struct):
    """A state whose slots come first, as a method is bound to it."""

    ports: _StatePorts
    place: np.ndarray | DeviceArray  # where it lies: an array of all its slots, or a tensor in the memory of a device
    dims: tuple[int, ...]
    count: int = -1  # of how many slots they are bound to

    def bind(self, bound: Binding, count: int) -> None:
        if isinstance(self.place, DeviceArray) and isinstance(bound, BoundSession):
            bound.bind_device(self.place, (count, *self.dims[1:]), self.ports.inputs, [*self.ports.outputs])
        elif isinstance(self.place, np.ndarray):
            bound.bind_value(self.place[:count], self.ports.inputs, [*self.ports.outputs])
        self.count = count


class BoundMethods:
    """The methods of a bundle, bound to a state."""

    def __init__(self, contract: BundleContract, sessions: Sessions, state: BundleState) -> None:
        self.contract, self.sessions, self.state = contract, sessions, state
        self._bound: dict[str, Binding] = {}
        self._fed: dict[tuple[str, str], np.ndarray] = {}
        self._ports = {method.name: _Ports.of(method, contract) for method in contract.methods}
        self._prefixes: dict[str, list[_Prefix]] = {}
        self._memories: dict[str, dict[str, object]] = {}  # the memory of the device that has each state, by method
        self._results: dict[str, dict[BundlePort, tuple[int, ...]]] = {}  # dims of outputs that are no state
        self._bindings: dict[str, object] = {}  # the version of the state and the sizes that each method is bound to

    def run(
        self, method: BundleMethod, feeds: Mapping[str, np.ndarray] = {}, sizes: Mapping[str, int] = {}
    ) -> dict[str, np.ndarray]:
        """Run a method, its state where it lies; return its outputs that are no state.

        `sizes` are what the names in shapes stand for. Raises RunError where onnxruntime fails, UsageError where a
        state has no room for what the method gives.
        """
        bound, state, ports = self._session(method), self.state, self._ports[method.name]
        for port in ports.fed:
            key, fed = (method.name, port.name), feeds[port.name]
            if (kept := self._fed.get(key)) is None or kept.shape != fed.shape:  # arrays of its own are bound once
                kept = self._fed[key] = fed.copy()
            else:
                kept[...] = fed
            bound.bind_input(port.name, kept)
        known = state.version, tuple(sizes.items())
        if self._bindings.get(method.name) != known or ports.moves:
            self._bindings.pop(method.name, None)  # of what fails halfway nothing is known
            self._bind_state(method, bound, sizes)
            self._bindings[method.name] = known
        elif state.devices:
            state.settle(self._memories[method.name])
        after = {name: int(length[0]) for name, length in state.lengths.items()}
        for change in method.changes:
            after[change.length] += feeds[change.input].shape[change.axis]
        for prefix in self._prefixes[method.name]:
            count = prefix.ports.state.in_use(after[prefix.ports.state.length])
            if count != prefix.count:
                prefix.bind(bound, count)
        results = dict[str, np.ndarray]()  # which callers keep as long as they like
        for port, dims in self._results[method.name].items():
            try:
                results[port.name] = np.empty(dims, port.dtype)
            except (MemoryError, ValueError) as error:
                raise UsageError(f"there is no memory for '{port.name}', {port.dtype}{list(dims)}") from error
            bound.bind_value(results[port.name], (), (port.name,))
        bound.run()
        given = bound.free_outputs()
        for port in ports.whole:
            tensor, content = self.contract.state(port.writes), given.get(port.name)
            shape = _resolved_dims(port, sizes) if content is None else content.shape
            assert shape is not None
            if content is not None:  # onnxruntime has allocated it
                state.view(tensor, shape, after=True)[...] = content
            state.note_written(tensor, shape)
            if self._memories[method.name][tensor.name] is not None:
                state.note_device(tensor.name)
        if method.when == "once":  # logits of a long prompt are large: nothing is kept of them
            del self._bindings[method.name], self._prefixes[method.name], self._results[method.name]
        return {port.name: given[port.name] if port.name in given else results[port.name] for port in ports.results}

    def reorder(self, method: BundleMethod, indices: np.ndarray) -> None:
        """Let each row of the state be a copy of another: written to a second arena, which becomes the state."""
        bound, state = self._session(method), self.state
        ports = {each.state.name: each for each in self._ports[method.name].states}
        for port in self._ports[method.name].fed:
            bound.bind_input(port.name, indices)
        shapes, there = {}, []
        for name, each in ports.items():
            dims = state.in_use(each.state)
            shapes[name] = tuple(len(indices) if at == each.state.batch else size for at, size in enumerate(dims))
            after = dict.fromkeys(each.outputs, shapes[name])
            if self._bind_tensor(bound, each, bound.memory_of(each.names), dims, after, spare=True):
                there.append(name)
        bound.run()
        for tensor in self.contract.states:
            if tensor.name not in shapes:  # it has no rows
                state.view(tensor, spare=True)[...] = state[tensor.name]
        state.exchange()
        state.rows = len(indices)
        for name, shape in shapes.items():
            if ports[name].state.axis is None:
                state.note_written(ports[name].state, shape)
        for name in there:
            state.note_device(name)

    def _bind_state(self, method: BundleMethod, bound: Binding, sizes: Mapping[str, int]) -> None:
        """Bind the tensors of a method where they lie; those whose dims only a run tells stay free."""
        ports, state = self._ports[method.name], self.state
        prefixes = self._prefixes[method.name] = list[_Prefix]()
        memories = self._memories[method.name] = dict[str, object]()
        for port in ports.lengths:
            bound.bind_input(port.name, state.lengths[port.of])
        for each in ports.states:
            tensor, dims = each.state, state.shape(each.state)
            is_whole = tensor.axis is None
            after = {name: _resolved_dims(port, sizes) if is_whole else dims for name, port in each.outputs.items()}
            memory = None if None in after.values() else bound.memory_of(each.names)
            if each.is_prefix:
                places = state.on_device(tensor, memory)
                prefixes.append(_Prefix(each, state[tensor.name] if places is None else places[0], dims))
                is_there = places is not None
            else:
                is_there = self._bind_tensor(bound, each, memory, dims, after)
            memories[tensor.name] = memory if is_there else None
        results = self._results[method.name] = dict[BundlePort, tuple[int, ...]]()
        for port in ports.results:
            if (shape := _resolved_dims(port, sizes)) is None:
                bound.free_output(port.name)
            else:
                results[port] = shape

    def _bind_tensor(
        self,
        bound: Binding,
        ports: _StatePorts,
        memory: object,
        dims: Sequence[int],
        after: Mapping[str, tuple[int, ...] | None],
        *,
        spare: bool = False,
    ) -> bool:
        """Bind the ports of a state, with these dims before and after a run; return whether it lies on a device."""
        state, tensor = self.state, ports.state
        places = state.on_device(tensor, memory, spare=spare)
        if isinstance(bound, BoundSession) and places is not None:
            bound.bind_device(places[0], dims, ports.inputs, ())
            for name, shape in after.items():
                assert shape is not None
                _check_room(tensor, shape)
                bound.bind_device(places[1], shape, (), [name])
            return True
        for name in ports.inputs:
            bound.bind_input(name, state.view(tensor, dims))
        for name, shape in after.items():
            if shape is None:
                bound.free_output(name)
            else:
                bound.bind_output(name, state.view(tensor, shape, spare=spare, after=True))
        return False

    def _session(self, method: BundleMethod) -> Binding:
        if method.name not in self._bound:
            self._bound[method.name] = self.sessions.of(method).bound()
        return self._bound[method.name]


def _resolved_dims(port: BundlePort, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    dims = [sizes.get(dim) if isinstance(dim, str) else dim for dim in port.shape]
    return None if None in dims else tuple(dim for dim in dims if dim is not None)
