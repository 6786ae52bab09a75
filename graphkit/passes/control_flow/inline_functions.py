"""Inline the functions of a model, by `onnx.inliner`.

`onnx.inliner` (of onnx 1.23) drops attributes that a call leaves to their defaults, does not import the operator sets
that only functions have, loses an output that is an input, and takes over the names of dims: all that is put right
before and after.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

import onnx
import onnx.checker
import onnx.helper
import onnx.inliner

from graphkit.errors import ModelError, count_things
from graphkit.graph.view import FunctionKey, body_graphs, domain_of, functions_of, key_of, nodes_of, with_bodies
from graphkit.model import Model
from graphkit.rewrite import Declined, Outcome, Pass, copy_proto, keep_members
from graphkit.rewrite.edits import remove_dead_code

Functions = Mapping[FunctionKey, onnx.FunctionProto]
Nodes = Sequence[onnx.NodeProto]
MAX_NODES = 1_000_000  # of a model without functions


class InlineFunctions(Pass):
    """Replace each call of a function of the model by the function's nodes, at any depth.

    Values of a function get a number that makes their names unique. Where a call has a name, its nodes are named
    after it, `call/node`; they get the metadata of the call in addition to their own. An Identity of an input that the
    call leaves out is removed, and its consumers leave that input out too, because no runtime loads the Identity.
    Legality: the function uses the operator set versions of the model. No function is inlined if one calls itself, if
    one passes on an attribute that it may lack to one with a default for it, or if there would be over a million nodes.

    Before:

        agraph (float[N] x) => (float[N] y) {
            h = local.gate (x)
            y = local.gate (h)
        }
        <domain: "local", opset_import: ["" : 17]>
        gate (v) => (r) {
            s = Sigmoid (v)
            r = Mul (v, s)
        }

    After:

        agraph (float[N] x) => (float[N] y) {
            s__1 = Sigmoid (x)
            h = Mul (x, s__1)
            s__2 = Sigmoid (h)
            y = Mul (h, s__2)
        }
    """

    def run(self, model: Model) -> Outcome:
        if not model.proto.functions:
            return Outcome(model)
        proto = copy_proto(model)
        functions = functions_of(proto)
        if reason := find_obstacle(functions, proto.graph.node):
            return Outcome(model, declined=(Declined("functions", reason),))
        make_explicit(proto, functions)
        try:
            result = onnx.inliner.inline_local_functions(proto)
        except (RuntimeError, onnx.checker.ValidationError) as error:  # a call does not fit, or two have one name
            problem, hint = f"its functions cannot be inlined: {error}", "call each with the inputs that it has"
            raise ModelError(problem, file=model.label, hint=hint) from error

        remaining = functions_of(result)
        gone = {key: function for key, function in functions.items() if key not in remaining}
        versions = {domain_of(entry.domain): entry.version for entry in proto.opset_import}
        declined: list[Declined] = []
        for function in remaining.values():
            others = [
                f"version {entry.version} of {entry.domain or 'the operators'}, the model has {versions[domain]}"
                for entry in function.opset_import
                if versions.get(domain := domain_of(entry.domain), entry.version) != entry.version
            ]
            reason = f"it needs {'; '.join(others) or 'one that is left'}"
            declined.append(Declined(f"function {function.name}", reason))
        calls = Counter(map(key_of, nodes_of(proto)))
        # those that the remaining ones call come back: onnx takes out all that it inlined anywhere
        called, left, waiting = set[FunctionKey](), {*functions_of(result)}, [*result.functions]
        while waiting:
            more = {key_of(node) for node in with_bodies(waiting.pop().node)} & functions.keys() - left - called
            called |= more
            waiting += [functions[key] for key in more]
        result.functions.extend(function for key, function in functions.items() if key in called)
        calls.subtract(key_of(node) for function in result.functions for node in with_bodies(function.node))
        if not any(calls[key] or key not in called for key in gone):
            return Outcome(model, declined=tuple(declined))
        _restore_names(proto.graph.node, result.graph.node, gone, {node.name for node in nodes_of(result)})
        leave_out(result.graph)
        unused = {key[0] for key in gone} - {domain_of(node.domain) for node in nodes_of(result)}
        keep_members(result.opset_import, [domain_of(entry.domain) not in unused for entry in result.opset_import])
        changes = (count_things(calls[key], f"call(s) of function '{key[1]}' inlined") for key in gone if calls[key])
        return Outcome(remove_dead_code(model.with_proto(result)).model, tuple(changes), tuple(declined))


def _restore_names(before: Nodes, after: Nodes, functions: Functions, taken: set[str]) -> None:
    """Name the inlined nodes after their calls where no node has the name, and give them the calls' metadata."""
    expected = list(_expected_nodes(before, functions, (), ""))
    if [node.op_type for node, _, _ in expected] != [node.op_type for node in after]:
        return  # not in the order of the calls
    for (node, calls, name), made in zip(expected, after, strict=True):
        if name and name not in taken:
            made.name = name
            taken.add(name)
        for call in reversed(calls):
            keys = {entry.key for entry in made.metadata_props}
            made.metadata_props.extend(entry for entry in call.metadata_props if entry.key not in keys)
        for (_, old), (_, new) in zip(body_graphs(node), body_graphs(made), strict=True):
            _restore_names(old.node, new.node, functions, taken)


def _expected_nodes(
    nodes: Nodes, functions: Functions, calls: tuple[onnx.NodeProto, ...], path: str | None
) -> Iterator[tuple[onnx.NodeProto, tuple[onnx.NodeProto, ...], str | None]]:
    """Yield the nodes that nodes become: each with the calls around it, and its new name, None for that it has."""
    for index, node in enumerate(nodes):
        if path:
            name: str | None = f"{path}/{node.name or f'{node.op_type}#{index}'}"
        else:
            name = node.name or None if path is not None else None
        if (function := functions.get(key_of(node))) is None:
            yield node, calls, name if calls else None
        else:
            yield from _expected_nodes(function.node, functions, (*calls, node), name)


def find_obstacle(functions: Functions, nodes: Nodes) -> str:
    """Return why the functions that nodes call cannot be inlined, "" where they can."""
    calls = {key: [key_of(node) for node in with_bodies(function.node)] for key, function in functions.items()}
    inner = {key: [called for called in callees if called in functions] for key, callees in calls.items()}
    sizes: dict[FunctionKey, int] = {}
    try:
        for key in TopologicalSorter(inner).static_order():
            sizes[key] = sum(sizes.get(called, 1) for called in calls[key])
    except CycleError as error:
        return f"function '{error.args[1][0][1]}' calls itself"
    if sum(sizes.get(key_of(node), 1) for node in with_bodies(nodes)) > MAX_NODES:
        return f"their nodes would be more than {MAX_NODES:,}"
    for function in functions.values():
        for node in with_bodies(function.node):
            callee = functions.get(key_of(node))
            defaults = {attribute.name for attribute in callee.attribute_proto} if callee is not None else set()
            for attribute in node.attribute:
                name = attribute.ref_attr_name
                if name in function.attribute and attribute.name in defaults:
                    return f"'{function.name}' may have no '{name}', and '{node.op_type}' has a default"
    return ""


def make_explicit(proto: onnx.ModelProto, functions: Functions) -> None:
    """Write out in place the defaults and names that onnx's inliner does not see."""
    imported = {domain_of(entry.domain) for entry in proto.opset_import}
    for function in functions.values():
        for entry in function.opset_import:
            if domain_of(entry.domain) not in imported:
                proto.opset_import.add().CopyFrom(entry)
                imported.add(domain_of(entry.domain))
        taken = {name for node in with_bodies(function.node) for name in (*node.input, *node.output)}
        taken.update(function.input)
        for index, name in enumerate(function.output):
            if name in function.input:  # an Identity of it
                unique_name = next(f"{name}_{n}" for n in range(len(taken) + 1) if f"{name}_{n}" not in taken)
                function.node.append(onnx.helper.make_node("Identity", [name], [unique_name]))
                function.output[index] = unique_name
                taken.add(unique_name)
        for info in function.value_info:
            for dim in info.type.tensor_type.shape.dim:
                if dim.HasField("dim_param"):  # in a graph it would mean a dim of the graph
                    dim.ClearField("dim_param")
    for node in nodes_of(proto):
        if (called := functions.get(key_of(node))) is not None:
            names = {attribute.name for attribute in node.attribute}
            node.attribute.extend(a for a in called.attribute_proto if a.name not in names)


def leave_out(graph: onnx.GraphProto, around: frozenset[str] = frozenset()) -> None:
    """Remove in place nodes that pass on an input that a call leaves out, and leave it out in their readers too.

    `around` has the names in the graphs around it that stand for nothing.
    """
    outputs = {info.name for info in graph.output}
    plain = (node for node in graph.node if key_of(node)[:2] == ("", "Identity"))
    copies = {node.output[0]: node.input[0] for node in plain if len(node.input) == len(node.output) == 1}
    unset = {"", *around}
    while newly_unset := {name for name, source in copies.items() if source in unset} - unset - outputs:
        unset |= newly_unset
    for node in graph.node:
        node.input[:] = ["" if name in unset else name for name in node.input]
        for _, body in body_graphs(node):
            leave_out(body, frozenset(unset))
    gone = unset.difference(around, [""])
    keep_members(graph.node, [not node.output or node.output[0] not in gone for node in graph.node])
