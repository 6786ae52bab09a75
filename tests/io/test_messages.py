from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from google.protobuf.message import DecodeError
from protos import field, initializer, model, node

from graphkit.io.wire import Fault, validate

# Faults in small messages are left to protobuf by `lighten`; `validate` finds the place.
DEEP_FAULTS = {
    "node": (field(1, node(b"\x0b\x0c")), "field 1 has the group wire type 3, which ONNX never uses"),
    "type": (field(11, field(2, field(1, b"\x08" + b"\xff" * 11))), "a varint is longer than 10 bytes"),
    "shape": (field(13, field(2, field(8, field(2, field(1, b"\x02\x00"))))), "field number 0 does not exist"),
    "annotation": (field(14, field(2, b"\x0b")), "field 1 has the group wire type 3, which ONNX never uses"),
    "segment": (initializer(field(3, b"\x09")), "the data ends inside a fixed-width field"),
    "sharding": (field(1, field(10, field(2, b"\x0e"))), "field 1 has the reserved wire type 6, which ONNX never uses"),
    "packed dims": (field(5, field(1, b"\x80")), "the data ends inside a varint"),
    "packed floats": (field(5, field(4, bytes(7))), "7 bytes are no whole number of 4-byte values"),
    "packed doubles": (field(5, field(10, bytes(9))), "9 bytes are no whole number of 8-byte values"),
    "packed ints": (field(1, field(5, field(8, b"\x01\xff"))), "the data ends inside a varint"),
}


@pytest.mark.parametrize(("content", "problem"), DEEP_FAULTS.values(), ids=DEEP_FAULTS)
def test_validate_finds_faults_in_small_messages(content: bytes, problem: str) -> None:
    data = model(content)
    with pytest.raises(Fault) as caught:
        validate(data)
    assert str(caught.value) == problem
    assert len(data) - len(content) < caught.value.offset < len(data)


def test_validate_accepts_the_examples() -> None:
    for path in (Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx"):
        validate(path.read_bytes())


def test_depth_is_that_of_protobuf() -> None:
    def nested(levels: int) -> bytes:  # a type of a sequence of a sequence ... is two messages a level
        content = b""
        for _ in range(levels):
            content = field(4, field(1, content))
        return model(field(11, field(2, content)))

    validate(nested(48))  # ModelProto, GraphProto, ValueInfoProto and TypeProto are around it
    onnx.ModelProto.FromString(nested(48))
    with pytest.raises(Fault, match="messages are nested more than 100 deep"):
        validate(nested(49))
    with pytest.raises(DecodeError):
        onnx.ModelProto.FromString(nested(49))
