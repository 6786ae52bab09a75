"""What is not known says why; what cannot hold is a finding."""

from __future__ import annotations

import pytest
from graphs import shapes

ONE = "g (float[b, s, 64] x) => (y) "

UNKNOWN = {
    "value": (
        "g (float[b, s] x, int64[2] t) => (y) { u = Neg(t) y = Reshape(x, u) }",
        "more than one dim that is not known",
    ),
    "rank": ("g (float[b, s] x, int64[n] t) => (y) { y = Reshape(x, t) }", "the value of 't' is unknown"),
    "operator": (ONE + "{ y = custom.Nothing(x) }", "there is no rule for custom.Nothing"),
    "non-zero": (ONE + "{ y = NonZero(x) }", "it is how many elements of 'x' are not zero"),
    "unique": (ONE + "{ y, i, j, k = Unique(x) }", "how many distinct elements"),
    "compress": ("g (float[b] x, bool[b] c) => (y) { y = Compress(x, c) }", "how many elements of 'c' are True"),
    "broadcast": ("g (float[past] x, float[b] z) => (y) { y = Add(x, z) }", "either may be 1 or 0"),
    "concat": (
        "g (float[past, s] x, float[past, t] z) => (y) { y = Concat<axis = 0>(x, z) }",
        "any may be without elements",
    ),
    "squeeze": (ONE + "{ y = Squeeze(x) }", "the rank depends on whether b is 1"),
    "squeeze of an empty list": (
        "g (float[b, 1] x) => (y) { a = Constant<value = int64[0] {}>() y = Squeeze(x, a) }",
        "its list of axes is empty, which onnxruntime takes for all dims of 1, and ONNX for none",
    ),
    "reduced axes": ("g (float[b, s] x, int64[k] a) => (y) { y = ReduceSum(x, a) }", "the value of 'a' is unknown"),
    "slice": (
        "g (float[b] x, float[t] z) => (y) { e = Shape(z) n = Shape(x) d = Sub(e, n) o = Constant<value_ints = [0]>() "
        "y = Slice(x, o, d) }",
        "either may be below 0 or not",
    ),
    "slice backwards to the end": (
        "g (float[b] x) => (y) { o = Constant<value_ints = [-1]>() e = Constant<value_ints = [9223372036854775807]>() "
        "a = Constant<value_ints = [0]>() y = Slice(x, o, e, a, o) }",
        "the Slice goes backwards to 9223372036854775807, which is the front in onnxruntime, and the end in ONNX",
    ),
    "slice with a step of either sign": (
        "g (float[b] x, float[t] z) => (y) { a = Constant<value_ints = [0]>() e = Shape(x) n = Shape(z) "
        "d = Sub(n, e) y = Slice(x, a, e, a, d) }",
        "the step of the Slice is t - b, which may be above or below 0",
    ),
    "top k": ("g (float[b] x, int64[1] k) => (y) { y, i = TopK(x, k) }", "an element of the input 'k'"),
    "resize": (
        "g (float[n, c, h, w] x) => (y) { s = Constant<value_floats = [1.0, 1.0, 1.3, 1.0]>() y = Resize(x, , s) }",
        "rounded as a float",
    ),
    "if": (
        "g (float[b] x, bool f) => (y) { y = If (f) < then_branch = t () => (float[b] p) { p = Relu(x) }, "
        "else_branch = e () => (float[b, c] q) { a = Constant<value_ints = [0]>() q = Unsqueeze(x, a) } > }",
        "then_branch gives rank 1, else_branch rank 2",
    ),
    "reads an unknown": (ONE + "{ z = custom.Nothing(x) y = Relu(z) }", "there is no rule for custom.Nothing"),
    "undefined": (ONE + "{ y = Relu(nothing) }", "not defined before it is used"),
    "recursion": (
        ONE
        + '{ y = local.f(x) } <domain: "local", opset_import: ["" : 18, "local" : 1]> f(a) => (c) { c = local.f(a) }',
        "the function calls itself",
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_because(name):
    text, reason = UNKNOWN[name]
    found = shapes(text)
    assert not found["y"].is_known
    assert reason in found.reason("y")


FINDINGS = {
    "reshape": (
        "g (float[b, 6] x) => (y) { n = Constant<value_ints = [4, 5]>() y = ConstantOfShape(n) t "
        "= Constant<value_ints = [3, 7]>() "
        "z = Reshape(y, t) }",
        "elements before and after: 20 is not 21",
    ),
    "reshape -1": (
        "g (float[4, 5] x) => (y) { t = Constant<value_ints = [3, -1]>() y = Reshape(x, t) }",
        "20 elements: 20 is not a multiple of 3",
    ),
    "matmul": ("g (float[b, 8] x, float[7, s] z) => (y) { y = MatMul(x, z) }", "inner dims of a product: 8 is not 7"),
    "broadcast": ("g (float[b, 8] x, float[b, 7] z) => (y) { y = Add(x, z) }", "dims that broadcast: 8 is not 7"),
    "concat": (
        "g (float[2, 8] x, float[2, 7] z) => (y) { y = Concat<axis = 0>(x, z) }",
        "not concatenated: 8 is not 7",
    ),
    "axis": (ONE + "{ y = Softmax<axis = 1>(x) z = ArgMax<axis = 5>(x) }", "axis 5 of a tensor of rank 3"),
    "index": (
        ONE + "{ t = Shape(x) i = Constant<value_int = 3>() y = Gather(t, i) }",
        "an index outside of an axis of 3",
    ),
    "squeeze": (ONE + "{ a = Constant<value_ints = [2]>() y = Squeeze(x, a) }", "squeezed and 1: 64 is not 1"),
    "split": (
        ONE + "{ n = Constant<value_ints = [3, 4]>() y, z = Split<axis = 2>(x, n) }",
        "the sum of the parts and the whole: 7 is not 64",
    ),
    "conv": ("g (float[n, 3, 8, 8] x, float[4, 5, 3, 3] k) => (y) { y = Conv(x, k) }", "channels of input and weight"),
    "window": (
        "g (float[n, 3, 2, 8] x, float[4, 3, 3, 3] k) => (y) { y = Conv(x, k) }",
        "windows that fit: 0 is less than 1",
    ),
    "expand": (
        "g (float[8] x) => (y) { t = Constant<value_ints = [-1]>() y = Expand(x, t) }",
        "a target shape of [-1]",
    ),
    "permutation": (ONE + "{ y = Transpose<perm = [0, 1]>(x) }", "perm [0, 1] of a tensor of rank 3"),
    "equation": (ONE + '{ y = Einsum<equation = "ij->i">(x) }', "the term 'ij' for rank 3"),
}


@pytest.mark.parametrize("name", FINDINGS)
def test_contradictions_are_findings(name):
    text, message = FINDINGS[name]
    assert any(message in finding.message for finding in shapes(text).findings), shapes(text).findings
