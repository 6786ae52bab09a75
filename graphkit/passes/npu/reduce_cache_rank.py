"""Declare caches of more axes than an NPU takes, and the new keys and values written to them, with fewer axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx.numpy_helper
from onnx import helper

from graphkit.graph.names import free_name, names_in
from graphkit.model import Model
from graphkit.passes.npu.reduce_rank import ReduceInterfaceRank, interface_axes
from graphkit.rewrite.base import Declined, Matched, Pass, copy_proto
from graphkit.rewrite.new_interface import NewInput, with_outputs
from graphkit.rewrite.pass_options import Renames
from graphkit.shapes import infer
from graphkit.shapes.graph_inputs import SymbolSizes

__all__ = ["ReduceCacheRank", "ReducedCache"]


@dataclass(frozen=True, slots=True)
class ReducedCache:
    """A cache with fewer axes.

    Attributes:
        past: The input.
        axis: The axis of its slots now.
        outputs: The new name of each output that is written to it.
    """

    past: str
    axis: int
    outputs: Mapping[str, str]


@dataclass(frozen=True)
class ReduceCacheRank(Pass):
    """Declare stacked caches, and the outputs that are written to their slots, with as few axes as an NPU takes.

    Where `reduce-interface-rank` chooses the axes of each input and output by itself, an output of new keys and values
    follows its past here: it has the past's axes with one slot. The bytes and their order stay the same.

    Legality: the dims are numbers, all inputs and outputs of more axes are such caches, and the slots keep an axis of
    their own.

    Before:

        agraph (float[3, 2, 1, 4, 8] past) => (float[1, 192] y, float[3, 2, 1, 1, 8] new) {
            y = Flatten <axis = 0> (past)
            new = ReduceMax <axes = [3]> (past)
        }

    After `reduce-cache-rank{axes=past=3,writes=new=past}`:

        agraph (float[3, 2, 4, 8] past) => (float[1, 192] y, float[3, 2, 1, 8] new_4d)
        <int64[4] new_dims = {3, 2, 1, 8}, int64[5] past_dims = {3, 2, 1, 4, 8}> {
            past_high = Reshape (past, past_dims)
            y = Flatten <axis = 0> (past_high)
            new = ReduceMax <axes = [3]> (past_high)
            new_4d = Reshape (new, new_dims)
        }

    Attributes:
        rank: The most axes.
        axes: The axis of the slots of each past: `past=3`.
        writes: The past that each output of new keys and values is written to: `new=past`.
    """

    changes_interface: ClassVar[bool] = True

    rank: int = 4
    axes: SymbolSizes = ()
    writes: Renames = ()

    def run(self, model: Model) -> Matched[ReducedCache]:
        shapes, axes, writes = infer(model), dict(self.axes), dict(self.writes)
        sizes = {value.name: shapes[value].sizes() for value in (*model.graph.inputs, *model.graph.outputs)}
        high = {name: dims for name, dims in sizes.items() if dims is not None and len(dims) > self.rank}
        if other := [name for name in high if name not in {*axes, *writes}]:
            return Matched(model, declined=(Declined(other[0], "it is no cache of known slots"),))
        places, low = dict(axes), dict[str, tuple[int, ...]]()
        for name in high.keys() & axes.keys():
            dims = high[name]
            reduced = interface_axes(dims, self.rank)
            if (axes[name],) not in [tuple(axis for axis in group if dims[axis] > 1) for group in reduced.groups]:
                reason = f"its slots have no axis of their own with {self.rank} axes"
                return Matched(model, declined=(Declined(name, reason),))
            places[name], low[name] = reduced.of(axes[name]), reduced.dims(dims, len(dims))
        if not high:
            return Matched(model)
        proto, outputs, renamed, taken = copy_proto(model), [], dict[str, str](), names_in(model.scopes)
        for value in model.graph.outputs:
            name, dims = value.name, sizes[value.name] or ()
            if (past := writes.get(name, "")) in low:
                dims = tuple(1 if axis == places[past] else dim for axis, dim in enumerate(low[past]))
                shape = onnx.numpy_helper.from_array(np.array(dims, np.int64), free_name(f"{name}_dims", taken))
                proto.graph.initializer.append(shape)
                name = renamed[value.name] = free_name(f"{value.name}_{self.rank}d", taken)
                proto.graph.node.append(helper.make_node("Reshape", [value.name, shape.name], [name]))
            outputs.append((name, NewInput(name, shapes[value].dtype, dims)))
        outcome = ReduceInterfaceRank(self.rank).run(with_outputs(model.with_proto(proto), outputs))
        matches = (
            ReducedCache(past, places[past], {old: new for old, new in renamed.items() if writes[old] == past})
            for past in low
        )
        return Matched(outcome.model, outcome.changes, outcome.declined, tuple(matches))
