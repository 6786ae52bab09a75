"""A model cut open where a part of it begins, to be compared with that part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import ModelProto, ValueInfoProto

from graphkit.dtypes import dtype_name
from graphkit.errors import ModelError
from graphkit.model import Model
from graphkit.shapes import Expr, infer, is_known
from graphkit.shapes.input_dims import declare_dim

__all__ = ["cut_open"]

UNREAD = "proof/uncut/"  # before the names of what the whole computes for a value that is an input here


def cut_open(whole: Model, part: Model, computed: Mapping[str, Sequence[Expr] | None]) -> Model:
    """Return a model with the inputs and outputs of a part of it, by the names that both have, and its other inputs.

    Values at which the part begins have the dims that the whole computes, inputs those that it declares: what the part
    calls a dim may be another dim there. Outputs have the dims that the model declares for them, or none, so that the
    part may declare these, or those that nodes compute.

    Args:
        whole: The model.
        part: A part of it.
        computed: The dims of the values at which the part begins, in symbols of the whole.

    Raises:
        ModelError: The model computes no value of a name that the part has, or one of another dtype.
    """
    proto = ModelProto()
    proto.CopyFrom(whole.proto)
    given = {info.name for info in part.proto.graph.input}
    cuts = given - {info.name for info in whole.proto.graph.input}
    for node in proto.graph.node:
        cuts -= {*node.output}
        node.output[:] = [UNREAD + name if name in given else name for name in node.output]
    if cuts:
        raise ModelError(f"it computes no '{min(cuts)}', at which the subgraph begins", file=whole.label)
    shapes = infer(whole)
    for info in part.proto.graph.input:
        begun_at = whole.graph.values.get(info.name)
        dtype = shapes[begun_at].dtype if begun_at is not None else 0
        if dtype and info.type.tensor_type.elem_type != dtype:
            told = f"'{info.name}' is {dtype_name(dtype)}, and the subgraph declares another dtype"
            raise ModelError(told, file=whole.label)
    declared = {info.name: info for info in proto.graph.output if info.type.HasField("tensor_type")}
    outputs = [declared.get(info.name) or _without_dims(info) for info in part.proto.graph.output]
    own = {info.name: info for info in proto.graph.input}
    begun = {info.name: _with_dims(info, computed.get(info.name)) for info in part.proto.graph.input}
    inputs = [_copy_info(own.get(name, info)) for name, info in begun.items()]
    others = [_copy_info(info) for info in proto.graph.input if info.name not in given]
    del proto.graph.input[:], proto.graph.output[:]
    proto.graph.input.extend([*inputs, *others])
    proto.graph.output.extend(outputs)
    kept = [info for info in proto.graph.value_info if info.name not in given]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(kept)
    return whole.with_proto(proto)


def _copy_info(info: ValueInfoProto) -> ValueInfoProto:
    return ValueInfoProto.FromString(info.SerializeToString())


def _with_dims(info: ValueInfoProto, dims: Sequence[Expr] | None) -> ValueInfoProto:
    """Return a declaration with other dims; those that are not known have no name."""
    made = _without_dims(info)
    if dims is not None and made.type.HasField("tensor_type"):
        shape = made.type.tensor_type.shape
        shape.SetInParent()  # also of no dims
        for dim in dims:
            declared = shape.dim.add()
            if is_known(dim):
                declare_dim(declared, dim)
    return made


def _without_dims(info: ValueInfoProto) -> ValueInfoProto:
    made = _copy_info(info)
    if made.type.HasField("tensor_type"):
        made.type.tensor_type.ClearField("shape")
    return made
