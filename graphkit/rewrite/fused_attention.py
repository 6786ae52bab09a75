"""Find the nodes of an attention that onnxruntime makes one node of.

Source: onnxruntime/core/optimizer: attention_fusion.cc, attention_fusion_helper.h; onnxruntime/python/tools/
transformers: fusion_attention.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphkit.graph.view import Node
from graphkit.rewrite.paths import DimsOf, Step, biases, climb, computed_from, follow, follow_all, is_static, onwards

__all__ = ["causal_attention", "masked_attention", "relative_attention", "scaled_attention"]

AXES_AS_INPUT_SINCE = 13  # of Unsqueeze; onnxruntime looks for a causal attention of older operator sets only
MAX_NODES = 200  # of an attention, with those that compute its shapes
MASKS: tuple[tuple[Step, ...], ...] = (  # from a Softmax up to the mask's Unsqueezes
    ((0, "Add"), (None, "Mul"), (0, "Sub"), (1, "Cast")),
    ((0, "Add"), (None, "Mul"), (0, "Sub")),
    ((0, "Where"), (0, "Equal")),
    ((0, "Where"), (0, "Cast"), (0, "Equal")),
    ((0, "Add"), (0, "Where"), (0, "Equal")),
    ((0, "Add"), (0, "Where"), (0, "Cast"), (0, "Equal")),
)
EXPANDED_MASKS: tuple[tuple[Step, ...], ...] = (
    ((0, "Add"), (None, "Where"), (0, "Cast"), (0, "Sub")),
    ((0, "Add"), (None, "Where"), (0, "Cast"), (0, "Sub"), (1, "Cast")),
    ((0, "Add"), (None, "Where"), (0, "Cast"), (0, "Cast"), (0, "Sub")),
    ((0, "Add"), (None, "Where"), (0, "Cast"), (0, "Cast"), (0, "Sub"), (1, "Cast")),
)
ADDED_MASKS: tuple[tuple[Step, ...], ...] = (
    ((1, "Mul"), (0, "Sub"), (1, "Cast")),
    ((1, "Slice"), (0, "Mul"), (0, "Sub"), (1, "Cast")),
    ((1, "Slice"), (0, "Mul"), (0, "Sub")),
)
DISTANCES: tuple[Step, ...] = ((0, "Slice"), (0, "Unsqueeze"), (0, "Transpose"), (0, "Gather"))
SIGNED: tuple[Step, ...] = ((1, "Add"), (1, "Where"))
LIMIT: tuple[Step, ...] = ((2, "Min"), (1, "ConstantOfShape"), (0, "Shape"))
PLUMBING = ("ConstantOfShape", "Min", "Shape", "Slice", "Unsqueeze")
LAST_DIM: tuple[Step, ...] = ((1, "Concat"), (1, "Unsqueeze"), (0, "Squeeze"), (0, "Slice"), (0, "Shape"))
FIRST_ROW: tuple[Step, ...] = ((1, "Unsqueeze"), (0, "Sub"), (0, "Squeeze"), (0, "Slice"), (0, "Shape"))
SPLIT: tuple[Step, ...] = (  # from the choice of scores up to the Split into q, k and v
    *((1, "Div"), (0, "MatMul")),
    *((0, "Transpose"), (0, "Reshape"), (0, "Split")),
)
PROJECTED: tuple[Step, ...] = ((0, "Reshape"), (0, "Gemm"), (0, "Reshape"))


def masked_attention(softmax: Node, _: DimsOf) -> Iterator[Node]:
    """Softmax(q k / sqrt(d) + (1 - mask) * -10000): the mask's two Unsqueezes, and the biases."""
    found = (climb(softmax, *path, (None, "Unsqueeze"), (0, "Unsqueeze")) for path in MASKS)
    mask = next((path for path in found if path is not None), None)
    if mask is None:
        return
    yield from mask[-2:]
    scores = climb(mask[0], (None, "Div", "Mul"), (0, "MatMul")) or climb(mask[0], (None, "MatMul"))
    for product, index in ((scores and scores[-1], 0), (scores and scores[-1], 1), (follow(softmax, "MatMul"), 1)):
        path_up = climb(product, (index, "Transpose"), (0, "Reshape"), (0, "Add")) if product else None
        yield from biases(path_up)
    yield from biases(follow_all(softmax, "MatMul", "Transpose", "Reshape", "MatMul", "Add"))


def scaled_attention(softmax: Node, _: DimsOf) -> Iterator[Node]:
    """Softmax(q sqrt(c) * k sqrt(c) + mask), as PyTorch's fused attention is exported: the roots, the mask's nodes."""
    scores = climb(softmax, (0, "Add"), (None, "MatMul"))
    scales = [scores and climb(scores[-1], (index, "Mul"), (1, "Sqrt")) for index in (0, 1)]
    found = (climb(softmax, *path, (None, "Expand"), (0, "Unsqueeze"), (0, "Unsqueeze")) for path in EXPANDED_MASKS)
    mask = next((path for path in found if path is not None), None)
    if mask is None or not all(scales):
        return
    yield from (path[-1] for path in scales if path)
    yield from mask[-3:]


def causal_attention(softmax: Node, dims_of: DimsOf) -> Iterator[Node]:
    """GPT-2's attention as PyTorch 1.5 exported it: all from the normalized tensor to the projected result.

    Softmax(Where(table[:, :, n - l : n, :n], q k / sqrt(d), -10000) + mask), the shapes computed each time anew.
    """
    product = follow(softmax, "MatMul")
    masked = climb(softmax, (0, "Add"))
    where = climb(masked[0] if masked else softmax, (0, "Where"))
    if where is None or product is None or softmax.scope.opset() >= AXES_AS_INPUT_SINCE:
        return
    table = climb(where[0], (0, "Cast"), (0, "Slice"), (0, "Slice"))
    split = climb(where[0], *SPLIT, *PROJECTED)
    joined = follow_all(product, "Transpose", "Reshape", "Reshape", "Gemm", "Reshape")
    triangle = table[-1].input(0) if table is not None else None
    if table is None or split is None or joined is None or triangle is None or not triangle.is_constant:
        return
    if not (climb(table[-1], *FIRST_ROW) and climb(split[-1], *LAST_DIM) and climb(joined[2], *LAST_DIM)):
        return
    caches = [*(climb(split[1], (1, "Concat")) or ()), *(climb(product, (1, "Concat"), (0, "Gather")) or ())]
    ends = {split[-1].input(0), masked[0].input(1) if masked else None, caches[-1].input(0) if caches else None}
    found = computed_from(joined[-1], lambda _, value: value in ends, MAX_NODES)
    if found is None or is_static(found, dims_of):
        return
    yield from found
    yield from onwards(caches[:2], "Transpose", "Unsqueeze", "Concat")


def relative_attention(softmax: Node, dims_of: DimsOf) -> Iterator[Node]:
    """T5's Softmax(q k + (bias of distances + mask)): the sources of the mask, the largest distance and the batch dim.

    Only `onnxruntime.transformers.optimizer` looks for it.
    """
    scores = climb(softmax, (0, "Add")) or climb(softmax, (0, "Cast"), (0, "Add"))
    query = scores and climb(scores[-1], (0, "MatMul"), (0, "Transpose"), (0, "Reshape"), (0, "MatMul"))
    added = scores and climb(scores[-1], (1, "Add"))
    joined = follow_all(softmax, "MatMul", "Transpose", "Reshape")
    sizes = joined and climb(joined[-1], (1, "Concat"), (0, "Unsqueeze"), (0, "Gather"), (0, "Shape"))
    if not query or not added or not joined or not sizes or sizes[-1].input(0) is not query[-1].input(0):
        return
    masks = (climb(added[0], *path, (0, "Unsqueeze"), (0, "Unsqueeze")) for path in ADDED_MASKS)
    mask = next((path for path in masks if path is not None), None)
    buckets = climb(added[0], *DISTANCES, (1, "Where"), *LIMIT) or climb(added[0], *DISTANCES, *SIGNED, *LIMIT)
    if mask is None or buckets is None or is_static(sizes, dims_of):
        return
    yield from (node for node in (*mask, *buckets) if node.is_op(*PLUMBING))
    yield from (joined[-1], *sizes)
