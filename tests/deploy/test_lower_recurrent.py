"""Lowering recurrent state: kept by the host and proven, or declined; and recurrence over padding."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser
from rewriting import model_of
from test_bundle_recurrent import FIRST, PROMPTS, STEP, expected, hybrid, model

import graphkit
from graphkit.deploy.export_pipeline import has_fixed_prompt
from graphkit.deploy.lower import LowerOptions, LowerReport, lower_folder
from graphkit.deploy.lowering_checks import check_prompt
from graphkit.equivalence.originals import Originals
from graphkit.errors import UsageError
from graphkit.hosts import Host


def lowered(proto: onnx.ModelProto, folder: Path, **options: object) -> LowerReport:
    (folder / "export").mkdir()
    onnx.save(proto, folder / "export" / "model.onnx")
    return lower_folder(folder / "export", folder / "out", LowerOptions(**options))  # type: ignore[arg-type]


def test_a_step_keeps_its_state(tmp_path: Path) -> None:
    report = lowered(model(STEP), tmp_path)
    assert report.proof is not None
    assert report.proof.findings() == ()
    host = Host(tmp_path / "out")
    assert {state.name: (state.shape, state.axis) for state in host.contract.states} == {
        "ssm_states": ((1, 1, 4), None),
        "top": ((1, 4), None),
    }
    assert host.contract.sizes["capacity"] == 0
    for prompt in PROMPTS:
        assert host.generate([], prompt, 40) == host.generate(None, prompt, 40) == expected(prompt, 40)
    assert "Each output that becomes a state is that state at the next step: copy all of it." in host.contract.loop
    assert graphkit.verify_folder(tmp_path / "export", tmp_path / "out").passed


def test_a_batch_of_steps_keeps_its_state(tmp_path: Path) -> None:
    report = lowered(model(STEP), tmp_path, batch=2)
    assert report.proof is not None
    assert report.proof.findings() == ()
    assert Host(tmp_path / "out").generate_batch([], PROMPTS, 8) == [expected(prompt, 8) for prompt in PROMPTS]


def test_what_reads_a_whole_prompt_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    onnx.save(model(FIRST), tmp_path / "export" / "decoder_model.onnx")
    onnx.save(model(STEP), tmp_path / "export" / "decoder_with_past_model.onnx")
    report = lower_folder(tmp_path / "export", tmp_path / "out")
    assert report.proof is not None
    assert report.proof.passed
    assert [file.name for file in report.files] == ["step.onnx"]


@pytest.mark.slow
def test_state_beside_a_cache_is_kept(tmp_path: Path) -> None:
    report = lowered(hybrid(), tmp_path, max_cache_len=8)
    assert report.proof is not None
    assert report.proof.findings() == ()
    axes = {state.name: state.axis for state in Host(tmp_path / "out").contract.states}
    assert axes["ssm_state"] is None
    assert sorted(axes.values(), key=str) == [2, 2, None]


def test_a_state_that_is_not_replaced_fails_the_proof(tmp_path: Path) -> None:
    """A fault put in on purpose: the host keeps the first state."""
    lowered(model(STEP), tmp_path, verify=False)
    step = onnx.load(tmp_path / "out" / "step.onnx")
    for node in step.graph.node:
        node.output[:] = ["lost" if name == "new_top" else name for name in node.output]
        node.input[:] = ["lost" if name == "new_top" else name for name in node.input]
    step.graph.node.append(onnx.helper.make_node("Identity", ["top"], ["new_top"]))
    onnx.save(step, tmp_path / "out" / "step.onnx")
    found = graphkit.verify_folder(tmp_path / "export", tmp_path / "out")
    assert any("logits differ" in finding for finding in found.findings())


def test_a_step_without_logits_is_declined(tmp_path: Path) -> None:
    text = STEP.replace("float[batch, 1, 9] logits", "float[batch, 1, 4] hidden").replace("scores", "sum2")
    text = text.replace("sum2 = MatMul (both, head)", "sum2 = Identity (both)").replace("logits =", "hidden =")
    error = (
        "model.onnx: it runs on recurrent state, 'ssm_states', and no output is known to be its logits - name it "
        "'logits', or make a bundle of it: graphkit bundle"
    )
    with pytest.raises(UsageError, match=re.escape(error)):
        lowered(model(text), tmp_path)
    assert not (tmp_path / "out").exists()


LSTM = """<ir_version: 8, opset_import: ["" : 17]>
tagger (int64[batch, tokens] input_ids) => (float[%s] logits) <int64[1] axis = {1}, int64[1] zero = {0}> {
    rows = Gather (table, input_ids)
    x = Transpose <perm = [1, 0, 2]> (rows)
    y, h, c = LSTM <hidden_size = 4, direction = "%s"> (x, w, r%s)
    logits = %s
}
"""


def tagger(
    direction: str = "forward", lengths: str = "", result: str = "Transpose <perm = [2, 0, 1, 3]> (y)"
) -> onnx.ModelProto:
    dims = "batch, tokens, parts, 4" if "y)" in result else "batch, 4"
    proto = parser.parse_model(LSTM % (dims, direction, lengths, result))
    rng, parts = np.random.default_rng(0), 2 if direction == "bidirectional" else 1
    shapes = {"table": (9, 4), "w": (parts, 16, 4), "r": (parts, 16, 4)}
    for name, shape in shapes.items():
        array = rng.normal(size=shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


@pytest.mark.parametrize(
    "proto",
    [tagger("bidirectional"), tagger("reverse"), tagger(result="Squeeze (h, zero)")],
    ids=["in both directions", "from the end", "its last state"],
)
def test_a_recurrence_over_padding_is_declined(tmp_path: Path, proto: onnx.ModelProto) -> None:
    error = "(LSTM) mixes positions: what padding holds reaches tokens that count, and no mask keeps it out."
    with pytest.raises(UsageError, match=re.escape(error)):
        lowered(proto, tmp_path)
    assert not (tmp_path / "out").exists()


def test_a_recurrence_that_padding_comes_after_is_lowered(tmp_path: Path) -> None:
    report = lowered(tagger(), tmp_path, src_len=6)
    assert report.proof is not None
    assert report.proof.findings() == ()


def test_a_prompt_is_tried_at_a_length_that_its_chunks_divide() -> None:
    numbers = ", ".join(map(str, range(27)))
    rows = f"table = Constant <value = float[9, 3] {{{numbers}}}> ()"
    first = model_of(
        f"""first (int64[b, s] input_ids) => (float[b, s, 3] logits, float[b, 3] state_out)
        <int64[3] chunks = {{0, -1, 4}}, int64[2] whole = {{0, -1}}, int64[1] axis = {{1}}> {{
            {rows} parts = Reshape (input_ids, chunks) ids = Reshape (parts, whole)
            logits = Gather (table, ids) state_out = ReduceSum <keepdims = 0> (logits, axis) }}"""
    )
    step = model_of(
        f"""step (int64[b, 1] input_ids, float[b, 3] state) => (float[b, 1, 3] logits, float[b, 3] state_out)
        <int64[1] axis = {{1}}> {{
            {rows} logits = Gather (table, input_ids) row = Squeeze (logits, axis) state_out = Add (state, row) }}"""
    )
    check_prompt(Originals(None, first, step))


@pytest.mark.parametrize(("shape", "is_fixed"), [("0, 4", True), ("0, -1", False), ("0, 1", False)])
def test_prompts_of_one_length_are_known_by_what_nodes_need(shape: str, is_fixed: bool) -> None:
    made = model_of(
        f"""first (int64[b, s] input_ids, float[9, 3] table) => (float[b, t, 3] logits, float[b, 3] state_out)
        <int64[2] whole = {{{shape}}}, int64[1] axis = {{1}}> {{
            ids = Reshape (input_ids, whole) logits = Gather (table, ids)
            state_out = ReduceSum <keepdims = 0> (logits, axis) }}"""
    )
    assert has_fixed_prompt(made) == is_fixed
