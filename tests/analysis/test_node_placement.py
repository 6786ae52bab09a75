from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner
from devices import needs_webgpu
from small_models import model

from graphkit.analysis import node_placement
from graphkit.analysis.node_placement import NodePlacement, placement
from graphkit.analysis.report import ReportOptions, report
from graphkit.analysis.report_gate import read_partitions
from graphkit.cli import app
from graphkit.errors import UsageError
from graphkit.judges import judge_list
from graphkit.judges.judge_list import list_providers
from graphkit.model import Model
from graphkit.runtime.providers import KNOWN_PROVIDERS, Provider
from graphkit.shapes import DimSpec

MIDDLE = """
g (float[batch, 4] x) => (float[batch, 4] y) {
  before = MatMul (x, w)
  middle = Erf (before)
  after = MatMul (middle, w)
  y = Relu (after)
}
"""
SHAPES = """
g (float[batch, 4] x) => (float[flat] y) {
  first = Relu (x)
  dims = Shape (first)
  size = ReduceProd <keepdims = 1> (dims)
  y = Reshape (first, size)
}
"""
FOLDED = """
g (float[batch, 4] x) => (float[batch, 4] y) {
  turned = Neg (w)
  product = MatMul (x, turned)
  shifted = Erf (turned)
  y = MatMul (product, shifted)
}
"""
PICKED = MIDDLE.replace("Erf", "Hardmax")  # for which WebGPU has no kernel


def four(text: str) -> Model:
    return model(text, w=[[1.0] * 4] * 4) if "w)" in text else model(text)


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let a device take the nodes of a model but for some operators; one that tells no copies compiles its parts."""

    def place(source: Model, refused: set[str], copies: tuple[int, int] | None, parts: int = 0) -> NodePlacement:
        def answer(named: Model, _: Provider, dims: Mapping[str, int]) -> dict[str, Any]:
            assert dict(dims) in ({}, {"batch": 2})
            nodes = [
                {"name": node.name, "operator": node.op_type, "provider": "cpu" if node.op_type in refused else "cuda"}
                for node in named.proto.graph.node
                if node.op_type != "Neg"  # which onnxruntime folds
            ]
            counts = Counter(node["provider"] for node in nodes)
            return {
                "runtime": "1", "package": "p", "nodes": nodes, "counts": counts,
                "parts": {**counts, "cuda": parts}, "copies": copies and {"cpu": copies[0], "device": copies[1]},
            }  # fmt: skip

        monkeypatch.setattr(node_placement, "place_model", answer)
        monkeypatch.setattr(node_placement, "as_provider", lambda _: Provider("cuda"))
        return placement(source, "cuda", DimSpec.of({"batch": 2}))

    return place


def test_a_node_on_the_cpu_between_two_on_the_device_parts_them(on_device: Any) -> None:
    placed = on_device(four(MIDDLE), {"Erf"}, (1, 2))
    assert (placed.device, placed.cpu, placed.partitions, placed.copies) == (3, 1, 2, 3)
    assert (placed.device_macs, placed.cpu_macs) == (2 * 2 * 4 * 4, 0)
    (row,) = placed.operators
    assert (row.operator, row.nodes, row.cuts, row.removed_by) == ("Erf", 1, ("Erf#1",), "gelu-to-tanh")


def test_shape_arithmetic_on_the_cpu_parts_nothing_and_folds(on_device: Any) -> None:
    placed = on_device(four(SHAPES), {"ReduceProd"}, (0, 1))
    assert placed.partitions == 1
    assert [(row.operator, row.cuts, row.removed_by) for row in placed.operators] == [("ReduceProd", (), "fold")]


def test_what_onnxruntime_removes_first_parts_nothing(on_device: Any) -> None:
    placed = on_device(four(FOLDED), {"Erf"}, (1, 2))
    assert (placed.gone, placed.partitions) == (1, 1)
    assert [row.cuts for row in placed.operators] == [()]


def test_the_parts_of_a_device_that_compiles_are_those_that_onnxruntime_counts(on_device: Any) -> None:
    placed = on_device(four(PICKED), {"Hardmax"}, None, parts=2)
    assert placed.partitions == 2
    assert placed.is_compiled
    assert placed.copies is None
    assert [(row.cuts, row.removed_by) for row in placed.operators] == [(("Hardmax#1",), "no rewrite known")]


def test_no_node_is_refused_by_the_cpu() -> None:
    placed = placement(four(MIDDLE), "cpu")
    assert (placed.device, placed.cpu, placed.partitions, placed.copies, placed.operators) == (4, 0, 1, 0, ())


def test_nodes_of_functions_are_where_onnxruntime_places_them() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "my" : 1]>
        g (float[4, 4] x) => (float[4, 4] y) { h = my.F (x)  y = my.F (h) }
        <domain: "my", opset_import: ["" : 17]> F (a) => (b) { r = MatMul (a, a)  b = Sigmoid (r) }
    """)
    placed = placement(Model.from_proto(proto), "cpu")
    assert (placed.device, placed.gone, placed.device_macs, placed.cpu_macs) == (4, 0, 2 * 4 * 4 * 4, 0)


def test_the_section_is_for_a_device_alone() -> None:
    sections = report(four(MIDDLE), ReportOptions(provider="cpu")).sections
    assert isinstance(sections["placement"], NodePlacement)
    assert "placement" not in report(four(MIDDLE)).sections
    with pytest.raises(UsageError, match="name one with --provider"):
        ReportOptions(only=("placement",))


def test_a_report_fails_on_more_parts_than_are_allowed(on_device: Any, tmp_path: Path) -> None:
    assert read_partitions("hazards, partitions:3,merged-if") == ("hazards, ,merged-if", 3)
    file = tmp_path / "model.onnx"
    onnx.save(four(MIDDLE).proto, file)
    on_device(four(MIDDLE), {"Erf"}, (1, 1))
    words = ["report", str(file), "--only", "placement", "--provider", "cpu"]
    fails, passes = (CliRunner().invoke(app, [*words, "--fail-on", f"partitions:{most}"]) for most in (1, 2))
    assert (fails.exit_code, passes.exit_code) == (1, 0), fails.output + passes.output
    assert f"Partitions: {file}: 2 on cuda, and 1 allowed" in fails.output
    refused = CliRunner().invoke(app, ["report", str(file), "--fail-on", "partitions:1"])
    assert "name one with --provider" in str(refused.exception)


@needs_webgpu
def test_what_webgpu_refuses_parts_its_work() -> None:
    placed = placement(four(PICKED), "webgpu")
    assert (placed.device, placed.cpu, placed.partitions, placed.copies) == (3, 1, 2, 2)
    assert [row.cuts for row in placed.operators] == [("Hardmax#1",)]


def test_providers_are_listed_with_what_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_list, "is_here", lambda known: "built in" if known.name == "cpu" else "")
    listed = list_providers()
    assert [row.name for row in listed.providers] == [known.name for known in KNOWN_PROVIDERS]
    assert [row.name for row in listed.providers if row.here] == ["cpu"]
    text = listed.to_text()
    assert "pip install onnxruntime-ep-webgpu" in text
    assert max(map(len, text.splitlines())) <= 80
