from __future__ import annotations

import onnx.parser
import pytest

from graphkit.analysis.node_costs import count_macs
from graphkit.model import Model
from graphkit.shapes import infer


def count(io: str, body: str) -> str:
    head = '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>'
    model = Model.from_proto(onnx.parser.parse_model(f"{head} g {io} => (float y) {{ {body} }}"))
    return str(count_macs(model.graph.nodes[-1], infer(model)))


@pytest.mark.parametrize(
    ("io", "body", "expected"),
    [
        ("(float[b, n, 8] x, float[8, 4] w)", "y = MatMul (x, w)", 2 * 16),  # times b * n
        ("(float[2, 3, 8] x, float[2, 8, 4] w)", "y = MatMul (x, w)", 2 * 3 * 4 * 8),
        ("(float[8] x, float[8, 4] w)", "y = MatMul (x, w)", 4 * 8),
        ("(float[3, 8] x, float[8, 4] w)", "y = Gemm (x, w)", 3 * 4 * 8),
        ("(float[8, 3] x, float[4, 8] w)", "y = Gemm <transA = 1, transB = 1> (x, w)", 3 * 4 * 8),
        ("(float[1, 4, 6, 8] x, float[5, 4, 3, 3] w)", "y = Conv <pads = [1, 1, 1, 1]> (x, w)", 5 * 6 * 8 * 4 * 9),
        ("(float[1, 4, 6, 8] x, float[4, 1, 3, 3] w)", "y = Conv <group = 4> (x, w)", 4 * 4 * 6 * 9),
        (
            "(float[1, 4, 6, 8] x, float[4, 5, 2, 2] w)",
            "y = ConvTranspose <strides = [2, 2]> (x, w)",
            4 * 6 * 8 * 5 * 4,
        ),
        ("(float[2, 4, 6] x, float[2, 6, 8] w)", 'y = Einsum <equation = "bij,bjk->bik"> (x, w)', 2 * 4 * 6 * 8),
        ("(float[4, 6] x)", 'y = Einsum <equation = "ij->ji"> (x)', 24),
        ("(float[1, 2, 3, 8] q, float[1, 2, 5, 8] k, float[1, 2, 5, 4] v)", "y = Attention (q, k, v)", 2 * 3 * 5 * 12),
        (
            "(float[1, 3, 16] q, float[1, 3, 16] k, float[1, 3, 16] v, float[1, 2, 5, 8] pk, float[1, 2, 5, 8] pv)",
            "y, a, b = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, v, , pk, pv)",
            2 * 3 * 16 * 8,
        ),
        (
            "(float[2, 3, 8] x, float[8, 36] w, float[36] b)",
            "y = com.microsoft.Attention <num_heads = 2, qkv_hidden_sizes = [8, 8, 20]> (x, w, b)",
            2 * 3 * 8 * 36 + 2 * 3 * 3 * 28,
        ),
        (
            "(float[2, 1, 8] x, float[8, 24] w, float[24] b, float[2, 2, 2, 5, 4] past)",
            "y, present = com.microsoft.Attention <num_heads = 2> (x, w, b, , past)",
            2 * 1 * 8 * 24 + 2 * 1 * 6 * 16,
        ),
        ("(float[2, 3, 8] x, w)", "y = com.microsoft.Attention <num_heads = 2> (x, w)", None),
        ("(float[3, 8] x, float[3, 8] w)", "y = Add (x, w)", 0),
        ("(float[0, 8] x, float[8, 4] w)", "y = MatMul (x, w)", 0),
        ("(float[2, 3] x, float[2, 4] w)", 'y = Einsum <equation = "...i,...j->...ij"> (x, w)', 24),
        ("(float[2, 3] x)", "z = com.microsoft.Odd (x) y = MatMul (z, x)", None),
        (
            "(float[1, 3, 48] q)",
            "y = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 2> (q)",
            288,
        ),  # 2 * 3 * 3 * 16
        (
            "(float[1, 3, 32] q, float[1, 1, 5, 8] pk, float[1, 1, 5, 8] pv, int32[1, 1] n, int32 t)",
            "y, a, b = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1> (q, , , pk, pv, n, t)",
            2 * 3 * 8 * 16,
        ),
    ],
)
def test_multiply_accumulates(io: str, body: str, expected: int | None) -> None:
    found = count(io, body)
    assert found == ("32*b*n" if "[b, n" in io else str(expected))


def test_what_outgrows_an_expression_is_not_known() -> None:
    dims = ", ".join(f"d{index}" for index in range(17))
    assert count(f"(float[{dims}, 8] x, float[8, 4] w)", "y = MatMul (x, w)") == "None"
