"""Join an encoder and the first step of its decoder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx.numpy_helper

from graphkit.dtypes import dtype_name
from graphkit.errors import UsageError
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.rewrite import Editor, Matched, NewNode, Pass, copy_proto
from graphkit.rewrite.compose_models import compose_models
from graphkit.rewrite.new_interface import NewInput, drop_dead_inputs, with_interface, with_names
from graphkit.shapes import infer

__all__ = ["JoinEncoder"]

PREFIX = "encoder/"


@dataclass(frozen=True)
class JoinEncoder(Pass):
    """Join an encoder and the first step of its decoder, which this rewrites, into one model.

    The mask of the encoder is that of the cross-attention too, as it is: its length is that of the encoder's input. For
    an encoder without one, all of its output counts, and so the mask of the cross-attention is no input. What later
    steps read of the encoder becomes an output: its states and their mask. The matches are pairs of such an output and
    the input of later steps that it becomes.

    Legality: the decoder reads one output of the encoder, and no other input has a name that the encoder's have. It
    takes a model as an option, so that no text names this pass.

    Attributes:
        encoder: The encoder.
        reads: The inputs of later steps that come from the encoder: the role of each, by name.
    """

    changes_interface: ClassVar[bool] = True

    encoder: Model
    reads: Mapping[str, str]

    def run(self, model: Model) -> Matched[tuple[str, str]]:
        """Return both as one model.

        Raises:
            UsageError: The decoder does not read one output of the encoder, or both have an input of one name.
        """
        encoder, first = self.encoder, model
        states = list(first.roles.all("encoder state"))
        hidden = encoder.roles.encoder_state
        if len(states) != 1 or hidden is None:
            raise UsageError(f"{first.name} does not read one output of {encoder.name} - export both together")
        cross_mask, mask = first.roles.first("encoder mask"), encoder.roles.first("mask")
        renamed, cross = dict[str, str](), ""
        if cross_mask is not None and mask is not None:
            cross = renamed[cross_mask.name] = mask.name
        elif cross_mask is not None:
            first, cross = _all_count(first, cross_mask, states[0])
        linked = {states[0].name, cross_mask.name if cross_mask is not None else ""}
        of_decoder = {value.name for value in first.graph.inputs} - linked
        if both := sorted(of_decoder & {value.name for value in encoder.graph.inputs}):
            raise UsageError(f"{encoder.name} and {first.name} each have an input '{both[0]}' - name one of them anew")
        whole = compose_models(encoder, first, {states[0].name: hidden.name}, PREFIX)
        if cross_mask is not None and mask is not None:
            whole = _of_one_type(whole, f"{PREFIX}{mask.name}", cross_mask.name)
        inputs = [value.name for value in encoder.graph.inputs if value.tensor is None]
        outputs = [value.name for value in encoder.graph.outputs if value.name != hidden.name]
        renamed |= {f"{PREFIX}{name}": name for name in (*inputs, *outputs)}
        sources = {"encoder mask": cross, "encoder state": f"{PREFIX}{hidden.name}"}
        kept = {name: sources[role] for name, role in self.reads.items() if role in sources}
        changes = ("the encoder and the first step of the decoder are one model",)
        matches = tuple((f"{name}_kept", name) for name in kept)
        return Matched(_keep_values(with_names(whole, renamed), kept), changes, matches=matches)


def _of_one_type(model: Model, name: str, target: str) -> Model:
    """Return a model that declares an input as it does another one, which becomes the same."""
    proto = copy_proto(model)
    inputs = {info.name: info for info in proto.graph.input}
    inputs[target].type.CopyFrom(inputs[name].type)
    return model.with_proto(proto)


def _all_count(model: Model, mask: Value, like: Value) -> tuple[Model, str]:
    """Return a model in which a mask is ones for the first two axes of an input, and the name of these."""
    editor = Editor(model)
    dtype = dtype_name(editor.shapes[mask].dtype)
    shape, ones = editor.unique_name(f"{mask.name}_shape"), editor.unique_name(f"{mask.name}_ones")
    fill = onnx.numpy_helper.from_array(np.ones(1, dtype))
    editor.insert_first(model.graph, NewNode("Shape", [like], [shape], {"start": 0, "end": 2}))
    editor.insert_first(model.graph, NewNode("ConstantOfShape", [shape], [ones], {"value": fill}))
    editor.replace_all_uses(mask, ones)
    return drop_dead_inputs(editor.result()), ones


def _keep_values(model: Model, kept: Mapping[str, str]) -> Model:
    """Return a model that gives some of its values, each under a name with `_kept`."""
    shapes, outputs = infer(model), dict[str, NewInput]()
    for name, source in kept.items():
        value = model.graph.values.get(source)
        dims = shapes[value].dims
        if value is None or dims is None:
            raise UsageError(f"later steps read '{name}', which the encoder and the first step do not give")
        outputs[f"{name}_kept"] = NewInput(f"{name}_kept", shapes[value].dtype, dims)
    nodes: Iterable[NewNode] = (NewNode("Identity", [source], [f"{name}_kept"]) for name, source in kept.items())
    return with_interface(model, {}, outputs, (), nodes)
