"""Attention and GroupQueryAttention: their heads, masks and caches, as far as plain operators can compute them."""

from __future__ import annotations

from dataclasses import dataclass

from graphkit.dtypes import FLOATS
from graphkit.graph.view import Node, Value
from graphkit.rewrite.editor import Editor

__all__ = ["ATTENTIONS", "AttentionNode", "HeadSizes", "read_attention"]

AXES_ARE_INPUTS_SINCE = 13
GROUPED = "com.microsoft.GroupQueryAttention"
ATTENTIONS = ("Attention", GROUPED)
ROTARY = (7, 8)  # inputs of a GroupQueryAttention
UNKNOWN = range(9, 14)


@dataclass(frozen=True)
class HeadSizes:
    """The heads of an attention.

    Attributes:
        heads, groups: Of queries, and of keys and values.
        size, value_size: Of a head of queries and keys, and of values.
        is_flat: Whether heads lie side by side, `[batch, length, heads * size]`.
        is_packed: Whether queries, keys and values do so too.
    """

    heads: int
    groups: int
    size: int
    value_size: int
    is_flat: bool
    is_packed: bool


@dataclass(frozen=True, eq=False)
class AttentionNode:
    """The computation of a node of either operator.

    Attributes:
        mask: What is added to scores, or says which count.
        past: The caches of keys and values.
        window: How many tokens count, 0 for all.
        softcap: What scores are limited to, 0 for nothing.
        rotary: Tables of cosines and sines, by position.
    """

    node: Node
    sizes: HeadSizes
    dtype: int
    mask: Value | None
    past: tuple[Value, Value] | None
    is_causal: bool
    window: int
    scale: float
    softcap: float
    rotary: tuple[Value, Value] | None = None


def read_attention(editor: Editor, node: Node) -> AttentionNode | str:
    """Return the computation of a node, or why it stays."""
    is_grouped = node.operator == GROUPED
    if node.scope.opset() < AXES_ARE_INPUTS_SINCE:
        return f"its operator set is below {AXES_ARE_INPUTS_SINCE}"
    if reason := _unknown_parts(node):
        return reason
    shapes = _head_sizes(editor, node)
    if isinstance(shapes, str):
        return shapes
    dtype = editor.shapes[node.inputs[0]].dtype if node.inputs[0] is not None else 0
    if dtype not in FLOATS:
        return "it is not of floats"
    scale, softcap, window = node.attr("scale", 0.0), node.attr("softcap", 0.0), node.attr("local_window_size", -1)
    if scale is None or softcap is None or window is None:
        return "its scale, softcap or window is not known"
    cos, sin = (node.input(index) for index in ROTARY)
    if (is_turned := bool(is_grouped and node.attr("do_rotary", 0))) and (cos is None or sin is None):
        return "it has no tables of rotary embeddings"
    keys, values = (node.input(index) for index in ((3, 4) if is_grouped else (4, 5)))
    return AttentionNode(
        node=node,
        sizes=shapes,
        dtype=dtype,
        mask=None if is_grouped else node.input(3),
        past=(keys, values) if keys is not None and values is not None else None,
        is_causal=bool(is_grouped or node.attr("is_causal", 0)),
        window=max(window, 0) if is_grouped else 0,
        scale=scale or shapes.size**-0.5,
        softcap=softcap,
        rotary=(cos, sin) if is_turned and cos is not None and sin is not None else None,
    )


def _head_sizes(editor: Editor, node: Node) -> HeadSizes | str:
    """Return the heads of a node, or why they are not known."""
    given = [value for value in node.inputs[:3] if value is not None]
    dims = [found for value in given if (found := editor.shapes[value].dims) is not None]
    is_packed, ranks = len(given) == 1, {len(found) for found in dims}
    if len(dims) not in (1, 3) or len(dims) != len(given) or len(ranks) != 1 or not ranks <= {3, 4}:
        return "queries, keys and values are not three tensors of rank 3 or of rank 4, or one of rank 3"
    is_flat = ranks == {3}
    if is_flat:
        names = ("num_heads" if node.operator == GROUPED else "q_num_heads", "kv_num_heads")
        heads, groups = (node.attr(name, 0) or 0 for name in names)
    else:
        heads, groups = (found[1].constant or 0 for found in dims[:2])
    last = [found[-1].constant or 0 for found in dims]
    if heads < 1 or groups < 1 or heads % groups or min(last) < 1 or (is_packed and not is_flat):
        return "its heads and their size are not known numbers"
    if is_packed:
        size = last[0] // (heads + 2 * groups)
        return HeadSizes(heads, groups, size, size, is_flat, is_packed)
    if not is_flat:
        return HeadSizes(heads, groups, last[0], last[2], is_flat, is_packed)
    return HeadSizes(heads, groups, last[0] // heads, last[2] // groups, is_flat, is_packed)


def _unknown_parts(node: Node) -> str:
    """Return which parts of a node are not supported here, "" for none."""
    if len(node.outputs) > 3 and node.outputs[3] is not None:
        return "it gives its scores too"
    if node.operator != GROUPED:
        if node.input(6) is not None or node.attr("softmax_precision", 0):
            return "it has lengths of its own, or a softmax of another type: export without nonpad_kv_seqlen"
        return ""
    if any(node.input(index) is not None for index in UNKNOWN):
        return "it has positions, a bias, sinks or scales of its own: export GroupQueryAttention without them"
    odd = ("rotary_interleaved", "smooth_softmax", "qk_output", "sliding_window_cache", "kv_cache_bit_width")
    if found := next((name for name in odd if node.attr(name, 0)), ""):
        return f"its {found} is set, which has no plain spelling here"
    return ""
