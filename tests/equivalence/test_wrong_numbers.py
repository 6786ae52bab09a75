"""Wrong models that arithmetic of small tensors would prove, were it not the runtime's; runs tell them apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from small_models import model

from graphkit.equivalence import check_equivalence
from graphkit.equivalence.sizes import LARGEST
from graphkit.model import Model
from graphkit.runtime.session import Session
from graphkit.shapes import infer
from graphkit.shapes.graph_inputs import Inputs
from graphkit.shapes.infer import infer_from

BOOL, COUNT = "(float[n] x) => (bool y)", "(float[n] x) => (int64[1] y)"


@dataclass(frozen=True)
class Pair:
    """An original and a wrong constant as bodies of one head, and a right one of a like original."""

    before: str
    wrong: object
    like: str
    right: object
    constants: Mapping[str, object] = field(default_factory=dict)
    head: str = BOOL
    feeds: Mapping[str, object] = field(default_factory=dict)


V = np.array([1e8, 1, -1e8, 1, 1e8, 3, -1e8, 7, 0.1, 0.2, 0.3, 1e7, -1e7, 2, 3, 4], np.float32)
SIGN = "r = Reciprocal (a) y = Less (r, zero)"
INT = "(float[n] x, int64 e) => (bool y)"
SAME = "d = Cast <to = 7> (a) y = Equal (e, d)"
BRANCHES = "then_branch = t () => (float p) {{ p = Neg ({}) }}, else_branch = e () => (float q) {{ q = Neg ({}) }}"


def power(last: int, kind: int = 7) -> str:
    """Return nodes that make powers of a size, `s1` to the last one, in a dtype."""
    made = [f"s{k} = Mul (s{k - 1}, s1)" for k in range(2, last + 1)]
    return " ".join([f"s0 = Shape (x) s1 = Cast <to = {kind}> (s0)", *made])


def of_power(degree: int, kind: int, low: int, size: int) -> Pair:
    """Return quotients of powers of a size: one that wraps around at a size, and one that is proven to be above 0."""
    ends = "q = Div (s{}, s1) r = Cast <to = 7> (q) p = ReduceMin <keepdims = 0> (r) y = Less (zero, p)"
    feeds = {"x": np.ones(size, np.float32)}
    before, like = (f"{power(last, kind)} {ends.format(last)}" for last in (degree, low))
    return Pair(before, True, like, True, {"zero": np.array(0)}, BOOL, feeds)


PAIRS = {
    "a power in int64": of_power(16, 7, 3, 16),
    "a power in int32": of_power(8, 6, 2, 16),
    "steps of a Range of floats": Pair(
        "r = Range (zero, l, d) y = Shape (r)",
        [3],
        "r = Range (zero, e, d) y = Shape (r)",
        [10],
        {"zero": 0.0, "l": 0.3, "e": 0.95, "d": 0.1},
        COUNT,
    ),
    "the order of a sum": Pair(
        "s = ReduceSum (c) y = Cast <to = 7> (s)",
        [17],
        "d = Cast <to = 7> (c) y = ReduceSum (d)",
        [10 + 1 + 1 + 3 + 7 + 10**8 - 10**8 - 1],
        {"c": V},
        COUNT,
    ),
    "a ceiling of -0": Pair("a = Ceil (c) " + SIGN, False, "a = Floor (c) " + SIGN, True, {"c": -0.5, "zero": 0.0}),
    "a rounding to -0": Pair("a = Round (c) " + SIGN, False, "a = Floor (c) " + SIGN, True, {"c": -0.4, "zero": 0.0}),
    "a choice between zeros": Pair(
        "a = Where (c, zero, minus) " + SIGN,
        False,
        "a = Where (c, zero, zero) r = Reciprocal (a) y = Less (zero, r)",
        True,
        {"zero": 0.0, "minus": -0.0},
        "(float[n] x, bool c) => (bool y)",
        {"c": np.array(False)},
    ),
    "branches of zeros": Pair(
        f"a = If (c) <{BRANCHES.format('minus', 'zero')}> {SIGN}",
        False,
        f"a = If (c) <{BRANCHES.format('zero', 'zero')}> {SIGN}",
        True,
        {"zero": 0.0, "minus": -0.0},
        "(float[n] x, bool c) => (bool y)",
        {"c": np.array(False)},
    ),
    "the largest of NaN": Pair(
        "a = Max (one, c) y = Less (a, two)",
        True,
        "a = Max (one, two) y = Less (one, a)",
        True,
        {"c": np.nan, "one": 1.0, "two": 2.0},
    ),
    "a NaN that is clipped": Pair(
        "a = Clip (c, one, two) y = Less (zero, a)",
        True,
        "a = Clip (zero, one, two) y = Equal (a, one)",
        True,
        {"c": np.nan, "one": 1.0, "two": 2.0, "zero": 0.0},
    ),
    "a multiple of an element": Pair(
        "a = Mul (e, three) b = Mod (a, three) y = Equal (b, zero)",
        True,
        "c = Shape (x) a = Mul (c, three) b = Mod (a, three) d = ReduceSum <keepdims = 0> (b) y = Equal (d, zero)",
        True,
        {"three": np.array(3), "zero": np.array(0)},
        INT,
        {"e": np.array(2**62 + 1)},
    ),
    "an element as int32": Pair(
        f"a = Cast <to = 6> (e) {SAME}",
        True,
        f"a = Cast <to = 7> (e) {SAME}",
        True,
        {},
        INT,
        {"e": np.array(2**32 + 5)},
    ),
    "an element as float32": Pair(
        "f = Cast <to = 1> (e) a = Cast <to = 6> (f) y = Equal (e, a)",
        True,
        "f = Cast <to = 11> (e) a = Cast <to = 6> (f) y = Equal (e, a)",
        True,
        {},
        "(float[n] x, int32 e) => (bool y)",
        {"e": np.array(2**24 + 1, np.int32)},
    ),
    "an element as float64": Pair(
        f"a = Cast <to = 11> (e) {SAME}",
        True,
        "c = Max (e, zero) b = Min (c, big) f = Cast <to = 11> (b) a = Cast <to = 7> (f) y = LessOrEqual (a, big)",
        True,
        {"big": np.array(2**53), "zero": np.array(0)},
        INT,
        {"e": np.array(2**53 + 1)},
    ),
    "a negated element": Pair(
        "a = Neg (e) b = Max (a, e) y = GreaterOrEqual (b, zero)",
        True,
        "b = Max (e, zero) a = Neg (b) y = GreaterOrEqual (b, a)",
        True,
        {"zero": np.array(0)},
        INT,
        {"e": np.array(-(2**63))},
    ),
    "the sign of NaN": Pair(
        "a = Sign (c) y = Equal (a, zero)",
        True,
        "a = Sign (zero) y = Equal (a, zero)",
        True,
        {"c": np.nan, "zero": 0.0},
    ),
}


def built(pair: Pair, body: str, **constants: object) -> Model:
    words = (pair.head + body).replace("(", " ").replace(")", " ").replace(",", " ").split()
    found = {name: np.asarray(value) for name, value in {**pair.constants, **constants}.items() if name in words}
    return model(f"g {pair.head} {{ {body} }}", **found)


@pytest.mark.cases(6)
@pytest.mark.parametrize("name", PAIRS)
def test_a_wrong_number_is_not_proven_and_a_right_one_is(name: str) -> None:
    pair = PAIRS[name]
    before, wrong = built(pair, pair.before), built(pair, "y = Identity (k)", k=pair.wrong)
    feeds = {"x": np.arange(1, 4, dtype=np.float32), **pair.feeds}
    results = [Session(each, threads=1).run(feeds)["y"] for each in (before, wrong)]
    assert not np.array_equal(*results)
    assert not check_equivalence(before, wrong).proven
    like, right = built(pair, pair.like), built(pair, "y = Identity (k)", k=pair.right)
    assert np.array_equal(Session(like, threads=1).run(feeds)["y"], Session(right, threads=1).run(feeds)["y"])
    assert check_equivalence(like, right).is_proven


WIDE = "(float[n] a, float[m] b, float[k] c) => (int64[1] y)"
SIZES = "s = Shape (a) t = Shape (b) u = Shape (c) v = Mul (s, t) "
INT64 = f"m*m*n*n <= {(1 << 63) - 1:,}"


def conditions(head: str, body: str) -> tuple[str, ...]:
    made = model(f"g {head} {{ {body} }}")
    found = check_equivalence(made, made, dims="named")
    assert found.is_proven
    assert [*map(str, found.limits)] == [text for text in found.conditions if "<=" in text]
    return tuple(text for text in found.conditions if ">=" not in text)


def test_products_that_may_not_fit_are_a_condition() -> None:
    assert conditions(WIDE, SIZES + "y = Mul (v, v)") == (INT64,)
    assert conditions(WIDE, SIZES + "y = Mul (v, u)") == (INT64.replace("m*m*n*n", "k*m*n"),)
    assert not conditions(WIDE, SIZES + "y = Identity (v)")
    double = "d = Cast <to = 11> (v) y = Cast <to = 7> (d)"
    assert conditions(WIDE, SIZES + double) == (f"m*n <= {1 << 53:,}",)


def test_numbers_of_elements_fit_into_memory() -> None:
    head = WIDE.replace("float[k] c", "float[n, m, k] c")
    assert not conditions(head, SIZES + "w = Shape <start = 2> (c) y = Mul (v, w)")
    assert conditions(head.replace("k", "past_k"), SIZES + "y = Mul (v, v)") == (INT64,)
    apart = head.replace("float[n, m, k] c", "float[n, m, past_k] c, float[k] d")
    assert conditions(apart, SIZES + "w = Shape (d) y = Mul (v, w)") == (INT64.replace("m*m*n*n", "k*m*n"),)


def test_a_resize_by_scales_computes_in_float32() -> None:
    body = "y = Resize (x, , scales)"
    made = model(f"g (float[1, 1, h, w] x) => (float[1, 1, i, j] y) {{ {body} }}", scales=[1.0, 1.0, 3.0, 3.0])
    found = check_equivalence(made, made).conditions
    assert {"h <= 5,592,405", "w <= 5,592,405"} <= {*found}


FLOAT32 = "n <= 16,777,216"


@pytest.mark.parametrize(
    ("node", "is_told"),
    [
        ("y = MaxPool <kernel_shape = [2], strides = [2], ceil_mode = 1> (x)", True),
        ("y = AveragePool <kernel_shape = [1], ceil_mode = 1> (x)", True),
        ("y = MaxPool <kernel_shape = [2], strides = [2]> (x)", False),
        ("t = Transpose <perm = [0, 2, 1]> (x) y = STFT (t, one, window)", True),
    ],
)
def test_windows_that_are_counted_in_float32_are_a_condition(node: str, is_told: bool) -> None:
    made = model(f"g (float[b, 1, n] x) => (y) {{ {node} }}", one=np.array(1), window=np.ones(4, np.float32))
    assert (FLOAT32 in check_equivalence(made, made).conditions) is is_told


@pytest.mark.parametrize(
    ("node", "axis"),
    [
        ("y = MaxPool <kernel_shape = [1], ceil_mode = 1> (x)", 2),
        ("t = Transpose <perm = [0, 2, 1]> (x) y = STFT (t, one, window)", 1),
    ],
)
def test_windows_of_a_long_axis_are_not_known(node: str, axis: int) -> None:
    text = f"g (float[1, 1, {(1 << 24) + 2}] x) => (y) {{ {node} }}"
    made = model(text, one=np.array(1), window=np.ones(4, np.float32))
    dims = infer(made)[made.graph.outputs[0]].dims
    assert dims is not None
    assert [at for at, dim in enumerate(dims) if dim.constant is None] == [axis]


def element_of(body: str, dtype: str = "int64[1]", **numbers: object) -> str:
    """Return the element that is known of an output of nodes that read an element of an input, and sizes."""
    used = {name: number for name, number in numbers.items() if f" {name}" in body or f"({name}" in body}
    made = model(f"g (float[n] s, {dtype} x) => (y) {{ {body} }}", **used)
    data = infer_from(made, Inputs(made, largest=LARGEST))["y"].data  # as a proof infers
    return "None" if data is None else str(data.ravel()[0])


@pytest.mark.parametrize(
    ("body", "is_followed"),
    [
        ("y = Pow (x, one)", False), ("c = Min (x, most) b = Max (c, zero) y = Pow (b, two)", True),
        ("y = Add (x, one)", False), ("y = Sub (zero, x)", False), ("y = Neg (x)", False), ("y = Mul (x, two)", False),
        ("y = Abs (x)", False), ("c = Max (x, zero) y = Neg (c)", True), ("c = Min (x, most) y = Add (c, one)", True),
    ],
)  # fmt: skip
def test_what_is_made_of_an_element_is_followed_where_it_cannot_leave_its_dtype(body: str, is_followed: bool) -> None:
    numbers = {"one": [1], "two": [2], "zero": [0], "most": [1 << 20]}
    assert ("?0.x" in element_of(body, **numbers)) is is_followed


@pytest.mark.parametrize(
    ("body", "is_known"),
    [
        ("y = LessOrEqual (x, large)", True), ("a = Add (x, one) y = Less (x, a)", False),
        ("y = Less (x, large)", False),
        ("m = Max (x, zero) d = Div (m, large) y = Equal (d, zero)", False),
        ("m = Max (x, zero) d = Mod (m, large) y = Equal (d, zero)", False),
        ("a = Min (x, one) y = Less (a, two)", True),
    ],
)  # fmt: skip
def test_elements_of_inputs_may_be_any_numbers_of_their_dtype(body: str, is_known: bool) -> None:
    numbers = {"large": [(1 << 63) - 1], "zero": [0], "one": [1], "two": [2]}
    assert (element_of(body, **numbers) == "1") is is_known


@pytest.mark.parametrize(("kind", "is_told"), [("float16", True), ("bfloat16", True), ("float", False)])
def test_a_proof_of_float16_tells_where_it_is_rounded(kind: str, is_told: bool) -> None:
    text = f"g ({kind}[n] x) => ({kind}[n] y) {{ a = Add (x, x) y = Identity (a) }}"
    told = check_equivalence(model(text), model(text)).conditions
    assert ("float16 is rounded after each node, by one kernel for each operator" in told) == is_told


@pytest.mark.parametrize(
    ("target", "is_proven"),
    [
        ("Concat <axis = 0> (rows, one)", True),
        ("Concat <axis = 0> (rows, columns)", True),
        ("Concat <axis = 0> (others, one)", False),
        ("Concat <axis = 0> (rows, others)", False),
    ],
)
def test_an_expand_whose_axes_depend_on_sizes_is_known_by_the_others(target: str, is_proven: bool) -> None:
    head = "g (float[n, c] x, float[m, d] z, float[k] v) => (float[r, s] y) <int64[1] one = {1}> {"
    sizes = "rows = Shape <end = 1> (z) columns = Shape <start = 1> (x) others = Shape (v) "
    original = model(f"{head} {sizes} all = Concat <axis = 0> (rows, columns) y = Expand (x, all) }}")
    found = check_equivalence(original, model(f"{head} {sizes} t = {target} y = Expand (x, t) }}"))
    assert found.is_proven == is_proven


@pytest.mark.parametrize(("target", "is_proven"), [("k, rows, one", True), ("k, one, columns", False)])
def test_sizes_of_an_expand_are_those_of_the_last_axes(target: str, is_proven: bool) -> None:
    head = "g (float[n, c] x, float[m, d] z, float[k] v) => (float[q, r, s] y) <int64[1] one = {1}> {"
    sizes = "rows = Shape <end = 1> (z) columns = Shape <start = 1> (x) k = Shape (v) "
    one, two = (
        model(f"{head} {sizes} t = Concat <axis = 0> ({each}) y = Expand (x, t) }}")
        for each in ("k, rows, columns", target)
    )
    assert check_equivalence(one, two).is_proven == is_proven
