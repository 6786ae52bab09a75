"""Mend what exporters write: CastLikes, sequences of parts, repeated names, outputs that onnxruntime would round."""

from __future__ import annotations

import numpy as np
from onnx import helper

from graphkit.graph.dataflow import sort_nodes
from graphkit.graph.names import free_name, names_in
from graphkit.graph.new_nodes import make_gather
from graphkit.graph.operator_traits import BECAME_INPUTS, RESHAPING, operator_set
from graphkit.graph.view import Node, Value, all_nodes
from graphkit.model import Model
from graphkit.ops.tensor import TensorSequence, element_numbers
from graphkit.rewrite import Editor, NewNode, NodeRewrite, attributes_of, copy_proto, replace_members

MOVING = RESHAPING - {"Flatten"} | operator_set("MaxPool Slice Transpose")  # which it moves a QuantizeLinear past


class CastlikeToCast(NodeRewrite):
    """Write a CastLike as a Cast to the type that its second input has.

    PyTorch's exporter writes constants so, such as the zeros of a missing bias: a Cast of a constant folds, and the
    fusions behind it find a constant. Legality: the type of the second input is known.

    Before:

        agraph (float[N] x, float[M] other) => (float[N] y) <int64[1] one = {1}> {
            a = CastLike (one, other)
            y = Add (x, a)
        }

    After:

        agraph (float[N] x, float[M] other) => (float[N] y) <int64[1] one = {1}> {
            a = Cast <to = 1> (one)
            y = Add (x, a)
        }
    """

    operators = ("CastLike",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        if dtype := editor.shapes[node.input(1)].dtype:
            attributes = attributes_of(node, to=dtype)
            editor.replace(node, NewNode("Cast", node.inputs[:1], [node.result().name], attributes, like=node))
            editor.note("CastLike(s) written as Cast")


class SequenceToSplit(NodeRewrite):
    """Write a SplitToSequence and the SequenceAt of its parts as a Split; those of single rows as Gathers.

    PyTorch's exporter writes `split` and `unbind` so. Legality: the number of parts and their sizes are known, each
    reader takes the part at a constant place that exists, and nothing else reads the sequence.

    Before:

        agraph (float[N, 6] x) => (float[N, 2] y)
        <int64[2] sizes = {2, 4}, int64 zero = {0}> {
            parts = SplitToSequence <axis = 1> (x, sizes)
            a = SequenceAt (parts, zero)
            y = Neg (a)
        }

    After:

        agraph (float[N, 6] x) => (float[N, 2] y) <int64[2] parts_sizes = {2, 4}> {
            parts_0, parts_1 = Split <axis = 1> (x, parts_sizes)
            y = Neg (parts_0)
        }
    """

    operators = ("SplitToSequence",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        source, sequence, sizes, axis = node.operand(0), node.result(), node.input(1), node.attr("axis", 0)
        inferred = editor.shapes[sequence]
        items = inferred.items or () if isinstance(inferred, TensorSequence) else ()
        places = _reader_places(editor, node, sequence, len(items))
        if not places or axis is None or node.scope.opset() < BECAME_INPUTS["Split"][0]:
            return
        if not node.attr("keepdims", 1) and (sizes is None or editor.shapes[sizes].dims == ()):  # single rows
            for reader, place in places.items():
                out = reader.result()
                index = editor.constant(np.array(place, np.int64), f"{out.name}_index")
                editor.replace(reader, make_gather(source, index, axis, out.name, like=reader))
        else:
            widths = [item.dims[axis].constant if item.dims is not None else None for item in items]
            if None in widths or any(reader.result() in editor.aliases for reader in places):
                return
            parts = [editor.unique_name(f"{sequence.name}_{place}") for place in range(len(items))]
            known = editor.integers([size for size in widths if size is not None], f"{sequence.name}_sizes")
            editor.insert_before(node, NewNode("Split", [source, known], parts, {"axis": axis}, like=node))
            for reader, place in places.items():
                editor.bypass(reader, parts[place])
        editor.note("sequence(s) of parts written without a sequence")


def _reader_places(editor: Editor, node: Node, sequence: Value, count: int) -> dict[Node, int] | None:
    """Return which part each reader takes; None where one does something else."""
    part_of: dict[Node, int] = {}
    if sequence.is_output or sequence in editor.new_reads:
        return None
    for reader, index in sequence.consumers:
        position = reader.input(1)
        if index or not reader.is_op("SequenceAt") or reader.scope is not node.scope or not editor.is_free(reader):
            return None
        place = element_numbers(editor.shapes[position])
        if reader.outputs[0] is None or place is None or place.size != 1 or not -count <= int(place.item()) < count:
            return None
        part_of[reader] = int(place.item()) % count
    return part_of


def with_sorted_nodes(model: Model) -> Model:
    """Return a model whose nodes stand behind those that they read: conversions to float16 put Casts at the end."""
    if not model.graph.problems:
        return model
    places = {node: at for at, node in enumerate(model.graph.nodes)}
    proto = copy_proto(model)
    replace_members(proto.graph.node, [proto.graph.node[places[node]] for node in sort_nodes(model.graph)])
    return model.with_proto(proto)


def with_unique_node_names(model: Model) -> tuple[Model, int]:
    """Return a model in which no two nodes of a graph have one name, and how many got another one."""
    seen, repeated = set[tuple[str, str]](), list[int]()
    for number, node in enumerate(all_nodes(model.scopes)):
        place = node.scope.path, node.proto.name
        if node.proto.name and place in seen:
            repeated.append(number)
        seen.add(place)
    if not repeated:
        return model, 0
    made, taken = model.with_proto(copy_proto(model)), names_in(model.scopes)
    nodes = list(all_nodes(made.scopes))
    for number in repeated:
        nodes[number].proto.name = free_name(nodes[number].proto.name, taken)
        taken.add(nodes[number].proto.name)
    return made.with_proto(made.proto), len(repeated)


def keep_outputs_float(model: Model) -> tuple[Model, int]:
    """Return a model whose outputs onnxruntime leaves as they are, and how many got an Identity of their own for that.

    A graph output that one node moves, on its way to a QuantizeLinear, is itself rounded and clipped to 8 bits at
    onnxruntime's default level (seen in 1.32), unless it has a second reader, such as the Shape that a fold takes away.
    An Identity that gives the output is one.
    """
    if not (rounded := [value.name for value in model.graph.outputs if is_rounded_behind(value)]):
        return model, 0
    proto = copy_proto(model)
    taken = names_in(model.scopes)
    for name in rounded:
        source = free_name(f"{name}_float", taken)
        taken.add(source)
        for node in proto.graph.node:
            node.input[:] = [source if read == name else read for read in node.input]
            node.output[:] = [source if made == name else made for made in node.output]
        proto.graph.node.append(helper.make_node("Identity", [source], [name]))
    return model.with_proto(proto), len(rounded)


def is_rounded_behind(value: Value) -> bool:
    """Whether the only reader of a value, besides an Identity, moves it on its way to a QuantizeLinear."""
    if value.producer is None or value.producer.is_op("DequantizeLinear"):
        return False
    first = node = _only_data_reader(value)
    while node is not None and node.is_op(*MOVING) and (out := node.outputs[0]) is not None:
        node = _only_data_reader(out)
    return node is not None and node is not first and node.is_op("QuantizeLinear")


def _only_data_reader(value: Value) -> Node | None:
    readers = [node for node, _ in value.consumers if not node.is_op("Identity")]
    return readers[0] if len(readers) == 1 and readers[0].input(0) is value else None
