"""Whether two nodes of two models compute the same: one operator, the same attributes, and inputs that correspond."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto

from graphkit.graph.view import Node, Value
from graphkit.model import Model

__all__ = ["FLOATS", "constant_array", "corresponds", "known", "same_operator", "same_values"]

COMMUTATIVE = ("Add", "And", "Equal", "Max", "Mean", "Min", "Mul", "Or", "Sum", "Xor")


def same_operator(one: Node, two: Node) -> bool:
    """Whether two nodes have one operator and as many inputs."""
    return one.operator == two.operator and len(one.inputs) == len(two.inputs)


Constants = Callable[[Value, Value], bool]


def same_type(one: Value, two: Value) -> bool:
    """Whether two constants have one dtype and the same dims."""
    first, second = known(one), known(two)
    if first is None or second is None:
        return False
    return (first.data_type, first.dims) == (second.data_type, second.dims)


def same_values(a: Model, b: Model) -> Constants:
    """Return whether a constant of one model has the bytes of one of another."""

    def same(one: Value, two: Value) -> bool:
        tensors = known(one), known(two)
        if tensors[0] is None or tensors[1] is None or not same_type(one, two):
            return False
        if TensorProto.STRING in (tensors[0].data_type, tensors[1].data_type):
            return list(tensors[0].string_data) == list(tensors[1].string_data)
        return a.payload(tensors[0]) == b.payload(tensors[1])

    return same


def corresponds(one: Node, two: Node, matched: Mapping[Value, Value], constants: Constants = same_type) -> bool:
    """Whether two nodes compute the same, given which tensors match, and when constants do."""
    if not same_operator(one, two) or len(one.outputs) != len(two.outputs) or _attributes(one) != _attributes(two):
        return False
    if _pairwise(one.inputs, two.inputs, matched, constants):
        return True
    return one.is_op(*COMMUTATIVE) and _pairwise(one.inputs, two.inputs[::-1], matched, constants)


def _attributes(node: Node) -> dict[str, bytes]:
    return {name: attribute.SerializeToString(deterministic=True) for name, attribute in node.attributes.items()}


def _pairwise(
    ones: Sequence[Value | None], twos: Sequence[Value | None], matched: Mapping[Value, Value], constants: Constants
) -> bool:
    return all(_alike(x, y, matched, constants) for x, y in zip(ones, twos, strict=True))


def _alike(one: Value | None, two: Value | None, matched: Mapping[Value, Value], constants: Constants) -> bool:
    if one is None or two is None:
        return one is two
    if known(one) is not None and known(two) is not None:
        return constants(one, two)
    return matched.get(one) is two


FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)


def known(value: Value) -> TensorProto | None:
    """Return the tensor that a value always equals, None where it is no constant."""
    met: set[Value] = set()
    while value.producer is not None and value.producer.is_op("Identity") and value not in met:
        met.add(value)
        source = value.producer.input(0)
        if source is None:
            return None
        value = source
    return value.constant


def constant_array(model: Model, tensor: TensorProto) -> np.ndarray:
    """Return a constant's array, a view of its file where it is external."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return np.frombuffer(model.payload(tensor), dtype).reshape(tuple(tensor.dims))
