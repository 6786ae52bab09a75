"""A bundle of one sequence leaves the matrix of its logits as it lies; one of several has onnxruntime pack it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from bundles import OPTIONS, decoder, saved
from onnx import numpy_helper

from graphkit.contract.contract_files import read_bundle
from graphkit.deploy.export_pipeline import find_pipeline
from graphkit.deploy.make_bundle import bundle_folder
from graphkit.equivalence import check_bundle
from graphkit.hosts.bundle_host import Bundle
from graphkit.passes.state.decode_step import LARGE

WIDTH = 8  # of the decoder
COLUMNS = LARGE // 4 // WIDTH
PROMPT = [[3, 1, 4]]


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a decoder whose vocabulary is so large that its matrix of logits counts."""
    model = decoder(changes={"float[batch, seq, 11] logits": f"float[batch, seq, {COLUMNS}] logits"})
    (head,) = (tensor for tensor in model.graph.initializer if tensor.name == "head")
    columns = np.random.default_rng(1).standard_normal((WIDTH, COLUMNS), np.float32)
    head.CopyFrom(numpy_helper.from_array(columns, "head"))
    return saved(model, tmp_path_factory.mktemp("wide") / "export")


def of_rows(rows: int, export: Path, folder: Path) -> Path:
    bundle_folder(export, folder, replace(OPTIONS, batch=rows))
    return folder


def ranks(folder: Path) -> set[int]:
    """Return how many axes the matrix of logits has in the methods of a bundle."""
    files = {method.file for method in read_bundle(folder / "bundle.json").methods if method.when in ("once", "step")}
    models = [onnx.load(folder / file, load_external_data=False) for file in files]
    return {len(w.dims) for model in models for w in model.graph.initializer if w.dims[-1:] == [COLUMNS]}


def test_one_sequence(export: Path, tmp_path: Path) -> None:
    one, two = of_rows(1, export, tmp_path / "one"), of_rows(2, export, tmp_path / "two")
    assert (ranks(one), ranks(two)) == ({3}, {2})
    bundles = [Bundle(folder, unchecked=True) for folder in (one, two)]
    logits = [bundle.prefill(PROMPT) for bundle in bundles]
    np.testing.assert_allclose(*logits, rtol=0, atol=1e-4)
    assert logits[0].shape == (1, 1, COLUMNS)
    steps = [bundle.step(5) for bundle in bundles]
    np.testing.assert_allclose(*steps, rtol=0, atol=1e-4)


def test_it_is_proven(export: Path, tmp_path: Path) -> None:
    found = check_bundle(find_pipeline(export).originals, of_rows(1, export, tmp_path / "one"))
    proofs = [output for each in found.values() for output in each.outputs]
    assert {output.verdict for output in proofs} == {"proven"}
    assert "logits" in {output.name for output in proofs}


def test_a_step_over_rings_gives_the_logits_of_one_token(tmp_path: Path) -> None:
    bundle_folder(saved(decoder("window"), tmp_path / "export"), tmp_path / "out", OPTIONS)
    bundle = Bundle(tmp_path / "out", unchecked=True)
    bundle.prefill(PROMPT)
    assert bundle.step(5).shape == (1, 1, 11)
