"""Arrays of an .npz file, read one at a time; the claims of a file are checked before they are believed."""

from __future__ import annotations

import contextlib
import os
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO

import numpy as np
from numpy.lib import format as npy

from graphkit.errors import ModelError
from graphkit.runtime.limits import DEFAULT_LIMITS, Limits

__all__ = ["ArrayFile"]

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
