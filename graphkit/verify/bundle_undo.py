"""Suspected faults of a bundle's methods, each with models in which it is undone; the calls to try them on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from graphkit.deploy.contract.bundle_contract import BundleContract, BundleMethod, StateTensor
from graphkit.graph.declared_types import declared_type
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.verify.bundle_prompts import Prompt
from graphkit.verify.first_difference import Export
from graphkit.verify.oracle import Oracle
from graphkit.verify.originals import Originals
from graphkit.verify.weight_faults import WrongWeight, mended

__all__ = ["ENCODER", "Call", "Undo", "calls_of", "growing_axis", "undos"]

ROLES = {
    "positions": "Positions are wrong",
    "mask": "The mask of tokens is wrong",
    "encoder mask": "The mask of the source is wrong",
    "tokens": "The tokens are wrong",
    "encoder tokens": "The tokens of the source are wrong",
    "token types": "The types of tokens are wrong",
}
WRITERS: Mapping[str, int] = {"TensorScatter": 2, "ScatterND": 1}  # what says where they write
LAYOUT = ("Reshape", "Unsqueeze", "Squeeze", "Identity", "Flatten")
Place = tuple[int, int]  # of a node, and of its input
Models = Mapping[str, Model]  # by file


@dataclass(frozen=True, eq=False)
class Undo:
    """Something that is undone in the models of a bundle.

    Attributes:
        words: What was wrong, in a sentence.
        models: The models without it, by file; the others are as they are.
        more: What they are fed besides, in a call.
        parts: How many things are undone: it is tried where no single one mends the difference.
    """

    words: str
    models: Models
    more: Callable[[Call], Mapping[str, np.ndarray]] = lambda _: {}
    parts: int = 1


def undos(
    originals: Originals, contract: BundleContract, models: Models, suspects: Sequence[WrongWeight]
) -> Iterator[Undo]:
    """Yield the suspects: an input that differs from the export's, the slots that are written, a constant."""
    yield from _inputs(originals, models)
    yield from _writers(contract, models)
    for wrong in suspects:
        for file, model in models.items():
            if model.name == wrong.file:
                yield Undo(str(wrong), {file: mended(model, [wrong])})


def _inputs(originals: Originals, models: Models) -> Iterator[Undo]:
    """Yield the inputs of the decoders that a bundle makes itself, each as the export is fed; masks with positions."""
    values: dict[str, list[Value]] = {}
    roles: dict[str, str] = {}
    for model in dict.fromkeys(each for each in (originals.first, originals.step) if each is not None):
        for value, role in model.roles.inputs.items():
            if role in ROLES:
                values.setdefault(value.name, []).append(value)
                roles[value.name] = role
    for name, same in values.items():
        if made := _as_fed(models, {name: same}):
            words = f"{ROLES[roles[name]]}: with '{name}' as the export is fed, the logits are right."
            yield Undo(words, made, _more([name]))
    both = {name: same for name, same in values.items() if roles[name] in ("mask", "positions")}
    if len(both) == 2 and (made := _as_fed(models, both)):
        named = " and ".join(f"'{name}'" for name in both)
        words = f"The mask of tokens and positions are wrong: with {named} as the export is fed, the logits are right."
        yield Undo(words, made, _more(list(both)), parts=2)


def _as_fed(models: Models, values: Mapping[str, Sequence[Value]]) -> dict[str, Model]:
    """Return models in which some inputs of the export are inputs, by file; only those that read them."""
    made: dict[str, Model] = {}
    for file, model in models.items():
        for name, same in values.items():
            declared, places = declared_type(same[0]), set(_places(model, same))
            if places and declared is not None:
                rank = len(declared.dims or ())
                made[file] = _fed(made.get(file, model), sorted(places), f"export/{name}", declared.dtype, rank)
    return made


def _more(names: Sequence[str]) -> Callable[[Call], Mapping[str, np.ndarray]]:
    return lambda call: {f"export/{name}": feed[name] for name in names for _, feed, _ in call.exports if name in feed}


def _places(made: Model, values: Sequence[Value]) -> Iterator[Place]:
    """Yield the node inputs that stand for a graph input: those of nodes whose outputs have the names of its readers'.

    Where a rewrite has joined readers that only change the layout, these are what the last of them gives.
    """
    outputs = {node.outputs[0].name: node for node in made.graph.nodes if node.outputs and node.outputs[0] is not None}
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


def _writers(contract: BundleContract, models: Models) -> Iterator[Undo]:
    """Yield the places where new slots are written, as the length says."""
    states = {state.name: state for state in contract.states}
    made: dict[str, Model] = {}
    slots: dict[str, tuple[int, bool]] = {}
    for file, model in models.items():
        ports = [port for method in contract.methods if method.file == file for port in method.inputs]
        named = {port.name: states[port.state] for port in ports if port.state in states}
        places: dict[str, list[Place]] = {}
        for node in model.graph.nodes:
            first, index = node.input(0), WRITERS.get(node.op_type)
            state = named.get(first.name) if first is not None else None
            if state is not None and state.axis is not None and index is not None and node.input(index) is not None:
                name = f"export/slots of {state.shape[state.axis]}"
                slots[name] = state.shape[state.axis], node.is_op("ScatterND")
                places.setdefault(name, []).append((node.index, index))
        for name, found in places.items():
            made[file] = _fed(made.get(file, model), found, name, onnx.TensorProto.INT64, 2 if slots[name][1] else 1)

    def more(call: Call) -> dict[str, np.ndarray]:
        rows = len(call.mask)
        new = range(call.past, call.mask.shape[1])
        return {
            name: np.array([[at % size] for at in new[-size:]]) if each else np.full(rows, new[-size:][0] % size)
            for name, (size, each) in slots.items()
        }

    if made:
        yield Undo("New slots are not written behind those in use: written there, the logits are right.", made, more)


def _fed(model: Model, places: Sequence[Place], name: str, dtype: int, rank: int) -> Model:
    """Return a model in which these inputs of nodes are an input of the graph."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    for node, index in places:
        proto.graph.node[node].input[index] = name
    shape = [f"{name}_{axis}" for axis in range(rank)]
    proto.graph.input.append(helper.make_tensor_value_info(name, dtype, shape))
    return model.with_proto(proto)


ENCODER = "encoder/"  # before the names of what a bundle takes from the encoder
Arrays = Mapping[str, np.ndarray]


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

    def counted(self, logits: np.ndarray) -> np.ndarray:
        """Return the logits of tokens that are no padding."""
        if self.past or logits.shape[1] != self.mask.shape[1]:
            return logits
        return np.asarray(logits[self.mask.astype(bool)])


def calls_of(originals: Originals, contract: BundleContract, prompt: Prompt) -> list[Call]:
    """Return the calls of a prompt and its steps, as far as the export has the contents of each state."""
    assert originals.first is not None
    assert originals.step is not None
    once, step = contract.method("once"), contract.method("step")
    if once is None or step is None:
        return []
    oracle = Oracle(originals, prepack=False)
    oracle.encode(prompt.inputs)
    exports: tuple[Export, ...] = ((originals.first, oracle.first_feed(prompt.tokens, prompt.mask), ""),)
    if originals.encoder is not None:
        exports = ((originals.encoder, oracle.encoder_feed(prompt.inputs), ENCODER), *exports)
    rows, mask = len(prompt.tokens), prompt.mask
    logits = oracle.first(prompt.tokens, mask)
    begun = {state.name: _filled(state, rows, mask.shape[1]) for state in contract.states}
    feed = _feed(once, prompt, prompt.tokens, mask, begun, 0)
    kept = logits if prompt.all_logits else logits[:, -1:]
    calls = [Call(method=once, feed=feed, past=0, exports=exports, logits=kept, mask=mask, states={})]
    for tokens in prompt.steps:
        past = mask.shape[1]
        fed = oracle.later_feed(tokens)
        mask = np.concatenate([mask, np.ones_like(tokens)], 1)
        known = dict(_states(contract, originals.step, fed, past))
        if known.keys() != begun.keys():
            break
        held = {
            state.name: _filled(state, rows, mask.shape[1], known[state.name], growing_axis(originals.step, state))
            for state in contract.states
        }
        feed = _feed(step, prompt, tokens, np.ones_like(tokens), held, past)
        calls.append(
            Call(
                method=step,
                feed=feed,
                past=past,
                exports=((originals.step, fed, ""),),
                logits=oracle.step(tokens),
                mask=mask,
                states=known,
            )
        )
    return calls


def growing_axis(step: Model, state: StateTensor) -> int:
    """Return the axis along which the export's own input grows: of a mask, that behind the rows."""
    axes = {value.name: entry.axis for value, entry in step.roles.pasts.items()}
    return axes.get(state.name) or 1


def _states(contract: BundleContract, step: Model, fed: Arrays, past: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the export's contents of each state that is an input of that name; slots in use alone."""
    for state in contract.states:
        if state.name not in fed:
            continue
        array = fed[state.name]
        if state.axis is None:
            yield state.name, array.astype(state.dtype)
        elif array.ndim == len(state.shape) and array.shape[axis := growing_axis(step, state)] >= past:
            yield state.name, np.take(array, range(past), axis).astype(state.dtype)


def _filled(state: StateTensor, rows: int, used: int, known: np.ndarray | None = None, axis: int = 0) -> np.ndarray:
    """Return a state as a method takes it, its known slots filled.

    Args:
        state: Which.
        rows: How many rows.
        used: How many tokens there are after the method.
        known: What the export has of it; None for nothing.
        axis: Along which that grows.
    """
    if state.axis is None and known is not None:
        return known
    shape = [rows if at == state.batch else size for at, size in enumerate(state.shape)]
    if state.axis is not None:
        shape[state.axis] = state.in_use(used)
    made = np.zeros(shape, state.dtype)
    if known is not None and state.axis is not None:
        slots = state.shape[state.axis]
        into, of = np.moveaxis(made, state.axis, 0), np.moveaxis(known, axis, 0)
        for place in range(max(0, len(of) - slots), len(of)):
            into[place % slots] = of[place]
    return made


def _feed(
    method: BundleMethod, prompt: Prompt, tokens: np.ndarray, mask: np.ndarray, states: Arrays, past: int
) -> dict[str, np.ndarray]:
    feed: dict[str, np.ndarray] = {}
    for port in method.inputs:
        kind = port.source.kind if port.source is not None else ""
        if kind == "user":
            made = prompt.inputs[port.name]
        elif kind in ("tokens", "mask"):
            made = tokens if kind == "tokens" else mask
        elif kind == "state" and port.source is not None:
            made = states[port.source.of]
        else:
            made = np.array([past if kind == "length" else 0 if past or prompt.all_logits else 1])
        feed[port.name] = np.ascontiguousarray(made, port.dtype)
    return feed
