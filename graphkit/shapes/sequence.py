"""The known facts of a sequence of tensors: each tensor, or those that all have in common."""

from __future__ import annotations

from dataclasses import dataclass

from graphkit.shapes.expr import Expr
from graphkit.shapes.tensor import Tensor, unknown

__all__ = ["Common", "TensorSequence", "agreed", "joined", "union"]


@dataclass(frozen=True, slots=True)
class Common:
    """The facts that the tensors of a sequence have in common.

    Attributes:
        dtype: TensorProto.DataType, 0 if unknown.
        dims: None for each dim in which they may differ; None if their ranks may differ.
    """

    dtype: int
    dims: tuple[Expr | None, ...] | None


class TensorSequence(Tensor):
    """The known facts of a sequence, which has neither dims nor elements of its own.

    Attributes:
        items: Its tensors, None if their number is not known.
        common: What all of them have in common, None if the sequence is empty.
        length: Their number, None if that is not known.
    """

    __slots__ = ("common", "items", "length")

    def __init__(self, items: tuple[Tensor, ...] | None, common: Common | None, length: Expr | None) -> None:
        super().__init__(0, None, None, "it is a sequence of tensors")
        self.items, self.common, self.length = items, common, length

    @classmethod
    def of(cls, items: tuple[Tensor, ...]) -> TensorSequence:
        """Return the sequence of these tensors."""
        shared: Common | None = None
        for item in items:
            shared = union(shared, Common(item.dtype, item.dims))
        return cls(items, shared, Expr.of(len(items)))

    def opened(self) -> TensorSequence:
        """Return it without its single tensors, as the state of a loop."""
        return TensorSequence(None, self.common, self.length)

    def is_like(self, other: Tensor) -> bool:
        """Whether as much is known of another one, single tensors apart."""
        return isinstance(other, TensorSequence) and (self.common, self.length) == (other.common, other.length)


def joined(left: TensorSequence, right: TensorSequence) -> TensorSequence:
    """Return the facts of a sequence that is one of two."""
    length = left.length if left.length == right.length else None
    return TensorSequence(None, union(left.common, right.common), length)


def union(left: Common | None, right: Common | None) -> Common | None:
    """Return the facts that tensors of either kind have in common."""
    if left is None or right is None:
        return right if left is None else left
    dtype = left.dtype if left.dtype == right.dtype else 0
    if left.dims is None or right.dims is None or len(left.dims) != len(right.dims):
        return Common(dtype, None)
    return Common(dtype, tuple(a if a == b else None for a, b in zip(left.dims, right.dims, strict=True)))


def agreed(before: Tensor, now: Tensor) -> Tensor:
    """Return the facts that two calls of a function agree on, for tensors or sequences."""
    if isinstance(before, TensorSequence) and isinstance(now, TensorSequence):
        return joined(before, now)
    if isinstance(now, TensorSequence):
        return unknown("the calls of the function differ")
    if before.dims != now.dims:
        return unknown("the calls of the function differ", now.dtype)
    if not (before.may_have_data or now.may_have_data):
        return now
    if before.may_have_data and now.may_have_data and before.elements == now.elements:
        return now
    return Tensor(now.dtype, now.dims, None, "the calls of the function differ")
