"""Fuse a neighbour into a linear operator: a Pad into the Conv behind it, an Add into the MatMul before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphkit.dtypes import FLOATS
from graphkit.graph.view import Node, Value
from graphkit.rewrite import ROUNDING, Editor, MatchFailure, NewNode, NodeRewrite, attributes_of
from graphkit.rewrite.pattern import Match, Op, Pattern, nodes_of
from graphkit.shapes import const

__all__ = ["FusePads", "MatmulAddToGemm"]

INPUTS_SINCE, AXES_SINCE = 11, 18  # of Pad
UNPADDED = ("NOTSET", "VALID")


@dataclass(frozen=True)
class FusePads(NodeRewrite):
    """Put a Pad of zeros into the pads of the Conv behind it.

    Exporters of TensorFlow-style "same" padding write one Pad for each strided Conv. A kernel may add its products in
    another order then: the last digits of results may change.

    Legality: the Pad adds a constant number of zeros, takes none away, and leaves batch and channels alone; the Conv
    does not choose its own padding (`auto_pad`). Other readers of the Pad keep it.

    Before:

        agraph (float[1, 1, 4] x) => (float[1, 1, 5] y)
        <float[1, 1, 3] w = {1.0, 2.0, 3.0}, int64[6] around = {0, 0, 1, 0, 0, 2}> {
            a = Pad (x, around)
            y = Conv (a, w)
        }

    After:

        agraph (float[1, 1, 4] x) => (float[1, 1, 5] y) <float[1, 1, 3] w = {1.0, 2.0, 3.0}> {
            y = Conv <pads = [1, 2]> (x, w)
        }
    """

    largest_error: ClassVar[float] = ROUNDING
    operators: ClassVar[tuple[str, ...]] = ("Conv",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        data = node.inputs[0]
        pad = data.producer if data is not None and not editor.has_alias(data) else None
        if pad is None or not pad.is_op("Pad") or pad.scope is not node.scope or not editor.is_free(pad):
            return
        if editor.is_static(node):
            return
        attributes = attributes_of(node) | {"pads": _joined_pads(editor, pad, node)}
        attributes.pop("auto_pad", None)
        outputs = [value.name for value in node.results]
        editor.replace(node, NewNode("Conv", [pad.inputs[0], *node.inputs[1:]], outputs, attributes, like=node))
        editor.note("Pad(s) put into the pads of a Conv")


def _joined_pads(editor: Editor, pad: Node, conv: Node) -> list[int]:
    """Return the pads of a Conv with those of the Pad before it."""
    data = conv.inputs[0]
    rank = editor.shapes[data].rank
    if rank is None or rank < 3:
        raise MatchFailure("the rank of its data is not known")
    around = _pads_around(editor, pad, rank)
    if min(around) < 0:
        raise MatchFailure(f"'{pad.label}' takes elements away")
    if any(around[axis] for axis in (0, 1, rank, rank + 1)):
        raise MatchFailure(f"'{pad.label}' adds batches or channels")
    added, zeros = [*around[2:rank], *around[rank + 2 :]], (0,) * (2 * (rank - 2))
    automatic = conv.attr("auto_pad", "NOTSET")
    if automatic not in UNPADDED:
        raise MatchFailure("it chooses its own padding")
    conv_pads = conv.attr("pads", zeros) if automatic == "NOTSET" else zeros
    if conv_pads is None or len(conv_pads) != len(zeros):
        raise MatchFailure("its pads do not fit the rank of its data")
    return [of_pad + of_conv for of_pad, of_conv in zip(added, conv_pads, strict=True)]


def _pads_around(editor: Editor, pad: Node, rank: int) -> list[int]:
    """Return how many zeros a Pad adds before each axis, then after each."""
    fill, opset = pad.input(2), pad.scope.opset()
    if opset < INPUTS_SINCE:
        raise MatchFailure(f"'{pad.label}' is of an opset before {INPUTS_SINCE}")
    if pad.attr("mode", "constant") != "constant" or (fill is not None and editor.uniform(fill) != 0):
        raise MatchFailure(f"'{pad.label}' adds something else than zeros")
    amounts, axes = editor.known_integers(pad.input(1)), list(range(rank))
    chosen = editor.known_integers(pad.input(3)) if opset >= AXES_SINCE and pad.input(3) is not None else axes
    if amounts is None or chosen is None or len(amounts) != 2 * len(chosen):
        raise MatchFailure(f"how much '{pad.label}' adds is not known")
    if sorted({axis % rank for axis in chosen}) != sorted(axis % rank for axis in chosen):
        raise MatchFailure(f"'{pad.label}' names an axis twice")
    pads = [0] * (2 * rank)
    for axis, before, after in zip(chosen, amounts, amounts[len(chosen) :], strict=False):
        pads[axis % rank], pads[axis % rank + rank] = before, after
    return pads


BROADCAST_BIAS_SINCE = 7
PRODUCT, BIAS = Op("MatMul", Pattern(), Pattern()), Pattern()
SUM = Op("Add", PRODUCT, BIAS)


@dataclass(frozen=True)
class MatmulAddToGemm(NodeRewrite):
    """Put a MatMul of two matrices and an Add behind it into a Gemm.

    A kernel may start its sums with the bias instead of adding it at the end: the last digits of results may change.

    Legality: both operands are floats of rank 2, nothing but the Add reads the product, and what is added has at most
    two dims, each 1 or that of the product.

    Before:

        agraph (float[N, 2] x, float[3] b) => (float[N, 3] y) <float[2, 3] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}> {
            a = MatMul (x, w)
            y = Add (a, b)
        }

    After:

        agraph (float[N, 2] x, float[3] b) => (float[N, 3] y) <float[2, 3] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}> {
            y = Gemm (x, w, b)
        }
    """

    largest_error: ClassVar[float] = ROUNDING
    operators: ClassVar[tuple[str, ...]] = ("Add",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        for match in SUM.solve(editor, node.outputs[0], {}) if node.scope.opset() >= BROADCAST_BIAS_SINCE else ():
            (product,) = nodes_of(match, PRODUCT)
            if product.scope is node.scope and _is_of_matrices(editor, product, match[PRODUCT]):
                _put_together(editor, node, product, match)
                return


def _is_of_matrices(editor: Editor, node: Node, product: Value) -> bool:
    """Whether a product is of two matrices of floats, and an edit may take it."""
    ranks = [editor.shapes[value].rank for value in node.operands]
    is_float = editor.shapes[product].dtype in FLOATS
    return ranks == [2, 2] and is_float and editor.is_free(node) and not editor.is_static(node)


def _put_together(editor: Editor, add: Node, node: Node, match: Match) -> None:
    value, bias, out = match[PRODUCT], match[BIAS], match[SUM]
    if editor.only_reader(value) is not add:
        raise MatchFailure(f"what '{node.label}' gives is read elsewhere too")
    whole, added = editor.shapes[value].dims, editor.shapes[bias].dims
    if whole is None or added is None or len(added) > len(whole):
        raise MatchFailure("what it adds may have more dims than the product")
    pairs = zip(reversed(added), reversed(whole), strict=False)
    if any(dim not in (const(1), size) for dim, size in pairs):
        raise MatchFailure("what it adds may be larger than the product")
    editor.replace(add, NewNode("Gemm", [*node.inputs, bias], [out.name], like=node))
    editor.take(node)
    editor.note("pair(s) of MatMul and Add merged into a Gemm")
