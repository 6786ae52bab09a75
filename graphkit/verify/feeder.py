"""The inputs of a model's runs at its legal sizes, and the sizes at which it may begin to behave otherwise.

Inputs come from a seed, with flags and arrays that are given. Sizes that matter are constants that dims meet, windows,
and the ends of tables of positions: a proof that stays below one of these tells nothing of what lies beyond.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from msgspec import Struct
from onnx import TensorProto

from graphkit.dtypes import INTEGERS, inline_array
from graphkit.graph.declared_types import declared_type
from graphkit.graph.operator_traits import CUTTING, LOOKUPS, cut_bounds, value_inputs
from graphkit.graph.roles import MASKS, Roles
from graphkit.graph.view import Node, Value, all_nodes, walk_breadth_first
from graphkit.model import Model
from graphkit.ops.tensor import is_known
from graphkit.ops.value_ranges import ValueRangeAnalysis
from graphkit.runtime.isolation import current_limits
from graphkit.shapes import Shapes, infer
from graphkit.shapes.constraints.dim_equalities import fed_inputs
from graphkit.shapes.constraints.legal_sizes import LegalSizes
from graphkit.symbolic.expr import Expr
from graphkit.verify.comparator import Output
from graphkit.verify.input_elements import USUAL, Defaults, Draw, Kind
from graphkit.verify.input_generator import InputGenerator, is_flag
from graphkit.verify.rewrite_proof import RunSizes

MAX_FLAGS = 2  # flags of which all combinations are run
KINDS: tuple[Kind, ...] = ("edges", "extremes", "not finite")
Flags = dict[str, bool]
LEAST_MET, MOST_MET = 4, 1 << 16  # smaller ones are between the sizes that are tried anyway
MEETING = (
    "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Min", "Max", "Clip", "Sub", "Mod", "Range",
)  # fmt: skip
MAX_ELEMENTS = 8  # of a constant that a dim may meet
LEAST = 32  # a length to go beyond in any model: half of T5's buckets, where distances are no longer told apart
MOST = 4096  # the longest one that matters
MARGIN = 3  # beyond a length by more than one
NUMBERS = (TensorProto.INT32, TensorProto.INT64, TensorProto.FLOAT, TensorProto.DOUBLE)
BRANCHING = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Sub", "Add", "Min", "Max", "Clip", "Trilu", "Mod")
POSITIONS = ("Range", "CumSum")
BUCKETING = ("Log", "Min", "Max", "Clip")  # what looks up by these is a table of distances, which never ends
PADDING = 3  # positions by which exporters shift a table's rows, at most


@dataclass(frozen=True, eq=False)
class Run(RunSizes):
    """A feed, and the original's outputs for it."""

    seed: int
    expected: Mapping[str, Output]
    draw: Draw = USUAL
    empty: tuple[str, ...] = ()  # the dims that are 0 there, although they count from 1 on elsewhere


class Feeder:
    """Makes the inputs of a model at its legal sizes, from a seed; arrays that are given stand for generated ones.

    Numbers that `others`, which were made of the model, compare with are edges too. `kinds` are the kinds of edges to
    try; with `is_unpadded` masks hide nothing.
    """

    def __init__(
        self,
        model: Model,
        legal: LegalSizes,
        given: Mapping[str, np.ndarray],
        seed: int,
        *,
        others: Sequence[Model] = (),
        kinds: Sequence[Kind] = KINDS,
        is_unpadded: bool = False,
    ) -> None:
        self.sizes, self.given, self.kinds = legal, given, kinds
        self.inputs: Mapping[str, Value] = fed_inputs(model)
        self.models = (model, *others)
        most = current_limits().inputs()
        self.maker = InputGenerator(model, seed, others=others, most=most, is_unpadded=is_unpadded)
        self.defaults = Defaults.of(model, others)
        self.lengths = lengths_of(model)
        merged = model.roles.decoder
        self.reading = {} if merged is None else {merged.condition.input.name: merged.cache_when}
        self.flag_shapes = {} if merged is None else {merged.condition.input.name: merged.condition.shape}

    def flags(self) -> list[Flags]:
        """Return the combinations of flags to run, at least one."""
        names = [*(name for name, value in self.inputs.items() if is_flag(value)), *self.reading]
        given = {name: (bool(self.given[name].all()),) for name in names if name in self.given}
        values = {name: given.get(name, (False, True)) for name in names}
        if sum(len(choices) > 1 for choices in values.values()) > MAX_FLAGS:
            return [{name: choices[at] for name, choices in values.items()} for at in (0, -1)]
        return [dict(zip(values, flags, strict=True)) for flags in itertools.product(*values.values())]

    def legal(self, flags: Flags) -> LegalSizes:
        """Return the legal sizes with these flags."""
        reads_past = any(flags.get(name) == flag for name, flag in self.reading.items())
        return self.sizes.for_branch(is_first=self.is_first(flags), reads_past=reads_past)

    def is_first(self, flags: Flags) -> bool:
        """Whether a merged decoder runs its first step with these flags."""
        return any(flags.get(name) == (not flag) for name, flag in self.reading.items())

    @cached_property
    def thresholds(self) -> tuple[Threshold, ...]:
        """The constants that dims meet; those of the rewritten model alone come first."""
        original, *others = map(find_thresholds, self.models)
        return (*(met for rewritten in others for met in rewritten if met not in original), *original)

    def unlike(self, dims: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """Yield sizes at which dims of one name differ: no runtime checks that they are equal."""
        roles, places = self.models[0].roles, dict[str, dict[tuple[str, int], list[str]]]()
        for name, value in self.inputs.items():
            role = roles.of(value)
            for axis, dim in enumerate((self.sizes.inputs[name] or ()) if value.consumers else ()):
                if dim.name is not None:
                    kinds = places.setdefault(dim.name, {})
                    kinds.setdefault((name if role == "other" else role, axis), []).append(f"{name}.{axis}")
        for shared, kinds in places.items():
            for others in [*kinds.values()][1:]:
                for size in {1, 2 * dims[shared]} - {dims[shared]}:
                    yield {**dims, **dict.fromkeys(others, size)}

    def again(self, run: Run) -> dict[str, np.ndarray]:
        """Return the inputs of a run once more."""
        return self.feed(run.dims, run.flags, run.seed, run.draw)

    @property
    def is_exact(self) -> bool:
        """Whether both models are to give the same at all edges of values."""
        return set(self.kinds) == set(KINDS)

    def at(self, legal: LegalSizes) -> Feeder:
        """Return a feeder for other sizes."""
        return Feeder(self.models[0], legal, self.given, self.maker.seed, is_unpadded=self.maker.is_unpadded)

    def shapes(self, run: Run) -> dict[str, tuple[int, ...] | None]:
        """Return the shapes of the inputs of a run."""
        return self.sizes.shapes(run.dims, is_first=self.is_first(run.flags))

    def rows(self, run: Run) -> int:
        """Return how many rows the masks have in a run."""
        shapes = self.shapes(run)
        mask_shapes = [shapes.get(value.name) for value in self.maker.model.roles.all(*MASKS)]
        return max((shape[0] for shape in mask_shapes if shape), default=0)

    def feed(self, dims: Mapping[str, int], flags: Flags, seed: int, draw: Draw = USUAL) -> dict[str, np.ndarray]:
        """Return the inputs of a run."""
        is_first = self.is_first(flags)
        shapes = self.sizes.shapes(dims, is_first=is_first)
        of_flags = {**shapes, **self.flag_shapes}
        booleans = {name: np.full(of_flags.get(name) or (), flag) for name, flag in flags.items()}
        past = 0 if is_first else self.sizes.past_size(dims)
        feed = self.maker.arrays(shapes, past=past, given={**self.given, **booleans}, seed=seed, draw=draw)
        overridden = self.defaults.override_elements(draw) if draw.overridden else {}
        return {**overridden, **feed, **booleans}  # a condition with a default is fed too


class Threshold(Struct, frozen=True, order=True):
    """A number that a dim meets."""

    size: int
    symbols: frozenset[str]  # the input dims that decide on which side of it a run is


def find_thresholds(model: Model) -> tuple[Threshold, ...]:
    """Return the constants that dims of a model meet, each once, in the order of nodes."""
    shapes = infer(model)
    reader = _Reader(shapes, ValueRangeAnalysis(model, lambda value: shapes[value], typical=True))
    nodes = (node for node in all_nodes(model.scopes) if not node.domain)
    return tuple(dict.fromkeys(threshold for node in nodes for threshold in reader.of(node)))


class _Reader(Struct, frozen=True):
    shapes: Shapes
    ranges: ValueRangeAnalysis

    def of(self, node: Node) -> Iterator[Threshold]:
        if node.is_op(*MEETING):
            constants = [number for value in node.inputs for number in _constant_integers(value)]
            dims = [dim for value in node.inputs if constants for dim in self._counted_dims(value)]
            yield from (each for dim in dims for number in constants for each in _threshold_of_dim(number, dim))
        elif cut := cut_bounds(node):  # of an axis that grows, by a constant; or of a table, by a dim
            sizes, bounds = self.shapes.dims(node.input(0)), cut[:2]
            axes = list(_constant_integers(cut[2])) or list(range(len(sizes or ())))
            for value in bounds:
                for axis, number in zip(axes, _constant_integers(value), strict=False):
                    if sizes and -len(sizes) <= axis < len(sizes):
                        yield from _threshold_of_dim(number, sizes[axis])
            for axis, dim in zip(axes, (dim for value in bounds for dim in self._counted_dims(value)), strict=False):
                rows = sizes[axis].constant if sizes and -len(sizes) <= axis < len(sizes) else None
                if rows is not None:
                    yield from _threshold_of_dim(rows, dim)
        elif node.is_op(*LOOKUPS):
            yield from self._looked_up(node)

    def _looked_up(self, node: Node) -> Iterator[Threshold]:
        """Yield the entry of an axis that grows, or the rows of a table of positions."""
        dims, axis = self.shapes.dims(node.input(0)), node.attr("axis", 0)
        if not dims or axis is None or not -len(dims) <= axis < len(dims):
            return
        for number in _constant_integers(node.input(1)):
            yield from _threshold_of_dim(number, dims[axis])
        rows = dims[axis].constant
        if rows is not None and node.input(1) is not None and not _constant_integers(node.input(1)):
            for dim in self._counted_dims(node.input(1)):
                yield from _threshold_of_dim(rows, dim)

    def _counted_dims(self, value: Value | None) -> list[Expr]:
        """Return dims that are elements of a value, or the last position that it counts."""
        if value is None or value.is_constant:
            return []
        tensor = self.shapes[value]
        if tensor.may_have_data and tensor.dtype in INTEGERS:
            exprs = [expr for expr in tensor.elements or () if isinstance(expr, Expr)]
            return [expr for expr in exprs if expr.symbols and is_known(expr)]
        found_range = self.ranges.range(value)
        return [found_range.high] if found_range is not None and found_range.high.symbols else []


def _threshold_of_dim(number: int, dim: Expr) -> Iterator[Threshold]:
    if dim.symbols and is_known(dim) and LEAST_MET <= abs(number) <= MOST_MET:
        yield Threshold(abs(number), frozenset(dim.symbols))


def _constant_integers(value: Value | None) -> tuple[int, ...]:
    array = inline_array(value.constant) if value is not None else None
    if array is None or array.size > MAX_ELEMENTS or array.dtype.kind not in "iuf":
        return ()
    return tuple(int(x) for x in array.ravel().tolist() if x == x and abs(x) <= MOST_MET and x == int(x))


class Lengths(Struct, frozen=True):
    """The lengths that matter to a model, by its graph."""

    # lengths to run at, the longest first; each is past one at which the model may change
    beyond: tuple[int, ...] = (LEAST + MARGIN,)
    # lengths that reach the last row of the shortest table of positions, the longest first; the exporter may have
    # shifted the rows, so that the first of these may be too long
    ends: tuple[int, ...] = ()


def lengths_of(model: Model) -> Lengths:
    """Return the lengths at which a model may begin to behave otherwise."""
    marks, tables = {LEAST}, set[int]()
    for node in all_nodes(model.scopes):
        if (window := node.attr("local_window_size", int)) is not None:
            marks.add(window)
        if node.is_op(*BRANCHING):
            numbers = [_constant_number(model, value) for value in node.inputs]
            marks.update(abs(int(number)) for number in numbers if number is not None and number == int(number))
        bounds = [_constant_number(model, value) for value in cut_bounds(node)[:2]]  # the last so many of a cache
        marks.update(int(-number) for number in bounds if number is not None and -MOST <= number < 0)
        # distances from `most` on share a bucket: `log(x / exact) / log(most / exact)`, as T5 writes it
        if node.is_op("Log"):
            argument, out = node.input(0), node.outputs[0]
            divided = argument.producer if argument is not None else None
            exact = _constant_number(model, divided.input(1)) if divided is not None and divided.is_op("Div") else 1.0
            for consumer, position in out.consumers if out is not None else ():
                scale = _constant_number(model, consumer.input(1)) if consumer.is_op("Div") and not position else None
                if exact is not None and scale is not None and 0 < scale < math.log(MOST):
                    marks.add(round(exact * math.exp(scale)))
        tables.update(_position_rows(node, model.roles))
    last = min(tables, default=None)
    beyond = {mark + MARGIN for mark in marks if LEAST <= mark <= MOST}
    if last is not None:
        beyond = {length for length in beyond if length < last - PADDING}
    ends = range(last, max(last - PADDING, 1), -1) if last is not None and last <= MOST else ()
    return Lengths(tuple(sorted(beyond, reverse=True)), tuple(ends))


def _position_rows(node: Node, roles: Roles) -> Iterator[int]:
    table, indices = node.input(0), node.input(1)
    declared = declared_type(table) if table is not None and table.is_constant else None
    may_embed = declared is not None and (declared.is_float or declared.dtype in (TensorProto.INT8, TensorProto.UINT8))
    if not node.is_op(*LOOKUPS) or declared is None or not declared.dims or not may_embed:
        return
    if node.attr("axis", 0) != 0 or len(declared.dims) < 2 or indices is None or not _are_positions(indices, roles):
        return
    if isinstance(rows := declared.dims[0], int) and rows > 1:
        yield rows


def _are_positions(indices: Value, roles: Roles) -> bool:
    """Whether indices count positions: a Range, a CumSum of the mask, part of a constant, or an input of that role."""
    counts_positions = False

    def computed_from(value: Value) -> list[Value | None]:
        """Return the inputs that the elements of a value are computed from, if its producer does not count."""
        if (node := value.producer) is None or _counts_from_zero(node):
            return []
        shapes = value_inputs(node)
        return [source for index, source in enumerate(node.inputs) if index not in shapes]

    for value in walk_breadth_first([indices], computed_from):
        if value.producer is None:
            counts_positions |= roles.of(value) == "positions"
        elif value.producer.is_op(*BUCKETING):
            return False
        else:
            counts_positions |= _counts_from_zero(value.producer)
    return counts_positions


def _counts_from_zero(node: Node) -> bool:
    source = node.input(0)
    return node.is_op(*POSITIONS) or (node.is_op(*CUTTING) and source is not None and source.is_constant)


def _constant_number(model: Model, value: Value | None) -> float | None:
    tensor = value.constant if value is not None else None
    if tensor is None or tensor.data_type not in NUMBERS or list(tensor.dims) not in ([], [1]):
        return None
    number = float(model.array(tensor).reshape(-1)[0])
    return number if math.isfinite(number) else None
