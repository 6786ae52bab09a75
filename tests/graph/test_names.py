from __future__ import annotations

import pytest
from onnx import helper

from graphkit.graph.names import SCOPES_KEY, module_path
from graphkit.graph.view import Node, build_scopes


def node(**metadata: str) -> Node:
    proto = helper.make_node("MatMul", ["a", "b"], ["c"], name="MatMul_7")
    for key, value in metadata.items():
        proto.metadata_props.add(key=key, value=value)
    return build_scopes(helper.make_model(helper.make_graph([proto], "g", [], [])))[0].nodes[0]


def test_a_module_is_what_the_name_says() -> None:
    assert module_path(node()) == "MatMul_7"


def test_a_module_is_what_the_exporter_noted() -> None:
    scopes = "['', 'model', 'model.layers.0.q_proj', 'linear']"
    assert module_path(node(**{SCOPES_KEY: scopes})) == "model.layers.0.q_proj.linear"


@pytest.mark.parametrize("scopes", ["", "not a list", "['one']", "{'a': 1}", "[" * 500, "[__import__('os')]", "\0"])
def test_a_note_that_is_no_list_of_scopes_is_ignored(scopes: str) -> None:
    assert module_path(node(**{SCOPES_KEY: scopes})) == "MatMul_7"


def test_other_notes_are_ignored() -> None:
    assert module_path(node(namespace="a/b")) == "MatMul_7"
