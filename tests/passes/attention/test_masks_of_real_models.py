"""Real exports at fixed shapes: nothing refused is left, outputs are within 1e-6, and padding moves them by 1e-4."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from graphkit.graph.declared_types import declared_type
from graphkit.model import Model, load
from graphkit.options import FoldingOptions
from graphkit.passes.attention.mask_arithmetic import TrilToConstant, WhereToArithmetic
from graphkit.passes.attention.masks import DropNanGuard, MaskedFillToAdd
from graphkit.passes.fold_pipeline import fold
from graphkit.rewrite.base import run_passes
from graphkit.shapes import infer

SIZES = {"batch_size": 2, "sequence_length": 5, "past_sequence_length": 4, "encoder_sequence_length": 6}
SIZES |= {"decoder_sequence_length": 3, "past_decoder_sequence_length": 4, "encoder_sequence_length_out": 6}
REFUSED = ("Where", "Trilu", "IsNaN", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Range")
MODELS = ("bert-fill-mask/model", "merged-decoder/decoder_model", "merged-decoder/decoder_with_past_model")


def frozen(model: Model) -> Model:
    symbols = {name for value in model.graph.inputs for dim in infer(model)[value].dims or () for name in dim.symbols}
    return fold(model, dims={name: SIZES[name] for name in symbols}, options=FoldingOptions(keep_fusions=False)).model


def feeds_of(model: Model) -> dict[str, np.ndarray]:
    """Return tokens of which the second one is padding."""
    rng, feeds = np.random.default_rng(0), {}
    for value in model.graph.inputs:
        declared = declared_type(value)
        assert declared is not None
        assert declared.dims is not None
        shape = [int(dim or 0) for dim in declared.dims]
        array = rng.normal(size=shape) if declared.is_float else rng.integers(3, 9, shape)
        if "mask" in value.name:
            array = np.ones(shape)
            array[:, 1] = 0
        elif "type" in value.name:
            array = np.zeros(shape)
        feeds[value.name] = array.astype(helper.tensor_dtype_to_np_dtype(declared.dtype))
    return feeds


def run(content: bytes | str, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return session.run(None, {info.name: feeds[info.name] for info in session.get_inputs()})


@pytest.mark.cases(2)
@pytest.mark.parametrize("floor", [-1e9, -255.0])
@pytest.mark.parametrize("name", MODELS)
def test_masks_are_arithmetic(model_file: Callable[[str], Path], name: str, floor: float) -> None:
    path = model_file(name)
    before = frozen(load(path))
    outcome = run_passes(before, [MaskedFillToAdd(floor), DropNanGuard(), TrilToConstant(), WhereToArithmetic()])
    assert outcome.changes
    assert any(node.is_op(*REFUSED) for node in before.graph.nodes)
    assert not any(node.is_op(*REFUSED) for node in outcome.model.graph.nodes)
    feeds = feeds_of(before)
    expected = run(str(path), feeds)
    actual = run(outcome.model.restore().SerializeToString(), feeds)
    for one, two in zip(expected, actual, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-6, rtol=0)
    unmasked = {name: np.ones_like(array) if "mask" in name else array for name, array in feeds.items()}
    assert any(np.abs(one - two).max() > 1e-4 for one, two in zip(expected, run(str(path), unmasked), strict=True))
