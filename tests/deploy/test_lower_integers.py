"""Integers that a caller gives, of which nothing is known but where the original runs: times, lengths, edges."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser
from sessions import run

from graphkit.deploy.lower import LowerOptions, lower_folder
from graphkit.equivalence.originals import Originals
from graphkit.hosts import Host
from graphkit.model import load
from graphkit.verify.lowering_verifier import verify_lowering

TIME = """<ir_version: 8, opset_import: ["" : 17]>
g (float[b, 4, 6, 6] x, int64[b] t) => (float[b, 4, 6, 6] y)
<float[1, 4] rates = {1, 0.5, 0.25, 0.125}, int64[1] one = {1}, int64[2] behind = {2, 3}> {
    a = Cast <to = 1> (t)  c = Unsqueeze (a, one)  d = MatMul (c, rates)  e = Sin (d)  f = Unsqueeze (e, behind)
    y = Add (x, f)
}"""
LENGTHS = """<ir_version: 8, opset_import: ["" : 17]>
g (float[b, 6, WIDE] x, int64[b] lengths) => (float[b, 1, WIDE] y)
<int64[1] one = {1}, int64[2] behind = {1, 2}, int64[3] width = {1, 1, WIDE}> {
    last = Sub (lengths, one)  a = Unsqueeze (last, behind)  i = Expand (a, width)
    y = GatherElements <axis = 1> (x, i)
}"""


def lowered(text: str, folder: Path) -> tuple[Path, tuple[str, ...]]:
    path = folder / "model.onnx"
    onnx.save(parser.parse_model(text), path)
    report = lower_folder(path, folder / "out", LowerOptions())
    assert report.proof is not None
    assert report.proof.passed
    assert len(report.proof.runs) == 4
    return path, tuple(report.proof.caveats)


@pytest.mark.parametrize("time", [0, 3, 999])
def test_the_time_of_a_diffusion_is_given_by_the_caller(time: int, tmp_path: Path) -> None:
    path, caveats = lowered(TIME, tmp_path)
    assert "Integers of 't' are tried below 1000 alone." in caveats
    feed = {"x": np.ones((1, 4, 6, 6), np.float32), "t": np.array([time])}
    (expected,) = run(path, feed)
    (given,) = Host(tmp_path / "out").start(feed).values()
    np.testing.assert_allclose(given, expected, atol=1e-5)


def test_a_node_with_two_obstacles_is_one_that_a_target_refuses(tmp_path: Path) -> None:
    """The Cast of a time is of int64, and an operator that Vela leaves on the CPU."""
    onnx.save(parser.parse_model(TIME), tmp_path / "model.onnx")
    report = lower_folder(tmp_path / "model.onnx", tmp_path / "out", LowerOptions(target="ethos-u65"))
    refused = report.files[0].blockers
    assert (len(refused.blockers), refused.as_is.nodes) == (3, 2)
    assert "model.onnx: ethos-u65 refuses 2 nodes" in report.findings()[0]


@pytest.mark.parametrize("width", [5, 8])  # of lengths below 8, that of 7 is one too many
def test_lengths_are_tried_at_which_the_original_runs_and_the_proof_says_so(width: int, tmp_path: Path) -> None:
    path, caveats = lowered(LENGTHS.replace("WIDE", str(width)), tmp_path)
    assert "Integers of 'lengths' are tried below 6 alone." in caveats
    for length in (1, 4, 6):
        feed = {"x": np.arange(6 * width, dtype=np.float32).reshape(1, 6, width), "lengths": np.array([length])}
        (expected,) = run(path, feed)
        (given,) = Host(tmp_path / "out").start(feed).values()
        np.testing.assert_array_equal(given, expected)


HIDDEN = """<ir_version: 8, opset_import: ["" : 17]>
g (float[b, 6, 6] x, int64[b] lengths) => (float[b, 6, 6] y)
<int64[1] behind = {1}, int64[6] places = {0, 1, 2, 3, 4, 5}, float floor = {-10000}, int64 least = {900}> {
    counted = Sub (lengths, least)  ends = Unsqueeze (counted, behind)  counts = Less (places, ends)
    hidden = Not (counts)  rows = Unsqueeze (hidden, behind)
    scores = MatMul (x, x)  masked = Where (rows, floor, scores)  weights = Softmax (masked)  y = MatMul (weights, x)
}"""


COUNTED = HIDDEN.replace("{60}", "{0}").replace("{900}", "{0}")


def test_a_proof_that_fails_where_nothing_counts_says_at_which_integers(tmp_path: Path) -> None:
    onnx.save(parser.parse_model(HIDDEN), tmp_path / "model.onnx")
    report = lower_folder(tmp_path / "model.onnx", tmp_path / "out", LowerOptions())
    assert report.proof is not None
    failures = [run.failure for run in report.proof.runs if run.failure]
    assert failures
    assert all(", with 'lengths' of [" in failure for failure in failures)
    assert {int(failure.split("[")[1].rstrip("]")) for failure in failures} <= {*range(901)}


def test_a_lowering_that_forgets_lengths_is_found(tmp_path: Path) -> None:
    """Most integers are longer than the input, and hide nothing of it."""
    folders = []
    for name, text in (("right", COUNTED), ("wrong", COUNTED.replace("{0, 1, 2, 3, 4, 5}", "{0, 0, 0, 0, 0, 0}"))):
        (tmp_path / name).mkdir()
        path, _ = lowered(text, tmp_path / name)
        folders.append(path.parent / "out")
    originals = Originals(load(tmp_path / "right" / "model.onnx"), None, None)
    assert verify_lowering(originals, folders[0]).passed
    shutil.copy(folders[1] / "model.onnx", folders[0] / "model.onnx")
    failures = [run.failure for run in verify_lowering(originals, folders[0]).runs]
    assert any("differs" in failure for failure in failures), failures
