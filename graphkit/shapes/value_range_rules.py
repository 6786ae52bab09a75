"""The rules of the value-range analysis, by operator.

They follow Range, CumSum over a mask, offsets, and operators that only move elements, or raise UnknownError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from graphkit.graph.view import Node, Value, unwrapped
from graphkit.io.tensors import inline_array
from graphkit.shapes.algebra import maximum, minimum
from graphkit.shapes.bounds import lower, upper
from graphkit.shapes.expr import Expr, const
from graphkit.shapes.node_view import NodeView, UnknownError
from graphkit.shapes.tensor import Dims, Element, Tensor
from graphkit.shapes.value_propagation import compare
from graphkit.shapes.value_range import Affine, Form, add, broadcast, uniform

__all__ = ["MOVES", "RULES", "ElementsView"]

T = TypeVar("T")
Finder = Callable[[Value | None], Form | None]


class ElementsView(NodeView):
    """A view of a node that also tells the forms of its inputs' elements.

    Attributes:
        out: The dims of its first output, None where they are not known.
        find: What tells what is known of the elements of a value.
        typical: Whether the inputs of the model are taken to be typical ones: no token is padding.
    """

    def __init__(self, node: Node, inputs: list[Tensor | None], out: Dims | None, find: Finder, typical: bool) -> None:
        super().__init__(node, inputs, node.attributes)
        self.out, self.find, self.typical = out, find, typical

    def form(self, index: int) -> Form:
        """Return the form of the elements of an input."""
        found = self.find(self.node.input(index))
        if found is None:
            raise UnknownError(f"the elements of {self.name(index)} are not known")
        return found

    def uniform(self, index: int) -> Expr:
        """Return the one value that all elements of an input have."""
        return _given(self.form(index).uniform)

    def is_zero(self, index: int) -> int:
        """Return 1 if all elements of an input are 0, 0 if none is."""
        return _given(compare("==", self.uniform(index), 0))

    def exprs(self, index: int) -> list[Expr]:
        """Return the elements of a small input, which must be integers."""
        return [Expr.of(_whole(element)) for element in self.values(index)]  # type: ignore[arg-type]

    def expr(self, index: int) -> Expr:
        """Return the element of an input of one."""
        return Expr.of(_whole(self.scalar(index)))  # type: ignore[arg-type]


def _given(found: T | None) -> T:
    if found is None:
        raise UnknownError("the elements of an input are not known")
    return found


def _whole(element: Element) -> Element:
    return int(element) if isinstance(element, float) and element.is_integer() else element


def _moved(view: ElementsView) -> Form:
    """The same elements, in the same order or another one."""
    source = view.form(0)
    if not isinstance(source, Affine) or view.out is None:
        return source.range
    return MOVES[view.node.op_type](source, view, view.out) or source.range


MOVES: Mapping[str, Callable[[Affine, ElementsView, Dims], Affine | None]] = {
    **dict.fromkeys(("Cast", "Identity"), lambda source, *_: source),
    **dict.fromkeys(("Expand", "Tile"), lambda source, _, dims: source.broadcast(dims)),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), lambda source, _, dims: source.reshaped(dims)),
    "Transpose": lambda source, view, dims: source.transposed(view.attr("perm", ()) or range(len(dims))[::-1]),
}


def _constant_of_shape(view: ElementsView) -> Form:
    fill = inline_array(view.attributes["value"].t)  # KeyError where it is left out, and 0.0
    return uniform(_given(fill).item(), view.out)


def _add(view: ElementsView) -> Form:
    right = view.form(1).times(const(-1)) if view.node.is_op("Sub") else view.form(1)
    return add(view.form(0), right, view.out, all_meet=_all_meet(view))


def _all_meet(view: ElementsView) -> bool:
    """Whether each element of one input meets each of the other: one is uniform, or they vary along different axes."""
    pairs = zip(view.dims(0)[::-1], view.dims(1)[::-1], strict=False)
    return any(view.form(index).uniform is not None for index in (0, 1)) or all(1 in pair for pair in pairs)


def _with_uniform(view: ElementsView) -> tuple[Form, Expr]:
    """Return one of two inputs, and the one value of all elements of the other."""
    left, right = map(view.form, range(len(view.inputs)))
    return (left, right.uniform) if right.uniform is not None else (right, _given(left.uniform))


def _multiply(view: ElementsView) -> Form:
    form, factor = _with_uniform(view)
    return broadcast(form, view.out).times(factor)


def _limit(view: ElementsView) -> Form:
    form, limit = _with_uniform(view)
    return form.range.each(minimum if view.node.is_op("Min") else maximum, limit)


def _clip(view: ElementsView) -> Form:
    if view.attributes:
        raise UnknownError("before opset 11, its limits are attributes")
    found = view.form(0)
    for index, function in ((1, maximum), (2, minimum)):
        found = found.range.each(function, view.expr(index)) if view.has(index) else found
    return found


def _cum_sum(view: ElementsView) -> Form:
    each, dims = view.uniform(0), view.dims(0)
    axis, strides = view.axis(int(view.expr(1)), len(dims)), [const(0)] * len(dims)
    is_reverse, is_exclusive = view.attr("reverse", 0), view.attr("exclusive", 0)
    strides[axis] = -each if is_reverse else each
    return Affine.of(dims, each * ((dims[axis] if is_reverse else 1) - is_exclusive), strides)


def _equal(view: ElementsView) -> Form:
    left, right = (form.uniform if form is not None else None for form in map(view.find, view.node.inputs))
    if left is not None and right is not None:
        return uniform(_given(compare("==", left, right)), view.out)
    is_of_tokens = view.typical and any(map(_is_input, view.node.inputs))
    if not is_of_tokens or (left is None and right is None):
        raise UnknownError("the elements may be equal or not")
    return uniform(0, view.out)


def _is_input(value: Value | None) -> bool:
    """Whether a value is an input of the graph, moved or cast at most."""
    source = unwrapped(value, MOVES) if value is not None else None
    return source is not None and source.kind == "input" and not source.scope.path


def _slice(view: ElementsView) -> Form:
    source = view.form(0)
    if not isinstance(source, Affine) or source.uniform is not None:
        return uniform(view.uniform(0), view.out)
    starts, start, strides = view.exprs(1), source.start, list(source.strides)
    axes = view.numbers(3) if view.has(3) else range(len(starts))
    steps = view.numbers(4) if view.has(4) else [1] * len(starts)
    for first, axis, step in zip(starts, axes, steps, strict=True):
        if step < 1 or lower(first) < 0 <= upper(first):
            raise UnknownError("it goes backwards, or its start may count from the end or not")
        start += strides[axis] * (first if lower(first) >= 0 else maximum(first + source.dims[axis], 0))
        strides[axis] *= step
    return Affine.of(_given(view.out), start, strides)


def _gather(view: ElementsView) -> Form:
    source = view.form(0)
    if not isinstance(source, Affine) or source.uniform is not None:
        return uniform(view.uniform(0), view.out)
    places, axis = view.form(1), view.axis(view.attr("axis", 0), len(source.dims))
    low, high = lower(places.range.low), upper(places.range.high)
    if not isinstance(places, Affine) or low < 0 <= high:
        raise UnknownError("its indices are not known, or may count from the end or not")
    first, step = places.start if low >= 0 else places.start + source.dims[axis], source.strides[axis]
    strides = [*source.strides[:axis], *places.times(step).strides, *source.strides[axis + 1 :]]
    return Affine.of(_given(view.out), source.start + first * step, strides)


RULES: Mapping[str, Callable[[ElementsView], Form]] = {
    **dict.fromkeys(MOVES, _moved),
    "Add": _add,
    "Clip": _clip,
    "ConstantOfShape": _constant_of_shape,
    "CumSum": _cum_sum,
    "Equal": _equal,
    "Gather": _gather,
    "Max": _limit,
    "Min": _limit,
    "Mul": _multiply,
    "Not": lambda view: uniform(view.is_zero(0), view.out),
    "Range": lambda view: Affine.of(_given(view.out), view.expr(0), [view.expr(2)]),
    "Slice": _slice,
    "Sub": _add,
    "Where": lambda view: broadcast(view.form(2 if view.is_zero(0) else 1), view.out),
}
