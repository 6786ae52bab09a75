"""The causes that a comparison knows: for each, what undoes it in the second model, so that a tensor is right.

The usual mistakes of a port are made in the original, which gives what the port has if it is the one.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

import numpy as np
import onnx
from msgspec import Struct

from graphkit.errors import ModelError
from graphkit.graph.mask_polarity import make_open_mask
from graphkit.graph.names import label_families
from graphkit.graph.operator_traits import LOOKUPS, MEASURING, PICKING
from graphkit.graph.roles import MASKS
from graphkit.graph.view import Node, Value, walk_breadth_first
from graphkit.matching.value_matching import known_tensor
from graphkit.matching.value_numbering import default_of, first_difference
from graphkit.shapes import infer
from graphkit.verify.cause_search import (
    CLEAR,
    Cause,
    Kind,
    Undo,
    array_relations,
    describe_difference,
    find_causes,
    largest_multiple,
    with_attributes,
)
from graphkit.verify.comparator import elementwise_difference, largest_magnitude, odd_elements
from graphkit.verify.layers.compared_model import FLOATS, ArrayFile, Pair, Side, Steps, constant_array
from graphkit.verify.layers.measuring import FLOOR, plain_array

HOPS = 3
MAX_CAUSES = 3  # that are named where several fit
MAX_NEARBY = 24  # tensors whose arrays are looked at
MAX_ROWS = 32  # rows of a tensor that are looked for in a table
CHUNK = 1 << 22  # elements of a table
CLOSE = 1e-3  # relative, of a factor
NUMBERS = (onnx.AttributeProto.FLOAT, onnx.AttributeProto.INT, onnx.AttributeProto.INTS)
Arrays = Mapping[Value, np.ndarray]
Feed = Mapping[str, np.ndarray]
NOTHING: Feed = MappingProxyType({})
MOST_KINDS = 24  # of constants, those nearest to the end and to the beginning first
BIASES = {"Add": (0, 1), "Gemm": (2,), "Conv": (2,), "ConvTranspose": (2,), "LayerNormalization": (2,)}
SCALES = {"Mul": (0, 1), "Div": (1,)}


def find_tensor_cause(pair: Pair, a: Side, b: Side | ArrayFile, tolerance: float) -> Cause:
    """Return the cause of the difference of two tensors whose sources agree: what mends it when undone.

    Several may where arrays alone tell: the numbers of a dump, or constants with the same numbers. Then all are named.
    """
    near_a, near_b = Neighbourhood.of(a, pair.a), None
    right = near_a.arrays[pair.a]
    if isinstance(b, ArrayFile):
        wrong = b.beside(pair.theirs, right)
    else:
        assert isinstance(pair.b, Value)
        near_b = Neighbourhood.of(b, pair.b)
        wrong = near_b.arrays[pair.b]
    unknown = Cause("unknown", "no simple relation was found between the two.")
    if right.dtype.kind in "OUS" or wrong.dtype.kind in "OUS":
        return unknown
    if wrong.size > right.size and not any(wrong.strides):  # it was not read
        return Cause("dims", f"dims: B has {list(wrong.shape)}, and A {list(right.shape)}.")
    is_finite = right.shape == wrong.shape and bool(np.isfinite(right).all())
    if is_finite and (odd := odd_elements(right, wrong, FLOOR)):
        return Cause("unknown", f"B has {odd}.")
    x, y = plain_array(right), plain_array(wrong)
    case = TensorCase(near_a, near_b, x, y, tolerance, is_integer=right.dtype.kind != "f")
    fits = list[Cause]()
    for find in TABLE:
        if fits and case.b is not None:
            break
        found = find_causes(case.distances, find(case))
        fits += found if case.b is None or find is constant_causes else itertools.islice(found, 1)
    named = dict[str, Cause]()  # of the names of one cause, the first
    for cause in fits:
        if not cause.is_vague:
            named.setdefault(cause.initializer or cause.text, cause)
    texts = [cause.text.removesuffix(".") for cause in named.values()]
    if len(texts) < 2:
        return next(iter([*named.values(), *fits]), unknown)
    more = [f"one of {len(texts) - MAX_CAUSES} more"] if len(texts) > MAX_CAUSES else []
    either = "; or ".join(texts[:MAX_CAUSES] + more)
    return Cause("unknown", f"several causes fit these numbers equally well: either {either}.")


class Neighbourhood(Struct, frozen=True, eq=False):
    """A tensor of a model, and what it is computed from in a few steps."""

    side: Side
    value: Value
    arrays: Arrays  # what these tensors hold, its own included
    nodes: tuple[Node, ...]

    @classmethod
    def of(cls, side: Side, value: Value) -> Neighbourhood:
        """Run a model up to a tensor."""
        values, nodes, border = dict[Value, None](), dict[Node, None](), [value]
        for _ in range(HOPS):
            producers = [each.producer for each in border if each.producer and each.producer not in nodes]
            nodes.update(dict.fromkeys(producers))
            border = [each for node in producers for each in side.reads[node] if each in side.place]
            values.update(dict.fromkeys(sorted(border, key=side.place.__getitem__)))
        holdable = [each for each in values if each not in side.unholdable and each is not value]
        tensors = [value, *holdable[:MAX_NEARBY]]
        arrays = Steps(side, side.feed, tensors).values(tensors)
        return cls(side, value, dict(zip(tensors, arrays, strict=True)), tuple(nodes))

    def constants(self, nodes: Sequence[Node], size: int = 0) -> Iterator[tuple[Value, Node, np.ndarray]]:
        """Yield the floating-point constants that nodes read, each once: all, or those of so many elements."""
        readers = {value: node for node in nodes for value in node.inputs if value is not None}
        for value, node in readers.items():
            tensor = known_tensor(value)
            if tensor is not None and tensor.data_type in FLOATS and size in (0, math.prod(tensor.dims)):
                yield value, node, constant_array(self.side.model, tensor)

    @property
    def inputs(self) -> set[str]:
        """The names of the inputs that the tensor is computed from."""
        reads = self.side.reads
        sources = walk_breadth_first([self.value], lambda each: reads.get(each.producer, ()) if each.producer else ())
        return {value.name for value in sources if value.producer is None}

    def reads(self, name: str) -> bool:
        """Whether the tensor is computed from a value of this name in a few steps."""
        return any(value is not None and value.name == name for node in self.nodes for value in node.inputs)


@dataclass(eq=False)
class TensorCase:
    """Two arrays that should be equal; causes are undone in them."""

    a: Neighbourhood  # what is around it in A
    b: Neighbourhood | None
    x: np.ndarray  # what A has, in float64, 0 in the place of minus infinity
    y: np.ndarray
    tolerance: float  # the largest difference that counts as none, times the largest magnitude where that is above 1
    is_integer: bool  # whether A has integers or booleans, which have to be equal
    parts: tuple[tuple[str, Neighbourhood], ...] = field(init=False)

    def __post_init__(self) -> None:
        self.parts = (("A", self.a), *([("B", self.b)] if self.b is not None else []))

    @property
    def has_floats(self) -> bool:
        """Whether both have floats of the same dims."""
        return not self.is_integer and self.x.shape == self.y.shape and self.x.size > 0

    @property
    def allowed_difference(self) -> float:
        """The largest difference that counts as none."""
        return 0.0 if self.is_integer else self.tolerance * max(1.0, largest_magnitude(self.x))

    def distances(self) -> Iterator[float]:
        """Yield how far apart they are, in multiples of the tolerance."""
        if self.x.shape != self.y.shape:
            yield math.inf
        else:
            yield largest_multiple(elementwise_difference(self.x, self.y), self.allowed_difference)

    def compare_arrays(self, x: np.ndarray, y: np.ndarray) -> Undo:
        """Return the undoing after which these are compared."""
        return partial(with_attributes, self, x=x, y=y)

    def run_again(self, given: Callable[[], Arrays] = dict, fed_a: Feed = NOTHING, fed_b: Feed = NOTHING) -> Undo:
        """Return the undoing that runs B with other tensors or inputs, and A with other inputs."""

        @contextmanager
        def undo() -> Iterator[None]:
            assert self.b is not None
            try:
                x = _run_near(self.a, {}, fed_a) if fed_a else self.x
                y = _run_near(self.b, given(), fed_b)
            except ModelError:
                x, y = self.x, self.y
            with with_attributes(self, x=x, y=y):
                yield

        return undo


def _run_near(near: Neighbourhood, given: Arrays, fed: Feed) -> np.ndarray:
    feed = {name: fed.get(name, array) for name, array in near.side.feed.items()}
    return plain_array(Steps(near.side, feed, [near.value], given=given).values([near.value])[0])


def node_causes(case: TensorCase) -> Iterator[Cause]:
    """Yield nodes of B with another operator or attribute: with the result of A's on what they read, the rest is right.

    Where the nodes are the same, those that they read are looked at, as far as their tensors differ.
    """
    pairs = [(case.a.value, case.b.value)] if case.b is not None else []
    for _ in range(HOPS):
        nodes = [(x.producer, y.producer) for x, y in pairs if x.producer is not None and y.producer is not None]
        for node_a, node_b in nodes:
            if text := _node_difference(node_a, node_b):
                yield Cause("weights", text, undo=case.run_again(partial(_node_results, case, node_a, node_b)))
        alike = [both for both in nodes if both[0].operator == both[1].operator]
        inputs = (zip(x.inputs, y.inputs, strict=False) for x, y in alike)
        pairs = [(x, y) for both in inputs for x, y in both if x and y and _values_differ(case, x, y)]


def _values_differ(case: TensorCase, value_a: Value, value_b: Value) -> bool:
    assert case.b is not None
    x, y = case.a.arrays.get(value_a), case.b.arrays.get(value_b)
    return x is not None and y is not None and not (x.shape == y.shape and np.allclose(x, y, equal_nan=True))


def _node_difference(node_a: Node, node_b: Node) -> str:
    """Return how two nodes differ, "" where they do not; an attribute that is not set has its default."""
    if node_a.operator != node_b.operator:
        text = f"'{node_b.label}' of B computes {node_b.operator}, and '{node_a.label}' of A {node_a.operator}."
        return text if len(node_a.inputs) == len(node_b.inputs) else ""
    texts = []
    for name in sorted(node_a.attributes.keys() | node_b.attributes.keys()):
        x, y = (node.attributes.get(name, default_of(node, name)) for node in (node_a, node_b))
        if x is not None and y is not None and x.type == y.type and x.type in NUMBERS and x != y:
            numbers = [onnx.helper.get_attribute_value(each) for each in (y, x)]
            has, had = (f"{number:.6g}" if isinstance(number, float) else str(number) for number in numbers)
            whose = f"'{node_b.label}' ({node_b.operator}) of B"
            texts.append(f"{whose} has {name} {has}, and '{node_a.label}' of A has {had}.")
    return " ".join(texts)


def _node_results(case: TensorCase, node_a: Node, node_b: Node) -> Arrays:
    assert case.b is not None
    pairs = zip(node_a.inputs, node_b.inputs, strict=False)
    read = [(x, y) for x, y in pairs if x is not None and y is not None and known_tensor(x) is None]
    arrays = Steps(case.b.side, case.b.side.feed, []).values([y for _, y in read])
    given = {x: array for (x, _), array in zip(read, arrays, strict=True)}
    outputs = [(x, y) for x, y in zip(node_a.outputs, node_b.outputs, strict=False) if x is not None and y is not None]
    results = Steps(case.a.side, case.a.side.feed, [], given=given).values([x for x, _ in outputs])
    return {y: array for (_, y), array in zip(outputs, results, strict=True)}


def mask_causes(case: TensorCase) -> Iterator[Cause]:
    """Yield masks that B inverts, shifts or ignores: A with such a mask, or both with none, agree."""
    feed = case.a.side.feed
    polarities = {value.name: polarity for value, polarity in case.a.side.model.roles.polarities.items()}
    masks = {name: (feed[name], make_open_mask(feed[name], each)) for name, each in polarities.items() if name in feed}
    if case.b is None:
        return
    read = case.a.inputs, case.b.inputs
    hiding = {name: pair for name, pair in masks.items() if name in read[0] | read[1] and not np.array_equal(*pair)}
    for name, (mask, whole) in hiding.items():
        for text, other in altered_masks(mask, whole) if name in read[1] else ():
            if not np.array_equal(other, whole):
                undo = case.run_again(fed_a={name: other.astype(mask.dtype)})
                yield Cause("mask", f"mask {text.partition(' ')[0]}: B is A with '{name}' {text}.", undo=undo)
    for name, (mask, whole) in hiding.items():
        text = f"padding leak: the two agree where '{name}' masks nothing; padding changes what one of them computes."
        counts = mask == whole  # [batch, length], beside arrays [batch, length, ...]
        if counts.ndim == 2 and case.x.shape == case.y.shape and case.x.shape[:2] == counts.shape:
            with case.compare_arrays(case.x[counts], case.y[counts])():
                if max(case.distances()) <= 1:
                    text = f"padding: only positions that '{name}' masks differ; what counts agrees."
        yield Cause("padding", text, undo=case.run_again(fed_a={name: whole}, fed_b={name: whole}))
    if len(hiding) > 1:
        names = " and ".join(f"'{name}'" for name in hiding)
        fed = {name: whole for name, (_, whole) in hiding.items()}
        text = f"padding leak: the two agree where {names} mask nothing."
        yield Cause("padding", text, undo=case.run_again(fed_a=fed, fed_b=fed))


def weight_causes(case: TensorCase) -> Iterator[Cause]:
    """Yield the weights that B's node reads and that are not those of A: with those of A, the tensor is right."""
    node_a, node_b = case.a.value.producer, case.b.value.producer if case.b is not None else None
    if case.b is None or node_a is None or node_b is None or node_a.operator != node_b.operator:
        return
    models, right, texts, name = (case.a.side.model, case.b.side.model), dict[Value, np.ndarray](), list[str](), ""
    for value_a, value_b in zip(node_a.inputs, node_b.inputs, strict=False):
        if value_a is None or value_b is None:
            continue
        tensor_a, tensor_b = known_tensor(value_a), known_tensor(value_b)
        if tensor_a is None or tensor_b is None or tensor_a.data_type != tensor_b.data_type:
            continue
        if tensor_a.dims == tensor_b.dims and first_difference(models[0], tensor_a, models[1], tensor_b) is None:
            continue
        right[value_b] = constant_array(models[0], tensor_a)
        how = describe_difference(right[value_b], constant_array(models[1], tensor_b))
        texts.append(f"'{value_b.name}' of B is not '{value_a.name}' of A: {how}.")
        name = name or value_a.name
    if right:
        yield Cause("weights", " ".join(texts), name, case.run_again(lambda: right))


def constant_causes(case: TensorCase) -> Iterator[Cause]:
    """Yield a constant that is added by one model alone, or twice: without it, or with it, the arrays are equal."""
    if case.x.shape != case.y.shape or not case.x.size:
        return
    difference = case.x - case.y
    for kept in [(), *((axis,) for axis in reversed(range(case.x.ndim)))]:
        column = difference.mean(axis=tuple(axis for axis in range(case.x.ndim) if axis not in kept), keepdims=True)
        if case.x.size == column.size > 1 or np.abs(difference - column).max() > np.abs(difference).max() / CLEAR:
            continue
        undo, apart, added = case.compare_arrays(case.x, case.y + column), column.ravel(), dict[str, str]()
        # constants of one number may also have several elements; but they have to be added, as many hold 1
        is_uniform = np.allclose(apart, apart[0], CLOSE)
        sizes = {apart.size, *(case.x.shape if is_uniform else ())}
        for owner, part in () if case.is_integer else case.parts:
            nodes = part.side.nodes[::-1]
            addends = {node.input(at) for node in nodes for at in BIASES.get(node.op_type, ())}
            for value, _, array in itertools.chain.from_iterable(part.constants(nodes, size) for size in sizes):
                for sign, more, less in ((1.0, "A", case.b), (-1.0, "B", case.a)):
                    numbers = sign * (apart[0] if is_uniform else apart)
                    is_addend = value in addends or not is_uniform
                    if is_addend and np.allclose(array.ravel(), numbers, CLOSE, case.tolerance):
                        is_twice = owner != more or (less is not None and less.reads(value.name))
                        what = f"{'the' if is_twice else 'its'} initializer '{value.name}'"
                        added[value.name] = _added_text(more, what, is_twice=is_twice)
            if added:
                break
        for name, text in added.items():
            yield Cause("offset", f"constant offset: {text}.", name, undo)
        if not added:
            mean = float(column.ravel()[0])
            number = f"{abs(mean):g}" if case.is_integer else f"{abs(mean):.4g}"
            text = f"B has {number} {'less' if mean > 0 else 'more'} than A in every element"
            if not case.is_integer:
                text += "; no initializer that is added has this value"
            elif abs(mean) == 1:
                text += "; positions, or a length, are off by one"
            if kept:
                text = f"along axis {kept[0]}, B differs from A by the same numbers everywhere; no initializer has them"
            yield Cause("offset", f"constant offset: {text}.", undo=undo, is_vague=True)


def _added_text(more: str, what: str, *, is_twice: bool) -> str:
    less = "B" if more == "A" else "A"
    return f"{more} adds {what} twice, {less} once" if is_twice else f"{more} adds {what}, and {less} does not"


def scale_causes(case: TensorCase) -> Iterator[Cause]:
    """Yield a factor that one of the models lacks, or has twice: without it, the arrays are equal."""
    if not case.has_floats or case.x.size < 2:
        return
    for owner, part in case.parts:
        nodes = [*part.nodes, *(node for node, _ in part.value.consumers)]
        for value, node, array in part.constants([node for node in nodes if node.is_op("Mul", "Div")]):
            if not _broadcasts_to(array.shape, case.x.shape) or not array.all():
                continue
            number = array if node.op_type == "Mul" else 1 / array.astype(np.float64)
            operation = f"the {node.op_type} by '{value.name}' of {owner}"
            more = " twice" if owner == "A" else ", and A does not"
            texts = f"B applies {operation}{more}", f"B lacks {operation}, or A applies it twice"
            for factor, text in zip((number, 1 / number), texts, strict=True):
                times = f"{factor.ravel()[0]:.6g} times" if factor.size == 1 else "a multiple of"
                undo = case.compare_arrays(factor * case.x, case.y)
                yield Cause("scale", f"scale: B is {times} A: {text}.", value.name, undo)
    squares = float((case.x * case.x).sum())
    if squares and (least := float((case.x * case.y).sum()) / squares):
        text = f"scale: B is {least:.6g} times A; no constant nearby has that factor."
        yield Cause("scale", text, undo=case.compare_arrays(least * case.x, case.y), is_vague=True)


def _broadcasts_to(dims: tuple[int, ...], to: tuple[int, ...]) -> bool:
    return len(dims) <= len(to) and all(d in (1, t) for d, t in zip(dims[::-1], to[::-1], strict=False))


def row_causes(case: TensorCase) -> Iterator[Cause]:
    """Yield rows of a table that are added by one model alone, or twice, or looked up elsewhere in B."""
    if not case.has_floats or not case.x.ndim:
        return
    x, y = (array.reshape(-1, array.shape[-1])[:MAX_ROWS] for array in (case.x, case.y))
    length = case.x.shape[-2] if case.x.ndim > 1 else 1
    for name, table in _length_tables(case):
        for sign, more, less in ((1.0, "A", case.b), (-1.0, "B", case.a)):
            if (rows := _nearest_rows(table, sign * (x - y))) is not None:
                ends = f"rows {_numbers_text(rows[:length])} of '{name}'"
                is_counting = length > 1 and all(b == a + 1 for a, b in itertools.pairwise(rows[:length]))
                what, is_twice = f"positions ({ends})" if is_counting else ends, less is not None and less.reads(name)
                text = _added_text(more, what, is_twice=is_twice)
                yield Cause("positions", f"{text}.", name, case.compare_arrays(x, y + sign * table[rows]))
        rows_a, rows_b = _nearest_rows(table, x), _nearest_rows(table, y)
        if rows_a is not None and rows_b is not None and rows_a != rows_b:
            steps = {row_b - row_a for row_a, row_b in zip(rows_a, rows_b, strict=True)}
            text = f"A looks up rows {_numbers_text(rows_a)} of '{name}', B rows {_numbers_text(rows_b)}."
            text = f"off by one: {text}" if steps in ({1}, {-1}) else text
            yield Cause("positions", text, name, case.compare_arrays(x, y - table[rows_b] + table[rows_a]))


def _length_tables(case: TensorCase) -> Iterator[tuple[str, np.ndarray]]:
    names = set[str]()
    for _, part in case.parts:
        nodes = [node for node in part.side.nodes if node.is_op(*PICKING, "Add", "Expand")]
        for value, _, array in part.constants(nodes):
            if array.ndim == 2 and array.shape[1] == case.x.shape[-1] and len(array) > 1 and value.name not in names:
                names.add(value.name)
                yield value.name, array


def _nearest_rows(table: np.ndarray, array: np.ndarray) -> list[int] | None:
    rows = []
    for row in array:
        best, at, step = np.inf, -1, max(1, CHUNK // table.shape[1])
        for start in range(0, len(table), step):
            apart = np.abs(table[start : start + step] - row).max(axis=1)
            if apart.min() < best:
                best, at = float(apart.min()), start + int(apart.argmin())
        if not row.any() or best > float(np.abs(row).max()) / CLEAR:
            return None
        rows.append(at)
    return rows


def _numbers_text(numbers: Sequence[int]) -> str:
    if len(numbers) > 3 and list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers[:4])) + (", ..." if len(numbers) > 4 else "")


def term_causes(case: TensorCase) -> Iterator[Cause]:
    """Yield a tensor nearby that one model adds and the other does not, such as a residual, or that B has instead."""
    if not case.has_floats:
        return
    for (owner, part), sign in zip(case.parts, (1.0, -1.0), strict=False):
        other = "B" if owner == "A" else "A"
        for value, array in part.arrays.items():
            if value is part.value or array.dtype.kind != "f" or not _broadcasts_to(array.shape, case.x.shape):
                continue
            term, is_residual = plain_array(array), len(value.consumers) > 1 and value.producer is not None
            what = f"its tensor '{value.name}'{' (a residual)' if is_residual else ''}"
            undo = case.compare_arrays(case.x, case.y + sign * term)
            yield Cause("term", f"{owner} adds {what}, and {other} does not.", undo=undo)
            is_addend = case.b is None and any(node is part.value.producer for node, _ in value.consumers)
            more = ", or has it 2 times as large" if is_addend else ""
            text = f"{other} adds the tensor '{value.name}' of {owner} once more than {owner}{more}."
            yield Cause("term", text, undo=case.compare_arrays(case.x, case.y - sign * term))
            if owner == "A" and term.shape == case.y.shape:
                text = f"B has what A has in '{value.name}': what A computes from that is left out."
                yield Cause("term", text, undo=case.compare_arrays(term, case.y), is_vague=True)


def order_causes(case: TensorCase) -> Iterator[Cause]:
    """Yield the same elements in another order: transposed, rotated, permuted, or without some at an end."""
    allowed = case.allowed_difference
    for relation in array_relations(case.x, case.y):
        if relation.may_hold(allowed):
            undo = case.compare_arrays(relation.expected, relation.actual)
            yield Cause(relation.kind, f"{relation.text}.", undo=undo, is_vague=True)


def mistake_causes(case: TensorCase) -> Iterator[Cause]:
    """Yield the usual mistakes of a port, each made in A: those that B makes far from the tensors that are compared."""
    value = case.a.value
    if not case.has_floats or not (case.b is None or value in case.a.side.model.graph.outputs):
        return
    shapes = infer(case.a.side.model)
    for mistake, array in make_mistakes(case.a.side, value):
        x, y, where, read = plain_array(array), case.y, "", next(iter(mistake.arrays))
        length, dims = (shapes[read].dims or (None,))[-1], shapes[value].dims or ()
        if mistake.unknown_places and length is not None and dims.count(length) == 1:  # which axis has the tokens?
            known = (*[slice(None)] * dims.index(length), slice(-mistake.unknown_places))
            with case.compare_arrays(case.x[known], case.y[known])():
                if max(case.distances()) > CLEAR:
                    x, y, where = x[known], y[known], " at all places but the last"
        undo = case.compare_arrays(x, y)
        is_constant = known_tensor(read) is not None
        name = read.name if is_constant and len(mistake.arrays) == 1 else ""
        is_vague = not is_constant and read.producer is not None  # an input it depends on says more
        yield Cause(mistake.kind, f"{mistake.text} gives what B has{where}.", name, undo, is_vague)


TABLE: tuple[Callable[[TensorCase], Iterator[Cause]], ...] = (
    node_causes, mask_causes, weight_causes, constant_causes, scale_causes, row_causes, term_causes, order_causes,
    mistake_causes,
)  # fmt: skip


class Mistake(Struct, frozen=True, eq=False):
    """A mistake that a port may make."""

    # what it is; the text begins with its name
    kind: Kind
    text: str
    arrays: Arrays  # what the original reads instead if it makes it too
    unknown_places: int = 0  # how many of the last tokens have results that are not known then


def make_mistakes(side: Side, value: Value) -> Iterator[tuple[Mistake, np.ndarray]]:
    """Run a model with one mistake after the other, and yield what it gives for a value.

    Those in inputs come first, then those in what is added to activations whatever these are, then constants.
    """
    nodes = Steps(side, side.feed, [value]).relevant
    used = {read for node in nodes for read in side.reads[node]}
    yield from _run_mistakes(side, value, [each for each in _input_mistakes(side) if used & each.arrays.keys()])
    fixed = {*side.model.roles.all(*MASKS, "positions", "condition")}
    data = {each for each in side.inputs if each not in fixed}
    activations = list[Node]()
    for node in sorted(nodes, key=side.order.__getitem__):
        if not node.is_op(*MEASURING) and any(read in data for read in side.reads[node]):
            data.update(output for output in node.outputs if output is not None)
            activations.append(node)
    constants = _constant_mistakes(side, activations[::-1])
    yield from _run_mistakes(side, value, [*_addend_mistakes(side, activations, data), *constants])


def _run_mistakes(side: Side, value: Value, mistakes: list[Mistake]) -> Iterator[tuple[Mistake, np.ndarray]]:
    replaced = list(dict.fromkeys(each for mistake in mistakes for each in mistake.arrays))
    known = dict(zip(replaced, Steps(side, side.feed, replaced).values(replaced), strict=True))
    with Steps(side, side.feed, [value], given=known).load_part(value) as run:
        for mistake in mistakes:
            with contextlib.suppress(ModelError):
                yield mistake, run(mistake.arrays)


def altered_masks(mask: np.ndarray, whole: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield a mask as ports get it wrong, and how; `whole` is the one that hides nothing, and differs."""
    yield "inverted", np.where(mask == whole, mask[mask != whole][0], whole)
    for step, where in ((-1, "after"), (1, "before")) if mask.ndim else ():
        text, edge = f"shifted by one: it reads the place {where}", slice(-1, None) if step < 0 else slice(0, 1)
        yield text, np.roll(mask, step, -1)
        twice = np.roll(mask, step, -1)
        twice[..., edge] = mask[..., edge]  # the last place is there twice, or the first
        yield text, twice


def _input_mistakes(side: Side) -> Iterator[Mistake]:
    """Yield masks that are inverted, shifted or ignored, tokens one place on, and positions that begin elsewhere."""
    roles = side.model.roles
    for value in side.inputs:
        array, role = side.feed[value.name], roles.of(value)
        if role in MASKS:
            whole = make_open_mask(array, roles.polarities[value])
            if np.array_equal(array, whole):
                continue
            for how, mask in altered_masks(array, whole):
                text = f"mask {how.partition(' ')[0]}: A with '{value.name}' {how}"
                yield Mistake("mask", text, {value: mask.astype(array.dtype)})
            yield Mistake("padding", f"padding counts: A with nothing masked by '{value.name}'", {value: whole})
        elif role in ("tokens", "encoder tokens") and array.ndim and array.shape[-1] > 1:
            for step, where in ((1, "later"), (-1, "earlier")):
                text = f"tokens shifted: A with '{value.name}' one place {where}"
                moved, edge = np.roll(array, step, -1), 0 if step > 0 else -1
                for token in (array[..., edge], moved[..., edge], 0):
                    shifted = moved.copy()
                    shifted[..., edge] = token
                    yield Mistake("shifted", text, {value: shifted}, int(step < 0 and role == "tokens"))
        elif role == "positions":
            for step in (1, -1, 2, -2):
                text = f"positions off by {abs(step)}: A with {abs(step)} {'more' if step > 0 else 'less'} in "
                yield Mistake("positions", f"{text}'{value.name}'", {value: np.maximum(array + step, 0)})
            places = np.broadcast_to(np.arange(array.shape[-1], dtype=array.dtype), array.shape)
            text = f"positions count padding: A with 0, 1, 2, ... as '{value.name}'"
            yield Mistake("positions", text, {value: places})


def _addend_mistakes(side: Side, nodes: list[Node], data: set[Value]) -> Iterator[Mistake]:
    """Yield what is added to activations and depends on none: twice, not at all, or with other rows of its table."""
    added = dict.fromkeys(read for node in nodes if node.is_op("Add") for read in node.inputs if read is not None)
    computed = (read for read in added if read not in data and known_tensor(read) is None)
    addends = [read for read in computed if side.dtype(read) in FLOATS and read not in side.unholdable]
    arrays = Steps(side, side.feed, addends).values(addends) if addends else []
    for value, array in zip(addends, arrays, strict=True):
        yield from _added_rows(value, array)
        source: Value | None = value
        while source is not None and source.producer is not None and not source.producer.is_op(*LOOKUPS):
            source = source.producer.input(0)
        table, ids = source.producer.inputs if source is not None and source.producer is not None else (None, None)
        tensor = known_tensor(table) if table is not None else None
        if source is None or ids is None or tensor is None or tensor.data_type not in FLOATS or len(tensor.dims) != 2:
            continue
        rows, index = constant_array(side.model, tensor), Steps(side, side.feed, [ids]).values([ids])[0]
        for step in (1, -1, 2, -2):
            text = f"positions off by {abs(step)}: A with the rows {abs(step)} {'behind' if step > 0 else 'before'}"
            shifted = np.clip(index + step, 0, len(rows) - 1)
            if rows[index].shape == array.shape:
                yield Mistake("positions", f"{text} in its table", {value: rows[shifted]})


def _added_rows(value: Value, array: np.ndarray) -> Iterator[Mistake]:
    if array.size and array.min() <= FLOOR:
        yield Mistake("mask", f"mask lost: A without its mask '{value.name}'", {value: np.zeros_like(array)})
        return
    yield Mistake("positions", f"positions twice: A that adds '{value.name}' twice", {value: 2 * array})
    yield Mistake("positions", f"positions lost: A without '{value.name}'", {value: np.zeros_like(array)})


def _constant_mistakes(side: Side, nodes: list[Node]) -> Iterator[Mistake]:
    """Yield biases that are lost, and scales that are lost or applied twice; those of equal layers together."""
    families = dict[str, dict[Value, np.ndarray]]()
    for node in nodes:
        for table in (BIASES, SCALES):
            for value in (node.input(at) for at in table.get(node.op_type, ()) if not node.domain):
                tensor = known_tensor(value) if value is not None else None
                if value is None or tensor is None or tensor.data_type not in FLOATS:
                    continue
                array = constant_array(side.model, tensor)
                if (array.size > 1) == (table is BIASES):
                    is_named = value.producer is None and "::" not in value.name
                    families.setdefault(value.name if is_named else node.label, {})[value] = array
    kinds = [*label_families(families).items()]
    ends = itertools.chain.from_iterable(zip(kinds, reversed(kinds), strict=True))
    for label, names in [*dict(ends).items()][:MOST_KINDS]:
        arrays = {value: array for name in names for value, array in families[name].items()}
        first = next(iter(arrays.values()))
        if first.size == 1:
            yield Mistake("scale", f"scale lost: A without '{label}'", {v: np.ones_like(x) for v, x in arrays.items()})
            yield Mistake("scale", f"scale twice: A with '{label}' twice", {v: x * x for v, x in arrays.items()})
        elif first.size > first.shape[-1]:
            yield from _added_rows(*next(iter(arrays.items())))
        else:
            yield Mistake("term", f"bias lost: A without '{label}'", {v: np.zeros_like(x) for v, x in arrays.items()})
