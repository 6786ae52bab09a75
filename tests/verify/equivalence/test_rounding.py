"""Axioms that hold up to rounding: what they prove runs nearly the same, and what is nearly such is not proven."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from small_models import model

from graphkit.graph.declared_types import declared_type
from graphkit.model import Model
from graphkit.runtime.session import Session
from graphkit.verify.equivalence import (
    check,
    check_equivalence,
    continuity,
    linear,
    near_constants,
    normalisation,
    rounding,
    scale_and_shift,
)
from graphkit.verify.equivalence.application import Application, Result
from graphkit.verify.equivalence.axioms import Axiom
from graphkit.verify.equivalence.linear import changed
from graphkit.verify.equivalence.looseness import ROUNDING
from graphkit.verify.equivalence.rounding import ROUNDING_AXIOMS
from graphkit.verify.equivalence.scale_and_shift import Change

RNG = np.random.default_rng(0)
W, V, U = (RNG.normal(size=(6, 6)) for _ in range(3))
G, B = RNG.normal(size=6), RNG.normal(size=6)
K = RNG.normal(size=(6, 6, 3, 3))
VARIANCE = RNG.random(6) + 0.1
FACTOR = G / np.sqrt(VARIANCE.astype(np.float32) + np.float32(1e-5))
C = {
    "w": W, "v": V, "u": U, "g": G, "b": B, "wt": W.T.copy(), "wg": W * G, "gw": G[:, None] * W, "bw": B @ W,
    "bg": B * G, "two": 2.0, "half": 0.5, "epsilon": 1e-5, "other": 1e-3, "one": 1.0, "wv": np.concatenate([W, V], 1),
    "vw": np.concatenate([V, W], 1), "bb": np.concatenate([B, G]), "parts": np.array([6, 6]), "k": K, "w2": 2 * W,
    "kg": K * G[:, None, None, None], "gk": K * G[None, :, None, None], "c": G.reshape(6, 1, 1), "wh": 0.5 * W,
    "variance": VARIANCE, "mean": G * 0.5, "kbn": K * FACTOR[:, None, None, None], "bbn": B - G * 0.5 * FACTOR,
    "around": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "aside": np.array([0, 0, 1, 0, 0, 0, 1, 0]), "zero": 0.0,
    "inside": np.array([0, 0, -1, -1, 0, 0, -1, -1]),
    "heads": np.array([0, -1, 2, 3]), "axis2": np.array([2]), "copies": np.array([1, 1, 2, 1, 1]),
    "last": np.array([-1]), "i0": np.array([0]), "i6": np.array([6]),
    "apart": np.array([0, 4, -1, 3]), "once": np.array([0, 2, -1, 3]), "negative": -0.5, "g3": RNG.normal(size=6),
    "by_turn": np.array([0, 2, -1, 3]), "swapped": np.concatenate([W[:, 3:], W[:, :3]], 1),
    "w2_off": 2 * W * np.where(np.arange(36).reshape(6, 6) == 7, 1 + 1e-4, 1), "w_near": W * (1 + 2.0**-20),
    "w_off": W * np.where(np.arange(36).reshape(6, 6) == 7, 1 + 1e-4, 1), "axis0": np.array([0]),
    "table": U, "table_near": U * (1 + 2.0**-20), "slightly": 1 + 2.0**-22,
    "table_off": U * np.where(np.arange(36).reshape(6, 6) == 7, 1 + 1e-4, 1),
}  # fmt: skip
ROWS = "(float[n, s, 6] x) => (float[p, q, r] y)"
MATRIX = "(float[n, 6] x) => (float[p, q] y)"
IMAGE = "(float[n, 6, 5, 5] x) => (float[p, q, r, t] y)"
HEADS = "(float[n, 4, s, 3] q, float[n, 2, m, 3] k) => (float[a, c, d, e] y)"
MOMENTS = "mu = ReduceMean (x, last) d = Sub (x, mu) e = {square} var = ReduceMean (e, last) f = Add (var, epsilon) "
MOMENTS += "r = Sqrt (f) "
PLAIN = MOMENTS.format(square="Mul (d, d)")
REPEATED = "a = Unsqueeze (k, axis2) e = Expand (a, copies) h = Reshape (e, apart) "
REPEATED += "t = Transpose <perm = [0, 1, 3, 2]> (h) "
SHARED = "r = Reshape (q, once) t = Transpose <perm = [0, 1, 3, 2]> (k) p = MatMul (r, t) s = Shape (q) "
SHARED += (
    "z = Shape <start = 2, end = 3> (k) s3 = Slice (s, axis0, three) f = Concat <axis = 0> (s3, z) y = Reshape (p, f)"
)
NORMAL = (U - U.mean(1, keepdims=True)) / np.sqrt(U.var(1, keepdims=True) + 1e-5) * G + B
C["lg"] = NORMAL * G
C["three"] = np.array([3])
C["first"] = np.int64(0)


@dataclass(frozen=True)
class Case:
    """Two bodies that are equal up to rounding by an axiom."""

    axiom: str
    before: str
    after: str
    head: str = ROWS
    constants: Mapping[str, object] = field(default_factory=dict)
    opset: int | None = None


RIGHT = {
    "a scale after a product": Case(
        "rows times a matrix", "p = MatMul (x, w) y = Mul (p, g)", "y = MatMul (x, wg)"),
    "a scale before a product": Case("rows times a matrix", "p = Mul (x, g) y = MatMul (p, w)", "y = MatMul (x, gw)"),
    "a shift before a product": Case(
        "constants in weights", "p = Add (x, b) y = MatMul (p, w)", "p = MatMul (x, w) y = Add (p, bw)"),
    "a scaled bias": Case("constants in weights", "p = MatMul (x, w) q = Add (p, b) y = Mul (q, g)",
                          "p = MatMul (x, wg) y = Add (p, bg)"),
    "a quotient": Case("constants in weights", "p = MatMul (x, w) y = Div (p, two)", "y = MatMul (x, wh)"),
    "a gemm": Case("gemm", "p = MatMul (x, w) y = Add (p, b)", "y = Gemm <transB = 1> (x, wt, b)", MATRIX),
    "alpha": Case("gemm", "y = Gemm <alpha = 2.0> (x, w, b)", "y = Gemm (x, w2, b)", MATRIX),
    "columns": Case("columns", "y = MatMul (x, w)", "p = MatMul (x, wv) y, z = Split <axis = 2> (p, parts)"),
    "columns of a sequence": Case(
        "columns", "p = MatMul (x, wv) q = SplitToSequence <axis = 2> (p, parts) y = SequenceAt (q, first)",
        "y = MatMul (x, w)"),
    "columns with a bias": Case("columns", "p = MatMul (x, v) y = Add (p, g)",
                                "p = MatMul (x, wv) q = Add (p, bb) z, y = Split <axis = 2> (q, parts)"),
    "a convolution, scaled": Case("convolution", "p = Conv (x, k, b) y = Mul (p, c)", "y = Conv (x, kg, bg)", IMAGE),
    "a scaled image": Case("convolution", "p = Mul (x, c) y = Conv <pads = [1, 1, 1, 1]> (p, k)",
                           "y = Conv <pads = [1, 1, 1, 1]> (x, gk)", IMAGE),
    "batches": Case("normalisation of batches", "p = Conv (x, k) y = BatchNormalization (p, g, b, mean, variance)",
                    "y = Conv (x, kbn, bbn)", IMAGE),
    "a pad": Case("convolution", "p = Pad (x, around) y = Conv (p, k)", "y = Conv <pads = [1, 1, 1, 1]> (x, k)", IMAGE),
    "a normalisation": Case("one normalisation", PLAIN + "z = Div (d, r) s = Mul (z, g) y = Add (s, b)",
                            "y = LayerNormalization (x, g, b)"),
    "a normalisation by a power": Case(
        "one normalisation", MOMENTS.format(square="Pow (d, two)") + "i = Reciprocal (r) z = Mul (d, i) y = Mul (g, z)",
        "y = LayerNormalization (x, g)"),
    "a scale of ones": Case("layer normalisation", PLAIN + "y = Div (d, r)", "y = LayerNormalization (x, ones)",
                            constants={"ones": np.ones(6)}),
    "a table that is nearly the same": Case(
        "constants in weights", "y = Add (x, table)", "t = Mul (table, slightly) y = Add (x, t)",
        "(float[n, 6, 6] x) => (float[p, q, r] y)"),
    "factors": Case("factors", "p = Mul (q, two) t = Transpose <perm = [0, 1, 3, 2]> (k2) z = Mul (t, half) "
                    "y = MatMul (p, z)", "t = Transpose <perm = [0, 1, 3, 2]> (k2) y = MatMul (q, t)",
                    "(float[n, 4, s, 3] q, float[n, 4, m, 3] k2) => (float[a, c, d, e] y)"),
    "an einsum": Case("einsum", 'y = Einsum <equation = "bhid, bhjd -> bhij"> (q, k2)',
                      "t = Transpose <perm = [0, 1, 3, 2]> (k2) y = MatMul (q, t)",
                      "(float[n, 4, s, 3] q, float[n, 4, m, 3] k2) => (float[a, c, d, e] y)"),
    "an einsum of axes in another order": Case(
        "einsum", 'y = Einsum <equation = "...ihd,...jhd->...hij"> (q, k2)',
        "p = Transpose <perm = [0, 1, 3, 2, 4]> (q) t = Transpose <perm = [0, 1, 3, 4, 2]> (k2) y = MatMul (p, t)",
        "(float[n, 2, s, 4, 3] q, float[n, 2, m, 4, 3] k2) => (float[a, c, d, e, f] y)"),
    "an einsum over two axes": Case(
        "einsum", 'y = Einsum <equation = "ihd,hdj->ji"> (q, k2)',
        "p = Reshape (q, twelve) t = Reshape (k2, rows) m = MatMul (p, t) y = Transpose (m)",
        "(float[s, 4, 3] q, float[4, 3, m] k2) => (float[a, c] y)",
        {"twelve": np.array([0, 12]), "rows": np.array([12, -1])}),
    "an einsum of lists": Case("einsum", 'y = Einsum <equation = "bi,bj->bij"> (q, k2)',
                               "p = Unsqueeze (q, i2) t = Unsqueeze (k2, i1) y = MatMul (p, t)",
                               "(float[n, s] q, float[n, m] k2) => (float[a, c, d] y)",
                               {"i1": np.array([1]), "i2": np.array([2])}),
    "shared heads": Case("shared heads", REPEATED + "y = MatMul (q, t)", SHARED, HEADS),
    "a normalisation of constants": Case("constants in weights", "l = LayerNormalization (table, g, b) "
                                         "p = MatMul (x, l) y = Mul (p, g)", "y = MatMul (x, lg)"),
    "slots that are written": Case("constants in weights", "d = Concat <axis = 1> (x, x) p = MatMul (x, w) "
                                   "q = Mul (p, g) y = TensorScatter <axis = 1> (d, q)", "d = Concat <axis = 1> (x, x) "
                                   "q = MatMul (x, wg) y = TensorScatter <axis = 1> (d, q)", opset=24),
}  # fmt: skip


def built(case: Case) -> tuple[Model, Model]:
    def made(body: str) -> Model:
        words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
        words -= {word.strip("),") for word in case.head.split("=>")[0].split()}
        found = model(f"g {case.head} {{ {body} }}", **{n: c for n, c in {**C, **case.constants}.items() if n in words})
        if case.opset is not None:
            found.proto.opset_import[0].version = case.opset
        return found

    return made(case.before), made(case.after)


def fed(source: Model, size: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found = {}
    for value in source.graph.inputs:
        kind = declared_type(value)
        assert kind is not None
        shape = [dim if isinstance(dim, int) else size + (str(dim) == "s") for dim in kind.dims or ()]
        found[value.name] = rng.normal(size=shape).astype(helper.tensor_dtype_to_np_dtype(kind.dtype))
    return found


def distance(before: Model, after: Model, size: int, seed: int, *, optimize: bool = False) -> float:
    """Return how far both are apart, in parts of the largest magnitude."""
    feeds = fed(before, size, seed)
    left, right = (Session(each, threads=1, optimize=optimize).run(feeds)["y"] for each in (before, after))
    if left.shape != right.shape:
        return np.inf
    return float(np.abs(left - right).max(initial=0) / max(np.abs(left).max(initial=0), 1e-30))


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_proven_up_to_rounding_runs_nearly_the_same(name: str) -> None:
    before, after = built(RIGHT[name])
    found = check_equivalence(before, after)
    assert found.is_proven, str(found)
    assert found.outputs[0].exactness == "up to rounding"
    assert RIGHT[name].axiom in found.outputs[0].axioms
    assert RIGHT[name].axiom in found.used

    @settings(max_examples=8, derandomize=True, database=None)
    @given(st.integers(1, 4), st.integers(0, 1000), st.booleans())
    def runs(size: int, seed: int, optimize: bool) -> None:
        assert distance(before, after, size, seed, optimize=optimize) < 2e-5

    runs()


def test_each_rounding_axiom_has_a_case() -> None:
    others = {"kernels of functions", "pool", "powers"}  # which tests of attention, versions and kernels show
    assert {axiom.name for axiom in ROUNDING_AXIOMS} - others == {case.axiom for case in RIGHT.values()}


WRONG = {
    "another part of a sequence": (
        "p = MatMul (x, wv) q = SplitToSequence <axis = 2> (p, parts) y = SequenceAt (q, first)", "y = MatMul (x, v)",
        ROWS),
    "another scale": ("p = MatMul (x, w) y = Mul (p, g)", "p = MatMul (x, w) y = Mul (p, g3)", ROWS),
    "scaled rows, not columns": ("p = MatMul (x, w) y = Mul (p, g)", "y = MatMul (x, gw)", ROWS),
    "a bias that is not scaled": (
        "p = MatMul (x, w) q = Add (p, b) y = Mul (q, g)", "p = MatMul (x, wg) y = Add (p, b)", ROWS),
    "a shift, not multiplied": ("p = Add (x, b) y = MatMul (p, w)", "p = MatMul (x, w) y = Add (p, b)", ROWS),
    "an inverse factor": ("p = MatMul (x, w) y = Div (p, two)", "y = MatMul (x, w2)", ROWS),
    "another sign": ("p = MatMul (x, w) y = Sub (p, b)", "p = MatMul (x, w) y = Add (p, b)", ROWS),
    "a reversed difference": ("p = MatMul (x, w) y = Sub (b, p)", "p = MatMul (x, w) y = Sub (p, b)", ROWS),
    "a matrix that is not transposed": ("p = MatMul (x, w) y = Add (p, b)", "y = Gemm <transB = 1> (x, w, b)", MATRIX),
    "another alpha": ("y = Gemm <alpha = 2.0> (x, w, b)", "y = Gemm (x, wh, b)", MATRIX),
    "alpha of the bias too": ("y = Gemm <alpha = 2.0> (x, w, b)", "p = Gemm (x, w, b) y = Mul (p, two)", MATRIX),
    "other columns": ("y = MatMul (x, w)", "p = MatMul (x, wv) z, y = Split <axis = 2> (p, parts)", ROWS),
    "columns in another order": ("y = MatMul (x, w)", "p = MatMul (x, vw) y, z = Split <axis = 2> (p, parts)", ROWS),
    "heads that are swapped": ("y = MatMul (x, w)", "y = MatMul (x, swapped)", ROWS),
    "one number of a table": ("y = Add (x, table)", "y = Add (x, table_off)",
                              "(float[n, 6, 6] x) => (float[p, q, r] y)"),
    "one weight": ("y = MatMul (x, w)", "y = MatMul (x, w_off)", ROWS),
    "one weight that is scaled": ("p = MatMul (x, w) y = Mul (p, two)", "y = MatMul (x, w2_off)", ROWS),
    "a weight that is edited a little": ("y = MatMul (x, w)", "y = MatMul (x, w_near)", ROWS),
    "a table that is edited a little": (
        "y = Add (x, table)", "y = Add (x, table_near)", "(float[n, 6, 6] x) => (float[p, q, r] y)"),
    "kernels of other channels": ("p = Conv (x, k, b) y = Mul (p, c)", "y = Conv (x, gk, bg)", IMAGE),
    "a shift beside padding": (
        "p = Add (x, half) y = Conv <pads = [1, 1, 1, 1]> (p, k)",
        "p = Conv <pads = [1, 1, 1, 1]> (x, k) y = Add (p, ks)", IMAGE),
    "other pads": ("p = Pad (x, aside) y = Conv (p, k)", "y = Conv <pads = [0, 1, 0, 1]> (x, k)", IMAGE),
    "a pad that cuts": ("p = Pad (x, inside) y = Conv <pads = [1, 1, 1, 1]> (p, k)", "y = Conv (x, k)", IMAGE),
    "a pad of ones": ("p = Pad (x, around, one) y = Conv (p, k)", "y = Conv <pads = [1, 1, 1, 1]> (x, k)", IMAGE),
    "a pad that repeats": (
        "p = Pad <mode = \"edge\"> (x, around) y = Conv (p, k)", "y = Conv <pads = [1, 1, 1, 1]> (x, k)", IMAGE),
    "an einsum turned": ('y = Einsum <equation = "bid,bjd->bij"> (x, x2)', "t = Transpose <perm = [0, 2, 1]> (x) "
                         "y = MatMul (x2, t)", "(float[n, s, 6] x, float[n, s, 6] x2) => (float[a, c, d] y)"),
    "an einsum whose sum is its output": (
        'y = Einsum <equation = "bij,bjk->bik"> (x, x2)', 'y = Einsum <equation = "bij,bik->bjk"> (x, x2)',
        "(float[n, 6, 6] x, float[n, 6, 6] x2) => (float[a, c, d] y)"),
    "an einsum of a diagonal": (
        'y = Einsum <equation = "ii,ij->ij"> (x, x2)', "y = MatMul (x, x2)",
        "(float[6, 6] x, float[6, 6] x2) => (float[a, c] y)"),
    "an einsum of other axes in front": (
        'y = Einsum <equation = "...id,...jd->...ij"> (x, x2)',
        "t = Transpose <perm = [1, 0, 3, 2]> (x2) y = MatMul (x, t)",
        "(float[4, 4, s, 3] x, float[4, 4, s, 3] x2) => (float[a, c, d, e] y)"),
    "an einsum that sums along an axis of one tensor": (
        'y = Einsum <equation = "ij,jk->k"> (x, x2)', "p = MatMul (x, x2) r = Reshape (p, last) y = Slice (r, i0, i6)",
        "(float[n, 6] x, float[6, 6] x2) => (float[k] y)"),
    "another epsilon": (PLAIN + "y = Div (d, r)", "y = LayerNormalization <epsilon = 0.001> (x, ones)", ROWS),
    "another axis": (PLAIN + "y = Div (d, r)", "y = LayerNormalization <axis = 1> (x, ones2)", "(float[n, 6, 6] x) => "
                     "(float[p, q, r] y)"),
    "an epsilon outside of the root": (
        PLAIN.replace("f = Add (var, epsilon) r = Sqrt (f)", "f = Sqrt (var) r = Add (f, epsilon)") + "y = Div (d, r)",
        "y = LayerNormalization (x, ones)", ROWS),
    "no mean taken off": (
        PLAIN.replace("d = Sub (x, mu)", "d = Identity (x)") + "y = Div (d, r)",
        "y = LayerNormalization (x, ones)", ROWS),
    "a variance of what is not centred": (
        MOMENTS.format(square="Mul (x, x)") + "y = Div (d, r)", "y = LayerNormalization (x, ones)", ROWS),
    "a permuted scale": (PLAIN + "z = Div (d, r) y = Mul (z, g)", "y = LayerNormalization (x, turned)", ROWS),
    "a mean of the other axis": (
        PLAIN.replace("mu = ReduceMean (x, last)", "mu = ReduceMean (x, axis0)") + "y = Div (d, r)",
        "y = LayerNormalization (x, ones)", ROWS),
    "a factor of one side": (
        "p = Mul (q, two) t = Transpose <perm = [0, 1, 3, 2]> (k2) y = MatMul (p, t)",
        "p = Mul (q, two) t = Transpose <perm = [0, 1, 3, 2]> (k2) z = Mul (t, two) y = MatMul (p, z)",
        "(float[n, 4, s, 3] q, float[n, 4, m, 3] k2) => (float[a, c, d, e] y)"),
    "heads in turn": (
        REPEATED.replace("axis2", "axis1").replace("copies", "turns") + "y = MatMul (q, t)", SHARED, HEADS),
    "ties of ArgMax": (
        "p = MatMul (x, w) q = Mul (p, g) y = ArgMax <axis = 2> (q)", "q = MatMul (x, wg) y = ArgMax <axis = 2> (q)",
        "(float[n, s, 6] x) => (int64[p, q, r] y)"),
    "a step": ("p = MatMul (x, w) q = Mul (p, g) y = Floor (q)", "q = MatMul (x, wg) y = Floor (q)", ROWS),
    "a quotient by what may be 0": (
        "p = MatMul (x, w) q = Mul (p, g) y = Reciprocal (q)", "q = MatMul (x, wg) y = Reciprocal (q)", ROWS),
    "a root of what may be below 0": (
        "p = MatMul (x, w) q = Mul (p, g) y = Sqrt (q)", "q = MatMul (x, wg) y = Sqrt (q)", ROWS),
    "integers": ("p = Mul (x, two) y = Cast <to = 7> (p)", "p = Add (x, x) y = Cast <to = 7> (p)",
                 "(float[n, s, 6] x) => (int64[p, q, r] y)"),
    "an absorbed number": ("y = Identity (x)", "p = Add (x, large) y = Sub (p, large)", ROWS),
    "a variance below 0": (
        "p = Conv (x, k) y = BatchNormalization (p, g, b, mean, below)", "y = Conv (x, kbn, bbn)", IMAGE),
    "an overflow": ("y = Identity (x)", "p = Mul (x, large) y = Div (p, large)", ROWS),
}  # fmt: skip
C |= {
    "below": -VARIANCE,
    "ks": 0.5 * K.sum(axis=(1, 2, 3)).reshape(6, 1, 1), "ones": np.ones(6), "ones2": np.ones((6, 6)), "large": 1e8,
    "turned": G[::-1].copy(), "axis1": np.array([1]), "turns": np.array([1, 2, 1, 1, 1]),
}  # fmt: skip


HAZARDS = {  # that differ for few inputs, or by little
    "an epsilon outside of the root",
    "a weight that is edited a little", "a table that is edited a little",
    "ties of ArgMax", "a step", "a quotient by what may be 0", "a root of what may be below 0", "integers",
    "an absorbed number", "an overflow", "a variance below 0",
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_equal_up_to_rounding_is_not_proven(name: str) -> None:
    before, after, head = WRONG[name]
    models = built(Case(name, before, after, head))
    assert not check_equivalence(*models).proven
    assert check_equivalence(models[0], models[0]).is_proven
    if name not in HAZARDS:
        assert distance(*models, 3, 0) > 2e-5


def _dropped(app: Application) -> Result:
    return app.arg(0)


def _unscaled_bias(app: Application) -> Result:
    """Scale the product alone."""
    term = app.arg(0)
    inner = None if term is None or term.op != "Reshape" else term.args[0]
    if term is None or inner is None or inner.op != "Linear" or len(inner.args) < 3 or term.dims is None:
        return None
    array = app.tools.constants.array(app.args[1]) if app.args[1] is not None else None
    if array is None:
        return None
    bare = app.tools.terms.make("Linear", inner.attributes, inner.args[:2], inner.dtype, inner.dims)
    bias = app.tools.constants.array(inner.args[2]) if inner.args[2] is not None else None
    assert bias is not None
    scaled = changed(app.tools, bare, Change("Scaled", array.astype(np.float64), 1))
    return app.tools.movement.reshape(
        changed(app.tools, scaled, Change("Shifted", bias.astype(np.float64), 1)), term.dims
    )


FALSE = {
    "every scale may go": ("Mul", _dropped, "p = MatMul (x, w) y = Mul (p, g)", "y = MatMul (x, w)"),
    "every shift may go": ("Add", _dropped, "p = MatMul (x, w) y = Add (p, b)", "y = MatMul (x, w)"),
    "every division may go": ("Div", _dropped, "y = Div (x, two)", "y = Identity (x)"),
    "a bias is not scaled": ("Mul", _unscaled_bias, "p = MatMul (x, w) q = Add (p, b) y = Mul (q, g)",
                             "p = MatMul (x, wg) y = Add (p, b)"),
    "every root may go": ("Sqrt", _dropped, "a = Abs (x) y = Sqrt (a)", "y = Abs (x)"),
}  # fmt: skip


@pytest.mark.parametrize("name", FALSE)
def test_a_wrong_axiom_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operator, function, before, after = FALSE[name]
    models = built(Case(name, before, after))
    assert not check_equivalence(*models).proven
    wrong = Axiom(name, name, frozenset({operator}), function)
    monkeypatch.setattr(check, "ROUNDING", dataclasses.replace(ROUNDING, axioms=(wrong, *ROUNDING_AXIOMS)))
    assert check_equivalence(*models).is_proven
    assert distance(*models, 3, 0) > 2e-5


@pytest.mark.parametrize(
    "name", ["ties of ArgMax", "a step", "a quotient by what may be 0", "a root of what may be below 0"]
)
def test_without_continuity_what_jumps_is_proven(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after, head = WRONG[name]
    models = built(Case(name, before, after, head))
    monkeypatch.setattr(check, "ROUNDING", dataclasses.replace(ROUNDING, is_faithful=lambda _app, _index: True))
    assert check_equivalence(*models).is_proven  # so that the condition is what keeps it from being proven


def _everything(*_: object) -> bool:
    return True


ENDLESS = dict.fromkeys(scale_and_shift.LARGEST_FACTOR, np.inf)
CONDITIONS = {  # what is proven without them
    "constants are nearly equal": (near_constants, "MARGIN", 2**16, "one weight that is scaled"),
    "a constant of both models is that to the bit": (
        near_constants.Near, "doubt_of", lambda *_: 32.0, "a weight that is edited a little"),
    "so is a table": (near_constants.Near, "doubt_of", lambda *_: 32.0, "a table that is edited a little"),
    "factors are moderate": (scale_and_shift, "LARGEST_FACTOR", ENDLESS, "an overflow"),
    "shifts are moderate": (scale_and_shift, "LARGEST_SHIFT", ENDLESS, "an absorbed number"),
    "what divides is positive": (continuity, "is_positive", _everything, "a quotient by what may be 0"),
    "what a root is taken of is not negative": (continuity, "is_nonnegative", _everything,
                                                "a root of what may be below 0"),
    "nothing is added beside padding": (rounding, "linear", lambda *args, **_: linear.linear(*args),
                                        "a shift beside padding"),
    "means are squares of what is centred": (normalisation, "_is_square", _everything,
                                             "a variance of what is not centred"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONDITIONS)
def test_each_condition_keeps_something_wrong_from_being_proven(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, attribute, content, case = CONDITIONS[name]
    before, after, head = WRONG[case]
    models = built(Case(case, before, after, head))
    assert not check_equivalence(*models).proven
    monkeypatch.setattr(module, attribute, content)
    assert check_equivalence(*models).is_proven


SCALED = "p = MatMul (x, w) t = Mul (p, two) ", "t = MatMul (x, w2) "


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("n = ReduceL2 (t, last) y = Div (t, n)", "Div#3 (Div) reads what is equal up to rounding alone, and its"),
        ("s = Mul (t, t) n = ReduceSum (s, last) r = Pow (n, half) q = Div (t, r) y = Neg (q)", "its divisor may be 0"),
        ("y = Pow (t, half)", "its argument may be below 0, or its exponent is none of 0.5, 1, 2, 3 and 4"),
        ("y = Sqrt (t)", "Sqrt#2 (Sqrt) reads what is equal up to rounding alone, and its argument may be below 0"),
        ("c = Pow (t, three) y = Sqrt (c)", "its argument may be below 0"),
        ("a = Abs (x) m = Mul (t, a) y = Sqrt (m)", "its argument may be below 0"),
        ("y = Floor (t)", "Floor#2 (Floor) reads what is equal up to rounding alone, and it may jump where"),
        ("s = Mul (t, t) n = ReduceSum (s, last) y = Pow (n, half)", ""),
    ],
)  # fmt: skip
def test_the_node_is_named_that_may_not_read_what_is_rounded_in_another_way(body: str, reason: str) -> None:
    numbers = {name: C[name] for name in ("w", "w2", "two", "half", "last")} | {"three": 3.0}
    made = [model(f"g {MATRIX} {{ {start}{body} }}", **numbers) for start in SCALED]
    output = check_equivalence(*made).outputs[0]
    assert (output.verdict == "proven") == (not reason)
    assert reason in output.reason


@pytest.mark.parametrize(("epsilon", "is_proven"), [(float(np.float32(1e-5)), True), (1e-5, False)])
def test_an_epsilon_that_is_left_out_is_that_of_float32(epsilon: float, is_proven: bool) -> None:
    """Which matters in float64, where the variances are as small."""
    scale, variance = np.array([1.0, 2.0, 3.0]), np.array([1e-5, 1e-4, 0.0])
    head = "g (double[n, 3, 4] x) => (double[n, 3, 4] y)"
    before, after = model(f"{head} {{ y = BatchNormalization (x, s, z, z, v) }}"), model(f"{head} {{ y = Mul (x, f) }}")
    factor = (scale / np.sqrt(variance + epsilon))[:, None]
    for each, arrays in ((before, {"s": scale, "z": np.zeros(3), "v": variance}), (after, {"f": factor})):
        tensors = (numpy_helper.from_array(array, name) for name, array in arrays.items())
        each.proto.graph.initializer.extend(tensors)
    before, after = (Model.from_proto(each.proto) for each in (before, after))
    x = RNG.normal(size=(2, 3, 4))
    right, made = (Session(each, threads=1).run({"x": x})["y"] for each in (before, after))
    assert (np.abs(right - made).max() < 1e-12) == is_proven
    assert check_equivalence(before, after).is_proven == is_proven
