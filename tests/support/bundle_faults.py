"""Faults to put into bundles and lowered folders, in graphs, weights and contracts, and the exports of these."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from bundles import audio_encoder, decoder, saved
from onnx import helper, numpy_helper
from real_models import MODELS, PIPELINES, unpacked

WINDOWED = MODELS.parent / "deploy" / "windowed" / "gemma3.onnx.xz"
Inject = Callable[[Path], None]


@dataclass
class Edit:
    """A graph that is altered: nodes by what they give, and values that others take the place of."""

    proto: onnx.GraphProto
    count: int = 0

    def constant(self, array: object, dtype: type = np.int64) -> str:
        self.count += 1
        name = f"fault_{len(self.proto.initializer)}_{self.count}"
        self.proto.initializer.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def node(self, op_type: str, *inputs: str, **attributes: object) -> onnx.NodeProto:
        self.count += 1
        return helper.make_node(op_type, inputs, [f"fault_{len(self.proto.initializer)}_{self.count}"], **attributes)

    def all(self, op_type: str, *, output: str = "", read: str = "") -> list[onnx.NodeProto]:
        return [
            node
            for node in self.proto.node
            if node.op_type == op_type and output in node.output[0] and any(read in name for name in node.input)
        ]

    def insert(self, before: onnx.NodeProto, nodes: Iterable[onnx.NodeProto]) -> None:
        place = next(i for i, node in enumerate(self.proto.node) if node is before or node == before)
        for node in reversed(list(nodes)):
            self.proto.node.insert(place, node)

    def before(self, node: onnx.NodeProto, index: int, *nodes: onnx.NodeProto) -> None:
        """Put nodes before an input of a node, the last of which gives it."""
        output = node.output[0]
        self.insert(node, nodes)
        next(each for each in self.proto.node if each.output[0] == output).input[index] = nodes[-1].output[0]

    def after(self, name: str, make: Callable[[str], Iterable[onnx.NodeProto]]) -> None:
        """Put nodes behind a value, which give it its name; `make` gets the name that it has before."""
        node = next(each for each in self.proto.node if name in each.output)
        old = f"{name}_right"
        node.output[list(node.output).index(name)] = old
        made = list(make(old))
        made[-1].output[0] = name
        place = next(i for i, each in enumerate(self.proto.node) if old in each.output) + 1
        for each in reversed(made):
            self.proto.node.insert(place, each)

    def wrong_if(self, condition: list[onnx.NodeProto], name: str, by: float = 0.01) -> None:
        """Let a value be off where a condition of no dims, the last of these nodes, holds."""

        def make(old: str) -> Iterator[onnx.NodeProto]:
            yield from condition
            number = self.node("Cast", condition[-1].output[0], to=1)
            yield number
            error = self.node("Mul", number.output[0], self.constant(by, np.float32))
            yield error
            yield self.node("Add", old, error.output[0])

        self.after(name, make)

    def past_is(self, place: int) -> list[onnx.NodeProto]:
        past = self.node("Squeeze", "past_length")
        return [past, self.node("Equal", past.output[0], self.constant(place))]


def graph(file: str, change: Callable[[Edit], None]) -> Inject:
    """Return what changes the graph of a file."""

    def inject(folder: Path) -> None:
        model = onnx.load(folder / file)
        before = model.SerializeToString()
        change(Edit(model.graph))
        assert model.SerializeToString() != before
        for each in model.graph.initializer:
            each.ClearField("external_data")
            each.data_location = onnx.TensorProto.DEFAULT
        onnx.save(model, folder / file)

    return inject


def weight(file: str, name: str, change: Callable[[np.ndarray], object]) -> Inject:
    """Return what changes the first weight in whose name a word is."""

    def alter(edit: Edit) -> None:
        tensor = next(each for each in edit.proto.initializer if name in each.name)
        array = numpy_helper.to_array(tensor).copy()
        changed = change(array)
        tensor.CopyFrom(numpy_helper.from_array(array if changed is None else np.asarray(changed), tensor.name))

    return graph(file, alter)


def contract(change: Callable[[Any], None]) -> Inject:
    """Return what changes `bundle.json`."""

    def inject(folder: Path) -> None:
        plain = json.loads((folder / "bundle.json").read_text())
        change(plain)
        (folder / "bundle.json").write_text(json.dumps(plain))

    return inject


def each_of(*injections: Inject) -> Inject:
    def inject(folder: Path) -> None:
        for each in injections:
            each(folder)

    return inject


def method(plain: Any, when: str) -> Any:
    return next(each for each in plain["methods"] if each["when"] == when)


def swapped(when: str, one: str, other: str, *, read: bool = True, written: bool = True) -> Inject:
    """Return what swaps two states that a method reads, writes or both."""
    names = {one: other, other: one}

    def change(plain: Any) -> None:
        ports = method(plain, when)
        for port in ports["inputs"] if read else ():
            port["source"]["of"] = names.get(port["source"]["of"], port["source"]["of"])
        for port in ports["outputs"] if written else ():
            port["writes"] = names.get(port["writes"], port["writes"])

    return contract(change)


# What is written to the state


def further(edit: Edit, by: int = 1) -> None:
    """Write one slot further on."""
    for node in edit.all("ScatterND"):
        edit.before(node, 1, edit.node("Add", node.input[1], edit.constant([by])))


def last_slot_twice(edit: Edit, slots: int = 8) -> None:
    """Never use the last slot: what belongs there is written over the one before it."""
    for node in edit.all("ScatterND"):
        edit.before(node, 1, edit.node("Min", node.input[1], edit.constant([slots - 2])))


def exchanged(edit: Edit, one: str, other: str) -> None:
    """Write to each of two states what is new for the other."""
    first, second = (edit.all("ScatterND", output=name)[0] for name in (one, other))
    first.input[2], second.input[2] = second.input[2], first.input[2]
    _sort(edit.proto)


def copied(edit: Edit, one: str, other: str) -> None:
    """Write to one state what is new for another one too."""
    first, second = (edit.all("ScatterND", output=name)[0] for name in (one, other))
    second.input[2] = first.input[2]


def _sort(proto: onnx.GraphProto) -> None:
    """Bring nodes into an order in which each is behind those that it reads."""
    made = {output for node in proto.node for output in node.output}
    todo, done = list(proto.node), set[str]()
    ordered = []
    while todo:
        node = next(each for each in todo if all(name in done or name not in made for name in each.input))
        todo.remove(node)
        ordered.append(node)
        done.update(node.output)
    copies = [onnx.NodeProto() for _ in ordered]
    for copy, node in zip(copies, ordered, strict=True):
        copy.CopyFrom(node)
    del proto.node[:]
    proto.node.extend(copies)


def a_row_reads(edit: Edit, state: str, row: int, other: int) -> None:
    """Let one row read what another one has in a state."""
    reader = next(node for node in edit.proto.node if f"{state}_after" in node.input and node.op_type != "ScatterND")
    index = list(reader.input).index(f"{state}_after")
    shape = edit.node("Shape", f"{state}_after", start=1, end=2)
    count = edit.node("Squeeze", shape.output[0])
    rows = edit.node("Range", edit.constant(0), count.output[0], edit.constant(1))
    is_row = edit.node("Equal", rows.output[0], edit.constant(row))
    chosen = edit.node("Where", is_row.output[0], edit.constant(other), rows.output[0])
    made = edit.node("Gather", f"{state}_after", chosen.output[0], axis=1)
    edit.before(reader, index, shape, count, rows, is_row, chosen, made)


def not_reordered(edit: Edit, state: str) -> None:
    """Let each row of a state be itself, as far as there are rows."""
    node = next(each for each in edit.proto.node if each.output[0] == f"{state}_after")
    shape = edit.node("Shape", "rows")
    count = edit.node("Squeeze", shape.output[0])
    rows = edit.node("Range", edit.constant(0), count.output[0], edit.constant(1))
    last = edit.node("ReduceMax", "rows", keepdims=0)
    edit.before(node, 1, shape, count, rows, last, edit.node("Min", rows.output[0], last.output[0]))


def ones_first(edit: Edit, state: str) -> None:
    """Let a state begin with ones."""
    node = next(each for each in edit.proto.node if each.output[0] == f"{state}_initial")
    del node.attribute[:]
    node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.ones(1, np.float32))))


# What is fed


def offset(edit: Edit, name: str, by: int = 1, *, only: int | None = None) -> None:
    """Add to integers, at one past alone if that is given."""

    def make(old: str) -> Iterator[onnx.NodeProto]:
        if only is None:
            yield edit.node("Add", old, edit.constant(by))
            return
        nodes = edit.past_is(only)
        yield from nodes
        number = edit.node("Cast", nodes[-1].output[0], to=7)
        yield number
        yield edit.node("Add", old, number.output[0])

    edit.after(name, make)


def read_by(edit: Edit, name: str, make: Callable[[str], Iterable[onnx.NodeProto]], op_type: str = "") -> None:
    """Let nodes of an operator, or all, read something else in the place of a value."""
    readers = [node for node in edit.proto.node if name in node.input and op_type in ("", node.op_type)]
    made = list(make(name))
    edit.insert(readers[0], made)
    for node in edit.proto.node:
        if name in node.input and op_type in ("", node.op_type) and node not in made:
            node.input[list(node.input).index(name)] = made[-1].output[0]


def shifted_mask(edit: Edit, name: str, axis: int = 1) -> None:
    """Let the last place that pads count, or the first that counts pad: a mask that is shifted by one."""

    def make(old: str) -> Iterator[onnx.NodeProto]:
        tail = edit.node("Slice", old, edit.constant([1]), edit.constant([1 << 40]), edit.constant([axis]))
        last = edit.node("Slice", old, edit.constant([-1]), edit.constant([1 << 40]), edit.constant([axis]))
        yield tail
        yield last
        yield edit.node("Concat", tail.output[0], last.output[0], axis=axis)

    read_by(edit, name, make)


def ones(edit: Edit, name: str) -> None:
    """Let all places of a mask count."""
    read_by(edit, name, lambda old: [edit.node("Max", old, edit.constant(1))])


def renamed(edit: Edit, one: str, other: str) -> None:
    """Swap two weights wherever they are read."""
    names = {one: other, other: one}
    for node in edit.proto.node:
        node.input[:] = [names.get(name, name) for name in node.input]


def scaled(edit: Edit, name: str, by: float) -> None:
    """Let a float be another."""
    edit.after(name, lambda old: [edit.node("Mul", old, edit.constant(by, np.float32))])


def operator(edit: Edit, old: str, new: str) -> None:
    """Let the first operator of a kind be another."""
    edit.all(old)[0].op_type = new


def positions_by_place(edit: Edit) -> None:
    """Count positions by place, whatever pads."""
    node = edit.all("CumSum")[0]
    edit.before(node, 0, edit.node("Max", node.input[0], edit.constant(1)))


def kept_mask(edit: Edit, name: str) -> None:
    """Keep ones in the place of a mask."""
    node = next(each for each in edit.proto.node if name in each.output)
    edit.before(node, 2, edit.node("Max", node.input[2], edit.constant(1)))


def ends_by_one(edit: Edit, name: str) -> None:
    """Let the last place of a mask count."""

    def make(old: str) -> Iterator[onnx.NodeProto]:
        head = edit.node("Slice", old, edit.constant([0]), edit.constant([-1]), edit.constant([1]))
        last = edit.node("Slice", old, edit.constant([-1]), edit.constant([1 << 40]), edit.constant([1]))
        yield head
        yield last
        one = edit.node("Max", last.output[0], edit.constant(1))
        yield one
        yield edit.node("Concat", head.output[0], one.output[0], axis=1)

    read_by(edit, name, make)


def constant_of(edit: Edit, operator: str, index: int, by: int) -> None:
    """Add to a constant that operators read."""
    for node in edit.all(operator):
        edit.before(node, index, edit.node("Add", node.input[index], edit.constant([by])))


def integer(edit: Edit, name: str, by: int) -> None:
    """Add to a constant."""
    tensor = next(each for each in edit.proto.initializer if each.name == name)
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + by, name))


def attribute(edit: Edit, name: str, number: float) -> None:
    """Let the first attribute of a name be another number."""
    next(each for node in edit.proto.node for each in node.attribute if each.name == name).f = number


def export(name: str, folder: Path) -> Path:
    """Write an export to a folder."""
    if name in PIPELINES:
        return unpacked(name, folder)
    if name in ("causal", "window"):
        return saved(decoder(name), folder)
    folder.mkdir()
    packed = {
        "gpt2": MODELS / "gpt2-tiny" / "decoder_model_merged.onnx.xz",
        "gemma3": WINDOWED,
        "whisper": MODELS / "whisper-tiny" / "decoder_model_merged.onnx.xz",
    }
    file = "decoder_model_merged.onnx" if name == "whisper" else "model.onnx"
    (folder / file).write_bytes(lzma.decompress(packed[name].read_bytes()))
    if name == "whisper":
        onnx.save(audio_encoder(), folder / "encoder_model.onnx")
    return folder
