"""Linear operators with constant weights in one form, up to rounding: constants beside them are in weights and biases.

What is scaled and shifted by constants, one number or one for each channel, is known as such; a product with a matrix,
a Gemm and a Conv are a `Linear` of data, weight and bias, which takes up what is scaled and shifted before and after.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from graphkit.shapes import Expr, const
from graphkit.shapes.tensor import Dims, sizes_of
from graphkit.verify.equivalence.application import Tools
from graphkit.verify.equivalence.movement import product
from graphkit.verify.equivalence.near_constants import EXACT, Doubt, is_kept, of_product, of_sum
from graphkit.verify.equivalence.scale_and_shift import LEAST_SIZE, Change, Kind, hides
from graphkit.verify.equivalence.term_sizes import scale, size
from graphkit.verify.equivalence.terms import Key, Term, unreshaped

__all__ = ["changed", "columns", "linear", "unscaled"]

WEIGHT, BIAS = "weight", "bias"


def changed(tools: Tools, term: Term, change: Change) -> Term:
    """Return a tensor scaled or shifted, within the linear operator that gives it where there is one."""
    if change.is_nothing:
        return term
    if change.kind == "Scaled" and _is_tiny(tools, term):
        return _made(tools, term, change, is_apart=True)
    return _pushed(tools, term, change) or _made(tools, term, change)


def _made(tools: Tools, term: Term, change: Change, *, is_apart: bool = False) -> Term:
    """Return a tensor scaled or shifted; `is_apart` keeps the change from being put together with another one."""
    assert term.dims is not None
    bare = term if is_apart else tools.movement.unexpanded(term)
    if bare is not term and bare.dims and (change.axis is None or bare.dims[change.axis] == term.dims[change.axis]):
        return tools.movement.expand(changed(tools, bare, change), term.dims)
    constant = tools.near.of_array(change.vector, term.dtype, change.kind, change.doubt)
    dims: Dims = (product(term.dims),)
    if change.axis is not None:
        before, after = product(term.dims[: change.axis]), product(term.dims[change.axis + 1 :])
        dims = (before, term.dims[change.axis], after)
    flat = tools.movement.reshape(term, dims)
    op = f"{change.kind} apart" if is_apart else change.kind
    return tools.movement.reshape(tools.terms.make(op, (), (flat, constant), term.dtype, dims), term.dims)


def _together(tools: Tools, term: Term, change: Change, before: tuple[Term, Change]) -> Term | None:
    """Return a term that was changed before with both changes as one, None where their channels differ.

    What overflows in between, or is lost beside a large number, does not come back.
    """
    source, first = before
    both = change.after(first)
    if both is None:
        return None
    hidden = _hides(tools, source, change) or _hides(tools, source, first)
    if not both.is_moderate(term.dtype) or (change.kind == "Shifted" and hidden):
        return _made(tools, term, change, is_apart=True)
    return changed(tools, source, both)


def _hides(tools: Tools, term: Term, shift: Change) -> bool:
    """Whether a number that is added hides a tensor, which may have been scaled down before."""
    return hides(shift.vector, size(tools, term), term.dtype)


def _is_tiny(tools: Tools, term: Term) -> bool:
    """Whether a tensor may have lost digits as it was scaled down."""
    return scale(tools, term) < LEAST_SIZE[term.dtype]


def _pushed(tools: Tools, term: Term, change: Change) -> Term | None:
    """Return a term with a change inside it, None where it has no place there."""
    move, inner = tools.movement, term.args[0] if term.args else None
    if term.op == change.kind and (found := _parts(tools, term)) is not None:
        return _together(tools, term, change, found)
    if term.op == "Linear":
        return _into_linear(tools, term, change)
    if inner is None or inner.dims is None or term.dims is None:
        return None
    if term.op == "Reshape":
        if inner.op == change.kind and (found := _parts(tools, term)) is not None:
            return _together(tools, term, change, found)
        axis = None if change.axis is None else _same_axis(term.dims, change.axis, inner.dims)
        made = None if (axis is None) != (change.axis is None) else _pushed(tools, inner, change.at(axis))
        return None if made is None else move.reshape(made, term.dims)
    if term.op == "Transpose":
        axis = None if change.axis is None else term.attributes[change.axis]  # type: ignore[assignment]
        made = _pushed(tools, inner, change.at(axis))
        return None if made is None else move.transpose(made, term.attributes)  # type: ignore[arg-type]
    if term.op == "Shifted" and (found := _parts(tools, term)) is not None:  # scaled afterwards
        made = _pushed(tools, found[0], change)
        shift = replace(change, kind="Scaled").after(replace(found[1], kind="Scaled"))
        if made is None or shift is None or not _is_beside(tools, made, shift):
            return None
        return changed(tools, made, replace(shift, kind="Shifted"))
    return None


def _is_beside(tools: Tools, term: Term, shift: Change) -> bool:
    """Whether a number that was scaled is no larger than one that may be added to a term that was scaled too."""
    found = _parts(tools, term)
    scale = 1.0 if found is None or found[1].kind != "Scaled" else float(np.abs(found[1].vector).max())
    return not hides(shift.vector, max(1.0, scale), term.dtype)


def _parts(tools: Tools, term: Term) -> tuple[Term, Change] | None:
    """Return the term that is scaled or shifted, with the dims of the result, and how; None for any other term."""
    inner = unreshaped(term)
    if inner is None or inner.op not in ("Scaled", "Shifted") or inner.dims is None or term.dims is None:
        return None
    source, constant = inner.args
    array = None if constant is None else tools.constants.array(constant)
    if source is None or constant is None or array is None:
        return None
    axis = None
    if array.ndim:
        axis = _same_axis(inner.dims, 1, term.dims)
        if axis is None:
            return None
    kind: Kind = "Scaled" if inner.op == "Scaled" else "Shifted"
    change = Change(kind, array.astype(np.float64), axis, tools.near.doubt_of(constant))
    return tools.movement.reshape(source, term.dims), change


def _same_axis(dims: Dims, axis: int, others: Dims) -> int | None:
    """Return the axis of other dims of the same elements that is an axis of dims."""
    after = product(dims[axis + 1 :])
    found = [at for at, dim in enumerate(others) if dim == dims[axis] and product(others[at + 1 :]) == after]
    return found[0] if len(found) == 1 else None


def _into_linear(tools: Tools, term: Term, change: Change) -> Term | None:
    data, weight, bias = (*term.args, None)[:3]
    assert data is not None
    assert weight is not None
    assert term.dims is not None
    if change.axis not in (None, _channels(term)) or change.vector.size not in (1, _count(term)):
        return None  # the latter in no model that runs
    old = None if bias is None else tools.constants.array(bias)
    numbers = np.zeros(_count(term)) if old is None else old.astype(np.float64)
    array = tools.constants.array(weight)
    if array is None:
        return None
    doubts = tools.near.doubt_of(bias), change.doubt
    if change.kind == "Shifted":
        bias = numbers + change.vector
        small = array.astype(np.float64) * size(tools, data)
        is_lost = _is_lost(term, small, (numbers, change.vector), bias)
        doubt = of_sum(numbers, change.vector, doubts)
        return None if is_lost else _linear(tools, term, data, weight, bias, doubt)
    factor = (
        change.vector
        if term.attributes[0] == "MatMul" or not change.vector.ndim
        else _spread(change.vector, 0, array.ndim)
    )
    products = array.astype(np.float64) * factor
    if not is_kept(products, weight.dtype) or not is_kept(numbers * change.vector, term.dtype):
        return None
    scaled = tools.near.of_array(
        products, weight.dtype, WEIGHT, of_product(array, factor, (tools.near.doubt_of(weight), change.doubt))
    )
    bias_doubt = of_product(numbers, change.vector, doubts)
    return _linear(tools, term, data, scaled, numbers * change.vector, bias_doubt)


def _is_lost(term: Term, weight: np.ndarray, parts: tuple[np.ndarray, np.ndarray], bias: np.ndarray) -> bool:
    """Whether a product is lost beside a number that is added and taken away again: for each column, by its norm."""
    axes = 0 if term.attributes[0] == "MatMul" else tuple(range(1, weight.ndim))
    sizes = np.maximum(np.sqrt((weight**2).sum(axis=axes)), np.abs(bias))
    largest = np.maximum(*map(np.abs, parts))
    return hides(largest, sizes, term.dtype)


def _linear(tools: Tools, like: Term, data: Term, weight: Term, bias: np.ndarray, doubt: Doubt) -> Term:
    """Return a product with another weight and bias, and how far rounding may have moved the numbers of the bias."""
    whole = np.broadcast_to(bias, (_count(like),))
    each = doubt if isinstance(doubt, float) else np.broadcast_to(doubt, whole.shape)
    constant = tools.near.of_array(whole, like.dtype, BIAS, each) if bias.any() else None
    return tools.terms.make("Linear", like.attributes, (data, weight, constant), like.dtype, like.dims)


def _channels(term: Term) -> int:
    assert term.dims is not None
    return len(term.dims) - 1 if term.attributes[0] == "MatMul" else 1


def _count(term: Term) -> int:
    assert term.dims is not None
    count = term.dims[_channels(term)].constant
    assert count is not None
    return count


def _spread(vector: np.ndarray, axis: int, rank: int) -> np.ndarray:
    return vector.reshape([-1 if at == axis else 1 for at in range(rank)])


def linear(tools: Tools, key: Key, data: Term, weight: Term, dims: Dims, *, is_padded: bool = False) -> Term:
    """Return the product of data with a constant weight, with the scale and shift of the data inside of it.

    Args:
        tools: The table of terms and what is beside it.
        key: "MatMul", with a matrix, or "Conv" and its attributes.
        data: A matrix, or images.
        weight: A constant.
        dims: Of the result.
        is_padded: Whether zeros stand around the data, so that nothing may be added to it.
    """
    is_matrix, sizes = key[0] == "MatMul", sizes_of(weight.dims or ())
    assert sizes
    bias = np.zeros(sizes[1] if is_matrix else sizes[0])
    axis, takes = (1, 0) if is_matrix else (1, 1)
    array = tools.constants.array(weight)
    doubt: Doubt = EXACT  # of the bias
    while array is not None and (found := _parts(tools, data)) is not None:
        inner, change = found
        is_channel = change.axis == axis and sizes[takes] == change.vector.size
        if change.axis is not None and not is_channel:
            break
        if change.kind == "Shifted" and is_padded:
            break
        matrix = array.astype(np.float64)
        factor = _spread(change.vector, takes, array.ndim) if is_channel else change.vector
        moved = change.doubt
        if is_channel and not isinstance(moved, float):
            moved = _spread(moved, takes, array.ndim)
        doubts = tools.near.doubt_of(weight), moved
        if change.kind == "Shifted":
            over = 0 if is_matrix else tuple(range(1, array.ndim))
            known = _sizes_of_channels(tools, inner, axis)
            own = matrix * (_spread(known, takes, array.ndim) if known.size == sizes[takes] else known.min(initial=1.0))
            if _is_hidden(own, matrix * factor, over, data.dtype):
                break
            summed, of_sums = (matrix * factor).sum(axis=over), _doubt_of_sums(matrix, factor, doubts, over)
            bias, doubt = bias + summed, of_sum(bias, summed, (doubt, of_sums)) if bias.any() else of_sums
        elif not is_kept(matrix * factor, weight.dtype):
            break
        else:
            weight = tools.near.of_array(matrix * factor, weight.dtype, WEIGHT, of_product(matrix, factor, doubts))
            array = tools.constants.array(weight)
        data = inner
    weight = tools.near.of_term(weight, WEIGHT)
    like = tools.terms.make("Linear", key, (data, weight), data.dtype, dims)
    return _linear(tools, like, data, weight, bias, doubt) if bias.any() else like


def _sizes_of_channels(tools: Tools, data: Term, axis: int) -> np.ndarray:
    """Return how small the numbers of data may be, by channel where each is scaled by a number of its own."""
    found = _parts(tools, data)
    if found is None or found[1].kind != "Scaled" or found[1].axis != axis:
        return np.asarray(size(tools, data))
    return np.asarray(np.minimum(1.0, np.abs(found[1].vector)) * size(tools, found[0]))


def _is_hidden(own: np.ndarray, added: np.ndarray, over: int | tuple[int, ...], dtype: int) -> bool:
    """Whether the products with a number that is added hide those with the data: for each column, by their norms."""
    norms = [np.sqrt((products**2).sum(axis=over)) for products in (own, added)]
    return hides(norms[1], np.maximum(norms[0], np.abs(added.sum(axis=over))), dtype)


def _doubt_of_sums(
    matrix: np.ndarray, factor: np.ndarray, doubts: tuple[Doubt, Doubt], over: int | tuple[int, ...]
) -> np.ndarray:
    """Return the doubt of the sums of products along axes, where roundings go up as often as down.

    Each product is rounded, and so are the sums of sixteen parts, as processors add up.
    """
    products = np.abs(matrix * factor)
    each = of_product(matrix, factor, doubts)
    moved = products * each if isinstance(each, float) else each
    count = products.size / max(1, np.asarray(products.sum(axis=over)).size)
    norms = np.sqrt((products**2).sum(axis=over))
    return np.asarray(np.sqrt((moved**2).sum(axis=over)) + norms * (1 + np.sqrt(count) / 16))


def columns(tools: Tools, term: Term) -> Term | None:
    """Return a Slice of the channels of a product with a matrix as a product with these columns."""
    cut = unreshaped(term)
    source = None if cut is None or cut.op != "Slice" else cut.args[0]
    whole = unreshaped(source)
    if cut is None or source is None or whole is None or whole.op != "Linear" or whole.attributes[0] != "MatMul":
        return None
    if source.dims is None or whole.dims is None or len(source.dims) != 3 or source.dims[0] != whole.dims[0]:
        return None
    first, count = (each.constant if isinstance(each, Expr) else None for each in cut.attributes[:2])
    behind = source.dims[2].constant
    data, weight, bias = (*whole.args, None)[:3]
    assert data is not None
    assert weight is not None
    array = tools.constants.array(weight)
    if array is None or first is None or not count or not behind:
        return None
    chosen = slice(first * behind, (first + count) * behind)
    doubt = tools.near.doubt_of(weight)
    part = tools.near.of_array(
        np.asarray(array)[:, chosen], weight.dtype, WEIGHT, doubt if isinstance(doubt, float) else doubt[:, chosen]
    )
    dims = (whole.dims[0], const(count * behind))
    made = tools.terms.make("Linear", whole.attributes, (data, part), whole.dtype, dims)
    numbers = None if bias is None else tools.constants.array(bias)
    if numbers is not None:
        assert bias is not None
        doubt = tools.near.doubt_of(bias)
        doubt = doubt if isinstance(doubt, float) else doubt[chosen]
        made = _linear(tools, made, data, part, numbers[chosen].astype(np.float64), doubt)
    return tools.movement.reshape(made, term.dims or ())


def unscaled(tools: Tools, term: Term) -> tuple[Term, Change, bool]:
    """Return a term without the number that it is scaled by, that number, and whether it is that of a weight."""
    inner, nothing = term, Change("Scaled", np.float64(1), None)
    while inner.op in ("Reshape", "Transpose") and inner.args[0] is not None:
        inner = inner.args[0]
    constant = inner.args[1] if inner.op in ("Scaled", "Linear") else None
    array = None if constant is None else tools.constants.array(constant)
    if array is None or not array.size or (inner.op == "Scaled" and array.ndim):
        return term, nothing, False
    is_weight = inner.op == "Linear"
    number = np.float64(np.abs(array).max() if is_weight else array)
    scale = Change("Scaled", number, None, _relative(tools.near.doubt_of(constant), array))
    inverse = scale.inverse()
    if not number or not inverse.is_moderate(term.dtype):
        return term, nothing, False
    made = inner = changed(tools, term, inverse)
    while inner.op in ("Reshape", "Transpose") and inner.args[0] is not None:
        inner = inner.args[0]
    is_held = inner.op != "Scaled"  # by the weight
    return (made, scale, is_weight) if is_held else (term, nothing, False)


def _relative(doubt: Doubt, array: np.ndarray) -> float:
    """Return the doubt of the largest element, relative to its size."""
    if isinstance(doubt, float):
        return doubt
    at = np.abs(array).argmax()
    return float(doubt.ravel()[at] / np.abs(array.ravel()[at]))
