"""The contract of lowered models: the ports of each, their links and tables, stacked caches, the loop of the host."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from msgspec import Struct, field, structs

from graphkit.analysis.blockers import Blockers, blockers
from graphkit.contract import Contract, Generation, Method, Port, Source, State, Table
from graphkit.contract.contract_files import MOST
from graphkit.contract.host_contract import FIXED, When
from graphkit.deploy.deploy_sizes import LowerSizes, Sound
from graphkit.deploy.export_pipeline import Pipeline
from graphkit.dtypes import dtype_name
from graphkit.equivalence.stages import Stage
from graphkit.errors import UsageError
from graphkit.graph.cache_entries import CacheEntry
from graphkit.graph.mask_polarity import POLARITIES
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.passes.npu.cache_interface import StackCaches, StackedPort
from graphkit.rewrite.base import Matched
from graphkit.shapes import Shapes, infer
from graphkit.targets import Target

MASKS = {
    "slots": "0 at the slots in use and, last, at the new token, and the floor elsewhere; added to scores",
    "source": "0 at the valid positions of the source, and the floor at its padding; added to scores",
}
UNBOUNDED = (1 << 31) - 1  # tokens that a model without a cache takes: as many as hosts count


class Lowered(Struct, frozen=True, eq=False):
    """A model at fixed shapes, and the work of its host."""

    method: Method  # its place in the contract
    model: Model
    tables: Mapping[str, np.ndarray]  # rows that the host looks up, by the name of the table
    states: tuple[State, ...]  # the tensors that the host keeps between steps
    changes: tuple[str, ...]  # the changes, a sentence each
    blockers: Blockers  # the nodes that the target still refuses
    tokens: Mapping[str, int] = field(default_factory=dict)  # tokens that the host treats specially, by purpose
    passes: frozenset[str] = frozenset()  # the names of the passes that have run
    sound: Sound | None = None  # the rule for the valid positions of a source that is a sound with a mask
    stages: tuple[Stage, ...] = ()  # what was done to the model, each with the model before and after it

    def with_whole_sound(self) -> Lowered:
        """Return it for sounds that the caller pads, not the host."""
        if self.sound is None:
            return self
        inputs = (
            replace(port, source=Source("user"), meaning=f"'{port.name}' of the original") if port.is_sound else port
            for port in self.method.inputs
        )
        method = replace(self.method, inputs=tuple(inputs))
        return structs.replace(self, method=method, sound=structs.replace(self.sound, is_whole=True))


class Interface(Struct):
    """The facts that lowering collects about inputs and outputs of a model, as it was exported."""

    original: Model
    # who makes each input that is new, and its meaning
    sources: dict[str, tuple[Source, str]] = field(default_factory=dict)
    writes: dict[str, str] = field(default_factory=dict)  # the past that each output of new keys and values is for
    axes: dict[str, int] = field(default_factory=dict)  # the axis of the slots of each past
    became: dict[str, list[str]] = field(default_factory=dict)  # the inputs that took the place of one of the original
    sounds: set[str] = field(default_factory=set)  # the inputs that hold a sound of which a part may be valid

    def becomes(self, original: str, name: str) -> None:
        self.became.setdefault(original, []).append(name)

    def make(self, name: str, source: Source, meaning: str) -> None:
        self.sources[name] = source, meaning

    def make_mask(self, name: str, over: Literal["slots", "source"], window: int = 0) -> None:
        self.make(name, Source("slots_mask" if over == "slots" else "source_mask", window=window), MASKS[over])

    def method(self, name: str, model: Model, when: When) -> Method:
        """Return the place of a lowered model in the contract; refuse a dim without a number."""
        shapes = infer(model)
        inputs = tuple(self._input(value, shapes) for value in model.graph.inputs)
        outputs = tuple(self._output(value, shapes) for value in model.graph.outputs)
        kept = {port.name: [port.name] for port in inputs}
        given = (value.name for value in self.original.graph.inputs if value.tensor is None)
        became = {name: ", ".join(kept.get(name) or self.became.get(name, [FIXED])) for name in given}
        return Method(name, f"{name}.onnx", when, inputs, outputs, became)

    def states(self, method: Method) -> tuple[State, ...]:
        return tuple(
            State(p.name, p.dtype, p.shape, self.axes.get(p.name), math.prod(p.shape) * np.dtype(p.dtype).itemsize)
            for p in method.inputs
            if p.kind == "state"
        )

    def _input(self, value: Value, shapes: Shapes) -> Port:
        shape, dtype = _fixed_dims(value, shapes, self.original.name)
        if value.name in self.sources:
            source, meaning = self.sources[value.name]
        elif (meaning := self._of_cache(value.name)) != "":
            source = Source("state", value.name)
        elif value.name in self.sounds:
            source, meaning = Source("user", by="source"), f"'{value.name}' of the original, then zeros"
        else:
            polarities = self.original.roles.polarities.items()
            found = next((polarity for mask, polarity in polarities if mask.name == value.name), None)
            about = "" if found is None else f": {POLARITIES[found]}"
            source, meaning = Source("user"), f"'{value.name}' of the original{about}"
        return Port(value.name, dtype, shape, meaning, source)

    def _output(self, value: Value, shapes: Shapes) -> Port:
        shape, dtype = _fixed_dims(value, shapes, self.original.name)
        state = self.writes.get(value.name, "")
        how = "goes into the next slot of" if state in self.axes else "becomes"
        meaning = f"{how} '{state}'" if state else f"'{value.name}' of the original"
        return Port(value.name, dtype, shape, meaning, writes=state)

    def _of_cache(self, name: str) -> str:
        roles = self.original.roles
        if any(state.past.name == name for state in roles.states) and name in self.writes.values():
            return "recurrent state, which each step replaces"
        entry = next((entry for value, entry in roles.pasts.items() if value.name == name), None)
        if entry is None:
            return ""
        attention = "cross-attention" if roles.is_cross(entry) else "self-attention"
        layer = ".".join(map(str, entry.slot.index))
        return f"the {entry.slot.kind} cache of the {attention}" + (f" of layer {layer}" if layer else "")


def _fixed_dims(value: Value, shapes: Shapes, file: str) -> tuple[tuple[int, ...], str]:
    dims = shapes[value].dims
    sizes = [dim.constant for dim in dims or ()]
    if dims is None or None in sizes:
        what = f"'{value.name}' has no fixed shape: {shapes.reason(value) or shapes[value]}"
        raise UsageError(f"{file}: {what} - end the model before it, with graphkit extract")
    known = tuple(size for size in sizes if size is not None)
    if math.prod(known) > MOST:
        raise UsageError(f"{file}: '{value.name}' is {list(known)}, more than an array holds - give smaller sizes")
    return known, dtype_name(shapes[value].dtype)


def link_cross_cache(method: Method, encoder: Lowered, caches: Sequence[CacheEntry], step: Model) -> Method:
    """Return the method of the cross-attention cache: it reads the encoder, and writes the state of the step."""
    hidden = encoder.method.outputs[0]
    pasts = {entry.slot: value.name for value, entry in step.roles.pasts.items()}
    slots = {entry.present.name: entry.slot for entry in caches if entry.present is not None}
    source = Source("output", f"{encoder.method.name}/{hidden.name}")
    inputs = (replace(p, source=source) if p.kind == "user" and p.shape == hidden.shape else p for p in method.inputs)
    outputs = []
    for port in method.outputs:
        if not (state := pasts.get(slots[port.name], "")):
            raise UsageError(f"no input of the decoder's later steps takes '{port.name}' of its first step")
        outputs.append(replace(port, meaning=f"becomes '{state}'", writes=state))
    return replace(method, inputs=tuple(inputs), outputs=tuple(outputs))


def collect_tables(parts: Sequence[Lowered]) -> tuple[tuple[Table, ...], dict[str, np.ndarray]]:
    """Return the tables, equal ones in one file."""
    tables: list[Table] = []
    arrays: dict[str, np.ndarray] = {}

    def is_same(array: np.ndarray, former: np.ndarray) -> bool:
        return array.dtype == former.dtype and array.shape == former.shape and array.tobytes() == former.tobytes()

    for part in parts:
        for name, array in part.tables.items():
            file = next((table.file for table in tables if is_same(arrays[table.name], array)), f"{name}.bin")
            meaning = next((port.meaning for port in part.method.inputs if port.of == name), name)
            dtype, rows, shape = str(array.dtype), len(array), tuple(array.shape[1:])
            tables.append(Table(name, file, offset=0, dtype=dtype, rows=rows, shape=shape, meaning=meaning))
            arrays[name] = array
    return tuple(tables), arrays


def build_contract(
    parts: Sequence[Lowered], pipeline: Pipeline, tables: tuple[Table, ...], sizes: LowerSizes, pad: int | None
) -> Contract:
    """Return the contract by which a host runs these models, in the order in which they run.

    `pad` is the token that the user names, None for what the pipeline says.
    """
    is_decoder = any(part.states for part in parts)
    has_cache = any(state.axis is not None for part in parts for state in part.states)
    first = parts[0].method
    source = 0
    if first.when == "once":
        sound = parts[0].sound
        all_states = sound.positions if sound is not None else first.outputs[0].shape[1] if len(parts) > 1 else 0
        source = sizes.source if first.takes_text else all_states
    rows = {table.name: table.rows for table in tables}
    inputs = [port for part in parts for port in part.method.inputs]
    chosen = [rows[port.of] for port in inputs if port.kind == "rows" and port.by == "position"]
    known = {
        "batch": sizes.batch,
        "source": source,
        "capacity": sizes.slots if has_cache else 0,
        "positions": min([sizes.slots + 1 if has_cache else UNBOUNDED, *chosen]) if is_decoder else 0,
        **_cache_sizes(parts, pipeline),
    }
    if (sound := parts[0].sound) is not None:
        known |= {"sound": sound.length, "stride": sound.stride, "offset": sound.offset}
    tokens = dict(pipeline.settings.tokens)
    for part in parts:
        tokens |= part.tokens
    if pad is not None:
        tokens["pad"] = pad
    rules = pipeline.settings.generation if is_decoder else Generation()
    looked_up = [
        f"`{p.name}` of `{part.method.file}`" for part in parts for p in part.method.inputs if p.kind == "rows"
    ]
    positions = f"the host looks up {', '.join(looked_up)}; the models use them" if looked_up else "the models add them"
    return Contract(
        target=sizes.target.name,
        sizes=known,
        tokens=tokens,
        ends=pipeline.settings.ends,
        generation=rules,
        floor=sizes.floor,
        methods=tuple(part.method for part in parts),
        tables=tables,
        states=tuple(state for part in parts for state in part.states),
        loop=tuple(_loop_steps(parts, sizes, known["positions"], has_rules=rules != Generation())),
        positions=f"Positions: {positions}. The host adds nothing to embeddings.",
    )


def _cache_sizes(parts: Sequence[Lowered], pipeline: Pipeline) -> dict[str, int]:
    """Return the sizes of the self-attention, 0 for one that does not exist or differs between layers."""
    step = pipeline.step
    entries = [entry for entry in step.roles.cache if not step.roles.is_cross(entry)] if step is not None else []
    grown = [state for part in parts for state in part.states if state.axis is not None]
    sizes = {tuple(dim for axis, dim in enumerate(s.shape) if axis not in (0, s.axis)) for s in grown}
    per_layer = sizes.pop() if len(sizes) == 1 else ()
    outputs = [port for part in parts if part.method.when == "step" for port in part.method.outputs]
    logits = [port for port in outputs if not port.writes]
    return {
        "layers": len({entry.slot.index for entry in entries}),
        "heads": per_layer[0] if len(per_layer) == 2 else 0,
        "head_dim": per_layer[1] if len(per_layer) == 2 else 0,
        "vocabulary": logits[0].shape[-1] if logits else 0,
    }


def _loop_steps(parts: Sequence[Lowered], sizes: LowerSizes, positions: int, *, has_rules: bool) -> Iterator[str]:
    once = [part.method for part in parts if part.method.when == "once"]
    if (step := next((part.method for part in parts if part.method.when == "step"), None)) is not None:
        yield "Set `position` to 0 and fill the state with zeros."
    is_batch = sizes.batch > 1
    length, its = ("`length` of each sequence", "its") if is_batch else ("`length`", "the")
    if once and once[0].takes_text:
        yield f"Set {length} to the number of tokens of {its} source: 1 to {sizes.source}."
    elif (sound := parts[0].sound) is not None:
        shifted = f"(valid {'+-'[sound.offset < 0]} {abs(sound.offset)})" if sound.offset else "valid"
        per = f"{shifted}`"
        if sound.stride > 1:
            per = f"{shifted} / {sound.stride}`, rounded down and at most {sound.positions}"
        filled = f"Fill {its} sound with zeros to {sound.length} places, of which `valid` are its own."
        if sound.is_whole:
            filled = (
                f"The caller gives {sound.length} places of sound, of which `valid` are its own: padding behind a "
                "shorter one changes what the original gives, whatever its mask says."
            )
        yield f"{filled} Set {length} to `{per}."
    elif any(port.kind == "source_mask" or port.by == "valid_length" for part in parts for port in part.method.inputs):
        yield f"Set `length` to {sizes.source}: no part of the source is padding."
    for method in once:
        written = [port for port in method.outputs if port.writes]
        yield f"Run `{method.file}`" + (f"; its {len(written)} outputs become state." if written else ".")
    if step is not None:
        on_tokens = f"place: run `{step.file}` on one token of each sequence"
        yield f"For each {on_tokens if is_batch else f'token: run `{step.file}` on it'}."
        axes = {state.name: state.axis for part in parts for state in part.states}
        grow = [axes[port.writes] is not None for port in step.outputs if port.writes]
        if not all(grow):
            yield "Each output that becomes a state is that state at the next step: copy all of it."
        if any(grow):
            yield (
                "Write each new key and value into slot `position` of its state, unless `position` is "
                f"{sizes.slots}: there is no such slot. Add 1 to `position`."
            )
        allowed = ", of those that the rules for tokens allow" if has_rules else ""
        full = "" if positions == UNBOUNDED else f", or where `position` is {positions}"
        yield (
            "Begin with the tokens of the prompt, or with token `start`. Once they have run, the largest logit is the "
            f"next token{allowed}. Stop at any end token{full}."
        )
        if is_batch:
            yield "A sequence takes the tokens of its prompt first; what it gives after its end token does not count."


class _Stack(Struct, frozen=True):
    """States of layers, `[batch, heads, slots, head_dim]` each, that become one state."""

    name: str
    meaning: str
    members: tuple[State, ...]

    @property
    def state(self) -> State:
        batch, heads, slots, size = self.members[0].shape
        shape = (len(self.members), batch, slots, heads * size)
        axis = None if self.members[0].axis is None else 2
        return State(self.name, self.members[0].dtype, shape, axis, sum(state.bytes for state in self.members))


def stack_caches(
    parts: Sequence[Lowered], contract: Contract, step: Model, target: Target
) -> tuple[list[Lowered], Contract]:
    """Return lowered models and their contract with the caches of all layers stacked.

    Inside, each layer takes its slice, and heads become an axis again. The step says which layer a cache belongs to.
    Refuse caches of different dims, or that are not `[batch, heads, slots, head_dim]`.
    """
    stacks = tuple(_find_stacks(contract, step, {name for part in parts for name in part.model.graph.values}))
    made = [_stack_part(part, stacks, target) for part in parts]
    states = tuple(stack.state for stack in stacks)
    return made, replace(contract, methods=tuple(part.method for part in made), states=states)


def _find_stacks(contract: Contract, step: Model, taken: Collection[str]) -> Iterator[_Stack]:
    entries = {value.name: entry for value, entry in step.roles.pasts.items()}
    groups: dict[tuple[str, str], dict[tuple[int, ...], State]] = {}
    for state in contract.states:
        entry = entries.get(state.name)
        if entry is None or len(state.shape) != 4 or state.axis not in (None, 2):
            problem = f"'{state.name}' is {list(state.shape)}, not one layer's [batch, heads, slots, head_dim]"
            raise UsageError(f"{problem} - lower with --kv-layout per-layer")
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
    stage = Stage(part.method.name, "stacked caches", part.model, outcome.model, tested="the host slices them by layer")
    became = {name: dict(inputs).get(name, new) for name, new in part.method.became.items()}
    return structs.replace(
        part,
        method=replace(_stacked_method(part.method, outcome, stacks), became=became),
        model=outcome.model,
        states=tuple(stack.state for stack in stacks) if part.states else (),
        changes=(*part.changes, *outcome.changes),
        blockers=blockers(outcome.model, target),
        stages=(*part.stages, stage),
    )


def _stacked_method(method: Method, outcome: Matched[StackedPort], stacks: Sequence[_Stack]) -> Method:
    inputs, outputs = ({port.name: port for port in ports} for ports in (method.inputs, method.outputs))
    named = {stack.name: stack for stack in stacks}
    for port in outcome.matches:
        stack, state = named[port.stack], named[port.stack].state
        if port.is_output:
            meaning = f"{'becomes' if state.axis is None else 'goes into the next slot of'} '{stack.name}'"
            outputs[port.name] = Port(port.name, state.dtype, port.shape, meaning, writes=stack.name)
        else:
            inputs[port.name] = Port(port.name, state.dtype, state.shape, stack.meaning, Source("state", stack.name))
    return replace(
        method,
        inputs=tuple(inputs[value.name] for value in outcome.model.graph.inputs),
        outputs=tuple(outputs[value.name] for value in outcome.model.graph.outputs),
    )
