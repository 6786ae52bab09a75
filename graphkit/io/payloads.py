"""Take the payloads of large tensors out of a serialized ModelProto, and put payloads into one.

`lighten` walks the message tree of an ONNX file and copies it, except that the payload of each large TensorProto is
replaced by an external-data reference to the place where it lies in the file. A message that is shorter than the
threshold cannot hold a large tensor, so it is copied whole and unread: the cost is one step per node, whatever
the size of the weights. `inflate` is the way back.

Source: onnx/onnx.proto (field numbers of TensorProto).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from graphkit.io.wire import (
    BYTES,
    CHILDREN,
    MAX_DEPTH,
    MAX_PROTO,
    SINGULAR,
    TOO_DEEP,
    VARINT,
    Buffer,
    Fault,
    Mapped,
    encode_bytes,
    encode_varint,
    read_varint,
    walk_fields,
)

__all__ = ["Reference", "inflate_payloads", "lighten_model"]

Piece = bytes | memoryview

# TensorProto: payload fields whose bytes are the little-endian values, with the dtypes they may hold.
RAW_DATA = 9
PACKED_VALUES = {4: (1, 14), 10: (11, 15)}  # float_data: FLOAT, COMPLEX64; double_data: DOUBLE, COMPLEX128
VARINT_VALUES = (5, 6, 7, 11)  # int32_data, string_data, int64_data, uint64_data: not raw little-endian
DATA_TYPE, EXTERNAL_DATA, DATA_LOCATION = 2, 13, 14


@dataclass(frozen=True, slots=True)
class Reference:
    """A tensor payload that was left in the file: its bytes, and how to put them back.

    Attributes:
        offset: First byte of the payload in the source file.
        field: TensorProto field that held it: 9 raw_data, 4 float_data, 10 double_data.
        location_was_set: Whether the tensor said `data_location: DEFAULT` in so many words.
    """

    offset: int
    length: int
    field: int
    location_was_set: bool


class Copier(ABC):
    """One walk over a serialized ModelProto that copies it with its tensors changed, and small messages unread."""

    def __init__(self, data: Buffer, smallest: int) -> None:
        self.data, self.smallest = data, smallest
        self.view = memoryview(data) if isinstance(data, Mapped) else data
        self.references: dict[int, Reference] = {}

    @abstractmethod
    def tensor(self, begin: int, end: int) -> list[Piece]:
        """Return the copy of a TensorProto, in pieces."""

    def message(self, kind: str, begin: int, end: int, depth: int) -> list[Piece]:
        """Return the copy of the message at begin..end, in pieces."""
        if depth > MAX_DEPTH:
            raise Fault(begin, TOO_DEEP)
        children, singular = CHILDREN[kind], SINGULAR.get(kind, ())
        data, smallest = self.data, self.smallest
        pieces: list[Piece] = []
        copied = begin  # everything before this is in `pieces`
        singles: list[int] = []
        references_before = len(self.references)
        for start, field, wire_type, value, stop in walk_fields(data, begin, end):
            if wire_type != BYTES or field not in children:
                continue
            if field in singular:
                singles.append(field)
            child = children[field]
            if stop - value < smallest and child not in ("GraphProto", "FunctionProto"):
                continue
            copy = self.tensor(value, stop) if child == "TensorProto" else self.message(child, value, stop, depth + 1)
            if len(copy) == 1 and len(copy[0]) == stop - value:
                continue
            pieces.append(self.view[copied:start])
            pieces.append(encode_varint(field << 3 | BYTES) + encode_varint(sum(map(len, copy))))
            pieces += copy
            copied = stop
        if len(singles) != len(set(singles)):
            while len(self.references) > references_before:
                self.references.popitem()  # the newest first
            return [self.view[begin:end]]
        pieces.append(self.view[copied:end])
        return pieces


class Lightener(Copier):
    """A copy without the large tensors, which collects the references to them."""

    def __init__(self, data: Buffer, location: str, threshold: int) -> None:
        super().__init__(data, threshold)
        self.location, self.threshold = location.encode(), threshold

    def tensor(self, begin: int, end: int) -> list[Piece]:
        """Return the light copy of a TensorProto: as it is, or with its payload as a reference."""
        payloads: list[tuple[int, int, int, int]] = []
        external = location_was_set = False
        location_at: tuple[int, int] | None = None
        dtype = 0
        for start, field, wire_type, value, stop in walk_fields(self.data, begin, end):
            if wire_type == BYTES and (field == RAW_DATA or field in PACKED_VALUES):
                payloads.append((start, field, value, stop))
            elif field in PACKED_VALUES or field in VARINT_VALUES:
                return [self.view[begin:end]]
            elif wire_type == VARINT and field == DATA_TYPE:
                dtype = read_varint(self.data, value, stop)[0]
            elif field == EXTERNAL_DATA:
                external = True
            elif wire_type == VARINT and field == DATA_LOCATION:
                external = external or location_was_set or read_varint(self.data, value, stop)[0] != 0
                location_was_set, location_at = True, (start, stop)
        if external or len(payloads) != 1:
            return [self.view[begin:end]]
        start, field, value, stop = payloads[0]
        length = stop - value
        if length < self.threshold or (field != RAW_DATA and dtype not in PACKED_VALUES[field]):
            return [self.view[begin:end]]
        self.references[value] = Reference(value, length, field, location_was_set)
        cuts = sorted([(start, stop), *([location_at] if location_at else [])])
        pieces: list[Piece] = []
        copied = begin
        for cut_start, cut_stop in cuts:
            pieces.append(self.view[copied:cut_start])
            copied = cut_stop
        pieces += [self.view[copied:end], self.external_data(value, length)]
        return pieces

    def external_data(self, offset: int, length: int) -> bytes:
        """Return the fields `external_data` and `data_location` for a payload of the source file."""
        entries = (b"location", self.location), (b"offset", b"%d" % offset), (b"length", b"%d" % length)
        pairs = (encode_bytes(1, key) + encode_bytes(2, value) for key, value in entries)
        data = b"".join(encode_bytes(EXTERNAL_DATA, pair) for pair in pairs)
        return data + encode_varint(DATA_LOCATION << 3) + b"\x01"


class Inflater(Copier):
    """A copy in which payloads take the places of the marks that stand for them."""

    def __init__(self, data: Buffer, payloads: Mapping[bytes, memoryview]) -> None:
        super().__init__(data, min(map(len, payloads), default=MAX_PROTO))
        self.payloads = payloads

    def tensor(self, begin: int, end: int) -> list[Piece]:
        """Return the copy of a TensorProto, its mark as the payload."""
        for start, field, wire_type, value, stop in walk_fields(self.data, begin, end):
            payload = (
                self.payloads.get(bytes(self.view[value:stop])) if field == RAW_DATA and wire_type == BYTES else None
            )
            if payload is not None:
                header = encode_varint(RAW_DATA << 3 | BYTES) + encode_varint(len(payload))
                return [self.view[begin:start], header, payload, self.view[stop:end]]
        return [self.view[begin:end]]


def inflate_payloads(data: bytes, payloads: Mapping[bytes, memoryview]) -> list[Piece]:
    """Return a ModelProto's bytes in pieces, with payloads, not copied, in the places of marks in `raw_data`."""
    return Inflater(data, payloads).message("ModelProto", 0, len(data), 0)


def lighten_model(data: Buffer, location: str, threshold: int) -> tuple[bytes, dict[int, Reference]]:
    """Return a ModelProto's bytes without its large tensors, and references to these.

    Args:
        data: The serialized ModelProto, usually a memory map.
        location: Name of the source file, for the `location` of the external-data entries.
        threshold: Payloads of at least so many bytes are left in the file; at least 1.

    Returns:
        The light serialization, and each left-out payload by its offset in `data`.

    Raises:
        Fault: The bytes are not a protobuf message.
    """
    walk = Lightener(data, location, max(threshold, 1))
    pieces = walk.message("ModelProto", 0, len(data), 0)
    if sum(map(len, pieces)) > MAX_PROTO:
        raise Fault(0, "the graph without its weights is larger than 2 GiB, the limit of protobuf")
    return b"".join(pieces), walk.references
