"""Dims that are not known are those of the original where a node reads the same dims and the same shape."""

from __future__ import annotations

import numpy as np
import pytest
from small_models import model

from graphkit.equivalence import check_equivalence
from graphkit.model import Model
from graphkit.runtime.session import Session

# The rows of a square image: an integer that no expression of dims says.
SIDE = "n = Shape <start = 0, end = 1> (x) f = Cast <to = 1> (n) q = Sqrt (f) s = Cast <to = 7> (q) "
ROWS = "g (float[N, 4] x) => (float[R, C, 4] y)"
SCALED = "a = Mul (x, two) b = MatMul (a, w) "
ENDS = {
    "a Reshape": "t = Concat <axis = 0> (s, minus, four) y = Reshape (b, t)",
    "an Expand": "t = Concat <axis = 0> (s, one, one) u = Unsqueeze (b, zero) y = Expand (u, t)",
    "a Slice": "r = Slice (b, zero, s, zero) y = Unsqueeze (r, zero)",
    "a Tile": "t = Concat <axis = 0> (s, one) r = Tile (b, t) y = Unsqueeze (r, zero)",
    "a sum": "t = Concat <axis = 0> (s, one, one) u = Unsqueeze (b, zero) r = Expand (u, t) y = Add (r, u)",
}


def made(body: str, scale: float, head: str = ROWS) -> Model:
    weight = np.arange(16.0).reshape(4, 4) * scale
    numbers = {"two": np.float32(2), "w": weight.astype(np.float32), "minus": np.array([-1]), "four": np.array([4]),
               "one": np.array([1]), "zero": np.array([0])}  # fmt: skip
    words = body.replace("(", " ").replace(")", " ").replace(",", " ").split()
    return model(f"{head} {{ {body} }}", **{name: number for name, number in numbers.items() if name in words})


@pytest.mark.parametrize("name", ENDS)
def test_a_weight_that_is_scaled_leaves_the_dims_behind_it(name: str) -> None:
    before, after = made(SIDE + SCALED + ENDS[name], 1), made(SIDE + "b = MatMul (x, w) " + ENDS[name], 2)
    assert [output.exactness for output in check_equivalence(before, after).outputs] == ["in exact arithmetic"]
    feed = {"x": np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)}
    right, found = (Session(each).run(feed)["y"] for each in (before, after))
    np.testing.assert_allclose(right, found, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ENDS)
def test_the_dims_of_another_shape_are_others(name: str) -> None:
    """A cube root is another number, though its dims are those of the square root."""
    other = SIDE.replace("q = Sqrt (f)", "e = Sqrt (f) q = Sqrt (e)")
    before, after = made(SIDE + SCALED + ENDS[name], 1), made(other + "b = MatMul (x, w) " + ENDS[name], 2)
    assert not check_equivalence(before, after).proven


def test_the_dims_of_other_data_are_others() -> None:
    end = "t = Concat <axis = 0> (s, minus, four) y = Reshape (b, t)"
    before = made(SIDE + SCALED + end, 1)
    after = made(SIDE + "c = Concat <axis = 0> (x, x) b = MatMul (c, w) " + end, 2)
    assert not check_equivalence(before, after).proven


RESHAPED = "t = Concat <axis = 0> (s, minus, four) b = Reshape ({}, t) y = Shape (b)"
PART = "b = Slice ({}, zero, s, zero) u = Unsqueeze (b, zero) y = Shape (u)"  # a Slice never fails
SUMMED = "i = NonZero (x) p = Transpose (i) e = {} (x) j = NonZero (e) q = Transpose (j) s = Add (p, q) "
SUMMED += "u = Unsqueeze (s, zero) y = Shape (u)"
SHAPES = {
    "another shape": (SIDE + RESHAPED.format("x"), SIDE.replace("Sqrt", "Log") + RESHAPED.format("x")),
    "other data": (SIDE + RESHAPED.format("x"), SIDE + "c = Concat <axis = 0> (x, x) " + RESHAPED.format("c")),
    "another attribute": (
        SIDE + RESHAPED.format("x"), SIDE + RESHAPED.format("x").replace("Reshape", "Reshape <allowzero = 1>")),
    "another end of a part": (SIDE + PART.format("x"), SIDE.replace("Sqrt", "Log") + PART.format("x")),
    "a part of other data": (SIDE + PART.format("x"), SIDE + "c = Concat <axis = 0> (x, x) " + PART.format("c")),
    "a broadcast of another list": (SUMMED.format("Log"), SUMMED.format("Exp")),
    "another operator": (
        SIDE + "t = Concat <axis = 0> (s, one, one) u = Unsqueeze (x, zero) b = Expand (u, t) y = Shape (b)",
        SIDE + "t = Concat <axis = 0> (s, one, one) u = Unsqueeze (x, zero) b = Reshape (u, t) y = Shape (b)"),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_dims_that_are_not_known_are_told_apart(name: str) -> None:
    before, after = (made(body, 1, "g (float[N, 4] x) => (int64[3] y)") for body in SHAPES[name])
    assert check_equivalence(before, before).is_proven
    assert not check_equivalence(before, after).proven


OTHER = "l = Log (f) e = Cast <to = 7> (l) "
BOTH = {
    "other shapes": OTHER + "b = Slice (x, zero, s, zero) c = Slice (x, zero, e, zero) ",
    "other data": "d = Concat <axis = 0> (x, x) b = Slice (x, zero, s, zero) c = Slice (d, zero, s, zero) ",
    "other attributes": "t = Concat <axis = 0> (s, minus) b = Reshape (x, t) c = Reshape <allowzero = 1> (x, t) ",
    "other operators": "t = Concat <axis = 0> (s, one) b = Expand (x, t) c = Tile (x, t) ",
}


@pytest.mark.parametrize("name", BOTH)
def test_dims_that_are_not_known_are_not_exchanged(name: str) -> None:
    """All nodes stand in the original, so that none may fail."""
    head = "g (float[N, 4] x) => (int64[2] y, int64[2] z)"
    before, after = (made(f"{SIDE}{BOTH[name]}y = Shape ({y}) z = Shape ({z})", 1, head) for y, z in ("bc", "cb"))
    assert check_equivalence(before, before).is_proven
    assert not check_equivalence(before, after).proven
