"""Give the KV cache slots, and other inputs and outputs: stacked layers, fewer axes, cross-attention apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
from msgspec import Struct
from onnx import GraphProto, TensorProto, helper

from graphkit.errors import UsageError, count_things
from graphkit.graph.cache_entries import CacheEntry
from graphkit.graph.names import free_name, names_in
from graphkit.graph.new_nodes import make_concat, make_reshape, make_slice
from graphkit.graph.operator_traits import PICKING, REARRANGING, joined_parts
from graphkit.graph.view import Node, Value, walk_breadth_first
from graphkit.model import Model
from graphkit.passes.npu.host_inputs import freezable_symbols
from graphkit.passes.npu.reduce_rank import ReduceInterfaceRank, interface_axes
from graphkit.passes.shapes.declare_shapes import FreezeDims
from graphkit.rewrite import Declined, Matched, MatchFailure, Pass, copy_proto, replace_members
from graphkit.rewrite.base import Renames
from graphkit.rewrite.host_values import find_dependences
from graphkit.rewrite.new_interface import NewInput, with_outputs
from graphkit.shapes import Expr, Shapes, infer
from graphkit.shapes.graph_inputs import SymbolSizes

FLOAT_TYPES = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
MOVES = REARRANGING | PICKING | {"Cast"}
"""Lead from a cache to the part that grows: a layer taken out of a stack, or the dtype that the attention computes in.

Two Casts, there and back, leave a slot what the first of them made it, so that a slot that came back once stays.
"""


class Growth(Struct, frozen=True):
    """Where a cache grows."""

    past: Value  # the input and the output that hold the cache
    present: Value
    axis: int  # along which it grows
    new: Value | None  # the new tokens; None where moves lie between cache and Concat: then the end of the present
    given: str  # a free name for the output that gives it

    @property
    def concat_out(self) -> Value | None:
        """The output of the Concat, None where moves lie between the cache and it."""
        nodes = [node for node, _ in self.past.consumers if joined_parts(node)]
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
        readers = [node for node, _ in past.consumers if not node.is_op("Shape")]
        new: Value | None = None
        if not any(map(joined_parts, readers)):
            try:
                _check_moved(past, present, axis, shapes)
            except MatchFailure as failure:
                declined.append(Declined(past.name, failure.reason))
                continue
        elif len(readers) > 1 or len(readers[0].inputs) != 2 or readers[0].inputs[0] is not past:
            declined.append(Declined(past.name, "it is not read by one Concat with what is new"))
            continue
        else:
            new = readers[0].operand(1)
            if readers[0].axis(shapes[past].rank) != axis:
                declined.append(Declined(readers[0].path, "it does not join past and new along the axis that grows"))
                continue
        caches.append(Growth(past, present, axis, new, free_name(f"{present.name}_new", taken)))
    return tuple(caches)


def _check_moved(past: Value, present: Value, axis: int, shapes: Shapes) -> None:
    """Check that the new part of a present is all that is new, though its past is moved before new tokens join it.

    It may be transposed, cast, or split into layers and stacked again.
    """

    def is_move(node: Node, index: int, value: Value) -> bool:
        return node.operator in MOVES and index == 0 and node.scope is value.scope

    def moved_values(value: Value) -> Iterator[Value | None]:
        return (out for node, index in value.consumers if is_move(node, index, value) for out in node.outputs)

    def before(value: Value) -> Sequence[Value | None]:
        if (node := value.producer) is None or node in joined:
            return ()
        return joined_parts(node) or (node.inputs[:1] if node.operator in MOVES else ())

    dims, after = shapes[past].dims, shapes[present].dims
    if dims is None or after is None or not dims[axis].symbols:
        raise MatchFailure("its dims are not known")
    if len(dims) != len(after) or any(dims[at] != after[at] for at in range(len(dims)) if at != axis):
        raise MatchFailure("what it becomes has another shape")
    if shapes[past].dtype != shapes[present].dtype:
        raise MatchFailure("what it becomes has another dtype")
    joined = set[Node]()
    for value in walk_breadth_first([past], moved_values):  # the cache, and parts of it
        for node, index in value.consumers:
            if is_move(node, index, value) or node.is_op("Shape"):
                continue
            part = shapes[value].dims
            is_join = len(parts := joined_parts(node)) == 2 and parts[0] is value and part
            if not is_join or not part or part[(node.attr("axis", 0) or 0) % len(part)] != dims[axis]:
                raise MatchFailure(f"'{node.label}' ({node.operator}) reads it before what is new joins it")
            joined.add(node)
    if not joined:
        raise MatchFailure("nothing new joins it")
    for value in walk_breadth_first([present], before):
        maker = value.producer
        if maker is None or (maker not in joined and maker.operator not in MOVES and not joined_parts(maker)):
            raise MatchFailure(f"its present is also made of '{value.name}'")


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

    changes_interface = True

    max_cache_len: int

    def run(self, model: Model) -> Matched[Growth]:
        shapes, declined = infer(model), list[Declined]()
        caches = find_growths(model, shapes, declined)
        if declined or not caches:
            return Matched(model, declined=tuple(declined))
        symbols = frozenset().union(*(_cache_length(growth, shapes).symbols for growth in caches))
        frozen = freezable_symbols(model, shapes)
        for value, known in find_dependences(model, shapes).items():
            is_of_past = not known.data and known.symbols & symbols and not known.symbols <= frozen
            if is_of_past and shapes[value].dtype in FLOAT_TYPES:
                reason = "it depends on the length of the past, which must not become a constant"
                return Matched(model, declined=(Declined(value.name, f"{reason} - run extract-host-values first"),))
        news = {growth.present: growth for growth in caches}
        outputs = []
        for value in model.graph.outputs:
            growth = news.get(value)
            source = value if growth is None or growth.new is None else growth.new
            dims, name = shapes[source].dims, growth.given if growth is not None else value.name
            if dims is None:
                return Matched(model, declined=(Declined(value.name, shapes.reason(source)),))
            source_name = source.name
            if growth is not None and growth.new is None:
                source_name, at = growth.given, growth.axis
                dims = (*dims[:at], dims[at] - _cache_length(growth, shapes), *dims[at + 1 :])
            outputs.append((source_name, NewInput(name, shapes[source].dtype, dims)))
        proto, taken = copy_proto(model), names_in(model.scopes)
        for growth in (each for each in caches if each.new is None):  # what is new is behind the slots of the present
            bounds = {"from": self.max_cache_len, "to": np.iinfo(np.int64).max, "along": growth.axis}
            named = ((free_name(f"{growth.given}_{part}", taken), at) for part, at in bounds.items())
            names = [_add_integers(proto.graph, name, [at]) for name, at in named]
            proto.graph.node.append(make_slice(growth.present.name, *names, out=growth.given).to_proto())
        freeze = FreezeDims(tuple((symbol, self.max_cache_len) for symbol in sorted(symbols)))
        change = count_things(len(caches), f"cache(s) fixed at {self.max_cache_len:,} slots")
        return Matched(freeze.run(with_outputs(model.with_proto(proto), outputs)).model, (change,), matches=caches)


def _cache_length(growth: Growth, shapes: Shapes) -> Expr:
    return (shapes[growth.past].dims or ())[growth.axis]


class StackedPort(Struct, frozen=True):
    """An input or output that stands for those of several layers."""

    stack: str  # the name of its stack
    name: str
    shape: tuple[int, ...]
    is_output: bool


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

    changes_interface = True

    inputs: Renames = ()
    outputs: Renames = ()

    def run(self, model: Model) -> Matched[StackedPort]:
        shapes, proto = infer(model), copy_proto(model)
        names = tuple(dict.fromkeys(name for _, name in (*self.inputs, *self.outputs)))
        for name in names:
            if clash := min((taken for taken in names_in(model.scopes) if taken.startswith(name)), default=""):
                problem = f"'{clash}' begins as '{name}' does - name the stack anew"
                raise UsageError(f"{model.label}: stack-caches: {problem}")
        inputs = _group_stacks(self.inputs, model.graph.inputs, shapes, model.label)
        outputs = _group_stacks(self.outputs, model.graph.outputs, shapes, model.label)
        if not names:
            return Matched(model)
        before: list[onnx.NodeProto] = []
        for name in names:
            before += _split_stack(proto.graph, name, inputs[name]) if name in inputs else []
            if name in outputs:
                _join_stack(proto.graph, name, outputs[name])
        replace_members(proto.graph.node, [*before, *proto.graph.node])
        text = "the caches of all layers are stacked, [layers, batch, slots, heads * head_dim]"
        matches = [StackedPort(name, name, stack.shape, False) for name, stack in inputs.items()]
        matches += [StackedPort(name, f"{name}_new", stack.shape, True) for name, stack in outputs.items()]
        return Matched(model.with_proto(proto), (text,), matches=tuple(matches))


class _Stack(Struct, frozen=True):
    """Inputs or outputs that become one."""

    names: tuple[str, ...]  # by layer
    dims: tuple[int, ...]  # of each
    dtype: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The dims of the one."""
        batch, heads, slots, size = self.dims
        return len(self.names), batch, slots, heads * size


def _group_stacks(pairs: Renames, values: Sequence[Value], shapes: Shapes, label: str) -> Mapping[str, _Stack]:
    """Return the stacks by name, or raise a UsageError where a member does not exist, or is not like the others."""
    ports, groups = {value.name: value for value in values if value.tensor is None}, dict[str, list[str]]()
    for member, name in pairs:
        if member not in ports:
            raise UsageError(f"{label}: stack-caches: there is no '{member}' to stack - name inputs and outputs")
        groups.setdefault(name, []).append(member)
    stacks = {}
    for name, members in groups.items():
        ((dims, dtype), *others) = {(shapes[ports[member]].sizes(), shapes[ports[member]].dtype) for member in members}
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
            make_slice(name, begin, end, axis, out=part, name=part).to_proto(),
            make_reshape(part, split, heads_apart, name=heads_apart).to_proto(),
            helper.make_node("Transpose", [heads_apart], [member], name=f"{heads_apart}_first", perm=[0, 2, 1, 3]),
        ]
    _replace_declaration(graph.input, stack, name)
    return nodes


def _join_stack(graph: GraphProto, name: str, stack: _Stack) -> None:
    batch, heads, slots, size = stack.dims
    dims = _add_integers(graph, f"{name}_join", [1, batch, slots, heads * size])
    out, parts = f"{name}_new", []
    for layer, member in enumerate(stack.names):
        turned, part = f"{out}_{layer}_heads_last", f"{out}_{layer}"
        graph.node.append(helper.make_node("Transpose", [member], [turned], name=turned, perm=[0, 2, 1, 3]))
        graph.node.append(make_reshape(turned, dims, part, name=part).to_proto())
        parts.append(part)
    graph.node.append(make_concat(parts, 0, out, name=out).to_proto())
    _replace_declaration(graph.output, stack, out)


def _replace_declaration(infos: MutableSequence[Any], stack: _Stack, name: str) -> None:
    """Put the declaration of a stack in the place of the first of its members."""
    place = min(at for at, info in enumerate(infos) if info.name in stack.names)
    kept = [info for info in infos if info.name not in stack.names]
    kept.insert(place, helper.make_tensor_value_info(name, stack.dtype, stack.shape))
    replace_members(infos, kept)


def _add_integers(graph: GraphProto, name: str, numbers: Sequence[int]) -> str:
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(numbers, np.int64), name))
    return name


class ReducedCache(Struct, frozen=True):
    """A cache with fewer axes."""

    past: str  # the input
    axis: int  # the axis of its slots now
    outputs: Mapping[str, str]  # the new name of each output that is written to it


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

    changes_interface = True

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
                shape = _add_integers(proto.graph, free_name(f"{name}_dims", taken), dims)
                name = renamed[value.name] = free_name(f"{value.name}_{self.rank}d", taken)
                proto.graph.node.append(make_reshape(value.name, shape, name).to_proto())
            outputs.append((name, NewInput(name, shapes[value].dtype, dims)))
        outcome = ReduceInterfaceRank(self.rank).run(with_outputs(model.with_proto(proto), outputs))
        written = {past: {old: new for old, new in renamed.items() if writes[old] == past} for past in low}
        matches = tuple(ReducedCache(past, places[past], outputs) for past, outputs in written.items())
        return Matched(outcome.model, outcome.changes, outcome.declined, matches)


class SplitCrossKv(Pass):
    """Keep the part of a first-step decoder that depends on the encoder's output alone: the cross-attention cache.

    Nothing but the first step computes it; on its own, it runs once for a source, and every step takes it as input.

    Legality: the model gives a cross-attention cache, which depends on no other input.

    Before:

        agraph (int64[N, L] input_ids, float[N, S, 4] encoder_hidden_states)
        => (float[N, L] logits, float[N, S, 4] present_0_encoder_key)
        <float[4, 4] w = {1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 3, 0, 0, 0, 0, 4}> {
            present_0_encoder_key = MatMul (encoder_hidden_states, w)
            logits = Cast <to = 1> (input_ids)
        }

    After:

        agraph (float[N, S, 4] encoder_hidden_states) => (float[N, S, 4] present_0_encoder_key)
        <float[4, 4] w = {1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 3, 0, 0, 0, 0, 4}> {
            present_0_encoder_key = MatMul (encoder_hidden_states, w)
        }
    """

    changes_interface = True

    def run(self, model: Model) -> Matched[CacheEntry]:
        shapes, entries, outputs = infer(model), list[CacheEntry](), list[tuple[str, NewInput]]()
        for entry in model.roles.cache:
            if (present := entry.present) is None or not model.roles.is_cross(entry):
                continue
            if (dims := shapes[present].dims) is None:
                raise UsageError(f"the rank of '{present.name}' is not known: {shapes.reason(present)}")
            entries.append(entry)
            outputs.append((present.name, NewInput(present.name, shapes[present].dtype, dims)))
        if not outputs:
            problem = "gives no cross-attention cache: it reads the encoder's states again at each step"
            raise UsageError(f"{model.name} {problem} - export it with one, or bundle it with `graphkit bundle`")
        part = with_outputs(model, outputs)
        encoder = {value.name for value in model.roles.all("encoder state", "encoder mask")}
        if others := [value.name for value in part.graph.inputs if value.name not in encoder]:
            problem = f"the cross-attention cache of {model.name} depends on '{others[0]}'"
            raise UsageError(f"{problem} - bundle it with `graphkit bundle`")
        change = count_things(len(outputs), "output(s) kept, which depend on the encoder alone")
        return Matched(part, (change,), matches=tuple(entries))
