"""Stack the caches of all layers: one state `[layers, batch, slots, heads * head_dim]` for keys, one for values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnx.numpy_helper
from onnx import GraphProto, helper

from graphkit.analysis.blockers import blockers
from graphkit.contract import Contract, Method, Port, Source, State
from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.rewrite.base import copy_proto
from graphkit.targets import Target
from graphkit.workflows.lowering import Lowered

__all__ = ["stack_caches"]


@dataclass(frozen=True)
class _Stack:
    """States that become one.

    Attributes:
        name: Of the one.
        what: What it holds.
        members: The states, by layer; each `[batch, heads, slots, head_dim]`.
    """

    name: str
    what: str
    members: tuple[State, ...]

    @property
    def state(self) -> State:
        """The one state."""
        batch, heads, slots, size = self.members[0].shape
        shape = (len(self.members), batch, slots, heads * size)
        axis = None if self.members[0].axis is None else 2
        return State(self.name, self.members[0].dtype, shape, axis, sum(state.bytes for state in self.members))


def stack_caches(
    parts: Sequence[Lowered], contract: Contract, step: Model, target: Target
) -> tuple[list[Lowered], Contract]:
    """Return lowered models and their contract with the caches of all layers stacked.

    Inside, each layer takes its slice, and heads become an axis again.

    Args:
        parts: The lowered models.
        contract: Their contract.
        step: The decoder that was lowered, whose inputs say which layer a cache belongs to.
        target: What is to take the models.

    Raises:
        UsageError: The caches are of different dims, or not `[batch, heads, slots, head_dim]`.
    """
    names = {name for part in parts for name in part.model.graph.values}
    stacks = tuple(_stacks(contract, step, names))
    made = [_stacked(part, stacks, target) for part in parts]
    states = tuple(stack.state for stack in stacks)
    return made, replace(contract, methods=tuple(part.method for part in made), states=states)


def _stacks(contract: Contract, step: Model, taken: Collection[str]) -> Iterator[_Stack]:
    entries = {value.name: entry for value, entry in step.roles.pasts.items()}
    groups: dict[tuple[str, str], dict[tuple[int, ...], State]] = {}
    for state in contract.states:
        entry = entries.get(state.name)
        if entry is None or len(state.shape) != 4 or state.axis not in (None, 2):
            raise UsageError(
                f"'{state.name}' is {list(state.shape)}, not one layer's [batch, heads, slots, head_dim] - lower with "
                "--kv-layout per-layer"
            )
        attention = "cross" if step.roles.is_cross(entry) else "self"
        groups.setdefault((attention, entry.slot.kind), {})[entry.slot.index] = state
    for (attention, kind), layers in groups.items():
        members = tuple(layers[index] for index in sorted(layers))
        if len({(state.shape, state.dtype, state.axis) for state in members}) > 1:
            raise UsageError("the layers have caches of different dims - lower with --kv-layout per-layer")
        name = f"past_{attention}_{kind}"
        while any(other.startswith(name) for other in taken):
            name = f"{name}_"
        yield _Stack(name, f"the {kind} caches of the {attention}-attention, layer by layer", members)


def _stacked(part: Lowered, stacks: Sequence[_Stack], target: Target) -> Lowered:
    proto = copy_proto(part.model)
    method, graph = part.method, proto.graph
    before: list[onnx.NodeProto] = []
    for stack in stacks:
        names = [state.name for state in stack.members]
        if any(port.name in names for port in method.inputs):
            before += _read(graph, stack)
            port = Port(stack.name, stack.state.dtype, stack.state.shape, stack.what, Source("state", stack.name))
            method = _in_place(method, "inputs", names, port)
            method = replace(method, became=_renamed(method.became, names, stack.name))
        outputs = {port.writes: port for port in method.outputs if port.writes in names}
        if outputs:
            found = [outputs[name] for name in names if name in outputs]
            if len(found) != len(names):
                raise UsageError(f"{method.file} gives some layers' caches only - lower with --kv-layout per-layer")
            method = _in_place(method, "outputs", [port.name for port in found], _write(graph, stack, found))
    if method is part.method:
        return part
    nodes = [*before, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    _declare(graph, method)
    model = part.model.with_proto(proto)
    changes = (*part.changes, "the caches of all layers are stacked, [layers, batch, slots, heads * head_dim]")
    states = tuple(stack.state for stack in stacks) if part.states else ()
    return replace(part, method=method, model=model, states=states, changes=changes, blockers=blockers(model, target))


def _in_place(method: Method, which: str, names: Sequence[str], port: Port) -> Method:
    """Return a method with one port in the place of the first of some."""
    ports: tuple[Port, ...] = getattr(method, which)
    place = min(at for at, one in enumerate(ports) if one.name in names)
    left = [one for one in ports if one.name not in names]
    left.insert(place, port)
    return replace(method, inputs=tuple(left)) if which == "inputs" else replace(method, outputs=tuple(left))


def _renamed(became: Mapping[str, str], names: Sequence[str], name: str) -> dict[str, str]:
    return {original: name if new in names else new for original, new in became.items()}


def _read(graph: GraphProto, stack: _Stack) -> list[onnx.NodeProto]:
    """Return the nodes that give each layer its cache, under the name that its input had."""
    batch, heads, slots, size = stack.members[0].shape
    split = _integers(graph, f"{stack.name}_split", [batch, slots, heads, size])
    axis = _integers(graph, f"{stack.name}_axis", [0])
    nodes = []
    for layer, state in enumerate(stack.members):
        begin, end = (_integers(graph, f"{stack.name}_at_{at}_of_{layer}", [at]) for at in (layer, layer + 1))
        own, parted = f"{stack.name}_{layer}", f"{stack.name}_{layer}_heads"
        nodes += [
            helper.make_node("Slice", [stack.name, begin, end, axis], [own], name=own),
            helper.make_node("Reshape", [own, split], [parted], name=parted),
            helper.make_node("Transpose", [parted], [state.name], name=f"{parted}_first", perm=[0, 2, 1, 3]),
        ]
    return nodes


def _write(graph: GraphProto, stack: _Stack, ports: Sequence[Port]) -> Port:
    """Add the nodes that stack new tokens, and return their output."""
    batch, heads, slots, size = ports[0].shape
    joined = _integers(graph, f"{stack.name}_join", [1, batch, slots, heads * size])
    name, parts = f"{stack.name}_new", []
    for layer, port in enumerate(ports):
        turned, parted = f"{name}_{layer}_heads_last", f"{name}_{layer}"
        graph.node.append(helper.make_node("Transpose", [port.name], [turned], name=turned, perm=[0, 2, 1, 3]))
        graph.node.append(helper.make_node("Reshape", [turned, joined], [parted], name=parted))
        parts.append(parted)
    graph.node.append(helper.make_node("Concat", parts, [name], name=name, axis=0))
    shape = (len(ports), batch, slots, heads * size)
    meaning = (
        f"goes into the next slot of '{stack.name}'" if stack.state.axis is not None else f"becomes '{stack.name}'"
    )
    return Port(name, ports[0].dtype, shape, meaning, writes=stack.name)


def _integers(graph: GraphProto, name: str, numbers: Sequence[int]) -> str:
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(numbers, np.int64), name))
    return name


def _declare(graph: GraphProto, method: Method) -> None:
    for declared, wanted in ((graph.input, method.inputs), (graph.output, method.outputs)):
        known = {info.name: info for info in declared}
        infos = [known[port.name] if port.name in known else _info(port) for port in wanted]
        del declared[:]
        declared.extend(infos)


def _info(port: Port) -> onnx.ValueInfoProto:
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(port.dtype))
    return helper.make_tensor_value_info(port.name, dtype, port.shape)
