"""The costs of whole models: expressions, numbers, layers, weights as they are stored, curves, text."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import pytest
from real_models import unpacked

import graphkit
from graphkit.analysis.cost_changes import stored_bytes
from graphkit.analysis.model_costs import OUTSIDE, group_of
from graphkit.analysis.node_costs import Quantity
from graphkit.analysis.summary import stored_weights, weight_bits
from graphkit.io.byte_source import external_extent
from graphkit.io.tensors import element_count, walk_tensors
from graphkit.model import Model, load
from graphkit.ops.tensor import MAX_ELEMENTS
from graphkit.options import By
from graphkit.render.document_blocks import Picture

HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>'
CAUSAL, MERGED = "example:causal-attention", "example:merged-decoder"


def model(text: str) -> Model:
    return Model.from_proto(onnx.parser.parse_model(f"{HEAD} {text}"))


def test_expressions_and_numbers_agree_at_every_size() -> None:
    symbolic = graphkit.costs(CAUSAL)
    for batch, length in ((1, 1), (2, 7), (3, 16)):
        names = {"batch_size": batch, "sequence_length": length}
        numbers = graphkit.costs(CAUSAL, dims=names)
        for measure in ("macs", "operations", "bytes_moved"):
            expression = getattr(symbolic, measure).expression
            assert eval(expression, {}, names) == getattr(numbers, measure).value


def test_the_formula_of_attention() -> None:
    found = graphkit.costs(CAUSAL)  # 2 layers of width 16: 12 * 16 * 16 weights each, 64 * 16 of the vocabulary
    assert found.macs.expression == "64*batch_size*sequence_length**2 + 7168*batch_size*sequence_length"
    assert 7168 == 2 * 12 * 16 * 16 + 64 * 16
    assert 64 == 2 * 2 * 16  # queries and keys, weights and values, in two layers


def test_typical_sizes_are_told() -> None:
    assert dict(graphkit.costs(MERGED).sizes) == {
        "batch_size": 1,
        "decoder_sequence_length": 1,
        "past_decoder_sequence_length": 31,  # there are 32 positions
        "encoder_sequence_length": 128,
    }
    found = graphkit.costs(CAUSAL, dims={"batch_size": 2})
    assert (dict(found.sizes), found.assumed) == ({"batch_size": 2, "sequence_length": 32}, ("sequence_length",))


def test_typical_images_are_square_where_they_may_be() -> None:
    text = """g (float[b, 3, height, width] x) => (float[b, 3, 64] y) <int64[3] s = {-1, 3, 64}>
        { a = Reshape (x, s) p = Shape <start = 1> (a) q = Shape <start = 1> (x) y = Identity (a) }"""
    fixed = """g (float[b, 3, height, width] x, float[64] w) => (y)
        <int64[3] s = {0, 3, -1}> { a = Reshape (x, s) y = Add (a, w) }"""
    assert dict(graphkit.costs(model(text)).sizes) == {"b": 1, "height": 224, "width": 224}
    assert dict(graphkit.costs(model(fixed)).sizes) == {"b": 1, "height": 8, "width": 8}


def test_a_merged_decoder_counts_the_branch_that_its_sizes_run() -> None:
    def counted(past: int) -> list[str]:
        found = graphkit.costs(MERGED, dims={"past_decoder_sequence_length": past})
        return [row.branch for row in found.branches if row.is_counted]

    assert (counted(5), counted(0)) == (["then_branch"], ["else_branch"])


LAYERS = """g (float[1, n, 8] x) => (float[1, n, 8] y)
    { a = MatMul (x, w) b = Relu (a) c = MatMul (b, v) d = Relu (c) y = MatMul (d, u) }"""
NAMES = ("layers.0/mlp/MatMul", "layers.0/mlp/act/Relu", "layers.1/mlp/MatMul", "layers.1/mlp/act/Relu", "head/MatMul")


def layers() -> Model:
    """Return two layers and a head, each with a weight of 8 x 8."""
    proto = onnx.parser.parse_model(f"{HEAD} {LAYERS}")
    for node, name in zip(proto.graph.node, NAMES, strict=True):
        node.name = f"/model/{name}"
    for name in ("w", "v", "u"):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((8, 8), np.float32), name))
    return Model.from_proto(proto)


def test_layers_that_share_a_constant_of_integers_are_told_once() -> None:
    nodes = "{ a = Unsqueeze (x, end) y = Unsqueeze (a, end) }"
    proto = model(f"g (float[n, 8] x) => (float[n, 8, 1, 1] y) <int64[1] end = {{2}}> {nodes}").proto
    for number, node in enumerate(proto.graph.node):
        node.name = f"/model/layers.{number}/Unsqueeze"
    (row,) = graphkit.costs(Model.from_proto(proto)).rows
    assert (row.name, row.times, row.nodes, row.weight_bytes) == ("model/layers.{0-1}", 2, 1, 8)


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("layer", [("model/layers.{0-1}", 2), ("model/head", 1)]),
        ("module", [("model/layers.{0-1}/mlp", 2), ("model/head", 1), ("model/layers.{0-1}/mlp/act", 2)]),
        ("op", [("MatMul", 1), ("Relu", 1)]),
        (
            "node",
            [
                *[(f"/model/{part}/MatMul", 1) for part in ("layers.0/mlp", "layers.1/mlp", "head")],
                *[(f"/model/layers.{number}/mlp/act/Relu", 1) for number in (0, 1)],
            ],
        ),
    ],
)
def test_layers_are_told_once_with_their_times(by: By, names: list[tuple[str, int]]) -> None:
    found = graphkit.costs(layers(), by=by, dims={"n": 2})
    assert [(row.name, row.times) for row in found.rows] == names
    assert sum(row.times * (row.macs.value or 0) for row in found.rows) == found.macs.value == 3 * 2 * 64
    assert sum(row.times * row.parameters for row in found.rows) == found.parameters == 3 * 64


def test_rows_that_are_left_out_are_counted() -> None:
    found = graphkit.costs(layers(), by="node", top=2)
    assert (len(found.rows), found.more) == (2, 3)


def test_the_module_is_that_of_the_exporters_metadata() -> None:
    made = model("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    node = made.proto.graph.node[0]
    node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'model.layers.3.mlp', 'relu']")
    view = Model.from_proto(made.proto).graph.nodes[0]
    assert [group_of(view, by) for by in ("module", "layer")] == ["model.layers.3.mlp", "model.layers.3"]
    node.metadata_props[0].value = "['" * 5000
    assert group_of(Model.from_proto(made.proto).graph.nodes[0], "layer") == OUTSIDE


def test_weights_count_as_they_are_stored() -> None:
    text = """g (float[3, 32] x) => (float[3, 4] y)
        { y = com.microsoft.MatMulNBits <K = 32, N = 4, bits = 4, block_size = 32> (x, w, s) }"""
    proto = model(text).proto
    for name, dtype, dims, size in (
        ("w", onnx.TensorProto.UINT8, [4, 1, 16], 64),
        ("s", onnx.TensorProto.FLOAT, [4], 16),
        ("q", onnx.TensorProto.INT4, [3], 2),
        ("t", onnx.TensorProto.INT64, [2], 16),
        ("b", onnx.TensorProto.BOOL, [5], 5),
    ):
        proto.graph.initializer.add(name=name, data_type=dtype, dims=dims, raw_data=bytes(size))
    rows = {
        (row.dtype, row.bits): (row.parameters, row.bytes) for row in graphkit.costs(Model.from_proto(proto)).weights
    }
    assert rows == {
        ("uint8", 4): (128, 64),  # 4 rows of 32, two in a byte
        ("float32", 32): (4, 16),
        ("int4", 4): (3, 2),
        ("int64", 64): (0, 16),  # no weights
        ("bool", 8): (0, 5),
    }


def test_tied_weights_count_once() -> None:
    proto = onnx.ModelProto()
    proto.CopyFrom(layers().proto)
    for tensor in proto.graph.initializer:
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        place = {"location": "weights", "offset": "0" if tensor.name != "u" else "4096", "length": "256"}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=value)
    stored = [weight for weight, _ in stored_weights(Model.from_proto(proto))]
    assert sum(row.parameters for row in weight_bits(stored)) == 2 * 64


def test_no_weight_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = Model.payload

    def refuse(made: Model, tensor: onnx.TensorProto) -> memoryview:
        assert element_count(tensor) <= MAX_ELEMENTS, "a weight is read"  # shapes may follow small ones
        return payload(made, tensor)

    made = graphkit.load(CAUSAL, threshold=64)
    monkeypatch.setattr(Model, "payload", refuse)
    assert graphkit.costs(made).parameters


def test_a_range_gives_a_curve() -> None:
    found = graphkit.costs(CAUSAL, dims={"batch_size": 1}, ranges={"sequence_length": (3, 16)})
    assert [point.size for point in found.curve] == [3, 4, 8, 16]
    for point in found.curve:
        numbers = graphkit.costs(CAUSAL, dims={"batch_size": 1, "sequence_length": point.size})
        assert (point.macs, point.bytes_moved, point.peak_bytes) == (
            numbers.macs.value,
            numbers.bytes_moved.value,
            numbers.peak.bytes.value,
        )


def test_the_cache_grows_along_a_curve() -> None:
    found = graphkit.costs(MERGED, dims={"encoder_sequence_length": 1}, ranges={"past_decoder_sequence_length": (1, 2)})
    assert [point.kv_cache_bytes for point in found.curve] == [128 + 128, 128 + 2 * 128]


def test_a_long_expression_is_cut_between_its_terms() -> None:
    text = " + ".join(f"{number}*batch*((height + 31) // 32)" for number in range(9))
    short = Quantity(1, text).short
    assert short.endswith(" and 6 more terms")
    assert short.count("(") == short.count(")")
    assert Quantity(5, "5").short == ""


TEXT = """\
Costs

At n 128 (typical sizes; --dim sets others).

Cost                            Here
─────────────────────────────────────
parameters                       192
weights                        768 B
multiply-accumulates (MACs)   24.6 k
  192*n
other operations               2.0 k
  16*n
bytes moved                  41.7 kB
  320*n + 768
operations for each byte         1.2
inputs                        4.1 kB
  32*n
peak memory of activations    8.2 kB
  64*n

Costs by layer; of one that is there several times, those of each
Layer               Times  Parameters   MACs  Of all    Moved
──────────────────────────────────────────────────────────────
model/layers.{0-1}      2          64  8.2 k  66.7 %  16.6 kB
model/head              1          64  8.2 k  33.3 %   8.4 kB

In memory at the peak, when /model/layers.1/mlp/MatMul runs
Tensor  Bytes
──────────────
a       4,096
c       4,096

"""


def test_text() -> None:
    assert graphkit.costs(layers()).to_text(80) == TEXT


def test_json_has_plain_values() -> None:
    document = json.loads(graphkit.costs(MERGED).to_json())
    assert document["schema"] == "costs/1"
    assert document["macs"] == {"value": 8704, "expression": document["macs"]["expression"], "uncounted": 0}
    assert document["sizes"]["batch_size"] == 1


@pytest.mark.parametrize("name", ["a\x1b[31m", "<script>alert(1)</script>", "{0-999999999}", "[bold]x"])
def test_names_are_hostile_text(name: str) -> None:
    proto = model("g (float[2] x) => (float[2] y) { y = Relu (x) }").proto
    proto.graph.node[0].name = f"{name}/1/{name}"
    for by in ("layer", "module", "op", "node"):
        found = graphkit.costs(Model.from_proto(proto), by=by)  # type: ignore[arg-type]
        assert "\x1b" not in found.to_text()
        assert "<script>alert" not in found.to_html()


def test_a_graph_of_thousands_of_nodes_takes_about_a_second() -> None:
    nodes = [
        onnx.helper.make_node("MatMul", [f"v{n}", "w"], [f"v{n + 1}"], f"/m/layers.{n}/MatMul") for n in range(6000)
    ]
    value = onnx.helper.make_tensor_value_info
    weight = onnx.numpy_helper.from_array(np.ones((8, 8), np.float32), "w")
    graph = onnx.helper.make_graph(nodes, "g", [value("v0", 1, ["n", 8])], [value("v6000", 1, ["n", 8])], [weight])
    made = Model.from_proto(onnx.helper.make_model(graph))
    before = time.process_time()
    found = graphkit.costs(made, ranges={"n": (1, 1024)})
    assert found.macs.expression == f"{6000 * 64}*n"
    assert [row.times for row in found.rows] == [5999, 1]  # the first layer has the weight
    assert time.process_time() - before < 30  # 2 s on a fast core


@pytest.mark.slow
def test_everything_in_memory_at_once_takes_bounded_time() -> None:
    relus = [onnx.helper.make_node("Softmax", ["x"], [f"v{n}"]) for n in range(20_000)]
    nodes = [*relus, onnx.helper.make_node("Sum", [f"v{n}" for n in range(20_000)], ["y"])]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(nodes, "g", [value("x", 1, [4])], [value("y", 1, [4])])
    before = time.process_time()
    assert graphkit.costs(Model.from_proto(onnx.helper.make_model(graph))).peak.bytes.value == 16 * 20_001
    assert time.process_time() - before < 60  # 4 s on a fast core


def test_a_report_has_costs_at_the_sizes_that_are_asked_about() -> None:
    options = graphkit.ReportOptions(only=("costs",), spec=graphkit.DimSpec.of({"batch_size": 2}))
    (section,) = graphkit.report(CAUSAL, options).sections.values()
    assert section == graphkit.costs(CAUSAL, dims={"batch_size": 2}, top=20)
    assert graphkit.report(CAUSAL).sections["costs"] == graphkit.costs(CAUSAL)


def test_the_picture_has_each_layer_in_its_module() -> None:
    (picture,) = (
        block for block in graphkit.costs(layers()).blocks() if isinstance(block, Picture) and "parts" in block.data
    )
    assert picture.data["parts"] == [["64*n", 8192, ["model/layers.0", "model/layers.1", "model/head"]]]


@pytest.mark.parametrize("name", ["marian-tiny", "qwen2-tiny"])
def test_a_model_has_the_bytes_of_its_files(name: str, tmp_path: Path) -> None:
    for file in unpacked(name, tmp_path / name).iterdir():
        inside = load(file)
        assert inside.references
        assert stored_bytes(inside) == inside.source.size
        path, beside = tmp_path / "beside.onnx", tmp_path / f"{file.stem}.data"
        onnx.save(onnx.load(file), path, save_as_external_data=True, location=beside.name, size_threshold=0)
        lengths = (
            external_extent(tensor).length or 0 for tensor, _ in walk_tensors(load(path).proto) if tensor.external_data
        )
        assert stored_bytes(load(path)) == path.stat().st_size + sum(lengths)
