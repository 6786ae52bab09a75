"""What graphkit gives Model Explorer is what its package takes; `make view-test` installs it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from graphkit.viewer import explorer_format
from graphkit.viewer.make_view import view

pytest.importorskip("model_explorer", reason="needs Model Explorer, which is large: run `make view-test`")
from model_explorer import graph_builder, node_data_builder
from model_explorer.extension_manager import ExtensionManager
from model_explorer.utils import convert_adapter_response

OURS = [getattr(explorer_format, name) for name in explorer_format.__all__ if name != "Color"]


@pytest.mark.parametrize("ours", OURS, ids=lambda kind: kind.__name__)
def test_each_field_is_one_of_model_explorers(ours: type) -> None:
    theirs = getattr(graph_builder, ours.__name__, None) or getattr(node_data_builder, ours.__name__)
    assert {field.name for field in dataclasses.fields(ours)} <= {field.name for field in dataclasses.fields(theirs)}


@pytest.mark.parametrize("name", ["example:causal-attention", "marian-tiny/decoder_model_merged"])
def test_its_loader_takes_graphs_and_overlays(name: str, model_file: Callable[[str], Path]) -> None:
    """Strictly: no unknown field, and none of another type."""
    dacite = pytest.importorskip("dacite")
    model = view(name if name.startswith("example:") else str(model_file(name)), target="ethos-u85").models[0]
    strict = dacite.Config(strict=True)
    for graph in json.loads(json.dumps(convert_adapter_response({"graphs": list(model.graphs)})))["graphs"]:
        read = dacite.from_dict(graph_builder.Graph, graph, strict)
        assert [node.id for node in read.nodes] == [node["id"] for node in graph["nodes"]]
    for overlay in model.overlays:
        for data in json.loads(overlay.to_json()).values():
            results = data.pop("results")
            dacite.from_dict(node_data_builder.GraphNodeData, {**data, "results": {}}, strict)
            assert all(isinstance(each["value"], int | float | str) for each in results.values())


def test_its_server_loads_the_extension(model_file: Callable[[str], Path]) -> None:
    manager = ExtensionManager(["graphkit.viewer"])
    manager.load_extensions()
    path = str(model_file("marian-tiny/decoder_model_merged"))
    command = {"cmdId": "convert", "extensionId": "graphkit", "modelPath": path, "settings": {}}
    assert manager.run_cmd(command)["graphs"][0]["id"] == view(path).models[0].graphs[0].id
