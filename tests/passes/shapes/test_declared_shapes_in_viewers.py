"""The shapes that `fold` and `shapes --write` declare, which is where Netron and other viewers take them from."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest

import graphkit
from graphkit.cli import main
from graphkit.graph.declared_types import declared_dims
from graphkit.model import Model
from graphkit.ops.tensor import plain_dims
from graphkit.shapes import infer

EXAMPLE = "example:causal-attention"


def declared(model: Model) -> dict[str, object]:
    """Return the dims in `value_info` of what nodes give, by name."""
    infos = {info.name for info in model.proto.graph.value_info}
    nodes = [node for node in model.graph.nodes if not node.is_op("Constant")]
    values = [
        value for node in nodes for value in node.outputs if value is not None and value not in model.graph.outputs
    ]
    return {value.name: declared_dims(value) if value.name in infos else "not declared" for value in values}


@pytest.mark.parametrize(
    "command", [["fold", EXAMPLE, "--no-verify", "-o"], ["shapes", EXAMPLE, "--write"]], ids=lambda c: c[0]
)
def test_every_shape_is_in_value_info(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = tmp_path / "out.onnx"
    monkeypatch.setattr(sys, "argv", ["graphkit", *command, str(written)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0
    onnx.checker.check_model(str(written), full_check=True)
    model = graphkit.load(written)
    shapes = infer(model)
    assert declared(model) == {name: plain_dims(shapes[name].dims) for name in declared(model)}
    assert len(declared(model)) > 20
    assert any("batch_size" in dims for dims in declared(model).values() if isinstance(dims, tuple))


def test_the_export_did_not_declare_them() -> None:
    assert "not declared" in declared(graphkit.load(EXAMPLE)).values()
