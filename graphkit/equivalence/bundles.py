"""The methods of a bundle against the decoders that they were made of: equal logits, and equal state.

A method is given the interface of its original: its slots are the past, and behind it slots that may hold anything;
what it gives back is the present. Both are models then, which `check_equivalence` compares. By induction over its
calls, a bundle gives at each step what the original gives.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.compose
from msgspec import Struct, field
from msgspec.structs import replace
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from graphkit.contract.bundle_contract import BundleContract, BundleMethod, BundlePort, StateTensor
from graphkit.contract.contract_files import read_bundle
from graphkit.dtypes import dtype_name
from graphkit.equivalence.check import check_equivalence
from graphkit.equivalence.equivalence_summary import SECONDS, EquivalenceSummary
from graphkit.equivalence.interface import declaration_faults
from graphkit.equivalence.originals import Originals
from graphkit.equivalence.result import Equivalence
from graphkit.errors import ModelError, count_things
from graphkit.graph.cache_entries import CacheEntry
from graphkit.graph.declared_types import Dim, declared_type
from graphkit.graph.new_nodes import NewNode, make_concat, make_gather, make_slice
from graphkit.graph.roles import Role
from graphkit.graph.view import Value, all_nodes
from graphkit.model import Model, load
from graphkit.ops.rule_context import UnknownError
from graphkit.progress import OutOfTimeError, time_limit
from graphkit.render.document_blocks import Block, Prose
from graphkit.shapes import Expr, Shapes, lower
from graphkit.shapes.graph_inputs import Inputs
from graphkit.shapes.infer import infer, infer_from
from graphkit.shapes.input_dims import declare_dim, declared_inputs, named_inputs, read_dim
from graphkit.symbolic.expr import TooComplexError, const, symbol

# The original of each method of a bundle: a decoder, or an encoder and the first step of a decoder as one model.

OWN = "proof/"  # before names that a proof adds
ENCODER = f"{OWN}encoder/"
MOST = np.iinfo(np.int64).max


class InterfaceEdit(Struct):
    """A copy of a model with nodes in front and at the end, and with other inputs and outputs."""

    source: Model
    front: list[NodeProto] = field(default_factory=list)
    end: list[NodeProto] = field(default_factory=list)
    tensors: dict[str, TensorProto] = field(default_factory=dict)

    def add(self, op: str, inputs: Sequence[str], output: str, *, last: bool = False, **attributes: Any) -> str:
        """Add a node in front, or as the last one, and return its output."""
        return self.append(NewNode(op, inputs, [output], attributes), last=last)

    def append(self, node: NewNode, *, last: bool = False) -> str:
        """Add a node in front, or as the last one, and return its output."""
        (self.end if last else self.front).append(node.to_proto())
        return node.outputs[0]

    def number(self, number: int, name: str = "") -> str:
        """Add a list of one integer, and return its name."""
        name = name or f"{OWN}number/{number}"
        self.tensors[name] = numpy_helper.from_array(np.array([number]), name)
        return name

    def result(self, inputs: Iterable[ValueInfoProto], outputs: Iterable[ValueInfoProto]) -> Model:
        """Return the model with these inputs and outputs."""
        proto = deepcopy(self.source.proto)
        nodes = [*self.front, *self.source.proto.graph.node, *self.end]
        for name, content in (("node", nodes), ("input", [*inputs]), ("output", [*outputs])):
            proto.graph.ClearField(name)
            getattr(proto.graph, name).extend(content)
        proto.graph.initializer.extend(self.tensors.values())
        return self.source.with_proto(proto)


class MethodOriginal(Struct, frozen=True, eq=False, dict=True):
    """The original of a method: a decoder, or an encoder and the first step of a decoder as one model."""

    whole: Model  # the model
    decoder: Model  # the decoder in it, by the names that it has there
    cache: Mapping[str, CacheEntry]  # what each state is, by state
    axes: Mapping[str, int | None]  # the axis along which each state grows, None for none that is known
    has_past: bool  # whether the method goes on from a past
    # the output, or the input or output of the encoder, that each other state is, by state
    kept: dict[str, str] = field(default_factory=dict)
    # the inputs of the encoder, by the names that they have for a caller
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

    @cached_property
    def tokens(self) -> str:
        """The decoder's input of tokens, or of their embeddings; "" for none."""
        return self.role("tokens") or self.role("embeddings")

    def like(self, name: str, as_: str = "") -> ValueInfoProto:
        """Return the declaration of an input or output, under another name where one is given."""
        if name not in self.ports:
            raise UnknownError(f"its original has no '{name}'" if name else "its original has no input of tokens")
        info = deepcopy(self.ports[name])
        info.name = as_ or name
        if name == self.role("mask") and self.grown is not None and self.grown.past is not None:
            shapes = (self.ports[each].type.tensor_type.shape for each in (self.tokens, self.grown.past.name))
            tokens, past = ([dim.dim_param or dim.dim_value for dim in shape.dim] for shape in shapes)
            names = declared_inputs(self.whole).groups
            total = read_dim(past[self.grown.axis or 0], names) + read_dim(tokens[1], names)
            declare_dim(info.type.tensor_type.shape.dim[1], total)
        return info

    def model(self, shown: Mapping[str, str]) -> Model:
        """Return it with the positions that a bundle counts, and with other outputs: the value of each, by name."""
        edit = InterfaceEdit(self.whole)
        if positions := self.role("positions"):
            self._count_positions(edit, positions)
        outputs = [self.like(source, name) for name, source in shown.items()]
        for name, source in shown.items():
            if name != source:
                edit.add("Identity", [source], name, last=True)
        inputs = [info.name for info in self.whole.proto.graph.input if info.name != positions]
        return edit.result(map(self.like, inputs), outputs)

    def _count_positions(self, edit: InterfaceEdit, positions: str) -> None:
        """Add the positions of tokens: how many are before each one, of those that the mask has where there is one."""
        past, zero, one = edit.number(0), edit.number(0), edit.number(1)
        if self.grown is not None and self.grown.past is not None:
            past = past_length(edit, self.grown.past.name, self.grown.axis)
        mask = self.role("mask")
        if mask and len(self.ports[mask].type.tensor_type.shape.dim) != 2:
            raise UnknownError("its positions are counted from a mask that is no list for each row")
        if mask:
            sums = edit.add("CumSum", [edit.add("Cast", [mask], f"{OWN}mask", to=TensorProto.INT64), one], f"{OWN}sums")
            found = edit.add("Max", [edit.add("Sub", [sums, one], f"{OWN}before"), zero], f"{OWN}positions")
            edit.append(make_slice(found, past, edit.number(MOST), one, out=positions))
            return
        if len(self.ports[positions].type.tensor_type.shape.dim) != 2:
            raise UnknownError("its positions are no list for each row, and it takes no mask")
        dims = edit.add("Shape", [self.tokens], f"{OWN}dims")
        shape = edit.append(make_slice(dims, zero, edit.number(2), zero, out=f"{OWN}tokens_shape"))
        count = edit.append(make_gather(shape, one, None, f"{OWN}new_length"))
        first, last, step = (edit.add("Squeeze", [each], f"{each}/scalar") for each in (zero, count, one))
        found = edit.add("Add", [edit.add("Range", [first, last, step], f"{OWN}range"), past], f"{OWN}counted")
        edit.add("Expand", [found, shape], positions)


def past_length(edit: InterfaceEdit, past: str, axis: int | None, name: str = f"{OWN}past_length") -> str:
    """Add the length of a past along an axis, and return its name."""
    if axis is None:
        raise UnknownError(f"it is not known how {past} grows")
    return edit.append(make_gather(edit.add("Shape", [past], f"{OWN}past_shape"), edit.number(axis), None, name))


def original_of(originals: Originals, contract: BundleContract, method: BundleMethod) -> MethodOriginal:
    """Return the model that a method stands for; UnknownError where none is known, or how its parts fit together.

    Its inputs have the dims that a host gives them: those that are one in the contract are one, and fixed if they are.
    """
    if (step := originals.step) is None:
        raise UnknownError("it has no decoder")
    names = {entry.slot: value.name for value, entry in step.roles.pasts.items()}
    has_past, is_step = "length" in method.sources, method.when == "step"
    if is_step and step.roles.pasts and not has_past:
        raise UnknownError("it goes on from no past, as it does not read its length")
    if has_past and not is_step and originals.first is not step:
        raise UnknownError("it goes on from a past, and its original begins with another decoder")
    decoder = step if has_past or is_step else originals.first
    if decoder is None or (decoder.roles.pasts and not has_past and decoder.roles.decoder is None):
        raise UnknownError("its original has a past where the method has none")
    cache = {names[entry.slot]: entry for entry in decoder.roles.cache if entry.slot in names}
    later = {value.name: entry.axis for value, entry in step.roles.pasts.items()}  # a start of one token tells of none
    axes = {name: later[name] if entry.axis is None else entry.axis for name, entry in cache.items()}
    found = MethodOriginal(decoder, decoder, cache, axes, has_past, _next_states(decoder, step))
    if not has_past and originals.encoder is not None:
        whole, inputs = _join_models(originals.encoder, decoder)
        links = {name: ENCODER + source for name, source in _link_models(originals.encoder, step).items()}
        found = MethodOriginal(whole, decoder, cache, axes, has_past, found.kept | links, user=inputs)
    return replace(found, whole=_with_fed_dims(found, contract, method))


def _next_states(decoder: Model, step: Model) -> dict[str, str]:
    """Return the output of a decoder that each recurrent state is, by the input of a step that reads it."""
    if decoder is step:
        return {entry.past.name: entry.next.name for entry in step.roles.states}
    given = {info.name.removeprefix("output."): info.name for info in decoder.proto.graph.output}
    pasts = {entry.past.name.removeprefix("input."): entry.past.name for entry in step.roles.states}
    return {pasts[name]: given[name] for name in pasts.keys() & given.keys()}


def _with_fed_dims(original: MethodOriginal, contract: BundleContract, method: BundleMethod) -> Model:
    """Return the model of an original whose inputs have the dims that a host gives them, which may feed no others."""
    proto, fed = deepcopy(original.whole.proto), dict[str, Sequence[Dim]]()
    states = {state.name: state for state in contract.states}
    for port in sorted(method.inputs, key=lambda port: port.kind != "tokens"):  # whose names count
        state = states.get(port.state)
        if port.kind == "mask":
            fed[original.role("mask")] = [*port.shape[:1], None] if original.has_past else port.shape
        elif state is None or state.update != "slots":
            name = original.tokens if port.kind == "tokens" else original.user.get(port.name, port.name)
            fed[name if state is None else state.name] = port.shape
        elif (axis := original.axes.get(state.name)) is not None and state.axis is not None:
            held = [state.length if at == state.axis else dim for at, dim in enumerate(port.shape)]
            fed[state.name] = [held[at] for at in _axis_permutation(state.axis, axis, len(held))]
    infos, meant = {info.name: info for info in proto.graph.input}, dict[Dim, str]()
    for name, sizes in fed.items():
        dims = infos[name].type.tensor_type.shape.dim if name in infos else ()
        for dim, size in zip(dims, sizes if len(dims) == len(sizes) else (), strict=False):
            if isinstance(size, int) and dim.dim_param:
                dim.dim_value = size
            elif size is not None and dim.dim_param:
                dim.dim_param = meant.setdefault(size, dim.dim_param)
    return original.whole.with_proto(proto)


def _link_models(encoder: Model, decoder: Model) -> dict[str, str]:
    """Return the input or output of an encoder that each input of a decoder is, by these."""
    hidden = [value for value, role in encoder.roles.outputs.items() if role == "encoder state"]
    hidden, masks = hidden or [*encoder.graph.outputs[:1]], encoder.roles.all("mask")
    links: dict[str, str] = {}
    for role, sources in (("encoder state", hidden), ("encoder mask", masks)):
        values = [value.name for value, each in decoder.roles.inputs.items() if each == role]
        if values and len(sources) != 1:
            raise UnknownError("it is not known what the decoder reads of the encoder")
        for name in values:
            links[name] = sources[0].name
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
        raise UnknownError(fault)
    links = _link_models(encoder, decoder)
    whole = decoder.with_proto(decoder.proto)
    ahead = onnx.compose.add_prefix(whole.adopt(encoder), ENCODER).graph
    edit = InterfaceEdit(whole, [*ahead.node], tensors={tensor.name: tensor for tensor in ahead.initializer})
    for name, source in links.items():
        edit.add("Identity", [ENCODER + source], name)
    inputs = [*ahead.input, *(info for info in decoder.proto.graph.input if info.name not in links)]
    outputs = [*decoder.proto.graph.output, *ahead.output]
    return edit.result(inputs, outputs), {info.name.removeprefix(ENCODER): info.name for info in ahead.input}


# What a method of a bundle declares, and what its contract says of lengths: both as the induction over calls needs.

TOKENS = 1  # the axis of tokens
OF_TOKENS: tuple[Role, ...] = ("tokens", "embeddings", "mask", "positions", "token types")  # inputs that go with them


def dim_faults(original: MethodOriginal) -> Iterator[str]:
    """Yield dims of an original that have one name and need not be equal: those of its past, its tokens and its source.

    A proof is about sizes at which dims of one name are equal, and no runtime checks that they are. A past is empty at
    first, so its dim must be a name of its own.
    """
    whole = original.whole
    dims = {name: each or () for name, each in Inputs(whole, declared=named_inputs(whole)).symbolic.items()}
    tokens, grown = dims.get(original.tokens, ()), original.grown_pasts
    with_tokens = {original.role(role) for role in OF_TOKENS}
    others = [dim for name, each in dims.items() if name not in with_tokens and name not in grown for dim in each]
    others += [dim for name, axis in grown.items() for at, dim in enumerate(dims[name]) if at != axis]
    others += tokens[:TOKENS]
    past, new = _symbols_of(dims[name][axis] for name, axis in grown.items()), _symbols_of(tokens[TOKENS:])
    shared = past & new | (past | new) & _symbols_of(others)
    for name in sorted(shared):
        yield f"dim '{name}' is declared for what need not be as long: past, tokens or source"
    for name, axis in grown.items():
        if dims[name][axis].name is None or lower(dims[name][axis]) != 0:
            yield f"the past {name} is declared {dims[name][axis]} along axis {axis}, which is no dim that may be 0"


def _symbols_of(dims: Iterable[Expr]) -> set[str]:
    return {name for dim in dims for name in dim.symbols}


def state_faults(contract: BundleContract, method: BundleMethod) -> Iterator[str]:
    """Yield why the state is not the past after a call, as it was before it.

    A method with tokens makes the length larger by as many, and writes them into each state that is kept in slots. A
    start writes all state that steps read.
    """
    slots = [state for state in contract.states if state.update == "slots"]
    lengths, tokens = {state.length for state in slots}, method.sources.get("tokens", ())
    if len(lengths) > 1 or len(tokens) > 1:
        yield "it has several lengths, or several inputs of tokens"
        return
    wanted = [(length, port.name, TOKENS) for length in lengths for port in tokens]
    if wanted != [(change.length, change.input, change.axis) for change in method.changes]:
        yield "it does not make its length larger by its number of tokens"
    if others := {port.of for port in method.sources.get("length", ())} - lengths:
        yield f"it reads length '{min(others)}', which counts no slots"
    written = {port.writes for port in method.outputs}
    # a start has to write what steps read without slots, a step what it swaps
    steps = [method] if method.when == "step" else [each for each in contract.methods if each.when == "step"]
    read = {port.of for each in steps for port in each.inputs if port.kind == "state"}
    updates = ("swap",) if method.when == "step" else ("swap", "whole")
    needed = [*slots, *(state for state in contract.states if state.name in read and state.update in updates)]
    yield from (f"it does not write state '{state.name}'" for state in needed if state.name not in written)


def port_faults(
    contract: BundleContract, method: BundleMethod, model: Model, adapted: Model, original: Shapes
) -> Iterator[str]:
    """Yield what a method declares of its inputs and outputs, and they are not.

    `adapted` is its model with the interface of its original, which computes all inputs.
    """
    states = {state.name: state for state in contract.states}
    ports = {port.name: port for port in (*method.inputs, *method.outputs)}

    def is_all_slots(name: str, axis: int, claim: int) -> bool:
        """Whether a number is that of all slots, which a method gets where they are no prefix."""
        state = states.get(ports[name].state)
        is_whole = state is not None and state.update == "slots" and not state.prefix
        return is_whole and state is not None and axis == state.axis and state.shape[axis] == claim

    for ends, theirs in ((model.graph.inputs, method.inputs), (model.graph.outputs, method.outputs)):
        names = {value.name for value in ends}, {port.name for port in theirs}
        yield from (f"{name} is no port of its contract, or none of its model" for name in sorted(names[0] ^ names[1]))
    values = [value for value in (*model.graph.inputs, *model.graph.outputs) if value.name in ports]
    for value in values:
        declared, port = declared_type(value), ports[value.name]
        if declared is not None and dtype_name(declared.dtype) != port.dtype:
            yield f"{value.name} is {port.dtype} to a host, and {dtype_name(declared.dtype)} in its model"
        if declared is not None and declared.dims is not None and len(declared.dims) != len(port.shape):
            yield f"{value.name} has {len(port.shape)} dims to a host, and {len(declared.dims)} in its model"
    shapes = infer_from(adapted, Inputs(adapted, declared=named_inputs(adapted)))  # a host feeds them so
    yield from declaration_faults(values, shapes, original, is_all_slots)
    yield from _shape_faults(values, ports, shapes)


def _shape_faults(values: Collection[Value], ports: Mapping[str, BundlePort], shapes: Shapes) -> Iterator[str]:
    """Yield dims that a host is told otherwise than the model has them: numbers, and names that have another one there.

    Names of the model may be others, each for one of the host's, and for what is a number there.
    """
    known: dict[Dim, set[int | str]] = {}
    told: dict[int | str, set[Dim]] = {}
    for value in values:
        declared, shape = declared_type(value), ports[value.name].shape
        if declared is None or declared.dims is None or len(declared.dims) != len(shape):
            continue
        there = shapes.model.graph.values.get(value.name)
        computed = (None if there is None else shapes[there].dims) or (None,) * len(shape)
        for axis, (dim, size) in enumerate(zip(declared.dims, shape, strict=True)):
            if isinstance(size, int) and dim != size and computed[axis] != size:
                yield f"{value.name} has {size} along axis {axis} to a host, and {dim or 'any size'} in its model"
            elif isinstance(dim, str):
                known.setdefault(dim, set()).add(size)
            if isinstance(size, str):
                told.setdefault(size, set()).add(dim)
    for dim, sizes in known.items():
        if len(sizes) > 1:
            yield f"'{dim}' of its model is {' and '.join(sorted(map(str, sizes)))} to a host"
    for size, dims in told.items():
        if size in known and size not in dims:
            yield f"'{size}' to a host is {' and '.join(sorted(map(str, dims)))} in its model"


ALL_METHODS = "its methods"  # in the place of their names, where there was no time to compare them
ALL_KEPT = 0  # logits of all tokens, where a method can choose
STATE = ("scatter", "tensor scatter")  # the axioms of writing in place


def check_bundle(originals: Originals, folder: str | os.PathLike[str]) -> dict[str, Equivalence]:
    """Check whether each method of a bundle gives the outputs of the decoder that it was made of, with all logits.

    The decoders are apart. A state is compared as what it stands for in the decoder.
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
    if originals.head is not None:
        return {}
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
        original = original_of(originals, contract, method)
        adapter = _Adapter(original, contract, method, model)
        pair = original.model(adapter.shown), adapter.model()
        of_ports = port_faults(contract, method, model, pair[1], infer(pair[0], values=original.values))
        for fault in (*dim_faults(original), *state_faults(contract, method), *of_ports):
            raise UnknownError(fault)
    except UnknownError as error:
        return Equivalence.unknown((port.name for port in method.outputs), str(error))
    unread = [value.name for value in pair[0].graph.inputs if value.name not in adapter.taken]
    free, names = adapter.free, adapter.renamed
    found = check_equivalence(*pair, values=original.values, renamed=names, unread=unread, free=free, dims="named")
    dims = (dim for port in (*method.inputs, *method.outputs) for dim in port.shape)
    sizes = [*(size for state in contract.states for size in state.shape), *(d for d in dims if isinstance(d, int))]
    found = found.up_to(max(sizes, default=0))
    ports = dict(zip(adapter.shown, method.outputs, strict=True))
    kept = [f"{port.name} = {ALL_KEPT}" for port in method.sources.get("kept", ())]
    outputs = tuple(replace(each, name=ports[each.name].name) for each in found.outputs)
    return replace(found, outputs=outputs, conditions=(*found.conditions, *kept))


class _Adapter:
    """A method on its way to the interface of its original."""

    def __init__(self, original: MethodOriginal, contract: BundleContract, method: BundleMethod, model: Model) -> None:
        self.original, self.method, self.edit = original, method, InterfaceEdit(model)
        self.states: Mapping[str, StateTensor] = {state.name: state for state in contract.states}
        self.shown: dict[str, str] = {}  # what each output is in the original, by the name that both give it
        self.renamed: dict[str, str] = {}  # what inputs are called in the original
        self.free: list[str] = []  # inputs that are slots behind those in use
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

    def _take_input(self, name: str, own: str) -> str:
        if name not in self.taken:
            self.taken[name] = self.original.like(name, own)
            self.renamed[own] = name
        return self.taken[name].name

    def _feed_port(self, port: BundlePort) -> None:
        assert port.source is not None
        kind, state = port.source.kind, self.states.get(port.source.of)
        if kind == "tokens":
            self._take_input(self.original.tokens, port.name)
        elif kind == "user":
            self._take_input(self.original.user.get(port.name, port.name), port.name)
        elif kind == "length":
            self._past_length()
        elif kind == "kept":
            self.edit.number(ALL_KEPT, port.name)
        elif kind == "mask":
            one, most = self.edit.number(1), self.edit.number(MOST)
            self.edit.append(make_slice(self._whole_mask(), self._past_length(), most, one, out=port.name))
        elif state is not None and state.update == "slots":
            self._fill_slots(port, state)
        elif state is not None and state.update in ("whole", "swap"):
            self._take_input(state.name, port.name)
        else:
            unknown = f"it is not known what {port.name} holds"
            raise UnknownError(unknown if state is None else f"{state.name} is a ring")

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
            past = make_slice(self._whole_mask(), zero, self._past_length(), one, out=f"{OWN}used/{state.name}")
            used = self.edit.append(past)
        else:
            used = self._past_input(state.name)
        assert state.axis is not None
        perm = _axis_permutation(axis, state.axis, len(state.shape))
        used = self.edit.add("Transpose", [used], f"{OWN}slots/{state.name}", perm=perm)
        self.edit.append(make_concat([used, self.free[-1]], state.axis, port.name))

    def _stands_for(self, state: StateTensor) -> tuple[int, str]:
        """Return the axis along which a state grows in the original, and an input or output that it stands for."""
        if state.name == self.mask:
            return 1, self.mask
        entry, axis = self.original.cache.get(state.name), self.original.axes.get(state.name)
        if entry is None or entry.present is None or axis is None or state.axis is None:
            raise UnknownError(f"it is not known what {state.name} is in the original")
        return axis, entry.present.name

    def _declare_unused(self, name: str, state: StateTensor, axis: int, source: str) -> ValueInfoProto:
        """Declare the slots behind those in use: the new ones, and any number of others where a method gets all."""
        declared = [self.original.like(each).type.tensor_type for each in (source, self.original.tokens)]
        dims, tokens = ([dim.dim_param or dim.dim_value for dim in each.shape.dim] for each in declared)
        del dims[axis]
        if not all((*dims, *tokens[1:2])):
            raise UnknownError(f"the dims of {source} have no names")
        assert state.axis is not None
        info = helper.make_tensor_value_info(name, declared[0].elem_type, [*dims, None])
        made, names = info.type.tensor_type.shape.dim, declared_inputs(self.original.whole).groups
        dims.insert(state.axis, tokens[1])
        for at, dim in enumerate(dims):
            unused = symbol("past_unused_slots") if at == state.axis and not state.prefix else const(0)
            declare_dim(made[at], read_dim(dim, names) + unused)
        return info

    def _show_output(self, port: BundlePort) -> None:
        if (state := self.states.get(port.writes)) is None:
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
            length = f"{OWN}length_after"  # how many slots are in use after a call
            if all(length not in node.output for node in self.edit.front):
                shape = self.edit.add("Shape", [self.method.sources["tokens"][0].name], f"{OWN}tokens_shape")
                new = self.edit.append(make_gather(shape, self.edit.number(1), None, f"{OWN}new_length"))
                self.edit.add("Add", [self._past_length(), new], length)
            zero, at = self.edit.number(0), self.edit.number(state.axis)
            given = self.edit.append(make_slice(given, zero, length, at, out=f"{name}/used"), last=True)
        self.edit.add("Transpose", [given], name, last=True, perm=_axis_permutation(state.axis, axis, len(state.shape)))


def _axis_permutation(source: int, target: int, rank: int) -> list[int]:
    """Return the permutation that brings one axis to another place, and leaves the others in their order."""
    others = [axis for axis in range(rank) if axis != source]
    return [*others[:target], source, *others[target:]]
