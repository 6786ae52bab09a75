"""What runs of a model tell of its inputs."""

from __future__ import annotations

import lzma
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper, parser

from graphkit.errors import ModelError
from graphkit.model import Model, load
from graphkit.runtime.session import Session
from graphkit.verify.probe_inputs import InputProbe

MASKS = Path(__file__).parents[1] / "deploy" / "masks"
TEXT = """
<ir_version: 10, opset_import: ["" : 18]>
g (int64[batch, length] input_ids, %DTYPE%[batch, length] mask, int64[batch, boxes, 2] bbox)
=> (float[batch, length, 8] y)
<float lowest = {-3.4e38}, float nothing = {0}, float much = {1e5}, float unit = {1}, int64[1] one = {1}> {
    words = Gather (token_table, input_ids)
    pairs = Gather (token_table, bbox)
    summed = ReduceSum <keepdims = 0> (pairs, one_axis)
    x = Add (words, summed)
    keys = Transpose <perm = [0, 2, 1]> (x)
    scores = MatMul (x, keys)
    %BIAS%
    row = Unsqueeze (bias, one)
    masked = Add (scores, row)
    p = Softmax <axis = -1> (masked)
    y = MatMul (p, x)
}
"""
CASES = {
    "True counts": ("bool", "bias = Where (mask, nothing, lowest)", (1, 0)),
    "True pads": ("bool", "bias = Where (mask, lowest, nothing)", (0, 1)),
    "1 pads": ("int32", "f = Cast <to = 1> (mask) bias = Mul (f, lowest)", (0, 1)),
    "1 counts": ("int64", "f = Cast <to = 1> (mask) g = Sub (f, unit) bias = Mul (g, much)", (1, 0)),
    "added": ("float", "bias = Identity (mask)", (0, -1e9)),
    "nothing": ("float", "bias = Mul (mask, nothing)", (1, 0)),
}


def probe(dtype: str, bias: str, folder: Path) -> InputProbe:
    model = parser.parse_model(TEXT.replace("%DTYPE%", dtype).replace("%BIAS%", bias))
    table = np.random.default_rng(0).normal(0, 1, (16, 8)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "token_table"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([2]), "one_axis"))
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return InputProbe(Model.from_proto(model), Session(folder / "model.onnx").run)


@pytest.mark.parametrize(("dtype", "bias", "elements"), CASES.values(), ids=CASES)
def test_runs_tell_which_elements_of_a_mask_hide(
    dtype: str, bias: str, elements: tuple[float, float], tmp_path: Path
) -> None:
    tried = probe(dtype, bias, tmp_path)
    assert tried.elements(tried.model.graph.values["mask"]) == elements


def test_runs_tell_what_is_as_long_as_the_tokens(tmp_path: Path) -> None:
    assert probe(*CASES["True counts"][:2], tmp_path).following_inputs == {("bbox", 1), ("mask", 1)}


@pytest.mark.cases("padding-true-src_key_padding_mask-elements0", "layoutlm-attention_mask-elements1")
@pytest.mark.parametrize(
    ("name", "mask", "elements"),
    [
        ("padding-true", "src_key_padding_mask", (0, 1)),
        ("layoutlm", "attention_mask", (1, 0)),
        ("parakeet", "attention_mask", (1, 0)),
        ("seamless", "attention_mask", (1, 0)),
    ],
)
def test_runs_of_exports_tell_too(name: str, mask: str, elements: tuple[int, int], tmp_path: Path) -> None:
    path = tmp_path / f"{name}.onnx"
    path.write_bytes(lzma.decompress((MASKS / f"{name}.onnx.xz").read_bytes()))
    model = load(path)
    assert InputProbe(model, Session(path).run).elements(model.graph.values[mask]) == elements


def test_what_is_beside_a_text_and_not_tied_to_it_has_its_own_length(tmp_path: Path) -> None:
    path = tmp_path / "pix2struct.onnx"
    path.write_bytes(lzma.decompress((MASKS / "pix2struct.onnx.xz").read_bytes()))
    assert InputProbe(load(path), Session(path).run).following_inputs == frozenset()


@pytest.mark.parametrize("expected", [(1, 0), (0, 1)])
@pytest.mark.parametrize("failing", [range(6, 12), range(6, 14)])
def test_a_mask_of_a_sound_that_counts_is_not_taken_for_one_that_hides(
    failing: range, expected: tuple[int, int]
) -> None:
    """As in SEW, whose mask is summed, and whose places are none for some sounds that are too short."""
    text = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[batch, length] input_values, int64[batch, length] attention_mask) => (float[batch, length] y) {
        y = Identity (input_values)
    }"""
    model = Model.from_proto(parser.parse_model(text))

    def run(feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        sound, valid = feed["input_values"], (feed["attention_mask"] == expected[0]).sum(1)
        if valid[0] in failing:
            raise ModelError("invalid indice found, indice = -2")
        kept = np.where(np.arange(sound.shape[1]) < valid[:, None], sound, 0)
        return {"y": kept - kept.mean(1, keepdims=True)}

    assert InputProbe(model, run).elements(model.graph.values["attention_mask"]) == expected
