"""The uses of a value in nodes: rows looked up, angles, masks of attention, writes in place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Literal

from msgspec import Struct, field

from graphkit.graph.declared_types import declared_type
from graphkit.graph.operator_traits import (
    ANGLES,
    COMPARING,
    INDICES,
    LOOKUPS,
    MEASURING,
    MOVING,
    RANDOM,
    RECURRENT,
    SCORES,
    copied_inputs,
    operator_set,
    value_inputs,
)
from graphkit.graph.view import Node, Scope, Value, unwrap_value, walk_breadth_first

Use = Literal["lookup", "angle", "mask", "hidden"]

MOVES = MOVING | {"Cast", "CastLike"}
BEFORE_LOOKUPS = operator_set("Cast DequantizeLinear Identity") | {"com.microsoft.DequantizeLinear"}  # of a table
SHIFTS = ("Add", "Sub", "Clip", "Max", "Min", "Where")  # operators on indices before a lookup
ROTARY = ("MatMul", "Einsum", "Mul", "Div", "Add")  # between positions and their angles
PAIRED = (*COMPARING, "Sub")  # an element of a mask meets a constant here; those of positions and ids meet each other
COUNTING = ("CumSum", "ArgMax", "Mod")
MIXING = (
    RECURRENT
    | MEASURING
    | operator_set("Conv ConvInteger ConvTranspose Einsum Gemm LayerNormalization MatMul MatMulInteger Pow ReduceMean")
    | operator_set("QLinearConv QLinearMatMul")
)


def find_readers(value: Value, passes: Callable[[Node, int], bool]) -> Iterator[tuple[Node, int]]:
    """Yield (node, input index) of each use of a value, and of the values that passing nodes compute from it."""

    def following_values(value: Value) -> Iterator[Value | None]:
        return (output for node, index in value.consumers if passes(node, index) for output in node.outputs)

    for moved in walk_breadth_first([value], following_values):
        yield from moved.consumers


def moved_from(value: Value, operators: Collection[str]) -> Sequence[Value | None]:
    """Return the inputs whose elements a node of these operators moves to a value, without those that say where to."""
    node = value.producer
    if node is None or not node.is_op(*operators):
        return ()
    return [node.inputs[index] for index in copied_inputs(node)] or node.inputs[:1]


def find_uses(value: Value) -> frozenset[Use]:
    """Return the uses of a value; "hidden" means that a loop or a custom operator reads it."""
    kinds: set[Use] = set()
    for node, index in find_readers(value, _shifts_elements):
        if index in INDICES.get(node.operator, ()):
            kinds.add("lookup")
        elif node.bodies or (node.domain and not {*SCORES, *ANGLES} & {node.operator}):
            kinds.add("hidden")
    turned = find_readers(value, lambda node, index: moves_elements(node, index) or node.is_op(*ROTARY))
    if any(index in ANGLES.get(node.operator, ()) for node, index in turned):
        kinds.add("angle")
    if any(index in SCORES.get(node.operator, ()) for node, index in find_readers(value, _keeps_mask)):
        kinds.add("mask")
    return frozenset(kinds)


def values_computed_from(value: Value) -> Iterator[Value]:
    """Yield the values that nodes compute from a value, also nodes with a body that reads it."""
    for reader, _ in value.consumers:
        node: Node | None = reader
        while node is not None:
            yield from node.results
            node = node.scope.owner


def moves_elements(node: Node, index: int) -> bool:
    """Whether a node moves, or casts, the elements of an input."""
    return node.operator in MOVES and (index == 0 or index in copied_inputs(node))


def _shifts_elements(node: Node, index: int) -> bool:
    return moves_elements(node, index) or (node.is_op(*SHIFTS) and not (index == 0 and node.is_op("Where")))


def _keeps_mask(node: Node, index: int) -> bool:
    """Whether each element of a node's output still tells whether one position is masked."""
    if node.domain or node.bodies or node.is_op(*MIXING, *COUNTING) or index in value_inputs(node):
        return False
    if index in INDICES.get(node.operator, ()):
        return False
    return not node.is_op(*PAIRED) or _is_filled(node.input(1 - index))


def _is_filled(value: Value | None) -> bool:
    source = unwrap_value(value, MOVES) if value is not None else None
    if source is None or source.is_constant:
        return source is not None
    return source.producer is not None and source.producer.is_op("ConstantOfShape")


def find_lookups(value: Value, passes: Callable[[Node, int], bool] = moves_elements) -> Iterator[tuple[Node, Value]]:
    """Yield the nodes that look up rows by a value, perhaps moved, with the table of each."""
    for node, index in find_readers(value, passes):
        table = node.input(0)
        if index == 1 and node.operator in LOOKUPS and table is not None:
            yield node, table


def lookup_axis(node: Node, rank: int) -> int | None:
    """Return the axis along which a node of `find_lookups` looks up rows."""
    return node.axis(rank, name=LOOKUPS[node.operator])


def table_entries(node: Node, table: Value) -> int | None:
    """Return how many entries a table has, None unless it is a constant, perhaps dequantized."""
    table = unwrap_value(table, BEFORE_LOOKUPS)
    declared = declared_type(table) if table.is_constant else None
    if declared is None or declared.dims is None:
        return None
    axis = lookup_axis(node, len(declared.dims))
    size = declared.dims[axis] if axis is not None else None
    return size if isinstance(size, int) and size > 0 else None


def readers_beside(before: Value, after: Value) -> Iterator[Node]:
    """Yield the nodes that read an input whose memory an output is written to, beside the node that writes it in place.

    onnxruntime runs nodes that do not depend on each other in any order, so that these read the old or the new content.
    """
    for node, index in before.consumers:
        if (node is not after.producer or index != 0) and not node.is_op("Shape"):  # which reads no content
            yield node


# Find shape arithmetic: values computed from Shape, Size and constants, and read as shapes.
#
# Two passes over each scope in file order: forward for the sources of a value, backward for the values it
# feeds. A value behind a custom operator, a loop or an unsorted graph counts as data.

MAX_SOURCES = 256  # tensors that one shape is said to rest on


class ShapeTensors(Struct, frozen=True):
    """The values of a model that shape arithmetic computes or reads."""

    static: set[Value] = field(default_factory=set)  # computable from constants alone
    # computable from constants and the shapes of other tensors; includes `static`
    derived: set[Value] = field(default_factory=set)
    feeding: set[Value] = field(default_factory=set)  # read as a shape, axis or count, or used to compute one that is
    # for derived values that are not static, the tensors whose shape they are computed from
    measured: dict[Value, frozenset[Value]] = field(default_factory=dict)

    def is_shape(self, value: Value | None) -> bool:
        """Whether a value is a shape tensor: derived, and feeding a shape input."""
        return value in self.derived and value in self.feeding

    def sources(self, value: Value) -> frozenset[Value]:
        """Return the tensors whose shapes a value is computed from, or the value itself if it is data."""
        return frozenset() if value in self.static else self.measured.get(value, frozenset([value]))

    def works_on_shapes(self, node: Node) -> bool:
        """Whether a node computes a shape tensor."""
        return not self.feeding.isdisjoint(node.outputs) and any(map(self.is_shape, node.outputs))


def find_shape_tensors(scopes: Iterable[Scope]) -> ShapeTensors:
    """Return the shape arithmetic of these scopes and of the bodies in them."""
    tensors = ShapeTensors()
    for scope in scopes:
        _derive_forward(scope, tensors)
        _demand_backward(scope, tensors)
    return tensors


def _derive_forward(scope: Scope, tensors: ShapeTensors) -> None:
    constants = [value for value in scope.initializers if value.is_constant]
    tensors.static.update(constants)
    tensors.derived.update(constants)
    for node in scope.nodes:
        for body in node.bodies.values() if node.bodies else ():
            _derive_forward(body, tensors)
        outputs = node.results
        if node.is_op("If"):
            bodies = list(node.bodies.values())
            for index, value in enumerate(node.outputs):
                sources = [node.input(0), *(body.outputs[index] for body in bodies if index < len(body.outputs))]
                read = [source for source in sources if source is not None]
                if value is not None and tensors.derived.issuperset(read):
                    _derive_outputs([value], _union_of_sources(read, tensors), tensors)
        elif not (node.domain or node.bodies or node.op_type in RANDOM):
            inputs = node.operands
            if tensors.static.issuperset(inputs):
                tensors.static.update(outputs)
                tensors.derived.update(outputs)
            elif node.operator in MEASURING:
                _derive_outputs(outputs, frozenset(inputs), tensors)
            elif tensors.derived.issuperset(inputs):
                _derive_outputs(outputs, _union_of_sources(inputs, tensors), tensors)


def _derive_outputs(outputs: Sequence[Value], sources: frozenset[Value], tensors: ShapeTensors) -> None:
    tensors.derived.update(outputs)
    for value in outputs:
        tensors.measured[value] = sources


def _union_of_sources(values: Sequence[Value], tensors: ShapeTensors) -> frozenset[Value]:
    """Return the tensors that some derived values are computed from, as the same set where possible."""
    union: frozenset[Value] = frozenset()
    for value in values:
        sources = tensors.sources(value)
        if not sources <= union and len(union) < MAX_SOURCES:
            union = sources if union <= sources else union | sources
    return union


def _demand_backward(scope: Scope, tensors: ShapeTensors) -> None:
    for node in reversed(scope.nodes):
        if node.is_op("If"):
            for body in node.bodies.values():
                pairs = zip(node.outputs, body.outputs, strict=False)
                tensors.feeding.update(inner for outer, inner in pairs if outer in tensors.feeding)
        for body in node.bodies.values() if node.bodies else ():
            _demand_backward(body, tensors)
        if node.operator not in MEASURING and tensors.works_on_shapes(node):
            tensors.feeding.update(node.operands)
        else:
            tensors.feeding.update([node.operand(index) for index in value_inputs(node)])
