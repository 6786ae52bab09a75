"""Causes of a bundle's differences: inputs of the decoder that it makes otherwise, constants, places of new slots."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from msgspec import Struct, field
from onnx import helper

from graphkit.contract.bundle_contract import BundleContract
from graphkit.equivalence.originals import Originals
from graphkit.errors import GraphkitError
from graphkit.graph.declared_types import declared_type
from graphkit.graph.names import group_pairs
from graphkit.graph.operator_traits import SAME_ORDER
from graphkit.graph.view import Value
from graphkit.model import Model, load
from graphkit.rewrite.base import copy_proto
from graphkit.runtime.session import IsolatedSession
from graphkit.verify.bundle_prompts import Prompt, begin_prompt
from graphkit.verify.bundle_state_checks import AlteredBundle, start_bundle
from graphkit.verify.cause_search import (
    Cause,
    Export,
    Undo,
    find_sole_cause,
    first_node,
    is_mended,
    largest_multiple,
    with_attributes,
)
from graphkit.verify.comparator import distance_of_spread
from graphkit.verify.oracle import Oracle
from graphkit.verify.weight_comparison import WrongPart, mend_models

ENCODER = "encoder/"  # before the names of what a bundle takes from the encoder
EXPORT = "export/"  # before those of inputs that take what the export is fed
CLEAR = 1e-6  # what is more than the last digits
Models = Mapping[str, Model]  # by file
Arrays = Mapping[str, np.ndarray]
ROLES = {
    "positions": "Positions are wrong",
    "mask": "The mask of tokens is wrong",
    "encoder mask": "The mask of the source is wrong",
    "tokens": "The tokens are wrong",
    "encoder tokens": "The tokens of the source are wrong",
    "token types": "The types of tokens are wrong",
}
WRITERS: Mapping[str, int] = {"TensorScatter": 2, "ScatterND": 1}  # what says where they write
Place = tuple[int, int]  # of a node, and of its input


class Call(Struct, frozen=True, eq=False):
    """A call of the export."""

    prompt: Prompt
    past: int  # how many tokens there are before
    exports: tuple[Export, ...]  # its models, with what they are fed
    logits: np.ndarray
    mask: np.ndarray  # 1 for each token up to now that counts, [rows, tokens]

    def new_slots(self, size: int, *, has_axis: bool) -> np.ndarray:
        """Return where new slots are, of so many: each of them, [new, 1], or the first one of each row, [batch]."""
        new = [at % size for at in range(self.past, self.mask.shape[1])[-size:]]
        return np.array(new)[:, None] if has_axis else np.full(len(self.mask), new[0])

    def without_padding(self, array: np.ndarray) -> np.ndarray:
        """Return an array with zeros at tokens that pad, along each axis that is as long as there are tokens."""
        lengths = self.mask.shape[1], self.past or self.mask.shape[1]
        if self.mask.all() or array.ndim < 2 or len(array) != len(self.mask):
            return array
        for axis in range(1, array.ndim):
            if (places := array.shape[axis]) in lengths:
                shape = [len(array), *(places if at == axis else 1 for at in range(1, array.ndim))]
                array = np.where(self.mask[:, :places].reshape(shape) != 0, array, np.zeros((), array.dtype))
        return array


class RecordedSession(IsolatedSession):
    """A session of a bundle that remembers what it was fed last, and takes what the export is fed besides."""

    def __init__(self, model: Model) -> None:
        super().__init__(model, prepack=False)
        self.fed: Arrays = {}
        self.beside: Arrays = {}
        self._added = [name for name in self.inputs if name.startswith(EXPORT)]
        self.inputs = [name for name in self.inputs if name not in self._added]

    def run_in_place(
        self, feed: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray | None]
    ) -> dict[str, np.ndarray]:
        """Run it as any session, with those inputs that only it has."""
        self.fed = {name: array.copy() for name, array in feed.items()}  # it may write in place
        added = {name: self.beside[name] for name in self._added if name in self.beside}
        return super().run_in_place({**feed, **added}, outputs)


class Case(Struct, eq=False):
    """The prompts that fail, and the calls of the export for them."""

    originals: Originals
    folder: Path
    contract: BundleContract  # what it does; at first what `bundle.json` says
    models: Models  # what runs in place of its files
    prompts: Sequence[Prompt]
    near: float  # how far logits may be
    # how many slots the states have that models are told where to write, by what tells them, and whether that has an
    # axis
    slots: dict[str, tuple[int, bool]] = field(default_factory=dict)
    calls: Sequence[Sequence[Call]] = ()  # of the export, for each prompt; they are made with it
    _sessions: dict[Model, RecordedSession] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.calls = [[*_calls_of(self.originals, prompt)] for prompt in self.prompts]

    def undo(self, models: Models) -> Undo:
        """Return the undoing of a fault: some models replaced."""
        return partial(with_attributes, self, models={**self.models, **models})

    def distances(self) -> Iterator[float]:
        """Decode the prompts, and yield how far the logits are from the export's, in multiples of the tolerance."""
        return (self._logits_distance(call, logits) for call, logits in self._decode())

    def _decode(self) -> Iterator[tuple[Call, np.ndarray | None]]:
        """Yield each call and its logits; None for those of a failure."""
        for model in self.models.values():
            if model not in self._sessions:
                self._sessions[model] = RecordedSession(model)
        sessions = {file: self._sessions[model] for file, model in self.models.items()}
        bundle = AlteredBundle(self.folder, self.contract, sessions)
        for prompt, calls in zip(self.prompts, self.calls, strict=True):
            for number, call in enumerate(calls):
                fed = {f"{EXPORT}{name}": array for _, feed, _ in call.exports for name, array in feed.items()}
                fed |= {name: call.new_slots(size, has_axis=axis) for name, (size, axis) in self.slots.items()}
                for session in sessions.values():
                    session.beside = fed
                try:
                    logits = bundle.step(prompt.steps[number - 1]) if number else start_bundle(bundle, prompt)
                except GraphkitError:
                    yield call, None
                    break
                yield call, logits

    def _logits_distance(self, call: Call, logits: np.ndarray | None) -> float:
        if logits is None or call.logits.shape != logits.shape:
            return math.inf
        expected, actual = (call.prompt.counted_logits(each, call.past) for each in (call.logits, logits))
        return largest_multiple(distance_of_spread(expected, actual), self.near)

    def begin(self) -> str:
        """Return where the difference begins, in a clause."""
        file = ""
        for call, logits in self._decode():
            method = self.contract.method("step" if call.past else "once")
            assert method is not None
            file = method.file
            if not self._logits_distance(call, logits) <= 1:
                return self._first_node(call, file)
        return f"it is in {file}"

    def _first_node(self, call: Call, file: str) -> str:
        model = self.models[file]
        for near in (max(self.near, CLEAR), self.near):  # what is clear first

            def differ(array: np.ndarray, right: np.ndarray, near: float = near) -> bool:
                return not distance_of_spread(call.without_padding(right), call.without_padding(array)) <= near

            if node := first_node(call.exports, model, self._sessions[model].fed, differ, is_padded=True):
                return f"it begins at '{node}' of {file}"
        return f"it is in {file}"


def _calls_of(originals: Originals, prompt: Prompt) -> Iterator[Call]:
    assert originals.first is not None
    assert originals.step is not None
    oracle = Oracle(originals, prepack=False, can_choose=not prompt.all_logits)
    oracle.encode(prompt.inputs)
    exports: tuple[Export, ...] = ((originals.first, oracle.first_feed(prompt.tokens, prompt.mask), ""),)
    if originals.encoder is not None:
        exports = ((originals.encoder, oracle.encoder_feed(prompt.inputs), ENCODER), *exports)
    past, mask, logits = 0, prompt.mask, begin_prompt(oracle, prompt)
    for tokens in prompt.steps:
        fed = oracle.later_feed(tokens)
        yield Call(prompt, past, exports, logits, mask)
        past, exports, logits = mask.shape[1], ((originals.step, fed, ""),), oracle.step(tokens)
        mask = np.concatenate([mask, np.ones_like(tokens)], 1)
    yield Call(prompt, past, exports, logits, mask)


def find_bundle_causes(
    originals: Originals,
    folder: Path,
    contract: BundleContract,
    failing: Sequence[Prompt],
    facts: Sequence[WrongPart],
    near: float,
    convert: Callable[[Model], Model] | None = None,
) -> list[str]:
    """Return the causes of wrong logits, a sentence each; none where known differences of the files explain them.

    The logits of `failing` prompts are further than `near` from the export's; `facts` are weights and attributes that
    are not, or may not be, those of the export. `convert` makes of a file what runs in its place.
    """
    if originals.first is None or originals.step is None or originals.head is not None:
        return []
    chosen = sorted(failing, key=lambda prompt: (prompt.is_padded, prompt.tokens.size))[:1]
    chosen += [prompt for prompt in failing if prompt.is_padded and prompt is not chosen[0]][:1]
    files = {method.file: load(folder / method.file) for method in contract.methods}
    right = mend_models(files, [fact for fact in facts if fact.is_sure])
    models = {file: model if convert is None else convert(model) for file, model in {**files, **right}.items()}
    case = Case(originals, folder, contract, models, chosen, near)
    if is_mended(case.distances()):
        return []
    if right:
        return [f"More is wrong than weights; {case.begin()}."]
    suspects = [fact for fact in facts if not fact.is_sure]
    constants = (Cause("weights", str(fact), undo=case.undo(mend_models(case.models, [fact]))) for fact in suspects)
    cause = find_sole_cause(case.distances, itertools.chain(_undo_inputs(case), _undo_writers(case), constants))
    return [cause.text if cause else f"No simple cause; {case.begin()}."]


def _undo_inputs(case: Case) -> Iterator[Cause]:
    """Yield the inputs of decoders that a bundle makes itself: as the export is fed, the logits are right."""
    decoders = filter(None, dict.fromkeys((case.originals.first, case.originals.step)))
    made = (item for model in decoders for item in model.roles.inputs.items() if item[1] in ROLES)
    for (name, text), same in group_pairs(((value.name, ROLES[role]), value) for value, role in made).items():
        models: dict[str, Model] = {}
        for file, model in case.models.items():
            declared, places = declared_type(same[0]), set(_input_places(model, same))
            if places and declared is not None:
                rank = len(declared.dims or ())
                models[file] = _with_fed_input(model, sorted(places), f"{EXPORT}{name}", declared.dtype, rank)
        if models:
            text = f"{text}: with '{name}' as the export is fed, the logits are right."
            yield Cause("mask", text, undo=case.undo(models))


def _undo_writers(case: Case) -> Iterator[Cause]:
    """Yield the places where new slots are written, as the length says."""
    states, models = {state.name: state for state in case.contract.states}, dict[str, Model]()
    for file, model in case.models.items():
        ports = [port for method in case.contract.methods if method.file == file for port in method.inputs]
        named = {port.name: states[port.state] for port in ports if port.state in states}
        places: dict[str, list[Place]] = {}
        for node in model.graph.nodes:
            first, index = node.input(0), WRITERS.get(node.op_type)
            state = named.get(first.name) if first is not None else None
            if state is not None and state.axis is not None and index is not None and node.input(index) is not None:
                name = f"{EXPORT}slots of {state.shape[state.axis]}"
                case.slots[name] = state.shape[state.axis], node.is_op("ScatterND")
                places.setdefault(name, []).append((node.index, index))
        for name, found in places.items():
            rank = 2 if case.slots[name][1] else 1
            models[file] = _with_fed_input(models.get(file, model), found, name, onnx.TensorProto.INT64, rank)
    if models:
        words = "New slots are not written behind those in use: written there, the logits are right."
        yield Cause("shifted", words, undo=case.undo(models))


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
        if node is not None and index < len(node.inputs) and (is_first or node.is_op(*SAME_ORDER)):
            yield node.index, index
        elif node is None and reader.is_op(*SAME_ORDER) and index == 0:
            todo += [(*use, False) for use in output.consumers]


def _with_fed_input(model: Model, places: Sequence[Place], name: str, dtype: int, rank: int) -> Model:
    proto = copy_proto(model)
    for node, index in places:
        proto.graph.node[node].input[index] = name
    proto.graph.input.append(helper.make_tensor_value_info(name, dtype, [f"{name}_{axis}" for axis in range(rank)]))
    return model.with_proto(proto)
