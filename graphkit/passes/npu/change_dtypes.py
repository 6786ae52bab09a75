"""Compute in the dtypes that an NPU has: int32 for int64, and floats for quantised numbers, which changes results."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field
from onnx import TensorProto

from graphkit.dtypes import FLOATS, INTEGERS
from graphkit.graph.new_nodes import make_gather
from graphkit.graph.operator_traits import COMPARING, GATHERING, KERNELS_OF_INT32, MOVING, RESHAPING, copied_inputs
from graphkit.graph.view import Node, Value, unwrap_value
from graphkit.rewrite import Editor, MatchFailure, NewNode, NodeInput, NodeRewrite, Rewrite, attributes_of, copy_node
from graphkit.rewrite.weight_arithmetic import dequantized_blocks, read_elements, scale_weight, unpack_codes

PRODUCTS = ("MatMulInteger", "ConvInteger")
DYNAMIC, STATIC = "DynamicQuantizeLinear", "QuantizeLinear"
NOT_CONSTANT = "its weight, scales and zero points are not all constant"
BITS = (2, 4, 8)
STAYS = {"DynamicQuantizeLSTM": "an LSTM", "QAttention": "an attention"}
SHAPE = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
NO_DATA = "its data is not quantised by DynamicQuantizeLinear or QuantizeLinear"
INT32, INT64 = TensorProto.INT32, TensorProto.INT64
NARROW = INTEGERS - {INT64, TensorProto.UINT64}  # int64 holds each of their elements
CALCULATING = frozenset({"Abs", "Add", "Max", "Min", "Mul", "Neg", "Sub"})
SOURCES = ("Cast", "ArgMax", "ArgMin", "TopK")  # what gives int64 that is cast to int32
MOVED = MOVING | {"Where"}


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
        if (node := editor.only_reader(out)) is None or not node.is_op("Mul"):
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


class FloatWeights(Struct, eq=False):
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
        rows, columns = node.attr("K", 0) or 0, node.attr("N", 0) or 0
        size = node.attr("block_size", 0) or 0
        return self._unpack_blocks(node, (1, 2, 3), columns, rows, size, dtype, is_transposed=True)

    def of_rows(self, node: Node) -> str:
        """Return the name of the `[rows, width]` floats that the table of a GatherBlockQuantized stands for."""
        if None in map(node.input, range(3)):
            raise MatchFailure("it has no table, no indices or no scales")
        table, scales = (self.editor.shapes[node.operand(index)] for index in (0, 2))
        sizes, dtype, bits = table.sizes() or (), scales.dtype, node.attr("bits", 4)
        axes = [(node.attr(name, default) or 0) % 2 for name, default in (("gather_axis", 0), ("quantize_axis", 1))]
        if len(sizes) != 2 or bits not in BITS or axes != [0, 1] or dtype != TensorProto.FLOAT:
            raise MatchFailure("it does not look rows up in a matrix of blocks of 2, 4 or 8 bits, scaled by float32")
        rows, width = sizes[0], sizes[1] * 8 // bits
        size = min(node.attr("block_size", 128) or 0, width)  # one block is as long as its row
        return self._unpack_blocks(node, (0, 2, 3), rows, width, size, dtype, is_transposed=False)

    def _unpack_blocks(
        self, node: Node, places: Sequence[int], count: int, width: int, size: int, dtype: int, *, is_transposed: bool
    ) -> str:
        """Return the name of the `[count, width]` floats of the codes, scales and zeros at these inputs, or turned."""
        weight, scales, zeros = map(node.input, places)
        scale, zero = _constant_of(scales), _constant_of(zeros)
        codes = unwrap_value(weight, ("Identity", *RESHAPING)).constant if weight is not None else None
        if codes is None or scale is None or (zeros is not None and zero is None):
            raise MatchFailure(NOT_CONSTANT)
        bits = node.attr("bits", 4)
        if bits not in BITS or min(size, width, count) < 1 or codes.data_type != TensorProto.UINT8:
            raise MatchFailure("its bits or its sizes are not those of blocks of 2, 4 or 8 bits")
        blocks = -(-width // size)
        array, room = read_elements(self.editor.model, codes), blocks * size * bits // 8
        if array.size == count * (short := width * bits // 8) < count * room:  # the last block of a row is
            array = np.pad(array.reshape(count, short), ((0, 0), (0, room - short)))
        if array.size != count * room:
            raise MatchFailure("its weight does not have the size that its attributes say")
        try:
            factor = self.editor.model.array(scale).astype(np.float64).reshape(count, blocks)
            offset = np.full((count, blocks), float(1 << (bits - 1)))
            if zero is not None:
                points = self.editor.model.array(zero)
                if points.dtype == np.uint8:  # packed as the weight is
                    points = unpack_codes(points.reshape(count, -1), bits)[:, :blocks]
                offset = points.astype(np.float64).reshape(count, blocks)
        except ValueError as error:  # scales or zero points of another size
            raise MatchFailure(str(error)) from error
        packed, dims = array.reshape(count, blocks, -1), (width, count) if is_transposed else (count, width)
        parts = dequantized_blocks(packed, bits, width, dtype, offset, factor, is_transposed=is_transposed)
        return self.editor.weight(f"{node.operand(places[0]).name}_float", dtype, dims, parts)


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
        qdq: Whether weights behind a DequantizeLinear become floats too, so do tables whose rows are dequantised once
            they are looked up, and pairs of a QuantizeLinear and a DequantizeLinear with its scale and zero point
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

    largest_error = math.inf  # the proof rounds the data as the original does, or there is none
    drops_rounding = True
    qdq: bool = False

    def edit(self, editor: Editor) -> None:
        weights = FloatWeights(editor)
        for node in editor.nodes(*PRODUCTS):
            with editor.matching(node):
                _integer_product(editor, weights, node)
        for node in (node for node in editor.nodes() if node.domain == "com.microsoft"):
            if node.op_type in STAYS:
                editor.decline(node, f"{STAYS[node.op_type]} is not taken back to floats")
            elif (rewrite := FUSED.get(node.op_type)) is not None:
                with editor.matching(node):
                    rewrite(editor, weights, node)
        for node in editor.nodes("DequantizeLinear") if self.qdq else ():
            with editor.matching(node):
                _replace_dequantized(editor, weights, node)


class DequantizeTable(NodeRewrite):
    """Look rows up in a table of float32, in place of one whose blocks of 2, 4 or 8 bits have scales.

    A host can look rows up in it: see `extract-embedding`. The table becomes 4 to 16 times as large.

    Legality: table, scales and zero points are constant, and rows are looked up. Each element is computed as before.

    Before:

        agraph (int64[N, L] input_ids) => (float[N, L, 16] y)
        <uint8[2, 16] table = {129, 126, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 128, 128, 128, 128, 128, 128, 128,
            128, 128, 128, 128, 128, 128, 128, 255}, float[2, 1] scales = {0.5, 2}> {
            y = com.microsoft.GatherBlockQuantized <bits = 8, block_size = 16> (table, input_ids, scales)
        }

    After:

        agraph (int64[N, L] input_ids) => (float[N, L, 16] y)
        <float[2, 16] table_float = {0.5, -1, -64, -64, -64, -64, -64, -64, -64, -64, -64, -64, -64, -64, -64, -64,
            -250, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 254}> {
            y = Gather (table_float, input_ids)
        }
    """

    operators = ("com.microsoft.GatherBlockQuantized",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        floats = FloatWeights(editor).of_rows(node)
        editor.replace(node, make_gather(floats, node.input(1), None, node.result().name, like=node))
        editor.note("table(s) of blocks dequantised")


def _integer_product(editor: Editor, weights: FloatWeights, node: Node) -> None:
    """Put a product of floats in the place of a sum of integers, its Cast and its scales."""
    data = [data_of(node.input(index), node.input(index + 2)) for index in (0, 1)]
    if not (known := [each for each in data if each is not None]):
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
    if (rank := editor.shapes[value].rank) is None or rank < 2:
        raise MatchFailure("its weight is no matrix")
    is_conv = node.is_op("ConvInteger")
    most = rank if is_conv else (editor.shapes[out].rank) or 1
    along = rank - 2 if is_conv else 0 if index == 1 else None  # the axis of scales, from the last one
    for dims in (list(reversed(tensor.dims)) for tensor in result.constants):
        if len(dims) > most or any(size != 1 for at, size in enumerate(dims) if at != along):
            raise MatchFailure("its scales are not one for each channel of its result")
    return weights.of(value, node.input(index + 2), result.constants, result.dtype, 0 if is_conv else index - 2)


def _fused_product(editor: Editor, weights: FloatWeights, node: Node) -> None:
    """Put a product of floats in the place of a node that takes and gives floats."""
    is_dynamic = node.op_type == "DynamicQuantizeMatMul"  # (A, B, b_scale, b_zero_point, bias)
    floats, places = node.input(0), (2, 3, 4)
    if not is_dynamic:  # MatMulIntegerToFloat(A, B, a_scale, b_scale, a_zero_point, b_zero_point, bias)
        if (data := data_of(floats, node.input(4))) is None or data.scale is not node.input(2):
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
    out = node.result()
    product = out.name if bias is None else editor.unique_name(f"{out.name}_product")
    added = [NewNode("Add", [product, bias], [out.name])] if bias is not None else []
    editor.replace(node, NewNode("MatMul", [data, weight], [product], like=node), *added)
    editor.note("product(s) of integers computed with floats")


def _replace_dequantized(editor: Editor, weights: FloatWeights, node: Node) -> None:
    """Read what a DequantizeLinear gives from floats: those before its QuantizeLinear, or of a dequantised constant."""
    value, scale, out = node.operand(0), node.operand(1), node.result()
    if node.attr("block_size", 0):
        raise MatchFailure("each block of its weight has a scale")
    if (data := data_of(value, node.input(2))) is not None:
        if data.scale is not scale or editor.shapes[data.floats].dtype != editor.shapes[out].dtype:
            raise MatchFailure("it has another scale or dtype than the QuantizeLinear before it")
        if editor.bypass(node, data.floats):
            editor.note("QuantizeLinear and DequantizeLinear pair(s) gone")
    elif value.constant is not None and scale.constant is not None:
        axis = node.attr("axis", 1) or 0
        floats = weights.of(value, node.input(2), [scale.constant], scale.constant.data_type, axis)
        if editor.bypass(node, floats):
            editor.note("weight(s) dequantised")
    elif (rows := value.producer) is not None and rows.is_op("Gather"):
        _replace_rows(editor, weights, node, rows)
    else:
        raise MatchFailure("its data is neither constant nor given by a QuantizeLinear with its zero point")


def _replace_rows(editor: Editor, weights: FloatWeights, node: Node, rows: Node) -> None:
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
    editor.replace(node, make_gather(floats, indices, rows.attr("axis", int), out.name, like=rows))
    editor.note("table(s) dequantised")


FUSED = {"DynamicQuantizeMatMul": _fused_product, "MatMulIntegerToFloat": _fused_product, "MatMulNBits": _block_product}


class CastInt64Away(Rewrite):
    """Let data that is int64 be int32 where that is exact, or of the dtype that it is cast to in the end.

    A Cast moves before the nodes that move its data: a mask of int64 that is reshaped, expanded and cast to float is
    cast at once. What is calculated in int64 is calculated in int32, and the Casts around it merge. int64 remains at
    inputs, at outputs and at nodes that give no other dtype.

    Legality: to move a Cast is always exact. int32 takes the place of int64 only where constants, booleans, small
    integers and positions bound everything that goes in and comes out. A Cast to int64 and on to another dtype becomes
    one Cast where int64 loses nothing of what it is given. What computes shapes (int64 of rank 0 or 1) stays.

    Before:

        agraph (bool[2, 3] seen, bool[2, 3] real) => (float[1, 2, 3] y) <int64[1] zero = {0}> {
            a = Cast <to = 7> (seen)
            b = Cast <to = 7> (real)
            c = Mul (a, b)
            d = Unsqueeze (c, zero)
            y = Cast <to = 1> (d)
        }

    After:

        agraph (bool[2, 3] seen, bool[2, 3] real) => (float[1, 2, 3] y) <int64[1] zero = {0}> {
            a_int32 = Cast <to = 6> (seen)
            b_int32 = Cast <to = 6> (real)
            c_int32 = Mul (a_int32, b_int32)
            d_cast = Cast <to = 1> (c_int32)
            y = Unsqueeze (d_cast, zero)
        }
    """

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes("Cast"):
            _merge_casts(editor, node)
        for node in editor.nodes(*sorted(MOVED)):
            _cast_before(editor, node)
        for node, read in _find_convertible_nodes(editor).items():
            out, gives = node.result(), editor.shapes[node.result()].dtype == INT64
            made, inputs = list[NewNode](), list[NodeInput](node.inputs)
            for index in read:
                value = node.operand(index)
                name = editor.unique_name(f"{value.name}_int32")
                made.append(NewNode("Cast", [value], [name], {"to": INT32}))
                inputs[index] = name
            result = editor.unique_name(f"{out.name}_int32") if gives else out.name
            made.append(copy_node(node, inputs, [result]))
            if gives:
                made.append(NewNode("Cast", [result], [out.name], {"to": INT64}))
            editor.replace(node, *made)
            editor.note(f"{node.op_type} node(s) calculated in int32")


def _merge_casts(editor: Editor, node: Node) -> None:
    value = node.operand(0)
    source = value.producer.input(0) if value.producer is not None and value.producer.is_op("Cast") else None
    if source is None or editor.shapes[value].dtype != INT64:
        return
    to, dtype = node.attr("to", int), editor.shapes[source].dtype
    if dtype not in NARROW or (to not in INTEGERS and to not in FLOATS) or not editor.is_visible(source, node.scope):
        return
    if to != dtype:
        editor.set_inputs(node, {0: source})
    elif not editor.bypass(node, source):
        return
    editor.note("pair(s) of Casts by way of int64 merged")


def _cast_before(editor: Editor, node: Node) -> None:
    """Move Casts to one dtype before the nodes that move their data, where nothing else reads it."""
    out = node.outputs[0]
    if out is None or len(node.outputs) > 1 or out.is_output or editor.shapes[out].dtype != INT64:
        return
    casts = sorted((consumer for consumer, _ in out.consumers), key=lambda consumer: consumer.index)
    dtypes = {cast.attr("to", int) if cast.is_op("Cast") else None for cast in casts}
    to = dtypes.pop() if len(dtypes) == 1 else None
    is_number = to is not None and to != INT64 and (to in INTEGERS or to in FLOATS)
    if not is_number or not all(editor.is_free(cast) and cast.scope is node.scope for cast in casts):
        return
    made, inputs = list[NewNode](), list[NodeInput](node.inputs)
    for index in _data_inputs(node):
        name = editor.unique_name(f"{out.name}_cast")
        made.append(NewNode("Cast", [node.inputs[index]], [name], {"to": to}))
        inputs[index] = name
    if (first := casts[0].outputs[0]) is None or any(cast.outputs[0] is None for cast in casts):
        return
    editor.replace(casts[0], *made, copy_node(node, inputs, [first.name]))
    for cast in casts[1:]:
        editor.bypass(cast, first)
    editor.note("Cast(s) from int64 moved before what moves the data")


def _find_convertible_nodes(editor: Editor) -> dict[Node, list[int]]:
    """Return the nodes that can do without int64, and which inputs of each are int64; nothing else needs these."""
    nodes = editor.nodes(*sorted(MOVED | COMPARING | CALCULATING))
    convertible = {node: read for node in nodes if (read := _int64_inputs(editor, node))}
    while convertible:
        failures: list[tuple[Node, str]] = []
        for node, read in convertible.items():
            try:
                _check_node(editor, node, read, convertible)
            except MatchFailure as failure:
                failures.append((node, failure.reason))
        if not failures:
            break
        for node, reason in failures:
            editor.decline(node, f"stays int64, for {reason}")
            del convertible[node]
    return convertible


def _int64_inputs(editor: Editor, node: Node) -> list[int]:
    """Return which inputs of a node are int64 data: elements that belong to no shape, or indices of a lookup."""
    out, shapes = node.outputs[0], editor.shapes
    if out is None or len(node.outputs) > 1 or not (dtype := shapes[out].dtype):
        return []
    if dtype == INT64 and shapes[out].is_shape_like:
        return []
    data = [index for index in _data_inputs(node) if shapes[node.inputs[index]].dtype == INT64]
    indices = node.input(1) if node.op_type in GATHERING - {"GatherND"} else None  # whose indices are always int64
    return [*data, 1] if shapes[indices].dtype == INT64 and indices is not None and not indices.is_constant else data


def _check_node(editor: Editor, node: Node, read: list[int], convertible: Mapping[Node, list[int]]) -> None:
    out, gives = node.result(), editor.shapes[node.result()].dtype == INT64
    if node.scope.opset() < KERNELS_OF_INT32.get(node.op_type, 1):
        raise MatchFailure("its opset has no such operator for int32")
    values = [value for index in read if (value := node.inputs[index]) is not None]
    for value in (*values, *([out] if gives else [])):
        bounds = editor.bounds.of(value)
        if not (bounds.is_finite and bounds.low >= -(2**31) and bounds.high < 2**31):
            raise MatchFailure(f"'{value.name}' is not known to fit into int32")
    for value in values:
        maker = value.producer
        if not (value.is_constant or maker in convertible or (maker is not None and maker.is_op(*SOURCES))):
            raise MatchFailure(f"'{value.name}' is int64")
    if gives and out.is_output:
        raise MatchFailure("it is an output")
    for reader, _ in out.consumers if gives else ():
        if reader not in convertible and not reader.is_op("Cast"):
            raise MatchFailure(f"{reader.label} reads int64")


def _data_inputs(node: Node) -> list[int]:
    """Return which inputs are data of one dtype, as the output is."""
    return list(copied_inputs(node) if node.op_type in MOVED else range(len(node.inputs)))
