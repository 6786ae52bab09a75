"""Declared types of values: dtype and dims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import onnx
import onnx.helper
from msgspec import Struct
from onnx import AttributeProto, GraphProto, SparseTensorProto, TensorProto

from graphkit.dtypes import dtype_name, inline_array
from graphkit.errors import count_things
from graphkit.graph.names import is_number
from graphkit.graph.view import Value, as_text

Dim = int | str | None  # a number, a symbol, or unknown


class TensorType(Struct, frozen=True):
    """The type that a model declares of a tensor."""

    dtype: int  # TensorProto.DataType
    dims: tuple[Dim, ...] | None  # None where the rank is unknown

    @property
    def rank(self) -> int | None:
        """The number of dims, None where it is unknown."""
        return None if self.dims is None else len(self.dims)

    @property
    def numpy_dtype(self) -> np.dtype:
        """The dtype of its arrays."""
        return onnx.helper.tensor_dtype_to_np_dtype(self.dtype)

    @property
    def is_float(self) -> bool:
        """Whether it holds floating-point numbers of at least 8 bits."""
        name = dtype_name(self.dtype)
        return name.startswith(("float", "bfloat")) and not name.startswith(("float4e", "float6e"))


def declared_type(value: Value) -> TensorType | None:
    """Return the declared type of a tensor, the actual one of a constant, None for anything else."""
    known: dict[Value, TensorType | None] = value.scope.types
    if value not in known:
        known[value] = _read_type(value)
    return known[value]


def _read_type(value: Value) -> TensorType | None:
    if (tensor := value.constant) is not None:
        return TensorType(tensor.data_type, tuple(tensor.dims))
    info = value.scope.infos.get(value.name)
    if info is None or not info.type.HasField("tensor_type"):
        sparse = value.sparse
        if sparse is None and value.producer is not None and value.producer.is_op("Constant"):
            sparse = value.producer.attr("sparse_value", onnx.SparseTensorProto)
        return None if sparse is None else TensorType(sparse.values.data_type, tuple(sparse.dims))
    tensor_type = info.type.tensor_type
    return TensorType(tensor_type.elem_type, _declared_dims(tensor_type))


def hinted_type(value: Value) -> TensorType | None:
    """Return the declared type with dims that are called by a number as that number.

    Exporters write a size so that they know and runtimes do not check: a hint, by which roles are found.
    """
    declared = declared_type(value)
    return declared and _read_numbers(declared)


@lru_cache(maxsize=1024)
def _read_numbers(declared: TensorType) -> TensorType:
    dims = (int(dim) if isinstance(dim, str) and is_number(dim) else dim for dim in declared.dims or ())
    return declared if declared.dims is None else TensorType(declared.dtype, tuple(dims))


def declared_dims(value: Value) -> tuple[Dim, ...] | None:
    """Return the declared dims of a tensor, None where they are not declared."""
    declared = declared_type(value)
    return None if declared is None else declared.dims


def hinted_dims(value: Value | None) -> tuple[Dim, ...] | None:
    """Return the declared dims of a tensor, those called by a number as that number; None where they are not known."""
    declared = hinted_type(value) if value is not None else None
    return None if declared is None else declared.dims


def _declared_dims(kind: onnx.TypeProto.Tensor | onnx.TypeProto.SparseTensor) -> tuple[Dim, ...] | None:
    def read_dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
        if dim.HasField("dim_value"):
            return dim.dim_value if dim.dim_value >= 0 else None
        return as_text(dim.dim_param) or None

    return tuple(map(read_dim, kind.shape.dim)) if kind.HasField("shape") else None


def shape_text(dims: Sequence[object] | None) -> str:
    """Return `[batch_size, 8, ?]`, or `?` for an unknown rank."""
    return "?" if dims is None else f"[{', '.join('?' if dim is None else str(dim) for dim in dims)}]"


def type_text(type_proto: onnx.TypeProto) -> tuple[str, str]:
    """Return the dtype and the shape of any type as text; a sequence of float32 tensors is `seq(float32)`."""
    dtype, dims = type_dims(type_proto)
    return dtype, shape_text(dims)


def type_dims(type_proto: onnx.TypeProto) -> tuple[str, tuple[Dim, ...] | None]:
    """Return the dtype of any type as text, and the dims of the tensors that it holds, None for an unknown rank."""
    kind = type_proto.WhichOneof("value")
    if kind == "tensor_type":
        return dtype_name(type_proto.tensor_type.elem_type), _declared_dims(type_proto.tensor_type)
    if kind == "sparse_tensor_type":
        sparse = type_proto.sparse_tensor_type
        return f"sparse({dtype_name(sparse.elem_type)})", _declared_dims(sparse)
    if kind in ("sequence_type", "optional_type"):
        dtype, dims = type_dims(getattr(type_proto, kind).elem_type)
        return f"{'seq' if kind == 'sequence_type' else 'optional'}({dtype})", dims
    if kind == "map_type":
        dtype, dims = type_dims(type_proto.map_type.value_type)
        return f"map({dtype_name(type_proto.map_type.key_type)}, {dtype})", dims
    return "?", None


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
