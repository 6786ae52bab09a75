"""Give the KV cache a fixed number of slots; the model returns the new keys and values alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx
import onnx.numpy_helper
from onnx import helper

from graphkit.graph.names import count_things, free_name, names_in
from graphkit.graph.operator_traits import RESHAPING, operator_set
from graphkit.graph.traversal import walk_breadth_first
from graphkit.graph.view import Node, Value
from graphkit.model import Model
from graphkit.passes.npu.host_inputs import freezable_symbols
from graphkit.passes.shapes.freeze_dims import FreezeDims
from graphkit.rewrite import Declined, Matched, MatchFailure, Pass, copy_proto
from graphkit.rewrite.host_values import find_dependences
from graphkit.rewrite.new_interface import NewInput, with_outputs
from graphkit.shapes import Expr, Shapes, infer

__all__ = ["Growth", "StaticKvCache", "find_growths"]

MOVES = RESHAPING | operator_set("Cast Gather Identity Slice Split Transpose")
"""Lead from a cache to the part that grows: a layer taken out of a stack, or the dtype that the attention computes in.

Two Casts, there and back, leave a slot what the first of them made it, so that a slot that came back once stays.
"""


@dataclass(frozen=True, slots=True)
class Growth:
    """Where a cache grows.

    Attributes:
        past, present: The input and the output that hold the cache.
        axis: Along which it grows.
        new: The new tokens, None where moves lie between the cache and its Concat: then it is the end of the present.
        given: A free name for the output that gives it.
    """

    past: Value
    present: Value
    axis: int
    new: Value | None
    given: str

    @property
    def joined(self) -> Value | None:
        """The output of the Concat, None where moves lie between the cache and it."""
        nodes = [node for node, _ in self.past.consumers if node.is_op("Concat")]
        return nodes[0].outputs[0] if self.new is not None else None


def find_growths(model: Model, shapes: Shapes, declined: list[Declined]) -> tuple[Growth, ...]:
    """Return where the self-attention caches of a model grow; obstacles are declined with their reasons."""
    caches, taken = [], names_in(model.scopes)
    for entry in model.roles.cache:
        past, present, axis = entry.past, entry.present, entry.axis
        if past is None or present is None or model.roles.is_cross(entry):
            continue
        if axis is None:
            declined.append(Declined(past.name, "the axis along which it grows is unknown"))
            continue
        new_name = free_name(f"{present.name}_new", taken)
        readers = [node for node, _ in past.consumers if not node.is_op("Shape")]
        if not any(node.is_op("Concat") for node in readers):
            try:
                _Moved(past, present, axis, shapes).check()
                caches.append(Growth(past, present, axis, None, new_name))
            except MatchFailure as failure:
                declined.append(Declined(past.name, failure.reason))
            continue
        concat = readers[0] if len(readers) == 1 else None
        if concat is None or len(concat.inputs) != 2 or concat.inputs[0] != past:
            declined.append(Declined(past.name, "it is not read by one Concat with what is new"))
            continue
        rank = len(shapes[past].dims or ())
        new = concat.inputs[1]
        if rank == 0 or (concat.attr("axis", 0) or 0) % rank != axis or new is None:
            declined.append(Declined(concat.path, "it does not join past and new along the axis that grows"))
            continue
        caches.append(Growth(past, present, axis, new, new_name))
    return tuple(caches)


class _Moved:
    """A cache that is moved before new tokens join it: transposed, cast, or split into layers and stacked again."""

    def __init__(self, past: Value, present: Value, axis: int, shapes: Shapes) -> None:
        self.past, self.present, self.axis, self.shapes = past, present, axis, shapes
        dims = shapes[past].dims
        self.length = dims[axis] if dims is not None else None

    def check(self) -> None:
        """Check that the new part of the present is all that is new.

        Raises:
            MatchFailure: It is not.
        """
        before, after = self.shapes[self.past].dims, self.shapes[self.present].dims
        if self.length is None or not self.length.symbols or before is None or after is None:
            raise MatchFailure("its dims are not known")
        if len(before) != len(after) or self._others(before) != self._others(after):
            raise MatchFailure("what it becomes has another shape")
        if self.shapes[self.past].dtype != self.shapes[self.present].dtype:
            raise MatchFailure("what it becomes has another dtype")
        joined = set()
        for node, value in self._cache_readers():
            if not self._joins_slots(node, value):
                raise MatchFailure(f"'{node.label}' ({node.operator}) reads it before what is new joins it")
            joined.add(node)
        if not joined:
            raise MatchFailure("nothing new joins it")
        foreign = next((value for value in self._sources(joined) if value is not None), None)
        if foreign is not None:
            raise MatchFailure(f"its present is also made of '{foreign.name}'")

    def _others(self, dims: Sequence[Expr]) -> tuple[Expr, ...]:
        """Return the dims other than that which grows."""
        return (*dims[: self.axis], *dims[self.axis + 1 :])

    def _cache_readers(self) -> Iterator[tuple[Node, Value]]:
        """Yield the readers of the cache, or of parts of it, other than moves."""

        def moved(value: Value) -> Iterator[Value | None]:
            return (
                out for node, index in value.consumers if _moves_elements(node, index, value) for out in node.outputs
            )

        for value in walk_breadth_first([self.past], moved):
            for node, index in value.consumers:
                if not _moves_elements(node, index, value) and not node.is_op("Shape"):
                    yield node, value

    def _joins_slots(self, node: Node, value: Value) -> bool:
        """Whether a node appends to the slots of a part of the cache."""
        dims = self.shapes[value].dims
        if not node.is_op("Concat") or len(node.inputs) != 2 or node.inputs[0] is not value or not dims:
            return False
        return dims[(node.attr("axis", 0) or 0) % len(dims)] == self.length

    def _sources(self, joined: set[Node]) -> Iterator[Value]:
        """Yield the sources of the present, other than the results of these nodes, through moves and stacking."""

        def before(value: Value) -> Sequence[Value | None]:
            node = value.producer
            if node is None or node in joined:
                return ()
            if node.is_op("Concat"):
                return node.inputs
            return node.inputs[:1] if node.operator in MOVES else ()

        for value in walk_breadth_first([self.present], before):
            node = value.producer
            if node is None or (node not in joined and node.operator not in MOVES and not node.is_op("Concat")):
                yield value


def _moves_elements(node: Node, index: int, value: Value) -> bool:
    """Whether a node only moves the elements of the value that it reads at an index."""
    return node.operator in MOVES and index == 0 and node.scope is value.scope


@dataclass(frozen=True)
class StaticKvCache(Pass):
    """Give the KV cache a fixed number of slots, of which a mask says which are in use.

    The past inputs get the fixed length; attention reads all slots and, last, the new token. The model returns the new
    keys and values alone, which the host writes into the next slot.

    Legality: each past is read by one Concat with what is new, which gives the present. It may be moved before and
    after: transposed, or taken out of a stack of all layers and stacked again; the new keys and values are then the end
    of the present. Nothing but shapes depends on the length of the past (`extract-host-values` sees to that).

    Before:

        agraph (float[1, 2, past, 4] past_key_0, float[1, 2, 1, 4] k) => (float[1, 2, all, 4] present_key_0,
            float[1, 2, all, 4] y) {
            present_key_0 = Concat <axis = 2> (past_key_0, k)
            y = Neg (present_key_0)
        }

    After `static-kv-cache{max_cache_len=8}`:

        agraph (float[1, 2, 8, 4] past_key_0, float[1, 2, 1, 4] k) => (float[1, 2, 1, 4] present_key_0_new,
            float[1, 2, 9, 4] y) {
            present_key_0 = Concat <axis = 2> (past_key_0, k)
            y = Neg (present_key_0)
            present_key_0_new = Identity (k)
        }

    Attributes:
        max_cache_len: How many slots.
    """

    changes_interface: ClassVar[bool] = True

    max_cache_len: int

    def run(self, model: Model) -> Matched[Growth]:
        shapes = infer(model)
        declined: list[Declined] = []
        caches = find_growths(model, shapes, declined)
        if declined or not caches:
            return Matched(model, declined=tuple(declined))
        symbols = _past_lengths(caches, shapes)
        frozen = freezable_symbols(model, shapes)
        for value, known in find_dependences(model, shapes).items():
            if not known.data and known.symbols & symbols and not known.symbols <= frozen and _is_float(shapes, value):
                reason = "it depends on the length of the past, which must not become a constant"
                return Matched(model, declined=(Declined(value.name, f"{reason} - run extract-host-values first"),))
        news = {growth.present: growth for growth in caches}
        outputs = []
        for value in model.graph.outputs:
            growth = news.get(value)
            source = value if growth is None or growth.new is None else growth.new
            dims = shapes[source].dims
            if dims is None:
                return Matched(model, declined=(Declined(value.name, shapes.reason(source)),))
            source_name = source.name
            if growth is not None and growth.new is None:
                source_name = growth.given
                dims = (
                    *dims[: growth.axis],
                    dims[growth.axis] - _cache_length(growth, shapes),
                    *dims[growth.axis + 1 :],
                )
            name = growth.given if growth is not None else value.name
            outputs.append((source_name, NewInput(name, shapes[source].dtype, dims)))
        numbers = tuple((symbol, self.max_cache_len) for symbol in sorted(symbols))
        cut = _with_ends(model, [growth for growth in caches if growth.new is None], self.max_cache_len)
        frozen_model = FreezeDims(numbers).run(with_outputs(cut, outputs)).model
        change = count_things(len(caches), f"cache(s) fixed at {self.max_cache_len:,} slots")
        return Matched(frozen_model, (change,), matches=caches)


def _past_lengths(caches: tuple[Growth, ...], shapes: Shapes) -> frozenset[str]:
    """Return the symbols of the length of the past."""
    return frozenset().union(*(_cache_length(growth, shapes).symbols for growth in caches))


def _cache_length(growth: Growth, shapes: Shapes) -> Expr:
    dims = shapes[growth.past].dims
    assert dims is not None
    return dims[growth.axis]


def _with_ends(model: Model, moved: Sequence[Growth], slots: int) -> Model:
    """Return a model that also gives the part of a present behind its slots."""
    if not moved:
        return model
    proto, taken = copy_proto(model), names_in(model.scopes)
    for growth in moved:
        bounds = {"from": slots, "to": np.iinfo(np.int64).max, "along": growth.axis}
        names = [free_name(f"{growth.given}_{part}", taken) for part in bounds]
        for name, number in zip(names, bounds.values(), strict=True):
            proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([number]), name))
        proto.graph.node.append(helper.make_node("Slice", [growth.present.name, *names], [growth.given]))
    return model.with_proto(proto)


def _is_float(shapes: Shapes, value: Value) -> bool:
    return shapes[value].dtype in (1, 10, 11, 16)
