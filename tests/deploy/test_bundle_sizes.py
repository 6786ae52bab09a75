"""How large the state of a bundle is: by expressions in the sizes, by what nodes compute at the largest ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from bundles import decoder, saved
from onnx import numpy_helper, parser
from real_models import unpacked

from graphkit.contract.bundle_contract import LegalSize
from graphkit.contract.contract_files import read_bundle
from graphkit.deploy.lower import LowerOptions, lower_folder
from graphkit.deploy.make_bundle import BundleExport, BundleOptions, bundle_folder
from graphkit.errors import ModelError, UsageError
from graphkit.examples import resolve
from graphkit.runtime.session import RunError
from graphkit.verify.bundle_prompts import make_prompts

WIDTH = 32  # of the states that T5 reads
OPTIONS = BundleOptions(max_cache=8, verify=False)
VISION = """(float[batch_size, num_channels, height, width] pixel_values)
    => (float[batch_size, places, 32] last_hidden_state)
    <int64[3] rows = {0, 32, -1}, int64[4] windows = {0, 32, -1, 2}> {
    patches = Conv <strides = [4, 4]> (pixel_values, weight)
    paired = Reshape (patches, windows)
    flat = Reshape (paired, rows)
    last_hidden_state = Transpose <perm = [0, 2, 1]> (flat)
}"""
POSITIONS = """(float[batch_size, num_channels, height, width] pixel_values)
    => (float[batch_size, places, 32] last_hidden_state)
    <int64[3] rows = {0, 32, -1}, int64[6] front = {0, 1, 0, 0, 0, 0}, float[5, 1] positions = {0.5, 1, 1.5, 2, 2.5}> {
    patches = Conv <strides = [4, 4]> (pixel_values, weight)
    flat = Reshape (patches, rows)
    places_first = Transpose <perm = [0, 2, 1]> (flat)
    with_token = Pad (places_first, front)
    last_hidden_state = Add (with_token, positions)
}"""
HALF = """(int64[batch_size, length] input_ids) => (float[batch_size, places, 32] last_hidden_state)
    <int64[1] zero = {0}, int64[1] one = {1}, float[1] half = {0.5}> {
    words = Gather (weight, input_ids)
    length = Shape <start = 1, end = 2> (words)
    number = Cast <to = 1> (length)
    part = Mul (number, half)
    whole = Sqrt (part)
    square = Mul (whole, whole)
    count = Cast <to = 7> (square)
    last_hidden_state = Slice (words, zero, count, one)
}"""


def test_a_state_that_is_larger_than_any_memory_is_refused(tmp_path: Path) -> None:
    options = BundleOptions(batch=(1 << 31) - 1, max_cache=1 << 20, dry_run=True)
    with pytest.raises(UsageError, match=r"the state takes .* bytes, and a bundle has 17,592,186,044,416 at most - "):
        bundle_folder(resolve("example:sliding-window"), tmp_path / "out", options)


def with_encoder(text: str, shape: tuple[int, ...], folder: Path) -> Path:
    """Return an export whose encoder is one of these."""
    unpacked("t5-tiny", folder)
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> g {text}')
    weight = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "weight"))
    onnx.save(model, folder / "encoder_model.onnx")
    return folder


def places(folder: Path) -> int:
    contract = read_bundle(folder / "bundle.json")
    return next(state.shape[2] for state in contract.states if state.name.endswith("encoder.key"))


@pytest.mark.slow
def test_an_encoder_of_images_needs_their_largest_sizes(tmp_path: Path) -> None:
    export = with_encoder(VISION, (WIDTH, 3, 4, 4), tmp_path / "model")
    with pytest.raises(UsageError, match="'height', 'width' have no numbers - give them with --dim height=NUMBER"):
        bundle_folder(export, tmp_path / "out", OPTIONS)
    with pytest.raises(UsageError, match=r"encoder_model.onnx: it cannot run with .*height=12, width=12: "):
        bundle_folder(export, tmp_path / "out", replace(OPTIONS, dims=(("height", 12), ("width", 12))))
    given = replace(OPTIONS, dims=(("height", 16), ("width", 24)), verify=True)
    proof = bundle_folder(export, tmp_path / "out", given).proof
    assert proof is not None
    assert proof.passed
    assert "Smaller inputs are not tried: all have height 16, width 24." in proof.notes
    assert places(tmp_path / "out") == 24
    with pytest.raises(UsageError, match="'height', 'width' have no numbers - give them with --dim height=NUMBER"):
        lower_folder(export, tmp_path / "lowered", LowerOptions(verify=False))


@pytest.mark.slow
def test_an_encoder_of_images_of_one_size_is_proven_at_that_size(tmp_path: Path) -> None:
    """Its positions say how large an image is, so that nobody has to."""
    export = with_encoder(POSITIONS, (WIDTH, 3, 4, 4), tmp_path / "model")
    proof = bundle_folder(export, tmp_path / "out", replace(OPTIONS, verify=True)).proof
    assert proof is not None
    assert proof.findings() == ()
    assert places(tmp_path / "out") == 5
    with pytest.raises(UsageError) as caught:
        lower_folder(export, tmp_path / "lowered", LowerOptions(verify=False))
    assert str(caught.value) == (
        "encoder_model.onnx: 'height', 'width' have no numbers - give them with --dim height=NUMBER --dim width=NUMBER "
        "(height: 4 to 7, and some others; width: 16 to 19, and some others; such as --dim height=4 --dim width=16)"
    )


@pytest.mark.slow
def test_what_nodes_compute_is_known_at_the_largest_source(tmp_path: Path) -> None:
    export = with_encoder(HALF, (64, WIDTH), tmp_path / "model")
    bundle_folder(export, tmp_path / "out", replace(OPTIONS, max_source=32))
    assert places(tmp_path / "out") == 16


def test_a_size_that_depends_on_values_is_declined_with_the_reason(tmp_path: Path) -> None:
    export = with_encoder(
        HALF.replace("Shape <start = 1, end = 2> (words)", "NonZero (input_ids)"), (64, WIDTH), tmp_path / "model"
    )
    with pytest.raises(
        UsageError, match=r"how large state 'encoder_attention_mask' can be is not known: .*what the Slice cuts"
    ):
        bundle_folder(export, tmp_path / "out", replace(OPTIONS, max_source=16))


@pytest.mark.slow
def test_dims_of_a_cache_whose_names_are_numbers_are_what_nodes_need(tmp_path: Path) -> None:
    """As transformers 5 declares them: heads and width of the past are names, those of the present numbers."""
    export = unpacked("qwen2-tiny", tmp_path / "model")
    model = onnx.load(export / "model.onnx")
    for value in (value for value in model.graph.input if value.name.startswith("past")):
        for dim in (dim for dim in value.type.tensor_type.shape.dim if dim.HasField("dim_value")):
            dim.dim_param = str(dim.dim_value)
    onnx.save(model, export / "model.onnx")
    bundle_folder(export, tmp_path / "out", OPTIONS)
    states = read_bundle(tmp_path / "out" / "bundle.json").states
    assert {state.shape for state in states if state.name.startswith("past")} == {(8, 1, 2, 8)}  # slots come first


def test_a_prompt_at_which_an_export_does_not_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RunError.of("dims do not broadcast", "model.onnx")

    monkeypatch.setattr("graphkit.verify.bundle_prompts.begin_prompt", fail)
    saved(decoder("causal"), tmp_path / "export")
    said = (
        r"^model\.onnx: it does not run with a prompt of \d+ rows? of \d+ tokens?: .* do not broadcast - graphkit rep"
    )
    with pytest.raises(ModelError, match=said):
        bundle_folder(tmp_path / "export", tmp_path / "out", replace(OPTIONS, verify=True))


def test_prompts_within_a_chunk_are_tried_beside_its_multiples(tmp_path: Path) -> None:
    """A bundle that is wrong at short prompts alone would pass where multiples are tried alone."""
    source = saved(decoder("causal"), tmp_path / "export")
    bundle_folder(source, tmp_path / "out", replace(OPTIONS, max_cache=16, batch=3))
    legal = LegalSize(4, 4, None, 0, 0, 2, 4, "multiples of 4 from 4, or any from 2 to 4")
    contract = replace(read_bundle(tmp_path / "out" / "bundle.json"), legal={"tokens": legal})
    pipeline = BundleExport.of(source).pipeline
    assert pipeline is not None
    lengths = {prompt.tokens.shape[1] for prompt in make_prompts(contract, pipeline.originals, 0)}
    assert all(map(legal.allows, lengths)), lengths
    assert min(lengths) < 4 < max(lengths), lengths
