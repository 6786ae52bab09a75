from __future__ import annotations

import onnx
import onnx.parser
import pytest
from onnx import TensorProto, TypeProto, helper

from graphkit.graph.declared_types import Dim, TensorType, declared_type, shape_text, type_text
from graphkit.graph.view import Scope, build_scopes

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def main(graph: str) -> Scope:
    return build_scopes(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}'))[0]


@pytest.mark.parametrize("dtype", [1, 10, 11, 16, TensorProto.FLOAT8E5M2])
def test_floats(dtype: int) -> None:
    assert TensorType(dtype, ()).is_float


@pytest.mark.parametrize("dtype", [2, 3, 6, 7, 8, 9, TensorProto.INT4, 999])
def test_other_than_floats(dtype: int) -> None:
    assert not TensorType(dtype, ()).is_float


def test_a_declared_type_has_numbers_symbols_and_unknowns() -> None:
    value = main("g (float[B,3,?] x) => () {}").inputs[0]
    assert declared_type(value) == TensorType(FLOAT, ("B", 3, None))


def test_a_scalar_has_no_dims() -> None:
    assert declared_type(main("g (int64 x) => () {}").inputs[0]) == TensorType(INT64, ())


def test_a_rank_may_be_unknown() -> None:
    assert declared_type(main("g (int64[] x) => () {}").inputs[0]) == TensorType(INT64, None)


def test_a_negative_dim_is_unknown() -> None:
    info = helper.make_tensor_value_info("x", FLOAT, [-1, 2])
    scope = build_scopes(helper.make_model(helper.make_graph([], "g", [info], [])))[0]
    assert declared_type(scope.inputs[0]) == TensorType(FLOAT, (None, 2))


def test_a_value_without_a_declaration_has_no_type() -> None:
    assert declared_type(main("g (float[N] x) => () { y = Relu(x) }").values["y"]) is None


def test_an_intermediate_value_may_be_declared() -> None:
    scope = main("g (float[N] x) => (float[N] y) <float[N] a> { a = Relu(x)  y = Relu(a) }")
    assert declared_type(scope.values["a"]) == TensorType(FLOAT, ("N",))


def test_an_initializer_declares_itself() -> None:
    scope = main("g () => () <float[2] w = {1, 2}> { y = Relu(w) }")
    assert declared_type(scope.values["w"]) == TensorType(FLOAT, (2,))


def test_a_constant_is_what_it_is_whatever_is_declared() -> None:
    scope = main("g () => () <float[2] w = {1, 2}> { y = Relu(w)  c = Constant <value = int64[2] {1, 2}> () }")
    scope.infos |= {name: helper.make_tensor_value_info(name, INT64, [7]) for name in ("w", "c")}
    assert declared_type(scope.values["w"]) == TensorType(FLOAT, (2,))
    assert declared_type(scope.values["c"]) == TensorType(INT64, (2,))


def test_a_constant_node_declares_its_output() -> None:
    scope = main("g () => () { y = Constant <value = int64[2] {1, 2}> () }")
    assert declared_type(scope.values["y"]) == TensorType(INT64, (2,))


def test_a_sequence_is_not_a_tensor() -> None:
    assert declared_type(main("g (seq(float[N]) x) => () {}").inputs[0]) is None


@pytest.mark.parametrize(
    ("dims", "text"), [(None, "?"), ((), "[]"), ((2,), "[2]"), (("batch", None, 8), "[batch, ?, 8]")]
)
def test_shape_text(dims: tuple[Dim, ...] | None, text: str) -> None:
    assert shape_text(dims) == text


TENSOR = helper.make_tensor_type_proto(FLOAT, ["N", 2])


@pytest.mark.parametrize(
    ("type_proto", "text"),
    [
        (TENSOR, ("float32", "[N, 2]")),
        (helper.make_tensor_type_proto(FLOAT, None), ("float32", "?")),
        (helper.make_sequence_type_proto(TENSOR), ("seq(float32)", "[N, 2]")),
        (helper.make_optional_type_proto(TENSOR), ("optional(float32)", "[N, 2]")),
        (
            helper.make_optional_type_proto(helper.make_sequence_type_proto(TENSOR)),
            ("optional(seq(float32))", "[N, 2]"),
        ),
        (helper.make_map_type_proto(INT64, TENSOR), ("map(int64, float32)", "[N, 2]")),
        (helper.make_sparse_tensor_type_proto(FLOAT, [3]), ("sparse(float32)", "[3]")),
        (TypeProto(), ("?", "?")),
    ],
)
def test_type_text(type_proto: onnx.TypeProto, text: tuple[str, str]) -> None:
    assert type_text(type_proto) == text
