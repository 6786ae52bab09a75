"""Bundles of recurrent state: made without a description, with initial values, and beside a KV cache."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from bundles import decoder, saved
from devices import copies
from onnx import helper, numpy_helper, parser

import graphkit
from graphkit.analysis.report import report
from graphkit.analysis.verdict import Verdict
from graphkit.deploy.bundle_description import read_description, recurrent_methods
from graphkit.deploy.bundle_layout import with_initial
from graphkit.errors import GraphkitError, TargetError, UsageError
from graphkit.model import load
from graphkit.verify.described_bundle_verifier import verify_methods

__all__ = ["copies"]
# A decoder with two states: a sum that decays, stacked before the batch, and the largest embedding so far.
STEP = """<ir_version: 8, opset_import: ["" : 17]>
step (int64[batch, 1] input_ids, float[1, batch, 4] ssm_states, float[batch, 4] top)
=> (float[batch, 1, 9] logits, float[1, batch, 4] ssm_states_out, float[batch, 4] new_top)
<float[1] half = {0.5}, int64[1] one = {1}, int64[1] zero = {0}> {
    rows = Gather (table, input_ids)
    row = Squeeze (rows, one)
    old = Mul (ssm_states, half)
    new = Unsqueeze (row, zero)
    ssm_states_out = Add (old, new)
    new_top = Max (top, row)
    sum = Squeeze (ssm_states_out, zero)
    both = Add (sum, new_top)
    scores = MatMul (both, head)
    logits = Unsqueeze (scores, one)
}
"""
# The same for a whole prompt of any length, from the beginning.
FIRST = """<ir_version: 8, opset_import: ["" : 17]>
first (int64[batch, tokens] input_ids)
=> (float[batch, 1, 9] logits, float[1, batch, 4] ssm_states_out, float[batch, 4] new_top)
<float[1] half = {0.5}, int64[1] one = {1}, int64[1] zero = {0}, float none = {0}, int64 start = {0}, int64 by = {1},
int64[1] rest = {-1}, int64[1] free = {1}> {
    rows = Gather (table, input_ids)
    shape = Shape <start = 1, end = 2> (input_ids)
    count = Squeeze (shape)
    ages = Range (start, count, by)
    last = Sub (count, by)
    back = Sub (last, ages)
    powers = Cast <to = 1> (back)
    weights = Pow (half, powers)
    column = Unsqueeze (weights, free)
    weighted = Mul (rows, column)
    summed = ReduceSum <keepdims = 0> (weighted, one)
    ssm_states_out = Unsqueeze (summed, zero)
    most = ReduceMax <axes = [1], keepdims = 0> (rows)
    new_top = Max (most, none)
    both = Add (summed, new_top)
    scores = MatMul (both, head)
    logits = Unsqueeze (scores, one)
}
"""
DESCRIBED = """
[[method]]
name = "tell"
models = ["model.onnx"]

[[state]]
name = "sum"
read = { tell = "ssm_states" }
write = { tell = "ssm_states_out" }

[[state]]
name = "top"
read = { tell = "top" }
write = { tell = "new_top" }
"""
WEIGHTS = {
    name: np.random.default_rng(number).normal(size=shape).astype(np.float32)
    for number, (name, shape) in enumerate({"table": (9, 4), "head": (4, 9)}.items())
}


def model(text: str) -> onnx.ModelProto:
    proto = parser.parse_model(text)
    used = {name for node in proto.graph.node for name in node.input}
    tensors = (numpy_helper.from_array(array, name) for name, array in WEIGHTS.items() if name in used)
    proto.graph.initializer.extend(tensors)
    return proto


@pytest.fixture
def export(tmp_path: Path) -> Path:
    (tmp_path / "export").mkdir()
    onnx.save(model(STEP), tmp_path / "export" / "model.onnx")
    return tmp_path / "export"


def made(path: Path, **options: object) -> graphkit.BundleReport:
    folder = (path.parent if path.is_dir() else path.parent.parent) / "bundle"
    return graphkit.bundle_folder(path, folder, graphkit.BundleOptions(batch=2, **options))  # type: ignore[arg-type]


def expected(prompt: list[int], count: int, top: float | np.ndarray = 0.0) -> list[int]:
    """Return greedy tokens, computed here."""
    state, most, found = np.zeros(4, np.float32), np.full(4, top, np.float32), list[int]()
    for place in range(len(prompt) + count - 1):
        row = WEIGHTS["table"][(prompt + found)[place]]
        state, most = state * np.float32(0.5) + row, np.maximum(most, row)
        if place + 1 >= len(prompt):
            found.append(int(((state + most) @ WEIGHTS["head"]).argmax()))
    return found


PROMPTS = [[3, 1, 4], [1, 5, 8]]


def test_state_that_swaps_is_on_a_device_what_it_is_in_the_arena(export: Path, request: pytest.FixtureRequest) -> None:
    made(export / "model.onnx", verify=False)
    sides = []
    for is_there in (False, True):
        if is_there:
            request.getfixturevalue("copies")
        bundle = graphkit.Bundle(export.parent / "bundle")
        found = [np.array(bundle.generate(prompts, max_new_tokens=4)) for prompts in (PROMPTS, PROMPTS[::-1])]
        bundle.reorder([1, 0])
        found += [array.copy() for array in bundle.state.values()]
        found += [bundle.step([3, 4]), *(array.copy() for array in bundle.state.values())]
        sides.append(found)
        assert any(bundle.state.devices.values()) == is_there
    for ours, theirs in zip(*sides, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_model_with_state_is_a_bundle_by_itself(export: Path) -> None:
    report = made(export / "model.onnx")
    assert report.proof is not None
    assert report.proof.findings() == ()
    contract = report.overview.contract
    assert [method.name for method in contract.methods] == ["step", "init", "reorder"]
    assert [(state.name, state.shape, state.batch, state.update) for state in contract.states] == [
        ("ssm_states", (1, 2, 4), 1, "swap"),
        ("top", (2, 4), 0, "swap"),
    ]
    assert graphkit.verify_folder(export / "model.onnx", export.parent / "bundle").passed
    bundle = graphkit.Bundle(export.parent / "bundle")
    tokens = [expected(prompt, 8) for prompt in PROMPTS]
    assert len({*tokens[0], *tokens[1]}) > 2
    assert bundle.generate(PROMPTS, max_new_tokens=8) == tokens
    assert bundle.generate(PROMPTS[1], max_new_tokens=8) == tokens[1:]
    with pytest.raises(UsageError, match="'step' takes no mask: give prompts of one length"):
        bundle.generate(PROMPTS, mask=[[0, 1, 1], [1, 1, 1]], max_new_tokens=1)
    with pytest.raises(UsageError, match="the export does not say what the decoder starts with"):
        bundle.generate(max_new_tokens=1)


def test_a_model_that_gives_the_state_is_prefill(export: Path) -> None:
    (export / "model.onnx").rename(export / "decoder_with_past_model.onnx")
    onnx.save(model(FIRST), export / "decoder_model.onnx")
    report = made(export)
    assert report.proof is not None
    assert report.proof.findings() == ()
    assert [method.name for method in report.overview.contract.methods] == ["prefill", "step", "init", "reorder"]
    bundle = graphkit.Bundle(export.parent / "bundle")
    assert bundle.generate(PROMPTS, max_new_tokens=8) == [expected(prompt, 8) for prompt in PROMPTS]


def test_other_models_of_the_folder_are_methods_of_their_own_names(export: Path) -> None:
    joiner = """<ir_version: 8, opset_import: ["" : 17]>
    joiner (float[batch, 4] a, float[batch, 4] b) => (float[batch, 4] out) { out = Add (a, b) }"""
    onnx.save(parser.parse_model(joiner), export / "init.onnx")
    report = made(export, verify=False)
    names = [method.name for method in report.overview.contract.methods]
    assert names == ["step", "run_init", "init", "reorder"]
    ones = np.ones((1, 4), np.float32)
    outputs = graphkit.Bundle(export.parent / "bundle").run("run_init", a=ones, b=ones)
    np.testing.assert_array_equal(outputs["out"], 2 * ones)


def test_two_models_whose_methods_have_one_name_are_refused(export: Path) -> None:
    for name in ("a-b.onnx", "a_b.onnx"):
        onnx.save(model(STEP), export / name)
    with pytest.raises(UsageError, match=r"two methods are called 'a_b' - name one anew"):
        made(export, verify=False)


def told(bundle: graphkit.Bundle, prompt: list[int], count: int) -> list[int]:
    """Return greedy tokens of a method that a description names, from the initial state."""
    bundle.reset()
    found: list[int] = []
    for place in range(len(prompt) + count - 1):
        logits = bundle.run("tell", input_ids=[[(prompt + found)[place]]])["logits"]
        found += [int(logits.argmax())] if place + 1 >= len(prompt) else []
    return found


def described(export: Path, initial: str = "") -> Path:
    text = DESCRIBED.replace('name = "top"\n', f'name = "top"\ninitial = {initial}\n') if initial else DESCRIBED
    (export / "bundle.toml").write_text(text)
    return export


@pytest.mark.cases("-1e38")
@pytest.mark.parametrize("value", ["-1e38", "0.25", "2"])
def test_an_initial_value_is_honoured(export: Path, value: str) -> None:
    report = made(described(export, value))
    assert report.proof is not None
    assert report.proof.findings() == ()
    plain = json.loads((export.parent / "bundle" / "bundle.json").read_text())
    assert {state["name"]: state["initial"] for state in plain["states"]} == {"sum": 0.0, "top": float(value)}
    bundle = graphkit.Bundle(export.parent / "bundle")
    assert [told(bundle, prompt, 6) for prompt in PROMPTS] == [expected(each, 6, float(value)) for each in PROMPTS]
    alone = graphkit.Bundle(export.parent / "bundle").run("tell", input_ids=[[3]])["logits"]  # without a reset
    np.testing.assert_array_equal(alone, bundle.fork().run("tell", input_ids=[[3]])["logits"])
    row = WEIGHTS["table"][3]
    np.testing.assert_allclose(alone[0, 0], (row + np.maximum(row, float(value))) @ WEIGHTS["head"], rtol=1e-6)


def test_an_initial_value_may_be_an_array(export: Path) -> None:
    first = np.array([[3, -5, 0.5, -np.inf]], np.float32)
    np.save(export / "top.npy", first)
    report = made(described(export, '"top.npy"'))
    assert report.proof is not None
    assert report.proof.findings() == ()
    assert report.overview.contract.state("top").initial is None
    bundle = graphkit.Bundle(export.parent / "bundle")
    np.testing.assert_array_equal(bundle.state["top"], np.repeat(first, 2, 0))
    assert [told(bundle, prompt, 6) for prompt in PROMPTS] == [expected(prompt, 6, first[0]) for prompt in PROMPTS]
    bundle.reset()
    np.testing.assert_array_equal(bundle.state["top"], np.repeat(first, 2, 0))


def test_an_integer_of_more_bits_than_numbers_of_json_have_stays_what_it_is(export: Path) -> None:
    contract, large = made(export, verify=False).overview.contract, (1 << 53) + 1
    states = tuple(replace(state, dtype="int64") for state in contract.states)
    whole, arrays = with_initial(replace(contract, states=states), {"top": np.array(large)})
    assert (whole.state("top").initial, arrays["top"].tolist()) == (None, large)
    assert with_initial(contract, {"top": np.array(3)})[0].state("top").initial == 3.0


@pytest.mark.parametrize(
    ("initial", "error"),
    [
        ("1e39", "is 1e+39, which float32 does not hold - give another one, or an array in a .npy file"),
        ("nan", "is nan, which float32 does not hold - give another one, or an array in a .npy file"),
        ("true", "state[1].initial: Expected `int | float | str | null`, got `bool`"),
        ('"none.npy"', "'none.npy' cannot be read: "),
        ('"../top.npy"', "'../top.npy' is not in the folder of the bundle.toml - put it there"),
        ('"double.npy"', "is an array of float64, and the state is float32 - write it with that dtype"),
        ('"rows.npy"', "is [2, 4], and a row of the state is [1, 4] - give that"),
    ],
)
def test_an_initial_value_that_does_not_fit_is_refused(export: Path, initial: str, error: str) -> None:
    np.save(export / "double.npy", np.zeros((1, 4)))
    np.save(export / "rows.npy", np.zeros((2, 4), np.float32))
    with pytest.raises((UsageError, TargetError), match=re.escape(error)):
        made(described(export, initial), verify=False)
    assert not (export.parent / "bundle").exists()


def test_a_bundle_with_another_initial_value_fails_its_proof(export: Path) -> None:
    described(export, "0.25")
    made(export, verify=False)
    folder = export.parent / "bundle"
    init = onnx.load(folder / "init.onnx")
    for node in init.graph.node:
        node.attribute[0].t.CopyFrom(numpy_helper.from_array(np.array([0.75], np.float32)))
    onnx.save(init, folder / "init.onnx")
    chains = read_description(export / "bundle.toml")[0]
    proof = verify_methods(chains, folder, exact=True, initial={"top": np.array(0.25)})
    assert any("differs by" in finding for finding in proof.findings())


def test_states_that_are_crossed_fail_the_proof(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    two (float[batch, 4] x, float[batch, 4] h, float[batch, 4] c)
    => (float[batch, 4] y, float[batch, 4] h_out, float[batch, 4] c_out) {
        h_out = Add (h, x)
        c_out = Max (c, x)
        y = Sub (h_out, c_out)
    }"""
    (tmp_path / "export").mkdir()
    onnx.save(parser.parse_model(text), tmp_path / "export" / "two.onnx")
    report = made(tmp_path / "export")
    assert report.proof is not None
    assert report.proof.passed
    folder = tmp_path / "bundle"
    plain = json.loads((folder / "bundle.json").read_text())
    for port in plain["methods"][0]["outputs"]:
        if port["writes"]:
            port["writes"] = "c" if port["writes"] == "h" else "h"
    (folder / "bundle.json").write_text(json.dumps(plain))
    try:
        findings: tuple[str, ...] = verify_methods(
            recurrent_methods(tmp_path / "export"), folder, exact=True
        ).findings()
    except GraphkitError as error:  # where the files beside bundle.json are checked first
        findings = (str(error),)
    assert findings


def test_what_is_written_before_the_first_run_is_what_it_reads(export: Path) -> None:
    made(export, verify=False)
    bundle = graphkit.Bundle(export.parent / "bundle")
    assert bundle.state["ssm_states"].shape == (1, 2, 4)
    bundle.state["ssm_states"][...] = np.arange(8).reshape(1, 2, 4)
    bundle.state["top"][...] = 7
    single = bundle.step([[2]])[0, 0]
    row = WEIGHTS["table"][2]
    np.testing.assert_allclose(single, (np.arange(4) / 2 + row + 7) @ WEIGHTS["head"], rtol=1e-5)
    bundle.reset()
    bundle.state["ssm_states"][0, 1] = 4
    both = bundle.step([[2], [2]])[:, 0]
    sums = np.array([row, row + 2])
    np.testing.assert_allclose(both, (sums + np.maximum(row, 0)) @ WEIGHTS["head"], rtol=1e-5)


def test_what_a_start_would_lose_cannot_be_written(export: Path, tmp_path: Path) -> None:
    (export / "model.onnx").rename(export / "decoder_with_past_model.onnx")
    onnx.save(model(FIRST), export / "decoder_model.onnx")
    made(export, verify=False)
    bundle = graphkit.Bundle(export.parent / "bundle")
    with pytest.raises(ValueError, match="read-only"):
        bundle.state["top"][...] = 1
    bundle.prefill([[1]])
    bundle.state["top"][...] = 1
    assert float(bundle.state["top"].min()) == 1
    cached = saved(decoder(), tmp_path / "cached")
    graphkit.bundle_folder(cached, tmp_path / "slots", graphkit.BundleOptions(max_cache=4, verify=False))
    slots = graphkit.Bundle(tmp_path / "slots")
    with pytest.raises(ValueError, match="read-only"):
        next(iter(slots.state.values()))[...] = 1


def hybrid() -> onnx.ModelProto:
    """Return the decoder of these tests, whose embedding a decaying sum of embeddings is added to."""
    proto = decoder()
    gather = next(node for node in proto.graph.node if node.op_type == "Gather" and "input_ids" in node.input)
    name, gather.output[0] = gather.output[0], "row"
    table = next(tensor for tensor in proto.graph.initializer if tensor.name == gather.input[0])
    dims = ["batch", 1, table.dims[1]]
    half = numpy_helper.from_array(np.array([0.5], np.float32), "half")
    proto.graph.initializer.append(half)
    proto.graph.input.append(helper.make_tensor_value_info("ssm_state", 1, dims))
    proto.graph.output.append(helper.make_tensor_value_info("ssm_state_out", 1, dims))
    axis = numpy_helper.from_array(np.array([1], np.int64), "over_tokens")
    proto.graph.initializer.append(axis)
    nodes = [
        helper.make_node("ReduceSum", ["row", "over_tokens"], ["all_rows"], keepdims=1),
        helper.make_node("Mul", ["ssm_state", "half"], ["older"]),
        helper.make_node("Add", ["older", "all_rows"], ["ssm_state_out"]),
        helper.make_node("Add", ["row", "ssm_state_out"], [name]),
    ]
    at = list(proto.graph.node).index(gather) + 1
    rest = list(proto.graph.node)[at:]
    del proto.graph.node[at:]
    proto.graph.node.extend([*nodes, *rest])
    return proto


@pytest.mark.cases("True")
@pytest.mark.parametrize("is_described", [False, True])
def test_a_cache_beside_other_state_is_proven(tmp_path: Path, is_described: bool) -> None:
    source = saved(hybrid(), tmp_path / "export")
    if is_described:
        (source / "bundle.toml").write_text(
            '[[method]]\nname = "tell"\nmodels = ["model.onnx"]\ncache = "text"\n'
            '[[state]]\nname = "sum"\ninitial = 0.5\n'
            'read = { tell = "ssm_state" }\nwrite = { tell = "ssm_state_out" }\n'
        )
    report = made(source, max_cache=12)
    assert report.proof is not None
    assert report.proof.findings() == ()
    states = {state.name: state.update for state in report.overview.contract.states}
    assert states["sum" if is_described else "ssm_state"] == "swap"
    assert "slots" in states.values()


def test_a_dim_that_no_input_has_is_refused(export: Path) -> None:
    error = "no input has a dim 'frames' - there are batch"
    with pytest.raises(UsageError, match=re.escape(error)):
        made(described(export), dims=(("frames", 8),), verify=False)


def test_a_dim_of_a_description_is_its_largest(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    mean (float[batch, frames, 4] x, float[batch, 1, 4] state) => (float[batch, frames, 4] y, float[batch, 1, 4] out)
    { m = ReduceMean <axes = [1]> (x)
      out = Add (state, m)
      y = Add (x, out) }"""
    (tmp_path / "export").mkdir()
    onnx.save(parser.parse_model(text), tmp_path / "export" / "mean.onnx")
    (tmp_path / "export" / "bundle.toml").write_text(
        '[[method]]\nname = "go"\nmodels = ["mean.onnx"]\n'
        '[[state]]\nname = "m"\nread = { go = "state" }\nwrite = { go = "out" }\n'
    )
    report = made(tmp_path / "export", dims=(("frames", 8),))
    assert report.overview.contract.sizes == {"batch": 2, "frames": 8}
    bundle = graphkit.Bundle(tmp_path / "bundle")
    bundle.run("go", x=np.zeros((1, 8, 4), np.float32))
    with pytest.raises(UsageError, match="the bundle takes 1 to 8"):
        bundle.run("go", x=np.zeros((1, 9, 4), np.float32))


def test_a_state_that_no_method_writes_has_no_initial_value(export: Path) -> None:
    described(export)
    text = (export / "bundle.toml").read_text() + '\n[[state]]\nname = "lost"\ninitial = 1\n'
    (export / "bundle.toml").write_text(text)
    with pytest.raises(UsageError, match="state 'lost' has an initial value, and no method writes it"):
        made(export, verify=False)


def test_a_description_may_say_which_input_takes_tokens(export: Path) -> None:
    described(export, "0.25")
    text = (export / "bundle.toml").read_text().replace("models =", 'tokens = "%s"\nmodels =')
    (export / "bundle.toml").write_text(text % "input_ids")
    made(export, verify=False)
    bundle = graphkit.Bundle(export.parent / "bundle")
    assert bundle.generate(PROMPTS, max_new_tokens=6) == [expected(prompt, 6, 0.25) for prompt in PROMPTS]
    (export / "bundle.toml").write_text(text % "ids")
    with pytest.raises(UsageError, match="tell has no input 'ids' - it has input_ids, ssm_states, top"):
        made(export, verify=False, overwrite=True)


def test_recurrent_state_does_not_grow(export: Path) -> None:
    made(export, verify=False)
    words = " ".join(graphkit.bundle_overview(export.parent / "bundle").to_text().split())
    assert "; it is as large after any number of tokens. Methods" in words


def test_a_verdict_of_recurrent_state_proposes_a_bundle(export: Path) -> None:
    path = export / "model.onnx"
    assert [command.split()[:2] for command in _commands(path)] == [["graphkit", "bundle"]]


def _commands(path: Path) -> tuple[str, ...]:
    found = report(load(path)).sections["verdict"]
    assert isinstance(found, Verdict)
    return found.commands
