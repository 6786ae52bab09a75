"""The values of tensors, of each dtype and in each field that may have them, as onnxruntime reads them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper

from graphkit.dtypes import BITS, inline_array
from graphkit.errors import ModelError
from graphkit.graph.declared_types import tensor_text
from graphkit.model import Model
from graphkit.runtime.session import Session

# Numbers that fit, and numbers that do not: of each dtype, some of either.
FIELDS = {
    "int32_data": (0, 1, 2, -1, 127, 128, 255, 256, 257, -256, 65535, 65536, 70000, 2**31 - 1, -(2**31)),
    "int64_data": (0, 1, -1, 256, 2**40, 2**63 - 1, -(2**63)),
    "uint64_data": (0, 1, 255, 256, 2**32, 2**33 + 5, 2**64 - 1),
    "float_data": (0.0, -0.0, 1.5, np.inf, np.nan, 3e38),
    "double_data": (0.0, -0.0, 1.5, -np.inf, np.nan, 1e300),
}
# What onnxruntime shows of a dtype that numpy does not have: another one, which holds all its numbers.
WIDE = {
    **dict.fromkeys((TensorProto.BFLOAT16, 17, 18, 19, 20, 24), TensorProto.FLOAT),
    **dict.fromkeys((21, 22, 25, 26), TensorProto.INT32),
}
DTYPES = sorted(
    {*BITS} & {*TensorProto.DataType.values()} - {TensorProto.COMPLEX64, TensorProto.COMPLEX128, 23, 27, 28}
)


def of_initializer(tensor: TensorProto) -> ModelProto:
    node = helper.make_node("Identity", ["c"], ["y"])
    return whole(tensor, [node], named(tensor))


def of_constant(tensor: TensorProto) -> ModelProto:
    nodes = helper.make_node("Constant", [], ["c"], value=tensor), helper.make_node("Identity", ["c"], ["y"])
    return whole(tensor, nodes)


def of_shape(tensor: TensorProto) -> ModelProto:
    """Return a model in which a ConstantOfShape reads a tensor, which it does by a reader of its own."""
    shape = helper.make_tensor("s", TensorProto.INT64, [1], [1])
    return whole(tensor, [helper.make_node("ConstantOfShape", ["s"], ["y"], value=tensor)], shape)


READERS = (of_initializer, of_constant, of_shape)


def named(tensor: TensorProto) -> TensorProto:
    copy = TensorProto(name="c")
    copy.MergeFrom(tensor)
    return copy


def whole(tensor: TensorProto, nodes: object, *initializers: TensorProto) -> ModelProto:
    found: list[NodeProto] = [*nodes]  # type: ignore[call-overload]
    if tensor.data_type in WIDE:
        found[-1].output[0] = "narrow"
        found.append(helper.make_node("Cast", ["narrow"], ["y"], to=WIDE[tensor.data_type]))
    graph = helper.make_graph(found, "g", [], [helper.make_empty_tensor_value_info("y")], initializers)
    version = 25 if tensor.data_type > TensorProto.INT4 else 21
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", version)], ir_version=13 if version > 21 else 10
    )


def read_by_onnxruntime(reader: Callable[[TensorProto], ModelProto], tensor: TensorProto) -> np.ndarray | None:
    """Return the values as onnxruntime reads them, None where it does not."""
    try:
        return Session(Model.from_proto(reader(tensor))).run({})["y"]
    except ModelError:
        return None


def is_same(array: np.ndarray | None, expected: np.ndarray) -> bool:
    return array is not None and np.array_equal(
        array.astype(expected.dtype), expected, equal_nan=expected.dtype.kind == "f"
    )


@pytest.mark.cases(22)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("dtype", DTYPES, ids=TensorProto.DataType.Name)
def test_each_field_is_read_as_onnxruntime_reads_it(dtype: int, reader: Callable[[TensorProto], ModelProto]) -> None:
    per_byte = 8 // BITS[dtype] if BITS[dtype] in (2, 4) else 1
    zero = TensorProto(data_type=dtype, dims=[1], raw_data=bytes(max(BITS[dtype] // 8, 1)))
    if read_by_onnxruntime(reader, zero) is None:
        pytest.skip("onnxruntime has no such tensors there")
    compared = 0
    for field, numbers in FIELDS.items():
        for number in numbers:
            tensor = TensorProto(data_type=dtype, dims=[1 if reader is of_shape else per_byte])
            getattr(tensor, field).append(number)
            expected, array = read_by_onnxruntime(reader, tensor), inline_array(tensor)
            assert (array is None) if expected is None else is_same(array, expected), (field, number)
            compared += expected is not None
    for byte in range(256):
        raw = TensorProto(data_type=dtype, dims=[per_byte], raw_data=bytes([byte]) * max(BITS[dtype] // 8, 1))
        if reader is not of_shape and byte % 17 in (0, 2, 16):
            expected = read_by_onnxruntime(reader, raw)
            assert expected is not None
            assert is_same(inline_array(raw), expected), byte
    assert compared > 1


def test_a_boolean_of_256_is_true_everywhere() -> None:
    tensor = TensorProto(data_type=TensorProto.BOOL, dims=[1], int32_data=[256])
    model = Model.from_proto(of_initializer(tensor))
    assert bytes(model.payload(tensor)) == b"\1"
    assert model.array(tensor).tolist() == [True]
    assert tensor_text(tensor) == "bool[1] = [True]"


@pytest.mark.parametrize("number", [-1, 65536])
def test_a_float16_that_onnxruntime_refuses_is_refused(number: int) -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT16, dims=[1], int32_data=[number])
    with pytest.raises(ModelError, match="tensor 'w': a value in its int32_data is no float16"):
        Model.from_proto(of_initializer(tensor)).array(tensor)
