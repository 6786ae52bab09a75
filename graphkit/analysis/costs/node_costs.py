"""The costs of every node that runs: branches, bodies as often as they run, functions at each call.

Of an If, the branch counts that costs more at the sizes that are asked about; `branches` has both. Where a body runs an
unknown number of times, the costs of its nodes are unknown, and so are those of a node whose sizes are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from graphkit.analysis.costs.amounts import NOTHING, ONCE, Amount, sum_amounts
from graphkit.analysis.costs.node_sizes import NodeSizes, bytes_moved
from graphkit.analysis.costs.operations import MACS, OPERATIONS, UNCOUNTED
from graphkit.graph.dataflow import in_order
from graphkit.graph.view import Node, Scope, Value, all_nodes
from graphkit.model import Model
from graphkit.ops.control_and_sequences import count_iterations
from graphkit.ops.tensor import element_number
from graphkit.progress import check_time
from graphkit.shapes import Expr, Shapes, UnknownError, const
from graphkit.symbolic.expr import TooComplexError

__all__ = [
    "MEASURES", "Branch", "Choice", "Measure", "NodeCost", "NodeCosts", "Steps", "chosen_branches", "functions_of",
    "node_costs", "scope_nodes",
]  # fmt: skip

Measure = Literal["macs", "operations", "bytes_moved"]
MEASURES: tuple[Measure, ...] = ("macs", "operations", "bytes_moved")
NOTHING_UNKNOWN: Mapping[Measure, str] = {}
MAX_CALLS = 30  # functions in functions, as for shapes
MAX_WORK = 200_000  # nodes of bodies and functions, as often as they are called
RECURRENT = ("GRU", "LSTM", "RNN")
FAILURES = (UnknownError, TooComplexError, ArithmeticError, LookupError, ValueError)


@dataclass(frozen=True)
class NodeCost:
    """The costs of a node, all of its runs together.

    Attributes:
        costs: What is known, by measure.
        unknown: Why the others are not, by measure.
    """

    node: Node
    costs: Mapping[Measure, Amount]
    unknown: Mapping[Measure, str]


@dataclass(frozen=True)
class Branch:
    """A branch of an If, and its costs; `reason` says why it cannot run, "" if it can."""

    node: Node
    name: str
    costs: tuple[NodeCost, ...]
    is_counted: bool
    reason: str


@dataclass(frozen=True)
class Steps:
    """Work that runs one step after the other.

    Attributes:
        steps: How many steps, None where that is not known.
        reason: Why it is not.
        costs: Of all steps.
    """

    node: Node
    steps: Amount | None
    reason: str
    costs: tuple[NodeCost, ...]


@dataclass
class NodeCosts:
    """The costs of the nodes of a model, with its branches and its sequential work."""

    nodes: list[NodeCost] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    sequential: list[Steps] = field(default_factory=list)


def node_costs(shapes: Shapes, sizes: Mapping[str, int]) -> NodeCosts:
    """Return the costs of every node of a model that runs.

    Args:
        shapes: The inferred shapes of the model.
        sizes: Sizes of the symbols, at which the dearer branch of an If is found.
    """
    walk = _Walk(shapes, sizes)
    walk.costs.nodes = walk.scope(shapes.model.graph, ONCE, "")
    return walk.costs


def scope_nodes(scope: Scope) -> Sequence[Node]:
    """Return the nodes of a scope in the order in which they run: that of the file, where it is a legal one."""
    return in_order(scope) if scope.problems else scope.nodes


def functions_of(model: Model) -> Mapping[tuple[str, str, str], Scope]:
    """Return the scopes of a model's functions, by domain, name and overload."""
    functions = zip(model.proto.functions, model.scopes[1:], strict=True)
    return {(function.domain, function.name, function.overload): scope for function, scope in functions}


@dataclass(frozen=True)
class Choice:
    """The branch of an If that runs; `is_certain` if its condition is constant, else the sizes say so."""

    name: str
    is_certain: bool


def chosen_branches(shapes: Shapes, sizes: Mapping[str, int]) -> Mapping[Node, Choice]:
    """Return which branch runs of each If whose condition is constant, and of each merged decoder.

    At sizes with a past, a merged decoder runs the branch that reads it.
    """
    chosen = {}
    for node in all_nodes(shapes.model.scopes):
        condition = shapes[node.input(0)] if node.is_op("If") else None
        data = condition.data if condition is not None and condition.may_have_data else None
        value = element_number(data.ravel()[0]) if data is not None and data.size == 1 else None
        if value is not None:
            chosen[node] = Choice("then_branch" if value else "else_branch", is_certain=True)
    roles = shapes.model.roles
    has_past = any(
        _has_elements(past, shapes, sizes) for past, entry in roles.pasts.items() if not roles.is_cross(entry)
    )
    for decoder in roles.merged:
        name = decoder.cache_branch if has_past else decoder.first_branch
        chosen.setdefault(decoder.node, Choice(name, is_certain=False))
    return chosen


def _has_elements(value: Value, shapes: Shapes, sizes: Mapping[str, int]) -> bool:
    dims = shapes.dims(value)
    return dims is not None and all(Amount.of(dim).at(sizes) != 0 for dim in dims)


class _Walk:
    """A walk over the scopes, each as often as it is called; `times` is None, with a reason, where that is unknown."""

    def __init__(self, shapes: Shapes, sizes: Mapping[str, int]) -> None:
        self.shapes, self.sizes = shapes, sizes
        self.functions, self.chosen = functions_of(shapes.model), chosen_branches(shapes, sizes)
        self.running: list[Scope] = []
        self.work = 0
        self.amounts: dict[Expr, tuple[Amount, str]] = {}
        self.known: dict[object, Mapping[Measure, Amount]] = {}  # layers repeat
        self.costs = NodeCosts()

    def scope(self, scope: Scope, times: Amount | None, reason: str) -> list[NodeCost]:
        check_time()
        if scope.parent is not None or self.running:
            self.work += len(scope.nodes)
        return [cost for node in scope_nodes(scope) for cost in self.node(node, times, reason)]

    def node(self, node: Node, times: Amount | None, reason: str) -> Iterable[NodeCost]:
        function = self.functions.get((node.domain, node.op_type, node.proto.overload)) if self.functions else None
        if self.work > MAX_WORK:
            return [_unknown_cost(node, "the bodies and functions around it are too many nodes")]
        if function is not None:
            return self.call(node, function, times, reason)
        if node.is_op("If"):
            return self.branches(node, times, reason)
        if node.is_op("Loop", "Scan") and "body" in node.bodies:
            return self.loop(node, node.bodies["body"], times, reason)
        if node.is_op(*RECURRENT):
            return self.recurrent(node, times, reason)
        return [self.single(node, times, reason)]

    def single(self, node: Node, times: Amount | None, reason: str) -> NodeCost:
        if node.bodies:
            return _unknown_cost(node, f"how often {node.operator} runs what is inside is not known")
        if times is None:
            return _unknown_cost(node, reason)
        like = self.likeness(node)
        if times is ONCE and like in self.known:
            return NodeCost(node, self.known[like], NOTHING_UNKNOWN)
        sizes = NodeSizes(node, self.shapes)
        rules: Mapping[Measure, Callable[[], Expr]] = {
            "macs": lambda: _count_macs(sizes),
            "operations": lambda: _count_operations(sizes),
            "bytes_moved": lambda: bytes_moved(node, self.shapes),
        }
        costs: dict[Measure, Amount] = {}
        unknown: dict[Measure, str] = {}
        for measure, rule in rules.items():
            try:
                cost, why = self.amount(rule())
                if why:
                    unknown[measure] = why
                else:
                    costs[measure] = cost if times is ONCE else cost.times(times)
            except FAILURES as error:
                unknown[measure] = str(error)
        if times is ONCE and not unknown:
            self.known[like] = costs
        return NodeCost(node, costs, unknown)

    def likeness(self, node: Node) -> object:
        """Return what the costs of a node depend on: its operator and attributes, and the dims that it works on."""
        tensors = [None if value is None else self.shapes[value] for value in (*node.inputs, *node.outputs)]
        attributes = tuple(each.SerializeToString() for each in node.proto.attribute)
        dims = tuple(None if each is None else (each.dims, each.dtype, type(each)) for each in tensors)
        return node.op_type, node.domain, len(node.inputs), attributes, dims, id(node.scope.opsets)

    def amount(self, cost: Expr) -> tuple[Amount, str]:
        """Return a cost as an amount, and why some of its symbols have no size, "" if all have."""
        if cost not in self.amounts:  # layers repeat
            amount = Amount.of(cost)
            self.amounts[cost] = amount, self.unknown_symbols(amount)
        return self.amounts[cost]

    def unknown_symbols(self, amount: Amount) -> str:
        """Return why some symbols of an amount have no size, "" if all have."""
        if amount.at(self.sizes) is not None:
            return ""
        missing = sorted(amount.symbols - self.sizes.keys())
        return "; ".join(f"{name}: {self.shapes.reasons.get(name, 'it is an element of an input')}" for name in missing)

    def call(self, node: Node, function: Scope, times: Amount | None, reason: str) -> list[NodeCost]:
        if function in self.running:
            return [_unknown_cost(node, "the function calls itself, at once or through others")]
        if len(self.running) >= MAX_CALLS:
            return [_unknown_cost(node, "functions call each other too deep")]
        self.running.append(function)
        try:
            return self.scope(function, times, reason)
        finally:
            self.running.pop()

    def branches(self, node: Node, times: Amount | None, reason: str) -> list[NodeCost]:
        choice = self.chosen.get(node)
        branches: list[tuple[str, list[NodeCost], str]] = []
        for name, body in node.bodies.items():
            impossible = self.shapes.impossible.get(body)
            why = impossible.message if impossible is not None else ""
            if choice is not None and choice.is_certain and choice.name != name:
                why = "the condition is constant"
            branches.append((name, [] if why else self.scope(body, times, reason), why))
        runnable = [(name, costs) for name, costs, why in branches if not why]
        named = [costs for name, costs in runnable if choice is not None and choice.name == name]
        counted = named[0] if named else max((costs for _, costs in runnable), key=self.weight, default=[])
        for name, costs, why in branches if choice is None or not choice.is_certain else ():
            self.costs.branches.append(Branch(node, name, tuple(costs), costs is counted, why))
        return counted

    def weight(self, costs: Sequence[NodeCost]) -> tuple[int, ...]:
        """Return the costs of a branch at the sizes, the measure that decides first."""
        sums = (sum_amounts(cost.costs.get(measure, NOTHING) for cost in costs) for measure in MEASURES)
        return tuple(each.at(self.sizes) or 0 for each in sums)

    def loop(self, node: Node, body: Scope, times: Amount | None, reason: str) -> list[NodeCost]:
        steps, why = self.steps(node, body)
        inner: Amount | None = None
        if times is not None and steps is not None:
            try:
                inner = times.times(steps)
            except TooComplexError as error:
                why = str(error)
        place = len(self.costs.sequential)
        costs = self.scope(body, inner, reason if times is None else why)
        self.costs.sequential.insert(place, Steps(node, steps, why, tuple(costs)))
        return costs

    def steps(self, node: Node, body: Scope) -> tuple[Amount | None, str]:
        """Return how often a Loop or Scan runs its body, or why that is not known."""
        try:
            steps = self.scanned(node) if node.is_op("Scan") else self.iterations(node, body)
        except FAILURES as error:
            return None, str(error)
        if steps is None:
            return None, f"the number of iterations of {node.op_type} '{node.path}' depends on data"
        amount = Amount.of(steps)
        why = self.unknown_symbols(amount)
        return (None, f"the number of iterations of {node.op_type} '{node.path}': {why}") if why else (amount, "")

    def iterations(self, node: Node, body: Scope) -> Expr | None:
        limit, start = (None if (value := node.input(index)) is None else self.shapes[value] for index in (0, 1))
        return count_iterations(limit, start, body)

    def scanned(self, node: Node) -> Expr | None:
        count = node.attr("num_scan_inputs", 0) or 0
        if node.scope.opset() < 9 or not 0 < count <= len(node.inputs):
            return None
        axes = node.attr("scan_input_axes", ()) or (0,)
        return NodeSizes(node, self.shapes).dims(len(node.inputs) - count)[axes[0]]

    def recurrent(self, node: Node, times: Amount | None, reason: str) -> list[NodeCost]:
        cost = self.single(node, times, reason)
        dims = self.shapes.dims(node.input(0)) or ()
        axis = 1 if node.attr("layout", 0) else 0
        steps = Amount.of(dims[axis]) if len(dims) == 3 else None
        why = "the rank of its input is not known" if steps is None else self.unknown_symbols(steps)
        self.costs.sequential.append(Steps(node, None if why else steps, why, (cost,)))
        return [cost]


def _unknown_cost(node: Node, reason: str) -> NodeCost:
    return NodeCost(node, {}, dict.fromkeys(MEASURES, reason))


def _count_macs(sizes: NodeSizes) -> Expr:
    operator = sizes.node.operator
    if operator in MACS:
        return MACS[operator](sizes)
    return const(0) if operator in OPERATIONS or operator in UNCOUNTED else _without_rule(operator)


def _count_operations(sizes: NodeSizes) -> Expr:
    operator = sizes.node.operator
    if operator in UNCOUNTED:
        raise UnknownError(UNCOUNTED[operator])
    return OPERATIONS[operator](sizes) if operator in OPERATIONS else _without_rule(operator)


def _without_rule(operator: str) -> Expr:
    raise UnknownError(f"there is no rule for {operator}")
