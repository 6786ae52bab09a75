from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from bundles import decoder, saved
from devices import copies
from onnx import numpy_helper, parser

import graphkit
from graphkit.deploy.bundle_description import read_description
from graphkit.errors import GraphkitError, ModelError, TargetError, UsageError
from graphkit.verify.bundle_prompts import input_spec
from graphkit.verify.described_bundle_verifier import verify_methods
from graphkit.verify.input_generator import ExportInputs

__all__ = ["copies"]
FRONT = """<ir_version: 8, opset_import: ["" : 17]>
front (float[batch, 4] audio) => (float[batch, 2, 2] features) <int64[3] to = {0, 2, 2}> {
    features = Reshape (audio, to)
}
"""
# A convolution that keeps its last frame, then an average that decays: one state of each kind that no cache is.
BODY = """<ir_version: 8, opset_import: ["" : 17]>
body (float[batch, frames, 2] frames_in, float[batch, 1, 2] last, float[1, batch, 2] mean)
=> (float[batch, frames, 2] out, float[batch, 1, 2] last_out, float[1, batch, 2] mean_out)
<float[1] half = {0.5}, int64[1] from = {-1}, int64[1] to = {9223372036854775807}, int64[1] axis = {1},
int64[1] first = {0}> {
    all = Concat <axis = 1> (last, frames_in)
    last_out = Slice (all, from, to, axis)
    before = Slice (all, first, from, axis)
    sum = Add (before, frames_in)
    one = ReduceMean <axes = [1], keepdims = 0> (sum)
    row = Unsqueeze (one, first)
    old = Mul (mean, half)
    new = Mul (row, half)
    mean_out = Add (old, new)
    turned = Transpose <perm = [1, 0, 2]> (mean_out)
    out = Add (sum, turned)
}
"""
# Token by token, a sum of embeddings of width 8.
SUM = """<ir_version: 8, opset_import: ["" : 17]>
sum (int64[batch] token, float[batch, 8] total) => (float[batch, 8] out, float[batch, 8] total_out) {
    rows = Gather (table, token)
    total_out = Add (total, rows)
    out = Tanh (total_out)
}
"""
SUMMED = """
[[method]]
name = "add"
models = ["sum.onnx"]

[[state]]
name = "total"
read = { add = "total" }
write = { add = "total_out" }
"""
DESCRIPTION = """
[[method]]
name = "hear"
models = ["front.onnx", "body.onnx"]
links = { frames_in = "features" }

[[state]]
name = "last"
read = { hear = "last" }
write = { hear = "last_out" }

[[state]]
name = "mean"
read = { hear = "mean" }
write = { hear = "mean_out" }
"""


@pytest.fixture
def export(tmp_path: Path) -> Path:
    folder = tmp_path / "export"
    folder.mkdir()
    for name, text in (("front", FRONT), ("body", BODY)):
        onnx.save(parser.parse_model(text), folder / f"{name}.onnx")
    (folder / "bundle.toml").write_text(DESCRIPTION)
    return folder


@pytest.fixture(params=["arena", "device"])
def place(request: pytest.FixtureRequest) -> None:
    """Let the state be in the arena, or in the memory of a device."""
    if request.param == "device":
        request.getfixturevalue("copies")


def made(export: Path, **options: object) -> graphkit.BundleReport:
    return graphkit.bundle_folder(export, export.parent / "bundle", graphkit.BundleOptions(batch=2, **options))  # type: ignore[arg-type]


def test_state_of_other_kinds_is_proven(export: Path) -> None:
    report = made(export)
    assert report.proof is not None
    assert report.proof.passed
    assert [(state.name, state.update, state.shape) for state in report.overview.contract.states] == [
        ("last", "swap", (2, 1, 2)),
        ("mean", "swap", (1, 2, 2)),
    ]


@pytest.mark.usefixtures("place")
def test_a_method_runs_by_name(export: Path) -> None:
    made(export, verify=False)
    bundle = graphkit.Bundle(export.parent / "bundle")
    frames = np.arange(4, dtype=np.float32).reshape(1, 4)
    first = bundle.run("hear", audio=frames)["out"]
    # frames (0, 1) and (2, 3), the first after zeros: sums (0, 1) and (2, 4), half of their mean (0.5, 1.25)
    np.testing.assert_array_equal(first, [[[0.5, 2.25], [2.5, 5.25]]])
    np.testing.assert_array_equal(bundle.state["last"], [[[2, 3]]])
    np.testing.assert_array_equal(bundle.state["mean"], [[[0.5, 1.25]]])
    second = bundle.run("hear", audio=frames)["out"]
    assert not np.array_equal(first, second)
    bundle.reset()
    np.testing.assert_array_equal(bundle.run("hear", audio=frames)["out"], first)


@pytest.mark.usefixtures("place")
def test_a_sequence_starts_with_the_initial_value_of_what_it_reads(export: Path) -> None:
    """Not with what an earlier sequence has left, which may have other rows."""
    text = DESCRIPTION.replace('"hear"', '"begin"\nwhen = "once"', 1).replace("hear =", "begin =")
    (export / "bundle.toml").write_text(text)
    made(export, verify=False)
    bundle, audio = graphkit.Bundle(export.parent / "bundle"), np.ones((2, 4), np.float32)
    expected = bundle.run("begin", audio=audio)["out"]
    bundle.run("begin", audio=audio[:1])
    np.testing.assert_array_equal(bundle.run("begin", audio=audio)["out"], expected)


@pytest.mark.usefixtures("place")
def test_rows_of_state_with_two_places_are_reordered(export: Path) -> None:
    made(export, verify=False)
    bundle = graphkit.Bundle(export.parent / "bundle")
    bundle.run("hear", audio=np.array([[0, 1, 2, 3], [5, 6, 7, 8]], np.float32))
    last, mean = bundle.state["last"].copy(), bundle.state["mean"].copy()
    bundle.reorder([1, 0])
    np.testing.assert_array_equal(bundle.state["last"], last[::-1])
    np.testing.assert_array_equal(bundle.state["mean"], mean[:, ::-1])


def test_two_caches_have_lengths_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "pair"
    for name in ("draft", "target"):
        saved(decoder("causal"), folder, name)
    lines = [
        f'[[method]]\nname = "{name}"\nmodels = ["{name}.onnx"]\ncache = "{name}"\n' for name in ("draft", "target")
    ]
    (folder / "bundle.toml").write_text("".join(lines))
    graphkit.bundle_folder(folder, tmp_path / "bundle", graphkit.BundleOptions(max_cache=16, verify=False))
    bundle = graphkit.Bundle(tmp_path / "bundle")
    alone = graphkit.Bundle(tmp_path / "bundle")
    for token in (5, 6, 7):
        bundle.run("draft", [[token]])
    bundle.run("target", [[5, 6]])
    assert {name: int(length[0]) for name, length in bundle.state.lengths.items()} == {
        "draft.past_length": 3,
        "target.past_length": 2,
    }
    bundle.rewind(1, "draft.past_length")
    alone.run("draft", [[5]])
    expected, actual = alone.run("draft", [[9]])["logits"], bundle.run("draft", [[9]])["logits"]
    np.testing.assert_array_equal(actual, expected)
    with pytest.raises(UsageError, match=re.escape("4 tokens cannot stay of 2")):
        bundle.rewind(4, "target.past_length")


def summing(folder: Path, rows: int) -> Path:
    """Write an export that adds up rows of a table, and return its folder."""
    model = parser.parse_model(SUM)
    table = np.random.default_rng(0).normal(size=(rows, 8)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    folder.mkdir()
    onnx.save(model, folder / "sum.onnx")
    (folder / "bundle.toml").write_text(SUMMED)
    return folder


@pytest.mark.parametrize(("rows", "below"), [(1, 1), pytest.param(5, 5, marks=pytest.mark.slow), (100_000, 100_000)])
def test_tokens_are_of_the_table_that_they_are_looked_up_in(rows: int, below: int, tmp_path: Path) -> None:
    source = summing(tmp_path / "export", rows)
    report = made(source)
    assert report.proof is not None
    assert report.proof.findings() == ()
    method = report.overview.contract.methods[0]
    port = next(port for port in method.inputs if port.name == "token")
    (chain,) = read_description(source / "bundle.toml")[0]
    inputs = ExportInputs(chain.models, np.random.default_rng(0))
    assert inputs.bound(input_spec(method, port)) == below
    tokens = inputs.array(input_spec(method, port), [2000])
    assert tokens.min() <= below // 100
    assert below - 1 - below // 100 <= tokens.max() < below


def test_a_method_that_does_not_run_is_found(tmp_path: Path) -> None:
    source = summing(tmp_path / "export", 5)
    made(source, verify=False)
    file = source.parent / "bundle" / "add.onnx"
    model = onnx.load(file)
    (table,) = (tensor for tensor in model.graph.initializer if tensor.name == "table")
    table.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(table)[:1], "table"))
    onnx.save(model, file)
    found = verify_methods(read_description(source / "bundle.toml")[0], file.parent, exact=True).findings()
    assert len(found) == 6  # one row and two, plain and fused; what a reset leaves, and two users
    assert all("indices element out of data bounds" in finding for finding in found)


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        (
            'models = ["front.onnx", "body.onnx"]',
            "models = []",
            TargetError,
            "method[0].models: Expected `array` of length >= 1",
        ),
        ('"body.onnx"]', '"../body.onnx"]', TargetError, "is not in the folder of the bundle.toml"),
        ('"body.onnx"]', '"other.onnx"]', ModelError, "other.onnx"),
        ('name = "hear"', 'name = "he ar"', TargetError, "is no name"),
        ('name = "hear"', 'name = "hear"\nwhen = "later"', TargetError, "method[0].when: Invalid enum value 'later'"),
        ('name = "hear"', 'name = "hear"\nsize = 3', TargetError, "method[0]: Object contains unknown field `size`"),
        ('links = { frames_in = "features" }', "", UsageError, "reads nothing that the models before it give"),
        ('{ hear = "mean" }', '{ see = "mean" }', UsageError, "names 'see', which is no method"),
        ('{ hear = "mean" }', '{ hear = "average" }', UsageError, "hear has no input 'average'"),
        ('{ hear = "mean_out" }', '{ hear = "average" }', UsageError, "hear has no output 'average'"),
        ('write = { hear = "mean_out" }', "", UsageError, "hear reads state 'mean', which no method writes"),
        ("[[method]]", "[[method]]\nname = 1\n", TargetError, "not TOML"),
        (DESCRIPTION, "", UsageError, "it names no method"),
        (DESCRIPTION, DESCRIPTION + DESCRIPTION.split("[[state]]")[0], UsageError, "two methods are called 'hear'"),
    ],
)
def test_a_wrong_description_is_one_error(
    export: Path, old: str, new: str, error: type[GraphkitError], message: str
) -> None:
    assert old in DESCRIPTION
    (export / "bundle.toml").write_text(DESCRIPTION.replace(old, new, 1))
    with pytest.raises(error, match=re.escape(message)):
        made(export)
    assert not (export.parent / "bundle").exists()


def test_a_fault_in_a_method_is_found(export: Path) -> None:
    made(export, verify=False)
    file = export.parent / "bundle" / "hear.onnx"
    model = onnx.load(file)
    node = next(node for node in model.graph.node if node.op_type == "ReduceMean")
    node.op_type = "ReduceMax"
    onnx.save(model, file)
    proof = verify_methods(read_description(export / "bundle.toml")[0], export.parent / "bundle", exact=True)
    assert not proof.passed
    assert "of hear differs by" in proof.findings()[0] or "after run 1, of hear" in proof.findings()[0]


def named_export(tmp_path: Path, name: str) -> Path:
    """Return an export whose input is called so."""
    folder = tmp_path / "export"
    folder.mkdir()
    text = FRONT.replace("audio", name)
    assert text != FRONT
    for file, source in (("front", text), ("body", BODY)):
        onnx.save(parser.parse_model(source), folder / f"{file}.onnx")
    (folder / "bundle.toml").write_text(DESCRIPTION)
    return folder


@pytest.mark.parametrize("name", ["tokens", "mask", "inputs", "name", "self"])
def test_an_input_may_have_any_name(name: str, tmp_path: Path) -> None:
    made(named_export(tmp_path, name), verify=False)
    frames = np.arange(4, dtype=np.float32).reshape(1, 4)
    expected = [[[0.5, 2.25], [2.5, 5.25]]]
    bundle = graphkit.Bundle(tmp_path / "bundle")
    np.testing.assert_array_equal(bundle.run("hear", {name: frames})["out"], expected)
    bundle.reset()
    np.testing.assert_array_equal(bundle.run("hear", inputs={name: frames})["out"], expected)
    if name not in ("inputs", "self"):
        bundle.reset()
        np.testing.assert_array_equal(bundle.run("hear", **{name: frames})["out"], expected)
    with pytest.raises(UsageError, match=f"'{name}' is given twice - give it once"):
        bundle.run("hear", {name: frames}, {name: frames})


def test_inputs_of_any_name_are_proven(tmp_path: Path) -> None:
    report = made(named_export(tmp_path, "tokens"))
    assert report.proof is not None
    assert report.proof.findings() == ()


@pytest.mark.parametrize("name", ["init", "reorder", "Init"])
def test_a_method_that_every_bundle_has_is_refused(name: str, export: Path) -> None:
    (export / "bundle.toml").write_text(DESCRIPTION.replace("hear", name))
    with pytest.raises(TargetError, match=f"'{name}' is a method that every bundle has - name it anew"):
        made(export)
    assert not (export.parent / "bundle").exists()
