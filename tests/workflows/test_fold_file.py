from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, parser

import graphkit.workflows.fold_file
from graphkit.errors import GraphkitError, ModelError, OutputError, UsageError
from graphkit.model import load
from graphkit.rewrite.base import Declined, Outcome
from graphkit.shapes import DimSpec
from graphkit.workflows.fold_file import FoldOptions, fold_file

TEXT = """
<ir_version: 8, opset_import: ["" : 17], producer_name: "somebody">
g (float[N, L, 4] x, float[N, L] mask) => (float[N, L, 4] y, float[M] z) <float[4] w = {1, 2, 3, 4}> {
    [first] s = Shape (x)
    zero = Constant <value = int64 {0}> ()
    one = Constant <value = int64 {1}> ()
    n = Gather (s, zero)
    l = Gather (s, one)
    axis = Constant <value = int64[1] {0}> ()
    nu = Unsqueeze (n, axis)
    lu = Unsqueeze (l, axis)
    four = Constant <value = int64[1] {4}> ()
    to = Concat <axis = 0> (nu, lu, four)
    e = Expand (w, to)
    a = Add (x, e)
    y = Identity (a)
    q = Mul (nu, lu)
    [filled] r = ConstantOfShape (q)
    z = Exp (r)
}
"""
REPORT = """\
Fold of m.onnx

Folded: nodes that compute shapes 6 -> 2; all nodes 16 -> 6.
! not proven: the proof was not run

Wrote out.onnx, with the shapes of 5 tensors. No input dim was frozen.

Op                         Before  After  Change
─────────────────────────────────────────────────
Shape                           1      2      +1
Gather                          2      0      -2
Unsqueeze                       2      0      -2
Concat                          1      0      -1
Expand                          1      0      -1
ConstantOfShape                 1      1       0
Identity                        1      0      -1
Constant                        4      0      -4
nodes that compute shapes       6      2      -4
all nodes                      16      6     -10

What stays

Node    Reads shape of  Feeds
──────────────────────────────
dims/L  x                   1
  feeds ConstantOfShape filled (shape)
dims/N  x                   1
  feeds ConstantOfShape filled (shape)

What was done

Pass                  Change
────────────────────────────────────────────────────────────────────────────
eliminate-identity    1 node without effect removed
fold-constants        4 Constant nodes moved to the initializers
drop-broadcasts       1 Expand removed because the consumers broadcast
cancel-reshapes       1 Reshape around elementwise nodes removed
rematerialize-shapes  5 nodes for computing shapes removed
rematerialize-shapes  3 nodes added to compute shapes from the graph inputs

Proof

Warning: Not run: the file is unverified. `graphkit verify` runs it.

Costs before and after

Costs at N 1 and L 128
Cost                         Before   After  Ratio
───────────────────────────────────────────────────
file and weights              616 B   471 B   0.76
nodes                            16       6   0.38
multiply-accumulates (MACs)       0       0
peak memory of activations   4.6 kB  2.6 kB   0.56

"""
UNPROVEN = FoldOptions(verify=False)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(parser.parse_model(TEXT), path)
    return path


def test_the_report(source: Path) -> None:
    report = fold_file(load(source), source.with_name("out.onnx"), UNPROVEN)
    assert report.to_text() == REPORT


def test_the_report_in_numbers(source: Path) -> None:
    report = fold_file(load(source), source.with_name("out.onnx"), UNPROVEN)
    found = json.loads(report.to_json())
    assert (found["source"], found["files"], found["proof"]) == ("m.onnx", ["out.onnx"], None)
    assert found["remaining"]["shapes"][0]["feeds"] == [{"node": "filled", "op": "ConstantOfShape", "input": "shape"}]
    assert (report.findings(), report.frozen, report.declined) == ((), (), ())


@pytest.mark.usefixtures("runs_alone")
def test_what_is_written_is_proven(source: Path) -> None:
    steps: list[str] = []
    report = fold_file(load(source), source.with_name("out.onnx"), progress=steps.append)
    assert report.proof is not None
    assert report.proof.passed
    assert len(report.proof.runs) >= 4
    assert steps[:2] == ["folding", "writing"]
    written = onnx.load(source.with_name("out.onnx"))
    onnx.checker.check_model(written, full_check=True)
    assert written.producer_name == "somebody"


def test_the_source_is_not_modified(source: Path) -> None:
    before = source.read_bytes()
    fold_file(load(source), source.with_name("out.onnx"))
    assert source.read_bytes() == before


def test_frozen_dims_are_told(source: Path) -> None:
    report = fold_file(
        load(source), source.with_name("out.onnx"), FoldOptions(spec=DimSpec.of(inputs={"x": (2, 3, 4)}))
    )
    assert report.frozen == ("N is 2", "L is 3")
    assert "Frozen: N is 2, L is 3." in report.to_text()
    assert "No node reads the shape of a tensor." in report.to_text()
    assert report.proof is not None
    assert report.proof.passed


def test_a_proof_that_fails_is_a_finding_and_the_file_stays(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = onnx.load(source)
    broken.graph.initializer[0].float_data[0] = 9.0
    onnx.save(broken, source.with_name("broken.onnx"))
    made = load(source.with_name("broken.onnx"))
    monkeypatch.setattr(graphkit.workflows.fold_file, "fold", lambda *_, **__: Outcome(made))
    report = fold_file(load(source), source.with_name("out.onnx"))
    assert report.proof is not None
    assert not report.proof.passed
    assert report.findings()
    assert source.with_name("out.onnx").exists()


def test_many_reasons_are_cut_short_in_the_text_and_not_in_the_json(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(source)
    declined = tuple(Declined(f"node {number}", f"it may not, {number % 23}") for number in range(25))
    monkeypatch.setattr(graphkit.workflows.fold_file, "fold", lambda *_, **__: Outcome(model, declined=declined))
    report = fold_file(model, source.with_name("out.onnx"), UNPROVEN)
    text = report.to_text()
    assert text.splitlines()[2] == "Nothing was folded: node 0: it may not, 0."
    assert "node {0,23}: it may not, 0" in text
    assert "node 19: it may not, 19" in text
    assert "node 20" not in text
    assert "... and 3 more in the JSON report." in text
    assert len(json.loads(report.to_json())["declined"]) == 25


# Weights


def large(path: Path) -> Path:
    """Write a model with a large weight."""
    weight = np.arange(4096, dtype=np.float32)
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 4096] x) => (float[N, 4096] y) '
        "{ s = Shape (x) e = Expand (w, s) y = Mul (x, e) }"
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(proto, path)
    return path


@pytest.mark.parametrize(
    ("weights", "files"),
    [
        ("shared", ("out.onnx_data", "out.onnx")),
        ("in-place", ("out.onnx",)),
        ("inline", ("out.onnx",)),
    ],
)
def test_where_the_weights_go(tmp_path: Path, weights: str, files: tuple[str, ...]) -> None:
    source = large(tmp_path / "m.onnx")
    report = fold_file(load(source), tmp_path / "out.onnx", FoldOptions(weights=weights))
    assert report.files == files
    assert report.proof is not None
    assert report.proof.passed
    assert [node.op_type for node in load(tmp_path / "out.onnx").graph.nodes] == ["Mul"]


def test_a_model_without_its_weights_folds_where_they_stay(tmp_path: Path) -> None:
    source = large(tmp_path / "m.onnx")
    proto = onnx.load(source)
    del proto.graph.initializer[:]
    tensor = proto.graph.initializer.add(name="w", dims=[4096], data_type=TensorProto.FLOAT)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    onnx.save(proto, source)
    model = load(source)
    report = fold_file(model, tmp_path / "out.onnx", FoldOptions(weights="in-place", verify=False))
    assert report.files == ("out.onnx",)
    steps: list[str] = []
    for options in (FoldOptions(weights="in-place"), FoldOptions(verify=False)):
        with pytest.raises(ModelError, match=r"weights\.bin.*its data file is missing"):
            fold_file(model, tmp_path / "other.onnx", options, progress=steps.append)
    assert not steps
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "out.onnx"]


# What does not fit

ERRORS = {
    "a symbol that is none": (
        DimSpec.of({"Q": 1}),
        UsageError,
        "no input has a dim 'Q' - there are L, N",
    ),
    "an input that is none": (
        DimSpec.of(inputs={"q": (1,)}),
        UsageError,
        "there is no input 'q' - there are x, mask",
    ),
    "sizes that contradict": (
        DimSpec.of({"N": 1}, {"mask": (2, 3)}),
        UsageError,
        "a dim of input 'mask' is N, which is 1 as given elsewhere - it cannot be 2 too",
    ),
}


@pytest.mark.parametrize(("spec", "kind", "message"), ERRORS.values(), ids=ERRORS)
def test_what_does_not_fit_writes_nothing(source: Path, spec: DimSpec, kind: type[GraphkitError], message: str) -> None:
    with pytest.raises(kind) as error:
        fold_file(load(source), source.with_name("out.onnx"), FoldOptions(spec=spec))
    assert str(error.value) == message
    assert list(source.parent.iterdir()) == [source]


def test_an_output_that_exists_is_replaced_only_if_told(source: Path) -> None:
    output = source.with_name("out.onnx")
    output.write_bytes(b"mine")
    with pytest.raises(OutputError, match="exists - "):
        fold_file(load(source), output, UNPROVEN)
    assert output.read_bytes() == b"mine"
    fold_file(load(source), output, FoldOptions(verify=False, overwrite=True))
    assert load(output).graph.nodes


def test_an_output_that_is_the_input_is_never_replaced(source: Path) -> None:
    before = source.read_bytes()
    with pytest.raises(OutputError, match="is an input, which is never overwritten"):
        fold_file(load(source), source, FoldOptions(verify=False, overwrite=True))
    assert source.read_bytes() == before


def test_in_place_weights_of_another_folder(tmp_path: Path) -> None:
    source, folder = large(tmp_path / "m.onnx"), tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(OutputError, match="data in place can only be referred to from there"):
        fold_file(load(source), folder / "out.onnx", FoldOptions(weights="in-place", verify=False))
    assert not list(folder.iterdir())


def test_a_folder_that_is_missing(source: Path) -> None:
    with pytest.raises(OutputError, match="is not a folder - create it"):
        fold_file(load(source), source.parent / "nowhere" / "out.onnx", UNPROVEN)


def test_paths_may_be_text(source: Path) -> None:
    report = fold_file(str(source), str(source.with_name("out.onnx")), UNPROVEN)
    assert report.files == ("out.onnx",)


def test_what_is_written_declares_its_shapes(source: Path) -> None:
    report = fold_file(load(source), source.with_name("out.onnx"), UNPROVEN)
    graph = onnx.load(source.with_name("out.onnx")).graph
    dims = {
        info.name: [dim.dim_param or dim.dim_value for dim in info.type.tensor_type.shape.dim]
        for info in (*graph.value_info, *graph.output)
    }
    assert dims == {"dims/L": [1], "dims/N": [1], "dims/L*N": [1], "r": ["L*N"], "y": ["N", "L", 4], "z": ["L*N"]}
    assert report.declared == 5  # y was declared so before


@pytest.mark.cases(3)
@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(
    "nodes",
    [
        "head = Shape <end = 2> (x) sizes = Concat <axis = 0> (head, half) r = Resize <mode = MODE> (x, , , sizes)",
        "f = Cast <to = 1> (half) scales = Concat <axis = 0> (ones, f) r = Resize <mode = MODE> (x, , scales)",
    ],
    ids=["sizes", "scales"],
)
def test_a_resize_to_nothing_in_a_branch_that_does_not_run_loads_once_folded(
    nodes: str, mode: str, fuse: bool, tmp_path: Path
) -> None:
    """Half of a height of 1 is 0, which onnxruntime refuses where the branch runs."""
    text = f"""<ir_version: 9, opset_import: ["" : 18]>
    g (float[1, 1, height, 4] x, bool small) => (float[a, b, c, d] y)
    <int64[2] two = {{2, 2}}, float[2] ones = {{1, 1}}> {{
        y = If (small) <
            then_branch = kept () => (float[1, 1, height, 4] p) {{ p = Neg (x) }},
            else_branch = halved () => (float[a, b, c, d] r) {{
                sides = Shape <start = 2> (x)
                half = Div (sides, two)
                {nodes.replace("MODE", f'"{mode}"')}
            }}
        >
    }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    options = FoldOptions(spec=DimSpec.of({"height": 1}), fuse=fuse)
    proof = fold_file(tmp_path / "model.onnx", tmp_path / "out.onnx", options).proof
    assert proof is not None
    assert proof.passed
    assert all(run.flags == {"small": True} for run in proof.runs)
