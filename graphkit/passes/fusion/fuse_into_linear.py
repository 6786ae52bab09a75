"""Fuse the neighbours of linear operators into them: Pads, Adds, and operators that read the same tensor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from graphkit.dtypes import FLOATS
from graphkit.errors import ModelError
from graphkit.graph.view import Node, Value
from graphkit.passes.fusion.fold_into_weights import BROADCAST_BIAS_SINCE, Linear, affine_of, linear_of
from graphkit.rewrite import ROUNDING, Editor, MatchFailure, NewNode, NodeRewrite, Rewrite, attributes_of
from graphkit.rewrite.pattern import Op, Pattern, nodes_of
from graphkit.rewrite.weight_arithmetic import join_weights, read_elements, round_numbers
from graphkit.shapes import const

INPUTS_SINCE, AXES_SINCE = 11, 18  # of Pad
UNPADDED = ("NOTSET", "VALID")
ANY_SIZES_SINCE = 2
OTHER = -1  # stands for a reader that is in no group


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

    largest_error = ROUNDING
    operators = ("Conv",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        data = node.inputs[0]
        pad = data.producer if data is not None and data not in editor.aliases else None
        if pad is None or not pad.is_op("Pad") or pad.scope is not node.scope:
            return
        if not editor.is_free(pad) or editor.is_static(node):
            return
        if (rank := editor.shapes[node.inputs[0]].rank) is None or rank < 3:
            raise MatchFailure("the rank of its data is not known")
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
        around = [0] * (2 * rank)
        for axis, before, after in zip(chosen, amounts, amounts[len(chosen) :], strict=False):
            around[axis % rank], around[axis % rank + rank] = before, after
        if min(around) < 0:
            raise MatchFailure(f"'{pad.label}' takes elements away")
        if any(around[axis] for axis in (0, 1, rank, rank + 1)):
            raise MatchFailure(f"'{pad.label}' adds batches or channels")
        added, zeros = [*around[2:rank], *around[rank + 2 :]], (0,) * (2 * (rank - 2))
        automatic = node.attr("auto_pad", "NOTSET")
        if automatic not in UNPADDED:
            raise MatchFailure("it chooses its own padding")
        conv_pads = node.attr("pads", zeros) if automatic == "NOTSET" else zeros
        if conv_pads is None or len(conv_pads) != len(zeros):
            raise MatchFailure("its pads do not fit the rank of its data")
        attributes = attributes_of(node) | {"pads": [sum(pair) for pair in zip(added, conv_pads, strict=True)]}
        attributes.pop("auto_pad", None)
        outputs = [value.name for value in node.results]
        editor.replace(node, NewNode("Conv", [pad.inputs[0], *node.inputs[1:]], outputs, attributes, like=node))
        editor.note("Pad(s) put into the pads of a Conv")


PRODUCT, BIAS = Op("MatMul", Pattern(), Pattern()), Pattern()
SUM = Op("Add", PRODUCT, BIAS)


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

    largest_error = ROUNDING
    operators = ("Add",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        for match in SUM.solve(editor, node.outputs[0], {}) if node.scope.opset() >= BROADCAST_BIAS_SINCE else ():
            (product,), value, bias = nodes_of(match, PRODUCT), match[PRODUCT], match[BIAS]
            ranks = [editor.shapes[operand].rank for operand in product.operands]
            if product.scope is not node.scope or ranks != [2, 2] or editor.shapes[value].dtype not in FLOATS:
                continue
            if not editor.is_free(product) or editor.is_static(product):
                continue
            if editor.only_reader(value) is not node:
                raise MatchFailure(f"what '{product.label}' gives is read elsewhere too")
            whole, added = editor.shapes[value].dims, editor.shapes[bias].dims
            if whole is None or added is None or len(added) > len(whole):
                raise MatchFailure("what it adds may have more dims than the product")
            if any(dim not in (const(1), size) for dim, size in zip(reversed(added), reversed(whole), strict=False)):
                raise MatchFailure("what it adds may be larger than the product")
            editor.replace(node, NewNode("Gemm", [*product.inputs, bias], [node.result().name], like=product))
            editor.take(product)
            editor.note("pair(s) of MatMul and Add merged into a Gemm")
            return


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

    largest_error = ROUNDING

    def edit(self, editor: Editor) -> None:
        groups: dict[tuple[object, int], list[_Sibling]] = defaultdict(list)
        waiting: set[object] = set()
        for scope in editor.scopes:
            for node in scope.nodes:
                if not node.is_op("MatMul", "Gemm") or len(node.inputs) < 2 or scope.opset() < ANY_SIZES_SINCE:
                    continue
                key = (scope, node.inputs[0], node.op_type, node.attr("transA", 0), node.attr("transB", 0))
                try:
                    sibling = _read_sibling(editor, node)
                except MatchFailure:
                    sibling = None
                if editor.is_taken(node) or (sibling and sibling.add is not None and editor.is_taken(sibling.add)):
                    waiting.add(key)  # a node of the group is being changed
                elif sibling is not None:
                    groups[key, sibling.linear.tensor.data_type].append(sibling)
        for layers in _by_weights([siblings for key, siblings in groups.items() if key[0] not in waiting]):
            adds = [sum(sibling.add is not None for sibling in siblings) for siblings in layers]
            gains = [len(each) + count - 2 - (count > 0) for each, count in zip(layers, adds, strict=True)]
            if len(layers[0]) > 1 and min(gains) >= 0:
                with editor.matching(layers[0][0].linear.node):
                    joined = layers[0]
                    linears = [sibling.linear for sibling in joined]
                    tensor, axis = linears[0].tensor, linears[0].gives[0]
                    dims = list(tensor.dims)
                    dims[axis] = sum(linear.result.count for linear in linears)
                    parts = join_weights([read_elements(editor.model, linear.tensor) for linear in linears], axis)
                    weight = editor.weight(f"{joined[0].weight.name}_joined", tensor.data_type, dims, parts)
                    for siblings in layers:
                        _merge_siblings(editor, siblings, weight)


class _Sibling(Struct, frozen=True, eq=False):
    linear: Linear
    weight: Value
    out: Value  # the result, with the bias
    add: Node | None = None  # the node that adds a bias to the product, where one does
    bias: np.ndarray | None = None  # that, or the operator's own: one number a column or one; None for none


def _read_sibling(editor: Editor, node: Node) -> _Sibling:
    linear, weight, out = linear_of(node, editor.shapes), node.inputs[1], node.outputs[0]
    if linear.data != 0 or len(linear.tensor.dims) != 2 or weight is None or out is None:
        raise MatchFailure
    if editor.is_fused(node) or editor.is_static(node) or any(editor.is_fused(reader) for reader, _ in out.consumers):
        raise MatchFailure
    if node.op_type == "Gemm":
        return _Sibling(linear, weight, out, bias=_own_bias(editor, linear))
    reader = editor.only_reader(out)
    result = reader.outputs[0] if reader is not None and reader.is_op("Add") else None
    if reader is not None and result is not None:
        with suppress(MatchFailure):
            added = affine_of(editor.model, reader, out, linear.result, linear.tensor.data_type)
            return _Sibling(linear, weight, result, reader, added.shift)
    return _Sibling(linear, weight, out)


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


def _merge_siblings(editor: Editor, siblings: Sequence[_Sibling], weight: str) -> None:
    first = min((sibling.linear.node for sibling in siblings), key=lambda node: node.index)
    linear, label, outputs = siblings[0].linear, siblings[0].out.name, [sibling.out.name for sibling in siblings]
    sizes, bias = [sibling.linear.result.count for sibling in siblings], list[str]()
    if any(sibling.bias is not None for sibling in siblings):
        parts = [np.zeros(1) if each.bias is None else each.bias for each in siblings]
        full = np.concatenate([np.broadcast_to(part, (size,)) for part, size in zip(parts, sizes, strict=True)])
        bias = [editor.constant(round_numbers(full.astype(np.float64), linear.tensor.data_type), f"{label}_bias")]
    whole, product = editor.unique_name(f"{label}_joined"), first.inputs[0]
    if first.op_type == "Gemm":
        attributes = {name: first.attr(name, 0) for name in ("transA", "transB") if first.attr(name, 0)}
        nodes = [NewNode("Gemm", [product, weight, *bias], [whole], attributes, like=first)]
    elif bias:
        name = editor.unique_name(f"{label}_product")
        nodes = [NewNode("MatMul", [product, weight], [name], like=first)]
        nodes.append(NewNode("Add", [name, *bias], [whole], like=siblings[0].add))
    else:
        nodes = [NewNode("MatMul", [product, weight], [whole], like=first)]
    split = editor.make_numbered(first, "Split", whole, sizes, f"{label}_sizes", axis=linear.result.axis)
    editor.insert_before(first, *nodes, replace(split, outputs=outputs))
    for sibling in siblings:
        editor.take(sibling.linear.node)
        editor.replace(sibling.add or sibling.linear.node)  # the Split gives what it gives
    editor.note("operators of one input merged", len(siblings))
