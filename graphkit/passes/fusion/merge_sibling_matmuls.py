"""Merge linear operators that read the same tensor into one, and split its result."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from graphkit.errors import ModelError
from graphkit.graph.view import Node, Value
from graphkit.passes.fusion.linear_operators import Linear, affine_of, linear_of
from graphkit.rewrite import ROUNDING, Editor, MatchFailure, NewNode, Rewrite
from graphkit.rewrite.weight_arithmetic import join_weights, read_elements, round_numbers

__all__ = ["MergeSiblingMatmuls"]

SPLIT_INPUT_SINCE = 13  # of Split: before, the sizes are an attribute
ANY_SIZES_SINCE = 2
OTHER = -1  # stands for a reader that is in no group


@dataclass(frozen=True)
class MergeSiblingMatmuls(Rewrite):
    """Merge MatMuls, or Gemms, of one tensor with constant weights into one and a Split, such as query, key and value.

    The sums are the same, but a kernel may add them up in another order for a larger matrix: the last digits of
    results may change. The weights are joined part by part; together they are as large as before, also where several
    layers share them: these share the joined one.

    Legality: the tensor is the left operand, the weights are matrices of one type that nothing else reads, except in
    layers where the same ones are merged, and what follows each is nothing, or an Add of one constant number for each
    column, which becomes part of one Add. Gemms have the same attributes and constant biases. Nothing is merged where
    more nodes would be left.

    Before:

        agraph (float[N, 2] x) => (float[N, 1] y, float[N, 1] z)
        <float[2, 1] v = {1.0, 2.0}, float[2, 1] w = {3.0, 4.0}> {
            y = MatMul (x, v)
            z = MatMul (x, w)
        }

    After:

        agraph (float[N, 2] x) => (float[N, 1] y, float[N, 1] z)
        <float[2, 2] v_joined = {1.0, 3.0, 2.0, 4.0}, int64[2] y_sizes = {1, 1}> {
            y_joined = MatMul (x, v_joined)
            y, z = Split <axis: int = 1> (y_joined, y_sizes)
        }
    """

    largest_error: ClassVar[float] = ROUNDING

    def edit(self, editor: Editor) -> None:
        groups: dict[tuple[object, int], list[_Sibling]] = defaultdict(list)
        waiting: set[object] = set()
        for scope in editor.scopes:
            for node in scope.nodes:
                if node.is_op("MatMul", "Gemm") and len(node.inputs) > 1 and node.scope.opset() >= ANY_SIZES_SINCE:
                    _sort_into_groups(editor, node, groups, waiting)
        ready = [siblings for key, siblings in groups.items() if key[0] not in waiting]
        for layers in _by_weights(ready):
            if len(layers[0]) > 1 and all(_count_gain(siblings) >= 0 for siblings in layers):
                _merge_layers(editor, layers)


@dataclass(frozen=True, eq=False)
class _Sibling:
    """One of several operators that read the same tensor.

    Attributes:
        linear: The operator.
        weight: Its weight.
        add: The node that adds a bias to the product, where one does.
        bias: That bias, or the operator's own, one number a column or one; None where it adds nothing.
        out: Their result.
    """

    linear: Linear
    weight: Value
    add: Node | None
    bias: np.ndarray | None
    out: Value


def _sort_into_groups(
    editor: Editor, node: Node, groups: dict[tuple[object, int], list[_Sibling]], waiting: set[object]
) -> None:
    """Put a node to those that can be merged with it; note a group of which a node is being changed."""
    key = (node.scope, node.inputs[0], node.op_type, node.attr("transA", 0), node.attr("transB", 0))
    try:
        sibling = _read_sibling(editor, node)
    except MatchFailure:
        sibling = None
    if editor.is_taken(node) or (sibling is not None and sibling.add is not None and editor.is_taken(sibling.add)):
        waiting.add(key)
    elif sibling is not None:
        groups[key, sibling.linear.tensor.data_type].append(sibling)


def _read_sibling(editor: Editor, node: Node) -> _Sibling:
    linear, weight, out = linear_of(node, editor.shapes), node.inputs[1], node.outputs[0]
    if linear.data != 0 or len(linear.tensor.dims) != 2 or weight is None or out is None:
        raise MatchFailure
    if editor.is_fused(node) or editor.is_static(node) or any(editor.is_fused(reader) for reader, _ in out.consumers):
        raise MatchFailure
    if node.op_type == "Gemm":
        return _Sibling(linear, weight, None, _own_bias(editor, linear), out)
    reader = editor.only_reader(out)
    result = reader.outputs[0] if reader is not None and reader.is_op("Add") else None
    if reader is None or result is None:
        return _Sibling(linear, weight, None, None, out)
    try:
        added = affine_of(editor.model, reader, out, linear.result, linear.tensor.data_type)
    except MatchFailure:
        return _Sibling(linear, weight, None, None, out)
    return _Sibling(linear, weight, reader, added.shift, result)


def _own_bias(editor: Editor, linear: Linear) -> np.ndarray | None:
    value = linear.node.input(2)
    if linear.node.attr("alpha", 1.0) != 1.0 or linear.node.attr("beta", 1.0) != 1.0:
        raise MatchFailure("it scales its product or its bias")
    if value is None:
        return None
    tensor, count = value.constant, linear.result.count
    if tensor is None or list(tensor.dims) not in ([], [1], [count], [1, 1], [1, count]):
        raise MatchFailure("its bias is not one constant number for each column")
    try:
        return editor.model.array(tensor).reshape(-1)
    except ModelError as error:  # its data file is missing
        raise MatchFailure(str(error)) from error


def _by_weights(groups: Sequence[Sequence[_Sibling]]) -> Iterator[list[list[_Sibling]]]:
    """Yield, for each set of weights that the same groups read and nothing else does, their readers in each group."""
    group = {sibling.linear.node: index for index, siblings in enumerate(groups) for sibling in siblings}
    by_readers: dict[tuple[int, ...], dict[int, list[_Sibling]]] = defaultdict(lambda: defaultdict(list))
    for index, siblings in enumerate(groups):
        for sibling in siblings:
            readers = tuple(sorted(group.get(reader, OTHER) for reader, _ in sibling.weight.consumers))
            if OTHER not in readers and len(set(readers)) == len(readers):
                by_readers[readers][index].append(sibling)
    for layers in by_readers.values():
        order = {sibling.weight: place for place, sibling in enumerate(next(iter(layers.values())))}
        if len({sibling.linear.gives for siblings in layers.values() for sibling in siblings}) == 1:
            yield [sorted(siblings, key=lambda sibling: order[sibling.weight]) for siblings in layers.values()]


def _count_gain(siblings: Sequence[_Sibling]) -> int:
    """Return how many nodes fewer there will be."""
    adds = sum(sibling.add is not None for sibling in siblings)
    return len(siblings) + adds - 2 - (adds > 0)


def _merge_layers(editor: Editor, layers: Sequence[Sequence[_Sibling]]) -> None:
    """Merge the operators of each of several layers, which share the weights."""
    with editor.matching(layers[0][0].linear.node):
        weight = _joined_weight(editor, layers[0])
        for siblings in layers:
            _merge_siblings(editor, siblings, weight)


def _merge_siblings(editor: Editor, siblings: Sequence[_Sibling], weight: str) -> None:
    """Put one operator, and a Split, in the place of the first of several."""
    first = min((sibling.linear for sibling in siblings), key=lambda linear: linear.node.index)
    has_bias = any(sibling.bias is not None for sibling in siblings)
    bias = [_joined_bias(editor, siblings)] if has_bias else []
    label = siblings[0].out.name
    whole = editor.unique_name(f"{label}_joined")
    source = first.node.inputs[0]
    nodes: list[NewNode] = []
    if first.node.op_type == "Gemm":
        attributes = {name: first.node.attr(name, 0) for name in ("transA", "transB") if first.node.attr(name, 0)}
        nodes.append(NewNode("Gemm", [source, weight, *bias], [whole], attributes, like=first.node))
    elif has_bias:
        product = editor.unique_name(f"{label}_product")
        nodes.append(NewNode("MatMul", [source, weight], [product], like=first.node))
        nodes.append(NewNode("Add", [product, *bias], [whole], like=siblings[0].add))
    else:
        nodes.append(NewNode("MatMul", [source, weight], [whole], like=first.node))
    editor.insert_before(first.node, *nodes, _split_result(editor, siblings, whole))
    for sibling in siblings:
        editor.take(sibling.linear.node)
        editor.replace(sibling.add or sibling.linear.node)  # the Split gives what it gives
    editor.note("operators of one input merged", len(siblings))


def _joined_weight(editor: Editor, siblings: Sequence[_Sibling]) -> str:
    linears = [sibling.linear for sibling in siblings]
    axis = linears[0].gives[0]
    dims = list(linears[0].tensor.dims)
    dims[axis] = sum(linear.result.count for linear in linears)
    weights = [read_elements(editor.model, linear.tensor) for linear in linears]
    return editor.weight(
        f"{siblings[0].weight.name}_joined", linears[0].tensor.data_type, dims, join_weights(weights, axis)
    )


def _joined_bias(editor: Editor, siblings: Sequence[_Sibling]) -> str:
    counts = [sibling.linear.result.count for sibling in siblings]
    biases = [np.zeros(1) if sibling.bias is None else sibling.bias for sibling in siblings]
    full = [np.broadcast_to(bias, (count,)) for bias, count in zip(biases, counts, strict=True)]
    numbers = round_numbers(np.concatenate(full).astype(np.float64), siblings[0].linear.tensor.data_type)
    return editor.constant(numbers, f"{siblings[0].out.name}_bias")


def _split_result(editor: Editor, siblings: Sequence[_Sibling], whole: str) -> NewNode:
    linear = siblings[0].linear
    sizes, outputs = [s.linear.result.count for s in siblings], [s.out.name for s in siblings]
    axis = linear.result.axis
    if linear.node.scope.opset() < SPLIT_INPUT_SINCE:
        return NewNode("Split", [whole], outputs, {"axis": axis, "split": sizes})
    return NewNode("Split", [whole, editor.integers(sizes, f"{outputs[0]}_sizes")], outputs, {"axis": axis})
