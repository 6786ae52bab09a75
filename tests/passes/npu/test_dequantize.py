"""Quantised products that become products of floats, as onnxruntime computes both.

The data of these tests is whole numbers from 0 to 255, which DynamicQuantizeLinear keeps: results are equal. Weights
of int8 have 7 bits, for with 8 the sums of pairs overflow in onnxruntime on processors without instructions for it.
"""

from __future__ import annotations

import numpy as np
import pytest
from rewriting import lines, model_of, reasons
from sessions import run

from graphkit.model import Model
from graphkit.passes.npu.change_dtypes import Dequantize, DequantizeTable
from graphkit.passes.npu.host_inputs import ExtractEmbedding
from graphkit.rewrite.fixpoint import run_to_fixpoint

RNG = np.random.default_rng(5)
DATA = "float[N, L, 4] x"
QUANTISE = "q, s, z = DynamicQuantizeLinear (x)"
CHAIN = "f = Cast <to = 1> (sum) scales = Mul (s, ws) y = Mul (f, scales)"
SCALES = np.array([0.5, 0.25, 2], np.float32)
COLUMNS = np.array([3, -1, 0], np.int8)
WEIGHT = RNG.integers(-64, 64, (4, 3), np.int8)
KERNEL = RNG.integers(0, 256, (3, 2, 3, 3), np.uint8)


def exact_data(*shape: int) -> np.ndarray:
    """Return whole numbers that DynamicQuantizeLinear keeps: its scale is 1 for a range from 0 to 255."""
    data = RNG.integers(0, 256, shape).astype(np.float32)
    data.reshape(-1)[:2] = 0, 255
    return data


def matmul(
    chain: str = CHAIN, data: str = DATA, weight: object = WEIGHT, ws: object = SCALES, wz: object = COLUMNS
) -> Model:
    nodes = f"{QUANTISE} sum = MatMulInteger (q, w, z, wz) {chain}"
    return model_of(f"g ({data}) => (y) {{ {nodes} }}", w=weight, ws=ws, wz=wz)


def conv(**weights: object) -> Model:
    nodes = f"{QUANTISE} sum = ConvInteger <pads = [1, 1, 1, 1], strides = [2, 1]> (q, w, z, wz) {CHAIN}"
    return model_of(f"g (float[N, 2, H, W] x) => (y) {{ {nodes} }}", **weights)


def blocks(bits: int, k: int, n: int, size: int, **inputs: object) -> Model:
    """Return a MatMulNBits with random codes."""
    count = -(-k // size)
    made = {
        "w": RNG.integers(0, 256, (n, count, size * bits // 8), np.uint8),
        "ws": RNG.uniform(0.5, 1, n * count).astype(np.float32),
        **inputs,
    }
    names = ", ".join(["x", "w", "ws", *(name for name in inputs if name not in ("w", "ws"))])
    node = f"y = com.microsoft.MatMulNBits <K = {k}, N = {n}, bits = {bits}, block_size = {size}> ({names})"
    return model_of(f"g (float[N, L, {k}] x) => (float[N, L, {n}] y) {{ {node} }}", **made)


def microsoft(op_type: str, inputs: str, nodes: str = "", **weights: object) -> Model:
    node = f"{nodes} y = com.microsoft.{op_type} ({inputs})"
    return model_of(f"g (float[N, L, 4] x) => (float[N, L, 3] y) {{ {node} }}", **weights)


PRODUCTS = {
    "a scale for each column": (matmul(), (2, 3, 4)),
    "one scale": (matmul(ws=np.float32(0.5), wz=np.int8(-7)), (2, 3, 4)),
    "no zero point": (
        model_of(
            f"g ({DATA}) => (y) {{ {QUANTISE} sum = MatMulInteger (q, w, z) {CHAIN} }}", w=WEIGHT, ws=np.float32([2])
        ),
        (2, 3, 4),
    ),
    "unsigned": (matmul(weight=KERNEL[:2, 0, :2].reshape(4, 3), wz=np.array([1, 128, 255], np.uint8)), (1, 5, 4)),
    "several matrices": (matmul(weight=RNG.integers(-9, 9, (2, 4, 3), np.int8), wz=np.int8(2)), (2, 3, 4)),
    "scales one by one": (matmul("f = Cast <to = 1> (sum) a = Mul (f, s) y = Mul (ws, a)"), (2, 3, 4)),
    "the scale of the weight first": (matmul("f = Cast <to = 1> (sum) a = Mul (ws, f) y = Mul (a, s)"), (2, 3, 4)),
    "nothing in the batch": (matmul(), (0, 3, 4)),
    "a convolution": (conv(w=KERNEL, ws=np.float32(0.5), wz=np.uint8(9)), (2, 2, 5, 4)),
    "a convolution, a scale for each channel": (conv(w=KERNEL, ws=SCALES[:, None, None], wz=np.uint8(0)), (1, 2, 3, 3)),
    "DynamicQuantizeMatMul": (
        microsoft("DynamicQuantizeMatMul", "x, w, ws, wz", w=WEIGHT, ws=SCALES, wz=COLUMNS), (2, 3, 4)
    ),
    "DynamicQuantizeMatMul with a bias": (
        microsoft("DynamicQuantizeMatMul", "x, w, ws, , b", w=WEIGHT, ws=np.float32([0.5]), b=SCALES),
        (2, 3, 4),
    ),
    "MatMulIntegerToFloat": (
        microsoft("MatMulIntegerToFloat", "q, w, s, ws, z, wz, b", QUANTISE, w=WEIGHT, ws=SCALES, wz=COLUMNS, b=SCALES),
        (2, 3, 4),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("model", "shape"), PRODUCTS.values(), ids=PRODUCTS)
def test_products_of_integers_are_products_of_floats(model: Model, shape: tuple[int, ...]) -> None:
    outcome = Dequantize().run(model)
    assert reasons(outcome) == []
    assert {node.operator for node in outcome.model.graph.nodes} <= {"MatMul", "Conv", "Add", "Mul"}
    feed = {"x": exact_data(*shape) if all(shape) else np.zeros(shape, np.float32)}
    if not all(shape):
        assert run(outcome.model, feed)[0].shape == run(model, feed)[0].shape
        return
    np.testing.assert_allclose(run(outcome.model, feed)[0], run(model, feed)[0], rtol=2e-6, atol=1e-2)


BLOCKS = {
    "4 bits": blocks(4, 32, 3, 16),
    "the last block is short": blocks(4, 40, 3, 16),
    "zero points": blocks(4, 48, 3, 16, zp=RNG.integers(0, 256, (3, 2), np.uint8)),
    "zero points as floats": blocks(4, 32, 3, 16, zp=RNG.uniform(0, 15, (3, 2)).astype(np.float32)),
    "8 bits": blocks(8, 32, 3, 16),
    "2 bits": blocks(2, 32, 3, 16),
}


@pytest.mark.parametrize("model", BLOCKS.values(), ids=BLOCKS)
def test_blocks_are_products_of_floats(model: Model) -> None:
    outcome = Dequantize().run(model)
    assert [node.op_type for node in outcome.model.graph.nodes] == ["MatMul"]
    feed = {"x": RNG.normal(0, 1, (2, 3, model.graph.nodes[0].attr("K", 0))).astype(np.float32)}
    np.testing.assert_allclose(run(outcome.model, feed)[0], run(model, feed)[0], rtol=1e-5, atol=1e-4)


def test_rounding_explains_what_changes() -> None:
    """Each element of the data moves by half a step at most, and one more half where the zero point is rounded."""
    model = matmul()
    after = Dequantize().run(model).model
    weight = (WEIGHT.astype(np.float64) - COLUMNS) * SCALES
    x = RNG.normal(0, 3, (4, 5, 4)).astype(np.float32)
    step = (max(x.max(), 0) - min(x.min(), 0)) / 255
    found, expected = run(after, {"x": x})[0], run(model, {"x": x})[0]
    np.testing.assert_allclose(found, x @ weight, rtol=1e-4, atol=1e-3)
    assert 0 < np.abs(found - expected).max() <= (step * np.abs(weight).sum(axis=0)).max()


def test_products_in_bodies_share_their_weight() -> None:
    body = f"{QUANTISE} sum = MatMulInteger (q, w, z, wz) {CHAIN}"
    model = model_of(
        f"""g (float[2, 4] x, bool c) => (float[2, 3] out) {{
            out = If (c) <then_branch = yes () => (float[2, 3] y) {{ {body} }},
                else_branch = no () => (float[2, 3] r) {{ {body} r = Neg (y) }}>
        }}""",
        w=WEIGHT, ws=SCALES, wz=COLUMNS,
    )  # fmt: skip
    after = Dequantize().run(model).model
    assert [tensor.name for tensor in after.proto.graph.initializer] == ["w_float"]
    x = exact_data(2, 4)
    for condition in (True, False):
        feed = {"x": x, "c": np.array(condition)}
        np.testing.assert_allclose(run(after, feed)[0], run(model, feed)[0], rtol=2e-6, atol=1e-2)


def integers(head: str, nodes: str, **weights: object) -> Model:
    return model_of(f"g ({head}) => (y) {{ {nodes} }}", **{"ws": SCALES, **weights})


NIBBLES = "y = com.microsoft.MatMulNBits <K = 16, N = 1, bits = 4, block_size = 16> (x, w, ws, , idx)"
ATTENTION = "y = com.microsoft.QAttention <num_heads = 1> (q, w, b, s, s)"
LSTM = "y = com.microsoft.DynamicQuantizeLSTM <hidden_size = 1> (x, w, r, , , , , , s, z, s, z)"
HALF = "f = Cast <to = 10> (sum) h = Cast <to = 10> (s) y = Mul (f, h)"
DECLINED = {
    "MatMulInteger#1: it is not cast to floats, and by that alone": matmul("y = Identity (sum)"),
    "MatMulInteger#1: it is not multiplied with the scale of its data": matmul("y = Cast <to = 1> (sum)"),
    "MatMulInteger#1: it is multiplied with something else than scales": matmul(HALF),
    "MatMulInteger#1: its scales are not one for each channel of its result": matmul(
        ws=np.ones((2, 1), np.float32), data="float[2, 4] x"
    ),
    "MatMulInteger#1: its scales or zero points are not one for each channel of its result": matmul(
        wz=np.zeros((4, 3), np.int8)
    ),
    "MatMulInteger#1: its weight is no matrix": matmul(weight=WEIGHT[:, 0], ws=np.float32(1), wz=np.int8(0)),
    "MatMulInteger#0: its data is not quantised by DynamicQuantizeLinear or QuantizeLinear": integers(
        "uint8[2, 4] q, float s", f"sum = MatMulInteger (q, w) {CHAIN}", w=WEIGHT
    ),
    "MatMulInteger#1: its weight, scales and zero points are not all constant": integers(
        f"{DATA}, int8[4, 3] w", f"{QUANTISE} sum = MatMulInteger (q, w, z) {CHAIN}"
    ),
    "ConvInteger#1: its scales are not one for each channel of its result": conv(w=KERNEL, ws=SCALES, wz=np.uint8(0)),
    "MatMulNBits#0: its rows are in another order, that of g_idx": integers(
        "float[1, 16] x", NIBBLES, w=np.zeros((1, 1, 8), np.uint8), idx=np.zeros(16, np.int32)
    ),
    "MatMulNBits#0: its bits or its sizes are not those of blocks of 2, 4 or 8 bits": blocks(3, 16, 1, 16),
    "QAttention#0: an attention is not taken back to floats": integers(
        "uint8[1, 2, 4] q, float s", ATTENTION, w=np.zeros((4, 12), np.uint8), b=np.zeros(12, np.float32)
    ),
    "DynamicQuantizeLSTM#0: an LSTM is not taken back to floats": integers(
        "float[3, 1, 2] x, float[1] s, uint8[1] z",
        LSTM,
        w=np.zeros((1, 2, 4), np.uint8),
        r=np.zeros((1, 1, 4), np.uint8),
    ),
}


@pytest.mark.parametrize(("reason", "model"), DECLINED.items())
def test_what_stays(reason: str, model: Model) -> None:
    outcome = Dequantize().run(model)
    assert (outcome.model is model, reasons(outcome)) == (True, [reason])


@pytest.mark.parametrize("name", ["N", "block_size"])
@pytest.mark.parametrize("number", [-16, -1, 0])
def test_products_of_blocks_of_no_size_stay(name: str, number: int) -> None:
    original = blocks(4, 16, 1, 16)
    proto = original.proto
    next(attribute for attribute in proto.graph.node[0].attribute if attribute.name == name).i = number
    (reason,) = reasons(Dequantize().run(Model.from_proto(proto)))
    assert reason == "MatMulNBits#0: its bits or its sizes are not those of blocks of 2, 4 or 8 bits"


def test_an_output_of_the_graph_before_the_scales_stays() -> None:
    model = model_of(
        f"g ({DATA}) => (y, f) {{ {QUANTISE} sum = MatMulInteger (q, w, z, wz) {CHAIN} }}",
        w=WEIGHT,
        ws=SCALES,
        wz=COLUMNS,
    )
    outcome = Dequantize().run(model)
    assert reasons(outcome) == ["MatMulInteger#1: it is not multiplied with the scale of its data"]


# Quantised and dequantised

QDQ = """
    q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)
    v = DequantizeLinear <axis = 1> (w, ws, wz) p = MatMul (d, v)
    b = DequantizeLinear (bias, ws) y = Add (p, b)
"""


def qdq(nodes: str = QDQ) -> Model:
    return model_of(
        f"g (float[N, 4] x) => (y) {{ {nodes} }}",
        s=np.float32(0.5), z=np.uint8(3), w=WEIGHT, ws=SCALES, wz=COLUMNS, bias=np.array([1, 2, 3], np.int32),
        t=np.float32(0.25),
    )  # fmt: skip


def test_qdq_stays_unless_it_is_asked_for() -> None:
    model = qdq()
    assert Dequantize().run(model).model is model


def test_weights_are_dequantised_and_pairs_go() -> None:
    model = qdq(QDQ.replace("(bias, ws)", "<axis = 0> (bias, ws)"))
    outcome = Dequantize(qdq=True).run(model)
    assert lines(outcome.model) == ["p = MatMul (x, w_float)", "y = Add (p, bias_float)"]
    assert outcome.changes == ("1 QuantizeLinear and DequantizeLinear pair gone", "2 weights dequantised")
    x = RNG.integers(-3, 100, (3, 4)).astype(np.float32) / 2  # what the scale keeps
    np.testing.assert_allclose(run(outcome.model, {"x": x})[0], run(model, {"x": x})[0], rtol=1e-6)


def test_a_weight_of_rank_0_is_dequantised() -> None:
    model = model_of(
        "g (float[N, 4] x) => (y) { factor = DequantizeLinear (w, s, z) y = Mul (x, factor) }",
        s=np.float32(0.5), z=np.uint8(3), w=np.uint8(9),
    )  # fmt: skip
    outcome = Dequantize(qdq=True).run(model)
    assert lines(outcome.model) == ["y = Mul (x, w_float)"]
    x = exact_data(2, 4)
    np.testing.assert_array_equal(run(outcome.model, {"x": x})[0], run(model, {"x": x})[0])


def test_a_pair_of_two_scales_stays() -> None:
    model = qdq("q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, t, z)")
    outcome = Dequantize(qdq=True).run(model)
    assert reasons(outcome) == ["DequantizeLinear#1: it has another scale or dtype than the QuantizeLinear before it"]


# Rows of a quantised table

ROWS = "rows = Gather <axis = 0> (w, ids) y = DequantizeLinear (rows, ws, wz)"
IDS = "int64[N, L] ids"


def table(nodes: str = ROWS, inputs: str = IDS, ws: object = np.float32(0.3), wz: object = np.int8(-7)) -> Model:
    given = {name: array for name, array in (("w", WEIGHT), ("ws", ws), ("wz", wz)) if array is not None}
    return model_of(f"g ({inputs}) => (y) {{ {nodes} }}", **given)


TABLES = {
    "one scale": table(),
    "a row of one number": table(ws=np.array([0.3], np.float32), wz=np.array([-7], np.int8)),
    "no zero point": table(ROWS.replace(", wz", ""), wz=None),
    "a scale for each column": table(ROWS.replace("(rows", "<axis = 2> (rows"), ws=SCALES, wz=COLUMNS),
    "a scale for each column, from the end": table(ROWS.replace("(rows", "<axis = -1> (rows"), ws=SCALES, wz=COLUMNS),
}


@pytest.mark.parametrize("model", TABLES.values(), ids=TABLES)
def test_rows_of_a_dequantised_table_are_equal_bit_for_bit(model: Model) -> None:
    outcome = Dequantize(qdq=True).run(model)
    assert reasons(outcome) == []
    assert [line.replace("axis: int", "axis") for line in lines(outcome.model)] == [
        "y = Gather <axis = 0> (w_float, ids)"
    ]
    assert outcome.changes == ("1 table dequantised",)
    feed = {"ids": np.array([[0, 3, 1], [-1, 2, 2]])}
    np.testing.assert_array_equal(run(outcome.model, feed)[0], run(model, feed)[0])


def test_rows_that_are_read_as_codes_too_stay() -> None:
    model = table(f"{ROWS} z = Cast <to = 1> (rows)".replace("y = D", "d = D") + " y = Add (d, z)")
    outcome = Dequantize(qdq=True).run(model)
    assert {node.op_type for node in outcome.model.graph.nodes} == {"Gather", "Cast", "Add"}
    feed = {"ids": np.array([[0, 3]])}
    np.testing.assert_array_equal(run(outcome.model, feed)[0], run(model, feed)[0])


NO_ROWS = {
    "a scale that is fed": (
        table(inputs=f"{IDS}, float ws", ws=None), "its table, scale and zero point are not all constant"
    ),
    "a table that is fed": (
        model_of(f"g ({IDS}, int8[4, 3] w) => (y) {{ {ROWS} }}", ws=np.float32(0.3), wz=np.int8(1)),
        "its table, scale and zero point are not all constant",
    ),
    "a zero point that is fed": (
        table(inputs=f"{IDS}, int8 wz", wz=None), "its weight, scales and zero points are not all constant"
    ),
    "a scale for each place": (
        table(ROWS.replace("(rows", "<axis = 1> (rows"), "int64[N, 3] ids", SCALES, COLUMNS),
        "its scales are not one for each element of a row of its table",
    ),
    "columns that are chosen": (
        table(ROWS.replace("axis = 0", "axis = 1").replace("(rows", "<axis = 2> (rows"), "int64[N, 3] ids", SCALES,
              COLUMNS),
        "its scales are not one for each element of a row of its table",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("model", "reason"), NO_ROWS.values(), ids=NO_ROWS)
def test_rows_that_stay(model: Model, reason: str) -> None:
    outcome = Dequantize(qdq=True).run(model)
    assert reasons(outcome) == [f"DequantizeLinear#1: {reason}"]
    assert outcome.model is model


def test_a_table_of_rows_stays_unless_it_is_asked_for() -> None:
    model = table()
    assert Dequantize().run(model).model is model


def test_numbers_that_are_fed_as_codes_stay() -> None:
    model = model_of("g (int8[N, 4] q) => (y) { y = DequantizeLinear (q, s) }", s=np.float32(0.5))
    outcome = Dequantize(qdq=True).run(model)
    assert reasons(outcome) == [
        "DequantizeLinear#0: its data is neither constant nor given by a QuantizeLinear with its zero point"
    ]


# What is broken


def test_a_weight_without_its_elements_is_declined() -> None:
    model = matmul()
    model.proto.graph.initializer[0].ClearField("raw_data")
    outcome = Dequantize().run(Model.from_proto(model.proto))
    assert len(outcome.declined) == 1
    assert "its elements are not as many as its dims say" in outcome.declined[0].reason


def test_an_empty_list_among_the_attributes_stays() -> None:
    model = conv(w=KERNEL, ws=np.float32(0.5), wz=np.uint8(9))
    attribute = next(a for a in model.graph.nodes[1].proto.attribute if a.name == "pads")
    attribute.ClearField("ints")
    (node,) = Dequantize().run(Model.from_proto(model.proto)).model.graph.nodes
    assert (node.op_type, node.attr("pads", (1,)), node.attr("strides", ())) == ("Conv", (), (2, 1))


def lookups(bits: int, more: str = "", table: str = "table", scales: type = np.float32, **points: np.ndarray) -> Model:
    """Return lookups of three rows of 40 numbers of so many bits, in blocks of 16, the last of which is not full."""
    node = f"y = com.microsoft.GatherBlockQuantized <bits = {bits}, block_size = 16{more}> "
    node += f"({table}, input_ids, s{', z' if points else ''})"
    rows = f"flat = Constant <value_ints = [3, {40 * bits // 8}]> () rows = Reshape (table, flat)"
    codes = RNG.integers(0, 256, (3, 40 * bits // 8), np.uint8)
    factors = RNG.standard_normal((3, 3)).astype(scales)
    return model_of(f"g (int64[N, L] input_ids) => (y) {{ {rows} {node} }}", 21, table=codes, s=factors, **points)


LOOKUP = "y = com.microsoft.GatherBlockQuantized <bits = 8, block_size = 1099511627776>"


def test_a_block_may_be_longer_than_a_row() -> None:
    codes, scales = RNG.integers(0, 256, (3, 16), np.uint8), RNG.standard_normal((3, 1)).astype(np.float32)
    text = f"g (int64[N, L] input_ids) => (y) {{ {LOOKUP} (table, input_ids, s) }}"
    original = model_of(text, 21, table=codes, s=scales)
    outcome = run_to_fixpoint(original, [DequantizeTable()])
    assert [node.op_type for node in outcome.model.graph.nodes] == ["Gather"]
    ids = {"input_ids": np.array([[2, 0, 1]])}
    np.testing.assert_array_equal(*(run(each, ids)[0] for each in (original, outcome.model)))


@pytest.mark.parametrize("has_points", [False, True])
@pytest.mark.parametrize("table", ["table", "rows"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_table_of_blocks_gives_the_same_rows(bits: int, table: str, *, has_points: bool) -> None:
    points = {"z": RNG.integers(0, 256, (3, -(-3 * bits // 8)), np.uint8)} if has_points else {}
    original = lookups(bits, "", table, **points)
    outcome = run_to_fixpoint(original, [DequantizeTable()])
    assert "GatherBlockQuantized" not in {node.op_type for node in outcome.model.graph.nodes}
    ids = np.array([[2, 0, -1], [1, 1, 2]])
    for before, after in zip(run(original, {"input_ids": ids}), run(outcome.model, {"input_ids": ids}), strict=True):
        np.testing.assert_array_equal(after, before, strict=True)
    extracted = ExtractEmbedding().run(original)
    assert [value.name for value in extracted.model.graph.inputs] == ["inputs_embeds"]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lookups(4, ", gather_axis = 1, quantize_axis = 0"), "it does not look rows up in a matrix of blocks of 2"),
        (lookups(4, scales=np.float16), "it does not look rows up in a matrix of blocks of 2, 4 or 8 bits, scaled by"),
        (lookups(4, z=np.zeros((2, 2), np.uint8)), "cannot reshape array of size"),
        (
            model_of(
                f"g (int64[N, L] input_ids) => (y) {{ {LOOKUP} (table, input_ids) }}",
                21,
                table=np.zeros((3, 16), np.uint8),
            ),
            "it has no table, no indices or no scales",
        ),
    ],
)
def test_another_table_of_blocks_stays(model: Model, reason: str) -> None:
    outcome = run_to_fixpoint(model, [DequantizeTable()])
    assert outcome.model is model
    assert [reason in text for text in reasons(outcome)] == [True]
