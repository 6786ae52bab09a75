"""Find a value or a node of a model's main graph by the name that a user gives."""

from __future__ import annotations

from collections.abc import Iterable

from graphkit.errors import UsageError
from graphkit.graph.names import counted
from graphkit.graph.view import Node, Scope, Value, all_scopes
from graphkit.suggest import did_you_mean

__all__ = ["find_value", "find_value_or_node"]


def find_value(scopes: tuple[Scope, ...], name: str, label: str) -> Value:
    """Return a value of the main graph.

    Raises:
        UsageError: There is none of that name.
    """
    value = scopes[0].values.get(name)
    if value is None:
        raise _missing(scopes, name, label, "value", list(scopes[0].values))
    return value


def find_value_or_node(scopes: tuple[Scope, ...], name: str, label: str) -> Value | Node:
    """Return the value of the main graph that has a name, else the node.

    Raises:
        UsageError: There is neither, or several nodes have that name.
    """
    main = scopes[0]
    if name in main.values:
        return main.values[name]
    nodes = [node for node in main.nodes if name and node.proto.name == name]
    if len(nodes) > 1:
        raise UsageError(f"{label}: {counted(len(nodes), 'node(s)')} have the name '{name}' - name a value instead")
    if not nodes:
        names = [*main.values, *(node.proto.name for node in main.nodes)]
        raise _missing(scopes, name, label, "value or node", names)
    return nodes[0]


def _missing(scopes: tuple[Scope, ...], name: str, label: str, what: str, names: Iterable[str]) -> UsageError:
    inside = next((scope for scope in all_scopes(scopes) if scope is not scopes[0] and _defines(scope, name)), None)
    if inside is None:
        hint = did_you_mean(name, names, "`graphkit shapes` lists the values")
        return UsageError(f"{label}: there is no {what} '{name}' - {hint}")
    if inside in scopes or not scopes[0].contains(inside):
        hint = "put functions into the graph first: graphkit rewrite -p inline-functions"
        return UsageError(f"{label}: '{name}' is in the {inside.path.split('/')[0]}, not in the main graph - {hint}")
    owner = inside.owner
    kind = owner.op_type if owner is not None else "node"
    hint = "name an output of that node"
    if kind == "If":
        hint += ", or take one branch first: graphkit rewrite -p inline-constant-if, specialize-input, or split-merged"
    return UsageError(f"{label}: '{name}' is in the body '{inside.path}' of a node {kind}, which may not run - {hint}")


def _defines(scope: Scope, name: str) -> bool:
    return name in scope.values or any(node.proto.name == name for node in scope.nodes if name)
