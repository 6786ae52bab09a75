"""Linear operators with a constant weight, and constant arithmetic on channels that is fused into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from msgspec import Struct, field
from onnx import TensorProto

from graphkit.dtypes import FLOATS
from graphkit.errors import ModelError
from graphkit.graph.operator_traits import PICKING, PRESERVING, broadcasts_inputs, requested_shape
from graphkit.graph.view import Node, Value
from graphkit.model import Model
from graphkit.rewrite import ROUNDING, Editor, MatchFailure, NewNode, NodeInput, NodeRewrite, attributes_of, copy_node
from graphkit.rewrite.weight_arithmetic import read_elements, round_numbers, scale_weight, spread_along_axes, sum_weight
from graphkit.shapes import Shapes

AFFINE_OPERATORS = ("Mul", "Div", "Add", "Sub", "Neg", "BatchNormalization")
PLAIN_NORMALIZATION_SINCE = 9  # before, BatchNormalization has flags that say what it normalizes, and when
EPSILON = 1e-5
Axes = tuple[int, ...]
BROADCAST_BIAS_SINCE = 7  # Gemm: before, an attribute says whether its bias is broadcast


class Channels(Struct, frozen=True):
    """The axis of a tensor along which each number of a constant counts for one slice."""

    rank: int
    axis: int | None  # not negative; None where the channels are scattered, so that only one number for all will do
    count: int


class Affine(Struct, frozen=True, eq=False):
    """`scale * x + shift` by channel, in float64: each a vector, of one element where all channels have the same."""

    scale: np.ndarray = field(default_factory=lambda: np.ones(1))
    shift: np.ndarray = field(default_factory=lambda: np.zeros(1))

    def followed_by(self, after: Affine) -> Affine:
        """Return this one and another one after it."""
        return Affine(after.scale * self.scale, after.scale * self.shift + after.shift)

    @property
    def scales(self) -> bool:
        """Whether it multiplies by other numbers than 1."""
        return bool((self.scale != 1).any())

    @property
    def shifts(self) -> bool:
        """Whether it adds other numbers than 0."""
        return bool((self.shift != 0).any())


def affine_of(model: Model, node: Node, value: Value, channels: Channels, dtype: int) -> Affine:
    """Return the affine function that a node applies to the channels of a tensor, or raise a MatchFailure."""
    if not node.is_op(*AFFINE_OPERATORS):
        raise MatchFailure
    if node.op_type == "BatchNormalization":
        if node.inputs[0] is not value or len(node.inputs) != 5 or any(node.outputs[1:]):
            raise MatchFailure("it is a BatchNormalization that learns, or lacks parameters")
        if node.scope.opset() < PLAIN_NORMALIZATION_SINCE or node.attr("training_mode", 0) != 0:
            raise MatchFailure("it is a BatchNormalization that learns, or may learn")
        if channels.axis != 1:
            raise MatchFailure("it normalizes along another axis than that of the channels")
        parameters = [_constant_elements(model, parameter) for parameter in node.inputs[1:]]
        scale, bias, mean, variance = parameters
        epsilon = node.attr("epsilon", EPSILON)
        if epsilon is None or any(array.shape != (channels.count,) for array in parameters):
            raise MatchFailure("its parameters are not one number for each channel")
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            factor = scale / np.sqrt(variance + epsilon)
            shift = bias - mean * factor
        if not (np.isfinite(factor).all() and np.isfinite(shift).all()):
            raise MatchFailure("its parameters make numbers that are not finite")
        return Affine(factor, shift)
    if node.op_type == "Neg":
        return Affine(-np.ones(1))
    if not broadcasts_inputs(node):
        raise MatchFailure
    index = 0 if node.inputs[0] is value else 1
    number = _channel_vector(model, node.inputs[1 - index], channels, dtype)
    if node.op_type == "Div" and index == 1:
        raise MatchFailure("it divides a constant by the tensor")
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        affine = {
            "Mul": lambda: Affine(number),
            "Div": lambda: Affine(1 / number),
            "Add": lambda: Affine(shift=number),
            "Sub": lambda: Affine(shift=-number) if index == 0 else Affine(-np.ones(1), number),
        }[node.op_type]()
    if not (np.isfinite(affine.scale).all() and np.isfinite(affine.shift).all()):
        raise MatchFailure("its constant has elements that are not finite, or divides by 0")
    return affine


def _channel_vector(model: Model, value: Value | None, channels: Channels, dtype: int) -> np.ndarray:
    """Return the elements of a constant that is broadcast to a tensor, in float64: one for each channel, or one."""
    if value is None or value.constant is None:
        has_default = value is not None and value.kind == "input" and value.tensor is not None
        raise MatchFailure("its constant is an input with a default, which a caller may replace" if has_default else "")
    tensor = value.constant
    if tensor.data_type != dtype or dtype not in FLOATS:
        raise MatchFailure("its constant is of another type than the weight")
    dims = list(tensor.dims)
    if len(dims) > channels.rank:
        raise MatchFailure("its constant has more dims than the tensor")
    axis = None if channels.axis is None else channels.axis - (channels.rank - len(dims))
    if any(dim != 1 for index, dim in enumerate(dims) if index != axis):
        raise MatchFailure("its constant differs along other axes than that of the channels")
    if axis is not None and axis >= 0 and dims[axis] not in (1, channels.count):
        raise MatchFailure("its constant has another number of channels than the tensor")
    return _constant_elements(model, value)


def _constant_elements(model: Model, value: Value | None) -> np.ndarray:
    tensor = value.constant if value is not None else None
    if tensor is None:
        raise MatchFailure("not all of its parameters are constant")
    try:
        return model.array(tensor).astype(np.float64).reshape(-1)
    except ModelError as error:  # its data file is missing
        raise MatchFailure(f"the values of '{tensor.name}' cannot be read: {error.problem}") from error


class Linear(Struct, frozen=True, eq=False):
    """A node that gives `weight * data + bias`."""

    node: Node
    tensor: TensorProto
    view: tuple[int, ...]  # dims that the weight is looked at with: groups get a dim of their own
    takes: Axes  # the axes of the view that count the channels of the data, in order
    gives: Axes  # those that count the channels of the result
    source: Channels
    result: Channels
    data: int = 0  # which of its inputs is the data
    weight: int = 1  # which one is the weight
    bias: int | None = None  # which input is the bias, None for an operator that has none
    is_padded: bool = False  # whether it reads, or makes up, elements that are not in its data


def linear_of(node: Node, shapes: Shapes) -> Linear:
    """Return a node as a linear operator, or raise a MatchFailure."""
    if not node.is_op(*LINEAR_OPERATORS):
        raise MatchFailure
    return LINEAR_OPERATORS[node.op_type](node, shapes)


def _constant_weight(value: Value) -> TensorProto:
    if value.constant is None:
        if value.producer is not None and value.producer.is_op("DequantizeLinear"):
            raise MatchFailure("the weight is quantised")
        has_default = value.kind == "input" and value.tensor is not None
        raise MatchFailure("the weight is an input with a default, which a caller may replace" if has_default else "")
    if value.constant.data_type not in FLOATS:
        raise MatchFailure("the weight is of a type that is not calculated with here")
    return value.constant


def _read_convolution(node: Node, _: Shapes) -> Linear:
    tensor, groups = _constant_weight(node.operand(1)), node.attr("group", 1)
    dims, is_transposed = tuple(tensor.dims), node.op_type == "ConvTranspose"
    if len(dims) < 3 or not groups or groups < 1 or dims[0] % groups:
        raise MatchFailure("the groups do not fit the weight")
    view: tuple[int, ...] = dims
    gives: Axes = (0,)
    takes: Axes = (1,)
    if groups > 1:
        view, gives, takes = (groups, dims[0] // groups, *dims[1:]), (0, 1), (0, 2)
    pads, automatic = node.attr("pads", ()), node.attr("auto_pad", "NOTSET")
    is_padded = is_transposed or pads is None or any(pads) or automatic not in ("NOTSET", "VALID")
    source, result = Channels(len(dims), 1, dims[1] * groups), Channels(len(dims), 1, dims[0])
    if is_transposed:
        gives, takes, source, result = takes, gives, result, source
    return Linear(node, tensor, view, takes, gives, source=source, result=result, bias=2, is_padded=is_padded)


def _read_gemm(node: Node, _: Shapes) -> Linear:
    tensor = _constant_weight(node.operand(1))
    if node.scope.opset() < BROADCAST_BIAS_SINCE or len(tensor.dims) != 2:
        raise MatchFailure("the Gemm is of an old operator set, or its weight is no matrix")
    takes, gives = (1, 0) if node.attr("transB", 0) else (0, 1)
    dims = tuple(tensor.dims)
    source, result = Channels(2, 0 if node.attr("transA", 0) else 1, dims[takes]), Channels(2, 1, dims[gives])
    return Linear(node, tensor, dims, (takes,), (gives,), source=source, result=result, bias=2)


def _read_matmul(node: Node, shapes: Shapes) -> Linear:
    is_right = node.operand(1).constant is not None
    weight, data = (1, 0) if is_right else (0, 1)
    try:
        tensor, value = _constant_weight(node.operand(weight)), node.inputs[data]
    except MatchFailure as failure:
        if not failure.reason:
            _constant_weight(node.operand(1))  # the reason why the right operand is no weight
        raise
    rank, dims = shapes[value].rank, tuple(tensor.dims)
    if rank is None:
        raise MatchFailure("the rank of the data is not known")
    if len(dims) < 2 or rank < 2:
        raise MatchFailure("the weight or the data is a vector")
    last, before = len(dims) - 1, len(dims) - 2
    takes, gives = (before, last) if is_right else (last, before)
    whole, axis = max(rank, len(dims)), -1 if is_right else -2
    source, result = Channels(rank, rank + axis, dims[takes]), Channels(whole, whole + axis, dims[gives])
    return Linear(node, tensor, dims, (takes,), (gives,), source=source, result=result, data=data, weight=weight)


Reader = Callable[[Node, Shapes], Linear]
LINEAR_OPERATORS: Mapping[str, Reader] = {
    "Conv": _read_convolution,
    "ConvTranspose": _read_convolution,
    "Gemm": _read_gemm,
    "MatMul": _read_matmul,
}


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
    keeps_last = requested_shape(node) is not None and axis == channels.rank - 1 and rank > 0 and channels.count > 0
    return Channels(rank, rank - 1 if keeps_last and dims[-1] == channels.count else None, channels.count)


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

    largest_error = ROUNDING
    operators = tuple(LINEAR_OPERATORS)

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


class _Chain(Struct):
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
            if (reader := self._only_reader(value)) is None or not self.editor.is_free(reader):
                return
            if (behind := move_channels(reader, value, channels, self.editor.shapes)) is not None:
                moves.append(reader)
                channels = behind
            else:
                if (affine := self._read_affine(reader, value, channels)) is None:
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
            if (affine := self._read_affine(node, source, self.linear.source)) is None:
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
    if len(value.consumers) > 1 or value.is_output:
        raise MatchFailure(f"its weight '{value.name}' is read elsewhere too")
    tensor, pairs = linear.tensor, ((chain.after.scale, linear.gives), (chain.before.scale, linear.takes))
    factors = [spread_along_axes(scale, linear.view, axes) for scale, axes in pairs]
    parts = scale_weight(read_elements(editor.model, tensor, linear.view), tensor.data_type, *factors)
    return editor.weight(f"{value.name}_fused", tensor.data_type, tensor.dims, parts)


def _make_bias(editor: Editor, chain: _Chain) -> NodeInput:
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
        new.append(copy_node(mover, [source, *mover.inputs[1:]], [name]))
    editor.replace(last, *new)
    for gone in {node, *chain.behind, *chain.fused} - {last}:
        editor.take(gone)
