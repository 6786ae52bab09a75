"""Typed access to the attributes of nodes, and the tensor that a Constant gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from onnx import AttributeProto, SparseTensorProto, TensorProto

__all__ = ["VALUES", "ZERO", "T", "attribute_value", "constant_tensor"]

T = TypeVar("T", int, float, str, tuple[int, ...], TensorProto, SparseTensorProto)
FIELDS: Mapping[type, tuple[int, str]] = {
    bool: (AttributeProto.INT, "i"),
    int: (AttributeProto.INT, "i"),
    float: (AttributeProto.FLOAT, "f"),
    str: (AttributeProto.STRING, "s"),
    tuple: (AttributeProto.INTS, "ints"),
    TensorProto: (AttributeProto.TENSOR, "t"),
    SparseTensorProto: (AttributeProto.SPARSE_TENSOR, "sparse_tensor"),
}
UNDEFINED = AttributeProto.UNDEFINED
SCALARS = (int, float, bytes, TensorProto, SparseTensorProto)
# The forms of a Constant without a tensor: kind and field of the attribute, dtype and field of the tensor.
FORMS: Mapping[str, tuple[int, str, int, str]] = {
    "value_int": (AttributeProto.INT, "i", TensorProto.INT64, "int64_data"),
    "value_ints": (AttributeProto.INTS, "ints", TensorProto.INT64, "int64_data"),
    "value_float": (AttributeProto.FLOAT, "f", TensorProto.FLOAT, "float_data"),
    "value_floats": (AttributeProto.FLOATS, "floats", TensorProto.FLOAT, "float_data"),
    "value_string": (AttributeProto.STRING, "s", TensorProto.STRING, "string_data"),
    "value_strings": (AttributeProto.STRINGS, "strings", TensorProto.STRING, "string_data"),
}
VALUES = frozenset({*FORMS, "value", "sparse_value"})
ZERO = TensorProto(data_type=TensorProto.FLOAT, dims=[1], float_data=[0.0])  # the default value of ConstantOfShape


def attribute_value(attribute: AttributeProto | None, default: T | type[T]) -> T | None:
    """Return the value of an attribute.

    Args:
        attribute: The attribute, None if it is not given.
        default: The value to return in that case: an int, a float, a str, a tuple of ints or a tensor. The attribute
            must be of the same kind. For an attribute without a default, the type itself.

    Returns:
        None if it is not known: the attribute is of another kind, comes from the call of a function, or is missing and
        has no default.

    Example:
        >>> attribute_value(None, 1), attribute_value(None, int)
        (1, None)
    """
    fallback: Any = default
    kind = default if isinstance(default, type) else type(default)
    if attribute is None:
        return None if kind is default else fallback
    value: Any = _held_field(attribute, *FIELDS[kind])
    return value.decode("utf-8", "replace") if kind is str and value is not None else value  # type: ignore[no-any-return]


def _held_field(attribute: AttributeProto, kind: int, field: str) -> object:
    """Return the value of a field, None for an attribute of another kind; IR version 1 does not write kinds down."""
    actual = attribute.type
    if attribute.ref_attr_name or (actual != kind and actual != UNDEFINED):
        return None
    if actual == UNDEFINED and field not in {descriptor.name for descriptor, _ in attribute.ListFields()}:
        return None
    value = getattr(attribute, field)
    return value if isinstance(value, SCALARS) else tuple(value)


def constant_tensor(attributes: Mapping[str, AttributeProto]) -> TensorProto | None:
    """Return the tensor that a Constant with these attributes gives.

    Returns:
        None if it is not known: the Constant is sparse, has no value or several, has a value of the wrong kind, or
        takes it from the call of a function.
    """
    names = attributes if len(attributes) == 1 else VALUES & attributes.keys()
    name = next(iter(names)) if len(names) == 1 else ""
    if name == "value":
        return attribute_value(attributes[name], TensorProto)
    if name not in FORMS:
        return None
    kind, field, dtype, data = FORMS[name]
    value: Any = _held_field(attributes[name], kind, field)
    if value is None:
        return None
    is_list = isinstance(value, tuple)
    tensor = TensorProto(data_type=dtype, dims=[len(value)] if is_list else [])
    getattr(tensor, data).extend(value if is_list else [value])
    return tensor
