"""Copies of a quantised model round ties to the other side, and everything else as the model does."""

from __future__ import annotations

import numpy as np
import pytest
from rewriting import model_of
from sessions import run

from graphkit.model import Model
from graphkit.verify.quantized_rounding import moved_copies

SCALE = np.float32(0.25)


def quantised(operator: str = "QuantizeLinear (x, s, z)", **constants: object) -> Model:
    text = f"g (float[N] x) => (float[N] y) {{ q = {operator} y = DequantizeLinear (q, s, z) }}"
    return model_of(text, s=SCALE, z=np.int8(0), **constants)


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (0.5, (1, 0)),  # half way: up, and down
        (0.49, (0, 0)),
        (-1.5, (-1, -2)),
        (3.0, (3, 3)),
    ],
)
def test_data_half_way_between_two_steps_goes_to_either(x: float, expected: tuple[int, int]) -> None:
    copies = moved_copies(quantised())
    found = [run(copy, {"x": np.array([x], np.float32) * SCALE})[0][0] / SCALE for copy in copies]
    assert tuple(found) == expected


def test_a_model_that_rounds_by_scales_of_its_own_has_no_copies() -> None:
    model = model_of("g (float[N] x) => (uint8[N] y) { y, s, z = DynamicQuantizeLinear (x) }")
    assert moved_copies(model) == ()
    assert moved_copies(model_of("g (float[N] x) => (float[N] y) { y = Neg (x) }")) == ()
