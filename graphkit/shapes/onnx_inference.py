"""Inference of one node by onnx itself, for operators without a rule.

Declared types of outputs play no part: onnx gets only the types of the inputs, as the engine knows them. A symbolic dim
becomes a `dim_param` of its own. Equal dims have equal names, and onnx never calculates with names, so that a name in
the result stands for the same dim.
"""

from __future__ import annotations

import onnx
import onnx.checker
from onnx import TypeProto, shape_inference

from graphkit.dtypes import FLOATS
from graphkit.ops.rule_context import InferenceContext, UnknownError
from graphkit.ops.tensor import Tensor, unknown_tensor
from graphkit.symbolic.expr import Expr, const

__all__ = ["infer_node"]

MAX_VERSION = (1 << 31) - 1  # which onnx can be asked for
REFUSALS = (
    shape_inference.InferenceError,
    onnx.defs.SchemaError,
    onnx.checker.ValidationError,  # of a node that does not fit its schema
    RuntimeError,
    ValueError,
)


def infer_node(ctx: InferenceContext) -> list[Tensor]:
    """Return the facts that onnx's own inference knows of a node's outputs."""
    node = ctx.node
    if node.bodies or not onnx.defs.has(node.op_type, node.domain):
        raise UnknownError(f"there is no rule for {node.operator}")
    version = min(max(ctx.node.scope.opset(node.domain), 1), MAX_VERSION)
    names: dict[str, Expr] = {}
    types, data = {}, {}
    for value, tensor_in in zip(node.inputs, ctx.inputs, strict=True):
        if value is None or tensor_in is None:
            continue
        if tensor_in.dims is None or not tensor_in.dtype:
            raise UnknownError(tensor_in.reason or f"'{value.name}' is unknown")
        types[value.name] = _type_proto(tensor_in, names)
        if (tensor := _constant_proto(tensor_in)) is not None:
            data[value.name] = tensor
    proto = node.proto
    if any(attribute.ref_attr_name for attribute in proto.attribute):  # in a function: the arguments of the call
        proto = onnx.helper.make_node(node.op_type, proto.input, proto.output, domain=node.domain)
        for name, attribute in ctx.attributes.items():
            proto.attribute.add().CopyFrom(attribute)
            proto.attribute[-1].name = name
    try:
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
        results = shape_inference.infer_node_outputs(
            schema, proto, types, data, opset_imports=[onnx.helper.make_opsetid(node.domain, version)]
        )
    except REFUSALS as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)[:120]
        raise UnknownError(f"onnx cannot infer {node.operator}: {reason}") from error
    return [_read_result(ctx, results.get(value.name) if value else None, names) for value in node.outputs]


def _type_proto(tensor: Tensor, names: dict[str, Expr]) -> TypeProto:
    result = TypeProto()
    result.tensor_type.elem_type = tensor.dtype
    result.tensor_type.shape.SetInParent()
    for dim in tensor.dims or ():
        added, size = result.tensor_type.shape.dim.add(), dim.constant
        if size is not None and size >= 0:
            added.dim_value = size
        else:
            added.dim_param = f"{dim}"
            names[f"{dim}"] = dim
    return result


def _constant_proto(tensor: Tensor) -> onnx.TensorProto | None:
    data = tensor.data if tensor.may_have_data else None
    if data is None or not all(isinstance(element, (int, float)) for element in data.ravel().tolist()):
        return None
    dtype = FLOATS.get(tensor.dtype) or onnx.helper.tensor_dtype_to_np_dtype(tensor.dtype)
    return onnx.numpy_helper.from_array(data.astype(dtype))


def _read_result(ctx: InferenceContext, result: TypeProto | None, names: dict[str, Expr]) -> Tensor:
    if result is None or not result.HasField("tensor_type"):
        return unknown_tensor(f"onnx infers no tensor for {ctx.node.operator}")
    tensor_type = result.tensor_type
    if not tensor_type.HasField("shape"):
        return unknown_tensor(f"onnx infers no rank for {ctx.node.operator}", tensor_type.elem_type)
    dims = []
    for dim in tensor_type.shape.dim:
        if dim.HasField("dim_value"):
            dims.append(const(dim.dim_value))
        elif dim.dim_param in names:
            dims.append(names[dim.dim_param])
        else:
            dims.append(ctx.new_symbol(f"onnx does not infer it for {ctx.node.operator}"))
    return Tensor(tensor_type.elem_type, dims)
