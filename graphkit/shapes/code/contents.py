"""The contents of a shape program, from which its JSON and its functions are written."""

from __future__ import annotations

from dataclasses import dataclass

from graphkit.shapes.expr import Expr
from graphkit.shapes.relations import Relation
from graphkit.shapes.shape_operand_uses import Consumer
from graphkit.shapes.sources import Source, Unread

__all__ = ["Input", "ProgramContents"]


@dataclass(frozen=True)
class Input:
    """A graph input that the caller must give.

    Attributes:
        dims: Expressions in the symbols, with None for each dim that may be any number (its name starts with `?`).
            None if the input is not a tensor or its rank is unknown.
    """

    name: str
    dims: tuple[Expr | None, ...] | None


@dataclass(frozen=True)
class ProgramContents:
    """All shape consumers of a model, in file order, and where the symbols in their expressions are read.

    Attributes:
        inputs: The graph inputs without a default.
        sources: Where each symbol is read, in an order in which each needs only those before it.
        unread: Symbols that no shape of an input gives. A generated function does not know expressions with them.
        conditions: What must hold for the main graph to run. Bodies may have further ones.
        consumers: The nodes. What a body's node reads holds where the body runs.
    """

    model: str
    inputs: tuple[Input, ...]
    sources: tuple[Source, ...]
    unread: tuple[Unread, ...]
    conditions: tuple[Relation, ...]
    consumers: tuple[Consumer, ...]
