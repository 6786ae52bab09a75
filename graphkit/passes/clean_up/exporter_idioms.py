"""Spell a CastLike, and a sequence of parts, with the operators that other passes know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from graphkit.graph.view import Node, Value
from graphkit.ops.tensor import TensorSequence, element_numbers
from graphkit.rewrite import Editor, NewNode, NodeRewrite, attributes_of

__all__ = ["CastlikeToCast", "SequenceToSplit"]


@dataclass(frozen=True)
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

    operators: ClassVar[tuple[str, ...]] = ("CastLike",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        if dtype := editor.shapes[node.input(1)].dtype:
            attributes = attributes_of(node, to=dtype)
            editor.replace(node, NewNode("Cast", node.inputs[:1], [node.result().name], attributes, like=node))
            editor.note("CastLike(s) written as Cast")


SIZES_ARE_INPUTS_SINCE = 13


@dataclass(frozen=True)
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

    operators: ClassVar[tuple[str, ...]] = ("SplitToSequence",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        source, sequence, sizes, axis = node.operand(0), node.result(), node.input(1), node.attr("axis", 0)
        inferred = editor.shapes[sequence]
        items = inferred.items or () if isinstance(inferred, TensorSequence) else ()
        places = _reader_places(editor, node, sequence, len(items))
        if not places or axis is None or node.scope.opset() < SIZES_ARE_INPUTS_SINCE:
            return
        if not node.attr("keepdims", 1) and (sizes is None or editor.shapes[sizes].dims == ()):  # single rows
            for reader, place in places.items():
                out = reader.result()
                index = editor.constant(np.array(place, np.int64), f"{out.name}_index")
                editor.replace(reader, NewNode("Gather", [source, index], [out.name], {"axis": axis}, like=reader))
        else:
            widths = [item.dims[axis].constant if item.dims is not None else None for item in items]
            if None in widths or any(editor.has_alias(reader.result()) for reader in places):
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
    if editor.is_output(sequence) or sequence in editor.new_reads:
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
