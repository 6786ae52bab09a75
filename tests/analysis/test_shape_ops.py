from __future__ import annotations

from collections.abc import Callable
from functools import partial

import onnx.parser
import pytest
from builders import model_of

from graphkit.analysis.shape_ops import Change, ShapeOp, ValueRead, shape_ops
from graphkit.analysis.tensor_shapes import Feeds, RemainingShape, remaining_shapes
from graphkit.graph.operator_traits import SHAPE_OPERATORS
from graphkit.model import Model
from graphkit.runtime.external_tools import optimized

RealModel = Callable[[str], Model]
DETR = "detr-resnet-50/model_quantized"

CHAIN = """
g (float[N,4] x) => (float[M] y) <int64 first = {0}, int64[1] front = {0}, int64[1] rest = {-1}> {
    shape = Shape(x)
    size = Gather(shape, first)
    row = Unsqueeze(size, front)
    target = Concat <axis = 0> (row, rest)
    y = Reshape(x, target)
}
"""


model = partial(model_of, domains=("custom",))


def counted(graph: str, opset: int = 17) -> dict[str, ShapeOp]:
    return {op.op: op for op in shape_ops(model(graph, opset)).ops}


def test_nodes_that_compute_a_shape_are_on_shapes() -> None:
    assert {op.op: (op.on_shapes, op.on_data) for op in counted(CHAIN).values()} == {
        "Shape": (1, 0),
        "Gather": (1, 0),
        "Unsqueeze": (1, 0),
        "Concat": (1, 0),
        "Reshape": (0, 1),
    }


def test_the_same_operator_counts_on_shapes_and_on_data() -> None:
    found = counted(CHAIN.replace("y = Reshape(x, target)", "a = Reshape(x, target)  y = Unsqueeze(a, front)"))
    assert (found["Unsqueeze"].total, found["Unsqueeze"].on_shapes, found["Unsqueeze"].on_data) == (2, 1, 1)


def test_a_value_from_constants_alone_is_read_statically() -> None:
    assert counted(CHAIN)["Unsqueeze"].reads == (ValueRead("axes", 1, 0),)


def test_a_value_from_a_shape_is_read_dynamically() -> None:
    assert counted(CHAIN)["Reshape"].reads == (ValueRead("shape", 0, 1),)


def test_a_value_computed_from_constants_is_static() -> None:
    found = counted("g (float[N] x) => (y) <int64[1] s = {-1}> { t = Neg(s)  y = Reshape(x, t) }")
    assert found["Reshape"].reads == (ValueRead("shape", 1, 0),)


def test_a_default_of_an_input_is_dynamic() -> None:
    found = counted("g (float[N] x, int64[1] s = {-1}) => (y) { y = Reshape(x, s) }")
    assert found["Reshape"].reads == (ValueRead("shape", 0, 1),)


@pytest.mark.parametrize(("opset", "reads"), [(11, ()), (13, (ValueRead("axes", 1, 0),))])
def test_axes_are_read_from_opset_13_on(opset: int, reads: tuple[ValueRead, ...]) -> None:
    assert (
        counted("g (float[N] x) => (y) <int64[1] a = {0}> { y = Unsqueeze(x, a) }", opset)["Unsqueeze"].reads == reads
    )


def test_each_input_is_read_by_its_name() -> None:
    found = counted("g (float[N] x, int64[1] a) => (y) <int64[1] b = {2}> { y = Slice(x, a, b) }")
    assert found["Slice"].reads == (ValueRead("starts", 0, 1), ValueRead("ends", 1, 0))


def test_an_operator_of_another_domain_does_not_count() -> None:
    assert counted("g (float[N] x) => (y) { y = custom.Reshape(x, x) }") == {}


def test_bodies_and_functions_count() -> None:
    found = shape_ops(
        model(
            """g (bool c, float[N] x) => (y) {
                a = custom.f(x)
                y = If (c) <then_branch = t () => (int64[1] s) { s = Shape(a) },
                            else_branch = e () => (int64[1] t) { t = Shape(x) }>
            }
            <domain: "custom", opset_import: ["" : 17]> f (p) => (q) { s = Shape(p)  q = Identity(p) }"""
        )
    )
    assert (found.nodes, [(op.op, op.total) for op in found.ops]) == (6, [("Shape", 3)])


def test_a_model_without_shape_operators_says_so() -> None:
    assert shape_ops(model("g (float[N] x) => (y) { y = Relu(x) }")).to_text() == (
        "Shape operators\n\nNone: no operator of this model moves, makes or reads a shape.\n\n"
    )


def test_a_chain_as_text() -> None:
    assert shape_ops(model(CHAIN)).to_text() == (
        """\
Shape operators

5 of 5 nodes are shape operators; 4 of them compute shapes.

Op         Total  On shapes  On data  Reads value of  Static  Dynamic
──────────────────────────────────────────────────────────────────────
Shape          1          1        0
Gather         1          1        0
Unsqueeze      1          1        0  axes                 1        0
Concat         1          1        0
Reshape        1          0        1  shape                0        1

"""
    )


def test_a_comparison_as_text() -> None:
    before, after = model(CHAIN), model("g (float[N] x) => (y) <int64[1] s = {-1}> { y = Reshape(x, s) }")
    assert shape_ops(before, after).to_text() == (
        """\
Shape operators

5 of 5 nodes are shape operators; 4 of them compute shapes.

Op         Total  On shapes  On data  Reads value of  Static  Dynamic
──────────────────────────────────────────────────────────────────────
Shape          1          1        0
Gather         1          1        0
Unsqueeze      1          1        0  axes                 1        0
Concat         1          1        0
Reshape        1          0        1  shape                0        1

Before and after onnxoptimizer (default passes)
Op         Before  After  Change
─────────────────────────────────
Shape           1      0      -1
Gather          1      0      -1
Unsqueeze       1      0      -1
Concat          1      0      -1
Reshape         1      1       0
all nodes       5      1      -4

"""
    )


def test_an_operator_that_an_optimizer_adds_is_compared() -> None:
    before, after = model("g (float[N] x) => (y) { y = Relu(x) }"), model("g (float[N] x) => (y) { y = Flatten(x) }")
    assert shape_ops(before, after).changes == (Change("Flatten", 0, 1),)


@pytest.mark.slow
def test_detr_before_and_after_onnxoptimizer(real_model: RealModel) -> None:
    before = real_model(DETR)
    found = shape_ops(before, optimized(before))
    assert {*found.changes} >= {
        Change("Unsqueeze", 307, 97), Change("Concat", 181, 180), Change("Reshape", 179, 177), Change("Shape", 80, 39),
        Change("Gather", 72, 72), Change("Slice", 11, 11), Change("ConstantOfShape", 4, 4), Change("Expand", 3, 3),
        Change("Tile", 1, 1), Change("Resize", 1, 1),
    }  # fmt: skip
    assert (found.nodes, found.nodes_after) == (3211, 2159)
    assert (sum(op.total for op in found.ops), found.on_shapes) == (844, 637)
    assert next(op for op in found.ops if op.op == "Reshape").reads == (ValueRead("shape", 7, 172),)
    positions = [SHAPE_OPERATORS.index(op.op) for op in found.ops]
    assert positions == sorted(positions)  # the order of the report


def test_gemma_reads_axes_as_inputs(real_model: RealModel) -> None:
    found = {op.op: op for op in shape_ops(real_model("gemma-270m/model")).ops}
    assert found["Unsqueeze"] == ShapeOp("Unsqueeze", 580, 530, 50, (ValueRead("axes", 580, 0),))


def test_most_where_of_marian_are_shape_arithmetic(real_model: RealModel) -> None:
    found = {op.op: op for op in shape_ops(real_model("marian-tiny/decoder_model_merged")).ops}
    assert (found["Where"].on_shapes, found["Where"].on_data) == (12, 4)


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
