"""The one way in which a matcher says that a rewrite does not apply to a node."""

from __future__ import annotations

from graphkit.graph.view import Node

__all__ = ["MatchFailure"]


class MatchFailure(Exception):
    """A rewrite does not apply to a node. Matchers raise it, and the editor records it among the declined nodes.

    Attributes:
        reason: Why the node stays, for the user; "" where nobody would expect it to change.
        node: The node that stays, None for the one that is being rewritten.
    """

    def __init__(self, reason: str = "", node: Node | None = None) -> None:
        super().__init__(reason)
        self.reason, self.node = reason, node
