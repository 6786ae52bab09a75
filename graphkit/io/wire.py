"""Protobuf wire format: the fields of a serialized message, one by one.

Source: protobuf encoding (protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

__all__ = [
    "BYTES", "MAX_DEPTH", "MAX_PROTO", "TOO_DEEP", "VARINT",
    "Buffer", "Fault", "encode_bytes", "encode_varint", "fields",
    "read_varint",
]  # fmt: skip

Buffer = bytes | mmap.mmap

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


def fields(data: Buffer, position: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
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
