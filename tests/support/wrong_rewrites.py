"""Pairs of models of which the second one is wrong somewhere, with the words in which a proof has to name the place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

__all__ = ["PAIRS", "PLAIN", "Pair"]


@dataclass(frozen=True)
class Pair:
    """An original and a wrong rewrite of it, as ONNX text.

    Attributes:
        caught: A part of the failures that names what differs.
        constants: Initializers of both.
    """

    name: str
    before: str
    after: str
    caught: str
    constants: Mapping[str, object] = field(default_factory=dict)


def elementwise(kind: str, rows: Mapping[str, tuple[str, str, str]], **constants: object) -> Iterator[Pair]:
    """Yield pairs of one input and one output of any length."""
    text = "g ({0}[n] x) => ({1}[n] y) {{ {2} }}"
    for name, (before, after, caught) in rows.items():
        out = "bool" if "bool" in name else "int64" if "index" in name else kind
        yield Pair(f"{kind}: {name}", *(text.format(kind, out, body) for body in (before, after)), caught, constants)


EDGES, EXTREMES, NOT_FINITE = "; edge values", "; extreme values", "; NaN and infinities"
COPY = "y = Identity (x)"
INTEGERS = {
    "negatives": (COPY, "y = Abs (x)", EDGES),
    "negatives cut at 0": (COPY, "y = Max (x, zero)", EDGES),
    "overflow of x * 4 / 4": (COPY, "t = Mul (x, four) y = Div (t, four)", EXTREMES),
    "overflow of x + max - max": ("y = Div (x, four)", "t = Add (x, x) u = Add (t, t) y = Div (u, sixteen)", EXTREMES),
    "round trip via int32": (COPY, "t = Cast <to = 6> (x) y = Cast <to = 7> (t)", EXTREMES),
    "round trip via uint32": (COPY, "t = Cast <to = 12> (x) y = Cast <to = 7> (t)", EDGES),
    "round trip via int16": (COPY, "t = Cast <to = 5> (x) y = Cast <to = 7> (t)", EXTREMES),
    "round trip via int8": (COPY, "t = Cast <to = 3> (x) y = Cast <to = 7> (t)", EDGES),
    "round trip via uint8": (COPY, "t = Cast <to = 2> (x) y = Cast <to = 7> (t)", EDGES),
    "round trip via float32": (COPY, "t = Cast <to = 1> (x) y = Cast <to = 7> (t)", EXTREMES),
    "round trip via float64": (COPY, "t = Cast <to = 11> (x) y = Cast <to = 7> (t)", EXTREMES),
    "cut at 255": (COPY, "y = Min (x, most)", EDGES),
    "sign of a remainder": ("y = Mod (x, four)", "y = Mod <fmod = 1> (x, four)", EDGES),
    "remainder of large numbers": (COPY, "t = Mod <fmod = 1> (x, million) y = Identity (t)", EXTREMES),
    "division rounded down": (
        "y = Div (x, two)", "t = Cast <to = 1> (x) u = Mul (t, half) v = Floor (u) y = Cast <to = 7> (v)", EDGES,
    ),
    "zero as all below one, bool": ("y = Equal (x, zero)", "y = Less (x, one)", EDGES),
    "a number that is compared with, bool": ("y = Equal (x, fifty)", "y = Less (x, x)", EDGES),
    "at a limit, bool": ("y = Less (x, fifty)", "y = LessOrEqual (x, fifty)", EDGES),
    "a sign": ("y = Sign (x)", "t = Max (x, zero) y = Sign (t)", EDGES),
}  # fmt: skip
FLOATS = {
    "cut at 4": (COPY, "y = Clip (x, minus_four, four)", EDGES),
    "Relu6": ("y = Clip (x, zero, six)", "y = Relu (x)", EDGES),
    "cut at 100": (COPY, "y = Clip (x, minus_hundred, hundred)", EXTREMES),
    "halves away from zero": ("y = Round (x)", "t = Add (x, half) y = Floor (t)", EDGES),
    "a sign by division": ("y = Sign (x)", "t = Abs (x) y = Div (x, t)", EDGES),
    "NaN, bool": ("y = IsNaN (x)", "y = Less (x, x)", NOT_FINITE),
    "infinities, bool": ("y = IsInf (x)", "y = Less (x, x)", NOT_FINITE),
    "negative infinity, bool": ("y = IsInf (x)", "y = IsInf <detect_negative = 0> (x)", NOT_FINITE),
    "NaN replaced": (COPY, "t = IsNaN (x) y = Where (t, zero, x)", NOT_FINITE),
    "infinities cut": (COPY, "y = Clip (x, least, greatest)", NOT_FINITE),
    "overflow of a product": (COPY, "t = Mul (x, huge) y = Mul (t, tiny)", EXTREMES),
    "underflow of a product": (COPY, "t = Mul (x, tiny) y = Mul (t, huge)", EXTREMES),
    "round trip via int32": ("y = Round (x)", "r = Round (x) t = Cast <to = 6> (r) y = Cast <to = 1> (t)", EXTREMES),
    "round trip via float16": ("y = Round (x)", "r = Round (x) t = Cast <to = 10> (r) y = Cast <to = 1> (t)", EXTREMES),
    "an exponent that is cut": ("y = Exp (x)", "t = Min (x, twenty) y = Exp (t)", EXTREMES),
    "zero is positive, bool": ("y = Greater (x, zero)", "y = GreaterOrEqual (x, zero)", EDGES),
    "at a limit, bool": ("y = Less (x, half)", "y = LessOrEqual (x, half)", EDGES),
    "nearly zero, bool": ("y = Equal (x, zero)", "t = Abs (x) y = Less (t, small)", EXTREMES),
    "zeros for x * 0": ("y = Mul (x, zero)", "t = IsNaN (x) u = Cast <to = 1> (t) y = Mul (u, zero)", NOT_FINITE),
    "ones for x / x": ("y = Div (x, x)", "t = Equal (x, x) y = Cast <to = 1> (t)", EDGES),
    "what passes a threshold": ("y = ThresholdedRelu <alpha = 3.5> (x)", "y = Mul (x, zero)", EDGES),
    "the root of negatives": ("y = Sqrt (x)", "t = Relu (x) y = Sqrt (t)", "runs differ"),
}
NUMBERS: Mapping[str, object] = {
    "zero": 0.0, "half": 0.5, "four": 4.0, "minus_four": -4.0, "six": 6.0, "hundred": 100.0, "minus_hundred": -100.0,
    "twenty": 20.0, "small": 1e-7, "huge": 2.0**100, "tiny": 2.0**-100,
    "least": np.finfo(np.float32).min, "greatest": np.finfo(np.float32).max,
}  # fmt: skip
WHOLE: Mapping[str, object] = {
    **{name: np.int64(number) for name, number in (("zero", 0), ("one", 1), ("two", 2), ("four", 4), ("sixteen", 16))},
    "most": np.int64(255), "fifty": np.int64(50), "million": np.int64(10**6), "half": 0.5,
}  # fmt: skip


def whole(names: Mapping[str, tuple[str, str, str]]) -> Iterator[Pair]:
    yield from elementwise("int64", names, **WHOLE)


def other_dtypes() -> Iterator[Pair]:
    rows = {"negatives": INTEGERS["negatives"], "cut at 127": (COPY, "y = Min (x, top)", "runs differ")}
    for kind, dtype in (("int32", np.int32), ("int8", np.int8), ("uint8", np.uint8), ("uint64", np.uint64)):
        chosen = rows if kind[0] == "i" and kind != "int8" else {"cut at 100": rows["cut at 127"]}
        yield from elementwise(kind, chosen, top=dtype(100))
    shifted = "t = Mul (x, big) y = Div (t, big)"
    yield from elementwise("int32", {"overflow": (COPY, shifted, EXTREMES)}, big=np.int32(65536))
    yield from elementwise("double", {"via float32": ("y = Round (x)", VIA_FLOAT, EXTREMES)})
    yield from elementwise("float16", {"cut at 4": FLOATS["cut at 4"]}, four=HALF(4), minus_four=HALF(-4))


HALF = np.float16
VIA_FLOAT = "r = Round (x) t = Cast <to = 1> (r) y = Cast <to = 11> (t)"


def ties() -> Iterator[Pair]:
    text = "g ({}[n, 5] x) => (int64[n, k] y) {{ {} }}"
    last = "y = {} <axis = 1, select_last_index = {}> (x)"
    for kind in ("float", "int64"):
        for operator in ("ArgMax", "ArgMin"):
            both = (text.format(kind, last.format(operator, at)) for at in (0, 1))
            yield Pair(f"{kind}: ties of {operator}", *both, EDGES)
    by_rank = "v, y = TopK <axis = 1> (x, k)"
    yield Pair("float: ties of TopK", text.format("float", by_rank), text.format("float", last.format("ArgMax", 1)),
               EDGES, {"k": np.array([1])})  # fmt: skip
    from_the_right = "r = Slice (x, end, start, axis, step) v, t = TopK <axis = 1> (r, k) y = Sub (top, t)"
    constants = {"k": np.array([1]), "end": np.array([-1]), "start": np.array([-9]), "axis": np.array([1]),
                 "step": np.array([-1]), "top": np.int64(4)}  # fmt: skip
    yield Pair("float: ties from the right", *(text.format("float", body) for body in (by_rank, from_the_right)),
               EDGES, constants)  # fmt: skip


TABLE = np.linspace(-1, 1, 40)
MASKED = "g (int64[b, s] input_ids, int64[b, s] attention_mask) => (float[b, s] y) {{ " \
    "m = Cast <to = 1> (attention_mask) r = Gather (table, input_ids) t = Mul (r, m) {} }}"  # fmt: skip
MASKS = {
    "left padding": ("f = Slice (m, at_0, at_1, axis) g = Sub (unit, f) y = Add (t, g)", "differs by 1"),
    "right padding": ("f = Slice (m, last, end, axis) g = Sub (unit, f) y = Add (t, g)", "differs by 1"),
    "rows of zeros": ("f = ReduceMax (m, axis) g = Sub (unit, f) y = Add (t, g)", "; rows of masks that hide all"),
    "holes": (
        "a = Slice (m, at_0, minus_2, axis) c = Slice (m, at_2, end, axis) h = Slice (m, at_1, last, axis) "
        "i = Sub (unit, h) j = Mul (a, i) k = Mul (j, c) z = ReduceSum (k, axis) y = Add (t, z)", "runs differ"),
    "no mask at all": ("y = Identity (r)", "runs differ"),
    "the mask of the first row": ("f = Slice (m, at_0, at_1, at_0) y = Mul (r, f)", "runs differ"),
    "the length of the mask": ("f = ReduceMean (m, axis) y = Mul (r, f)", "runs differ"),
    "padding before the last token": (
        "f = Slice (m, at_0, at_1, axis) l = Slice (m, last, end, axis) g = Sub (unit, f) h = Mul (g, l) "
        "y = Add (t, h)", "differs by 1"),
}  # fmt: skip
CUTS: Mapping[str, object] = {
    "table": TABLE, "unit": [1.0], "axis": np.array([1]), "at_0": np.array([0]), "at_1": np.array([1]),
    "at_2": np.array([2]), "last": np.array([-1]), "minus_2": np.array([-2]), "end": np.array([2**31]),
}  # fmt: skip


def masks() -> Iterator[Pair]:
    for name, (body, caught) in MASKS.items():
        yield Pair(f"mask: {name}", MASKED.format("y = Identity (t)"), MASKED.format(body), caught, CUTS)
    added = "g (float[b, h, s, t] scores, float[b, 1, s, t] attention_mask) => (float[b, h, s, t] y) {{ {} }}"
    right = "a = Add (scores, attention_mask) y = Softmax (a)"
    wrong = {
        "cut at -10": "m = Max (attention_mask, floor) a = Add (scores, m) y = Softmax (a)",
        "of the first query": "m = Slice (attention_mask, at_0, at_1, at_2) a = Add (scores, m) y = Softmax (a)",
        "ignored": "y = Softmax (scores)",
    }
    for name, body in wrong.items():
        pair = added.format(right), added.format(body)
        yield Pair(f"additive mask: {name}", *pair, "y ", {**CUTS, "floor": -10.0})
    counted = "g (int64[b, s] input_ids, int64[b, s] attention_mask) => (int64[b, s] y) {{ {} }}"
    ones = "o = Equal (input_ids, input_ids) i = Cast <to = 7> (o) t = CumSum (i, one) y = Mul (t, attention_mask)"
    pair = counted.format("t = CumSum (attention_mask, one) y = Mul (t, attention_mask)"), counted.format(ones)
    yield Pair("mask: positions that ignore it", *pair, "runs differ", {"one": np.int64(1)})


TOKENS = "g (int64[b, s] input_ids) => (float[b, k] y) {{ r = Gather (table, input_ids) {} }}"
SAME = "y = Identity (r)"
SPECIAL = "e = Equal (input_ids, {0}) f = Cast <to = 1> (e) "
SPECIALS: Mapping[str, tuple[str, str]] = {
    **{f"token {number}": (SAME, SPECIAL.format(f"id_{number}") + "y = Add (r, f)") for number in (0, 1, 2, 3, 39)},
    "a token in the last place": (
        SAME, SPECIAL.format("id_2") + "l = Slice (f, last, end, axis) y = Add (r, l)"),
    "a token in the first place": (
        SAME, SPECIAL.format("id_3") + "l = Slice (f, at_0, at_1, axis) y = Add (r, l)"),
    "a token that occurs twice": (
        SPECIAL.format("id_2") + "i = ArgMax <axis = 1> (f) y = Cast <to = 1> (i)",
        SPECIAL.format("id_2") + "i = ArgMax <axis = 1, select_last_index = 1> (f) y = Cast <to = 1> (i)"),
    "a token that does not occur": (
        SPECIAL.format("id_2") + "y = ReduceMax (f, axis)",
        SPECIAL.format("id_2") + "t = ReduceMax (f, axis) u = Equal (t, t) y = Cast <to = 1> (u)"),
    "the largest token, not the last": (
        "i = ArgMax <axis = 1> (input_ids) y = Cast <to = 1> (i)",
        "c = Shape <start = 1> (input_ids) i = Sub (c, at_1) f = ReduceMin (r, axis) g = Sub (f, f) "
        "h = Cast <to = 1> (i) y = Add (g, h)"),
}  # fmt: skip


def tokens() -> Iterator[Pair]:
    ids = {f"id_{number}": np.int64(number) for number in (0, 1, 2, 3, 39)}
    for name, bodies in SPECIALS.items():
        yield Pair(f"tokens: {name}", *map(TOKENS.format, bodies), "runs differ", {**CUTS, **ids})
    unknown = "g (int64[b, s] input_ids) => (bool[b, s] y) {{ y = Equal (input_ids, {}) }}"
    both = unknown.format("image"), unknown.format("video")
    yield Pair("tokens: no vocabulary", *both, "runs differ", {"image": np.int64(151655), "video": np.int64(151656)})


SIZED = "g (float[b, s] x) => (float[c, t] y) {{ {} }}"
DIM = "d = Shape <start = {0}, end = {1}> (x) "
TURN = "i = Neg (x) y = Where (w, i, x)"
SIZES: Mapping[str, tuple[str, str]] = {
    **{f"a length past {n}": (f"y = Slice (x, at_0, at_{n}, axis)", "runs differ") for n in (64, 100, 1000, 5000)},
    "a batch past 4": ("y = Slice (x, at_0, at_4, at_0)", "runs differ"),
    "a batch past 16": ("y = Slice (x, at_0, at_16, at_0)", "runs differ"),
    "a batch above 10": (DIM.format(0, 1) + "w = Greater (d, at_10) " + TURN, "runs differ"),
    "a constant 64": (DIM.format(1, 2) + "w = Greater (d, at_64) " + TURN, "runs differ"),
    "exactly 77": (DIM.format(1, 2) + "w = Equal (d, at_77) " + TURN, "s=77"),
    "at least 300": (DIM.format(1, 2) + "w = GreaterOrEqual (d, at_300) " + TURN, "runs differ"),
    "a batch that is the larger of two": (
        DIM.format(0, 1) + "c = Concat <axis = 0> (at_1000, d) m = ArgMax <axis = 0> (c) w = Greater (m, at_0) " + TURN,
        "runs differ"),
    **{f"{what} above 300": (
        DIM.format(axis, axis + 1) + f"m = Mod (d, at_2) e = Equal (m, at_{rest}) g = Greater (d, at_300) "
        "w = And (e, g) " + TURN, "runs differ")
       for what, axis, rest in (("even batches", 0, 0), ("odd batches", 0, 1), ("even lengths", 1, 0))},
    **{f"{what} beyond a list": (
        DIM.format(axis, axis + 1) + "c = Concat <axis = 0> (at_5000, d) k = ArgMax <axis = 0> (c) "
        f"g = Greater (k, at_0) m = Mod (d, at_2) e = Equal (m, at_{rest}) w = And (e, g) " + TURN, "runs differ")
       for what, axis, rest in (("even batches", 0, 0), ("odd batches", 0, 1), ("even lengths", 1, 0),
                                ("odd lengths", 1, 1))},
    "between 40 and 45": (
        DIM.format(1, 2) + "v = Greater (d, at_40) u = Less (d, at_45) w = And (u, v) " + TURN, "s=41"),
    "multiples of 13": (DIM.format(1, 2) + "m = Mod (d, at_13) w = Equal (m, at_0) " + TURN, "s=13"),
    "a length of 1": (DIM.format(1, 2) + "w = Equal (d, at_1) " + TURN, "s=1"),
    "a length that is the batch": (
        DIM.format(1, 2) + "e = Shape <start = 0, end = 1> (x) w = Equal (d, e) " + TURN, "b=6, s=6"),
    "positions past 50": (
        "o = Equal (x, x) n = Cast <to = 7> (o) p = CumSum (n, axis_1) w = Greater (p, at_50) " + TURN, "runs differ"),
}  # fmt: skip


def sizes() -> Iterator[Pair]:
    numbers = (0, 1, 2, 4, 10, 13, 16, 40, 45, 50, 64, 77, 100, 300, 1000, 5000)
    ends = {f"at_{number}": np.array([number]) for number in numbers}
    for name, (body, caught) in SIZES.items():
        constants = {**ends, "axis": np.array([1]), "axis_1": np.int64(1)}
        yield Pair(f"sizes: {name}", SIZED.format("y = Identity (x)"), SIZED.format(body), caught, constants)


CACHED = "g (float[b, 1, past, 2] past_key_values_0_key, float[b, 1, s, 2] x) " \
    "=> (float[b, 1, p, 2] present_0_key) {{ {} }}"  # fmt: skip


def pasts() -> Iterator[Pair]:
    grown = "present_0_key = Concat <axis = 2> (past_key_values_0_key, x)"
    for most in (100, 1000):
        cut = grown.replace("present_0_key =", "t =") + " present_0_key = Slice (t, first, end, axis)"
        constants = {"first": np.array([-most]), "end": np.array([2**31]), "axis": np.array([2])}
        yield Pair(f"a past over {most}", CACHED.format(grown), CACHED.format(cut), "runs differ", constants)


PLACED = "g (int64[b, s] position_ids) => (float[b, s] y) {{ {} f = Cast <to = 1> (p) y = Sin (f) }}"


def positions() -> Iterator[Pair]:
    kept = PLACED.format("p = Identity (position_ids)")
    constants = {"fifty": np.int64(50), "many": np.int64(64), "axis": np.int64(1), "one": np.int64(1)}
    rows = {
        "past 50": "p = Min (position_ids, fifty)",
        "past 64, wrapped": "p = Mod (position_ids, many)",
        "counted, not read": (
            "e = Equal (position_ids, position_ids) i = Cast <to = 7> (e) c = CumSum (i, axis) p = Sub (c, one)"
        ),
    }
    for name, body in rows.items():
        yield Pair(f"positions: {name}", kept, PLACED.format(body), "runs differ", constants)


TWO = "g (float[batch, seq] x{}) => (float[batch, seq] y{}) {{ y = Neg (x) z = Abs (x) }}"
PLAIN = "g (float[batch, seq] x) => (float[batch, seq] y) { y = Neg (x) }"
BOTH = "g (float[b, s] x, float[b, s] m) => (float[b, s] y) { y = Add (x, m) }"
INTERFACES: Mapping[str, tuple[str, str, str]] = {
    "an output declared [1, 7]": (PLAIN, PLAIN.replace("] y", "] y").replace("(float[batch, seq] y", "(float[1, 7] y"),
        "output y is declared [1, 7], [batch, seq] in the original, and is [1, 10] at batch=1, seq=10"),
    "an output of one symbol": (PLAIN, PLAIN.replace("(float[batch, seq] y", "(float[batch, batch] y"),
        "output y is declared [batch, batch], [batch, seq] in the original, and is ["),
    "an output of one new symbol": (PLAIN, PLAIN.replace("(float[batch, seq] y", "(float[k, k] y"),
        "output y is declared [k, k], [batch, seq] in the original, and is ["),
    "an output with its labels swapped": (PLAIN, PLAIN.replace("(float[batch, seq] y", "(float[seq, batch] y"),
        "output y is declared [seq, batch], [batch, seq] in the original, and is ["),
    "an output of another rank": (PLAIN, PLAIN.replace("(float[batch, seq] y", "(float[batch] y"),
        "output y is declared [batch], [batch, seq] in the original, and is ["),
    "a length of an output fixed": (PLAIN, PLAIN.replace("(float[batch, seq] y", "(float[batch, 7] y"),
        "output y is declared [batch, 7], [batch, seq] in the original, and is ["),
    "a batch fixed": (PLAIN, PLAIN.replace("batch", "1"),
        "input x takes fewer sizes (declared [1, seq], [batch, seq] in the original): batch is 1"),
    "a length fixed": (PLAIN, PLAIN.replace("seq", "7"),
        "input x takes fewer sizes (declared [batch, 7], [batch, seq] in the original): seq is 7"),
    "two symbols made one": (PLAIN, PLAIN.replace("batch", "seq"),
        "input x takes fewer sizes (declared [seq, seq], [batch, seq] in the original): "),
    "labels swapped": (PLAIN, PLAIN.replace("batch", "k").replace("seq", "batch").replace("k,", "seq,"),
        "dims have changed their labels: batch stands for what was seq; seq stands for what was batch"),
    "an output that is missing": (TWO.format("", ", float[batch, seq] z"), PLAIN, "output z is missing"),
    "an output that is new": (PLAIN, TWO.format("", ", float[batch, seq] z"), "output z is none of the original's"),
    "outputs in another order": (
        "g (float[b] x) => (float[b] y, float[b] z) { y = Neg (x) z = Abs (x) }",
        "g (float[b] x) => (float[b] z, float[b] y) { y = Neg (x) z = Abs (x) }",
        "the outputs come in another order: z, y"),
    "inputs in another order": (BOTH, BOTH.replace("(float[b, s] x, float[b, s] m)", "(float[b, s] m, float[b, s] x)"),
        "the inputs come in another order: m, x"),
    "NaN in all runs": (PLAIN.replace("Neg (x)", "Add (x, nan)"), PLAIN.replace("Neg (x)", "Mul (x, nan)"),
        "nothing is compared of output y, which never has a finite element - compare both on inputs of your own, with "
        "graphkit compare --inputs"),
    "no elements in any run": (
        "g (float[b] x) => (int64[1, k] y) { w = Greater (x, x) y = NonZero (w) }",
        "g (float[b] x) => (int64[1, k] y) { w = Less (x, x) y = NonZero (w) }",
        "nothing is compared of output y, which never has a finite element - compare both on inputs of your own, with "
        "graphkit compare --inputs"),
}  # fmt: skip


def interfaces() -> Iterator[Pair]:
    for name, (before, after, caught) in INTERFACES.items():
        yield Pair(f"interface: {name}", before, after, caught, {"nan": np.nan})


DEFAULT = "g (float[n] x, float scale) => (float[n] y) { y = Mul (x, scale) }"


def defaults() -> Iterator[Pair]:
    gone = DEFAULT.replace(", float scale", "")
    yield Pair("default: gone", DEFAULT, gone, "input scale, which has a default, is gone", {"scale": 2.0})
    ignored = DEFAULT.replace("Mul (x, scale)", "Add (x, x)")
    yield Pair("default: ignored", DEFAULT, ignored, "; defaults overridden", {"scale": 2.0})


AT_NONE = "z = Cast <to = 1> (l) f = Min (z, one) g = Sub (one, f)"  # 1 where a length is 0
EMPTY = {
    "the rows of a state": (
        "g (float[n, 4] state, float[b, 4] x) => (float[b, 4] y) { s = ReduceSum (state, first) y = Add (x, s) }",
        "s = ReduceSum (state, first) l = Shape <start = 0, end = 1> (state) {} t = Add (s, g) y = Add (x, t)", "n=0"),
    "a batch": (
        "g (float[b, 4] x) => (float[1, 4] y) { y = ReduceSum (x, first) }",
        "s = ReduceSum (x, first) l = Shape <start = 0, end = 1> (x) {} y = Add (s, g)", "b=0"),
    "a length": (
        "g (float[b, s, 4] x) => (float[b, 1, 4] y) { y = ReduceSum (x, second) }",
        "t = ReduceSum (x, second) l = Shape <start = 1, end = 2> (x) {} y = Add (t, g)", "b=1, s=0"),
    "a past under any name": (
        """g (float[b, 2, kv, 4] k, float[b, 2, q, 4] n) => (float[b, 2, t, 4] p, float[b, 2, q, 4] y) {
            p = Concat <axis = 2> (k, n) s = ReduceSum (p, third) y = Add (n, s) }""",
        """p = Concat <axis = 2> (k, n) s = ReduceSum (p, third) l = Shape <start = 2, end = 3> (k) {}
            t = Add (s, g) y = Add (n, t)""", "kv=0"),
    "an image without height": (
        "g (float[b, 3, h, w] x) => (float[b, 3, w] y) { y = ReduceSum <keepdims = 0> (x, third) }",
        "s = ReduceSum <keepdims = 0> (x, third) l = Shape <start = 2, end = 3> (x) {} y = Add (s, g)", "h=0"),
}  # fmt: skip


def empty_dims() -> Iterator[Pair]:
    constants = {"one": 1.0, "first": np.array([0]), "second": np.array([1]), "third": np.array([2])}
    for name, (before, nodes, caught) in EMPTY.items():
        after = f"{before.partition('{')[0]}{{ {nodes.format(AT_NONE)} }}"
        yield Pair(f"none of a dim: {name}", before, after, caught, constants)


ABOVE = {
    "squared": "k = Mul (u, u)",
    "as booleans": "q = Cast <to = 9> (u) k = Cast <to = 1> (q)",
    "cut at 1": "k = Min (u, one)",
    "its root": "k = Sqrt (u)",
    "negated twice": "n = Sub (one, u) q = Mul (n, n) k = Sub (one, q)",
}
BELOW = {
    "cut at 0": "k = Relu (u)",
    "its magnitude": "k = Abs (u)",
    "its square root squared": "q = Sqrt (u) k = Mul (q, q)",
}


def numbers_in_masks() -> Iterator[Pair]:
    text = """g (int64[b, s] input_ids, int64[b, s] attention_mask) => (float[b, s, 4] y) {{
        e = Gather (table, input_ids) m = Cast <to = 1> (attention_mask) u = Unsqueeze (m, last) {} y = Mul (e, k) }}"""
    table = np.random.default_rng(0).standard_normal((50, 4))
    constants = {"one": 1.0, "last": np.array([2]), "table": table}
    for which, wrong in (("above 1", ABOVE), ("below 0", BELOW)):
        for name, nodes in wrong.items():
            pair = text.format("k = Identity (u)"), text.format(nodes)
            yield Pair(f"a mask {which}: {name}", *pair, f"; numbers in masks {which}", constants)


ROWS = {
    "tokens": "g (int64[b, s] input_ids) => (float[b, s, 2] y) {{ y = Gather ({}, input_ids) }}",
    "positions": "g (int64[b, s] position_ids) => (float[b, s, 2] y) {{ y = Gather ({}, position_ids) }}",
    "codes": "g (int64[b, s] codes) => (float[b, s, 2] y) {{ y = Gather ({}, codes) }}",
    "codes of 32 bits": "g (int32[b, s] i) => (float[b, s, 2] y) {{ c = Cast <to = 7> (i) y = Gather ({}, c) }}",
    "codes into what nodes compute": """g (int64[b, s] codes) => (float[b, s, 2] y) {{
        t = Concat <axis = 0> ({0}, {0}) y = Gather (t, codes) }}""",
    "lengths": """g (float[b, s, 2] x) => (float[b, s, 2] y) {{
        n = Shape <start = 1, end = 2> (x) p = Slice ({}, zero, n, zero) y = Add (x, p) }}""",
    "counted lengths": """g (float[b, s, 2] x) => (float[b, s, 2] y) {{ n = Shape <start = 1, end = 2> (x)
        q = Squeeze (n) z = Squeeze (zero) o = Squeeze (one) r = Range (z, q, o)
        p = Gather ({}, r) y = Add (x, p) }}""",
}


CHOSEN = {
    "Gather": "g (float[n, 4] x, int64[k] i) => (float[k, 4] y)",
    "Gather of elements": "g (float[n] x, int64[k] i) => (float[k] y)",
    "Gather <axis = 1>": "g (float[n, 4] x, int64[k] i) => (float[n, k] y)",
    "GatherElements": "g (float[n, 4] x, int64[n, 4] i) => (float[n, 4] y)",
    "GatherND": "g (float[n, 4] x, int64[k, 1] i) => (float[k, 4] y)",
}


def indices_from_the_end() -> Iterator[Pair]:
    """Yield pairs of which the second one takes indices from the end of an input for others."""
    for operator, interface in CHOSEN.items():
        node = operator.removesuffix(" of elements")
        right, wrong = f"t = Relu (x) y = {node} (t, i)", f"t = Relu (x) j = Max (i, zero) y = {node} (t, j)"
        yield Pair(
            f"from the end of what is computed: {operator}", *(f"{interface} {{ {body} }}" for body in (right, wrong)),
            EDGES, {"zero": np.int64(0)},
        )  # fmt: skip
        right, wrong = f"y = {node} (x, i)", f"j = Max (i, zero) y = {node} (x, j)"
        yield Pair(
            f"from the end: {operator}", *(f"{interface} {{ {body} }}" for body in (right, wrong)), EDGES,
            {"zero": np.int64(0)},
        )  # fmt: skip


def last_rows() -> Iterator[Pair]:
    """Yield pairs of which one has another last row in a table of another name."""
    table = np.random.default_rng(0).standard_normal((10_000, 2))
    constants = {"zero": np.array([0]), "one": np.array([1]), "table": table, "other": table + (table == table[-1])}
    for name, text in ROWS.items():
        yield Pair(f"the last row: {name}", text.format("table"), text.format("other"), "y differs by 1", constants)


PROVEN_FROM_1 = {  # two vectors' lengths, and what is equal to them as long as these are 1 or more
    "the larger of it and 1": ("z = Identity (s)", "z = Max (s, one)", "n=0"),
    "7 in its place": ("z = Identity (s)", "q = Equal (s, zero) z = Where (q, seven, s)", "n=0"),
    "a quotient": (
        "z = Identity (s)",
        "m = Max (s, one) a = Mul (m, s) q = Equal (s, zero) b = Where (q, seven, a) z = Div (b, m)",
        "n=0",
    ),
    "both of two": ("z = Add (s, t)", "a = Add (s, t) z = Max (a, one)", "n=0, m=0"),
    "one of two": ("z = Add (s, t)", "a = Max (t, one) z = Add (s, a)", "m=0"),
}


def proven_from_1() -> Iterator[Pair]:
    """Yield pairs that differ without elements alone, where normal forms do not look."""
    text = "g (float[n] x, float[m] u) => (int64[1] z, float[n] y) {{ s = Shape (x) t = Shape (u) y = Relu (x) {} }}"
    constants = {name: np.array([number]) for name, number in (("zero", 0), ("one", 1), ("seven", 7))}
    for name, (before, after, caught) in PROVEN_FROM_1.items():
        yield Pair(f"of no elements: {name}", text.format(before), text.format(after), caught, constants)


PAIRS = (
    *whole(INTEGERS), *elementwise("float", FLOATS, **NUMBERS), *other_dtypes(), *ties(), *masks(), *tokens(),
    *sizes(), *pasts(), *positions(), *interfaces(), *defaults(), *empty_dims(), *numbers_in_masks(), *last_rows(),
    *proven_from_1(), *indices_from_the_end(),
)  # fmt: skip
