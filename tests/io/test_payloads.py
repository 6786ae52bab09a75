from __future__ import annotations

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from protos import INT64, attribute_tensor, field, floats, graph, initializer, model, node, raw_data, tensor, varint

from graphkit.io.wire import Fault, Reference, inflate_payloads, lighten_model

WEIGHTS = floats(4)


def lightened(data: bytes, threshold: int = 16) -> tuple[onnx.ModelProto, dict[int, Reference]]:
    light, references = lighten_model(data, "model.onnx", threshold)
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
    assert lighten_model(data, "model.onnx", 17) == (data, {})


@pytest.mark.parametrize("threshold", [0, -1])
def test_threshold_is_at_least_one_byte(threshold: int) -> None:
    data = model(initializer(raw_data(b""), dims=(0,)))
    assert lighten_model(data, "model.onnx", threshold) == (data, {})


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
    assert lighten_model(data, "model.onnx", 1) == (data, {})


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
    assert lighten_model(data, "model.onnx", 1) == (data, {})


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
    light, references = lighten_model(data, "model.onnx", 16)
    assert list(references) == [data.index(WEIGHTS)]
    assert WEIGHTS not in light


def test_graph_larger_than_protobuf_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphkit.io.wire.MAX_PROTO", 40)
    with pytest.raises(Fault, match="the graph without its weights is larger than 2 GiB, the limit of protobuf"):
        lighten_model(model(initializer(raw_data(WEIGHTS))), "model.onnx", 1)


MARK = b"a mark of some length"


def marked(raw: bytes, mark: bytes) -> onnx.ModelProto:
    """Return a model that holds a tensor as initializer, as constant and in a body; `mark` stands for `raw`."""
    tensor = TensorProto(name="w", data_type=TensorProto.UINT8, dims=[len(raw)], raw_data=mark, doc_string="kept")
    constant = helper.make_node("Constant", [], ["c"], value=tensor)
    body = helper.make_graph([constant], "body", [], [helper.make_tensor_value_info("c", TensorProto.UINT8, None)])
    branch = helper.make_node("If", ["cond"], ["y"], then_branch=body, else_branch=body)
    return helper.make_model(helper.make_graph([constant, branch], "g", [], [], [tensor]))


@settings(deadline=None, derandomize=True)
@given(st.binary(max_size=300))
def test_every_mark_becomes_its_payload(raw: bytes) -> None:
    pieces = inflate_payloads(marked(raw, MARK).SerializeToString(), {MARK: memoryview(raw)})
    assert onnx.ModelProto.FromString(b"".join(pieces)) == marked(raw, raw)


def test_payloads_are_referred_to_and_not_copied() -> None:
    payload = memoryview(bytes(1000))
    pieces = inflate_payloads(marked(b"x" * 1000, MARK).SerializeToString(), {MARK: payload})
    assert sum(piece is payload for piece in pieces) == 4


def test_without_marks_the_bytes_are_the_same() -> None:
    data = marked(b"abc", b"abc").SerializeToString()
    assert b"".join(inflate_payloads(data, {})) == data
