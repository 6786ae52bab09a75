"""The bytes of tensors of two models, compared in blocks; tensors at the same place of one file are equal unread."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from onnx import TensorProto

from graphkit.model import Model

__all__ = ["Place", "SameBytes", "first_difference", "place_of"]

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


class SameBytes:
    """Comparison of tensors by their bytes, each place of a file read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Place | None, Place | None], bool] = {}

    def holds(self, model: Model, tensor: TensorProto, other: Model, other_tensor: TensorProto) -> bool:
        """Whether a tensor has the bytes of one of another model."""
        places = place_of(model, tensor), place_of(other, other_tensor)
        if None in places:
            return first_difference(model, tensor, other, other_tensor) is None
        if places not in self._known:
            self._known[places] = first_difference(model, tensor, other, other_tensor) is None
        return self._known[places]


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
