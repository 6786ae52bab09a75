from __future__ import annotations

import numpy as np
import pytest
from builders import model_of, proto_of

from graphkit.analysis.node_list import TensorOf, node_list
from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.shapes import DimSpec

PROTO = proto_of(
    """two_layers (float[N, 4] x, bool c) => (float[N, 4] y) {
        a = MatMul (x, w0)
        b = com.microsoft.Gelu (a)
        d = MatMul (b, w1)
        e = com.microsoft.Gelu (d)
        f = If (c) <then_branch = then () => (float[N, 4] t) { t = Neg (e) },
                    else_branch = other () => (float[N, 4] u) { u = Abs (e) }>
        y = Softmax <axis = 1> (f)
    }""",
    domains=["com.microsoft"],
    w0=np.eye(4, dtype=np.float32),
    w1=np.eye(4, dtype=np.float32),
)
NAMES = ("layers.0/fc/MatMul", "layers.0/act/Gelu", "layers.1/fc/MatMul", "layers.1/act/Gelu", "choose")
for node, name in zip(PROTO.graph.node, NAMES, strict=False):
    node.name = name
for attribute, name in zip(PROTO.graph.node[4].attribute, ("inside/Neg", "inside/Abs"), strict=True):
    attribute.g.node[0].name = name
TWO_LAYERS = Model.from_proto(PROTO)


def test_families_as_text() -> None:
    assert (
        node_list(TWO_LAYERS).to_text()
        == """\
Nodes

8 nodes.

Node                           Op                  Gives           Times
─────────────────────────────────────────────────────────────────────────
layers.{0-1}/fc/MatMul         MatMul              float32 [N, 4]      2
layers.{0-1}/act/Gelu          com.microsoft.Gelu  float32 [N, 4]      2
choose                         If                  float32 [N, 4]      1
  then_branch = graph of 1 node, else_branch = graph of 1 node
Softmax#5                      Softmax             float32 [N, 4]      1
  axis = 1
choose/then_branch/inside/Neg  Neg                 float32 [N, 4]      1
choose/else_branch/inside/Abs  Abs                 float32 [N, 4]      1

"""
    )


def test_csv_has_a_row_for_each_node() -> None:
    listed = node_list(TWO_LAYERS, DimSpec.of({"N": 3}), ops=["MatMul", "Softmax"])
    assert (
        listed.to_csv()
        == """\
Node,Op,Module,Attributes,Reads,Gives,Bytes,Readers
layers.0/fc/MatMul,MatMul,layers.0/fc,,"x float32 [3, 4]; w0 float32 [4, 4]","a float32 [3, 4]",48,1
layers.1/fc/MatMul,MatMul,layers.1/fc,,"b float32 [3, 4]; w1 float32 [4, 4]","d float32 [3, 4]",48,1
Softmax#5,Softmax,,axis = 1,"f float32 [3, 4]","y float32 [3, 4]",48,0
"""
    )


def test_bytes_are_unknown_where_dims_are() -> None:
    (row,) = node_list(TWO_LAYERS, filters=["e"]).rows
    assert row.outputs == (TensorOf("e", "float32", ("N", 4), None, 2),)


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        ({"filters": ["layers.0/*"]}, ["layers.0/fc/MatMul", "layers.0/act/Gelu"]),
        ({"filters": ["layers.{0-1}/fc/MatMul"]}, ["layers.0/fc/MatMul", "layers.1/fc/MatMul"]),
        ({"filters": ["y", "*Neg"]}, ["Softmax#5", "choose/then_branch/inside/Neg"]),
        ({"ops": ["Gelu"]}, ["layers.0/act/Gelu", "layers.1/act/Gelu"]),
        ({"ops": ["com.microsoft.Gelu"], "modules": ["layers.1"]}, ["layers.1/act/Gelu"]),
        ({"modules": ["/layers.0/fc/"]}, ["layers.0/fc/MatMul"]),
        ({"modules": ["layers/{0-1}.fc"]}, ["layers.0/fc/MatMul", "layers.1/fc/MatMul"]),
    ],
    ids=str,
)
def test_what_is_asked_for(options: dict[str, list[str]], nodes: list[str]) -> None:
    assert [row.node for row in node_list(TWO_LAYERS, **options).rows] == nodes  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"filters": ["layers.7/*"]}, r"no node matches 'layers.7/\*' - "),
        ({"ops": ["Matmul"]}, "no node matches 'Matmul' - did you mean 'MatMul'"),
        ({"modules": ["layers.1/f"]}, "no node matches 'layers.1/f' - did you mean 'layers.1/fc'"),
    ],
    ids=str,
)
def test_what_matches_nothing_is_an_error(options: dict[str, list[str]], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        node_list(TWO_LAYERS, **options)  # type: ignore[arg-type]


def test_an_input_that_is_left_out() -> None:
    (row,) = node_list(model_of("(float[2] x, float h) => (float[2] y) { y = Clip (x, , h) }")).rows
    assert [tensor.name for tensor in row.inputs] == ["x", "", "h"]
    assert row.inputs[1] == TensorOf("", "?", None, None, 0)
