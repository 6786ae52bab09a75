"""The values of attributes in a few words, for lists of nodes."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, SparseTensorProto, TensorProto

from graphkit.dtypes import dtype_name
from graphkit.graph.declared_types import type_text
from graphkit.graph.names import counted
from graphkit.graph.view import as_text
from graphkit.io.tensors import element_count, inline_array

__all__ = ["attribute_text"]

SHOWN = 8  # elements of a list or a tensor that a text has
LONGEST = 60  # characters of a string that a text has


def attribute_text(attribute: AttributeProto) -> str:
    """Return the value of an attribute: `1`, `1e-05`, `[0, 2, 1]`, `'valid'`, `int64 [2] = [1, -1]`, `float32 [3, 4]`.

    A tensor is shown with its values if they are few and lie in it. In a function, `$name` is an attribute of its call.
    """
    if attribute.ref_attr_name:
        return f"${as_text(attribute.ref_attr_name)}"
    try:
        value = onnx.helper.get_attribute_value(attribute)
    except ValueError:  # a kind that is not known
        value = None
    if value is None:
        return "?"
    if attribute.type == AttributeProto.FLOATS:
        value = [*map(_shortest, value)]
    elif attribute.type == AttributeProto.FLOAT:
        value = _shortest(value)
    if isinstance(value, (str, bytes, int, float)) or not hasattr(value, "__len__"):
        return _one(value)
    more = f", ... ({len(value):,} in all)" if len(value) > SHOWN else ""
    return f"[{', '.join(map(_one, value[:SHOWN]))}{more}]"


def _shortest(value: float) -> float:
    """Return the number of the fewest digits that is the same as a float32."""
    return float(str(np.float32(value)))


def _one(value: object) -> str:
    if isinstance(value, TensorProto):
        return _tensor(value)
    if isinstance(value, SparseTensorProto):
        return f"sparse {dtype_name(value.values.data_type)} {list(value.dims)}"
    if isinstance(value, GraphProto):
        return f"graph of {counted(len(value.node), 'node(s)')}"
    if isinstance(value, onnx.TypeProto):
        return " ".join(type_text(value))
    if isinstance(value, (str, bytes)):
        text = as_text(value)
        return repr(text if len(text) <= LONGEST else f"{text[:LONGEST]}...")
    return str(value)


def _tensor(tensor: TensorProto) -> str:
    text = f"{dtype_name(tensor.data_type)} {list(tensor.dims)}"
    array = inline_array(tensor) if element_count(tensor) <= SHOWN else None
    if array is None:
        return text
    values = [float(str(value)) if array.dtype.kind == "f" else value.item() for value in array.ravel()]
    return f"{text} = {values if array.ndim else values[0]}"
