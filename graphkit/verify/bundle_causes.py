"""Causes of a bundle's differences: inputs of the decoder that it makes otherwise, constants, states."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from graphkit.contract.bundle_contract import BundleContract, BundleMethod, StateTensor
from graphkit.equivalence.originals import Originals
from graphkit.errors import GraphkitError
from graphkit.graph.declared_types import declared_type
from graphkit.graph.view import Value
from graphkit.model import Model, load
from graphkit.runtime.session import IsolatedSession
from graphkit.verify.altered_bundle import AlteredBundle
from graphkit.verify.bundle_prompts import (
    Prompt,
    begin_prompt,
)
from graphkit.verify.bundle_state_checks import start_bundle
from graphkit.verify.cause_search import Cause, Undo, find_sole_cause, is_mended, largest_multiple, with_attributes
from graphkit.verify.comparator import distance_of_spread
from graphkit.verify.first_difference import Export, describe_order, first_node
from graphkit.verify.oracle import Oracle
from graphkit.verify.weight_comparison import WrongPart, mend_models

__all__ = ["Call", "Case", "Models", "find_bundle_causes"]


# A case of a bundle that differs: prompts that fail, and each of their calls on the state of the export.


ENCODER = "encoder/"  # before the names of what a bundle takes from the encoder
CLEAR = 1e-6  # what is more than the last digits
Models = Mapping[str, Model]  # by file
Arrays = Mapping[str, np.ndarray]


@dataclass(eq=False)
class Case:
    """The prompts that fail, and the calls that they make.

    Attributes:
        originals: The models that the bundle was made of.
        folder: The bundle.
        contract: What it does; at first what `bundle.json` says.
        models: What runs in place of its files.
        prompts: The prompts.
        near: How far logits may be.
        more: What is fed besides, in a call.
    """

    originals: Originals
    folder: Path
    contract: BundleContract
    models: Models
    prompts: Sequence[Prompt]
    near: float
    more: Callable[[Call], Arrays] = lambda _: {}
    _sessions: dict[Model, IsolatedSession] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.calls = [_calls_of(self.originals, self.contract, prompt) for prompt in self.prompts]

    def undo(self, models: Models, more: Callable[[Call], Arrays] = lambda _: {}) -> Undo:
        """Return the undoing of a fault: some models replaced, and further inputs for each call."""
        return partial(with_attributes, self, models={**self.models, **models}, more=more)

    def decode_prompts(self) -> Iterator[float]:
        """Decode the prompts, and yield how far the logits are from the export's."""
        return (
            math.inf if logits is None else self._logits_distance(call, logits) for _, call, _, logits in self._decode()
        )

    def _decode(self) -> Iterator[tuple[AlteredBundle, Call, Call | None, np.ndarray | None]]:
        """Yield the bundle after each call, the call and the next one, and the logits; None for those of a failure."""
        bundle = AlteredBundle(self.folder, self.contract, self.models)
        for prompt, calls in zip(self.prompts, self.calls, strict=True):
            for number, (call, after) in enumerate(zip(calls, (*calls[1:], None), strict=False)):
                try:
                    logits = bundle.step(prompt.steps[number - 1]) if number else start_bundle(bundle, prompt)
                except GraphkitError:
                    yield bundle, call, after, None
                    break
                yield bundle, call, after, logits

    def distances(self) -> Iterator[float]:
        """Yield how far each call is from the export's, on the state of the export."""
        return (self._run(call) for calls in self.calls for call in calls)

    def _run(self, call: Call) -> float:
        model = self.models[call.method.file]
        try:
            if model not in self._sessions:
                self._sessions[model] = IsolatedSession(model, prepack=False)
            session, feed = self._sessions[model], {**call.feed, **self.more(call)}
            outputs = session.run({name: array for name, array in feed.items() if name in session.inputs})
        except GraphkitError:
            return math.inf
        return self._logits_distance(call, outputs[next(port.name for port in call.method.outputs if not port.writes)])

    def _logits_distance(self, call: Call, logits: np.ndarray) -> float:
        if call.logits.shape != logits.shape:
            return math.inf
        return largest_multiple(
            distance_of_spread(call.counted_logits(call.logits), call.counted_logits(logits)), self.near
        )

    def begin(self) -> str:
        """Return where the difference begins, in a clause."""
        call = next((call for calls in self.calls for call in calls if not self._run(call) <= 1), None)
        if call is None:
            return "each call is right on the state of the export"
        for near in (max(self.near, CLEAR), self.near):  # what is clear first

            def differ(array: np.ndarray, right: np.ndarray, call: Call = call, near: float = near) -> bool:
                return not distance_of_spread(_without_padding(right, call), _without_padding(array, call)) <= near

            model = self.models[call.method.file]
            if node := first_node(call.exports, model, call.feed, differ, is_padded=True):
                return f"it begins at '{node}' of {call.method.file}"
        return f"it is in {call.method.file}"

    def state_difference(self) -> str:
        """Return the state that differs from the cache of the export, where each call alone is right; "" for none."""
        for bundle, _, after, logits in self._decode():
            if after is None or logits is None:
                continue
            for name, known in after.states.items():
                if text := self._state_difference(name, bundle.state[name], known, after):
                    return f"Each call is right on the state of the export: {text}"
        return ""

    def _state_difference(self, name: str, state: np.ndarray, known: np.ndarray, call: Call) -> str:
        tensor = self.contract.state(name)
        if tensor.update == "ring" and call.past > tensor.shape[tensor.axis or 0]:
            return ""
        if tensor.axis is not None and self.originals.step is not None:
            state = np.moveaxis(state, tensor.axis, _growing_axis(self.originals.step, tensor))
        other, part = f"'{name}' does not hold what the original keeps.", state[tuple(map(slice, known.shape))]
        if known.dtype.kind != "f":
            return "" if np.array_equal(part, known) else other

        def differ(array: np.ndarray, right: np.ndarray) -> bool:
            return not distance_of_spread(right, array) <= self.near

        if part.shape == known.shape and not differ(_without_padding(part, call), _without_padding(known, call)):
            return ""
        return describe_order(name, state, known, differ) or other


def _without_padding(array: np.ndarray, call: Call) -> np.ndarray:
    """Return an array with zeros at tokens that pad, along each axis that is as long as there are tokens."""
    mask = call.mask[:, : call.past] if call.past else call.mask
    if mask.all() or array.ndim < 2 or len(array) != len(mask):
        return array
    for axis in range(1, array.ndim):
        if (places := array.shape[axis]) in (call.mask.shape[1], mask.shape[1]):
            shape = [len(mask), *(places if at == axis else 1 for at in range(1, array.ndim))]
            array = np.where(call.mask[:, :places].reshape(shape) != 0, array, np.zeros((), array.dtype))
    return array


@dataclass(frozen=True, eq=False)
class Call:
    """A call of a method.

    Attributes:
        method: The method.
        feed: What it is fed.
        past: How many tokens there are before.
        exports: The models that it was made of, with what they are fed.
        logits: Those of the export.
        mask: 1 for each token up to now that counts, [rows, tokens].
        states: What the states hold before, of rows and slots in use, by name, as the export lays it out.
    """

    method: BundleMethod
    feed: Arrays
    past: int
    exports: tuple[Export, ...]
    logits: np.ndarray
    mask: np.ndarray
    states: Arrays

    def counted_logits(self, logits: np.ndarray) -> np.ndarray:
        """Return the logits of tokens that are no padding."""
        if self.past or logits.shape[1] != self.mask.shape[1]:
            return logits
        return np.asarray(logits[self.mask.astype(bool)])


def _calls_of(originals: Originals, contract: BundleContract, prompt: Prompt) -> list[Call]:
    """Return the calls of a prompt and its steps, as far as the export has the contents of each state."""
    assert originals.first is not None
    assert originals.step is not None
    once, step = contract.method("once"), contract.method("step")
    if once is None or step is None:
        return []
    oracle = Oracle(originals, prepack=False, can_choose=not prompt.all_logits)
    oracle.encode(prompt.inputs)
    exports: tuple[Export, ...] = ((originals.first, oracle.first_feed(prompt.tokens, prompt.mask), ""),)
    if originals.encoder is not None:
        exports = ((originals.encoder, oracle.encoder_feed(prompt.inputs), ENCODER), *exports)
    rows, mask, logits = len(prompt.tokens), prompt.mask, begin_prompt(oracle, prompt)
    begun = {state.name: _fill_state(state, rows, mask.shape[1]) for state in contract.states}
    feed = _feed_method(once, prompt, prompt.tokens, mask, begun, 0)
    calls = [Call(once, feed, past=0, exports=exports, logits=logits, mask=mask, states={})]
    for tokens in prompt.steps:
        past, fed = mask.shape[1], oracle.later_feed(tokens)
        mask = np.concatenate([mask, np.ones_like(tokens)], 1)
        known = dict(_exported_states(contract, originals.step, fed, past))
        if known.keys() != begun.keys():
            break
        axes = {state.name: _growing_axis(originals.step, state) for state in contract.states}
        states_before = {s.name: _fill_state(s, rows, past + 1, known[s.name], axes[s.name]) for s in contract.states}
        feed = _feed_method(step, prompt, tokens, np.ones_like(tokens), states_before, past)
        exports, logits = ((originals.step, fed, ""),), oracle.step(tokens)
        calls.append(Call(step, feed, past=past, exports=exports, logits=logits, mask=mask, states=known))
    return calls


def _growing_axis(step: Model, state: StateTensor) -> int:
    """Return the axis along which the export's own input grows: of a mask, that behind the rows."""
    axes = {value.name: entry.axis for value, entry in step.roles.pasts.items()}
    return axes.get(state.name) or 1


def _exported_states(contract: BundleContract, step: Model, fed: Arrays, past: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the export's contents of each state that is an input of that name; slots in use alone."""
    for state in contract.states:
        if state.name not in fed:
            continue
        array = fed[state.name]
        if state.axis is None:
            yield state.name, array.astype(state.dtype)
        elif array.ndim == len(state.shape) and array.shape[axis := _growing_axis(step, state)] >= past:
            yield state.name, np.take(array, range(past), axis).astype(state.dtype)


def _fill_state(state: StateTensor, rows: int, used: int, known: np.ndarray | None = None, axis: int = 0) -> np.ndarray:
    """Return a state of so many rows and tokens as a method takes it, filled with what the export has along an axis."""
    if state.axis is None and known is not None:
        return known
    shape = [rows if at == state.batch else size for at, size in enumerate(state.shape)]
    if state.axis is not None:
        shape[state.axis] = state.in_use(used)
    filled = np.zeros(shape, state.dtype)
    if known is not None and state.axis is not None:
        slots = state.shape[state.axis]
        into, of = np.moveaxis(filled, state.axis, 0), np.moveaxis(known, axis, 0)
        for place in range(max(0, len(of) - slots), len(of)):
            into[place % slots] = of[place]
    return filled


def _feed_method(
    method: BundleMethod, prompt: Prompt, tokens: np.ndarray, mask: np.ndarray, states: Arrays, past: int
) -> dict[str, np.ndarray]:
    feed: dict[str, np.ndarray] = {}
    for port in method.inputs:
        if port.kind == "user":
            array = prompt.inputs[port.name]
        elif port.kind in ("tokens", "mask"):
            array = tokens if port.kind == "tokens" else mask
        elif port.kind == "state":
            array = states[port.of]
        else:
            array = np.array([past if port.kind == "length" else 0 if past or prompt.all_logits else 1])
        feed[port.name] = np.ascontiguousarray(array, port.dtype)
    return feed


ROLES = {
    "positions": "Positions are wrong",
    "mask": "The mask of tokens is wrong",
    "encoder mask": "The mask of the source is wrong",
    "tokens": "The tokens are wrong",
    "encoder tokens": "The tokens of the source are wrong",
    "token types": "The types of tokens are wrong",
}
LAYOUT = ("Reshape", "Unsqueeze", "Squeeze", "Identity", "Flatten")
WRITERS: Mapping[str, int] = {"TensorScatter": 2, "ScatterND": 1}  # what says where they write
Place = tuple[int, int]  # of a node, and of its input


def find_bundle_causes(
    originals: Originals,
    folder: Path,
    contract: BundleContract,
    failing: Sequence[Prompt],
    facts: Sequence[WrongPart],
    near: float,
    convert: Callable[[Model], Model] = lambda model: model,
) -> list[str]:
    """Return the causes of wrong logits, a sentence each; none where known differences of the files explain them.

    Args:
        originals: The models that the bundle was made of.
        folder: The bundle.
        contract: What `bundle.json` says.
        failing: Prompts whose logits are not those of the export.
        facts: Weights and attributes that are not, or may not be, those of the export.
        near: How far logits may be.
        convert: Makes of a file what runs in its place.
    """
    if originals.first is None or originals.step is None:
        return []
    chosen = sorted(failing, key=lambda prompt: (prompt.is_padded, prompt.tokens.size))[:1]
    chosen += [prompt for prompt in failing if prompt.is_padded and prompt is not chosen[0]][:1]
    files = {method.file: load(folder / method.file) for method in contract.methods}
    right = mend_models(files, [fact for fact in facts if fact.is_sure])
    models = {file: convert(model) for file, model in {**files, **right}.items()}
    case = Case(originals, folder, contract, models, chosen, near)
    if is_mended(case.decode_prompts()):
        return []
    if right:
        return [f"More is wrong than weights; {case.begin()}."]
    if is_mended(case.distances()):
        return [case.state_difference() or "No simple cause; each call is right on the state of the export."]
    suspects = [fact for fact in facts if not fact.is_sure]
    constants = (Cause("weights", str(fact), undo=case.undo(mend_models(case.models, [fact]))) for fact in suspects)
    cause = find_sole_cause(case.distances, itertools.chain(_undo_inputs(case), _undo_writers(case), constants))
    return [cause.text if cause else f"No simple cause; {case.begin()}."]


def _undo_inputs(case: Case) -> Iterator[Cause]:
    """Yield the inputs of decoders that a bundle makes itself: as the export is fed, the logits are right."""
    values: dict[tuple[str, str], list[Value]] = {}
    for model in dict.fromkeys((case.originals.first, case.originals.step)):
        for value, role in model.roles.inputs.items() if model is not None else ():
            if role in ROLES:
                values.setdefault((value.name, ROLES[role]), []).append(value)
    for (name, text), same in values.items():
        models: dict[str, Model] = {}
        for file, model in case.models.items():
            declared, places = declared_type(same[0]), set(_input_places(model, same))
            if places and declared is not None:
                models[file] = _with_fed_input(
                    model, sorted(places), f"export/{name}", declared.dtype, len(declared.dims or ())
                )

        def more(call: Call, name: str = name) -> dict[str, np.ndarray]:
            return {f"export/{name}": feed[name] for _, feed, _ in call.exports if name in feed}

        if models:
            text = f"{text}: with '{name}' as the export is fed, the logits are right."
            yield Cause("mask", text, undo=case.undo(models, more))


def _input_places(model: Model, values: Sequence[Value]) -> Iterator[Place]:
    """Yield the node inputs that stand for a graph input: those of nodes whose outputs have the names of its readers'.

    Where a rewrite has joined readers that only change the layout, these are what the last of them gives.
    """
    outputs = {node.outputs[0].name: node for node in model.graph.nodes if node.outputs and node.outputs[0] is not None}
    todo = [(reader, index, True) for value in values for reader, index in value.consumers]
    while todo:
        reader, index, is_first = todo.pop()
        output = reader.outputs[0] if reader.outputs else None
        if output is None or reader.bodies or reader.is_op("Shape", "Size"):
            continue
        node = outputs.get(output.name)
        if node is not None and index < len(node.inputs) and (is_first or node.is_op(*LAYOUT)):
            yield node.index, index
        elif node is None and reader.is_op(*LAYOUT) and index == 0:
            todo += [(*use, False) for use in output.consumers]


def _undo_writers(case: Case) -> Iterator[Cause]:
    """Yield the places where new slots are written, as the length says."""
    states = {state.name: state for state in case.contract.states}
    models: dict[str, Model] = {}
    slots: dict[str, tuple[int, bool]] = {}
    for file, model in case.models.items():
        ports = [port for method in case.contract.methods if method.file == file for port in method.inputs]
        named = {port.name: states[port.state] for port in ports if port.state in states}
        places: dict[str, list[Place]] = {}
        for node in model.graph.nodes:
            first, index = node.input(0), WRITERS.get(node.op_type)
            state = named.get(first.name) if first is not None else None
            if state is not None and state.axis is not None and index is not None and node.input(index) is not None:
                name = f"export/slots of {state.shape[state.axis]}"
                slots[name] = state.shape[state.axis], node.is_op("ScatterND")
                places.setdefault(name, []).append((node.index, index))
        for name, node_inputs in places.items():
            models[file] = _with_fed_input(
                models.get(file, model), node_inputs, name, onnx.TensorProto.INT64, 2 if slots[name][1] else 1
            )

    def more(call: Call) -> dict[str, np.ndarray]:
        rows = len(call.mask)
        new = range(call.past, call.mask.shape[1])
        return {
            name: np.array([[at % size] for at in new[-size:]]) if has_axis else np.full(rows, new[-size:][0] % size)
            for name, (size, has_axis) in slots.items()
        }

    if models:
        words = "New slots are not written behind those in use: written there, the logits are right."
        yield Cause("shifted", words, undo=case.undo(models, more))


def _with_fed_input(model: Model, places: Sequence[Place], name: str, dtype: int, rank: int) -> Model:
    """Return a model in which these inputs of nodes are an input of the graph."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    for node, index in places:
        proto.graph.node[node].input[index] = name
    shape = [f"{name}_{axis}" for axis in range(rank)]
    proto.graph.input.append(helper.make_tensor_value_info(name, dtype, shape))
    return model.with_proto(proto)
