"""Give stacked caches as few axes as a target takes: the same bytes, declared with other dims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx.numpy_helper
from onnx import helper

from graphkit.graph.names import free_name, names_in
from graphkit.model import Model
from graphkit.passes.npu.reduce_rank import ReduceInterfaceRank, interface_axes
from graphkit.rewrite.base import copy_proto
from graphkit.rewrite.interface import NewInput, with_outputs
from graphkit.shapes import infer

__all__ = ["CacheRank", "reduce_cache_rank"]


@dataclass(frozen=True)
class CacheRank:
    """A model whose caches have fewer axes.

    Attributes:
        model: The model.
        axes: The axis of the slots of each past.
        writes: The past that each output of new keys and values is for.
        changes: What was done, a sentence each.
    """

    model: Model
    axes: Mapping[str, int]
    writes: Mapping[str, str]
    changes: tuple[str, ...] = ()


def reduce_cache_rank(model: Model, axes: Mapping[str, int], writes: Mapping[str, str], rank: int) -> CacheRank:
    """Return a model in which no cache has more axes than `rank`; the same one where the slots have no axis then.

    Args:
        model: A model of fixed dims.
        axes: The axis of the slots of each past.
        writes: The past that each output of new keys and values is for.
        rank: The most axes.
    """
    shapes = infer(model)
    sizes = {value.name: shapes[value].sizes() for value in (*model.graph.inputs, *model.graph.outputs)}
    high = {name for name, dims in sizes.items() if dims is not None and len(dims) > rank}
    same = CacheRank(model, axes, writes)
    if not high or not high <= {*axes, *writes}:
        return same
    low: dict[str, tuple[int, ...]] = {}
    places = dict(axes)
    for name in high & axes.keys():
        dims = sizes[name]
        assert dims is not None
        found = interface_axes(dims, rank)
        if (axes[name],) not in [tuple(axis for axis in group if dims[axis] > 1) for group in found.groups]:
            return same
        places[name], low[name] = found.of(axes[name]), found.dims(dims, len(dims))
    proto, outputs, renamed, taken = copy_proto(model), [], {}, names_in(model.scopes)
    for value in model.graph.outputs:
        name, dims = value.name, sizes[value.name] or ()
        if writes.get(name) in low:
            past = writes[name]
            dims = tuple(1 if axis == places[past] else dim for axis, dim in enumerate(low[past]))
            shape = onnx.numpy_helper.from_array(np.array(dims, np.int64), free_name(f"{name}_dims", taken))
            proto.graph.initializer.append(shape)
            name = renamed[value.name] = free_name(f"{value.name}_{rank}d", taken)
            proto.graph.node.append(helper.make_node("Reshape", [value.name, shape.name], [name]))
        outputs.append((name, NewInput(name, shapes[value].dtype, dims)))
    outcome = ReduceInterfaceRank(rank).run(with_outputs(model.with_proto(proto), outputs))
    return CacheRank(
        outcome.model, places, {renamed.get(name, name): past for name, past in writes.items()}, outcome.changes
    )
