"""What may be wrong with a method of a bundle, and the same method with that undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from graphkit.contract.bundle import BundleContract
from graphkit.graph.types import declared_type
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.verify.bundle_calls import Call
from graphkit.verify.originals import Originals
from graphkit.verify.same_weights import WrongWeight, mended

__all__ = ["Undo", "undos"]

ROLES = {
    "positions": "Positions are wrong",
    "mask": "The mask of tokens is wrong",
    "encoder mask": "The mask of the source is wrong",
    "tokens": "The tokens are wrong",
    "encoder tokens": "The tokens of the source are wrong",
    "token types": "The types of tokens are wrong",
}
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
    """Yield what may be wrong: an input that is not that of the export, the slots that are written, a constant."""
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
    """Yield where nodes read what stands for an input: those that give a value of the name that its readers give.

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
    slots: dict[str, int] = {}
    for file, model in models.items():
        ports = [port for method in contract.methods if method.file == file for port in method.inputs]
        named = {port.name: states[port.state] for port in ports if port.state in states}
        places: dict[str, list[Place]] = {}
        for node in model.graph.nodes:
            first = node.input(0)
            state = named.get(first.name) if first is not None and node.is_op("TensorScatter") else None
            if state is not None and state.axis is not None and node.input(2) is not None:
                name = f"export/slots of {state.shape[state.axis]}"
                slots[name] = state.shape[state.axis]
                places.setdefault(name, []).append((node.index, 2))
        for name, found in places.items():
            made[file] = _fed(made.get(file, model), found, name, onnx.TensorProto.INT64, 1)

    def more(call: Call) -> dict[str, np.ndarray]:
        rows = len(call.mask)
        new = call.mask.shape[1] - call.past
        return {name: np.full(rows, (call.past + max(0, new - size)) % size) for name, size in slots.items()}

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
