"""Look rows up in a quantised table, and dequantise them afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from graphkit.graph.view import Node
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode
from graphkit.rewrite.fixpoint import Rewrite

__all__ = ["DequantizeAfterGather"]


@dataclass(frozen=True)
class DequantizeAfterGather(Rewrite):
    """Look rows up in a constant quantised table, and dequantise these rows alone.

    The table stays as small as it is, and a host can look rows up in it: see `extract-embedding`.

    Legality: the DequantizeLinear is of a constant, with one scale for all of it or one for each column, and rows are
    gathered along axis 0. Each element is dequantised as before.

    Before:

        agraph (int64[N, L] input_ids) => (float[N, L, 2] y)
        <int8[3, 2] table = {1, 2, 3, 4, 5, 6}, float scale = {0.5}> {
            rows = DequantizeLinear (table, scale)
            y = Gather (rows, input_ids)
        }

    After:

        agraph (int64[N, L] input_ids) => (float[N, L, 2] y)
        <int8[3, 2] table = {1, 2, 3, 4, 5, 6}, float scale = {0.5}> {
            y_quantized = Gather (table, input_ids)
            y = DequantizeLinear (y_quantized, scale)
        }
    """

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes("Gather"):
            data = node.input(0)
            dequantize = data.producer if data is not None else None
            if dequantize is None or not dequantize.is_op("DequantizeLinear"):
                continue
            table = dequantize.input(0)
            if table is None or not table.is_constant:
                continue
            if reason := self._why_not(editor, node, dequantize):
                editor.decline(node, reason)
            else:
                self._swap(editor, node, dequantize)

    def _why_not(self, editor: Editor, node: Node, dequantize: Node) -> str:
        table, scale, indices = dequantize.input(0), dequantize.input(1), node.input(1)
        if table is None or scale is None or indices is None or node.outputs[0] is None:
            return "an input is missing"
        rank, of_scale = editor.shapes[table].rank, editor.shapes[scale].rank
        if rank is None or of_scale is None or editor.shapes[indices].rank is None:
            return "a rank is not known"
        if dequantize.attributes.keys() - {"axis"}:
            return "its DequantizeLinear has more attributes than an axis"
        if (node.attr("axis", 0) or 0) % rank != 0:
            return "it does not gather rows"
        if of_scale > 1 or (of_scale == 1 and (dequantize.attr("axis", 1) or 0) % rank == 0):
            return "each row of its table has a scale of its own"
        return ""

    def _swap(self, editor: Editor, node: Node, dequantize: Node) -> None:
        table, scale, indices, out = dequantize.inputs[0], dequantize.inputs[1], node.inputs[1], node.outputs[0]
        assert table is not None
        assert scale is not None
        assert indices is not None
        assert out is not None
        attributes = {}
        rank, more = editor.shapes[table].rank, editor.shapes[indices].rank
        if editor.shapes[scale].rank == 1 and rank is not None and more is not None:
            attributes = {"axis": (dequantize.attr("axis", 1) or 0) % rank + more - 1}
        rows = editor.unique_name(f"{out.name}_quantized")
        editor.replace(
            node,
            NewNode("Gather", [table, indices], [rows], like=node),
            NewNode("DequantizeLinear", [rows, *dequantize.inputs[1:]], [out.name], attributes),
        )
        editor.note("lookup(s) of rows dequantised afterwards")
