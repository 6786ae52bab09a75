"""Normal forms of operators that only move elements: Reshape, Transpose, Expand, Slice and Concat, each as one.

A Reshape is known by its output dims alone, so that nested ones are one, and so are Squeeze, Unsqueeze and Flatten. A
Transpose moves the longest runs of axes that stay together, dims of 1 left out, so that one that moves only 1s is a
Reshape, and merged batch dims make no difference. All of this is exact: bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.equivalence.terms import Constants, Term, Terms, without_reshape
from graphkit.ops.tensor import Dims, dims_product, sizes_of
from graphkit.shapes import Expr, const, lower, upper
from graphkit.symbolic.algebra import divide_exactly, exact_quotient

MAX_PARTS = 64  # of a Concat inside another one: Concats of themselves would have 2 to the power of their number
JOINED = (1,)  # the axis of a Concat, whose axes before and behind are merged


class Movement:
    """Makes terms that only move elements."""

    def __init__(self, terms: Terms, constants: Constants) -> None:
        self.terms, self.constants = terms, constants

    def reshape(self, term: Term, dims: Dims) -> Term:
        """Return a term with other dims and the same elements in the same order."""
        if (copies := self._match_copies(term, dims)) is not None:
            return copies
        if term.dims == dims:
            return term
        if term.op == "Reshape":
            return self.reshape(term.args[0], dims)  # type: ignore[arg-type]
        if term.is_constant and (made := self.constants.reshape_constant(term, dims)) is not None:
            return made
        if term.op == "Elements" and (sizes := sizes_of(dims)) is not None:
            return self.terms.make("Elements", (term.dtype, sizes, term.attributes[2]), (), term.dtype, sizes)
        return self.terms.make("Reshape", dims, (term,), term.dtype, dims)

    def _match_copies(self, term: Term, dims: Dims) -> Term | None:
        """Return copies that a Concat joins and a Reshape parts again, as an Expand: heads that several queries share.

        None for any other term.
        """
        if term.op != "Concat" or term.attributes != JOINED or term.dims is None:
            return None
        outer, _, behind = term.dims
        parts = [part for part in term.args if part is not None]
        for period in range(1, len(parts) // 2 + 1):  # a copy may be a Concat itself, of which the parts are here
            count, rest = divmod(len(parts), period)
            if rest or parts != parts[:period] * count:
                continue
            if all(dims_product(dims[:axis]) != outer * count for axis in range(len(dims) + 1)):
                continue
            length = sum((part.dims[1] for part in parts[:period] if part.dims is not None), const(0))
            once, row = self.concat(parts[:period], 1, (outer, length, behind)), length * behind
            repeated = self.expand(self.reshape(once, (outer, const(1), row)), (outer, const(count), row))
            return self.reshape(repeated, dims)
        return None

    def transpose(self, term: Term, perm: Sequence[int]) -> Term:
        """Return a term with its axes in another order; its dims must be known."""
        if list(perm) == sorted(perm):
            return term
        if (composed := self._compose_transposes(term, perm)) is not None:
            return composed
        if (joined := self.joined_parts(term)) is not None:
            parts = [self.transpose(part, perm) for part in joined[1]]
            return self.concat(parts, list(perm).index(joined[0]), tuple(term.shape[old] for old in perm))
        dims = tuple(term.shape[axis] for axis in perm)
        long = [axis for axis in perm if term.shape[axis] != 1]
        if long == sorted(long):
            return self.reshape(term, dims)
        runs: list[list[int]] = []
        for axis in long:
            last = runs[-1][-1] if runs else axis
            if last < axis and all(dim == 1 for dim in term.shape[last + 1 : axis]):
                runs[-1].append(axis)
            else:
                runs.append([axis])
        order = sorted(range(len(runs)), key=lambda index: runs[index][0])
        merged = tuple(dims_product([term.shape[axis] for axis in runs[index]]) for index in order)
        moved = tuple(order.index(index) for index in range(len(runs)))
        inner = self.reshape(term, merged)
        made = self.terms.make("Transpose", moved, (inner,), term.dtype, [merged[axis] for axis in moved])
        return self.reshape(made, dims)

    def _compose_transposes(self, term: Term, perm: Sequence[int]) -> Term | None:
        """Return a Transpose of a Transpose, with Reshapes between them that only merge or split axes, as one."""
        inner = without_reshape(term)
        if inner is None or inner.op != "Transpose" or term.dims is None or inner.dims is None:
            return None
        aligned, source = align_dims(inner.dims, term.dims), inner.args[0]
        if aligned is None or source is None:
            return None
        fine, runs, others = aligned
        order: Sequence[int] = inner.attributes  # type: ignore[assignment]
        by_source = {axis: runs[index] for index, axis in enumerate(order)}
        listed = [axis for index in range(len(order)) for axis in by_source[index]]  # fine axes in the source's order
        split = self.reshape(source, tuple(fine[axis] for axis in listed))
        moved = self.transpose(split, [listed.index(axis) for old in perm for axis in others[old]])
        return self.reshape(moved, tuple(term.dims[axis] for axis in perm))

    def expand(self, term: Term, dims: Dims) -> Term:
        """Return a term repeated along dims of 1, leading ones included."""
        if term.shape == dims:
            return term
        if (bare := self.without_expand(term)) is not term and bare.dims is not None:
            term = bare
        if term.is_constant and (made := self.constants.expand_constant(term, dims)) is not None:
            return made
        groups = group_axes([term.shape], dims)
        merged = tuple(dims_product([dims[axis] for axis in axes]) for _, axes in groups)
        source = self.without_leading_ones(self.reshape(term, merge_grouped_dims(term.shape, dims, groups)))
        if source.dims == merged:
            return self.reshape(source, dims)
        return self.reshape(self.terms.make("Expand", merged, (source,), term.dtype, merged), dims)

    def without_expand(self, term: Term) -> Term:
        """Return a term without the Expand in it: with dims of 1 where that repeats it."""
        if term.is_constant:
            return self.constants.without_repeats(term)
        inner = without_reshape(term)
        if inner is None or inner.op != "Expand" or inner.dims is None or term.dims is None:
            return term
        source, aligned = inner.args[0], align_dims(inner.dims, term.dims)
        if aligned is None or source is None or source.dims is None or not expands_to(source.dims, inner.dims):
            return term
        _, runs, others = aligned
        if any(len(parts) > 1 for parts in others):  # an axis of the term is several of the Expand
            return term
        padded = (const(1),) * (len(inner.dims) - len(source.dims)) + source.dims
        pairs = zip(runs, padded, inner.dims, strict=True)
        repeated = {part for run, dim, whole in pairs if dim != whole for part in run}
        axes = zip(term.dims, others, strict=True)
        return self.reshape(source, tuple(dim if repeated.isdisjoint(parts) else const(1) for dim, parts in axes))

    def without_leading_ones(self, term: Term) -> Term:
        """Return a term without the leading dims of 1 that broadcasting makes anyway."""
        first = leading_ones(term.shape)
        return self.reshape(term, term.shape[first:]) if first else term

    def slice(self, term: Term, axis: int, start: Expr, length: Expr) -> Term:
        """Return the elements from a start on along an axis; both must lie in it."""
        if length == term.shape[axis]:
            return term
        dims = _with_dim(term.shape, axis, length)
        if (cut := self._cut_term(term, axis)) is not None:
            return self.reshape(self.slice(cut[0], 1, cut[1] + start, length), dims)
        if (made := self._cut_parts(term, axis, start, length, dims)) is not None:
            return made
        line = without_reshape(term)
        if line is not None and line.op == "Count" and line.dims == (term.shape[axis],):
            first = line.attributes[1]
            assert isinstance(first, Expr)
            later = self.terms.make("Count", (line.dtype, first + start, length), (), line.dtype, (length,))
            return self.reshape(later, dims)
        if term.is_constant and (made := self.constants.slice_constant(term, axis, start, length)) is not None:
            return made
        return self.cut_axis(term, axis, "Slice", (start, length))

    def cut_axis(self, term: Term, axis: int, op: str, taken: tuple[Expr, Expr] | tuple[Expr, Expr, int]) -> Term:
        """Return elements along an axis: the first, how many there are, and of every so many elements the step."""
        around = merge_around(term.shape, axis)
        made = self.terms.make(op, taken, (self.reshape(term, around),), term.dtype, _with_dim(around, 1, taken[1]))
        return self.reshape(made, _with_dim(term.shape, axis, taken[1]))

    def _cut_term(self, term: Term, axis: int) -> tuple[Term, Expr, Expr] | None:
        """Return the term that a Slice along an axis cuts, its axes before and behind merged, where, and how long."""
        inner = without_reshape(term)
        if inner is None or inner.op != "Slice" or term.dims is None or (source := inner.args[0]) is None:
            return None
        if inner.dims != merge_around(term.dims, axis):
            return None
        match inner.attributes:
            case (Expr() as start, Expr() as length):
                return source, start, length
        return None  # a node that is no known Slice

    def _cut_parts(self, term: Term, axis: int, start: Expr, length: Expr, dims: Dims) -> Term | None:
        """Return the parts that a cut of a Concat takes, where these are whole, or it lies in one."""
        if (joined := self.joined_parts(term)) is None or joined[0] != axis:
            return None
        offset, chosen = const(0), list[Term]()
        for part in joined[1]:
            size = part.shape[axis]
            if not chosen and is_within(start - offset, length, size):
                return self.slice(part, axis, start - offset, length)
            if chosen or offset == start:
                chosen.append(part)
            offset = offset + size
            if chosen and offset == start + length:
                return self.concat(chosen, axis, dims)
        return None

    def joined_parts(self, term: Term) -> tuple[int, list[Term]] | None:
        """Return the axis along which a Concat joins, and its parts; None for any other term."""
        inner = without_reshape(term)
        if inner is None or inner.op != "Concat" or inner.attributes != JOINED or inner.dims is None:
            return None
        dims = term.dims or ()
        for axis, dim in enumerate(dims):
            if dim == inner.dims[1] and merge_around(dims, axis) == inner.dims:
                parts = [part for part in inner.args if part is not None and part.dims is not None]
                return axis, [self.reshape(part, _with_dim(dims, axis, part.dims[1])) for part in parts if part.dims]
        return None

    def concat(self, parts: Sequence[Term], axis: int, dims: Dims | None) -> Term:
        """Return parts joined along an axis, nested ones as one, without those that are empty.

        The axes before it are one, and so are those behind it.
        """
        listed: list[Term] = []
        for part in parts:
            made = without_reshape(part)
            is_long = made is not None and made.op == "Concat" and len(made.args) > MAX_PARTS
            inner = None if is_long else self.joined_parts(part)
            for each in [part] if inner is None or inner[0] != axis else inner[1]:
                if dims is not None and each.dims == _with_dim(dims, axis, const(0)):
                    continue
                if listed and (joined := self._join_neighbours(listed[-1], each, axis)) is not None:
                    listed[-1] = joined
                else:
                    listed.append(each)
        if len(listed) == 1 and (dims is None or listed[0].dims == dims):
            return listed[0]
        others = {None if part.dims is None else _with_dim(part.dims, axis, const(0)) for part in listed}
        if dims is None or others != {_with_dim(dims, axis, const(0))}:
            return self.terms.make("Concat", (axis, "of other dims"), listed or parts, parts[0].dtype, dims)
        merged = [self.reshape(part, merge_around(part.shape, axis)) for part in listed]
        made = self.terms.make("Concat", JOINED, merged, listed[0].dtype, merge_around(dims, axis))
        return self.reshape(made, dims)

    def _join_neighbours(self, before: Term, behind: Term, axis: int) -> Term | None:
        """Return two Slices as one, None where they are not neighbours in one term."""
        one, other = self._cut_term(before, axis), self._cut_term(behind, axis)
        if one is None or other is None or one[0] is not other[0] or one[1] + one[2] != other[1]:
            return None
        length = one[2] + other[2]
        return self.reshape(self.slice(one[0], 1, one[1], length), _with_dim(before.shape, axis, length))


def leading_ones(dims: Dims) -> int:
    """Return how many dims of 1 come first, which broadcasting makes anyway."""
    return next((axis for axis, dim in enumerate(dims) if dim != 1), len(dims))


def merge_around(dims: Dims, axis: int) -> Dims:
    """Return an axis of dims, with all axes before it as one, and all behind it."""
    return dims_product(dims[:axis]), dims[axis], dims_product(dims[axis + 1 :])


def _with_dim(dims: Dims, axis: int, dim: Expr) -> Dims:
    return (*dims[:axis], dim, *dims[axis + 1 :])


def align_dims(left: Dims, right: Dims) -> tuple[list[Expr], list[list[int]], list[list[int]]] | None:
    """Return axes that each axis of both is made of, and which ones; None where they do not come out even."""
    long = [[axis for axis, dim in enumerate(dims) if dim != 1][::-1] for dims in (left, right)]
    fine: list[Expr] = []
    found: list[list[list[int]]] = [[[] for _ in left], [[] for _ in right]]
    rest = [[dims[axis] for axis in axes] for dims, axes in zip((left, right), long, strict=True)]
    while all(rest):
        one, other = rest[0][-1], rest[1][-1]
        pairs = ((one, other), (other, one))
        both = (each for each, whole in pairs if each == whole or exact_quotient(whole, each) is not None)
        if (part := next(both, None)) is None:
            return None
        for axes, dims, known in zip(long, rest, found, strict=True):
            known[axes[-1]].append(len(fine))
            dims[-1] = const(1) if dims[-1] == part else divide_exactly(dims[-1], part)
            if dims[-1] == 1:
                del dims[-1], axes[-1]
        fine.append(part)
    return None if any(rest) else (fine, found[0], found[1])


def group_axes(shapes: Sequence[Dims], whole: Dims) -> list[tuple[tuple[bool, ...], list[int]]]:
    """Return the axes that may be one, as the same shapes broadcast along them; dims of 1 are left out.

    An axis stays alone where a shape broadcasts along it at some sizes only.
    """
    found: list[tuple[tuple[bool, ...], list[int]]] = []
    is_alone = False
    for axis, dim in enumerate(whole):
        if dim == 1:
            continue
        dims = [_dim_from_back(shape, axis - len(whole)) for shape in shapes]
        pattern, before = tuple(each != 1 for each in dims), is_alone
        is_alone = any(each not in (1, dim) for each in dims)
        if found and found[-1][0] == pattern and not is_alone and not before:
            found[-1][1].append(axis)
        else:
            found.append((pattern, [axis]))
    return found


def merge_grouped_dims(dims: Dims, whole: Dims, groups: Sequence[tuple[tuple[bool, ...], list[int]]]) -> Dims:
    """Return dims with the axes of each group as one."""
    return tuple(dims_product([_dim_from_back(dims, axis - len(whole)) for axis in axes]) for _, axes in groups)


def _dim_from_back(dims: Dims, axis: int) -> Expr:
    """Return a dim counted from the back, 1 in front of the first."""
    return dims[axis] if -axis <= len(dims) else const(1)


def expands_to(dims: Dims, target: Dims) -> bool:
    """Whether dims broadcast to others in one way at every size: each is 1, or the same.

    A dim of `n` that an Expand makes 5 is 1 or 5, and it repeats only where it is 1.
    """
    if len(dims) > len(target):
        return False
    return all(dim in (1, other) for dim, other in zip(dims[::-1], target[::-1], strict=False))


def is_within(start: Expr, length: Expr, dim: Expr) -> bool:
    """Whether a cut lies in a dim at every size."""
    return lower(start) >= 0 and lower(length) >= 0 and upper(start + length - dim) <= 0
