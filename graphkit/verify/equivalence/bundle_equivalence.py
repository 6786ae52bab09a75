"""The methods of a bundle against the decoders that they were made of: equal logits, and equal state.

A method is given the interface of its original: its slots are the past, and behind it slots that may hold anything;
what it gives back is the present. Both are models then, which `check_equivalence` compares. By induction over its
calls, a bundle gives at each step what the original gives.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.compose
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from graphkit.deploy.contract.bundle_contract import BundleContract, BundleMethod, BundlePort, StateTensor
from graphkit.deploy.contract.contract_reader import read_bundle
from graphkit.graph.cache_entries import CacheEntry
from graphkit.model import Model, load
from graphkit.verify.equivalence.check import check_equivalence
from graphkit.verify.equivalence.equivalence_result import Equivalence, OutputProof
from graphkit.verify.originals import Originals

__all__ = ["check_bundle"]

OWN = "proof/"  # before names that a proof adds
ENCODER = f"{OWN}encoder/"
MOST = np.iinfo(np.int64).max


class _UnknownError(Exception):
    """The contract, or the original, does not say what a proof needs."""


def check_bundle(originals: Originals, folder: str | os.PathLike[str]) -> dict[str, Equivalence]:
    """Check whether each method of a bundle gives what its decoder gives, with the logits of all tokens.

    Args:
        originals: The models that it was made of, decoders apart.
        folder: The bundle.

    Returns:
        By method. The outputs are those of the decoder, and each state as what it stands for in the decoder.
    """
    contract = read_bundle(Path(folder) / "bundle.json")
    return {
        method.name: _checked(originals, contract, method, load(Path(folder) / method.file))
        for method in contract.methods
        if method.when in ("once", "step")
    }


def _checked(originals: Originals, contract: BundleContract, method: BundleMethod, model: Model) -> Equivalence:
    try:
        original = _original(originals, method)
        adapter = _Adapter(original, contract, method, model)
        pair = original.model(adapter.shown), adapter.model()
    except _UnknownError as error:
        proofs = [OutputProof(port.name, "unknown", reason=str(error)) for port in method.outputs]
        return Equivalence(tuple(proofs), {}, (), 0)
    unread = [value.name for value in pair[0].graph.inputs if value.name not in adapter.taken]
    return check_equivalence(*pair, values=original.values, renamed=adapter.renamed, unread=unread, free=adapter.free)


@dataclass
class _Edit:
    """A copy of a model with nodes in front and at the end, and with other inputs and outputs."""

    source: Model
    front: list[NodeProto] = field(default_factory=list)
    end: list[NodeProto] = field(default_factory=list)
    numbers: dict[str, TensorProto] = field(default_factory=dict)

    def add(self, op: str, inputs: Sequence[str], output: str, *, last: bool = False, **attributes: Any) -> str:
        (self.end if last else self.front).append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def number(self, number: int, name: str = "") -> str:
        name = name or f"{OWN}number/{number}"
        self.numbers[name] = numpy_helper.from_array(np.array([number]), name)
        return name

    def result(self, inputs: Iterable[ValueInfoProto], outputs: Iterable[ValueInfoProto]) -> Model:
        proto = ModelProto()
        proto.CopyFrom(self.source.proto)
        nodes = [*self.front, *self.source.proto.graph.node, *self.end]
        for name, content in (("node", nodes), ("input", [*inputs]), ("output", [*outputs])):
            proto.graph.ClearField(name)
            getattr(proto.graph, name).extend(content)
        proto.graph.initializer.extend(self.numbers.values())
        return self.source.with_proto(proto)


@dataclass(frozen=True, eq=False)
class _Original:
    """What a method stands for: a decoder, or an encoder and the first step of a decoder as one model.

    Attributes:
        whole: The model.
        decoder: The decoder in it, by the names that it has there.
        cache: What each state is, by state.
        has_past: Whether the method goes on from a past.
        kept: The input of the encoder that each other state is, by state.
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
        entries = [each for each in self.cache.values() if each.past is not None and each.present is not None]
        return next((each for each in entries if self.has_past and not self.decoder.roles.is_cross(each)), None)

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
            raise _UnknownError(f"its original has no '{name}'")
        info = ValueInfoProto()
        info.CopyFrom(self.ports[name])
        info.name = as_ or name
        if name == self.role("mask") and self.grown is not None and self.grown.past is not None:
            tokens, past = (self.whole_dims(each) for each in (self.role("tokens"), self.grown.past.name))
            info.type.tensor_type.shape.dim[1].dim_param = f"{past[self.grown.axis or 0]} + {tokens[1]}"
        return info

    def whole_dims(self, name: str) -> list[str | int]:
        """Return the declared dims of an input, 0 for those that have no name."""
        return [dim.dim_param or dim.dim_value for dim in self.ports[name].type.tensor_type.shape.dim]

    def model(self, shown: Mapping[str, str]) -> Model:
        """Return it with the positions that a bundle counts, and with other outputs: what each shows, by name."""
        edit = _Edit(self.whole)
        positions = self.role("positions")
        if positions:
            self._count_positions(edit, positions)
        outputs = [self.like(source, name) for name, source in shown.items()]
        for name, source in shown.items():
            if name != source:
                edit.add("Identity", [source], name, last=True)
        inputs = [info.name for info in self.whole.proto.graph.input if info.name != positions]
        return edit.result(map(self.like, inputs), outputs)

    def _count_positions(self, edit: _Edit, name: str) -> None:
        """Count the tokens before each one that the mask has, from 0 on."""
        mask = self.role("mask")
        if not mask:
            raise _UnknownError("its positions are counted without a mask")
        one = edit.number(1)
        sums = edit.add("CumSum", [edit.add("Cast", [mask], f"{OWN}mask", to=TensorProto.INT64), one], f"{OWN}sums")
        found = edit.add("Max", [edit.add("Sub", [sums, one], f"{OWN}before"), edit.number(0)], f"{OWN}positions")
        past = edit.number(0)
        if self.grown is not None and self.grown.past is not None:
            past = _past_length(edit, self.grown.past.name, self.grown.axis)
        edit.add("Slice", [found, past, edit.number(MOST), one], name)


def _past_length(edit: _Edit, past: str, axis: int | None, name: str = f"{OWN}past_length") -> str:
    if axis is None:
        raise _UnknownError(f"it is not known how {past} grows")
    shape = edit.add("Shape", [past], f"{OWN}past_shape")
    return edit.add("Gather", [shape, edit.number(axis)], name)


def _original(originals: Originals, method: BundleMethod) -> _Original:
    step = originals.step
    if step is None:
        raise _UnknownError("it has no decoder")
    names = {entry.slot: value.name for value, entry in step.roles.pasts.items()}
    has_past = "length" in method.sources
    decoder = step if has_past else originals.first
    if decoder is None or (decoder.roles.pasts and not has_past and decoder.roles.decoder is None):
        raise _UnknownError("its original has a past where the method has none")
    cache = {names[entry.slot]: entry for entry in decoder.roles.cache if entry.slot in names}
    if has_past or originals.encoder is None:
        return _Original(decoder, decoder, cache, has_past)
    whole, inputs = _joined(originals.encoder, decoder)
    mask = originals.encoder.roles.first("mask")
    masks = [value.name for value, role in step.roles.inputs.items() if role == "encoder mask"]
    kept = {} if mask is None else dict.fromkeys(masks, inputs[mask.name])
    return _Original(whole, decoder, cache, has_past, kept, inputs)


def _joined(encoder: Model, decoder: Model) -> tuple[Model, Mapping[str, str]]:
    """Return an encoder and a decoder that reads it as one model, and what the encoder's inputs are called there."""
    states = [value.name for value, role in decoder.roles.inputs.items() if role == "encoder state"]
    hidden = [value.name for value, role in encoder.roles.outputs.items() if role == "encoder state"]
    hidden = hidden or [value.name for value in encoder.graph.outputs[:1]]
    masks, mask = decoder.roles.all("encoder mask"), encoder.roles.first("mask")
    if len(states) != 1 or len(hidden) != 1 or (masks and mask is None):
        raise _UnknownError("it is not known what the decoder reads of the encoder")
    links = {states[0]: hidden[0], **{value.name: mask.name for value in masks if mask is not None}}
    whole = decoder.with_proto(decoder.proto)
    ahead = onnx.compose.add_prefix(whole.adopt(encoder), ENCODER).graph
    proto = ModelProto()
    proto.CopyFrom(decoder.proto)
    proto.graph.initializer.extend(ahead.initializer)
    edit = _Edit(whole.with_proto(proto), [*ahead.node])
    for name, source in links.items():
        edit.add("Identity", [ENCODER + source], name)
    inputs = [*ahead.input, *(info for info in decoder.proto.graph.input if info.name not in links)]
    return edit.result(inputs, proto.graph.output), {info.name.removeprefix(ENCODER): info.name for info in ahead.input}


class _Adapter:
    """A method on its way to the interface of its original.

    Attributes:
        shown: What each output is in the original, by the name that both give it.
        renamed: What inputs are called in the original.
        free: Inputs that are slots behind those in use.
    """

    def __init__(self, original: _Original, contract: BundleContract, method: BundleMethod, model: Model) -> None:
        self.original, self.method, self.edit = original, method, _Edit(model)
        self.states: Mapping[str, StateTensor] = {state.name: state for state in contract.states}
        self.shown: dict[str, str] = {}
        self.renamed: dict[str, str] = {}
        self.free: list[str] = []
        self.taken: dict[str, ValueInfoProto] = {}  # by the name in the original
        self.mask = original.role("mask")
        for port in method.inputs:
            self._feed(port)
        for port in method.outputs:
            self._show(port)

    def model(self) -> Model:
        """Return the method with that interface."""
        order = [info.name for info in self.original.whole.proto.graph.input]
        outputs = [self.original.like(source, name) for name, source in self.shown.items()]
        return self.edit.result([self.taken[name] for name in (*order, *self.free) if name in self.taken], outputs)

    # Inputs

    def _take(self, name: str, own: str) -> str:
        """Take an input of the original, under a name of its own."""
        if name not in self.taken:
            self.taken[name] = self.original.like(name, own)
            self.renamed[own] = name
        return self.taken[name].name

    def _feed(self, port: BundlePort) -> None:
        assert port.source is not None
        kind, state = port.source.kind, self.states.get(port.source.of)
        if kind == "tokens":
            self._take(self.original.role("tokens"), port.name)
        elif kind == "user":
            self._take(self.original.user.get(port.name, port.name), port.name)
        elif kind == "length":
            self._past_length()
        elif kind == "kept":
            self.edit.number(0, port.name)
        elif kind == "mask":
            one, most = self.edit.number(1), self.edit.number(MOST)
            self.edit.add("Slice", [self._whole_mask(), self._past_length(), most, one], port.name)
        elif state is not None and state.update == "slots":
            self._fill(port, state)
        elif state is not None and state.update in ("whole", "swap"):
            self._take(state.name, port.name)
        else:
            raise _UnknownError(
                f"it is not known what {port.name} holds" if state is None else f"{state.name} is a ring"
            )

    def _whole_mask(self) -> str:
        return self._take(self.mask, f"{OWN}whole/{self.mask}")

    def _past(self, name: str) -> str:
        return self._take(name, f"{OWN}past/{name}")

    def _past_length(self) -> str:
        entry = self.original.grown
        name = self.method.sources["length"][0].name if self.original.has_past else ""
        if entry is None or entry.past is None:
            return self.edit.number(0)
        is_there = any(name in node.output for node in self.edit.front)
        return name if is_there else _past_length(self.edit, self._past(entry.past.name), entry.axis, name)

    def _fill(self, port: BundlePort, state: StateTensor) -> None:
        """Make slots of those in use, which are the past, and of others, which may hold anything."""
        axis, source = self._stands_for(state)
        self.free.append(f"{OWN}unused/{state.name}")
        self.taken[self.free[-1]] = self._unused(self.free[-1], state, axis, source)
        if not self.original.has_past:
            self.edit.add("Identity", self.free[-1:], port.name)
            return
        if state.name == self.mask:
            zero, one = self.edit.number(0), self.edit.number(1)
            past = [self._whole_mask(), zero, self._past_length(), one]
            used = self.edit.add("Slice", past, f"{OWN}used/{state.name}")
        else:
            used = self._past(state.name)
        assert state.axis is not None
        perm = _moved(axis, state.axis, len(state.shape))
        used = self.edit.add("Transpose", [used], f"{OWN}slots/{state.name}", perm=perm)
        self.edit.add("Concat", [used, self.free[-1]], port.name, axis=state.axis)

    def _stands_for(self, state: StateTensor) -> tuple[int, str]:
        """Return the axis along which a state grows in the original, and an input or output that it stands for."""
        if state.name == self.mask:
            return 1, self.mask
        entry = self.original.cache.get(state.name)
        if entry is None or entry.present is None or entry.axis is None or state.axis is None:
            raise _UnknownError(f"it is not known what {state.name} is in the original")
        return entry.axis, entry.present.name

    def _unused(self, name: str, state: StateTensor, axis: int, source: str) -> ValueInfoProto:
        """Declare the slots behind those in use: the new ones, and any number of others where a method gets all."""
        declared = [self.original.like(each).type.tensor_type for each in (source, self.original.role("tokens"))]
        dims, tokens = ([dim.dim_param or dim.dim_value for dim in each.shape.dim] for each in declared)
        del dims[axis]
        if not all((*dims, *tokens[1:2])):
            raise _UnknownError(f"the dims of {source} have no names")
        assert state.axis is not None
        dims.insert(state.axis, tokens[1] if state.prefix else f"{tokens[1]} + unused_slots")
        return helper.make_tensor_value_info(name, declared[0].elem_type, dims)

    # Outputs

    def _show(self, port: BundlePort) -> None:
        """Show an output as what it is in the original."""
        state = self.states.get(port.writes)
        if state is None:
            self.shown[port.name] = port.name
            return
        name = f"{OWN}after/{state.name}"
        if state.update != "slots":
            entry = self.original.cache.get(state.name)
            present = None if entry is None else entry.present
            self.shown[name] = self.original.kept.get(state.name, "") if present is None else present.name
            self.edit.add("Identity", [port.name], name, last=True)
            return
        axis, self.shown[name] = self._stands_for(state)
        assert state.axis is not None
        given = port.name
        if not state.prefix:
            zero, at = self.edit.number(0), self.edit.number(state.axis)
            given = self.edit.add("Slice", [given, zero, self._all_length(), at], f"{name}/used", last=True)
        self.edit.add("Transpose", [given], name, last=True, perm=_moved(state.axis, axis, len(state.shape)))

    def _all_length(self) -> str:
        """Return how many slots are in use after a call."""
        name, tokens = f"{OWN}length_after", self.method.sources["tokens"][0].name
        if all(name not in node.output for node in self.edit.front):
            shape = self.edit.add("Shape", [tokens], f"{OWN}tokens_shape")
            new = self.edit.add("Gather", [shape, self.edit.number(1)], f"{OWN}new_length")
            self.edit.add("Add", [self._past_length(), new], name)
        return name


def _moved(source: int, target: int, rank: int) -> list[int]:
    """Return the permutation that brings one axis to another place, and leaves the others in their order."""
    others = [axis for axis in range(rank) if axis != source]
    return [*others[:target], source, *others[target:]]
