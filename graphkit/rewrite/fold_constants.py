"""Compute what depends on constants alone, once and for all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from graphkit.errors import ModelError
from graphkit.graph.shape_tensors import CONTROL_FLOW, IMPURE
from graphkit.graph.view import Node, Value
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.sweep import Rewrite

__all__ = ["FoldConstants"]

MAX_READ = 16 << 20  # bytes of one constant that are read to fold it
# float16 arithmetic is left: what a runtime without such kernels computes in float32 is rounded at other places
HALF = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
MOVING = {
    "Concat",
    "Expand",
    "Flatten",
    "Gather",
    "Identity",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
}
MOVING |= {"ConstantOfShape", "Unsqueeze"}
KEPT = frozenset({"QuantizeLinear", "DequantizeLinear", "Constant"})  # quantised weights stay quantised


@dataclass(frozen=True)
class FoldConstants(Rewrite):
    """Compute the nodes that depend on constants alone, in onnxruntime, and keep the results as constants.

    Constant nodes become initializers. Legality: the size of the result is known beforehand and at most `limit`, or
    the result is smaller than the constants that it replaces; constants above 16 MiB are not read. Nodes that draw
    random numbers, that have bodies, and that quantise or dequantise (weights stay small) are left, as is what
    onnxruntime does not compute.

    Before:

        agraph (float[N] x) => (float[N] y) <float[1] a = {4.0}> {
            b = Sqrt (a)
            y = Mul (x, b)
        }

    After:

        agraph (float[N] x) => (float[N] y) <float[1] b_value = {2.0}> {
            y = Mul (x, b_value)
        }

    Attributes:
        limit: Bytes of the largest result.
    """

    limit: int = 1 << 20

    def edit(self, editor: Editor) -> None:
        has_initializers = editor.model.proto.ir_version >= 4
        constant: set[Value] = set()
        nodes: list[Node] = []
        for scope in editor.scopes:
            constant.update(value for value in scope.initializers if value.is_constant)
            for node in scope.nodes:
                if node.is_op("Constant") and (out := node.outputs[0]) is not None:
                    constant.add(out)
                    if has_initializers:
                        _hoist(editor, node, out)
                elif self._folds(editor, node, constant):
                    nodes.append(node)
                    constant.update(value for value in node.outputs if value is not None)
        if nodes:
            _fold(editor, nodes)

    def _folds(self, editor: Editor, node: Node, constant: set[Value]) -> bool:
        if node.domain or node.op_type in KEPT | IMPURE | CONTROL_FLOW or node.bodies or not editor.is_free(node):
            return False
        inputs = [value for value in node.inputs if value is not None]
        if not node.outputs or any(value not in constant or editor.has_alias(value) for value in inputs):
            return False
        sizes = [_bytes(editor, value) for value in node.outputs if value is not None]
        reads = [_bytes(editor, value) for value in inputs]
        if _is_half_arithmetic(editor, node):
            editor.decline(node, "its float16 arithmetic is left to the runtime")
            return False
        if any(size is None for size in [*sizes, *reads]):
            editor.decline(node, "it could be folded, but the size of its result is not known")
            return False
        if sum(size or 0 for size in sizes) > max(self.limit, _freed(inputs, reads)):
            editor.decline(node, f"its constant result is larger than {self.limit:,} bytes")
            return False
        return all((size or 0) <= MAX_READ for size in reads)


def _is_half_arithmetic(editor: Editor, node: Node) -> bool:
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    return node.op_type not in MOVING and any(editor.shapes[value].dtype in HALF for value in values)


def _bytes(editor: Editor, value: Value) -> int | None:
    found = editor.shapes[value]
    sizes, dtype = found.sizes(), found.dtype
    if sizes is None or not dtype or dtype == onnx.TensorProto.STRING:
        return None
    return math.prod(sizes) * max(1, np.dtype(onnx.helper.tensor_dtype_to_np_dtype(dtype)).itemsize)


def _freed(inputs: Sequence[Value], sizes: Sequence[int | None]) -> int:
    """Return the bytes of the constants that nothing else reads."""
    return sum(size or 0 for value, size in zip(inputs, sizes, strict=True) if len(value.consumers) == 1)


def _hoist(editor: Editor, node: Node, out: Value) -> None:
    """Make an initializer of a Constant node."""
    if editor.is_output(out) or not editor.is_free(node) or "sparse_value" in node.attributes:
        return
    found = constant_tensor(node)
    if found is not None:
        editor.use(out, editor.tensor(found, out.name))
        editor.note("Constant nodes are initializers")


def constant_tensor(node: Node) -> onnx.TensorProto | None:
    """Return the tensor of a Constant node; None where it is sparse or refers to an attribute of a function."""
    if len(node.attributes) != 1:
        return None
    ((name, attribute),) = node.attributes.items()
    if attribute.ref_attr_name:
        return None
    if name == "value":
        return attribute.t
    value = onnx.helper.get_attribute_value(attribute)
    dtype = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}.get(
        name
    )
    return onnx.numpy_helper.from_array(np.array(value, dtype)) if dtype is not None else None


def _fold(editor: Editor, nodes: Sequence[Node]) -> None:
    """Run nodes as a model of their own and use what they give."""
    inside = set(nodes)
    wanted = [
        value
        for node in nodes
        for value in node.outputs
        if value is not None
        and not editor.has_alias(value)
        and (editor.is_output(value) or any(consumer not in inside for consumer, _ in value.consumers))
    ]
    results = _computed(editor, nodes, wanted)
    for value, array in zip(wanted, results, strict=True):
        if array is None or value.producer is None:
            continue
        editor.forward(value.producer, editor.constant(array, f"{value.name}_value"), value.output_index)
        editor.note("constant results are constants")


def _computed(editor: Editor, nodes: Sequence[Node], wanted: Sequence[Value]) -> list[np.ndarray | None]:
    """Return the values, None for those that onnxruntime does not compute."""
    try:
        return list(_run(editor, nodes, wanted))
    except ModelError as error:
        if len(nodes) > 1:  # one that fails must not spoil the others: each with what it needs
            return [_computed(editor, _cone(value, set(nodes)), [value])[0] for value in wanted]
        editor.decline(nodes[0], str(error))
        return [None] * len(wanted)


def _cone(value: Value, inside: set[Node]) -> list[Node]:
    found: dict[Node, None] = {}
    pending = [value.producer]
    while pending:
        node = pending.pop()
        if node is not None and node in inside and node not in found:
            found[node] = None
            pending += [source.producer for source in node.inputs if source is not None]
    return sorted(found, key=lambda node: (node.scope.depth, node.index))


def _run(editor: Editor, nodes: Sequence[Node], wanted: Sequence[Value]) -> list[np.ndarray]:
    """Compute values in onnxruntime.

    Raises:
        ModelError: A weight is missing, or onnxruntime refuses.
    """
    import onnxruntime

    names: dict[Value, str] = {}

    def name(value: Value | None) -> str:
        return "" if value is None else names.setdefault(value, f"v{len(names)}")

    graph = onnx.GraphProto(name="constants")
    given: dict[Value, None] = {}
    made: set[Value] = set()
    for node in nodes:
        copy = graph.node.add()
        copy.CopyFrom(node.proto)
        copy.name = ""
        copy.input[:] = [name(value) for value in node.inputs]
        copy.output[:] = [name(value) for value in node.outputs]
        made.update(value for value in node.outputs if value is not None)
        given.update((value, None) for value in node.inputs if value is not None and value not in made)
    for value in given:
        tensor = _tensor(value)
        if tensor.data_type == onnx.TensorProto.STRING:
            raise ModelError("it is a string", tensor=value.name)
        graph.initializer.append(onnx.numpy_helper.from_array(editor.model.array(tensor), name(value)))
    for value in wanted:
        graph.output.append(onnx.ValueInfoProto(name=name(value)))
    scope = nodes[0].scope
    model = onnx.helper.make_model(graph, ir_version=min(editor.model.proto.ir_version, onnx.IR_VERSION))
    model.opset_import[0].version = scope.opset()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [np.asarray(array) for array in session.run(None, {})]
    except Exception as error:  # onnxruntime's exceptions have no common base
        raise ModelError(f"onnxruntime does not compute it: {str(error).splitlines()[0][:200]}") from error


def _tensor(value: Value) -> onnx.TensorProto:
    if value.kind == "initializer" and value.tensor is not None:
        return value.tensor
    found = constant_tensor(value.producer) if value.producer is not None else None
    if found is None:
        raise ModelError("it is a constant of a form that is not read", tensor=value.name)
    return found
