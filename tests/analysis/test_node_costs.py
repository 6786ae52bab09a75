"""Multiply-accumulates, other operations and bytes of single nodes, worked out by hand: elements, then 4 bytes each."""

from __future__ import annotations

import onnx
import onnx.defs
import onnx.parser
import pytest

from graphkit.analysis.model_costs import costs
from graphkit.analysis.node_costs import MEASURES, NodeCost, node_costs
from graphkit.model import Model
from graphkit.ops.costs import MACS, OPERATIONS, UNCOUNTED
from graphkit.shapes import infer

HEAD = '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>'
Row = tuple[str, str, int, int, int]  # inputs, node, multiply-accumulates, operations, bytes

X, XY = "(float[2, 3, 8] x)", "(float[2, 3, 8] x, float[8] b)"  # 48 elements
IMAGE = "(float[1, 4, 6, 8] x)"  # 192 elements
UNARIES = """
    Abs Cast Ceil Clip Cos Elu Erf Exp Floor Gelu HardSwish LeakyRelu Log Mish Neg Reciprocal Relu Round Sigmoid Sign
    Sin Softplus Sqrt Tanh
"""
BINARIES = ("Add", "Div", "Mul", "Pow", "Sub", "PRelu")
REDUCED = {
    "ReduceSum": 1,
    "ReduceMean": 1,
    "ReduceMax": 1,
    "ReduceMin": 1,
    "ReduceProd": 1,
    "ReduceL1": 2,
    "ReduceL2": 2,
}

ROWS: list[Row] = [
    # 48 elements read, 48 written
    *((X, f"y = {op} {'<to = 1> ' if op == 'Cast' else ''}(x)", 0, 48, 4 * (48 + 48)) for op in UNARIES.split()),
    # 48 and 8 elements read, 48 written
    *((XY, f"y = {op} (x, b)", 0, 48, 4 * (48 + 8 + 48)) for op in BINARIES),
    # 48 elements reduced to 1
    *((X, f"y = {op} <keepdims = 0> (x)", 0, each * 48, 4 * (48 + 1)) for op, each in REDUCED.items()),
    ("(float[4] a, float[4] b, float[4] c)", "y = Sum (a, b, c)", 0, 4 * 2, 4 * 4 * 4),
    ("(float[4] a, float[4] b, float[4] c)", "y = Mean (a, b, c)", 0, 4 * 3, 4 * 4 * 4),
    ("(bool[4] a, float[4] b, float[4] c)", "y = Where (a, b, c)", 0, 4, 4 + 4 * 12),
    ("(float[4] a, float[4] b)", "y = Equal (a, b)", 0, 4, 4 * 8 + 4),  # a byte for a bool
    ("(float[2, 8] x)", "y = ArgMax <axis = 1, keepdims = 0> (x)", 0, 16, 4 * 16 + 8 * 2),
    # the maximum, a difference, an Exp, the sum and a division, for each of 48 elements
    (X, "y = Softmax (x)", 0, 5 * 48, 4 * 96),
    (X, "y = LogSoftmax (x)", 0, 5 * 48, 4 * 96),
    # the mean, a difference, a square, their sum, a division and a scale; a bias
    (XY, "y = LayerNormalization (x, b)", 0, 6 * 48, 4 * (48 + 8 + 48)),
    ("(float[2, 3, 8] x, float[8] b, float[8] c)", "y = LayerNormalization (x, b, c)", 0, 7 * 48, 4 * (48 + 16 + 48)),
    (XY, "y = RMSNormalization (x, b)", 0, 4 * 48, 4 * (48 + 8 + 48)),
    ("(float[1, 4, 6, 8] x, float[4] s, float[4] b)", "y = InstanceNormalization (x, s, b)", 0, 7 * 192, 4 * (384 + 8)),
    (
        "(float[1, 4, 6, 8] x, float[4] s, float[4] b, float[4] m, float[4] v)",
        "y = BatchNormalization (x, s, b, m, v)",
        *(0, 2 * 192, 4 * (384 + 16)),
    ),
    # 3 x 4 windows of 2 x 2, of 4 channels
    (IMAGE, "y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)", 0, 4 * 48, 4 * (192 + 48)),
    (IMAGE, "y = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (x)", 0, 4 * 48, 4 * (192 + 48)),
    (IMAGE, "y = LpPool <kernel_shape = [2, 2], strides = [2, 2]> (x)", 0, 8 * 48, 4 * (192 + 48)),
    (IMAGE, "y = GlobalAveragePool (x)", 0, 192, 4 * (192 + 4)),
    (IMAGE, "y = GlobalMaxPool (x)", 0, 192, 4 * (192 + 4)),
    (IMAGE, "y = LRN <size = 3> (x)", 0, 6 * 192, 4 * 384),
    # moved, not computed: no operation
    (X, "y = Transpose (x)", 0, 0, 4 * 96),
    ("(float[2, 8] x, float[3, 8] z)", "y = Concat <axis = 0> (x, z)", 0, 0, 4 * 2 * 40),
    ("(float[100, 8] x, int64[3] i)", "y = Gather (x, i)", 0, 0, 4 * 24 + 8 * 3 + 4 * 24),  # reads 3 rows of 100
    ("(float[4, 8] x)", "y, z = Split <axis = 1, num_outputs = 2> (x)", 0, 0, 4 * 64),
    (IMAGE, "y = DepthToSpace <blocksize = 2> (x)", 0, 0, 4 * 384),
    # given another shape, not even moved
    ("(float[2, 8] x)", "y = Flatten (x)", 0, 0, 0),
    ("(float[2, 8] x)", "y = Identity (x)", 0, 0, 0),
    ("(float[2, 1, 8] x)", "y = Squeeze (x)", 0, 0, 0),
    # the dims of the input alone: 3 numbers written
    (X, "y = Shape (x)", 0, 0, 8 * 3),
    # products
    ("(float[2, 3, 8] x, float[8, 4] w)", "y = MatMul (x, w)", 6 * 8 * 4, 0, 4 * (48 + 32 + 24)),
    ("(float[3, 8] x, float[8, 4] w, float[4] c)", "y = Gemm (x, w, c)", 3 * 8 * 4, 12, 4 * (24 + 32 + 4 + 12)),
    (
        "(float[8, 3] x, float[4, 8] w, float[4] c)",
        "y = Gemm <transA = 1, transB = 1, alpha = 2.0, beta = 3.0> (x, w, c)",
        *(3 * 8 * 4, 3 * 12, 4 * (24 + 32 + 4 + 12)),
    ),
    ("(uint8[3, 8] x, uint8[8, 4] w)", "y = MatMulInteger (x, w)", 96, 0, 24 + 32 + 4 * 12),
    (
        "(uint8[3, 8] x, float s, uint8 z, uint8[8, 4] w, float t, uint8 u, float v, uint8 k)",
        "y = QLinearMatMul (x, s, z, w, t, u, v, k)",
        *(96, 2 * 12, 24 + 5 + 32 + 5 + 5 + 12),
    ),
    (
        "(float[1, 4, 6, 8] x, float[5, 4, 3, 3] w, float[5] b)",
        "y = Conv <pads = [1, 1, 1, 1]> (x, w, b)",
        *(5 * 48 * 4 * 9, 5 * 48, 4 * (192 + 180 + 5 + 240)),
    ),
    ("(float[1, 4, 6, 8] x, float[4, 1, 3, 3] w)", "y = Conv <group = 4> (x, w)", 96 * 9, 0, 4 * (192 + 36 + 96)),
    (
        "(float[1, 4, 6, 8] x, float[4, 5, 2, 2] w)",
        "y = ConvTranspose <strides = [2, 2]> (x, w)",
        *(192 * 5 * 4, 0, 4 * (192 + 80 + 5 * 12 * 16)),
    ),
    (
        "(uint8[1, 4, 6, 8] x, uint8[5, 4, 1, 1] w)",
        "y = ConvInteger (x, w)",
        *(240 * 4, 0, 192 + 20 + 4 * 240),
    ),
    (
        "(float[2, 4, 6] x, float[2, 6, 8] w)",
        'y = Einsum <equation = "bij,bjk->bik"> (x, w)',
        *(2 * 4 * 6 * 8, 0, 4 * (48 + 96 + 64)),
    ),
    (
        "(float[2, 4, 6] x, float[3, 1, 6, 8] w)",  # whose batches broadcast
        'y = Einsum <equation = "...ij,...jk->...ik"> (x, w)',
        *(3 * 2 * 4 * 6 * 8, 0, 4 * (48 + 144 + 192)),
    ),
    # queries times keys, weights times values; 2 * 3 * 5 scores, each scaled and in a Softmax
    (
        "(float[1, 2, 3, 8] q, float[1, 2, 5, 8] k, float[1, 2, 5, 4] v)",
        "y = Attention (q, k, v)",
        *(2 * 3 * 5 * (8 + 4), 6 * 30, 4 * (48 + 80 + 40 + 24)),
    ),
    (
        "(float[1, 3, 16] q, float[1, 5, 16] k, float[1, 5, 16] v)",
        "y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v)",
        *(2 * 3 * 5 * 16, 6 * 2 * 15, 4 * (48 + 80 + 80 + 48)),
    ),
    # 7 steps of 2 sequences; 4 gates of 5, from 3 inputs and 5 of the state; 13 operations for each of 5 with biases
    (
        "(float[7, 2, 3] x, float[1, 20, 3] w, float[1, 20, 5] r, float[1, 40] b)",
        "y = LSTM <hidden_size = 5> (x, w, r, b)",
        *(14 * 20 * 8, 14 * 5 * 13, 4 * (42 + 60 + 100 + 40 + 70)),
    ),
    (
        "(float[7, 2, 3] x, float[2, 15, 3] w, float[2, 15, 5] r)",
        'y = GRU <hidden_size = 5, direction = "bidirectional"> (x, w, r)',
        *(14 * 2 * 15 * 8, 14 * 2 * 5 * 8, 4 * (42 + 90 + 150 + 140)),
    ),
    (
        "(float[7, 2, 3] x, float[1, 5, 3] w, float[1, 5, 5] r)",
        "y = RNN <hidden_size = 5> (x, w, r)",
        *(14 * 5 * 8, 14 * 5, 4 * (42 + 15 + 25 + 70)),
    ),
    # quantised: a scaling, and an addition of the zero point; 4 bits are half a byte
    ("(float[2, 8] x, float s)", "y = QuantizeLinear (x, s)", 0, 16, 4 * 16 + 4 + 16),
    ("(uint8[2, 8] x, float s, uint8 z)", "y = DequantizeLinear (x, s, z)", 0, 32, 16 + 4 + 1 + 4 * 16),
    ("(int4[2, 8] x, float s)", "y = DequantizeLinear (x, s)", 0, 16, 8 + 4 + 4 * 16),
    ("(float[2, 8] x)", "y, s, z = DynamicQuantizeLinear (x)", 0, 4 * 16, 4 * 16 + 16 + 4 + 1),
    # 4 rows of 32 weights in one block of 16 bytes each
    (
        "(float[3, 32] x, uint8[4, 1, 16] w, float[4] s)",
        "y = com.microsoft.MatMulNBits <K = 32, N = 4, bits = 4, block_size = 32> (x, w, s)",
        *(3 * 32 * 4, 2 * 128, 4 * 96 + 64 + 4 * 4 + 4 * 12),
    ),
    (
        "(float[2, 3, 8] x, float[2, 3, 8] k, float[8] g, float[8] b)",
        "y = com.microsoft.SkipLayerNormalization (x, k, g, b)",
        *(0, 8 * 48, 4 * (96 + 16 + 48)),
    ),
    # 6 tokens, each to 2 experts of 8 x 16 and 16 x 8 weights
    (
        "(float[6, 8] x, float[6, 4] p, float[4, 8, 16] f, float[4, 16, 8] g)",
        "y = com.microsoft.MoE <k = 2> (x, p, f, , g)",
        *(6 * 2 * 256, -1, 4 * (48 + 24 + 512 + 512 + 48)),
    ),
    ("(float[2, 8] x)", "y = com.microsoft.FastGelu (x)", 0, 16, 4 * 32),
    ("(float[1, 2, 5, 6] x, float[1, 3, 4, 2] g)", "y = GridSample (x, g)", 0, 24 * 8, 4 * (60 + 24 + 24)),
    ("(float[4, 8] x, int64[2, 1] i, float[2, 8] u)", "y = ScatterND (x, i, u)", 0, 0, 4 * (32 + 16 + 32) + 16),
    (
        "(float[4, 8] x, int64[2, 1] i, float[2, 8] u)",
        'y = ScatterND <reduction = "add"> (x, i, u)',
        *(0, 16, 4 * (32 + 16 + 32) + 16),
    ),
    ("(float[4, 8] x)", "y = Trilu (x)", 0, 0, 4 * 64),
]


def cost_of(io: str, body: str) -> NodeCost:
    proto = onnx.parser.parse_model(f"{HEAD} g {io} => (float y) {{ {body} }}")
    shapes = infer(Model.from_proto(proto))
    return node_costs(shapes, {}).nodes[-1]


@pytest.mark.parametrize(("io", "body", "macs", "operations", "moved"), ROWS)
def test_a_node_costs_what_a_hand_counts(io: str, body: str, macs: int, operations: int, moved: int) -> None:
    cost = cost_of(io, body)
    found = [cost.costs[measure].at({}) if measure in cost.costs else -1 for measure in MEASURES]  # -1: unknown
    assert found == [macs, operations, moved], cost.unknown


def test_more_than_sixty_operators_are_worked_out_by_hand() -> None:
    assert len({body.partition("= ")[2].split()[0] for _, body, _, _, _ in ROWS}) >= 60


def test_a_resize_counts_the_neighbours_along_the_axes_that_it_changes() -> None:
    text = """g (float[1, 2, 4, 4] x) => (float[1, 2, 8, 4] y) <float[4] s = {1, 1, 2, 1}>
        { y = Resize <mode = "linear"> (x, , s) }"""
    cost = node_costs(infer(Model.from_proto(onnx.parser.parse_model(f"{HEAD} {text}"))), {}).nodes[-1]
    assert cost.costs["operations"].at({}) == 64 * 2 * 2  # two neighbours, a product and a sum for each


def test_every_operator_of_onnx_is_counted_or_says_why_not() -> None:
    known = OPERATIONS.keys() | UNCOUNTED.keys() | {"If", "Loop", "Scan"}
    assert {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain} <= known
    assert not OPERATIONS.keys() & UNCOUNTED.keys()
    assert MACS.keys() <= OPERATIONS.keys() | UNCOUNTED.keys()


@pytest.mark.parametrize(
    ("io", "body", "measure", "reason"),
    [
        ("(float[2] x)", "y = com.odd.Strange (x)", "macs", "there is no rule for com.odd.Strange"),
        ("(float[2] x)", "y = NonZero (x)", "operations", "its work depends on its data"),
        ("(x, float[2] z)", "y = MatMul (x, z)", "macs", "'x' is declared as no tensor"),
        ("(string[2] x)", "y = Identity (x) z = Concat <axis = 0> (x, x)", "bytes_moved", "has no fixed size"),
        ("(float[1, 3, 2, 3, 8] q)", "y = com.microsoft.MultiHeadAttention <num_heads = 2> (q)", "macs", "has rank 5"),
        ("(float[2, 3] x)", 'y = Einsum <equation = "i->i"> (x)', "macs", "does not name every index"),
    ],
)
def test_what_is_not_known_says_why(io: str, body: str, measure: str, reason: str) -> None:
    unknown = cost_of(io, body).unknown
    assert reason in str(unknown)
    assert measure in unknown


def test_an_if_without_bodies_is_a_node_that_is_not_counted() -> None:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("If", ["c"], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])],
    )
    found = costs(Model.from_proto(onnx.helper.make_model(graph)))
    assert found.uncounted == "there is no rule for If"
