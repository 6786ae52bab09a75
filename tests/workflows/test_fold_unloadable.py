"""Models that onnxruntime refuses for what no run meets: a report says why, and fold mends them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import model_of
from onnx.reference import ReferenceEvaluator

from graphkit.analysis.report import ReportOptions, report
from graphkit.equivalence.loading import loadable_copy
from graphkit.errors import ModelError
from graphkit.model import Model
from graphkit.runtime.session import Session
from graphkit.verify import verify_rewrite
from graphkit.workflows.fold_file import fold_file

SQUEEZED = """then_branch = t () => (float[p, 4] a) { a = Squeeze (x, one) },
    else_branch = e () => (float[b, k, 4] c) { c = Identity (x) }"""
IF = """(float[b, 3, 4] x) => (float[n, m] y) <int64[1] one = {{1}}> {{
    s = Shape (x) d = Gather (s, one) is_one = Equal (d, one) {nodes} y = Flatten (z)
}}"""
LOOP = """(float[b, 3, 4] x) => (float[b, 3, 4] y) <int64[1] one = {1}, int64 two = {2}, bool on = {1}> {
    s = Shape (x) d = Gather (s, one) is_one = Equal (d, one)
    y = Loop (two, on, x) <body = l (int64 i, bool k, float[b, 3, 4] v) => (bool k2, float[b, 3, 4] w) {
        k2 = Identity (k)
        u = If (is_one) <then_branch = t () => (float[b, 4, 3] a) { r = Squeeze (x, one) a = Unsqueeze (r, one) },
            else_branch = e () => (float[b, 3, 4] c) { c = Neg (v) }>
        w = Add (u, v)
    }>
}"""
DOES_NOT_FIT = "never runs, and does not fit its inputs: Squeeze: Dimension of input 1 must be 1 instead of 3"
CASES = {
    "a squeeze": (IF.format(nodes=f"z = If (is_one) <{SQUEEZED}>"), [f"If#3/then_branch {DOES_NOT_FIT}"]),
    "two of them": (
        IF.format(nodes=f"v = If (is_one) <{SQUEEZED}> w = If (is_one) <{SQUEEZED}> z = Sub (v, w)"),
        [f"If#3/then_branch {DOES_NOT_FIT}", f"If#4/then_branch {DOES_NOT_FIT}"],
    ),
    "one in a loop": (LOOP, [f"Loop#3/body/If#1/then_branch {DOES_NOT_FIT}"]),
    "a branch of another dtype": (
        IF.format(
            nodes="""z = If (is_one) <then_branch = t () => (int64[b, 3, 4] a) { a = Cast <to = 7> (x) },
            else_branch = e () => (float[b, 3, 4] c) { c = Neg (x) }>"""
        ),
        ["If#3/then_branch never runs, and does not fit its inputs: "],
    ),
    "nodes of one name": (
        "(float[b, 3, 4] x) => (float[b, 3, 4] y) { [same] u = Neg (x) [same] v = Exp (u) [same] y = Abs (v) }",
        ["3 nodes of the graph are called 'same'"],
    ),
    "nodes of one name in a branch, and of the same one around it": (
        """(float[b, 3, 4] x, bool c) => (float[b, 3, 4] y) { [same] u = Neg (x)
        y = If (c) <then_branch = t () => (float[b, 3, 4] p) { [same] v = Exp (u) [same] p = Abs (v) },
            else_branch = e () => (float[b, 3, 4] q) { q = Identity (u) }> }""",
        ["2 nodes of If#1/then_branch are called 'same'"],
    ),
    "both": (
        IF.format(nodes=f"[same] v = Neg (x) [same] w = Abs (v) q = If (is_one) <{SQUEEZED}> z = Add (q, w)"),
        ["2 nodes of the graph are called 'same'", f"If#5/then_branch {DOES_NOT_FIT}"],
    ),
}


def feed_of(model: Model) -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    return {"x": x, **({"c": np.array(True)} if len(model.graph.inputs) > 1 else {})}


@pytest.mark.cases(3)
@pytest.mark.parametrize(("text", "faults"), CASES.values(), ids=CASES)
def test_it_is_named_mended_and_proven(text: str, faults: list[str], tmp_path: Path) -> None:
    model = model_of(text, opset=17, ir=8)
    with pytest.raises(ModelError, match=r"does not load it.* - .*`graphkit fold`"):
        Session(model)
    found = report(model, ReportOptions(only=("verdict",))).found()
    told = [finding.where for finding in found if finding.kind == "unloadable"]
    assert len(told) == len(faults)
    assert all(text.startswith(fault) for text, fault in zip(told, faults, strict=True))
    folded = fold_file(model, tmp_path / "m.onnx")
    assert folded.proof is not None
    assert folded.proof.passed
    assert "onnxruntime does not load the original (" + told[0] in folded.proof.notes[0]
    (expected,) = ReferenceEvaluator(model.proto).run(None, feed_of(model))
    np.testing.assert_allclose(Session(tmp_path / "m.onnx").run(feed_of(model))["y"], expected, rtol=1e-6, atol=1e-6)


def test_a_result_that_is_wrong_is_found_where_a_copy_of_the_original_runs() -> None:
    text, _ = CASES["a squeeze"]
    original = model_of(text, opset=17, ir=8)
    wrong = model_of("(float[b, 3, 4] x) => (float[n, m] y) { v = Neg (x) y = Flatten (v) }", opset=17, ir=8)
    assert "runs differ, the first at b=1: y differs by" in verify_rewrite(original, wrong).failures[0]


def test_a_copy_fails_where_a_branch_runs_after_all() -> None:
    text, _ = CASES["a squeeze"]
    model = model_of(text, opset=17, ir=8)
    copy = loadable_copy(model)
    assert copy is not None
    flipped = onnx.ModelProto()
    flipped.CopyFrom(copy.model.proto)
    node = next(node for node in flipped.graph.node if node.op_type == "Equal")
    node.op_type = "Less"
    node.input[:] = list(node.input)[::-1]
    with pytest.raises(ModelError, match="SequenceAt"):
        Session(Model.from_proto(flipped)).run(feed_of(model))
