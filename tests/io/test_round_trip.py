"""`load(file).restore()` equals what onnx reads, whatever lies in the file and wherever the threshold is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, helper
from properties import examples
from protos import INT64, field, floats, graph, initializer, model, node, raw_data, tensor, varint

from graphkit.examples import EXAMPLES, resolve
from graphkit.io.tensors import walk_tensors
from graphkit.model import load

THRESHOLDS = (1, 64, 1024)
BACKEND = sorted((Path(onnx.__file__).parent / "backend/test/data").rglob("*.onnx"))
FOLDERS = sorted({path.parent.parent if path.name == "model.onnx" else path.parent for path in BACKEND})

Save = Callable[..., Path]


def assert_round_trip(path: Path, *thresholds: int) -> None:
    whole = onnx.load(path, load_external_data=False)
    has_nan = whole != onnx.ModelProto.FromString(whole.SerializeToString())  # then it does not equal itself
    for threshold in thresholds or THRESHOLDS:
        restored = load(path, threshold=threshold).restore()
        assert restored == whole or has_nan
        assert restored.SerializeToString(deterministic=True) == whole.SerializeToString(deterministic=True)


def left_in_file(path: Path, threshold: int = 1) -> int:
    return len(load(path, threshold=threshold).references)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name: str) -> None:
    assert_round_trip(resolve(f"example:{name}"))
    assert left_in_file(resolve(f"example:{name}"), 1024)


@pytest.mark.cases("simple")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_models_of_onnx(folder: Path) -> None:
    for path in folder.rglob("*.onnx"):
        assert_round_trip(path)


@pytest.mark.cases(7)
@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_references_are_exactly_the_large_tensors(name: str, threshold: int) -> None:
    path = resolve(f"example:{name}")
    data, loaded, whole = path.read_bytes(), load(path, threshold=threshold), onnx.load(path)
    seen = 0
    for (light, _), (full, _) in zip(walk_tensors(loaded.proto), walk_tensors(whole), strict=True):
        assert (light.name, light.dims, light.data_type) == (full.name, full.dims, full.data_type)
        if light.data_location == TensorProto.EXTERNAL:
            entries = {entry.key: entry.value for entry in light.external_data}
            offset, length = int(entries["offset"]), int(entries["length"])
            assert entries["location"] == path.name
            assert not light.HasField("raw_data")
            assert length >= threshold
            assert data[offset : offset + length] == full.raw_data == loaded.payload(light)
            seen += 1
        else:
            assert len(light.raw_data) < threshold
            assert light == full
        np.testing.assert_array_equal(loaded.array(light), onnx.numpy_helper.to_array(full))
    assert seen == len(loaded.references) > 0
    assert loaded.source.size == len(data)
    assert loaded.source.data_files == ()


# Where tensors may lie.


def weight(name: str = "w", count: int = 300) -> TensorProto:
    return onnx.numpy_helper.from_array(np.arange(count, dtype=np.float32), name)


def sparse_weight(name: str = "s") -> SparseTensorProto:
    indices = onnx.numpy_helper.from_array(np.arange(300, dtype=np.int64), f"{name}_indices")
    return helper.make_sparse_tensor(weight(name), indices, [1000])


def body(content: NodeProto) -> GraphProto:
    return helper.make_graph([content], "body", [], [], [weight("inner")])


def constant(count: int = 300) -> NodeProto:
    return helper.make_node("Constant", [], ["c"], value=weight("c", count))


def nested(op_type: str, depth: int) -> NodeProto:
    if not depth:
        return constant()
    inner = body(nested(op_type, depth - 1))
    if op_type == "If":
        return helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=body(constant()))
    return helper.make_node(op_type, ["a", "b"], ["y"], body=inner)


def save_proto(save: Save, proto: ModelProto) -> Path:
    return save(proto.SerializeToString())


def with_nodes(*nodes: NodeProto) -> ModelProto:
    return helper.make_model(helper.make_graph(nodes, "g", [], []))


@pytest.mark.parametrize(("op_type", "tensors"), [("If", 10), ("Loop", 4), ("Scan", 4)])
def test_bodies_at_depth_3(save: Save, op_type: str, tensors: int) -> None:
    path = save_proto(save, with_nodes(nested(op_type, 3)))
    assert_round_trip(path)
    assert left_in_file(path) == tensors


def test_local_functions(save: Save) -> None:
    function = helper.make_function("local", "F", [], ["c"], [constant()], [helper.make_opsetid("", 18)])
    function.attribute_proto.append(helper.make_attribute("default", weight()))
    proto = with_nodes(helper.make_node("F", [], ["y"], domain="local"))
    proto.functions.extend([function, function])
    path = save_proto(save, proto)
    assert_round_trip(path)
    assert left_in_file(path) == 4


def test_sparse_tensors(save: Save) -> None:
    holder = helper.make_node("Constant", [], ["c"], sparse_value=sparse_weight())
    holder.attribute.append(helper.make_attribute("many", [sparse_weight(), sparse_weight()]))
    proto = with_nodes(holder)
    proto.graph.sparse_initializer.append(sparse_weight())
    path = save_proto(save, proto)
    assert_round_trip(path)
    assert left_in_file(path) == 8


def test_lists_of_tensors_and_graphs(save: Save) -> None:
    lists = [[weight(), weight("v")], [body(constant()), body(constant())]]
    attributes = [helper.make_attribute(f"list{i}", values) for i, values in enumerate(lists)]
    proto = with_nodes(NodeProto(op_type="Custom", domain="local", attribute=attributes))
    path = save_proto(save, proto)
    assert_round_trip(path)
    assert left_in_file(path) == 6


def test_attribute_that_says_another_type_than_it_holds(save: Save) -> None:
    attribute = AttributeProto(name="a", type=AttributeProto.FLOAT, f=1, t=weight())
    path = save_proto(save, with_nodes(NodeProto(op_type="Custom", attribute=[attribute])))
    assert_round_trip(path)
    assert left_in_file(path) == 1


def test_training_info(save: Save) -> None:
    proto = with_nodes(constant())
    proto.training_info.add(initialization=body(constant()), algorithm=body(nested("If", 1)))
    path = save_proto(save, proto)
    assert_round_trip(path)
    assert left_in_file(path) == 8


# How tensors may hold their values.

TYPED = [
    (TensorProto.FLOAT, np.linspace(-1, 1, 300, dtype=np.float32)),
    (TensorProto.DOUBLE, np.linspace(-1, 1, 300)),
    (TensorProto.COMPLEX64, np.linspace(-1, 1, 300).astype(np.complex64) * 1j),
    (TensorProto.COMPLEX128, np.linspace(-1, 1, 300) * 1j),
    (TensorProto.INT32, np.arange(-150, 150, dtype=np.int32)),
    (TensorProto.INT8, np.arange(-100, 100, dtype=np.int8)),
    (TensorProto.BOOL, np.arange(300) % 2 == 0),
    (TensorProto.FLOAT16, np.linspace(-1, 1, 300, dtype=np.float16)),
    (TensorProto.INT64, np.arange(-150, 150, dtype=np.int64) << 40),
    (TensorProto.UINT32, np.arange(300, dtype=np.uint32) << 20),
    (TensorProto.UINT64, np.arange(300, dtype=np.uint64) << np.uint64(50)),
    (TensorProto.STRING, np.array([b"text", b"", b"\xff\0"] * 100)),
]
LITTLE_ENDIAN = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.COMPLEX64, TensorProto.COMPLEX128)


@pytest.mark.parametrize(("dtype", "values"), TYPED, ids=[TensorProto.DataType.Name(dtype) for dtype, _ in TYPED])
def test_typed_fields(save: Save, dtype: int, values: np.ndarray) -> None:
    typed = helper.make_tensor("t", dtype, values.shape, values.tolist())
    assert not typed.HasField("raw_data")
    path = save_proto(save, helper.make_model(helper.make_graph([], "g", [], [], [typed])))
    assert_round_trip(path)
    assert left_in_file(path) == (dtype in LITTLE_ENDIAN)
    if dtype != TensorProto.STRING:
        for threshold in THRESHOLDS:
            loaded = load(path, threshold=threshold)
            light = loaded.proto.graph.initializer[0]
            np.testing.assert_array_equal(loaded.array(light), values)
            assert loaded.payload(light) == values.tobytes()


BYTES = floats(300)
HALVES = BYTES[:500], BYTES[500:]
LARGE = tensor(raw_data(BYTES), dims=(300,))
UNPACKED = [varint(4 << 3 | 5) + BYTES[i : i + 4] for i in range(0, len(BYTES), 4)]

BY_HAND = {
    "raw_data twice, the last of which counts": initializer(raw_data(b"1" * 80), raw_data(BYTES), dims=(300,)),
    "empty raw_data before the real one": initializer(raw_data(b""), raw_data(BYTES), dims=(300,)),
    "float_data in two runs": initializer(*(field(4, half) for half in HALVES), dims=(300,)),
    "float_data unpacked": initializer(*UNPACKED, dims=(300,)),
    "float_data packed and unpacked": initializer(field(4, HALVES[0]), *UNPACKED[125:], dims=(300,)),
    "float_data before the dtype": field(5, field(1, 300) + field(4, BYTES) + field(2, 1)),
    "dtype said twice": field(5, field(1, 300) + field(2, INT64) + field(4, BYTES) + field(2, 1)),
    "int64_data unpacked": initializer(*(field(7, value) for value in range(-150, 150)), dims=(300,), dtype=INT64),
    "packed dims": field(5, field(1, varint(30) + varint(10)) + field(2, 1) + raw_data(BYTES)),
    "explicit default location": initializer(field(14, 0), raw_data(BYTES), dims=(300,)),
    "explicit default location, last": initializer(field(4, BYTES), field(14, 0), dims=(300,)),
    "location said twice": initializer(field(14, 0), raw_data(BYTES), field(14, 0), dims=(300,)),
    "unknown location": initializer(field(14, 9), raw_data(BYTES), dims=(300,)),
    "default location with entries": initializer(raw_data(BYTES), field(13, field(1, b"offset")), dims=(300,)),
    "empty raw_data": initializer(raw_data(b""), dims=(0,)),
    "a dim of 0": initializer(raw_data(b""), dims=(3, 0, 5)),
    "no dims": initializer(raw_data(floats(1)), dims=()),
    "no data": initializer(dims=(300,)),
    "empty tensor": field(5, b""),
    "unknown fields around the data": initializer(
        field(900, b"before" * 50), raw_data(BYTES), field(901, 5), varint(902 << 3 | 1) + bytes(8), dims=(300,)
    ),
    "unknown fields around float_data": initializer(field(900, 1), field(4, BYTES), field(901, 2), dims=(300,)),
    "raw_data of another wire type": initializer(field(9, 5), raw_data(BYTES), dims=(300,)),
    "one graph for two attributes": field(1, node(field(5, field(6, graph(field(5, LARGE))) * 2))),
    "one tensor in two parts": field(1, node(field(5, field(5, tensor(dims=(300,))) + field(5, raw_data(BYTES))))),
    "one tensor twice": field(1, node(field(5, field(5, LARGE) + field(5, field(8, b"v"))))),
    "sparse values twice": field(15, field(1, LARGE) + field(1, field(8, b"v"))),
    "unknown field that looks like a graph": field(77, graph(field(5, LARGE))),
}


@pytest.mark.parametrize("content", BY_HAND.values(), ids=BY_HAND)
def test_by_hand(save: Save, content: bytes) -> None:
    assert_round_trip(save(model(content)))


def test_graph_that_occurs_twice(save: Save) -> None:
    more = initializer(raw_data(BYTES), dims=(300,))
    path = save(model(more) + field(7, graph(more) + field(10, b"merged")))
    assert len(onnx.load(path).graph.initializer) == 2
    assert_round_trip(path)


def test_unknown_fields_at_every_level(save: Save) -> None:
    unknown = field(800, b"text") + field(801, 1 << 60) + varint(802 << 3 | 5) + b"1234"
    large = tensor(unknown, raw_data(BYTES), unknown, dims=(300,))
    attribute = field(5, unknown + field(1, b"a") + field(5, large) + unknown)
    content = [unknown, field(1, unknown + node(attribute) + unknown), field(5, large), field(15, unknown), unknown]
    path = save(unknown + model(*content) + field(20, field(1, graph(*content)) + unknown) + unknown)
    assert_round_trip(path)
    assert left_in_file(path) == 4
    assert load(path).restore().ByteSize() > len(unknown) * 10


@pytest.mark.parametrize("width", [1, 2, 5])
def test_overlong_varints(save: Save, width: int) -> None:
    large = field(1, 300, width) + field(2, 1, width) + field(9, BYTES, width)
    path = save(field(1, 10, width) + field(7, field(1, node(), width) + field(5, large, width), width))
    assert_round_trip(path)
    assert left_in_file(path) == 1


def test_existing_external_data_stays(save: Save) -> None:
    save(BYTES, "weights.bin")
    proto = with_nodes(constant())
    proto.graph.initializer.append(weight())
    outside = proto.graph.initializer.add(name="e", dims=[300], data_type=1, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "weights.bin", "offset": "0", "length": "1200", "checksum": "abc"}.items():
        outside.external_data.add(key=key, value=value)
    path = save_proto(save, proto)
    assert_round_trip(path)
    assert load(path).restore().graph.initializer[1] == outside
    assert load(path).proto.graph.initializer[1] == outside


def test_restore_leaves_the_model_as_it_is(save: Save) -> None:
    loaded = load(save_proto(save, with_nodes(constant())))
    before = loaded.proto.SerializeToString()
    assert loaded.restore() == loaded.restore()
    assert loaded.proto.SerializeToString() == before


# Random models.

NAMES = st.text(max_size=5)
UNKNOWN = st.lists(
    st.tuples(st.integers(500, 520), st.one_of(st.binary(max_size=40), st.integers(0, 2**64 - 1))), max_size=2
).map(lambda pairs: b"".join(field(number, value) for number, value in pairs))
DTYPES = {TensorProto.FLOAT: "<f4", TensorProto.DOUBLE: "<f8", TensorProto.INT64: "<i8", TensorProto.UINT8: "u1"}


@st.composite
def tensors(draw: st.DrawFn) -> TensorProto:
    dtype = draw(st.sampled_from(list(DTYPES)))
    dims = draw(st.lists(st.integers(0, 6), max_size=3))
    values = np.resize(np.arange(draw(st.integers(1, 200)), dtype=np.uint8), dims).astype(DTYPES[dtype])
    if draw(st.booleans()):
        proto = helper.make_tensor("t", dtype, dims, values.ravel().tolist())
    else:
        proto = TensorProto(dims=dims, data_type=dtype, raw_data=values.tobytes())
    proto.name = draw(NAMES)
    if draw(st.booleans()):
        proto.data_location = TensorProto.DEFAULT
    proto.MergeFromString(draw(UNKNOWN))
    return proto


@st.composite
def sparse_tensors(draw: st.DrawFn) -> SparseTensorProto:
    return SparseTensorProto(values=draw(tensors()), indices=draw(tensors()), dims=draw(st.lists(st.integers(0, 9))))


@st.composite
def attributes(draw: st.DrawFn, depth: int) -> AttributeProto:
    proto = AttributeProto(name=draw(NAMES), type=draw(st.sampled_from(AttributeProto.AttributeType.values())))
    holds = draw(st.sets(st.sampled_from(["t", "tensors", "sparse_tensor", "sparse_tensors", "g", "graphs", "ints"])))
    if "t" in holds:
        proto.t.CopyFrom(draw(tensors()))
    if "tensors" in holds:
        proto.tensors.extend(draw(st.lists(tensors(), max_size=2)))
    if "sparse_tensor" in holds:
        proto.sparse_tensor.CopyFrom(draw(sparse_tensors()))
    if "sparse_tensors" in holds:
        proto.sparse_tensors.extend(draw(st.lists(sparse_tensors(), max_size=2)))
    if "g" in holds and depth:
        proto.g.CopyFrom(draw(graphs(depth - 1)))
    if "graphs" in holds and depth:
        proto.graphs.extend(draw(st.lists(graphs(depth - 1), max_size=2)))
    if "ints" in holds:
        proto.ints.extend(draw(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3)))
    return proto


@st.composite
def nodes(draw: st.DrawFn, depth: int) -> NodeProto:
    proto = NodeProto(op_type=draw(NAMES), name=draw(NAMES), doc_string=draw(NAMES))
    proto.attribute.extend(draw(st.lists(attributes(depth), max_size=2)))
    proto.MergeFromString(draw(UNKNOWN))
    return proto


@st.composite
def graphs(draw: st.DrawFn, depth: int = 2) -> GraphProto:
    proto = GraphProto(name=draw(NAMES))
    proto.node.extend(draw(st.lists(nodes(depth), max_size=2)))
    proto.initializer.extend(draw(st.lists(tensors(), max_size=2)))
    proto.sparse_initializer.extend(draw(st.lists(sparse_tensors(), max_size=1)))
    proto.MergeFromString(draw(UNKNOWN))
    return proto


@st.composite
def models(draw: st.DrawFn) -> ModelProto:
    proto = ModelProto(ir_version=10, graph=draw(graphs()))
    for inner in draw(st.lists(graphs(1), max_size=1)):
        proto.training_info.add(algorithm=inner)
    for content in draw(st.lists(nodes(1), max_size=1)):
        proto.functions.add(name="f", node=[content], attribute_proto=content.attribute)
    proto.MergeFromString(draw(UNKNOWN))
    return proto


@given(proto=models(), threshold=st.sampled_from([1, 8, 64, 1024]))
@examples(10, 80, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_random_models(save: Save, proto: ModelProto, threshold: int) -> None:
    assert_round_trip(save_proto(save, proto), threshold)
