"""The reference host: embedding lookup, masks, cache slots and a greedy loop, driven by `contract.json` alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from graphkit.contract import Contract, Method, Port, State, Table, read_contract
from graphkit.errors import ModelError, UsageError
from graphkit.host.masks import slots_mask, source_mask
from graphkit.runtime.limits import machine_memory

__all__ = ["Host", "Run"]

Arrays = dict[str, np.ndarray]
Run = Callable[[Method, Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


class Host:
    """Runs lowered models.

        host = Host("out")
        host.start([12, 7, 2])
        logits = host.step(0)

    Args:
        folder: The folder of `contract.json`, or the file itself.
        run: What runs a method; onnxruntime by default.

    Attributes:
        contract: What it follows.
        state: The state, by name: written in place.
        position: Tokens in the cache.
        valid: Valid positions of the source.

    Raises:
        ModelError: The contract or a file of it is missing or broken, or asks for more memory than there is.
    """

    def __init__(self, folder: str | Path, run: Run | None = None) -> None:
        path = Path(folder)
        self.folder = path.parent if path.suffix == ".json" else path
        self.contract: Contract = read_contract(path if path.suffix == ".json" else path / "contract.json")
        self.tables = {table.name: _rows(self.folder, table) for table in self.contract.tables}
        _check_memory(self.contract, path)
        self.state = {state.name: np.zeros(state.shape, state.dtype) for state in self.contract.states}
        self.axis = {state.name: state.axis for state in self.contract.states}
        self.given: dict[str, np.ndarray] = {}
        self.position, self.valid = 0, 0
        self.run = run if run is not None else _Sessions(self.folder)

    def start(self, source: Sequence[int] = (), **user: np.ndarray) -> Arrays:
        """Forget the state, and run what runs once for a source.

        Args:
            source: Token ids of the source; none for a decoder-only model.
            user: Inputs that the caller makes, by name.

        Returns:
            The outputs of the methods that ran, by name.

        Raises:
            UsageError: The source is empty where there must be one, or too long.
        """
        for array in self.state.values():
            array[...] = 0
        self.position = 0
        length = self.contract.sizes["source"]
        if self.contract.takes_text and not 0 < len(source) <= length:
            raise UsageError(f"the source has {len(source)} tokens - it takes 1 to {length}")
        self.valid = len(source) or length
        self.given = dict(user)
        outputs: Arrays = {}
        for method in self.contract.methods:
            if method.when == "once":
                outputs.update(self._call(method, list(source)))
        return outputs

    def step(self, token: int) -> np.ndarray:
        """Run one token through the decoder and return its logits, [vocabulary].

        Raises:
            UsageError: The cache is full.
        """
        if self.position >= self.contract.sizes["positions"]:
            raise UsageError(f"the cache is full: it has {self.contract.sizes['capacity']} slots")
        for method in self.contract.methods:
            if method.when == "step":
                outputs = self._call(method, [token])
                scores = next(port.name for port in method.outputs if not port.writes)
        self.position += 1
        return np.asarray(outputs[scores]).reshape(-1)

    def generate(self, source: Sequence[int], prompt: Iterable[int], steps: int, end: int | None = None) -> list[int]:
        """Return the tokens that greedy decoding gives.

        Args:
            source: Token ids of the source; none for a decoder-only model.
            prompt: What the decoder starts with: a start token, or a prompt.
            steps: The most tokens to give.
            end: A token to stop at.

        Raises:
            UsageError: The prompt is empty, or it or the source is too long.
        """
        start = list(prompt)
        if not start:
            raise UsageError("the prompt is empty - give at least the token that decoding starts with")
        self.start(source)
        for token in start:
            logits = self.step(token)
        tokens = [int(logits.argmax())]
        while len(tokens) < steps and tokens[-1] != end and self.position < self.contract.sizes["positions"]:
            tokens.append(int(self.step(tokens[-1]).argmax()))
        return tokens

    def _call(self, method: Method, ids: list[int]) -> Arrays:
        feed = {port.name: self._input(port, ids) for port in method.inputs}
        outputs = dict(self.run(method, feed))
        for port in method.outputs:
            self.given[f"{method.name}/{port.name}"] = outputs[port.name]
            if port.writes:
                self._write(port.writes, outputs[port.name])
        return outputs

    def _input(self, port: Port, ids: list[int]) -> np.ndarray:
        source, contract = port.source, self.contract
        assert source is not None
        if source.kind == "state":
            return self.state[source.of]
        if source.kind == "output":
            return self.given[source.of]
        if source.kind == "user":
            if port.name not in self.given:
                raise UsageError(f"input '{port.name}' is missing - give it to start()")
            return self.given[port.name]
        if source.kind == "slots_mask":
            mask = slots_mask(self.position, contract.sizes["capacity"], source.window, contract.floor)
            return _filled(mask, port)
        if source.kind == "source_mask":
            return _filled(source_mask(self.valid, contract.sizes["source"], contract.floor), port)
        rows = self.tables[source.of]
        if source.kind == "rows":
            row = self.position if source.by == "position" else self.valid - 1
            return np.ascontiguousarray(rows[row]).reshape(port.shape)
        chosen = ids if source.by != "type" else [0] * len(ids)
        pad = contract.tokens["pad"] if source.by != "type" else 0
        padded = chosen + [pad or 0] * (_count(port, rows) - len(ids))
        if not 0 <= min(padded) <= max(padded) < len(rows):
            raise UsageError(f"table '{source.of}' has rows 0 to {len(rows) - 1}, and the tokens are {padded}")
        return np.ascontiguousarray(rows[np.array(padded)]).reshape(port.shape)

    def _write(self, name: str, new: np.ndarray) -> None:
        """Write what is new into the next slot, or all of a state that does not grow."""
        axis, state = self.axis[name], self.state[name]
        if axis is None:
            state[...] = new
        elif self.position < state.shape[axis]:
            state[(slice(None),) * axis + (self.position,)] = np.take(new, 0, axis)


def _count(port: Port, rows: np.ndarray) -> int:
    """Return how many rows an input takes."""
    return int(np.prod(port.shape)) // int(np.prod(rows.shape[1:]))


def _filled(mask: np.ndarray, port: Port) -> np.ndarray:
    """Return a mask over the last axis, the same for all others."""
    return np.ascontiguousarray(np.broadcast_to(mask.astype(port.dtype), port.shape))


def _check_memory(contract: Contract, path: Path) -> None:
    ports = [port for method in contract.methods for port in (*method.inputs, *method.outputs)]
    tensors: list[State | Port] = [*contract.states, *ports]
    size = sum(math.prod(tensor.shape) * np.dtype(tensor.dtype).itemsize for tensor in tensors)
    if 0 < machine_memory() < size:
        raise ModelError(
            f"its states, inputs and outputs take {size:,} bytes, more than this machine has",
            file=str(path),
            hint="lower again with a smaller --max-cache-len or --src-len",
        )


def _rows(folder: Path, table: Table) -> np.ndarray:
    try:
        return np.memmap(folder / table.file, table.dtype, "r", table.offset, (table.rows, *table.shape))
    except (OSError, ValueError) as error:  # it is missing, or shorter than the table
        raise ModelError(f"table '{table.name}' cannot be read: {error}", file=str(folder / table.file)) from error


class _Sessions:
    """Methods in onnxruntime, each opened when it is first run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: dict[str, Run] = {}

    def __call__(self, method: Method, feed: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        from graphkit.runtime.session import Session

        if method.name not in self.opened:
            session = Session(self.folder / method.file, optimize=True)
            self.opened[method.name] = lambda _, feed: session.run(feed)
        return self.opened[method.name](method, feed)
