"""Protobuf wire format: the fields of a message, and the messages of ONNX, in which a walk finds every fault.

Sources: protobuf encoding (protobuf.dev/programming-guides/encoding), onnx/onnx.proto (field numbers).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Protocol, overload

__all__ = [
    "BYTES",
    "CHILDREN",
    "MAX_DEPTH",
    "MAX_PROTO",
    "SINGULAR",
    "TOO_DEEP",
    "VARINT",
    "Buffer",
    "Fault",
    "LazyBytes",
    "Mapped",
    "encode_bytes",
    "encode_varint",
    "read_varint",
    "validate_model_bytes",
    "walk_fields",
]


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


# Message kind -> field number -> kind of the message in it; only the paths that lead to tensors.
CHILDREN: dict[str, dict[int, str]] = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: "TensorProto",
        6: "GraphProto",
        10: "TensorProto",
        11: "GraphProto",
        22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
}
# Fields that hold at most one message. Protobuf merges a second occurrence into the first, so a message
# with two of them is copied unchanged.
SINGULAR = {
    "ModelProto": {7},
    "TrainingInfoProto": {1, 2},
    "AttributeProto": {5, 6, 22},
    "SparseTensorProto": {1, 2},
}
# Where else messages are nested (types, shapes, key-value entries): walked by `validate` only.
PLAIN_CHILDREN: dict[str, dict[int, str]] = {
    "ModelProto": {8: "Opset", 14: "Entry", 26: "Device"},
    "TrainingInfoProto": {3: "Entry", 4: "Entry"},
    "GraphProto": {11: "ValueInfo", 12: "ValueInfo", 13: "ValueInfo", 14: "Annotation", 16: "Entry"},
    "FunctionProto": {9: "Opset", 12: "ValueInfo", 14: "Entry"},
    "NodeProto": {9: "Entry", 10: "NodeDevice"},
    "AttributeProto": {14: "Type", 15: "Type"},
    "TensorProto": {3: "Segment", 13: "Entry", 16: "Entry"},
    "Annotation": {2: "Entry"},
    "NodeDevice": {2: "Sharding"},
    "ValueInfo": {2: "Type", 4: "Entry"},
    "Type": {1: "TensorType", 4: "ElementType", 5: "MapType", 7: "OpaqueType", 8: "TensorType", 9: "ElementType"},
    "TensorType": {2: "Shape"},
    "ElementType": {1: "Type"},
    "MapType": {2: "Type"},
    "Shape": {1: "Dimension"},
}
# Numbers that may lie packed in one length-delimited field: bytes of one, 0 for varints.
PACKED: dict[str, dict[int, int]] = {
    "AttributeProto": {7: 4, 8: 0},
    "SparseTensorProto": {3: 0},
    "TensorProto": {1: 0, 4: 4, 5: 0, 7: 0, 10: 8, 11: 0},
}


def validate_model_bytes(data: Buffer) -> None:
    """Walk every message of a serialized ModelProto, for the byte offset of a fault that protobuf reports without one.

    Raises:
        Fault: On the first fault.
    """
    _validate_message(data, "ModelProto", 0, len(data), 0)


def _validate_message(data: Buffer, kind: str, begin: int, end: int, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise Fault(begin, TOO_DEEP)
    children = {**CHILDREN.get(kind, {}), **PLAIN_CHILDREN.get(kind, {})}
    packed = PACKED.get(kind, {})
    for start, field, wire_type, value, stop in walk_fields(data, begin, end):
        if wire_type == BYTES and field in children:
            _validate_message(data, children[field], value, stop, depth + 1)
        elif wire_type == BYTES and field in packed:
            _validate_packed(data, start, value, stop, packed[field])


def _validate_packed(data: Buffer, start: int, value: int, stop: int, width: int) -> None:
    if width and (stop - value) % width:
        raise Fault(start, f"{stop - value:,} bytes are no whole number of {width}-byte values")
    while not width and value < stop:
        _, value = read_varint(data, value, stop)
