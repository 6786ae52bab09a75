"""Wrong models that an axiom without one of its conditions would prove: a run shows each to differ, none is proven."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from onnx import helper
from small_models import model
from test_axioms import HOW, I64, bits, drawn

from graphkit.equivalence import check_equivalence
from graphkit.errors import ModelError
from graphkit.model import Model
from graphkit.runtime.session import Session
from graphkit.shapes.input_dims import named_inputs

FLOAT = "(float[past_b, past_s, 6] x, float[6] v) => (float[k, l, m] y)"
SQUARE = "(float[n, n] x, float[n, n] v) => (float[k, l] y)"
WHOLE = "(int64[past_b, past_s, 6] x, int64[6] v) => (int64[k, l, m] y)"
TWO = "(float[past_b, past_s] x, float[past_u, past_s] u, float[past_u, past_s] g) => (float[k, l] y)"
LIST = "(float[past_n] x, float[past_n] v) => (float[k] y)"
COPY = "y = Identity (x)"
SHAPE = "b = Shape <end = 1> (x) s = Shape <start = 1, end = 2> (x) "
SLOTS = "p = Shape <end = 1> (x) n = Shape <end = 1> (u) n0 = Squeeze (n) q = Range (zero, n0, one) "
SLOTS += "d = Concat <axis = 0> (x, g) "
JOINED = "y = Concat <axis = 0> (x, u)"


@dataclass(frozen=True)
class Pair:
    """An original and a wrong model, as bodies of one head."""

    before: str
    after: str
    head: str = FLOAT
    constants: Mapping[str, object] = field(default_factory=dict)
    opset: int = 18


def moves() -> Iterator[tuple[str, Pair]]:
    turned = "y = Transpose <perm = [1, 0, 2]> (x)"
    yield "a Reshape for a Transpose", Pair(turned, SHAPE + "t = Concat <axis = 0> (s, b, i6) y = Reshape (x, t)")
    yield "no Transpose where dims are equal", Pair("y = Transpose (x)", COPY, SQUARE)
    back = "t = Transpose <perm = [1, 2, 0]> (x) y = Transpose <perm = {}> (t)"
    cube = "(float[n, n, n] x) => (float[k, l, m] y)"
    for perm in ("[0, 2, 1]", "[2, 1, 0]", "[1, 2, 0]", "[1, 0, 2]"):
        yield f"two Transposes, {perm}", Pair(back.format("[2, 0, 1]"), back.format(perm), cube)
    for perm in ("[0, 1, 2]", "[1, 2, 0]", "[0, 2, 1]"):
        yield (
            f"two Transposes around, for {perm}",
            Pair(back.format("[1, 2, 0]"), f"y = Transpose <perm = {perm}> (x)", cube),
        )
    yield (
        "rows and columns in a Reshape",
        Pair(
            "t = Reshape (x, c) y = Reshape (t, back)",
            "t = Reshape (x, d) q = Transpose (t) y = Reshape (q, back)",
            "(float[6] x) => (float[k] y)",
            {"c": [2, 3], "d": [2, 3], "back": [6]},
        ),
    )
    yield (
        "a Reshape to other dims of as many elements",
        Pair("y = Reshape (x, c)", "y = Reshape (x, d)", "(float[6] x) => (float[k, l] y)", {"c": [2, 3], "d": [3, 2]}),
    )
    yield (
        "a Flatten elsewhere",
        Pair("y = Flatten <axis = 1> (x)", "y = Flatten <axis = 2> (x)", FLOAT.replace("[k, l, m]", "[k, l]")),
    )
    yield "an axis elsewhere", Pair("y = Unsqueeze (x, i0)", "y = Unsqueeze (x, i1)", LIST.replace("[k]", "[k, l]"))
    yield (
        "an Expand along the other axis",
        Pair(
            "a = Unsqueeze (x, i0) s = Shape (v) t = Concat <axis = 0> (s, s) y = Expand (a, t)",
            "a = Unsqueeze (x, i1) s = Shape (v) t = Concat <axis = 0> (s, s) y = Expand (a, t)",
            LIST.replace("[k]", "[k, l]"),
        ),
    )
    repeated = {"five": [5], "row": [1, 5], "column": [5, 1], "wide": [5, 3], "long": [3, 5]}
    yield (
        "an Expand that repeats one element or nothing",
        Pair(
            "e = Expand (x, five) r = Reshape (e, row) y = Expand (r, long)",
            "e = Expand (x, five) r = Reshape (e, column) t = Expand (r, wide) y = Reshape (t, long)",
            "(float[n] x) => (float[k, l] y)",
            repeated,
        ),
    )
    yield (
        "an Expand of rows that may be one for one of columns",
        Pair(
            "y = Expand (x, rows)",
            "t = Reshape (x, turned) e = Expand (t, columns) y = Reshape (e, rows)",
            "(float[b, s] v, float[z, 4] x) => (float[k, l] y)",
            {"rows": [5, 4], "turned": [4, -1], "columns": [4, 5]},
        ),
    )
    yield "a Tile for an Expand", Pair("y = Tile (x, two)", "y = Concat <axis = 0> (x, v)", LIST, {"two": [2]})
    yield (
        "a bias along the other axis",
        Pair(
            "a = Unsqueeze (v, i0) y = Add (x, a)",
            "a = Unsqueeze (v, i1) y = Add (x, a)",
            "(float[n, n] x, float[n] v) => (float[k, l] y)",
        ),
    )


def cuts() -> Iterator[tuple[str, Pair]]:
    cut = "y = Slice (x, {}, {}, i2)"
    for start, end in (("i0", "i2"), ("i1", "i2"), ("i1", "last"), ("i0", "i6"), ("i2", "far"), ("last", "far")):
        yield f"a Slice from {start} to {end}", Pair(cut.format("i1", "far"), cut.format(start, end))
    yield "a Slice backwards", Pair(COPY, "y = Slice (x, last, low, i2, last)", constants={"low": [-(2**40)]})
    yield "a Slice in steps", Pair(cut.format("i0", "far"), "y = Slice (x, i0, far, i2, i2)")
    stride = "y = Slice (x, {}, far, {}, {})"
    for name, other in (("start", ("i1", "i2", "i2")), ("step", ("i0", "i2", "i1")), ("third", ("i0", "i2", "three")),
                        ("fourth", ("i0", "i2", "four")),
                        ("axis", ("i0", "i1", "i2"))):  # fmt: skip
        yield f"a Slice in steps, another {name}", Pair(
            stride.format("i0", "i2", "three" if name == "fourth" else "i2"), stride.format(*other),
            constants={"four": [4]},
        )  # fmt: skip
    yield "a Slice of another axis", Pair("y = Slice (x, i1, far, i1)", "y = Slice (x, i1, far, i0)")
    yield "a Slice that ends at a length", Pair("y = Slice (x, i0, i6, i1)", COPY)
    yield "a Slice that starts at a length", Pair("y = Slice (x, i2, far, i1)", "y = Slice (x, i1, far, i1)")
    yield (
        "nested Slices, one off",
        Pair(
            "a = Slice (x, i1, far, i2) y = Slice (a, i1, far, i2)",
            "a = Slice (x, i1, far, i2) y = Slice (a, i2, far, i2)",
        ),
    )
    yield (
        "neighbouring Slices in another order",
        Pair(COPY, "a = Slice (x, i0, i2, i2) c = Slice (x, i2, far, i2) y = Concat <axis = 2> (c, a)"),
    )
    yield (
        "Slices that overlap",
        Pair(
            "a = Slice (x, i0, i2, i2) c = Slice (x, i2, far, i2) y = Concat <axis = 2> (a, c)",
            "a = Slice (x, i0, i2, i2) c = Slice (x, i1, far, i2) y = Concat <axis = 2> (a, c)",
        ),
    )
    yield (
        "a Slice of a Concat, one off",
        Pair(
            "c = Concat <axis = 0> (x, u) s = Shape <end = 1> (x) y = Slice (c, s, far, i0)",
            "c = Concat <axis = 0> (x, u) s = Shape <end = 1> (u) y = Slice (c, s, far, i0)",
            TWO,
        ),
    )
    yield (
        "a part of a Split",
        Pair("y, z = Split <axis = 2> (x, same)", "z, y = Split <axis = 2> (x, same)", constants={"same": [3, 3]}),
    )
    yield "other sizes of a Split", Pair("y, z = Split <axis = 2> (x, parts)", "z, y = Split <axis = 2> (x, parts)")
    yield "a Gather from the end", Pair("y = Gather <axis = 2> (x, i1)", "y = Gather <axis = 2> (x, last)")
    yield (
        "a Gather of two in another order",
        Pair(
            "y = Gather <axis = 2> (x, up)", "y = Gather <axis = 2> (x, down)", constants={"up": [0, 1], "down": [1, 0]}
        ),
    )
    yield (
        "a Gather by a Range that starts at 1",
        Pair(
            "r = Range (zero, five, one) y = Gather <axis = 2> (x, r)",
            "r = Range (one, six, one) y = Gather <axis = 2> (x, r)",
            constants={"five": 5, "six": 6},
        ),
    )
    yield (
        "a Gather by a Range in steps",
        Pair(
            "r = Range (zero, three, one) y = Gather <axis = 2> (x, r)",
            "r = Range (zero, six, two) y = Gather <axis = 2> (x, r)",
            constants={"three": 3, "six": 6, "two": 2},
        ),
    )
    yield (
        "a Concat in another order",
        Pair(
            "y = Concat <axis = 2> (x, w)",
            "y = Concat <axis = 2> (w, x)",
            FLOAT.replace("float[6] v", "float[past_b, past_s, 6] w"),
        ),
    )
    yield "a Concat along another axis", Pair("y = Concat <axis = 0> (x, v)", "y = Concat <axis = 1> (x, v)", SQUARE)
    yield (
        "an element of a sequence",
        Pair(
            "q = SplitToSequence <axis = 2> (x, third) y = SequenceAt (q, zero)",
            "q = SplitToSequence <axis = 2> (x, third) y = SequenceAt (q, one)",
            constants={"third": 2},
        ),
    )
    yield (
        "Slices of two tensors, joined",
        Pair(
            "a = Slice (x, i0, i1, i1) c = Slice (v, i1, far, i1) y = Concat <axis = 1> (a, c)",
            COPY,
            SQUARE,
        ),
    )
    yield (
        "a Slice that goes on past a part of a Concat",
        Pair(
            "c = Concat <axis = 0> (x, u) s = Shape <end = 1> (x) e = Add (s, i1) y = Slice (c, i0, e, i0)",
            "c = Concat <axis = 0> (x, g) s = Shape <end = 1> (x) e = Add (s, i1) y = Slice (c, i0, e, i0)",
            TWO.replace("past_u", "u"),
        ),
    )
    in_branch = "n = NonZero (x) m = NonZero (v) c = IsNaN (one) z = If (c) <then_branch = t () => (int64[k, l] a) "
    in_branch += "{ a = Concat <axis = 0> (n, m) }, else_branch = e () => (int64[k, l] d) { d = Identity (n) }> "
    yield (
        "sizes that are equal in a branch",
        Pair(
            in_branch + "y = Shape (n)",
            in_branch + "y = Shape (m)",
            "(float[n] x, float[n] v) => (int64[k] y)",
            {"one": np.float32(1)},
        ),
    )
    multiplied = in_branch.replace("Concat <axis = 0> (n, m)", "MatMul (n, turned)")
    multiplied = multiplied.replace("{ a =", "{ turned = Transpose (m) a =")
    yield (
        "numbers repeated as often as in a branch alone",
        Pair(
            multiplied + "list = Squeeze (n, i0) long = Shape (list) y = Expand (i0, long)",
            multiplied + "list = Squeeze (m, i0) long = Shape (list) y = Expand (i0, long)",
            "(float[n] x, float[n] v) => (int64[k] y)",
            {"one": np.float32(1)},
        ),
    )
    scaled = "a = Reshape (x, {0}) q = QuantizeLinear (a, s) b = Cast <to = 7> (q) y = Reshape (b, two)"
    yield (
        "several scales of other columns",
        Pair(
            scaled.format("two"),
            scaled.format("three"),
            "(float[4, 2] x) => (int64[k, l] y)",
            {"two": [4, 2], "three": [2, 2, 2], "s": np.array([0.1, 7.0], np.float32)},
        ),
    )
    columns = "c = Reshape (x, three) p = QuantizeLinear (x, s) q = QuantizeLinear (c, s) "
    columns += "b = Cast <to = 7> ({}) y = Reshape (b, two)"
    yield (
        "several scales of other columns, where both are computed",
        Pair(
            columns.format("p"),
            columns.format("q"),
            "(float[4, 4] x) => (int64[k, l] y)",
            {"two": [4, 4], "three": [2, 4, 2], "s": np.array([0.1, 7.0, 0.3, 2.0], np.float32)},
        ),
    )
    yield "a Pad of one", Pair(COPY, "y = Pad (x, pads)", constants={"pads": [0, 0, 1, 0, 0, 0]})
    yield "a Pad that cuts", Pair(COPY, "y = Pad (x, pads)", constants={"pads": [0, 0, 0, 0, 0, -1]})
    square, pads = "(float[6, 6] x) => (float[k, l] y)", {"a": [0, 1, 0, 0], "two": np.float32(2)}
    for name, after, more in (
        ("along another axis", "y = Pad (x, b)", {"b": [1, 0, 0, 0]}),
        ("along another axis that is told", "y = Pad (x, b, , axes)", {"b": [1, 0], "axes": [0]}),
        ("behind, not before", "y = Pad (x, b)", {"b": [0, 0, 0, 1]}),
        ("with another number", "y = Pad (x, a, two)", {}),
        ("with what stands at the edge", 'y = Pad <mode = "edge"> (x, a)', {}),
    ):
        yield f"a Pad {name}", Pair("y = Pad (x, a)", after, square, {**pads, **more})
    yield (
        "a Pad of merged axes",
        Pair(
            "a = Reshape (x, one_row) b = Pad (a, pads) y = Reshape (b, wide)",
            "b = Pad (x, rows) y = Reshape (b, wide)",
            "(float[n, 6] x) => (float[k, l] y)",
            {"one_row": [1, -1], "wide": [-1, 6], "pads": [0, 1, 0, 5], "rows": [0, 0, 1, 0]},
        ),
    )


def writes() -> Iterator[tuple[str, Pair]]:
    write = SLOTS + "{} at = Unsqueeze (r, i1) y = ScatterND (d, at, u)"
    for name, index in (
        ("from 0", "r = Identity (q)"), ("one further on", "a = Add (q, p) r = Sub (a, one)"),
        ("backwards", "a = Add (q, p) e = Add (p, n) f = Sub (e, one) g2 = Sub (f, q) r = Identity (g2)"),
        ("all in one place", "a = Mul (q, zero) r = Add (a, p)"), ("behind the new ones", "r = Add (q, n)"),
    ):  # fmt: skip
        yield f"a write {name}", Pair(JOINED, write.format(index), TWO)
    yield (
        "a write of what was there",
        Pair(JOINED, SLOTS + "r = Add (q, p) at = Unsqueeze (r, i1) y = ScatterND (d, at, g)", TWO),
    )
    yield (
        "a write that adds",
        Pair(JOINED, SLOTS + 'r = Add (q, p) at = Unsqueeze (r, i1) y = ScatterND <reduction = "add"> (d, at, u)', TWO),
    )
    yield "nothing written", Pair(JOINED, "y = Concat <axis = 0> (x, g)", TWO)
    yield (
        "a write that is read before",
        Pair(JOINED, SLOTS + "r = Add (q, p) at = Unsqueeze (r, i1) w = ScatterND (d, at, u) y = Identity (d)", TWO),
    )
    grid = np.stack(np.indices((2, 3)), axis=-1)
    places = {"elsewhere": np.add(grid, (0, 1)), "turned": grid[::-1], "turned around": grid[..., ::-1],
              "in one column": np.multiply(grid, (1, 0)), "from the end": np.subtract(grid, (0, 3))}  # fmt: skip
    for name, place in places.items():
        yield f"a box written {name}", Pair(
            "y = ScatterND (x, at, u)", "y = ScatterND (x, other, u)",
            "(float[4, 5] x, float[2, 3] u) => (float[k, l] y)", {"at": grid, "other": place},
        )  # fmt: skip
    columns = {"elsewhere": [[1, 2], [1, 2]], "turned": [[1, 0], [1, 0]], "apart": [[0, 1], [1, 2]],
               "in one place": [[0, 0], [0, 0]], "from the end": [[-2, -1], [-2, -1]]}  # fmt: skip
    cut = "(float[2, 5] x, float[2, 2] u) => (float[k, l] y)"
    for name, place in columns.items():
        yield f"elements written {name}", Pair(
            "y = ScatterElements <axis = 1> (x, at, u)", "y = ScatterElements <axis = 1> (x, other, u)",
            cut, {"at": [[0, 1], [0, 1]], "other": place},
        )  # fmt: skip
    for name, how in (("that are added", 'axis = 1, reduction = "add"'), ("along another axis", "axis = 0")):
        yield f"elements written {name}", Pair(
            "y = ScatterElements <axis = 1> (x, at, u)", f"y = ScatterElements <{how}> (x, at, u)",
            cut, {"at": [[0, 1], [0, 1]]},
        )  # fmt: skip
    yield "a square written turned", Pair(COPY.replace("x", "u"),
        HOW.replace("(e3, f3)", "(f3, e3)") + "y = ScatterND (x, at, u)",
        "(float[n, n] x, float[n, n] u) => (float[k, l] y)")  # fmt: skip
    row = SLOTS + "d0 = Unsqueeze (d, i0) u0 = Unsqueeze (u, i0) "
    yield (
        "a TensorScatter from 0",
        Pair(JOINED, row + "w = TensorScatter <axis = 1> (d0, u0) y = Squeeze (w, i0)", TWO, opset=24),
    )
    yield (
        "a TensorScatter behind the new ones",
        Pair(JOINED, row + "w = TensorScatter <axis = 1> (d0, u0, n) y = Squeeze (w, i0)", TWO, opset=24),
    )


def numbers() -> Iterator[tuple[str, Pair]]:
    for name, before, after, constant in (
        ("-0 for x + 0", COPY, "a = Add (x, n) y = Reciprocal (a)", 0.0),
        ("x * 0", "y = Mul (x, n)", "y = Sub (x, x)", 0.0), ("x - x", "y = Sub (x, x)", "y = Mul (x, n)", 0.0),
        ("0 - x", COPY, "y = Sub (n, x)", 0.0), ("1 / x", COPY, "y = Div (n, x)", 1.0),
        ("nearly 1", COPY, "y = Mul (x, n)", 1.0000001), ("-1", COPY, "y = Mul (x, n)", -1.0),
        ("the least number", COPY, "y = Add (x, n)", 1e-45), ("x / x", COPY, "a = Div (x, x) y = Mul (a, x)", 1.0),
        ("|x|", COPY, "y = Abs (x)", 1.0), ("the root of a square", COPY, "a = Mul (x, x) y = Sqrt (a)", 1.0),
        ("x to the power of n", COPY, "y = Pow (x, n)", 2.0), ("Max with itself and 0", COPY, "y = Max (x, n)", 0.0),
        ("a sum of three in another order", "a = Add (x, v) y = Add (a, n)", "a = Add (x, n) y = Add (a, v)", 3e38),
        ("a product over a sum", "a = Add (x, v) y = Mul (a, n)", "a = Mul (x, n) c = Mul (v, n) y = Add (a, c)", 3e30),
        ("division by a reciprocal", "y = Div (x, n)", "a = Reciprocal (n) y = Mul (x, a)", 3.0),
        ("NaN told apart", "c = IsNaN (x) y = Where (c, v, x)", COPY, 1.0),
        ("a Clip", COPY, "y = Clip (x, low, n)", 1e4), ("a Round", COPY, "y = Round (x)", 1.0),
        ("float16 and back", COPY, "a = Cast <to = 10> (x) y = Cast <to = 1> (a)", 1.0),
        ("int64 and back", COPY, "a = Cast <to = 7> (x) y = Cast <to = 1> (a)", 1.0),
        ("double and back by float16", "a = Cast <to = 11> (x) y = Cast <to = 1> (a)",
         "a = Cast <to = 10> (x) y = Cast <to = 1> (a)", 1.0),
    ):  # fmt: skip
        yield f"floats: {name}", Pair(before, after, LIST, {"n": constant, "low": -1e4})
    for name, before, after, constant in (
        ("x * 2 / 2", COPY, "a = Mul (x, n) y = Div (a, n)", 2),
        ("x / 2 * 2", COPY, "a = Div (x, n) y = Mul (a, n)", 2),
        ("a Mod", COPY, "y = Mod (x, n)", 1000),
        ("int32 and back", COPY, "a = Cast <to = 6> (x) y = Cast <to = 7> (a)", 1),
        ("float and back", COPY, "a = Cast <to = 1> (x) y = Cast <to = 7> (a)", 1),
        ("a shift", COPY, "y = Add (x, n)", 1), ("exchanged operands", "y = Sub (x, v)", "y = Sub (v, x)", 1),
        ("compared the other way", "c = Less (x, v) y = Where (c, x, v)",
         "c = LessOrEqual (v, x) y = Where (c, x, v)", 1),
    ):  # fmt: skip
        yield f"integers: {name}", Pair(before, after, WHOLE, {"n": constant})


def sizes() -> Iterator[tuple[str, Pair]]:
    """Arithmetic of dims in dtypes that do not hold its results."""
    counted = "s = Shape (x) t = Cast <to = {}> (s) "
    for name, dtype, before, after, constants in (
        ("an int32 wraps around", np.int32, "a = Mul (t, n) b = Mul (a, n) d = Div (b, n)", "d = Mul (t, n)",
         {"n": [65536]}),
        ("an int32 past its limit", np.int32, "a = Add (t, n) b = Div (a, l) c = Mul (b, l) d = Sub (c, n)",
         "b = Div (t, l) d = Mul (b, l)", {"n": [2**31 - 2], "l": [2]}),
        ("an int64 wraps around", np.int64, "a = Mul (t, n) b = Mul (a, l) d = Div (b, l)", "d = Mul (t, n)",
         {"n": [2**40], "l": [2**30]}),
        ("a uint32 below 0", np.uint32, "d = Sub (t, n)", "u = Cast <to = 7> (t) v = Cast <to = 7> (n) d = Sub (u, v)",
         {"n": [9]}),
        ("a uint64 below 0", np.uint64, "a = Sub (t, n) d = Div (a, l)", "a = Sub (t, n) b = Cast <to = 7> (a) "
         "c = Cast <to = 7> (l) d = Div (b, c)", {"n": [9], "l": [2]}),
        ("a float32 that absorbs", np.float32, "a = Add (t, n) d = Sub (a, n)", "d = Identity (t)", {"n": [2**30]}),
        ("a float32 that rounds", np.float32, "a = Mul (t, n) b = Add (a, l) d = Sub (b, a)",
         "a = Sub (t, t) d = Add (a, l)", {"n": [2**23 + 1], "l": [1]}),
    ):  # fmt: skip
        head, arrays = (
            "(float[n, past_s] x) => (int64[k] y)",
            {key: np.array(each, dtype) for key, each in constants.items()},
        )
        start = counted.format(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
        end = " y = Cast <to = 7> (d)"
        yield f"sizes: {name}", Pair(start + before + end, start + after + end, head, arrays)


def reductions() -> Iterator[tuple[str, Pair]]:
    for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2"):
        yield f"{op} of the other axis", Pair(f"y = {op} (x, i0)", f"a = {op} (x, i1) y = Transpose (a)", SQUARE)
    for other in ("axis = 0", "axis = 1, select_last_index = 1"):
        node = "a = ArgMax <{}> (x) b = Add (x, v) c = Cast <to = 1> (a) y = Add (b, c)"
        yield f"the place along {other}", Pair(node.format("axis = 1"), node.format(other), SQUARE)
    for op in ("Softmax", "LogSoftmax"):
        yield f"{op} over the other axis", Pair(f"y = {op} <axis = 0> (x)", f"y = {op} <axis = 1> (x)", SQUARE)
    whole = "a = Reshape (x, line) b = Softmax (a) s = Shape (x) y = Reshape (b, s)"
    yield "a Softmax over all axes", Pair("y = Softmax <axis = 0> (x)", whole, SQUARE, {"line": [1, -1]})
    norm = "y = LayerNormalization <epsilon = {}> (x, v, {})"
    yield "another epsilon", Pair(norm.format(0.1, "v"), norm.format(0.2, "v"))
    yield "a bias that is left out", Pair(norm.format(0.1, "v"), "y = LayerNormalization <epsilon = 0.1> (x, v)")
    yield "a product from the other side", Pair("y = MatMul (x, v)", "y = MatMul (v, x)", SQUARE)
    yield "a product with a transposed matrix", Pair("y = MatMul (x, v)", "t = Transpose (v) y = MatMul (x, t)", SQUARE)
    yield "a lookup of a row", Pair("y = Gather (x, i0)", "y = Gather (x, i1)", SQUARE)


PAIRS = {name: pair for make in (moves, cuts, writes, numbers, sizes, reductions) for name, pair in make()}


def built(pair: Pair, body: str) -> Model:
    words = body.replace("(", " ").replace(")", " ").replace(",", " ").split()
    constants = {name: np.asarray(each) for name, each in {**I64, **pair.constants}.items() if name in words}
    made = model(f"g {pair.head} {{ {body} }}", **constants)
    made.proto.opset_import[0].version = pair.opset
    return made


def differs(before: Model, after: Model) -> bool:
    """Whether a run shows it: other bits, or a failure."""
    sessions = [Session(each, threads=1) for each in (before, after)]
    for sizes in ((3, 4, 2), (2, 2, 2), (5, 3, 4), (2, 7, 1)):
        named = dict(zip(sorted(named_inputs(before).groups), sizes, strict=False))
        for seed in range(6):
            feeds = drawn(before, named, seed)
            try:
                right = sessions[0].run(feeds)["y"]
            except ModelError:
                continue
            try:
                made = sessions[1].run(feeds)["y"]
            except ModelError:
                return True
            if right.shape != made.shape or not np.array_equal(bits(right), bits(made)):
                return True
    return False


def test_there_are_as_many_as_were_asked_for() -> None:
    assert len(PAIRS) >= 87


@pytest.mark.cases(45)
@pytest.mark.parametrize("name", PAIRS)
def test_a_wrong_model_is_not_proven(name: str) -> None:
    pair = PAIRS[name]
    before, after = built(pair, pair.before), built(pair, pair.after)
    assert differs(before, after)
    assert check_equivalence(before, built(pair, pair.before), dims="named").is_proven
    assert not [
        output for output in check_equivalence(before, after, dims="named").proven if output.exactness == "bit for bit"
    ]


@pytest.mark.parametrize("node", ["Pad (x, p)", "Slice (x, p, p)", "Expand (x, p)", "Tile (x, p)"])
def test_numbers_that_an_input_holds_are_not_taken_for_none(node: str) -> None:
    head = f"g (float[n] x, int64[{1 + ('Pad' in node)}] p) => (float[k] y)"
    read, copied = (model(f"{head} {{ y = {body} }}") for body in (node, "Identity (x)"))
    assert not check_equivalence(read, copied).proven
    assert not check_equivalence(copied, read).proven
