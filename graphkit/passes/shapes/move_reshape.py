"""Move Reshapes before Transposes where both then merge with their neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from graphkit.graph.new_nodes import RESHAPE_SINCE, make_reshape
from graphkit.graph.operator_traits import RESHAPING
from graphkit.graph.view import Node
from graphkit.ops.tensor import Dims, dims_product
from graphkit.passes.shapes.simplify_reshape import reshape_spec
from graphkit.rewrite import Editor, NewNode, NodeRewrite
from graphkit.shapes import Expr, lower, symbol


@dataclass(frozen=True)
class MoveReshapeBeforeTranspose(NodeRewrite):
    """Split, merge, add or drop the axes of a transposed tensor before it is transposed.

    So the heads of torch's MultiheadAttention are split: Reshape, Transpose, Reshape, Transpose become one of each.
    Legality: each group of axes that the Reshape splits or merges lies side by side before the Transpose too, in the
    same order; nothing else reads the tensors in between; the new shape can be written as a constant that is right at
    all sizes. It is done where a Reshape before the Transpose, or a Transpose behind the Reshape, merges with it.

    Before:

        agraph (float[5, N, 8] x) => (float[N, 2, 5, 4] y)
        <int64[3] rows = {0, -1, 4}, int64[4] heads = {-1, 2, 5, 4}> {
            a = Reshape (x, rows)
            b = Transpose <perm = [1, 0, 2]> (a)
            y = Reshape (b, heads)
        }

    After:

        agraph (float[5, N, 8] x) => (float[N, 2, 5, 4] y) <int64[4] y_shape = {5, 0, 2, 4}> {
            y_split = Reshape (x, y_shape)
            y = Transpose <perm = [1, 2, 0, 3]> (y_split)
        }
    """

    operators: ClassVar[tuple[str, ...]] = tuple(sorted(RESHAPING))

    def edit_node(self, editor: Editor, node: Node) -> None:
        turned, out = node.operand(0), node.result()
        transpose, following = turned.producer, editor.only_reader(out)
        if transpose is None or not transpose.is_op("Transpose") or editor.only_reader(turned) is not node:
            return
        source, perm = transpose.operand(0), transpose.attr("perm", tuple)
        before, after = editor.shapes[turned].dims, editor.shapes[out].dims
        if perm is None or before is None or after is None or node.scope.opset() < RESHAPE_SINCE:
            return
        first = source.producer
        is_merged = first is not None and first.is_op(*RESHAPING) and editor.only_reader(source) is transpose
        if not is_merged and (following is None or not following.is_op("Transpose")):
            return
        groups = _match_axes(before, after, perm)
        if groups is None or transpose.scope is not node.scope:
            return
        start = first.operand(0) if first is not None and is_merged and first.scope is node.scope else source
        moved = [axis for _, made in sorted(groups) for axis in made]
        dims, known = tuple(after[axis] for axis in moved), editor.shapes[start].dims
        spec = reshape_spec(known, dims) if known is not None else None
        if spec is None or (-1 in spec and any(_may_be_zero(dims[at]) for at, size in enumerate(spec) if size != -1)):
            return
        split = editor.unique_name(f"{out.name}_split")
        new_perm = [moved.index(axis) for axis in range(len(after))]
        editor.replace(
            node,
            make_reshape(start, editor.integers(spec, f"{out.name}_shape"), split, like=node),
            NewNode("Transpose", [split], [out.name], {"perm": new_perm}, like=transpose),
        )
        editor.note("Reshape(s) moved before a Transpose")


def _may_be_zero(dim: Expr) -> bool:
    return lower(dim.substitute({name: symbol(name, 0) for name in dim.symbols})) < 1


Group = tuple[int, list[int]]  # the first axis before a Transpose, and the axes that a Reshape behind it makes


def _match_axes(before: Dims, after: Dims, perm: Sequence[int]) -> list[Group] | None:
    """Return which axes become which, in the order behind the Transpose, None where a group does not stay together."""
    groups: list[Group] = []
    sizes = dict(zip(perm, before, strict=True))  # by axis before the Transpose
    left, right = 0, 0
    while left < len(before) or right < len(after):
        counts = _next_group(before[left:], after[right:])
        if counts is None:
            return None
        taken, made = perm[left : left + counts[0]], [*range(right, right + counts[1])]
        left, right = left + counts[0], right + counts[1]
        if not taken:  # dims of 1 that are added: beside the group before, or first
            groups[-1:] = [(groups[-1][0], groups[-1][1] + made)] if groups else [(-1, made)]
            continue
        wide = [axis for axis in taken if sizes[axis] != 1] or [taken[0]]
        if wide != [axis for axis in range(wide[0], wide[-1] + 1) if axis in wide or sizes[axis] != 1]:
            return None
        groups.append((wide[0], made))
    return groups


def _next_group(before: Dims, after: Dims) -> tuple[int, int] | None:
    """Return how many of the next axes have as many elements as how many made of them, the fewest."""
    if not before or not after:
        rest = (*before, *after)
        return (len(before), len(after)) if all(dim == 1 for dim in rest) else None
    if before[0] == after[0]:
        return 1, 1
    if before[0] == 1:
        return 1, 0
    if after[0] == 1:
        return 0, 1
    for few, many, is_split in ((before, after, True), (after, before, False)):
        for count in range(2, len(many) + 1):
            if dims_product(many[:count]) == few[0]:
                return (1, count) if is_split else (count, 1)
    return None
