"""Preconditions of attention: keys, values, masks and caches fit together, and tables are long enough.

Source: onnxruntime's contrib operators (docs/ContribOperators.md) and what its CPU kernels check.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from graphkit.constraints.precondition import Ints, Precondition, Violation, failing, named
from graphkit.constraints.rules.common import PreconditionRule, integers, most, same
from graphkit.shapes import Expr, const, is_known
from graphkit.shapes.node_view import NodeView

__all__ = ["RULES"]


@dataclass(frozen=True)
class Cached(Precondition):
    """Total, past and new positions of a GroupQueryAttention: the total is their sum, or fits into a static cache."""

    total: Expr
    past: Expr
    new: Expr

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return self.total, self.past, self.new

    def outcome(self, values: Sequence[Ints]) -> Ints:
        total, past, new = values
        return failing((total != past + new) & ((new > total) | (total > past)))

    def violation(self, values: Sequence[int]) -> Violation:
        total, past, new = (named(expr, value) for expr, value in zip(self.exprs, values, strict=True))
        return Violation(
            f"total, past and new positions that do not go together: {total}, {past}, {new}",
            "total_sequence_length must",
        )

    def equalities(self) -> tuple[tuple[Expr, Expr], ...]:
        return ((self.total, self.past + self.new),)


@dataclass(frozen=True)
class OneByOne(Precondition):
    """A GroupQueryAttention takes several new positions after a past for a single sequence only."""

    batch: Expr
    new: Expr
    total: Expr

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return self.batch, self.new, self.total

    def outcome(self, values: Sequence[Ints]) -> Ints:
        batch, new, total = values
        return failing((batch > 1) & (new > 1) & (total != new))

    def violation(self, values: Sequence[int]) -> Violation:
        batch, new, total = values
        return Violation(f"{new} new positions of {total} in a batch of {batch}", "batch_size must be 1")


def grouped(view: NodeView) -> Iterator[Precondition]:
    """GroupQueryAttention(query, key, value, past_key, past_value, lengths, total_length, cos_cache, sin_cache)."""
    query, (total,) = view.dims(0), integers(view, 6)
    past = view.dims(3)[2] if view.has(3) else const(0)
    new = view.dims(1)[1] if view.has(1) and len(view.dims(1)) == 3 else query[1]
    if not all(map(is_known, (query[0], total, past, new))):
        return
    if not view.attr("sliding_window_cache", 0):
        yield Cached(total, past, new)
    yield OneByOne(query[0], query[1], total)
    if view.attr("do_rotary", 0) and view.has(7):
        yield from table(total, view.dims(7)[0], "cos_cache dimension 0")


def table(length: Expr, end: Expr, says: str) -> Iterator[Precondition]:
    """Yield the precondition that a table of positions is long enough."""
    yield from most(length, end, "more positions than the table has", says)


def rotary(view: NodeView) -> Iterator[Precondition]:
    """com.microsoft RotaryEmbedding(input, position_ids, cos_cache, sin_cache)."""
    dims = view.dims(0)
    yield from table(dims[1] if len(dims) == 3 else dims[2], view.dims(2)[0], "cos_cache")


def embedding(view: NodeView) -> Iterator[Precondition]:
    """EmbedLayerNormalization(ids, segments, words, positions, ..., position_ids): a table of positions."""
    if not view.has(8):
        yield from table(view.dims(0)[1], view.dims(3)[0], "")


def packed(mask: int, past: int) -> PreconditionRule:
    """Return the rule of com.microsoft Attention and QAttention: a mask of rank 2 spans past and new positions."""

    def attention(view: NodeView) -> Iterator[Precondition]:
        if not view.has(mask) or len(view.dims(mask)) != 2 or view.attr("past_present_share_buffer", 0):
            return
        before = view.dims(past)[3] if view.has(past) else const(0)
        total = before + view.dims(0)[1]
        yield from same(
            view.dims(mask)[1], total, "the lengths of the mask, and of past and new together,", "mask_index"
        )

    return attention


def attention(view: NodeView) -> Iterator[Precondition]:
    """Attention of opset 23: as many values as keys."""
    lengths = [dims[2] if len(dims) == 4 else dims[1] for dims in (view.dims(1), view.dims(2))]
    yield from same(lengths[0], lengths[1], "the lengths of keys and values", "inconsistent kv_sequence_length")


RULES: Mapping[str, PreconditionRule] = {
    "Attention": attention,
    "com.microsoft.Attention": packed(3, 4),
    "com.microsoft.QAttention": packed(5, 8),
    "com.microsoft.GroupQueryAttention": grouped,
    "com.microsoft.RotaryEmbedding": rotary,
    "com.microsoft.EmbedLayerNormalization": embedding,
}
