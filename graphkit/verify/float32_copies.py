"""Copies of models in float16 or bfloat16 that compute in float32, without the roundings of these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableSequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from graphkit.dtypes import HALVES
from graphkit.graph.names import free_name, names_in
from graphkit.io.tensors import inline_array, walk_tensors
from graphkit.model import Model
from graphkit.passes.control_flow.inline_functions import InlineFunctions
from graphkit.rewrite.base import copy_proto
from graphkit.rewrite.new_interface import with_value_names

__all__ = ["bfloat16_in_float32", "in_float32"]

HALF_UNITS: Mapping[int, float] = {  # of the last place, relative to a number of that dtype
    TensorProto.FLOAT16: 2.0**-11,
    TensorProto.BFLOAT16: 2.0**-8,
    TensorProto.FLOAT: 2.0**-24,
}
LIKE_INFINITY = 1e30  # numbers that stand for infinity in masks do not move
DTYPES = ("to", "dtype", "output_dtype", "output_datatype")  # attributes that say which dtype an operator gives
SINGLE = TensorProto.FLOAT


def bfloat16_in_float32(model: Model) -> Model | None:
    """Return a model of bfloat16 in float32, with its inputs as they are; None for one that is not converted."""
    conversion = in_float32(model, half=TensorProto.BFLOAT16)
    if conversion is None:
        return None
    copy, names = conversion
    values = copy.graph.values
    pairs = [pair for now, was in names.items() for pair in ((values[now], was), (values[was], now))]
    return with_value_names(copy, dict(pairs))


def in_float32(
    model: Model, shaken: int | None = None, *, wide_inputs: bool = False, half: int = TensorProto.FLOAT16
) -> tuple[Model, dict[str, str]] | None:
    """Return a model of float16 in float32, and the names of its inputs by the names that they have now.

    Inputs stay float16, and weights too: a Cast follows each, so that data outside the file stays where it is.

    Args:
        model: The model; nothing is returned for one with functions that cannot be inlined, or with both 16-bit dtypes.
        shaken: A seed: weights move by up to half a unit in the last place of a float16, as when they are rounded anew.
            Those that share a place on the last axis move together.
        wide_inputs: Whether inputs are float32 too, under their own names, so that models of a chain round nothing
            between them.
        half: The dtype; float32 itself for a copy that only moves.
    """
    model = InlineFunctions().run(model).model
    dtypes = {tensor.data_type for tensor, _ in walk_tensors(model.proto)}
    dtypes |= {info.type.tensor_type.elem_type for info in model.proto.graph.input}
    if model.proto.functions or (dtypes & {*HALVES} - {half}):
        return None
    proto = copy_proto(model)
    maker = _Maker(names_in(model.scopes), None if shaken is None else np.random.default_rng(shaken), half)
    names = maker.convert(proto.graph, wide_inputs=wide_inputs)
    return model.with_proto(proto), names


class _Maker:
    """Converts graphs in place.

    Args:
        taken: Names that values have.
        rng: Of what moves the weights, None for nothing.
        half: The dtype to convert.
    """

    def __init__(self, taken: set[str], rng: np.random.Generator | None, half: int) -> None:
        self.taken, self.rng, self.half = taken, rng, half

    def convert(self, graph: onnx.GraphProto, *, wide_inputs: bool) -> dict[str, str]:
        """Convert a graph, and return the names of its inputs before by those after."""
        casts, names = list[onnx.NodeProto](), dict[str, str]()
        initializers = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type == self.half}
        inputs = {info.name: info for info in graph.input if self._is_half(info)} if not wide_inputs else {}
        for name in dict.fromkeys((*initializers, *inputs)):
            fresh = self._fresh(f"{name}_float16")
            if name in inputs:
                inputs[name].name, names[fresh] = fresh, name
            if name in initializers:
                initializers[name].name = fresh
            dims = tuple(initializers[name].dims) if name in initializers and _may_be_moved(initializers[name]) else ()
            casts += self._cast_nodes(fresh, name, dims)
        for info in (*graph.input, *graph.output) if wide_inputs else graph.output:
            if self._is_half(info):
                info.type.tensor_type.elem_type = SINGLE
        _keep_infos(graph.value_info, [info for info in graph.value_info if not self._is_half(info)])
        for node in graph.node:
            self._convert_node(node)
        nodes = list(graph.node)
        del graph.node[:]
        graph.node.extend((*casts, *nodes))
        return names

    def _cast_nodes(self, source: str, name: str, dims: tuple[int, ...]) -> Iterator[onnx.NodeProto]:
        """Yield the nodes that give a float16 value as float32, moved where it is a weight and these move."""
        if self.rng is None or not dims or dims[-1] < 1:
            yield helper.make_node("Cast", [source], [name], to=SINGLE)
            return
        cast, factors = self._fresh(f"{name}_float32"), self._fresh(f"{name}_factors")
        yield helper.make_node("Cast", [source], [cast], to=SINGLE)
        yield helper.make_node(
            "Constant", [], [factors], value=numpy_helper.from_array(self._shaking_factors(dims[-1:]))
        )
        yield helper.make_node("Mul", [cast, factors], [name])

    def _shaking_factors(self, shape: tuple[int, ...]) -> np.ndarray:
        assert self.rng is not None
        return (1 + self.rng.uniform(-HALF_UNITS[self.half], HALF_UNITS[self.half], shape)).astype(np.float32)

    def _convert_node(self, node: onnx.NodeProto) -> None:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                self.convert(attribute.g, wide_inputs=True)
            elif attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == self.half:
                array = numpy_helper.to_array(attribute.t).astype(np.float32)
                if self.rng is not None and array.ndim and node.op_type == "Constant":
                    array = np.where(np.abs(array) < LIKE_INFINITY, array * self._shaking_factors(array.shape), array)
                attribute.t.CopyFrom(numpy_helper.from_array(array, attribute.t.name))
            elif attribute.name in DTYPES and attribute.i == self.half:
                attribute.i = SINGLE

    def _is_half(self, info: onnx.ValueInfoProto) -> bool:
        return info.type.tensor_type.elem_type == self.half

    def _fresh(self, base: str) -> str:
        name = free_name(base, self.taken)
        self.taken.add(name)
        return name


def _may_be_moved(tensor: onnx.TensorProto) -> bool:
    """Whether none of its elements stands for infinity, as far as they are not in a file."""
    array = inline_array(tensor)
    return array is None or not (np.abs(array.astype(np.float32)) >= LIKE_INFINITY).any()


def _keep_infos(infos: MutableSequence[onnx.ValueInfoProto], remaining: list[onnx.ValueInfoProto]) -> None:
    del infos[:]
    infos.extend(remaining)
