"""Peak memory of activations: the most bytes that tensors computed by nodes have at once, in execution order.

Nodes run in the order in which onnxruntime runs them. A tensor is there from the node that computes it to the last one
that reads it; a graph output, to the end. A node that gives another shape shares the bytes of its input, and those of
`IN_PLACE` write in the place of an input that nothing reads afterwards; an output of a graph has bytes of its own.
The inputs of the graph and the weights are the caller's. A page runs the same plans anew at other sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from graphkit.graph.operator_traits import operator_set
from graphkit.graph.view import Node, Scope, Value, walk_breadth_first
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


class Output(Struct, frozen=True, gc=False):
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


def _plan_scope(scope: Scope) -> Plan:
    nodes = runtime_order(scope)
    last: dict[Value, int] = {}
    for at, node in enumerate(nodes):
        for value in values_read(node) if node.bodies else node.operands:
            last[value] = at
        for value in node.results:
            last[value] = at
    last |= dict.fromkeys(scope.outputs, len(nodes))
    results = frozenset(scope.outputs)
    steps = []
    for node in nodes:
        operator, outputs = node.operator, []
        usual = VIEW if operator in VIEWS else IN_PLACE_OF if operator in IN_PLACE else NEW
        for value in node.results if operator != "Constant" else ():
            kind = NEW if value in results or (usual == VIEW and value.output_index) else usual
            outputs.append(Output(value, last[value], kind, node.input(0) if kind else None))
        steps.append((node, outputs))
    return Plan(steps, last)


def runtime_order(scope: Scope) -> tuple[Node, ...]:
    """Return the nodes of a scope in the order in which onnxruntime runs them.

    That is the order in which a search from the last nodes back to the first leaves them: of what a node reads, the
    latest node of the file is searched first. Source: Graph::ReverseDFSFrom and GraphViewer of onnxruntime 1.32.
    """
    reads: list[list[int]] = []  # the nodes that each node reads, by index
    for node in scope.nodes:
        found = values_read(node) if node.bodies else node.operands
        reads.append([maker.index for value in found if (maker := value.producer) and maker.scope is scope])
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
        alive = [Alive(value, number, self._amount(value, number)) for value, number in peak.alive.items() if number]
        alive.sort(key=lambda each: -each.bytes)
        return Peak(peak.bytes, peak.node, tuple(alive), run.unknown, peak.moments)

    def _amount(self, value: Value, number: int) -> Amount:
        size = self.size(value)
        return Amount.of(size if isinstance(size, Expr) and is_known(size) else number)

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
        """Return what the branches of an If that may run give as one of its outputs, nothing for any other value.

        Nor is there anything in a broken model, where they give what follows from this output itself.
        """

        def branch_values(each: Value) -> list[Value]:
            bodies = self.bodies(each.producer, chosen) if each.producer and each.producer.is_op("If") else ()
            return [result for body in bodies for result in body.outputs[each.output_index :][:1]]

        results = branch_values(value)
        return [] if value in walk_breadth_first(results, branch_values) else results

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


class _Buffer(Struct):
    """A place of its own, in which one or several values lie."""

    value: Value  # the first of them
    bytes: int
    first: int  # the step at which it comes
    needed: int = -1  # the last position that needs it
    last: int | None = None  # the last step at which it is there, None if that is the end


class _Buffers(Struct):
    """The buffers of a scope as they come and go."""

    every: list[_Buffer] = field(default_factory=list)
    roots: dict[Value, _Buffer] = field(default_factory=dict)  # the buffer that each value lies in
    ending: dict[int, list[_Buffer]] = field(default_factory=dict)  # those that a position may be the last to need
    now: int = 0  # the bytes that are there
    steps: list[Moment] = field(default_factory=list)
    inside: dict[int, _ScopePeak] = field(default_factory=dict)  # the peak inside of the node of a step

    def place(self, value: Value, size: int, position: int, buffer: _Buffer | None = None) -> None:
        """Put a value into a buffer, else into a new one of a size, which it needs up to a position."""
        if buffer is None:
            self.every.append(buffer := _Buffer(value, size, len(self.steps)))
            self.now += size
        self.roots[value] = buffer
        if position > buffer.needed:
            buffer.needed = position
            self.ending.setdefault(position, []).append(buffer)

    def step(self, node: Node, inside: _ScopePeak) -> None:
        if inside is not EMPTY:
            self.inside[len(self.steps)] = inside
        self.steps.append((node, self.now + inside.bytes))

    def free_unneeded(self, position: int) -> None:
        for buffer in self.ending.get(position, ()):
            if buffer.needed == position:
                buffer.last = len(self.steps) - 1
                self.now -= buffer.bytes

    def peak(self) -> _ScopePeak:
        if not self.steps:
            return EMPTY
        sizes = [size for _, size in self.steps]
        place = sizes.index(max(sizes))
        node, size = self.steps[place]
        inside = self.inside.get(place, EMPTY)
        there = [each for each in self.every if each.first <= place and (each.last is None or place <= each.last)]
        alive = {**{each.value: each.bytes for each in there}, **inside.alive}
        moments: list[Moment] = []  # at each node, those inside of a node in its place unless they are too many
        for step, moment in enumerate(self.steps) if self.inside else ():
            within = self.inside.get(step, EMPTY)
            if within.moments and len(within.moments) <= MAX_MOMENTS - len(moments):
                moments += [(each, moment[1] - within.bytes + more) for each, more in within.moments]
            else:
                moments.append(moment)
        return _ScopePeak(size, inside.node or node, alive, moments or self.steps)


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
                there.place(value, self._bytes(value), plan.last.get(value, len(plan.steps)))
            for position, (node, outputs) in enumerate(plan.steps):
                inside, is_loop = EMPTY, False
                if node.bodies or self.memory.functions:
                    peaks = [self.scope_peak(*each) for each in self.memory.inside(node, self.chosen)]
                    inside = max(peaks, key=lambda peak: peak.bytes, default=EMPTY)
                    is_loop = bool(node.bodies) and node.is_op("Loop", "Scan")
                if inside is not EMPTY and not is_loop:  # its outputs are those of what is inside
                    there.step(node, inside)
                for output in outputs:
                    value = output.value
                    shared = there.roots.get(output.source) if output.source is not None else None
                    if output.kind == VIEW and shared is None:  # it is one of the caller's
                        continue
                    size = 0 if output.kind == VIEW else self._bytes(value)
                    if shared and output.kind == IN_PLACE_OF:  # if nothing needs it afterwards, and it is as large
                        is_free = shared.last is None and shared.needed <= position and shared.bytes == size
                        shared = shared if is_free else None
                    there.place(value, size, output.last, shared)
                there.step(node, inside if is_loop else EMPTY)
                there.free_unneeded(position)
            self.peaks[scope] = there.peak()
            self.running.pop()
        return self.peaks[scope]

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
