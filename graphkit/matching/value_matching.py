"""Match the values of two graphs: equal graphs by what they compute, others as told, by name and by structure.

Names are claims of an exporter: one that it counts (`add_3`, `/layer/Add_1_output_0`) says little. It counts where
operator and dims agree, and where no other tensor is computed from the same ones.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Literal

from msgspec import Struct, field
from onnx import TensorProto

from graphkit.graph.dataflow import in_order
from graphkit.graph.names import group_pairs, module_of
from graphkit.graph.operator_traits import COMMUTATIVE
from graphkit.graph.view import Node, Scope, Value, unwrap_value
from graphkit.matching.value_numbering import ValueNumbers
from graphkit.model import Model

Dims = tuple[int | None, ...] | None


class GraphSide(ABC):
    """A graph of a model."""

    model: Model

    @property
    def scope(self) -> Scope:
        """The graph."""
        return self.model.graph

    @property
    def inputs(self) -> Sequence[Value]:
        """The inputs that may match."""
        return self.scope.inputs

    @abstractmethod
    def dims(self, value: Value) -> Dims:
        """Return the dims of a tensor, as far as they are known."""

    @cached_property
    def order(self) -> Mapping[Node, int]:
        """The nodes of the graph, each after those that it reads, with their places."""
        return {node: place for place, node in enumerate(in_order(self.scope))}

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes of the graph that compute something of its inputs, each after those that it reads."""
        plain = (node for node in self.order if node.is_op("Constant", "Identity"))
        constant = {node for node in plain if all(known_tensor(value) is not None for value in node.results)}
        return tuple(node for node in self.order if node not in constant)

    @cached_property
    def place(self) -> Mapping[Value, int]:
        """The inputs and computed tensors of the graph, in topological order, with their places."""
        computed = [value for node in self.nodes for value in node.outputs if value is not None]
        return {value: place for place, value in enumerate([*self.inputs, *computed])}


def known_tensor(value: Value) -> TensorProto | None:
    """Return the tensor that a value always equals, None where it is no constant."""
    return source_of(value).constant


def source_of(value: Value) -> Value:
    """Return the value that another one is, by Identity nodes alone."""
    return unwrap_value(value, ("Identity",))


MAX_ROUNDS = 4
FEW = 2  # names that an edit adds or takes away


def match_graphs(
    matching: Matching,
    a: GraphSide,
    b: GraphSide,
    *,
    by_order: bool = False,
    changed: bool = False,
    equal: Iterable[tuple[Value, Value]] = (),
) -> None:
    """Match the values of two graphs, beside those that match already.

    With `by_order`, what is left within a module of one path, of one operator and dims, goes by order where both have
    as many. With `changed`, a node may match, in the end, one with other attributes, another operator or other inputs:
    that of its name where all but a few names are kept, the only one that reads a tensor as it does where most differ.
    Values that are known to be `equal` match unless a name that the graphs share says otherwise.
    """
    if matching.numbers.graphs[a.scope] == matching.numbers.graphs[b.scope]:
        match_equal(matching, a.scope, b.scope)
        return
    matcher = _Matcher(matching, a, b, changed=changed)
    matcher.match(equal)
    if by_order:
        matcher.match_by_order()


class _Matcher:
    def __init__(self, matching: Matching, a: GraphSide, b: GraphSide, *, changed: bool) -> None:
        self.matching, self.a, self.b, self.changed = matching, a, b, changed
        self.by_name = {value.name: value for value in b.place}
        self.names_of_a = {value.name for value in a.place}

    def match(self, equal: Iterable[tuple[Value, Value]]) -> None:
        """Match by name, by values that are known to be equal, and by structure."""
        matching, a, b, number = self.matching, self.a, self.b, self.matching.numbers.value
        shared = [x for x in a.place if x.producer is not None and x.name in self.by_name]
        is_renamed = 2 * len(shared) < min(len(a.nodes), len(b.nodes))
        theirs = {number(value) for value in self.by_name.values()}
        honest = sum(number(value) == number(self.by_name[value.name]) for value in shared)
        if sum(number(value) in theirs for value in shared) > 2 * honest:  # most are there under other names
            self.by_name, is_renamed = {value.name: value for value in b.inputs}, True
        for x in a.place:
            y = self.by_name.get(x.name)
            if y is None or (x.producer is None) != (y.producer is None):
                continue
            if x.producer is None or not is_counted(x.name) or number(x) == number(y):
                matching.add(x, y, "name")
        for x, y in equal:
            is_other = x.name not in self.by_name and y.name not in self.names_of_a
            if x.name == y.name:
                matching.add(x, y, "name")
            elif is_renamed or is_other:
                matching.add(x, y, "form")
        self._match_by_structure()
        computed = sum(value.producer is not None for side in (a, b) for value in side.place)
        is_edited = computed - 2 * len(shared) <= max(FEW, computed // 200)  # all but a few names are in both
        if not self.changed or not (is_renamed or is_edited):
            return
        if is_renamed:  # those that alone read a tensor at one place, in order, so that what follows matches again
            for node in a.nodes:
                if node.results and not any(value in matching.forth for value in node.results):
                    twin = self._find_twin(node) or self._lone_reader(node, same_operator)
                    if twin := twin or self._lone_reader(node, matching.reads_same):
                        matching.add_nodes(node, twin)
        else:  # by name, whatever their dims are, where the operators are the same
            for x in shared:
                y = self.by_name[x.name]
                if x.producer is not None and y.producer is not None and same_operator(x.producer, y.producer):
                    matching.add(x, y, "name")
        self._match_by_structure()

    def match_by_order(self) -> None:
        """Match what is left within a module of one path, of one operator and dims, where both have as many."""
        mine, theirs = _group_unmatched(self.a, self.matching.forth), _group_unmatched(self.b, self.matching.back)
        for key, values_a in mine.items():
            if len(values_a) == len(values_b := theirs.get(key, [])):
                for value_a, value_b in zip(values_a, values_b, strict=True):
                    self.matching.add(value_a, value_b, "order")

    def _match_by_structure(self) -> None:
        for _ in range(MAX_ROUNDS):
            before = len(self.matching.forth)
            for node in self.a.nodes:
                self._match_forwards(node)
            for node in reversed(self.a.nodes):
                self._match_backwards(node)
            if len(self.matching.forth) == before:
                break

    def _match_forwards(self, node: Node) -> None:
        """Match the outputs of a node whose inputs correspond, and those of one name.

        A counted name whose node reads something else, while another node reads what it read, was counted anew.
        """
        matching = self.matching
        outputs = [value for value in node.results if value not in matching.forth]
        named = [(value, two) for value in outputs if (two := self.by_name.get(value.name)) is not None]
        for value, two in named:
            if two.producer is not None and matching.corresponds(node, two.producer):
                matching.add(value, two, "name")
        twin = self._find_twin(node) if any(value not in matching.forth for value in outputs) else None
        if twin is not None and any(value.name in self.names_of_a for value in twin.results):
            matching.add_nodes(node, twin)  # B counted on from another number
        named = [(value, two) for value, two in named if value not in matching.forth]
        named = [(value, two) for value, two in named if may_be_equal(self.a.dims(value), self.b.dims(two))]
        for value, two in named:
            if (uses := _uses_of(value)) and uses == _uses_of(two):
                matching.add(value, two, "name")
        if twin is not None:
            matching.add_nodes(node, twin)
        for value, two in named:
            namesake = two.producer
            if value in matching.forth or namesake is None or not same_operator(node, namesake):
                continue
            read = (matching.back[each] for each in namesake.operands if each in matching.back)
            rivals = (reader for each in read for reader, _ in each.consumers if reader.scope is node.scope)
            if any(matching.corresponds(rival, namesake) for rival in rivals if rival is not node):
                continue  # another node of A computes the same as that of B: the name was only counted alike
            pairs = [(x, y) for x, y in zip(node.inputs, namesake.inputs, strict=False) if x in matching.forth]
            # at one place, tensors that are both known to be others
            reads_others = any(y in matching.back and x is not None and matching.forth[x] is not y for x, y in pairs)
            moved = self.changed and is_counted(value.name) and reads_others
            reader = self._lone_reader(node, same_operator) if moved else None
            if reader is not None:
                matching.add_nodes(node, reader)
            else:
                matching.add(value, two, "name")

    def _match_backwards(self, node: Node) -> None:
        forth, back = self.matching.forth, self.matching.back
        value = next((value for value in node.results if value in forth), None)
        twin = None if value is None else forth[value].producer
        if twin is None or not same_operator(node, twin):
            return
        mine = [value for value in node.operands if value in self.a.place]
        theirs = [value for value in twin.operands if value in self.b.place]
        unmatched = [x for x in mine if x not in forth], [y for y in theirs if y not in back]
        if len(mine) != len(theirs) or not len(unmatched[0]) == len(unmatched[1]) == 1:
            return
        ((x,), (y,)) = unmatched
        if x.producer is None or y.producer is None or not may_be_equal(self.a.dims(x), self.b.dims(y)):
            return
        if x.name == y.name:
            self.matching.add(x, y, "name")
        elif x.output_index == y.output_index and same_operator(x.producer, y.producer):
            self.matching.add(x, y, "structure")

    def _lone_reader(self, node: Node, is_alike: Callable[[Node, Node], bool]) -> Node | None:
        """Return the one unmatched node, alike in some respect, that reads a tensor at the same place."""
        for index, value in enumerate(node.inputs):
            if value is None or value not in self.matching.forth:
                continue
            other = self.matching.forth[value]
            mine = [reader for reader in self._open_readers(value, of_a=True) if reader.input(index) is value]
            theirs = [reader for reader in self._open_readers(other, of_a=False) if reader.input(index) is other]
            twins = [reader for reader in theirs if is_alike(node, reader)]
            if len(twins) == 1 and [reader for reader in mine if is_alike(reader, twins[0])] == [node]:
                return twins[0]
        return None

    def _find_twin(self, node: Node) -> Node | None:
        """Return the one node of B that computes the same from matched inputs, None where none or several do.

        Where several do, as the projections of one tensor, the one whose constants are equal is meant.
        """
        matching = self.matching
        known = next((value for value in node.operands if value in matching.forth), None)
        if known is None:
            return None
        theirs = self._open_readers(matching.forth[known], of_a=False)
        theirs = [reader for reader in theirs if matching.corresponds(node, reader)]
        mine = self._open_readers(known, of_a=True)
        mine = [reader for reader in mine if any(matching.corresponds(reader, twin) for twin in theirs)]
        if len(theirs) == len(mine) == 1:
            twin, values = theirs[0], self.a.scope.values
            namesake = next((v.producer for each in twin.results if (v := values.get(each.name)) is not None), None)
            is_open = namesake is not None and not any(value in matching.forth for value in namesake.results)
            if namesake is None or not is_open or not same_operator(namesake, twin):
                return twin
            # of the constants that they read: the twin may read those of its unmatched namesake
            numbers = [list(map(self._constant_number, each.inputs)) for each in (namesake, twin, node)]
            if not numbers[0] == numbers[1] != numbers[2]:
                return twin
        return next((reader for reader in theirs if matching.corresponds(node, reader, matching.same_constants)), None)

    def _constant_number(self, value: Value | None) -> int | None:
        source = source_of(value) if value is not None else None
        return self.matching.numbers.value(source) if source is not None and source.is_constant else None

    def _open_readers(self, value: Value, *, of_a: bool) -> list[Node]:
        """Return the nodes of A or of B that read a tensor, of those that nothing is known of."""
        scope, matched = (self.a.scope, self.matching.forth) if of_a else (self.b.scope, self.matching.back)
        readers = dict.fromkeys(reader for reader, _ in value.consumers if reader.scope is scope)
        return [node for node in readers if not any(result in matched for result in node.results)]


def _uses_of(value: Value) -> set[tuple[object, ...]]:
    """Return how a value is used: at which places, by which operators, and the names of their results."""
    return {(node.operator, place, *(result.name for result in node.results)) for node, place in value.consumers}


def may_be_equal(dims_a: Dims, dims_b: Dims) -> bool:
    """Whether two shapes may be equal."""
    if dims_a is None or dims_b is None:
        return True
    pairs = zip(dims_a, dims_b, strict=False)
    return len(dims_a) == len(dims_b) and all(x is None or y is None or x == y for x, y in pairs)


def _group_unmatched(side: GraphSide, matched: Mapping[Value, Value]) -> dict[object, Sequence[Value]]:
    """Return the unmatched values by module path, operator and dims, without those of no module."""
    groups: dict[object, list[Value]] = {}
    for value in side.place:
        node, dims = value.producer, side.dims(value)
        if node is None or value in matched or dims is None or None in dims:
            continue
        if scope := module_of(node):
            groups.setdefault((scope, node.operator, value.output_index, dims), []).append(value)
    return dict(groups)


How = Literal["map", "form", "name", "structure", "order", "output"]
# `add_3`, `123`, `/l/Add_1_output_0`
COUNTED = re.compile(r"(.*[/.])?([A-Za-z_:]*?[._]?\d+|[A-Z]\w*(_\d+)?_output_\d+)")
Alike = Callable[[Value, Value], bool]


class Matching(Struct, eq=False):
    """The matches so far, in both directions, of all graphs of two models."""

    numbers: ValueNumbers = field(default_factory=ValueNumbers)  # the numbers of everything in both models
    forth: dict[Value, Value] = field(default_factory=dict)  # values of A, with those of B
    back: dict[Value, Value] = field(default_factory=dict)  # the same the other way
    how: dict[Value, How] = field(default_factory=dict)  # how each value of A was matched
    # nodes of graphs that compute the same, node by node: those of A with those of B
    equal: dict[Node, Node] = field(default_factory=dict)

    def add(self, value_a: Value, value_b: Value, how: How) -> bool:
        """Match two values, unless one of them is matched."""
        if value_a in self.forth or value_b in self.back:
            return False
        self.forth[value_a], self.back[value_b], self.how[value_a] = value_b, value_a, how
        return True

    def release(self, value_a: Value) -> None:
        """Take back the match of a value of A."""
        del self.back[self.forth.pop(value_a)], self.how[value_a]

    def add_nodes(self, node_a: Node, node_b: Node) -> None:
        """Match the outputs of two nodes of one operator, by structure."""
        for x, y in zip(node_a.outputs, node_b.outputs, strict=False):
            if x is not None and y is not None:
                self.add(x, y, "structure")

    def same_constants(self, value_a: Value, value_b: Value) -> bool:
        """Whether two constants have one dtype, the same dims and the same bytes."""
        return self.numbers.value(source_of(value_a)) == self.numbers.value(source_of(value_b))

    def reads_same(self, node_a: Node, node_b: Node) -> bool:
        """Whether two nodes read the same tensors, whatever they compute."""
        return [x and self.forth.get(x) for x in node_a.inputs] == list(node_b.inputs)

    def corresponds(self, node_a: Node, node_b: Node, constants: Alike | None = None) -> bool:
        """Whether two nodes compute the same of values that match; constants need one dtype and the same dims only."""
        if not same_operator(node_a, node_b) or len(node_a.outputs) != len(node_b.outputs):
            return False
        attributes, graphs = self.numbers.attributes, self.numbers.graphs
        bodies = [{name: graphs[body] for name, body in node.bodies.items()} for node in (node_a, node_b)]
        if attributes[node_a] != attributes[node_b] or bodies[0] != bodies[1]:
            return False
        alike = constants or same_type

        def is_alike(x: Value | None, y: Value | None) -> bool:
            if x is None or y is None:
                return x is y
            if known_tensor(x) is not None and known_tensor(y) is not None:
                return alike(x, y)
            return self.forth.get(x) is y

        orders = (node_b.inputs, node_b.inputs[::-1]) if node_a.is_op(*COMMUTATIVE) else (node_b.inputs,)
        return any(all(map(is_alike, node_a.inputs, inputs)) for inputs in orders)


def is_counted(name: str) -> bool:
    """Whether an exporter may have counted a name, such as `add_3` or `/layer/Add_1_output_0`."""
    return COUNTED.fullmatch(name) is not None


def same_operator(node_a: Node, node_b: Node) -> bool:
    """Whether two nodes have one operator and as many inputs."""
    return node_a.operator == node_b.operator and len(node_a.inputs) == len(node_b.inputs)


def same_type(value_a: Value, value_b: Value) -> bool:
    """Whether two constants have one dtype and the same dims."""
    a, b = known_tensor(value_a), known_tensor(value_b)
    return a is not None and b is not None and (a.data_type, a.dims) == (b.data_type, b.dims)


def match_equal(matching: Matching, graph_a: Scope, graph_b: Scope) -> None:
    """Match the nodes of two graphs that compute the same; of several that do, those of one name first."""
    named = {value.name: value for value in graph_b.inputs} if not graph_a.path else {}  # those of the main graph
    for index, x in enumerate(graph_a.inputs):
        y = graph_b.inputs[index] if graph_a.path else named.get(x.name)
        if y is not None:
            matching.add(x, y, "name" if x.name == y.name else "structure")
    theirs = group_pairs((matching.numbers.nodes[node], node) for node in graph_b.nodes)
    unnamed: list[Node] = []
    for node in graph_a.nodes:
        twins = theirs[matching.numbers.nodes[node]]
        twin = next((twin for twin in twins if twin.proto.output == node.proto.output), None)
        if twin is None:
            unnamed.append(node)
        else:
            twins.remove(twin)
            _match_nodes(matching, node, twin)
    for node in unnamed:
        _match_nodes(matching, node, theirs[matching.numbers.nodes[node]].pop(0))


def _match_nodes(matching: Matching, node: Node, twin: Node) -> None:
    matching.equal[node] = twin
    for x, y in zip(node.outputs, twin.outputs, strict=False):
        if x is not None and y is not None:
            matching.add(x, y, "name" if x.name == y.name else "structure")
    for name, body in node.bodies.items():
        match_equal(matching, body, twin.bodies[name])
