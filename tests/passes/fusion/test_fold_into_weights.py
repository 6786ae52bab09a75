from __future__ import annotations

import numpy as np
import pytest
from fusing import check_close, operators, random_model
from onnx import TensorProto
from rewriting import lines, model_of, reasons

from graphkit.model import Model
from graphkit.passes.fusion.fold_into_weights import FoldIntoWeights

PASS = FoldIntoWeights()
CONV = "g (float[N, 4, 5, 5] x) => (y)"
ROWS = "g (float[N, 7, 4] x) => (y)"
MATRIX = "g (float[N, 4] x) => (y)"
CHANNEL = (1, 6, 1, 1)
NORM = {"scale": (6,), "b": (6,), "mean": (6,), "var": (6,)}
SHAPE = "t = Constant <value_ints = [-1, 7, 2, 3]> ()"

FUSED = {
    "Mul": (random_model(CONV + "{ a = Conv (x, w) y = Mul (a, c) }", w=(6, 4, 3, 3), c=CHANNEL), ["Conv"]),
    "a constant first": (
        random_model(CONV + "{ a = Conv (x, w) y = Mul (c, a) }", w=(6, 4, 3, 3), c=CHANNEL),
        ["Conv"],
    ),
    "one number": (random_model(CONV + "{ a = Conv (x, w) y = Mul (a, c) }", w=(6, 4, 3, 3), c=()), ["Conv"]),
    "one channel": (random_model(CONV + "{ a = Conv (x, w) y = Mul (a, c) }", w=(1, 4, 3, 3), c=(1, 1, 1)), ["Conv"]),
    "Div": (random_model(CONV + "{ a = Conv (x, w) y = Div (a, v) }", w=(6, 4, 3, 3), v=(6, 1, 1)), ["Conv"]),
    "Add": (random_model(CONV + "{ a = Conv (x, w) y = Add (a, c) }", w=(6, 4, 3, 3), c=CHANNEL), ["Conv"]),
    "Add to a bias": (
        random_model(CONV + "{ a = Conv (x, w, b) y = Add (a, c) }", w=(6, 4, 3, 3), b=(6,), c=CHANNEL),
        ["Conv"],
    ),
    "Sub": (random_model(CONV + "{ a = Conv (x, w) y = Sub (a, c) }", w=(6, 4, 3, 3), c=CHANNEL), ["Conv"]),
    "Sub from a constant": (
        random_model(CONV + "{ a = Conv (x, w, b) y = Sub (c, a) }", w=(6, 4, 3, 3), b=(6,), c=CHANNEL),
        ["Conv"],
    ),
    "Neg": (random_model(CONV + "{ a = Conv (x, w, b) y = Neg (a) }", w=(6, 4, 3, 3), b=(6,)), ["Conv"]),
    "a frozen normalization": (
        random_model(CONV + "{ a = Conv (x, w) s = Mul (a, c) y = Add (s, d) }", w=(6, 4, 3, 3), c=CHANNEL, d=CHANNEL),
        ["Conv"],
    ),
    "BatchNormalization": (
        random_model(
            CONV + "{ a = Conv <pads = [1, 1, 1, 1]> (x, w, k) "
            "y = BatchNormalization <epsilon = 0.01> (a, scale, b, mean, var) }",
            w=(6, 4, 3, 3),
            k=(6,),
            **NORM,
        ),
        ["Conv"],
    ),
    "groups": (
        random_model(
            CONV + "{ a = Conv <group = 2> (x, w, b) s = Mul (a, c) y = Add (s, d) }",
            w=(6, 2, 3, 3),
            b=(6,),
            c=CHANNEL,
            d=CHANNEL,
        ),
        ["Conv"],
    ),
    "one group a channel": (
        random_model(CONV + "{ a = Conv <group = 4> (x, w) y = Mul (a, c) }", w=(8, 1, 3, 3), c=(8, 1, 1)),
        ["Conv"],
    ),
    "ConvTranspose": (
        random_model(
            CONV + "{ a = ConvTranspose <strides = [2, 2]> (x, w, b) s = Mul (a, c) y = Add (s, d) }",
            w=(4, 6, 3, 3),
            b=(6,),
            c=CHANNEL,
            d=CHANNEL,
        ),
        ["ConvTranspose"],
    ),
    "groups of ConvTranspose": (
        random_model(
            CONV + "{ a = ConvTranspose <group = 2> (x, w, b) y = BatchNormalization (a, scale, bias, mean, var) }",
            w=(4, 3, 3, 3),
            b=(6,),
            scale=(6,),
            bias=(6,),
            mean=(6,),
            var=(6,),
        ),
        ["ConvTranspose"],
    ),
    "Gemm": (
        random_model(
            MATRIX + "{ a = Gemm (x, w, b) s = Mul (a, c) y = Add (s, d) }", w=(4, 6), b=(6,), c=(6,), d=(1, 6)
        ),
        ["Gemm"],
    ),
    "Gemm with all attributes": (
        random_model(
            MATRIX + "{ a = Gemm <alpha = 0.5, beta = 3.0, transB = 1> (x, w, b) "
            "y = BatchNormalization (a, scale, bias, mean, var) }",
            w=(6, 4),
            b=(1, 6),
            scale=(6,),
            bias=(6,),
            mean=(6,),
            var=(6,),
        ),
        ["Gemm"],
    ),
    "Gemm without a bias": (random_model(MATRIX + "{ a = Gemm (x, w) y = Sub (a, c) }", w=(4, 6), c=(6,)), ["Gemm"]),
    "the bias of a Gemm is one number": (
        random_model(MATRIX + "{ a = Gemm (x, w, b) y = Mul (a, c) }", w=(4, 6), b=(1,), c=(6,)),
        ["Gemm"],
    ),
    "MatMul": (random_model(ROWS + "{ a = MatMul (x, w) y = Mul (a, c) }", w=(4, 6), c=(6,)), ["MatMul"]),
    "MatMul, with its bias": (
        random_model(ROWS + "{ a = MatMul (x, w) b = Add (d, a) y = Mul (b, c) }", w=(4, 6), c=(6,), d=(6,)),
        ["MatMul", "Add"],
    ),
    "weights on the left": (
        random_model(ROWS + "{ a = MatMul (w, x) b = Add (a, d) y = Mul (b, c) }", w=(3, 7), c=(3, 1), d=(3, 1)),
        ["MatMul", "Add"],
    ),
    "a number behind what moves elements": (
        random_model(
            ROWS
            + "{ a = MatMul (x, w) b = Add (a, d) "
            + SHAPE
            + " r = Reshape (b, t) p = Transpose <perm = [0, 2, 1, 3]> (r) y = Mul (p, c) }",
            w=(4, 6),
            d=(6,),
            c=(),
        ),
        ["Constant", "MatMul", "Add", "Reshape", "Transpose"],
    ),
    "channels behind a Reshape that keeps them": (
        random_model(
            MATRIX
            + "{ a = Gemm (x, w, b) t = Constant <value_ints = [-1, 1, 6]> () r = Reshape (a, t) y = Mul (r, c) }",
            w=(4, 6),
            b=(6,),
            c=(6,),
        ),
        ["Constant", "Gemm", "Reshape"],
    ),
    "channels behind a Transpose": (
        random_model(
            ROWS + "{ a = MatMul (x, w) p = Transpose <perm = [0, 2, 1]> (a) y = Mul (p, c) }", w=(4, 6), c=(6, 1)
        ),
        ["MatMul", "Transpose"],
    ),
    "before a Conv that pads": (
        random_model(CONV + "{ a = Mul (x, c) y = Conv <pads = [1, 1, 1, 1]> (a, w) }", w=(6, 4, 3, 3), c=(4, 1, 1)),
        ["Conv"],
    ),
    "before a Conv that does not pad": (
        random_model(
            CONV + "{ s = Mul (x, c) a = Add (s, d) y = Conv (a, w, b) }",
            w=(6, 4, 3, 3),
            b=(6,),
            c=(4, 1, 1),
            d=(4, 1, 1),
        ),
        ["Conv"],
    ),
    "before groups": (
        random_model(
            CONV + "{ s = Sub (x, d) a = Div (s, v) y = Conv <group = 2> (a, w) }",
            w=(6, 2, 3, 3),
            v=(4, 1, 1),
            d=(4, 1, 1),
        ),
        ["Conv"],
    ),
    "before and behind": (
        random_model(
            CONV + "{ s = Mul (x, c) a = ConvTranspose <group = 2> (s, w) y = Mul (a, d) }",
            w=(4, 3, 3, 3),
            c=(4, 1, 1),
            d=(6, 1, 1),
        ),
        ["ConvTranspose"],
    ),
    "before a Gemm": (
        random_model(
            "g (float[4, N] x) => (y) { s = Mul (x, c) a = Add (s, d) y = Gemm <transA = 1, alpha = 0.5> (a, w, b) }",
            w=(4, 6),
            b=(6,),
            c=(4, 1),
            d=(4, 1),
        ),
        ["Gemm"],
    ),
    "the scale and bias of a normalization before a MatMul": (
        random_model(
            ROWS + "{ s = Mul (x, c) a = Add (s, d) p = MatMul (a, w) y = Add (p, b) }",
            w=(4, 6),
            b=(6,),
            c=(4,),
            d=(4,),
        ),
        ["MatMul", "Add"],
    ),
    "an Add before that is no more": (
        random_model(ROWS + "{ a = Add (x, d) p = MatMul (a, w) y = Add (p, b) }", w=(4, 6), b=(6,), d=(4,)),
        ["MatMul", "Add"],
    ),
}


@pytest.mark.parametrize(("model", "left"), FUSED.values(), ids=FUSED)
def test_it_is_fused(model: Model, left: list[str]) -> None:
    outcome = check_close(PASS, model)
    assert operators(outcome.model) == left
    assert outcome.declined == ()


def test_no_elements_are_fused_too() -> None:
    check_close(PASS, FUSED["a frozen normalization"][0], {"N": 0})


def test_double_and_half() -> None:
    text = "g (TYPE[N, 4] x) => (y) { a = Gemm (x, w, b) y = Mul (a, c) }"
    for name, dtype, tolerance in (("double", np.float64, 1e-14), ("float16", np.float16, 4e-3)):
        model = random_model(text.replace("TYPE", name), dtype=dtype, w=(4, 6), b=(6,), c=(6,))
        assert operators(check_close(PASS, model, tolerance=tolerance).model) == ["Gemm"]


def test_names_and_attributes_stay() -> None:
    model = model_of(
        "g (float[N, 1, 4] x) => (y) { [first] a = Conv <dilations = [2]> (x, w) [last] y = Mul (a, c) }",
        w=np.ones((1, 1, 2), np.float32),
        c=np.float32(2),
    )
    assert lines(PASS.run(model).model) == ["[first] y = Conv <dilations: ints = [2]> (x, w_fused)"]


def test_a_weight_that_does_not_change_is_not_written_anew() -> None:
    model = random_model(CONV + "{ a = Conv (x, w) y = Add (a, c) z = Conv (x, w) }", w=(6, 4, 3, 3), c=CHANNEL)
    outcome = check_close(PASS, model)
    assert {tensor.name for tensor in outcome.model.proto.graph.initializer} == {"w", "w_bias"}


def graph(nodes: str, head: str = CONV, **dims: tuple[int, ...]) -> Model:
    return random_model(f"{head} {{ {nodes} }}", **dims)


W = (6, 4, 3, 3)
STAYS = "not fused with 'Conv#0': its constant"
DECLINED = {
    "a weight that others read": (
        graph("a = Conv (x, w) s = Mul (a, c) b = Conv (x, w) y = Add (s, b)", w=W, c=CHANNEL),
        ["Conv#0: its weight 'w' is read elsewhere too"],
    ),
    "a result that others read": (
        graph("a = Conv (x, w) s = Mul (a, c) y = Add (s, a)", w=W, c=CHANNEL),
        ["Mul#1: what 'Conv#0' gives is read elsewhere too"],
    ),
    "a result that is an output": (
        graph("a = Conv (x, w) y = Mul (a, c)", "g (float[N, 4, 5, 5] x) => (y, a)", w=W, c=CHANNEL),
        ["Mul#1: what 'Conv#0' gives is read elsewhere too"],
    ),
    "a constant that a caller may replace": (
        graph("a = Conv (x, w) y = Mul (a, c)", "g (float[N, 4, 5, 5] x, float[1] c = {2}) => (y)", w=W),
        [f"Mul#1: {STAYS} is an input with a default, which a caller may replace"],
    ),
    "a weight that a caller may replace": (
        graph("a = MatMul (x, w) y = Mul (a, c)", "g (float[N, 4] x, float[4, 1] w = {2, 2, 2, 2}) => (y)", c=(1,)),
        ["MatMul#0: the weight is an input with a default, which a caller may replace"],
    ),
    "another axis": (
        graph("a = Conv (x, w) y = Mul (a, c)", w=W, c=(3,)),
        [f"Mul#1: {STAYS} differs along other axes than that of the channels"],
    ),
    "each element": (
        graph("a = Conv (x, w) y = Mul (a, c)", w=W, c=(6, 3, 3)),
        [f"Mul#1: {STAYS} differs along other axes than that of the channels"],
    ),
    "more channels": (
        graph("a = Conv (x, w) y = Mul (a, c)", w=(1, 4, 3, 3), c=CHANNEL),
        [f"Mul#1: {STAYS} has another number of channels than the tensor"],
    ),
    "more dims": (
        graph("a = Conv (x, w) y = Mul (a, c)", w=W, c=(1, 1, 1, 1, 1)),
        [f"Mul#1: {STAYS} has more dims than the tensor"],
    ),
    "a division by the tensor": (
        graph("a = Conv (x, w) y = Div (c, a)", w=W, c=CHANNEL),
        ["Div#1: not fused with 'Conv#0': it divides a constant by the tensor"],
    ),
    "a division by 0": (
        graph("a = Conv (x, w) c = Constant <value = float {0}> () y = Div (a, c)", w=W),
        [f"Div#2: {STAYS} has elements that are not finite, or divides by 0"],
    ),
    "a quantised weight": (
        model_of(
            "g (float[N, 4] x) => (y) { d = DequantizeLinear (q, s) a = MatMul (x, d) y = Mul (a, c) }",
            q=np.ones((4, 6), np.int8),
            s=np.float32(0.5),
            c=np.float32(2),
        ),
        ["MatMul#1: the weight is quantised"],
    ),
    "a vector": (
        graph("a = MatMul (x, w) y = Mul (a, c)", MATRIX, w=(4,), c=(1,)),
        ["MatMul#0: the weight or the data is a vector"],
    ),
    "an unknown rank": (
        graph(
            "r = Reshape (x, t) a = MatMul (r, w) y = Mul (a, c)",
            "g (float[N, 4] x, int64[k] t) => (float[n, 6] y)",
            w=(4, 6),
            c=(6,),
        ),
        ["MatMul#1: the rank of the data is not known"],
    ),
    "a runtime bias": (
        graph("a = Conv (x, w, b) y = Mul (a, c)", "g (float[N, 4, 5, 5] x, float[6] b) => (y)", w=W, c=CHANNEL),
        ["Conv#0: its bias is not constant"],
    ),
    "a bias for each element": (
        graph("a = Gemm (x, w, b) y = Mul (a, c)", "g (float[3, 4] x) => (y)", w=(4, 6), b=(3, 6), c=(6,)),
        ["Gemm#0: its bias is not one number for each channel"],
    ),
    "a sum before a convolution that pads": (
        graph("a = Add (x, c) y = Conv <pads = [1, 1, 1, 1]> (a, w)", w=W, c=(4, 1, 1)),
        ["Add#0: 'Conv#1' pads what it adds to with zeros"],
    ),
    "a sum before one that pads by itself": (
        graph('a = Add (x, c) y = Conv <auto_pad = "SAME_UPPER"> (a, w)', w=W, c=(4, 1, 1)),
        ["Add#0: 'Conv#1' pads what it adds to with zeros"],
    ),
    "a constant that makes the data larger": (
        graph("a = Mul (x, c) y = MatMul (a, w)", "g (float[N, 1] x) => (y)", w=(4, 6), c=(4,)),
        ["Mul#0: it may give a larger tensor than it reads"],
    ),
    "a normalization along another axis": (
        graph(
            "a = MatMul (x, w) y = BatchNormalization (a, scale, b, mean, var)",
            ROWS,
            w=(4, 7),
            scale=(7,),
            b=(7,),
            mean=(7,),
            var=(7,),
        ),
        ["BatchNormalization#1: not fused with 'MatMul#0': it normalizes along another axis than that of the channels"],
    ),
    "a normalization that learns": (
        graph(
            "a = Conv (x, w) y, m, v2 = BatchNormalization <training_mode = 1> (a, scale, b, mean, var)", w=W, **NORM
        ),
        ["BatchNormalization#1: not fused with 'Conv#0': it is a BatchNormalization that learns, or lacks parameters"],
    ),
}


@pytest.mark.parametrize(("model", "expected"), DECLINED.values(), ids=DECLINED)
def test_it_is_declined(model: Model, expected: list[str]) -> None:
    before = model.proto.SerializeToString()
    outcome = PASS.run(model)
    assert outcome.model.proto.SerializeToString() == before
    assert reasons(outcome) == expected


@pytest.mark.parametrize(("factor", "word"), [(4.0, "large"), (1e-7, "small")])
def test_what_a_half_cannot_hold_is_declined(factor: float, word: str) -> None:
    model = model_of(
        "g (float16[N, 2] x) => (y) { a = MatMul (x, w) y = Mul (a, c) }",
        w=np.full((2, 3), 3e4 if factor > 1 else 0.3, np.float16),
        c=np.float16(factor),
    )
    outcome = PASS.run(model)
    assert outcome.model is model
    assert reasons(outcome) == [f"MatMul#0: the product is too {word} for float16"]


def test_types_that_are_not_calculated_with_are_declined() -> None:
    model = model_of("g (bfloat16[N, 1] x) => (bfloat16[N, 1] y) { a = MatMul (x, w) y = Mul (a, c) }")
    for name, dims in (("w", [1, 1]), ("c", [])):
        model.proto.graph.initializer.add(name=name, dims=dims, data_type=TensorProto.BFLOAT16, raw_data=b"\x80\x3f")
    outcome = PASS.run(Model.from_proto(model.proto))
    assert reasons(outcome) == ["MatMul#0: the weight is of a type that is not calculated with here"]


def test_a_bias_alone_stays_an_add() -> None:
    outcome = check_close(PASS, graph("a = MatMul (x, w) y = Add (a, c)", ROWS, w=(4, 6), c=(6,)))
    assert operators(outcome.model) == ["MatMul", "Add"]
    assert outcome.declined == ()


def test_bodies_are_fused_where_they_read_what_is_their_own() -> None:
    model = random_model(
        """g (float[N, 4] x, bool f) => (float[N, 6] y) {
            o = Gemm (x, v)
            y = If (f) <then_branch = t () => (float[N, 6] p) { a = Gemm (x, w) p = Mul (a, c) },
                        else_branch = e () => (float[N, 6] q) { q = Mul (o, c) }>
        }""",
        v=(4, 6),
        w=(4, 6),
        c=(6,),
    )
    outcome = check_close(PASS, model)
    then, other = (attribute.g for attribute in outcome.model.proto.graph.node[1].attribute)
    assert [[node.op_type for node in body.node] for body in sorted((then, other), key=lambda g: g.name)] == [
        ["Mul"],
        ["Gemm"],
    ]
