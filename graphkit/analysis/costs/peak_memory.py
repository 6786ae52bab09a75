"""Peak memory of activations: the most bytes that tensors computed by nodes have at once, in execution order.

Nodes run in the order in which onnxruntime runs them. A tensor is there from the node that computes it to the last one
that reads it; a graph output, to the end. A node that gives another shape shares the bytes of its input, and those of
`IN_PLACE` write in the place of an input that nothing reads afterwards; an output of a graph has bytes of its own.
The inputs of the graph and the weights are the caller's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from graphkit.analysis.costs.amounts import Amount, total
from graphkit.analysis.costs.bytes_moved import VIEWS
from graphkit.analysis.costs.node_costs import FAILURES, chosen_branches, functions_of
from graphkit.analysis.costs.node_sizes import bytes_of
from graphkit.graph.dataflow import values_read
from graphkit.graph.operator_traits import names
from graphkit.graph.view import Node, Scope, Value
from graphkit.shapes import Expr, Shapes, is_known

__all__ = ["Alive", "Peak", "PeakMemory"]

# Operators whose result onnxruntime 1.32 writes in the place of their input, measured one by one with its allocator
IN_PLACE = names(
    """
    Cast Celu Clip Elu HardSigmoid LeakyRelu LogSoftmax Relu Selu Sigmoid Softmax Softplus Softsign Tanh ThresholdedRelu
    """
)
MAX_DEPTH = 60  # bodies and functions in each other


@dataclass(frozen=True)
class Alive:
    """A tensor that is there at the peak: its name, its bytes at the sizes, and as an expression."""

    value: Value
    bytes: int
    amount: Amount


@dataclass(frozen=True)
class Peak:
    """The peak of a scope.

    Attributes:
        bytes: At the sizes, without tensors of unknown size.
        node: The node at which it is, None if nothing is computed.
        alive: The tensors that are there, the largest first.
        unknown: Why the sizes of some tensors are not known, each with the first such tensor.
    """

    bytes: int
    node: Node | None
    alive: tuple[Alive, ...]
    unknown: Mapping[str, Value]

    @property
    def amount(self) -> Amount:
        """The bytes of live tensors, as an expression: at other sizes, the peak may be elsewhere."""
        return total(each.amount for each in self.alive)


class PeakMemory:
    """The peaks of a model at any sizes; what does not depend on them is found once."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes, self.functions = shapes, functions_of(shapes.model)
        self.plans: dict[Scope, Plan] = {}
        self.expressions: dict[Value, Expr | str] = {}

    def at(self, sizes: Mapping[str, int]) -> Peak:
        """Return the peak of the main graph."""
        run = _Run(self, sizes)
        found = run.peak(self.shapes.model.graph)
        shown = [Alive(value, bytes_, self.amount(value, bytes_)) for value, bytes_ in found.alive.items() if bytes_]
        return Peak(found.bytes, found.node, tuple(sorted(shown, key=lambda each: -each.bytes)), run.unknown)

    def amount(self, value: Value, number: int) -> Amount:
        """Return the bytes of a tensor as an expression, or as a number where there is none in the input dims."""
        size = self.size(value)
        return Amount.of(size) if isinstance(size, Expr) and is_known(size) else Amount.of(number)

    def plan(self, scope: Scope) -> Plan:
        """Return the order of a scope's nodes, and how long each value is needed."""
        if scope not in self.plans:
            self.plans[scope] = Plan.of(scope)
        return self.plans[scope]

    def size(self, value: Value) -> Expr | str:
        """Return the bytes of a tensor, or why they are not known."""
        if value not in self.expressions:
            try:
                self.expressions[value] = bytes_of(value, self.shapes)
            except FAILURES as error:
                self.expressions[value] = str(error)
        return self.expressions[value]


@dataclass(frozen=True)
class Plan:
    """The nodes of a scope in order.

    Attributes:
        last: The position of the last node that reads each value; after all of them for an output of the scope.
        ending: The values that are read for the last time at each position.
        results: The outputs of the scope.
    """

    nodes: tuple[Node, ...]
    last: Mapping[Value, int]
    ending: Mapping[int, list[Value]]
    results: frozenset[Value]

    @classmethod
    def of(cls, scope: Scope) -> Plan:
        """Return the plan of a scope."""
        nodes = runtime_order(scope)
        last = {value: position for position, node in enumerate(nodes) for value in values_read(node)}
        last |= dict.fromkeys(scope.outputs, len(nodes))
        ending: dict[int, list[Value]] = {}
        for value, position in last.items():
            ending.setdefault(position, []).append(value)
        return cls(nodes, last, ending, frozenset(scope.outputs))


def runtime_order(scope: Scope) -> tuple[Node, ...]:
    """Return the nodes of a scope in the order in which onnxruntime runs them.

    That is the order in which a search from the last nodes back to the first leaves them: of what a node reads, the
    latest node of the file is searched first. Source: Graph::ReverseDFSFrom and GraphViewer of onnxruntime 1.32.
    """
    place = {node: number for number, node in enumerate(scope.nodes)}
    reads = {node: sorted(_sources(node, place), key=place.__getitem__) for node in scope.nodes}
    read = {source for sources in reads.values() for source in sources}
    stack = [(node, False) for node in scope.nodes if node not in read]
    found: dict[Node, None] = {}
    visited: set[Node] = set()
    while stack:
        node, is_done = stack.pop()
        if is_done:
            found[node] = None
        elif node not in visited:
            visited.add(node)
            stack += [(node, True), *((source, False) for source in reads[node] if source not in visited)]
    return (*found, *(node for node in scope.nodes if node not in found))


def _sources(node: Node, place: Mapping[Node, int]) -> set[Node]:
    """Return the nodes of the same scope that a node reads."""
    return {value.producer for value in values_read(node) if value.producer is not None and value.producer in place}


@dataclass(frozen=True)
class _Found:
    """The peak of a scope: its bytes, the node at which it is, and the bytes of each buffer that is there."""

    bytes: int
    node: Node | None
    alive: Mapping[Value, int]


EMPTY = _Found(0, None, {})


class _Run:
    """The buffers of a model at some sizes, as they come and go."""

    def __init__(self, memory: PeakMemory, sizes: Mapping[str, int]) -> None:
        self.memory, self.sizes, self.chosen = memory, sizes, chosen_branches(memory.shapes, sizes)
        self.unknown: dict[str, Value] = {}
        self.running: list[Scope] = []
        self.peaks: dict[Scope, _Found] = {}  # a scope has the same peak at each call

    def peak(self, scope: Scope, states: Sequence[Value] = ()) -> _Found:
        """Return the peak of a scope; `states` are inputs of a body that the iteration before has made."""
        if scope in self.running or len(self.running) >= MAX_DEPTH:  # the costs of its nodes say so
            return EMPTY
        if scope not in self.peaks:
            self.running.append(scope)
            sizes = [step[0] for step in self.steps(scope, states)]
            place = max(range(len(sizes)), key=sizes.__getitem__, default=0)
            self.peaks[scope] = self.at_step(scope, states, place)
            self.running.pop()
        return self.peaks[scope]

    def at_step(self, scope: Scope, states: Sequence[Value], place: int) -> _Found:
        for size, node, buffers, inside in itertools.islice(self.steps(scope, states), place, None):
            return _Found(size, inside.node or node, {**buffers, **inside.alive})
        return EMPTY

    def steps(self, scope: Scope, states: Sequence[Value]) -> Iterator[tuple[int, Node, Mapping[Value, int], _Found]]:
        """Yield the bytes at each moment, the node, its buffers, and the peak inside of the node."""
        plan = self.memory.plan(scope)
        buffers = {value: self.bytes(value) for value in states}  # those that are there
        ends = {value: plan.last.get(value, 0) for value in states}  # the last position that needs each
        roots = {value: value for value in states}  # the buffer that each value lies in
        now = sum(buffers.values())
        for position, node in enumerate(plan.nodes):
            inside, outputs = self.inside(node), [value for value in node.outputs if value is not None]
            if inside is not EMPTY and not node.is_op("Loop", "Scan"):  # its outputs are those of what is inside
                yield now + inside.bytes, node, buffers, inside
            for value in outputs:
                root = self.root(node, value, position, roots, ends, buffers)
                if root is None:
                    continue
                roots[value], ends[root] = root, max(ends.get(root, 0), plan.last.get(value, position))
                if root is value:
                    buffers[value] = self.bytes(value)
                    now += buffers[value]
            around = inside if node.is_op("Loop", "Scan") else EMPTY
            yield now + around.bytes, node, buffers, around
            for value in (*plan.ending.get(position, ()), *outputs):
                root = roots.get(value)
                if root in buffers and root is not None and ends[root] <= position:
                    now -= buffers.pop(root)

    def inside(self, node: Node) -> _Found:
        """Return the largest peak of the bodies of a node, or of the function that it calls."""
        functions = self.memory.functions
        function = functions.get((node.domain, node.op_type, node.proto.overload)) if functions else None
        if function is not None:
            return self.peak(function)
        if not node.bodies:
            return EMPTY
        peaks = (self.peak(body, _states(node, body)) for body in self.bodies(node))
        return max(peaks, key=lambda found: found.bytes, default=EMPTY)

    def bodies(self, node: Node) -> list[Scope]:
        """Return the bodies of a node that may run: of an If whose branch is known, that one."""
        choice = self.chosen.get(node)
        if choice is not None and choice.name in node.bodies:
            return [node.bodies[choice.name]]
        return [body for body in node.bodies.values() if body not in self.memory.shapes.impossible]

    def root(
        self,
        node: Node,
        value: Value,
        position: int,
        roots: Mapping[Value, Value],
        ends: Mapping[Value, int],
        buffers: Mapping[Value, int],
    ) -> Value | None:
        """Return the buffer that an output lies in: itself, that of an input, or None for one of the caller's."""
        if node.is_op("Constant"):
            return None
        if value in self.memory.plan(value.scope).results:
            return value
        if node.operator in VIEWS and value.output_index == 0:
            source = node.input(0)
            return roots.get(source) if source is not None else None
        source = node.input(0)
        root = roots.get(source) if source is not None and node.operator in IN_PLACE else None
        if root in buffers and root is not None and ends[root] <= position and buffers[root] == self.bytes(value):
            return root
        return value

    def bytes(self, value: Value) -> int:
        """Return the bytes of a tensor, 0 where they are not known."""
        size = self.memory.size(value)
        if isinstance(size, Expr):
            try:
                return max(size.evaluate(self.sizes), 0)
            except KeyError as missing:
                reasons = self.memory.shapes.reasons
                size = f"{missing.args[0]}: {reasons.get(missing.args[0], 'it is an element of an input')}"
            except ZeroDivisionError:
                size = f"{size} divides by 0"
        if value.producer is not None and value.producer.is_op("If"):  # an output of the branch that runs
            results = [body.outputs[value.output_index :][:1] for body in self.bodies(value.producer)]
            return max((self.bytes(result) for outputs in results for result in outputs), default=0)
        self.unknown.setdefault(size, value)
        return 0


def _states(node: Node, body: Scope) -> Sequence[Value]:
    """Return the inputs of a body that the iteration before has made."""
    if node.is_op("Loop"):
        return body.inputs[2:]
    scanned = node.attr("num_scan_inputs", 0) or 0
    return body.inputs[: max(len(body.inputs) - scanned, 0)] if node.is_op("Scan") else ()
