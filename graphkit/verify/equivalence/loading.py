"""Faults for which onnxruntime does not load a model, whatever its nodes compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx
from onnx import TensorProto

from graphkit.graph.view import all_scopes
from graphkit.io.tensors import walk_tensors
from graphkit.model import Model

__all__ = ["loading_fault"]


def loading_fault(original: Model, rewritten: Model) -> str:
    """Return which fault keeps the rewritten model from being loaded that the original has not, "" for none."""
    known = set(_faults(original, onnx.IR_VERSION))
    newest = max(original.proto.ir_version, onnx.IR_VERSION)
    return next((fault for fault in _faults(rewritten, newest) if fault not in known), "")


def _faults(model: Model, newest: int) -> Iterator[str]:
    if model.proto.ir_version > newest:
        yield f"its IR version is {model.proto.ir_version}, which onnx does not know"
    for tensor, _ in walk_tensors(model.proto):
        if tensor.data_type not in TensorProto.DataType.values() or tensor.data_type == TensorProto.UNDEFINED:
            yield f"the dtype of '{tensor.name}' is not one of ONNX"
    for scope in all_scopes(model.scopes):
        named = Counter(node.proto.name for node in scope.nodes if node.proto.name)
        yield from (f"{count} nodes of one graph are called '{name}'" for name, count in named.items() if count > 1)
        sparse = (value for value in scope.initializers if value.sparse is not None and not value.consumers)
        yield from (
            f"the sparse initializer '{value.name}' has no reader, which would tell its elements" for value in sparse
        )
