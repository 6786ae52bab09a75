from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto
from rewriting import SIZES, check, feeds_of, lines, model_of, reasons
from sessions import run

import graphkit
from graphkit.equivalence import check_equivalence
from graphkit.model import Model
from graphkit.options import FoldingOptions
from graphkit.passes.clean_up.eliminate_identity import BLIND_HERE, FAITHFUL_HERE, DropZeroAdds

PASS = DropZeroAdds()
SIGN = "it adds zeros, but a later node may depend on the sign of a zero"
ZEROS = "float[4] c = {0, 0, 0, 0}, float[1] d = {-0.0}, float[1, 4] wide = {0, 0, 0, 0}, float[4] other = {0, 0, 1, 0}"
ZEROS += ", float[1] zero = {0}, float one = {1}, float nil = {0}"
INPUTS = "float[N, 4] x"


def graph(nodes: str, inputs: str = INPUTS, opset: int = 17) -> Model:
    return model_of(f"g ({inputs}) => (y) <{ZEROS}> {{ {nodes} }}", opset)


GONE = {
    "x + 0": graph("a = Add (x, c) y = Softmax (a)"),
    "0 + x": graph("a = Add (c, x) y = Softmax (a)"),
    "x - 0": graph("a = Sub (x, c) y = Softmax (a)"),
    "-0.0": graph("a = Add (x, d) y = Softmax (a)"),
    "what only passes zeros on": graph("a = Add (x, c) b = Neg (a) e = Transpose (b) y = Relu (e)"),
    "what moves zeros": graph("a = Add (x, c) b = Compress <axis = 1> (a, m) y = Softmax (b)", INPUTS + ", bool[4] m"),
    "a division of it": graph("a = Add (x, c) y = Div (a, x)"),
    "a square": graph("a = Add (x, c) two = Constant <value = float {2}> () b = Pow (a, two) y = Reciprocal (b)"),
    "a comparison": graph("a = Add (x, c) y = Greater (a, x)"),
    "a Cast to integers": graph("a = Add (x, c) y = Cast <to = 7> (a)"),
    "what is normalized": graph(
        "a = Add (x, d) s = Constant <value = float[2] {1, 2}> () b = InstanceNormalization (a, s, s) y = Softmax (b)",
        "float[N, 2, 4] x",
    ),
    "what a frozen normalization reads": graph("a = Add (x, c) b = BatchNormalization (a, c, c, c, c) y = Softmax (b)"),
    "to be quantised": graph("a = Add (x, c) s = Constant <value = float {0.5}> () y = QuantizeLinear (a, s)"),
}


@pytest.mark.parametrize("model", GONE.values(), ids=GONE)
def test_it_goes(model: Model) -> None:
    outcome = check(PASS, model)
    assert not any(line.startswith("a = ") for line in lines(outcome.model))
    assert outcome.changes == ("1 addition of zeros removed",)


DECLINED = {
    "a divisor": graph("a = Add (x, c) y = Div (x, a)"),
    "a divisor behind others": graph("a = Add (x, c) b = Neg (a) e = Transpose (x) f = Transpose (b) y = Div (e, f)"),
    "a reciprocal": graph("a = Add (x, c) y = Reciprocal (a)"),
    "a cube": graph("a = Add (x, c) three = Constant <value = float {3}> () y = Pow (a, three)"),
    "a power that is data": graph("a = Add (x, c) y = Pow (a, x)"),
    "a base that is data": graph("a = Add (x, c) y = Pow (x, a)"),
    "a text": graph("a = Add (x, c) y = Cast <to = 8> (a)"),
    "another domain": graph("a = Add (x, c) y = com.microsoft.Gelu (a)"),
    "an operator that is not known here": graph("a = Add (x, c) y = Sign (a)"),
    "a variance": graph("a = Add (s, c) y = BatchNormalization (x, s, s, s, a)", f"{INPUTS}, float[4] s"),
    "the scale of a quantisation": graph("a = Add (s, zero) y = QuantizeLinear (x, a)", f"{INPUTS}, float[1] s"),
    "the state of a loop": model_of(f"""
        g (float[N, 4] x) => (float[N, 4] y) <{ZEROS}, int64 two = {{2}}, bool true = {{1}}> {{
            a = Add (x, c)
            l = Loop (two, true, a) < body = b (int64 i, bool go, float[N, 4] s) => (bool on, float[N, 4] t)
                {{ on = Identity (go) t = Neg (s) }} >
            y = Softmax (l)
        }}"""),
}


@pytest.mark.parametrize("model", DECLINED.values(), ids=DECLINED)
def test_it_stays_where_a_sign_may_become_more(model: Model) -> None:
    outcome = PASS.run(model)
    assert not outcome.changes
    assert [reason.partition(": ")[2] for reason in reasons(outcome)] == [SIGN]


KEPT = {
    "a Softmax": "a = Add (x, c) y = Softmax (a)",
    "a square": "a = Add (x, c) two = Constant <value = float {2}> () y = Pow (a, two)",
    "a comparison behind others": "a = Add (c, x) b = Neg (a) e = Transpose (b) f = Relu (e) y = Greater (f, x)",
    "to be quantised": "a = Sub (x, c) s = Constant <value = float {0.5}> () y = QuantizeLinear (a, s)",
    "x + -0.0, whatever reads it": "a = Add (x, d) y = Reciprocal (a)",
    "-0.0 + x": "a = Add (d, x) y = Neg (a)",
    "x - 0.0": "a = Sub (x, c) y = Neg (a)",
}  # fmt: skip


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT)
def test_a_fold_takes_those_that_keep_the_signs_of_all_zeros(text: str) -> None:
    model = graph(text)
    folded = graphkit.fold(model).model
    assert not any(line.startswith("a = ") for line in lines(folded))
    assert [each.exactness for each in check_equivalence(model, folded).outputs] == ["bit for bit"]
    x = np.array([[0.0, -0.0, 1.5, -2.0]], np.float32)
    assert run(model, {"x": x})[0].tobytes() == run(folded, {"x": x})[0].tobytes()


LEFT = {
    "an output that passes zeros on": "a = Add (x, c) b = Neg (a) e = Transpose (b) y = Relu (e)",
    "zeros beside a Softmax": "a = Add (x, c) b = Softmax (a) y = Mul (a, b)",
    "-0.0 taken away": "a = Sub (x, d) y = Neg (a)",
}


@pytest.mark.parametrize("text", LEFT.values(), ids=LEFT)
def test_a_fold_leaves_those_that_change_the_sign_of_a_zero_unless_it_may_fuse(text: str) -> None:
    model = model_of(f"g ({INPUTS}) => (y) <{ZEROS}> {{ {text} }}", 19, 9)
    outcome = graphkit.fold(model)
    assert any(line.startswith("a = ") for line in lines(outcome.model))
    why = "it adds zeros, which makes 0 of -0 in an output; with `--fuse` it goes"
    assert [reason.partition(": ")[2] for reason in reasons(outcome)] == [why]
    fused = graphkit.fold(model, options=FoldingOptions(fuse=True)).model
    assert not any(line.startswith("a = ") for line in lines(fused))


def test_zeros_that_are_added_to_zeros_go_by_the_sign_of_those_that_go() -> None:
    """-0 and 0 is 0, so that x + (-0 + 0) has no -0."""
    model = graph("a = Add (d, zero) y = Add (x, a)")
    folded = graphkit.fold(model).model
    x = np.full((2, 4), -0.0, np.float32)
    assert run(model, {"x": x})[0].tobytes() == run(folded, {"x": x})[0].tobytes()


def test_a_float_of_8_bits_has_a_sign_of_zeros() -> None:
    text = "f8 = Cast <to = 17> (nil) a = Add (x, c) b = QuantizeLinear (a, one, f8) y = DequantizeLinear (b, one, f8)"
    model = model_of(f"g ({INPUTS}) => (y) <{ZEROS}> {{ {text} }}", 19, 9)
    folded = graphkit.fold(model).model
    x = np.array([[0.0, -0.0, 1.5, -2.0]], np.float32)
    assert run(model, {"x": x})[0].tobytes() == run(folded, {"x": x})[0].tobytes()
    assert any(line.startswith("a = ") for line in lines(folded))


STAYS = {
    "an output": graph("y = Add (x, c)"),
    "zeros that broadcast": graph("a = Add (x, wide) y = Softmax (a)", "float[4] x"),
    "not all zeros": graph("a = Add (x, other) y = Softmax (a)"),
    "0 - x": graph("a = Sub (c, x) y = Softmax (a)"),
    "integers": model_of("g (int64[N] x) => (y) <int64[1] c = {0}> { a = Add (x, c) y = Neg (a) }"),
    "a default that a caller may change": model_of(
        "g (float[N] x, float[1] c = {0}) => (y) { a = Add (x, c) y = Softmax (a) }"
    ),
    "an input without rank": graph("a = Add (x, c) y = Softmax (a)", "float[] x"),
}


@pytest.mark.parametrize("model", STAYS.values(), ids=STAYS)
def test_it_stays(model: Model) -> None:
    outcome = PASS.run(model)
    assert (outcome.changes, outcome.declined) == ((), ())


def test_zeros_in_a_missing_file_are_not_read() -> None:
    model = graph("a = Add (x, w) y = Softmax (a)")
    tensor = model.proto.graph.initializer.add(name="w", dims=[4], data_type=TensorProto.FLOAT)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="missing.bin")
    assert not PASS.run(Model.from_proto(model.proto)).changes


def test_what_a_branch_gives_is_followed_to_what_reads_it() -> None:
    text = """
        g (float[N, 4] x, bool k) => (float[N, 4] y) <ZEROS> {
            i = If (k) < then_branch = t () => (float[N, 4] q) { a = Add (x, c) q = Neg (a) },
                         else_branch = f () => (float[N, 4] r) { r = Abs (x) } >
            y = LAST (i)
        }""".replace("ZEROS", ZEROS)
    model = model_of(text.replace("LAST", "Softmax"))
    feeds = [{**feeds_of(model, size), "k": np.array(flag)} for size in SIZES for flag in (True, False)]
    assert "q = Neg (x)" in lines(check(PASS, model, feeds=feeds).model)[0]
    assert not PASS.run(model_of(text.replace("LAST", "Reciprocal"))).changes


def test_an_unsorted_graph_is_left() -> None:
    model = graph("y = Softmax (a) a = Add (x, c)")
    assert [reason.partition(": ")[2] for reason in reasons(PASS.run(model))] == [SIGN]


@pytest.mark.parametrize("fuse", [False, True])
def test_a_reason_says_fuse_only_where_that_helps(fuse: bool) -> None:
    model = model_of(f"g ({INPUTS}) => (y) <{ZEROS}> {{ a = Add (x, c) b = Reciprocal (a) y = Neg (b) }}", 19, 9)
    outcome = graphkit.fold(model, options=FoldingOptions(fuse=fuse))
    assert [reason.partition(": ")[2] for reason in reasons(outcome)] == [SIGN]


UNARY = """Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Elu Erf Exp Floor HardSigmoid HardSwish Identity
    IsInf IsNaN LeakyRelu Log LogSoftmax LpNormalization Mish Neg NonZero ReduceL1 ReduceL2 ReduceLogSumExp
    ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Round Selu Shrink Sigmoid Sin Sinh Softmax
    Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu"""


@pytest.mark.parametrize("op", UNARY.split())
def test_what_is_called_blind_or_faithful_is_so(op: str) -> None:
    """Of zeros of another sign, the first gives the same bits, the other equal numbers."""
    model = model_of(f"g (float[2] x) => (y) {{ y = {op} (x) }}", opset=24)
    feeds = [{"x": np.array([zero, zero], np.float32)} for zero in (0.0, -0.0)]
    one, two = (run(model, feed)[0] for feed in feeds)
    np.testing.assert_array_equal(one, two)
    assert op in BLIND_HERE | FAITHFUL_HERE
    if op in BLIND_HERE:
        assert one.tobytes() == two.tobytes()


WITH_WEIGHTS = {
    "BatchNormalization": "BatchNormalization (x, s, nil, nil, s2)",
    "ConvTranspose": "ConvTranspose (x, k)",
    "CumSum": "CumSum (x, last)",
    "GlobalMaxPool": "GlobalMaxPool (x)",
    "GRU": "GRU <hidden_size = 1> (x, w, r)",
    "GroupNormalization": "GroupNormalization <num_groups = 1> (x, s, s)",
    "InstanceNormalization": "InstanceNormalization (x, s, s)",
    "LSTM": "LSTM <hidden_size = 1> (x, v, u)",
    "LpPool": "LpPool <kernel_shape = [2]> (x)",
    "RMSNormalization": "RMSNormalization (x, t)",
}


WEIGHTS = """
    float[2] s = {1, -2}, float[2] nil = {0, 0}, float[2] s2 = {1, 4}, int64 last = {2}, float[3] t = {1, -2, 3},
    float[2, 1, 2] k = {1, -1, 2, 3}, float[1, 3, 1] r = {1, 2, -1}, float[1, 4, 1] u = {1, 2, -1, 1},
    float[1, 3, 3] w = {1, -1, 2, 3, 1, -1, 2, 3, 1}, float[1, 4, 3] v = {1, -1, 2, 3, 1, -1, 2, 3, 1, 0, 1, 2}"""


@pytest.mark.parametrize(("op", "call"), WITH_WEIGHTS.items(), ids=WITH_WEIGHTS)
def test_what_has_weights_and_is_called_faithful_is_so(op: str, call: str) -> None:
    model = model_of(f"g (float[1, 2, 3] x) => (y) <{WEIGHTS}> {{ y = {call} }}", opset=24)
    some = np.array([[[1, 0, -2], [0, 0, 0]]], np.float32)
    one, two = (run(model, {"x": np.where(some == 0, np.float32(zero), some)})[0] for zero in (0.0, -0.0))
    np.testing.assert_array_equal(one, two)
    assert op in FAITHFUL_HERE
