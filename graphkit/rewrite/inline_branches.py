"""Inline the branches of Ifs whose conditions are known."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping

import onnx
import onnx.helper

from graphkit.graph.view import Node, Scope, Value, all_scopes, body_graphs, branch_fault

__all__ = ["decide", "inline_branches", "why_undecided"]

Holder = onnx.GraphProto | onnx.FunctionProto


def decide(scopes: tuple[Scope, ...], condition: Callable[[Node], bool | None]) -> tuple[dict[Node, Scope], list[Node]]:
    """Return the branch that each decided If runs, outer Ifs first, and the Ifs that stay undecided.

    An If stays where its condition is not known (None), or where no runtime loads it.
    """
    decisions: dict[Node, Scope] = {}
    undecided: list[Node] = []
    dropped: set[Scope] = set()
    for scope in all_scopes(scopes):
        if scope.owner is not None and (scope.parent in dropped or scope in dropped):
            dropped.add(scope)
            continue
        for node in scope.nodes:
            if not node.is_op("If"):
                continue
            taken = condition(node)
            branch = node.bodies.get("then_branch" if taken else "else_branch")
            if taken is None or branch is None or branch_fault(node):
                undecided.append(node)
                continue
            decisions[node] = branch
            dropped.update(body for body in node.bodies.values() if body is not branch)
    return decisions, undecided


def why_undecided(node: Node, otherwise: str) -> str:
    """Return why an If stays: it is broken, or else the caller's reason about its condition."""
    return branch_fault(node) or otherwise


def inline_branches(proto: onnx.ModelProto, scopes: tuple[Scope, ...], decisions: Mapping[Node, Scope]) -> None:
    """Replace Ifs by the branches that they run, in place; the scopes of the proto are of no use afterwards.

    Names that would clash are changed; the outputs of an If keep theirs.
    """
    if not decisions:
        return
    inliner = _Inliner(scopes, decisions)
    holders: list[Holder] = [proto.graph, *proto.functions]
    for scope, holder in zip(scopes, holders, strict=True):
        nodes = inliner.emit(scope, holder)
        del holder.node[:]
        holder.node.extend(nodes)


class _Inliner:
    """Assigns final names to the values of inlined branches, and builds the node lists."""

    def __init__(self, scopes: tuple[Scope, ...], decisions: Mapping[Node, Scope]) -> None:
        self.decisions = decisions
        inlined = set(decisions.values())
        self.used = {name for kept in self._kept(scopes) if kept not in inlined for name in kept.values}
        self.final: dict[Value, str] = {}
        for scope in scopes:
            self._assign(scope)

    def _kept(self, scopes: tuple[Scope, ...]) -> Iterator[Scope]:
        todo = list(scopes)
        while todo:
            scope = todo.pop()
            yield scope
            for node in scope.nodes:
                chosen = self.decisions.get(node)
                todo += [chosen] if chosen is not None else list(node.bodies.values())

    def _assign(self, scope: Scope) -> None:
        """Name the values of the branches that are inlined into a scope, and of those inlined into these."""
        for node in scope.nodes:
            body = self.decisions.get(node)
            if body is None:
                for inner in node.bodies.values():
                    self._assign(inner)
                continue
            for outer, inner_value in zip(node.outputs, body.outputs, strict=False):
                if outer is not None and self._takes_name(inner_value, body):
                    self.final[inner_value] = self.name(outer)
            for value in body.values.values():
                if value not in self.final:
                    self.final[value] = _unique_name(value.name, self.used)
            self._assign(body)

    def _takes_name(self, value: Value, body: Scope) -> bool:
        return value.scope is body and value.kind == "node" and value not in self.final

    def name(self, value: Value | None) -> str:
        """Return the final name of a value, "" for none."""
        return "" if value is None else self.final.get(value, value.name)

    def emit(self, scope: Scope, target: Holder, taken: set[str] | None = None) -> list[onnx.NodeProto]:
        """Return the nodes of a scope, its decided Ifs replaced; the branches' initializers and types go to `target`.

        In a branch, nodes get other names than those taken around it, or onnxruntime does not load the model.
        """
        nodes: list[onnx.NodeProto] = []
        own = {node.proto.name for node in scope.nodes if node.proto.name}
        clashing = sorted(own & taken) if taken is not None else ()
        taken = own if taken is None else taken
        renamed = {name: _unique_name(name, taken) for name in clashing}
        taken |= own
        for node in scope.nodes:
            body = self.decisions.get(node)
            if body is None:
                nodes.append(self._rewired(node))
                if node.proto.name in renamed:
                    nodes[-1].name = renamed[node.proto.name]
                continue
            graph = next(a.g for a in node.proto.attribute if a.name == body.path.rpartition("/")[2])
            self._hoist(graph, body, target, nodes)
            nodes += self.emit(body, target, taken)
            nodes += self._aliases(node, body)
        return nodes

    def _rewired(self, node: Node) -> onnx.NodeProto:
        proto = node.proto
        names = [self.name(value) for value in node.inputs]
        if names != list(proto.input):
            proto.input[:] = names
        names = [self.name(value) for value in node.outputs]
        if names != list(proto.output):
            proto.output[:] = names
        for (_, graph), body in zip(body_graphs(proto), node.bodies.values(), strict=True):
            nodes = self.emit(body, graph)
            outputs = [self.name(value) for value in body.outputs]
            copies = copy.deepcopy(nodes)  # they outlive the deletion of the list that the originals are in
            del graph.node[:]
            graph.node.extend(copies)
            for info, name in zip(graph.output, outputs, strict=True):
                info.name = name
        return proto

    def _hoist(self, graph: onnx.GraphProto, body: Scope, target: Holder, nodes: list[onnx.NodeProto]) -> None:
        """Move initializers, declared types and annotations of an inlined branch; a function takes constants."""
        for tensor in graph.initializer:
            tensor.name = self.name(body.values[tensor.name])
            if isinstance(target, onnx.GraphProto):
                target.initializer.append(tensor)
            else:
                nodes.append(onnx.helper.make_node("Constant", [], [tensor.name], value=tensor))
        for sparse in graph.sparse_initializer:
            sparse.values.name = self.name(body.values[sparse.values.name])
            if isinstance(target, onnx.GraphProto):
                target.sparse_initializer.append(sparse)
            else:
                nodes.append(onnx.helper.make_node("Constant", [], [sparse.values.name], sparse_value=sparse))
        outputs = {info.name for info in target.output} if isinstance(target, onnx.GraphProto) else set(target.output)
        for info in [*graph.value_info, *graph.output]:
            value = body.values.get(info.name)
            if value is not None and self.name(value) not in outputs:
                info.name = self.name(value)
                target.value_info.append(info)
        if isinstance(target, onnx.GraphProto):
            for annotation in graph.quantization_annotation:
                annotation.tensor_name = self.name(body.find(annotation.tensor_name)) or annotation.tensor_name
                for entry in annotation.quant_parameter_tensor_names:
                    entry.value = self.name(body.find(entry.value)) or entry.value
                target.quantization_annotation.append(annotation)

    def _aliases(self, node: Node, body: Scope) -> Iterator[onnx.NodeProto]:
        """Yield an Identity for each output that is not computed in the branch under a name of its own."""
        for outer, inner in zip(node.outputs, body.outputs, strict=False):
            if outer is not None and self.name(inner) != self.name(outer):
                name = f"{node.label}/{outer.name}"
                yield onnx.helper.make_node("Identity", [self.name(inner)], [self.name(outer)], name=name)


def _unique_name(name: str, used: set[str]) -> str:
    """Return a name that is not in use, and note it."""
    stem, number = re.sub(r"__\d+$", "", name), 1
    while name in used:
        name, number = f"{stem}__{number}", number + 1
    used.add(name)
    return name
