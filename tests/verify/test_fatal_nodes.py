"""A model that ends its process: a proof of a folder, a split or a file says so in a line, with file and node."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import small_pipelines
from bundles import OPTIONS, decoder, made, saved
from onnx import helper, numpy_helper

from graphkit.deploy.lower import LowerOptions, lower_folder
from graphkit.options import SplitOptions
from graphkit.workflows.split_decoder_file import split_file

PARTS = ("decoder_model", "decoder_with_past_model")
Run = Callable[..., tuple[object, str, str]]


def spoil(path: Path) -> None:
    """Let a node divide the least int64 by -1, for which no processor has a result."""
    model = onnx.load(path)
    numbers = {"least": np.iinfo(np.int64).min, "minus_one": -1, "nothing_of_it": 0}
    model.graph.initializer.extend(numpy_helper.from_array(np.array(number), name) for name, number in numbers.items())
    tokens = next((value.name for value in model.graph.input if value.name.endswith("input_ids")), "")
    for node in model.graph.node:
        node.input[:] = ["spoilt" if name and name == tokens else name for name in node.input]
    nodes = [helper.make_node("Div", ["least", "minus_one"], ["quotient"], name="fatal")]
    nodes += [helper.make_node("Mul", ["quotient", "nothing_of_it"], ["zero_of_it"])]
    nodes += [helper.make_node("Add", [tokens, "zero_of_it"], ["spoilt"])] if tokens else []
    for node in reversed(nodes):
        model.graph.node.insert(0, node)
    onnx.save(model, path)


def check(outcome: tuple[object, str, str], file: Path) -> None:
    code, said, error = outcome
    assert code == 2, (code, said, error)
    assert error.count("\n") == 1, error
    assert error.startswith(f"Error: {file}, node 'fatal': onnxruntime cannot run it: it ends the process with SIG"), (
        error
    )


def bundled(export: Path, out: Path) -> Path:
    made(saved(decoder("causal"), export), out, replace(OPTIONS, verify=True))
    return next(
        out / m["file"] for m in json.loads((out / "bundle.json").read_text())["methods"] if m["when"] == "step"
    )


def described(export: Path, out: Path) -> Path:
    text = '[[method]]\nname = "draft"\nmodels = ["draft.onnx"]\ncache = "draft"\n'
    (saved(decoder("window"), export, "draft") / "bundle.toml").write_text(text)
    made(export, out)
    return next(out.glob("*.onnx"))


def lowered(export: Path, out: Path) -> Path:
    lower_folder(saved(small_pipelines.decoder(small_pipelines.FILLED), export), out, LowerOptions(max_cache_len=5))
    return next(out.glob("*.onnx"))


@pytest.mark.cases("described")
@pytest.mark.parametrize("make", [pytest.param(bundled, marks=pytest.mark.slow), described, lowered])
def test_a_folder_whose_model_ends_the_process_is_an_error(
    make: Callable[[Path, Path], Path], run: Run, tmp_path: Path
) -> None:
    export, out = tmp_path / "export", tmp_path / "out"
    file = make(export, out)
    spoil(file)
    check(run("verify", export, out), file)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["decoder_model", pytest.param("decoder_with_past_model", marks=pytest.mark.slow)])
def test_a_split_whose_part_ends_the_process_is_an_error(part: str, run: Run, tmp_path: Path) -> None:
    merged = "example:merged-decoder"
    split_file(merged, tmp_path, SplitOptions(verify=False))
    spoil(tmp_path / f"{part}.onnx")
    check(run("verify", merged, *(tmp_path / f"{name}.onnx" for name in PARTS)), tmp_path / f"{part}.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["verify", pytest.param("compare", marks=pytest.mark.slow)])
def test_a_file_that_ends_the_process_is_an_error(command: str, run: Run, tmp_path: Path) -> None:
    right, wrong = (saved(decoder("causal"), tmp_path, name) / f"{name}.onnx" for name in ("right", "wrong"))
    spoil(wrong)
    check(run(command, right, wrong), wrong)


@pytest.mark.slow
@pytest.mark.parametrize("command", [pytest.param("lower", marks=pytest.mark.slow), "bundle"])
def test_an_export_that_ends_the_process_is_an_error(command: str, run: Run, tmp_path: Path) -> None:
    export = saved(decoder("causal"), tmp_path / "export")
    spoil(export / "model.onnx")
    check(
        run(command, export, "-o", tmp_path / "out", ("--max-cache-len" if command == "lower" else "--max-cache"), 8),
        export / "model.onnx",
    )
