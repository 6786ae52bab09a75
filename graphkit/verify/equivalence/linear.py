"""Linear operators with constant weights in one form, over the reals: constants beside them are in weights and biases.

What is scaled and shifted by constants, one number or one for each channel, is known as such; a product with a matrix,
a Gemm and a Conv are a `Linear` of data, weight and bias, which takes up what is scaled and shifted before and after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from graphkit.dtypes import FLOATS
from graphkit.ops.tensor import Dims, sizes_of
from graphkit.shapes import Expr, const
from graphkit.verify.equivalence import flat
from graphkit.verify.equivalence.application import Application, Result, Tools
from graphkit.verify.equivalence.cutting import find_padding
from graphkit.verify.equivalence.movement import count_elements, expands_to
from graphkit.verify.equivalence.real_constants import RealArray
from graphkit.verify.equivalence.terms import Key, Term, without_reshape

__all__ = [
    "Change",
    "change_by_constant",
    "change_term",
    "fold_into_conv",
    "linear_product",
    "normalise_batches",
    "split_off_scale",
    "take_columns",
]

WEIGHT, BIAS = "weight", "bias"
NEUTRAL: Mapping[str, float] = {"Scaled": 1.0, "Shifted": 0.0}


@dataclass(frozen=True, eq=False)
class Change:
    """A tensor times a constant, or plus one.

    Attributes:
        vector: One number or one for each channel.
        axis: The axis of the channels; None for one number.
    """

    kind: Literal["Scaled", "Shifted"]
    vector: RealArray
    axis: int | None = None

    @classmethod
    def by(cls, number: float) -> Change:
        """Return a scale by one number."""
        return cls("Scaled", RealArray(np.asarray(number, np.float64)))

    @property
    def is_nothing(self) -> bool:
        """Whether it changes nothing but the sign of zeros."""
        return bool((self.vector.elements == NEUTRAL[self.kind]).all())

    def after(self, other: Change) -> Change | None:
        """Return this one and another one of its kind before it as one; None where their channels differ."""
        if None not in (self.axis, other.axis) and self.axis != other.axis:
            return None
        combined = self.vector.times if self.kind == "Scaled" else self.vector.plus
        made = combined(other.vector)
        return Change(self.kind, made, self.axis if other.axis is None else other.axis) if made.is_finite else None

    def inverse(self) -> Change:
        """Return what undoes a scale that is nowhere 0."""
        return replace(self, vector=self.vector.inverse())


def change_term(tools: Tools, term: Term, change: Change) -> Term:
    """Return a tensor scaled or shifted, within the linear operator that gives it where there is one."""
    return term if change.is_nothing else _push_change(tools, term, change) or _change_term(tools, term, change)


def _change_term(tools: Tools, term: Term, change: Change) -> Term:
    assert term.dims is not None
    bare = tools.movement.unexpanded(term)
    if bare is not term and bare.dims and (change.axis is None or bare.dims[change.axis] == term.dims[change.axis]):
        return tools.movement.expand(change_term(tools, bare, change), term.dims)
    constant = tools.reals.of_array(change.vector, term.dtype, change.kind)
    dims: Dims = (count_elements(term.dims),)
    if change.axis is not None:
        before, after = count_elements(term.dims[: change.axis]), count_elements(term.dims[change.axis + 1 :])
        dims = (before, term.dims[change.axis], after)
    flat_term = tools.movement.reshape(term, dims)
    return tools.movement.reshape(tools.terms.make(change.kind, (), (flat_term, constant), term.dtype, dims), term.dims)


def _push_change(tools: Tools, term: Term, change: Change) -> Term | None:
    """Return a term with a change inside it, None where it has no place there."""
    inner, found = term.args[0] if term.args else None, _split_change(tools, term)
    if found is not None and found[1].kind == change.kind:
        both = change.after(found[1])
        return None if both is None else change_term(tools, found[0], both)
    if term.op == "Linear":
        return _changed_linear(tools, term, change)
    if inner is None or inner.dims is None or term.dims is None:
        return None
    if term.op == "Reshape":
        axis = None if change.axis is None else _same_axis(term.dims, change.axis, inner.dims)
        is_lost = (axis is None) != (change.axis is None)
        made = None if is_lost else _push_change(tools, inner, replace(change, axis=axis))
        return None if made is None else tools.movement.reshape(made, term.dims)
    if term.op == "Transpose":
        axis = None if change.axis is None else term.attributes[change.axis]  # type: ignore[assignment]
        made = _push_change(tools, inner, replace(change, axis=axis))
        return None if made is None else tools.movement.transpose(made, term.attributes)  # type: ignore[arg-type]
    if term.op == "Shifted" and found is not None:  # scaled afterwards
        made = _push_change(tools, found[0], change)
        shift = change.after(replace(found[1], kind="Scaled"))
        return None if made is None or shift is None else change_term(tools, made, replace(shift, kind="Shifted"))
    return None


def _split_change(tools: Tools, term: Term) -> tuple[Term, Change] | None:
    """Return the term that is scaled or shifted, with the dims of the result, and how; None for any other term."""
    inner = without_reshape(term)
    if inner is None or inner.op not in NEUTRAL or inner.dims is None or term.dims is None:
        return None
    source, vector = inner.args[0], tools.reals.array(inner.args[1])
    axis = None if vector is None or not vector.elements.ndim else _same_axis(inner.dims, 1, term.dims)
    if source is None or vector is None or (axis is None) != (not vector.elements.ndim):
        return None
    return tools.movement.reshape(source, term.dims), Change(inner.op, vector, axis)  # type: ignore[arg-type]


def _same_axis(dims: Dims, axis: int, others: Dims) -> int | None:
    """Return the axis of other dims of the same elements that is an axis of dims."""
    after = count_elements(dims[axis + 1 :])
    found = [at for at, dim in enumerate(others) if dim == dims[axis] and count_elements(others[at + 1 :]) == after]
    return found[0] if len(found) == 1 else None


def _changed_linear(tools: Tools, term: Term, change: Change) -> Term | None:
    data, weight, bias = (*term.args, None)[:3]
    vector, array = change.vector, tools.reals.array(weight)
    if change.axis not in (None, _channel_axis(term)) or vector.elements.size not in (1, _count_channels(term)):
        return None  # the latter in no model that runs
    if array is None or weight is None or data is None:
        return None
    numbers = tools.reals.array(bias) if bias is not None else RealArray(np.zeros(_count_channels(term)))
    assert numbers is not None
    if change.kind == "Shifted":
        return _make_linear(tools, term, data, weight, vector if bias is None else numbers.plus(vector))
    is_matrix = term.attributes[0] == "MatMul" or not vector.elements.ndim
    products = array.times(vector if is_matrix else _spread_vector(vector, 0, array.elements.ndim))
    if not products.is_finite:
        return None
    scaled = tools.reals.of_array(products, weight.dtype, WEIGHT)
    return _make_linear(tools, term, data, scaled, numbers.times(vector))


def _make_linear(tools: Tools, like: Term, data: Term, weight: Term, bias: RealArray) -> Term | None:
    """Return a product with another weight and bias, None where this is no number."""
    whole = bias.moved(np.broadcast_to(bias.elements, (_count_channels(like),)))
    constant = tools.reals.of_array(whole, like.dtype, BIAS) if bias.elements.any() else None
    made = tools.terms.make("Linear", like.attributes, (data, weight, constant), like.dtype, like.dims)
    return made if bias.is_finite else None


def _channel_axis(term: Term) -> int:
    assert term.dims is not None
    return len(term.dims) - 1 if term.attributes[0] == "MatMul" else 1


def _count_channels(term: Term) -> int:
    assert term.dims is not None
    count = term.dims[_channel_axis(term)].constant
    assert count is not None
    return count


def _spread_vector(vector: RealArray, axis: int, rank: int) -> RealArray:
    """Return a vector along an axis of a weight."""
    return vector.moved(vector.elements.reshape([-1 if at == axis else 1 for at in range(rank)]))


def linear_product(tools: Tools, key: Key, data: Term, weight: Term, dims: Dims, *, is_padded: bool = False) -> Term:
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
    takes, over = (0, 0) if is_matrix else (1, tuple(range(1, len(sizes))))
    bias: RealArray | None = None
    array = tools.reals.array(weight)
    while array is not None and (found := _split_change(tools, data)) is not None:
        inner, change = found
        is_channel = change.axis == 1 and sizes[takes] == change.vector.elements.size
        if (change.axis is not None and not is_channel) or (change.kind == "Shifted" and is_padded):
            break
        products = array.times(_spread_vector(change.vector, takes, len(sizes)) if is_channel else change.vector)
        if not products.is_finite:
            break
        if change.kind == "Shifted":
            moved = products.summed(over)
            bias = moved if bias is None else bias.plus(moved)
        else:
            weight, array = tools.reals.of_array(products, weight.dtype, WEIGHT), products
        data = inner
    weight = tools.reals.of_term(weight, WEIGHT)
    like = tools.terms.make("Linear", key, (data, weight), data.dtype, dims)
    return like if bias is None else _make_linear(tools, like, data, weight, bias) or like


def take_columns(tools: Tools, term: Term) -> Term | None:
    """Return a Slice of the channels of a product with a matrix as a product with these columns."""
    cut = without_reshape(term)
    source = None if cut is None or cut.op != "Slice" else cut.args[0]
    whole = without_reshape(source)
    if cut is None or source is None or whole is None or whole.op != "Linear" or whole.attributes[0] != "MatMul":
        return None
    if source.dims is None or whole.dims is None or len(source.dims) != 3 or source.dims[0] != whole.dims[0]:
        return None
    first, count = (each.constant if isinstance(each, Expr) else None for each in cut.attributes[:2])
    behind = source.dims[2].constant
    data, weight, bias = (*whole.args, None)[:3]
    array, numbers = tools.reals.array(weight), tools.reals.array(bias)
    if array is None or data is None or weight is None or first is None or not count or not behind:
        return None
    chosen = slice(first * behind, (first + count) * behind)
    part = tools.reals.of_array(array.moved(array.elements[:, chosen]), weight.dtype, WEIGHT)
    dims = (whole.dims[0], const(count * behind))
    made: Term | None = tools.terms.make("Linear", whole.attributes, (data, part), whole.dtype, dims)
    if numbers is not None and made is not None:
        made = _make_linear(tools, made, data, part, numbers.moved(numbers.elements[chosen]))
    return None if made is None else tools.movement.reshape(made, term.dims or ())


def split_off_scale(tools: Tools, term: Term) -> tuple[Term, Change, bool]:
    """Return a term without the number that it is scaled by, that number, and whether it is that of a weight."""
    inner, nothing = _without_movement(term), (term, Change.by(1), False)
    array = tools.reals.array(inner.args[1]) if inner.op in ("Scaled", "Linear") else None
    if array is None or not array.elements.any() or (inner.op == "Scaled" and array.elements.ndim):
        return nothing
    is_weight = inner.op == "Linear"
    scale = Change("Scaled", array.moved(np.abs(array.elements).max() if is_weight else array.elements))
    made = change_term(tools, term, scale.inverse())
    is_held = _without_movement(made).op != "Scaled"  # by the weight
    return (made, scale, is_weight) if is_held else nothing


def _without_movement(term: Term) -> Term:
    while term.op in ("Reshape", "Transpose") and term.args[0] is not None:
        term = term.args[0]
    return term


def _constant_of(app: Application, term: Term | None) -> RealArray | None:
    """Return the elements of a constant of floats, without those that only repeat along an axis."""
    if term is None or app.dtype not in FLOATS:
        return None
    term = app.tools.movement.unexpanded(term)
    inner = without_reshape(term)
    if inner is not None and inner.op == "Expand" and count_elements((inner.args[0] or inner).dims or ()) == 1:
        term = inner.args[0] or term
    return app.tools.reals.array(term) if term.dtype == app.dtype else None


def _vector_of(array: RealArray, rank: int) -> tuple[RealArray, int | None] | None:
    """Return the numbers of a constant that broadcasts to a rank, and their axis; None where it has more axes."""
    shape = array.elements.shape
    long = [axis for axis, size in enumerate(shape) if size != 1]
    if len(long) > 1 or len(shape) > rank or not array.elements.size:
        return None
    vector = array.elements.reshape(-1)
    return (array.moved(vector), rank - len(shape) + long[0]) if long else (array.moved(vector[0]), None)


def change_by_constant(app: Application) -> Result:
    """Scale and shift by constants: Add, Sub, Mul, Div and Neg."""
    op, left, right = app.node.op_type, app.arg(0), app.arg(1)
    if left is None or app.dims is None or app.dtype not in FLOATS or app.node.scope.opset() < 7:
        return None
    if any(term is not None and term.dtype != app.dtype for term in (left, right)):
        return None  # no model that runs
    if op == "Neg":
        return change_term(app.tools, left, Change.by(-1)) if left.dims == app.dims else None
    for term, other, is_left in ((left, right, True), (right, left, False)):
        if term is None or other is None or term.is_constant or (known := _constant_of(app, other)) is None:
            continue
        found = _vector_of(known, len(app.dims))
        if found is None:
            bare = app.tools.movement.unexpanded(other)
            near = app.tools.reals.of_term(bare, op)
            args = [term, near] if is_left else [near, term]
            return None if near is bare else flat.merge_elementwise(replace(app, args=args))
        if term.dims is None or not expands_to(term.dims, app.dims):
            return None
        return _changed_by(app, app.tools.movement.expand(term, app.dims), *found, is_left=is_left)
    return None


def _changed_by(app: Application, term: Term, vector: RealArray, axis: int | None, *, is_left: bool) -> Term | None:
    op, tools = app.node.op_type, app.tools
    if op == "Div":
        is_scale = is_left and vector.elements.all()
        return change_term(tools, term, Change("Scaled", vector.inverse(), axis)) if is_scale else None
    if op == "Mul":
        return change_term(tools, term, Change("Scaled", vector, axis))
    if op == "Sub" and is_left:
        vector = vector.moved(-vector.elements)
    elif op == "Sub":
        term = change_term(tools, term, Change.by(-1))
    return change_term(tools, term, Change("Shifted", vector, axis))


def normalise_batches(app: Application) -> Result:
    """Scale and shift channels by what a BatchNormalization has learnt."""
    data = app.arg(0)
    known = [_constant_of(app, term) for term in app.args[1:]]
    arrays = [each for each in known if each is not None and each.elements.ndim < 2]
    if data is None or data.dims is None or len(arrays) != 4 or len(known) != 4:
        return "its parameters are not constant"
    if app.node.scope.opset() < 9 or any(app.node.outputs[1:]) or app.attr("training_mode", 0) or len(data.dims) < 2:
        return "it may learn"
    count = data.dims[1].constant
    if count is None or any(each.elements.size not in (1, count) for each in arrays) or data.dtype != app.dtype:
        return "how many channels it has is not known"
    scale, bias, mean, variance = (each.moved(np.broadcast_to(each.elements, (count,))) for each in arrays)
    positive = variance.plus(float(np.float32(app.attr("epsilon", 1e-5) or 0.0)))  # attributes are float32
    if not (positive.elements > 0).all():
        return "its variance is not above 0"
    factor = RealArray(scale.elements / np.sqrt(positive.elements), "product")
    shift = bias.plus(mean.times(factor).times(-1))
    if not factor.is_finite or not shift.is_finite:
        return "its parameters are very large"
    scaled = change_term(app.tools, data, Change("Scaled", factor, 1))
    return change_term(app.tools, scaled, Change("Shifted", shift, 1))


def fold_into_conv(app: Application) -> Result:
    """Take constants that channels are scaled and shifted by into the weight and the bias of a Conv."""
    data, weight, bias = app.arg(0), app.arg(1), app.arg(2)
    if data is None or weight is None or not weight.is_constant or app.dims is None or app.dtype not in FLOATS:
        return None
    if data.is_constant or data.dims is None or len(data.dims) < 3 or {data.dtype, weight.dtype} != {app.dtype}:
        return None
    known = None if bias is None else _constant_of(app, bias)
    if bias is not None and known is None:
        return "its bias is not constant"
    data, key, is_padded = _without_pad(app, data)
    made = linear_product(app.tools, ("Conv", *key), data, weight, app.dims, is_padded=is_padded)
    if known is None:
        return made
    vector, is_one = known.elements.reshape(-1), known.elements.size == 1
    return change_term(app.tools, made, Change("Shifted", known.moved(vector[0] if is_one else vector),
                                               None if is_one else 1))  # fmt: skip


def _without_pad(app: Application, data: Term) -> tuple[Term, Key, bool]:
    """Return the data of a Conv without the zeros that a Pad sets around it, with the attributes that set them."""
    assert data.dims is not None
    zeros = (0,) * (2 * (len(data.dims) - 2))
    automatic, pads = app.attr("auto_pad", "NOTSET"), app.attr("pads", zeros)
    if automatic != "NOTSET" or pads is None or len(pads) != len(zeros):
        return data, app.attributes, True
    if (found := find_padding(app.tools.movement, data)) is not None and not any(map(any, found[1][:2])):
        data, around = found
        sides = (side for ends in zip(*around[2:], strict=True) for side in ends)
        pads = tuple(one + other for one, other in zip(pads, sides, strict=True))
    rest = tuple(each for each in app.attributes if each[0] != "pads")  # type: ignore[index]
    return data, (*rest, tuple(pads)), any(pads)
