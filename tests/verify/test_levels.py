"""The levels of onnxruntime at which models are compared, and what may differ there."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from rewriting import model_of

from graphkit.verify.comparator import rounds_activations
from graphkit.verify.feeder import Run
from graphkit.verify.proof_runs import LevelRuns, prove_level


@pytest.mark.parametrize(
    ("node", "rounds"),
    [
        ("q, s, z = DynamicQuantizeLinear (x)", True),
        ("y = com.microsoft.DynamicQuantizeMatMul (x, w, s)", True),
        ("y = QuantizeLinear (x, s)", True),
        ("y = DequantizeLinear (w, s)", False),
        ("y = com.microsoft.MatMulNBits <K = 16, N = 1, bits = 4, block_size = 16> (x, w, s)", False),
        (
            "y = com.microsoft.MatMulNBits <K = 16, N = 1, bits = 4, block_size = 16, accuracy_level = 4> (x, w, s)",
            True,
        ),
    ],
)
def test_what_rounds_activations(node: str, *, rounds: bool) -> None:
    graph = f"g (float[1, 16] x, uint8[1, 1, 8] w, float s) => (float[1, 1] y) {{ {node} }}"
    assert rounds_activations(model_of(graph)) is rounds


class Rounding:
    """A session of two outputs of magnitude 10, each of which is off by so much."""

    outputs = ("y", "z")

    def __init__(self, *by: float) -> None:
        self.by = by

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: (feed["x"] + by).astype(np.float32) for name, by in zip(self.outputs, self.by, strict=True)}


@pytest.mark.parametrize(
    ("tolerance", "result", "passes"),
    [
        (0.02, 3.9, True),  # four times what another output of the original is off by
        (0.02, 4.1, False),
        (1e-4, 3.9, False),  # of floats, twice what this output is off by
    ],
)
def test_roundings_that_fall_on_the_other_side_are_counted_over_all_outputs(
    tolerance: float, result: float, *, passes: bool
) -> None:
    x = np.array([1, 10], np.float32)
    runs = [Run({"n": 2}, {}, 0, {"y": x, "z": x})]

    def runs_of(*by: float) -> LevelRuns:
        return LevelRuns(lambda: Rounding(*by), lambda _: {"x": x})  # type: ignore[arg-type, return-value]

    found = prove_level(tolerance, runs, ["y", "z"], runs_of(result, 0), runs_of(0, 1))
    assert (not found.failure) is passes


@pytest.mark.parametrize(("result", "passes"), [(3.9, True), (4.1, False)])
def test_a_copy_whose_data_is_moved_counts_as_the_original_does(result: float, *, passes: bool) -> None:
    x = np.array([1, 10], np.float32)
    runs = [Run({"n": 2}, {}, 0, {"y": x, "z": x})]

    def runs_of(*by: float) -> LevelRuns:
        return LevelRuns(lambda: Rounding(*by), lambda _: {"x": x})  # type: ignore[arg-type, return-value]

    models = runs_of(result, 0), runs_of(0, 0)
    assert prove_level(0.02, runs, ["y", "z"], *models).failure
    assert (not prove_level(0.02, runs, ["y", "z"], *models, moved=[runs_of(1, 0), runs_of(0, 0.5)]).failure) is passes
