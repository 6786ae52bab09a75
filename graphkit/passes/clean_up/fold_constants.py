"""Evaluate nodes that depend only on constants, and tensors whose elements are known whatever the inputs are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from graphkit.dtypes import BITS, FLOATS
from graphkit.errors import ModelError
from graphkit.graph.operator_traits import MOVING, ONE_AXIS_SINCE, RANDOM
from graphkit.graph.view import Node, Value, walk_breadth_first
from graphkit.model import Model
from graphkit.ops.tensor import element_numbers
from graphkit.rewrite import Editor, MatchFailure, NewNode, NodeRewrite, Rewrite
from graphkit.rewrite.edits import INITIALIZERS_SINCE

MAX_READ = 16 << 20  # bytes of one constant that are read to fold it
MAX_RESULTS = 64  # as large as the largest, that all results together add
MAX_DEATHS = 8  # processes that constants may end before no more are tried
# float16 arithmetic is left: what a runtime without such kernels computes in float32 is rounded at other places
HALF = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
KEPT = frozenset({"QuantizeLinear", "DequantizeLinear", "Constant"})  # quantised weights stay quantised


Inside = Mapping[Node, int]  # nodes and their order
Targets = dict[Node, Sequence[Value]]
Results = dict[Node, dict[Value, np.ndarray]]
MAX_CONSTANT = 1 << 20  # bytes


@dataclass(frozen=True)
class FoldConstants(Rewrite):
    """Evaluate nodes that depend only on constants in onnxruntime, and store the results as constants.

    Constant nodes become initializers. Legality: the size of the result is known beforehand and at most `limit`, or
    the result is smaller than the constants that it replaces; all results together add at most 64 times `limit` to the
    model. Larger results are computed on the way to such a one; constants above 16 MiB are not read. The pass leaves
    nodes that draw random numbers, have bodies, quantise or dequantise (weights stay small), calculate in float16
    unless told to, or fail in onnxruntime, which runs elsewhere.

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
        limit: Size in bytes of the largest result; all results together may add 64 times as much to the model.
        half: Whether float16 is calculated with too, as `fold --fuse` does: the last digits of results may change.
    """

    limit: int = 1 << 20
    half: bool = False

    def edit(self, editor: Editor) -> None:
        has_initializers = editor.model.proto.ir_version >= INITIALIZERS_SINCE
        constant: set[Value] = set()
        nodes, too_large = list[Node](), dict[Node, str]()  # which are computed for others alone
        room = MAX_RESULTS * self.limit - editor.model.growth()  # bytes, without what earlier rounds have added
        for scope in editor.scopes:
            constant.update(value for value in scope.initializers if value.is_constant)
            for node in scope.nodes:
                if node.operator == "Constant" and (out := node.outputs[0]) is not None:
                    constant.add(out)
                    is_open = has_initializers and not out.is_output and editor.is_free(node)
                    if is_open and out.constant is not None:
                        editor.replace_all_uses(out, editor.tensor(out.constant, out.name))
                        editor.note("Constant node(s) moved to the initializers")
                elif self._is_constant(editor, node, constant):
                    with editor.matching(node):
                        added = self._added_bytes(editor, node, too_large)
                        if added > max(room, 0):
                            most = MAX_RESULTS * self.limit
                            raise MatchFailure(f"constant results would add more than {most:,} bytes to the model")
                        room -= max(added, 0)
                        nodes.append(node)
                        constant.update(node.results)
        inside = {node: number for number, node in enumerate(nodes)}
        gone = dict(inside)
        for node in reversed([*too_large]):  # one that something else reads stays, and reads constants
            if _needed_outputs(editor, node, gone):
                del gone[node]
        for node in [node for node in too_large if node not in gone]:
            editor.decline(node, too_large[node])
        targets: Targets = {node: found for node in gone if (found := _needed_outputs(editor, node, gone))}
        for node, arrays in _compute_targets(editor, targets, inside).items():
            outputs: list[NewNode] = []
            for value, array in arrays.items():
                name = editor.constant(array, f"{value.name}_value")
                editor.replace_all_uses(value, name)
                editor.note("constant result(s) folded")
                if value.is_output:
                    outputs.append(NewNode("Identity", [name], [value.name], like=None if outputs else node))
            if outputs:
                editor.replace(node, *outputs)

    def takes(self, node: Node) -> bool:
        """Whether a node may be folded, as far as its operator says."""
        return not (node.domain or node.op_type in KEPT | RANDOM or node.bodies)

    def _is_constant(self, editor: Editor, node: Node, constant: set[Value]) -> bool:
        if not (constant.issuperset(node.operands) and node.outputs and self.takes(node) and editor.is_free(node)):
            return False
        return not any(value in editor.aliases for value in node.operands)

    def _added_bytes(self, editor: Editor, node: Node, too_large: dict[Node, str]) -> int:
        """Return how many bytes more the results of a node have than the constants that nothing else reads.

        What is too large, and at most as large as constants that are read, is noted, and adds nothing.
        """
        is_half = any(editor.shapes[value].dtype in HALF for value in (*node.operands, *node.results))
        if is_half and not self.half and node.op_type not in MOVING | {"ConstantOfShape", "Trilu"}:
            raise MatchFailure("its float16 arithmetic is left to the runtime")
        size = sum(_bytes_of(editor, value) for value in node.results)
        reads = [_bytes_of(editor, value) for value in node.operands]
        single = (len(value.consumers) == 1 and value.producer not in too_large for value in node.operands)
        freed = sum(read for read, is_single in zip(reads, single, strict=True) if is_single)
        is_too_large = size > max(self.limit, freed)
        reason = f"its constant result is larger than {self.limit:,} bytes"
        if is_too_large and (size > MAX_READ or len(too_large) >= MAX_RESULTS):
            raise MatchFailure(reason)
        if max(reads, default=0) > MAX_READ:
            raise MatchFailure
        if is_too_large:
            too_large[node] = reason
            return 0
        return size - freed


def _bytes_of(editor: Editor, value: Value) -> int:
    inferred = editor.shapes[value]
    sizes, bits = inferred.sizes(), BITS.get(inferred.dtype)  # strings and unknown dtypes have no size
    if sizes is None or bits is None:
        raise MatchFailure("it depends only on constants, but the size of its result is unknown")
    return (math.prod(sizes) * bits + 7) // 8


def _needed_outputs(editor: Editor, node: Node, inside: Inside) -> list[Value]:
    """Return the results of a node that something else reads; all where an Identity gives one as an output instead."""
    if _names_output(node):
        return []
    values = node.results
    if outputs := [value for value in values if value.is_output]:
        return outputs + [value for value in values if value not in outputs and value.consumers]

    def is_read_outside(value: Value) -> bool:
        return any(reader not in inside or _names_output(reader) for reader, _ in value.consumers)

    return [value for value in values if value not in editor.aliases and is_read_outside(value)]


def _names_output(node: Node) -> bool:
    """Whether a node is an Identity that gives an output of its graph, as an output that is a constant needs."""
    return node.is_op("Identity") and any(value.is_output for value in node.results)


def _compute_targets(editor: Editor, targets: Targets, inside: Inside) -> Results:
    """Return the values of each node, without those that onnxruntime does not compute."""
    if not targets:
        return {}
    from graphkit.runtime.isolation import current_process, shared_isolation  # which few folds need

    results: Results = {}
    waiting = [targets]
    with shared_isolation():
        process = current_process()
        allowed = MAX_DEATHS + (process.generation if process is not None else 0)
        while waiting:
            group = waiting.pop()
            values = [value for outputs in group.values() for value in outputs]
            try:
                if process is not None and process.generation >= allowed:
                    raise ModelError("it is not computed, because other constants end the process that computes them")
                made = run_nodes(editor.model, _needed_nodes(group, inside), values, {})
                arrays = dict(zip(values, made, strict=True))
                for value, array in arrays.items():
                    known = editor.shapes[value]
                    if array.dtype != onnx.helper.tensor_dtype_to_np_dtype(known.dtype):
                        raise ModelError("onnxruntime gives it as another dtype", tensor=value.name)
                    if array.shape != known.sizes():  # some pool windows that do not fit
                        differs = f"onnxruntime gives it dims {list(array.shape)}, not {known}"
                        raise ModelError(differs, tensor=value.name)
                results |= {node: {value: arrays[value] for value in outputs} for node, outputs in group.items()}
            except ModelError as error:
                if len(group) > 1:  # one that fails must not spoil the others: each with what it needs
                    waiting += [{node: outputs} for node, outputs in reversed(group.items())]
                else:
                    editor.decline(next(iter(group)), str(error))
    return results


def _needed_nodes(targets: Iterable[Node], inside: Inside) -> list[Node]:
    """Return nodes and those inside that they need, in order."""

    def sources(node: Node) -> Iterator[Node]:
        return (each.producer for each in node.operands if each.producer is not None and each.producer in inside)

    return sorted(walk_breadth_first(targets, sources), key=inside.__getitem__)


def run_nodes(
    model: Model, nodes: Sequence[Node], outputs: Sequence[Value], known: Mapping[Value, np.ndarray]
) -> list[np.ndarray]:
    """Return values that onnxruntime computes from constants and known values; raise a ModelError where it cannot."""
    from graphkit.runtime.session import IsolatedSession  # which few folds need

    names: dict[Value, str] = {}

    def name(value: Value | None) -> str:
        return "" if value is None else names.setdefault(value, f"v{len(names)}")

    graph = onnx.GraphProto(name="constants")
    constants: dict[Value, None] = {}
    made: set[Value] = set()
    for node in nodes:
        copy = graph.node.add()
        copy.CopyFrom(node.proto)
        copy.name = ""
        copy.input[:] = [name(value) for value in node.inputs]
        copy.output[:] = [name(value) for value in node.outputs]
        made.update(node.results)
        constants.update((value, None) for value in node.operands if value not in made)
    for value in constants:
        tensor, array = value.constant, known.get(value)
        if array is None:
            if tensor is None:
                raise ModelError("it is a constant of a form that is not read", tensor=value.name)
            if tensor.data_type == onnx.TensorProto.STRING:
                raise ModelError("it is a string", tensor=value.name)
            array = model.array(tensor)
        graph.initializer.append(onnx.numpy_helper.from_array(array, name(value)))
    for value in outputs:
        graph.output.append(onnx.ValueInfoProto(name=name(value)))
    version = min(max(model.proto.ir_version, INITIALIZERS_SINCE), onnx.IR_VERSION)
    proto = onnx.helper.make_model(graph, ir_version=version)
    proto.opset_import[0].version = nodes[0].scope.opset()
    try:  # without prepacking: the kernels that a proof runs
        with IsolatedSession(Model.from_proto(proto), threads=1, prepack=False) as session:
            return [np.asarray(array) for array in session.run({}).values()]
    except ModelError as error:
        raise ModelError(error.problem) from error


class FoldShapes(Rewrite):
    """Replace integer and boolean tensors whose elements the shape engine knows as numbers by constants.

    The elements may come, through any number of operators, from the shape of a tensor whose other dims are dynamic.
    Legality: every element is a number at all legal input dims.

    Before:

        agraph (float[N, 4, 8] x) => (int64[2] y) <int64[1] two = {2}> {
            s = Shape <start = 1> (x)
            y = Mul (s, two)
        }

    After:

        agraph (float[N, 4, 8] x) => (int64[2] y) <int64[2] y_value = {8, 16}> {
            y = Identity (y_value)
        }
    """

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes():
            for value in node.results if not node.is_op("Constant", "Identity") else ():
                tensor = editor.shapes[value]
                if tensor.may_have_data and (array := element_numbers(tensor)) is not None:
                    _use_elements(editor, node, value, array)


def _use_elements(editor: Editor, node: Node, value: Value, array: np.ndarray) -> None:
    if value in editor.aliases:
        return
    made = [reader.results for reader, _ in value.consumers]
    if value.is_output and len(node.outputs) == 1:
        editor.bypass(node, editor.constant(array, f"{value.name}_value"))
    elif all(outs and all(element_numbers(editor.shapes[out]) is not None for out in outs) for outs in made):
        return  # the readers go by themselves
    else:
        editor.replace_all_uses(value, editor.constant(array, f"{value.name}_value"))
    editor.note("shape tensor(s) made constant")


class SoftmaxToConstant(NodeRewrite):
    """Replace a Softmax over an axis of one element by a constant of ones, with all that computes its scores.

    At frozen dims, the attention of vision models with one patch left, and of decoders at the first token, is such. A
    score that is infinite or NaN gives NaN, and 1 after this pass: that is why it runs only where it is asked for.

    Legality: the shape of the scores is constant, and the ones take at most 1 MiB.

    Before:

        agraph (float[2, 4] q, float[1, 4] k, float[1, 3] v) => (float[2, 3] y) {
            t = Transpose (k)
            scores = MatMul (q, t)
            weights = Softmax (scores)
            y = MatMul (weights, v)
        }

    After:

        agraph (float[2, 4] q, float[1, 4] k, float[1, 3] v) => (float[2, 3] y)
        <float[2, 1] weights_ones = {1.0, 1.0}> {
            y = MatMul (weights_ones, v)
        }
    """

    operators = ("Softmax",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        out, is_newer = node.result(), node.scope.opset() >= ONE_AXIS_SINCE
        tensor, dims = editor.shapes[out], editor.shapes[out].dims or ()
        axis, sizes = node.axis(len(dims), -1 if is_newer else 1), editor.shapes[out].sizes()
        if axis is None or not all(dim == 1 for dim in (dims[axis : axis + 1] if is_newer else dims[axis:])):
            return  # each element is computed from several
        if sizes is None:
            raise MatchFailure("it gives ones, but not always equally many")
        if tensor.dtype not in FLOATS or math.prod(sizes) * FLOATS[tensor.dtype].itemsize > MAX_CONSTANT:
            raise MatchFailure(f"it gives more than {MAX_CONSTANT:,} bytes of ones, or ones of another type")
        if editor.bypass(node, editor.constant(np.ones(sizes, FLOATS[tensor.dtype]), f"{out.name}_ones")):
            editor.note("Softmax node(s) of one element made constant")
