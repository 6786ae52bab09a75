"""Simplify operators that only change the shape: constant shapes, and merged chains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphkit.graph.operators import RESHAPING
from graphkit.graph.view import Node, Value
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode
from graphkit.rewrite.fixpoint import Rewrite
from graphkit.rewrite.reshape_spec import reshape_spec
from graphkit.shapes.tensor import Dims

__all__ = ["CanonicalizeReshape", "MergeChains"]


@dataclass(frozen=True)
class CanonicalizeReshape(Rewrite):
    """Give each Reshape a constant shape, or remove it if it changes nothing.

    A number is written as such, a dim that equals the input's dim at the same position is written as 0 (copy), and one
    more dim may be -1. Legality: at most one dim is neither a number nor a copy, and -1 stands for it only if no other
    dim can be 0 at any legal input dims, because -1 could not be inferred then.

    Before:

        agraph (float[N, L, 32] x) => (float[N, L, 8, 4] y) <int64[1] heads = {8}, int64[1] rest = {-1}> {
            s = Shape (x)
            zero = Constant <value_ints = [0]> ()
            one = Constant <value_ints = [1]> ()
            n = Gather (s, zero)
            l = Gather (s, one)
            to = Concat <axis = 0> (n, l, heads, rest)
            y = Reshape (x, to)
        }

    After:

        agraph (float[N, L, 32] x) => (float[N, L, 8, 4] y) <int64[4] y_shape = {0, 0, 8, 4}> {
            y = Reshape (x, y_shape)
        }
    """

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes("Reshape"):
            shape, data, out = node.input(1), node.input(0), node.outputs[0]
            if shape is None or data is None or out is None:
                continue
            before, after = editor.shapes[data].dims, editor.shapes[out].dims
            if before is None or after is None:
                continue
            if before == after:
                if editor.bypass(node, data):
                    editor.note("Reshape(s) without effect removed")
            elif not shape.is_constant:
                _canonicalize(editor, node, before, after)


def _canonicalize(editor: Editor, node: Node, before: Dims, after: Dims) -> None:
    out = node.result()
    spec = reshape_spec(before, after)
    if spec is None:
        editor.decline(node, f"its shape has two dims that are neither numbers nor copied: {editor.shapes[out]}")
        return
    name = editor.integers(spec, f"{out.name}_shape")
    if node.attr("allowzero", 0) != 0:
        editor.replace(node, NewNode("Reshape", [node.input(0), name], [out.name], like=node))
    else:
        editor.set_inputs(node, {1: name})
    editor.note("Reshape(s) given a constant shape")


RESHAPE_SINCE = 5


@dataclass(frozen=True)
class MergeChains(Rewrite):
    """Merge consecutive Reshape, Squeeze, Unsqueeze and Flatten into one Reshape, and Transposes into one.

    A chain that changes nothing is removed. Legality: the last shape can be written as a constant in the dims of the
    first tensor (see canonicalize-reshape), and no other node reads the inner tensors, unless the whole chain is
    removed. A Transpose that only moves dims of 1 counts as a Reshape.

    Before:

        agraph (float[N, L, 8] x) => (float[8, L, N] y) <int64[1] first = {0}> {
            a = Unsqueeze (x, first)
            b = Squeeze (a, first)
            c = Transpose <perm = [2, 1, 0]> (b)
            d = Transpose <perm = [0, 2, 1]> (c)
            e = Transpose <perm = [0, 2, 1]> (d)
            y = Neg (e)
        }

    After:

        agraph (float[N, L, 8] x) => (float[8, L, N] y) {
            c = Transpose <perm = [2, 1, 0]> (x)
            y = Neg (c)
        }
    """

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes(*sorted(RESHAPING)):
            _merge_reshapes(editor, node)
        for node in editor.nodes("Transpose"):
            if _is_reshaping(editor, node):
                _merge_reshapes(editor, node)
            else:
                _merge_transposes(editor, node)


def _merge_reshapes(editor: Editor, node: Node) -> None:
    out, chain = node.outputs[0], _chain(editor, node)
    after = editor.shapes.dims(out)
    if out is None or after is None or not chain or node.scope.opset() < RESHAPE_SINCE:
        return
    for source in reversed(chain):
        before = editor.shapes[source].dims
        if before == after:
            if editor.bypass(node, source):
                editor.note("chain(s) of reshapes without effect removed")
            return
    first = 0 if node.is_op("Transpose") else 1
    for source in reversed([value for value in chain[first:] if _is_inner(editor, value, chain)]):
        before = editor.shapes[source].dims
        spec = reshape_spec(before, after) if before is not None else None
        if spec is not None:
            shape = editor.integers(spec, f"{out.name}_shape")
            editor.replace(node, NewNode("Reshape", [source, shape], [out.name], like=node))
            editor.note("chain(s) of reshapes merged into one Reshape")
            return


def _chain(editor: Editor, node: Node) -> list[Value]:
    """Return the tensors that a chain of nodes up to this one starts from, the nearest first."""
    found: list[Value] = []
    value = node.input(0)
    while value is not None:
        found.append(value)
        producer = value.producer
        if producer is None or producer.scope is not node.scope or not _is_reshaping(editor, producer):
            break
        value = producer.input(0)
    return found


def _is_reshaping(editor: Editor, node: Node) -> bool:
    """Whether a node keeps the order of the elements: a Transpose too, if it moves only dims of 1."""
    source, perm = node.input(0), node.attr("perm", tuple)
    if not node.is_op("Transpose") or source is None or perm is None:
        return node.is_op(*RESHAPING)
    dims = editor.shapes[source].dims
    moved = [axis for axis in perm if dims is None or dims[axis] != 1]
    return dims is not None and moved == sorted(moved)


def _is_inner(editor: Editor, source: Value, chain: Sequence[Value]) -> bool:
    """Whether nothing but the chain reads the tensors between a source and its end."""
    inner = chain[: chain.index(source)]
    return all(editor.only_reader(value) is not None for value in inner)


def _merge_transposes(editor: Editor, node: Node) -> None:
    source, out = node.input(0), node.outputs[0]
    producer = source.producer if source is not None else None
    if out is None or producer is None or not producer.is_op("Transpose") or producer.scope is not node.scope:
        return
    first, second = producer.attr("perm", tuple), node.attr("perm", tuple)
    if first is None or second is None or len(first) != len(second):
        return
    perm = [first[axis] for axis in second]
    if perm == sorted(perm):
        if (start := producer.input(0)) is not None and editor.bypass(node, start):
            editor.note("pair(s) of inverse Transposes removed")
    elif source is not None and editor.only_reader(source) is node:
        editor.replace(node, NewNode("Transpose", [producer.input(0)], [out.name], {"perm": perm}, like=node))
        editor.note("pair(s) of Transposes merged")
