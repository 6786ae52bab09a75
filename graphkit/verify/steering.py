"""Inputs that decide how large tensors are, or how often a loop runs: elements far from the usual are no fair test."""

from __future__ import annotations

from collections.abc import Iterator

from graphkit.dtypes import INTEGERS
from graphkit.graph.types import declared_type
from graphkit.graph.value_inputs import value_inputs
from graphkit.graph.view import Node, Value
from graphkit.graph.walk import reachable

__all__ = ["steers"]

SHAPE_ONLY = ("Shape", "Size")  # what they give does not depend on elements
HARMLESS = ("axis", "axes", "starts", "ends")  # onnxruntime refuses, or clamps, those that do not exist
UNCHECKED = ("MaxUnpool", "RotaryEmbedding", "TensorScatter")  # what onnxruntime may not check the indices of


def steers(value: Value) -> bool:
    """Whether an input's elements reach a size, a count or a loop, or an operator that may not check them."""
    declared = declared_type(value)
    is_integer = declared is not None and declared.dtype in INTEGERS
    uses = (use for found in reachable([value], _computed_with) for use in found.consumers)
    return any(_decides(node, index) or (is_integer and _trusts(node)) for node, index in uses)


def _computed_with(value: Value) -> Iterator[Value | None]:
    return (out for node, _ in value.consumers if not node.is_op(*SHAPE_ONLY) for out in node.outputs)


def _decides(node: Node, index: int) -> bool:
    name = value_inputs(node).get(index)
    if name is not None and name not in HARMLESS:
        return True
    return node.is_op("Loop", "Scan") or _in_loop(node)


def _in_loop(node: Node) -> bool:
    scope = node.scope
    while scope.owner is not None:
        if scope.owner.is_op("Loop", "Scan"):
            return True
        scope = scope.owner.scope
    return False


def _trusts(node: Node) -> bool:
    """Whether it is none of ONNX's own operators: these check indices."""
    return node.domain not in ("", "ai.onnx", "ai.onnx.ml") or node.is_op(*UNCHECKED)
