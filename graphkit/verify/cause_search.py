"""The search for the cause of a difference, the same for compared tensors, lowered models and bundles.

A cause is a fault that a candidate may have, with a way to undo it. It is named only where undoing it mends the
difference, clearly. Each table of causes says what a fault is called and what undoes it; what runs here is the same.
Where there is none, the first node of another tensor and simple relations of two arrays tell where and how they differ.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import onnx
from msgspec import Struct

from graphkit.errors import ModelError
from graphkit.graph.declared_types import declared_type
from graphkit.graph.view import Node, Value, all_scopes, walk_breadth_first
from graphkit.model import Model
from graphkit.runtime.session import IsolatedSession, RunError
from graphkit.verify.comparator import compare_output

CLEAR = 10.0  # how many times smaller the difference is without its cause: less may be chance, in a small model
Kind = Literal[
    "padding", "mask", "dims", "offset", "scale", "transposed", "permuted", "shifted", "positions", "term", "weights",
    "unknown",
]  # fmt: skip
Undo = Callable[[], AbstractContextManager[object]]
Distances = Callable[[], Iterable[float]]  # of each call from the original's, in multiples of the tolerance
ROUNDING = 1e-6  # relative to the largest element
Arrays = Mapping[str, np.ndarray]
Differ = Callable[[np.ndarray, np.ndarray], bool]  # whether an array is not another, that being the second
Export = tuple[Model, Arrays, str]  # a model, its inputs, and what stands before its names in what was made of it
MAX_RANK = 5  # of arrays whose axes are permuted
MAX_PARTS = 512  # steps and blocks along an axis
MAX_SHOWN = 8  # blocks whose order a text names
MIN_OVERLAP = 2  # places along an axis that is shifted
MAX_ELEMENTS = 1 << 23  # of a weight whose order is looked into
Names = tuple[str, str]  # of what is right, and of what is not
CLOSE = 1e-5  # relative to the largest magnitude, of weights in another order


@dataclass(frozen=True, eq=False)
class Cause:
    """A fault that a candidate may have."""

    kind: Kind
    text: str  # the fault, in a sentence
    initializer: str = ""  # the constant that it names, "" for none
    # makes the context in which the candidate runs without it
    undo: Undo = field(default=contextlib.nullcontext, repr=False, metadata={"in_json": False})
    # whether any other that fits says more
    is_vague: bool = field(default=False, repr=False, metadata={"in_json": False})


def find_sole_cause(distances: Distances, *rounds: Iterable[Cause]) -> Cause | None:
    """Return the one cause whose undoing mends a difference; None where none or several do, or nothing is to be mended.

    `distances` runs the candidate as it is then, and yields how far each call is from the original's. Later rounds of
    causes are tried where nothing of the earlier, simpler ones mends it.
    """
    before = max(distances(), default=0.0)
    for causes in rounds if before > 1.0 else ():
        if mending := [cause for cause in causes if _mends_difference(cause, distances, before)]:
            return mending[0] if len(mending) == 1 else None
    return None


def find_causes(distances: Distances, causes: Iterable[Cause]) -> Iterator[Cause]:
    """Yield the causes whose undoing mends a difference: of several names for one fault, the best comes first."""
    before = max(distances(), default=0.0)
    yield from (cause for cause in causes if _mends_difference(cause, distances, before)) if before > 1.0 else ()


def _mends_difference(cause: Cause, distances: Distances, before: float) -> bool:
    with cause.undo():
        try:
            return is_mended(distances(), before)
        except ModelError:  # without what is undone onnxruntime does not load it
            return False


def is_mended(distances: Iterable[float], before: float = math.inf) -> bool:
    """Whether all distances are within the tolerance, and clearly less than the largest was before."""
    most = min(1.0, before / CLEAR)
    return all(distance <= most for distance in distances)


def largest_multiple(apart: np.ndarray | float, allowed: np.ndarray | float) -> float:
    """Return the largest of some distances, in multiples of those that are allowed."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratios = np.where(np.asarray(apart) > 0, np.divide(apart, allowed), 0.0)
    return float(np.nan_to_num(ratios, nan=0.0, posinf=np.inf).max(initial=0.0))  # any distance is allowed: 0


@contextmanager
def with_attributes(subject: object, **attributes: object) -> Iterator[None]:
    """Give an object other attributes for as long as the context lasts."""
    with contextlib.ExitStack() as stack:
        for name, value in attributes.items():
            stack.callback(setattr, subject, name, getattr(subject, name))
            setattr(subject, name, value)
        yield


# Where and how arrays differ: the first node of another tensor, another order, simple relations of two arrays.


def first_node(originals: Iterable[Export], model: Model, feed: Arrays, differ: Differ, *, is_padded: bool) -> str:
    """Return the path of the first node of a model that gives something else under a name of an original, "" for none.

    With `is_padded`, tensors of the model may be longer, with padding behind.
    """
    arrays = _computed_floats(model, feed, model.graph.values, model.graph.values)
    original_arrays: dict[str, list[np.ndarray]] = {}
    for original, its_feed, prefix in originals:
        names = {name.removeprefix(prefix) for name in arrays if name.startswith(prefix)}
        for scope in all_scopes(original.scopes):  # the branches of a merged decoder have values of one name
            for name, array in _computed_floats(original, its_feed, names, scope.values).items():
                original_arrays.setdefault(prefix + name, []).append(array)

    def is_wrong(name: str) -> bool:
        for right in original_arrays[name]:
            array = arrays[name]
            if is_padded and array.ndim == right.ndim:
                array = array[tuple(slice(size) for size in right.shape)]
            # rounding moves the last digits alone, however large the numbers in a model are
            is_rounding = compare_output(right, array, any_width=True).scaled <= ROUNDING
            if array.shape != right.shape or is_rounding or not differ(array, right):
                return False
        return True

    for node in model.graph.nodes:
        output_names = [value.name for value in node.outputs if value is not None]
        if any(name in arrays and name in original_arrays and is_wrong(name) for name in output_names):
            return node.path
    return ""


def _computed_floats(
    model: Model, feed: Arrays, names: Collection[str], values: Mapping[str, Value]
) -> dict[str, np.ndarray]:
    named = (values[name] for name in values if name in names)
    computed = [value for value in named if value.producer is not None and not value.producer.bodies]
    arrays: Arrays = next(run_part(model, computed, [feed]), {}) if computed else {}
    return {name: array for name, array in arrays.items() if array.dtype.kind == "f"}


def run_part(model: Model, values: Collection[Value], feeds: Iterable[Arrays]) -> Iterator[dict[str, np.ndarray]]:
    """Run the part of a model that gives some values of one scope, once for each feed; end where it cannot run."""
    if (found := _part_of(model, values)) is None:
        return
    part, names = found
    try:
        with IsolatedSession(part, prepack=False) as session:
            for feed in itertools.takewhile(lambda feed: names <= feed.keys(), feeds):
                yield session.run({name: feed[name] for name in names})
    except (RunError, ModelError):
        return


def _part_of(model: Model, values: Collection[Value]) -> tuple[Model, set[str]] | None:
    """Return a model of free dims that gives values of one scope, and its inputs; None for nodes with bodies."""
    read = list(walk_breadth_first(values, lambda value: value.producer.inputs if value.producer is not None else ()))
    nodes = dict.fromkeys(value.producer for value in read if value.producer is not None)
    if any(node.bodies for node in nodes):
        return None
    infos = []
    for value in read:
        if value.producer is None and value.tensor is None and value.sparse is None:
            if (declared := declared_type(value)) is None:
                return None
            shape = None if declared.dims is None else [f"{value.name}_{axis}" for axis in range(len(declared.dims))]
            infos.append(onnx.helper.make_tensor_value_info(value.name, declared.dtype, shape))
    ordered = sorted(nodes, key=lambda node: (node.scope.depth, node.index))
    return make_part(model, ordered, read, infos, values), {info.name for info in infos}


def make_part(
    model: Model,
    nodes: Iterable[Node],
    read: Collection[Value],
    inputs: Iterable[onnx.ValueInfoProto],
    outputs: Iterable[Value],
) -> Model:
    """Return a model of some nodes, in order, with those of the values that they read that it holds itself."""
    whole = model.proto
    proto = onnx.ModelProto(ir_version=whole.ir_version, opset_import=whole.opset_import, functions=whole.functions)
    graph = proto.graph
    graph.name = whole.graph.name
    graph.node.extend(node.proto for node in nodes)
    graph.initializer.extend(value.tensor for value in read if value.tensor is not None)
    graph.sparse_initializer.extend(value.sparse for value in read if value.sparse is not None)
    graph.input.extend(inputs)
    graph.output.extend(onnx.ValueInfoProto(name=value.name) for value in outputs)
    return model.with_proto(proto)


class Relation(Struct, frozen=True, eq=False):
    """A simple relation of two arrays."""

    kind: Kind
    text: str  # that in a clause
    # what A and B have in common if it holds
    expected: np.ndarray
    actual: np.ndarray

    def may_hold(self, allowed: float) -> bool:
        """Whether dims and a few elements agree, so that it is worth while to compare all."""
        few = tuple(slice(0, 2) for _ in self.expected.shape)
        is_alike = self.expected.shape == self.actual.shape
        return is_alike and bool((np.abs(self.expected[few] - self.actual[few]) <= allowed).all())


def array_relations(right: np.ndarray, wrong: np.ndarray, names: Names = ("A", "B")) -> Iterator[Relation]:
    """Yield the relations that two arrays may have, the simple ones first; the caller compares what each leaves."""
    if right.size == wrong.size:
        yield from _find_transpositions(right, wrong, *names)
    if right.shape != wrong.shape:
        yield from _find_cuts(right, wrong, *names)
        return
    yield from _find_rotations(right, wrong, *names)
    yield from _find_permutations(right, wrong, *names)


def _find_transpositions(x: np.ndarray, y: np.ndarray, a: str, b: str) -> Iterator[Relation]:
    for axes in itertools.permutations(range(x.ndim)) if x.ndim <= MAX_RANK else ():
        turned = x.transpose(axes)
        if axes != tuple(range(x.ndim)) and turned.shape == y.shape:
            yield Relation("transposed", f"transposed: {b} is {a} with its axes in the order {list(axes)}", turned, y)
    if x.shape != y.shape:
        text = f"dims: {b} has the elements of {a}, in order, as {list(y.shape)} instead of {list(x.shape)}"
        yield Relation("dims", text, x.reshape(y.shape), y)
    if x.ndim > 1:
        text = f"transposed: {b} has the elements of {a}, stored column by column"
        yield Relation("transposed", text, x.ravel(order="F").reshape(y.shape), y)


def _find_rotations(x: np.ndarray, y: np.ndarray, a: str, b: str) -> Iterator[Relation]:
    """Yield axes that are rotated or shifted; the last one, which may hold heads side by side, by one place alone."""
    for axis, n in enumerate(x.shape):
        steps = (1, n - 1) if axis == x.ndim - 1 or n > MAX_PARTS else range(1, n)
        for step in steps if n > 2 else ():
            where = f"i + {step}" if 2 * step <= n else f"i - {n - step}"
            text = f"rotated: along axis {axis}, {b} has at i what {a} has at {where}, modulo {n}"
            yield Relation("shifted", text, np.roll(x, -step, axis), y)
    for axis, n in enumerate(x.shape):
        for step, where in ((1, "i + 1"), (-1, "i - 1")) if n > MIN_OVERLAP else ():
            ends = slice(1, None), slice(None, -1)
            first, last = ends if step > 0 else ends[::-1]
            text = f"off by one: along axis {axis}, {b} has at i what {a} has at {where}"
            parts = np.moveaxis(x, axis, 0)
            if not np.allclose(parts[first], parts[last]):  # of equal parts, a shift changes nothing
                yield Relation("shifted", text, parts[first], np.moveaxis(y, axis, 0)[last])


def _find_permutations(x: np.ndarray, y: np.ndarray, a: str, b: str) -> Iterator[Relation]:
    """Yield axes along which the blocks of B are those of A in another order."""
    for axis, n in enumerate(x.shape):
        for parts in (count for count in range(2, min(n, MAX_PARTS) + 1) if n % count == 0):
            blocks = [np.moveaxis(array, axis, 0).reshape(parts, -1) for array in (x, y)]
            weights = np.random.default_rng(0).standard_normal(blocks[0].shape[1])
            order_x, order_y = (np.argsort(block @ weights, kind="stable") for block in blocks)
            sources = order_x[np.argsort(order_y)]
            if np.array_equal(sources, np.arange(parts)):
                continue
            shown = ", ".join(map(str, sources[:MAX_SHOWN])) + (", ..." if parts > MAX_SHOWN else "")
            what = f"the {parts} blocks of {n // parts} in {b}" if parts < n else f"the {parts} slices of {b}"
            name = "permuted heads" if parts < n and x.ndim < 4 else "permuted"
            text = f"{name}: along axis {axis}, {what} are those [{shown}] of {a}"
            yield Relation("permuted", text, blocks[0][sources], blocks[1])


def _find_cuts(x: np.ndarray, y: np.ndarray, a: str, b: str) -> Iterator[Relation]:
    axes = [axis for axis in range(x.ndim) if x.ndim == y.ndim and x.shape[axis] != y.shape[axis]]
    if len(axes) != 1:
        return
    parts_x, parts_y = np.moveaxis(x, axes[0], 0), np.moveaxis(y, axes[0], 0)
    missing = len(parts_x) - len(parts_y)
    short, names = (len(parts_y), f"{b} is {a}") if missing > 0 else (len(parts_x), f"{a} is {b}")
    is_row = axes[0] == 0 and x.ndim > 1  # of a batch
    more = f"; {'a row is missing' if is_row else 'off by one'}" if abs(missing) == 1 else ""
    for start in range(abs(missing) + 1 if short else 0):
        text = f"dims: along axis {axes[0]}, {names} from {start} to {start + short}, of {short + abs(missing)}{more}"
        part = slice(start, start + short)
        yield Relation("dims", text, *((parts_x[part], parts_y) if missing > 0 else (parts_x, parts_y[part])))


def describe_difference(right: np.ndarray, wrong: np.ndarray, names: Names = ("A", "B")) -> str:
    """Return how a weight differs from the one that it should be, in a clause."""
    if right.shape == wrong.shape and not wrong.any():
        return "it is all zeros"
    if right.dtype.kind != "f" or wrong.dtype.kind != "f" or right.size > MAX_ELEMENTS:
        return "other values" if right.shape == wrong.shape else f"dims {list(wrong.shape)}, not {list(right.shape)}"
    x, y = right.astype(np.float64), wrong.astype(np.float64)
    allowed = CLOSE * max(float(np.abs(x).max(initial=0.0)), 1e-30)

    def is_close(expected: np.ndarray, actual: np.ndarray) -> bool:
        return bool(np.abs(expected - actual).max(initial=0.0) <= allowed)

    apart = f"up to {float(np.abs(x - y).max(initial=0.0)):.3g} apart" if x.shape == y.shape else ""
    if apart:
        if is_close(x, y):
            return apart
        factor = float((x * y).sum()) / max(float((x * x).sum()), 1e-30)
        if is_close(factor * x, y):
            return f"scale: it is {factor:.6g} times that"
        if len(y) > 1 and not is_close(x[1:], x[:-1]) and is_close(y[1:], y[:-1]):
            return "all its rows are the same"
    for relation in array_relations(x, y, names):
        if relation.may_hold(allowed) and is_close(relation.expected, relation.actual):
            return relation.text
    return apart or f"dims {list(y.shape)}, not {list(x.shape)}"
