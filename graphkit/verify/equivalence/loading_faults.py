"""Faults for which onnxruntime does not load a model, whatever its nodes compute."""

from __future__ import annotations

import math
from collections.abc import Iterator

from onnx import ModelProto, TensorProto, helper

from graphkit.dtypes import INTEGERS
from graphkit.errors import ModelError
from graphkit.graph.view import all_nodes
from graphkit.io import external
from graphkit.io.tensors import payload_size, walk_tensors
from graphkit.model import Model
from graphkit.runtime.isolated_session import IsolatedSession
from graphkit.time_limit import check_time
from graphkit.verify.equivalence.application import inputs_fault

__all__ = ["loading_fault", "loading_refusal", "whole_fault"]

MOST_HELD = 1 << 26  # bytes of tensors in nodes and bodies that are read to load a model
SMALL = 64  # elements of an initializer that may say something of shapes
LIST = 1 << 12  # the same of a list of integers


def loading_fault(original: Model, rewritten: Model) -> str:
    """Return what keeps a node or a tensor of the rewritten model from being read, and none of the original, or ""."""
    known = set(_node_faults(original))
    return next((fault for fault in _node_faults(rewritten) if fault not in known), "")


def _node_faults(model: Model) -> Iterator[str]:
    yield from filter(None, map(inputs_fault, all_nodes(model.scopes)))
    yield from filter(None, (_data_fault(model, tensor) for tensor, _ in walk_tensors(model.proto)))


def _data_fault(model: Model, tensor: TensorProto) -> str:
    """Return that a tensor has no data, or not as much as its dtype and dims promise; "" for neither."""
    if tensor.data_location == TensorProto.EXTERNAL:
        try:
            model.piece(tensor)
        except ModelError:
            return f"the data file '{external.external_extent(tensor).location}' is missing"
        return ""
    size = payload_size(tensor)
    if size is None or len(model.payload(tensor)) == size:
        return ""
    return f"'{tensor.name}' has {len(model.payload(tensor))} bytes of data, and {size} by its dtype and dims"


def whole_fault(original: Model, rewritten: Model, *, has_dead: bool = False) -> str:
    """Return that onnxruntime does not load the rewritten model as a whole, "" where it does, or nothing tells.

    With branches that never run it is loaded at the default level, too, where they may be in the way. Weights are left
    out; where the original does not load without them, nothing is known.
    """
    if rewritten.proto is original.proto:
        return ""
    before, after = _without_weights(original), _without_weights(rewritten)
    if max(map(_held_bytes, (before, after))) > MOST_HELD:
        return "its bodies hold tensors too large to load it as a whole"
    error = _loading_error(after) or (_loading_error(after, optimize=True) if has_dead else "")
    return f"of the rewritten model, {error}" if error and not _loading_error(before) else ""


def _without_weights(model: Model) -> Model:
    """Return a model with inputs in the place of its weights, but for those that bodies hold."""
    proto = ModelProto()
    proto.CopyFrom(model.proto)
    graph, small = proto.graph, list[TensorProto]()
    given = {info.name for info in graph.input}
    for tensor in model.proto.graph.initializer:
        if _is_small(tensor):
            small.append(tensor)
        elif tensor.name not in given:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    graph.ClearField("initializer")
    graph.initializer.extend(small)
    nodes = [*graph.node]
    graph.ClearField("node")
    for node in nodes:
        held = node.attribute[0].t if node.op_type == "Constant" and len(node.attribute) == 1 else TensorProto()
        if _is_small(held):
            graph.node.append(node)
        else:
            graph.input.append(helper.make_tensor_value_info(node.output[0], held.data_type, held.dims))
    has_files = any(tensor.data_location == TensorProto.EXTERNAL for tensor, _ in walk_tensors(proto))
    return model.with_proto(proto) if has_files else Model.from_proto(proto)


def _is_small(tensor: TensorProto) -> bool:
    is_list = len(tensor.dims) == 1 and tensor.data_type in INTEGERS
    return tensor.data_location != TensorProto.EXTERNAL and math.prod(tensor.dims) <= (LIST if is_list else SMALL)


def _held_bytes(model: Model) -> int:
    return sum(payload_size(tensor) or 0 for tensor, _ in walk_tensors(model.proto))


def loading_refusal(model: Model) -> str:
    """Return why onnxruntime does not load a model in which inputs stand for the weights, "" where it does."""
    return _loading_error(_without_weights(model))


def _loading_error(model: Model, *, optimize: bool = False) -> str:
    """Return why onnxruntime does not load a model, in a process that may die of it, "" where it does."""
    check_time()
    try:
        with IsolatedSession(model, optimize=optimize, threads=1):
            return ""
    except ModelError as error:
        return " ".join(error.problem.split())
