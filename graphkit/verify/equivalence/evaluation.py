"""Run a node of constants once: its outputs are constants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from graphkit.dtypes import BITS
from graphkit.errors import ModelError
from graphkit.graph.operator_traits import RANDOM, operator_set
from graphkit.model import Model
from graphkit.runtime.isolated_session import IsolatedSession
from graphkit.verify.equivalence.application import Application, Result
from graphkit.verify.equivalence.constant_terms import MAX_ARRAY
from graphkit.verify.equivalence.inlining import OF_KERNEL
from graphkit.verify.equivalence.movement import count_elements

__all__ = ["run_constants"]

# What gives the elements of its inputs as they are.
MOVING = operator_set(
    """
    Concat Constant ConstantOfShape DepthToSpace Expand Flatten Gather GatherElements GatherND Identity Neg Pad Reshape
    ScatterElements ScatterND Slice SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze Where
    """
)


# What gives no more elements than a few for each one that it reads, and how many decides its data.
SELECTING = operator_set("Compress NonZero Unique NonMaxSuppression")


def run_constants(app: Application) -> Result:
    """Return the output of a node of constants as a constant term."""
    if not app.args or app.node.bodies or app.node.operator in RANDOM or app.node.domain not in ("", "com.microsoft"):
        return None
    if app.node.proto.overload == OF_KERNEL:
        return None  # a kernel runs what the node gives
    args = app.args[: len(app.node.inputs)]  # what was an attribute is one for the run
    if any(term is not None and not term.is_constant for term in args):
        return None
    found = [None if term is None else app.tools.constants.array(term) for term in args]
    if any(array is None and term is not None for array, term in zip(found, args, strict=True)):
        return None
    arrays = [array for array in found if array is not None]
    if not arrays or sum(array.nbytes for array in arrays) > MAX_ARRAY:
        return "its constants are too large to run it"
    if not _is_small(app):
        return "what it gives may be too large to run it"
    result = _run_node(app, found)
    if result is None:
        return None
    of_computed = any(term is not None and app.tools.constants.is_computed(term) for term in args)
    return app.tools.constants.of_array(result, app.dtype, is_computed=of_computed or app.node.operator not in MOVING)


def _is_small(app: Application) -> bool:
    """Whether what a node of small constants gives is small, too."""
    if app.dims is None:
        return app.node.operator in SELECTING
    count, bits = count_elements(app.dims).constant, BITS.get(app.dtype)
    return count is not None and bits is not None and count * bits <= 8 * MAX_ARRAY


def _run_node(app: Application, arrays: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Run a node of constants in onnxruntime, and return its output."""
    node = onnx.NodeProto()
    node.CopyFrom(app.node.proto)
    del node.input[:]
    node.input.extend("" if array is None else f"i{index}" for index, array in enumerate(arrays))
    del node.output[:]
    node.output.extend(f"o{index}" if value else "" for index, value in enumerate(app.node.outputs))
    tensors = [numpy_helper.from_array(a, f"i{index}") for index, a in enumerate(arrays) if a is not None]
    output = onnx.helper.make_empty_tensor_value_info(f"o{app.index}")
    graph = onnx.helper.make_graph([node], "constants", [], [output], tensors)
    scope = app.node.scope
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in scope.opsets.items()]
    proto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    try:
        with IsolatedSession(Model.from_proto(proto), threads=1, prepack=False) as session:
            result = session.run({})[f"o{app.index}"]
    except ModelError:
        return None
    if not isinstance(result, np.ndarray) or result.dtype == object or result.nbytes > MAX_ARRAY:
        return None
    return result if onnx.helper.np_dtype_to_tensor_dtype(result.dtype) == app.dtype else None
