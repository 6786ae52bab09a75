"""Faults for which onnxruntime does not load a model, whatever its nodes compute."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

import onnx
from onnx import FunctionProto, ModelProto, TensorProto, helper

from graphkit.dtypes import INTEGERS
from graphkit.errors import ModelError
from graphkit.graph.view import all_nodes, all_scopes
from graphkit.io import external
from graphkit.io.tensors import payload_size, walk_tensors
from graphkit.model import Model
from graphkit.runtime.isolated_session import IsolatedSession
from graphkit.time_limit import check_time
from graphkit.verify.equivalence.application import inputs_fault

__all__ = ["loading_fault", "whole_fault"]

MOST_HELD = 1 << 26  # bytes of tensors in nodes and bodies that are read to load a model
SMALL = 64  # elements of an initializer that may say something of shapes
LIST = 1 << 12  # the same of a list of integers


def loading_fault(original: Model, rewritten: Model) -> str:
    """Return which fault keeps the rewritten model from being loaded that the original has not, "" for none."""
    known = set(_faults(original, onnx.IR_VERSION))
    newest = max(original.proto.ir_version, onnx.IR_VERSION)
    return next((fault for fault in _faults(rewritten, newest) if fault not in known), "")


def _faults(model: Model, newest: int) -> Iterator[str]:
    if model.proto.ir_version > newest:
        yield f"its IR version is {model.proto.ir_version}, which onnx does not know"
    if model.proto.ir_version < 1:
        yield "it has no IR version"
    yield from _imports(model)
    for tensor, _ in walk_tensors(model.proto):
        if tensor.data_type not in TensorProto.DataType.values() or tensor.data_type == TensorProto.UNDEFINED:
            yield f"the dtype of '{tensor.name}' is not one of ONNX"
        elif fault := _data_fault(model, tensor):
            yield fault
    yield from filter(None, map(inputs_fault, all_nodes(model.scopes)))
    for scope in all_scopes(model.scopes):
        named = Counter(node.proto.name for node in scope.nodes if node.proto.name)
        yield from (f"{count} nodes of one graph are called '{name}'" for name, count in named.items() if count > 1)
        sparse = (value for value in scope.initializers if value.sparse is not None and not value.consumers)
        yield from (
            f"the sparse initializer '{value.name}' has no reader, which would tell its elements" for value in sparse
        )
    yield from (f"{node.path} gives nothing" for node in all_nodes(model.scopes) if not any(node.proto.output))


def _data_fault(model: Model, tensor: TensorProto) -> str:
    """Return that a tensor has no data, or not as much as its dtype and dims promise; "" for neither."""
    if tensor.data_location == TensorProto.EXTERNAL:
        try:
            model.piece(tensor)
        except ModelError:
            return f"the data file '{external.extent(tensor).location}' is missing"
        return ""
    size = payload_size(tensor)
    if size is None or len(model.payload(tensor)) == size:
        return ""
    return f"'{tensor.name}' has {len(model.payload(tensor))} bytes of data, and {size} by its dtype and dims"


def _imports(model: Model) -> Iterator[str]:
    """Yield operator sets that onnxruntime does not know, and those that a function lacks."""
    entries = [*model.proto.opset_import, *(entry for each in model.proto.functions for entry in each.opset_import)]
    for entry in entries:
        domain = entry.domain or "ai.onnx"
        if not _is_known(domain, entry.version):
            yield f"version {entry.version} of the operator set '{domain}' is not known"
    for function in model.proto.functions:
        yield from (f"function {function.name} imports no operator set '{domain}'" for domain in _missing(function))


@lru_cache(maxsize=256)
def _is_known(domain: str, version: int) -> bool:
    """Whether onnxruntime loads a model that names a version of an operator set."""
    opsets = [helper.make_opsetid(domain, version)]
    opsets += [] if domain == "ai.onnx" else [helper.make_opsetid("", 18)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "imports", ends[:1], ends[1:])
    return loads(Model.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10)))


def whole_fault(original: Model, rewritten: Model, *, has_dead: bool = False) -> str:
    """Return that onnxruntime does not load the rewritten model as a whole, "" where it does, or nothing tells.

    With branches that never run it is loaded at the default level, too, where they may be in the way. Weights are left
    out; where the original does not load without them, nothing is known.
    """
    if rewritten.proto is original.proto:
        return ""
    before, after = _weightless(original), _weightless(rewritten)
    if max(map(_held, (before, after))) > MOST_HELD:
        return "its bodies hold tensors too large to load it as a whole"
    is_loaded = loads(after) and (not has_dead or loads(after, optimize=True))
    return "" if is_loaded or not loads(before) else "onnxruntime does not load the rewritten model as a whole"


def _weightless(model: Model) -> Model:
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
    return model.with_proto(proto)


def _is_small(tensor: TensorProto) -> bool:
    is_list = len(tensor.dims) == 1 and tensor.data_type in INTEGERS
    return tensor.data_location != TensorProto.EXTERNAL and math.prod(tensor.dims) <= (LIST if is_list else SMALL)


def _held(model: Model) -> int:
    return sum(payload_size(tensor) or 0 for tensor, _ in walk_tensors(model.proto))


def loads(model: Model, *, optimize: bool = False) -> bool:
    """Whether onnxruntime loads a model, in a process that may die of it."""
    check_time()
    try:
        with IsolatedSession(model, optimize=optimize, threads=1):
            return True
    except ModelError:
        return False


def _missing(function: FunctionProto) -> list[str]:
    imported = {"" if entry.domain == "ai.onnx" else entry.domain for entry in function.opset_import}
    domains = dict.fromkeys("" if node.domain == "ai.onnx" else node.domain for node in function.node)
    return [domain for domain in domains if domain not in imported]
