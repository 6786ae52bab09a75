"""The bytes of tensors of two models, compared in blocks; tensors at the same place of one file are equal unread."""

from __future__ import annotations

import itertools
import os
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from onnx import SparseTensorProto, TensorProto

from graphkit.dtypes import BITS
from graphkit.errors import ModelError
from graphkit.model import Model

__all__ = ["ConstantNumbers", "Place", "first_difference", "place_of"]

BLOCK = 1 << 20
Place = tuple[Path, int, int]  # file, offset and length


def place_of(model: Model, tensor: TensorProto) -> Place | None:
    """Return where the bytes of a tensor lie; None where they are in memory."""
    if tensor.data_location != TensorProto.EXTERNAL:
        return None
    path, offset, length = model.piece(tensor)
    return Path(os.path.realpath(path)), offset, length


def first_difference(model: Model, tensor: TensorProto, other: Model, other_tensor: TensorProto) -> int | None:
    """Return the first byte in which a tensor differs from one of another model, None where there is none.

    Bytes that lie at one place of one file are equal unread.

    Raises:
        ModelError: A data file is missing, or has shrunk.
    """
    places = place_of(model, tensor), place_of(other, other_tensor)
    if places[0] is not None and places[0] == places[1]:
        return None
    sizes = len(_payload(model, tensor)), len(_payload(other, other_tensor))
    if sizes[0] != sizes[1]:
        return min(sizes)
    at = 0
    for block, same in zip(_blocks(model, tensor), _blocks(other, other_tensor), strict=True):
        if block != same:
            pair = (np.frombuffer(side, np.uint8) for side in (block, same))
            return at + int(np.not_equal(*pair).argmax())
        at += len(block)
    return None


def _payload(model: Model, tensor: TensorProto) -> memoryview:
    if tensor.data_type == TensorProto.STRING:
        return memoryview(b"\0".join(tensor.string_data))
    return model.payload(tensor)


def _blocks(model: Model, tensor: TensorProto) -> Iterator[bytes]:
    """Yield the bytes of a tensor, block by block; those in a file are read, not mapped."""
    place = place_of(model, tensor)
    if place is None:
        payload = _payload(model, tensor)
        yield from (bytes(payload[at : at + BLOCK]) for at in range(0, len(payload), BLOCK))
        return
    path, offset, length = place
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        for at in range(0, length, BLOCK):
            yield file.read(min(BLOCK, length - at))


SAMPLE = 4096  # bytes of either end


@dataclass(frozen=True, eq=False)
class _Constant:
    """The first constant that got a number."""

    number: int
    model: Model
    tensor: TensorProto

    @cached_property
    def sample(self) -> tuple[int, bytes, bytes]:
        """How many bytes it has, and those of either end."""
        payload = self.model.payload(self.tensor)
        return len(payload), bytes(payload[:SAMPLE]), bytes(payload[-SAMPLE:])

    def equals(self, other: _Constant) -> bool:
        """Whether the bytes are those of another constant."""
        if self.sample != other.sample:
            return False
        if self.sample[0] <= SAMPLE:
            return True
        return first_difference(self.model, self.tensor, other.model, other.tensor) is None


class ConstantNumbers:
    """Gives numbers to constants of any models.

    Attributes:
        unread: The numbers of constants whose bytes are missing, which name and place stand for.
    """

    def __init__(self) -> None:
        self.unread: set[int] = set()
        self._numbers: dict[Hashable, int] = {}
        self._kinds: dict[Hashable, list[_Constant]] = {}
        self._fresh = itertools.count()

    def of(self, model: Model, tensor: TensorProto) -> int:
        """Return the number of a tensor.

        Raises:
            ModelError: Its file has shrunk since the model was read.
        """
        kind = (tensor.data_type, tuple(tensor.dims))
        if tensor.data_type == TensorProto.STRING:
            return self._number_of_key((kind, tuple(tensor.string_data)))
        if tensor.data_type not in BITS:
            plain = TensorProto()
            plain.CopyFrom(tensor)
            plain.ClearField("name")
            return self._number_of_key((kind, plain.SerializeToString(deterministic=True)))
        try:
            place = place_of(model, tensor)
        except ModelError:  # the file is missing
            number = self._number_of_key((kind, tensor.name, tuple((e.key, e.value) for e in tensor.external_data)))
            self.unread.add(number)
            return number
        if place is not None:
            return self._placed(kind, place, model, tensor)
        return self._number_by_bytes(kind, model, tensor)

    def of_bytes(self, model: Model, tensor: TensorProto) -> int:
        """Return the number of the bytes of a tensor, whatever dtype and dims it has.

        Raises:
            ModelError: Its file is missing, or has shrunk since the model was read.
        """
        place = place_of(model, tensor)
        return (
            self._number_by_bytes("bytes", model, tensor)
            if place is None
            else self._placed("bytes", place, model, tensor)
        )

    def of_sparse(self, model: Model, sparse: SparseTensorProto) -> int:
        """Return the number of a sparse tensor.

        Raises:
            ModelError: Its file has shrunk since the model was read.
        """
        parts = self.of(model, sparse.values), self.of(model, sparse.indices)
        return self._number_of_key(("sparse", tuple(sparse.dims), *parts))

    def _number_of_key(self, key: Hashable) -> int:
        if key not in self._numbers:
            self._numbers[key] = next(self._fresh)
        return self._numbers[key]

    def _placed(self, kind: Hashable, place: Place, model: Model, tensor: TensorProto) -> int:
        if (kind, place) not in self._numbers:
            self._numbers[kind, place] = self._number_by_bytes(kind, model, tensor)
        return self._numbers[kind, place]

    def _number_by_bytes(self, kind: Hashable, model: Model, tensor: TensorProto) -> int:
        constant = _Constant(next(self._fresh), model, tensor)
        constants = self._kinds.setdefault(kind, [])
        equal = next((known for known in constants if known.equals(constant)), None)
        if equal is not None:
            return equal.number
        constants.append(constant)
        return constant.number
