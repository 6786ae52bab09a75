"""Wrong models that are right as long as numbers are small, or of a dtype that holds them; none is proven."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from onnx import TensorProto
from small_models import model

from graphkit.equivalence import check_equivalence
from graphkit.model import Model
from graphkit.runtime.session import Session
from graphkit.verify import verify_rewrite

I32, I64, F32, F16, BOOL = np.int32, np.int64, np.float32, np.float16, TensorProto.BOOL
LIST, CUT = "(float[n] x) => (float[n] y)", "(float[n] x) => (float[k] y)"
CHOICE = "p = Abs (x) q = Neg (x) y = Where (w, p, q)"
BRANCH = """w = Squeeze (v) y = If (w) <then_branch = t () => (float[n] t1) { t1 = Abs (x) },
                                       else_branch = e () => (float[n] t2) { t2 = Neg (x) }>"""
WRAPS = 2**31 // 301 + 1  # times 301 it is no int32
NUMBERS: Mapping[str, object] = {
    "zero": [0],
    "one": [1],
    "two": [2],
    "many": [300],
    "last": [-1],
    "end": [2**63 - 1],
    "none": np.array([0], I32),
    "no": np.array([False]),
}


@dataclass(frozen=True)
class Wrong:
    """Two bodies of one head, and a size at which they differ."""

    before: str
    after: str
    size: int
    constants: Mapping[str, object] = field(default_factory=dict)
    head: str = LIST
    feeds: Mapping[str, np.ndarray] = field(default_factory=dict)

    def models(self) -> tuple[Model, Model]:
        """Return both models."""
        return self.of(self.before), self.of(self.after)

    def of(self, body: str) -> Model:
        known = {name: each for name, each in {**NUMBERS, **self.constants}.items() if _is_read(name, body)}
        arrays = {name: each for name, each in known.items() if not isinstance(each, TensorProto)}
        made = model(f"g {self.head} {{ {body} }}", **arrays)
        for name, each in known.items():
            if isinstance(each, TensorProto):
                tensor = made.proto.graph.initializer.add()
                tensor.CopyFrom(each)
                tensor.name = name
        return Model.from_proto(made.proto)

    @property
    def feed(self) -> dict[str, np.ndarray]:
        """What tells both models apart."""
        return {"x": np.arange(1, self.size + 1, dtype=F32), **self.feeds}

    @property
    def differs(self) -> bool:
        """Whether runs tell both models apart."""
        before, after = (Session(each, threads=1).run(self.feed)["y"] for each in self.models())
        return not np.array_equal(before, after, equal_nan=True)


def _is_read(name: str, body: str) -> bool:
    words = body.translate(str.maketrans("(),", "   ")).split()
    return name in words


def chosen(condition: str, size: int, **constants: object) -> Wrong:
    """Return a choice that is taken for another one."""
    return Wrong(f"s = Shape (x) {condition} {CHOICE}", f"w = Identity (no) {CHOICE}", size, constants)


def branched(condition: str, size: int, **constants: object) -> Wrong:
    """Return a branch that is taken for another one."""
    return Wrong(f"s = Shape (x) {condition} {BRANCH}", "y = Neg (x)", size, constants)


def unlike(made: str, size: int, **constants: object) -> Wrong:
    """Return a choice that depends on whether a number is another one than a size."""
    return chosen(f"{made} e = Equal (m, s) w = Not (e)", size, **constants)


def cut(before: str, after: str, size: int, **constants: object) -> Wrong:
    """Return a part of the input that is taken for another one."""
    return Wrong(f"s = Shape (x) {before}", f"s = Shape (x) {after}", size, constants, CUT)


def of_element(condition: str, number: object, dtype: str = "int64", **constants: object) -> Wrong:
    """Return a choice by an element of an input that is taken for another one."""
    head = f"(float[n] x, {dtype}[1] e) => (float[n] y)"
    array = np.array([number], np.dtype(dtype))
    return Wrong(f"{condition} {CHOICE}", f"w = Identity (no) {CHOICE}", 3, constants, head, {"e": array})


def stored(dtype: int, number: int, place: str = "int32_data") -> TensorProto:
    tensor = TensorProto(data_type=dtype, dims=[1])
    getattr(tensor, place).append(number)
    return tensor


BACK = "m0 = Cast <to = 7> (c)"
SIGN = "w = Less (c, none)"
SUM = "r = {} <keepdims = 1> (a) e = Equal (r, t) w = Not (e)"
IN_BRANCH = f"""c = Identity (yes) y = If (c) <
    then_branch = t () => (float[n] y1) {{{{ {{}} {CHOICE.replace("y =", "y1 =")} }}}},
    else_branch = e () => (float[n] y2) {{{{ y2 = Neg (x) }}}}>"""
IN_LOOP = f"""y = Loop (trips, yes, x) <body = b (int64 i, bool k0, float[n] t) => (bool k1, float[n] y1) {{{{
    k1 = Identity (k0) {{}} {CHOICE.replace("y =", "y1 =")} }}}}>"""
PAIRS = {
    # integers that another dtype does not hold
    "the larger number as int32": chosen(
        "m = Max (s, k) c = Cast <to = 6> (m) n = Less (c, none) g = Greater (s, many) w = And (n, g)", 301, k=[2**31]
    ),
    "a sum as int32": chosen(f"m = Add (s, k) c = Cast <to = 6> (m) {SIGN}", 3, k=[2**31]),
    "a product as int32": chosen(f"m = Mul (s, k) c = Cast <to = 6> (m) {SIGN}", 301, k=[WRAPS]),
    "a product like an int32": chosen(f"m = Mul (s, k) c = CastLike (m, none) {SIGN}", 301, k=[WRAPS]),
    "a sum as uint32": chosen(
        "m = Add (s, k) c = Cast <to = 12> (m) d = Cast <to = 7> (c) w = Less (d, many)", 301, k=[2**32 - 300]
    ),
    "a difference as uint64": chosen(
        "m = Sub (s, many) c = Cast <to = 13> (m) f = Cast <to = 1> (c) w = Greater (f, k)", 3, k=np.array([1e10], F32)
    ),
    "a size as uint8": unlike("c = Cast <to = 2> (s) m = Cast <to = 7> (c)", 301),
    "a size as int8": unlike("c = Cast <to = 3> (s) m = Cast <to = 7> (c)", 200),
    "a product as int16": chosen(
        "m = Mul (s, k) c = Cast <to = 5> (m) d = Cast <to = 7> (c) w = Less (d, zero)", 301, k=[109]
    ),
    "a product as uint16": chosen(
        "m = Mul (s, k) c = Cast <to = 4> (m) d = Cast <to = 7> (c) w = Less (d, m)", 301, k=[218]
    ),
    # arithmetic that wraps around
    "a product of int64": chosen("m = Mul (s, k) w = Less (m, zero)", 301, k=[2**63 // 301 + 1]),
    "a power by products": chosen("a = Mul (s, s) b = Mul (a, a) c = Mul (b, b) w = Less (c, one)", 256),
    "a sum of int64": chosen("m = Add (s, k) w = Less (m, zero)", 301, k=[2**63 - 301]),
    "a product of int32": chosen(f"a = Cast <to = 6> (s) c = Mul (a, k) {SIGN}", 301, k=np.array([WRAPS], I32)),
    "a square of int32": chosen(f"a = Cast <to = 6> (s) c = Mul (a, a) {SIGN}", 46341),
    "a product of int32 beyond what is usual": chosen(
        f"a = Cast <to = 6> (s) c = Mul (a, k) {SIGN}", 2048, k=np.array([2**20], I32)
    ),
    "a difference of uint32": chosen(
        "c = Cast <to = 12> (s) m = Sub (c, k) w = Greater (m, k)", 3, k=np.array([300], np.uint32)
    ),
    "a sum of uint8": chosen(
        "c = Cast <to = 2> (s) a = Add (c, c) m = Cast <to = 7> (a) t = Add (s, s) w = Less (m, t)", 200
    ),
    # floats that round
    "a large sum as float32": unlike(
        "a = Add (s, k) f = Cast <to = 1> (a) b = Cast <to = 7> (f) m = Sub (b, k)", 3, k=[2**24]
    ),
    "a sum of float32": unlike(
        "f = Cast <to = 1> (s) a = Add (f, k) d = Sub (a, k) m = Cast <to = 7> (d)", 3, k=np.array([2**24], F32)
    ),
    "a product of float32": chosen(
        "f = Cast <to = 1> (s) a = Mul (f, k) b = Add (a, o) d = Sub (b, a) w = Less (d, o)",
        301,
        k=np.array([2**20], F32),
        o=np.array([1], F32),
    ),
    "a large sum as float16": unlike(
        "a = Add (s, k) f = Cast <to = 10> (a) b = Cast <to = 7> (f) m = Sub (b, k)", 301, k=[2048]
    ),
    "a large sum as float64": unlike(
        "a = Add (s, k) f = Cast <to = 11> (a) b = Cast <to = 7> (f) m = Sub (b, k)", 3, k=[2**53]
    ),
    # sums, products and powers, which onnxruntime computes in float64
    "ReduceSum": chosen(
        f"m = Add (s, k) a = Concat <axis = 0> (m, one) t = Add (m, one) {SUM.format('ReduceSum')}", 301, k=[2**53]
    ),
    "ReduceSum of one": chosen(f"a = Add (s, k) t = Identity (a) {SUM.format('ReduceSum')}", 3, k=[2**53]),
    "ReduceSum of what cancels": chosen(
        f"a = Concat <axis = 0> (k, s, j) t = Identity (s) {SUM.format('ReduceSum')}", 301, k=[2**60], j=[-(2**60)]
    ),
    "ReduceProd": chosen(f"a = Add (s, k) t = Identity (a) {SUM.format('ReduceProd')}", 3, k=[2**53]),
    "ReduceSumSquare": chosen(f"a = Add (s, k) t = Mul (a, a) {SUM.format('ReduceSumSquare')}", 301, k=[2**27]),
    "Pow by 1": unlike("a = Add (s, k) b = Pow (a, one) m = Sub (b, k)", 3, k=[2**53]),
    # the same numbers choose a branch, and parts of the input
    "a branch by an int32": branched(
        f"m = Mul (s, k) c = Cast <to = 6> (m) {SIGN} v = Identity (w0)".replace("w =", "w0 ="), 301, k=[WRAPS]
    ),
    "a branch by a ReduceSum": branched(
        "a = Add (s, k) r = ReduceSum <keepdims = 1> (a) e = Equal (r, a) v = Not (e)", 3, k=[2**53]
    ),
    "a branch by a float32": branched(
        "a = Add (s, k) f = Cast <to = 1> (a) b = Cast <to = 7> (f) e = Equal (b, a) v = Not (e)", 3, k=[2**24]
    ),
    "a part up to an int32": cut(
        "m = Mul (s, k) c = Cast <to = 6> (m) d = Cast <to = 7> (c) y = Slice (x, zero, d)",
        "y = Identity (x)",
        301,
        k=[WRAPS],
    ),
    "a part up to the larger number as int32": cut(
        "m = Max (s, k) c = Cast <to = 6> (m) d = Cast <to = 7> (c) y = Slice (x, zero, d)",
        "y = Identity (x)",
        3,
        k=[2**31],
    ),
    "a part up to a difference of uint32": cut(
        "u = Cast <to = 12> (s) m = Sub (u, k) c = Cast <to = 7> (m) y = Slice (x, zero, c)",
        "m = Sub (s, j) y = Slice (x, zero, m)",
        2,
        k=np.array([3], np.uint32),
        j=[3],
    ),
    "a part up to a difference as uint8": cut(
        "m = Sub (s, k) u = Cast <to = 2> (m) c = Cast <to = 7> (u) y = Slice (x, zero, c)",
        "m = Sub (s, k) y = Slice (x, zero, m)",
        2,
        k=[5],
    ),
    "a part from a half that is rounded to even": cut(
        "f = Cast <to = 1> (s) h = Mul (f, k) r = Round (h) c = Cast <to = 7> (r) y = Slice (x, zero, c)",
        "a = Add (s, one) c = Div (a, two) y = Slice (x, zero, c)",
        41,
        k=np.array([0.5], F32),
    ),
    "a part from a negative half": cut(
        "a = Sub (s, k) c = Div (a, two) y = Slice (x, c, end)",
        "f = Cast <to = 1> (s) a = Sub (f, j) h = Mul (a, i) l = Floor (h) c = Cast <to = 7> (l) y = Slice (x, c, end)",
        3,
        k=[4],
        j=np.array([4], F32),
        i=np.array([0.5], F32),
    ),
    "a part from a negative rest": cut(
        "a = Sub (s, k) c = Mod (a, j) y = Slice (x, c, end)",
        "a = Sub (s, k) c = Mod <fmod = 1> (a, j) y = Slice (x, c, end)",
        41,
        k=[50],
        j=[7],
    ),
    "repeats as int8": cut(
        "c = Cast <to = 3> (s) d = Cast <to = 7> (c) e = Max (d, zero) p = Concat <axis = 0> (zero, e) y = Pad (x, p)",
        "p = Concat <axis = 0> (zero, s) y = Pad (x, p)",
        200,
    ),
    "a number of largest as int8": cut(
        "c = Cast <to = 3> (s) d = Cast <to = 7> (c) e = Max (d, one) y, i = TopK (x, e)", "y, i = TopK (x, s)", 200
    ),
    # elements of inputs at the ends of their dtype
    "one more than an element": of_element("a = Add (e, one) w = Less (a, e)", 2**63 - 1),
    "one less than an element": of_element("a = Sub (e, one) w = Greater (a, e)", -(2**63)),
    "an element that is negated": of_element(
        "a = Neg (e) b = Equal (a, e) c = Less (e, zero) w = And (b, c)", -(2**63)
    ),
    "the size of an element": of_element("a = Abs (e) w = Less (a, zero)", -(2**63)),
    "half of twice an element": of_element("a = Mul (e, two) b = Div (a, two) c = Equal (b, e) w = Not (c)", 2**62 + 1),
    "an element as int32": of_element(
        "a = Cast <to = 6> (e) b = Cast <to = 7> (a) c = Equal (b, e) w = Not (c)", 2**40
    ),
    "an element as float32": of_element(
        "a = Cast <to = 1> (e) b = Cast <to = 7> (a) c = Equal (b, e) w = Not (c)", 2**24 + 1
    ),
    "an element as float64": of_element(
        "a = Cast <to = 11> (e) b = Cast <to = 7> (a) c = Equal (b, e) w = Not (c)", 2**53 + 1
    ),
    "an element as bool": of_element("a = Cast <to = 9> (e) b = Cast <to = 7> (a) w = Less (b, e)", 5),
    "a sum with an element": of_element(
        "a = Concat <axis = 0> (e, one) r = ReduceSum <keepdims = 1> (a) b = Add (e, one) c = Equal (r, b) w = Not (c)",
        2**53,
    ),
    "the square of an element": of_element("a = Pow (e, two) b = Mul (e, e) c = Equal (a, b) w = Not (c)", 2**31 + 1),
    "an element below a bound": of_element(
        "a = Clip (e, k, j) w = Less (a, e)", 2**63 - 1, k=np.array(-(2**63)), j=np.array(2**63 - 2)
    ),
    "one more than an int32": of_element("a = Add (e, k) w = Less (a, e)", 2**31 - 1, "int32", k=np.array([1], I32)),
    "one more than a uint8": of_element("a = Add (e, k) w = Less (a, e)", 255, "uint8", k=np.array([1], np.uint8)),
    "a uint64 as int64": of_element("a = Cast <to = 7> (e) w = Less (a, zero)", 2**63 + 5, "uint64"),
    # constants, by where they are stored
    "a bool of 256": chosen("g = Greater (s, many) w = And (g, k)", 301, k=stored(BOOL, 256)),
    "a bool of -256": chosen("g = Greater (s, many) w = And (g, k)", 301, k=stored(BOOL, -256)),
    "an int8 of 200": chosen(
        "c = Cast <to = 7> (k) g = Greater (s, many) h = Less (c, zero) w = And (g, h)",
        301,
        k=stored(TensorProto.INT8, 200),
    ),
    "a uint8 of 511": chosen(
        "c = Cast <to = 7> (k) g = Greater (s, many) h = Less (c, many) w = And (g, h)",
        301,
        k=stored(TensorProto.UINT8, 511),
    ),
    "a uint32 of 2^33 + 5": chosen(
        "c = Cast <to = 7> (k) g = Greater (s, many) h = Less (c, many) w = And (g, h)",
        301,
        k=stored(TensorProto.UINT32, 2**33 + 5, "uint64_data"),
    ),
    "a branch by a bool of 256": branched("v = Identity (k)", 3, k=stored(BOOL, 256)),
    # numbers of floats that no integer is
    "an infinity that is clipped": chosen(
        "c = Clip (k) e = Equal (c, k) n = Not (e) g = Greater (s, many) w = And (g, n)", 301, k=np.array([np.inf], F32)
    ),
    "a choice of -0": chosen(
        "g = Greater (s, many) a = Where (g, k, k) r = Reciprocal (a) w = Greater (r, j)",
        301,
        k=np.array([-0.0], F32),
        j=np.array([0.0], F32),
    ),
    # bodies
    **{
        f"a wrap in a body of {name}": Wrong(
            head.format(f"s = Shape (x) m = Mul (s, k) d = Cast <to = 6> (m) {SIGN.replace('c,', 'd,')}"),
            head.format("w = Identity (no)"),
            301,
            {"k": [WRAPS], "trips": np.array(1), "yes": np.array(True)},
        )
        for name, head in {"If": IN_BRANCH, "Loop": IN_LOOP}.items()
    },
}


@pytest.mark.cases(22)
@pytest.mark.parametrize("name", PAIRS)
def test_a_wrong_number_is_not_proven(name: str) -> None:
    pair = PAIRS[name]
    assert pair.differs
    before, after = pair.models()
    assert check_equivalence(before, before.with_proto(before.proto)).is_proven
    found = check_equivalence(before, after)
    assert not found.proven or not all(limit.holds({"n": pair.size}) for limit in found.limits)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PAIRS][::8])
def test_a_wrong_number_fails_a_proof(name: str) -> None:
    assert not verify_rewrite(*PAIRS[name].models()).passed
