"""Each axiom against onnxruntime: what is proven runs the same for edge values, zero dims and each dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from small_models import model

from graphkit.equivalence import axioms, check_equivalence, flat, reader
from graphkit.equivalence.application import Application
from graphkit.equivalence.axioms import AXIOMS, Axiom
from graphkit.equivalence.terms import Constants, Term
from graphkit.errors import ModelError
from graphkit.graph.declared_types import declared_type
from graphkit.graph.operator_traits import BLIND, BLIND_IN_SECOND, FAITHFUL, FAITHFUL_IN_ALL
from graphkit.model import Model
from graphkit.passes.fold_pipeline import fold
from graphkit.runtime.session import Session
from graphkit.shapes.input_dims import named_inputs

EDGES = (0.0, -0.0, 1.0, -1.5, np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, 65504.0, 0.1)
WHOLE = (0, 1, -1, 2, 5, -7, 127, -128, 1000, np.iinfo(np.int64).max, np.iinfo(np.int64).min)
SIZES = st.integers(0, 4)
FLOATS = ("float", "double", "float16")
NUMBERS = (*FLOATS, "int64", "int32")
ALL = (*NUMBERS, "bool", "uint8", "int8")


@dataclass(frozen=True)
class Case:
    """Two bodies that an axiom makes equal; `T` stands for the dtype, in the heads too.

    Attributes:
        axiom: An axiom that has to be used.
    """

    axiom: str
    before: str
    after: str
    head: str = "(T[past_b, s, 6] x, T[6] v) => (T[k, l, m] y)"
    dtypes: Sequence[str] = ALL
    constants: Mapping[str, object] = field(default_factory=dict)
    opset: int = 18


I64: Mapping[str, object] = {
    "zero": np.int64(0), "one": np.int64(1), "i0": np.array([0]), "i1": np.array([1]), "i2": np.array([2]),
    "far": np.array([2**40]), "last": np.array([-1]), "width": np.array([-1, 6]), "flat": np.array([0, -1, 3, 2]),
    "back": np.array([0, 0, 6]), "swap": np.array([0, -1, 2, 3]), "parts": np.array([2, 4]), "i6": np.array([6]),
    "three": np.array([3]), "square": np.array([6, 6]), "n6": np.array([0, 0, 6]), "nopads": np.zeros(6, np.int64),
}  # fmt: skip
WIDE = "(T[past_b, past_s, 6] x) => (T[k, l, m] y)"
GRID = "b = Shape <start = 0, end = 1> (x) s = Shape <start = 1, end = 2> (x) "
HOW = GRID + "b0 = Squeeze (b) s0 = Squeeze (s) r = Range (zero, b0, one) q = Range (zero, s0, one) "
HOW += "bs = Concat <axis = 0> (b, s) r2 = Unsqueeze (r, i1) e = Expand (r2, bs) f = Expand (q, bs) "
HOW += "e3 = Unsqueeze (e, last) f3 = Unsqueeze (f, last) at = Concat <axis = -1> (e3, f3) "
TWO = "(T[past_b, past_s] x, T[past_u, past_s] u, T[past_u, past_s] g) => (T[k, l] y)"
SLOTS = "p = Shape <end = 1> (x) n = Shape <end = 1> (u) n0 = Squeeze (n) q = Range (zero, n0, one) r = Add (q, p) "
SLOTS += "d = Concat <axis = 0> (x, g) "
ROW = SLOTS + "d0 = Unsqueeze (d, i0) u0 = Unsqueeze (u, i0) "
HALVES = "a = Slice (x, i0, three, i2) b = Slice (x, three, i6, i2) "
NINE = HALVES + "u = Concat <axis = 0> (v, v) w = Slice (u, i0, nine) "
ROWS = "(T[b, s, 6] x, T[s, 6] u) => (T[k, l, m] y)"
TILED = "b = Shape <end = 1> (x) n = Concat <axis = 0> (b, i1) t = Tile (u, n) a = Reshape (x, width) "
COUNTED = "z = Not (f) w = Cast <to = 7> (z) n = ReduceSum <keepdims = 0> (w) n1 = Unsqueeze (n, i0) "
COUNTED = "f = Cast <to = 9> (x) " + COUNTED + "c = Concat <axis = 0> (n1, i1) e = Gather (c, zero) "
COUNTED += "r = Range (zero, e, one) "
CASES = (
    Case("reshape", "n = Shape (x) b = Slice (n, i0, i1, i0) s = Slice (n, i1, i2, i0) d = Mul (s, i2) "
         "t = Concat <axis = 0> (b, d, three) y = Reshape (x, t)", "y = Reshape (x, thirds)",
         "(T[b, past_s, 6] x) => (T[k, l, m] y)", constants={"thirds": np.array([0, -1, 3])}),
    Case("shape", COUNTED + "j = Neg (r) y = Shape (j)", COUNTED + "y = Shape (r)", "(T[b, s, 6] x) => (int64[k] y)"),
    Case("reshape", "i = NonZero (x) s = Shape (i) t = Concat <axis = 0> (i1, s) y = Reshape (i, t)",
         "i = NonZero (x) y = Unsqueeze (i, i0)", "(T[past_b, s, 6] x) => (int64[k, l, m] y)"),
    Case("identity", "a = Identity (x) y = Identity (a)", "y = Identity (x)"),
    Case("reshape", "a = Reshape (x, width) b = Shape (x) y = Reshape (a, b)", "y = Identity (x)"),
    Case("reshape", "a = Unsqueeze (x, i1) y = Squeeze (a, i1)", "y = Identity (x)"),
    Case("transpose", "a = Transpose <perm = [1, 0, 2]> (x) y = Transpose <perm = [1, 0, 2]> (a)", "y = Identity (x)"),
    Case("transpose", "a = Transpose <perm = [1, 2, 0]> (x) y = Transpose <perm = [2, 1, 0]> (a)",
         "y = Transpose <perm = [0, 2, 1]> (x)"),
    Case("transpose", "a = Unsqueeze (x, i0) c = Transpose <perm = [1, 0, 2, 3]> (a) y = Squeeze (c, i1)",
         "y = Identity (x)"),
    Case("transpose",
         "a = Reshape (x, flat) c = Transpose <perm = [0, 2, 1, 3]> (a) d = Transpose <perm = [0, 2, 1, 3]> (c) "
         "s = Shape (x) y = Reshape (d, s)", "y = Identity (x)"),
    Case("transpose", "t = Transpose <perm = [0, 2, 3, 1]> (x) e = Shape <start = 3> (t) "
         "n = Concat <axis = 0> (last, three, e) r = Reshape (t, n) y = Transpose <perm = [0, 2, 1]> (r)",
         "t = Transpose <perm = [0, 2, 1, 3]> (x) s = Shape <start = 2> (t) n = Concat <axis = 0> (last, s) "
         "y = Reshape (t, n)", "(T[b, s, 2, 3] x) => (T[k, l, m] y)", constants={"three": np.array([3])}),
    Case("expand", "s = Shape (x) a = Expand (v, s) y = Add (x, a)", "y = Add (x, v)", dtypes=NUMBERS),
    Case("expand", "s = Shape (x) y = Expand (x, s)", "y = Identity (x)"),
    Case("cut", "y = Slice (x, i0, far, i1)", "y = Identity (x)"),
    Case("cut", "a = Slice (x, i1, far, i2) y = Slice (a, i1, far, i2)", "y = Slice (x, i2, far, i2)", WIDE),
    Case("strides", "a = Slice (x, i1, far, i1, i2) y = Slice (a, i0, far, i2, three)",
         "y = Slice (x, from, to, both, steps)", WIDE, constants={
             "from": np.array([0, 1]), "to": np.array([2**40, 2**40]), "both": np.array([-1, 1]),
             "steps": np.array([3, 2])}),
    Case("strides", "y = Slice (x, minus2, far, i2, i2)", "y = Slice (x, four, far, last, i2)", WIDE,
         constants={"minus2": np.array([-2]), "four": np.array([4])}),
    Case("split", "y, z = Split <axis = 2> (x, parts)", "y = Slice (x, i0, i2, i2)", WIDE),
    Case("gather one", "a = Gather <axis = 2> (x, one) y = Unsqueeze (a, i2)", "y = Slice (x, i1, i2, i2)", WIDE),
    Case("gather one", "r = Range (one, six, one) y = Gather <axis = 2> (x, r)", "y = Slice (x, i1, far, i2)", WIDE,
         constants={"six": np.int64(6)}),
    Case("gather one", "a = Gather <axis = 2> (x, grid) y = Flatten <axis = 2> (a)",
         "b = Slice (x, i1, five, i2) y = Flatten <axis = 2> (b)", WIDE.replace("k, l, m", "k, l"),
         constants={"grid": np.array([[1, 2], [3, 4]]), "five": np.array([5])}),
    Case("concat", "a = Concat <axis = 1> (x, x) y = Concat <axis = 1> (a, x)", "y = Concat <axis = 1> (x, x, x)"),
    Case("concat", "a = Slice (x, i0, i0, i2) y = Concat <axis = 2> (a, x)", "y = Identity (x)"),
    Case("elementwise", "a = Reshape (x, width) c = Neg (a) s = Shape (x) y = Reshape (c, s)", "y = Neg (x)",
         dtypes=NUMBERS),
    Case("elementwise", "y = Mul (x, v)", "y = Mul (v, x)", dtypes=NUMBERS),
    Case("elementwise", "a = Reshape (x, width) c = Add (v, a) s = Shape (x) y = Reshape (c, s)", "y = Add (x, v)",
         dtypes=NUMBERS),
    Case("elementwise", TILED + "c = Add (a, t) d = Shape (x) y = Reshape (c, d)", "y = Add (x, u)", ROWS,
         dtypes=NUMBERS),
    Case("elementwise", TILED + "c = Neg (t) y = Add (a, c)", "c = Neg (u) d = Add (x, c) y = Reshape (d, width)",
         ROWS.replace("k, l, m", "k, l"), dtypes=FLOATS),
    Case("elementwise", "a = Reshape (x, twelve) c = Mul (m, a) d = Shape (x) y = Reshape (c, d)", "y = Mul (x, n)",
         "(T[past_b, 2, 6] x) => (T[k, l, m] y)", dtypes=("float",), constants={
             "twelve": np.array([-1, 12]), "n": np.array([1, -0.0, 3, 0.5, np.nan, 6]),
             "m": np.array([1, -0.0, 3, 0.5, np.nan, 6] * 2)}),
    Case("inverted", "c = IsNaN (x) d = Not (c) y = Where (d, q, p)", "c = IsNaN (x) y = Where (c, p, q)",
         dtypes=("float",), constants={"p": 0.0, "q": np.arange(6.0)}),
    Case("inverted", "c = Not (r) y = Where (c, x, v)", "c = Unsqueeze (r, i0) y = Where (c, v, x)",
         "(T[past_b, s, 6] x, T[6] v, bool[s, 6] r) => (T[k, l, m] y)", dtypes=("int64", "int32")),
    Case("elementwise", "a = Reshape (x, width) r = Shape (a) e = Expand (v, r) c = IsNaN (a) d = Where (c, v, a) "
         "s = Shape (x) y = Reshape (d, s)", "c = IsNaN (x) y = Where (c, v, x)", dtypes=("float", "double")),
    Case("rows", "a = Reshape (x, width) c = Softmax (a) s = Shape (x) y = Reshape (c, s)", "y = Softmax (x)",
         dtypes=("float", "double")),
    Case("rows", "a = Reshape (x, width) c = LayerNormalization (a, v, v) s = Shape (x) y = Reshape (c, s)",
         "y = LayerNormalization (x, v, v)", dtypes=("float", "double")),
    Case("product", "a = Reshape (x, width) c = MatMul (a, w) s = Shape (x) y = Reshape (c, s)", "y = MatMul (x, w)",
         "(T[past_b, s, 6] x, T[6, 6] w) => (T[k, l, m] y)", dtypes=("float", "double", "int64", "int32")),
    Case("product", "t = Transpose <perm = [0, 2, 1]> (x) a = Unsqueeze (x, i0) u = Unsqueeze (t, i0) "
         "c = MatMul (a, u) y = Squeeze (c, i0)", "t = Transpose <perm = [0, 2, 1]> (x) y = MatMul (x, t)",
         dtypes=("float", "double")),
    Case("product", "y = MatMul (x, w)", "m = Reshape (w, square) y = MatMul (x, m)",
         "(T[past_b, 2, s, 6] x, T[1, 1, 6, 6] w) => (T[k, l, m, n] y)", dtypes=("float", "double", "int64", "int32")),
    Case("product", "b = Shape <end = 1> (x) t = Concat <axis = 0> (b, i2, i6, i6) e = Expand (w, t) y = MatMul (x, e)",
         "y = MatMul (x, w)", "(T[past_b, 2, s, 6] x, T[2, 6, 6] w) => (T[k, l, m, n] y)", dtypes=("float", "double")),
    Case("product", "b = Shape <end = 3> (w) t = Concat <axis = 0> (b, i6) e = Expand (x, t) y = MatMul (e, w)",
         "y = MatMul (x, w)", "(T[past_b, 1, 6, 6] x, T[past_b, s, 6, 6] w) => (T[k, l, m, n] y)",
         dtypes=("float", "double")),
    Case("row sums", "a = Reshape (x, width) c = ReduceSum (a, last) s = Shape <end = 2> (x) y = Reshape (c, s)",
         "y = ReduceSum <keepdims = 0> (x, last)", "(T[past_b, s, 6] x) => (T[k, l] y)", dtypes=("float", "double")),
    Case("row sums", "a = Reshape (x, width) c = ReduceMean (a, last) s = Shape <end = 2> (x) y = Reshape (c, s)",
         "y = ReduceMean <keepdims = 0> (x, last)", "(T[past_b, s, 6] x) => (T[k, l] y)", dtypes=("float", "double")),
    Case("row places", "a = Reshape (x, width) c = ArgMax <axis = 1, keepdims = 0> (a) s = Shape <end = 2> (x) "
         "y = Reshape (c, s)", "y = ArgMax <axis = -1, keepdims = 0> (x)", "(T[past_b, s, 6] x) => (int64[k, l] y)",
         dtypes=("float", "double")),
    Case("lookup", "f = Reshape (i, last) a = Gather (x, f) s = Shape (i) t = Concat <axis = 0> (s, i6) "
         "y = Reshape (a, t)", "y = Gather (x, i)", "(T[5, 6] x, int64[past_b, s] i) => (T[k, l, m] y)"),
    Case("neutral", "s = Shape (x) z = ConstantOfShape (s) a = Add (z, n) y = Sub (a, x)", "y = Sub (n, x)",
         dtypes=("float",), constants={"n": np.array([1.0, 0.0, -2.0, np.inf, 1e-45, 3e38])}),
    Case("elementwise", "s = Shape (x) e = Expand (n, s) a = Mul (e, two) y = Sub (x, a)", "y = Sub (x, m)",
         dtypes=("float",), constants={"n": np.array([1.0, 0.0, -2.0, np.inf, 1e-3, 3e38]), "two": 2.0,
                                       "m": np.array([2.0, 0.0, -4.0, np.inf, 2e-3, np.inf])}),
    Case("neutral", "y = Mul (x, n)", "y = Identity (x)", dtypes=("float",), constants={"n": 1.0}),
    Case("neutral", "y = Div (x, n)", "y = Identity (x)", dtypes=("float",), constants={"n": 1.0}),
    Case("neutral", "y = Sub (x, n)", "y = Identity (x)", dtypes=("float",), constants={"n": 0.0}),
    Case("neutral", "y = Add (x, n)", "y = Identity (x)", dtypes=("float",), constants={"n": -0.0}),
    Case("neutral", "y = Add (n, x)", "y = Identity (x)", dtypes=("int64",), constants={"n": np.int64(0)}),
    Case("neutral", "y = And (x, n)", "y = Identity (x)", dtypes=("bool",), constants={"n": np.bool_(True)}),
    Case("neutral", "y = Or (n, x)", "y = Identity (x)", dtypes=("bool",), constants={"n": np.bool_(False)}),
    Case("cast", "y = Cast <to = 1> (x)", "y = Identity (x)", dtypes=("float",)),
    Case("cast", "y = CastLike (x, v)", "y = Identity (x)"),
    Case("pad", "y = Pad (x, nopads)", "y = Identity (x)", dtypes=("float", "double", "int64")),
    Case("pad", "y = Pad (x, wide)", "a = Reshape (x, width) p = Pad (a, flat) s = Shape <end = 2> (x) "
         "t = Concat <axis = 0> (s, nine) y = Reshape (p, t)", dtypes=("float", "double", "int64"),
         constants={"wide": np.array([0, 0, 1, 0, 0, 2]), "flat": np.array([0, 1, 0, 2]), "nine": np.array([9])}),
    Case("pad", "a = Unsqueeze (x, i0) p = Pad (a, pads, , axes) y = Squeeze (p, i0)", "y = Pad (x, around)",
         dtypes=("float", "double", "int64"), opset=18, constants={
             "pads": np.array([2, 1, 0, 3]), "axes": np.array([3, -3]), "around": np.array([1, 0, 2, 3, 0, 0])}),
    Case("pad", 'a = Unsqueeze (x, i1) p = Pad <mode = "edge"> (a, wide) y = Squeeze (p, i1)',
         'y = Pad <mode = "edge"> (x, around)', "(T[b, s, 6] x) => (T[k, l, m] y)", dtypes=("float", "double"),
         constants={"wide": np.array([0, 0, 1, 0, 0, 0, 0, 2]), "around": np.array([0, 1, 0, 0, 0, 2])}),
    Case("pad", "a = Unsqueeze (x, i1) p = Pad (a, wide, fill) y = Squeeze (p, i1)", "y = Pad (x, around, fill)",
         "(float[past_b, s, 6] x) => (float[k, l, m] y)", dtypes=("float",), constants={
             "wide": np.array([0, 0, 1, 0, 0, 0, 0, -2]), "around": np.array([0, 1, 0, 0, 0, -2]), "fill": -0.0}),
    Case("tile", "s = Shape <end = 1> (x) n = Concat <axis = 0> (s, i1, i1) a = Unsqueeze (v, i0) "
         "c = Unsqueeze (a, i0) t = Tile (c, n) y = Add (x, t)", "y = Add (x, v)", dtypes=("float", "double", "int64")),
    Case("tile", "s = Shape <start = 1, end = 2> (x) n = Concat <axis = 0> (i1, s, i2) y = Tile (v, n)",
         "s = Shape <start = 1, end = 2> (x) r = Concat <axis = 0> (i1, i1, s, i6, i1, i1) a = Reshape (v, apart) "
         "t = Concat <axis = 0> (i1, i1, s, i6, i2, i2) e = Expand (a, t) m = Concat <axis = 0> (i1, last, four) "
         "y = Reshape (e, m)", "(T[past_b, s, 6] x, T[1, 6, 2] v) => (T[k, l, m] y)",
         dtypes=("float", "double", "int64"),
         constants={"apart": np.array([1, 1, 1, 6, 1, 2]), "four": np.array([4])}),
    Case("filled", "s = Shape (x) a = ConstantOfShape (s) y = Add (x, a)", "y = Add (x, n)", dtypes=("float",),
         constants={"n": 0.0}),
    Case("scatter", HOW + "y = ScatterND (x, at, u)", "y = Identity (u)",
         "(T[past_b, past_s] x, T[past_b, past_s] u) => (T[k, l] y)", dtypes=("float", "int64", "double", "bool")),
    Case("scatter", SLOTS + "at = Unsqueeze (r, i1) y = ScatterND (d, at, u)", "y = Concat <axis = 0> (x, u)", TWO),
    Case("scatter", SLOTS + "at = Unsqueeze (r, i1) d2 = Concat <axis = 0> (d, x) w = ScatterND (d2, at, u) "
         "e = Add (p, n) y = Slice (w, i0, e, i0)", "y = Concat <axis = 0> (x, u)", TWO),
    Case("scatter", "y = ScatterND (x, box, u)",
         "t = Slice (x, i0, i1, i0) m = Slice (x, i1, three, i0) l = Slice (m, i0, i2, i1) "
         "r = Slice (m, three, i6, i1) c = Concat <axis = 1> (l, u, r) e = Slice (x, three, far, i0) "
         "y = Concat <axis = 0> (t, c, e)",
         "(T[4, 6, past_n] x, T[2, 1, past_n] u) => (T[k, l, m] y)", dtypes=("float", "int64", "double", "bool"),
         constants={"box": np.array([[[1, 2]], [[2, 2]]])}),
    Case("scatter", "y = ScatterND (x, ends, u)", "f = Slice (x, i0, minus2, i1) y = Concat <axis = 1> (f, u)",
         "(T[2, 6, past_n] x, T[2, 2, past_n] u) => (T[k, l, m] y)", dtypes=("float", "int64", "double", "bool"),
         constants={"ends": np.array([[[0, -2], [0, -1]], [[1, -2], [1, -1]]]), "minus2": np.array([-2])}),
    Case("scatter of elements", SLOTS + "c = Unsqueeze (r, i1) w = Shape (u) at = Expand (c, w) "
         "y = ScatterElements <axis = 0> (d, at, u)", "y = Concat <axis = 0> (x, u)", TWO),
    Case("scatter of elements", "y = ScatterElements <axis = 1> (x, middle, u)",
         "l = Slice (x, i0, i1, i1) r = Slice (x, three, i6, i1) y = Concat <axis = 1> (l, u, r)",
         "(T[2, 6] x, T[2, 2] u) => (T[k, l] y)", dtypes=("float", "int64", "double", "bool"),
         constants={"middle": np.array([[1, 2], [1, 2]])}),
    Case("scatter of elements", "y = ScatterElements <axis = -1> (x, ends, u)",
         "t = Slice (x, i0, i1, i0) f = Slice (t, i0, minus2, i1) c = Concat <axis = 1> (f, u) "
         "e = Slice (x, i1, far, i0) y = Concat <axis = 0> (c, e)",
         "(T[3, 6] x, T[1, 2] u) => (T[k, l] y)", dtypes=("float", "int64", "double", "bool"),
         constants={"ends": np.array([[-2, -1]]), "minus2": np.array([-2])}),
    Case("grid", HOW + "w = Neg (x) y = GatherND (w, at)", "y = Neg (x)",
         "(T[past_b, past_s] x) => (T[k, l] y)", dtypes=("float", "int64", "double")),
    Case("grid", HOW + "y = GatherND (u, at)", GRID + "b0 = Squeeze (b) s0 = Squeeze (s) r = Range (zero, b0, one) "
         "q = Range (zero, s0, one) g = Gather <axis = 0> (u, r) y = Gather <axis = 1> (g, q)",
         "(T[b, s] x, T[n, m] u) => (T[k, l] y)", dtypes=("float", "int64", "double", "bool")),
    Case("grid", SLOTS + "at = Unsqueeze (r, i1) y = GatherND (d, at)", "y = Identity (g)",
         TWO, dtypes=("float", "int64", "double", "bool")),
    Case("tensor scatter", ROW + "w = TensorScatter <axis = 1> (d0, u0, p) y = Squeeze (w, i0)",
         "y = Concat <axis = 0> (x, u)", TWO, opset=24),
    Case("tensor scatter", ROW + "w = TensorScatter <axis = 1> (d0, u0) y = Squeeze (w, i0)",
         "d = Concat <axis = 0> (x, g) n = Shape <end = 1> (u) v = Slice (d, n, far, i0) y = Concat <axis = 0> (u, v)",
         TWO, opset=24),
    Case("count", "n = Shape <start = 0, end = 1> (x) l = Squeeze (n) r = Range (zero, l, one) "
         "y = Slice (r, i1, n, i0)",
         "n = Shape <start = 0, end = 1> (x) l = Squeeze (n) y = Range (one, l, one)", "(T[p, 2] x) => (int64[k] y)"),
    Case("count", SLOTS + "e = Add (p, n) e0 = Squeeze (e) p0 = Squeeze (p) y = Range (p0, e0, one)",
         SLOTS + "y = Identity (r)", TWO.replace("T[k, l] y", "int64[k] y"), dtypes=("float",)),
    Case("shifted count", SLOTS + "a = Add (i2, r) y = Add (a, i1)", SLOTS + "a = Add (r, i1) y = Add (a, i2)",
         TWO.replace("T[k, l] y", "int64[k] y"), dtypes=("float",)),
    Case("shifted count", SLOTS + "a = Unsqueeze (r, i0) b = Add (a, i2) y = Squeeze (b, i0)",
         SLOTS + "y = Add (r, i2)",
         TWO.replace("T[k, l] y", "int64[k] y"), dtypes=("float",)),
    Case("transpose", "c = Concat <axis = 0> (x, u) y = Transpose (c)",
         "v = Transpose (x) w = Transpose (u) y = Concat <axis = 1> (v, w)", TWO.replace("[k, l] y", "[l, k] y")),
    Case("cut", "c = Concat <axis = 0> (x, u, g) s = Shape <end = 1> (x) y = Slice (c, s, far, i0)",
         "y = Concat <axis = 0> (u, g)", TWO),
    Case("concat", "s = Shape <end = 1> (x) d = Concat <axis = 0> (x, u) c = Neg (d) a = Slice (c, i0, s, i0) "
         "b = Slice (c, s, far, i0) y = Concat <axis = 0> (a, b)", "d = Concat <axis = 0> (x, u) y = Neg (d)", TWO,
         dtypes=NUMBERS),
    Case("quantize", "a = Reshape (x, width) q, r, z = DynamicQuantizeLinear (a) s = Shape (x) y = Reshape (q, s)",
         "y, r, z = DynamicQuantizeLinear (x)", "(float[b, s, 6] x) => (uint8[k, l, m] y)", dtypes=("float",)),
    Case("sequence at", "q = SplitToSequence <axis = 2> (x, three) y = SequenceAt (q, one)",
         "y = Slice (x, three, i6, i2)", WIDE, dtypes=("float", "double", "int64", "int32")),
    Case("constants run once", "n = Add (one, one) c = CastLike (n, x) y = Mul (x, c)",
         "c = CastLike (two, x) y = Mul (x, c)", dtypes=FLOATS, constants={"two": np.int64(2)}),
    Case("concat", "a = Slice (x, i0, i1, i2) y = Concat <axis = 2> (a, a, a)",
         "a = Slice (x, i0, i1, i2) s = Shape <end = 2> (x) n = Concat <axis = 0> (s, three) y = Expand (a, n)", WIDE),
    Case("reshape", "c = Concat <axis = 1> (x, x, x) y = Reshape (c, apart)",
         "a = Unsqueeze (x, i1) e = Expand (a, thrice) y = Reshape (e, apart)",
         "(float[2, 4, 6] x) => (float[k, l, m] y)",
         constants={"apart": np.array([6, 4, 6]), "thrice": np.array([1, 3, 1, 1])}),
    Case("reciprocal", "y = Reciprocal (x)", "c = CastLike (one, x) y = Div (c, x)", dtypes=FLOATS),
    Case("signs", HALVES + "n = Neg (b) c = Concat <axis = 2> (n, a) y = Mul (c, v)",
         HALVES + "c = Concat <axis = 2> (b, a) p = CastLike (pm, x) w = Mul (v, p) y = Mul (c, w)", dtypes=FLOATS,
         constants={"pm": np.array([-1, -1, -1, 1, 1, 1])}),
    Case("signs", NINE + "n = Neg (b) c = Concat <axis = 2> (a, n, b) y = Mul (w, c)",
         NINE + "c = Concat <axis = 2> (a, b, b) p = CastLike (pm, x) z = Mul (p, w) y = Mul (z, c)", dtypes=FLOATS,
         constants={"pm": np.array([1, 1, 1, -1, -1, -1, 1, 1, 1]), "nine": np.array([9])}),
    Case("zero states", "s = Shape <start = 1, end = 2> (x) n = Concat <axis = 0> (i2, s, i2) h = ConstantOfShape (n) "
         "a = Slice (h, i1, i2, i0) o, y = GRU <hidden_size = 2> (x, w, r, , , a)",
         "o, y = GRU <hidden_size = 2> (x, w, r)",
         "(float[length, batch, 3] x, float[1, 6, 3] w, float[1, 6, 2] r) => (float[k, l, m] y)", dtypes=("float",)),
    Case("zero states", "s = Shape <start = 1, end = 2> (x) n = Concat <axis = 0> (i1, s, i2) h = ConstantOfShape (n) "
         "o, y = GRU <hidden_size = 2> (x, w, r, , , h)", "o, y = GRU <hidden_size = 2> (x, w, r)",
         "(float[length, batch, 3] x, float[1, 6, 3] w, float[1, 6, 2] r) => (float[k, l, m] y)", dtypes=("float",)),
)  # fmt: skip


def built(case: Case, dtype: str) -> tuple[Model, Model]:
    constants = {**I64, **case.constants}
    head = case.head.replace("T[", f"{dtype}[")
    before, after = (
        model(f"g {head} {{ {body} }}", **{n: a for n, a in constants.items() if _reads(body, n)})
        for body in (case.before, case.after)
    )
    for each in (before, after):
        each.proto.opset_import[0].version = case.opset
    return before, after


def _reads(body: str, name: str) -> bool:
    return any(word.strip("(),") == name for word in body.replace("=", " ").split())


def drawn(target: Model, sizes: Mapping[str, int], seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found, dims = {}, named_inputs(target).dims
    for value in target.graph.inputs:
        kind = declared_type(value)
        assert kind is not None
        shape = [dim.evaluate(sizes) for dim in dims[value.name] or ()]
        dtype = helper.tensor_dtype_to_np_dtype(kind.dtype)
        edges = rng.choice(np.array(EDGES), shape) if dtype.kind == "f" else rng.choice(np.array(WHOLE), shape)
        if value.name == "i":
            edges = rng.integers(-5, 5, shape)
        elif dtype.kind == "f" and seed % 2:
            edges = rng.normal(size=shape)
        with np.errstate(all="ignore"):
            found[value.name] = edges.astype(dtype)
    return found


def bits(array: np.ndarray) -> np.ndarray:
    """Return the bits, those of every NaN the same."""
    if array.dtype.kind != "f":
        return array
    return np.where(np.isnan(array), array.dtype.type(np.nan), array).view(f"u{array.dtype.itemsize}")


def violations(before: Model, after: Model, sizes: Mapping[str, int], axioms: Sequence[Axiom]) -> set[str]:
    """Return what is proven and does not run the same, for some inputs each."""
    found = check_equivalence(before, after, axioms=axioms, dims="named")
    first, second = opened(before), opened(after)
    return {difference(before, first, second, sizes, seed) for seed in range(20)} if found.is_proven else {""}


def opened(of: Model) -> Callable[[], Session]:
    """Return what opens a session of a model, once."""
    return cache(lambda: Session(of, threads=1))


def difference(
    before: Model, first: Callable[[], Session], second: Callable[[], Session], sizes: Mapping[str, int], seed: int
) -> str:
    """Return what does not run the same."""
    named = {
        name: sizes[sorted(sizes)[index % len(sizes)]] for index, name in enumerate(sorted(named_inputs(before).groups))
    }
    if any(size == 0 and "past" not in name for name, size in named.items()):
        named = {name: size if "past" in name else max(size, 1) for name, size in named.items()}
    feeds = drawn(before, named, seed)
    try:
        right = first().run(feeds)
    except ModelError:
        return ""
    try:
        made = second().run(feeds)
    except ModelError as error:
        return f"it fails: {error}"
    for name, array in right.items():
        if array.shape != made[name].shape or not np.array_equal(bits(array), bits(made[name])):
            return f"{name} differs at {named}"
    return ""


def cases() -> Iterator[object]:
    """Yield each case with its first dtype, which is that of floats where it has any, and another one in turn."""
    for place, case in enumerate(CASES):
        first, *others = case.dtypes
        for dtype in (first, *(others[place % len(others) :][:1] if others else ())):
            yield pytest.param(case, dtype, id=f"{case.axiom}: {case.before[:40]} {dtype}")


@pytest.mark.cases(46)
@pytest.mark.parametrize(("case", "dtype"), [*cases()])
def test_an_axiom_proves_what_runs_the_same(case: Case, dtype: str) -> None:
    before, after = built(case, dtype)
    first, second = opened(before), opened(after)
    try:
        first()
    except ModelError:
        pytest.skip("onnxruntime has no kernel for it")
    found = check_equivalence(before, after, dims="named")
    assert found.is_proven, str(found)
    assert case.axiom in found.used
    assert all(output.exactness == "bit for bit" for output in found.outputs) or case.axiom == "filled"
    if case.axiom == "filled":
        return

    @settings(max_examples=6, derandomize=True, database=None)
    @given(st.tuples(SIZES, SIZES), st.integers(0, 1000))
    def runs(sizes: tuple[int, int], seed: int) -> None:
        named = dict(zip(("a", "b"), sizes, strict=True))
        assert difference(before, first, second, named, seed) == ""

    runs()


def test_each_axiom_has_a_case() -> None:
    assert {axiom.name for axiom in AXIOMS} == {case.axiom for case in CASES}


def first(app: Application) -> Term | None:
    return app.arg(0)


def zero(app: Application) -> Term | None:
    assert app.dims is not None
    number = app.tools.constants.of_array(np.zeros((), np.float32), app.dtype)
    return app.tools.movement.expand(number, app.dims)


def one_minus(app: Application) -> Term | None:
    """Forget the last element of a Slice."""
    source = app.arg(0)
    assert source is not None
    assert app.dims is not None
    return app.tools.movement.slice(source, 1, app.dims[1] * 0, app.dims[1])


WRONG = {
    "x + 0 = x": (("Add",), first, "y = Add (x, n)", "y = Identity (x)"),
    "x * 0 = 0": (("Mul",), zero, "y = Mul (x, n)", "s = Shape (x) y = ConstantOfShape (s)"),
    "x - x = 0": (("Sub",), zero, "y = Sub (x, x)", "s = Shape (x) y = ConstantOfShape (s)"),
    "|x| = x": (("Abs",), first, "y = Abs (x)", "y = Identity (x)"),
    "-(x) = x": (("Neg",), first, "y = Neg (x)", "y = Identity (x)"),
    "every Slice starts at 0": (("Slice",), one_minus, "y = Slice (x, i1, far, i1)", "y = Slice (x, i0, last, i1)"),
    "a sum is its first operand": (("Add",), first, "y = Add (x, v)", "y = Identity (x)"),
    "Floor = Identity": (("Floor",), first, "y = Floor (x)", "y = Identity (x)"),
    "max(x, 0) = x": (("Relu",), first, "y = Relu (x)", "y = Identity (x)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_axiom_is_found(name: str) -> None:
    operators, function, before, after = WRONG[name]
    case = Case(name, before, after, "(T[b, s, 6] x, T[6] v) => (T[k, l, m] y)", constants={"n": 0.0})
    models = built(case, "float")
    wrong = Axiom(name, frozenset(operators), function)
    assert not [each for each in check_equivalence(*models).outputs if each.exactness == "bit for bit"]
    found = violations(*models, {"a": 3, "b": 2}, (wrong, *AXIOMS))
    assert found != {""}


CONDITIONS = {  # what is proven, and runs otherwise, without them
    "-0 is neutral, not 0": (axioms.RIGHT, "Add", 0.0, "y = Add (x, n)", "y = Identity (x)"),
    "0 is neutral, not -0": (axioms.RIGHT, "Sub", -0.0, "y = Sub (x, m)", "y = Identity (x)"),
    "only true is neutral": (axioms.RIGHT, "Mul", -1.0, "y = Mul (x, minus)", "y = Identity (x)"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONDITIONS)
def test_without_a_condition_what_is_wrong_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table, key, content, before, after = CONDITIONS[name]
    constants = {"n": 0.0, "m": -0.0, "minus": -1.0}
    models = built(Case(name, before, after, dtypes=("float",), constants=constants), "float")
    assert not [each for each in check_equivalence(*models).outputs if each.exactness == "bit for bit"]
    monkeypatch.setitem(table, key, content)  # type: ignore[arg-type]
    assert violations(*models, {"a": 3, "b": 2}, AXIOMS) != {""}


def test_a_0_that_is_added_goes_only_where_no_element_is_minus_0(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("neutral", "s = Shape (x) z = ConstantOfShape (s) a = Add (z, n) y = Mul (a, x)", "y = Mul (n, x)",
                constants={"n": np.array([1.0, -0.0, 2.0, 0.5, 0.1, 3.0])})  # fmt: skip
    models = built(case, "float")
    assert [output.exactness for output in check_equivalence(*models).outputs] == ["in exact arithmetic"]
    monkeypatch.setattr(Constants, "has_no_minus_zero", lambda _self, _term: True)
    assert violations(*models, {"a": 3, "b": 2}, AXIOMS) != {""}


def test_an_expand_goes_from_a_product_only_where_onnxruntime_multiplies_batch_by_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expand = "s = Shape (z) b = Slice (s, i0, i1, i0) t = Concat <axis = 0> (b, i6, i6, i6) e = Expand (z, t) "
    case = Case("product", expand + "y = MatMul (x, e)", "y = MatMul (x, z)",
                "(T[b, 6, s, 6] x, T[b, 1, 6, 6] z) => (T[k, l, m, n] y)")  # fmt: skip
    models = built(case, "float")
    assert not check_equivalence(*models).proven
    monkeypatch.setattr(flat, "lower", lambda _dim: 2)
    assert violations(*models, {"a": 1, "b": 1}, AXIOMS) != {""}


def flipped(array: np.ndarray) -> np.ndarray:
    return np.where(array == 0, -array, array)


UNARY = sorted((BLIND | FAITHFUL) & {
    "Abs", "Cos", "Cosh", "Exp", "IsInf", "IsNaN", "Log", "NonZero", "ReduceL1", "ReduceL2", "ReduceSumSquare",
    "Sigmoid", "Softmax", "Softplus", "Ceil", "Elu", "Erf", "Floor", "HardSwish", "LeakyRelu", "Neg", "ReduceMax",
    "ReduceMean", "ReduceMin", "ReduceSum", "Relu", "Round", "Sin", "Sqrt", "Tanh",
})  # fmt: skip
BINARY = sorted(
    ({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"} & BLIND) | (FAITHFUL_IN_ALL - {"Where", "Gemm"})
)


@pytest.mark.cases(15)
@pytest.mark.parametrize("operator", [*UNARY, *BINARY, "Div"])
def test_signs_of_zeros_matter_no_more_than_is_said(operator: str) -> None:
    is_bool = operator in ("IsNaN", "IsInf", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    kind = "bool" if is_bool else "int64" if operator == "NonZero" else "float"
    inputs = "x" if operator in UNARY else "x, z"
    attribute = {"Concat": "<axis = 0>", "Einsum": '<equation = "ij,jk->ik">'}.get(operator, "")
    text = f"g (float[n, m] x, float[n, m] z) => ({kind}[k, l] y) {{ y = {operator} {attribute} ({inputs}) }}"
    session = Session(model(text), threads=1)
    rng = np.random.default_rng(0)
    for _ in range(20):
        x, z = (rng.choice(np.array(EDGES[:8], np.float32), (4, 4)) for _ in range(2))
        right = session.run({"x": x, "z": z})["y"]
        for other in (
            {"x": flipped(x), "z": z},
            {"x": x, "z": flipped(z)} if operator in FAITHFUL_IN_ALL else {"x": x, "z": z},
        ):
            made = session.run(other)["y"]
            assert np.array_equal(right, made, equal_nan=kind == "float")
            if operator in BLIND:
                assert np.array_equal(bits(right), bits(made))


OF_PLANES = {
    "InstanceNormalization (x, v, v)": {"v": [1.5, -0.5]},
    "GroupNormalization <num_groups = 2> (x, v, v)": {"v": [1.5, -0.5]},
    "PRelu (x, slope)": {"slope": [[[0.5]]]},
    "ConvTranspose (x, w)": {"w": [[[[-1, 2], [0, 1]]]] * 2},
    'Resize <mode = "linear"> (x, , twice)': {"twice": [1, 1, 2, 2]},
    'Resize <mode = "cubic"> (x, , twice)': {"twice": [1, 1, 2, 2]},
}


@pytest.mark.cases(6)
@pytest.mark.parametrize(("node", "constants"), OF_PLANES.items())
def test_signs_of_zeros_matter_no_more_than_is_said_in_planes(node: str, constants: dict[str, list[float]]) -> None:
    numbers = {name: np.array(each, np.float32) for name, each in constants.items()}
    made = model(f"g (float[1, 2, 3, 3] x) => (float[a, b, c, d] y) {{ y = {node} }}", **numbers)
    made.proto.opset_import[0].version = 21
    session = Session(made, threads=1)
    assert node.split(" ")[0] in FAITHFUL
    for seed in range(20):
        x = np.random.default_rng(seed).choice(np.array(EDGES[:8], np.float32), (1, 2, 3, 3))
        assert np.array_equal(session.run({"x": x})["y"], session.run({"x": flipped(x)})["y"], equal_nan=True)


def test_a_tensor_that_is_repeated_in_another_order_is_another_one() -> None:
    each = "b = Shape <end = 1> (x) s = Shape (u) n = Concat <axis = 0> (s, b) c = Unsqueeze (u, i2) e = Expand (c, n) "
    each += "f = Transpose <perm = [0, 2, 1]> (e) t = Reshape (f, width) a = Reshape (x, width) "
    bodies = (tiled + "c2 = Add (a, t) d = Shape (x) y = Reshape (c2, d)" for tiled in (TILED, each))
    assert not check_equivalence(*built(Case("", *bodies, ROWS), "float")).proven
    numbers = [1.0, 2.0, 3.0, 0.5, 5.0, 6.0]
    for odd in ([*numbers, *numbers[:-1], 7.0], [*numbers, -0.0, *numbers[1:]], [n for n in numbers for _ in range(2)]):
        body = "a = Reshape (x, twelve) c = Mul (m, a) d = Shape (x) y = Reshape (c, d)"
        constants = {"twelve": np.array([-1, 12]), "n": np.array(numbers), "m": np.array(odd)}
        case = Case("", body, "y = Mul (x, n)", "(T[past_b, 2, 6] x) => (T[k, l, m] y)", constants=constants)
        assert not check_equivalence(*built(case, "float")).proven


def test_constants_run_as_folding_runs_them_though_kernels_would_pack_a_weight() -> None:
    rng = np.random.default_rng(0)
    body = "g (float[n, 49, 2] x) => (float[n, 49, 2] y) { a = Relu (l) b = Transpose (r) c = MatMul (a, b) "
    original = model(body + "y = Add (x, c) }", l=rng.normal(size=(49, 512)), r=rng.normal(size=(2, 512)))
    folded = fold(original).model
    assert [node.op_type for node in folded.graph.nodes] == ["Add"]
    assert [each.exactness for each in check_equivalence(original, folded).outputs] == ["bit for bit"]


def test_zeros_that_are_added_before_products_go() -> None:
    """Wav2Vec2-BERT's biases that were never trained, before an Einsum with a table of distances."""
    text = """g (float[n, 6] x, float[6, 6] w) => (float[n, 6] y) {
        a = Add (x, zeros) b = Einsum <equation = "ij,jk->ik"> (a, w) y = Softmax (b) }"""
    original = model(text, zeros=np.zeros(6, np.float32))
    folded = fold(original).model
    assert [node.op_type for node in folded.graph.nodes] == ["Einsum", "Softmax"]
    assert check_equivalence(original, folded).is_proven


def test_zeros_that_are_added_count_as_such() -> None:
    text = "g (float[n] x) => (float[n] y) {{ {} }}"
    added, plain = model(text.format("y = Add (x, n)"), n=0.0), model(text.format("y = Identity (x)"))
    assert [each.exactness for each in check_equivalence(added, plain).outputs] == ["in exact arithmetic"]
    blind = [model(text.format(body + "y = Exp (a)"), n=0.0) for body in ("a = Add (x, n) ", "a = Identity (x) ")]
    assert [each.exactness for each in check_equivalence(*blind).outputs] == ["bit for bit"]
    open_ = [
        model(text.format(body + "y = Reciprocal (a)"), n=0.0) for body in ("a = Add (x, n) ", "a = Identity (x) ")
    ]
    assert [each.exactness for each in check_equivalence(*open_).outputs] == ["in exact arithmetic"]


def test_where_the_sign_of_zeros_matters_it_is_kept_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    models = built(Case("", "a = Add (x, n) y = Reciprocal (a)", "y = Reciprocal (x)", constants={"n": 0.0}), "float")
    assert [each.exactness for each in check_equivalence(*models).outputs] == ["in exact arithmetic"]
    monkeypatch.setattr(reader, "is_blind", lambda _app, _index: True)
    assert [each.exactness for each in check_equivalence(*models).outputs] == ["bit for bit"]
    assert violations(*models, {"a": 3, "b": 2}, AXIOMS) != {""}


@pytest.mark.parametrize("write", ["ScatterND (d, i, a)", "TensorScatter <axis = 1> (d, a, start)"])
def test_what_is_written_in_place_has_the_sign_of_its_zeros(write: str) -> None:
    head = "g (float[1, 3, 4] d, float[1, 1, 4] x) => (float[b, s, w] y, float[b, s, w] z)"
    numbers = {"n": np.zeros(4), "i": np.array([[[0, 1]]]), "start": np.array([1])}
    text = '<ir_version: 10, opset_import: ["" : 24]>\n' + head
    made = []
    for first in ("a = Add (x, n)", "a = Identity (x)"):
        words = f"{first} {write}".replace("(", " ").replace(")", " ").replace(",", " ").split()
        constants = {name: number for name, number in numbers.items() if name in words}
        made.append(model(f"{{ {first} p = {write} y = Softmax (p) z = Neg (p) }}", text, **constants))
    found = check_equivalence(*made).outputs
    assert [each.exactness for each in found] == ["bit for bit", "in exact arithmetic"]


OF_BOXES = {  # what reads boxes, and how many there are
    "(float[1, 9, 4] x, float[1, 1, 9] v) => (int64[k, 3] y)": "NonMaxSuppression (b, v, nine, third)",
    "(float[6, 4] x, float[1, 2, 5, 5] v) => (float[k, l, m, n] y)": "RoiAlign <sampling_ratio = 2> (v, b, first)",
}


def test_what_is_blind_in_its_second_input_is_tried() -> None:
    assert {words.split()[0] for words in OF_BOXES.values()} >= BLIND_IN_SECOND


@pytest.mark.parametrize("head", OF_BOXES)
def test_the_sign_of_zeros_in_boxes_decides_nothing(head: str) -> None:
    rng = np.random.default_rng(0)
    numbers = {"nine": np.array([9]), "third": np.float32(0.3), "first": np.zeros(6, np.int64), "nought": np.float32(0)}
    used = {name: number for name, number in numbers.items() if name in OF_BOXES[head]}
    added = model(f"g {head} {{ b = Add (x, nought) y = {OF_BOXES[head]} }}", **used, nought=numbers["nought"])
    plain = model(f"g {head} {{ b = Identity (x) y = {OF_BOXES[head]} }}", **used)
    assert [each.exactness for each in check_equivalence(added, plain).outputs] == ["bit for bit"]
    session = Session(plain, threads=1)
    for _ in range(20):
        lead = (1, 9) if "third" in used else (6,)
        x = np.sort(rng.choice([-1.0, 0.0, 1.0, 2.0], (*lead, 2, 2)), -2).reshape(*lead, 4).astype(np.float32)
        v = rng.choice([0.0, 0.5, 1.0, 3.0], (1, 1, 9) if "third" in used else (1, 2, 5, 5)).astype(np.float32)
        assert (
            bits(session.run({"x": x, "v": v})["y"]).tolist()
            == bits(session.run({"x": flipped(x), "v": v})["y"]).tolist()
        )
