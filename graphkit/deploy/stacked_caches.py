"""Stack the caches of all layers: one state `[layers, batch, slots, heads * head_dim]` for keys, one for values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from graphkit.analysis.blockers import blockers
from graphkit.deploy.contract import Contract, Method, Port, Source, State
from graphkit.deploy.lowered_contract import Lowered
from graphkit.deploy.targets import Target
from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.passes.npu.cache_interface import StackCaches, StackedPort
from graphkit.rewrite.base import Matched

__all__ = ["stack_caches"]


@dataclass(frozen=True)
class _Stack:
    """States that become one.

    Attributes:
        name: Of the one.
        meaning: Its contents.
        members: The states, by layer; each `[batch, heads, slots, head_dim]`.
    """

    name: str
    meaning: str
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
        target: The compiler to lower for.

    Raises:
        UsageError: The caches are of different dims, or not `[batch, heads, slots, head_dim]`.
    """
    names = {name for part in parts for name in part.model.graph.values}
    stacks = tuple(_find_stacks(contract, step, names))
    made = [_stack_part(part, stacks, target) for part in parts]
    states = tuple(stack.state for stack in stacks)
    return made, replace(contract, methods=tuple(part.method for part in made), states=states)


def _find_stacks(contract: Contract, step: Model, taken: Collection[str]) -> Iterator[_Stack]:
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
        while any(name_taken.startswith(name) for name_taken in taken):
            name = f"{name}_"
        yield _Stack(name, f"the {kind} caches of the {attention}-attention, layer by layer", members)


def _stack_part(part: Lowered, stacks: Sequence[_Stack], target: Target) -> Lowered:
    read, written = {port.name for port in part.method.inputs}, {port.writes: port.name for port in part.method.outputs}
    inputs: list[tuple[str, str]] = []
    outputs: list[tuple[str, str]] = []
    for stack in stacks:
        names = [state.name for state in stack.members]
        inputs += [(name, stack.name) for name in names if name in read]
        members = [(written[name], stack.name) for name in names if name in written]
        if members and len(members) < len(names):
            raise UsageError(f"{part.method.file} gives some layers' caches only - lower with --kv-layout per-layer")
        outputs += members
    outcome = StackCaches(tuple(inputs), tuple(outputs)).run(part.model)
    if outcome.model is part.model:
        return part
    became = {
        name: new if name not in read else dict(inputs).get(name, new) for name, new in part.method.became.items()
    }
    return replace(
        part,
        method=replace(_stacked_method(part.method, outcome, stacks), became=became),
        model=outcome.model,
        states=tuple(stack.state for stack in stacks) if part.states else (),
        changes=(*part.changes, *outcome.changes),
        blockers=blockers(outcome.model, target),
    )


def _stacked_method(method: Method, outcome: Matched[StackedPort], stacks: Sequence[_Stack]) -> Method:
    """Return a method with the ports of the model that caches were stacked in."""
    inputs, outputs = ({port.name: port for port in ports} for ports in (method.inputs, method.outputs))
    named = {stack.name: stack for stack in stacks}
    for port in outcome.matches:
        stack, state = named[port.stack], named[port.stack].state
        if port.is_output:
            meaning = f"{'becomes' if state.axis is None else 'goes into the next slot of'} '{stack.name}'"
            outputs[port.name] = Port(port.name, state.dtype, port.shape, meaning, writes=stack.name)
        else:
            source = Source("state", stack.name)
            inputs[port.name] = Port(port.name, state.dtype, state.shape, stack.meaning, source)
    return replace(
        method,
        inputs=tuple(inputs[value.name] for value in outcome.model.graph.inputs),
        outputs=tuple(outputs[value.name] for value in outcome.model.graph.outputs),
    )
