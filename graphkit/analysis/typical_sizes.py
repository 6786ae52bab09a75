"""Typical sizes of the symbols in a model's input dims, at which costs are told where nobody gives sizes.

A sequence of 128 tokens, or one token after a past of 128; images of 224 by 224; a second of audio; graphs of 128
nodes and 512 edges; a batch of 1. Where the model has relations between its dims, or bounds of them, or tables that
end, the nearest sizes at which it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from graphkit.graph.cache_entries import split_name
from graphkit.graph.dataflow import find_readers
from graphkit.graph.declared_types import declared_type
from graphkit.graph.operator_traits import GATHERING, SCATTERING, copied_inputs
from graphkit.graph.roles import Axis
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.shapes import DimSpec, Expr, Relation, Shapes, symbol
from graphkit.shapes.constraints.legal_sizes import LegalSizes, legal_sizes, search_nearest_sizes
from graphkit.shapes.constraints.node_constraints import Constraint, collect_preconditions
from graphkit.shapes.input_dims import claimed_inputs, declared_inputs, input_dims

TYPICAL: Mapping[Axis, int] = {
    "batch": 1,
    "sequence": 128,
    "past": 128,
    "encoder": 128,
    "channels": 3,
    "space": 224,
    "other": 128,
}
SAMPLES = 16_000  # of a second of speech
NODES, EDGES = 128, 512
PIXELS = 224
AUDIO = {"audio", "wav", "waveform", "waveforms", "speech", "samples"}


class TypicalSizes:
    """Sizes for the symbols that a spec leaves open; `wish` says others than the typical ones, by role."""

    def __init__(self, model: Model, spec: DimSpec, shapes: Shapes, wish: Mapping[Axis, int] = {}) -> None:
        by_input, legal = sizes_by_input(shapes), legal_sizes(model, spec, shapes=shapes)
        powers = {name: (1 << (size - 1).bit_length(),) for name, size in by_input.items()}  # which strides divide
        variables = (replace(each, preferred=powers.get(each.name, each.preferred)) for each in legal.variables)
        self.legal = replace(legal, variables=tuple(variables))
        sequence = TYPICAL["sequence"] if legal.past is None or wish.get("past") == 0 else 1
        by_role = {**TYPICAL, "sequence": sequence, **wish}
        by_role["total"] = by_role["sequence"] + (0 if legal.past is None else by_role["past"])
        self.wish: dict[str, int] = {}
        for each in self.legal.variables:
            size = by_role[each.role] if each.role in wish else by_input.get(each.name, by_role[each.role])
            self.wish[each.name] = int(min(max(size, each.low), each.high))
        # a size for each
        self.sizes = _runnable_sizes(self.legal, shapes, self.wish) or next(self.legal.near(self.wish), self.wish)
        ends = {name: (low, high) for name, (low, high) in spec.bounds.items() if low is not None and high is not None}
        # the first symbol that the spec gives both bounds of, None if there is none
        self.over = next((name for name in ends if name in self.sizes), None)
        self.ends = ends.get(self.over or "", (0, 0))

    def curve(self, most: int) -> Iterator[tuple[int, dict[str, int]]]:
        """Yield sizes of the symbol, both bounds and the powers of two between, with those of the others there."""
        low, high = self.ends
        powers = [1 << exponent for exponent in range(most) if low < 1 << exponent < high]
        for size in sorted({low, *powers, high}) if self.over is not None else ():
            every, wish = self.legal.variables, {**self.sizes, self.over or "": size}
            variables = (replace(each, low=size, high=size) if each.name == self.over else each for each in every)
            yield size, next(replace(self.legal, variables=tuple(variables)).near(wish), wish)


def _runnable_sizes(legal: LegalSizes, shapes: Shapes, wish: Mapping[str, int]) -> dict[str, int] | None:
    """Return the nearest legal sizes at which every node runs, None where none are found.

    Images are square and dims of one name equal, if these may be. Bodies may not run at all, so that at last only nodes
    of the main graph are looked at.
    """
    shared = [place for place in collect_preconditions(shapes) if not place.precondition.is_guess]
    every = [place.precondition for place in shared]
    main = [place.precondition for place in shared if place.scope is shapes.model.graph]
    space = [symbol(variable.name) for variable in legal.variables if variable.role == "space"]
    square = [Relation.equal(space[0], size) for size in space[1:]]
    spanning = [Relation.equal(each, legal.past + legal.tokens) for each in legal.totals if legal.past and legal.tokens]
    read, claimed = declared_inputs(shapes.model), claimed_inputs(shapes.model)
    places = [group[0] for parts in read.groups.values() for group in parts]
    named = [
        Relation.equal(read.at(place), claimed.at(place)) for place in places if read.at(place) != claimed.at(place)
    ]
    usual: list[Constraint] = [*square, *spanning, *every]
    attempts: list[list[Constraint]] = [[*named, *usual], usual, [*every], [*main]]
    for index, constraints in enumerate(attempts):
        if constraints in attempts[:index]:
            continue
        if nearest_sizes := next(search_nearest_sizes(legal.variables, [*legal.relations, *constraints], wish), None):
            return nearest_sizes
    return None


def sizes_by_input(shapes: Shapes) -> dict[str, int]:
    """Return sizes of symbols whose input tells more than a role: samples of audio, nodes and edges of a graph.

    A symbol that is called a batch has none of these.
    """
    sizes: dict[str, int] = {}
    inputs, known = shapes.model.roles.inputs, input_dims(shapes.model)
    for value, role in inputs.items():
        dims = known.get(value.name) or ()
        if role == "image" and len(dims) == 4 and dims[3].constant in (1, 3) and dims[1].constant is None:
            sizes |= dict.fromkeys(_symbols_of(dims[1:3]), PIXELS)  # channels last
        declared, is_audio = declared_type(value), role == "audio" or bool(AUDIO & set(split_name(value.name)))
        is_mono = len(dims) == 2 or (len(dims) == 3 and dims[1].constant == 1)
        if is_mono and is_audio and declared is not None and declared.is_float:  # samples, which features are not
            sizes |= dict.fromkeys(_symbols_of(dims[-1:]), SAMPLES)
    for value in inputs if not shapes.model.roles.pasts else ():  # rows of a cache are sequences of a batch
        rows = {name for name in _symbols_of(indexed_dims(value, shapes)) if "batch" not in name}
        if rows:
            sizes |= dict.fromkeys(_symbols_of(known.get(value.name) or ()), EDGES) | dict.fromkeys(rows, NODES)
    return sizes


def _symbols_of(dims: Iterable[Expr]) -> list[str]:
    return [dim.name for dim in dims if dim.name is not None]


def indexed_dims(value: Value, shapes: Shapes) -> Iterator[Expr]:
    """Yield the dims along which the elements of an input index computed tensors: they are below each."""
    # through what moves or chooses elements, as of indices that may count from the end
    for node, index in find_readers(
        value, lambda node, at: at in copied_inputs(node) or (node.is_op("Cast") and not at)
    ):
        table = node.input(0) if index == 1 and node.operator in GATHERING | SCATTERING else None
        dims = shapes.dims(table) if table is not None and not table.is_constant else None
        is_nd, size = node.op_type.endswith("ND"), (shapes.dims(node.input(1)) or (None,))[-1]
        axis = node.axis(len(dims or ()), name="batch_dims" if is_nd else "axis")
        is_single = not is_nd or (size is not None and size.constant == 1)  # one number is an index
        if dims is not None and axis is not None and is_single:
            yield dims[axis]
