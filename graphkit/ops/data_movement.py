"""Operators that move, join, repeat or pad elements, and helpers of other rules that move them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from graphkit.graph.names import join_words
from graphkit.graph.operator_traits import has_attributes_only
from graphkit.ops.preconditions import FAILS, FINE, WRONG, Ints, Precondition, Violation, failing_where
from graphkit.ops.rule_context import InferenceContext, Rule, UnknownError
from graphkit.ops.tensor import (
    MAX_ELEMENTS,
    Array,
    Dims,
    Element,
    Tensor,
    array_of,
    dims_product,
    element_number,
    sizes_of,
)
from graphkit.symbolic.algebra import ceil_div, divide_exactly, is_nonzero, lower, maximum, upper
from graphkit.symbolic.expr import INF, Expr, Symbol, const

MAX_RANK = 16


def with_dims(ctx: InferenceContext, dims: Dims, array: Array | None) -> Tensor:
    """Return the first input with other dims; elements only where as many as the dims say."""
    is_held = array is not None and sizes_of(dims) == array.shape and array.size <= MAX_ELEMENTS
    return Tensor(ctx.tensor().dtype, dims, array if is_held else None)


def with_same_order(ctx: InferenceContext, dims: Dims) -> Tensor:
    """Return the first input with other dims, its elements in the same order."""
    array, sizes = small_data(ctx), sizes_of(dims)
    if array is None or sizes is None or prod(sizes) != array.size:
        return with_dims(ctx, dims, None)
    return with_dims(ctx, dims, array.reshape(sizes))


def small_data(ctx: InferenceContext) -> Array | None:
    """Return the elements of the first input where they are followed."""
    return ctx.data(0) if ctx.tensor().may_have_data else None


def read_target_shape(ctx: InferenceContext, low: float = -INF) -> list[Element]:
    """Return the second input's elements as a target shape, unknown ones where only their number is known."""
    if ctx.opset < 5 and not ctx.node.domain:
        return list(ctx.attr("shape", ()))
    return ctx.values(1) if ctx.data(1) is not None else [*unknown_values(ctx, 1, low)]


def unknown_values(ctx: InferenceContext, index: int, low: float = 0) -> list[Expr]:
    """Return symbols for the elements of a vector of which only the number is known."""
    length = ctx.dims(index)[0].constant if ctx.dims(index) else None
    if length is None or length > MAX_RANK:
        ctx.values(index)  # says why
    return [ctx.unknown_value(index, low) for _ in range(length or 0)]


def infer_reshape(ctx: InferenceContext) -> Tensor:
    """Read the target dims from the second input: 0 copies a dim (allowzero=0), one -1 takes the rest."""
    tensor = ctx.tensor()
    elements = read_target_shape(ctx)
    if tensor.dims is None:
        return Tensor(tensor.dtype, [_of_unknown_rank(ctx, element) for element in elements])
    if ctx.opset >= 5 or ctx.node.domain:
        target = tuple(ctx.as_expr(element) for element in elements)
        if not _always_reshapes(tensor.dims, target):
            ctx.require(Reshaped(tensor.dims, target, bool(ctx.attr("allowzero", 0))))
    return with_same_order(ctx, _dims_after(ctx, tensor.dims, elements))


def _of_unknown_rank(ctx: InferenceContext, element: Element) -> Expr:
    value = element_number(element)
    if value == -1 or (value == 0 and not ctx.attr("allowzero", 0)):
        return ctx.new_symbol("it is inferred from an input whose rank is unknown")
    expr = Expr.of(element)  # type: ignore[arg-type]
    if lower(expr) >= (0 if ctx.attr("allowzero", 0) else 1):
        return expr
    return ctx.new_symbol(f"it is {expr}, which may be {'0 and copy a dim' if lower(expr) >= 0 else 'below 0'}")


def _dims_after(ctx: InferenceContext, source: Dims, elements: list[Element]) -> Dims:
    allow_zero = bool(ctx.attr("allowzero", 0))
    dims: list[Expr | None] = [_explicit_dim(ctx, source, i, element, allow_zero) for i, element in enumerate(elements)]
    missing = [index for index, dim in enumerate(dims) if dim is None]
    total = dims_product(source)
    present = dims_product([dim for dim in dims if dim is not None])
    if len(missing) == 1:
        dims[missing[0]] = _remaining_dim(ctx, total, present, is_inferred=element_number(elements[missing[0]]) == -1)
    elif not missing:  # both have the same number of elements, common factors left out
        left, right = list(source), [dim for dim in dims if dim is not None]
        for dim in source:
            if dim in right and is_nonzero(dim):
                left.remove(dim)
                right.remove(dim)
        before, after = dims_product(left), dims_product(right)
        if before != after:
            ctx.same(before, after, "elements before and after", None)
    reason = "the target shape has more than one dim that is not known"
    return tuple(ctx.new_symbol(reason) if dim is None else dim for dim in dims)


def _remaining_dim(ctx: InferenceContext, total: Expr, present: Expr, *, is_inferred: bool) -> Expr:
    """Return the only dim that is not known: beside a dim of 0, which -1 refuses, any number fits."""
    if present == 0:
        raise UnknownError("-1 beside a dim of 0")
    if is_nonzero(present) or (is_inferred and not ctx.attr("allowzero", 0)):
        rest = ctx.quotient(total, present, f"{total} elements")
        atoms = {atom for expr in (total, present) for monomial, _ in expr.terms for atom in monomial}
        # other quotients, such as of the rows that there are, become numbers where more is learned
        is_plain = present.constant is None and all(isinstance(atom, Symbol) for atom in atoms)
        return maximum(rest, 1) if is_plain and lower(total) > 0 == lower(rest) else rest
    return ctx.new_symbol(f"beside {present}, which may be 0, any number of elements fits")


def _explicit_dim(ctx: InferenceContext, source: Dims, index: int, element: Element, allow_zero: bool) -> Expr | None:
    """Return a target dim, or None where the number of remaining elements decides it."""
    value = element_number(element)
    if value is not None:
        if value == -1:
            return None
        if value < -1:
            raise ctx.impossible(f"a target dim of {value}", f"a target dim of {value}")
        if value or allow_zero:
            return const(value)
        if index < len(source):
            return source[index]
        problem = f"a target dim of 0 at {index}, where the input has rank {len(source)}"
        raise ctx.impossible(problem, "a target dim of 0 has nothing to copy")
    expr = Expr.of(element)  # type: ignore[arg-type]
    least = lower(expr)
    if least < 0:
        return None
    if least >= 1 or allow_zero or index >= len(source):  # a 0 that has nothing to copy is an error
        return expr
    copied, atom = source[index], expr.atom
    # where this dim is 0 whenever the expression is, copying it and setting 0 mean the same
    is_same = copied == expr or (atom is not None and copied.substitute({str(atom): 0}) == 0)
    return expr if is_same else None


def infer_flatten(ctx: InferenceContext) -> Tensor:
    """Return two dims: the product of those before the axis, and that of the others."""
    dims, axis = ctx.dims(), ctx.attr("axis", 1)
    split = axis if axis == len(dims) else ctx.axis(axis, max(len(dims), 1))
    return with_same_order(ctx, (dims_product(dims[:split]), dims_product(dims[split:])))


def infer_transpose(ctx: InferenceContext) -> Tensor:
    """Return the dims in another order."""
    dims = ctx.dims()
    order = list(ctx.attr("perm", ()) or range(len(dims))[::-1])
    if sorted(order) != list(range(len(dims))):
        raise ctx.impossible(f"perm {order} of a tensor of rank {len(dims)}", "perm does not fit the rank")
    array = small_data(ctx)
    return with_dims(ctx, tuple(dims[axis] for axis in order), None if array is None else array.transpose(order))


def infer_squeeze(ctx: InferenceContext) -> Tensor:
    """Remove dims of 1: those named, or all; an empty list names none by ONNX, and all in onnxruntime."""
    dims, axes = ctx.dims(), ctx.axes()
    if axes is not None and not axes and any(lower(dim) <= 1 <= upper(dim) for dim in dims):
        raise UnknownError("its list of axes is empty, which onnxruntime takes for all dims of 1, and ONNX for none")
    if axes is None:
        undecided = [dim for dim in dims if dim.constant is None and lower(dim) <= 1 <= upper(dim)]
        if undecided:
            raise UnknownError(f"without axes, the rank depends on whether {undecided[0]} is 1")
        gone = {index for index, dim in enumerate(dims) if dim == 1}
    else:
        gone = {ctx.axis(axis, len(dims)) for axis in axes}
        for index in gone:
            ctx.same(dims[index], const(1), "a dim that is squeezed and 1", "must be 1 instead")
    return with_same_order(ctx, tuple(dim for index, dim in enumerate(dims) if index not in gone))


def infer_unsqueeze(ctx: InferenceContext) -> Tensor:
    """Insert dims of 1 at the axes."""
    dims, axes = ctx.dims(), ctx.axes() or []
    rank = len(dims) + len(axes)
    places = {ctx.axis(axis, rank) for axis in axes}
    rest = iter(dims)
    if len(places) < len(axes):
        raise UnknownError("an axis is given twice")
    return with_same_order(ctx, tuple(const(1) if index in places else next(rest) for index in range(rank)))


def expand_dims(ctx: InferenceContext) -> Tensor:
    """Infer com.microsoft ExpandDims: with a dim of 1 at the axis."""
    dims, axes = ctx.dims(), ctx.numbers(1)
    if len(axes) != 1:
        raise UnknownError(f"{ctx.name(1)} is not a single number")
    place = ctx.axis(axes[0], len(dims) + 1)
    return with_same_order(ctx, (*dims[:place], const(1), *dims[place:]))


def infer_concat(ctx: InferenceContext) -> Tensor:
    """Add the dims along the axis; all other dims must be equal."""
    shapes = [ctx.dims(index) for index in range(len(ctx.inputs))]
    axis = ctx.axis(ctx.attr("axis", 1), len(shapes[0]))
    if len({len(dims) for dims in shapes}) > 1:
        raise ctx.impossible("inputs of different rank", "the inputs differ in rank")
    distinct = tuple(dict.fromkeys(shapes))
    if len({(*each[:axis], *each[axis + 1 :]) for each in distinct}) > 1:
        ctx.require(Concatenated(distinct, axis))
    dims = [dim if index == axis else _common_dim(ctx, shapes, index) for index, dim in enumerate(shapes[0])]
    dims[axis] = sum((dims_of_input[axis] for dims_of_input in shapes[1:]), dims[axis])
    return with_dims(ctx, tuple(dims), _join_elements(ctx, axis))


def _common_dim(ctx: InferenceContext, shapes: list[Dims], index: int) -> Expr:
    """Return a dim that is not concatenated, equal in all inputs; onnxruntime lets one without elements differ."""
    if all(dims[index] is shapes[0][index] or dims[index] == shapes[0][index] for dims in shapes[1:]):
        return shapes[0][index]
    full = [dims for dims in shapes if all(lower(dim) >= 1 for dim in dims)]
    if not full:
        different = ", ".join(dict.fromkeys(str(dims[index]) for dims in shapes))
        return ctx.new_symbol(f"the inputs have {different}, and any may be without elements")
    result = full[0][index]
    for dims in full[1:]:
        result = ctx.same(result, dims[index], "dims that are not concatenated", None)
    return result


def _join_elements(ctx: InferenceContext, axis: int) -> Array | None:
    tensors = [ctx.tensor(index) for index in range(len(ctx.inputs))]
    if not any(tensor.may_have_data for tensor in tensors):
        return None
    counts = [tensor.count() for tensor in tensors]
    if sum(MAX_ELEMENTS + 1 if count is None else count for count in counts) > MAX_ELEMENTS:
        return None
    arrays = [_fill_elements(ctx, index) for index in range(len(tensors))]
    present = [array for array in arrays if array is not None]
    return np.concatenate(present, axis) if len(present) == len(arrays) else None


def _fill_elements(ctx: InferenceContext, index: int) -> Array | None:
    """Return the elements of an integer input, unknown ones where it has none."""
    tensor = ctx.tensor(index)
    if (data := tensor.data) is not None:
        return data
    if not tensor.is_shape_like or (count := tensor.count()) is None or count > 8:
        return None
    reason = tensor.reason or f"the value of {ctx.name(index)} is unknown"
    return array_of([ctx.new_element(reason, tensor.dtype) for _ in range(count)], tensor.sizes())


def infer_qlinear_concat(ctx: InferenceContext) -> Tensor:
    """Infer QLinearConcat(y_scale, y_zero, x, x_scale, x_zero, ...)."""
    shapes = [ctx.dims(index) for index in range(2, len(ctx.inputs), 3)]
    axis = ctx.axis(ctx.attr("axis", 0), len(shapes[0]))
    total = sum((dims[axis] for dims in shapes), const(0))
    return ctx.like((*shapes[0][:axis], total, *shapes[0][axis + 1 :]), 1)


def infer_split(ctx: InferenceContext) -> list[Tensor]:
    """Return parts of the sizes that are given, or as many equal ones as there are outputs."""
    dims = ctx.dims()
    axis = ctx.axis(ctx.attr("axis", 0), len(dims))
    count = len(ctx.node.outputs)
    is_older = has_attributes_only(ctx.node)
    if ctx.has(1) and not is_older:
        sizes = [ctx.unknown_value(1) for _ in range(count)] if ctx.data(1) is None else ctx.exprs(1)
    elif is_older and (sizes_given := ctx.attr("split", ())):
        sizes = [const(size) for size in sizes_given]
    else:
        parts = ctx.attr("num_outputs", count) if ctx.opset >= 18 else count
        if parts != count:
            raise UnknownError(f"num_outputs is {parts}, and there are {count}")
        if ctx.opset >= 18:
            size = ceil_div(dims[axis], parts)
        else:
            size = ctx.quotient(dims[axis], const(parts), "a dim to be split evenly", "cannot be split evenly")
        rest = dims[axis] - size * (parts - 1)
        ctx.require_at_least(rest, 0, f"the last of {parts} parts", "Invalid num_outputs value")
        sizes = [size] * (parts - 1) + [rest]
    negative = [size for size in sizes if (n := size.constant) is not None and n < 0]
    if negative:
        raise ctx.impossible(f"a part of size {negative[0]}", "a part has a negative size")
    if len(sizes) != count:
        raise ctx.impossible(f"{len(sizes)} sizes for {count} outputs", "the sizes do not fit the outputs")
    ctx.same(sum(sizes, const(0)), dims[axis], "the sum of the parts and the whole", "split")
    array = small_data(ctx)
    result, start = [], 0
    for size in sizes:
        part, length = None, size.constant
        if length is None:
            array = None  # where the parts behind it begin is not known
        if array is not None and length is not None:
            part = array.take(range(start, min(start + length, array.shape[axis])), axis)
            start += length
        result.append(with_dims(ctx, (*dims[:axis], size, *dims[axis + 1 :]), part))
    return result


def depth_to_space(ctx: InferenceContext) -> Tensor:
    """Divide the channels by the square of the block, and multiply height and width by the block; or the reverse."""
    batch, channels, height, width = ctx.dims()
    size = ctx.attr("blocksize", 1)
    if ctx.node.op_type == "DepthToSpace":
        channels = ctx.quotient(channels, const(size * size), "a dim", "multiple of")
        return ctx.like((batch, channels, height * size, width * size))
    height, width = (ctx.quotient(dim, const(size), "a dim", "multiple of") for dim in (height, width))
    return ctx.like((batch, channels * (size * size), height, width))


def infer_expand(ctx: InferenceContext) -> Tensor:
    """Return the input broadcast to the target shape."""
    shape = tuple(Expr.of(element) for element in read_target_shape(ctx, low=0))  # type: ignore[arg-type]
    if any(upper(dim) < 0 for dim in shape):
        raise ctx.impossible(f"a target shape of [{', '.join(map(str, shape))}]", "the target shape has a dim below 0")
    for dim in shape:
        ctx.require_at_least(dim, 0, "a target dim below 0")
    shape = tuple(maximum(dim, 0) if lower(dim) < 0 else dim for dim in shape)
    dims = ctx.broadcast(ctx.dims(0), shape, says="invalid expand shape")
    array, sizes = small_data(ctx), sizes_of(dims)
    if array is not None and sizes is not None and prod(sizes) <= MAX_ELEMENTS:
        array = np.broadcast_to(array, sizes)
    return with_dims(ctx, dims, array)


def infer_tile(ctx: InferenceContext) -> Tensor:
    """Multiply each dim by its repeats."""
    dims, repeats = ctx.dims(), ctx.exprs(1)
    if len(repeats) != len(dims):
        raise ctx.impossible(f"{len(repeats)} repeats for rank {len(dims)}", "the repeats do not fit the rank")
    for times in repeats:
        ctx.require_at_least(times, 0, "repeats below 0", "must be non-negative")
    result = tuple(dim * times for dim, times in zip(dims, repeats, strict=True))
    array, sizes, numbers = small_data(ctx), sizes_of(result), sizes_of(repeats)
    if array is None or numbers is None or sizes is None or prod(sizes) > MAX_ELEMENTS:
        return with_dims(ctx, result, None)
    return with_dims(ctx, result, np.tile(array, numbers))


def infer_pad(ctx: InferenceContext) -> Tensor:
    """Add the padding before and after to each dim."""
    dims = list(ctx.dims())
    pads: list[Element] = list(ctx.attr("pads", ())) if has_attributes_only(ctx.node) else ctx.values(1)
    axes = list(range(len(dims)))
    if not ctx.node.domain and ctx.opset >= 18 and ctx.has(3):
        axes = [ctx.axis(axis, len(dims)) for axis in ctx.numbers(3)]
    if len(pads) != 2 * len(axes):
        raise ctx.impossible(f"{len(pads)} pads for {len(axes)} axes", "the pads do not fit the rank")
    mode = ctx.attr("mode", "constant")
    for position, axis in enumerate(axes):
        around = [ctx.as_expr(pads[place]) for place in (position, position + len(axes))]
        dim, dims[axis] = dims[axis], dims[axis] + around[0] + around[1]
        ctx.require_at_least(dims[axis], 0, "a dim that is cut", "must be >= 0")
        for width in around if mode == "reflect" and around != [0, 0] else ():
            ctx.require_at_most(width, dim - 1, "padding that reflects more than the axis has", "reflect")
        if mode == "edge" and around != [0, 0]:
            ctx.require_at_least(dim, 1, "no edge to pad with", "'edge' mode")
    return with_dims(ctx, tuple(dims), _pad_elements(ctx, axes, pads))


def _pad_elements(ctx: InferenceContext, axes: list[int], pads: list[Element]) -> Array | None:
    array, is_constant = small_data(ctx), ctx.attr("mode", "constant") == "constant"
    widths = [n for element in pads if (n := element_number(element)) is not None and n >= 0]
    fill = ctx.data(2) if ctx.has(2) else array_of([0])
    if array is None or fill is None or len(widths) < len(pads) or not is_constant or has_attributes_only(ctx.node):
        return None
    around = [(0, 0)] * array.ndim
    for position, axis in enumerate(axes):
        around[axis] = (widths[position], widths[position + len(axes)])
    sizes = [size + sum(pair) for size, pair in zip(array.shape, around, strict=True)]
    if prod(sizes) > MAX_ELEMENTS:
        return None
    result = np.full(sizes, fill.ravel()[0], object)
    result[tuple(slice(before, before + n) for n, (before, _) in zip(array.shape, around, strict=True))] = array
    return result


RULES: Mapping[str, Rule] = {
    "Reshape": infer_reshape,
    "Flatten": infer_flatten,
    "Transpose": infer_transpose,
    "Squeeze": infer_squeeze,
    "Unsqueeze": infer_unsqueeze,
    "com.microsoft.ExpandDims": expand_dims,
    "Concat": infer_concat,
    "com.microsoft.QLinearConcat": infer_qlinear_concat,
    "Split": infer_split,
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), depth_to_space),
    "Expand": infer_expand,
    "Tile": infer_tile,
    **dict.fromkeys(("Pad", "com.microsoft.Pad"), infer_pad),
}


@dataclass(frozen=True)
class Concatenated(Precondition):
    """The inputs of a Concat that have elements have equal dims, except along the axis."""

    shapes: tuple[tuple[Expr, ...], ...]
    axis: int

    def outcome(self, values: Sequence[Ints]) -> Ints:
        rank = len(self.shapes[0])
        rows = [values[start : start + rank] for start in range(0, len(values), rank)]
        clash = np.zeros(values[0].shape, np.bool_)
        for index in range(rank):
            if index == self.axis:
                continue
            common = np.full(values[0].shape, -1, np.int64)
            for row in rows:
                full = np.all(np.stack([*row]) != 0, axis=0)
                clash |= full & (common >= 0) & (row[index] != common)
                common = np.where(full, row[index], common)
        return failing_where(clash)

    def violation(self, values: Sequence[int]) -> Violation:
        rank = len(self.shapes[0])
        rows = [list(values[start : start + rank]) for start in range(0, len(values), rank)]
        problem = f"shapes that cannot be joined at axis {self.axis}: {join_words([str(row) for row in rows])}"
        return Violation(problem, "Non concat axis dimensions must match")

    @property
    def told(self) -> tuple[Expr, ...]:
        return tuple(dim for pair in self.equalities() for dim in pair if pair[0] != pair[1])

    def equalities(self) -> tuple[tuple[Expr, Expr], ...]:
        first, *others = self.shapes
        return tuple((first[i], dims[i]) for dims in others for i in range(len(first)) if i != self.axis)


CANNOT = "cannot be reshaped to the requested shape"


@dataclass(frozen=True)
class Reshaped(Precondition):
    """A target shape fits the number of elements, and is read as it was written.

    A constant 0 in the target is meant to copy a dim. An expression that is 0 is meant as 0: if onnxruntime copies
    another dim instead, the shape is wrong.
    """

    source: tuple[Expr, ...]
    target: tuple[Expr, ...]
    allow_zero: bool

    def outcome(self, values: Sequence[Ints]) -> Ints:
        source, target = list(values[: len(self.source)]), list(values[len(self.source) :])
        shape = values[0].shape
        fails, wrong = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
        inferred, size = np.zeros(shape, np.int64), np.ones(shape, np.int64)
        total = prod(source, start=np.ones(shape, np.int64))
        for index, element in enumerate(target):
            is_rest = element == -1
            fails |= element < -1
            inferred += is_rest
            copied = element
            if not self.allow_zero and index < len(source):  # 0 copies a dim
                copied = np.where(element == 0, source[index], element)
            elif not self.allow_zero:
                fails |= element == 0
            wrong |= (copied != element) & (self.target[index].constant is None)
            size = size * np.where(is_rest, 1, copied)
        fails |= inferred > 1
        divisor = np.where(size == 0, 1, size)
        beside_zero = (size == 0) & (not self.allow_zero)  # with allowzero, onnxruntime takes -1 beside 0 for 1
        fails |= np.where(inferred == 1, beside_zero | (total % divisor != 0), total != size)
        return np.where(fails, FAILS, np.where(wrong, WRONG, FINE))

    def violation(self, values: Sequence[int]) -> Violation:
        source, target = list(values[: len(self.source)]), list(values[len(self.source) :])
        text = f"{source} to [{', '.join(map(str, self.target))}] = {target}"
        if any(element < -1 for element in target):
            return Violation(f"{text}: below -1", "A dimension cannot be less than -1")
        if not self.allow_zero and 0 in target[len(source) :]:
            return Violation(f"{text}: 0 has nothing to copy", "exceeds the dimension size of the input tensor")
        if target.count(-1) > 1:
            return Violation(f"{text}: more than one -1", "At most one dimension can be -1")
        result = [source[i] if size == 0 and not self.allow_zero else size for i, size in enumerate(target)]
        meant = [i for i, expr in enumerate(self.target) if expr.constant is None]
        copies = [f"0 copies {result[i]}" for i in meant if target[i] != result[i]]
        size = int(np.prod([element for element in result if element != -1]))
        total = int(np.prod(source))
        if -1 in target and size == 0 and not self.allow_zero:
            return Violation(f"{text}: -1 beside 0 cannot be inferred", CANNOT)
        if (-1 in target and total % max(size, 1)) or (-1 not in target and total != size):
            return Violation(f"{text}: {'; '.join([*copies, f'{total} elements do not fit'])}", CANNOT)
        result = [total // max(size, 1) if element == -1 else element for element in result]
        return Violation(f"{text}: {'; '.join(copies)}", "", tuple(result))


@lru_cache(maxsize=4096)  # layers repeat
def _always_reshapes(source: Dims, target: Dims) -> bool:
    """Whether a target fits at all legal dims."""
    dims = []
    for index, element in enumerate(target):
        if element == 0 and index < len(source):
            element = source[index]
        if element != -1 and lower(element) < 1:
            return False
        dims.append(element)
    present, total = dims_product([element for element in dims if element != -1]), dims_product(source)
    if -1 not in dims:
        return present == total
    return dims.count(const(-1)) == 1 and divide_exactly(total, present) * present == total
