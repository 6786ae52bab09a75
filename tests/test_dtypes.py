from __future__ import annotations

import onnx
import onnx.helper
import pytest
from onnx import TensorProto

from graphkit.dtypes import BITS, FLOATS, INTEGERS, UNSIGNED, dtype_name


def test_every_dtype_of_onnx_has_a_size() -> None:  # fails when onnx adds one: then BITS wants it too
    dtypes = set(onnx.TensorProto.DataType.values())
    assert dtypes - set(BITS) == {onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING}


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_numbers_are_as_large_as_those_of_numpy_and_of_the_same_kind(dtype: int) -> None:
    found = onnx.helper.tensor_dtype_to_np_dtype(dtype)
    assert found.itemsize * 8 == BITS[dtype]
    assert FLOATS.get(dtype, found) == found
    assert found.kind in ("f" if dtype in FLOATS else "u" if dtype in UNSIGNED else "ib")


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (TensorProto.FLOAT, "float32"),
        (TensorProto.DOUBLE, "float64"),
        (TensorProto.FLOAT16, "float16"),
        (TensorProto.BFLOAT16, "bfloat16"),
        (TensorProto.INT64, "int64"),
        (TensorProto.BOOL, "bool"),
        (TensorProto.STRING, "string"),
        (TensorProto.FLOAT8E4M3FN, "float8e4m3fn"),
        (TensorProto.UNDEFINED, "undefined"),
        (999, "dtype 999"),
    ],
)
def test_dtype_name(dtype: int, name: str) -> None:
    assert dtype_name(dtype) == name
