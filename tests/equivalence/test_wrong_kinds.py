"""Wrong models that are not loaded, that fail where their original runs, or that round too much: none is proven."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper
from small_models import model
from test_axioms import bits

from graphkit.equivalence import check, check_equivalence, loading
from graphkit.errors import ModelError
from graphkit.model import Model, load
from graphkit.runtime.session import IsolatedSession, RunError, Session
from graphkit.symbolic.expr import TooComplexError

HEAD = '<ir_version: 10, opset_import: ["" : {}, "com.microsoft" : 1]>\n'
SIX = np.arange(6, dtype=np.float32)
RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Wrong:
    """Two bodies of one head, the second one wrong, and inputs that show it.

    Attributes:
        opsets: Of the original, and of the wrong model.
    """

    head: str
    before: str
    after: str
    feed: Mapping[str, np.ndarray]
    constants: Mapping[str, object] = field(default_factory=dict)
    opsets: tuple[int, int] = (18, 18)


LIST = "(float[n] x) => (float[n] y)"
ROWS = "(float[2, 3] x) => (float[2, 3] y)"
NEG = "y = Neg (x)"
IF = "{} = If ({}) <then_branch = t () => ({}) {{ a = Neg (x) {} }}, else_branch = e () => ({}) {{ d = Abs (x) {} }}>"


def beside(head: str, node: str, feed: Mapping[str, np.ndarray], opset: int = 18, end: str = "y = Identity (x)",
           **constants: object) -> Wrong:  # fmt: skip
    """Return a pair whose second model has a node more, which nothing reads."""
    return Wrong(head, end, f"{node} {end}", feed, constants, (opset, opset))


def nodes() -> Iterator[tuple[str, Wrong]]:
    """Nodes that nothing reads, and that are not loaded, or fail."""
    rows = {"x": SIX.reshape(2, 3)}
    two = {"x": SIX.reshape(3, 2), "u": SIX[:4].reshape(2, 2), "w": SIX[:2]}
    yield (
        "a sum of rows that are not as many",
        beside(
            "(float[n, 2] x, float[m, 2] u, float[2] w) => (float[n, 2] y)", "z = Add (x, u)", two, end="y = Add (x, w)"
        ),
    )
    yield (
        "a remainder of integers of floats",
        beside(
            "(float[n] x, float[m] u) => (float[k] y)", "z = Mod (x, u)", {"x": SIX, "u": SIX}, end="y = Add (x, u)"
        ),
    )
    yield "a Pad of a number", beside("(float x) => (float y)", "z = Pad (x, a)", {"x": np.array(1, np.float32)},
                                      a=np.zeros(0, np.int64))  # fmt: skip
    yield "a Pad without end, beside a dim of 0", beside(
        "(float[past, n] x) => (float[past, n] y)", "z = Pad (x, a)", {"x": SIX.reshape(6, 1)[:0]},
        a=np.array([0, 0, 0, 2**63 - 1]))  # fmt: skip
    yield "an Expand without end, beside a dim of 0", beside(
        "(float[past, n] x) => (float[past, n] y)", "z = Expand (x, a)", {"x": SIX.reshape(6, 1)[:1]},
        a=np.array([2**62, 1, 1]))  # fmt: skip
    many = {"yes": np.array(True), "axes": np.ones(70, np.int64), "minus": np.array([-1])}
    dead = IF.format("y", "yes", "float[2] a", "", "float[q] b", "w = Unsqueeze (x, axes) b = Reshape (w, minus)")
    yield (
        "a branch that never runs, and has too many axes",
        Wrong("(float[2] x) => (float[2] y)", "y = Neg (x)", dead, {"x": SIX[:2]}, many),
    )
    for name, node, numbers in (
        ("a Pad that cuts more than there is", "z = Pad (x, a)", {"a": np.array([-7, 0])}),
        ("a Pad that reflects more than there is", 'z = Pad <mode = "reflect"> (x, a)', {"a": np.array([9, 0])}),
        ("a Pad with several numbers", "z = Pad (x, a, b)", {"a": np.array([1, 0]), "b": np.ones(2, np.float32)}),
        ("a Pad of other axes", "z = Pad (x, a)", {"a": np.array([1, 0, 0, 1])}),
    ):
        yield name, beside(LIST, node, {"x": SIX}, **numbers)
    padded = "(float[2, 3] x) => (float[k, l] y)", "y = Pad (x, {}{})"
    for name, numbers in (
        ("pads that are no list", {"b": np.array([[0, 1], [0, 1]])}),
        ("axes that are no list", {"b": np.array([1, 1]), "axes": np.array([[1]])}),
        ("an axis twice", {"b": np.array([0, 1, 0, 1]), "axes": np.array([1, 1])}),
    ):
        constants = {"a": np.array([0, 1, 0, 1]), **numbers}
        axes = ", , axes" if "axes" in numbers else ""
        yield name, Wrong(padded[0], padded[1].format("a", ""), padded[1].format("b", axes), rows, constants)
    turned = "d = Shape <end = 1> (x) n = Shape <start = 1> (x) t = Concat <axis = 0> (n, d) q = Reshape (x, t) "
    turned += "a = Add (h, x) b = Add (h, q) r = MatMul (v, a) s = MatMul (v, b) m = MatMul (r, w) p = MatMul (s, w) "
    yield "one row that is one column", Wrong(
        "(float[d, n] x, float[n, n] h, float[k, n] v, float[n, j] w) => (float[k, j] y)",
        f"{turned} y = Sub (m, p)",
        f"{turned} y = Sub (p, p)",
        {"x": SIX[None, :3], "h": np.eye(3, dtype=np.float32), "v": np.eye(3, dtype=np.float32)[:2],
         "w": np.eye(3, dtype=np.float32)},
    )  # fmt: skip
    conv = "a = Reshape (x, three_dims) z = Conv <{}> (a, kernel)"
    kernels = {"three_dims": np.array([1, 2, 3]), "kernel": np.ones((2, 2, 1))}
    for name, attribute in (
        ("a dilation of 0", "dilations = [0]"), ("a kernel that is none", "kernel_shape = [3]"),
        ("an unknown padding", 'auto_pad = "FOO"'), ("a padding below 0", "pads = [-1, 0]"),
    ):  # fmt: skip
        yield f"a Conv with {name}", beside(ROWS, conv.format(attribute), rows, **kernels)
    split = "z, q = Split <axis = 1, num_outputs = 2> (x, parts)"
    yield "a Split by sizes and by a number", beside(ROWS, split, rows, parts=np.array([1, 2]))
    for fmod in (0, 2):
        yield f"a remainder of floats, fmod {fmod}", beside(ROWS, f"z = Mod <fmod = {fmod}> (x, x)", rows)
    for name, array in (("two numbers", np.ones(2, np.float32)), ("a scalar", np.ones((), np.float32)),
                        ("nothing", np.ones(0, np.float32)), ("a text", np.array(["a"], object))):  # fmt: skip
        values = {"x": SIX}, {"filled with": numpy_helper.from_array(array), "i1": np.array([1])}
        yield (
            f"a ConstantOfShape of {name}",
            beside(LIST, "z = ConstantOfShape (i1)", values[0], **values[1]),
        )
    yield "a Range of lists", beside(ROWS, "z = Range (i0, i3, i1)", rows, i0=np.array([0]), i1=np.array([1]),
                                     i3=np.array([3]))  # fmt: skip
    for op, kind, inputs in (("Asin", "double", "x"), ("Max", "int16", "x, x"), ("Erf", "double", "x"),
                             ("Where", "bool", "x, x, x")):  # fmt: skip
        array = np.ones((2, 2), helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(kind.upper())))
        head = f"({kind}[n, m] x) => ({kind}[n, m] y)"
        yield f"{op} of {kind}, which has no kernel", beside(head, f"z = {op} ({inputs})", {"x": array})
    gemm = "t = Transpose (x) z = Gemm (x, t)"
    yield "a Gemm of integers", beside("(int32[2, 3] x) => (int32[2, 3] y)", gemm, {"x": np.ones((2, 3), np.int32)})
    expand = "s = Shape (x) d = Sub (s, i5) z = Expand (i5, d)"
    yield "an Expand below 0", beside(LIST, expand, {"x": SIX[:2]}, i5=np.array([5]))
    for name, dims in (("two dims", "s, i2"), ("three dims", "s, i2, i1")):
        shape = f"s = Shape <start = 1> (x) t = Concat <axis = 0> ({dims}) z = Reshape (x, t)"
        yield f"a Reshape to {name}, of which the first may be 0", beside(
            "(float[2, past_n] x) => (float[2, past_n] y)", shape, {"x": np.ones((2, 0), np.float32)},
            i1=np.array([1]), i2=np.array([2]),
        )  # fmt: skip
    copied = "d = Shape <start = 1, end = 2> (x) t = Concat <axis = 0> (d, d, i3) a = Reshape (x, t) "
    copied += "b = Reshape <allowzero = 1> (x, t) y = Identity ({})"
    yield "a Reshape that copies a dim where it is 0", Wrong(
        "(float[3, past_n, past_n] x) => (float[k, l, m] y)", copied.format("a"), copied.format("b"),
        {"x": np.ones((3, 0, 0), np.float32)}, {"i3": np.array([3])},
    )  # fmt: skip
    yield "an index before the first", beside(ROWS, "z = Gather (x, before)", rows, before=np.array(-3))
    yield "a Softmax of a list, until opset 12", beside(LIST, "z = Softmax (x)", {"x": SIX},
                                                        12)  # fmt: skip
    yield "a Softmax of a list, until opset 10", beside(LIST, "z = Softmax (x)", {"x": SIX}, 9)
    yield (
        "more indices than there is memory for",
        beside(
            LIST, "z = Range (first, last, step)", {"x": SIX}, first=np.array(0), last=np.array(2**58), step=np.array(1)
        ),
    )
    yield (
        "more zeros than there is memory for",
        beside(LIST, "z = ConstantOfShape (large)", {"x": SIX}, large=np.array([2**40])),
    )
    data = "(float[1, 4, 5] x) => (float[1, 4, 5] y)", {"x": np.ones((1, 4, 5), np.float32)}
    yield "a Conv without a kernel", beside(data[0], "z = Conv (x, w)", data[1], w=np.ones((2, 4, 0)))
    rows_of_slots = {"u": np.ones((2, 1)), "at": np.array([5])}
    yield "a TensorScatter with a place for one row of two", beside(
        "(float[2, 6] x) => (float[2, 6] y)", "z = TensorScatter <axis = 1> (x, u, at)",
        {"x": np.ones((2, 6), np.float32)}, 24, **rows_of_slots,
    )  # fmt: skip
    empty = "s = ReduceSum <keepdims = 0> (x, first) z = LayerNormalization (x, s)"
    yield (
        "a normalisation of nothing",
        beside(
            "(float[2, past_n] x) => (float[2, past_n] y)",
            empty,
            {"x": np.ones((2, 0), np.float32)},
            first=np.array([0]),
        ),
    )
    yield "an approximation that is none", beside(LIST, 'z = Gelu <approximate = "foo"> (x)', {"x": SIX}, 20)
    yield "a Flatten from the end, until opset 10", beside(ROWS, "z = Flatten <axis = -1> (x)", rows, 10)
    weights = {"w": RNG.normal(size=(1, 8, 2)), "r": RNG.normal(size=(1, 8, 2)), "large": np.int32(100)}
    lstm = "{0}, h{0}, c{0} = LSTM <hidden_size = 2> (x, w, r, , {1})"
    yield "lengths beyond a sequence", beside(
        "(float[s, b, 2] x, int32[b] l) => (float[k, m, o, p] y)", f"n = Max (l, large) {lstm.format('z', 'n')}",
        {"x": np.ones((3, 2, 2), np.float32), "l": np.array([3, 2], np.int32)}, end=lstm.format("y", "l"), **weights,
    )  # fmt: skip


FLAG = "(bool c, float[2] x, bool[2] several, int64 number) => (float[k] y)"


def branches() -> Iterator[tuple[str, Wrong]]:
    """Faults of an If, which nothing reads, or that gives the output."""
    flags = {"c": np.array(True), "x": SIX[:2], "several": np.array([True, False]), "number": np.array(1)}
    two = "float[2] a, float[2] a2", "a2 = Neg (x)", "float[2] d, float[2] d2", "d2 = Abs (x)"
    one = "float[2] a", "", "float[2] d", ""
    other = "float[2] a", "", "bool[2] b", "b = Cast <to = 9> (x)"
    for name, text in {
        "more outputs": IF.format("z", "c", *two), "fewer outputs": IF.format("z, q", "c", *one),
        "several conditions": IF.format("z", "several", *one),
        "a number for a condition": IF.format("z", "number", *one),
        "two inputs": IF.format("z", "c, x", *one), "other dtypes": IF.format("z", "c", *other),
        "a value from around": IF.format("z", "c", "float[2] x", "", "float[2] d", ""),
    }.items():  # fmt: skip
        end = IF.format("y", "c", *one)
        yield f"an If with {name}", beside(FLAG, text, flags, end=end)
    yield "an If that gives more", Wrong(FLAG, IF.format("y", "c", *one), IF.format("y", "c", *two), flags)
    known = IF.format("y", "k", *one)
    yield "a known condition of integers", Wrong(FLAG, f"k = Identity (yes) {known}", f"k = Identity (i1) {known}",
                                                 flags, {"yes": np.array(True), "i1": np.array(1)})  # fmt: skip
    for name, before, after, inner in (
        ("dtype", "Neg (x)", "Cast <to = 9> (x)", "Relu (h)"), ("rank", "Unsqueeze (x, i01)", "Neg (x)", "Conv (h, w)"),
    ):  # fmt: skip
        dead = IF.format("y", "yes", "float[2] a", "", "float[2] d", f"q = {inner}")
        yield f"a branch that never runs, and reads another {name}", Wrong(
            FLAG, f"h = {before} {dead}", f"h = {after} {dead}", flags,
            {"yes": np.array(True), "i01": np.array([0, 1]), "w": np.ones((1, 1, 1))},
        )  # fmt: skip


LOOP = "y = Loop (n, , x) <body = b (int64 i, bool k{}) => (bool k2, float[2] t) {{ k2 = Identity (k) t = Neg (s) }}>"
LOOKUP = "q = Gather (x, far)"


def moved() -> Iterator[tuple[str, Wrong]]:
    """A node that fails runs where it did not."""
    flags = {"c": np.array(False), "x": SIX[:2], "several": np.array([True, False]), "number": np.array(1)}
    flags["far"] = np.array(9)
    head = FLAG.replace("number", "number, int64 far")
    inside = "float[2] b", f"{LOOKUP} b = Add (a, q)", "float[2] d"
    before = IF.format("y", "c", *inside, "")
    out = f"{LOOKUP} {IF.format('y', 'c', inside[0], 'b = Add (a, q)', inside[2], '')}"
    yield "a lookup that moves out of a branch", Wrong(head, before, out, flags)
    other = IF.format("y", "c", *inside, LOOKUP.replace("q =", "r ="))
    yield "a lookup in the other branch too", Wrong(head, before, other, flags)
    feed = {"n": np.array(0), "x": SIX[:2], "far": np.array(9)}
    body = LOOP.replace("t = Neg (s)", "{} t = Add (s, q)")
    inner, outer = (body.format(", float[2] s", text) for text in (LOOKUP, ""))
    loop = Wrong("(int64 n, float[2] x, int64 far) => (float[k] y)", inner, f"{LOOKUP} {outer}", feed)
    yield "a lookup that moves out of a Loop", loop


def loops() -> Iterator[tuple[str, Wrong]]:
    head, feed = "(int64 n, float[2] x) => (float[k] y)", {"n": np.array(3), "x": SIX[:2]}
    one = LOOP.format(", float[2] s")
    yield "a Loop whose body has an input more", Wrong(head, one, LOOP.format(", float[2] s, float[2] u"), feed)
    two = (
        "{} = Loop (n, , x, x) <body = b (int64 i, bool k, float[2] s, float[2] u) => (bool l, float[2] t, float[2] v) "
    )
    two += "{{ l = Identity (k) t = Neg (s) v = Abs (u) }}>"
    yield "a Loop that gives fewer outputs than its body", Wrong(head, two.format("y, z"), two.format("y"), feed)
    inner = "q = Loop (n, , x) <body = c (int64 j, bool m, float[2] u) => (bool m2, float[2] w) { m2 = Identity (m) "
    outer = one.replace("t = Neg (s)", f"{inner} w = Add (u, x) }}> t = Neg (q)")
    yield (
        "the state of a Loop around for that of a Loop of the same operands",
        Wrong(head, outer, outer.replace("(u, x)", "(s, x)"), {**feed, "x": SIX[1:3]}),
    )
    scan = "{} = Scan <num_scan_inputs = 1, body = {} (float[2] {}, float[2] {}) => (float[2] {}) {{ {} }}> (x, rows)"
    for name, state in (("state", "s, v"), ("row", "u, r")):
        bodies = (
            scan.format("q", "c", "u", "v", "w", f"w = Sub ({each})") + " t = Neg (q)" for each in ("u, v", state)
        )
        before, after = (scan.format("y", "b", "s", "r", "t", body) for body in bodies)
        yield f"the {name} of a Scan around for that of a Scan of the same operands", Wrong(
            "(float[2] x, float[3, 2] rows) => (float[k] y)", before, after,
            {"x": SIX[1:3], "rows": SIX.reshape(3, 2)},
        )  # fmt: skip


def siblings() -> Iterator[tuple[str, Wrong]]:
    """Nodes with bodies that have the same inputs: what runs in the first body fails in the second one."""
    head = "(float[5] x, int64[1] i, int64 n) => (int64[1] a, float[k, 1] s, int64[1] b, int64[l, 1] u)"
    first = """a, s = Loop (n, , i) <body = f (int64 t, bool c, int64[1] v) => (bool d, int64[1] w, float[1] g) {
        d = Identity (c) w = Identity (v) g = Gather (x, v) }>"""
    second = """b, u = Loop (n, , i) <body = h (int64 t, bool c, int64[1] v) => (bool d, int64[1] w, int64[1] e) {{
        d = Identity (c) {} e = Identity (v) w = Add (v, far) }}>"""
    made = [f"{first} {second.format(node)}" for node in ("", "g = Gather (x, v)")]
    feed = {"x": SIX[:5], "i": np.array([1]), "n": np.array(3)}
    yield "a lookup in a second Loop of the same inputs", Wrong(head, *made, feed, {"far": np.array([100])})


def lenient() -> Iterator[tuple[str, Wrong]]:
    """What onnxruntime takes, and ONNX does not: dims are those that it gives."""
    head = "(float[n, 4] x, float[m, 4] z) => (int64[2] y)"
    slope = "y = Shape (x)", "p = PRelu (x, z) y = Shape (p)"
    feed = {"x": SIX[:4].reshape(1, 4), "z": np.ones((3, 4), np.float32)}
    yield "a slope with more rows than the data", Wrong(head, slope[1], slope[0], feed)
    yield "an empty part with other columns than the rest", Wrong(
        "(float[0, d] x, float[n, e] z) => (float[k, l] y)", "y = Concat <axis = 0> (x, z)", "y = Identity (z)",
        {"x": np.zeros((0, 3), np.float32), "z": np.zeros((0, 5), np.float32)})  # fmt: skip


def empty() -> Iterator[tuple[str, Wrong]]:
    """What holds where there are elements, and not of none."""
    head, none = "(int64[past_n] x) => (int64[k] y)", {"x": np.zeros(0, np.int64)}
    counts = "u = Unique (x) s = Shape (u) m = Max (s, one) z = ConstantOfShape ({}) w = Neg (z) y = Cast <to = 7> (w)"
    yield (
        "how many elements are distinct",
        Wrong(head, counts.format("m"), counts.format("s"), none, {"one": np.array([1])}),
    )
    lookup = "y = Unique (x)", "y = Unique (x) d = Gather (y, o)"
    yield "a lookup in what is distinct", Wrong(head, *lookup, none, {"o": np.array(0)})
    dead = "y = Neg (x)", "e = Slice (x, o, o, one) d = Squeeze (e, o) y = Neg (x)"
    yield "an axis that goes from a tensor without elements", Wrong(
        "(float[n, m] x) => (float[k, l] y)", *dead, {"x": np.ones((3, 2), np.float32)},
        {"o": np.array([0]), "one": np.array([1])})  # fmt: skip
    parts = "s = Shape (v) t = Shape (w) z = Concat <axis = 0> (t, one) p, q, r = Split (s, z) d = ConstantOfShape (r)"
    yield "a part behind one of unknown size", Wrong(
        "(float[a, b, c, d] v, float[n, m] w) => (float[k] y)", f"{parts} y = Neg (d)",
        "s = Shape (v) r = Gather (s, o) d = ConstantOfShape (r) y = Neg (d)",
        {"v": np.ones((2, 3, 4, 5), np.float32), "w": np.ones((1, 2), np.float32)},
        {"one": np.array([1]), "o": np.array([0])})  # fmt: skip


def halves() -> Iterator[tuple[str, Wrong]]:
    """Kernels of float16, which older versions have not."""
    head, large = "(float16[n] x) => (float16[k] y)", {"x": np.array([300, 2], np.float16)}
    clip = "p = Mul (x, x) y = Clip (p)"
    yield "a Clip without bounds, until opset 12", Wrong(head, clip, clip, large, opsets=(11, 12))
    logs = "y = ReduceLogSumExp{}"
    yield "a sum of exponentials, until opset 18", Wrong(
        "(float16[m, n] x) => (float16[k, l] y)", logs.format(" <axes = [0, 1]> (x)"), logs.format(" (x, axes)"),
        {"x": np.array([[60000, 1]], np.float16)}, {"axes": np.array([0, 1])}, opsets=(13, 18))  # fmt: skip
    slope = "y = PRelu (x, x)"
    yield "a slope of zero, until opset 16", Wrong(
        "(float16[n] x, float16[n] z) => (float16[k] y)", slope.replace("x)", "z)"), slope.replace("x)", "z)"),
        {"x": np.array([-1], np.float16), "z": np.array([0], np.float16)}, opsets=(9, 16))  # fmt: skip


SEQUENCE = "(float[n] x, bool c, int64 m, int64 i) => (float[k] y)"
SEQUENCES = {
    "an If": """t = If (c) <then_branch = a () => (seq(float[o]) p) { p = SequenceConstruct (x) },
        else_branch = b () => (seq(float[q]) r) { r = SequenceConstruct (x, x) }>""",
    "a Loop": """s = SequenceConstruct (x)
        t = Loop (m, c, s) <body = b (int64 j, bool d, seq(float[o]) v) => (bool e, seq(float[o]) w) {
        e = Identity (d) w = SequenceInsert (v, x) }>""",
    "an Identity": "s = SequenceConstruct (x) t = Identity (s)",
}


def versions() -> Iterator[tuple[str, Wrong]]:
    split = "y, z = Split ", "(x)"
    yield "a Split without a remainder", Wrong(
        "(float[s] x) => (float[k] y, float[l] z)", "<num_outputs = 2> ".join(split), "".join(split), {"x": SIX[:5]},
        opsets=(18, 13))  # fmt: skip
    yield (
        "floats that are compared, until opset 10",
        Wrong("(float[n] x) => (bool[n] y)", "y = Equal (x, x)", "y = Equal (x, x)", {"x": SIX}, opsets=(13, 9)),
    )
    pool = "y = MaxPool <kernel_shape = [2], ceil_mode = 1> (x)"
    yield (
        "a pool that is rounded up, until opset 9",
        Wrong("(float[1, 1, n] x) => (float[a, b, c] y)", pool, pool, {"x": SIX.reshape(1, 1, 6)}, opsets=(13, 8)),
    )
    flags = {"x": SIX, "c": np.array(True), "m": np.array(2), "i": np.array(0)}
    for name, node in SEQUENCES.items():
        body = f"{node} y = SequenceAt (t, i)"
        yield f"a sequence of {name}, in an older version", Wrong(SEQUENCE, body, body, flags, opsets=(16, 11))
    element = "e = SequenceAt (x, i) y = Relu (e)"
    yield "integers of a sequence, until opset 13", Wrong(
        "(seq(int32[3]) x, int64 i) => (int32[k] y)", element, element,
        {"x": [np.arange(3, dtype=np.int32)], "i": np.array(0)}, opsets=(14, 13))  # fmt: skip
    integers = "y = Relu (x)"
    yield "a function that the runtime has a body for, until opset 20", Wrong(
        "(int64[n] x) => (int64[k] y)", integers, integers, {"x": np.array([-1, 2])}, opsets=(18, 21))  # fmt: skip
    sizes = """s = Shape (x) f = Slice (s, zero, two) h = Gather (s, three) {} u = Unsqueeze (h, {})
        z = Concat <axis = 0> (f, u, u) y = Resize (x, , , z)"""
    yield "an axis that is computed, on the way to sizes", Wrong(
        "(float[n, c, h, w] x) => (float[k, l, m, o] y)", sizes.format("", "axes"),
        sizes.format("a = Transpose (axes)", "a"), {"x": SIX[:4].reshape(1, 1, 2, 2)},
        {"zero": np.array([0]), "two": np.array([2]), "three": np.array(3), "axes": np.array([0])})  # fmt: skip
    before, after = (f"s = Squeeze <axes = [{axis}]> (x) y = MatMul (s, w)" for axis in (2, -1))
    yield "an axis from the back, until opset 10", Wrong(
        "(float[2, 3, 1] x, float[3, 2] w) => (float[k, l] y)", before, after,
        {"x": SIX.reshape(2, 3, 1), "w": SIX.reshape(3, 2)}, opsets=(9, 9))  # fmt: skip
    for opset in (99, 1 << 40):
        yield f"opset {opset}", Wrong(LIST, NEG, NEG, {"x": SIX}, opsets=(18, opset))


def chances() -> Iterator[tuple[str, Wrong]]:
    """Random numbers that are drawn twice, and once."""
    drawn = "float[2] a", "r = RandomNormalLike (x) a = Identity (r)", "float[2] d", ""
    once = IF.replace("a = Neg (x) ", "").format("u", "c", *drawn)
    twice = once + IF.replace("a = Neg (x)", "q = Neg (x)").format("v", "c", *drawn)
    flags = {"c": np.array(True), "x": SIX[:2], "several": np.array([True, False]), "number": np.array(1)}
    yield (
        "drawn once",
        Wrong(FLAG, twice + "y = Concat <axis = 0> (u, v)", twice + "y = Concat <axis = 0> (u, u)", flags),
    )


PAIRS = {
    name: pair
    for make in (nodes, branches, moved, loops, siblings, lenient, empty, halves, versions, chances)
    for name, pair in make()
}


def built(pair: Wrong) -> tuple[Model, Model]:
    made = []
    for body, opset in zip((pair.before, pair.after), pair.opsets, strict=True):
        words = body.replace("(", " ").replace(")", " ").replace(",", " ").split()
        constants = {name: value for name, value in pair.constants.items() if name in words}
        each = model(f"g {pair.head} {{ {body} }}", HEAD.format(18), **constants)
        each.proto.opset_import[0].version = opset
        if (value := pair.constants.get("filled with")) is not None and "ConstantOfShape" in body:
            each.proto.graph.node[0].attribute.append(helper.make_attribute("value", value))
        made.append(each.with_proto(each.proto))
    return made[0], made[1]


def differs(before: Model, after: Model, feed: Mapping[str, np.ndarray]) -> bool:
    """Whether the second model is not loaded, fails, gives nothing, or something else."""
    right = Session(before, threads=1).run(feed)
    try:
        made = Session(after, threads=1).run(feed)
    except ModelError:
        return True
    pairs = [(array, made[name]) for name, array in right.items()]
    return any(b is None or a.shape != b.shape or (bits(a) != bits(b)).any() for a, b in pairs)


@pytest.mark.cases(30)
@pytest.mark.parametrize("name", PAIRS)
def test_a_wrong_model_is_not_proven(name: str) -> None:
    pair = PAIRS[name]
    before, after = built(pair)
    assert differs(before, after, pair.feed)
    assert check_equivalence(before, before.with_proto(before.proto)).is_proven
    assert not compare(before, after)[0]


def compare(before: Model, after: Model) -> tuple[Sequence[str], str]:
    """Return the outputs that are proven equal, and what is said; a graph that is not sound has no meaning."""
    try:
        found = check_equivalence(before, after)
    except ModelError as error:
        return (), str(error)
    return found.proven, str(found)


PLAIN = model("g (float[n] x) => (float[n] y) { z = Abs (x) y = Neg (x) }")


def _no_version(proto: ModelProto) -> None:
    proto.ClearField("ir_version")


def _imported(domain: str) -> Callable[[ModelProto], None]:
    return lambda proto: proto.opset_import.append(helper.make_opsetid(domain, 99))


def _more_outputs(at: int) -> Callable[[ModelProto], None]:
    return lambda proto: proto.graph.node[at].output.append("more")


def _no_output(proto: ModelProto) -> None:
    proto.graph.node[0].output[0] = ""


def _read(
    *names: str, op: str = "Max", lists: Sequence[onnx.AttributeProto] = (), **attributes: object
) -> Callable[[ModelProto], None]:
    """Return an edit that adds a node which nothing reads."""

    def add(proto: ModelProto) -> None:
        proto.graph.node.append(helper.make_node(op, names, ["more"], **attributes))
        proto.graph.node[-1].attribute.extend(lists)

    return add


EMPTY = onnx.AttributeProto(name="perm", type=onnx.AttributeProto.INTS)


def _weight(**fields: object) -> Callable[[ModelProto], None]:
    """Return an edit that adds an initializer of 100 numbers, and a node that reads it."""

    def add(proto: ModelProto) -> None:
        proto.graph.initializer.append(onnx.TensorProto(name="w", dims=[100], data_type=1, **fields))
        _read("w", op="Abs")(proto)

    return add


def _missing(proto: ModelProto) -> None:
    _weight(data_location=onnx.TensorProto.EXTERNAL)(proto)
    proto.graph.initializer[-1].external_data.add(key="location", value="nowhere.bin")


def _function(domain: str, version: int) -> Callable[[ModelProto], None]:
    body = [helper.make_node("Neg" if not domain else "Odd", ["a"], ["b"], domain=domain)]
    imports = [helper.make_opsetid("", version)]

    def add(proto: ModelProto) -> None:
        proto.functions.append(helper.make_function("own", "f", ["a"], ["b"], body, imports))
        proto.opset_import.append(helper.make_opsetid("own", 1))

    return add


@pytest.mark.cases(6)
@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (_no_version, "onnxruntime does not load it"),
        (_imported("com.microsoft"), "onnxruntime does not load it"),
        (_imported("ai.onnx.ml"), "onnxruntime does not load it"),
        (_more_outputs(0), "has 2 outputs and takes 1"),
        (_more_outputs(1), "has 2 outputs and takes 1"),
        (_no_output, "onnxruntime does not load it"),
        (
            _read("x", op="Transpose", lists=[EMPTY]),
            "the rewritten model may fail where the original runs: Transpose#2",
        ),
        (
            _read("x", "x", "", op="Einsum", equation="i,i->i"),
            "Einsum leaves out its input 2, which it needs",
        ),
        (_weight(), "'w' has 0 bytes of data, and 400 by its dtype and dims"),
        (_weight(int32_data=[1] * 100), "'w' has 0 bytes of data, and 400 by its dtype and dims"),
        (_weight(raw_data=b"1234"), "'w' has 4 bytes of data, and 400 by its dtype and dims"),
        (_missing, "the data file 'nowhere.bin' is missing"),
        (_function("", 99), "onnxruntime does not load it"),
        (_function("odd", 18), "onnxruntime does not load it"),
    ],
)
def test_a_fault_of_a_file_is_named(edit: Callable[[ModelProto], object], words: str) -> None:
    proto = ModelProto.FromString(PLAIN.proto.SerializeToString())
    edit(proto)
    after = PLAIN.with_proto(proto)
    with pytest.raises((ModelError, RunError)), IsolatedSession(after, optimize=False, threads=1) as session:
        session.run({"x": np.ones(3, np.float32)})
    proven, said = compare(PLAIN, after)
    assert not proven
    assert words in said


def _called(overload: str) -> Model:
    node = helper.make_node("f", ["x"], ["y"], domain="own", overload=overload)
    ends = [helper.make_tensor_value_info(name, 1, ["n"]) for name in "xy"]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    functions = [
        helper.make_function("own", "f", ["a"], ["b"], [helper.make_node(op, ["a"], ["b"])],
                             [helper.make_opsetid("", 17)], overload=name)
        for name, op in (("one", "Neg"), ("other", "Abs"))
    ]  # fmt: skip
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    return Model.from_proto(helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=10))


def test_another_overload_of_a_function_that_cannot_be_inlined_is_another_function() -> None:
    before, after = _called("one"), _called("other")
    assert differs(before, after, {"x": SIX})
    assert check_equivalence(before, _called("one")).is_proven
    assert not check_equivalence(before, after).proven


def test_a_slice_with_more_steps_than_axes_is_declined() -> None:
    text = "g (float[n] x) => (float[n] y) { z = Slice (x, i0, i0, i0, steps) y = Neg (x) }"
    odd = model(text, i0=np.array([0]), steps=np.array([1, 1]))
    plain = model("g (float[n] x) => (float[n] y) { y = Neg (x) }")
    assert "may fail" in str(check_equivalence(plain, odd))


def test_a_quotient_of_the_least_integer_by_minus_one_may_end_the_process() -> None:
    text = "g (int64[n] x) => (int64[n] y) {{ {} y = Neg (x) }}"
    before, after = model(text.format("")), model(text.format("z = Div (x, minus)"), minus=np.array([-1]))
    with IsolatedSession(after, threads=1) as session, pytest.raises(ModelError):
        session.run({"x": np.array([-(2**63)])})
    assert "may fail" in str(check_equivalence(before, after))


def test_another_default_of_an_input_is_another_model() -> None:
    text = "g (float[n] x, float[1] w) => (float[n] y) { y = Mul (x, w) }"
    before, after = (model(text, w=np.array([number])) for number in (2.0, 3.0))
    assert differs(before, after, {"x": SIX})
    assert check_equivalence(before, model(text, w=np.array([2.0]))).is_proven
    assert not check_equivalence(before, after).proven


def test_the_same_bytes_in_another_dtype_are_another_constant() -> None:
    text = "g (float[n] x) => (float[k] y) { y = Cast <to = 1> (w) }"
    whole = np.array([1, 2], np.int32)
    before, after = (model(text, w=array) for array in (whole, whole.view(np.float32)))
    assert differs(before, after, {"x": SIX})
    assert check_equivalence(before, model(text, w=whole)).is_proven
    assert not check_equivalence(before, after).proven


@pytest.mark.parametrize("axis", [0, 1])
def test_scales_of_rows_and_of_columns_are_no_scale_of_either(axis: int) -> None:
    text = "g (float[3, 3] x) => (float[3, 3] y) {{ {} }}"
    row, column = np.array([[1.0, 2.0, 3.0]]), np.array([[3.0], [0.5], [2.0]])
    both = (row.ravel() * column.ravel()).reshape((3, 1) if axis == 0 else (1, 3))
    before = model(text.format("a = Mul (x, r) y = Mul (a, c)"), r=row, c=column)
    after = model(text.format("y = Mul (x, b)"), b=both)
    assert differs(before, after, {"x": np.ones((3, 3), np.float32)})
    assert not check_equivalence(before, after).proven


SIZED = """g (float[n, c, h, w] x) => (float[k, l, m, o] y) <int64[1] zero = {0}, int64[1] two = {2}, int64 three = {3},
    int64[1] axes = {0}> { s = Shape (x) f = Slice (s, zero, two) p = Gather (s, three) TURNED u = Unsqueeze (p, AXES)
    z = Concat <axis = 0> (f, u, u) r = Resize (x, , , z) y = Add (r, many) }"""


@pytest.mark.parametrize("place", ["graph", "node", "body"])
def test_a_whole_with_large_constants_is_loaded_from_its_file(place: str, tmp_path: Path) -> None:
    """The axes go through a node, which the shape inference of the whole does not follow."""
    paths = []
    for name, turned, axes in (("a", "", "axes"), ("b", "t = Transpose (axes)", "t")):
        proto = model(SIZED.replace("TURNED", turned).replace("AXES", axes)).restore()
        tensor = numpy_helper.from_array(np.zeros((1, 1000, 1, 1), np.float32), "many")
        if place == "node":
            proto.graph.node.insert(0, helper.make_node("Constant", [], ["many"], value=tensor))
        else:
            proto.graph.initializer.append(tensor)
        if place == "body":
            inner = [proto.graph.node.pop() for _ in range(1)][::-1]
            body = helper.make_graph(inner, "body", [], [helper.make_tensor_value_info("y", 1, None)],
                                     [proto.graph.initializer.pop()])  # fmt: skip
            bodies = {"then_branch": body, "else_branch": body}
            proto.graph.node.append(helper.make_node("If", ["yes"], ["y"], **bodies))
            proto.graph.input.append(helper.make_tensor_value_info("yes", onnx.TensorProto.BOOL, []))
        paths.append(tmp_path / f"{name}.onnx")
        onnx.save(proto, paths[-1])
    original, rewritten = map(load, paths)
    assert "onnxruntime does not load it" in str(check_equivalence(original, rewritten))
    assert check_equivalence(original, load(shutil.copy(paths[0], tmp_path / "c.onnx"))).is_proven


def test_a_large_constant_is_of_a_kind_that_loads(tmp_path: Path) -> None:
    proto = model("g (float[n, 1000] x) => (float[n, 1000] y) { y = Add (x, many) }").restore()
    tensor = numpy_helper.from_array(np.arange(1000, dtype=np.float32), "many")
    proto.graph.initializer.append(tensor)
    onnx.save(proto, tmp_path / "a.onnx")
    del proto.graph.initializer[:]
    proto.graph.node.insert(0, helper.make_node("Constant", [], ["many"], value=tensor))
    onnx.save(proto, tmp_path / "b.onnx")
    assert check_equivalence(*(load(tmp_path / name) for name in ("a.onnx", "b.onnx"))).is_proven


def test_tensors_of_bodies_that_are_too_large_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "MOST_HELD", 4)
    monkeypatch.setattr(loading, "IsolatedSession", lambda *_, **__: pytest.fail("it is loaded"))
    pair = [model(f"g (float[n] x) => (float[n] y) {{ y = {op} (x, two) }}", two=np.ones(2)) for op in ("Mul", "Add")]
    assert loading.whole_fault(*pair) == "its bodies hold tensors too large to load it as a whole"


def test_a_model_whose_nodes_hold_large_constants_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is taken twice, of which the terms of the outputs tell nothing."""
    monkeypatch.setattr(loading, "MOST_HELD", 3000)
    head = "g (float[n] x, bool c) => (float[n] y, float[n] w, float[1000] v)"
    text = (
        head
        + """ { h = Neg (x)
        y = If (c) <then_branch = t () => (float[n] o) { q = Exp (x) o = Add (q, x) },
                    else_branch = e () => (float[n] p) { p = Abs (x) }>
        w = Identity (h) v = Abs (many) }"""
    )
    pair = []
    for name in ("q", "h"):
        proto = model(text.replace("q = ", f"{name} = ").replace("(q,", f"({name},")).restore()
        tensor = numpy_helper.from_array(np.zeros(1000, np.float32), "many")
        proto.graph.node.insert(0, helper.make_node("Constant", [], ["many"], value=tensor))
        pair.append(Model.from_proto(proto))
    with pytest.raises(ModelError):
        Session(pair[1])
    assert "onnxruntime does not load it" in str(check_equivalence(*pair))
    copy = Model.from_proto(ModelProto.FromString(pair[0].proto.SerializeToString()))
    assert check_equivalence(pair[0], copy).is_proven


def test_a_loop_of_a_number_of_floats_is_no_traceback() -> None:
    text = "g (float[n] x, bool c) => (float[n] y) { y = Loop (times, c, x) <body = b (int64 i, bool d, float[n] s) "
    text += "=> (bool e, float[n] t) { e = Identity (d) t = Neg (s) }> }"
    pair = [model(text, times=np.array(times)) for times in (3, 3.0)]
    assert not check_equivalence(*pair).proven


def test_an_expression_that_has_grown_too_large_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def grown(*_: object, **__: object) -> None:
        raise TooComplexError("a product of too many terms")

    monkeypatch.setattr(check.sizes, "common_shapes", grown)
    found = check_equivalence(PLAIN, PLAIN)
    assert found.outputs[0].reason == "a product of too many terms"
