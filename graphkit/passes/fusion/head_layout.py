"""Follow the layout of a tensor through operators that only move elements, take a part, or scale.

A dim is a row of atoms, the first of which counts slowest: `[batch, rows, columns]`, reshaped and transposed to heads,
is `[batch, heads, rows, size]`, where heads and size are two atoms of the columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from graphkit.graph.view import Node, Value
from graphkit.ops.tensor import Dims
from graphkit.rewrite import Editor
from graphkit.shapes import Expr, const
from graphkit.symbolic.algebra import divide_exactly
from graphkit.symbolic.expr import TooComplexError

__all__ = ["MOVERS", "Atom", "Group", "Layout", "join_atoms", "layout_after"]

MOVERS = ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
REGROUPING = ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
SLICE_INPUTS_SINCE = 10

Kind = Literal["batch", "row", "column"]


@dataclass(frozen=True)
class Atom:
    """A dim, or a factor of one.

    Attributes:
        kind: The thing that it counts.
        size: How many there are.
        stride: How far apart they are, counted in single batches, rows or columns.
    """

    kind: Kind
    size: Expr
    stride: int = 1


Group = tuple[Atom, ...]


@dataclass(frozen=True)
class Layout:
    """The meaning of a tensor's dims.

    Attributes:
        dims: The atoms of each dim, none for a dim of 1.
        first: The first column; the others are counted from it.
        scale: What all elements are multiplied by.
    """

    dims: tuple[Group, ...]
    first: int = 0
    scale: float = 1.0

    def transposed(self, perm: Sequence[int]) -> Layout | None:
        """Return that of a transposed tensor."""
        if sorted(perm) != list(range(len(self.dims))):
            return None
        return replace(self, dims=tuple(self.dims[axis] for axis in perm))

    def reshaped(self, dims: Dims) -> Layout | None:
        """Return that of the same elements in other dims, None where a dim is no row of atoms."""
        rest = [atom for group in self.dims for atom in group]
        try:
            groups = [_take_atoms(rest, dim) for dim in dims]
        except TooComplexError:
            return None
        regrouped = tuple(group for group in groups if group is not None)
        return replace(self, dims=regrouped) if len(regrouped) == len(groups) and not rest else None

    def part(self, axis: int, start: int, count: int) -> Layout | None:
        """Return that of some neighbours on an axis of columns."""
        group = self.dims[axis]
        if not group or group[0].kind != "column":
            return None
        inner = math.prod(int(atom.size) for atom in group[1:])
        if start % inner or count % inner or count < 1:
            return None
        atom = replace(group[0], size=const(count // inner))
        dims = (*self.dims[:axis], join_atoms([atom, *group[1:]]), *self.dims[axis + 1 :])
        return replace(self, dims=dims, first=self.first + start // inner * atom.stride)

    def columns(self, *groups: Sequence[Atom]) -> np.ndarray:
        """Return which column each element along some atoms is, the last atom counting fastest."""
        columns = np.array([self.first])
        for atom in (atom for group in groups for atom in group if atom.kind == "column"):
            columns = (columns[:, None] + np.arange(int(atom.size)) * atom.stride).reshape(-1)
        return columns


def join_atoms(atoms: Iterable[Atom]) -> Group:
    """Return atoms without those of 1, and as one where they count on from each other."""
    merged: list[Atom] = []
    for atom in atoms:
        if atom.size == const(1):
            continue
        before = merged[-1] if merged else None
        size = atom.size.constant
        if before is not None and size and (before.kind, before.stride) == (atom.kind, atom.stride * size):
            merged[-1] = replace(atom, size=before.size * size)
        else:
            merged.append(atom)
    return tuple(merged)


def _take_atoms(rest: list[Atom], dim: Expr) -> Group | None:
    """Take the atoms of a dim from the first ones of a list; cut one where the dim ends inside of it."""
    group: list[Atom] = []
    size = const(1)
    while size != dim:
        if not rest or size == const(0):
            return None
        atom = rest.pop(0)
        factor = divide_exactly(dim, size)
        cut, whole = factor.constant, atom.size.constant
        if factor * size == dim and cut and whole and whole > cut:
            if whole % cut:
                return None
            inner = whole // cut
            rest.insert(0, replace(atom, size=const(inner)))
            atom = replace(atom, size=factor, stride=atom.stride * inner)
        group.append(atom)
        size = size * atom.size
    return join_atoms(group)


def layout_after(editor: Editor, node: Node, value: Value, out: Value, before: Layout) -> Layout | None:
    """Return the layout of a node's output from that of a tensor that it reads; None where it does anything else."""
    dims = editor.shapes[out].dims
    if dims is None or node.domain or [operand is value for operand in node.inputs].count(True) != 1:
        return None
    if node.is_op("Mul", "Div"):
        return _layout_after_scale(editor, node, value, dims, before)
    if node.inputs[0] is not value:
        return None
    if node.is_op("Transpose"):
        return before.transposed(node.attr("perm", tuple(reversed(range(len(dims))))) or ())
    if node.is_op(*REGROUPING):
        return before.reshaped(dims)
    if node.is_op("Split"):
        return _layout_after_split(editor, node, out, before)
    if node.is_op("Slice"):
        return _layout_after_slice(editor, node, dims, before)
    return _layout_after_gather(editor, node, dims, before) if node.is_op("Gather") else None


def _layout_after_scale(editor: Editor, node: Node, value: Value, dims: Dims, before: Layout) -> Layout | None:
    factor = next((operand for operand in node.operands if operand is not value), None)
    number = editor.uniform(factor) if factor is not None and factor.is_constant else None
    if number is None or editor.shapes[value].dims != dims:
        return None
    if node.is_op("Mul"):
        return replace(before, scale=before.scale * number)
    return replace(before, scale=before.scale / number) if number and node.inputs[0] is value else None


def _layout_after_split(editor: Editor, node: Node, out: Value, before: Layout) -> Layout | None:
    axis = node.axis(len(before.dims))
    if axis is None:
        return None
    sizes: list[int] = []
    for value in node.outputs[: out.output_index + 1]:
        dims = editor.shapes[value].dims
        if dims is None or (size := dims[axis].constant) is None:
            return None
        sizes.append(size)
    return before.part(axis, sum(sizes[:-1]), sizes[-1])


def _layout_after_slice(editor: Editor, node: Node, dims: Dims, before: Layout) -> Layout | None:
    """Return the layout behind a Slice along one axis of columns."""
    if node.scope.opset() < SLICE_INPUTS_SINCE:
        return None
    starts, axes, steps = (editor.known_integers(node.input(index)) for index in (1, 3, 4))
    if starts is None or axes is None or len(starts) != 1 or len(axes) != 1 or steps not in (None, [1]):
        return None
    if node.input(4) is not None and steps is None:
        return None
    axis = axes[0] % len(before.dims)
    whole = math.prod((atom.size for atom in before.dims[axis]), start=const(1)).constant
    count = dims[axis].constant
    if whole is None or count is None:
        return None
    start = max(starts[0] + whole, 0) if starts[0] < 0 else min(starts[0], whole)
    return before.part(axis, start, count)


def _layout_after_gather(editor: Editor, node: Node, dims: Dims, before: Layout) -> Layout | None:
    """Return the layout behind a Gather of one constant index from an axis of columns."""
    axis, index = node.axis(len(before.dims)), editor.known_integers(node.input(1))
    if axis is None or index is None or len(index) != 1:
        return None
    whole = math.prod((atom.size for atom in before.dims[axis]), start=const(1)).constant
    if whole is None or not -whole <= index[0] < whole:
        return None
    part = before.part(axis, index[0] % whole, 1)
    return part.reshaped(dims) if part is not None else None
