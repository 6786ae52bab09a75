"""Bundles on the command line: made, refused, shown."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from bundles import audio_encoder, decoder, saved
from npm_packages import JAVASCRIPT

Run = Callable[..., tuple[object, str, str]]
ModelFile = Callable[[str], Path]
REPORT = """\
Bundle window

4 methods over 3 state tensors, 832 bytes for up to 3 rows; each token of a row
takes 8 bytes. The models count positions, from the slots in use and from the
mask.
"""
STATE = """\
State                          prefill  step         init   reorder
────────────────────────────────────────────────────────────────────────
attention_mask                 write    read, write  write  read, write
  int64[8, 3], new tokens in the next slots
past_key_values.0.{key|value}  write    read, write  write  read, write
  float32[3, 3, 2, 4], new tokens in a ring

Arena

Offset  Bytes  Part            State
─────────────────────────────────────────────────────────────
     0    192  █████           attention_mask
   192    576  ██████████████  past_key_values.0.{key|value}

How to run it

Allocate the arena, and let each state be a view of it; set the lengths to 0.
init fills it.

Where a state has prefix, give a method its first slots alone: as many as are in
use after the run, of a ring no more than it has.

Set the lengths to 0. Run prefill, which writes the state and gives the first
logits.

Choose a token from the logits; run step on it; repeat until it ends or the
slots are full.

After each run, let each length grow by what the method says.
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return saved(decoder(), tmp_path / "source")


def test_the_report_of_a_bundle(run: Run, bundle_of: Callable[[str], Path]) -> None:
    code, out, err = run("report", bundle_of("window"), "--full")
    assert (code, err) == (0, "")
    assert out.startswith(REPORT)
    assert out[out.index("State  ") :] == f"{STATE}\n"
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("format", ["json", "markdown", "html"])
def test_a_bundle_is_reported_in_every_format(format: str, run: Run, bundle_of: Callable[[str], Path]) -> None:
    code, out, err = run("report", bundle_of("window"), "--format", format)
    assert (code, err) == (0, "")
    assert "past_key_values.0." in out
    if format == "json":
        assert json.loads(out)["contract"]["arena"] == 832


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "kv-cache"), "is a bundle: options other than --format, --full and --output are for models"),
        (("--context", "16"), "is a bundle: options other than --format, --full and --output are for models"),
        (("--target", "generic-npu"), "is a bundle: options other than --format, --full and --output are for models"),
        (("--format", "dot"), "is a bundle, which has no drawing - take another --format"),
    ],
)
def test_what_a_bundle_has_none_of_is_an_error(
    arguments: tuple[str, ...], message: str, run: Run, bundle_of: Callable[[str], Path]
) -> None:
    code, out, err = run("report", bundle_of("window"), *arguments)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())


def test_a_bundle_is_made_and_proven(run: Run, source: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    code, out, err = run("bundle", source, "-o", made, "--max-cache", 5, "--batch", 2, "--format", "json")
    assert (code, err) == (0, "")
    plain = json.loads(out)
    assert plain["proof"]["checks"]["rows that are reordered"] == ""
    assert {run["failure"] for run in plain["proof"]["runs"]} == {""}
    assert sorted(path.name for path in made.iterdir()) == [
        "bundle.json",
        "decode.onnx",
        "init.onnx",
        "reorder.onnx",
    ]
    assert json.loads((made / "bundle.json").read_text())["data"] == ""  # all weights are in the models


def test_an_older_runtime_gets_scatter_nd(run: Run, source: Path, tmp_path: Path) -> None:
    code, out, _ = run("bundle", source, "-o", tmp_path / "out", "--update", "scatter-nd", "--no-verify", "--full")
    assert code == 0
    assert "\nWarning: Not run: the bundle is unverified.\n" in out
    model = onnx.load(tmp_path / "out" / "decode.onnx")
    assert model.opset_import[0].version == 17
    assert {node.op_type for node in model.graph.node} >= {"ScatterND"}


@pytest.mark.parametrize("failure", ["it does not hold", "it does not hold."])
def test_a_proof_that_fails_is_exit_code_1(
    failure: str, run: Run, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphkit.verify.bundle_verifier.CHECKS", {"a check": lambda *_: failure})
    code, out, err = run("bundle", source, "-o", tmp_path / "out", "--max-cache", 4, "--batch", 1)
    assert code == 1
    assert "! a check: it does not hold" in " ".join(out.split())
    assert " ".join(err.split()) == f"Not done: a check: it does not hold. The files in {tmp_path / 'out'} are kept."


def refused(folder: Path, model_file: ModelFile) -> dict[str, tuple[list[object], str]]:
    """Return command lines, and what they say."""
    source = saved(decoder(), folder / "source")
    audio = saved(audio_encoder(), folder / "audio", "encoder_model")
    alone = folder / "alone"
    alone.mkdir()
    shutil.copy(model_file("marian-tiny/decoder_model_merged"), alone / "decoder_model_merged.onnx")
    fixed = saved(
        onnx.parser.parse_model(
            """<ir_version: 9, opset_import: ["" : 17]>
            g (int64[N, L] input_ids, float[N, heads, past, 4] past_key_0, float[N, heads, L, 4] k)
            => (float[N, heads, all, 4] present_key_0) { present_key_0 = Concat <axis = 2> (past_key_0, k) }"""
        ),
        folder / "fixed",
    )
    existing = folder / "existing"
    existing.mkdir()
    (existing / "init.onnx").write_text("mine")
    out = folder / "out"
    return {
        "no decoder": ([audio, "-o", out], "audio: it has no decoder with a cache, so that there is no state to share"),
        "no encoder": ([alone, "-o", out], "it has a decoder that reads an encoder, and no encoder - export it too"),
        "the same folder": (
            [source, "-o", source],
            "is the folder of the export, whose models it would be mixed with - name another one",
        ),
        "files that exist": (
            [source, "-o", existing],
            "init.onnx: exists - name another output with -o, or replace it",
        ),
        "no slots for it": (
            [fixed, "-o", out],
            "update-cache-in-place: past_key_0: it is [N, heads, past, 4], and slots",
        ),
        "nothing there": ([folder / "nowhere", "-o", out], "nowhere: cannot be opened: No such file or directory"),
        "a broken model": (
            [existing, "-o", out],
            "existing/init.onnx, byte 0: the data ends inside a fixed-width field",
        ),
        "no batch": ([source, "-o", out, "--batch", 0], "0 is not in the range x>=1"),
        "a range": ([source, "-o", out, "--range", "batch=1:2"], "No such option '--range'"),
    }


def test_what_is_no_export_is_refused(run: Run, tmp_path: Path, model_file: ModelFile) -> None:
    for case, (arguments, message) in refused(tmp_path, model_file).items():
        code, out, err = run("bundle", *arguments, "--no-verify")
        assert (code, out) == (2, ""), case
        assert message in " ".join(err.split()), case
        assert not (tmp_path / "out").exists(), case
    assert (tmp_path / "existing" / "init.onnx").read_text() == "mine"
    assert sorted(path.name for path in (tmp_path / "existing").iterdir()) == ["init.onnx"]


def test_files_that_exist_are_replaced_where_asked(run: Run, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for size in (4, 6):
        assert run("bundle", source, "-o", out, "--max-cache", size, "--no-verify", "--overwrite")[0] == 0
    assert json.loads((out / "bundle.json").read_text())["lengths"][0]["most"] == 6


def test_a_dry_run_writes_nothing(run: Run, source: Path, tmp_path: Path) -> None:
    code, out, _ = run("bundle", source, "-o", tmp_path / "out", "--dry-run", "--full")
    assert code == 0
    assert "past_key_values.0.{key|value}" in out
    assert not (tmp_path / "out").exists()


def test_it_says_how_to_load_a_bundle_and_copies_the_host(run: Run, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    _, said, _ = run("bundle", source, "-o", out, "--no-verify")
    told = [f"Wrote {out}.", f"In Python: bundle = graphkit.Bundle('{out}')"]
    assert said.splitlines()[-2:] == told
    assert len(said.splitlines()) <= 24
    _, said, _ = run("bundle", source, "-o", out, "--no-verify", "--report", tmp_path / "report.md", "--overwrite")
    assert said.splitlines()[-3:] == [f"Wrote {tmp_path / 'report.md'}.", *told]
    assert len(said.splitlines()) <= 24
    _, said, _ = run("bundle", source, "-o", out, "--no-verify", "--copy-host", "--overwrite")
    assert said.splitlines()[-1] == f"In JavaScript: import {{ Bundle }} from '{out / 'bundle.mjs'}'"
    assert len(said.splitlines()) <= 24
    recorded = json.loads((out / "bundle.json").read_text())["files"]
    for name in ("bundle.mjs", "folder.mjs", "tokens.mjs", "values.mjs"):
        assert (out / name).read_bytes() == (JAVASCRIPT / name).read_bytes()
        assert name in recorded
