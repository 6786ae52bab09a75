"""Protobuf wire format: the fields of a message, and the messages of ONNX, in which a walk finds every fault.

Sources: protobuf encoding (protobuf.dev/programming-guides/encoding), onnx/onnx.proto (its descriptors).
"""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol, overload

from google.protobuf.descriptor import FieldDescriptor
from onnx import ModelProto


class LazyBytes(Protocol):
    """Bytes that are fetched when somebody looks at them."""

    def __len__(self) -> int: ...

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> bytes: ...


Mapped = bytes | mmap.mmap
Buffer = Mapped | LazyBytes

VARINT, FIXED64, BYTES, GROUP_START, GROUP_END, FIXED32 = range(6)
MAX_DEPTH = 100  # what protobuf's own parsers accept
TOO_DEEP = f"messages are nested more than {MAX_DEPTH} deep, the limit of protobuf, and so of onnx and onnxruntime"
MAX_PROTO = (1 << 31) - 1  # protobuf's own limit for one message


class Fault(Exception):
    """A fault in the wire format."""

    def __init__(self, offset: int, problem: str) -> None:
        super().__init__(problem)
        self.offset = offset


def read_varint(data: Buffer, position: int, end: int, limit: int = 10) -> tuple[int, int]:
    """Return the varint at `position` and the position after it; protobuf allows 10 bytes, 5 in tags and lengths."""
    value = shift = 0
    start = position
    while position < end:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift >= 7 * limit:
            raise Fault(start, f"a varint is longer than {limit} bytes")
    raise Fault(start, "the data ends inside a varint")


def walk_fields(data: Buffer, position: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (tag start, field number, wire type, value start, value end) for each field of one message.

    For a varint the value is the bytes of the varint; for a length-delimited field the bytes after the length.
    """
    while position < end:
        start = position
        tag = data[position]
        if tag < 0x80:
            position += 1
        else:
            tag, position = read_varint(data, position, end, 5)
        wire_type = tag & 7
        if wire_type == BYTES:
            if position < end and (length := data[position]) < 0x80:
                position += 1
            else:
                length, position = read_varint(data, position, end, 5)
            stop = position + length
            if stop > end:
                raise Fault(start, f"a field of {length:,} bytes runs {stop - end:,} bytes past its end")
        elif wire_type == VARINT:
            _, stop = read_varint(data, position, end)
        elif wire_type in (FIXED64, FIXED32):
            stop = position + (8 if wire_type == FIXED64 else 4)
            if stop > end:
                raise Fault(start, "the data ends inside a fixed-width field")
        else:
            kind = "group" if wire_type in (GROUP_START, GROUP_END) else "reserved"
            raise Fault(start, f"field {tag >> 3} has the {kind} wire type {wire_type}, which ONNX never uses")
        if not 0 < tag >> 3 < 1 << 29:
            raise Fault(start, f"field number {tag >> 3} does not exist")
        yield start, tag >> 3, wire_type, position, stop
        position = stop


def encode_varint(value: int) -> bytes:
    """Return a non-negative integer as a varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_bytes(field: int, content: bytes) -> bytes:
    """Return a length-delimited field."""
    return encode_varint(field << 3 | BYTES) + encode_varint(len(content)) + content


# By message kind, as onnx.proto describes them: field number -> kind of the message in it; the fields that hold at most
# one value; numbers that may lie packed in one length-delimited field -> bytes of one, 0 for varints.
INNER: dict[str, dict[int, str]] = {}
SINGULAR: dict[str, set[int]] = {}
PACKED: dict[str, dict[int, int]] = {}
WIDTHS = {FieldDescriptor.CPPTYPE_FLOAT: 4, FieldDescriptor.CPPTYPE_DOUBLE: 8}


def _note_fields(kind: Any) -> None:
    """Note the fields of a kind of message, and of all kinds inside it."""
    inner = INNER[kind.name] = dict[int, str]()
    single, packed = SINGULAR[kind.name], PACKED[kind.name] = set[int](), dict[int, int]()
    for field in kind.fields:
        if field.has_presence:
            single.add(field.number)
        if field.message_type is not None:
            inner[field.number] = field.message_type.name
            if field.message_type.name not in INNER:
                _note_fields(field.message_type)
        elif not field.has_presence and field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
            packed[field.number] = WIDTHS.get(field.cpp_type, 0)


_note_fields(ModelProto.DESCRIPTOR)
HOLDERS = {"TensorProto"}  # and the kinds that lead to it
while found := {kind for kind, inner in INNER.items() if not HOLDERS.isdisjoint(inner.values())} - HOLDERS:
    HOLDERS |= found
CHILDREN = {kind: {number: child for number, child in INNER[kind].items() if child in HOLDERS} for kind in HOLDERS}


def validate_model_bytes(data: Buffer) -> None:
    """Walk every message of a serialized ModelProto. Raises Fault, with the byte offset that protobuf leaves out."""
    _validate_message(data, "ModelProto", 0, len(data), 0)


def _validate_message(data: Buffer, kind: str, begin: int, end: int, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise Fault(begin, TOO_DEEP)
    children, packed = INNER[kind], PACKED[kind]
    for start, field, wire_type, value, stop in walk_fields(data, begin, end):
        if wire_type == BYTES and field in children:
            _validate_message(data, children[field], value, stop, depth + 1)
        elif wire_type == BYTES and field in packed:
            width = packed[field]
            if width and (stop - value) % width:
                raise Fault(start, f"{stop - value:,} bytes are no whole number of {width}-byte values")
            while not width and value < stop:
                _, value = read_varint(data, value, stop)


# Take the payloads of large tensors out of a serialized ModelProto, and put payloads into one.
#
# `lighten` walks the message tree of an ONNX file and copies it, except that the payload of each large TensorProto is
# replaced by an external-data reference to the place where it lies in the file. A message that is shorter than the
# threshold cannot hold a large tensor, so it is copied whole and unread: the cost is one step per node, whatever
# the size of the weights. `inflate` is the way back.
#
# Source: onnx/onnx.proto (field numbers of TensorProto).

Piece = bytes | memoryview

# TensorProto: payload fields whose bytes are the little-endian values, with the dtypes they may hold.
RAW_DATA = 9
PACKED_VALUES = {4: (1, 14), 10: (11, 15)}  # float_data: FLOAT, COMPLEX64; double_data: DOUBLE, COMPLEX128
VARINT_VALUES = (5, 6, 7, 11)  # int32_data, string_data, int64_data, uint64_data: not raw little-endian
DATA_TYPE, EXTERNAL_DATA, DATA_LOCATION = 2, 13, 14


class Reference(NamedTuple):
    """A tensor payload that was left in the file: its bytes, and how to put them back."""

    offset: int  # first byte of the payload in the source file
    length: int
    field: int  # TensorProto field that held it: 9 raw_data, 4 float_data, 10 double_data
    location_was_set: bool  # whether the tensor said `data_location: DEFAULT` in so many words


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
        children, singular = CHILDREN[kind], SINGULAR[kind]
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
        if len(singles) != len(set(singles)):  # protobuf merges a second one into the first
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
        entries = (b"location", self.location), (b"offset", b"%d" % value), (b"length", b"%d" % length)
        pairs = (encode_bytes(1, key) + encode_bytes(2, text) for key, text in entries)
        reference = b"".join(encode_bytes(EXTERNAL_DATA, pair) for pair in pairs)
        pieces += [self.view[copied:end], reference + encode_varint(DATA_LOCATION << 3) + b"\x01"]
        return pieces


class Inflater(Copier):
    """A copy in which payloads take the places of the marks that stand for them."""

    def __init__(self, data: Buffer, payloads: Mapping[bytes, memoryview]) -> None:
        super().__init__(data, min(map(len, payloads), default=MAX_PROTO))
        self.payloads = payloads

    def tensor(self, begin: int, end: int) -> list[Piece]:
        """Return the copy of a TensorProto, its mark as the payload."""
        for start, field, wire_type, value, stop in walk_fields(self.data, begin, end):
            if field != RAW_DATA or wire_type != BYTES:
                continue
            if (payload := self.payloads.get(bytes(self.view[value:stop]))) is not None:
                header = encode_varint(RAW_DATA << 3 | BYTES) + encode_varint(len(payload))
                return [self.view[begin:start], header, payload, self.view[stop:end]]
        return [self.view[begin:end]]


def inflate_payloads(data: bytes, payloads: Mapping[bytes, memoryview]) -> list[Piece]:
    """Return a ModelProto's bytes in pieces, with payloads, not copied, in the places of marks in `raw_data`."""
    return Inflater(data, payloads).message("ModelProto", 0, len(data), 0)


def lighten_model(data: Buffer, location: str, threshold: int) -> tuple[bytes, dict[int, Reference]]:
    """Return a ModelProto's bytes without its large tensors, and references to these by their offset in `data`.

    Args:
        data: The serialized ModelProto, usually a memory map.
        location: Name of the source file, for the `location` of the external-data entries.
        threshold: Payloads of at least so many bytes are left in the file; at least 1.

    Raises:
        Fault: The bytes are not a protobuf message.
    """
    walk = Lightener(data, location, max(threshold, 1))
    pieces = walk.message("ModelProto", 0, len(data), 0)
    if sum(map(len, pieces)) > MAX_PROTO:
        raise Fault(0, "the graph without its weights is larger than 2 GiB, the limit of protobuf")
    return b"".join(pieces), walk.references
