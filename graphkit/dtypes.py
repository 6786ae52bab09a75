"""Dtypes of ONNX tensors: sizes, kinds and names, by TensorProto.DataType."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import TensorProto

__all__ = ["BITS", "FLOATS", "HALVES", "INT32_MAX", "INT64_MAX", "INTEGERS", "dtype_name", "integer_range"]

# Bits of one element. STRING and dtypes newer than this table have no fixed size.
BITS: Mapping[int, int] = {
    **dict.fromkeys((TensorProto.UINT8, TensorProto.INT8, TensorProto.BOOL), 8),
    **dict.fromkeys((TensorProto.UINT16, TensorProto.INT16, TensorProto.FLOAT16, TensorProto.BFLOAT16), 16),
    **dict.fromkeys((TensorProto.UINT32, TensorProto.INT32, TensorProto.FLOAT), 32),
    **dict.fromkeys((TensorProto.UINT64, TensorProto.INT64, TensorProto.DOUBLE, TensorProto.COMPLEX64), 64),
    TensorProto.COMPLEX128: 128,
    **dict.fromkeys((17, 18, 19, 20, 24), 8),  # FLOAT8E4M3FN, E4M3FNUZ, E5M2, E5M2FNUZ, E8M0
    **dict.fromkeys((21, 22, 23), 4),  # UINT4, INT4, FLOAT4E2M1
    **dict.fromkeys((25, 26), 2),  # UINT2, INT2
    **dict.fromkeys((27, 28), 6),  # FLOAT6E2M3, FLOAT6E3M2
}
UNSIGNED = {TensorProto.UINT64, TensorProto.UINT32, TensorProto.UINT16, TensorProto.UINT8}
# Dtypes whose elements are whole numbers. A bool is 0 or 1.
INTEGERS: set[int] = {TensorProto.INT64, TensorProto.INT32, TensorProto.INT16, TensorProto.INT8, TensorProto.BOOL}
INTEGERS |= UNSIGNED
# Floating-point dtypes that numpy has too.
FLOATS: Mapping[int, np.dtype[Any]] = {
    TensorProto.FLOAT: np.dtype("f4"),
    TensorProto.DOUBLE: np.dtype("f8"),
    TensorProto.FLOAT16: np.dtype("f2"),
}
HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
INT32_MAX, INT64_MAX = (1 << 31) - 1, (1 << 63) - 1
NAMES = {"float": "float32", "double": "float64"}


def integer_range(dtype: int) -> tuple[int, int]:
    """Return the least and the largest element that a tensor of an integer dtype can have."""
    if dtype == TensorProto.BOOL:
        return 0, 1
    bits = BITS[dtype]
    return (0, (1 << bits) - 1) if dtype in UNSIGNED else (-(1 << bits - 1), (1 << bits - 1) - 1)


def dtype_name(dtype: int) -> str:
    """Return the usual name of a dtype: `float32`, `int64`, `bool`, `float8e4m3fn`."""
    if dtype not in TensorProto.DataType.values():
        return f"dtype {dtype}"
    name = TensorProto.DataType.Name(dtype).lower()
    return NAMES.get(name, name)
