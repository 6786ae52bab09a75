"""What attention needs: lengths of keys, values, masks and caches that go together, and tables that are long enough.

Source: onnxruntime's contrib operators (docs/ContribOperators.md) and what its CPU kernels check.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.needs.common import NeedRule, integers, same
from graphkit.needs.need import FAILS, Fit, Ints, Need, Trouble, named
from graphkit.shapes import Expr, const, is_known, lower
from graphkit.shapes.site import Site

__all__ = ["RULES"]


@dataclass(frozen=True)
class Cached(Need):
    """Total, past and new positions of a GroupQueryAttention: the total is their sum, or fits into a static cache."""

    total: Expr
    past: Expr
    new: Expr

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return self.total, self.past, self.new

    def outcome(self, values: Sequence[Ints]) -> Ints:
        total, past, new = values
        return np.where((total == past + new) | ((new <= total) & (total <= past)), 0, FAILS)

    def trouble(self, values: Sequence[int]) -> Trouble:
        total, past, new = (named(expr, value) for expr, value in zip(self.exprs, values, strict=True))
        return Trouble(
            f"total, past and new positions that do not go together: {total}, {past}, {new}",
            "total_sequence_length must",
        )

    def equalities(self) -> tuple[tuple[Expr, Expr], ...]:
        return ((self.total, self.past + self.new),)


@dataclass(frozen=True)
class OneByOne(Need):
    """Several new positions after a past, which a GroupQueryAttention takes of one sequence only."""

    batch: Expr
    new: Expr
    total: Expr

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return self.batch, self.new, self.total

    def outcome(self, values: Sequence[Ints]) -> Ints:
        batch, new, total = values
        return np.where((batch > 1) & (new > 1) & (total != new), FAILS, 0)

    def trouble(self, values: Sequence[int]) -> Trouble:
        batch, new, total = values
        return Trouble(f"{new} new positions of {total} in a batch of {batch}", "batch_size must be 1")


def grouped(site: Site) -> Iterator[Need]:
    """GroupQueryAttention(query, key, value, past_key, past_value, lengths, total_length, cos_cache, sin_cache)."""
    query, (total,) = site.dims(0), integers(site, 6)
    past = site.dims(3)[2] if site.has(3) else const(0)
    new = site.dims(1)[1] if site.has(1) and len(site.dims(1)) == 3 else query[1]
    if not all(map(is_known, (query[0], total, past, new))):
        return
    if not site.integer("sliding_window_cache", 0):
        yield Cached(total, past, new)
    yield OneByOne(query[0], query[1], total)
    if site.integer("do_rotary", 0) and site.has(7):
        yield from table(total, site.dims(7)[0], "cos_cache dimension 0")


def table(length: Expr, most: Expr, says: str) -> Iterator[Need]:
    """Yield the need that a table of positions is long enough."""
    if is_known(length) and is_known(most) and lower(most - length) < 0:
        yield Fit(length, most, "more positions than the table has", says)


def rotary(site: Site) -> Iterator[Need]:
    """com.microsoft RotaryEmbedding(input, position_ids, cos_cache, sin_cache)."""
    dims = site.dims(0)
    yield from table(dims[1] if len(dims) == 3 else dims[2], site.dims(2)[0], "cos_cache")


def embedding(site: Site) -> Iterator[Need]:
    """EmbedLayerNormalization(ids, segments, words, positions, ..., position_ids): a table of positions."""
    if not site.has(8):
        yield from table(site.dims(0)[1], site.dims(3)[0], "")


def packed(mask: int, past: int) -> NeedRule:
    """Return the rule of com.microsoft Attention and QAttention: a mask of rank 2 spans past and new positions."""

    def attention(site: Site) -> Iterator[Need]:
        if not site.has(mask) or len(site.dims(mask)) != 2 or site.integer("past_present_share_buffer", 0):
            return
        before = site.dims(past)[3] if site.has(past) else const(0)
        total = before + site.dims(0)[1]
        yield from same(
            site.dims(mask)[1], total, "the lengths of the mask, and of past and new together,", "mask_index"
        )

    return attention


def attention(site: Site) -> Iterator[Need]:
    """Attention of opset 23: as many values as keys."""
    lengths = [dims[2] if len(dims) == 4 else dims[1] for dims in (site.dims(1), site.dims(2))]
    yield from same(lengths[0], lengths[1], "the lengths of keys and values", "inconsistent kv_sequence_length")


RULES: Mapping[str, NeedRule] = {
    "Attention": attention,
    "com.microsoft.Attention": packed(3, 4),
    "com.microsoft.QAttention": packed(5, 8),
    "com.microsoft.GroupQueryAttention": grouped,
    "com.microsoft.RotaryEmbedding": rotary,
    "com.microsoft.EmbedLayerNormalization": embedding,
}
