"""Join an encoder and the first step of its decoder into one model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx.numpy_helper

from graphkit.dtypes import dtype_name
from graphkit.errors import UsageError
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.rewrite.base import copy_proto
from graphkit.rewrite.compose import compose
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode
from graphkit.rewrite.interface import NewInput, drop_dead_inputs, with_interface, with_names
from graphkit.shapes import infer

__all__ = ["joined"]

PREFIX = "encoder/"
OF_ENCODER = ("encoder mask", "encoder state")


def joined(encoder: Model, first: Model, wanted: Mapping[str, str]) -> tuple[Model, Mapping[str, str]]:
    """Return encoder and first step as one model, and which of its outputs later steps read.

    The mask of the encoder is that of the cross-attention too, as it is: its length is that of the encoder's input. For
    an encoder without one, all of its output counts, and so the mask of the cross-attention is no input.

    Args:
        encoder: The encoder.
        first: The decoder of the first step.
        wanted: What later steps read of the encoder: the role of each input, by name.

    Raises:
        UsageError: The decoder does not read one output of the encoder.
    """
    states = list(first.roles.all("encoder state"))
    named = [value for value, role in encoder.roles.outputs.items() if role == "encoder state"]
    given = next(iter([*named, *encoder.graph.outputs]), None)
    if len(states) != 1 or given is None:
        raise UsageError(f"{first.name} does not read one output of {encoder.name} - export both together")
    own, mask, renamed = first.roles.first("encoder mask"), encoder.roles.first("mask"), dict[str, str]()
    cross = ""
    if own is not None and mask is not None:
        cross = renamed[own.name] = mask.name
    elif own is not None:
        first, cross = _all_count(first, own, states[0])
    of_decoder = {value.name for value in first.graph.inputs} - {states[0].name, own.name if own is not None else ""}
    if both := sorted(of_decoder & {value.name for value in encoder.graph.inputs}):
        raise UsageError(f"{encoder.name} and {first.name} each have an input '{both[0]}' - name one of them anew")
    model = compose(encoder, first, {states[0].name: given.name}, PREFIX)
    if own is not None and mask is not None:
        model = _of_one_type(model, f"{PREFIX}{mask.name}", own.name)
    inputs = [value.name for value in encoder.graph.inputs if value.tensor is None]
    outputs = [value.name for value in encoder.graph.outputs if value.name != given.name]
    renamed |= {f"{PREFIX}{name}": name for name in (*inputs, *outputs)}
    sources = {"encoder mask": cross, "encoder state": f"{PREFIX}{given.name}"}
    kept = {name: sources[role] for name, role in wanted.items() if role in OF_ENCODER}
    return _keeping(with_names(model, renamed), kept), {f"{name}_kept": name for name in kept}


def _of_one_type(model: Model, name: str, other: str) -> Model:
    """Return a model that declares an input as it does another one, which becomes the same."""
    proto = copy_proto(model)
    inputs = {info.name: info for info in proto.graph.input}
    inputs[other].type.CopyFrom(inputs[name].type)
    return model.with_proto(proto)


def _all_count(model: Model, mask: Value, like: Value) -> tuple[Model, str]:
    """Return a model in which a mask is ones for the first two axes of an input, and the name of these."""
    editor = Editor(model)
    dtype = dtype_name(editor.shapes[mask].dtype)
    shape, ones = editor.unique_name(f"{mask.name}_shape"), editor.unique_name(f"{mask.name}_ones")
    one = onnx.numpy_helper.from_array(np.ones(1, dtype))
    editor.insert_first(model.graph, NewNode("Shape", [like], [shape], {"start": 0, "end": 2}))
    editor.insert_first(model.graph, NewNode("ConstantOfShape", [shape], [ones], {"value": one}))
    editor.replace_all_uses(mask, ones)
    return drop_dead_inputs(editor.result()), ones


def _keeping(model: Model, kept: Mapping[str, str]) -> Model:
    """Return a model that gives some of its values, each under a name with `_kept`."""
    shapes, outputs = infer(model), dict[str, NewInput]()
    for name, source in kept.items():
        value = model.graph.values.get(source)
        dims = shapes[value].dims if value is not None else None
        if value is None or dims is None:
            raise UsageError(f"later steps read '{name}', which the encoder and the first step do not give")
        outputs[f"{name}_kept"] = NewInput(f"{name}_kept", shapes[value].dtype, dims)
    nodes: Iterable[NewNode] = (NewNode("Identity", [source], [f"{name}_kept"]) for name, source in kept.items())
    return with_interface(model, {}, outputs, (), nodes)
