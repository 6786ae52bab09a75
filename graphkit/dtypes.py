"""Dtypes of ONNX tensors: sizes, kinds and names, by TensorProto.DataType; and the values that tensors hold."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import onnx.numpy_helper
from onnx import TensorProto

from graphkit.errors import ModelError

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
HELD = frozenset((*FLOATS, *INTEGERS, TensorProto.STRING))  # that onnxruntime gives to numpy and takes from it
INT32_MAX, INT64_MAX = (1 << 31) - 1, (1 << 63) - 1
NAMES = {"float": "float32", "double": "float64"}


def integer_range(dtype: int) -> tuple[int, int]:
    """Return the least and the largest element that a tensor of an integer dtype can have."""
    if dtype == TensorProto.BOOL:
        return 0, 1
    bits = BITS[dtype]
    return (0, (1 << bits) - 1) if dtype in UNSIGNED else (-(1 << bits - 1), (1 << bits - 1) - 1)


@lru_cache(maxsize=256)
def dtype_name(dtype: int) -> str:
    """Return the usual name of a dtype: `float32`, `int64`, `bool`, `float8e4m3fn`."""
    if dtype not in TensorProto.DataType.values():
        return f"dtype {dtype}"
    name = TensorProto.DataType.Name(dtype).lower()
    return NAMES.get(name, name)


# The values of a tensor, as onnxruntime reads them: from its bytes, or from the typed field that it has them in.
#
# Source: onnx/onnx.proto (TensorProto).

# Where a tensor without raw_data has its values; all other dtypes: int32_data. A complex number takes two values.
TYPED_FIELDS: Mapping[int, str] = {
    **dict.fromkeys((TensorProto.FLOAT, TensorProto.COMPLEX64), "float_data"),
    **dict.fromkeys((TensorProto.DOUBLE, TensorProto.COMPLEX128), "double_data"),
    **dict.fromkeys((TensorProto.UINT32, TensorProto.UINT64), "uint64_data"),
    TensorProto.INT64: "int64_data",
    TensorProto.STRING: "string_data",
}
VALUE_TYPES: Mapping[str, str] = {"float_data": "<f4", "double_data": "<f8", "int64_data": "<i8"}
PATTERNS = {TensorProto.FLOAT16, TensorProto.BFLOAT16, 17, 18, 19, 20, 24, 27, 28}  # whose entries are bits of floats
COMPLEX = (TensorProto.COMPLEX64, TensorProto.COMPLEX128)


def inline_array(tensor: TensorProto | None) -> np.ndarray | None:
    """Return the values of a tensor that lie in it, None where they lie in a file, or do not fit its dtype and dims."""
    if tensor is None or tensor.data_location == TensorProto.EXTERNAL:
        return None
    try:
        if tensor.data_type == TensorProto.STRING:
            return onnx.numpy_helper.to_array(tensor)
        return array_of_bytes(tensor, tensor.raw_data if tensor.HasField("raw_data") else typed_payload(tensor))
    except (KeyError, ModelError, TypeError, ValueError):  # an unknown dtype, no data, or dims that numpy cannot have
        return None


def array_of_bytes(tensor: TensorProto, payload: bytes | memoryview) -> np.ndarray:
    """Return the values that bytes have by the dtype and dims of a tensor, as onnxruntime reads them.

    A KeyError says that the dtype is unknown, a TypeError or ValueError that they do not fit.
    """
    plain = TensorProto(dims=tensor.dims, data_type=tensor.data_type, raw_data=bytes(payload))
    array = onnx.numpy_helper.to_array(plain)
    return array.view(np.uint8) != 0 if array.dtype == bool else array  # any byte but 0 is true


def typed_payload(tensor: TensorProto) -> bytes:
    """Return the bytes that `raw_data` would hold for a tensor that has its values in a typed field.

    Numbers that are out of range wrap around, and as a boolean any number but 0 is true: so onnxruntime reads them. A
    ModelError says that its dtype has no fixed size, or that a value is no pattern of its bits.
    """
    bits = BITS.get(tensor.data_type)
    if bits is None:
        raise ModelError("strings and unknown dtypes have no bytes of fixed size", tensor=tensor.name)
    field = TYPED_FIELDS.get(tensor.data_type, "int32_data")
    values = getattr(tensor, field)
    if field in VALUE_TYPES:
        return np.array(values, VALUE_TYPES[field]).tobytes()
    whole = np.array(values, np.uint64 if field == "uint64_data" else np.int64)
    if tensor.data_type == TensorProto.BOOL:
        return bytes((whole != 0).tobytes())
    if tensor.data_type in PATTERNS and ((whole < 0) | (whole >= 1 << bits)).any():
        problem = f"a value in its int32_data is no {dtype_name(tensor.data_type)}, and onnxruntime does not load it"
        raise ModelError(problem, tensor=tensor.name, hint="export the model again")
    if bits == 6:  # one value an entry here, a stream of bits in raw_data
        stream = np.unpackbits(whole.astype("u1")[:, None], axis=1, count=6, bitorder="little")
        return np.packbits(stream, bitorder="little").tobytes()
    return whole.astype(f"<u{max(bits // 8, 1)}").tobytes()
