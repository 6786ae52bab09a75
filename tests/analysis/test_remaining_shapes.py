from __future__ import annotations

import onnx.parser

from graphkit.analysis.shape_ops import Feeds, RemainingShape, remaining_shapes
from graphkit.model import Model

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
INITS = "int64 zero = {0}, int64 one = {1}, int64[1] axis = {0}, int64[1] heads = {4}"


def model_of(text: str) -> Model:
    return Model.from_proto(onnx.parser.parse_model(HEADER + text))


def test_what_each_shape_feeds_through_what_computes_with_it() -> None:
    model = model_of(f"""
        g (float[N, L] x, float[1] w) => (float[A] y, float[B] z) <{INITS}> {{
            [size] s = Shape (x)
            n = Gather (s, zero)
            u = Unsqueeze (n, axis)
            m = Mul (u, heads)
            [grow] y = Expand (w, m)
            [fill] z = ConstantOfShape (u)
        }}""")
    assert remaining_shapes(model).shapes == (
        RemainingShape("size", "x", (Feeds("fill", "ConstantOfShape", "shape"), Feeds("grow", "Expand", "shape"))),
    )


def test_data_that_is_computed_from_a_shape_is_what_it_feeds() -> None:
    model = model_of("g (float[N] x) => (float[1] y) { s = Size (x) f = Cast <to = 1> (s) [all] y = Div (x, f) }")
    (found,) = remaining_shapes(model).shapes
    assert (found.node, found.feeds) == ("Size#0", (Feeds("Cast#1", "Cast", "input 0"),))


def test_an_output_and_nothing() -> None:
    model = model_of("g (float[N] x) => (int64[1] s) { s = Shape (x) t = Shape (x) }")
    assert [shape.feeds for shape in remaining_shapes(model).shapes] == [(Feeds("s", "output", "output"),), ()]


def test_what_a_branch_gives_is_followed_and_what_a_loop_gives_is_not() -> None:
    model = model_of(f"""
        g (float[N] x, float[1] w, bool c) => (float[A] y, int64[B] z) <{INITS}, int64[1] two = {{2}}> {{
            i = If (c) < then_branch = t () => (int64[1] p) {{ p = Shape (x) }},
                         else_branch = f () => (int64[1] q) {{ q = Identity (two) }} >
            [grow] y = Expand (w, i)
            [times] z0, z = Loop (one, c, two) <
                body = b (int64 k, bool go, int64[1] a) => (bool on, int64[1] r, int64[1] s)
                {{ on = Identity (go) r = Identity (a) s = Shape (x) }} >
        }}""")
    assert [shape.feeds for shape in remaining_shapes(model).shapes] == [
        (Feeds("grow", "Expand", "shape"),),
        (Feeds("times", "Loop", "output"),),
    ]


TEXT = """\
Remaining shapes

Node  Reads shape of  Feeds
────────────────────────────
size  x                   4
  feeds Expand a (shape), Expand b (shape), Expand c (shape)

"""


def test_the_text() -> None:
    model = model_of("""
        g (float[N] x, float[1] w) => (float[A] y, float[A] z, float[A] u, float[A] v) {
            [size] s = Shape (x)
            [a] y = Expand (w, s)
            [b] z = Expand (w, s)
            [c] u = Expand (w, s)
            [d] v = Expand (w, s)
        }""")
    assert remaining_shapes(model).to_text() == TEXT
    empty = model_of("g (float[N] x) => (float[N] y) { y = Neg (x) }")
    assert "No node reads the shape of a tensor." in remaining_shapes(empty).to_text()


def test_many_are_cut_short_in_the_text_and_bodies_can_be_left_out() -> None:
    nodes = "".join(f"s{number} = Shape (x) " for number in range(20))
    model = Model.from_proto(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x, bool c) => (int64[1] y) { '
            f"{nodes} y = If (c) <then_branch = t () => (int64[1] a) {{ a = Shape (x) }}, "
            "else_branch = e () => (int64[1] b) { b = Identity (s0) }> }"
        )
    )
    found = remaining_shapes(model)
    assert len(found.shapes) == 21
    assert "... and 9 more in the JSON report." in found.to_text()
    (body,) = (scope.path for scope in model.graph.walk() if scope.path.endswith("then_branch"))
    assert len(remaining_shapes(model, without={body}).shapes) == 20
