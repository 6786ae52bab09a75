"""Prepare the functions of a model for `onnx.inliner`.

`onnx.inliner` (of onnx 1.23) drops attributes that a call leaves to their defaults, does not import the operator sets
that only functions have, loses an output that is an input, and takes over the names of dims.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

import onnx
import onnx.helper

from graphkit.graph.view import body_graphs
from graphkit.rewrite.base import keep

__all__ = [
    "Functions", "Key", "add_functions", "all_nodes", "domain_of", "functions_of", "key_of", "leave_out",
    "make_explicit", "obstacle", "with_bodies",
]  # fmt: skip

Key = tuple[str, str, str]  # domain, name, overload
Functions = Mapping[Key, onnx.FunctionProto]

FUNCTIONS_SINCE = 8  # IR version
MAX_NODES = 1_000_000  # that a function may be, functions in functions included


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


def obstacle(functions: Functions) -> str:
    """Return why functions cannot be inlined, "" where they can."""
    calls = {key: [key_of(node) for node in with_bodies(function.node)] for key, function in functions.items()}
    inner = {key: [called for called in found if called in functions] for key, found in calls.items()}
    sizes: dict[Key, int] = {}
    try:
        for key in TopologicalSorter(inner).static_order():
            sizes[key] = sum(sizes.get(called, 1) for called in calls[key])
    except CycleError as error:
        return f"function '{error.args[1][0][1]}' calls itself"
    if max(sizes.values(), default=0) > MAX_NODES:
        return f"their nodes would be more than {MAX_NODES:,}"
    return next((text for function in functions.values() for text in _uncertain(function, functions)), "")


def _uncertain(function: onnx.FunctionProto, functions: Functions) -> Iterator[str]:
    """Yield which attributes a function passes on that it may not have, to one with a default for them."""
    for node in with_bodies(function.node):
        callee = functions.get(key_of(node))
        defaults = {attribute.name for attribute in callee.attribute_proto} if callee is not None else set()
        for attribute in node.attribute:
            if attribute.ref_attr_name in function.attribute and attribute.name in defaults:
                yield f"'{function.name}' may have no '{attribute.ref_attr_name}', and '{node.op_type}' has a default"


def make_explicit(proto: onnx.ModelProto, functions: Functions) -> None:
    """Write out in place the defaults and names that onnx's inliner does not see."""
    imported = {domain_of(entry.domain) for entry in proto.opset_import}
    for function in functions.values():
        for entry in function.opset_import:
            if domain_of(entry.domain) not in imported:
                proto.opset_import.add().CopyFrom(entry)
                imported.add(domain_of(entry.domain))
        _copy_outputs(function)
        _forget_dims(function)
    for node in all_nodes(proto):
        if (called := functions.get(key_of(node))) is not None:
            given = {attribute.name for attribute in node.attribute}
            node.attribute.extend(a for a in called.attribute_proto if a.name not in given)


def leave_out(graph: onnx.GraphProto, around: frozenset[str] = frozenset()) -> None:
    """Remove in place nodes that pass on an input that a call leaves out, and leave it out in their readers too.

    `around` has the names in the graphs around it that stand for nothing.
    """
    outputs = {info.name for info in graph.output}
    copies = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type == "Identity" and not domain_of(node.domain) and len(node.input) == len(node.output) == 1
    }
    unset = {"", *around}
    while found := {name for name, source in copies.items() if source in unset} - unset - outputs:
        unset |= found
    for node in graph.node:
        node.input[:] = ["" if name in unset else name for name in node.input]
        for _, body in body_graphs(node):
            leave_out(body, frozenset(unset))
    keep(graph.node, [not node.output or node.output[0] not in unset.difference(around, [""]) for node in graph.node])


def _copy_outputs(function: onnx.FunctionProto) -> None:
    """Let an output that is an input be an Identity of it."""
    taken = {name for node in with_bodies(function.node) for name in (*node.input, *node.output)}
    taken.update(function.input)
    for index, name in enumerate(function.output):
        if name in function.input:
            unique_name = next(f"{name}_{n}" for n in range(len(taken) + 1) if f"{name}_{n}" not in taken)
            function.node.append(onnx.helper.make_node("Identity", [name], [unique_name]))
            function.output[index] = unique_name
            taken.add(unique_name)


def _forget_dims(function: onnx.FunctionProto) -> None:
    """Drop the names of dims from declared types: in a graph they would mean dims of the graph."""
    for info in function.value_info:
        for dim in info.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                dim.ClearField("dim_param")
