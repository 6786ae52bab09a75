"""Peak memory by hand: which tensors are there at once."""

from __future__ import annotations

import onnx.parser
import pytest

from graphkit.analysis.costs.peak_memory import PeakMemory
from graphkit.model import Model
from graphkit.shapes import infer

HEAD = '<ir_version: 10, opset_import: ["" : 21, "f" : 1]>'
K = 4 * 256  # bytes of a float[256]


def peak_of(text: str, **sizes: int) -> tuple[int, str, list[str]]:
    shapes = infer(Model.from_proto(onnx.parser.parse_model(f"{HEAD} {text}")))
    peak = PeakMemory(shapes).at(sizes)
    return peak.bytes, peak.node.op_type if peak.node else "", sorted(each.value.name for each in peak.alive)


@pytest.mark.parametrize(
    ("body", "size", "at", "alive"),
    [
        # an input is the caller's; one result
        ("y = Relu (x)", K, "Relu", ["y"]),
        # in place: the result of the Relu is written where that of the Transpose lies
        ("a = Transpose (x) y = Relu (a)", K, "Transpose", ["a"]),
        # not in place: something reads `a` afterwards
        ("a = Transpose (x) b = Relu (a) y = Add (a, b)", 2 * K, "Relu", ["a", "b"]),
        # a Softmax needs room of its own
        ("a = Transpose (x) y = Softmax (a)", 2 * K, "Softmax", ["a", "y"]),
        # a tensor goes after its last reader
        ("a = Transpose (x) b = Softmax (a) c = Softmax (b) y = Softmax (c)", 2 * K, "Softmax", ["a", "b"]),
        # another shape of the same bytes
        ("a = Transpose (x) b = Flatten (a) y = Softmax (b)", 2 * K, "Softmax", ["a", "y"]),
        ("a = Flatten (x) y = Softmax (a)", K, "Softmax", ["y"]),
        # what nothing reads is there while its node runs
        ("a = Transpose (x) y = Softmax (x)", K, "Transpose", ["a"]),
        # another dtype does not fit into the place
        ("a = Transpose (x) b = Cast <to = 11> (a) y = Cast <to = 1> (b)", 3 * K, "Cast", ["a", "b"]),
    ],
)
def test_tensors_come_and_go(body: str, size: int, at: str, alive: list[str]) -> None:
    assert peak_of(f"g (float[16, 16] x) => (y) {{ {body} }}") == (size, at, alive)


BRANCHES = """g (float[16, 16] x, bool k) => (float[16, 16] y) {{
    a = Transpose (x)
    b = If (k) <
        then_branch = one () => (float[16, 16] c) {{ c = Softmax (x) }},
        else_branch = two () => (float[16, 16] c) {{ d = Softmax (x) e = Softmax (d) c = Add (d, e) }}>
    y = Add ({reads}, b)
}}"""


def test_a_branch_adds_its_peak_to_what_is_around_it() -> None:
    assert peak_of(BRANCHES.format(reads="a")) == (3 * K, "Softmax", ["a", "d", "e"])
    assert peak_of(BRANCHES.format(reads="x"))[0] == 2 * K  # `a` is gone


def test_a_loop_holds_its_state_and_the_next() -> None:
    size, _, alive = peak_of(
        """g (float[16, 16] x) => (float[16, 16] y) <int64 t = {3}> {
        y = Loop (t, , x) <body = inner (int64 i, bool b, float[16, 16] s) => (bool c, float[16, 16] n)
            { n = Softmax (s) c = Identity (b) }> }"""
    )
    assert (size, alive) == (3 * K, ["n", "s", "y"])


def test_a_function_has_its_peak_at_each_call() -> None:
    size, _, alive = peak_of(
        """g (float[16, 16] x) => (float[16, 16] y) { a = Transpose (x) b = f.two (a) y = Add (a, b) }
        <domain: "f", opset_import: ["" : 21]> two (p) => (r) { m = Softmax (p) r = Softmax (m) }"""
    )
    assert (size, alive) == (3 * K, ["a", "m", "r"])


def test_the_peak_moves_with_the_sizes() -> None:
    text = """g (float[n, 8] x, float[8, 64] w) => (y)
        { s = Transpose (x) a = MatMul (x, s) b = Softmax (a) y = MatMul (x, w) }"""
    assert peak_of(text, n=4)[2] == ["y"]
    assert peak_of(text, n=400)[2] == ["a", "b"]


def test_tensors_of_unknown_size_are_named() -> None:
    shapes = infer(
        Model.from_proto(
            onnx.parser.parse_model(f"{HEAD} g (float[4] x) => (y) {{ a = NonZero (x) y = Cast <to = 1> (a) }}")
        )
    )
    assert [value.name for value in PeakMemory(shapes).at({}).unknown.values()] == ["a"]
