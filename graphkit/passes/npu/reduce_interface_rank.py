"""Declare inputs and outputs of more axes than an NPU takes with fewer axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnx import ValueInfoProto, helper

from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.rewrite.base import Declined, Outcome, Pass
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode
from graphkit.rewrite.fewer_axes import FREE, Axes, Layout, TooManyAxesError, fold_axes, sizes_of
from graphkit.rewrite.reshape_spec import reshape_spec
from graphkit.shapes import const

__all__ = ["ReduceInterfaceRank", "interface_axes"]


@dataclass(frozen=True)
class ReduceInterfaceRank(Pass):
    """Declare each input and output of rank 5 and more with four axes: a stacked cache `[layers, b, h, s, d]`.

    Axes of 1 go, then the first axes become one, so that the axis of a cache's slots stays an axis. The bytes and their
    order stay the same: the host declares another shape for the same buffer. A Reshape inside gives the model the dims
    that it was written for; `reduce-rank` removes it. This changes the interface, so it runs only where it is asked for
    by name.

    Legality: the dims are numbers, none is 0; an input has no default, and an output is computed by a node.

    Attributes:
        rank: The highest rank that is left.
        only: The inputs and outputs to change; all of them where none is named.

    Before:

        agraph (float[3, 2, 1, 4, 8] past) => (float[3, 2, 1, 4, 8] present) {
            present = Relu (past)
        }

    After:

        agraph (float[3, 2, 4, 8] past) => (float[3, 2, 4, 8] present)
        <int64[5] past_dims = {3, 2, 1, 4, 8}, int64[4] present_dims = {3, 2, 4, 8}> {
            past_high = Reshape (past, past_dims)
            present_high = Relu (past_high)
            present = Reshape (present_high, present_dims)
        }
    """

    changes_interface: ClassVar[bool] = True

    rank: int = 4
    only: tuple[str, ...] = ()

    def run(self, model: Model) -> Outcome:
        editor = Editor(model)
        graph, declined = model.graph, list[Declined]()
        found: dict[str, Sequence[int]] = {}
        last: list[NewNode] = []
        for value in (*graph.inputs, *dict.fromkeys(graph.outputs)):
            if (editor.shapes[value].rank or 0) <= self.rank or value.name in found:
                continue
            if self.only and value.name not in self.only:
                continue
            try:
                found[value.name] = self._reduce(editor, value, last)
            except TooManyAxesError as reason:
                declined.append(Declined(value.name, f"stays of rank {editor.shapes[value].rank}: {reason}"))
        if not found:
            return Outcome(model, declined=tuple(declined))
        proto = editor.result().proto
        for info in (*proto.graph.input, *proto.graph.output):
            if info.name in found:
                _declare(info, found[info.name])
        proto.graph.node.extend(helper.make_node(new.op_type, list(map(str, new.inputs)), new.outputs) for new in last)
        text = f"{len(found):,} inputs and outputs have at most {self.rank} axes"
        return Outcome(model.with_proto(proto), (text,), tuple(declined))

    def _reduce(self, editor: Editor, value: Value, last: list[NewNode]) -> Sequence[int]:
        dims = sizes_of(editor, value)
        if 0 in dims:
            raise TooManyAxesError("it has no elements")
        low = interface_axes(dims, self.rank).dims(dims, len(dims))
        high = editor.unique_name(f"{value.name}_high")
        if value.producer is not None:
            editor.rename(value, high)
            last.append(NewNode("Reshape", [high, _integers(editor, dims, low, value)], [value.name]))
        elif value.kind != "input" or value.tensor is not None or value in editor.model.graph.outputs:
            raise TooManyAxesError("it has a default, or is an output too")
        elif editor.replace_all_uses(value, high):
            shape = _integers(editor, low, dims, value)
            editor.insert_first(editor.model.graph, NewNode("Reshape", [value.name, shape], [high]))
        return low


def interface_axes(dims: Sequence[int], rank: int) -> Axes:
    """Return which axes of an input or output are left, so that a host knows where its slots are."""
    return fold_axes(Layout({0: tuple(dims)}, [], [FREE] * len(dims)), rank)


def _integers(editor: Editor, before: Sequence[int], after: Sequence[int], value: Value) -> str:
    spec = reshape_spec([const(dim) for dim in before], tuple(const(dim) for dim in after))
    assert spec is not None  # no dim is 0
    return editor.integers(spec, f"{value.name}_dims")


def _declare(info: ValueInfoProto, dims: Sequence[int]) -> None:
    shape = info.type.tensor_type.shape
    del shape.dim[:]
    for dim in dims:
        shape.dim.add().dim_value = dim
