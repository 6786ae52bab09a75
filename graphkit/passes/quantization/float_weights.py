"""Weights of quantised operators as floats, each made once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import TensorProto

from graphkit.dtypes import INTEGERS
from graphkit.errors import ModelError
from graphkit.graph.view import Node, Value, unwrapped
from graphkit.rewrite.affine import Reason
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.weights import PrecisionError, dequantized, dequantized_blocks, read, unpacked

__all__ = ["FloatWeights"]

NOT_CONSTANT = Reason("its weight, scales and zero points are not all constant")
BITS = (2, 4, 8)


@dataclass(eq=False)
class FloatWeights:
    """The weights that one sweep makes; nodes that share a weight share its replacement."""

    editor: Editor
    made: dict[tuple[object, ...], str] = field(default_factory=dict)

    def of(
        self, weight: Value | None, zero: Value | None, scales: Sequence[TensorProto], dtype: int, axis: int
    ) -> str | Reason:
        """Return the name of `(weight - zero) * scales`.

        Args:
            weight: A constant of 8, 16 or 32 bits.
            zero: A zero point for all of it, or one for each slice along the axis.
            scales: Constants whose product is one scale for all of it, or one for each slice along the axis.
            dtype: Of the floats.
            axis: Which counts the channels of the result.
        """
        tensor, point = _constant(weight), _constant(zero)
        if weight is None or tensor is None or (zero is not None and point is None):
            return NOT_CONSTANT
        dims = tuple(tensor.dims) or (1,)  # one number is calculated with as a row of one
        if tensor.data_type not in INTEGERS:
            return Reason("its weight has a type that is not calculated with here")
        key = (id(tensor), id(point), tuple(map(id, scales)), dtype, axis)
        if key in self.made:
            return self.made[key]
        try:
            factor = _along(_product(self.editor, scales), dims, axis)
            offset = _along(_product(self.editor, [point]) if point is not None else np.zeros(()), dims, axis)
            if factor is None or offset is None:
                return Reason("its scales or zero points are not one for each channel of its result")
            parts = dequantized(read(self.editor.model, tensor).reshape(dims), dtype, offset, factor)
            self.made[key] = self.editor.weight(f"{weight.name}_float", dtype, tuple(tensor.dims), parts)
        except (ModelError, PrecisionError) as error:
            return Reason(error)
        return self.made[key]

    def of_blocks(self, node: Node, dtype: int) -> str | Reason:
        """Return the name of the `[K, N]` floats that the weight of a MatMulNBits stands for."""
        weight, scales, zeros = node.input(1), node.input(2), node.input(3)
        codes, scale, zero = _constant(weight), _constant(scales), _constant(zeros)
        if weight is None or codes is None or scale is None or (zeros is not None and zero is None):
            return NOT_CONSTANT
        bits, size = node.attr("bits", 4), node.attr("block_size", 0)
        rows, columns = node.attr("K", 0), node.attr("N", 0)
        if bits not in BITS or not (size and rows and columns and codes.data_type == TensorProto.UINT8):
            return Reason("its bits or its sizes are not those of blocks of 2, 4 or 8 bits")
        blocks = -(-rows // size)
        try:
            array = read(self.editor.model, codes)
            if array.size != columns * blocks * size * bits // 8:
                return Reason("its weight does not have the size that its attributes say")
            factor = self.editor.model.array(scale).astype(np.float64).reshape(columns, blocks)
            offset = self._zeros(zero, bits, columns, blocks)
            parts = dequantized_blocks(array.reshape(columns, blocks, -1), bits, rows, dtype, offset, factor)
            return self.editor.weight(f"{weight.name}_float", dtype, (rows, columns), parts)
        except (ModelError, PrecisionError, ValueError) as error:
            return Reason(error)

    def _zeros(self, zero: TensorProto | None, bits: int, columns: int, blocks: int) -> np.ndarray:
        if zero is None:
            return np.full((columns, blocks), float(1 << (bits - 1)))
        array = self.editor.model.array(zero)
        if array.dtype == np.uint8:  # packed as the weight is
            array = unpacked(array.reshape(columns, -1), bits)[:, :blocks]
        return array.astype(np.float64).reshape(columns, blocks)


def _product(editor: Editor, tensors: Sequence[TensorProto]) -> np.ndarray:
    """Return the product of constants, in float64.

    Raises:
        ModelError: A data file is missing.
    """
    total = np.ones(())
    for tensor in tensors:
        total = total * editor.model.array(tensor).astype(np.float64)
    return total


def _constant(value: Value | None) -> TensorProto | None:
    return unwrapped(value, ("Identity",)).constant if value is not None else None


def _along(numbers: np.ndarray, dims: Sequence[int], axis: int) -> np.ndarray | None:
    """Return numbers in a shape that is broadcast to a weight: one, or one for each slice; None where they are not."""
    rank = len(dims)
    if numbers.size == 1:
        return numbers.reshape([1] * rank)
    if not -rank <= axis < rank or not numbers.size == max(numbers.shape) == dims[axis]:
        return None
    return numbers.reshape([-1 if at == axis % rank else 1 for at in range(rank)])
