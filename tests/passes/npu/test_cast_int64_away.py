from __future__ import annotations

import numpy as np
import onnx.helper
import pytest
from rewriting import check, lines, model_of, reasons

from graphkit.model import Model
from graphkit.passes.npu.change_dtypes import CastInt64Away
from graphkit.rewrite.element_bounds import ElementBounds
from graphkit.shapes import infer

PASS = CastInt64Away()
INT64 = 7


def graph(nodes: str, inputs: str, inits: str = "", opset: int = 17) -> Model:
    return model_of(f"g ({inputs}) => (y) <{inits}> {{ {nodes} }}", opset)


def is_free_of_int64(model: Model) -> bool:
    """Whether nothing that nodes compute is int64, but for shapes."""
    shapes = infer(model)
    values = [value for node in model.graph.nodes for value in node.outputs if value is not None]
    return all(shapes[value].dtype != INT64 or shapes[value].is_shape_like for value in values)


MASK = "bool[2, 3] m"
FREED = {
    "a mask that is turned around": graph(
        "a = Cast <to = 7> (m) b = Sub (one, a) y = Cast <to = 1> (b)", MASK, "int64[1, 1] one = {1}"
    ),
    "a mask of int64 that is expanded": graph(
        "a = Unsqueeze (m, two) b = Expand (a, to) y = Cast <to = 1> (b)",
        "int64[2, 3] m",
        "int64[1] two = {2}, int64[3] to = {1, 1, 4}",
    ),
    "moved and cast twice": graph(
        "a = Transpose (m) b = Cast <to = 1> (a) c = Cast <to = 1> (a) y = Add (b, c)", "int64[2, 3] m"
    ),
    "compared": graph(
        "a = Cast <to = 7> (m) b = Add (a, a) c = Greater (b, one) y = Cast <to = 1> (c)", MASK, "int64[1, 1] one = {1}"
    ),
    "selected": graph(
        "a = Cast <to = 7> (m) b = Where (m, a, one) c = Concat <axis = 0> (b, a) y = Cast <to = 6> (c)",
        MASK,
        "int64[1, 1] one = {7}",
    ),
    "by way of int64": graph("a = Cast <to = 7> (m) y = Cast <to = 9> (a)", MASK),
    "small integers that wrap around": graph("a = Cast <to = 7> (m) y = Cast <to = 3> (a)", "int32[2, 3] m"),
    "bounds of products": graph(
        "a = Cast <to = 7> (m) b = Mul (a, k) c = Neg (b) d = Abs (c) e = Max (d, a) y = Cast <to = 1> (e)",
        "int8[2, 3] m",
        "int64[1, 1] k = {100000}",
    ),
}


@pytest.mark.parametrize("model", FREED.values(), ids=FREED)
def test_no_node_gives_int64(model: Model) -> None:
    outcome = check(PASS, model)
    assert not is_free_of_int64(model)
    assert is_free_of_int64(outcome.model)
    assert not outcome.declined


def test_what_has_an_unknown_dtype_stays_int64() -> None:
    model = graph("a = ArgMax <keepdims = 1, axis = 1> (x) y = Squeeze (a)", "float[N, 3] x")
    model.proto.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", INT64, None))
    assert PASS.run(model).model is model


def test_a_cast_of_a_float_truncates_and_stays() -> None:
    outcome = check(
        PASS,
        graph("a = Cast <to = 7> (x) y = Cast <to = 1> (a)", "float[2] x"),
        feeds=[{"x": np.array([1.5, -2.5], np.float32)}],
    )
    assert lines(outcome.model) == ["a = Cast <to: int = 7> (x)", "y = Cast <to: int = 1> (a)"]


def test_positions_of_the_greatest_are_looked_up_by_int32() -> None:
    model = graph("a = ArgMax <axis = 1> (x) y = Gather (t, a)", "float[2, 5] x, float[5, 2] t")
    outcome = check(PASS, model)
    assert lines(outcome.model)[1:] == ["a_int32 = Cast <to: int = 6> (a)", "y = Gather (t, a_int32)"]


def test_the_best_are_picked_by_int32() -> None:
    nodes = "v, p = TopK <axis = 1> (x, two) u = Unsqueeze (p, two) w = Concat <axis = 2> (u, u)"
    model = graph(
        f"{nodes} y = GatherElements <axis = 1> (t, w)", "float[2, 5] x, float[2, 5, 2] t", "int64[1] two = {2}"
    )
    outcome = check(PASS, model)
    cast, moved = lines(outcome.model)[1:3]
    assert cast == "p_int32 = Cast <to: int = 6> (p)"
    assert moved.endswith("= Unsqueeze (p_int32, two)")
    assert not outcome.declined


DECLINED = {
    "stays int64, for 'x' is not known to fit into int32": graph("y = Add (x, x)", "int64[2, 3] x"),
    "stays int64, for 'b' is not known to fit into int32": graph(
        "a = Cast <to = 7> (x) b = Mul (a, a) y = Cast <to = 1> (b)", "int32[2, 3] x"
    ),
    "stays int64, for it is an output": graph("a = Cast <to = 7> (x) y = Neg (a)", "bool[2, 3] x"),
    "stays int64, for Div#2 reads int64": graph(
        "a = Cast <to = 7> (x) b = Neg (a) c = Div (b, one) y = Cast <to = 1> (c)",
        "bool[2, 3] x",
        "int64[1, 1] one = {1}",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("reason", "model"), DECLINED.items(), ids=DECLINED)
def test_what_may_need_int64_stays(reason: str, model: Model) -> None:
    outcome = check(PASS, model)
    assert outcome.model is model
    assert [text.split(": ", 1)[1] for text in reasons(outcome)] == [reason]


def test_shapes_stay_int64() -> None:
    model = graph("s = Shape (x) a = Mul (s, s) y = Cast <to = 1> (a)", "float[N, 3] x")
    assert check(PASS, model).model is model


WHOLE = (-(2**63), 2**63)  # of int64
BOUNDS = {
    "a = Cast <to = 7> (x)": (-128, 127),
    "c = Cast <to = 7> (x) a = Add (c, k)": (-121, 227),
    "c = Cast <to = 7> (x) a = Mul (c, k)": (-12800, 12700),
    "c = Cast <to = 7> (x) a = Sub (k, c)": (-120, 228),
    "c = Cast <to = 7> (x) d = Abs (c) a = Neg (d)": (-128, 0),
    "c = Cast <to = 7> (x) a = Concat <axis = 1> (c, k)": (-128, 127),
    "c = Cast <to = 7> (x) d = Neg (c) e = Cast <to = 3> (d) a = Cast <to = 7> (e)": (-128, 127),
    "c = Cast <to = 7> (x) d = Add (c, k) e = Cast <to = 2> (d) a = Cast <to = 7> (e)": (0, 255),
    "c = Cast <to = 9> (x) a = Cast <to = 7> (c)": (0, 1),
    "a = ArgMax <axis = 1> (x)": (0, 1),
    "c = Cast <to = 1> (x) b, a = TopK <axis = 1> (c, both)": (0, 1),
    "c = Cast <to = 7> (x) a, b = TopK <axis = 1> (c, both)": WHOLE,
    "c = Cast <to = 7> (x) b, a = TopK <axis = 1> (c, both)": WHOLE,  # which of the two it is nobody asks
    "c = Cast <to = 1> (x) a = Cast <to = 7> (c)": (-128, 127),
    "c = Cast <to = 1> (x) d = Sigmoid (c) e = Mul (d, share) a = Cast <to = 7> (e)": (0, 1),
    "c = Cast <to = 7> (x) d = Mul (c, huge) a = Mul (d, huge)": WHOLE,
    "c = Cast <to = 7> (x) a = CumSum (c, zero)": WHOLE,
    "c = Cast <to = 1> (x) d = Log (c) a = Cast <to = 7> (d)": WHOLE,
}


@pytest.mark.parametrize(("nodes", "expected"), BOUNDS.items(), ids=BOUNDS)
def test_bounds(nodes: str, expected: tuple[int, int]) -> None:
    inits = "int64[2, 2] k = {7, 8, 9, 100}, int64[1, 1] huge = {4611686018427387904}, int64 zero = {0}"
    inits += ", int64[1] both = {2}, float share = {0.5}"
    model = graph(f"{nodes} y = Identity (a)", "int8[2, 2] x", inits)
    bounds = ElementBounds(model, infer(model)).of(model.graph.find("a"))
    assert (bounds.low, bounds.high) == expected


def test_the_indices_of_a_gathernd_are_always_int64() -> None:
    text = """g (float[2, 4] x, float[4, 3] table) => (y) <int64[2, 1] one = {1, 1}> {
        a = ArgMax <axis = 1> (x) i = Add (a, one) j = Sub (i, one) y = GatherND (table, j) }"""
    check(CastInt64Away(), model_of(text))
