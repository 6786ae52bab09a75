from __future__ import annotations

import pytest
from protos import field, model, varint

from graphkit.io.payloads import lighten
from graphkit.io.wire import Fault, validate

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
    for walk in (validate, lambda data: lighten(data, "model.onnx", 1)):
        with pytest.raises(Fault) as caught:
            walk(data)
        assert (caught.value.offset, str(caught.value)) == (offset, problem)
