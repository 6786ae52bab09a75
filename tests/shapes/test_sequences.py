"""Sequences of tensors, against onnxruntime."""

from __future__ import annotations

import re

import numpy as np
import onnxruntime
import pytest
from graphs import model, shapes

from graphkit.shapes import infer

onnxruntime.set_default_logger_severity(4)
SIZES = {"b": 2, "s": 5, "t": 3}
NUMBERS = (
    "o = Constant<value_int = 0>() i = Constant<value_int = 1>() n = Constant<value_int = -1>() "
    "w = Constant<value_ints = [1, 4]>() q = SequenceConstruct(x, z) "
)
BODY = "body = g2 (int64 k, bool c, seq(float[b, s]) v) => (bool d, seq(float[b, s]) u)"
LOOP = "m = Constant<value_int = 3>() e = SequenceEmpty<dtype = 1>() r = Loop (m, , e) "
LOOP += f"<{BODY} {{ d = Identity(c) BODY }}>"

# What is computed of x [b, s], z [b, t] and y [4, 6] -> what is known of a
CASES = {
    "at": ("a = SequenceAt(q, i)", "[b, t]"),
    "at, from the end": ("a = SequenceAt(q, n)", "[b, t]"),
    "at an input": ("a = SequenceAt(q, p)", "[b, ?]"),
    "insert at the end": ("r = SequenceInsert(q, y) a = SequenceAt(r, n)", "[4, 6]"),
    "insert": ("r = SequenceInsert(q, y, i) a = SequenceAt(r, i)", "[4, 6]"),
    "insert before the end": ("r = SequenceInsert(q, y, n) a = SequenceAt(r, i)", "[4, 6]"),
    "insert at an input": ("r = SequenceInsert(q, x, p) a = SequenceAt(r, i)", "[b, ?]"),
    "erase": ("r = SequenceErase(q, o) a = SequenceAt(r, o)", "[b, t]"),
    "erase the last": ("r = SequenceErase(q) a = SequenceAt(r, o)", "[b, s]"),
    "erase at an input": ("r = SequenceErase(q, p) a = SequenceAt(r, o)", "[b, ?]"),
    "concat": ("a = ConcatFromSequence<axis = -1>(q)", "[b, s + t]"),
    "stack": ("r = SequenceConstruct(x, x, x) a = ConcatFromSequence<axis = 1, new_axis = 1>(r)", "[b, 3, s]"),
    "split": ("r = SplitToSequence<axis = 1>(x) a = SequenceAt(r, p)", "[b, 1]"),
    "split, without the dim": ("r = SplitToSequence<axis = 1, keepdims = 0>(x) a = SequenceAt(r, p)", "[b]"),
    "split by one, without the dim": (
        "h = Constant<value_int = 1>() r = SplitToSequence<axis = 1, keepdims = 0>(x, h) a = SequenceAt(r, p)",
        "[b]",
    ),
    "split into ones": (
        "r = SplitToSequence<axis = 1>(y) a = ConcatFromSequence<axis = 1, new_axis = 1>(r)",
        "[4, 6, 1]",
    ),
    "split into twos": (
        "h = Constant<value_int = 2>() r = SplitToSequence<axis = 1>(x, h) a = SequenceAt(r, o)",
        "[b, ?]",
    ),
    "split into fours of six": (
        "h = Constant<value_int = 4>() r = SplitToSequence<axis = 1>(y, h) a = SequenceAt(r, i)",
        "[4, 2]",
    ),
    "split into parts": ("r = SplitToSequence<axis = 1>(x, w) a = SequenceAt(r, i)", "[b, 4]"),
    "identity": ("r = Identity(q) a = SequenceAt(r, i)", "[b, t]"),
    "branches": (
        "r = If (f) < then_branch = g1 () => (seq(float[b, s]) u) { u = SequenceConstruct(x, z) },"
        " else_branch = g2 () => (seq(float[b, s]) v) { v = SequenceConstruct(x) } > a = SequenceAt(r, o)",
        "[b, ?]",
    ),
    "loop": (
        LOOP.replace("BODY", "h = Relu(x) u = SequenceInsert(v, h)") + " a = ConcatFromSequence<axis = 0>(r)",
        "[?, s]",
    ),
    "loop, stacked": (
        LOOP.replace("BODY", "h = Relu(x) u = SequenceInsert(v, h)")
        + " a = ConcatFromSequence<axis = 0, new_axis = 1>(r)",
        "[?, b, s]",
    ),
}


def text_of(name: str) -> str:
    declared = ", ".join(f"d{axis}" for axis in range(CASES[name][1].count(",") + 1))
    inputs = "float[b, s] x, float[b, t] z, float[4, 6] y, int64 p, bool f"
    return f"g ({inputs}) => (float[{declared}] a) {{ {NUMBERS} {CASES[name][0]} }}"


@pytest.mark.parametrize("name", CASES)
def test_what_is_known(name: str) -> None:
    m = model(text_of(name))
    found = infer(m)["a"]
    assert re.sub(r"\?\d+\.\w+#\d+", "?", str(found)) == CASES[name][1]
    session = onnxruntime.InferenceSession(m.proto.SerializeToString(), providers=["CPUExecutionProvider"])
    arrays = {"x": (2, 5), "z": (2, 3), "y": (4, 6)}
    feeds = {key: np.ones(shape, np.float32) for key, shape in arrays.items()}
    (actual,) = session.run(None, {**feeds, "p": np.array(1), "f": np.array(False)})
    assert found.dtype == 1
    assert len(found.dims) == actual.ndim
    for dim, size in zip(found.dims, actual.shape, strict=True):
        assert "?" in str(dim) or dim.evaluate(SIZES) == size


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("a = SequenceLength(q)", "[] = 2"),
        ("r = SplitToSequence<axis = 1>(x) a = SequenceLength(r)", "[] = s"),
        ("e = SequenceEmpty() a = SequenceLength(e)", "[] = 0"),
        ("e = SequenceEmpty() r = SequenceInsert(e, x, o) a = SequenceLength(r)", "[] = 1"),
    ],
)
def test_lengths(nodes: str, expected: str) -> None:
    text = f"g (float[b, s] x, float[b, t] z, float[4, 6] y, int64 p) => (int64 a) {{ {NUMBERS} {nodes} }}"
    assert str(shapes(text)["a"]) == expected


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ("e = SequenceEmpty() a = SequenceAt(e, o)", "nothing is known to be in the sequence"),
        ("u = Unsqueeze(x, w) r = SequenceConstruct(x, u) a = SequenceAt(r, p)", "the tensors of the sequence differ"),
        ("e = SequenceEmpty() r = SequenceErase(e) a = SequenceAt(r, o)", "nothing to erase in an empty sequence"),
        ("a = SequenceAt(x, o)", "it is the input 'x'"),
    ],
)
def test_what_is_not_known(nodes: str, reason: str) -> None:
    found = shapes(f"g (float[b, s] x, float[b, t] z, float[4, 6] y, int64 p) => (a) {{ {NUMBERS} {nodes} }}")
    assert found["a"].dims is None
    assert reason in found.reason("a")


def test_a_function_that_is_called_with_different_sequences() -> None:
    text = f"""g (float[b, s] x, float[b, t] z, float[4, 6] y) => (a, c) {{
        {NUMBERS} h = SequenceConstruct(x, x) a = local.f(q) c = local.f(h)
    }} <domain: "local", opset_import: ["" : 18]> f(v) => (d) {{
        e = Identity(v) k = Constant<value_int = 0>() d = SequenceAt(e, k)
    }}"""
    found = shapes(text)
    assert [str(found[name]) for name in "ac"] == ["[b, s]", "[b, s]"]
