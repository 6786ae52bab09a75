"""Peak memory by hand: which tensors are there at once."""

from __future__ import annotations

import onnx.parser
import pytest

from graphkit.analysis import peak_memory
from graphkit.analysis.peak_memory import PeakMemory, runtime_order
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
        ("y = Softmax (x)", K, "Softmax", ["y"]),
        # in place: the result of the Relu is written where that of the Transpose lies
        ("a = Transpose (x) b = Relu (a) y = ReduceSum (b)", K + 4, "ReduceSum", ["a", "y"]),
        # not in place: something reads `a` afterwards
        ("a = Transpose (x) b = Relu (a) y = MatMul (a, b)", 3 * K, "MatMul", ["a", "b", "y"]),
        # an output has bytes of its own, also one of another shape
        ("a = Transpose (x) y = Relu (a)", 2 * K, "Relu", ["a", "y"]),
        ("a = Transpose (x) y = Flatten (a)", 2 * K, "Flatten", ["a", "y"]),
        # an Erf needs room of its own, in onnxruntime
        ("a = Transpose (x) b = Erf (a) y = ReduceSum (b)", 2 * K, "Erf", ["a", "b"]),
        # a tensor goes after its last reader
        ("a = Transpose (x) b = Erf (a) c = Erf (b) y = Erf (c)", 2 * K, "Erf", ["a", "b"]),
        # another shape of the same bytes
        ("a = Transpose (x) b = Flatten (a) y = ReduceSum (b)", K + 4, "ReduceSum", ["a", "y"]),
        ("a = Flatten (x) y = Softmax (a)", K, "Softmax", ["y"]),
        # what nothing reads is there while its node runs, which is the last one
        ("a = Transpose (x) y = ReduceSum (x)", K + 4, "Transpose", ["a", "y"]),
        # another dtype of as many bytes fits into the place, one of more does not
        ("a = Transpose (x) b = Cast <to = 6> (a) y = ReduceSum (b)", K + 4, "ReduceSum", ["a", "y"]),
        ("a = Transpose (x) b = Cast <to = 11> (a) y = ReduceSum (b)", 3 * K, "Cast", ["a", "b"]),
    ],
)
def test_tensors_come_and_go(body: str, size: int, at: str, alive: list[str]) -> None:
    assert peak_of(f"g (float[16, 16] x) => (y) {{ {body} }}") == (size, at, alive)


BRANCHES = """g (float[16, 16] x, bool k) => (float[16, 16] y) {
    a = Transpose (x)
    b = If (k) <
        then_branch = one () => (float[16, 16] c) { c = Erf (x) },
        else_branch = two () => (float[16, 16] c) { d = Erf (a) e = Erf (d) c = Add (d, e) }>
    y = Add (a, b)
}"""


def test_a_branch_adds_its_peak_to_what_is_around_it() -> None:
    assert peak_of(BRANCHES) == (4 * K, "Add", ["a", "c", "d", "e"])


def test_a_branch_that_gives_what_its_if_makes_has_no_size() -> None:
    proto = onnx.parser.parse_model(
        f"""{HEAD} g (bool c, float[n] x) => (y) {{
            y = If (c) <then_branch = t () => (a) {{ a = Relu (x) }}, else_branch = e () => (y) {{ b = Relu (x) }}>
        }}"""
    )
    model = Model.from_proto(proto)
    memory = PeakMemory(infer(model))
    assert memory.branch_results(model.graph.outputs[0], {}) == []
    assert memory.at({"n": 256}).bytes == K


def test_a_loop_holds_its_state_and_the_next() -> None:
    size, _, alive = peak_of(
        """g (float[16, 16] x) => (float[16, 16] y) <int64 t = {3}> {
        y = Loop (t, , x) <body = inner (int64 i, bool b, float[16, 16] s) => (bool c, float[16, 16] n)
            { n = Erf (s) c = Identity (b) }> }"""
    )
    assert (size, alive) == (3 * K + 1, ["c", "n", "s", "y"])


def test_a_function_has_its_peak_at_each_call() -> None:
    size, _, alive = peak_of(
        """g (float[16, 16] x) => (float[16, 16] y) { a = Transpose (x) b = f.two (a) y = Add (a, b) }
        <domain: "f", opset_import: ["" : 21]> two (p) => (r) { m = Erf (p) r = Erf (m) }"""
    )
    assert (size, alive) == (3 * K, ["a", "m", "r"])


def test_the_peak_moves_with_the_sizes() -> None:
    text = """g (float[n, 8] x, float[8, 64] w) => (y)
        { s = Transpose (x) a = MatMul (x, s) b = Erf (a) y = MatMul (x, w) }"""
    assert peak_of(text, n=4)[2] == ["a", "s", "y"]
    assert peak_of(text, n=400)[2] == ["a", "b", "y"]


def test_tensors_of_unknown_size_are_named() -> None:
    shapes = infer(
        Model.from_proto(
            onnx.parser.parse_model(f"{HEAD} g (float[4] x) => (y) {{ a = NonZero (x) y = Cast <to = 1> (a) }}")
        )
    )
    assert [value.name for value in PeakMemory(shapes).at({}).unknown.values()] == ["a"]


def test_nodes_run_in_the_order_of_onnxruntime() -> None:
    text = (
        """g (float[4] x) => (y, z) { a = Erf (x) b = Exp (x) c = Add (b, a) d = Log (x) y = Add (d, c) z = Abs (x) }"""
    )
    scope = Model.from_proto(onnx.parser.parse_model(f"{HEAD} {text}")).graph
    assert [node.op_type for node in runtime_order(scope)] == ["Abs", "Log", "Exp", "Erf", "Add", "Add"]


def over_time(text: str, **sizes: int) -> list[tuple[str, int]]:
    shapes = infer(Model.from_proto(onnx.parser.parse_model(f"{HEAD} {text}")))
    return [(node.op_type, size) for node, size in PeakMemory(shapes).at(sizes).moments]


def test_memory_over_time_has_a_branch_in_the_place_of_its_if() -> None:
    inside = [("Erf", 2 * K), ("Erf", 3 * K), ("Add", 4 * K)]  # beside `a`, which is there all the time
    assert over_time(BRANCHES) == [("Transpose", K), *inside, ("If", 2 * K), ("Add", 3 * K)]


def test_memory_over_time_has_a_function_at_each_call() -> None:
    assert over_time(
        """g (float[16, 16] x) => (float[16, 16] y) { a = f.one (x) y = f.one (a) }
        <domain: "f", opset_import: ["" : 21]> one (p) => (r) { r = Erf (p) }"""
    ) == [("Erf", K), ("one", K), ("Erf", 2 * K), ("one", 2 * K)]


def test_memory_over_time_has_a_loop_once() -> None:
    assert over_time(
        """g (float[16, 16] x) => (float[16, 16] y) <int64 t = {3}> {
        y = Loop (t, , x) <body = inner (int64 i, bool b, float[16, 16] s) => (bool c, float[16, 16] n)
            { n = Erf (s) c = Identity (b) }> }"""
    ) == [("Identity", 2 * K + 1), ("Erf", 3 * K + 1)]


def test_too_many_moments_are_those_of_the_node_around_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak_memory, "MAX_MOMENTS", 2)
    assert over_time(BRANCHES) == [("Transpose", K), ("If", 4 * K), ("If", 2 * K), ("Add", 3 * K)]
