"""Helpers of the rules of preconditions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from graphkit.constraints.broadcast import Broadcast
from graphkit.constraints.precondition import Precondition, Related
from graphkit.shapes import Expr, Relation, is_known, lower
from graphkit.shapes.node_view import NodeView
from graphkit.shapes.tensor import Dims

__all__ = ["PreconditionRule", "broadcast", "integers", "least", "most", "same"]

PreconditionRule = Callable[[NodeView], Iterator[Precondition]]
BROADCAST = "broadcast"


def least(expr: Expr, number: int, what: str, says: str) -> Iterator[Precondition]:
    """Yield the precondition that an expression is at least a number, unless it always is."""
    if is_known(expr) and lower(expr) < number and expr.constant is None:
        yield Related(Relation.at_least(expr, number), what, says)


def same(left: Expr, right: Expr, what: str, says: str) -> Iterator[Precondition]:
    """Yield the precondition that two dims are equal, unless they always are."""
    if left != right and is_known(left) and is_known(right):
        yield Related(Relation.equal(left, right), what, says)


def most(expr: Expr, limit: Expr, what: str, says: str) -> Iterator[Precondition]:
    """Yield the precondition that an expression is at most another one, unless it always is."""
    if is_known(expr) and is_known(limit) and lower(limit - expr) < 0:
        yield Related(Relation.at_most(expr, limit), what, says)


def integers(view: NodeView, index: int) -> list[Expr]:
    """Return the elements of an integer input.

    Raises:
        UnknownError: The elements are not known.
    """
    return [Expr.of(element) for element in view.values(index) if isinstance(element, (int, Expr))]


def broadcast(shapes: Sequence[Dims], says: str = BROADCAST) -> Iterator[Precondition]:
    """Yield the preconditions that dims broadcast."""
    if all(dims == shapes[0] for dims in shapes[1:]):
        return
    for place in range(1, max(map(len, shapes), default=0) + 1):
        found = dict.fromkeys(dims[-place] for dims in shapes if len(dims) >= place)
        sizes = tuple(dim for dim in found if dim != 1)
        if len(sizes) > 1 and all(map(is_known, sizes)):
            yield Broadcast(sizes, says)
