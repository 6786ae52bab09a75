"""Constants of a model: initializers, Constant nodes, and Identities of these, as exporters write tied weights."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from graphkit.graph.view import Value
from graphkit.model import Model

__all__ = ["FLOATS", "constant_array", "known"]

FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)


def known(value: Value) -> TensorProto | None:
    """Return the tensor that a value always equals, None where it is no constant."""
    met: set[Value] = set()
    while value.producer is not None and value.producer.is_op("Identity") and value not in met:
        met.add(value)
        source = value.producer.input(0)
        if source is None:
            return None
        value = source
    return value.constant


def constant_array(model: Model, tensor: TensorProto) -> np.ndarray:
    """Return a constant's array, a view of its file where it is external."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return np.frombuffer(model.payload(tensor), dtype).reshape(tuple(tensor.dims))
