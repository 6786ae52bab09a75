"""A model as terms: what its values stand for, and which nodes run under which conditions."""

from __future__ import annotations

from dataclasses import dataclass, field

from graphkit.graph.view import Node, Scope, Value
from graphkit.model import Model
from graphkit.verify.equivalence.application import Application
from graphkit.verify.equivalence.terms import Key, Term

__all__ = ["Context", "Reading", "Run"]

Context = tuple[tuple[Term, str], ...]  # the conditions under which a node runs, outermost first


@dataclass(frozen=True, eq=False)
class Run:
    """A node that runs under conditions.

    Attributes:
        raw: Its term before any axiom.
        normal: Its term in normal form.
    """

    context: Context
    raw: Term
    application: Application
    normal: Term

    @property
    def core(self) -> Term:
        """The normal form without the Reshape around it."""
        inner = self.normal.args[0] if self.normal.op == "Reshape" else None
        return self.normal if inner is None else inner


@dataclass
class Reading:
    """A model as terms.

    Attributes:
        outputs: The terms of the graph's outputs, by name.
        runs: Each node that runs.
        unread: Branches that never run.
        nodes: Those that run, of all scopes.
        attributes: Their attributes, but for those of constants and of an If.
    """

    model: Model
    outputs: dict[str, Term] = field(default_factory=dict)
    values: dict[Value, Term] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    unread: list[Scope] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    attributes: dict[Node, Key] = field(default_factory=dict)
