"""The levels of onnxruntime at which models are compared, and what may differ there."""

from __future__ import annotations

import pytest
from rewriting import model_of

from graphkit.verify.levels import rounds_activations


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
