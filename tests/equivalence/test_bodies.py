"""Bodies, functions, unknown dims and random numbers: equal where what they compute is, and not where it is not."""

from __future__ import annotations

import re

import numpy as np
import pytest
from onnx import numpy_helper
from small_models import model

from graphkit.equivalence import check_equivalence
from graphkit.errors import ModelError
from graphkit.model import Model
from graphkit.runtime.session import Session

LOOP = """g (int64 n, float[k] x, float[k] z) => (float[k] y, float[a, k] all) {{
    y, all = Loop (n, yes, x) <body = b (int64 i, bool c, float[k] h) => (bool more, float[k] next, float[k] seen) {{
        {} }}>
}}"""
STEP = "more = Identity (c) w = Neg (h) next = Add (w, z) seen = Mul (h, z)"
SCAN = """g (float[k] x, float[t, k] s) => (float[k] y, float[t, k] all) {{
    y, all = Scan (x, s) <num_scan_inputs = 1, body = b (float[k] h, float[k] e) => (float[k] next, float[k] seen) {{
        {} }}>
}}"""
SCANNED = "w = Neg (h) next = Add (w, e) seen = Mul (h, e)"
IF = """g (bool c, float[n] x, float[n] z) => (float[n] y) {{
    d = {} (c)
    y = If (d) <then_branch = t () => (float[n] a) {{ {} }}, else_branch = e () => (float[n] a) {{ {} }}>
}}"""
FUNCTION = """g (float[b, s] x) => (float[b, s] y) { y = own.twice (x) }
<opset_import: ["" : 18], domain: "own"> twice (x) => (y) { a = Neg (x) y = BODY }"""
FUNCTIONS = '<ir_version: 10, opset_import: ["" : 18, "own" : 1]>'
NONZERO = "g (bool[n, m] c, float[n, m] x) => (int64[k, l] y) {{ {} }}"
TWICE = "i = NonZero (c) p = Squeeze (i) j = NonZero (c) q = Squeeze (j) r = Concat <axis = 1> (i, j, i) "

EQUAL = {
    "a Loop with an Identity in it": (
        LOOP.format(STEP), LOOP.format(STEP.replace("w = Neg (h)", "h2 = Identity (h) w = Neg (h2)"))),
    "a Loop whose names are others": (LOOP.format(STEP), re.sub(r"\bh\b", "q", LOOP.format(STEP))),
    "a Scan with operands in another order": (
        SCAN.format(SCANNED), SCAN.format(SCANNED.replace("Add (w, e)", "Add (e, w)"))),
    "an If with an Identity in a branch": (
        IF.format("Identity", "a = Neg (x)", "a = Abs (z)"),
        IF.format("Identity", "w = Neg (x) a = Identity (w)", "a = Abs (z)")),
    "an If that reads what was computed around it": (
        IF.format("Identity", "a = Neg (x)", "a = Neg (x)").replace("d =", "w = Neg (x) d ="),
        IF.format("Identity", "a = Identity (w)", "a = Identity (w)").replace("d =", "w = Neg (x) d =")),
    "a branch that never runs, and loads": (
        IF.format("Identity", "a = Neg (x)", "a = Neg (z)").replace("(c)", "(yes)"),
        IF.format("Identity", "a = Neg (x)", "w = Abs (z) a = Neg (w)").replace("(c)", "(yes)")),
    "unknown dims, one Transpose back and forth": (
        NONZERO.format("i = NonZero (c) y = Transpose (i)"),
        NONZERO.format("q = NonZero (c) p = Transpose (q) r = Transpose (p) y = Transpose (r)")),
    "unknown dims, shaped as they are": (
        NONZERO.format("i = NonZero (c) t = Transpose (i) s = Shape (t) y = Reshape (t, s)"),
        NONZERO.format("i = NonZero (c) y = Transpose (i)")),
    "unknown dims, in another order": (
        NONZERO.format("i = NonZero (c) j = NonZero (x) k = Concat <axis = 1> (i, j) y = Transpose (k)"),
        NONZERO.format("j = NonZero (x) i = NonZero (c) k = Concat <axis = 1> (i, j) y = Transpose (k)")),
    "unknown dims of one term, known by the first of two nodes": (
        NONZERO.format(TWICE + "y = Transpose (r)"), NONZERO.format(TWICE + "w = Identity (r) y = Transpose (w)")),
    "random numbers of one node": (
        "g (float[n] x) => (float[n] y) { r = RandomNormalLike (x) y = Sub (r, r) }",
        "g (float[n] x) => (float[n] y) { r = RandomNormalLike (x) q = Identity (r) y = Sub (r, q) }"),
}  # fmt: skip
UNEQUAL = {
    "a Loop that computes another thing": (LOOP.format(STEP), LOOP.format(STEP.replace("Neg", "Abs"))),
    "a Loop that gives another state": (LOOP.format(STEP), LOOP.format(STEP.replace("Mul (h, z)", "Mul (z, z)"))),
    "a Loop that stops": (LOOP.format(STEP), LOOP.format(STEP.replace("Identity (c)", "Not (c)"))),
    "a Loop that begins elsewhere": (LOOP.format(STEP), LOOP.format(STEP).replace("(n, yes, x)", "(n, yes, z)")),
    "a Loop that runs at most once": (LOOP.format(STEP), LOOP.format(STEP).replace("(n, yes, x)", "(one, yes, x)")),
    "a Loop that counts": (LOOP.format(STEP), LOOP.format(STEP.replace("Mul (h, z)", "Mul (h, h)"))),
    "a Scan that reads backwards": (
        SCAN.format(SCANNED), SCAN.format(SCANNED).replace("inputs = 1", "inputs = 1, scan_input_directions = [1]")),
    "a Scan whose state is its element": (SCAN.format(SCANNED), SCAN.format(SCANNED.replace("Neg (h)", "Neg (e)"))),
    "an If with its branches exchanged": (
        IF.format("Identity", "a = Neg (x)", "a = Abs (x)"), IF.format("Identity", "a = Abs (x)", "a = Neg (x)")),
    "an If of the opposite": (
        IF.format("Identity", "a = Neg (x)", "a = Abs (x)"), IF.format("Not", "a = Neg (x)", "a = Abs (x)")),
    "an If that reads another value": (
        IF.format("Identity", "a = Neg (x)", "a = Abs (x)"), IF.format("Identity", "a = Neg (z)", "a = Abs (x)")),
    "unknown dims of two nodes": (
        NONZERO.format("i = NonZero (c) y = Transpose (i)"), NONZERO.format("i = NonZero (x) y = Transpose (i)")),
    "unknown dims of two terms that are read twice": (
        NONZERO.format(TWICE + "y = Transpose (r)"),
        NONZERO.format(TWICE.replace("j = NonZero (c)", "j = NonZero (x)") + "y = Transpose (r)")),
    "unknown dims that a 0 would copy": (
        NONZERO.format("i = NonZero (c) t = Transpose (i) s = Shape (t) y = Reshape <allowzero = 1> (i, s)"),
        NONZERO.format("i = NonZero (c) t = Transpose (i) s = Shape (t) y = Reshape (i, s)")),
    "unknown dims exchanged": (
        NONZERO.format("i = NonZero (c) j = NonZero (x) k = Concat <axis = 1> (i, j) y = Transpose (k)"),
        NONZERO.format("i = NonZero (c) j = NonZero (x) k = Concat <axis = 1> (j, i) y = Transpose (k)")),
    "random numbers of two nodes": (
        "g (float[n] x) => (float[n] y) { r = RandomNormalLike (x) q = RandomNormalLike (x) y = Sub (r, q) }",
        "g (float[n] x) => (float[n] y) { r = RandomNormalLike (x) q = RandomNormalLike (x) y = Sub (r, r) }"),
    "random numbers by another node": (
        "g (float[n] x) => (float[n] y) { r = RandomUniformLike (x) y = Add (r, x) }",
        "g (float[n] x) => (float[n] y) { r = RandomUniformLike <high = 2.0> (x) y = Add (r, x) }"),
    "random numbers that a Bernoulli draws": (
        "g (float[n] x) => (float[n] y) { r = Bernoulli (x) q = Bernoulli (x) y = Sub (r, q) }",
        "g (float[n] x) => (float[n] y) { r = Bernoulli (x) q = Bernoulli (x) y = Sub (q, r) }"),
}  # fmt: skip


@pytest.mark.parametrize("name", EQUAL)
def test_it_is_proven(name: str) -> None:
    found = check_equivalence(*(model(text, **_constants(text)) for text in EQUAL[name]))
    assert found.is_proven, str(found)


@pytest.mark.parametrize("name", UNEQUAL)
def test_it_is_not_proven(name: str) -> None:
    before, after = (model(text, **_constants(text)) for text in UNEQUAL[name])
    assert check_equivalence(before, before).is_proven
    assert not check_equivalence(before, after).is_proven


def _constants(text: str) -> dict[str, object]:
    return {name: number for name, number in (("yes", True), ("one", 1)) if re.search(rf"{name}\b[,)]", text)}


def test_a_function_is_what_its_body_computes() -> None:
    before = model(FUNCTION.replace("BODY", "Neg (a)"), head=FUNCTIONS)
    assert check_equivalence(
        before, model("g (float[b, s] x) => (float[b, s] y) { a = Neg (x) y = Neg (a) }")
    ).is_proven
    assert not check_equivalence(before, model(FUNCTION.replace("BODY", "Abs (a)"), head=FUNCTIONS)).is_proven
    assert not check_equivalence(before, model(FUNCTION.replace("BODY", "Neg (x)"), head=FUNCTIONS)).is_proven


def calling(function: str, opset: int = 18) -> Model:
    """Return a model that calls a function of x and z."""
    text = "g (float[n] x, float[n] z) => (float[n] y) { y, q = own.f (x, z) } "
    return model(f'{text} <opset_import: ["" : {opset}, "own" : 1], domain: "own"> {function}', head=FUNCTIONS)


LEAKY = "f <alpha: float = {}> (a, c) => (b, d) {{ b = LeakyRelu <alpha: float = @alpha> (a) d = Neg (c) }}"
PLAIN = "g (float[n] x, float[n] z) => (float[n] y) {{ y = {} (x) }}"


def test_a_default_of_a_function_is_what_a_call_leaves_out() -> None:
    before = calling(LEAKY.format(0.5))
    assert check_equivalence(before, model(PLAIN.format("LeakyRelu <alpha = 0.5>"))).is_proven
    assert not check_equivalence(before, model(PLAIN.format("LeakyRelu"))).is_proven
    assert not check_equivalence(before, calling(LEAKY.format(0.25))).is_proven


def test_an_input_that_a_function_gives_back_has_no_proof() -> None:
    before = calling("f (a, c) => (a, b) { b = Neg (c) }")
    with pytest.raises(ModelError, match="onnxruntime does not load it"):
        Session(before)
    with pytest.raises(ModelError, match="its function 'f' gives its input 'a' back"):
        check_equivalence(model(PLAIN.format("Identity")), before)


def test_functions_of_another_operator_set_are_compared_by_what_they_compute() -> None:
    before = calling("f (a, c) => (b, d) { b = Neg (a) d = Neg (c) }", opset=17)
    renamed = model(PLAIN.format("Neg"))
    assert check_equivalence(before, before).is_proven
    assert check_equivalence(before, renamed).is_proven
    assert not check_equivalence(before, calling("f (a, c) => (b, d) { b = Abs (a) d = Neg (c) }", opset=17)).is_proven


VERSIONED = '<ir_version: 8, opset_import: ["" : {}, "own" : 1]>\n'
SOFTMAX = """g (float[n, m, k] x) => (float[n, m, k] y) {{ {} }}
<opset_import: ["" : {}, "own" : 1], domain: "own"> f (a) => (b) {{ {} }}
<opset_import: ["" : {}], domain: "own"> h (a) => (b) {{ b = Softmax <axis = 1> (a) }}"""
CALLS = {
    "a call": ("y = own.h (x)", "b = Neg (a)"),
    "a call in a call": ("y = own.f (x)", "b = own.h (a)"),
    "a call in a branch": ("d = Constant <value = bool {1}> () y = If (d) <then_branch = t () => (p) "
                           "{ p = own.h (x) }, else_branch = e () => (q) { q = Neg (x) }>", "b = Neg (a)"),
    "a branch in a call": ("y = own.f (x)", "d = Constant <value = bool {1}> () b = If (d) <then_branch = "
                           "t () => (p) { p = own.h (a) }, else_branch = e () => (q) { q = Neg (a) }>"),
}  # fmt: skip


@pytest.mark.parametrize("version", [11, 13, 18])
@pytest.mark.parametrize("name", CALLS)
def test_a_function_runs_at_the_operator_set_of_its_model(name: str, version: int) -> None:
    body, inner = CALLS[name]
    made = {
        opset: model(SOFTMAX.format(body, version, inner, version), head=VERSIONED.format(opset)) for opset in (12, 18)
    }
    plain = {opset: model("g (float[n, m, k] x) => (float[n, m, k] y) { y = Softmax <axis = 1> (x) }",
                          head=VERSIONED.format(opset)) for opset in (12, 18)}  # fmt: skip
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    outputs = {opset: Session(each).run({"x": x})["y"] for opset, each in made.items()}
    for opset, each in made.items():
        np.testing.assert_array_equal(outputs[opset], Session(plain[opset]).run({"x": x})["y"])
        assert check_equivalence(each, plain[opset]).is_proven
    assert not np.allclose(outputs[12], outputs[18])
    assert not check_equivalence(made[12], made[18]).proven
    assert not check_equivalence(made[18], made[12]).proven


def test_several_versions_of_operators_that_only_functions_have_are_not_certain() -> None:
    text = "g (float[n] x) => (float[n] y) { a = own.f (x) y = own.h (a) } "
    text += '<opset_import: ["" : 17, "ai.onnx.ml" : 2], domain: "own"> f (a) => (b) { b = Neg (a) } '
    text += '<opset_import: ["" : 17, "ai.onnx.ml" : 3], domain: "own"> h (a) => (b) { b = Neg (a) }'
    made = model(text, head=VERSIONED.format(17))
    with pytest.raises(ModelError, match=r"its functions have several versions of the operators of ai\.onnx\.ml"):
        check_equivalence(made, made)


def test_a_function_that_draws_random_numbers_gives_others_at_each_call() -> None:
    text = "g (float[n] x) => (float[n] y) {{ a = own.f (x) {} }} "
    text += '<opset_import: ["" : 17, "own" : 1], domain: "own"> f (a) => (b) {{ b = own.h (a) }} '
    text += '<opset_import: ["" : 17], domain: "own"> h (a) => (b) {{ {} }}'
    for inner, is_proven in (("b = Neg (a)", True), ("r = RandomNormalLike (a) b = Add (a, r)", False)):
        bodies = ("b = own.f (x) y = Sub (a, b)", "y = Sub (a, a)")
        before, after = (model(text.format(body, inner), head=FUNCTIONS) for body in bodies)
        assert check_equivalence(before, before).is_proven
        assert check_equivalence(before, after).is_proven is is_proven


def test_an_attribute_that_may_be_missing_and_has_a_default_further_in_is_not_certain() -> None:
    outer = "f <alpha> (a, c) => (b, d) { b, d = own.h <alpha: float = @alpha> (a, c) }"
    inner = LEAKY.format(0.5).replace("f <", "h <")
    unsure = calling(f'{outer} <opset_import: ["" : 18], domain: "own"> {inner}')
    with pytest.raises(ModelError, match="may have no 'alpha', for which 'h' has a default"):
        check_equivalence(unsure, unsure)


@pytest.mark.parametrize("text", [
    LOOP.format("more = Identity (c) next = Add (h, w) seen = Identity (h)").replace("k] h)", "k] h, float[k] w)"),
    SCAN.format("next = Add (h, w) seen = Identity (e)").replace("k] e)", "k] e, float[k] w)"),
])  # fmt: skip
def test_an_input_of_a_body_that_has_a_default_has_no_proof(text: str) -> None:
    proto = model(text, **_constants(text)).restore()
    body = next(each.g for each in proto.graph.node[0].attribute if each.HasField("g"))
    body.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "w"))
    made = Model.from_proto(proto)
    with pytest.raises(ModelError, match=r"'w', an input of body of .*, has a default"):
        check_equivalence(made, made)


STACKING = """g (float[{}] x, int64 trips) => (float[a, b] z) {{ s, z = Loop (trips, yes, x) <
    body = b (int64 i, bool c, float[{}] h) => (bool more, float[{}] next, float[{}] seen) {{
        more = Identity (c) next = Neg (h) seen = Abs (h) }}> }}"""


@pytest.mark.parametrize("size", ["k", "?", "3"])
def test_a_loop_that_stacks_nothing_gives_the_dims_that_are_known_when_it_loads(size: str) -> None:
    """With a number for a dim, what is stacked of no iteration has that dim, and 0 without."""
    before = model(STACKING.format("k", "k", "k", "k"), yes=np.array(True))
    after = model(STACKING.format("k", "k", "k", size), yes=np.array(True))
    fixed = model(STACKING.format(*["3"] * 4), yes=np.array(True))
    feed = {"x": np.ones(3, np.float32), "trips": np.array(0)}
    shapes = [Session(each).run(feed)["z"].shape for each in (before, after, fixed)]
    assert shapes == [(0, 0), (0, 3) if size == "3" else (0, 0), (0, 3)]
    assert check_equivalence(before, after).is_proven is (size != "3")
    found = check_equivalence(before, fixed, narrower=True)
    assert not found.proven
    assert "would stack outputs of other dims" in str(found)
    assert check_equivalence(fixed, fixed.with_proto(fixed.proto)).is_proven


def test_random_numbers_in_branches_of_nodes_that_are_called_alike_are_others() -> None:
    branch = "If (c) <then_branch = t () => (float[n] r) { r = RandomNormalLike (x) }, "
    branch += "else_branch = e () => (float[n] s) { s = Identity (x) }>"
    later = branch.replace("{ r =", "{ k = Neg (x) r =")
    text = f"g (bool c, float[n] x) => (float[n] y) {{ a = {branch} b = {later} END }}"
    made = []
    for end in ("y = Sub (a, b)", "y = Sub (a, a)"):
        proto = model(text.replace("END", end)).restore()
        proto.graph.node[0].name = "If#1"  # as the other one is called, which has no name
        made.append(Model.from_proto(proto))
    assert check_equivalence(made[0], made[0]).is_proven
    assert not check_equivalence(*made).proven
