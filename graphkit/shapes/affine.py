"""Integer tensors whose elements are an affine function of their coordinates.

The elements of a tensor of indices, as Range, Expand and Add make it, are `start + i*stride[0] + j*stride[1] + ...`
where its coordinates are i, j, ...: known in full by rank + 1 expressions, however many elements there are and though
their number depends on the input dims. What is said of a tensor without elements holds of none, and so holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from graphkit.errors import ModelError
from graphkit.graph.view import Node, Value
from graphkit.io.tensors import inline_array
from graphkit.shapes.algebra import maximum
from graphkit.shapes.bounds import lower, upper
from graphkit.shapes.expr import Expr, TooComplexError, const
from graphkit.shapes.results import Shapes
from graphkit.shapes.tensor import Array, Dims

__all__ = ["Affine", "AffineFinder"]

MAX_DEPTH = 60  # nodes that are followed one after the other
MAX_CONSTANT = 2**20  # elements of a constant that are looked at
MAX_NUMBER = 2**31  # larger elements are no indices, and their differences might overflow
FOLLOWED = (TensorProto.INT32, TensorProto.INT64)


@dataclass(frozen=True)
class Affine:
    """The elements of a tensor: `start` plus the sum of each coordinate times its stride.

    Attributes:
        dims: Of the tensor.
        start: The element at the origin.
        strides: One a dim, 0 where the dim is 1.
    """

    dims: Dims
    start: Expr
    strides: tuple[Expr, ...]

    @classmethod
    def of(cls, dims: Dims, start: Expr, strides: Sequence[Expr]) -> Affine:
        """Return it with strides of 0 where the dim is 1."""
        return cls(dims, start, tuple(const(0) if dim == 1 else s for dim, s in zip(dims, strides, strict=True)))

    @property
    def is_uniform(self) -> bool:
        """Whether all elements are the same."""
        return all(stride == 0 for stride in self.strides)

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

    def reshaped(self, dims: Dims) -> Affine | None:
        """Return it with other dims, where only dims of 1 come and go."""
        kept = [(dim, stride) for dim, stride in zip(self.dims, self.strides, strict=True) if dim != 1]
        if [dim for dim, _ in kept] != [dim for dim in dims if dim != 1]:
            return None
        left = iter(stride for _, stride in kept)
        return Affine.of(dims, self.start, [const(0) if dim == 1 else next(left) for dim in dims])


class AffineFinder:
    """Finds which tensors of a model are affine; each is looked at once.

    Args:
        shapes: What is known of the model.
    """

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self._known: dict[Value, Affine | None] = {}
        self._depth = 0

    def find(self, value: Value | None) -> Affine | None:
        """Return the elements of an int32 or int64 tensor, None where they are not known to be affine."""
        if value is None or self._depth > MAX_DEPTH:
            return None
        if value not in self._known:
            self._known[value] = None
            self._depth += 1
            with suppress(TooComplexError, LookupError, ValueError):  # an operator that does not fit its inputs
                self._known[value] = self._find(value)
            self._depth -= 1
        return self._known[value]

    def components(self, value: Value | None) -> tuple[Affine, ...] | None:
        """Return the slices of a tensor along its last axis, each without that axis; None where one is not affine."""
        dims = self.shapes[value].dims if value is not None else None
        if value is None or not dims:
            return None
        node = value.producer
        axis = node.attributes.get("axis") if node is not None and node.is_op("Concat") else None
        joined = node.inputs if node is not None and axis is not None and axis.i in (-1, len(dims) - 1) else (value,)
        parts = [self._parts(source) for source in joined if source is not None]
        return None if None in parts else tuple(one for part in parts if part is not None for one in part)

    def _parts(self, value: Value) -> list[Affine] | None:
        whole, data = self.find(value), self._data(value)
        dims = self.shapes[value].dims
        if data is not None and dims:
            found = [_fit(dims[:-1], data[..., index]) for index in range(data.shape[-1])]
            return None if None in found else [one for one in found if one is not None]
        count = whole.dims[-1].constant if whole is not None and whole.dims else None
        if whole is None or count is None:
            return None
        last, rest = whole.strides[-1], whole.strides[:-1]
        return [Affine(whole.dims[:-1], whole.start + last * index, rest) for index in range(count)]

    def number(self, value: Value | None) -> Expr | None:
        """Return the element of a tensor of one, None where it is not known or there are several."""
        elements = self.shapes[value].elements if value is not None else None
        if elements is None or len(elements) != 1 or not isinstance(elements[0], Expr):
            return None
        return elements[0]

    def _find(self, value: Value) -> Affine | None:
        dims, data, node = self.shapes[value].dims, self._data(value), value.producer
        if dims is None or self.shapes[value].dtype not in FOLLOWED:
            return None
        if data is not None:
            return _fit(dims, data)
        rule = RULES.get(node.op_type) if node is not None and not node.domain else None
        return rule(self, node, dims) if rule is not None and node is not None else None

    def _data(self, value: Value) -> Array | np.ndarray | None:
        """Return the elements of an integer tensor where they are known: small ones, or those of a constant."""
        found, tensor = self.shapes[value], value.constant
        if found.dtype not in FOLLOWED:
            return None
        if found.may_have_data and found.data is not None:
            return found.data
        if tensor is None or not 0 < math.prod(tensor.dims) <= MAX_CONSTANT:
            return None
        try:
            array = self.shapes.model.array(tensor)
        except ModelError:  # its data file is missing
            return None
        return array.astype(np.int64) if array.min() > -MAX_NUMBER and array.max() < MAX_NUMBER else None


def _fit(dims: Dims, data: Array | np.ndarray) -> Affine | None:
    """Return the affine function whose values are these integers or expressions, if there is one."""
    if data.size == 0:
        return Affine(dims, const(0), (const(0),) * len(dims))
    if data.dtype == object and not all(isinstance(element, int | Expr) for element in data.flat):
        return None
    origin = data.flat[0]
    units = np.eye(data.ndim, dtype=int).tolist()
    strides = [data[tuple(units[axis])] - origin if size > 1 else 0 for axis, size in enumerate(data.shape)]
    expected = np.full(data.shape, origin, data.dtype)
    for axis, stride in enumerate(strides):
        steps = np.arange(data.shape[axis]).astype(data.dtype) * stride
        expected = expected + np.expand_dims(steps, [other for other in range(data.ndim) if other != axis])
    if not np.all(expected == data):
        return None
    return Affine(dims, _expr(origin), tuple(map(_expr, strides)))


def _expr(element: Expr | int) -> Expr:
    return element if isinstance(element, Expr) else const(int(element))


def _range(finder: AffineFinder, node: Node, dims: Dims) -> Affine | None:
    start, delta = finder.number(node.input(0)), finder.number(node.input(2))
    return None if start is None or delta is None else Affine.of(dims, start, (delta,))


def _constant_of_shape(_: AffineFinder, node: Node, dims: Dims) -> Affine | None:
    attribute = node.attributes.get("value")
    if attribute is None:  # then it is 0.0
        return None
    fill = inline_array(attribute.t)
    if fill is None or fill.size != 1 or fill.dtype.kind not in "iu":
        return None
    return Affine(dims, const(int(fill.item())), (const(0),) * len(dims))


def _same(finder: AffineFinder, node: Node, _: Dims) -> Affine | None:
    return finder.find(node.input(0))


def _reshape(finder: AffineFinder, node: Node, dims: Dims) -> Affine | None:
    source = finder.find(node.input(0))
    return source.reshaped(dims) if source is not None else None


def _expand(finder: AffineFinder, node: Node, dims: Dims) -> Affine | None:
    source = finder.find(node.input(0))
    return source.broadcast(dims) if source is not None else None


def _transpose(finder: AffineFinder, node: Node, dims: Dims) -> Affine | None:
    source, perm = finder.find(node.input(0)), node.attributes.get("perm")
    if source is None:
        return None
    order = list(perm.ints) if perm is not None else list(range(len(dims)))[::-1]
    return Affine.of(dims, source.start, [source.strides[axis] for axis in order])


def _pair(finder: AffineFinder, node: Node, dims: Dims) -> tuple[Affine, Affine] | None:
    sources = [finder.find(value) for value in node.inputs]
    pair = [source.broadcast(dims) for source in sources if source is not None]
    if len(pair) != 2 or pair[0] is None or pair[1] is None:
        return None
    return pair[0], pair[1]


def _add(finder: AffineFinder, node: Node, dims: Dims) -> Affine | None:
    if (pair := _pair(finder, node, dims)) is None:
        return None
    left, right = pair
    sign = -1 if node.op_type == "Sub" else 1
    strides = [a + b * sign for a, b in zip(left.strides, right.strides, strict=True)]
    return Affine.of(dims, left.start + right.start * sign, strides)


def _mul(finder: AffineFinder, node: Node, dims: Dims) -> Affine | None:
    if (pair := _pair(finder, node, dims)) is None:
        return None
    factor, other = pair if pair[0].is_uniform else pair[::-1]
    if not factor.is_uniform:
        return None
    return Affine.of(dims, other.start * factor.start, [stride * factor.start for stride in other.strides])


def _slice(finder: AffineFinder, node: Node, dims: Dims) -> Affine | None:
    source = finder.find(node.input(0))
    if source is None or node.scope.opset() < 10:
        return None
    lists = [_numbers(finder, node.input(index)) for index in (1, 3, 4)]
    starts, axes, steps = lists
    if starts is None or (node.input(3) is not None and axes is None) or (node.input(4) is not None and steps is None):
        return None
    start, strides = source.start, list(source.strides)
    for index, first in enumerate(starts):
        axis = index if axes is None else axes[index].constant
        step = 1 if steps is None else steps[index].constant
        if axis is None or step is None or step < 1:
            return None
        if lower(first) < 0:  # counted from the end
            if upper(first) >= 0:
                return None
            first = maximum(first + source.dims[axis], 0)
        start += strides[axis] * first
        strides[axis] *= step
    return Affine.of(dims, start, strides)


def _numbers(finder: AffineFinder, value: Value | None) -> list[Expr] | None:
    elements = finder.shapes[value].elements if value is not None else None
    found = [element for element in elements or () if isinstance(element, Expr)]
    return found if elements is not None and len(found) == len(elements) else None


def _gather(finder: AffineFinder, node: Node, dims: Dims) -> Affine | None:
    source, at = finder.find(node.input(0)), finder.find(node.input(1))
    if source is None or at is None or lower(at.start) < 0 or any(lower(stride) < 0 for stride in at.strides):
        return None
    axis = (node.attributes["axis"].i if "axis" in node.attributes else 0) % len(source.dims)
    step = source.strides[axis]
    strides = [*source.strides[:axis], *(stride * step for stride in at.strides), *source.strides[axis + 1 :]]
    return Affine.of(dims, source.start + at.start * step, strides)


RULES: Mapping[str, Callable[[AffineFinder, Node, Dims], Affine | None]] = {
    "Add": _add,
    "Cast": _same,
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Flatten": _reshape,
    "Gather": _gather,
    "Identity": _same,
    "Mul": _mul,
    "Range": _range,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _reshape,
    "Sub": _add,
    "Transpose": _transpose,
    "Unsqueeze": _reshape,
}
