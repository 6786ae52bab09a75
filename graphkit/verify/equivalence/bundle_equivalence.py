"""The methods of a bundle against the decoders that they were made of: equal logits, and equal state.

A method is given the interface of its original: its slots are the past, and behind it slots that may hold anything;
what it gives back is the present. Both are models then, which `check_equivalence` compares. By induction over its
calls, a bundle gives at each step what the original gives.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from onnx import ValueInfoProto, helper

from graphkit.deploy.contract.bundle_contract import BundleContract, BundleMethod, BundlePort, StateTensor
from graphkit.deploy.contract.contract_reader import read_bundle
from graphkit.errors import ModelError
from graphkit.graph.names import count_things
from graphkit.model import Model, load
from graphkit.render.document_blocks import Block, Prose
from graphkit.shapes.infer import infer
from graphkit.shapes.input_dims import declare_dim, declared_inputs, read_dim
from graphkit.symbolic.expr import TooComplexError, const, symbol
from graphkit.time_limit import OutOfTimeError, time_limit
from graphkit.verify.equivalence.check import check_equivalence
from graphkit.verify.equivalence.equivalence_result import Equivalence, OutputProof
from graphkit.verify.equivalence.equivalence_summary import SECONDS, EquivalenceSummary
from graphkit.verify.equivalence.method_interface import dim_faults, port_faults, state_faults
from graphkit.verify.equivalence.method_originals import (
    MOST,
    OWN,
    InterfaceEdit,
    MethodOriginal,
    UnknownMethodError,
    original_of,
    past_length,
)
from graphkit.verify.originals import Originals

__all__ = ["ALL_METHODS", "bundle_blocks", "check_bundle", "summarize_bundle"]

ALL_METHODS = "its methods"  # in the place of their names, where there was no time to compare them
ALL_KEPT = 0  # logits of all tokens, where a method can choose
STATE = ("scatter", "tensor scatter")  # the axioms of writing in place


def check_bundle(originals: Originals, folder: str | os.PathLike[str]) -> dict[str, Equivalence]:
    """Check whether each method of a bundle gives the outputs of its decoder, with the logits of all tokens.

    Args:
        originals: The models that it was made of, decoders apart.
        folder: The bundle.

    Returns:
        By method, for each of its outputs: a state is compared as what it stands for in the decoder.
    """
    contract = read_bundle(Path(folder) / "bundle.json", altered=True)
    return {
        method.name: _check_method(originals, contract, method, load(Path(folder) / method.file))
        for method in contract.methods
        if method.when in ("once", "step")
    }


def summarize_bundle(
    originals: Originals, folder: str | os.PathLike[str], *, seconds: float | None
) -> dict[str, EquivalenceSummary]:
    """Return the result of `check_bundle` for each method; nothing where that takes too long."""
    try:
        with time_limit("the proof by normal forms", SECONDS if seconds is None else seconds):
            found = check_bundle(originals, folder)
    except (ModelError, OutOfTimeError, TooComplexError) as error:
        return {ALL_METHODS: EquivalenceSummary(unproven={"every output": str(error)})}
    return {method: EquivalenceSummary.of(each) for method, each in found.items()}


def bundle_blocks(equivalence: Mapping[str, EquivalenceSummary]) -> Iterator[Block]:
    """Yield the paragraphs of a report about the methods of a bundle, and the axiom of their state."""
    for method, shown in equivalence.items():
        yield from shown.blocks(method)
    if times := sum(shown.axioms.get(name, 0) for shown in equivalence.values() if shown.proven for name in STATE):
        yield Prose(
            "A state, by induction over calls: a Slice of what was written in place is the Concat of past and new "
            f"({count_things(times, 'time(s)')}), where the slots in use and the new ones fit."
        )


def _check_method(originals: Originals, contract: BundleContract, method: BundleMethod, model: Model) -> Equivalence:
    try:
        original = original_of(originals, method)
        adapter = _Adapter(original, contract, method, model)
        pair = original.model(adapter.shown), adapter.model()
    except UnknownMethodError as error:
        return _unknown_equivalence(method, str(error))
    shapes = infer(pair[0], values=original.values)
    of_ports = port_faults(contract, method, model, pair[1], shapes)
    faults = (*dim_faults(original), *state_faults(contract, method), *of_ports)
    if faults:
        return _unknown_equivalence(method, faults[0])
    unread = [value.name for value in pair[0].graph.inputs if value.name not in adapter.taken]
    found = check_equivalence(
        *pair, values=original.values, renamed=adapter.renamed, unread=unread, free=adapter.free, dims="named"
    )
    found = found.up_to(_largest_size(contract, method))
    ports = dict(zip(adapter.shown, method.outputs, strict=True))
    kept = [f"{port.name} = {ALL_KEPT}" for port in method.sources.get("kept", ())]
    return replace(
        found,
        outputs=tuple(replace(each, name=ports[each.name].name) for each in found.outputs),
        conditions=(*found.conditions, *kept),
    )


def _largest_size(contract: BundleContract, method: BundleMethod) -> int:
    """Return the largest size that any dim may have in a bundle."""
    shapes = [*(state.shape for state in contract.states), *(port.shape for port in (*method.inputs, *method.outputs))]
    return max((dim for shape in shapes for dim in shape if isinstance(dim, int)), default=0)


def _unknown_equivalence(method: BundleMethod, reason: str) -> Equivalence:
    return Equivalence(tuple(OutputProof(port.name, "unknown", reason=reason) for port in method.outputs))


class _Adapter:
    """A method on its way to the interface of its original.

    Attributes:
        shown: What each output is in the original, by the name that both give it.
        renamed: What inputs are called in the original.
        free: Inputs that are slots behind those in use.
    """

    def __init__(self, original: MethodOriginal, contract: BundleContract, method: BundleMethod, model: Model) -> None:
        self.original, self.method, self.edit = original, method, InterfaceEdit(model)
        self.states: Mapping[str, StateTensor] = {state.name: state for state in contract.states}
        self.shown: dict[str, str] = {}
        self.renamed: dict[str, str] = {}
        self.free: list[str] = []
        self.taken: dict[str, ValueInfoProto] = {}  # by the name in the original
        self.mask = original.role("mask")
        for port in method.inputs:
            self._feed_port(port)
        for port in method.outputs:
            self._show_output(port)

    def model(self) -> Model:
        """Return the method with that interface."""
        order = [info.name for info in self.original.whole.proto.graph.input]
        outputs = [self.original.like(source, name) for name, source in self.shown.items()]
        return self.edit.result([self.taken[name] for name in (*order, *self.free) if name in self.taken], outputs)

    # Inputs

    def _take_input(self, name: str, own: str) -> str:
        """Take an input of the original, under a name of its own."""
        if name not in self.taken:
            self.taken[name] = self.original.like(name, own)
            self.renamed[own] = name
        return self.taken[name].name

    def _feed_port(self, port: BundlePort) -> None:
        assert port.source is not None
        kind, state = port.source.kind, self.states.get(port.source.of)
        if kind == "tokens":
            self._take_input(self.original.role("tokens"), port.name)
        elif kind == "user":
            self._take_input(self.original.user.get(port.name, port.name), port.name)
        elif kind == "length":
            self._past_length()
        elif kind == "kept":
            self.edit.number(ALL_KEPT, port.name)
        elif kind == "mask":
            one, most = self.edit.number(1), self.edit.number(MOST)
            self.edit.add("Slice", [self._whole_mask(), self._past_length(), most, one], port.name)
        elif state is not None and state.update == "slots":
            self._fill_slots(port, state)
        elif state is not None and state.update in ("whole", "swap"):
            self._take_input(state.name, port.name)
        else:
            raise UnknownMethodError(
                f"it is not known what {port.name} holds" if state is None else f"{state.name} is a ring"
            )

    def _whole_mask(self) -> str:
        return self._take_input(self.mask, f"{OWN}whole/{self.mask}")

    def _past_input(self, name: str) -> str:
        return self._take_input(name, f"{OWN}past/{name}")

    def _past_length(self) -> str:
        entry = self.original.grown
        name = self.method.sources["length"][0].name if self.original.has_past else ""
        if entry is None or entry.past is None:
            return self.edit.number(0)
        is_there = any(name in node.output for node in self.edit.front)
        return name if is_there else past_length(self.edit, self._past_input(entry.past.name), entry.axis, name)

    def _fill_slots(self, port: BundlePort, state: StateTensor) -> None:
        """Make slots of those in use, which are the past, and of others, which may hold anything."""
        axis, source = self._stands_for(state)
        self.free.append(f"{OWN}unused/{state.name}")
        self.taken[self.free[-1]] = self._declare_unused(self.free[-1], state, axis, source)
        if not self.original.has_past:
            self.edit.add("Identity", self.free[-1:], port.name)
            return
        if state.name == self.mask:
            zero, one = self.edit.number(0), self.edit.number(1)
            past = [self._whole_mask(), zero, self._past_length(), one]
            used = self.edit.add("Slice", past, f"{OWN}used/{state.name}")
        else:
            used = self._past_input(state.name)
        assert state.axis is not None
        perm = _axis_permutation(axis, state.axis, len(state.shape))
        used = self.edit.add("Transpose", [used], f"{OWN}slots/{state.name}", perm=perm)
        self.edit.add("Concat", [used, self.free[-1]], port.name, axis=state.axis)

    def _stands_for(self, state: StateTensor) -> tuple[int, str]:
        """Return the axis along which a state grows in the original, and an input or output that it stands for."""
        if state.name == self.mask:
            return 1, self.mask
        entry = self.original.cache.get(state.name)
        if entry is None or entry.present is None or entry.axis is None or state.axis is None:
            raise UnknownMethodError(f"it is not known what {state.name} is in the original")
        return entry.axis, entry.present.name

    def _declare_unused(self, name: str, state: StateTensor, axis: int, source: str) -> ValueInfoProto:
        """Declare the slots behind those in use: the new ones, and any number of others where a method gets all."""
        declared = [self.original.like(each).type.tensor_type for each in (source, self.original.role("tokens"))]
        dims, tokens = ([dim.dim_param or dim.dim_value for dim in each.shape.dim] for each in declared)
        del dims[axis]
        if not all((*dims, *tokens[1:2])):
            raise UnknownMethodError(f"the dims of {source} have no names")
        assert state.axis is not None
        info = helper.make_tensor_value_info(name, declared[0].elem_type, [*dims, None])
        made, names = info.type.tensor_type.shape.dim, declared_inputs(self.original.whole).groups
        dims.insert(state.axis, tokens[1])
        for at, dim in enumerate(dims):
            unused = symbol("past_unused_slots") if at == state.axis and not state.prefix else const(0)
            declare_dim(made[at], read_dim(dim, names) + unused)
        return info

    # Outputs

    def _show_output(self, port: BundlePort) -> None:
        """Show an output by its name in the original."""
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
        self.edit.add("Transpose", [given], name, last=True, perm=_axis_permutation(state.axis, axis, len(state.shape)))

    def _all_length(self) -> str:
        """Return how many slots are in use after a call."""
        name, tokens = f"{OWN}length_after", self.method.sources["tokens"][0].name
        if all(name not in node.output for node in self.edit.front):
            shape = self.edit.add("Shape", [tokens], f"{OWN}tokens_shape")
            new = self.edit.add("Gather", [shape, self.edit.number(1)], f"{OWN}new_length")
            self.edit.add("Add", [self._past_length(), new], name)
        return name


def _axis_permutation(source: int, target: int, rank: int) -> list[int]:
    """Return the permutation that brings one axis to another place, and leaves the others in their order."""
    others = [axis for axis in range(rank) if axis != source]
    return [*others[:target], source, *others[target:]]
