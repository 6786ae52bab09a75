"""Value-range analysis: the forms of a model's integer tensors, followed from operator to operator.

It tells which function of its coordinates an element is, and the least and the greatest element. It gives a range only
if both ends occur: an index that never occurs is no hazard.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress

import numpy as np
from onnx import TensorProto

from graphkit.dtypes import FLOATS, INTEGERS
from graphkit.errors import ModelError
from graphkit.graph.forward_analysis import ForwardAnalysis
from graphkit.graph.roles import MASKS
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.shapes.expr import Expr
from graphkit.shapes.expr_limits import TooComplexError
from graphkit.shapes.node_view import UnknownError
from graphkit.shapes.tensor import Array, Tensor, is_known
from graphkit.shapes.value_propagation import cast
from graphkit.shapes.value_range import Affine, Form, ValueRange, fit, uniform
from graphkit.shapes.value_range_rules import RULES, ElementsView

__all__ = ["ValueRangeAnalysis"]

MAX_CONSTANT = 2**20  # elements of a constant that are looked at
MAX_NUMBER = 2**31  # larger elements are no indices, and their differences might overflow
WIDE = (TensorProto.INT32, TensorProto.INT64)  # they hold whatever is made of dims


class ValueRangeAnalysis(ForwardAnalysis["Form | None"]):
    """Finds the forms of the integer tensors of a model; each tensor is analysed once.

    Args:
        model: The model.
        tensor: What is known of the shape of a value.
        typical: Whether the inputs are taken to be typical ones, with which positions reach furthest: masks are all
            ones, no token is padding, and no number is past 2**24, where float32 begins to skip integers.
    """

    def __init__(self, model: Model, tensor: Callable[[Value], Tensor], *, typical: bool = False) -> None:
        super().__init__(None)
        self.model, self.tensor, self.typical = model, tensor, typical
        self._followed = {0, *INTEGERS, *FLOATS} if typical else {0, *INTEGERS}

    def affine(self, value: Value | None) -> Affine | None:
        """Return the elements of a tensor as a function of their coordinates, None where none is known."""
        found = self.of(value)
        return found if isinstance(found, Affine) else None

    def range(self, value: Value | None) -> ValueRange | None:
        """Return the least and the greatest element in terms of the input dims, None where they are not known."""
        found = self.of(value)
        with suppress(UnknownError):
            return found.range if found is not None and found.range.is_known else None
        return None

    def components(self, value: Value | None) -> tuple[Affine, ...] | None:
        """Return the slices of a tensor along its last axis, each without that axis; None where one is not affine."""
        dims = self.tensor(value).dims if value is not None else None
        if value is None or not dims:
            return None
        node = value.producer
        axis = node.attributes.get("axis") if node is not None and node.is_op("Concat") else None
        joined = node.inputs if node is not None and axis is not None and axis.i in (-1, len(dims) - 1) else (value,)
        parts = [self._parts(source) for source in joined if source is not None]
        return None if None in parts else tuple(one for part in parts if part is not None for one in part)

    def _parts(self, value: Value) -> list[Affine] | None:
        whole, data = self.affine(value), self._data(value)
        dims = self.tensor(value).dims
        if data is not None and dims:
            found = [fit(dims[:-1], data[..., index]) for index in range(data.shape[-1])]
            parts = [one for one in found if isinstance(one, Affine)]
            return parts if len(parts) == len(found) else None
        count = whole.dims[-1].constant if whole is not None and whole.dims else None
        if whole is None or count is None:
            return None
        last, rest = whole.strides[-1], whole.strides[:-1]
        return [Affine(whole.dims[:-1], whole.start + last * index, rest) for index in range(count)]

    def transfer(self, value: Value) -> Form | None:
        """Return the form of a tensor's elements, affine or a range."""
        with suppress(UnknownError, TooComplexError, LookupError, ValueError):  # or a node that fits no operator
            return self._form(value)
        return None

    def _form(self, value: Value) -> Form | None:
        tensor, data, node = self.tensor(value), self._data(value), value.producer
        if tensor.dims is not None and data is not None and (given := fit(tensor.dims, data)) is not None:
            return given
        if node is None:
            return uniform(1, tensor.dims) if self.typical and self.model.roles.of(value) in MASKS else None
        rule = RULES.get(node.op_type) if not node.domain and tensor.dtype in self._followed else None
        if rule is None or any(attribute.ref_attr_name for attribute in node.attributes.values()):
            return None
        inputs = [None if source is None else self.tensor(source) for source in node.inputs]
        found = rule(ElementsView(node, inputs, tensor.dims, self.of, self.typical))
        return found if _holds(tensor.dtype, found) else None

    def _data(self, value: Value) -> Array | np.ndarray | None:
        """Return the elements of an integer tensor where they are known: small ones, or those of a constant."""
        found, tensor = self.tensor(value), value.constant
        if found.dtype not in INTEGERS:
            return None
        if found.data is not None:
            is_usable = not self.typical or all(is_known(one) for one in found.data.flat if isinstance(one, Expr))
            return found.data if is_usable else None
        if tensor is None or found.dtype not in WIDE or not 0 < math.prod(tensor.dims) <= MAX_CONSTANT:
            return None
        try:
            array = self.model.array(tensor)
        except ModelError:  # its data file is missing
            return None
        return array.astype(np.int64) if array.min() > -MAX_NUMBER and array.max() < MAX_NUMBER else None


def _holds(dtype: int, form: Form) -> bool:
    """Whether a dtype holds all elements as they are; one of 0, which is not known, is that of the inputs.

    Where they depend on dims, factors must be small: with large ones, elements wrap around at sizes that are legal.
    """
    parts = (form.start, *form.strides) if isinstance(form, Affine) else (form.low, form.high)
    if any(abs(factor) >= MAX_NUMBER for part in parts if part.constant is None for _, factor in part.terms):
        return False
    try:
        ends = [end if end.constant is None else end.constant for end in (form.range.low, form.range.high)]
    except UnknownError:
        return dtype in (0, *WIDE)
    return not dtype or all(cast(end, dtype, False) == end for end in ends)
