"""Drop the axis of 1 that a decode step has for its token, so that a product and its bias become one Gemm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphkit.graph.operator_traits import REDUCTIONS, is_elementwise
from graphkit.graph.view import Node, Scope, Value
from graphkit.ops.tensor import Dims, element_numbers
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode, NodeInput, attributes_of
from graphkit.rewrite.fixpoint import Rewrite
from graphkit.rewrite.reshape_spec import reshape_spec

__all__ = ["SqueezeTokenAxis"]

SINCE = 13  # Squeeze takes its axes as an input, and Softmax works along one axis
AXIS = 1  # of `[batch, 1, width]`
ALONG_LAST = ("Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization")  # by default


@dataclass(frozen=True)
class SqueezeTokenAxis(Rewrite):
    """Let nodes work on `[batch, width]` where they work on `[batch, 1, width]`.

    onnxruntime makes one Gemm of a MatMul and the Add of its bias where both have two axes, and saves an Add for each
    weight of a decode step. Without its fusions the results are equal to the last bit.

    Legality: the axis before the last is 1 at all legal sizes, and the nodes treat it as they treat a batch:
    elementwise, products with a matrix, norms and reductions along the last axis, rows of a table, and Reshapes. Where
    others give or read such a tensor, a Squeeze or Unsqueeze stands; a region that has no more products with a bias
    than it needs of those stays.

    Before:

        agraph (float[N, 1, 8] x, float[8, 8] w, float[8, 8] v) => (float[N, 1, 8] y)
        <float[8] b = {1, 2, 3, 4, 5, 6, 7, 8}> {
            a = MatMul (x, w)
            c = Add (a, b)
            d = MatMul (c, v)
            e = Add (d, b)
            f = MatMul (e, w)
            y = Add (f, b)
        }

    After:

        agraph (float[N, 1, 8] x, float[8, 8] w, float[8, 8] v) => (float[N, 1, 8] y)
        <float[8] b = {1, 2, 3, 4, 5, 6, 7, 8}, int64[1] token_axis = {1}> {
            x_squeezed = Squeeze (x, token_axis)
            a_squeezed = MatMul (x_squeezed, w)
            c_squeezed = Add (a_squeezed, b)
            d_squeezed = MatMul (c_squeezed, v)
            e_squeezed = Add (d_squeezed, b)
            f_squeezed = MatMul (e_squeezed, w)
            y_squeezed = Add (f_squeezed, b)
            y = Unsqueeze (y_squeezed, token_axis)
        }
    """

    def edit(self, editor: Editor) -> None:
        for scope in editor.scopes:
            for region in _find_regions(editor, scope) if scope.opset() >= SINCE else ():
                if region.products > len(region.entries) + len(region.exits):
                    region.write()
                    editor.note("node(s) freed of a token axis of 1", len(region.plans))


@dataclass(frozen=True)
class _Plan:
    """How a node works without the axis.

    Attributes:
        squeezed: Its inputs that lose the axis; the others are read as they are.
        attributes: The attributes that change.
        constants: The integer inputs that change, by index.
    """

    squeezed: tuple[Value, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[int, Sequence[int]] = field(default_factory=dict)


@dataclass
class _Region:
    """Connected nodes that can work without the axis.

    Attributes:
        plans: How each does, in graph order.
        entries: Values with the axis that other nodes give.
        exits: Values of the region that something reads with the axis.
        readers: The Reshapes that read a value of the region, and the shape with which they do so without the axis.
        products: How many products with a bias there are.
    """

    editor: Editor
    plans: Mapping[Node, _Plan]
    entries: set[Value] = field(default_factory=set)
    exits: set[Value] = field(default_factory=set)
    readers: dict[Node, Sequence[int]] = field(default_factory=dict)
    products: int = 0

    def __post_init__(self) -> None:
        for node, plan in self.plans.items():
            self.entries.update(value for value in plan.squeezed if value.producer not in self.plans)
            self.products += _has_bias(node)
            if self.editor.is_output(node.result()):
                self.exits.add(node.result())
            for reader, index in node.result().consumers:
                if reader in self.plans and node.result() in self.plans[reader].squeezed:
                    continue
                spec = _reader_spec(self.editor, reader, index) if reader.scope is node.scope else None
                if spec is None:
                    self.exits.add(node.result())
                else:
                    self.readers[reader] = spec

    def write(self) -> None:
        """Write the nodes without the axis."""
        axis = self.editor.integers([AXIS], "token_axis")
        names: dict[Value, str] = {}
        for node, plan in self.plans.items():
            nodes: list[NewNode] = []
            for value in plan.squeezed:
                if value not in names:
                    names[value] = self._name(value)
                    nodes.append(NewNode("Squeeze", [value, axis], [names[value]]))
            inputs: list[NodeInput] = [names[x] if x is not None and x in plan.squeezed else x for x in node.inputs]
            for index, array in plan.constants.items():
                inputs[index] = self.editor.integers(array, f"{node.result().name}_squeezed_{index}")
            names[node.result()] = self._name(node.result())
            attributes = attributes_of(node, **plan.attributes)
            nodes.append(NewNode(node.op_type, inputs, [names[node.result()]], attributes, like=node))
            if node.result() in self.exits:
                nodes.append(NewNode("Unsqueeze", [names[node.result()], axis], [node.result().name]))
                self.editor.replace(node, *nodes)
            else:
                self.editor.insert_before(node, *nodes)
        for reader, spec in self.readers.items():
            shape = self.editor.integers(spec, f"{reader.result().name}_shape")
            self.editor.set_inputs(reader, {0: names[reader.operand(0)], 1: shape})

    def _name(self, value: Value) -> str:
        return self.editor.unique_name(f"{value.name}_squeezed")


def _find_regions(editor: Editor, scope: Scope) -> Iterator[_Region]:
    """Yield the connected nodes of a graph that can work without the axis."""
    plans = {node: plan for node in scope.nodes if (plan := _plan_node(editor, node)) is not None}
    remaining = dict.fromkeys(plans)
    while remaining:
        pending, members = [next(iter(remaining))], set[Node]()
        while pending:
            node = pending.pop()
            if node in remaining:
                del remaining[node]
                members.add(node)
                pending += [x.producer for x in plans[node].squeezed if x.producer is not None and x.producer in plans]
                readers = (reader for reader, _ in node.result().consumers if reader in plans)
                pending += [reader for reader in readers if node.result() in plans[reader].squeezed]
        yield _Region(editor, {node: plan for node, plan in plans.items() if node in members})


def _plan_node(editor: Editor, node: Node) -> _Plan | None:
    """Return how a node works without the axis, None where that is not known."""
    if node.domain or len(node.outputs) != 1 or node.outputs[0] is None or not editor.is_free(node):
        return None
    if editor.has_alias(node.result()) or node.result() in editor.new_reads or not _has_axis(editor, node.result()):
        return None
    if is_elementwise(node):
        operands = [value for value in node.operands if not _broadcasts_as_is(editor, value)]
        return _Plan(tuple(operands)) if operands and all(_has_axis(editor, value) for value in operands) else None
    if node.is_op("Reshape"):
        return _of_reshape(editor, node)
    if node.is_op("Gather"):
        table, indices = (editor.shapes[node.operand(index)].dims for index in (0, 1))
        is_lookup = table is not None and len(table) == 2 and node.attr("axis", 0) in (0, -2)
        return _Plan((node.operand(1),)) if is_lookup and indices is not None and len(indices) == 2 else None
    if not _has_axis(editor, node.operand(0)):
        return None
    others = [editor.shapes[value].dims for value in node.inputs[1:] if value is not None]
    if node.is_op("MatMul"):
        return _Plan((node.operand(0),)) if others[0] is not None and len(others[0]) == 2 else None
    if node.is_op(*ALONG_LAST):
        axis = _axis_of_two(node.attr("axis", -1))
        is_plain = axis is not None and all(dims is not None and len(dims) <= 1 for dims in others)
        return _Plan((node.operand(0),), {"axis": axis}) if is_plain else None
    return _of_reduction(editor, node) if node.is_op(*REDUCTIONS) else None


def _of_reshape(editor: Editor, node: Node) -> _Plan | None:
    """Return how a Reshape gives a tensor without the axis, of one that has other axes."""
    before, after = (editor.shapes[value].dims for value in (node.operand(0), node.result()))
    if before is None or after is None or _has_axis(editor, node.operand(0)) or node.attr("allowzero", 0):
        return None
    spec = reshape_spec(before, _squeeze_dims(after))
    return None if spec is None else _Plan((), constants={1: spec})


def _of_reduction(editor: Editor, node: Node) -> _Plan | None:
    """Return how a reduction of the last axis works without the one before it."""
    second = node.input(1)
    array = element_numbers(editor.shapes[second]) if second is not None else None
    axes = node.attr("axes", tuple) if second is None else None if array is None else tuple(array.ravel().tolist())
    axis = _axis_of_two(axes[0]) if axes is not None and len(axes) == 1 else None
    if axis is None or not node.attr("keepdims", 1):
        return None
    source = (node.operand(0),)
    return _Plan(source, {"axes": [axis]}) if second is None else _Plan(source, constants={1: [axis]})


def _axis_of_two(axis: int | None) -> int | None:
    """Return the last of three axes as it counts among two, None for another one."""
    return {-1: -1, 2: 1}.get(axis) if axis is not None else None


def _reader_spec(editor: Editor, reader: Node, index: int) -> Sequence[int] | None:
    """Return the shape with which a Reshape outside of a region reads its source without the axis."""
    if not reader.is_op("Reshape") or index != 0 or not editor.is_free(reader) or reader.attr("allowzero", 0):
        return None
    before, after = (editor.shapes[value].dims for value in (reader.operand(0), reader.result()))
    return None if before is None or after is None else reshape_spec(_squeeze_dims(before), after)


def _squeeze_dims(dims: Dims) -> Dims:
    return (*dims[:AXIS], *dims[AXIS + 1 :])


def _has_axis(editor: Editor, value: Value) -> bool:
    dims = editor.shapes[value].dims
    return dims is not None and len(dims) == 3 and dims[AXIS] == 1


def _broadcasts_as_is(editor: Editor, value: Value) -> bool:
    """Whether an elementwise node reads an input alike with and without the axis: a number, a vector or one row."""
    dims = editor.shapes[value].dims
    return dims is not None and (len(dims) < 2 or (len(dims) == 2 and dims[0] == 1))


def _has_bias(node: Node) -> bool:
    """Whether the only reader of a product adds a constant vector to it."""
    readers = node.result().consumers if node.is_op("MatMul") else ()
    if len(readers) != 1 or not readers[0][0].is_op("Add"):
        return False
    bias = readers[0][0].operand(1 - readers[0][1]).constant
    return bias is not None and len(bias.dims) == 1
