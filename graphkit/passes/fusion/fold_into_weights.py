"""Fuse constant arithmetic on channels into the weights of linear operators."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from graphkit.graph.operator_traits import PICKING, PRESERVING
from graphkit.graph.view import Node, Value
from graphkit.passes.fusion.linear_operators import (
    AFFINE_OPERATORS,
    LINEAR_OPERATORS,
    Affine,
    Channels,
    Linear,
    affine_of,
    linear_of,
)
from graphkit.rewrite import ROUNDING, Editor, MatchFailure, NewNode, NodeInput, NodeRewrite, attributes_of
from graphkit.rewrite.weight_arithmetic import read_elements, round_numbers, scale_weight, spread_along_axes, sum_weight
from graphkit.shapes import Shapes


def move_channels(node: Node, value: Value, channels: Channels, shapes: Shapes) -> Channels | None:
    """Return the channels of a node's output, None where the node does more than move the elements of a tensor."""
    out = node.outputs[0] if len(node.outputs) == 1 else None
    if out is None or not node.is_op(*PRESERVING, *PICKING) or node.inputs[0] is not value or value in node.inputs[1:]:
        return None
    if (dims := shapes[out].dims) is None:
        return None
    rank, axis = len(dims), channels.axis
    if axis is None or node.is_op("Identity"):
        return Channels(rank, axis, channels.count)
    if node.is_op("Transpose"):
        perm = node.attr("perm", tuple(reversed(range(channels.rank))))
        return Channels(rank, perm.index(axis), channels.count) if perm and axis in perm else None
    keeps_last = node.is_op("Reshape") and axis == channels.rank - 1 and rank > 0 and channels.count > 0
    return Channels(rank, rank - 1 if keeps_last and dims[-1] == channels.count else None, channels.count)


@dataclass(frozen=True)
class FoldIntoWeights(NodeRewrite):
    """Fuse constant Mul, Div, Add, Sub and BatchNormalization into the weights of Conv, ConvTranspose, Gemm and MatMul.

    Changes the last digits of results: numbers are rounded once where they were rounded several times. The new weights
    are calculated in float64, part by part, and have the size of the old ones.

    Legality, behind the operator: each constant is one number for each channel of its result, or one for all; operators
    that only move elements may stand between, as far as the channels stay together or the number is the same for all.
    Before it: one number for each channel of the data, and nothing is added to what a convolution pads with zeros.
    Nothing else reads the weight, or what is in between; all constants are known and stay as they are at run time; the
    type can hold the product. What depends on constants alone is left to `fold-constants`, which keeps its digits.
    Where a bias has to stay as an Add behind a MatMul, at least one node has to go.

    Before:

        agraph (float[N, 1, 4] x) => (float[N, 1, 4] y)
        <float[1, 1, 1] w = {3.0}, float[1, 1, 1] scale = {2.0}, float[1] shift = {0.5}> {
            a = Conv (x, w)
            b = Mul (a, scale)
            y = Add (b, shift)
        }

    After:

        agraph (float[N, 1, 4] x) => (float[N, 1, 4] y)
        <float[1, 1, 1] w_fused = {6.0}, float[1] w_bias = {0.5}> {
            y = Conv (x, w_fused, w_bias)
        }
    """

    largest_error: ClassVar[float] = ROUNDING
    operators: ClassVar[tuple[str, ...]] = tuple(LINEAR_OPERATORS)

    def edit_node(self, editor: Editor, node: Node) -> None:
        if editor.is_static(node):
            return
        try:
            linear = linear_of(node, editor.shapes)
        except MatchFailure:
            readers = (reader for reader, _ in node.result().consumers)
            if any(reader.is_op(*AFFINE_OPERATORS) and _has_constant(reader) for reader in readers):
                raise
            return
        chain = _Chain(editor, linear)
        chain.follow()
        chain.climb()
        needs_add = linear.bias is None and (chain.after.shifts or chain.before.shifts)
        if len(chain.fused) > needs_add:  # fewer nodes are left
            _emit_nodes(editor, chain, _make_weight(editor, chain), _make_bias(editor, chain))
            editor.note("constant(s) fused into weights", len(chain.fused))


def _has_constant(node: Node) -> bool:
    return any(value.is_constant for value in node.operands)


@dataclass
class _Chain:
    """A linear operator, and the nodes before and after it that go into its weights."""

    editor: Editor
    linear: Linear  # the operator
    # the nodes after it up to the last one that is fused, in order; those that move elements stay
    behind: list[Node] = field(default_factory=list)
    before: Affine = field(default_factory=Affine)  # the function of the data
    after: Affine = field(default_factory=Affine)  # the function of the result

    start: Value | None = None  # the data before all that
    fused: list[Node] = field(default_factory=list)  # the nodes that go

    def follow(self) -> None:
        """Find the constant arithmetic on the result."""
        value, channels = self.linear.node.outputs[0], self.linear.result
        moves: list[Node] = []
        while value is not None:
            reader = self._only_reader(value)
            if reader is None or not self.editor.is_free(reader):
                return
            behind = move_channels(reader, value, channels, self.editor.shapes)
            if behind is not None:
                moves.append(reader)
                channels = behind
            else:
                affine = self._read_affine(reader, value, channels)
                if affine is None:
                    return
                self.after = self.after.followed_by(affine)
                self.behind += [*moves, reader]
                self.fused.append(reader)
                moves = []
            value = reader.outputs[0]

    def climb(self) -> None:
        """Find the constant arithmetic on the data."""
        reader, value = self.linear.node, self.linear.node.inputs[self.linear.data]
        while value is not None:
            self.start = value
            node = value.producer
            if node is None or not node.is_op(*AFFINE_OPERATORS) or not self.editor.is_free(node):
                return
            source = next((operand for operand in node.operands if operand.constant is None), None)
            if source is None or self._only_reader(value) is not reader:
                return
            affine = self._read_affine(node, source, self.linear.source)
            if affine is None:
                return
            before, after = self.editor.shapes[source].dims, self.editor.shapes[value].dims
            if before is None or before != after:
                self.editor.decline(node, "it may give a larger tensor than it reads")
                return
            if affine.shifts and self.linear.is_padded:
                self.editor.decline(node, f"'{self.linear.node.label}' pads what it adds to with zeros")
                return
            if affine.shifts and self.linear.node.op_type == "MatMul" and len(self.linear.tensor.dims) != 2:
                return
            self.before = affine.followed_by(self.before)
            self.fused.append(node)
            reader, value = node, source

    def _only_reader(self, value: Value) -> Node | None:
        """Return the only node that reads a value; say so where a node could be fused but for others."""
        if (only := self.editor.only_reader(value)) is not None:
            return only
        for reader, _ in value.consumers:
            if value.producer is self.linear.node and reader.is_op(*AFFINE_OPERATORS) and _has_constant(reader):
                self.editor.decline(reader, f"what '{self.linear.node.label}' gives is read elsewhere too")
        return None

    def _read_affine(self, node: Node, value: Value, channels: Channels) -> Affine | None:
        try:
            return affine_of(self.editor.model, node, value, channels, self.linear.tensor.data_type)
        except MatchFailure as failure:
            if failure.reason:
                self.editor.decline(node, f"not fused with '{self.linear.node.label}': {failure.reason}")
            return None


def _make_weight(editor: Editor, chain: _Chain) -> NodeInput:
    """Return the weight of the new node, the old one where no factor changes it."""
    linear = chain.linear
    value = linear.node.operand(linear.weight)
    if not chain.after.scales and not chain.before.scales:
        return value
    if len(value.consumers) > 1 or editor.is_output(value):
        raise MatchFailure(f"its weight '{value.name}' is read elsewhere too")
    tensor, pairs = linear.tensor, ((chain.after.scale, linear.gives), (chain.before.scale, linear.takes))
    factors = [spread_along_axes(scale, linear.view, axes) for scale, axes in pairs]
    parts = scale_weight(read_elements(editor.model, tensor, linear.view), tensor.data_type, *factors)
    return editor.weight(f"{value.name}_fused", tensor.data_type, tensor.dims, parts)


def _make_bias(editor: Editor, chain: _Chain) -> NodeInput:
    """Return the bias of the new node, None where it needs none."""
    linear, node = chain.linear, chain.linear.node
    old = node.input(linear.bias) if linear.bias is not None else None
    if old is not None and not (chain.after.scales or chain.after.shifts or chain.before.shifts):
        return old
    numbers = np.zeros(1)
    if old is not None:
        if old.constant is None:
            raise MatchFailure("its bias is not constant")
        dims = [dim for dim in old.constant.dims if dim != 1]
        if dims not in ([], [linear.result.count]) or (dims and old.constant.dims[-1] != linear.result.count):
            raise MatchFailure("its bias is not one number for each channel")
        beta = node.attr("beta", 1.0) if node.op_type == "Gemm" else 1.0
        if beta is None:
            raise MatchFailure("its beta is not known")
        numbers = beta * editor.model.array(old.constant).astype(np.float64).reshape(-1)
    if chain.before.shifts:
        factor = spread_along_axes(chain.before.shift, linear.view, linear.takes)
        alpha = node.attr("alpha", 1.0) if node.op_type == "Gemm" else 1.0
        elements = read_elements(editor.model, linear.tensor, linear.view)
        numbers = numbers + (alpha or 0.0) * sum_weight(elements, factor, linear.gives)
    numbers = chain.after.scale * numbers + chain.after.shift
    if old is None and not numbers.any():
        return None
    weight = node.operand(linear.weight)
    full = round_numbers(np.broadcast_to(numbers, (linear.result.count,)), linear.tensor.data_type)
    if linear.bias is None and linear.result.axis == linear.result.rank - 2:
        full = full[:, None]
    name = old.name if old is not None else f"{weight.name}_bias"
    return editor.constant(full, f"{name}_fused" if old is not None else name)


def _emit_nodes(editor: Editor, chain: _Chain, weight: NodeInput, bias: NodeInput) -> None:
    """Say which nodes take the place of the last node, or of the operator itself where that is the last one."""
    linear, node = chain.linear, chain.linear.node
    moves = [mover for mover in chain.behind if mover not in chain.fused]
    last = chain.behind[-1] if chain.behind else node
    inner = [node, *moves][:-1] if moves else []  # which give no longer what they gave
    names = [*(editor.unique_name(f"{each.result().name}_fused") for each in inner), last.result().name]
    inputs: list[NodeInput] = list(node.inputs)
    inputs[linear.data], inputs[linear.weight] = chain.start, weight
    new: list[NewNode] = []
    if linear.bias is not None:
        inputs[linear.bias :] = [bias] if bias is not None else []
        attributes = attributes_of(node)
        if isinstance(bias, str):
            attributes.pop("beta", None)  # a bias of our own is added once
        new.append(NewNode(node.op_type, inputs, [names[0]], attributes, like=node))
    else:
        product = names[0] if bias is None else editor.unique_name(f"{names[0]}_product")
        new.append(NewNode(node.op_type, inputs, [product], like=node))
        new += [NewNode("Add", [product, bias], [names[0]])] if bias is not None else []
    for mover, source, name in zip(moves, names, names[1:], strict=False):
        new.append(NewNode(mover.op_type, [source, *mover.inputs[1:]], [name], attributes_of(mover), like=mover))
    editor.replace(last, *new)
    for gone in {node, *chain.behind, *chain.fused} - {last}:
        editor.take(gone)
