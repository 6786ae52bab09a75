"""Linear operators with constant weights in one form, over the reals, and the table of axioms of exact arithmetic.

What is scaled and shifted by constants, one number or one for each channel, is known as such; a product with a matrix,
a Gemm and a Conv are a `Linear` of data, weight and bias, which takes up what is scaled and shifted before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from onnx import TensorProto

from graphkit.dtypes import FLOATS
from graphkit.equivalence import cutting, flat
from graphkit.equivalence.application import Application, Result, Tools
from graphkit.equivalence.axioms import AXIOMS, FIRST_AXIOMS, Axiom
from graphkit.equivalence.cutting import find_padding
from graphkit.equivalence.movement import expands_to, merge_around
from graphkit.equivalence.spelling import OF_KERNEL
from graphkit.equivalence.terms import Key, RealArray, Term, without_movement, without_reshape
from graphkit.graph.operator_traits import REARRANGING
from graphkit.ops.tensor import Dims, dims_product, sizes_of
from graphkit.shapes import Expr, const, lower

WEIGHT, BIAS = "weight", "bias"
NEUTRAL: Mapping[str, float] = {"Scaled": 1.0, "Shifted": 0.0}


class Change(Struct, frozen=True, eq=False):
    """A tensor times a constant, or plus one."""

    kind: Literal["Scaled", "Shifted"]
    vector: RealArray  # one number or one for each channel
    axis: int | None = None  # the axis of the channels; None for one number

    @classmethod
    def by(cls, number: float) -> Change:
        """Return a scale by one number."""
        return cls("Scaled", RealArray(np.asarray(number, np.float64)))

    def after(self, other: Change) -> Change | None:
        """Return this one and another one of its kind before it as one; None where their channels differ."""
        if None not in (self.axis, other.axis) and self.axis != other.axis:
            return None
        combined = self.vector.times if self.kind == "Scaled" else self.vector.plus
        made = combined(other.vector)
        return Change(self.kind, made, self.axis if other.axis is None else other.axis) if made.is_finite else None


def change_term(tools: Tools, term: Term, change: Change) -> Term:
    """Return a tensor scaled or shifted, within the linear operator that gives it where there is one."""
    if (change.vector.elements == NEUTRAL[change.kind]).all():
        return term  # but for the sign of zeros
    if (made := _push_change(tools, term, change)) is not None:
        return made
    bare, axis = tools.movement.without_expand(term), change.axis
    if bare is not term and bare.dims and (axis is None or bare.dims[axis] == term.shape[axis]):
        return tools.movement.expand(change_term(tools, bare, change), term.shape)
    constant = tools.reals.of_array(change.vector, term.dtype, change.kind)
    dims: Dims = (dims_product(term.shape),) if axis is None else merge_around(term.shape, axis)
    args = tools.movement.reshape(term, dims), constant
    return tools.movement.reshape(tools.terms.make(change.kind, (), args, term.dtype, dims), term.shape)


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
    if without_reshape(term) is inner:
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
    if (inner := without_reshape(term)) is None or inner.op not in NEUTRAL or term.dims is None:
        return None
    source, vector = inner.args[0], tools.reals.array(inner.args[1])
    axis = None if vector is None or not vector.elements.ndim else _same_axis(inner.shape, 1, term.dims)
    if source is None or vector is None or (axis is None) != (not vector.elements.ndim):
        return None
    return tools.movement.reshape(source, term.dims), Change(inner.op, vector, axis)  # type: ignore[arg-type]


def _same_axis(dims: Dims, axis: int, others: Dims) -> int | None:
    """Return the axis of other dims of the same elements that is an axis of dims."""
    after = dims_product(dims[axis + 1 :])
    found = [at for at, dim in enumerate(others) if dim == dims[axis] and dims_product(others[at + 1 :]) == after]
    return found[0] if len(found) == 1 else None


def _changed_linear(tools: Tools, term: Term, change: Change) -> Term | None:
    data, weight, bias = (*term.args, None)[:3]
    vector, array, count = change.vector, tools.reals.array(weight), _count_channels(term)
    if change.axis not in (None, _channel_axis(term)) or vector.elements.size not in (1, count):
        return None  # the latter in no model that runs
    if array is None or weight is None or data is None:
        return None
    numbers = RealArray(np.zeros(count)) if bias is None else tools.reals.array(bias)
    assert numbers is not None
    if change.kind == "Shifted":
        return _make_linear(tools, term, data, weight, vector if bias is None else numbers.plus(vector))
    is_matrix = term.attributes[0] == "MatMul" or not vector.elements.ndim
    products = array.times(vector if is_matrix else _spread_vector(vector, 0, array.elements.ndim))
    if not products.is_finite:
        return None
    return _make_linear(tools, term, data, tools.reals.of_array(products, weight.dtype, WEIGHT), numbers.times(vector))


def _make_linear(tools: Tools, like: Term, data: Term, weight: Term, bias: RealArray) -> Term | None:
    """Return a product with another weight and bias, None where this is no number."""
    whole = bias.take_part(np.broadcast_to(bias.elements, (_count_channels(like),)))
    constant = tools.reals.of_array(whole, like.dtype, BIAS) if bias.elements.any() else None
    made = tools.terms.make("Linear", like.attributes, (data, weight, constant), like.dtype, like.dims)
    return made if bias.is_finite else None


def _channel_axis(term: Term) -> int:
    return len(term.shape) - 1 if term.attributes[0] == "MatMul" else 1


def _count_channels(term: Term) -> int:
    count = term.shape[_channel_axis(term)].constant
    assert count is not None
    return count


def _spread_vector(vector: RealArray, axis: int, rank: int) -> RealArray:
    return vector.take_part(vector.elements.reshape([-1 if at == axis else 1 for at in range(rank)]))


def linear_product(tools: Tools, key: Key, data: Term, weight: Term, dims: Dims, *, is_padded: bool = False) -> Term:
    """Return the product of data with a constant weight, with the scale and shift of the data inside of it.

    The key is "MatMul", of two matrices, or "Conv" and its attributes, of images. Where zeros stand around the data,
    nothing may be added to it.
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
            moved = RealArray(np.asarray(products.elements.sum(axis=over)), "sum")
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
    if len(source.shape) != 3 or source.shape[0] != whole.shape[0]:
        return None
    first, count = (each.constant if isinstance(each, Expr) else None for each in cut.attributes[:2])
    behind = source.shape[2].constant
    data, weight, bias = (*whole.args, None)[:3]
    array, numbers = tools.reals.array(weight), tools.reals.array(bias)
    if array is None or data is None or weight is None or first is None or not count or not behind:
        return None
    chosen = slice(first * behind, (first + count) * behind)
    part = tools.reals.of_array(array.take_part(array.elements[:, chosen]), weight.dtype, WEIGHT)
    dims = (whole.shape[0], const(count * behind))
    made: Term | None = tools.terms.make("Linear", whole.attributes, (data, part), whole.dtype, dims)
    if numbers is not None and made is not None:
        made = _make_linear(tools, made, data, part, numbers.take_part(numbers.elements[chosen]))
    return None if made is None else tools.movement.reshape(made, term.shape)


def split_off_scale(tools: Tools, term: Term) -> tuple[Term, Change, bool]:
    """Return a term without the number that it is scaled by, that number, and whether it is that of a weight."""
    inner, nothing = without_movement(term, REARRANGING), (term, Change.by(1), False)
    array = tools.reals.array(inner.args[1]) if inner.op in ("Scaled", "Linear") else None
    if array is None or not array.elements.any() or (inner.op == "Scaled" and array.elements.ndim):
        return nothing
    is_weight = inner.op == "Linear"
    scale = Change("Scaled", array.take_part(np.abs(array.elements).max() if is_weight else array.elements))
    made = change_term(tools, term, replace(scale, vector=scale.vector.inverse()))
    is_held = without_movement(made, REARRANGING).op != "Scaled"  # by the weight
    return (made, scale, is_weight) if is_held else nothing


def _constant_of(app: Application, term: Term | None) -> RealArray | None:
    """Return the elements of a constant of floats, without those that only repeat along an axis."""
    if term is None or app.dtype not in FLOATS:
        return None
    term = app.tools.movement.without_expand(term)
    inner = without_reshape(term)
    if inner is not None and inner.op == "Expand" and dims_product((inner.args[0] or inner).dims or ()) == 1:
        term = inner.args[0] or term
    return app.tools.reals.array(term) if term.dtype == app.dtype else None


def _vector_of(array: RealArray, rank: int) -> tuple[RealArray, int | None] | None:
    """Return the numbers of a constant that broadcasts to a rank, and their axis; None where it has more axes."""
    shape = array.elements.shape
    long = [axis for axis, size in enumerate(shape) if size != 1]
    if len(long) > 1 or len(shape) > rank or not array.elements.size:
        return None
    vector = array.elements.reshape(-1)
    return (array.take_part(vector), rank - len(shape) + long[0]) if long else (array.take_part(vector[0]), None)


def change_by_constant(app: Application) -> Result:
    """Scale and shift by constants: Add, Sub, Mul, Div and Neg."""
    op, left, right = app.node.op_type, app.operand(0), app.arg(1)
    if app.dtype not in FLOATS or app.opset < 7:
        return None
    if any(term is not None and term.dtype != app.dtype for term in (left, right)):
        return None  # no model that runs
    if right is None:
        return change_term(app.tools, left, Change.by(-1)) if left.dims == app.shape else None
    for term, other, is_left in ((left, right, True), (right, left, False)):
        if term.is_constant or (known := _constant_of(app, other)) is None:
            continue
        if (found := _vector_of(known, len(app.shape))) is None:
            bare = app.tools.movement.without_expand(other)
            near = app.tools.reals.of_term(bare, op)
            args = [term, near] if is_left else [near, term]
            return None if near is bare else flat.merge_elementwise(replace(app, args=args))
        if not expands_to(term.shape, app.shape):
            return None
        return _changed_by(app, app.tools.movement.expand(term, app.shape), *found, is_left=is_left)
    return None


def _changed_by(app: Application, term: Term, vector: RealArray, axis: int | None, *, is_left: bool) -> Term | None:
    op, tools = app.node.op_type, app.tools
    if op == "Div":
        is_scale = is_left and vector.elements.all()
        return change_term(tools, term, Change("Scaled", vector.inverse(), axis)) if is_scale else None
    if op == "Mul":
        return change_term(tools, term, Change("Scaled", vector, axis))
    if op == "Sub" and is_left:
        vector = vector.take_part(-vector.elements)
    elif op == "Sub":
        term = change_term(tools, term, Change.by(-1))
    return change_term(tools, term, Change("Shifted", vector, axis))


def normalise_batches(app: Application) -> Result:
    """Scale and shift channels by what a BatchNormalization has learnt."""
    data, known = app.operand(0), [_constant_of(app, term) for term in app.args[1:]]
    arrays = [each for each in known if each is not None and each.elements.ndim < 2]
    if len(arrays) != 4 or len(known) != 4:
        return "its parameters are not constant"
    if app.opset < 9 or any(app.node.outputs[1:]) or app.attr("training_mode", 0) or len(data.shape) < 2:
        return "it may learn"
    count = data.shape[1].constant
    if count is None or any(each.elements.size not in (1, count) for each in arrays) or data.dtype != app.dtype:
        return "how many channels it has is not known"
    scale, bias, mean, variance = (each.take_part(np.broadcast_to(each.elements, (count,))) for each in arrays)
    positive = variance.plus(float(np.float32(app.attr("epsilon", 1e-5))))  # attributes are float32
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
    data, weight, bias = app.operand(0), app.operand(1), app.arg(2)
    if not weight.is_constant or data.is_constant or app.dtype not in FLOATS:
        return None
    if len(data.shape) < 3 or {data.dtype, weight.dtype} != {app.dtype}:
        return None
    known = None if bias is None else _constant_of(app, bias)
    if bias is not None and known is None:
        return "its bias is not constant"
    data, key, is_padded = _without_pad(app, data)
    made = linear_product(app.tools, ("Conv", *key), data, weight, app.shape, is_padded=is_padded)
    if known is None:
        return made
    vector, is_one = known.elements.reshape(-1), known.elements.size == 1
    change = Change("Shifted", known.take_part(vector[0] if is_one else vector), None if is_one else 1)
    return change_term(app.tools, made, change)


def _without_pad(app: Application, data: Term) -> tuple[Term, Key, bool]:
    """Return the data of a Conv without the zeros that a Pad sets around it, with the attributes that set them."""
    zeros = (0,) * (2 * (len(data.shape) - 2))
    pads = app.attr("pads", zeros)
    if app.attr("auto_pad", "NOTSET") != "NOTSET" or len(pads) != len(zeros):
        return data, app.attributes, True
    if (found := find_padding(app.tools.movement, data)) is not None and not any(map(any, found[1][:2])):
        data, around = found
        sides = (side for ends in zip(*around[2:], strict=True) for side in ends)
        pads = tuple(one + other for one, other in zip(pads, sides, strict=True))
    rest = tuple(each for each in app.attributes if each[0] != "pads")  # type: ignore[index]
    return data, (*rest, tuple(pads)), any(pads)


# Products of matrices: MatMul, Gemm, Einsum, what scales their factors, and heads that share one.


def apply_operator(app: Application, op: str, args: list[Term | None], dims: Dims) -> Term | None:
    """Return the normal form of another operator on terms, over the reals."""
    made = app.other_operator(op, 1 if op == "MatMul" else 7, args, dims)
    functions: tuple[Callable[[Application], Result], ...] = (change_by_constant, flat.merge_elementwise)
    if op == "MatMul":
        functions = (multiply_rows, scale_product, share_heads, flat.multiply_matrices)
    return next((found for function in functions if isinstance(found := function(made), Term)), None)


def multiply_rows(app: Application) -> Result:
    """Take constants that rows are scaled and shifted by into the matrix."""
    left, right, move = app.operand(0), app.operand(1), app.tools.movement
    if app.dtype not in FLOATS or {left.dtype, right.dtype} != {app.dtype}:
        return None  # no model that runs
    if not right.is_constant or len(right.shape) != 2 or len(left.shape) < 2 or left.is_constant:
        return None
    rows = dims_product(left.shape[:-1])
    data = move.reshape(left, (rows, left.shape[-1]))
    return move.reshape(linear_product(app.tools, ("MatMul",), data, right, (rows, right.shape[1])), app.shape)


def scale_product(app: Application) -> Result:
    """Scale the product of two tensors, not the tensors."""
    left, right = app.operand(0), app.operand(1)
    if app.dtype not in FLOATS or left.is_constant or right.is_constant or None in (left.dims, right.dims):
        return None
    one, factor, is_weight = split_off_scale(app.tools, left)
    other, more, is_other_weight = split_off_scale(app.tools, right)
    if is_weight and not is_other_weight:
        one, factor = left, Change.by(1)
    if is_other_weight and not is_weight:
        other, more = right, Change.by(1)
    if one is left and other is right:
        return None
    made, both = apply_operator(app, "MatMul", [one, other], app.shape), factor.after(more)
    return None if made is None or both is None else change_term(app.tools, made, both)


def share_heads(app: Application) -> Result:
    """Multiply the rows of several heads with the matrix that they share, not each with a copy."""
    left, right, move = app.operand(0), app.operand(1), app.tools.movement
    batches = left.shape[:-2]
    if len(left.shape) < 3 or batches != right.shape[:-2] or app.shape[:-2] != batches:
        return None
    (rows, inner), columns = left.shape[-2:], right.shape[-1]
    flat_right = without_reshape(right)
    assert flat_right is not None
    is_turned = flat_right.op == "Transpose" and flat_right.attributes == (0, 2, 1)
    if is_turned and flat_right.dims != (dims_product(batches), inner, columns):
        return None  # other axes change places than those of the matrices
    copies = without_reshape(flat_right.args[0] if is_turned else flat_right)
    if copies is None or copies.op != "Expand" or copies.dims is None or len(copies.dims) < 2:
        return None
    (heads, count), source = copies.dims[:2], copies.args[0]
    if source is None or source.dims != (heads, const(1), *copies.dims[2:]) or heads * count != dims_product(batches):
        return None
    if is_turned:
        once = move.transpose(move.reshape(source, (heads, columns, inner)), (0, 2, 1))
    else:
        once = move.reshape(source, (heads, inner, columns))
    args: list[Term | None] = [move.reshape(left, (heads, count * rows, inner)), once]
    made = apply_operator(app, "MatMul", args, (heads, count * rows, columns))
    return None if made is None else move.reshape(made, app.shape)


def multiply_and_add(app: Application) -> Result:
    """A Gemm is a MatMul, and an Add."""
    left, right, bias, move = app.operand(0), app.operand(1), app.arg(2), app.tools.movement
    alpha, beta = app.attr("alpha", 1.0), app.attr("beta", 1.0)
    if app.dtype not in FLOATS or app.opset < 7 or None in (left.dims, right.dims):
        return None
    if app.attr("transA", 0):
        left = move.transpose(left, (1, 0))
    if app.attr("transB", 0):
        constants = app.tools.constants
        array = constants.array(right) if right.is_constant else None
        turned = None if array is None else constants.of_array(np.ascontiguousarray(array.T), right.dtype)
        right = turned or move.transpose(right, (1, 0))
    made = apply_operator(app, "MatMul", [left, right], app.shape)
    made = None if made is None else change_term(app.tools, made, Change.by(alpha))
    if bias is None or made is None or not beta:
        return made
    return apply_operator(app, "Add", [made, bias], app.shape) if beta == 1 else None


def normalize_einsum(app: Application) -> Result:
    """An Einsum of two tensors is a MatMul, with the axes of both in another order."""
    equation, move = app.attr("equation", "").replace(" ", ""), app.tools.movement
    inputs, arrow, output = equation.partition("->")
    texts = inputs.split(",")
    if len(app.args) != 2 or len(texts) != 2 or not arrow:
        return "it is not of two tensors, with its output told"
    terms = [app.operand(0), app.operand(1)]
    dims = [*(term.shape for term in terms), app.shape]
    left, right, out = (_axis_labels(text, len(each)) for text, each in zip((*texts, output), dims, strict=True))
    if left is None or right is None or out is None or any(len({*each}) < len(each) for each in (left, right, out)):
        return "an axis occurs twice in a tensor"
    sizes, sizes_right = dict(zip(left, dims[0], strict=True)), dict(zip(right, dims[1], strict=True))
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

    def merged_size(labels: Sequence[str]) -> Expr:
        return dims_product([sizes[label] for label in labels])

    args: list[Term | None] = []
    for term, labels, parts in ((terms[0], left, (batch, rows, inner)), (terms[1], right, (batch, inner, columns))):
        turned = move.transpose(term, [labels.index(label) for part in parts for label in part])
        args.append(move.reshape(turned, tuple(map(merged_size, parts))))
    made = apply_operator(app, "MatMul", args, tuple(map(merged_size, (batch, rows, columns))))
    order = [*batch, *rows, *columns]
    if made is None:
        return None
    apart = move.reshape(made, tuple(sizes[label] for label in order))
    return move.transpose(apart, [order.index(label) for label in out])


def _axis_labels(text: str, rank: int) -> list[str] | None:
    """Return a label for each axis, those of an ellipsis counted from its end; None where they do not come out even."""
    before, dots, behind = text.partition("...")
    letters = [*before, *behind]
    if not all(letter.isascii() and letter.isalpha() for letter in letters):
        return None
    count = rank - len(letters)
    if count < 0 or (count and not dots):
        return None
    return [*before, *(f"...{count - at}" for at in range(count)), *behind]


# LayerNormalization and the nodes that compute one: both are a normalisation of rows, scaled and shifted.


def normalise_layer(app: Application) -> Result:
    """A LayerNormalization is a normalisation, scaled and shifted."""
    data, scale, bias = app.operand(0), app.operand(1), app.arg(2)
    epsilon = app.attr("epsilon", 1e-5)
    if app.attr("axis", -1) not in (-1, len(data.shape) - 1) or not epsilon or app.attr("stash_type", 1) != 1:
        return "it is not over the last axis"
    if app.dtype != TensorProto.FLOAT or app.index or app.dims != data.dims:
        return None
    scaled = apply_operator(app, "Mul", [_normalised_term(app, data, float(epsilon)), scale], app.shape)
    return scaled if bias is None or scaled is None else apply_operator(app, "Add", [scaled, bias], app.shape)


def _normalised_term(app: Application, data: Term, epsilon: float) -> Term:
    move, rows = app.tools.movement, (dims_product(data.shape[:-1]), data.shape[-1])
    key, args = (float(np.float32(epsilon)),), (move.reshape(data, rows),)
    return move.reshape(app.tools.terms.make("Normalised", key, args, app.dtype, rows), data.shape)


def normalise_rows(app: Application) -> Result:
    """(x - mean) / sqrt(mean of squares + epsilon) is a normalisation."""
    left, right = app.operand(0), app.operand(1)
    if app.dtype != TensorProto.FLOAT or not app.shape:
        return None
    pairs, per_row = ((left, right), (right, left)), (*app.shape[:-1], const(1))
    for centred, deviation in pairs[: 1 if app.node.op_type == "Div" else 2]:
        root = without_reshape(deviation)
        if app.node.op_type == "Mul":  # by what divides 1
            source = root.args[0] if root is not None and root.op == "Div" else None
            one = app.tools.constants.array(source) if source is not None and source.is_constant else None
            root = without_reshape(root.args[1]) if root is not None and one is not None and (one == 1).all() else None
        if root is None or root.op != "Sqrt" or centred.dims != app.shape or deviation.dims != per_row:
            continue
        if (found := _match_moments(app, centred, without_reshape(root.args[0]))) is not None:
            return _normalised_term(app, *found)
    return None


def _match_moments(app: Application, centred: Term, positive: Term | None) -> tuple[Term, float] | None:
    """Return the term that is normalised, and epsilon; None where the terms are not those of a normalisation."""
    difference, move = without_reshape(centred), app.tools.movement
    if positive is None or positive.op != "Shifted" or positive.args[1] is None:
        return None
    epsilon, square = app.tools.constants.array(positive.args[1]), without_reshape(positive.args[0])
    if epsilon is None or epsilon.ndim or epsilon <= 0 or difference is None or difference.op != "Sub":
        return None
    if square is None or square.op != "ReduceMean of rows" or not _is_square(app, square.args[0], centred):
        return None
    data, beside = difference.args
    mean = without_reshape(beside)
    if data is None or beside is None or mean is None or mean.op != "ReduceMean of rows":
        return None
    rows = mean.args[0]
    assert rows is not None
    if rows.shape[-1] != centred.shape[-1] or move.reshape(data, rows.shape) is not rows:
        return None
    if data.dims != rows.dims or beside.dims != (rows.shape[0], const(1)):
        return None
    return move.reshape(data, centred.shape), float(epsilon)


def _is_square(app: Application, term: Term | None, base: Term) -> bool:
    if (inner := without_reshape(term)) is None or term is None or term.shape[-1] != base.shape[-1]:
        return False
    source, other = (*inner.args, None, None)[:2]
    if source is None or source.dims is None or app.tools.movement.reshape(base, source.dims) is not source:
        return False
    if inner.op == "Mul":
        return other is source
    is_power = inner.op == "Pow" and other is not None and other.is_constant
    exponent = app.tools.constants.array(other) if is_power and other is not None else None
    return exponent is not None and exponent.size == 1 and float(exponent.reshape(-1)[0]) == 2


CUTS: Mapping[str, Callable[[Application], Result]] = {
    "Slice": cutting.cut_axes, "Split": cutting.cut_part, "Gather": cutting.gather_one,
    "SequenceAt": cutting.take_element,
}  # fmt: skip


def cut_columns(app: Application) -> Result:
    """Some columns of a product are a product with these columns."""
    found = CUTS[app.node.op_type](app)
    return take_columns(app.tools, found) if isinstance(found, Term) else None


def average_windows(app: Application) -> Result:
    """Return the averages of an AveragePool of any version: those of kernels that add up in another order."""
    if app.dtype not in FLOATS or (app.attr("count_include_pad", 0) and not _windows_fit(app)):
        return None  # where a window goes past the end, versions count padding otherwise
    attributes = tuple(each for each in app.attributes if each[0])  # type: ignore[index]
    return app.tools.terms.make("Averages", (*attributes, app.index), app.args, app.dtype, app.dims)


def _windows_fit(app: Application) -> bool:
    """Whether every window of a pool lies in its data and the padding, at all sizes."""
    sizes, window = app.operand(0).shape[2:], app.attr("kernel_shape", ())
    pads = app.attr("pads", ()) or (0,) * (2 * len(window))
    if app.attr("auto_pad", "NOTSET") != "NOTSET" or app.attr("ceil_mode", 0) or app.attr("dilations", ()):
        return False
    if not len(sizes) == len(window) == len(pads) // 2:
        return False
    padded = [lower(dim) + pads[axis] + pads[axis + len(sizes)] for axis, dim in enumerate(sizes)]
    return all(size >= length for size, length in zip(padded, window, strict=True))


def run_kernel(app: Application) -> Result:
    """Take what a function's nodes compute for what the kernel of its name does."""
    return app.arg(0) if app.node.proto.overload == OF_KERNEL else None


# The axioms that hold in exact arithmetic. A model is read with these before those that hold bit for bit. Integers stay
# exact, and a Cast between floats an operator of its own.
REAL_AXIOMS: tuple[Axiom, ...] = (
    Axiom.of("one normalisation", "Div Mul", normalise_rows),
    Axiom.of("constants in weights", "Add Sub Mul Div Neg", change_by_constant),
    Axiom.of("normalisation of batches", "BatchNormalization", normalise_batches),
    Axiom.of("rows times a matrix", "MatMul", multiply_rows),
    Axiom.of("factors", "MatMul", scale_product),
    Axiom.of("shared heads", "MatMul", share_heads),
    Axiom.of("gemm", "Gemm", multiply_and_add),
    Axiom.of("einsum", "Einsum", normalize_einsum),
    Axiom.of("convolution", "Conv", fold_into_conv),
    Axiom.of("pool", "AveragePool", average_windows),
    Axiom.of("columns", " ".join(CUTS), cut_columns),
    Axiom.of("layer normalisation", "LayerNormalization", normalise_layer),
    Axiom.of("kernels of functions", "Identity", run_kernel),
)

REAL = (*FIRST_AXIOMS, *REAL_AXIOMS, *AXIOMS)
