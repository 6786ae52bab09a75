"""Dumps of a device or of a run in PyTorch: arrays by name, matched to the tensors of a model by name or by module."""

from __future__ import annotations

import contextlib
import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import IO

import numpy as np
from numpy.lib import format as npy

from graphkit.errors import ModelError, UsageError
from graphkit.graph.view import Value
from graphkit.runtime.limits import DEFAULT_LIMITS, Limits
from graphkit.suggest import did_you_mean
from graphkit.verify.layers.matching import module_of
from graphkit.verify.layers.side import Pair, Side

__all__ = ["ArrayFile", "match_dumps"]

SEPARATORS = re.compile(r"[/.]+")


def match_dumps(side: Side, dumps: ArrayFile, told: Mapping[str, str]) -> list[Pair]:
    """Return the tensors that have a dump, in topological order.

    A dump matches the tensor of its name, or the one tensor that leaves the module of its name
    (`encoder.layers.0.fc1` is what leaves `/encoder/layers.0/fc1`); where several leave it, none.

    Raises:
        UsageError: A name of `told` does not exist.
    """
    names = {value.name: value for value in side.place if value not in side.unholdable}
    found: dict[Value, tuple[str, str]] = {}
    for mine, theirs in told.items():
        if mine not in names:
            hint = did_you_mean(mine, names, "`graphkit shapes` lists them")
            raise UsageError(f"--map: {side.model.label} has no tensor '{mine}' - {hint}")
        if theirs not in dumps.names:
            raise UsageError(f"--map: {dumps.label} has no array '{theirs}' - {did_you_mean(theirs, dumps.names)}")
        found[names[mine]] = (theirs, "map")
    leaving = _leaving(side)
    for name in dumps.names:
        if name in told.values():
            continue
        values = [names[name]] if name in names else leaving.get(_path(name), [])
        if len(values) == 1 and values[0] not in found:
            found[values[0]] = (name, "name" if name in names else "module")
    return [Pair(value, *found[value]) for value in side.place if value in found]


def _path(name: str) -> tuple[str, ...]:
    return tuple(part for part in SEPARATORS.split(name) if part)


def _leaving(side: Side) -> dict[tuple[str, ...], list[Value]]:
    """Return the tensors that are read outside the module that computes them, or come out of the model, by module."""
    outputs = set(side.model.graph.outputs)
    found: dict[tuple[str, ...], list[Value]] = {}
    for value in side.place:
        own = _path(module_of(value.producer)) if value.producer is not None else ()
        if not own or value in side.unholdable:
            continue
        readers = [_path(module_of(node)) for node, _ in value.consumers]
        for depth in range(len(own), 0, -1):
            module = own[:depth]
            if value in outputs or any(reader[:depth] != module for reader in readers):
                found.setdefault(module, []).append(value)
    return found


KINDS = "biufU"
FAR = 16  # times as many elements as another array
HINT = "write it with numpy.savez, as plain arrays of numbers"


class ArrayFile:
    """An .npz file.

    Args:
        path: Of the file.
        limits: Whose memory for the outputs of a run is the most that one array may take.

    Attributes:
        label: What to call it.
        names: The names of its arrays, in the order of the file.

    Raises:
        ModelError: It is missing, or no .npz file.
    """

    def __init__(self, path: str | os.PathLike[str], limits: Limits = DEFAULT_LIMITS) -> None:
        self.label, self.most = str(path), limits.outputs()
        try:
            self._zip = zipfile.ZipFile(path)
        except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError) as error:
            raise ModelError(f"no .npz file can be read: {error}", file=self.label, hint=HINT) from error
        members = [name for name in self._zip.namelist() if name.endswith(".npy")]
        self._members = {name.removesuffix(".npy"): name for name in members}
        self.names = tuple(self._members)

    def claimed(self, name: str) -> np.ndarray:
        """Return zeros of the dims and the dtype that an array has by its header, which take no memory.

        Raises:
            ModelError: It holds no plain numbers, or is larger than it may be.
        """
        with self._opened(name) as file:
            shape, _, dtype = self._header(name, file)
        return np.broadcast_to(np.zeros((), object if dtype.kind == "U" else dtype.newbyteorder("=")), shape)

    def beside(self, name: str, array: np.ndarray) -> np.ndarray:
        """Return an array to compare with another one; only its dims and dtype where it is far larger.

        Raises:
            ModelError: See `read`.
        """
        claimed = self.claimed(name)
        return claimed if claimed.size > FAR * (array.size + 1) else self.read(name)

    def read(self, name: str) -> np.ndarray:
        """Return an array by name; strings as objects, as onnxruntime takes them.

        Raises:
            ModelError: It holds no plain numbers, is larger than it may be, or is cut.
        """
        with self._opened(name) as file:
            shape, fortran, dtype = self._header(name, file)
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            content = file.read(size)
        if len(content) != size:
            raise self._broken(name, f"it ends after {len(content):,} of {size:,} bytes")
        array = np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")
        return array.astype(object) if dtype.kind == "U" else array.astype(dtype.newbyteorder("="), copy=False)

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[IO[bytes]]:
        try:
            with self._zip.open(self._members[name]) as file:
                yield file
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, SyntaxError) as error:
            raise self._broken(name, f"it cannot be read: {error}") from error

    def _header(self, name: str, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
        shape, fortran, dtype = _header(file)
        self._check(name, shape, dtype)
        return shape, fortran, dtype

    def _check(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        if dtype.hasobject or dtype.kind not in KINDS:
            raise self._broken(name, f"an array of {dtype} holds no plain numbers")
        elements = 1
        for dim in shape:
            elements *= dim
        if any(dim < 0 for dim in shape) or elements * dtype.itemsize > self.most:
            raise self._broken(
                name,
                f"dims {list(shape)[:8]} are not to be held in the {self.most:,} bytes that --memory leaves",
            )

    def _broken(self, name: str, problem: str) -> ModelError:
        return ModelError(problem, file=self.label, tensor=name, hint=HINT)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of the format")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read(file)
    return shape, fortran, dtype
