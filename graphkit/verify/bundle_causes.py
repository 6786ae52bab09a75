"""Causes of a bundle's differences: ports of other states, inputs and slots that it makes otherwise, constants."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from graphkit.deploy.contract.bundle_contract import BundleContract, BundleMethod, BundlePort
from graphkit.graph.declared_types import declared_type
from graphkit.graph.view import Value
from graphkit.model import Model, load
from graphkit.verify.bundle_case import Call, Case
from graphkit.verify.bundle_prompts import Prompt
from graphkit.verify.cause_search import Cause, find_sole_cause, is_mended, with_attributes
from graphkit.verify.originals import Originals
from graphkit.verify.weight_comparison import WrongPart, mend_models

__all__ = ["find_bundle_causes"]

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


def find_bundle_causes(
    originals: Originals,
    folder: Path,
    contract: BundleContract,
    failing: Sequence[Prompt],
    facts: Sequence[WrongPart],
    near: float,
) -> list[str]:
    """Return the causes of wrong logits, a sentence each; none where known differences of the files explain them.

    Args:
        originals: The models that the bundle was made of.
        folder: The bundle.
        contract: What `bundle.json` says.
        failing: Prompts whose logits are not those of the export.
        facts: Weights and attributes that are not, or may not be, those of the export.
        near: How far logits may be.
    """
    if originals.first is None or originals.step is None:
        return []
    chosen = sorted(failing, key=lambda prompt: (prompt.is_padded, prompt.tokens.size))[:1]
    chosen += [prompt for prompt in failing if prompt.is_padded and prompt is not chosen[0]][:1]
    files = {method.file: load(folder / method.file) for method in contract.methods}
    right = mend_models(files, [fact for fact in facts if fact.is_sure])
    case = Case(originals, folder, contract, {**files, **right}, chosen, near)
    if is_mended(case.decoded()):
        return []
    if right:
        return [f"More is wrong than weights; {case.begin()}."]
    by_name = _by_name(contract)
    renamed = Cause("weights", "", undo=partial(with_attributes, case, contract=by_name))
    if by_name != contract and find_sole_cause(case.decoded, [renamed]):
        return list(_renamed_ports(contract, by_name))
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


def _by_name(contract: BundleContract) -> BundleContract:
    """Return a contract in which each input and output is of the state that it is called after."""
    names = {state.name for state in contract.states}

    def right(port: BundlePort) -> BundlePort:
        state_name = port.name.removesuffix("_after")
        if state_name not in names or not port.state:
            return port
        if port.source is not None:
            return replace(port, source=replace(port.source, of=state_name))
        return replace(port, writes=state_name)

    def method(wrong: BundleMethod) -> BundleMethod:
        if wrong.when not in ("once", "step"):
            return wrong
        return replace(wrong, inputs=tuple(map(right, wrong.inputs)), outputs=tuple(map(right, wrong.outputs)))

    return replace(contract, methods=tuple(map(method, contract.methods)))


def _renamed_ports(wrong: BundleContract, right: BundleContract) -> Iterator[str]:
    """Yield the ports whose state differs between two contracts, a sentence each."""
    for before, after in zip(wrong.methods, right.methods, strict=True):
        for port, twin in zip((*before.inputs, *before.outputs), (*after.inputs, *after.outputs), strict=True):
            if port.state != twin.state:
                does = "reads" if port.source is not None else "writes"
                yield f"'{port.name}' of {before.name} {does} state '{port.state}': it is right with '{twin.state}'."
