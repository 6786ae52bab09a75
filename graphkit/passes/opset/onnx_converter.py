"""Convert by onnx's own converter, and put back the parts that it drops.

It knows operators that graphkit's table does not, and older versions. It leaves bodies and functions as they are, drops
what nodes and values are annotated with, adds declarations and keeps the IR version. So graphs of one level go through
it, without their weights, and only its nodes and new constants are taken over. It does not tell where it changes
results: whoever calls this runs the proof.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable

import onnx

from graphkit.model import Model
from graphkit.passes.opset.convert_opset import declare_version
from graphkit.rewrite.base import copy_proto, keep
from graphkit.rewrite.match import MatchFailure
from graphkit.runtime.external_tools import ToolError, convert

__all__ = ["converted_by_onnx"]

ASSERTION = re.compile(r".*Assertion .*? failed: ", re.S)  # what onnx's converter puts before what it says


def converted_by_onnx(model: Model, version: int) -> Model:
    """Return a model in another version of the operator set, of unproven results.

    Raises:
        MatchFailure: onnx's converter fails, or would leave a part of the model as it is.
    """
    _check(model)
    try:
        made = onnx.ModelProto.FromString(convert(model.proto.SerializeToString(), version))
    except ToolError as error:
        said = " ".join(ASSERTION.sub("", str(error)).split()).replace("Version $", "version ")
        raise MatchFailure(said[:200]) from error
    proto = copy_proto(model)
    _take_nodes(proto.graph, made.graph)
    _take_initializers(proto.graph, made.graph)
    known = {name for node in proto.graph.node for name in node.output}
    known |= {tensor.name for tensor in proto.graph.initializer}
    keep(proto.graph.value_info, [info.name in known for info in proto.graph.value_info])
    declare_version(proto, version)
    return model.with_proto(proto)


def _check(model: Model) -> None:
    if any(node.bodies for node in model.graph.nodes):
        raise MatchFailure("it leaves the bodies of If, Loop and Scan as they are")
    if model.proto.functions:
        raise MatchFailure("it leaves functions as they are: run inline-functions first")
    if model.proto.graph.sparse_initializer or model.proto.training_info:
        raise MatchFailure("it drops sparse initializers and graphs for training")


def _take_nodes(graph: onnx.GraphProto, made: onnx.GraphProto) -> None:
    """Take over nodes: those that did not change as they were, others with the annotations of the node they replace."""
    before = {name: node for node in graph.node for name in node.output if name}
    nodes = []
    for node in made.node:
        old = next((before[name] for name in node.output if name in before), None)
        if old is not None and _essence(old) == _essence(node):
            nodes.append(copy.deepcopy(old))
            continue
        if old is not None and old.op_type == node.op_type:
            node.name, node.doc_string = old.name, old.doc_string
            for field in ("metadata_props", "device_configurations"):
                getattr(node, field).extend(getattr(old, field))
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _essence(node: onnx.NodeProto) -> tuple[object, ...]:
    attributes = sorted(attribute.SerializeToString(deterministic=True) for attribute in _plain(node.attribute))
    return node.op_type, tuple(node.input), tuple(node.output), attributes


def _plain(attributes: Iterable[onnx.AttributeProto]) -> Iterable[onnx.AttributeProto]:
    """Yield attributes without those that the converter does not carry over."""
    for attribute in attributes:
        one = copy.deepcopy(attribute)
        one.ClearField("doc_string")
        one.t.ClearField("name") if one.HasField("t") else None
        yield one


def _take_initializers(graph: onnx.GraphProto, made: onnx.GraphProto) -> None:
    """Take over new constants, and drop those that only the former nodes read; all others stay as they were."""
    former = {tensor.name for tensor in graph.initializer}
    kept = {tensor.name for tensor in made.initializer} | {info.name for info in graph.input}
    keep(graph.initializer, [tensor.name in kept for tensor in graph.initializer])
    graph.initializer.extend(tensor for tensor in made.initializer if tensor.name not in former)
