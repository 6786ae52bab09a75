"""What a graph must have for its view to be built: bodies that are not nested too deep, and names in UTF-8."""

from __future__ import annotations

import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

from graphkit.errors import ModelError
from graphkit.graph.view import MAX_NESTING, build_scopes

HEADER = '<ir_version: 8, opset_import: ["" : 17, "custom" : 3]>'


def nested(levels: int) -> onnx.ModelProto:
    """Return a model with so many Ifs inside each other."""
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "leaf", [], [output])
    for _ in range(levels):
        graph = helper.make_graph([helper.make_node("If", ["c"], ["y"], then_branch=graph)], "g", [], [output])
    return helper.make_model(graph)


def test_bodies_may_nest_up_to_the_limit() -> None:
    levels = MAX_NESTING - 1  # whose declared types leave no room for one more
    assert max(scope.depth for scope in build_scopes(nested(levels))[0].walk()) == levels


def test_deeper_bodies_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphkit.graph.view.MAX_NESTING", 5)
    with pytest.raises(
        ModelError, match=r"^deep\.onnx: graphs are nested more than 5 deep, which is more than protobuf can "
    ):
        build_scopes(nested(6), "deep.onnx")


@pytest.mark.parametrize("text", ["node_name", "input_x", "OpType", "middle"])
def test_a_name_that_is_not_utf8_is_an_error(text: str) -> None:
    model = onnx.parser.parse_model(
        f"{HEADER} g (float[N] input_x) => (float[N] y) {{ [node_name] middle = OpType(input_x)  y = Relu(middle) }}"
    )
    broken = model.SerializeToString().replace(text.encode(), b"\xff" * len(text))
    with pytest.raises(ModelError, match="not UTF-8 - the file is corrupt; export it again"):
        build_scopes(onnx.ModelProto.FromString(broken))
