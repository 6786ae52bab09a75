"""Give the KV cache a fixed number of slots; the model returns the new keys and values alone."""

from __future__ import annotations

from dataclasses import dataclass

from graphkit.graph.kv import CacheEntry
from graphkit.graph.view import Node, Value
from graphkit.model import Model
from graphkit.passes.npu.extract_host_values import freezable_symbols
from graphkit.passes.shapes.freeze_dims import FreezeDims
from graphkit.rewrite.base import Declined, Outcome, Pass
from graphkit.rewrite.host_values import dependences
from graphkit.rewrite.interface import NewInput, with_outputs
from graphkit.shapes import Shapes, infer

__all__ = ["Growth", "StaticKvCache", "growths"]


@dataclass(frozen=True, slots=True)
class Growth:
    """Where a cache grows.

    Attributes:
        entry: The past and the present.
        concat: The Concat of the past and what is new.
        new: What is new.
        axis: Along which it grows.
    """

    entry: CacheEntry
    concat: Node
    new: Value
    axis: int


@dataclass(frozen=True)
class StaticKvCache(Pass):
    """Give the KV cache a fixed number of slots, of which a mask says which are in use.

    The past inputs get the fixed length; attention reads all slots and, last, the new token. The model returns the new
    keys and values alone, which the host writes into the next slot.

    Legality: each past is read by one Concat with what is new, which gives the present; nothing but shapes
    depends on the length of the past (`extract-host-values` sees to that).

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

    max_cache_len: int

    def run(self, model: Model) -> Outcome:
        shapes = infer(model)
        declined: list[Declined] = []
        found = growths(model, shapes, declined)
        if declined or not found:
            return Outcome(model, declined=tuple(declined))
        symbols = _lengths(found, shapes)
        frozen = freezable_symbols(model, shapes)
        for value, known in dependences(model, shapes).items():
            if not known.data and known.symbols & symbols and not known.symbols <= frozen and _is_float(shapes, value):
                reason = "it depends on the length of the past, which must not become a constant"
                return Outcome(model, declined=(Declined(value.name, f"{reason} - run extract-host-values first"),))
        news = {growth.entry.present: growth for growth in found}
        outputs = []
        for value in model.graph.outputs:
            growth, source = news.get(value), value
            if growth is not None:
                source = growth.new
            dims = shapes[source].dims
            if dims is None:
                return Outcome(model, declined=(Declined(value.name, shapes.reason(source)),))
            name = f"{value.name}_new" if growth is not None else value.name
            outputs.append((source.name, NewInput(name, shapes[source].dtype, dims)))
        numbers = tuple((symbol, self.max_cache_len) for symbol in sorted(symbols))
        frozen_model = FreezeDims(numbers).run(with_outputs(model, outputs)).model
        return Outcome(frozen_model, (f"{len(found)} caches have {self.max_cache_len:,} slots",))


def growths(model: Model, shapes: Shapes, declined: list[Declined]) -> tuple[Growth, ...]:
    """Return where the self-attention caches of a model grow; what is in the way is declined with its reason."""
    found = []
    for entry in model.roles.cache:
        if entry.past is None or entry.present is None or model.roles.is_cross(entry):
            continue
        axis = entry.axis
        if axis is None:
            declined.append(Declined(entry.past.name, "along which axis it grows is not to be told"))
            continue
        readers = [node for node, _ in entry.past.consumers if not node.is_op("Shape")]
        concat = readers[0] if len(readers) == 1 else None
        if concat is None or not concat.is_op("Concat") or len(concat.inputs) != 2 or concat.inputs[0] != entry.past:
            declined.append(Declined(entry.past.name, "it is not read by one Concat with what is new"))
            continue
        rank = len(shapes[entry.past].dims or ())
        new = concat.inputs[1]
        if rank == 0 or (concat.attr("axis", 0) or 0) % rank != axis or new is None:
            declined.append(Declined(concat.path, "it does not join past and new along the axis that grows"))
            continue
        found.append(Growth(entry, concat, new, axis))
    return tuple(found)


def _lengths(found: tuple[Growth, ...], shapes: Shapes) -> frozenset[str]:
    """Return the symbols of the length of the past."""
    symbols: set[str] = set()
    for growth in found:
        assert growth.entry.past is not None
        dims = shapes[growth.entry.past].dims
        assert dims is not None
        symbols |= dims[growth.axis].symbols
    return frozenset(symbols)


def _is_float(shapes: Shapes, value: Value) -> bool:
    return shapes[value].dtype in (1, 10, 11, 16)
