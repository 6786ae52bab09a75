from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from google.protobuf.message import DecodeError
from protos import INT64, attribute_tensor, field, floats, graph, initializer, model, node, raw_data, tensor, varint

from graphkit.io.wire import Fault, Reference, lighten, validate

WEIGHTS = floats(4)


def lightened(data: bytes, threshold: int = 16) -> tuple[onnx.ModelProto, dict[int, Reference]]:
    light, references = lighten(data, "model.onnx", threshold)
    return onnx.ModelProto.FromString(light), references


def entries(proto: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in proto.external_data}


def test_large_tensor_becomes_a_reference_to_the_very_bytes() -> None:
    data = model(initializer(raw_data(WEIGHTS)))
    proto, references = lightened(data)
    offset = data.index(WEIGHTS)
    (weight,) = proto.graph.initializer
    assert references == {offset: Reference(offset, 16, 9, False)}
    assert not weight.HasField("raw_data")
    assert weight.data_location == onnx.TensorProto.EXTERNAL
    assert entries(weight) == {"location": "model.onnx", "offset": str(offset), "length": "16"}
    assert (weight.name, list(weight.dims), weight.data_type) == ("w", [4], 1)


def test_tensor_below_the_threshold_stays_inline() -> None:
    data = model(initializer(raw_data(WEIGHTS)))
    assert lighten(data, "model.onnx", 17) == (data, {})


@pytest.mark.parametrize("threshold", [0, -1])
def test_threshold_is_at_least_one_byte(threshold: int) -> None:
    data = model(initializer(raw_data(b""), dims=(0,)))
    assert lighten(data, "model.onnx", threshold) == (data, {})


@pytest.mark.parametrize("number", [4, 9])
def test_reference_remembers_its_field(number: int) -> None:
    _, references = lightened(model(initializer(field(number, WEIGHTS))))
    assert [reference.field for reference in references.values()] == [number]


def test_explicit_default_location_is_remembered() -> None:
    proto, references = lightened(model(initializer(field(14, 0), raw_data(WEIGHTS))))
    assert proto.graph.initializer[0].data_location == onnx.TensorProto.EXTERNAL
    assert [reference.location_was_set for reference in references.values()] == [True]


# What is not one run of little-endian values, or says already where it lies, is copied as it stands.
AS_IT_STANDS = {
    "two raw_data": initializer(raw_data(WEIGHTS), raw_data(WEIGHTS)),
    "raw_data and float_data": initializer(raw_data(WEIGHTS), field(4, WEIGHTS)),
    "unpacked float_data": initializer(*(varint(4 << 3 | 5) + WEIGHTS[i : i + 4] for i in range(0, 16, 4))),
    "float_data of another dtype": initializer(field(4, WEIGHTS), dtype=INT64),
    "double_data of another dtype": initializer(field(10, WEIGHTS)),
    "packed int64_data": initializer(field(7, bytes(40)), dims=(40,), dtype=INT64),
    "external": initializer(raw_data(WEIGHTS), field(14, 1)),
    "external_data entry": initializer(raw_data(WEIGHTS), field(13, b"")),
    "unknown location": initializer(raw_data(WEIGHTS), field(14, 7)),
    "two locations": initializer(raw_data(WEIGHTS), field(14, 0), field(14, 0)),
    "strings": initializer(field(6, WEIGHTS), dims=(1,), dtype=8),
    "raw_data of another wire type": initializer(field(9, 5)),
}


@pytest.mark.parametrize("content", AS_IT_STANDS.values(), ids=AS_IT_STANDS)
def test_copied_as_it_stands(content: bytes) -> None:
    data = model(content)
    assert lighten(data, "model.onnx", 1) == (data, {})


def test_message_that_protobuf_would_merge_is_copied_whole() -> None:
    twice = field(5, tensor(raw_data(WEIGHTS))) * 2
    once = attribute_tensor(tensor(raw_data(WEIGHTS)))
    data = model(field(1, node(field(5, field(1, b"a") + twice), once)))
    proto, references = lightened(data)
    merged, single = proto.graph.node[0].attribute
    assert merged.t.raw_data == WEIGHTS
    assert list(references) == [data.rindex(WEIGHTS)]
    assert entries(single.t)["offset"] == str(data.rindex(WEIGHTS))


def test_two_graphs_drop_the_references_in_both() -> None:
    data = model(initializer(raw_data(WEIGHTS))) + field(7, graph(initializer(raw_data(WEIGHTS))))
    assert lighten(data, "model.onnx", 1) == (data, {})


@pytest.mark.parametrize("width", [2, 3, 5])
def test_overlong_tags_and_lengths(width: int) -> None:
    content = tensor() + field(9, WEIGHTS, width)
    data = field(7, field(5, content, width), width)
    proto, references = lightened(data)
    assert list(references) == [data.index(WEIGHTS)]
    assert proto.graph.initializer[0].name == "w"


@pytest.mark.parametrize(
    "path",
    [
        (7, 5),
        (7, 15, 1),
        (7, 15, 2),
        (7, 1, 5, 5),
        (7, 1, 5, 10),
        (7, 1, 5, 22, 1),
        (7, 1, 5, 23, 2),
        (7, 1, 5, 6, 5),
        (7, 1, 5, 11, 1, 5, 5),
        (20, 1, 5),
        (20, 2, 1, 5, 5),
        (25, 7, 5, 5),
        (25, 11, 5),
        (25, 11, 6, 15, 2),
    ],
)
def test_tensors_are_found_wherever_onnx_has_them(path: tuple[int, ...]) -> None:
    data = tensor(raw_data(WEIGHTS))
    for number in reversed(path):
        data = field(number, data)
    light, references = lighten(data, "model.onnx", 16)
    assert list(references) == [data.index(WEIGHTS)]
    assert WEIGHTS not in light


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


def test_graph_larger_than_protobuf_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphkit.io.wire.MAX_PROTO", 40)
    with pytest.raises(Fault, match="the graph without its weights is larger than 2 GiB, the limit of protobuf"):
        lighten(model(initializer(raw_data(WEIGHTS))), "model.onnx", 1)
