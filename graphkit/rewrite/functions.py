"""The functions of a model, by the keys that calls use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx
import onnx.helper

from graphkit.graph.view import body_graphs

__all__ = ["Functions", "Key", "add_functions", "all_nodes", "domain_of", "functions_of", "key_of", "with_bodies"]

Key = tuple[str, str, str]  # domain, name, overload
Functions = Mapping[Key, onnx.FunctionProto]

FUNCTIONS_SINCE = 8  # IR version


def domain_of(name: str) -> str:
    """Return a domain, the default one as ""."""
    return "" if name == "ai.onnx" else name


def functions_of(proto: onnx.ModelProto) -> dict[Key, onnx.FunctionProto]:
    """Return the functions of a model by the key that calls use."""
    return {(domain_of(f.domain), f.name, f.overload): f for f in proto.functions}


def add_functions(proto: onnx.ModelProto, functions: Iterable[onnx.FunctionProto]) -> None:
    """Give a model functions that it lacks, in place, with their domains and an IR version that knows functions."""
    has = functions_of(proto)
    imported = {domain_of(entry.domain) for entry in proto.opset_import}
    for function in functions:
        if (domain_of(function.domain), function.name, function.overload) in has:
            continue
        proto.functions.append(function)
        proto.ir_version = max(proto.ir_version, FUNCTIONS_SINCE)
        if function.domain not in imported:
            proto.opset_import.append(onnx.helper.make_opsetid(function.domain, 1))
            imported.add(function.domain)


def key_of(node: onnx.NodeProto) -> Key:
    """Return the key of the function that a node calls."""
    return domain_of(node.domain), node.op_type, node.overload


def with_bodies(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes and those in their bodies."""
    for node in nodes:
        yield node
        for _, body in body_graphs(node):
            yield from with_bodies(body.node)


def all_nodes(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a model, those of its bodies and functions included."""
    yield from with_bodies(proto.graph.node)
    for function in proto.functions:
        yield from with_bodies(function.node)
