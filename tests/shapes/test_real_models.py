"""Real exports: every tensor against onnxruntime where the weights are there, the share known where not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from truth import Runner, Truth, compare, feeds_for

from graphkit.model import Model, load
from graphkit.shapes import Shapes, infer

BASE = {"batch_size": 2, "batch": 2, "b": 2, "sequence_length": 3, "seq": 3, "decoder_sequence_length": 3}
BASE |= {"past_sequence_length": 4, "past_len": 4, "past_decoder_sequence_length": 4, "total_sequence_length": 7}
BASE |= {"encoder_sequence_length": 5, "encoder_sequence_length_out": 5, "num_channels": 3, "height": 32, "width": 32}
FIRST = {"past_sequence_length": 0, "past_len": 0, "past_decoder_sequence_length": 0}
SETS = [
    BASE,
    BASE | FIRST | {"total_sequence_length": 3},
    BASE | {"batch_size": 1, "batch": 1, "b": 1},
    BASE | dict.fromkeys(("sequence_length", "seq", "decoder_sequence_length"), 1) | {"total_sequence_length": 5},
    BASE | {"encoder_sequence_length": 1, "encoder_sequence_length_out": 1, "batch_size": 3, "batch": 3, "b": 3},
]
COMPLETE = {
    "bert-fill-mask/model": {},
    "cache-styles/anonymous": {},
    "cache-styles/bshd": {},
    "cache-styles/stacked": {},
    "cache-styles/static-cache": {},
    "gpt2-tiny/decoder_model_merged": {},
    "llama-int4/model": {},
    "patchtst/model": {"sequence_length": 32},
    "vit-qdq/model": {},
    "whisper-tiny/decoder_model_merged": {},
}
STUBS = {
    "detr-resnet-50/model_quantized": 1.0,
    "gemma-270m/model": 1.0,
    "opus-mt-en-fr/decoder_model_merged": 0.99,
    "opus-mt-en-fr/encoder_model": 1.0,
}
Unpack = Callable[[str], Path]


def run(path: Path, shapes: Shapes, changes: dict[str, int]) -> Truth:
    truth = Truth()
    has_branches = any(node.is_op("If") for node in shapes.model.graph.nodes)
    for branch in ("then_branch", "else_branch") if has_branches else ("",):
        runner = Runner(path, branch)
        for seed, dims in enumerate(SETS):
            total = dims["past_sequence_length"] + dims["sequence_length"]
            assignment = {"attention_mask.1": total} | dims | changes  # declared as long as the tokens, covers the past
            try:
                actual = runner.run(feeds_for(shapes, assignment, seed, flags=branch == "then_branch"))
            except Exception as error:
                if "onnxruntime" not in type(error).__module__:
                    raise
                truth.failures.append(str(error))
                continue
            truth.runs += 1
            compare(shapes, actual, assignment, truth)
    return truth


@pytest.mark.cases("llama-int4", "anonymous", "bert-fill-mask", "patchtst")
@pytest.mark.parametrize("name", COMPLETE)
def test_every_tensor_is_as_onnxruntime_has_it(name: str, model_file: Unpack):
    path = model_file(name)
    truth = run(path, infer(load(path)), COMPLETE[name])
    assert not truth.wrong, truth.wrong[:3]
    assert truth.runs >= 2, truth.failures[:2]
    assert truth.known >= 0.99 * truth.tensors


@pytest.mark.cases("opus-mt-en-fr/encoder_model")
@pytest.mark.parametrize("name", STUBS)
def test_real_exports_are_known(name: str, real_model: Callable[[str], Model]):
    shapes = infer(real_model(name))
    known = sum(shapes[value].is_known for value in shapes)
    assert known >= STUBS[name] * len(shapes)
    assert not shapes.findings


@pytest.mark.parametrize(
    ("name", "output", "expected"),
    [
        ("opus-mt-en-fr/decoder_model", "present.0.decoder.key", "[batch_size, 8, decoder_sequence_length, 64]"),
        (
            "opus-mt-en-fr/decoder_with_past_model",
            "present.0.decoder.key",
            "[batch_size, 8, past_decoder_sequence_length + 1, 64]",
        ),
        ("gemma-270m/model", "present.0.key", "[batch_size, 1, past_sequence_length + sequence_length, 256]"),
        ("detr-resnet-50/model_quantized", "logits", "[batch_size, 100, 92]"),
    ],
)
def test_outputs_are_what_they_are_and_not_what_they_declare(name, output, expected, real_model):
    assert str(infer(real_model(name))[output]) == expected


def test_a_merged_decoder_is_known_once_its_flag_is(real_model):
    model = real_model("marian-tiny/decoder_model_merged")
    assert "then_branch gives" in infer(model).reason("present.0.decoder.key")
    later, first = (
        infer(model, values={"use_cache_branch": [flag]})["present.0.decoder.key"] for flag in (True, False)
    )
    assert str(later) == "[batch_size, 8, decoder_sequence_length + past_decoder_sequence_length, 4]"
    assert str(first) == "[batch_size, 8, decoder_sequence_length, 4]"
