from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from google.protobuf.message import DecodeError
from protos import field, initializer, model, node, varint

from graphkit.io.wire import Fault, lighten_model, validate_model_bytes

FAULTS = {
    "length past the end": (field(1, 10) + b"\x3a\x7f", 2, "a field of 127 bytes runs 127 bytes past its end"),
    "length past its message": (model(b"\x0a\x02"), 11, "a field of 2 bytes runs 2 bytes past its end"),
    "huge length": (
        b"\x3a\xff\xff\xff\xff\x7f",
        0,
        f"a field of {2**35 - 1:,} bytes runs {2**35 - 1:,} bytes past its end",
    ),
    "cut tag": (b"\x08\x01\x88", 2, "the data ends inside a varint"),
    "cut length": (b"\x08\x01\x3a", 3, "the data ends inside a varint"),
    "cut varint": (b"\x08\xff", 1, "the data ends inside a varint"),
    "cut fixed32": (b"\x0d\0\0\0", 0, "the data ends inside a fixed-width field"),
    "cut fixed64": (b"\x09\0\0\0\0\0\0\0", 0, "the data ends inside a fixed-width field"),
    "long varint": (b"\x08" + b"\x80" * 10 + b"\0", 1, "a varint is longer than 10 bytes"),
    "long tag": (b"\x08\x01" + b"\x88" + b"\x80" * 5 + b"\0", 2, "a varint is longer than 5 bytes"),
    "long length": (b"\x3a" + b"\x80" * 6 + b"\0", 1, "a varint is longer than 5 bytes"),
    "group start": (b"\x0b\x08\x01\x0c", 0, "field 1 has the group wire type 3, which ONNX never uses"),
    "group end": (b"\x08\x01\x0c", 2, "field 1 has the group wire type 4, which ONNX never uses"),
    "reserved wire type": (b"\x0e", 0, "field 1 has the reserved wire type 6, which ONNX never uses"),
    "field 0": (b"\x08\x01\x02\x00", 2, "field number 0 does not exist"),
    "field too high": (varint(1 << 32) + b"\0", 0, f"field number {1 << 29} does not exist"),
}


@pytest.mark.parametrize(("data", "offset", "problem"), FAULTS.values(), ids=FAULTS)
def test_fault(data: bytes, offset: int, problem: str) -> None:
    for walk in (validate_model_bytes, lambda data: lighten_model(data, "model.onnx", 1)):
        with pytest.raises(Fault) as caught:
            walk(data)
        assert (caught.value.offset, str(caught.value)) == (offset, problem)


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
        validate_model_bytes(data)
    assert str(caught.value) == problem
    assert len(data) - len(content) < caught.value.offset < len(data)


def test_validate_accepts_the_examples() -> None:
    for path in (Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx"):
        validate_model_bytes(path.read_bytes())


def test_depth_is_that_of_protobuf() -> None:
    def nested(levels: int) -> bytes:  # a type of a sequence of a sequence ... is two messages a level
        content = b""
        for _ in range(levels):
            content = field(4, field(1, content))
        return model(field(11, field(2, content)))

    validate_model_bytes(nested(48))  # ModelProto, GraphProto, ValueInfoProto and TypeProto are around it
    onnx.ModelProto.FromString(nested(48))
    with pytest.raises(Fault, match="messages are nested more than 100 deep"):
        validate_model_bytes(nested(49))
    with pytest.raises(DecodeError):
        onnx.ModelProto.FromString(nested(49))
