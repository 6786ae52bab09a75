"""Bounds of values hold for what onnxruntime computes, and say what may be infinite."""

from __future__ import annotations

import numpy as np
import pytest
from rewriting import model_of
from sessions import run

from graphkit.model import Model
from graphkit.rewrite.element_bounds import UNBOUNDED, ElementBounds, Interval
from graphkit.shapes import infer

CONSTANTS: dict[str, object] = {
    "two": np.float32([2, -3]),
    "half": np.float32(0.5),
    "low": np.float32(-1e9),
    "inf": np.float32(-np.inf),
    "least": np.float32(np.finfo(np.float32).min),
    "nan": np.float32([np.nan, 1]),
    "empty": np.zeros((0, 2), np.float32),
}
BOUNDS = {
    "y = Identity (two)": Interval(-3, 2),
    "y = Identity (empty)": Interval(0, 0),
    "y = Identity (nan)": UNBOUNDED,
    "f = Cast <to = 1> (b) y = Mul (f, low)": Interval(-1e9, 0),
    "f = Cast <to = 1> (b) n = Neg (f) y = Sub (n, two)": Interval(-3, 3),
    "y = Where (b, two, low)": Interval(-1e9, 2),
    "y = Where (b, two, inf)": Interval(float("-inf"), 2),
    "w = Where (b, half, inf) y = Max (w, low)": Interval(-1e9, 0.5),
    "w = Where (b, half, inf) y = Min (w, low)": Interval(float("-inf"), -1e9),
    "y = Add (least, low)": Interval(CONSTANTS["least"] + np.float64(-1e9), CONSTANTS["least"] + np.float64(-1e9)),
    "y = Add (least, least)": Interval(float("-inf"), float("-inf")),
    "w = Where (b, half, inf) y = Sub (w, w)": UNBOUNDED,
    "w = Where (b, half, inf) z = Cast <to = 1> (b) y = Mul (w, z)": UNBOUNDED,
    "y = Div (low, half)": Interval(-2e9, -2e9),
    "y = Div (low, two)": UNBOUNDED,
    "y = Trilu (x)": Interval(-1e30, 1e30),
    "p = MatMul (x, x) y = Relu (p)": Interval(-1e30, 1e30),
    "y = Log (x)": UNBOUNDED,
    "y = ReduceMax <keepdims = 0> (two)": Interval(-3, 2),
    "y = ReduceMean <keepdims = 0> (x)": Interval(-1e30, 1e30),
    "l = Log (x) y = ReduceMean <keepdims = 0> (l)": UNBOUNDED,
    "y = Softmax (x)": Interval(0, 1),
    "l = Log (x) y = Softmax (l)": UNBOUNDED,
    "s = Shape (x) y = Cast <to = 1> (s)": Interval(2, 2),
    "s = Shape (x) y = ConstantOfShape <value = float[1] {7}> (s)": Interval(7, 7),
}


def graph(nodes: str) -> Model:
    used = {name: value for name, value in CONSTANTS.items() if name in nodes}
    return model_of(f"g (float[2, 2] x, bool[2] b) => (y) {{ {nodes} }}", **used)


@pytest.mark.parametrize(("nodes", "expected"), BOUNDS.items(), ids=BOUNDS)
def test_bounds(nodes: str, expected: Interval) -> None:
    model = graph(nodes)
    found = ElementBounds(model, infer(model)).of(model.graph.values["y"])
    assert found == expected
    for bits in range(4):
        mask = np.array([bits & 1, bits >> 1], bool)
        (array,) = run(model, {"x": np.float32([[1, -2], [0, 4]]), "b": mask})
        numbers = array[~np.isnan(array)]
        assert found.may_be_nan or numbers.size == array.size
        assert not numbers.size or (numbers.min() >= found.low and numbers.max() <= found.high)


def test_a_long_chain_is_not_followed() -> None:
    nodes = " ".join(f"v{i + 1} = Neg (v{i})" for i in range(2000))
    model = model_of(f"g (float[2] v0) => (float[2] v2000) {{ {nodes} }}")
    assert ElementBounds(model, infer(model)).of(model.graph.values["v2000"]) == UNBOUNDED
