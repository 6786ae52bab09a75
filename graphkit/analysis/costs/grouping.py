"""Groups of nodes whose costs are told together: by node, operator, module, or repeated layer."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping

from graphkit.graph.names import SCOPES_KEY
from graphkit.graph.view import Node
from graphkit.options import By

__all__ = ["OUTSIDE", "group_of"]

OUTSIDE = "(no module)"  # of nodes whose names tell no module
NUMBERED = re.compile(r".*?[./]?\b\w*[./]\d{1,9}(?=[./]|$)")  # up to the first number: `/model/layers.0`, `h.0`


def group_of(node: Node, by: By) -> str:
    """Return the name of the group that a node belongs to."""
    return _GROUPS[by](node)


def _module(node: Node) -> str:
    """Return the module that a node was exported from: by the exporter's metadata, else by the start of its name."""
    for entry in node.proto.metadata_props:
        if entry.key == SCOPES_KEY and (scopes := _scopes(entry.value)):
            return scopes[-2] or OUTSIDE
    return str(node.proto.name).rpartition("/")[0] or OUTSIDE


def _scopes(text: str) -> list[str]:
    """Return the names of the modules around a node, and of the node itself, as torch writes them."""
    try:
        scopes = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    return [str(scope) for scope in scopes] if isinstance(scopes, list) and len(scopes) > 1 else []


def _layer(node: Node) -> str:
    """Return the module up to its first number; a module without one counts as its own."""
    module = _module(node)
    match = NUMBERED.match(module)
    return match[0] if match is not None else module


_GROUPS: Mapping[By, Callable[[Node], str]] = {
    "layer": _layer,
    "module": _module,
    "op": lambda node: node.operator,
    "node": lambda node: node.path,
}
