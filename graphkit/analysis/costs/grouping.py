"""Groups of nodes whose costs are told together: by node, operator, module, or repeated layer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from graphkit.graph.names import module_of
from graphkit.graph.view import Node
from graphkit.options import By

__all__ = ["OUTSIDE", "group_of"]

OUTSIDE = "(no module)"  # of nodes whose names tell no module
NUMBERED = re.compile(r".*?[./]?\b\w*[./]\d{1,9}(?=[./]|$)")  # up to the first number: `model/layers.0`, `h.0`


def group_of(node: Node, by: By) -> str:
    """Return the name of the group that a node belongs to."""
    return _GROUPS[by](node)


def _module(node: Node) -> str:
    return module_of(node) or OUTSIDE


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
