from __future__ import annotations

import numpy as np
import onnx
import pytest
from rewriting import SIZES, check, constants, feeds_of, lines, model_of
from sessions import run

from graphkit.model import Model
from graphkit.passes.shapes.rematerialize_shapes import RematerializeShapes

PASS = RematerializeShapes()
INITS = "int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64 first = {0}, int64 second = {1}"


def graph(nodes: str, inputs: str = "float[N, L] x, float[M] w", output: str = "y", opset: int = 17) -> Model:
    return model_of(f"g ({inputs}) => ({output}) <{INITS}> {{ {nodes} }}", opset)


def plain(model: Model) -> list[str]:
    """Return the nodes without their names and quotation marks."""
    return [(line.partition("] ")[2] if line.startswith("[") else line).replace('"', "") for line in lines(model)]


TWO = """a = Neg (x) s = Shape (a) n = Gather (s, zero) b = Abs (a) t = Shape (b) l = Gather (t, one)"""


def test_each_symbol_is_read_once_from_an_input() -> None:
    outcome = check(
        PASS,
        graph(f"{TWO} to = Concat <axis = 0> (n, l) e = Expand (q, to) y = Add (e, b)", "float[N, L] x, float[1] q"),
    )
    assert plain(outcome.model)[:3] == [
        "dims/N = Shape <end: int = 1, start: int = 0> (x)",
        "dims/L = Shape <end: int = 2, start: int = 1> (x)",
        "dims/N,L = Concat <axis: int = 0> (dims/N, dims/L)",
    ]
    assert "e = Expand (q, dims/N,L)" in plain(outcome.model)
    assert outcome.changes == (
        "5 nodes for computing shapes removed",
        "3 nodes added to compute shapes from the graph inputs",
    )


def test_equal_shapes_of_several_nodes_are_computed_once() -> None:
    nodes = """s = Shape (x) n = Gather (s, zero) p = Mul (n, two) a = Expand (w, p) t = Shape (x) m = Gather (t, zero)
        q = Mul (m, two) b = Expand (w, q) y = Add (a, b)"""
    outcome = check(PASS, graph(nodes, "float[N, L] x, float[1] w"))
    assert plain(outcome.model) == [
        "dims/N = Shape <end: int = 1, start: int = 0> (x)",
        "dims/2*N = Mul (dims/N, dims/2)",
        "a = Expand (w, dims/2*N)",
        "b = Expand (w, dims/2*N)",
        "y = Add (a, b)",
    ]


def test_a_reshape_is_told_only_what_it_cannot_copy_or_infer() -> None:
    nodes = """s = Shape (x) n = Gather (s, zero) l = Gather (s, one) h = Div (l, two)
        to = Concat <axis = 0> (h, n, two) y = Reshape (x, to)"""
    outcome = check(PASS, graph(nodes, 'float[N, "2*L"] x'))
    assert plain(outcome.model)[-1] in ("y = Reshape (x, dims/-1,N,2)", "y = Reshape (x, dims/L,-1,2)")


def test_the_shape_of_a_scalar_stays() -> None:
    nodes = "m = ReduceMax <keepdims = 0> (x) s = Shape (m) t = Identity (s) f = Unsqueeze (m, zero) y = Reshape (f, t)"
    assert not check(PASS, graph(nodes)).changes


def test_an_expand_is_told_only_the_dims_that_grow() -> None:
    nodes = (
        "s = Shape (z) n = Gather (s, zero) l = Gather (s, one) to "
        "= Concat <axis = 0> (n, l) e = Expand (x, to) y = Neg (e)"
    )
    outcome = check(PASS, graph(nodes, "float[N, 1] x, float[N, L] z"))
    assert plain(outcome.model) == [
        "dims/L = Shape <end: int = 2, start: int = 1> (z)",
        "dims/1,L = Concat <axis: int = 0> (dims/1, dims/L)",
        "e = Expand (x, dims/1,L)",
        "y = Neg (e)",
    ]


def test_an_expand_whose_axes_depend_on_sizes_keeps_its_target() -> None:
    """A dim of 0 does not grow to the larger of both."""
    text = f"{TWO} to = Concat <axis = 0> (n, l) e = Expand (w, to) y = Neg (e)"
    outcome = PASS.run(graph(text, "float[N, L] x, float[M, L] w"))
    assert "e = Expand (w, dims/N,1)" in plain(outcome.model)
    feeds = {"x": np.zeros((0, 3), np.float32), "w": np.zeros((1, 3), np.float32)}
    assert run(outcome.model.proto, feeds)[0].shape == (0, 3)


def test_a_range_takes_a_scalar() -> None:
    nodes = """s = Shape (x) l = Gather (s, second) d = Add (l, l) e = Sub (d, second) a = Range (first, e, second)
        t = Shape (x) m = Gather (t, second) f = Add (m, m) g = Sub (f, second) b = Range (first, g, second)
        y = Add (a, b)"""
    outcome = check(PASS, graph(nodes))
    assert plain(outcome.model)[-4:] == [
        "dims/2*L - 1_scalar = Squeeze (dims/2*L - 1)",
        "a = Range (first, dims/2*L - 1_scalar, second)",
        "b = Range (first, dims/2*L - 1_scalar, second)",
        "y = Add (a, b)",
    ]


def test_int32_is_cast() -> None:
    nodes = """s = Shape (x) l = Gather (s, one) c = Cast <to = 6> (l) d = Mul (c, c) a = Mul (k, d)
        t = Shape (x) m = Gather (t, one) e = Cast <to = 6> (m) f = Mul (e, e) b = Mul (k, f) y = Add (a, b)"""
    outcome = check(PASS, graph(nodes, "float[N, L] x, int32[1] k"))
    assert plain(outcome.model)[-4:] == [
        "dims/L*L_cast = Cast <to: int = 6> (dims/L*L)",
        "a = Mul (k, dims/L*L_cast)",
        "b = Mul (k, dims/L*L_cast)",
        "y = Add (a, b)",
    ]


def test_the_end_of_an_int32_slice_stays_the_end() -> None:
    """The largest int64 that stands for the end is -1 as int32."""
    nodes = """s = Shape (w) m = Gather (s, zero) q = Add (m, m) c = Cast <to = 6> (q) e = Concat <axis = 0> (big, c)
        v = Slice (x, start, e) y = Neg (v)"""
    model = model_of(
        f"g (float[N, L] x, float[M] w) => (y) <{INITS}, int32[1] big = "
        f"{{2147483647}}, int32[2] start = {{0, 0}}> {{ {nodes} }}"
    )
    outcome = check(PASS, model)
    assert outcome.changes
    assert constants(outcome.model)["dims/2147483647"] == [2147483647]


def test_bodies_read_what_the_main_graph_computes() -> None:
    model = model_of(f"""
        g (float[N, L] x, float[1] w, bool c) => (float[A, B] y) <{INITS}> {{
            y = If (c) <
                then_branch = t () => (float[A, B] p) {{
                    s = Shape (x) n = Gather (s, zero) d = Mul (n, two) f = Concat <axis = 0> (d, n)
                    p = Expand (w, f) }},
                else_branch = f () => (float[A, B] q) {{
                    s = Shape (x) n = Gather (s, zero) d = Mul (n, two) f = Concat <axis = 0> (n, d)
                    q = Expand (w, f) }} >
        }}""")
    feeds = [{**feeds_of(model, size), "c": np.array(flag)} for size in SIZES for flag in (True, False)]
    outcome = check(PASS, model, feeds=feeds)
    assert [line.split(" = ")[0] for line in plain(outcome.model)] == [
        "dims/N",
        "dims/2*N",
        "dims/2*N,N",
        "dims/N,2*N",
        "y",
    ]
    assert "Shape" not in lines(outcome.model)[-1]


def test_an_empty_past() -> None:
    nodes = """s = Shape (x) n = Gather (s, zero) t = Shape (p) l = Gather (t, one) d = Add (l, two)
        to = Concat <axis = 0> (n, d) y = Expand (w, to)"""
    model = graph(nodes, "float[N, L] x, float[N, past] p, float[1] w")
    sizes = [{"N": 2, "L": 3, "past": past} for past in (0, 1, 5)]
    assert "dims/past + 2 = Add (dims/past, dims/2)" in plain(check(PASS, model, sizes).model)


def test_a_dim_that_may_be_empty_is_not_written_as_copy() -> None:
    """0 in a shape copies the input's dim, which is not empty."""
    nodes = """s = Shape (p) n = Gather (s, zero) l = Gather (s, one) m = Mul (n, two)
        to = Concat <axis = 0> (l, m, two) r = Reshape <allowzero = 1> (p, to) y = Neg (r)"""
    model = graph(nodes, "float[N, past, 4] p")
    check(PASS, model, [{"N": 2, "past": past} for past in (0, 1, 3)])


STAYS = {
    "no Shape": graph("a = Neg (x) y = Abs (a)"),
    "as many nodes": graph("s = Shape <start = 1> (x) y = Expand (w, s)", "float[N, L] x, float[1] w"),
    "a shape that is an output": graph(f"{TWO} to = Concat <axis = 0> (n, l) y = Mul (to, to)"),
    "a dim that is data": graph(
        "i = NonZero (x) s = Shape (i) n = Gather (s, one) t = Mul (n, n) y = Expand (w, t)",
        "float[N, L] x, float[1] w",
    ),
    "a dim of no input": graph(
        "u = Unique (w) s = Shape (u) t = Mul (s, s) v = Mul (t, s) y = Expand (q, v)",
        "float[N, L] x, float[M] w, float[1] q",
    ),
}


@pytest.mark.parametrize("model", STAYS.values(), ids=STAYS)
def test_it_stays(model: Model) -> None:
    assert not PASS.run(model).changes


def test_it_changes_nothing_twice() -> None:
    first = PASS.run(
        graph(f"{TWO} to = Concat <axis = 0> (n, l) e = Expand (q, to) y = Add (e, b)", "float[N, L] x, float[1] q")
    )
    again = PASS.run(first.model)
    assert first.changes
    assert (again.changes, again.model) == ((), first.model)


def test_functions_are_left() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[N, L] x, float[1] w) => (float[A] y) { y = local.f (x, w) }
        <domain: "local", opset_import: ["" : 17]>
        f (v, w) => (r) { s = Shape <start = 1> (v) t = Mul (s, s) u = Add (t, s) r = Expand (w, u) }
    """)
    assert not PASS.run(Model.from_proto(proto)).changes


@pytest.mark.parametrize("opset", [9, 11, 13, 15, 18, 21])
def test_opsets(opset: int) -> None:
    nodes = """s = Shape (x) n = Gather (s, zero) l = Gather (s, one) p = Mul (n, l) q = Add (p, two)
        t = Shape (x) m = Gather (t, one) r = Add (m, q) y = Expand (w, r)"""
    outcome = check(PASS, graph(nodes, "float[N, L] x, float[1] w", opset=opset))
    assert "dims/L*N + L + 2" in plain(outcome.model)[-2]
