"""Nodes that write into the slots of a state in place, and read those in use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from graphkit.graph.view import Value
from graphkit.options import Update
from graphkit.rewrite import Editor, NewNode
from graphkit.shapes import Expr

__all__ = ["LENGTH", "SINCE", "SLOTS", "Slots", "Update"]

LENGTH = "past_length"
SLOTS = "slots"  # what their dim is called where it is a symbol; that of rings, with the window behind it
SINCE: Mapping[Update, int] = {"tensor-scatter": 24, "scatter-nd": 16}  # the opset that has the operators


class Slots:
    """Makes nodes for the slots of a decoder's state.

    Lengths are int64 tensors of one element: nodes at the start of the graph compute them from the tokens and from
    `past_length`.

    Args:
        editor: What takes the nodes.
        tokens: The input of new tokens, [batch, tokens] or [batch, tokens, width].
        update: What writes.
        is_start: Whether no slot is in use yet.
    """

    def __init__(self, editor: Editor, tokens: Value, update: Update, *, is_start: bool) -> None:
        self.editor, self.tokens, self.update, self.is_start = editor, tokens, update, is_start
        dims = editor.shapes[tokens].dims
        assert dims is not None
        self._batch, self.count = dims[:2]
        self._batches = {self._batch, *_batch_dims(editor)}
        self._known: dict[object, str] = {}

    # Lengths

    @property
    def past(self) -> str:
        """How many slots are in use before."""
        return self.number(0) if self.is_start else LENGTH

    @property
    def new(self) -> str:
        """How many tokens are new."""
        return self.node("Shape", self.tokens.name, as_="new_length", start=1, end=2)

    @property
    def end(self) -> str:
        """How many slots are in use after."""
        return self.new if self.is_start else self.node("Add", LENGTH, self.new, as_="total_length")

    def number(self, number: int) -> str:
        """Return a constant of one element."""
        return self.editor.integers([number], f"int/{number}")

    def dim(self, dim: Expr) -> str | None:
        """Return a dim that is a number, or so many times the batch; None for any other."""
        if dim.constant is not None:
            return self.number(dim.constant)
        batch = self.node("Shape", self.tokens.name, as_="batch", start=0, end=1)
        if dim in self._batches:
            return batch
        (_, factor), *others = dim.terms
        if others or dim != self._batch * factor:
            return None
        return self.node("Mul", batch, self.number(factor), as_="rows")

    # Writing and reading

    def layout(self, dims: Sequence[Expr], axis: int, count: Expr) -> tuple[Expr, ...]:
        """Return the dims of so many slots of a cache that has these dims, and grows along an axis.

        What ScatterND writes has its slots first, so that those in use lie together, one behind the other.
        """
        others = (*dims[:axis], *dims[axis + 1 :])
        return (count, *others) if self.update == "scatter-nd" else (*dims[:axis], count, *dims[axis + 1 :])

    def write(self, slots: str, new: str, dims: Sequence[Expr], axis: int, out: str, window: int = 0) -> list[NewNode]:
        """Return the nodes that write new tokens behind the slots in use.

        Args:
            slots: The slots, in their `layout`.
            new: What is new.
            dims: The dims of the cache; the first has a `dim`.
            axis: Along which it grows.
            out: What the slots are called after.
            window: The length of a ring, 0 for slots that are no ring.
        """
        nodes: list[NewNode] = []
        at, count = self.past, self.new
        if window:
            if self.is_start:  # what is older than the window need not be written
                at = self.node("Sub", count, self.node("Min", count, self.number(window), as_="kept"), as_="first_kept")
                kept = self.editor.unique_name(f"{new}_kept")
                ends = [at, self.number(np.iinfo(np.int64).max), self.number(axis)]
                nodes.append(NewNode("Slice", [new, *ends], [kept]))
                new, count = kept, self.node("Min", count, self.number(window), as_="kept")
            at = self.node("Mod", at, self.number(window), as_="ring_slot")
        if self.update == "tensor-scatter":
            first = self.dim(dims[0])
            assert first is not None
            where = None if self.is_start and not window else self.node("Expand", at, first, as_="write_at")
            attributes: dict[str, Any] = {"axis": axis, "mode": "circular"} if window else {"axis": axis}
            return [*nodes, NewNode("TensorScatter", [slots, new, where], [out], attributes)]
        rows = self.editor.unique_name(f"{new}_rows")
        perm = [axis, *(each for each in range(len(dims)) if each != axis)]
        nodes.append(NewNode("Transpose", [new], [rows], {"perm": perm}))
        return [*nodes, NewNode("ScatterND", [slots, self._indices(at, count, window), rows], [out])]

    def read(self, slots: str, rank: int, axis: int, out: str, window: int = 0) -> NewNode:
        """Return the node that reads the slots in use, after new ones are written.

        Of slots that come first, the host gives those in use alone.
        """
        if self.update == "scatter-nd":
            return NewNode("Transpose", [slots], [out], {"perm": [*range(1, axis + 1), 0, *range(axis + 1, rank)]})
        return NewNode("Slice", [slots, self.number(0), self.used(window), self.number(axis)], [out])

    def used(self, window: int) -> str:
        """Return how many slots are in use after, of a ring if there is a window."""
        return self.node("Min", self.end, self.number(window), as_="ring_length") if window else self.end

    def ring_positions(self, window: int) -> str:
        """Return the position of the token in each slot of a ring that is in use, after one token is written."""
        slots = self._range(self.used(window))
        age = self.node("Mod", self.node("Sub", self.past, slots, as_="since"), self.number(window), as_="age")
        return self.node("Sub", self.past, age, as_="ring_positions")

    def _indices(self, at: str, count: str, window: int) -> str:
        """Return the slots of the new tokens, [tokens, 1]."""
        slots = self.node("Add", at, self._range(count), as_="slots")
        if window:
            slots = self.node("Mod", slots, self.number(window), as_="ring_slots")
        return self.node("Unsqueeze", slots, self.number(1), as_="write_at")

    def _range(self, count: str) -> str:
        scalars = [self.node("Squeeze", each) for each in (self.number(0), count, self.number(1))]
        return self.node("Range", *scalars)

    def positions(self, mask: str | None, dtype: int) -> str:
        """Return the positions of the new tokens, [batch, tokens].

        Args:
            mask: The mask over past and new tokens, [batch, total], what it leaves out is not counted; None for none.
            dtype: Of the positions.
        """
        shape = self.node("Shape", self.tokens.name, as_="tokens_shape", start=0, end=2)
        if mask is None:
            positions = self.node("Expand", self.node("Add", self.past, self._range(self.new)), shape, as_="positions")
        else:
            counted = self.node("CumSum", self.node("Cast", mask, to=TensorProto.INT64), self.number(1))
            positions = self.node("Max", self.node("Sub", counted, self.number(1)), self.number(0))
            if not self.is_start:
                positions = self.node("Slice", positions, self.past, self.end, self.number(1))
                positions = self.node("Reshape", positions, shape, as_="positions")
        return positions if dtype == TensorProto.INT64 else self.node("Cast", positions, to=dtype)

    def node(self, op_type: str, *inputs: str, as_: str = "", **attributes: int) -> str:
        """Return the output of a node at the start of the graph, the same for equal ones."""
        key = (op_type, *inputs, *sorted(attributes.items()))
        if key not in self._known:
            name = self._known[key] = self.editor.unique_name(f"state/{as_ or op_type.lower()}")
            self.editor.insert_first(self.editor.model.graph, NewNode(op_type, inputs, [name], attributes, name))
        return self._known[key]


def _batch_dims(editor: Editor) -> Iterator[Expr]:
    """Yield the dims that count rows: exporters may give that of each input a name of its own."""
    roles = editor.model.roles
    for value in roles.inputs:
        for axis, dim in enumerate(editor.shapes[value].dims or ()):
            if dim.atom is not None and roles.axis(value, axis) == "batch":
                yield dim
