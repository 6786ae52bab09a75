"""Declare the inferred dims of the outputs, as far as they follow from the inputs."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from graphkit.graph.names import counted
from graphkit.graph.types import declared_type
from graphkit.model import Model
from graphkit.rewrite.base import Outcome, Pass, copy_proto
from graphkit.shapes import Expr, infer, parse

__all__ = ["InferOutputShapes"]


@dataclass(frozen=True)
class InferOutputShapes(Pass):
    """Declare the dims of the outputs anew, as far as they follow from the inputs.

    A rewrite can leave an output with dims that refer to a removed input, or that only held in another branch. The
    inferred dims are declared, in the spelling of the old declaration if it is equal. A dim that cannot be inferred
    stays as declared if all its symbols are dims of inputs; otherwise it is left open.

    Before:

        agraph (float[N, 4] x) => (float[past, 4] y) {
            y = Neg (x)
        }

    After:

        agraph (float[N, 4] x) => (float[N, 4] y) {
            y = Neg (x)
        }
    """

    def run(self, model: Model) -> Outcome:
        shapes = infer(model)
        symbols = _input_symbols(model)
        proto = copy_proto(model)
        changed = []
        for output, value in zip(proto.graph.output, model.graph.outputs, strict=True):
            dims = shapes[value].dims
            if dims is not None and output.type.HasField("tensor_type"):
                before = output.SerializeToString(deterministic=True)
                _declare(output.type.tensor_type, dims, symbols)
                changed += [output.name] if output.SerializeToString(deterministic=True) != before else []
        if not changed:
            return Outcome(model)
        return Outcome(model.with_proto(proto), (counted(len(changed), "output(s) redeclared with the inferred dims"),))


def _input_symbols(model: Model) -> frozenset[str]:
    """Return the symbols in the declared dims of the inputs."""
    declared = [declared_type(value) for value in model.graph.inputs]
    dims = [dim for known in declared if known is not None for dim in known.dims or ()]
    return frozenset().union(*(parse(dim).symbols for dim in dims if isinstance(dim, str)))


def _declare(tensor: onnx.TypeProto.Tensor, dims: tuple[Expr, ...], symbols: frozenset[str]) -> None:
    if not tensor.HasField("shape") or len(tensor.shape.dim) != len(dims):
        tensor.shape.Clear()
        for _ in dims:
            tensor.shape.dim.add()
    for declared, dim in zip(tensor.shape.dim, dims, strict=True):
        if dim.symbols <= symbols:
            _set(declared, dim)
        elif declared.dim_param and not parse(declared.dim_param).symbols <= symbols:
            declared.ClearField("dim_param")


def _set(declared: onnx.TensorShapeProto.Dimension, dim: Expr) -> None:
    if dim.constant is not None:
        declared.dim_value = dim.constant
    elif parse(declared.dim_param) != dim:
        declared.dim_param = str(dim)
