"""Value ranges: the form of an integer tensor's elements, followed from operator to operator.

The elements that Range, Expand and Add make are `start + i*stride[0] + j*stride[1] + ...` at the coordinates i, j, ...:
rank + 1 expressions say all of them, even where their number depends on the input dims. Of other tensors, the least and
the greatest element may be known, and only if both occur: an index that never occurs is no hazard. For a tensor without
elements, every statement holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import numpy as np
from msgspec import Struct
from onnx import TensorProto

from graphkit.dtypes import FLOATS, INTEGERS, inline_array
from graphkit.errors import ModelError
from graphkit.graph.dataflow import ForwardAnalysis
from graphkit.graph.operator_traits import RESHAPING, joined_parts
from graphkit.graph.roles import MASKS
from graphkit.graph.view import Node, Value, unwrap_value
from graphkit.model import Model
from graphkit.ops.element_values import cast_element, compare_elements
from graphkit.ops.rule_context import NodeView, UnknownError
from graphkit.ops.tensor import Array, Dims, Element, Tensor, is_known
from graphkit.symbolic.algebra import lower, maximum, minimum, upper
from graphkit.symbolic.expr import OPERATIONS, Call, Expr, TooComplexError, const

MAX_COMPARED = 8  # different expressions whose least is looked for


class ValueRange(Struct, frozen=True):
    """The least and the greatest element of a tensor; both occur, unless it has no elements."""

    low: Expr
    high: Expr

    @property
    def uniform(self) -> Expr | None:
        """The element that all elements equal, None if they may differ."""
        return self.low if self.low == self.high else None

    @property
    def range(self) -> ValueRange:
        """The range itself."""
        return self

    @property
    def is_known(self) -> bool:
        """Whether both are expressions in the model's input dims."""
        return is_known(self.low) and is_known(self.high)

    def times(self, factor: Expr) -> ValueRange:
        """Return it multiplied; UnknownError where the sign of the factor is not known."""
        ends = self.low * factor, self.high * factor
        return ValueRange(*ends[:: _sign_of_factor(factor)])

    def each(self, function: Callable[[Expr, Expr], Expr], limit: Expr) -> ValueRange:
        """Return it after `min` or `max` with a limit."""
        return ValueRange(function(self.low, limit), function(self.high, limit))


class Affine(Struct, frozen=True):
    """The elements of a tensor: `start` plus the sum of each coordinate times its stride."""

    dims: Dims
    start: Expr
    strides: tuple[Expr, ...]  # one a dim, 0 where the dim is 1

    @classmethod
    def of(cls, dims: Dims, start: Expr, strides: Sequence[Expr]) -> Affine:
        """Return it with strides of 0 where the dim is 1."""
        return cls(dims, start, tuple(const(0) if dim == 1 else s for dim, s in zip(dims, strides, strict=True)))

    @property
    def uniform(self) -> Expr | None:
        """The element that all elements equal, None if they may differ."""
        return self.start if all(stride == 0 for stride in self.strides) else None

    @property
    def range(self) -> ValueRange:
        """The least and the greatest element; UnknownError where the sign of a stride is not known."""
        low = high = self.start
        for dim, stride in zip(self.dims, self.strides, strict=True):
            if stride != 0:
                reach = (_without_empty(dim) - 1) * stride
                low, high = (low, high + reach) if _sign_of_factor(stride) > 0 else (low + reach, high)
        return ValueRange(low, high)

    def times(self, factor: Expr) -> Affine:
        """Return it multiplied."""
        return Affine(self.dims, self.start * factor, tuple(stride * factor for stride in self.strides))

    def broadcast(self, dims: Dims) -> Affine | None:
        """Return it broadcast to other dims, None where it is not certain which dims grow."""
        missing = len(dims) - len(self.dims)
        if missing < 0:
            return None
        strides = [const(0)] * missing
        for dim, stride, after in zip(self.dims, self.strides, dims[missing:], strict=True):
            if dim not in (1, after):
                return None
            strides.append(stride)
        return Affine.of(dims, self.start, strides)

    def reshape_dims(self, dims: Dims) -> Affine | None:
        """Return it with other dims, where only dims of 1 come and go."""
        strided = [(dim, stride) for dim, stride in zip(self.dims, self.strides, strict=True) if dim != 1]
        if [dim for dim, _ in strided] != [dim for dim in dims if dim != 1]:
            return None
        strides_left = iter(stride for _, stride in strided)
        return Affine.of(dims, self.start, [const(0) if dim == 1 else next(strides_left) for dim in dims])

    def transpose_dims(self, order: Sequence[int]) -> Affine:
        """Return it with its axes in another order."""
        dims, strides = (tuple(row[axis] for axis in order) for row in (self.dims, self.strides))
        return Affine(dims, self.start, strides)


Form = Affine | ValueRange


def uniform_form(element: Expr | int, dims: Dims | None) -> Form:
    """Return the form of a tensor whose elements are all the same."""
    element = Expr.of(element)
    return ValueRange(element, element) if dims is None else Affine(dims, element, (const(0),) * len(dims))


def broadcast_form(form: Form, dims: Dims | None) -> Form:
    """Return the form of a tensor after it is broadcast."""
    grown = form.broadcast(dims) if isinstance(form, Affine) and dims is not None else None
    return grown or form.range


def fit_form(dims: Dims, data: Array | np.ndarray) -> Form | None:
    """Return a form that holds for all of these integers or expressions, None where there is none."""
    if data.dtype == object and not all(isinstance(element, int | Expr) for element in data.flat):
        return None
    if data.size < 2:
        return uniform_form(next(iter(data.flat), 0), dims)
    origin = data.flat[0]
    units = np.eye(data.ndim, dtype=int).tolist()
    strides = [data[tuple(units[axis])] - origin if size > 1 else 0 for axis, size in enumerate(data.shape)]
    expected = np.full(data.shape, origin, data.dtype)
    for axis, stride in enumerate(strides):
        steps = np.arange(data.shape[axis]).astype(data.dtype) * stride
        expected = expected + np.expand_dims(steps, [other for other in range(data.ndim) if other != axis])
    if np.all(expected == data):
        return Affine(dims, Expr.of(origin), tuple(map(Expr.of, strides)))
    elements = set(data.flat) if data.dtype == object else {int(data.min()), int(data.max())}
    if len(elements) > MAX_COMPARED and any(isinstance(element, Expr) for element in elements):
        return None
    return ValueRange(minimum(*elements), maximum(*elements))


def _sign_of_factor(factor: Expr) -> int:
    if lower(factor) < 0 < upper(factor):
        raise UnknownError(f"the sign of {factor} is not known")
    return 1 if lower(factor) >= 0 else -1


def _without_empty(dim: Expr) -> Expr:
    """Return the value of a dim where it is not 0: its min or max lacks the arguments that would leave no elements."""
    for monomial, factor in dim.terms:
        call = monomial[0] if len(monomial) == 1 else None
        if isinstance(call, Call) and call.op in ("min", "max"):
            rest = dim - Expr.from_atom(call) * factor
            nonempty = [arg for arg in call.args if upper(rest + arg * factor) > 0]
            return rest + OPERATIONS[call.op](*nonempty) * factor if nonempty else dim
    return dim


MAX_CONSTANT = 2**20  # elements of a constant that are looked at
MAX_NUMBER = 2**31  # larger elements are no indices, and their differences might overflow
WIDE = (TensorProto.INT32, TensorProto.INT64)  # they hold whatever is made of dims


class ValueRangeAnalysis(ForwardAnalysis["Form | None"]):
    """Finds the forms of the integer tensors of a model; each tensor is analysed once.

    `tensor` returns the known facts of a value's shape. With `typical`, inputs are taken to be those with which
    positions reach furthest: masks are all ones, no token is padding, and no number is past 2**24, where float32 begins
    to skip integers.
    """

    def __init__(self, model: Model, tensor: Callable[[Value], Tensor], *, typical: bool = False) -> None:
        super().__init__(None)
        self.model, self.tensor, self.typical = model, tensor, typical
        self._followed = {0, *INTEGERS, *FLOATS} if typical else {0, *INTEGERS}

    def affine(self, value: Value | None) -> Affine | None:
        """Return the elements of a tensor as a function of their coordinates, None where none is known."""
        form = self.of(value)
        return form if isinstance(form, Affine) else None

    def range(self, value: Value | None) -> ValueRange | None:
        """Return the least and the greatest element in terms of the input dims, None where they are not known."""
        form = self.of(value)
        with suppress(UnknownError):
            return form.range if form is not None and form.range.is_known else None
        return None

    def components(self, value: Value | None) -> tuple[Affine, ...] | None:
        """Return the slices of a tensor along its last axis, each without that axis; None where one is not affine."""
        dims = self.tensor(value).dims if value is not None else None
        if value is None or not dims:
            return None
        node = value.producer
        is_last = node is not None and node.attr("axis", int) in (-1, len(dims) - 1)
        joined = (joined_parts(node) if node is not None and is_last else ()) or (value,)
        parts = [self._parts(source) for source in joined if source is not None]
        return None if None in parts else tuple(component for part in parts if part is not None for component in part)

    def _parts(self, value: Value) -> list[Affine] | None:
        whole, data = self.affine(value), self._data(value)
        dims = self.tensor(value).dims
        if data is not None and dims:
            forms = [fit_form(dims[:-1], data[..., index]) for index in range(data.shape[-1])]
            parts = [form for form in forms if isinstance(form, Affine)]
            return parts if len(parts) == len(forms) else None
        count = whole.dims[-1].constant if whole is not None and whole.dims else None
        if whole is None or count is None:
            return None
        last, rest = whole.strides[-1], whole.strides[:-1]
        return [Affine(whole.dims[:-1], whole.start + last * index, rest) for index in range(count)]

    def transfer(self, value: Value) -> Form | None:
        """Return the form of a tensor's elements, affine or a range."""
        with suppress(UnknownError, TooComplexError, LookupError, ValueError):  # or a node that fits no operator
            tensor, data, node = self.tensor(value), self._data(value), value.producer
            if tensor.dims is not None and data is not None and (fitted := fit_form(tensor.dims, data)) is not None:
                return fitted
            if node is None:
                is_mask = self.typical and self.model.roles.of(value) in MASKS
                return uniform_form(int(self.model.roles.polarities[value] != "pads"), tensor.dims) if is_mask else None
            rule = RULES.get(node.op_type) if not node.domain and tensor.dtype in self._followed else None
            if rule is None or any(attribute.ref_attr_name for attribute in node.attributes.values()):
                return None
            inputs = [None if source is None else self.tensor(source) for source in node.inputs]
            form = rule(ElementsView(node, inputs, tensor.dims, self.of, self.typical))
            return form if _holds_elements(tensor.dtype, form) else None
        return None

    def _data(self, value: Value) -> Array | np.ndarray | None:
        """Return the elements of an integer tensor where they are known: small ones, or those of a constant."""
        facts, tensor = self.tensor(value), value.constant
        if facts.dtype not in INTEGERS:
            return None
        if facts.data is not None:
            exprs = [element for element in facts.data.flat if isinstance(element, Expr)] if self.typical else []
            return facts.data if all(map(is_known, exprs)) else None
        if tensor is None or facts.dtype not in WIDE or not 0 < math.prod(tensor.dims) <= MAX_CONSTANT:
            return None
        try:
            array = self.model.array(tensor)
        except ModelError:  # its data file is missing
            return None
        return array.astype(np.int64) if array.min() > -MAX_NUMBER and array.max() < MAX_NUMBER else None


def _holds_elements(dtype: int, form: Form) -> bool:
    """Whether a dtype holds all elements as they are; one of 0, which is not known, is that of the inputs.

    Where they depend on dims, factors must be small: with large ones, elements wrap around at sizes that are legal.
    """
    parts = (form.start, *form.strides) if isinstance(form, Affine) else (form.low, form.high)
    if any(abs(factor) >= MAX_NUMBER for part in parts if part.constant is None for _, factor in part.terms):
        return False
    try:
        ends = [end if end.constant is None else end.constant for end in (form.range.low, form.range.high)]
    except UnknownError:
        return dtype in (0, *WIDE)
    return not dtype or all(cast_element(end, dtype, False) == end for end in ends)


T = TypeVar("T")
Finder = Callable[[Value | None], Form | None]


class ElementsView(NodeView):
    """A view of a node that also tells the forms of its inputs' elements."""

    def __init__(self, node: Node, inputs: list[Tensor | None], out: Dims | None, find: Finder, typical: bool) -> None:
        super().__init__(node, inputs, node.attributes)
        self.out, self.find = out, find  # the dims of its first output, and what finds the forms of values
        self.typical = typical  # whether inputs are taken to be typical ones: no token is padding

    def form(self, index: int) -> Form:
        """Return the form of the elements of an input."""
        form = self.find(self.node.input(index))
        if form is None:
            raise UnknownError(f"the elements of {self.name(index)} are not known")
        return form

    def uniform(self, index: int) -> Expr:
        """Return the one value that all elements of an input have."""
        return _require_given(self.form(index).uniform)

    def is_zero(self, index: int) -> int:
        """Return 1 if all elements of an input are 0, 0 if none is."""
        return _require_given(compare_elements("==", self.uniform(index), 0))

    def exprs(self, index: int) -> list[Expr]:
        """Return the elements of a small input, which must be integers."""
        return [Expr.of(_whole_element(element)) for element in self.values(index)]  # type: ignore[arg-type]

    def expr(self, index: int) -> Expr:
        """Return the element of an input of one."""
        return Expr.of(_whole_element(self.scalar(index)))  # type: ignore[arg-type]


def _require_given(value: T | None) -> T:
    if value is None:
        raise UnknownError("the elements of an input are not known")
    return value


def _whole_element(element: Element) -> Element:
    return int(element) if isinstance(element, float) and element.is_integer() else element


def _move_form(view: ElementsView) -> Form:
    """The same elements, in the same order or another one."""
    source = view.form(0)
    if not isinstance(source, Affine) or view.out is None:
        return source.range
    return MOVES[view.node.op_type](source, view, view.out) or source.range


MOVES: Mapping[str, Callable[[Affine, ElementsView, Dims], Affine | None]] = {
    **dict.fromkeys(("Cast", "Identity"), lambda source, *_: source),
    **dict.fromkeys(("Expand", "Tile"), lambda source, _, dims: source.broadcast(dims)),
    **dict.fromkeys(RESHAPING, lambda source, _, dims: source.reshape_dims(dims)),
    "Transpose": lambda source, view, dims: source.transpose_dims(view.attr("perm", ()) or range(len(dims))[::-1]),
}


def _add_form(view: ElementsView) -> Form:
    right = view.form(1).times(const(-1)) if view.node.is_op("Sub") else view.form(1)
    # each element of one input meets each of the other: one is uniform, or they vary along different axes
    pairs = zip(view.dims(0)[::-1], view.dims(1)[::-1], strict=False)
    all_meet = any(view.form(index).uniform is not None for index in (0, 1)) or all(1 in pair for pair in pairs)
    a, b = broadcast_form(view.form(0), view.out), broadcast_form(right, view.out)
    if isinstance(a, Affine) and isinstance(b, Affine):
        return Affine.of(a.dims, a.start + b.start, [x + y for x, y in zip(a.strides, b.strides, strict=True)])
    if not all_meet:
        raise UnknownError("it is not known whether the greatest elements meet")
    return ValueRange(a.range.low + b.range.low, a.range.high + b.range.high)


def _with_uniform(view: ElementsView) -> tuple[Form, Expr]:
    """Return one of two inputs, and the one value of all elements of the other."""
    left, right = map(view.form, range(len(view.inputs)))
    return (left, right.uniform) if right.uniform is not None else (right, _require_given(left.uniform))


def _multiply_form(view: ElementsView) -> Form:
    form, factor = _with_uniform(view)
    return broadcast_form(form, view.out).times(factor)


def _limit_form(view: ElementsView) -> Form:
    form, limit = _with_uniform(view)
    return form.range.each(minimum if view.node.is_op("Min") else maximum, limit)


def _clip_form(view: ElementsView) -> Form:
    if view.attributes:
        raise UnknownError("before opset 11, its limits are attributes")
    form = view.form(0)
    for index, function in ((1, maximum), (2, minimum)):
        form = form.range.each(function, view.expr(index)) if view.has(index) else form
    return form


def _cum_sum(view: ElementsView) -> Form:
    addend, dims = view.uniform(0), view.dims(0)
    axis, strides = view.axis(int(view.expr(1)), len(dims)), [const(0)] * len(dims)
    is_reverse, is_exclusive = view.attr("reverse", 0), view.attr("exclusive", 0)
    strides[axis] = -addend if is_reverse else addend
    return Affine.of(dims, addend * ((dims[axis] if is_reverse else 1) - is_exclusive), strides)


def _equal_form(view: ElementsView) -> Form:
    left, right = (form.uniform if form is not None else None for form in map(view.find, view.node.inputs))
    if left is not None and right is not None:
        return uniform_form(_require_given(compare_elements("==", left, right)), view.out)
    is_of_tokens = view.typical and any(map(_is_input, view.node.inputs))
    if not is_of_tokens or (left is None and right is None):
        raise UnknownError("the elements may be equal or not")
    return uniform_form(0, view.out)


def _is_input(value: Value | None) -> bool:
    """Whether a value is an input of the graph, moved or cast at most."""
    source = unwrap_value(value, MOVES) if value is not None else None
    return source is not None and source.kind == "input" and not source.scope.path


def _slice_form(view: ElementsView) -> Form:
    source = view.form(0)
    if not isinstance(source, Affine) or source.uniform is not None:
        return uniform_form(view.uniform(0), view.out)
    starts, start, strides = view.exprs(1), source.start, list(source.strides)
    axes = view.numbers(3) if view.has(3) else range(len(starts))
    steps = view.numbers(4) if view.has(4) else [1] * len(starts)
    for first, axis, step in zip(starts, axes, steps, strict=True):
        if step < 1 or lower(first) < 0 <= upper(first):
            raise UnknownError("it goes backwards, or its start may count from the end or not")
        start += strides[axis] * (first if lower(first) >= 0 else maximum(first + source.dims[axis], 0))
        strides[axis] *= step
    return Affine.of(_require_given(view.out), start, strides)


def _gather_form(view: ElementsView) -> Form:
    source = view.form(0)
    if not isinstance(source, Affine) or source.uniform is not None:
        return uniform_form(view.uniform(0), view.out)
    places, axis = view.form(1), view.axis(view.attr("axis", 0), len(source.dims))
    low, high = lower(places.range.low), upper(places.range.high)
    if not isinstance(places, Affine) or low < 0 <= high:
        raise UnknownError("its indices are not known, or may count from the end or not")
    first, step = places.start if low >= 0 else places.start + source.dims[axis], source.strides[axis]
    strides = [*source.strides[:axis], *places.times(step).strides, *source.strides[axis + 1 :]]
    return Affine.of(_require_given(view.out), source.start + first * step, strides)


RULES: Mapping[str, Callable[[ElementsView], Form]] = {
    **dict.fromkeys(MOVES, _move_form),
    "Add": _add_form,
    "Clip": _clip_form,
    # KeyError where the value is left out, and 0.0
    "ConstantOfShape": lambda view: uniform_form(
        _require_given(inline_array(view.attributes["value"].t)).item(), view.out
    ),
    "CumSum": _cum_sum,
    "Equal": _equal_form,
    "Gather": _gather_form,
    "Max": _limit_form,
    "Min": _limit_form,
    "Mul": _multiply_form,
    "Not": lambda view: uniform_form(view.is_zero(0), view.out),
    "Range": lambda view: Affine.of(_require_given(view.out), view.expr(0), [view.expr(2)]),
    "Slice": _slice_form,
    "Sub": _add_form,
    "Where": lambda view: broadcast_form(view.form(2 if view.is_zero(0) else 1), view.out),
}
