from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from rewriting import feeds_of, model_of, reasons
from sessions import run

from graphkit.model import Model, load
from graphkit.options import FoldingOptions
from graphkit.passes.fold_pipeline import fold
from graphkit.passes.npu.reduce_rank import ReduceInterfaceRank, interface_axes
from graphkit.passes.registry import NPU_PASSES
from graphkit.rewrite.fixpoint import run_to_fixpoint
from graphkit.shapes import infer

PASS = ReduceInterfaceRank()


def highest(model: Model) -> int:
    shapes = infer(model)
    nodes = model.graph.nodes
    return max(shapes[value].rank or 0 for node in nodes for value in (*node.inputs, *node.outputs) if value)


def assert_same_bytes(before: Model, after: Model, feeds: Mapping[str, np.ndarray]) -> None:
    """Run both on buffers of the same bytes; what comes out has the same bytes."""
    shapes = infer(after)
    low = {value.name: feeds[value.name].reshape(shapes[value].sizes() or ()) for value in after.graph.inputs}
    for one, two in zip(run(before, feeds), run(after, low), strict=True):
        np.testing.assert_array_equal(one.ravel(), two.ravel())


def test_a_stacked_cache_has_four_axes() -> None:
    text = "g (float[2, 3, 2, 4, 8] past, float[3, 2, 1, 8] new) => (float[2, 3, 2, 5, 8] present)"
    nodes = "a = Unsqueeze (new, zero) b = Concat <axis = 0> (a, a) present = Concat <axis = 3> (past, b)"
    model = model_of(f"{text} <int64[1] zero = {{0}}> {{ {nodes} }}")
    outcome = PASS.run(model)
    shapes = infer(outcome.model)
    assert [str(shapes[value]) for value in outcome.model.graph.inputs] == ["[6, 2, 4, 8]", "[3, 2, 1, 8]"]
    assert [str(shapes[value]) for value in outcome.model.graph.outputs] == ["[6, 2, 5, 8]"]
    lowered = run_to_fixpoint(outcome.model, [kind() for kind in NPU_PASSES]).model
    assert highest(lowered) == 4
    assert_same_bytes(model, lowered, feeds_of(model, {}))


def test_the_axis_of_slots_stays_an_axis() -> None:
    axes = interface_axes((6, 2, 1, 4, 16, 8), 4)
    assert axes.dims((6, 2, 1, 4, 16, 8), 6) == (12, 4, 16, 8)
    assert axes.of(4) == 2


@pytest.mark.cases("past_0-2bhsd")
@pytest.mark.parametrize("name", ["stacked", "two-stacked", "past_0-2bhsd"])
def test_real_stacked_caches(model_file: Callable[[str], Path], name: str) -> None:
    model = load(model_file(f"cache-styles/{name}"), threshold=1 << 30)
    frozen = fold(model, dims={"batch": 1, "seq": 2, "past_len": 5}, options=FoldingOptions(keep_fusions=False)).model
    lowered = run_to_fixpoint(PASS.run(frozen).model, [kind() for kind in NPU_PASSES]).model
    assert highest(frozen) > 4
    assert highest(lowered) == 4
    feeds = {name: array if array.dtype != np.int64 else np.abs(array) for name, array in feeds_of(frozen, {}).items()}
    assert_same_bytes(frozen, lowered, feeds)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (float[N, 2, 3, 4, 5] x) => (float[N, 2, 3, 4, 5] y) { y = Relu (x) }", "are not all numbers"),
        ("g (float[0, 2, 3, 4, 5] x) => (float[0, 2, 3, 4, 5] y) { y = Relu (x) }", "it has no elements"),
    ],
)
def test_what_cannot_be_is_declined(text: str, reason: str) -> None:
    model = model_of(text)
    outcome = PASS.run(model)
    assert outcome.model is model
    assert all(reason in each for each in reasons(outcome))
    assert len(outcome.declined) == 2


def test_an_input_that_is_an_output_stays() -> None:
    model = model_of("g (float[2, 2, 2, 2, 2] x) => (float[2, 2, 2, 2, 2] x) { y = Relu (x) }")
    assert PASS.run(model).model is model


def test_only_what_is_named_changes() -> None:
    model = model_of(
        "g (float[2, 2, 1, 4, 8] a, float[2, 2, 1, 4, 8] b) => (float[2, 2, 1, 4, 8] c) { c = Add (a, b) }"
    )
    outcome = ReduceInterfaceRank(4, ("b",)).run(model)
    dims = [[dim.dim_value for dim in info.type.tensor_type.shape.dim] for info in outcome.model.proto.graph.input]
    assert dims == [[2, 2, 1, 4, 8], [2, 2, 4, 8]]
