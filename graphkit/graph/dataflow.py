"""Data flow in a graph: its nodes in topological order, and facts about values from those about their inputs.

ONNX requires sorted nodes; onnxruntime accepts any order, and some tools write unsorted graphs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from typing import Generic, TypeVar

import onnx
import onnx.defs
from msgspec import Struct

from graphkit.errors import ModelError, count_things
from graphkit.graph.operator_traits import operator_schema
from graphkit.graph.view import VALUES, Node, Scope, Value


def in_order(scope: Scope) -> list[Node]:
    """Return the nodes of a scope, each after those that it reads. Nodes of a cycle come last, in file order."""
    result = sort_nodes(scope)
    done = set(result)
    return result + [node for node in scope.nodes if node not in done]


def sort_nodes(scope: Scope) -> list[Node]:
    """Return the nodes of a scope, each after those that it reads, without those that depend on a cycle."""
    waiting: dict[Node, int] = {}
    readers: dict[Value, list[Node]] = {}
    for node in scope.nodes:
        needed = {value for value in values_read(node) if value.producer is not None and value.scope is scope}
        waiting[node] = len(needed)
        for value in needed:
            readers.setdefault(value, []).append(node)
    ready = [node for node, count in waiting.items() if not count][::-1]
    result: list[Node] = []
    while ready:
        node = ready.pop()
        result.append(node)
        freed = []
        for output in node.outputs:
            for reader in readers.pop(output, ()) if output is not None else ():
                waiting[reader] -= 1
                if not waiting[reader]:
                    freed.append(reader)
        ready.extend(freed[::-1])
    return result


def values_read(node: Node) -> set[Value]:
    """Return the values that a node reads, those that its bodies read of the scopes around them included."""
    read = set(node.operands)
    for body in node.bodies.values():
        for inner in body.walk():
            read.update(value for inner_node in inner.nodes for value in inner_node.operands)
            read.update(inner.outputs)
    return read


Fact = TypeVar("Fact")
MAX_DEPTH = 100  # nodes one after the other, each with a few calls on the stack of Python


class ForwardAnalysis(ABC, Generic[Fact]):
    """Finds facts on demand, each once: only the values that a transfer function asks for are looked at.

    `unknown` is the fact about a value of which nothing is known: one that is left out, one that is computed from
    itself, as in a broken model, and one behind too many nodes.
    """

    def __init__(self, unknown: Fact) -> None:
        self._unknown = unknown
        self._facts: dict[Value, Fact] = {}
        self._depth = 0

    def of(self, value: Value | None) -> Fact:
        """Return the fact about a value."""
        if value is None:
            return self._unknown
        if value not in self._facts and self._depth < MAX_DEPTH:
            self._facts[value] = self._unknown
            self._depth += 1
            try:
                self._facts[value] = self.transfer(value)
            finally:
                self._depth -= 1
        return self._facts.get(value, self._unknown)

    @abstractmethod
    def transfer(self, value: Value) -> Fact:
        """Return the fact about a value from those about the inputs of its producer, for which it calls `of`."""


# Check that a graph can be rewritten: every name has one definition, and every node fits its operator.
#
# Analyses accept any graph. A rewrite that moves names must know their meaning, and no runtime loads a
# graph that is not sound.

HINT = "no runtime loads such a graph; export the model again"


def check_scopes(scopes: tuple[Scope, ...], file: str | None = None) -> None:
    """Check the main graph, the functions and all bodies.

    A ModelError says that a name is defined twice or never, that nodes read each other in a circle, or that a node
    lacks an input, an output or an attribute that its operator needs, or has an attribute of another kind, one
    attribute twice, or one that refers to the call of a function although the node is in none.
    """
    functions = {scope.path.removeprefix("function ") for scope in scopes[1:]}
    for root in scopes:
        for scope in root.walk():
            if scope.problems:
                _check_names(scope, file)
            for node in scope.nodes:
                fault = _attribute_fault(node, root is not scopes[0])
                if fault or (node.op_type not in functions and (fault := find_misfit(node))):
                    raise ModelError(f"{node.operator} {fault}", file=file, node=node.path, hint=HINT)


def _check_names(scope: Scope, file: str | None) -> None:
    for name in scope.twice:
        nodes = [node for node in scope.nodes if name in node.proto.output]
        raise ModelError(f"'{name}' is defined twice", file=file, node=nodes[-1].path if nodes else None, hint=HINT)
    for value in scope.values.values():
        if value.kind == "undefined":
            path = value.consumers[0][0].path if value.consumers else None
            raise ModelError(f"'{value.name}' is never defined", file=file, node=path, hint=HINT)
    done = set(sort_nodes(scope))
    for node in scope.nodes:
        if node not in done:
            raise ModelError("it needs its own result: nodes read each other in a circle", file=file, node=node.path)


def _attribute_fault(node: Node, is_in_function: bool) -> str:
    """Return the fault of a node's attributes that no operator allows, "" for none."""
    if len(node.attributes) < len(node.proto.attribute):
        return "has two attributes of one name"
    for name, attribute in node.attributes.items():
        if attribute.ref_attr_name and not is_in_function:
            return f"takes its attribute '{name}' from the call of a function, and is in none"
    return ""


class Form(Struct, frozen=True):
    """What the nodes of an operator have."""

    inputs: tuple[bool, ...]  # whether they need each, as many as all that follow the last
    least: tuple[int, int]  # inputs and outputs
    most: tuple[int, int]
    kinds: Mapping[str, int]  # of attributes
    required: tuple[str, ...]  # attributes
    is_older: bool  # than ONNX's: runtimes knew some operators before ONNX did, with more than these


SIDES = ("input(s)", "output(s)")


@lru_cache(maxsize=4096)
def _operator_form(op_type: str, domain: str, version: int) -> Form | None:
    if not onnx.defs.has(op_type, domain):
        return None
    exact = operator_schema(op_type, version, domain)
    schema = exact or onnx.defs.get_schema(op_type, domain)
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    inputs = tuple(formal.option != optional for formal in schema.inputs)
    kinds = {name: int(attribute.type) for name, attribute in schema.attributes.items()}  # type: ignore[call-overload]
    required = tuple(name for name, attribute in schema.attributes.items() if attribute.required)
    least, most = (schema.min_input, schema.min_output), (schema.max_input, schema.max_output)
    return Form(inputs, least, most, kinds, required, is_older=exact is None)


def find_misfit(node: Node) -> str:
    """Return what keeps a node from fitting its operator, "" for nothing or if onnx does not know the operator."""
    version = node.scope.opsets.get(node.domain, 0)  # of a set that is not imported, runtimes take some version
    form = _operator_form(node.op_type, node.domain, version) if 0 < version < 1 << 31 else None
    if form is None:
        return ""
    for given, least, most, what in zip((node.inputs, node.outputs), form.least, form.most, SIDES, strict=True):
        if len(given) < least:
            return f"has {count_things(len(given), what)} and needs {least}"
        if len(given) > most:
            return f"has {count_things(len(given), what)} and takes {most}"
    if None in node.inputs:
        for index, value in enumerate(node.inputs):
            if value is None and form.inputs[min(index, len(form.inputs) - 1)]:
                return f"leaves out its input {index}, which it needs"
    for name in form.required:
        if name not in node.attributes:
            return f"lacks its attribute '{name}'"
    values = VALUES & node.attributes.keys()
    if node.is_op("Constant") and len(values) != 1:
        return f"has {len(values)} values and needs 1"
    for name, attribute in node.attributes.items():
        if name not in form.kinds and not form.is_older:
            return f"has an attribute '{name}', which {node.operator} does not have"
        if attribute.type != form.kinds.get(name, attribute.type):
            return f"has an attribute '{name}' of another kind"
    return ""
