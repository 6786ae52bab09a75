"""An Einsum of two tensors as the product of matrices that it is, for each batch: up to rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphkit.shapes.tensor import Dims
from graphkit.verify.equivalence.application import Application
from graphkit.verify.equivalence.movement import Movement, product
from graphkit.verify.equivalence.terms import Term

__all__ = ["Contraction", "contraction"]

ELLIPSIS = "..."


@dataclass(frozen=True)
class Contraction:
    """The operands of a MatMul that computes an Einsum.

    Attributes:
        left, right: The operands, `[batch, rows, inner]` and `[batch, inner, columns]`.
        dims: What each axis of the product is made of: those of the batch, the rows and the columns.
        perm: The axes of the output, by their place in `dims`.
    """

    left: Term
    right: Term
    dims: Dims
    perm: tuple[int, ...]

    @property
    def product(self) -> Dims:
        """The dims of the MatMul."""
        assert self.left.dims is not None
        assert self.right.dims is not None
        return (*self.left.dims[:2], self.right.dims[2])

    def output(self, move: Movement, made: Term) -> Term:
        """Return the output of the Einsum, of the MatMul of its operands."""
        return move.transpose(move.reshape(made, self.dims), self.perm)


def contraction(app: Application) -> Contraction | str | None:
    """Return the operands of the MatMul that an Einsum is, or why it is none."""
    operands, equation = app.args, app.attr("equation", "")
    if len(operands) != 2 or not equation or "->" not in equation:
        return "it is not of two tensors, with its output told"
    terms = [term for term in operands if term is not None and term.dims is not None]
    if len(terms) < 2 or app.dims is None:
        return "some dims are not known"
    inputs, output = equation.replace(" ", "").split("->", 1)
    ranks = [len(term.dims or ()) for term in terms]
    texts = inputs.split(",")
    named = [_labels(text, rank) for text, rank in zip((*texts, output), (*ranks, len(app.dims)), strict=True)]
    left, right, out = named
    if left is None or right is None or out is None or any(len({*each}) < len(each) for each in (left, right, out)):
        return "an axis occurs twice in a tensor"
    sizes = dict(zip(left, terms[0].dims or (), strict=True))
    sizes_right = dict(zip(right, terms[1].dims or (), strict=True))
    if any(sizes[label] != dim for label, dim in sizes_right.items() if label in sizes):
        return "which of its axes broadcast depends on sizes"
    sizes |= sizes_right
    if tuple(sizes.get(label) for label in out) != app.dims:
        return "an axis of its output is in no input"
    inner = [label for label in left if label not in out]
    if {*inner} != {label for label in right if label not in out}:
        return "it sums along an axis of one tensor"
    batch = [label for label in out if label in left and label in right]
    rows = [label for label in out if label not in right]
    columns = [label for label in out if label not in left]

    def moved(term: Term, labels: Sequence[str], parts: Sequence[Sequence[str]]) -> Term:
        move = app.tools.movement
        turned = move.transpose(term, [labels.index(label) for part in parts for label in part])
        return move.reshape(turned, tuple(product([sizes[label] for label in part]) for part in parts))

    order = [*batch, *rows, *columns]
    return Contraction(
        moved(terms[0], left, (batch, rows, inner)),
        moved(terms[1], right, (batch, inner, columns)),
        tuple(sizes[label] for label in order),
        tuple(order.index(label) for label in out),
    )


def _labels(text: str, rank: int) -> list[str] | None:
    """Return a label for each axis, those of an ellipsis counted from its end; None where they do not come out even."""
    before, dots, behind = text.partition(ELLIPSIS)
    letters = [*before, *behind]
    if not all(letter.isascii() and letter.isalpha() for letter in letters):
        return None
    count = rank - len(letters)
    if count < 0 or (count and not dots):
        return None
    return [*before, *(f"{ELLIPSIS}{count - at}" for at in range(count)), *behind]
