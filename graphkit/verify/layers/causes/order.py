"""The same elements in another order, and weights that differ: transposed, permuted, shifted, scaled."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx
import onnx.helper

from graphkit.graph.view import Node, Value
from graphkit.matching.graph_side import known
from graphkit.matching.value_numbering import default_of
from graphkit.verify.layers.causes.case import HOPS, Case, Cause, Kind
from graphkit.verify.layers.compared_model import FLOATS, constant_array
from graphkit.verify.layers.measuring import plain

__all__ = ["arranged", "attributes", "order", "weights"]

MAX_RANK = 5
MAX_PARTS = 512
MAX_SHOWN = 8
LEAST_OVERLAP = 4  # elements

Equal = Callable[[np.ndarray, np.ndarray], bool]


def order(case: Case) -> Iterator[Cause]:
    """Yield how B's elements are those of A in another order."""

    def equal(reordered: np.ndarray, target: np.ndarray) -> bool:
        return case.equal(reordered, target) and (case.x.shape != case.y.shape or case.explains(reordered - target))

    yield from itertools.islice(arranged(case.x, case.y, equal), 1)


def arranged(x: np.ndarray, y: np.ndarray, equal: Equal) -> Iterator[Cause]:
    """Yield how the elements of one array are those of another in another order."""
    yield from _transposed(x, y, equal)
    if x.shape == y.shape:
        rotated = list(_rotated(x, y, equal))
        yield from rotated or _shifted(x, y)
        yield from _permuted(x, y, equal)
    else:
        yield from _cut(x, y, equal)


def _transposed(x: np.ndarray, y: np.ndarray, equal: Equal) -> Iterator[Cause]:
    for axes in itertools.permutations(range(x.ndim)) if x.ndim <= MAX_RANK else ():
        turned = x.transpose(axes)
        if axes != tuple(range(x.ndim)) and turned.shape == y.shape and equal(turned, y):
            yield Cause("transposed", f"transposed: B is A with its axes in the order {list(axes)}.")
            return
    if x.size != y.size:
        return
    if x.shape != y.shape and equal(x.reshape(y.shape), y):
        yield Cause("dims", f"dims: B has the elements of A, in order, as {list(y.shape)} instead of {list(x.shape)}.")
    elif x.ndim > 1 and equal(x.ravel(order="F").reshape(y.shape), y):
        yield Cause("transposed", "transposed: B has the elements of A, stored column by column.")


def _rotated(x: np.ndarray, y: np.ndarray, equal: Equal) -> Iterator[Cause]:
    """Yield by how many places an axis is rotated; the last one, which may hold heads side by side, by one alone."""
    for axis, n in enumerate(x.shape):
        steps = (1, n - 1) if axis == x.ndim - 1 or n > MAX_PARTS else range(1, n)
        for step in steps if n > 2 else ():
            if equal(np.roll(x, -step, axis), y):
                where = f"i + {step}" if 2 * step <= n else f"i - {n - step}"
                yield Cause("shifted", f"rotated: along axis {axis}, B has at i what A has at {where}, modulo {n}.")
                return


def _shifted(x: np.ndarray, y: np.ndarray) -> Iterator[Cause]:
    for axis, step in itertools.product(reversed(range(x.ndim)), (1, -1)):
        first, last = np.moveaxis(x, axis, 0), np.moveaxis(y, axis, 0)
        mine, theirs = (first[1:], last[:-1]) if step > 0 else (first[:-1], last[1:])
        if mine.size >= LEAST_OVERLAP and _varies(mine) and float(np.abs(mine - theirs).max()) <= _noise(x):
            where = "i + 1" if step > 0 else "i - 1"
            yield Cause("shifted", f"off by one: along axis {axis}, B has at i what A has at {where}.")
            return


def _varies(array: np.ndarray) -> bool:
    """Whether an array differs along its first axis, so that a shift along it shows."""
    return len(array) > 1 and bool(np.any(np.abs(array[1:] - array[:-1]) > _noise(array)))


def _noise(array: np.ndarray) -> float:
    return 1e-4 * max(1e-30, float(np.abs(array).max(initial=0.0)))


def _permuted(x: np.ndarray, y: np.ndarray, equal: Equal) -> Iterator[Cause]:
    for axis in range(x.ndim):
        n = x.shape[axis]
        for parts in (count for count in range(2, min(n, MAX_PARTS) + 1) if n % count == 0):
            blocks = [np.moveaxis(array, axis, 0).reshape(parts, -1) for array in (x, y)]
            sources = _permutation(*blocks)
            if sources is not None and equal(blocks[0][sources], blocks[1]):
                yield _permutation_cause(x, axis, parts, sources)
                return


def _permutation(x: np.ndarray, y: np.ndarray) -> np.ndarray | None:
    """Return which rows of an array those of another may be, None where they are all in their places."""
    weights = np.random.default_rng(0).standard_normal(x.shape[1])
    order_x, order_y = np.argsort(x @ weights, kind="stable"), np.argsort(y @ weights, kind="stable")
    sources = np.empty(len(order_x), np.int64)
    sources[order_y] = order_x
    return None if np.array_equal(sources, np.arange(len(sources))) else sources


def _permutation_cause(x: np.ndarray, axis: int, parts: int, sources: Sequence[int] | np.ndarray) -> Cause:
    numbers = [int(number) for number in sources]
    shown = f"{numbers[:MAX_SHOWN]}"[:-1] + (", ...]" if parts > MAX_SHOWN else "]")
    size = x.shape[axis] // parts
    if size > 1:
        kind = "permuted heads" if x.ndim < 4 else "permuted"
        text = f"{kind}: along axis {axis}, the {parts} blocks of {size} in B are those {shown} of A"
    else:
        text = f"permuted: along axis {axis}, the {parts} slices of B are those {shown} of A"
    return Cause("permuted", f"{text}.")


def _cut(x: np.ndarray, y: np.ndarray, equal: Equal) -> Iterator[Cause]:
    """Yield where one is the other with some of its ends missing."""
    axes = [axis for axis in range(x.ndim) if x.ndim == y.ndim and x.shape[axis] != y.shape[axis]]
    if len(axes) != 1:
        return
    parts_x, parts_y = np.moveaxis(x, axes[0], 0), np.moveaxis(y, axes[0], 0)
    names, long, short = ("B", "A"), parts_x, parts_y
    if len(parts_x) < len(parts_y):
        names, long, short = ("A", "B"), parts_y, parts_x
    for start in range(len(long) - len(short) + 1):
        if len(short) and equal(long[start : start + len(short)], short):
            text = f"along axis {axes[0]}, {names[0]} is {names[1]} from {start} to {start + len(short)}"
            is_row = axes[0] == 0 and x.ndim > 1  # of a batch
            more = f"; {'a row is missing' if is_row else 'off by one'}" if len(long) - len(short) == 1 else ""
            yield Cause("dims", f"dims: {text}, of {len(long)}{more}.")
            return


NUMBERS = (onnx.AttributeProto.FLOAT, onnx.AttributeProto.INT, onnx.AttributeProto.INTS)
MOST = 1 << 23  # elements of a weight whose order is looked into
CLOSE = 1e-5


def attributes(case: Case) -> Iterator[Cause]:
    """Yield the attributes, such as an epsilon, or operators in which the two nodes differ.

    Where the two nodes are the same, those that they read are looked at, as far as their tensors differ.
    """
    if case.b is None:
        return
    pairs = [(case.a.value, case.b.value)]
    for _ in range(HOPS):
        nodes = [(x.producer, y.producer) for x, y in pairs]
        both = [(node_a, node_b) for node_a, node_b in nodes if node_a is not None and node_b is not None]
        causes = [cause for node_a, node_b in both for cause in _node_differences(case, node_a, node_b)]
        if causes:
            yield from causes
            return
        pairs = [
            (x, y)
            for node_a, node_b in both
            if node_a.operator == node_b.operator
            for x, y in zip(node_a.inputs, node_b.inputs, strict=False)
            if x is not None and y is not None and _are_equal(case, x, y) is False
        ]


def _node_differences(case: Case, node_a: Node, node_b: Node) -> Iterator[Cause]:
    """Yield how nodes differ: one that computes something else of the same, or other numbers in attributes.

    An attribute that is not set has its default.
    """
    if node_a.operator != node_b.operator:
        inputs = list(zip(node_a.inputs, node_b.inputs, strict=False))
        is_same = [x is y if x is None or y is None else _are_equal(case, x, y) for x, y in inputs]
        if len(node_a.inputs) == len(node_b.inputs) and all(is_same):
            text = f"'{node_b.label}' of B computes {node_b.operator}, and '{node_a.label}' of A {node_a.operator}."
            yield Cause("weights", text)
        return
    for name in sorted(node_a.attributes.keys() | node_b.attributes.keys()):
        attribute_a, attribute_b = (node.attributes.get(name, default_of(node, name)) for node in (node_a, node_b))
        if (
            attribute_a is not None
            and attribute_b is not None
            and attribute_a.type == attribute_b.type
            and attribute_a.type in NUMBERS
            and attribute_a != attribute_b
        ):
            first, second = (_number(attribute) for attribute in (attribute_a, attribute_b))
            text = (
                f"'{node_b.label}' ({node_b.operator}) of B has {name} {second}, and '{node_a.label}' of A has {first}."
            )
            yield Cause("weights", text)


def _are_equal(case: Case, value_a: Value, value_b: Value) -> bool | None:
    """Whether two values are equal, None where one of them is not held."""
    assert case.b is not None
    tensor_a, tensor_b = known(value_a), known(value_b)
    if tensor_a is not None and tensor_b is not None:
        same_type = (tensor_a.data_type, tensor_a.dims) == (tensor_b.data_type, tensor_b.dims)
        return same_type and case.a.side.model.payload(tensor_a) == case.b.side.model.payload(tensor_b)
    array_a, array_b = case.a.arrays.get(value_a), case.b.arrays.get(value_b)
    return None if array_a is None or array_b is None else case.equal(plain(array_a), plain(array_b))


def _number(attribute: onnx.AttributeProto) -> str:
    number = onnx.helper.get_attribute_value(attribute)
    return f"{number:.6g}" if isinstance(number, float) else str(number)


def weights(case: Case, *, only_named: bool = False) -> Iterator[Cause]:
    """Yield how the weights that B's node reads differ from those of A's; `only_named` for those of one name."""
    if case.b is None or case.a.value.producer is None or case.b.value.producer is None:
        return
    for value_a, value_b in _paired(case.a.value.producer, case.b.value.producer):
        first, second = known(value_a), known(value_b)
        if (
            first is None
            or second is None
            or first.data_type != second.data_type
            or only_named > (value_a.name == value_b.name)
        ):
            continue
        if first.dims == second.dims and case.a.side.model.payload(first) == case.b.side.model.payload(second):
            continue
        if first.data_type not in FLOATS:
            yield Cause("weights", f"'{value_b.name}' of B has other values than '{value_a.name}' of A.", value_a.name)
            continue
        x, y = constant_array(case.a.side.model, first), constant_array(case.b.side.model, second)
        kind, how = _how(x, y)
        yield Cause(kind, f"'{value_b.name}' of B is not '{value_a.name}' of A: {how}", value_a.name)


def _paired(node_a: Node, node_b: Node) -> Iterator[tuple[Value, Value]]:
    """Yield the constants that two nodes read at the same place."""
    if node_a.operator == node_b.operator:
        for value_a, value_b in zip(node_a.inputs, node_b.inputs, strict=False):
            if (
                value_a is not None
                and value_b is not None
                and known(value_a) is not None
                and known(value_b) is not None
            ):
                yield value_a, value_b


def _how(x: np.ndarray, y: np.ndarray) -> tuple[Kind, str]:
    if not y.any():
        return "weights", "it is all zeros."
    if x.size > MOST:
        return "weights", "other values."
    x, y = x.astype(np.float64), y.astype(np.float64)
    size = max(float(np.abs(x).max(initial=0.0)), 1e-30)

    def equal(reordered: np.ndarray, target: np.ndarray) -> bool:
        return reordered.shape == target.shape and float(np.abs(reordered - target).max(initial=0.0)) <= CLOSE * size

    cause = next(arranged(x, y, equal), None)
    if cause is not None:
        return cause.kind, cause.text
    if x.shape != y.shape:
        return "weights", f"dims {list(y.shape)}, expected {list(x.shape)}."
    factor = float((x * y).sum()) / max(float((x * x).sum()), 1e-30)
    if equal(factor * x, y):
        return "scale", f"scale: it is {factor:.6g} times that."
    return "weights", f"up to {float(np.abs(x - y).max(initial=0.0)):.3g} apart."
