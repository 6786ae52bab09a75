"""Data flow in a graph: its nodes in topological order, facts about values, their uses, and shape arithmetic.

ONNX requires sorted nodes; onnxruntime accepts any order, and some tools write unsorted graphs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Generic, Literal, TypeVar

import onnx
import onnx.defs
from msgspec import Struct, field

from graphkit.errors import ModelError, count_things
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
    operator_schema,
    operator_set,
    value_inputs,
)
from graphkit.graph.view import VALUES, Node, Scope, Value, unwrap_value, walk_breadth_first


def in_order(scope: Scope) -> list[Node]:
    """Return the nodes of a scope, each after those that it reads. Nodes of a cycle come last, in file order."""
    result = sort_nodes(scope)
    done = set(result)
    return result + [node for node in scope.nodes if node not in done]


def sort_nodes(scope: Scope) -> list[Node]:
    """Return the nodes of a scope, each after those that it reads, without those that depend on a cycle."""
    waiting: dict[Node, int] = {}
    readers: dict[Value, list[Node]] = {}
    for node in scope.nodes:
        needed = {value for value in values_read(node) if value.producer is not None and value.scope is scope}
        waiting[node] = len(needed)
        for value in needed:
            readers.setdefault(value, []).append(node)
    ready = [node for node, count in waiting.items() if not count][::-1]
    result: list[Node] = []
    while ready:
        node = ready.pop()
        result.append(node)
        freed = []
        for output in node.outputs:
            for reader in readers.pop(output, ()) if output is not None else ():
                waiting[reader] -= 1
                if not waiting[reader]:
                    freed.append(reader)
        ready.extend(freed[::-1])
    return result


def values_read(node: Node) -> set[Value]:
    """Return the values that a node reads, those that its bodies read of the scopes around them included."""
    read = set(node.operands)
    for body in node.bodies.values():
        for inner in body.walk():
            read.update(value for inner_node in inner.nodes for value in inner_node.operands)
            read.update(inner.outputs)
    return read


Fact = TypeVar("Fact")
MAX_DEPTH = 100  # nodes one after the other, each with a few calls on the stack of Python


class ForwardAnalysis(ABC, Generic[Fact]):
    """Finds facts on demand, each once: only the values that a transfer function asks for are looked at.

    `unknown` is the fact about a value of which nothing is known: one that is left out, one that is computed from
    itself, as in a broken model, and one behind too many nodes.
    """

    def __init__(self, unknown: Fact) -> None:
        self._unknown = unknown
        self._facts: dict[Value, Fact] = {}
        self._depth = 0

    def of(self, value: Value | None) -> Fact:
        """Return the fact about a value."""
        if value is None:
            return self._unknown
        if value not in self._facts and self._depth < MAX_DEPTH:
            self._facts[value] = self._unknown
            self._depth += 1
            try:
                self._facts[value] = self.transfer(value)
            finally:
                self._depth -= 1
        return self._facts.get(value, self._unknown)

    @abstractmethod
    def transfer(self, value: Value) -> Fact:
        """Return the fact about a value from those about the inputs of its producer, for which it calls `of`."""


# Check that a graph can be rewritten: every name has one definition, and every node fits its operator.
#
# Analyses accept any graph. A rewrite that moves names must know their meaning, and no runtime loads a
# graph that is not sound.

HINT = "no runtime loads such a graph; export the model again"


def check_scopes(scopes: tuple[Scope, ...], file: str | None = None) -> None:
    """Check the main graph, the functions and all bodies.

    A ModelError says that a name is defined twice or never, that nodes read each other in a circle, or that a node
    lacks an input, an output or an attribute that its operator needs, or has an attribute of another kind, one
    attribute twice, or one that refers to the call of a function although the node is in none.
    """
    functions = {scope.path.removeprefix("function ") for scope in scopes[1:]}
    for root in scopes:
        for scope in root.walk():
            if scope.problems:
                _check_names(scope, file)
            for node in scope.nodes:
                fault, attributes = "", node.attributes
                bound = [name for name in attributes if attributes[name].ref_attr_name] if attributes else ()
                if attributes and len(attributes) < len(node.proto.attribute):
                    fault = "has two attributes of one name"
                elif bound and root is scopes[0]:
                    fault = f"takes its attribute '{bound[0]}' from the call of a function, and is in none"
                if fault or (node.op_type not in functions and (fault := find_misfit(node))):
                    raise ModelError(f"{node.operator} {fault}", file=file, node=node.path, hint=HINT)


def _check_names(scope: Scope, file: str | None) -> None:
    for name in scope.twice:
        nodes = [node for node in scope.nodes if name in node.proto.output]
        raise ModelError(f"'{name}' is defined twice", file=file, node=nodes[-1].path if nodes else None, hint=HINT)
    for value in scope.values.values():
        if value.kind == "undefined":
            path = value.consumers[0][0].path if value.consumers else None
            raise ModelError(f"'{value.name}' is never defined", file=file, node=path, hint=HINT)
    done = set(sort_nodes(scope))
    for node in scope.nodes:
        if node not in done:
            raise ModelError("it needs its own result: nodes read each other in a circle", file=file, node=node.path)


class Form(Struct, frozen=True):
    """What the nodes of an operator have."""

    inputs: tuple[bool, ...]  # whether they need each, as many as all that follow the last
    least: tuple[int, int]  # inputs and outputs
    most: tuple[int, int]
    kinds: Mapping[str, int]  # of attributes
    required: tuple[str, ...]  # attributes
    is_older: bool  # than ONNX's: runtimes knew some operators before ONNX did, with more than these


SIDES = ("input(s)", "output(s)")


@lru_cache(maxsize=4096)
def _operator_form(op_type: str, domain: str, version: int) -> Form | None:
    if not onnx.defs.has(op_type, domain):
        return None
    exact = operator_schema(op_type, version, domain)
    schema = exact or onnx.defs.get_schema(op_type, domain)
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    inputs = tuple(formal.option != optional for formal in schema.inputs)
    kinds = {name: int(attribute.type) for name, attribute in schema.attributes.items()}  # type: ignore[call-overload]
    required = tuple(name for name, attribute in schema.attributes.items() if attribute.required)
    least, most = (schema.min_input, schema.min_output), (schema.max_input, schema.max_output)
    return Form(inputs, least, most, kinds, required, is_older=exact is None)


def find_misfit(node: Node) -> str:
    """Return what keeps a node from fitting its operator, "" for nothing or if onnx does not know the operator."""
    version = node.scope.opsets.get(node.domain, 0)  # of a set that is not imported, runtimes take some version
    form = _operator_form(node.op_type, node.domain, version) if 0 < version < 1 << 31 else None
    if form is None:
        return ""
    for given, least, most, what in zip((node.inputs, node.outputs), form.least, form.most, SIDES, strict=True):
        if len(given) < least:
            return f"has {count_things(len(given), what)} and needs {least}"
        if len(given) > most:
            return f"has {count_things(len(given), what)} and takes {most}"
    if None in node.inputs:
        for index, value in enumerate(node.inputs):
            if value is None and form.inputs[min(index, len(form.inputs) - 1)]:
                return f"leaves out its input {index}, which it needs"
    for name in form.required:
        if name not in node.attributes:
            return f"lacks its attribute '{name}'"
    if node.is_op("Constant") and len(values := VALUES & node.attributes.keys()) != 1:
        return f"has {len(values)} values and needs 1"
    for name, attribute in node.attributes.items():
        if name not in form.kinds and not form.is_older:
            return f"has an attribute '{name}', which {node.operator} does not have"
        if attribute.type != form.kinds.get(name, attribute.type):
            return f"has an attribute '{name}' of another kind"
    return ""


# The uses of a value in nodes: rows looked up, angles, masks of attention, writes in place.

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
