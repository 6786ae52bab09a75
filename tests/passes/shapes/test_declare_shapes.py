"""What is proven of shapes is declared, and nothing else."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser, printer
from sessions import run

from graphkit.model import Model
from graphkit.passes.shapes.declare_shapes import DeclareShapes

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'


def model_of(text: str) -> Model:
    return Model.from_proto(parser.parse_model(HEADER + text))


def declared(text: str) -> str:
    """Return the text of a graph with its shapes declared, which is a valid model."""
    made = DeclareShapes().run(model_of(text)).model
    onnx.checker.check_model(made.proto, full_check=True)
    assert DeclareShapes().run(made).model is made
    return " ".join(printer.to_text(made.proto.graph).split())


def test_dims_are_expressions_of_the_symbols_of_the_inputs() -> None:
    found = declared(
        """g (float[N, L] x, float[N, M] z) => (float[N, K] y) {
            both = Concat <axis = 1> (x, z)
            s = Shape (both)
            y = Neg (both)
        }"""
    )
    assert '=> (float[N,"L + M"] y) <float[N,"L + M"] both, int64[2] s> {' in found


def test_an_output_keeps_a_name_that_dims_of_several_inputs_have() -> None:
    outputs = "float[B, 3] v, float[B, 3] y, float[K, 3] w"
    found = declared(f"g (float[B, 3] x, float[B, 3] z) => ({outputs}) {{ v = Neg (x) y = Neg (z) w = Abs (z) }}")
    assert '=> (float[B,3] v, float[B,3] y, float["z.0",3] w)' in found  # z may have others than x


def test_a_dim_that_depends_on_data_is_left_open_and_so_is_one_without_a_name() -> None:
    found = declared(
        """g (float[N, ?] x) => (float[K] y) <int64[1] all = {-1}> {
            where = NonZero (x)
            h = Neg (x)
            y = Reshape (h, all)
        }"""
    )
    assert "int64[2,?] where" in found
    assert "float[N,?] h" in found


def test_what_is_declared_wrongly_is_corrected_and_what_is_unknown_stays() -> None:
    text = """g (float[N, 4] x, int64[K] to) => (float y) <float[4, 4] h, float[7, M] r> {
        h = Neg (x)
        r = Reshape (h, to)
        y = ReduceMean <keepdims = 0> (r)
    }"""
    made = DeclareShapes().run(model_of(text)).model
    shapes = {info.name: info.type.tensor_type.shape.dim for info in made.proto.graph.value_info}
    dims = {name: [dim.dim_param or dim.dim_value for dim in shape] for name, shape in shapes.items()}
    assert dims == {"h": ["N", 4], "r": [7, "M"]}


def test_a_spelling_that_is_equal_stays() -> None:
    text = 'g (float[N, L] x) => (float[N, K] y) <float[N, "L + L"] h> { h = Concat <axis = 1> (x, x)  y = Neg (h) }'
    assert '<float[N,"L + L"] h>' in declared(text)


def test_bodies_are_declared_too() -> None:
    found = declared(
        """g (float[N] x, bool c) => (float[M] y) {
            y = If (c) <
                then_branch = t () => (a) { b = Neg (x)  a = Concat <axis = 0> (b, x) },
                else_branch = e () => (d) { d = Abs (x) }
            >
        }"""
    )
    assert '=> (float["2*N"] a) <float[N] b>' in found
    assert "=> (float[N] d)" in found


def test_a_sequence_keeps_its_type() -> None:
    text = """g (float[N] x) => (float[N] y) <int64 zero = {0}, seq(float[N]) s> {
        s = SequenceConstruct (x, x)
        y = SequenceAt (s, zero)
    }"""
    assert "seq(float[N]) s>" in declared(text)


def test_a_tensor_without_elements_runs_as_declared() -> None:
    text = """g (float[N, 4] x) => (float[N, 0] y) <int64[1] zero = {0}, int64[1] one = {1}> {
        h = Slice (x, zero, zero, one)
        y = Neg (h)
    }"""
    made = DeclareShapes().run(model_of(text)).model
    assert made.proto.graph.value_info[0].type.tensor_type.shape.dim[1].dim_value == 0
    (found,) = run(made.proto, {"x": np.ones((2, 4), np.float32)})
    assert found.shape == (2, 0)


def test_a_dim_that_no_declaration_can_say_is_left_open() -> None:
    text = f"g (float[{1 << 62}, 4] x) => (float[K] y) <int64[1] all = {{-1}}> {{ h = Reshape (x, all)  y = Neg (h) }}"
    made = DeclareShapes().run(model_of(text)).model
    (dim,) = made.proto.graph.value_info[0].type.tensor_type.shape.dim
    assert not dim.ListFields()


def test_a_model_that_cannot_run_stays_as_it_is() -> None:
    model = model_of("g (float[3] x, float[4] z) => (float[5] y) { y = Add (x, z) }")
    outcome = DeclareShapes().run(model)
    assert outcome.model is model
    assert outcome.declined[0].reason.startswith("no shape is declared, because the shapes of the model contradict")


@pytest.mark.parametrize("size", [1, 3])
def test_a_declared_model_gives_what_it_gave(size: int) -> None:
    text = "g (float[N, 4] x) => (float[N, 4] y) { h = Exp (x)  i = Transpose <perm = [1, 0]> (h)  y = Transpose (i) }"
    model = model_of(text)
    feed = {"x": np.ones((size, 4), np.float32)}
    made = DeclareShapes().run(model).model
    np.testing.assert_array_equal(run(model.proto, feed)[0], run(made.proto, feed)[0])
