"""The commands that edit models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import onnx.parser
import pytest
from converting import convert_here

import graphkit.passes.opset.convert_opset
import graphkit.workflows.rewrite_file
from graphkit.graph.declared_types import declared_dims
from graphkit.model import load
from graphkit.passes.opset.convert_opset import converted_by_onnx
from graphkit.rewrite.base import Outcome

OTHER, MERGED = "example:causal-attention", "example:merged-decoder"
Run = Callable[..., tuple[object, str, str]]

EXTRACTED = """\
Edit of causal-attention.onnx by extract-subgraph

extract-subgraph: 2 changes.
Proven bit for bit at every size (1 of 1 output), and run once.

Wrote part.onnx.

1 of 213 nodes taken.

1 value to begin at: /norm/LayerNormalization_output_0.

Interface

Inputs
Name                               Dtype
───────────────────────────────────────────
/norm/LayerNormalization_output_0  float32
  [batch_size, sequence_length, 16]

Outputs
Name    Dtype
────────────────
logits  float32
  [batch_size, sequence_length, 64]

Proof

"""


def test_extract_writes_a_subgraph_and_proves_it(run: Run, tmp_path: Path) -> None:
    part = tmp_path / "part.onnx"
    cut = "/norm/LayerNormalization_output_0"
    code, out, err = run("extract", OTHER, "--to", "logits", "--from", cut, "-o", part, "--weights", "inline", "--full")
    assert (code, err) == (0, "")
    assert out.startswith(EXTRACTED)
    assert "Proven bit for bit at every size (1 of 1 output), and run once." in out
    assert [value.name for value in load(part).graph.inputs] == [cut]


def small_file(folder: Path) -> Path:
    text = "agraph (float[N, L] x) => (float[N, L] y) { h = Exp (x)  y = Neg (h) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}'), folder / "small.onnx")
    return folder / "small.onnx"


def test_a_subgraph_whose_proof_fails_is_kept_and_said_to_be_wrong(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def turned(self: object, model: graphkit.Model) -> Outcome:  # noqa: ARG001 - the signature is that of a pass
        proto = model.restore()
        proto.graph.node[-1].op_type = "Abs"
        return Outcome(graphkit.Model.from_proto(proto))

    monkeypatch.setattr(graphkit.workflows.rewrite_file.ExtractSubgraph, "run", turned)
    code, _, err = run("extract", small_file(tmp_path), "--to", "y", "-o", tmp_path / "part.onnx")
    assert code == 1
    assert err == f"The proof failed. {tmp_path / 'part.onnx'} is kept, unverified.\n"


def test_what_cannot_be_extracted_is_one_error_and_no_file(run: Run, tmp_path: Path) -> None:
    code, out, err = run("extract", OTHER, "--to", "logit", "-o", tmp_path / "part.onnx")
    assert (code, out) == (2, "")
    assert err == f"Error: {OTHER}: there is no value or node 'logit' - did you mean 'logits'?\n"
    assert not list(tmp_path.iterdir())


def test_rename_writes_other_names_and_proves_them(run: Run, tmp_path: Path) -> None:
    made = tmp_path / "r.onnx"
    new = ("--input-name", "x=left", "--output-name", "y=right", "--dim-name", "N=rows")
    code, out, err = run("rename", small_file(tmp_path), *new, "-o", made)
    assert (code, err) == (0, "")
    assert "x is called left.\n\ny is called right.\n\nN is called rows.\n" in out
    assert "Proven bit for bit at every size (1 of 1 output), and run once." in out
    written = load(made).graph
    assert [value.name for value in (*written.inputs, *written.outputs)] == ["left", "right"]
    assert declared_dims(written.inputs[0]) == declared_dims(written.outputs[0]) == ("rows", "L")


def test_set_dims_writes_sizes_and_proves_them_there(run: Run, tmp_path: Path) -> None:
    made = tmp_path / "s.onnx"
    code, out, err = run("set-dims", small_file(tmp_path), "--dim", "N=2", "--input", "x=2x5", "-o", made)
    assert (code, err) == (0, "")
    assert "N is 2.\n\nL is 5.\n" in out
    assert "Proven bit for bit at every size (1 of 1 output), and run once." in out
    assert declared_dims(load(made).graph.outputs[0]) == (2, 5)


def odd_file(folder: Path) -> Path:
    """Return the file of a model whose dims are both called -1."""
    proto = onnx.load(small_file(folder))
    for info in (*proto.graph.input, *proto.graph.output):
        for dim in info.type.tensor_type.shape.dim:
            dim.dim_param = "-1"
    onnx.save(proto, folder / "odd.onnx")
    return folder / "odd.onnx"


@pytest.mark.parametrize(
    ("command", "dims"),
    [
        (("set-dims", "--dim", "-1=4"), (4, 4)),
        (("set-dims", "--dim", "x.0=2", "--dim", "x.1=3"), (2, 3)),
        (("set-dims", "--input", "x=2x3"), (2, 3)),
        (("rename", "--dim-name", "-1=size"), ("size", "size")),
        (("rename", "--dim-name", "x.1=columns"), ("-1", "columns")),
        (("fold",), ("-1", "-1")),
        (("fold", "--dim", "x.1=3"), ("-1", 3)),
    ],
)
def test_dims_that_are_called_by_a_number_are_named_dims(
    command: tuple[str, ...], dims: tuple[str | int, ...], run: Run, tmp_path: Path
) -> None:
    made = tmp_path / "made.onnx"
    code, _, err = run(command[0], odd_file(tmp_path), *command[1:], "-o", made)
    assert (code, err) == (0, "")
    assert declared_dims(load(made).graph.inputs[0]) == dims


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (
            ("rename", OTHER),
            "there is nothing to rename - give one of --input-name, --output-name, --dim-name, --value-name, such as "
            "--dim-name N=batch",
        ),
        (("set-dims", OTHER), "there is nothing to set - give --dim or --input, such as --dim batch_size=1"),
        (
            ("rename", OTHER, "--input-name", "logits=a"),
            f"{OTHER}: there is no input 'logits' - there are input_ids",
        ),
        (
            ("rename", OTHER, "--output-name", "new.onnx"),
            "--output-name new.onnx: is not OLD=NEW - write it as in --output-name x=y",
        ),
        (("set-dims", OTHER, "--dim", "b=1"), "no input has a dim 'b' - there are batch_size, sequence_length"),
    ],
)
def test_what_cannot_be_edited_is_one_error_and_no_file(
    run: Run, tmp_path: Path, command: tuple[str, ...], error: str
) -> None:
    assert run(*command, "-o", tmp_path / "o.onnx") == (2, "", f"Error: {error}\n")
    assert not list(tmp_path.iterdir())


def means_file(folder: Path) -> Path:
    text = "agraph (float[N, 4] x) => (float[N] y) { y = ReduceMean <keepdims = 0> (x, axes) }"
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {text}')
    proto.graph.initializer.append(onnx.helper.make_tensor("axes", onnx.TensorProto.INT64, [1], [1]))
    onnx.save(proto, folder / "means.onnx")
    return folder / "means.onnx"


def test_convert_opset_writes_a_newer_version_and_proves_it(run: Run, tmp_path: Path) -> None:
    code, out, err = run("convert-opset", means_file(tmp_path), "--to", 21, "-o", tmp_path / "new.onnx")
    assert (code, err) == (0, "")
    assert "opset 18 became 21.\n" in out
    assert load(tmp_path / "new.onnx").graph.opset() == 21


@pytest.mark.slow
def test_an_older_version_is_proven_too(run: Run, tmp_path: Path) -> None:
    code, out, err = run("convert-opset", MERGED, "--to", 17, "-o", tmp_path / "old.onnx")
    assert (code, err) == (0, "")
    assert "opset 18 became 17.\n" in out
    assert load(tmp_path / "old.onnx").graph.opset() == 17


@pytest.mark.slow
def test_an_operator_that_graphkit_does_not_know_comes_from_onnx_where_the_proof_holds(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphkit.passes.opset.convert_opset, "convert_bytes", convert_here)
    text = "agraph (float[2, N, 1] x) => (float[2, N, 2] y) { y = DFT <axis = 1> (x) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}'), tmp_path / "dft.onnx")
    code, out, _ = run("convert-opset", tmp_path / "dft.onnx", "--to", 20, "-o", tmp_path / "new.onnx")
    assert code == 0
    assert "opset 17 became 20, by onnx's converter.\n" in out
    assert load(tmp_path / "new.onnx").graph.opset() == 20

    def wrong(model: graphkit.Model, version: int) -> graphkit.Model:
        proto = converted_by_onnx(model, version).restore()
        proto.graph.node[-1].attribute.append(onnx.helper.make_attribute("inverse", 1))
        return graphkit.Model.from_proto(proto)

    monkeypatch.setattr(graphkit.workflows.rewrite_file, "converted_by_onnx", wrong)
    code, out, err = run("convert-opset", tmp_path / "dft.onnx", "--to", 20, "-o", tmp_path / "wrong.onnx")
    assert (code, out) == (2, "")
    assert "DFT#0: stays of opset 17: DFT of opset 20 has no attribute 'axis' any more; onnx's converter: its " in err
    assert "proof fails: " in err
    assert err.endswith(" - nothing was written\n")
    assert not (tmp_path / "wrong.onnx").exists()


@pytest.mark.parametrize(
    ("model", "options", "first", "last"),
    [
        (OTHER, ("--to", 99), "convert-opset: version 99 is not between 1 and 24 - give an older one", ""),
        (
            OTHER,
            ("--to", 12, "--no-verify"),
            f"{OTHER}: convert-opset declines it: /blocks.{{0-1}}/norm{{1-2}}/LayerNormalization, ",
            " stays of opset 17: onnx has no Trilu before opset 14 - onnx's converter may know it, and is taken only "
            "with the proof: leave out --no-verify",
        ),
        (
            MERGED,
            ("--to", 16),
            f"{MERGED}: convert-opset declines it: optimum::if/",
            ": onnx has no LayerNormalization before opset 17; onnx's converter: it leaves the bodies of If, Loop and "
            "Scan as they are - nothing was written",
        ),
    ],
)
def test_a_version_that_cannot_be_is_one_error(
    run: Run, tmp_path: Path, model: str, options: tuple[object, ...], first: str, last: str
) -> None:
    code, out, err = run("convert-opset", model, *options, "-o", tmp_path / "o.onnx")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"Error: {first}")
    assert err.endswith(f"{last}\n")
    assert not list(tmp_path.iterdir())


def test_verify_proves_a_part_and_other_names(run: Run, tmp_path: Path) -> None:
    whole, part, named = small_file(tmp_path), tmp_path / "part.onnx", tmp_path / "named.onnx"
    code, out, _ = run("extract", whole, "--to", "y", "--from", "h", "-o", part, "--no-verify", "--full")
    assert "Not run: the file is unverified. `graphkit verify --part` runs it.\n" in out
    assert run("verify", whole, part, "--part")[0] == code == 0
    assert run("rename", whole, "--output-name", "y=z", "-o", named, "--no-verify")[0] == 0
    assert run("verify", whole, named, "--map", "y=z")[0] == 0
    assert run("verify", whole, named)[0] == 1
    error = "a part has the names of the whole - leave out --part or --map"
    assert run("verify", whole, named, "--part", "--map", "y=z") == (2, "", f"Error: {error}\n")
