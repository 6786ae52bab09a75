"""Stack the caches of several layers into one input, and their new keys and values into one output."""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx.numpy_helper
from onnx import GraphProto, helper

from graphkit.errors import UsageError
from graphkit.graph.names import names_in
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.rewrite.base import Matched, Pass, copy_proto
from graphkit.rewrite.pass_options import Renames
from graphkit.shapes import Shapes, infer

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
        inputs = _grouped(self.inputs, model.graph.inputs, shapes, model.label)
        outputs = _grouped(self.outputs, model.graph.outputs, shapes, model.label)
        if not names:
            return Matched(model)
        before: list[onnx.NodeProto] = []
        for name in names:
            before += _split(proto.graph, name, inputs[name]) if name in inputs else []
            if name in outputs:
                _join(proto.graph, name, outputs[name])
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


def _grouped(pairs: Renames, values: Sequence[Value], shapes: Shapes, label: str) -> Mapping[str, _Stack]:
    """Return the stacks by name.

    Raises:
        UsageError: A member does not exist, or is not like the others.
    """
    there, groups = {value.name: value for value in values if value.tensor is None}, dict[str, list[str]]()
    for member, name in pairs:
        if member not in there:
            raise UsageError(f"{label}: stack-caches: there is no '{member}' to stack - name inputs and outputs")
        groups.setdefault(name, []).append(member)
    stacks = {}
    for name, members in groups.items():
        kinds = {(shapes[there[member]].sizes(), shapes[there[member]].dtype) for member in members}
        ((dims, dtype), *others) = kinds
        if others or dims is None or len(dims) != 4:
            raise UsageError(f"{label}: stack-caches: '{name}' has members that are not alike, or not of four numbers")
        stacks[name] = _Stack(tuple(members), dims, dtype)
    return stacks


def _split(graph: GraphProto, name: str, stack: _Stack) -> list[onnx.NodeProto]:
    """Return the nodes that give each layer its cache, under the name that its input had."""
    batch, heads, slots, size = stack.dims
    split = _integers(graph, f"{name}_split", [batch, slots, heads, size])
    axis = _integers(graph, f"{name}_axis", [0])
    nodes = []
    for layer, member in enumerate(stack.names):
        begin, end = (_integers(graph, f"{name}_at_{at}_of_{layer}", [at]) for at in (layer, layer + 1))
        part, heads_apart = f"{name}_{layer}", f"{name}_{layer}_heads"
        nodes += [
            helper.make_node("Slice", [name, begin, end, axis], [part], name=part),
            helper.make_node("Reshape", [part, split], [heads_apart], name=heads_apart),
            helper.make_node("Transpose", [heads_apart], [member], name=f"{heads_apart}_first", perm=[0, 2, 1, 3]),
        ]
    _replace(graph.input, stack.names, stack.info(name))
    return nodes


def _join(graph: GraphProto, name: str, stack: _Stack) -> None:
    """Add the nodes that stack the outputs of the layers."""
    batch, heads, slots, size = stack.dims
    dims = _integers(graph, f"{name}_join", [1, batch, slots, heads * size])
    out, parts = f"{name}_new", []
    for layer, member in enumerate(stack.names):
        turned, part = f"{out}_{layer}_heads_last", f"{out}_{layer}"
        graph.node.append(helper.make_node("Transpose", [member], [turned], name=turned, perm=[0, 2, 1, 3]))
        graph.node.append(helper.make_node("Reshape", [turned, dims], [part], name=part))
        parts.append(part)
    graph.node.append(helper.make_node("Concat", parts, [out], name=out, axis=0))
    _replace(graph.output, stack.names, stack.info(out))


def _replace(infos: MutableSequence[Any], names: Sequence[str], new: onnx.ValueInfoProto) -> None:
    """Put a declaration in the place of the first of some."""
    place = min(at for at, info in enumerate(infos) if info.name in names)
    kept = [onnx.ValueInfoProto.FromString(info.SerializeToString()) for info in infos if info.name not in names]
    kept.insert(place, new)
    del infos[:]
    infos.extend(kept)


def _integers(graph: GraphProto, name: str, numbers: Sequence[int]) -> str:
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(numbers, np.int64), name))
    return name
