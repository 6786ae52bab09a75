"""The values of attributes and of small tensors in a few words."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, SparseTensorProto, TensorProto

from graphkit.dtypes import dtype_name
from graphkit.graph.declared_types import type_text
from graphkit.graph.names import count_things
from graphkit.graph.view import as_text
from graphkit.tensor_values import inline_array

__all__ = ["attribute_text", "tensor_text", "values_text"]

SHOWN = 8  # elements of a list or a tensor that a text has
LONGEST = 60  # characters of a string that a text has


def attribute_text(attribute: AttributeProto) -> str:
    """Return the value of an attribute: `1`, `1e-05`, `[0, 2, 1]`, `'valid'`, `int64[2] = [1, -1]`, `float32[3, 4]`.

    Floats have as many digits as tell them from all others. In a function, `$name` is an attribute of its call.
    """
    if attribute.ref_attr_name:
        return f"${as_text(attribute.ref_attr_name)}"
    try:
        value = onnx.helper.get_attribute_value(attribute)
    except ValueError:  # a kind that is not known
        value = None
    if value is None:
        return "?"
    if attribute.type in (AttributeProto.FLOAT, AttributeProto.FLOATS):
        value = [np.float32(number) for number in value] if isinstance(value, list) else np.float32(value)
    if not isinstance(value, list):
        return _format_one(value)
    more = f", ... ({len(value):,} in all)" if len(value) > SHOWN else ""
    return f"[{', '.join(map(_format_one, value[:SHOWN]))}{more}]"


def tensor_text(tensor: TensorProto) -> str:
    """Return the dtype and the dims of a tensor, with its values if they are few and lie in it: `int64[1] = [-1]`."""
    text, values = f"{dtype_name(tensor.data_type)}{list(tensor.dims)}", values_text(tensor)
    return f"{text} = {values}" if values else text


def values_text(tensor: TensorProto) -> str:
    """Return the values of a tensor, `[-1]` or `2.5`, "" where they are many or do not lie in it."""
    is_shown = tensor.data_type != TensorProto.STRING and len(tensor.dims) <= SHOWN >= math.prod(tensor.dims)
    array = inline_array(tensor) if is_shown else None
    if array is None:
        return ""
    values = [_format_one(value) for value in array.ravel()]
    return f"[{', '.join(values)}]" if array.ndim else values[0]


def _format_one(value: object) -> str:
    if isinstance(value, TensorProto):
        return tensor_text(value)
    if isinstance(value, SparseTensorProto):
        return f"sparse {dtype_name(value.values.data_type)}{list(value.dims)}"
    if isinstance(value, GraphProto):
        return f"graph of {count_things(len(value.node), 'node(s)')}"
    if isinstance(value, onnx.TypeProto):
        return " ".join(type_text(value))
    if isinstance(value, (str, bytes)):
        text = as_text(value)
        return repr(text if len(text) <= LONGEST else f"{text[:LONGEST]}...")
    return str(value).removesuffix(".0")
