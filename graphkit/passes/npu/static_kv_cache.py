"""Give the KV cache a fixed number of slots; the model returns the new keys and values alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx
import onnx.numpy_helper
from onnx import helper

from graphkit.graph.names import counted, free_name, names_in
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.passes.npu.cache_growth import Growth, growths
from graphkit.passes.npu.extract_host_values import freezable_symbols
from graphkit.passes.shapes.freeze_dims import FreezeDims
from graphkit.rewrite.base import Declined, Matched, Pass, copy_proto
from graphkit.rewrite.host_values import dependences
from graphkit.rewrite.new_interface import NewInput, with_outputs
from graphkit.shapes import Expr, Shapes, infer

__all__ = ["StaticKvCache"]


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
        found = growths(model, shapes, declined)
        if declined or not found:
            return Matched(model, declined=tuple(declined))
        symbols = _lengths(found, shapes)
        frozen = freezable_symbols(model, shapes)
        for value, known in dependences(model, shapes).items():
            if not known.data and known.symbols & symbols and not known.symbols <= frozen and _is_float(shapes, value):
                reason = "it depends on the length of the past, which must not become a constant"
                return Matched(model, declined=(Declined(value.name, f"{reason} - run extract-host-values first"),))
        news = {growth.entry.present: growth for growth in found}
        outputs = []
        for value in model.graph.outputs:
            growth = news.get(value)
            source = value if growth is None or growth.new is None else growth.new
            dims = shapes[source].dims
            if dims is None:
                return Matched(model, declined=(Declined(value.name, shapes.reason(source)),))
            given = source.name
            if growth is not None and growth.new is None:
                given = growth.given
                dims = (*dims[: growth.axis], dims[growth.axis] - _length(growth, shapes), *dims[growth.axis + 1 :])
            name = growth.given if growth is not None else value.name
            outputs.append((given, NewInput(name, shapes[source].dtype, dims)))
        numbers = tuple((symbol, self.max_cache_len) for symbol in sorted(symbols))
        cut = _with_ends(model, [growth for growth in found if growth.new is None], self.max_cache_len)
        frozen_model = FreezeDims(numbers).run(with_outputs(cut, outputs)).model
        change = counted(len(found), f"cache(s) fixed at {self.max_cache_len:,} slots")
        return Matched(frozen_model, (change,), matches=found)


def _lengths(found: tuple[Growth, ...], shapes: Shapes) -> frozenset[str]:
    """Return the symbols of the length of the past."""
    return frozenset().union(*(_length(growth, shapes).symbols for growth in found))


def _length(growth: Growth, shapes: Shapes) -> Expr:
    assert growth.entry.past is not None
    dims = shapes[growth.entry.past].dims
    assert dims is not None
    return dims[growth.axis]


def _with_ends(model: Model, moved: Sequence[Growth], slots: int) -> Model:
    """Return a model that also gives the part of a present behind its slots."""
    if not moved:
        return model
    proto, taken = copy_proto(model), names_in(model.scopes)
    for growth in moved:
        assert growth.entry.present is not None
        bounds = {"from": slots, "to": np.iinfo(np.int64).max, "along": growth.axis}
        names = [free_name(f"{growth.given}_{part}", taken) for part in bounds]
        for name, number in zip(names, bounds.values(), strict=True):
            proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([number]), name))
        proto.graph.node.append(helper.make_node("Slice", [growth.entry.present.name, *names], [growth.given]))
    return model.with_proto(proto)


def _is_float(shapes: Shapes, value: Value) -> bool:
    return shapes[value].dtype in (1, 10, 11, 16)
