"""The original of each method of a bundle: a decoder, or an encoder and the first step of a decoder as one model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnx.compose
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from graphkit.deploy.contract.bundle_contract import BundleMethod
from graphkit.graph.cache_entries import CacheEntry
from graphkit.graph.view import all_nodes
from graphkit.model import Model
from graphkit.shapes.input_dims import declare_dim, declared_inputs, read_dim
from graphkit.verify.originals import Originals

__all__ = [
    "MOST",
    "OWN",
    "InterfaceEdit",
    "MethodOriginal",
    "UnknownMethodError",
    "joining_fault",
    "original_of",
    "past_length",
]

OWN = "proof/"  # before names that a proof adds
ENCODER = f"{OWN}encoder/"
MOST = np.iinfo(np.int64).max


class UnknownMethodError(Exception):
    """A contract or an original that lacks a fact that a proof needs."""


@dataclass
class InterfaceEdit:
    """A copy of a model with nodes in front and at the end, and with other inputs and outputs."""

    source: Model
    front: list[NodeProto] = field(default_factory=list)
    end: list[NodeProto] = field(default_factory=list)
    numbers: dict[str, TensorProto] = field(default_factory=dict)

    def add(self, op: str, inputs: Sequence[str], output: str, *, last: bool = False, **attributes: Any) -> str:
        """Add a node in front, or as the last one, and return its output."""
        (self.end if last else self.front).append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def number(self, number: int, name: str = "") -> str:
        """Add a list of one integer, and return its name."""
        name = name or f"{OWN}number/{number}"
        self.numbers[name] = numpy_helper.from_array(np.array([number]), name)
        return name

    def result(self, inputs: Iterable[ValueInfoProto], outputs: Iterable[ValueInfoProto]) -> Model:
        """Return the model with these inputs and outputs."""
        proto = ModelProto()
        proto.CopyFrom(self.source.proto)
        nodes = [*self.front, *self.source.proto.graph.node, *self.end]
        for name, content in (("node", nodes), ("input", [*inputs]), ("output", [*outputs])):
            proto.graph.ClearField(name)
            getattr(proto.graph, name).extend(content)
        proto.graph.initializer.extend(self.numbers.values())
        return self.source.with_proto(proto)


@dataclass(frozen=True, eq=False)
class MethodOriginal:
    """The original of a method: a decoder, or an encoder and the first step of a decoder as one model.

    Attributes:
        whole: The model.
        decoder: The decoder in it, by the names that it has there.
        cache: What each state is, by state.
        has_past: Whether the method goes on from a past.
        kept: The input or output of the encoder that each other state is, by state.
        user: The inputs of the encoder, by the names that they have for a caller.
    """

    whole: Model
    decoder: Model
    cache: Mapping[str, CacheEntry]
    has_past: bool
    kept: Mapping[str, str] = field(default_factory=dict)
    user: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def ports(self) -> Mapping[str, ValueInfoProto]:
        """Its inputs and outputs, by name."""
        return {info.name: info for info in (*self.whole.proto.graph.input, *self.whole.proto.graph.output)}

    @cached_property
    def grown(self) -> CacheEntry | None:
        """A part of its cache that grows."""
        return next(iter(self._grown), None)

    @property
    def grown_pasts(self) -> Mapping[str, int]:
        """The axis along which each past grows, by name."""
        return {each.past.name: each.axis for each in self._grown if each.past is not None and each.axis is not None}

    @cached_property
    def _grown(self) -> Sequence[CacheEntry]:
        entries = [each for each in self.cache.values() if each.past is not None and each.present is not None]
        return [each for each in entries if self.has_past and not self.decoder.roles.is_cross(each)]

    @property
    def values(self) -> Mapping[str, object]:
        """The condition of a merged decoder."""
        merged = self.decoder.roles.decoder
        return {} if merged is None else {merged.condition.input.name: [merged.cache_when == self.has_past]}

    def role(self, role: str) -> str:
        """Return the input of the decoder that has a role, "" for none."""
        return next((value.name for value, each in self.decoder.roles.inputs.items() if each == role), "")

    def like(self, name: str, as_: str = "") -> ValueInfoProto:
        """Return the declaration of an input or output, under another name where one is given."""
        if name not in self.ports:
            raise UnknownMethodError(f"its original has no '{name}'" if name else "its original has no input of tokens")
        info = ValueInfoProto()
        info.CopyFrom(self.ports[name])
        info.name = as_ or name
        if name == self.role("mask") and self.grown is not None and self.grown.past is not None:
            tokens, past = (self.whole_dims(each) for each in (self.role("tokens"), self.grown.past.name))
            names = declared_inputs(self.whole).groups
            total = read_dim(past[self.grown.axis or 0], names) + read_dim(tokens[1], names)
            declare_dim(info.type.tensor_type.shape.dim[1], total)
        return info

    def whole_dims(self, name: str) -> list[str | int]:
        """Return the declared dims of an input, 0 for those that have no name."""
        return [dim.dim_param or dim.dim_value for dim in self.ports[name].type.tensor_type.shape.dim]

    def model(self, shown: Mapping[str, str]) -> Model:
        """Return it with the positions that a bundle counts, and with other outputs: the value of each, by name."""
        edit = InterfaceEdit(self.whole)
        positions = self.role("positions")
        if positions:
            self._count_positions(edit, positions)
        outputs = [self.like(source, name) for name, source in shown.items()]
        for name, source in shown.items():
            if name != source:
                edit.add("Identity", [source], name, last=True)
        inputs = [info.name for info in self.whole.proto.graph.input if info.name != positions]
        return edit.result(map(self.like, inputs), outputs)

    def _count_positions(self, edit: InterfaceEdit, name: str) -> None:
        """Count the tokens before each one that the mask has, from 0 on."""
        mask = self.role("mask")
        if not mask:
            raise UnknownMethodError("its positions are counted without a mask")
        one = edit.number(1)
        sums = edit.add("CumSum", [edit.add("Cast", [mask], f"{OWN}mask", to=TensorProto.INT64), one], f"{OWN}sums")
        found = edit.add("Max", [edit.add("Sub", [sums, one], f"{OWN}before"), edit.number(0)], f"{OWN}positions")
        past = edit.number(0)
        if self.grown is not None and self.grown.past is not None:
            past = past_length(edit, self.grown.past.name, self.grown.axis)
        edit.add("Slice", [found, past, edit.number(MOST), one], name)


def past_length(edit: InterfaceEdit, past: str, axis: int | None, name: str = f"{OWN}past_length") -> str:
    """Add the length of a past along an axis, and return its name."""
    if axis is None:
        raise UnknownMethodError(f"it is not known how {past} grows")
    shape = edit.add("Shape", [past], f"{OWN}past_shape")
    return edit.add("Gather", [shape, edit.number(axis)], name)


def original_of(originals: Originals, method: BundleMethod) -> MethodOriginal:
    """Return the model that a method stands for.

    Raises:
        UnknownMethodError: There is none, or it is not known how its parts fit together.
    """
    step = originals.step
    if step is None:
        raise UnknownMethodError("it has no decoder")
    names = {entry.slot: value.name for value, entry in step.roles.pasts.items()}
    has_past, is_step = "length" in method.sources, method.when == "step"
    if is_step and step.roles.pasts and not has_past:
        raise UnknownMethodError("it goes on from no past, as it does not read its length")
    if has_past and not is_step and originals.first is not step:
        raise UnknownMethodError("it goes on from a past, and its original begins with another decoder")
    decoder = step if has_past or is_step else originals.first
    if decoder is None or (decoder.roles.pasts and not has_past and decoder.roles.decoder is None):
        raise UnknownMethodError("its original has a past where the method has none")
    cache = {names[entry.slot]: entry for entry in decoder.roles.cache if entry.slot in names}
    if has_past or originals.encoder is None:
        return MethodOriginal(decoder, decoder, cache, has_past)
    whole, inputs = _join_models(originals.encoder, decoder)
    kept = {name: ENCODER + source for name, source in _link_models(originals.encoder, step).items()}
    return MethodOriginal(whole, decoder, cache, has_past, kept, inputs)


def _link_models(encoder: Model, decoder: Model) -> dict[str, str]:
    """Return the input or output of an encoder that each input of a decoder is, by these."""
    hidden = [value for value, role in encoder.roles.outputs.items() if role == "encoder state"]
    hidden, masks = hidden or [*encoder.graph.outputs[:1]], encoder.roles.all("mask")
    links: dict[str, str] = {}
    for role, sources in (("encoder state", hidden), ("encoder mask", masks)):
        values = [value.name for value, each in decoder.roles.inputs.items() if each == role]
        if not values:
            continue
        if len(sources) != 1:
            raise UnknownMethodError("it is not known what the decoder reads of the encoder")
        links |= dict.fromkeys(values, sources[0].name)
    return links


def joining_fault(ahead: Model, behind: Model) -> str:
    """Return why the nodes of a model may mean something else within another one, "" where they do not."""
    imports = [{each.domain: each.version for each in model.proto.opset_import} for model in (ahead, behind)]
    for domain in sorted({node.domain for node in all_nodes(ahead.scopes)}):
        versions = [each.get(domain) for each in imports]
        if versions[0] != versions[1]:
            name = f"opset {versions[0]}" if not domain else f"version {versions[0]} of {domain}"
            return f"{ahead.name} is of {name}, and {behind.name} of {versions[1]}"
    if ahead.proto.functions or ahead.proto.graph.sparse_initializer:
        return f"{ahead.name} has functions or sparse initializers"
    return ""


def _join_models(encoder: Model, decoder: Model) -> tuple[Model, Mapping[str, str]]:
    """Return an encoder and a decoder that reads it as one model, and the names of the encoder's inputs there."""
    if fault := joining_fault(encoder, decoder):
        raise UnknownMethodError(fault)
    links = _link_models(encoder, decoder)
    whole = decoder.with_proto(decoder.proto)
    ahead = onnx.compose.add_prefix(whole.adopt(encoder), ENCODER).graph
    proto = ModelProto()
    proto.CopyFrom(decoder.proto)
    proto.graph.initializer.extend(ahead.initializer)
    edit = InterfaceEdit(whole.with_proto(proto), [*ahead.node])
    for name, source in links.items():
        edit.add("Identity", [ENCODER + source], name)
    inputs = [*ahead.input, *(info for info in decoder.proto.graph.input if info.name not in links)]
    outputs = [*proto.graph.output, *ahead.output]
    return edit.result(inputs, outputs), {info.name.removeprefix(ENCODER): info.name for info in ahead.input}
