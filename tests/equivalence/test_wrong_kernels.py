"""Models that differ by the kernel that onnxruntime takes: by an output, an argument that repeats, a batch of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from small_models import model
from test_axioms import bits

from graphkit.equivalence import check_equivalence
from graphkit.model import Model
from graphkit.passes.fold_pipeline import fold
from graphkit.runtime.session import Session

HEAD = '<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>\n'
RNG = np.random.default_rng(0)
SIGNS = np.array([[0, -0.0, -0.0, 1, -1, -0.0, -0.0, -0.0, -0.0]], np.float32)
COLUMN = RNG.normal(size=(64, 1)).astype(np.float32)
ROWS = RNG.normal(size=(8, 1, 67)).astype(np.float32)
WIDE = np.arange(37, dtype=np.float32)[None]
MATRIX = RNG.normal(size=(1, 1, 67, 33)).astype(np.float32)


@dataclass(frozen=True)
class Pair:
    """Two bodies of one head, and inputs at which their bits differ."""

    head: str
    bodies: tuple[str, str]
    feed: Mapping[str, np.ndarray]
    constants: Mapping[str, object] = field(default_factory=dict)

    def models(self) -> tuple[Model, Model]:
        before, after = (model(f"g {self.head} {{ {body} }}", HEAD, **self.constants) for body in self.bodies)
        return before, after


POOL = "= MaxPool <kernel_shape = [3], pads = [1, 1]> (x)"
REPEATED = "s = Shape (q) e = Expand (x, s) "
CHOSEN = {"c": np.array([[True], [False]]), "x": np.full((2, 1), -0.0, np.float32),
          "u": np.full((2, 1), -0.0, np.float32)}  # fmt: skip
ODD = {"x": np.array([[-np.inf] * 4 + [1, 2, 0, 0, 0, 0]] * 3, np.float32)[None]}
PAIRS = {
    "a pool without indices": Pair(
        "(float[N, 3, L] x) => (float[N, 3, P] y)", (f"y, i {POOL}", f"y {POOL}"), ODD),
    "the largest of what is filled": Pair(
        "(float[B, S] x) => (float[B, S] y)",
        ("s = Shape (x) e = ConstantOfShape (s) y = Max (e, x)", "y = Max (c, x)"), {"x": SIGNS},
        {"c": np.zeros((1, 1))}),
    "the least of what repeats": Pair(
        "(float[B, 1] x, float[B, S] q) => (float[B, S] y)", (REPEATED + "y = Min (e, q)", "y = Min (x, q)"),
        {"x": np.zeros((1, 1), np.float32), "q": SIGNS}),
    "the largest of a column": Pair(
        "(float[N, 1] x) => (float[N] y)",
        ("p = Max (x, nil) y = Squeeze (p, one)", "s = Squeeze (x, one) y = Max (s, nil)"),
        {"x": np.full((5, 1), -0.0, np.float32)}, {"nil": 0.0, "one": np.array([1])}),
    "the largest beside a row that may be one": Pair(
        "(float[N, M] x, float[M] w) => (float[N, M] y)", ("y = Max (x, w)", "u = Unsqueeze (w, zero) y = Max (x, u)"),
        {"x": np.full((5, 1), -0.0, np.float32), "w": np.zeros(1, np.float32)}, {"zero": np.array([0])}),
    "the largest of rows with a 1 between": Pair(
        "(float[N, 5] x) => (float[N, 5] y)",
        ("y = Max (x, nil)", "u = Unsqueeze (x, one) m = Max (u, nil) y = Squeeze (m, one)"),
        {"x": np.resize(SIGNS, (9, 5))}, {"nil": 0.0, "one": np.array([1])}),
    "the least of rows of which a dim may be 1": Pair(
        "(float[N, M, 5] x, float w) => (float[N, M, 5] y)",
        ("y = Min (x, w)", "r = Reshape (x, rows) m = Min (r, w) s = Shape (x) y = Reshape (m, s)"),
        {"x": np.resize(-SIGNS, (9, 1, 5)), "w": np.array(0, np.float32)}, {"rows": np.array([-1, 5])}),
    "a Relu of float16 by its body": Pair(
        "(float16[N, 1] x) => (float16[N] y)",
        ("p = Relu (x) y = Squeeze (p, one)", "s = Squeeze (x, one) y = Relu (s)"),
        {"x": np.full((5, 1), -0.0, np.float16)}, {"one": np.array([1])}),
    "a choice by a Not": Pair(
        "(bool[n, m] c, float[n, m] x, float[n, m] u) => (float[n, m] y)",
        ("b = Not (c) y = Where (b, u, x)", "y = Where (c, x, u)"), CHOSEN),
    "a choice by what repeats": Pair(
        "(bool[b, n] c, float[b, n, 8] x) => (float[b, n, 8] y)",
        ("u = Unsqueeze (c, two) s = Shape (x) e = Expand (u, s) y = Where (e, x, nil)",
         "u = Unsqueeze (c, two) y = Where (u, x, nil)"),
        {"c": np.ones((1, 2), bool), "x": np.full((1, 2, 8), -0.0, np.float32)}, {"nil": 0.0, "two": np.array([2])}),
    "a choice from what repeats": Pair(
        "(bool[n, 1] c, float[n, m] x, float[n, 1] u) => (float[n, m] y)",
        ("s = Shape (x) e = Expand (u, s) y = Where (c, x, e)", "y = Where (c, x, u)"),
        {"c": np.ones((2, 1), bool), "x": np.full((2, 3), -0.0, np.float32), "u": np.zeros((2, 1), np.float32)}),
    "a choice of rows of which one has one number": Pair(
        "(bool[b, 1, 1, m] c, float[b, 4, n, m] x) => (float[b, 4, n, m] y)",
        ("s = Shape (x) e = Expand (c, s) y = Where (e, x, nil)", "y = Where (c, x, nil)"),
        {"c": np.ones((1, 1, 1, 1), bool), "x": np.full((1, 4, 2, 1), -0.0, np.float32)}, {"nil": 0.0}),
    "a first state of zeros beside what is infinite": Pair(
        "(float[s, n, 2] x) => (float[k, l, m, o] y)",
        ("t = Shape <start = 1, end = 2> (x) u = Concat <axis = 0> (one, t, three) z = ConstantOfShape (u) "
         "y = RNN <hidden_size = 3> (x, w, r, , , z)", "y = RNN <hidden_size = 3> (x, w, r)"),
        {"x": np.ones((1, 1, 2), np.float32)},
        {"w": np.ones((1, 3, 2)), "r": np.where(np.arange(9).reshape(1, 3, 3) == 0, np.inf, 0.1),
         "one": np.array([1]), "three": np.array([3])}),
    "a power of a column": Pair(
        "(float[N, 1] x) => (float[N] y)",
        ("p = Pow (x, three) y = Squeeze (p, one)", "s = Squeeze (x, one) y = Pow (s, three)"), {"x": COLUMN},
        {"three": 3.0, "one": np.array([1])}),
    "a power of means": Pair(
        "(float[N, S, D] x) => (float[N, S] y)",
        ("v = ReduceMean <keepdims = 1> (x, last) p = Pow (v, three) y = Squeeze (p, last)",
         "v = ReduceMean <keepdims = 0> (x, last) y = Pow (v, three)"), {"x": COLUMN.reshape(8, 8, 1)},
        {"three": 3.0, "last": np.array([-1])}),
    "a power by a number of more axes": Pair(
        "(float[N, M] x, float[M] w) => (float[N, M] y)", ("y = Pow (x, w)", "u = Unsqueeze (w, zero) y = Pow (x, u)"),
        {"x": COLUMN, "w": np.array([3.0], np.float32)}, {"zero": np.array([0])}),
    "a matrix with more axes": Pair(
        "(float[B, 1, 67] x) => (float[1, B, 1, 33] y)",
        ("y = MatMul (x, w)", "v = Squeeze (w, first) t = MatMul (x, v) y = Unsqueeze (t, zero)"), {"x": ROWS},
        {"w": MATRIX, "first": np.array([0, 1]), "zero": np.array([0])}),
    "batches that may be one": Pair(
        "(float[H, M, 67] x, float[B, 1, 67, 33] w) => (float[B, H, M, 33] y)",
        ("y = MatMul (x, w)", "u = Unsqueeze (x, zero) y = MatMul (u, w)"), {"x": ROWS, "w": MATRIX},
        {"zero": np.array([0])}),
    "a Cast of what no uint32 holds": Pair(
        "(float[N, 1] x, float[N, M] q) => (uint32[N, M] y)",
        (REPEATED + "y = Cast <to = 12> (e)", "s = Shape (q) e = Cast <to = 12> (x) y = Expand (e, s)"),
        {"x": np.array([[np.nan]], np.float32), "q": WIDE}),
}  # fmt: skip


@pytest.mark.cases(7)
@pytest.mark.parametrize("name", PAIRS)
def test_bits_that_a_kernel_decides_are_not_proven(name: str) -> None:
    pair = PAIRS[name]
    before, after = pair.models()
    right, made = (Session(each, threads=1).run(pair.feed)["y"] for each in (before, after))
    assert (bits(right) != bits(made)).any()
    (found, *_) = check_equivalence(before, after).outputs
    assert found.exactness in ("", "in exact arithmetic")
    if found.exactness:
        np.testing.assert_allclose(right, made, rtol=1e-6 if found.exactness == "in exact arithmetic" else 0, atol=0)


def test_a_power_of_rows_may_be_shaped_back() -> None:
    text = "g (float[N, S, 4] x) => (float[N, S, 4] y) {{ {} }}"
    numbers = {"two": np.float32(2)}
    flat = text.format("r = Reshape (x, rows) p = Pow (r, two) s = Shape (x) y = Reshape (p, s)")
    before, after = (
        model(flat, HEAD, rows=np.array([-1, 4]), **numbers),
        model(text.format("y = Pow (x, two)"), HEAD, **numbers),
    )
    assert [each.exactness for each in check_equivalence(before, after).outputs] == ["bit for bit"]


@pytest.mark.parametrize("exponent", [0.5, 2.0, 3.0])
def test_a_power_of_one_number_has_any_rank(exponent: float) -> None:
    """As that of the size of an image, whose root is its height."""
    texts = ["s = Squeeze (x) p = Pow (s, e) y = Unsqueeze (p, zero)", "y = Pow (x, e)"]
    models = [
        model(
            f"g (float[1] x) => (float[1] y) {{ {text} }}",
            HEAD,
            e=exponent,
            **({"zero": [0]} if "zero" in text else {}),
        )
        for text in texts
    ]
    feeds = [{"x": np.array([number], np.float32)} for number in RNG.random(100) * 9]
    right, made = ([Session(each, threads=1).run(feed)["y"] for feed in feeds] for each in models)
    assert (bits(np.array(right)) == bits(np.array(made))).all()
    assert [each.exactness for each in check_equivalence(*models).outputs] == ["bit for bit"]


def test_the_largest_of_what_has_no_zero_may_repeat() -> None:
    text = "g (float[B, S] x) => (float[B, S] y) {{ {} }}"
    before = model(text.format("s = Shape (x) e = Expand (c, s) y = Max (e, x)"), HEAD, c=np.float32(-3))
    (found,) = check_equivalence(before, model(text.format("y = Max (c, x)"), HEAD, c=np.float32(-3))).outputs
    assert found.exactness == "bit for bit"


def test_a_fold_says_that_the_largest_of_zeros_may_have_another_sign() -> None:
    before, _ = PAIRS["the largest of what is filled"].models()
    (found,) = check_equivalence(before, fold(before).model).outputs
    assert found.exactness == "in exact arithmetic"


def test_a_node_with_an_overload_is_no_known_slice() -> None:
    """onnxruntime does not ask for one of an operator; the checker must not fail of it."""
    text = "g (float[N, 3, 2] x, int64[1] a) => (float[P, Q, 2] y) { t = Slice (x, a, n, z) y = Slice (t, z, n, o) }"
    proto = model(text, HEAD, z=np.array([0]), o=np.array([1]), n=np.array([2])).proto
    for node in proto.graph.node:
        node.overload = "q"
    assert check_equivalence(Model.from_proto(proto), Model.from_proto(proto)).is_proven


def test_channels_of_groups_are_scaled_and_shifted() -> None:
    """A weight of groups has fewer channels along its second axis than its data."""
    text = "g (float[n, 4, 5, 5] x) => (float[p, q, r, t] y) {{ p = Mul (x, g) {} }}"
    kernel = RNG.normal(size=(4, 2, 1, 1)).astype(np.float32)
    constants = {"g": np.arange(1.0, 5).reshape(4, 1, 1), "two": 2.0, "w": kernel, "b": 2 * kernel.sum((1, 2, 3))}
    before = model(text.format("s = Add (p, two) y = Conv <group = 2> (s, w)"), HEAD, **constants)
    after = model(text.format("y = Conv <group = 2> (p, w, b)"), HEAD, **constants)
    assert [each.exactness for each in check_equivalence(before, after).outputs] == ["in exact arithmetic"]


def test_the_digits_of_a_quickgelu_of_double_depend_on_its_place() -> None:
    head = "g (double[N, 1] x, double[N, M] q) => (double[N, M] y, double[N, 1] z)"
    bodies = ("e = Expand (x, s) y = com.microsoft.QuickGelu (e)", "y = Expand (z, s)")
    texts = [f"{head} {{ s = Shape (q) z = com.microsoft.QuickGelu (x) {body} }}" for body in bodies]
    before, after = (model(text, HEAD) for text in texts)
    feeds = [{"x": np.array([[number]]), "q": np.zeros((1, 4))} for number in RNG.normal(size=200)]
    right, made = ([Session(each, threads=1).run(feed)["y"] for feed in feeds] for each in (before, after))
    assert (bits(np.array(right)) != bits(np.array(made))).any()
    assert [output.exactness for output in check_equivalence(before, after).outputs] == [
        "in exact arithmetic",
        "bit for bit",
    ]
