"""Give the KV cache other inputs and outputs: stacked layers, fewer axes, cross-attention apart."""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx.numpy_helper
from onnx import GraphProto, helper

from graphkit.errors import UsageError
from graphkit.graph.cache_entries import CacheEntry
from graphkit.graph.names import count_things, free_name, names_in
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.passes.npu.reduce_rank import ReduceInterfaceRank, interface_axes
from graphkit.rewrite import Declined, Matched, Pass, copy_proto
from graphkit.rewrite.new_interface import NewInput, with_outputs
from graphkit.rewrite.pass_options import Renames
from graphkit.shapes import Shapes, infer
from graphkit.shapes.graph_inputs import SymbolSizes

__all__ = ["StackCaches", "StackedPort"]


@dataclass(frozen=True, slots=True)
class StackedPort:
    """An input or output that stands for those of several layers.

    Attributes:
        stack: The name of its stack.
        name: Its own name.
        shape: Its dims.
        is_output: Whether it is an output.
    """

    stack: str
    name: str
    shape: tuple[int, ...]
    is_output: bool


__all__ = ["ReduceCacheRank", "ReducedCache", "SplitCrossKv", "StackCaches", "StackedPort"]


@dataclass(frozen=True)
class StackCaches(Pass):
    """Stack caches `[batch, heads, slots, head_dim]` of several layers: one `[layers, batch, slots, heads * head_dim]`.

    Inside, each layer takes its slice, and heads become an axis again. The outputs of the layers, for one slot or for
    all of them, become one, named after its stack with `_new`.

    Legality: the dims are numbers, those of one stack alike, and the outputs of a stack are none or one for each layer.

    Before:

        agraph (float[1, 2, 3, 4] key_0, float[1, 2, 3, 4] key_1) => (float[1, 2, 3, 4] a, float[1, 2, 3, 4] b) {
            a = Relu (key_0)
            b = Relu (key_1)
        }

    After `stack-caches{inputs=key_0=keys;key_1=keys,outputs=a=keys;b=keys}`:

        agraph (float[2, 1, 3, 8] keys) => (float[2, 1, 3, 8] keys_new)
        <int64[4] keys_split = {1, 3, 2, 4}, int64[1] keys_axis = {0}, int64[1] keys_at_0_of_0 = {0},
        int64[1] keys_at_1_of_0 = {1}, int64[1] keys_at_1_of_1 = {1}, int64[1] keys_at_2_of_1 = {2},
        int64[4] keys_join = {1, 1, 3, 8}> {
            [keys_0] keys_0 = Slice (keys, keys_at_0_of_0, keys_at_1_of_0, keys_axis)
            [keys_0_heads] keys_0_heads = Reshape (keys_0, keys_split)
            [keys_0_heads_first] key_0 = Transpose <perm = [0, 2, 1, 3]> (keys_0_heads)
            [keys_1] keys_1 = Slice (keys, keys_at_1_of_1, keys_at_2_of_1, keys_axis)
            [keys_1_heads] keys_1_heads = Reshape (keys_1, keys_split)
            [keys_1_heads_first] key_1 = Transpose <perm = [0, 2, 1, 3]> (keys_1_heads)
            a = Relu (key_0)
            b = Relu (key_1)
            [keys_new_0_heads_last] keys_new_0_heads_last = Transpose <perm = [0, 2, 1, 3]> (a)
            [keys_new_0] keys_new_0 = Reshape (keys_new_0_heads_last, keys_join)
            [keys_new_1_heads_last] keys_new_1_heads_last = Transpose <perm = [0, 2, 1, 3]> (b)
            [keys_new_1] keys_new_1 = Reshape (keys_new_1_heads_last, keys_join)
            [keys_new] keys_new = Concat <axis = 0> (keys_new_0, keys_new_1)
        }

    Attributes:
        inputs: The stack of each input, by layer: `past_key_0=keys;past_key_1=keys`.
        outputs: The stack of each output, by layer.
    """

    changes_interface: ClassVar[bool] = True

    inputs: Renames = ()
    outputs: Renames = ()

    def run(self, model: Model) -> Matched[StackedPort]:
        """Return the model with stacked caches.

        Raises:
            UsageError: An input or output does not exist, or those of a stack are not alike.
        """
        shapes, proto = infer(model), copy_proto(model)
        names = tuple(dict.fromkeys(name for _, name in (*self.inputs, *self.outputs)))
        for name in names:
            if clash := min((taken for taken in names_in(model.scopes) if taken.startswith(name)), default=""):
                raise UsageError(
                    f"{model.label}: stack-caches: '{clash}' begins as '{name}' does - name the stack anew"
                )
        inputs = _group_stacks(self.inputs, model.graph.inputs, shapes, model.label)
        outputs = _group_stacks(self.outputs, model.graph.outputs, shapes, model.label)
        if not names:
            return Matched(model)
        before: list[onnx.NodeProto] = []
        for name in names:
            before += _split_stack(proto.graph, name, inputs[name]) if name in inputs else []
            if name in outputs:
                _join_stack(proto.graph, name, outputs[name])
        nodes = [*before, *proto.graph.node]
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)
        text = "the caches of all layers are stacked, [layers, batch, slots, heads * head_dim]"
        matches = [StackedPort(name, name, stack.shape, False) for name, stack in inputs.items()]
        matches += [StackedPort(name, f"{name}_new", stack.shape, True) for name, stack in outputs.items()]
        return Matched(model.with_proto(proto), (text,), matches=tuple(matches))


@dataclass(frozen=True)
class _Stack:
    """Inputs or outputs that become one: their names by layer, the dims of each, and their dtype."""

    names: tuple[str, ...]
    dims: tuple[int, ...]
    dtype: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The dims of the one."""
        batch, heads, slots, size = self.dims
        return len(self.names), batch, slots, heads * size

    def info(self, name: str) -> onnx.ValueInfoProto:
        """Return the declaration of the one."""
        return helper.make_tensor_value_info(name, self.dtype, self.shape)


def _group_stacks(pairs: Renames, values: Sequence[Value], shapes: Shapes, label: str) -> Mapping[str, _Stack]:
    """Return the stacks by name.

    Raises:
        UsageError: A member does not exist, or is not like the others.
    """
    ports, groups = {value.name: value for value in values if value.tensor is None}, dict[str, list[str]]()
    for member, name in pairs:
        if member not in ports:
            raise UsageError(f"{label}: stack-caches: there is no '{member}' to stack - name inputs and outputs")
        groups.setdefault(name, []).append(member)
    stacks = {}
    for name, members in groups.items():
        kinds = {(shapes[ports[member]].sizes(), shapes[ports[member]].dtype) for member in members}
        ((dims, dtype), *others) = kinds
        if others or dims is None or len(dims) != 4:
            raise UsageError(f"{label}: stack-caches: '{name}' has members that are not alike, or not of four numbers")
        stacks[name] = _Stack(tuple(members), dims, dtype)
    return stacks


def _split_stack(graph: GraphProto, name: str, stack: _Stack) -> list[onnx.NodeProto]:
    """Return the nodes that give each layer its cache, under the name that its input had."""
    batch, heads, slots, size = stack.dims
    split = _add_integers(graph, f"{name}_split", [batch, slots, heads, size])
    axis = _add_integers(graph, f"{name}_axis", [0])
    nodes = []
    for layer, member in enumerate(stack.names):
        begin, end = (_add_integers(graph, f"{name}_at_{at}_of_{layer}", [at]) for at in (layer, layer + 1))
        part, heads_apart = f"{name}_{layer}", f"{name}_{layer}_heads"
        nodes += [
            helper.make_node("Slice", [name, begin, end, axis], [part], name=part),
            helper.make_node("Reshape", [part, split], [heads_apart], name=heads_apart),
            helper.make_node("Transpose", [heads_apart], [member], name=f"{heads_apart}_first", perm=[0, 2, 1, 3]),
        ]
    _replace_declaration(graph.input, stack.names, stack.info(name))
    return nodes


def _join_stack(graph: GraphProto, name: str, stack: _Stack) -> None:
    """Add the nodes that stack the outputs of the layers."""
    batch, heads, slots, size = stack.dims
    dims = _add_integers(graph, f"{name}_join", [1, batch, slots, heads * size])
    out, parts = f"{name}_new", []
    for layer, member in enumerate(stack.names):
        turned, part = f"{out}_{layer}_heads_last", f"{out}_{layer}"
        graph.node.append(helper.make_node("Transpose", [member], [turned], name=turned, perm=[0, 2, 1, 3]))
        graph.node.append(helper.make_node("Reshape", [turned, dims], [part], name=part))
        parts.append(part)
    graph.node.append(helper.make_node("Concat", parts, [out], name=out, axis=0))
    _replace_declaration(graph.output, stack.names, stack.info(out))


def _replace_declaration(infos: MutableSequence[Any], names: Sequence[str], new: onnx.ValueInfoProto) -> None:
    """Put a declaration in the place of the first of some."""
    place = min(at for at, info in enumerate(infos) if info.name in names)
    kept = [onnx.ValueInfoProto.FromString(info.SerializeToString()) for info in infos if info.name not in names]
    kept.insert(place, new)
    del infos[:]
    infos.extend(kept)


def _add_integers(graph: GraphProto, name: str, numbers: Sequence[int]) -> str:
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(numbers, np.int64), name))
    return name


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
        if unknown := [name for name in high if name not in {*axes, *writes}]:
            return Matched(model, declined=(Declined(unknown[0], "it is no cache of known slots"),))
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


@dataclass(frozen=True)
class SplitCrossKv(Pass):
    """Keep the part of a first-step decoder that depends on the encoder's output alone: the cross-attention cache.

    Nothing but the first step computes it; on its own, it runs once for a source, and every step takes it as input.

    Legality: the model gives a cross-attention cache, which depends on no other input.

    Before:

        agraph (int64[N, L] input_ids, float[N, S, 4] encoder_hidden_states)
        => (float[N, L, 4] logits, float[N, S, 4] present_0_encoder_key)
        <float[4, 4] w = {1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 3, 0, 0, 0, 0, 4},
        float[2, 4] table = {1, 2, 3, 4, 5, 6, 7, 8}> {
            present_0_encoder_key = MatMul (encoder_hidden_states, w)
            logits = Gather (table, input_ids)
        }

    After:

        agraph (float[N, S, 4] encoder_hidden_states) => (float[N, S, 4] present_0_encoder_key)
        <float[4, 4] w = {1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 3, 0, 0, 0, 0, 4}> {
            present_0_encoder_key = MatMul (encoder_hidden_states, w)
        }
    """

    changes_interface: ClassVar[bool] = True

    def run(self, model: Model) -> Matched[CacheEntry]:
        """Return the part of a first-step decoder that makes the cross-attention cache.

        Raises:
            UsageError: There is no such cache, or it depends on something else.
        """
        shapes, entries, outputs = infer(model), list[CacheEntry](), list[tuple[str, NewInput]]()
        for entry in model.roles.cache:
            if entry.present is None or not model.roles.is_cross(entry):
                continue
            present = entry.present
            dims = shapes[present].dims
            if dims is None:
                raise UsageError(f"the rank of '{present.name}' is not known: {shapes.reason(present)}")
            entries.append(entry)
            outputs.append((present.name, NewInput(present.name, shapes[present].dtype, dims)))
        if not outputs:
            raise UsageError(
                f"{model.name} gives no cross-attention cache: it reads the encoder's states again at each step - "
                "export it with such a cache, or bundle it with `graphkit bundle`"
            )
        part = with_outputs(model, outputs)
        encoder = {value.name for value in model.roles.all("encoder state", "encoder mask")}
        others = [value.name for value in part.graph.inputs if value.name not in encoder]
        if others:
            raise UsageError(f"the cross-attention cache of {model.name} depends on '{others[0]}'")
        change = count_things(len(outputs), "output(s) kept, which depend on the encoder alone")
        return Matched(part, (change,), matches=tuple(entries))
