"""The passes of the last step of lowering, together, on real exports at fixed shapes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sessions import run

from graphkit.dtypes import FLOATS
from graphkit.graph.declared_types import declared_type
from graphkit.model import Model, load
from graphkit.options import FoldingOptions
from graphkit.passes.fold_pipeline import fold
from graphkit.passes.npu.decompose_operators import LayerNormToPrimitives, NegToMul, PowToMul
from graphkit.passes.registry import NPU_PASSES, find_pass
from graphkit.rewrite.fixpoint import run_to_fixpoint
from graphkit.shapes import infer

DECODER = {"batch_size": 1, "sequence_length": 1, "past_sequence_length": 5}
IMAGE = {"batch_size": 1, "num_channels": 3, "height": 32, "width": 32}
MODELS = {
    "qwen2-tiny/model": DECODER,
    "t5-tiny/encoder_model": {"batch_size": 1, "encoder_sequence_length": 6},
    "bert-fill-mask/model": {"batch_size": 1, "sequence_length": 6},
    "patchtst/model": {"batch_size": 1, "sequence_length": 32},
    "vit-qdq/model": IMAGE,
}


def feeds(model: Model) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    found = {}
    for value in model.graph.inputs:
        declared, shape = declared_type(value), infer(model)[value].sizes() or ()
        assert declared is not None
        is_float = declared.dtype in FLOATS
        found[value.name] = rng.standard_normal(shape).astype(np.float32) if is_float else np.ones(shape, np.int64)
    return found


def worst(before: Model, after: Model) -> float:
    pairs = zip(run(before, feeds(before)), run(after, feeds(before)), strict=True)
    return max(float(np.abs(one - two).max(initial=0)) for one, two in pairs)


@pytest.mark.cases("t5-tiny/encoder_model")
@pytest.mark.parametrize(("name", "dims"), MODELS.items(), ids=MODELS)
def test_a_real_export_has_four_axes_and_the_same_results(
    model_file: Callable[[str], Path], name: str, dims: dict[str, int]
) -> None:
    frozen = fold(
        load(model_file(name), threshold=1 << 30), dims=dims, options=FoldingOptions(keep_fusions=False)
    ).model
    lowered = run_to_fixpoint(frozen, [kind() for kind in NPU_PASSES]).model
    shapes = infer(lowered)
    assert max(shapes[value].rank or 0 for node in lowered.graph.nodes for value in node.outputs if value) <= 4
    operators = {node.op_type for node in lowered.graph.nodes}
    assert not operators & {"Expand", "Tile", "Neg"}
    assert all(node.inputs[0].is_constant for node in lowered.graph.nodes if node.is_op("Gather") and node.inputs[0])
    assert worst(frozen, lowered) == 0
    spelled = run_to_fixpoint(lowered, [LayerNormToPrimitives(), NegToMul(), PowToMul()]).model
    assert not {node.op_type for node in spelled.graph.nodes} & {
        "LayerNormalization",
        "Neg",
        "RMSNormalization",
        "SimplifiedLayerNormalization",
    }
    assert worst(frozen, spelled) < 1e-5


def test_the_passes_are_those_of_the_list() -> None:
    assert len(set(NPU_PASSES)) == len(NPU_PASSES)
    for kind in (*NPU_PASSES, LayerNormToPrimitives, NegToMul, PowToMul):
        assert find_pass(kind.name()) is kind
