"""Check that a graph can be rewritten: every name has one definition, and every node fits its operator.

Analyses accept any graph. A rewrite that moves names must know their meaning, and no runtime loads a
graph that is not sound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import onnx
import onnx.defs

from graphkit.errors import ModelError
from graphkit.graph.attributes import VALUES
from graphkit.graph.dataflow import sort_nodes
from graphkit.graph.view import Node, Scope, Value

__all__ = ["check_scopes"]

HINT = "no runtime loads such a graph; export the model again"


def check_scopes(scopes: tuple[Scope, ...], file: str | None = None) -> None:
    """Check the main graph, the functions and all bodies.

    Raises:
        ModelError: A name is defined twice or never, nodes read each other in a circle, or a node lacks an input, an
            output or an attribute that its operator needs, or has an attribute of another kind, one attribute twice,
            or one that refers to the call of a function although the node is in none.
    """
    functions = {scope.path.removeprefix("function ") for scope in scopes[1:]}
    for root in scopes:
        for scope in root.walk():
            if scope.problems:
                _check_names(scope, file)
            for node in scope.nodes:
                fault = _attribute_fault(node, root is not scopes[0])
                fault = fault or ("" if node.op_type in functions else _missing_part(node))
                if fault:
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


@dataclass(frozen=True)
class _Form:
    """The schema of an operator: required inputs, number of outputs, kinds of attributes."""

    inputs: tuple[int, ...]
    outputs: int
    kinds: Mapping[str, int]
    required: tuple[str, ...]


@lru_cache(maxsize=4096)
def _operator_form(op_type: str, domain: str, version: int) -> _Form | None:
    if not onnx.defs.has(op_type, domain):
        return None
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:  # not in this version: runtimes knew some operators before ONNX did
        schema = onnx.defs.get_schema(op_type, domain)
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    return _Form(
        tuple(index for index, formal in enumerate(schema.inputs) if formal.option == single),
        schema.min_output,
        {name: int(attribute.type) for name, attribute in schema.attributes.items()},  # type: ignore[call-overload]
        tuple(name for name, attribute in schema.attributes.items() if attribute.required),
    )


def _missing_part(node: Node) -> str:
    """Return the part that a node lacks to fit its operator, "" for none or if onnx does not know the operator."""
    version = node.scope.opset(node.domain)
    form = _operator_form(node.op_type, node.domain, version) if 0 < version < 1 << 31 else None
    if form is None:
        return ""
    for index in form.inputs:
        if not isinstance(node.input(index), Value):
            return f"lacks input {index}"
    if len(node.outputs) < form.outputs:
        return f"has {len(node.outputs)} outputs and needs {form.outputs}"
    for name in form.required:
        if name not in node.attributes:
            return f"lacks its attribute '{name}'"
    values = VALUES & node.attributes.keys()
    if node.is_op("Constant") and len(values) != 1:
        return f"has {len(values)} values and needs 1"
    for name, attribute in node.attributes.items():
        if attribute.type != form.kinds.get(name, attribute.type):
            return f"has an attribute '{name}' of another kind"
    return ""
