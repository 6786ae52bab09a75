"""Axioms of exact arithmetic: what they prove is equal in float64, and what is nearly such is not proven."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from small_models import model

from graphkit.equivalence import check_equivalence, linear, terms
from graphkit.equivalence.application import Application, Result
from graphkit.equivalence.axioms import Axiom
from graphkit.equivalence.linear import REAL, REAL_AXIOMS, Change, change_term
from graphkit.errors import ModelError
from graphkit.graph.declared_types import declared_type
from graphkit.model import Model
from graphkit.runtime.session import Session

RNG = np.random.default_rng(0)
W, V, U = (RNG.normal(size=(6, 6)) for _ in range(3))
G, B = RNG.normal(size=6), RNG.normal(size=6)
K = RNG.normal(size=(6, 6, 3, 3))
VARIANCE = RNG.random(6) + 0.1
FACTOR = G / np.sqrt(VARIANCE + 2.0**-10)
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
    "w2_off": 2 * W * np.where(np.arange(36).reshape(6, 6) == 7, 1 + 1e-5, 1), "w_near": W * (1 + 2.0**-21),
    "w_off": W * np.where(np.arange(36).reshape(6, 6) == 7, 1 + 1e-5, 1), "axis0": np.array([0]),
    "table": U, "table_near": U * (1 + 2.0**-21), "slightly": 1 + 2.0**-22,
    "table_off": U * np.where(np.arange(36).reshape(6, 6) == 7, 1 + 1e-5, 1),
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
    """Two bodies that are equal over the reals by an axiom."""

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
    "batches": Case(
        "normalisation of batches",
        "p = Conv (x, k) y = BatchNormalization <epsilon = 0.0009765625> (p, g, b, mean, variance)",
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


def in_float64(source: Model, case: Case) -> Model:
    """Return a model in float64, with the constants as numpy has them."""
    proto = onnx.ModelProto()
    proto.CopyFrom(source.proto)
    for info in (*proto.graph.input, *proto.graph.output):
        if info.type.tensor_type.elem_type == TensorProto.FLOAT:
            info.type.tensor_type.elem_type = TensorProto.DOUBLE
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(np.asarray({**C, **case.constants}[tensor.name]), tensor.name))
    return Model.from_proto(proto)


def fed(source: Model, size: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found = {}
    for value in source.graph.inputs:
        kind = declared_type(value)
        assert kind is not None
        shape = [dim if isinstance(dim, int) else size + (str(dim) == "s") for dim in kind.dims or ()]
        found[value.name] = rng.normal(size=shape).astype(helper.tensor_dtype_to_np_dtype(kind.dtype))
    return found


def output(source: Model, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return what a model gives: by ONNX's reference where onnxruntime has no kernel for float64."""
    try:
        return Session(source, threads=1, optimize=False).run(feeds)["y"]
    except ModelError:
        found: np.ndarray = ReferenceEvaluator(source.proto).run(["y"], dict(feeds))[0]  # type: ignore[assignment]
        return found


def distance(before: Model, after: Model, size: int, seed: int) -> float:
    """Return how far both are apart, in parts of the largest magnitude."""
    feeds = fed(before, size, seed)
    left, right = output(before, feeds), output(after, feeds)
    if left.shape != right.shape:
        return np.inf
    return float(np.abs(left - right).max(initial=0) / max(np.abs(left).max(initial=0), 1e-30))


@pytest.mark.cases(9)
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_proven_in_exact_arithmetic_is_equal_in_float64(name: str) -> None:
    case = RIGHT[name]
    before, after = built(case)
    found = check_equivalence(before, after)
    assert found.is_proven, str(found)
    assert found.outputs[0].exactness == "in exact arithmetic"
    assert case.axiom in found.used
    assert found.constants.largest < (1e-6 if "nearly" in name else 5e-7)
    wide = in_float64(before, case), in_float64(after, case)
    tolerance = 1e-6 if "nearly" in name else 1e-9

    @settings(max_examples=6, database=None)
    @given(st.integers(1, 4), st.integers(0, 1000))
    def runs(size: int, seed: int) -> None:
        assert distance(*wide, size, seed) < tolerance

    runs()


def test_each_real_axiom_has_a_case() -> None:
    others = {"kernels of functions", "pool"}  # which tests of attention, versions and kernels show
    assert {axiom.name for axiom in REAL_AXIOMS} - others == {case.axiom for case in RIGHT.values()}


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
    "a negative scale through a Relu": (
        "p = MatMul (x, w) q = Relu (p) y = Mul (q, negative)",
        "p = MatMul (x, w) q = Mul (p, negative) y = Relu (q)", ROWS),
    "a scale through a Softmax": (
        "p = MatMul (x, w) q = Softmax (p) y = Mul (q, two)", "p = MatMul (x, w2) y = Softmax (p)", ROWS),
    "a shift through a Tanh": ("p = Add (x, b) y = Tanh (p)", "p = Tanh (x) y = Add (p, b)", ROWS),
    "a bias behind a Relu": ("p = MatMul (x, w) q = Add (p, b) y = Relu (q)",
                             "p = MatMul (x, w) q = Relu (p) y = Add (q, b)", ROWS),
    "another axis of a Softmax": ("y = Softmax <axis = 1> (x)", "y = Softmax <axis = 2> (x)", ROWS),
    "swapped operands of a product": ("y = MatMul (x, x2)", "y = MatMul (x2, x)",
                                      "(float[6, 6] x, float[6, 6] x2) => (float[k, l] y)"),
    "swapped operands of a difference": ("y = Sub (x, x2)", "y = Sub (x2, x)",
                                         "(float[n, 6] x, float[n, 6] x2) => (float[k, l] y)"),
    "swapped operands of a quotient": ("p = Mul (x, two) y = Div (one, p)", "q = Mul (x, half) y = Div (q, one)", ROWS),
    "an epsilon that is dropped": (MOMENTS.format(square="Mul (d, d)").replace("(f)", "(var)") + "y = Div (d, r)",
                                   "y = LayerNormalization (x, ones)", ROWS),
    "another mask": ("p = Add (x, mask) y = Softmax (p)", "p = Add (x, other_mask) y = Softmax (p)", ROWS),
    "a mask that is added, not filled in": (
        "y0 = Where (chosen, x, low) y = Softmax (y0)", "y0 = Add (x, mask) y = Softmax (y0)", ROWS),
    "a mask that is inverted": ("y0 = Where (chosen, x, low) y = Softmax (y0)",
                                "y0 = Where (chosen, low, x) y = Softmax (y0)", ROWS),
    "a scale of one element off": ("p = MatMul (x, w) y = Mul (p, g)", "y = MatMul (x, wg_off)", ROWS),
    "a bias of one element off": ("p = Add (x, b) y = MatMul (p, w)", "p = MatMul (x, w) y = Add (p, bw_off)", ROWS),
    "a float16 in between": ("p = MatMul (x, w) y = Identity (p)",
                             "p = MatMul (x, w) q = Cast <to = 10> (p) y = Cast <to = 1> (q)", ROWS),
    "another exponent": ("p = Mul (x, two) y = Pow (p, two)", "p = Mul (x, two) y = Pow (p, one)", ROWS),
    "a maximum for a minimum": ("p = MatMul (x, w) y = Max (p, x)", "p = MatMul (x, w) y = Min (p, x)", ROWS),
    "another order of two scales": ("p = Mul (x, g) q = MatMul (p, w) y = Mul (q, g3)",
                                    "p = Mul (x, g3) q = MatMul (p, w) y = Mul (q, g)", ROWS),
    "a bias of the other product": ("p = MatMul (x, w) q = Add (p, b) r = MatMul (q, v) y = Add (r, g)",
                                    "p = MatMul (x, w) q = Add (p, g) r = MatMul (q, v) y = Add (r, b)", ROWS),
    "a scale put into both weights": ("p = Mul (x, two) q = MatMul (p, w) y = MatMul (q, v)",
                                      "q = MatMul (x, w2) r = Mul (q, two) y = MatMul (r, v)", ROWS),
    "a scale through a nonlinear sum": ("p = Mul (x, two) q = ReduceL2 (p, last) y = Mul (q, two)",
                                        "q = ReduceL2 (x, last) y = Mul (q, two)", ROWS),
    "a mean for a sum": ("p = Mul (x, two) y = ReduceMean (p, last)", "p = Mul (x, two) y = ReduceSum (p, last)", ROWS),
    "a variance below 0": (
        "p = Conv (x, k) y = BatchNormalization (p, g, b, mean, below)", "y = Conv (x, kbn, bbn)", IMAGE),
}  # fmt: skip
C |= {
    "below": -VARIANCE, "mask": np.array([0, 0, 0, 0, -1e4, -1e4]), "other_mask": np.array([0, 0, 0, 0, -1e4, -5.0]),
    "chosen": np.array([True, True, True, True, False, False]), "low": -1e4,
    "wg_off": W * G * np.where(np.arange(36).reshape(6, 6) == 7, 1 + 1e-5, 1),
    "bw_off": B @ W + np.where(np.arange(6) == 3, 1e-5 * np.abs(B @ W).max(), 0),
    "ks": 0.5 * K.sum(axis=(1, 2, 3)).reshape(6, 1, 1), "ones": np.ones(6), "ones2": np.ones((6, 6)), "large": 1e8,
    "turned": G[::-1].copy(), "axis1": np.array([1]), "turns": np.array([1, 2, 1, 1, 1]),
}  # fmt: skip


HAZARDS = {  # that differ for few inputs, or by little
    "an epsilon outside of the root", "an epsilon that is dropped", "a mask that is added, not filled in",
    "a weight that is edited a little", "a table that is edited a little", "a variance below 0",
    "one weight", "one weight that is scaled", "one number of a table", "a scale of one element off",
    "a bias of one element off",
}  # fmt: skip


@pytest.mark.cases(21)
@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_equal_over_the_reals_is_not_proven(name: str) -> None:
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
    array, bias = app.tools.reals.array(app.args[1]), app.tools.reals.array(inner.args[2])
    assert array is not None
    assert bias is not None
    bare = app.tools.terms.make("Linear", inner.attributes, inner.args[:2], inner.dtype, inner.dims)
    scaled = change_term(app.tools, bare, Change("Scaled", array, 1))
    return app.tools.movement.reshape(change_term(app.tools, scaled, Change("Shifted", bias, 1)), term.dims)


FALSE = {
    "every scale may go": ("Mul", _dropped, "p = MatMul (x, w) y = Mul (p, g)", "y = MatMul (x, w)"),
    "every shift may go": ("Add", _dropped, "p = MatMul (x, w) y = Add (p, b)", "y = MatMul (x, w)"),
    "every division may go": ("Div", _dropped, "y = Div (x, two)", "y = Identity (x)"),
    "a bias is not scaled": ("Mul", _unscaled_bias, "p = MatMul (x, w) q = Add (p, b) y = Mul (q, g)",
                             "p = MatMul (x, wg) y = Add (p, b)"),
    "every root may go": ("Sqrt", _dropped, "a = Abs (x) y = Sqrt (a)", "y = Abs (x)"),
}  # fmt: skip


@pytest.mark.parametrize("name", FALSE)
def test_a_wrong_axiom_is_found(name: str) -> None:
    operator, function, before, after = FALSE[name]
    models = built(Case(name, before, after))
    assert not check_equivalence(*models).proven
    wrong = Axiom(name, frozenset({operator}), function)
    assert check_equivalence(*models, real_axioms=(wrong, *REAL)).is_proven
    assert distance(*models, 3, 0) > 2e-5


def _everything(*_: object) -> bool:
    return True


CONDITIONS = {  # what is proven without them
    "computed constants are as near as is said": (terms, "NEAR", 1e-3, "one weight that is scaled"),
    "so are sums": (terms, "NEAR", 1e-3, "a bias of one element off"),
    "a constant of both models is that to the bit": (
        terms.RealConstants, "_origin", lambda *_: "product", "a weight that is edited a little"),
    "so is a table": (terms.RealConstants, "_origin", lambda *_: "product", "a table that is edited a little"),
    "nothing is added beside padding": (linear, "linear_product", lambda *args, **_: LINEAR_PRODUCT(*args),
                                        "a shift beside padding"),
    "means are squares of what is centred": (linear, "_is_square", _everything,
                                             "a variance of what is not centred"),
}  # fmt: skip
LINEAR_PRODUCT = linear.linear_product


@pytest.mark.parametrize("name", CONDITIONS)
def test_each_condition_keeps_something_wrong_from_being_proven(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, attribute, content, case = CONDITIONS[name]
    before, after, head = WRONG[case]
    models = built(Case(case, before, after, head))
    assert not check_equivalence(*models).proven
    monkeypatch.setattr(module, attribute, content)
    assert check_equivalence(*models).is_proven


@pytest.mark.parametrize(("epsilon", "is_equal"), [(float(np.float32(1e-5)), True), (1e-5, False)])
def test_an_epsilon_that_is_left_out_is_that_of_float32(epsilon: float, is_equal: bool) -> None:
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
    assert (np.abs(right - made).max() < 1e-12) == is_equal
    assert (check_equivalence(before, after).constants.largest < 1e-12) == is_equal


@pytest.mark.parametrize(("chosen", "is_equal"), [("place", True), ("after", False)])
def test_a_node_that_may_fail_is_that_of_the_original_where_its_numbers_are_in_exact_arithmetic(
    chosen: str, is_equal: bool
) -> None:
    """A GatherND fails where its places are not in the table: those of the largest number, whose scale is the same."""
    head = "g (float[n, 6] x, float[k, 2] table) => (float[n, 2] y)"
    choice = "place = ArgMax <axis = 1, keepdims = 1> (s) after = Sub (place, i1)"
    constants: dict[str, object] = {"a": 2.0, "b": 0.3, "ab": np.float32(2.0) * np.float32(0.3), "i1": np.array(1)}
    before = model(f"{head} {{ r = Mul (x, a) s = Mul (r, b) {choice} y = GatherND (table, place) }}", **constants)
    after = model(f"{head} {{ s = Mul (x, ab) {choice} y = GatherND (table, {chosen}) }}", **constants)
    (output,) = check_equivalence(before, after).outputs
    assert (output.verdict == "proven") == is_equal
    assert not is_equal or output.exactness == "in exact arithmetic"


@pytest.mark.parametrize(("width", "is_proven"), [("6", True), ("w", False), ("7", False)])
def test_a_split_of_an_axis_whose_size_it_divides_cannot_fail(width: str, is_proven: bool) -> None:
    head = f"g (float[n, {width}] x) => (float[n, v] y)"
    constants = {"zero": np.array([0]), "three": np.array([3]), "one": np.array([1])}
    before = model(f"{head} {{ y = Slice (x, zero, three, one) }}", **constants)
    after = model(f"{head} {{ p, q = Split <axis = 1, num_outputs = 2> (x) y = Identity (p) }}")
    assert check_equivalence(before, after).is_proven == is_proven
