"""Take products of quantised numbers back to products of floats. This changes results."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import ClassVar, NamedTuple

import numpy as np
from onnx import TensorProto

from graphkit.dtypes import FLOATS, INTEGERS
from graphkit.graph.view import Node, Value, unwrap_value
from graphkit.rewrite import Editor, MatchFailure, NewNode, NodeInput, Rewrite, attributes_of
from graphkit.rewrite.weight_arithmetic import dequantized_blocks, read_elements, scale_weight, unpack_codes

PRODUCTS = ("MatMulInteger", "ConvInteger")
DYNAMIC, STATIC = "DynamicQuantizeLinear", "QuantizeLinear"


class Data(NamedTuple):
    """Quantised data."""

    floats: Value
    scale: Value  # which holds their scale


class Result(NamedTuple):
    """The float result of a sum of integers."""

    node: Node  # which gives it
    dtype: int
    constants: tuple[TensorProto, ...]  # which go into the weight


def data_of(value: Value | None, zero: Value | None) -> Data | None:
    """Return the data that was quantised with that zero point, None where it was not."""
    node = value.producer if value is not None else None
    if node is None or not node.is_op(DYNAMIC, STATIC) or node.outputs[0] is not value:
        return None
    floats, scale, point = map(node.input, range(3))
    if node.is_op(DYNAMIC):
        scale, point = (*node.outputs, None, None)[1:3]
    if floats is None or scale is None or point is not zero:
        return None
    if node.is_op(STATIC) and (scale.constant is None or any(size != 1 for size in scale.constant.dims)):
        return None
    return Data(floats, scale)


def result_of(editor: Editor, product: Node, data: Sequence[Data]) -> Result:
    """Follow a sum of integers through its Cast to the last Mul with a scale of its data, or raise a MatchFailure."""
    node = editor.only_reader(product.result())
    if node is None or not node.is_op("Cast") or (dtype := node.attr("to", 0)) not in FLOATS or not dtype:
        raise MatchFailure("it is not cast to floats, and by that alone")
    open_scales, constants = [each.scale for each in data], list[TensorProto]()
    while open_scales:
        out = node.result()
        node = editor.only_reader(out)
        if node is None or not node.is_op("Mul"):
            raise MatchFailure("it is not multiplied with the scale of its data")
        factors = _find_factors(next((value for value in node.operands if value is not out), None), open_scales)
        scales = [each for each in factors or () if isinstance(each, Value)]
        if factors is None or any(scales.count(scale) > open_scales.count(scale) for scale in scales):
            raise MatchFailure("it is multiplied with something else than scales")
        for scale in scales:
            open_scales.remove(scale)
        constants += [each for each in factors if isinstance(each, TensorProto)]
    return Result(node, dtype, tuple(constants))


def _find_factors(value: Value | None, scales: Sequence[Value]) -> list[Value | TensorProto] | None:
    """Return the scales and constants that a value is the product of, None where it is something else."""
    if value is None or value in scales:
        return None if value is None else [value]
    value = unwrap_value(value, ("Identity",))
    if value.constant is not None:
        return [value.constant]
    node = value.producer
    parts = [_find_factors(part, scales) for part in node.inputs] if node is not None and node.is_op("Mul") else [None]
    return None if None in parts else [factor for part in parts for factor in part or ()]


NOT_CONSTANT = "its weight, scales and zero points are not all constant"
BITS = (2, 4, 8)


@dataclass(eq=False)
class FloatWeights:
    """The float weights that one sweep makes, which nodes share."""

    editor: Editor
    made: dict[tuple[object, ...], str] = field(default_factory=dict)

    def of(self, weight: Value | None, zero: Value | None, scales: Sequence[TensorProto], dtype: int, axis: int) -> str:
        """Return the name of `(weight - zero) * scales`, floats of a dtype, of a constant of 8, 16 or 32 bits.

        The zero point and the product of scales are one for all of it, or one for each slice along the axis.
        """
        tensor, point = _constant_of(weight), _constant_of(zero)
        if weight is None or tensor is None or (zero is not None and point is None):
            raise MatchFailure(NOT_CONSTANT)
        dims = tuple(tensor.dims) or (1,)  # one number is calculated with as a row of one
        if tensor.data_type not in INTEGERS:
            raise MatchFailure("its weight has a type that is not calculated with here")
        key = (id(tensor), id(point), tuple(map(id, scales)), dtype, axis)
        if key in self.made:
            return self.made[key]
        zeros = np.zeros(()) if point is None else self.editor.model.array(point).astype(np.float64)
        factors = [self.editor.model.array(scale).astype(np.float64) for scale in scales]
        factor = _shape_along_axis(reduce(operator.mul, factors, np.ones(())), dims, axis)
        offset = _shape_along_axis(zeros, dims, axis)
        if factor is None or offset is None:
            raise MatchFailure("its scales or zero points are not one for each channel of its result")
        parts = scale_weight(read_elements(self.editor.model, tensor).reshape(dims), dtype, factor, zero=offset)
        self.made[key] = self.editor.weight(f"{weight.name}_float", dtype, tuple(tensor.dims), parts)
        return self.made[key]

    def of_blocks(self, node: Node, dtype: int) -> str:
        """Return the name of the `[K, N]` floats that the weight of a MatMulNBits stands for."""
        weight, scales, zeros = node.input(1), node.input(2), node.input(3)
        codes, scale, zero = _constant_of(weight), _constant_of(scales), _constant_of(zeros)
        if weight is None or codes is None or scale is None or (zeros is not None and zero is None):
            raise MatchFailure(NOT_CONSTANT)
        bits, size = node.attr("bits", 4), node.attr("block_size", 0)
        rows, columns = node.attr("K", 0), node.attr("N", 0)
        if bits not in BITS or not (size and rows and columns and codes.data_type == TensorProto.UINT8):
            raise MatchFailure("its bits or its sizes are not those of blocks of 2, 4 or 8 bits")
        blocks = -(-rows // size)
        array = read_elements(self.editor.model, codes)
        if array.size != columns * blocks * size * bits // 8:
            raise MatchFailure("its weight does not have the size that its attributes say")
        try:
            factor = self.editor.model.array(scale).astype(np.float64).reshape(columns, blocks)
            offset = np.full((columns, blocks), float(1 << (bits - 1)))
            if zero is not None:
                points = self.editor.model.array(zero)
                if points.dtype == np.uint8:  # packed as the weight is
                    points = unpack_codes(points.reshape(columns, -1), bits)[:, :blocks]
                offset = points.astype(np.float64).reshape(columns, blocks)
            parts = dequantized_blocks(array.reshape(columns, blocks, -1), bits, rows, dtype, offset, factor)
            return self.editor.weight(f"{weight.name}_float", dtype, (rows, columns), parts)
        except ValueError as error:  # scales or zero points of another size
            raise MatchFailure(str(error)) from error


def _constant_of(value: Value | None) -> TensorProto | None:
    return unwrap_value(value, ("Identity",)).constant if value is not None else None


def _shape_along_axis(numbers: np.ndarray, dims: Sequence[int], axis: int) -> np.ndarray | None:
    """Return numbers in a shape that is broadcast to a weight: one, or one for each slice; None where they are not."""
    rank = len(dims)
    if numbers.size == 1:
        return numbers.reshape([1] * rank)
    if not -rank <= axis < rank or not numbers.size == max(numbers.shape) == dims[axis]:
        return None
    return numbers.reshape([-1 if at == axis % rank else 1 for at in range(rank)])


STAYS = {"DynamicQuantizeLSTM": "an LSTM", "QAttention": "an attention"}
SHAPE = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
NO_DATA = "its data is not quantised by DynamicQuantizeLinear or QuantizeLinear"


@dataclass(frozen=True)
class Dequantize(Rewrite):
    """Compute products of quantised numbers with floats: the data as it is, times the dequantised weight.

    MatMulInteger and ConvInteger with their Cast and scales, DynamicQuantizeMatMul, MatMulIntegerToFloat and
    MatMulNBits become MatMul and Conv of floats; weights become 4 times as large, those of 4 bits 8 times.

    This changes results: data is no longer rounded to 8 bits, which moved each element by up to 1/510 of the range that
    its tensor has in a run. Products come nearer to those of the model before it was quantised, and no longer depend on
    padding or on what else is in the batch. It runs only where it is asked for by name. `rewrite` proves it on data
    that is rounded as before: then each product, and all that is between products, is equal within the rounding of
    floats. So is each branch of a merged decoder. Nothing is proven of a model with other bodies or with functions: a
    rounding passes through all layers behind it, and how far results move then has no bound.

    Legality: weight, zero points and scales are constant, one for all of the weight or one for each channel of the
    result; the sum of integers is read by its Cast alone, and that by the Mul with the scales. DynamicQuantizeLSTM and
    QAttention stay.

    Attributes:
        qdq: Whether weights behind a DequantizeLinear become floats too, so do tables whose rows are dequantised once a
            Gather has taken them, and pairs of a QuantizeLinear and a DequantizeLinear with its scale and zero point
            go.

    Before:

        agraph (float[N, 2] x) => (float[N, 2] y)
        <int8[2, 2] w = {1, -2, 3, 4}, int8 w_zero = {1}, float[2] w_scale = {0.5, 0.25}> {
            q, scale, zero = DynamicQuantizeLinear (x)
            sum = MatMulInteger (q, w, zero, w_zero)
            floats = Cast <to = 1> (sum)
            scales = Mul (scale, w_scale)
            y = Mul (floats, scales)
        }

    After:

        agraph (float[N, 2] x) => (float[N, 2] y)
        <float[2, 2] w_float = {0, -0.75, 1, 0.75}> {
            y = MatMul (x, w_float)
        }
    """

    largest_error: ClassVar[float] = math.inf  # the proof rounds the data as the original does, or there is none
    drops_rounding: ClassVar[bool] = True
    qdq: bool = False

    def edit(self, editor: Editor) -> None:
        weights = FloatWeights(editor)
        for node in editor.nodes(*PRODUCTS):
            with editor.matching(node):
                _integer_product(editor, weights, node)
        contrib = (node for scope in editor.scopes for node in scope.nodes if node.domain == "com.microsoft")
        for node in filter(editor.is_free, contrib):
            if node.op_type in STAYS:
                editor.decline(node, f"{STAYS[node.op_type]} is not taken back to floats")
            elif (rewrite := FUSED.get(node.op_type)) is not None:
                with editor.matching(node):
                    rewrite(editor, weights, node)
        for node in editor.nodes("DequantizeLinear") if self.qdq else ():
            with editor.matching(node):
                _replace_dequantized(editor, weights, node)


def _integer_product(editor: Editor, weights: FloatWeights, node: Node) -> None:
    """Put a product of floats in the place of a sum of integers, its Cast and its scales."""
    data = [data_of(node.input(index), node.input(index + 2)) for index in (0, 1)]
    known = [each for each in data if each is not None]
    if not known:
        raise MatchFailure(NO_DATA)
    result = result_of(editor, node, known)
    if any(editor.shapes[each.floats].dtype != result.dtype for each in known):
        raise MatchFailure("its data has another dtype than its result")
    factors: list[NodeInput] = []
    for index, each in enumerate(data):
        factors.append(each.floats if each is not None else _float_weight(editor, weights, node, index, result))
    if len(known) == len(data) and result.constants:
        raise MatchFailure("both of its factors are data, and it has constant scales")
    name = result.node.result().name
    editor.replace(result.node, NewNode(SHAPE[node.op_type], factors, [name], attributes_of(node), like=node))
    editor.note("product(s) of integers computed with floats")


def _float_weight(editor: Editor, weights: FloatWeights, node: Node, index: int, result: Result) -> str:
    """Return the float weight of a product: its channels are the columns of a second factor, or those of a Conv."""
    value, out = node.input(index), node.outputs[0]
    rank = editor.shapes[value].rank
    if rank is None or rank < 2:
        raise MatchFailure("its weight is no matrix")
    is_conv = node.is_op("ConvInteger")
    most = rank if is_conv else (editor.shapes[out].rank) or 1
    along = rank - 2 if is_conv else 0 if index == 1 else None  # the axis of scales, from the last one
    for dims in (list(reversed(tensor.dims)) for tensor in result.constants):
        if len(dims) > most or any(size != 1 for at, size in enumerate(dims) if at != along):
            raise MatchFailure("its scales are not one for each channel of its result")
    axis = 0 if is_conv else index - 2
    return weights.of(value, node.input(index + 2), result.constants, result.dtype, axis)


def _fused_product(editor: Editor, weights: FloatWeights, node: Node) -> None:
    """Put a product of floats in the place of a node that takes and gives floats."""
    is_dynamic = node.op_type == "DynamicQuantizeMatMul"  # (A, B, b_scale, b_zero_point, bias)
    floats, places = node.input(0), (2, 3, 4)
    if not is_dynamic:  # MatMulIntegerToFloat(A, B, a_scale, b_scale, a_zero_point, b_zero_point, bias)
        data = data_of(floats, node.input(4))
        if data is None or data.scale is not node.input(2):
            raise MatchFailure(NO_DATA)
        floats, places = data.floats, (3, 5, 6)
    scale, zero, bias = map(node.input, places)
    dtype = editor.shapes[floats].dtype
    if floats is None or dtype not in FLOATS or scale is None or scale.constant is None:
        raise MatchFailure("its data is not known to be floats, or its scales are not constant")
    _emit_product(editor, node, floats, weights.of(node.input(1), zero, [scale.constant], dtype, -1), bias)


def _block_product(editor: Editor, weights: FloatWeights, node: Node) -> None:
    """MatMulNBits(A, B, scales, zero_points, g_idx, bias)."""
    data, dtype = node.input(0), editor.shapes[node.input(0)].dtype
    if data is None or dtype not in FLOATS:
        raise MatchFailure("its data is not known to be floats")
    if node.input(4) is not None:
        raise MatchFailure("its rows are in another order, that of g_idx")
    _emit_product(editor, node, data, weights.of_blocks(node, dtype), node.input(5))


def _emit_product(editor: Editor, node: Node, data: Value, weight: str, bias: Value | None) -> None:
    out = node.outputs[0]
    if out is None:
        raise MatchFailure("nothing reads it")
    product = out.name if bias is None else editor.unique_name(f"{out.name}_product")
    added = [NewNode("Add", [product, bias], [out.name])] if bias is not None else []
    editor.replace(node, NewNode("MatMul", [data, weight], [product], like=node), *added)
    editor.note("product(s) of integers computed with floats")


def _replace_dequantized(editor: Editor, weights: FloatWeights, node: Node) -> None:
    """Replace a dequantised weight by floats, or data that is quantised and dequantised by the data itself."""
    value, scale, out = node.input(0), node.input(1), node.outputs[0]
    if value is None or scale is None or out is None:
        return
    if node.attr("block_size", 0):
        raise MatchFailure("each block of its weight has a scale")
    data = data_of(value, node.input(2))
    if data is not None:
        if data.scale is not scale or editor.shapes[data.floats].dtype != editor.shapes[out].dtype:
            raise MatchFailure("it has another scale or dtype than the QuantizeLinear before it")
        if editor.bypass(node, data.floats):
            editor.note("QuantizeLinear and DequantizeLinear pair(s) gone")
    elif value.constant is not None and scale.constant is not None:
        axis = node.attr("axis", 1) or 0
        if editor.bypass(node, weights.of(value, node.input(2), [scale.constant], scale.constant.data_type, axis)):
            editor.note("weight(s) dequantised")
    elif (rows := value.producer) is not None and rows.is_op("Gather") and rows.input(0) is not None:
        _dequantized_rows(editor, weights, node, rows)
    else:
        raise MatchFailure("its data is neither constant nor given by a QuantizeLinear with its zero point")


def _dequantized_rows(editor: Editor, weights: FloatWeights, node: Node, rows: Node) -> None:
    """Take rows from a dequantised table, in place of dequantising rows: each element is computed alike."""
    table, indices, out = rows.operand(0), rows.operand(1), node.result()
    codes, scale = _constant_of(table), _constant_of(node.input(1))
    if codes is None or scale is None:
        raise MatchFailure("its table, scale and zero point are not all constant")
    along, rank, most = 0, len(codes.dims), editor.shapes[out].rank
    if math.prod(scale.dims) != 1:  # along the axis of the table, from its end, that counts the elements of a row
        if most is None:
            raise MatchFailure("its rank is not known")
        along = (node.attr("axis", 1) or 0) % most - most
        if not (rows.attr("axis", 0) or 0) % rank < along + rank:
            raise MatchFailure("its scales are not one for each element of a row of its table")
    floats = weights.of(table, node.input(2), [scale], scale.data_type, along)
    editor.replace(node, NewNode("Gather", [floats, indices], [out.name], attributes_of(rows), like=rows))
    editor.note("table(s) dequantised")


FUSED = {"DynamicQuantizeMatMul": _fused_product, "MatMulIntegerToFloat": _fused_product, "MatMulNBits": _block_product}
