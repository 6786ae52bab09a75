"""A model cut open where a part of it begins, to be compared with that part."""

from __future__ import annotations

from onnx import ModelProto, ValueInfoProto

from graphkit.errors import ModelError
from graphkit.model import Model

__all__ = ["cut_open"]

UNREAD = "proof/uncut/"  # before the names of what the whole computes for a value that is an input here


def cut_open(whole: Model, part: Model) -> Model:
    """Return a model with the inputs and outputs of a part of it, by the names that both have, and its other inputs.

    Values at which the part begins are declared as it does, inputs as the whole does. Outputs have the dims that the
    model declares for them, or none, so that the part may declare these, or those that nodes compute.

    Raises:
        ModelError: The model computes no value of a name that the part has.
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
    declared = {info.name: info for info in proto.graph.output if info.type.HasField("tensor_type")}
    outputs = [declared.get(info.name) or _without_dims(info) for info in part.proto.graph.output]
    own = {info.name: info for info in proto.graph.input}
    inputs = [_copied(own.get(info.name, info)) for info in part.proto.graph.input]
    others = [_copied(info) for info in proto.graph.input if info.name not in given]
    del proto.graph.input[:], proto.graph.output[:]
    proto.graph.input.extend([*inputs, *others])
    proto.graph.output.extend(outputs)
    kept = [info for info in proto.graph.value_info if info.name not in given]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(kept)
    return whole.with_proto(proto)


def _copied(info: ValueInfoProto) -> ValueInfoProto:
    return ValueInfoProto.FromString(info.SerializeToString())


def _without_dims(info: ValueInfoProto) -> ValueInfoProto:
    made = _copied(info)
    if made.type.HasField("tensor_type"):
        made.type.tensor_type.ClearField("shape")
    return made
