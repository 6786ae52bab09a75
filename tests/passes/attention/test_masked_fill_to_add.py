"""Each spelling of a mask, rewritten and run: weights are within 2e-6 wherever a row has an element that counts."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx import helper
from rewriting import constants, lines, model_of, reasons
from sessions import run

from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.passes.attention.masks import MaskedFillToAdd
from graphkit.passes.registry import parse_pipeline
from graphkit.rewrite.base import Outcome
from graphkit.rewrite.host_values import find_dependences
from graphkit.shapes import infer, parse

LEAST = float(np.finfo(np.float32).min)
INF = float("-inf")
BFLOAT16 = helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16)
SIZES: tuple[Mapping[str, int], ...] = ({"N": 2, "L": 5, "past": 3}, {"N": 1, "L": 1, "past": 0})
CONSTANTS: dict[str, object] = {
    "low": np.float32(LEAST),
    "inf": np.float32(INF),
    "zero": np.float32(0),
    "unit": np.float32(1),
    "eight": np.float32(8),
    "tenth": np.float32(-0.1),
    "slope": np.float32(-400),
    "mild": np.float32(-1e4),
    "none": np.int64(0),
    "one": np.int64(1),
    "window": np.int64(3),
    "first": np.int64([0]),
    "second": np.int64([1]),
    "third": np.int64([2]),
    "end": np.int64([-1]),
    "no": np.array(False),
}
POSITIONS = """shape = Shape (x) length = Slice (shape, second, third, first) l = Squeeze (length)
    keys = Range (none, l, one) queries = Unsqueeze (keys, second)"""

BOTH = "bool[N, 1, L] m, bool[L] n"


def graph(nodes: str, inputs: str = "bool[N, 1, L] m", opset: int = 17) -> Model:
    """Return a model of scores and masks, with the constants that its nodes name."""
    given = {name: CONSTANTS[name] for name in re.findall(r"\w+", nodes) if name in CONSTANTS}
    inputs = f"float[N, L, L] x{', ' if inputs else ''}{inputs}"
    return model_of(f"g ({inputs}) => (float[N, L, L] y) {{ {nodes} }}", opset, **given)


def causal(nodes: str) -> Model:
    """Return a model whose masks are made of positions alone."""
    return graph(POSITIONS + nodes, "")


def feeds_of(model: Model, sizes: Mapping[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    """Return scores that reach tens, and masks that let each row see its first and its last key but no other."""
    rng, feeds = np.random.default_rng(seed), {}
    for info in model.proto.graph.input:
        kind = info.type.tensor_type
        shape = [dim.dim_value or parse(dim.dim_param).evaluate(sizes) for dim in kind.shape.dim]
        if kind.elem_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE):
            array = rng.normal(size=shape) * 8
        else:
            array = np.zeros(shape)
            array[..., 0] = array[..., -1] = 1
            if info.name == "hidden":  # a mask that says what does not count
                array = 1 - array
        feeds[info.name] = array.astype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return feeds


def exposed(model: Model) -> Model:
    """Return a model that gives what its Softmaxes read, too."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    for node in model.graph.nodes:
        if node.is_op("Softmax"):
            proto.graph.output.append(onnx.ValueInfoProto(name=node.proto.input[0]))
    return Model.from_proto(proto)


def check(model: Model, floor: float = -1e9, tolerance: float = 2e-6) -> Outcome:
    """Rewrite; the weights stay, no -inf reaches a Softmax, and what is added depends on no data."""
    outcome = MaskedFillToAdd(floor).run(model)
    onnx.checker.check_model(outcome.model.proto, full_check=True)
    assert outcome.changes, reasons(outcome)
    again = MaskedFillToAdd(floor).run(outcome.model)
    assert not again.changes
    for seed, sizes in enumerate(SIZES):
        feeds = feeds_of(model, sizes, seed)
        before, after = run(model, feeds), run(exposed(outcome.model), feeds)
        for one, two in zip(before, after, strict=False):
            np.testing.assert_allclose(one, two, atol=tolerance, rtol=0)
        for scores in after[len(before) :]:  # float16 has a floor of its own
            assert np.isfinite(scores).all()
            assert float(scores.min()) > 3 * floor - 200
    known = find_dependences(outcome.model, infer(outcome.model))
    for node in outcome.model.graph.nodes:
        assert not (node.is_op("Where") and known[node.outputs[0]].data), "a choice over scores is left"
    return outcome


FILLED = {
    "the fill first": graph("f = Where (hidden, low, x) y = Softmax (f)", "bool[N, 1, L] hidden"),
    "the fill last": graph("f = Where (m, x, low) y = Softmax (f)"),
    "-inf": graph("f = Where (m, x, inf) y = Softmax (f)"),
    "a Not": graph("c = Not (m) f = Where (c, low, x) y = Softmax (f)"),
    "a Cast of integers": graph("c = Cast <to = 9> (m) f = Where (c, x, low) y = Softmax (f)", "int64[N, 1, L] m"),
    "an Equal": graph("c = Equal (m, none) f = Where (c, low, x) y = Softmax (f)", "int64[N, 1, L] m"),
    "a Greater": graph("c = Greater (m, none) f = Where (c, x, low) y = Softmax (f)", "int64[N, 1, L] m"),
    "an And": graph("c = And (m, n) f = Where (c, x, low) y = Softmax (f)", BOTH),
    "an Or": graph("c = Or (hidden, no) f = Where (c, low, x) y = Softmax (f)", "bool[N, 1, L] hidden"),
    "a Cast of 1 - m": graph(
        """w = Cast <to = 1> (m) v = Sub (unit, w) c = Cast <to = 9> (v)
        f = Where (c, low, x) y = Softmax (f)""",
        "int64[N, 1, L] m",
    ),
    "an Expand of the fill": graph("s = Shape (x) e = Expand (low, s) f = Where (m, x, e) y = Softmax (f)"),
    "a ConstantOfShape": graph(
        "s = Shape (x) e = ConstantOfShape <value = float[1] {-1e10}> (s) f = Where (m, x, e) y = Softmax (f)"
    ),
    "causal: less": causal("c = Less (queries, keys) f = Where (c, low, x) y = Softmax (f)"),
    "causal: greater or equal": causal("c = GreaterOrEqual (queries, keys) f = Where (c, x, inf) y = Softmax (f)"),
    "a sliding window": causal(
        """c = LessOrEqual (keys, queries) d = Sub (queries, window) w = Greater (keys, d) a = And (c, w)
        f = Where (a, x, inf) y = Softmax (f)"""
    ),
    "a Trilu": causal(
        """square = Concat <axis = 0> (length, length) ones = ConstantOfShape <value = float[1] {1}> (square)
        t = Trilu <upper = 0> (ones) c = Cast <to = 9> (t) f = Where (c, x, low) y = Softmax (f)"""
    ),
    "then a bias": graph("f = Where (m, x, low) g = Add (f, b) y = Softmax (g)", "bool[N, 1, L] m, float[L, L] b"),
    "then a scale": graph("f = Where (m, x, low) g = Div (f, eight) y = Softmax (g)"),
    "then two reshapes": graph(
        "f = Where (m, x, low) g = Unsqueeze (f, second) h = Softmax (g) y = Squeeze (h, second)"
    ),
    "another one behind": graph("f = Where (m, x, low) g = Where (n, f, inf) y = Softmax (g)", BOTH),
    "over a middle axis": model_of(
        """g (float[N, L, L] x, bool[N, 1, L] m) => (float[N, L, L] y) { t = Transpose <perm = [0, 2, 1]> (m)
        f = Where (t, x, low) y = Softmax <axis = 1> (f) }""",
        low=np.float32(LEAST),
    ),
    "transposed": model_of(
        """g (float[N, L, L] x, bool[N, 1, L] m) => (float[N, L, L] y) {
        f = Where (m, x, low) t = Transpose <perm = [0, 2, 1]> (f) y = Softmax <axis = 1> (t) }""",
        low=np.float32(LEAST),
    ),
    "less the largest score": graph(
        "f = Where (m, x, low) g = ReduceMax <axes = [-1], keepdims = 1> (f) h = Sub (f, g) y = Softmax (h)"
    ),
    "beside sinks": graph(
        """f = Where (m, x, low) g = Concat <axis = -1> (f, sinks) h = ReduceMax <axes = [-1], keepdims = 1> (g)
        i = Sub (g, h) p = Softmax (i) y = Slice (p, first, end, third)""",
        "bool[N, 1, L] m, float[N, L, 1] sinks",
    ),
    "weighed by the logarithm of its sum": graph(
        """f = Where (m, x, low) p = Softmax (f) l = ReduceLogSumExp <axes = [-1], keepdims = 1> (f) g = Sigmoid (l)
        y = Mul (p, g)"""
    ),
    "opset 12": graph("f = Where (m, x, low) y = Softmax <axis = 2> (f)", opset=12),
}


@pytest.mark.cases(17)
@pytest.mark.parametrize("floor", [-1e9, -255.0])
@pytest.mark.parametrize("model", FILLED.values(), ids=FILLED)
def test_fills_are_additions(model: Model, floor: float) -> None:
    outcome = check(model, floor)
    assert any("of masked scores turned into additions" in change for change in outcome.changes)


ADDED = {
    "0 and -inf": graph("b = Where (m, zero, inf) s = Add (x, b) y = Softmax (s)"),
    "0 and the least number": graph(
        "b = Where (hidden, low, zero) s = Add (b, x) y = Softmax (s)", "bool[N, 1, L] hidden"
    ),
    "(1 - m) * least": graph(
        "w = Cast <to = 1> (m) v = Sub (unit, w) b = Mul (v, low) s = Add (x, b) y = Softmax (s)", "int64[N, 1, L] m"
    ),
    "two masks added to each other": graph(
        "a = Where (m, zero, low) b = Where (n, zero, low) c = Add (a, b) s = Add (x, c) y = Softmax (s)",
        BOTH,
    ),
    "a mask in a mask": graph(
        "a = Where (m, zero, low) b = Where (n, a, inf) s = Add (x, b) y = Softmax (s)", "bool[N, 1, L] m, bool[L] n"
    ),
    "a triangle of -inf": causal(
        """square = Concat <axis = 0> (length, length) full = ConstantOfShape <value = float[1] {-1e10}> (square)
        b = Trilu (full, one) s_1 = Add (x, b) y = Softmax (s_1)"""
    ),
}


@pytest.mark.parametrize("floor", [-1e9, -255.0])
@pytest.mark.parametrize("model", ADDED.values(), ids=ADDED)
def test_what_is_added_has_a_finite_floor(model: Model, floor: float) -> None:
    outcome = check(model, floor)
    assert outcome.changes == ("1 additive mask given a finite floor",)


def scattered(size: int = 4) -> Model:
    """Return an old causal mask: a slice of it is filled where the padding is, and written back."""
    grid = np.stack(np.meshgrid([0], np.arange(size), np.arange(size - 1), indexing="ij"), -1).astype(np.int64)
    triangle = np.triu(np.full((1, size, size), LEAST, np.float32), 1)
    return model_of(
        f"""g (float[1, {size}, {size}] x, bool[1, 1, {size - 1}] hidden) => (float[1, {size}, {size}] y) {{
        part = Slice (triangle, start, end, axis) f = Where (hidden, low, part) b = ScatterND (triangle, grid, f)
        s = Add (x, b) y = Softmax (s) }}""",
        triangle=triangle,
        grid=grid,
        low=np.float32(LEAST),
        start=np.int64([0]),
        end=np.int64([size - 1]),
        axis=np.int64([2]),
    )


def test_a_written_back_mask() -> None:
    outcome = check(scattered())
    assert lines(outcome.model)[-3:] == ["b_floor = Max (b, mask_floor)", "s = Add (x, b_floor)", "y = Softmax (s)"]


def test_a_constant_mask_is_a_constant() -> None:
    model = model_of(
        "g (float[N, 3, 3] x) => (float[N, 3, 3] y) { f = Where (c, x, low) y = Softmax (f) }",
        c=np.tril(np.ones((3, 3), bool)),
        low=np.float32(INF),
    )
    outcome = check(model)
    assert lines(outcome.model) == ["f = Add (x, c_mask)", "y = Softmax (f)"]
    assert constants(outcome.model) == {"c_mask": np.triu(np.full((3, 3), -1e9), 1).tolist()}


def test_a_constant_that_is_added_has_a_floor() -> None:
    model = model_of(
        "g (float[N, 3, 3] x) => (float[N, 3, 3] y) { s = Add (x, c) y = Softmax (s) }",
        c=np.triu(np.full((3, 3), INF, np.float32), 1),
    )
    assert constants(check(model, -100.0).model) == {"c_floor": np.triu(np.full((3, 3), -100), 1).tolist()}


def test_masks_of_one_condition_are_one() -> None:
    model = model_of(
        """g (float[N, L, L] x, float[N, L, L] z, bool[N, 1, L] m) => (float[N, L, L] y) {
        a = Where (m, x, low) b = Where (m, z, low) p = Softmax (a) q = Softmax (b) y = Add (p, q) }""",
        low=np.float32(INF),
    )
    assert [line for line in lines(check(model).model) if "Where" in line] == [
        "m_mask = Where (m, mask_zero, mask_floor)"
    ]


def test_float16_has_its_own_floor() -> None:
    model = model_of(
        "g (float16[N, L, L] x, bool[N, 1, L] m) => (float16[N, L, L] y) { f = Where (m, x, low) y = Softmax (f) }",
        low=np.float16(np.finfo(np.float16).min),
    )
    outcome = check(model, tolerance=2e-3)
    assert constants(outcome.model) == {"mask_floor": -30000.0, "mask_zero": 0.0}


def test_a_boolean_mask_of_an_attention() -> None:
    model = model_of(
        """g (float[N, 2, L, 4] q, float[N, 2, L, 4] k, float[N, 2, L, 4] v, bool[N, 1, L, L] m) => (y)
        { y = Attention (q, k, v, m) }""",
        23,
    )
    outcome = MaskedFillToAdd().run(model)
    assert outcome.changes == ("1 boolean mask of Attentions made additive",)
    assert lines(outcome.model) == ["m_mask = Where (m, mask_zero, mask_floor)", "y = Attention (q, k, v, m_mask)"]
    for seed, sizes in enumerate(SIZES):
        feeds = feeds_of(model, sizes, seed)
        np.testing.assert_allclose(run(model, feeds)[0], run(outcome.model, feeds)[0], atol=1e-5)


def test_a_float_mask_of_an_attention_has_a_floor() -> None:
    model = model_of(
        """g (float[N, 2, L, 4] q, float[N, 2, L, 4] k, float[N, 2, L, 4] v, bool[N, 1, L, L] m) => (y)
        { b = Where (m, zero, inf) y = Attention (q, k, v, b) }""",
        23,
        zero=np.float32(0),
        inf=np.float32(INF),
    )
    outcome = MaskedFillToAdd().run(model)
    assert outcome.changes == ("1 additive mask given a finite floor",)
    feeds = feeds_of(model, SIZES[0])
    np.testing.assert_allclose(run(model, feeds)[0], run(outcome.model, feeds)[0], atol=1e-5)


LEFT = {
    "a condition of data": (
        graph("c = Greater (x, zero) f = Where (c, x, low) y = Softmax (f)"),
        "its condition depends on data: it is no mask",
    ),
    "no Softmax": (
        graph("f = Where (m, x, low) y = Relu (f)"),
        "it is no mask: 'Relu#1' (Relu) reads what it gives, before any Softmax",
    ),
    "a largest score that goes elsewhere": (
        graph(
            """f = Where (m, x, low) r = ReduceMax <axes = [-1], keepdims = 1> (f) g = Sub (f, r) p = Softmax (g)
            y = Add (p, r)"""
        ),
        "it is no mask: 'ReduceMax#1' (ReduceMax) reads what it gives, before any Softmax",
    ),
    "another reader": (
        graph("f = Where (m, x, low) p = Softmax (f) r = ReduceMax <keepdims = 1> (f) y = Add (p, r)"),
        "it is no mask: 'ReduceMax#2' (ReduceMax) reads what it gives, before any Softmax",
    ),
    "sums over another axis than its Softmax": (
        graph(
            """f = Where (m, x, low) p = Softmax (f) l = ReduceLogSumExp <axes = [-2], keepdims = 1> (f) g = Sigmoid (l)
            y = Mul (p, g)"""
        ),
        "it is no mask: what it gives reaches Softmaxes over different axes",
    ),
    "sums of no Softmax": (
        graph("f = Where (m, x, low) y = ReduceLogSumExp <axes = [-1], keepdims = 1> (f)"),
        "it is no mask: 'ReduceLogSumExp#1' (ReduceLogSumExp) reads what it gives, before any Softmax",
    ),
    "a fill that may be data": (
        graph("f = Where (m, x, tenth) y = Softmax (f)"),
        "its fill is more than -10,000: it may be data",
    ),
    "whole rows": (
        graph("f = Where (m, x, low) y = Softmax (f)", "bool[N, L, 1] m"),
        "it masks whole rows of a Softmax, which an addition does not",
    ),
    "another axis": (
        graph("f = Where (m, x, low) y = Softmax <axis = 1> (f)"),
        "it masks whole rows of a Softmax, which an addition does not",
    ),
    "a negative scale": (
        graph("f = Where (m, x, low) g = Mul (f, tenth) y = Softmax (g)"),
        "it is no mask: 'Mul#1' scales it by what is no positive constant",
    ),
    "a scale that is computed": (
        graph("f = Where (m, x, low) g = Mul (f, x) y = Softmax (g)"),
        "it is no mask: 'Mul#1' scales it by what is no positive constant",
    ),
    "subtracted": (
        graph("f = Where (m, x, low) g = Sub (x, f) y = Softmax (g)"),
        "it is no mask: 'Sub#1' subtracts it",
    ),
    "all axes at once": (
        graph("f = Where (m, x, low) y = Softmax (f)", opset=12),
        "it is no mask: 'Softmax#1' is not known to be over one axis of its scores",
    ),
    "an output": (
        model_of(
            "g (float[N, L, L] x, bool[N, 1, L] m) => (float[N, L, L] y, float[N, L, L] f) "
            "{ f = Where (m, x, low) y = Softmax (f) }",
            low=np.float32(LEAST),
        ),
        "it is no mask: what it gives is an output of the graph",
    ),
    "a condition of no known shape": (
        graph(
            "c = Reshape (m, where) f = Where (c, x, low) y = Softmax <axis = -1> (f)",
            "bool[N, 1, L] m, int64[R] where",
        ),
        "the shape of its condition is not known",
    ),
    "scores that may be NaN where they do not count": (
        graph("l = Log (x) f = Where (m, l, low) y = Softmax (f)"),
        "'l' may be infinite or NaN where it does not count, which an addition keeps",
    ),
    "an axis that is not there": (
        graph("f = Where (m, x, low) y = Softmax <axis = 7> (f)"),
        "the shapes of the model contradict each other: axis 7 of a tensor of rank 3",
    ),
    "another axis that is not there": (
        graph("f = Where (m, x, low) t = Transpose (f) y = Softmax <axis = -4> (t)"),
        "the shapes of the model contradict each other: axis -4 of a tensor of rank 3",
    ),
    "bfloat16": (
        model_of(
            "g (bfloat16[N, L, L] x, bool[N, 1, L] m) => (bfloat16[N, L, L] y) "
            "{ f = Where (m, x, low) y = Softmax (f) }",
            low=np.array(-1e38, BFLOAT16),
        ),
        "it masks in bfloat16, of which no constants are made here",
    ),
    "bfloat16 that is added": (
        model_of(
            "g (bfloat16[N, L, L] x, bool[N, 1, L] m) => (bfloat16[N, L, L] y) "
            "{ b = Where (m, zero, low) s = Add (x, b) y = Softmax (s) }",
            low=np.array(-1e38, BFLOAT16),
            zero=np.array(0, BFLOAT16),
        ),
        "it masks in bfloat16, of which no constants are made here",
    ),
    "a row of logits": (
        graph("f = Where (m, x, low) y = LogSoftmax (f)"),
        "it is no mask: 'LogSoftmax#1' (LogSoftmax) reads what it gives, before any Softmax",
    ),
}


@pytest.mark.parametrize(("model", "reason"), LEFT.values(), ids=LEFT)
def test_what_is_left(model: Model, reason: str) -> None:
    outcome = MaskedFillToAdd().run(model)
    assert outcome.changes == ()
    assert len(outcome.declined) == 1
    assert reason in str(outcome.declined[0])


def test_a_mask_of_data_in_an_attention_is_left() -> None:
    model = model_of(
        """g (float[N, 2, L, 4] q, float[N, 2, L, 4] k, float[N, 2, L, 4] v, float[N, 1, L, L] w) => (y)
        { z = Neg (w) m = Greater (w, z) y = Attention (q, k, v, m) }""",
        23,
    )
    assert reasons(MaskedFillToAdd().run(model)) == ["Attention#2: its boolean mask depends on data"]


def test_a_fill_in_a_branch_is_left() -> None:
    model = model_of(
        """g (float[N, L, L] x, bool[N, 1, L] m, bool go) => (y) {
        y = If (go) <then_branch = a () => (float[N, L, L] p) { f = Where (m, x, low) p = Softmax (f) },
        else_branch = b () => (float[N, L, L] q) { q = Softmax (x) }> }""",
        low=np.float32(LEAST),
    )
    outcome = MaskedFillToAdd().run(model)
    assert outcome.changes == ()
    assert [str(each).split(": ")[1] for each in outcome.declined] == [
        "it fills what is in a body of another node; inline that first"
    ]


def test_a_bias_without_a_fill_is_left() -> None:
    """A relative-position bias may be far below the floor of a quantised target."""
    model = graph("w = Cast <to = 1> (m) b = Mul (w, slope) s = Add (x, b) y = Softmax (s)", "int64[N, 1, L] m")
    outcome = MaskedFillToAdd(-255.0).run(model)
    assert (outcome.changes, outcome.declined) == ((), ())


def test_a_mask_above_the_floor_is_left() -> None:
    nodes = "w = Cast <to = 1> (m) v = Sub (unit, w) b = Mul (v, mild) s = Add (x, b) y = Softmax (s)"
    model = graph(nodes, "int64[N, 1, L] m")
    assert MaskedFillToAdd().run(model).changes == ()
    assert check(model, -255.0).changes == ("1 additive mask given a finite floor",)


@pytest.mark.parametrize("floor", [0.0, -1.0, 5.0, INF, float("nan")])
def test_a_floor_that_masks_nothing_is_refused(floor: float) -> None:
    with pytest.raises(UsageError, match="does not mask - give one of at most -20"):
        MaskedFillToAdd(floor)


def test_the_floor_is_an_option_of_a_pipeline() -> None:
    assert parse_pipeline("masked-fill-to-add{floor=-2.55e2}") == (MaskedFillToAdd(-255.0),)
    with pytest.raises(UsageError, match="option 'floor' is 'nan' - it takes float"):
        parse_pipeline("masked-fill-to-add{floor=nan}")
