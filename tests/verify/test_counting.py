from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from graphkit.model import load
from graphkit.options import RewriteProofOptions
from graphkit.verify import verify_rewrite
from graphkit.verify.proof_engine import Counted, tell_each


class Echo:
    label = "echo"
    inputs: Sequence[str] = ("x",)
    outputs: Sequence[str] = ("y",)

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"y": feed["x"]}


def test_the_runs_of_a_session_are_told_before_they_start() -> None:
    told: list[str] = []
    session = Counted(Echo(), "proving", 2, told.append)
    assert (session.label, session.inputs, session.outputs) == ("echo", ("x",), ("y",))
    for number in range(3):
        assert session.run({"x": np.array(number)}) == {"y": number}
    assert told == ["proving: run 1 of 2", "proving: run 2 of 2", "proving: run 3"]  # one more than was foreseen


def test_items_are_told_one_by_one() -> None:
    told: list[str] = []
    items = tell_each("ab", "proving", told.append, "prompt")
    assert next(items) == "a"
    assert told == ["proving: prompt 1 of 2"]
    assert list(items) == ["b"]
    assert told[1:] == ["proving: prompt 2 of 2"]


@pytest.mark.usefixtures("runs_alone")
def test_a_proof_tells_each_run(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { y = Neg (x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    model = load(tmp_path / "m.onnx")
    told: list[str] = []
    assert verify_rewrite(model, model, options=RewriteProofOptions(runs=2), progress=told.append).passed
    assert told == [
        "proving: normal forms of both models",
        "proving: loading the original",
        "proving: the original, plain level: run 1 of 2",
        "proving: the original, plain level: run 2 of 2",
        *(f"proving: the original, plain level: run {number}" for number in range(3, 16)),
        "proving: loading the rewritten model",
        *(f"proving: the rewritten model, plain level: run {number} of 15" for number in range(1, 16)),
        "comparing the weights",
        "proving: loading the rewritten model, default level",
        *(f"proving: the rewritten model, default level: run {number} of 12" for number in range(1, 13)),
    ]
