"""Declare the inferred dims of the outputs, as far as they follow from the inputs."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from graphkit.graph.names import counted
from graphkit.graph.types import declared_type
from graphkit.model import Model
from graphkit.rewrite.base import Outcome, Pass, copy_proto
from graphkit.shapes import Expr, Shapes, infer, parse

__all__ = ["InferOutputShapes", "declare", "declare_outputs", "input_symbols"]


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
        proto = copy_proto(model)
        changed = declare_outputs(model, proto, infer(model), input_symbols(model))
        if not changed:
            return Outcome(model)
        return Outcome(model.with_proto(proto), (counted(len(changed), "output(s) redeclared with the inferred dims"),))


def declare_outputs(model: Model, proto: onnx.ModelProto, shapes: Shapes, symbols: frozenset[str]) -> list[str]:
    """Declare the inferred dims of the outputs in a copy of a model, and return the names of those that change."""
    changed = []
    for output, value in zip(proto.graph.output, model.graph.outputs, strict=True):
        dims = shapes[value].dims
        if dims is not None and output.type.HasField("tensor_type"):
            before = output.SerializeToString(deterministic=True)
            declare(output.type.tensor_type, dims, symbols)
            changed += [output.name] if output.SerializeToString(deterministic=True) != before else []
    return changed


def input_symbols(model: Model) -> frozenset[str]:
    """Return the symbols in the declared dims of the inputs."""
    declared = [declared_type(value) for value in model.graph.inputs]
    dims = [dim for known in declared if known is not None for dim in known.dims or ()]
    return frozenset().union(*(parse(dim).symbols for dim in dims if isinstance(dim, str)))


def declare(tensor: onnx.TypeProto.Tensor, dims: tuple[Expr, ...], symbols: frozenset[str]) -> None:
    """Declare the dims that follow from the symbols of the inputs, in the spelling that is there if that is equal."""
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
    if dim.constant is not None and not -(1 << 63) <= dim.constant < 1 << 63:
        declared.Clear()  # no declaration can say it, and no tensor can have it
    elif dim.constant is not None:
        declared.dim_value = dim.constant
    elif not declared.dim_param or parse(declared.dim_param) != dim:
        declared.dim_param = str(dim)
