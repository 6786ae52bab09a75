"""Protobuf messages written by hand, field by field: what no library writes, or what it refuses to write.

Field numbers are those of onnx.proto; each function names the message that it returns.
"""

from __future__ import annotations

import struct
from random import Random

from graphkit.io.wire import Fault, walk_fields

FLOAT, INT32, INT64, STRING = 1, 6, 7, 8


def varint(value: int, width: int = 0) -> bytes:
    """Return a varint; overlong where `width` asks for more bytes than it needs."""
    groups = [value & 0x7F]
    while value := value >> 7:
        groups.append(value & 0x7F)
    groups += [0] * (width - len(groups))
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


def field(number: int, value: bytes | int, width: int = 0) -> bytes:
    """Return a length-delimited field for bytes, a varint field for an int."""
    if isinstance(value, int):
        return varint(number << 3, width) + varint(value & (1 << 64) - 1, width)
    return varint(number << 3 | 2, width) + varint(len(value), width) + value


def model(*graph_fields: bytes) -> bytes:
    return field(1, 10) + field(8, field(2, 18)) + field(7, graph(*graph_fields))


def graph(*fields: bytes) -> bytes:
    return field(2, b"g") + b"".join(fields)


def node(*fields: bytes) -> bytes:
    return field(2, b"y") + field(3, b"n") + field(4, b"Relu") + b"".join(fields)


def tensor(*fields: bytes, dims: tuple[int, ...] = (4,), dtype: int = FLOAT) -> bytes:
    return b"".join(field(1, dim) for dim in dims) + field(2, dtype) + field(8, b"w") + b"".join(fields)


def initializer(*fields: bytes, dims: tuple[int, ...] = (4,), dtype: int = FLOAT) -> bytes:
    """Return the field of a GraphProto."""
    return field(5, tensor(*fields, dims=dims, dtype=dtype))


def attribute_tensor(content: bytes) -> bytes:
    """Return the field of a NodeProto: an attribute whose value is a tensor."""
    return field(5, field(1, b"value") + field(20, 4) + field(5, content))


def raw_data(content: bytes) -> bytes:
    return field(9, content)


def floats(count: int) -> bytes:
    return struct.pack(f"<{count}f", *range(count))


def external(**entries: str | bytes) -> bytes:
    """Return the fields of a TensorProto whose data lies elsewhere."""
    encoded = {key: value.encode() if isinstance(value, str) else value for key, value in entries.items()}
    return b"".join(field(13, field(1, key.encode()) + field(2, value)) for key, value in encoded.items()) + field(
        14, 1
    )


def changed_field(content: bytes, random: Random) -> bytes:
    """Return a message with one field changed, at some depth, and the lengths around it put right."""
    try:
        found = list(walk_fields(content, 0, len(content)))
    except Fault:
        found = []
    if not found:
        at = random.randrange(len(content) + 1)
        return content[:at] + random.randbytes(random.randrange(3)) + content[at + random.randrange(3) :]
    at = random.randrange(len(found))
    pieces = [content[start:stop] for start, _, _, _, stop in found]
    _, number, wire_type, begin, stop = found[at]
    change = random.choice(["drop", "repeat", "copy", "last", "renumber", "retype", "number"])
    if wire_type == 2 and random.random() < 0.8:
        pieces[at] = field(number, changed_field(content[begin:stop], random))
    elif change == "drop":
        pieces[at] = b""
    elif change == "repeat":
        pieces[at] *= 2
    elif change == "copy":
        pieces.insert(random.randrange(len(pieces)), pieces[at])
    elif change == "last":
        pieces.append(pieces.pop(at))
    elif change == "renumber":
        pieces[at] = field(random.randrange(1, 27), content[begin:stop])
    elif change == "retype":
        pieces[at] = varint(number << 3 | random.choice([0, 1, 2, 5])) + content[begin:stop]
    else:
        pieces[at] = field(number, random.choice([0, 1, 2, 4, 7, 8, 14, 22, 300, 1 << 31, 1 << 62, (1 << 64) - 1]))
    return b"".join(pieces)
