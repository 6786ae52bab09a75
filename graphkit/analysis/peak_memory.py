"""Peak memory of activations: the most bytes that tensors computed by nodes have at once, in execution order.

Nodes run in the order in which onnxruntime runs them. A tensor is there from the node that computes it to the last one
that reads it; a graph output, to the end. A node that gives another shape shares the bytes of its input, and those of
`IN_PLACE` write in the place of an input that nothing reads afterwards; an output of a graph has bytes of its own.
The inputs of the graph and the weights are the caller's. A page runs the same plans anew at other sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from graphkit.analysis.node_costs import (
    FAILURES,
    Amount,
    Choice,
    bytes_of,
    chosen_branches,
    function_scopes,
    sum_amounts,
)
from graphkit.graph.dataflow import values_read
from graphkit.graph.names import group_pairs
from graphkit.graph.operator_traits import operator_set
from graphkit.graph.view import Node, Scope, Value
from graphkit.ops.costs import VIEWS
from graphkit.shapes import Expr, Shapes, is_known

# Operators whose result onnxruntime 1.32 writes in the place of their input, measured one by one with its allocator
IN_PLACE = operator_set(
    """
    Cast Celu Clip Elu HardSigmoid LeakyRelu LogSoftmax Relu Selu Sigmoid Softmax Softplus Softsign Tanh ThresholdedRelu
    """
)
NEW, VIEW, IN_PLACE_OF = range(3)  # where an output lies: by itself, in another tensor, or there if nothing needs that
MAX_DEPTH = 60  # bodies and functions in each other
MAX_MOMENTS = 100_000
Moment = tuple[Node, int]  # a node that runs, and the bytes that are there then


class Output(NamedTuple):
    """An output of a step: the last position that reads it, where it lies, and the tensor that it may share."""

    value: Value
    last: int
    kind: int
    source: Value | None


class Plan(NamedTuple):
    """The nodes of a scope in the order in which they run, each with its outputs."""

    steps: Sequence[tuple[Node, Sequence[Output]]]
    # the position of the last node that reads or gives each value; after all of them for an output of the scope
    last: Mapping[Value, int]
    ending: Mapping[int, Sequence[Value]]  # the values whose last position each one is


def _plan_scope(scope: Scope) -> Plan:
    reads = {node: values_read(node) if node.bodies else node.operands for node in scope.nodes}
    nodes = runtime_order(scope, reads)
    last = {value: at for at, node in enumerate(nodes) for values in (reads[node], node.results) for value in values}
    last |= dict.fromkeys(scope.outputs, len(nodes))
    ending = group_pairs((position, value) for value, position in last.items())
    results = frozenset(scope.outputs)
    steps = []
    for node in nodes:
        operator = node.operator
        views, in_place = operator in VIEWS, operator in IN_PLACE
        outputs = []
        for value in node.results if operator != "Constant" else ():
            is_view = views and value.output_index == 0
            kind = NEW if value in results else VIEW if is_view else IN_PLACE_OF if in_place else NEW
            outputs.append(Output(value, last[value], kind, node.input(0) if kind else None))
        steps.append((node, outputs))
    return Plan(steps, last, ending)


def runtime_order(scope: Scope, values: Mapping[Node, Collection[Value]] = {}) -> tuple[Node, ...]:
    """Return the nodes of a scope in the order in which onnxruntime runs them.

    That is the order in which a search from the last nodes back to the first leaves them: of what a node reads, the
    latest node of the file is searched first. Source: Graph::ReverseDFSFrom and GraphViewer of onnxruntime 1.32.
    `values` has what each node reads, if that is known already.
    """
    reads: list[list[int]] = []  # the nodes that each node reads, by index
    for node in scope.nodes:
        found = values.get(node) or values_read(node)
        reads.append([value.producer.index for value in found if value.producer is not None and value.scope is scope])
    read = set().union(*reads)
    stack, order = [index for index in range(len(reads)) if index not in read], list[int]()
    is_visited = [False] * len(reads)
    while stack:
        if (top := stack.pop()) < 0:  # what the node reads is done
            order.append(~top)
        elif not is_visited[top]:
            is_visited[top] = True
            here = reads[top] if len(reads[top]) < 2 else sorted(set(reads[top]))
            stack += [~top, *[source for source in here if not is_visited[source]]]
    order += [index for index, is_done in enumerate(is_visited) if not is_done]
    return tuple([scope.nodes[index] for index in order])


class Alive(NamedTuple):
    """A tensor that is there at the peak: its bytes at the sizes, and as an expression."""

    value: Value
    bytes: int
    amount: Amount


class Peak(Struct, frozen=True):
    """The peak of a scope."""

    bytes: int  # at the sizes, without tensors of unknown size
    node: Node | None  # the node at which it is, None if nothing is computed
    alive: tuple[Alive, ...]  # the tensors that are there, the largest first
    unknown: Mapping[str, Value]  # why the sizes of some tensors are not known, each with the first such tensor
    moments: Sequence[Moment]  # the bytes at each node that runs, in order

    @property
    def amount(self) -> Amount:
        """The bytes of live tensors, as an expression: at other sizes, the peak may be elsewhere."""
        return sum_amounts(each.amount for each in self.alive)


class PeakMemory:
    """The peaks of a model at any sizes; what does not depend on them is found once."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes, self.functions = shapes, function_scopes(shapes.model)
        self.plans: dict[Scope, Plan] = {}
        self.expressions: dict[int, Expr] = {}  # by the identity of the tensor, which layers share

    def at(self, sizes: Mapping[str, int]) -> Peak:
        run = _Run(self, sizes)
        peak = run.scope_peak(self.shapes.model.graph)
        alive = []
        for value, number in peak.alive.items():
            size = self.size(value)
            if number:
                amount = Amount.of(size if isinstance(size, Expr) and is_known(size) else number)
                alive.append(Alive(value, number, amount))
        alive.sort(key=lambda each: -each.bytes)
        return Peak(peak.bytes, peak.node, tuple(alive), run.unknown, peak.moments)

    def plan(self, scope: Scope) -> Plan:
        """Return the order of a scope's nodes, and how long each value is needed."""
        if scope not in self.plans:
            self.plans[scope] = _plan_scope(scope)
        return self.plans[scope]

    def bodies(self, node: Node, chosen: Mapping[Node, Choice]) -> list[Scope]:
        """Return the bodies of a node that may run: of an If whose branch is known, that one."""
        choice = chosen.get(node)
        if choice is not None and choice.name in node.bodies:
            return [node.bodies[choice.name]]
        return [body for body in node.bodies.values() if body not in self.shapes.impossible]

    def branch_results(self, value: Value, chosen: Mapping[Node, Choice]) -> list[Value]:
        """Return what the branches of an If that may run give as one of its outputs, nothing for any other value."""
        bodies = self.bodies(value.producer, chosen) if value.producer and value.producer.is_op("If") else ()
        return [result for body in bodies for result in body.outputs[value.output_index :][:1]]

    def inside(self, node: Node, chosen: Mapping[Node, Choice]) -> list[tuple[Scope, Sequence[Value]]]:
        """Return what a node may run: the function that it calls, or its bodies.

        With each come the inputs of a body that the iteration before has made.
        """
        function = self.functions.get((node.domain, node.op_type, node.proto.overload)) if self.functions else None
        if function is not None:
            return [(function, ())]
        if not node.bodies:
            return []
        scanned = node.attr("num_scan_inputs", 0) or 0
        states = {"Loop": slice(2, None), "Scan": slice(0, -scanned or None)}.get(node.operator, slice(0))
        return [(body, body.inputs[states]) for body in self.bodies(node, chosen)]

    def size(self, value: Value) -> Expr | str:
        """Return the bytes of a tensor, or why they are not known."""
        key = id(self.shapes.table.get(value))
        if (size := self.expressions.get(key)) is None:
            try:
                size = self.expressions[key] = bytes_of(value, self.shapes)
            except FAILURES as error:
                return str(error)
        return size


class _ScopePeak(NamedTuple):
    """The peak of a scope: its bytes, the node at which it is, the bytes of each buffer that is there."""

    bytes: int
    node: Node | None
    alive: Mapping[Value, int]
    # each node that runs, in order, those of a body or a function in the place of the node that runs it
    moments: Sequence[Moment] = ()


EMPTY = _ScopePeak(0, None, {})


class _Buffers(Struct):
    """The buffers of a scope as they come and go."""

    bytes: dict[Value, int] = field(default_factory=dict)  # of each buffer
    # the step at which each comes, and the last one at which it is there
    first: dict[Value, int] = field(default_factory=dict)
    last: dict[Value, int] = field(default_factory=dict)
    needed: dict[Value, int] = field(default_factory=dict)  # the last position that needs each
    roots: dict[Value, Value] = field(default_factory=dict)  # the buffer that each value lies in
    now: int = 0  # the bytes that are there
    # the bytes at each step, the node, and the peak inside of it
    steps: list[tuple[int, Node, _ScopePeak]] = field(default_factory=list)

    def add(self, value: Value, size: int) -> None:
        self.bytes[value], self.first[value] = size, len(self.steps)
        self.now += size

    def free_unneeded(self, values: Sequence[Value], position: int) -> None:
        for value in values:
            root = self.roots.get(value)
            if root is not None and root not in self.last and self.needed[root] <= position:
                self.last[root] = len(self.steps) - 1
                self.now -= self.bytes[root]

    def peak(self) -> _ScopePeak:
        if not self.steps:
            return EMPTY
        sizes = [size for size, _, _ in self.steps]
        place = sizes.index(max(sizes))
        size, node, inside = self.steps[place]
        end = len(self.steps)
        alive = {
            value: size for value, size in self.bytes.items() if self.first[value] <= place <= self.last.get(value, end)
        }
        moments: list[Moment] = []  # at each node, those inside of a node in its place unless they are too many
        for there, at, within in self.steps:
            if within.moments and len(within.moments) <= MAX_MOMENTS - len(moments):
                moments += [(each, there - within.bytes + more) for each, more in within.moments]
            else:
                moments.append((at, there))
        return _ScopePeak(size, inside.node or node, {**alive, **inside.alive}, moments)


class _Run:
    """A run of a model at some sizes."""

    def __init__(self, memory: PeakMemory, sizes: Mapping[str, int]) -> None:
        self.memory, self.sizes, self.chosen = memory, sizes, chosen_branches(memory.shapes, sizes)
        self.unknown: dict[str, Value] = {}
        self.running: list[Scope] = []
        self.peaks: dict[Scope, _ScopePeak] = {}  # a scope has the same peak at each call
        self.numbers: dict[int, int] = {}  # by the identity of the tensor, which layers share

    def scope_peak(self, scope: Scope, states: Sequence[Value] = ()) -> _ScopePeak:
        """Return the peak of a scope; `states` are inputs of a body that the iteration before has made."""
        if scope in self.running or len(self.running) >= MAX_DEPTH:  # the costs of its nodes say so
            return EMPTY
        if scope not in self.peaks:
            self.running.append(scope)
            plan, there = self.memory.plan(scope), _Buffers()
            for value in states:
                there.add(value, self._bytes(value))
                there.roots[value], there.needed[value] = value, plan.last.get(value, 0)
            roots, needed, ending = there.roots, there.needed, plan.ending
            for position, (node, outputs) in enumerate(plan.steps):
                inside = EMPTY
                if node.bodies or self.memory.functions:
                    peaks = [self.scope_peak(*each) for each in self.memory.inside(node, self.chosen)]
                    inside = max(peaks, key=lambda peak: peak.bytes, default=EMPTY)
                is_loop = bool(node.bodies) and node.is_op("Loop", "Scan")
                if inside is not EMPTY and not is_loop:  # its outputs are those of what is inside
                    there.steps.append((there.now + inside.bytes, node, inside))
                for output in outputs:
                    value = output.value
                    root = value if output.kind == NEW else self._buffer_of(output, position, there)
                    if root is None:
                        continue
                    roots[value] = root
                    needed[root] = output.last if root is value else max(needed[root], output.last)
                    if root is value:
                        there.add(value, self._bytes(value))
                inner = inside if is_loop else EMPTY
                there.steps.append((there.now + inner.bytes, node, inner))
                there.free_unneeded(ending.get(position, ()), position)
            self.peaks[scope] = there.peak()
            self.running.pop()
        return self.peaks[scope]

    def _buffer_of(self, output: Output, position: int, there: _Buffers) -> Value | None:
        """Return the buffer that an output lies in: itself, that of an input, or None for one of the caller's."""
        root = None if output.source is None else there.roots.get(output.source)
        if output.kind == VIEW:
            return root
        is_free = root is not None and root not in there.last and there.needed[root] <= position
        return root if is_free and root and there.bytes[root] == self._bytes(output.value) else output.value

    def _bytes(self, value: Value) -> int:
        key = id(self.memory.shapes.table.get(value))
        if (number := self.numbers.get(key)) is not None:
            return number
        size = self.memory.size(value)
        if isinstance(size, Expr):
            try:
                return self.numbers.setdefault(key, max(size.evaluate(self.sizes), 0))
            except KeyError as missing:
                reasons = self.memory.shapes.reasons
                size = f"{missing.args[0]}: {reasons.get(missing.args[0], 'it is an element of an input')}"
            except ZeroDivisionError:
                size = f"{size} divides by 0"
        if value.producer is not None and value.producer.is_op("If"):  # an output of the branch that runs
            return max(map(self._bytes, self.memory.branch_results(value, self.chosen)), default=0)
        self.unknown.setdefault(size, value)
        return 0
