"""Change data that an export computes in int64 to int32, or to the dtype it is cast to in the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import TensorProto

from graphkit.dtypes import FLOATS, INTEGERS
from graphkit.graph.operator_traits import COMPARING, GATHERING, MOVING, copied_inputs
from graphkit.graph.view import Node
from graphkit.ops.numerics import KERNELS_OF_INT32
from graphkit.rewrite import Editor, MatchFailure, NewNode, NodeInput, Rewrite, attributes_of

INT32, INT64 = TensorProto.INT32, TensorProto.INT64
NARROW = INTEGERS - {INT64, TensorProto.UINT64}  # int64 holds each of their elements
CALCULATING = frozenset({"Abs", "Add", "Max", "Min", "Mul", "Neg", "Sub"})
SOURCES = ("Cast", "ArgMax", "ArgMin")  # what gives int64 that is cast to int32
MOVED = MOVING | {"Where"}


@dataclass(frozen=True)
class CastInt64Away(Rewrite):
    """Let data that is int64 be int32 where that is exact, or of the dtype that it is cast to in the end.

    A Cast moves before the nodes that move its data: a mask of int64 that is reshaped, expanded and cast to float is
    cast at once. What is calculated in int64 is calculated in int32, and the Casts around it merge. int64 remains at
    inputs, at outputs and at nodes that give no other dtype.

    Legality: to move a Cast is always exact. int32 takes the place of int64 only where constants, booleans, small
    integers and positions bound everything that goes in and comes out. A Cast to int64 and on to another dtype becomes
    one Cast where int64 loses nothing of what it is given. What computes shapes (int64 of rank 0 or 1) stays.

    Before:

        agraph (bool[2, 3] seen, bool[2, 3] real) => (float[1, 2, 3] y) <int64[1] zero = {0}> {
            a = Cast <to = 7> (seen)
            b = Cast <to = 7> (real)
            c = Mul (a, b)
            d = Unsqueeze (c, zero)
            y = Cast <to = 1> (d)
        }

    After:

        agraph (bool[2, 3] seen, bool[2, 3] real) => (float[1, 2, 3] y) <int64[1] zero = {0}> {
            a_int32 = Cast <to = 6> (seen)
            b_int32 = Cast <to = 6> (real)
            c_int32 = Mul (a_int32, b_int32)
            d_cast = Cast <to = 1> (c_int32)
            y = Unsqueeze (d_cast, zero)
        }
    """

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes("Cast"):
            _merge_casts(editor, node)
        for node in editor.nodes(*sorted(MOVED)):
            _cast_before(editor, node)
        for node, read in _find_convertible_nodes(editor).items():
            _calculate_in_int32(editor, node, read)


def _merge_casts(editor: Editor, node: Node) -> None:
    """Let a Cast of a Cast read the input of the first one."""
    value = node.operand(0)
    source = value.producer.input(0) if value.producer is not None and value.producer.is_op("Cast") else None
    if source is None or editor.shapes[value].dtype != INT64:
        return
    to, dtype = node.attr("to", int), editor.shapes[source].dtype
    if dtype not in NARROW or (to not in INTEGERS and to not in FLOATS) or not editor.is_visible(source, node.scope):
        return
    if to != dtype:
        editor.set_inputs(node, {0: source})
    elif not editor.bypass(node, source):
        return
    editor.note("pair(s) of Casts by way of int64 merged")


def _cast_before(editor: Editor, node: Node) -> None:
    """Move Casts to one dtype before the nodes that move their data, where nothing else reads it."""
    out = node.outputs[0]
    if out is None or len(node.outputs) > 1 or editor.is_output(out) or editor.shapes[out].dtype != INT64:
        return
    casts = sorted((consumer for consumer, _ in out.consumers), key=lambda consumer: consumer.index)
    dtypes = {cast.attr("to", int) if cast.is_op("Cast") else None for cast in casts}
    to = dtypes.pop() if len(dtypes) == 1 else None
    is_number = to is not None and to != INT64 and (to in INTEGERS or to in FLOATS)
    if not is_number or not all(editor.is_free(cast) and cast.scope is node.scope for cast in casts):
        return
    made, inputs = list[NewNode](), list[NodeInput](node.inputs)
    for index in _data_inputs(node):
        name = editor.unique_name(f"{out.name}_cast")
        made.append(NewNode("Cast", [node.inputs[index]], [name], {"to": to}))
        inputs[index] = name
    first = casts[0].outputs[0]
    if first is None or any(cast.outputs[0] is None for cast in casts):
        return
    moved = NewNode(node.op_type, inputs, [first.name], attributes_of(node), like=node)
    editor.replace(casts[0], *made, moved)
    for cast in casts[1:]:
        editor.bypass(cast, first)
    editor.note("Cast(s) from int64 moved before what moves the data")


def _find_convertible_nodes(editor: Editor) -> dict[Node, list[int]]:
    """Return the nodes that can do without int64, and which inputs of each are int64; nothing else needs these."""
    nodes = editor.nodes(*sorted(MOVED | COMPARING | CALCULATING))
    convertible = {node: read for node in nodes if (read := _int64_inputs(editor, node))}
    while convertible:
        failures: list[tuple[Node, str]] = []
        for node, read in convertible.items():
            try:
                _check_node(editor, node, read, convertible)
            except MatchFailure as failure:
                failures.append((node, failure.reason))
        if not failures:
            break
        for node, reason in failures:
            editor.decline(node, f"stays int64, for {reason}")
            del convertible[node]
    return convertible


def _int64_inputs(editor: Editor, node: Node) -> list[int]:
    """Return which inputs of a node are int64 data: elements that belong to no shape, or indices of a lookup."""
    out, shapes = node.outputs[0], editor.shapes
    if out is None or len(node.outputs) > 1 or (shapes[out].dtype == INT64 and shapes[out].is_shape_like):
        return []
    data = [index for index in _data_inputs(node) if shapes[node.inputs[index]].dtype == INT64]
    indices = node.input(1) if node.op_type in GATHERING - {"GatherND"} else None  # whose indices are always int64
    looks_up = shapes[indices].dtype == INT64 and indices is not None and not indices.is_constant
    return [*data, 1] if looks_up else data


def _check_node(editor: Editor, node: Node, read: list[int], convertible: Mapping[Node, list[int]]) -> None:
    out, gives = node.result(), editor.shapes[node.result()].dtype == INT64
    if node.scope.opset() < KERNELS_OF_INT32.get(node.op_type, 1):
        raise MatchFailure("its opset has no such operator for int32")
    values = [value for index in read if (value := node.inputs[index]) is not None]
    for value in (*values, *([out] if gives else [])):
        bounds = editor.bounds.of(value)
        if not (bounds.is_finite and bounds.low >= -(2**31) and bounds.high < 2**31):
            raise MatchFailure(f"'{value.name}' is not known to fit into int32")
    for value in values:
        maker = value.producer
        if not (value.is_constant or maker in convertible or (maker is not None and maker.is_op(*SOURCES))):
            raise MatchFailure(f"'{value.name}' is int64")
    if gives and editor.is_output(out):
        raise MatchFailure("it is an output")
    for reader, _ in out.consumers if gives else ():
        if reader not in convertible and not reader.is_op("Cast"):
            raise MatchFailure(f"{reader.label} reads int64")


def _calculate_in_int32(editor: Editor, node: Node, read: list[int]) -> None:
    """Put Casts around a node that reads or gives int64, which merge with those around others."""
    out, gives = node.result(), editor.shapes[node.result()].dtype == INT64
    made, inputs = list[NewNode](), list[NodeInput](node.inputs)
    for index in read:
        value = node.operand(index)
        name = editor.unique_name(f"{value.name}_int32")
        made.append(NewNode("Cast", [value], [name], {"to": INT32}))
        inputs[index] = name
    result = editor.unique_name(f"{out.name}_int32") if gives else out.name
    made.append(NewNode(node.op_type, inputs, [result], attributes_of(node), like=node))
    if gives:
        made.append(NewNode("Cast", [result], [out.name], {"to": INT64}))
    editor.replace(node, *made)
    editor.note(f"{node.op_type} node(s) calculated in int32")


def _data_inputs(node: Node) -> list[int]:
    """Return which inputs are data of one dtype, as the output is."""
    return list(copied_inputs(node) if node.op_type in MOVED else range(len(node.inputs)))
