from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from builders import proto_of
from onnx import helper, numpy_helper

from graphkit.analysis.node_list import WeightOrder, weight_list
from graphkit.model import Model, load
from graphkit.render.document_blocks import Table

PROTO = proto_of(
    """(float[N, 4] x) => (float[N, 2] y, float[4, 4] w1) {
        a = MatMul (x, w0)
        b = MatMul (a, w1)
        d = MatMul (b, head)
        one = Constant <value_float = 1.0> ()
        y = Mul (d, one)
    }""",
    w0=np.eye(4, dtype=np.float32),
    w1=np.eye(4, dtype=np.float32),
    head=np.ones((4, 2), np.float32),
    scale=np.ones(3, np.int8),
)
for node, name in zip(PROTO.graph.node, ("layers.0/MatMul", "layers.1/MatMul", "head/MatMul"), strict=False):
    node.name = name
SPARSE = helper.make_sparse_tensor(
    numpy_helper.from_array(np.array([1.0], np.float32), "sparse"), numpy_helper.from_array(np.array([2])), [40]
)


def test_families_as_text() -> None:
    assert (
        weight_list(Model.from_proto(PROTO)).to_text()
        == """\
Weights

5 tensors, 167 bytes.

Tensor  Dtype    Shape   Times  Bytes
──────────────────────────────────────
w{0-1}  float32  [4, 4]      2    128
  read by layers.{0-1}/MatMul
head    float32  [4, 2]      1     32
  read by head/MatMul
scale   int8     [3]         1      3
  read by no node
one     float32  []          1      4
  read by Mul#4

"""
    )


def test_a_long_family_is_its_first_name_and_a_number() -> None:
    names = [f"onnx::MatMul_{number * number}" for number in range(40, 60)]
    initializers = [numpy_helper.from_array(np.zeros(2, np.float32), name) for name in names]
    graph = helper.make_graph([], "long", [], [], initializers)
    (shown,) = (
        block for block in weight_list(Model.from_proto(helper.make_model(graph))).blocks() if isinstance(block, Table)
    )
    assert [*shown.rows] == [("onnx::MatMul_1600 and 19 more", "float32", "[2]", 20, 160, "read by no node")]


def test_by_bytes_the_family_that_has_the_most_is_first() -> None:
    tensors = [numpy_helper.from_array(np.zeros(3, np.float32), f"w{number}") for number in range(2)]
    whole = numpy_helper.from_array(np.zeros(4, np.float32), "whole")
    model = Model.from_proto(helper.make_model(helper.make_graph([], "g", [], [], [*tensors, whole])))
    text = weight_list(model, by="bytes").to_text()
    assert text.index("w{0-1}") < text.index("whole")
    assert [row.name for row in weight_list(model, by="bytes").rows] == ["whole", "w0", "w1"]


def test_a_long_name_without_a_family_is_whole() -> None:
    name = f"{'encoder/' * 9}weight"
    tensor = numpy_helper.from_array(np.zeros(2, np.float32), name)
    model = Model.from_proto(helper.make_model(helper.make_graph([], "long", [], [], [tensor])))
    assert f"\n{name}  float32" in weight_list(model).to_text(200)


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("file", ["w0", "w1", "head", "scale", "one"]),
        ("bytes", ["w0", "w1", "head", "one", "scale"]),
        ("name", ["head", "one", "scale", "w0", "w1"]),
    ],
)
def test_orders(by: WeightOrder, names: list[str]) -> None:
    assert [row.name for row in weight_list(Model.from_proto(PROTO), by=by).rows] == names


def test_csv_names_each_reader() -> None:
    assert weight_list(Model.from_proto(PROTO)).to_csv().splitlines()[:2] == [
        "Scope,Tensor,Dtype,Shape,Bytes,File,Read by",
        ',w0,float32,"[4, 4]",64,,layers.0/MatMul',
    ]


def test_sparse_tensors_have_the_bytes_that_they_store() -> None:
    graph = helper.make_graph([], "sparse", [], [], sparse_initializer=[SPARSE])
    node = helper.make_node("Constant", [], ["c"], sparse_value=SPARSE)
    graph.node.append(node)
    rows = weight_list(Model.from_proto(helper.make_model(graph))).rows
    assert [(row.name, row.dtype, row.shape, row.bytes) for row in rows] == [
        ("sparse", "float32", (40,), 12),
        ("c", "float32", (40,), 12),
    ]


def test_the_file_that_holds_the_data(tmp_path: Path, model_file: Callable[[str], Path]) -> None:
    model = load(model_file("t5-tiny/encoder_model"))
    assert {row.place for row in weight_list(model).rows} == {""}
    model.save(tmp_path / "out.onnx", "shared")
    places = {row.place for row in weight_list(tmp_path / "out.onnx").rows if (row.bytes or 0) > 4096}
    assert len(places) == 1
    assert (tmp_path / places.pop()).is_file()
