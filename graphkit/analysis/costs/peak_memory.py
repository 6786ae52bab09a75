"""Peak memory of activations: the most bytes that tensors computed by nodes have at once, in execution order.

Nodes run in the order in which onnxruntime runs them. A tensor is there from the node that computes it to the last one
that reads it; a graph output, to the end. A node that gives another shape shares the bytes of its input, and those of
`IN_PLACE` write in the place of an input that nothing reads afterwards; an output of a graph has bytes of its own.
The inputs of the graph and the weights are the caller's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from graphkit.analysis.costs.amounts import Amount, total
from graphkit.analysis.costs.node_costs import FAILURES, Choice, chosen_branches, functions_of
from graphkit.analysis.costs.node_sizes import VIEWS, bytes_of
from graphkit.analysis.costs.run_order import Plan
from graphkit.graph.operator_traits import names
from graphkit.graph.view import Node, Scope, Value
from graphkit.shapes import Expr, Shapes, is_known

__all__ = ["IN_PLACE", "MAX_DEPTH", "MAX_MOMENTS", "Alive", "Peak", "PeakMemory", "states_of"]

# Operators whose result onnxruntime 1.32 writes in the place of their input, measured one by one with its allocator
IN_PLACE = names(
    """
    Cast Celu Clip Elu HardSigmoid LeakyRelu LogSoftmax Relu Selu Sigmoid Softmax Softplus Softsign Tanh ThresholdedRelu
    """
)
MAX_DEPTH = 60  # bodies and functions in each other
MAX_MOMENTS = 100_000
Moment = tuple[Node, int]  # a node that runs, and the bytes that are there then


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
        moments: The bytes at each node that runs, in order.
    """

    bytes: int
    node: Node | None
    alive: tuple[Alive, ...]
    unknown: Mapping[str, Value]
    moments: Sequence[Moment]

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
        peak = run.peak(self.shapes.model.graph)
        shown = [Alive(value, bytes_, self.amount(value, bytes_)) for value, bytes_ in peak.alive.items() if bytes_]
        alive = tuple(sorted(shown, key=lambda each: -each.bytes))
        return Peak(peak.bytes, peak.node, alive, run.unknown, peak.moments)

    def amount(self, value: Value, number: int) -> Amount:
        """Return the bytes of a tensor as an expression, or as a number where there is none in the input dims."""
        size = self.size(value)
        return Amount.of(size) if isinstance(size, Expr) and is_known(size) else Amount.of(number)

    def plan(self, scope: Scope) -> Plan:
        """Return the order of a scope's nodes, and how long each value is needed."""
        if scope not in self.plans:
            self.plans[scope] = Plan.of(scope)
        return self.plans[scope]

    def bodies(self, node: Node, chosen: Mapping[Node, Choice]) -> list[Scope]:
        """Return the bodies of a node that may run: of an If whose branch is known, that one."""
        choice = chosen.get(node)
        if choice is not None and choice.name in node.bodies:
            return [node.bodies[choice.name]]
        return [body for body in node.bodies.values() if body not in self.shapes.impossible]

    def function(self, node: Node) -> Scope | None:
        """Return the function that a node calls, None if it is an operator."""
        return self.functions.get((node.domain, node.op_type, node.proto.overload)) if self.functions else None

    def size(self, value: Value) -> Expr | str:
        """Return the bytes of a tensor, or why they are not known."""
        if value not in self.expressions:
            try:
                self.expressions[value] = bytes_of(value, self.shapes)
            except FAILURES as error:
                self.expressions[value] = str(error)
        return self.expressions[value]


@dataclass(frozen=True)
class _ScopePeak:
    """The peak of a scope: its bytes, the node at which it is, the bytes of each buffer that is there.

    Attributes:
        moments: Each node that runs, in order, those of a body or a function in the place of the node that runs it.
    """

    bytes: int
    node: Node | None
    alive: Mapping[Value, int]
    moments: Sequence[Moment] = ()


EMPTY = _ScopePeak(0, None, {})


@dataclass
class _Buffers:
    """The buffers of a scope as they come and go.

    Attributes:
        bytes: Of each buffer.
        first, last: The step at which each comes, and the last one at which it is there.
        needed: The last position that needs each.
        roots: The buffer that each value lies in.
        now: The bytes that are there.
        steps: The bytes at each step, the node, and the peak inside of it.
    """

    bytes: dict[Value, int] = field(default_factory=dict)
    first: dict[Value, int] = field(default_factory=dict)
    last: dict[Value, int] = field(default_factory=dict)
    needed: dict[Value, int] = field(default_factory=dict)
    roots: dict[Value, Value] = field(default_factory=dict)
    now: int = 0
    steps: list[tuple[int, Node, _ScopePeak]] = field(default_factory=list)

    def add(self, value: Value, size: int) -> None:
        self.bytes[value], self.first[value] = size, len(self.steps)
        self.now += size

    def is_there(self, value: Value) -> bool:
        return value in self.bytes and value not in self.last

    def free(self, value: Value) -> None:
        self.last[value] = len(self.steps) - 1
        self.now -= self.bytes[value]

    def step(self, node: Node, inside: _ScopePeak) -> None:
        self.steps.append((self.now + inside.bytes, node, inside))

    def peak(self) -> _ScopePeak:
        """Return the peak, the first of several."""
        if not self.steps:
            return EMPTY
        place = max(range(len(self.steps)), key=lambda at: self.steps[at][0])
        size, node, inside = self.steps[place]
        alive = {value: size for value, size in self.bytes.items() if self.first[value] <= place <= self.end(value)}
        return _ScopePeak(size, inside.node or node, {**alive, **inside.alive}, self.moments())

    def end(self, value: Value) -> int:
        return self.last.get(value, len(self.steps))

    def moments(self) -> list[Moment]:
        """Return the bytes at each node, those inside of a node in its place unless they are too many."""
        moments: list[Moment] = []
        for size, node, inside in self.steps:
            if 0 < len(inside.moments) <= MAX_MOMENTS - len(moments):
                around = size - inside.bytes
                moments += [(each, around + bytes_) for each, bytes_ in inside.moments]
            else:
                moments.append((node, size))
        return moments


class _Run:
    """A run of a model at some sizes."""

    def __init__(self, memory: PeakMemory, sizes: Mapping[str, int]) -> None:
        self.memory, self.sizes, self.chosen = memory, sizes, chosen_branches(memory.shapes, sizes)
        self.unknown: dict[str, Value] = {}
        self.running: list[Scope] = []
        self.peaks: dict[Scope, _ScopePeak] = {}  # a scope has the same peak at each call

    def peak(self, scope: Scope, states: Sequence[Value] = ()) -> _ScopePeak:
        """Return the peak of a scope; `states` are inputs of a body that the iteration before has made."""
        if scope in self.running or len(self.running) >= MAX_DEPTH:  # the costs of its nodes say so
            return EMPTY
        if scope not in self.peaks:
            self.running.append(scope)
            self.peaks[scope] = self.buffers(scope, states).peak()
            self.running.pop()
        return self.peaks[scope]

    def buffers(self, scope: Scope, states: Sequence[Value]) -> _Buffers:
        """Return the buffers of a scope."""
        plan, there = self.memory.plan(scope), _Buffers()
        for value in states:
            there.add(value, self.bytes(value))
            there.roots[value], there.needed[value] = value, plan.last.get(value, 0)
        for position, node in enumerate(plan.nodes):
            inside, outputs = self.inside(node), node.results
            if inside is not EMPTY and not node.is_op("Loop", "Scan"):  # its outputs are those of what is inside
                there.step(node, inside)
            for value in outputs:
                root = self.root(node, value, position, plan, there)
                if root is None:
                    continue
                there.roots[value] = root
                there.needed[root] = max(there.needed.get(root, 0), plan.last.get(value, position))
                if root is value:
                    there.add(value, self.bytes(value))
            there.step(node, inside if node.is_op("Loop", "Scan") else EMPTY)
            for value in (*plan.ending.get(position, ()), *outputs):
                root = there.roots.get(value)
                if root is not None and there.is_there(root) and there.needed[root] <= position:
                    there.free(root)
        return there

    def inside(self, node: Node) -> _ScopePeak:
        """Return the largest peak of the bodies of a node, or of the function that it calls."""
        function = self.memory.function(node)
        if function is not None:
            return self.peak(function)
        if not node.bodies:
            return EMPTY
        peaks = (self.peak(body, states_of(node, body)) for body in self.memory.bodies(node, self.chosen))
        return max(peaks, key=lambda peak: peak.bytes, default=EMPTY)

    def root(self, node: Node, value: Value, position: int, plan: Plan, there: _Buffers) -> Value | None:
        """Return the buffer that an output lies in: itself, that of an input, or None for one of the caller's."""
        if node.is_op("Constant"):
            return None
        if value in plan.results:
            return value
        source = node.input(0)
        root = there.roots.get(source) if source is not None else None
        if node.operator in VIEWS and value.output_index == 0:
            return root
        is_last = root is not None and there.is_there(root) and there.needed[root] <= position
        if root is not None and is_last and node.operator in IN_PLACE and there.bytes[root] == self.bytes(value):
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
            bodies = self.memory.bodies(value.producer, self.chosen)
            results = [body.outputs[value.output_index :][:1] for body in bodies]
            return max((self.bytes(result) for outputs in results for result in outputs), default=0)
        self.unknown.setdefault(size, value)
        return 0


def states_of(node: Node, body: Scope) -> Sequence[Value]:
    """Return the inputs of a body that the iteration before has made."""
    if node.is_op("Loop"):
        return body.inputs[2:]
    scanned = node.attr("num_scan_inputs", 0) or 0
    return body.inputs[: max(len(body.inputs) - scanned, 0)] if node.is_op("Scan") else ()
