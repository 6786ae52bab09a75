"""Memory that two processes share: arrays pass through it, and only their places go through a pipe.

It is a file without a name, so that nothing is left of it however the processes end. numpy is imported when the first
array comes, so that a process starts quickly.
"""

from __future__ import annotations

import itertools
import math
import mmap
import os
import weakref
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

Json = object  # any value of JSON
ALIGNMENT = 64
USER_DEFINED = 2  # what numpy calls dtypes of others, such as bfloat16
LEAST = 1 << 20
KEPT = 256 << 20  # bytes that stay allocated from one run to the next
NAMED = os.name != "posix"  # where a child cannot inherit a file, it opens it by name
NUMBERS = itertools.count()
_LIVE: dict[int, tuple[str, range]] = {}  # the place of each block, and its addresses


class Arena:
    """A file mapped by two processes, that grows as needed.

    Args:
        place: How the other process calls it; None to make a new one.
        is_late: Whether the other process is there already, so that it inherits nothing.
    """

    def __init__(self, place: str | None = None, *, is_late: bool = False) -> None:
        self._name: Path | None = None
        self._is_late = is_late
        self._blocks: dict[int, Arena] = {}  # of the other process
        if place is not None:
            self._file = int(place[3:]) if place.startswith("fd:") else os.open(place, os.O_RDWR)
        elif NAMED or (is_late and not os.path.isdir("/proc/self/fd")):
            import tempfile

            self._file, name = tempfile.mkstemp(prefix="graphkit-")
            self._name = Path(name)
        elif hasattr(os, "memfd_create"):
            self._file = os.memfd_create("graphkit")
        else:
            import tempfile

            with tempfile.TemporaryFile() as file:
                self._file = os.dup(file.fileno())
        self._map: mmap.mmap | None = None

    @property
    def place(self) -> str:
        """How the other process finds it."""
        if self._name is not None:
            return str(self._name)
        return f"/proc/{os.getpid()}/fd/{self._file}" if self._is_late else f"fd:{self._file}"

    @property
    def inherited_files(self) -> tuple[int, ...]:
        """The descriptors that a child must inherit."""
        return (self._file,) if self._name is None else ()

    def put(self, value: object, start: int = 0) -> tuple[Json, int]:
        """Store a value from an offset on; return the places of its arrays, and the offset behind them.

        Arrays of `shared_zeros` stay where they are. Raises TypeError where it holds a value other than an array, a
        string or a number, OSError where there is not enough memory.
        """
        import numpy as np

        arrays: list[tuple[int, np.ndarray]] = []
        end = -(-start // ALIGNMENT) * ALIGNMENT

        def place(array: np.ndarray) -> Json:
            nonlocal end
            if (known := block_of(array)) is not None:
                return known
            offset = end
            arrays.append((offset, array))
            end = -(-(offset + array.nbytes) // ALIGNMENT) * ALIGNMENT
            return offset

        encoded = encode_value(value, place)
        mapped = self._map_bytes(end, grow=True)
        for offset, array in arrays:
            np.copyto(np.ndarray(array.shape, array.dtype, mapped, offset), array, casting="no")
        return encoded, end

    def get(self, encoded: Json, *, copy: bool) -> object:
        """Return a stored value; its arrays are views, which the next value overwrites, unless copied."""
        import numpy as np

        def take(place: Json, dtype: np.dtype, shape: list[int]) -> np.ndarray:
            assert isinstance(place, (int, list))
            arena, offset = (self, place) if isinstance(place, int) else (self, 0)
            if isinstance(place, list):
                number, name, offset = place
                if number not in self._blocks:
                    self._blocks[number] = Arena(name)
                arena = self._blocks[number]
            size = dtype.itemsize * math.prod(shape)
            view: np.ndarray = np.ndarray(shape, dtype, arena._map_bytes(offset + size, grow=False), offset)
            return view.copy() if copy else view

        return decode_value(encoded, take)

    def keep_blocks(self, numbers: Collection[int]) -> None:
        """Let the blocks of the other process go, but for these."""
        for number in self._blocks.keys() - {*numbers}:
            self._blocks.pop(number).close()

    def trim(self) -> None:
        """Give memory back where a large value was stored; views of it must be gone."""
        if os.fstat(self._file).st_size > KEPT:
            os.ftruncate(self._file, KEPT)

    def close(self) -> None:
        """Let the file go; views that are still in use stay valid."""
        self._map = None
        os.close(self._file)
        if self._name is not None:
            self._name.unlink(missing_ok=True)

    def _map_bytes(self, size: int, *, grow: bool) -> mmap.mmap:
        size = max(size, LEAST)
        has = os.fstat(self._file).st_size
        if grow and size > has:
            if hasattr(os, "posix_fallocate"):  # an error now, where writing to the map would be a SIGBUS
                os.posix_fallocate(self._file, has, size - has)
            else:
                os.ftruncate(self._file, size)
        if self._map is None or len(self._map) < size:
            self._map = mmap.mmap(self._file, max(size, has))
        return self._map


def shared_zeros(size: int) -> np.ndarray:
    """Return so many bytes of 0, which child processes read and write in place. Raises OSError without memory."""
    import numpy as np

    arena, number = Arena(is_late=True), next(NUMBERS)
    block: np.ndarray = np.ndarray((size,), np.uint8, arena._map_bytes(size, grow=True))
    _LIVE[number] = arena.place, range(block.ctypes.data, block.ctypes.data + size)
    weakref.finalize(block, arena.close)
    weakref.finalize(block, _LIVE.pop, number)
    return block


def live_blocks() -> list[int]:
    """Return the numbers of the blocks of this process."""
    return list(_LIVE)


def block_of(array: np.ndarray) -> Json:
    """Return where a block holds an array, None where none does."""
    if not array.flags.c_contiguous:
        return None
    address = array.ctypes.data
    found = ([n, place, address - at.start] for n, (place, at) in list(_LIVE.items()) if address in at)
    return next(found, None)


def encode_value(value: object, place: Callable[[np.ndarray], Json]) -> Json:
    """Return a value as JSON, its arrays by where `place` puts them. Raises TypeError for what JSON cannot hold."""
    import numpy as np

    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "O":
            strings = value.ravel().tolist()
            if odd := [each for each in strings if not isinstance(each, str)]:
                raise TypeError(f"an array of {type(odd[0]).__name__} cannot be passed between processes")
            return {"strings": strings, "shape": list(value.shape)}
        name = value.dtype.name if value.dtype.isbuiltin == USER_DEFINED else value.dtype.str
        return {"array": place(value), "dtype": name, "shape": list(value.shape)}
    if isinstance(value, (list, tuple)):
        return [encode_value(member, place) for member in value]
    if isinstance(value, Mapping):
        return {"dict": [[encode_value(key, place), encode_value(member, place)] for key, member in value.items()]}
    if isinstance(value, np.generic):
        return encode_value(np.asarray(value), place)
    raise TypeError(f"{type(value).__name__} cannot be passed between processes")


def decode_value(encoded: Json, take: Callable[[Json, np.dtype, list[int]], np.ndarray]) -> object:
    """Return the value that `encode` made JSON of."""
    import numpy as np

    if isinstance(encoded, list):
        return [decode_value(member, take) for member in encoded]
    if not isinstance(encoded, dict):
        return encoded
    if "array" in encoded:
        return take(encoded["array"], _numpy_dtype(encoded["dtype"]), encoded["shape"])
    if "strings" in encoded:
        strings = np.empty(len(encoded["strings"]), dtype=object)
        strings[:] = encoded["strings"]
        return strings.reshape(encoded["shape"])
    return {decode_value(key, take): decode_value(member, take) for key, member in encoded["dict"]}


def _numpy_dtype(name: str) -> np.dtype:
    import numpy as np

    try:
        return np.dtype(name)
    except TypeError:  # such as bfloat16, which this registers
        import ml_dtypes  # noqa: F401

        return np.dtype(name)
