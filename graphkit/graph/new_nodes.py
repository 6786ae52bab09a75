"""Nodes to make, and how the operators that move elements are written: their inputs in order, and their attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx.helper
from msgspec import Struct, field

from graphkit.graph.view import Node, Value

RESHAPE_SINCE, SLICE_SINCE = 5, 10  # opsets from which these can be written as here
SHAPE_SLICE_SINCE = 15  # from which a Shape can give a part of the dims

NodeInput = Value | str | None  # a value of the view, the name of a new one, or left out


class NewNode(Struct, frozen=True):
    """A node to make."""

    op_type: str
    inputs: Sequence[NodeInput]
    outputs: Sequence[str]
    attributes: Mapping[str, Any] = field(default_factory=dict)  # as `onnx.helper.make_node` takes them, or protos
    name: str = ""
    like: Node | None = None  # whose name, doc string and metadata it takes over
    domain: str = ""

    def to_proto(self) -> onnx.NodeProto:
        """Return the node as ONNX has it."""
        names = [source.name if isinstance(source, Value) else source or "" for source in self.inputs]
        protos = {key: value for key, value in self.attributes.items() if isinstance(value, onnx.AttributeProto)}
        plain = {key: value for key, value in self.attributes.items() if key not in protos}
        outputs = list(self.outputs)
        proto = onnx.helper.make_node(self.op_type, names, outputs, name=self.name, domain=self.domain, **plain)
        proto.attribute.extend(protos.values())
        if self.like is not None:
            for name in ("name", "doc_string"):
                if self.like.proto.HasField(name):
                    setattr(proto, name, getattr(self.like.proto, name))
            proto.metadata_props.extend(self.like.proto.metadata_props)
        return proto


# How these are written; `more` are other fields of the node, such as its name.


def make_reshape(data: NodeInput, shape: NodeInput, out: str = "", **more: Any) -> NewNode:
    """Return the node that gives data another shape, in which 0 copies a dim, and one -1 stands for what is left."""
    return NewNode("Reshape", [data, shape], [out], **more)


def make_slice(data: NodeInput, *bounds: NodeInput, out: str = "", **more: Any) -> NewNode:
    """Return the node that cuts data at bounds: starts and ends, and where it needs them axes, then steps."""
    return NewNode("Slice", [data, *bounds], [out], **more)


def make_concat(parts: Sequence[NodeInput], axis: int | None, out: str = "", **more: Any) -> NewNode:
    """Return the node that joins parts along an axis; None leaves it out, as the first opsets can."""
    return NewNode("Concat", parts, [out], {} if axis is None else {"axis": axis}, **more)


def make_gather(data: NodeInput, indices: NodeInput, axis: int | None, out: str = "", **more: Any) -> NewNode:
    """Return the node that takes what indices choose along an axis; None leaves it out, and is the first one."""
    return NewNode("Gather", [data, indices], [out], {} if axis is None else {"axis": axis}, **more)
