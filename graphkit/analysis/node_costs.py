"""The costs of every node that runs: branches, bodies as often as they run, functions at each call.

Of an If, the branch counts that costs more at the sizes that are asked about; `branches` has both. Where a body runs an
unknown number of times, the costs of its nodes are unknown, and so are those of a node whose sizes are. Costs are
amounts: sums of expressions in the input dims that may have any number of terms, and numbers of any size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from graphkit.dtypes import BITS, dtype_name
from graphkit.errors import count_things
from graphkit.graph.dataflow import in_order
from graphkit.graph.operator_traits import RECURRENT
from graphkit.graph.view import Node, Scope, Value, all_nodes, find_nodes
from graphkit.model import Model
from graphkit.ops.control_and_sequences import count_iterations
from graphkit.ops.costs import MACS, OPERATIONS, READ_IN_PART, SHAPE_ONLY, UNCOUNTED, VIEWS, Rule
from graphkit.ops.rule_context import NodeFacts
from graphkit.ops.tensor import Dims, TensorSequence, dims_product, element_number
from graphkit.progress import check_time
from graphkit.render.document_blocks import PEAK, Formula, Shortened, size_text
from graphkit.shapes import Expr, Shapes, UnknownError, ceil_div, const
from graphkit.symbolic.expr import Monomial, TooComplexError, sum_text

Measure = Literal["macs", "operations", "bytes_moved"]
MEASURES: tuple[Measure, ...] = ("macs", "operations", "bytes_moved")
NOTHING_UNKNOWN: Mapping[Measure, str] = {}
MAX_TERMS = 1000  # of a product, and of a text
SHOWN = 110  # characters of an expression, in a text
LONG = 2000  # characters of an expression that the shares of a whole do not repeat
MAX_CALLS = 30  # functions in functions, as for shapes
MAX_WORK = 200_000  # nodes of bodies and functions, as often as they are called
FAILURES = (UnknownError, TooComplexError, ArithmeticError, LookupError, ValueError)


class Quantity(Struct, frozen=True):
    """A number that depends on the input dims."""

    value: int | None  # at the sizes, without the nodes that are not counted; None if an input dim has no size
    expression: str  # in the input dims, the largest terms first; "" if it has too many terms to be read
    uncounted: int = 0  # how many nodes are not in it

    def cell(self, unit: Literal["", "B"] = "", model: int | None = None) -> Formula:
        """Return it in short, `>=` before one without the nodes that are not counted, with its expression."""
        text = f"{'>= ' if self.uncounted else ''}{'?' if self.value is None else size_text(self.value, unit)}"
        return Formula(text, self.value, self.expression, unit, model=model)

    def as_peak(self, *runs: str) -> Quantity:
        """Return peak memory by runs of a page, of which it finds the largest peak at other sizes too.

        A run is the number of a model there, and after a point that of a run of it; "0" for the first model.
        """
        return replace(self, expression=f"{PEAK}{','.join(runs or ('0',))}")

    def share_of(self, whole: Quantity, times: int) -> Formula | str:
        """Return the share of so many equal parts in a whole, "" in nothing."""
        if not whole.value:
            return ""
        value = times * (self.value or 0)
        text = f"{100 * value / whole.value:.1f} %"
        if not self.expression or not 0 < len(whole.expression) <= LONG:
            return Formula(text, value, "", "%")
        return Formula(text, value, f"{times}*({self.expression})", "%", whole.expression)

    @property
    def short(self) -> str:
        """The first terms of the expression, "" for a number."""
        if self.expression == str(self.value):
            return ""
        starts, depth, text = [0], 0, ""  # of the terms, each but the first with its sign
        for place, character in enumerate(self.expression):
            depth += (character == "(") - (character == ")")
            if not depth and self.expression[place : place + 3] in (" + ", " - "):
                starts.append(place)
        terms = [self.expression[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]
        for number, term in enumerate(terms):
            if text and len(text) + len(term) > SHOWN:
                return Shortened.of(f"{text} and {count_things(len(terms) - number, 'more term(s)')}", self.expression)
            text += term
        return text


class Amount(Struct, frozen=True):
    """A polynomial with integer coefficients over the atoms of expressions."""

    terms: Mapping[Monomial, int]  # the coefficient of each monomial, none of them 0

    @classmethod
    def of(cls, value: Expr | int) -> Amount:
        if isinstance(value, Expr):
            return cls(dict(value.terms))
        return cls({(): value} if value else {})

    def times(self, other: Amount) -> Amount:
        """Return the product; TooComplexError if it has too many terms."""
        if len(self.terms) * len(other.terms) > MAX_TERMS:
            raise TooComplexError("a product of too many terms")
        products: Counter[Monomial] = Counter()
        for left, factor in self.terms.items():
            for right, other_factor in other.terms.items():
                products[tuple(sorted(left + right, key=lambda atom: atom.key))] += factor * other_factor
        return Amount({monomial: factor for monomial, factor in products.items() if factor})

    @property
    def symbols(self) -> frozenset[str]:
        return frozenset(name for monomial in self.terms for name in Expr(((monomial, 1),)).symbols)

    def at(self, sizes: Mapping[str, int]) -> int | None:
        """Return its value, None if a symbol has no size or a divisor is 0."""
        try:
            return sum(
                factor * math.prod([atom.evaluate(sizes) for atom in monomial])
                for monomial, factor in self.terms.items()
            )
        except (KeyError, ZeroDivisionError):
            return None

    def text(self, sizes: Mapping[str, int]) -> str:
        """Return the expression, the largest terms at some sizes first; "" if it has too many terms to be read."""
        if len(self.terms) > MAX_TERMS:
            return ""

        def text_of(atom: object) -> str:
            text = repr(atom)
            return text if text.isidentifier() else f"({text})"

        def factors(monomial: Monomial) -> tuple[object, ...]:
            counts = Counter(monomial).items()
            return tuple(atom if count == 1 else _Power(f"{text_of(atom)}**{count}") for atom, count in counts)

        def order(term: tuple[Monomial, int]) -> tuple[int, int, str]:
            size = Amount(dict([term])).at(sizes)
            return -len(term[0]), -(size or 0), repr(term[0])

        return sum_text([(factors(monomial), factor) for monomial, factor in sorted(self.terms.items(), key=order)])


NOTHING, ONCE = Amount({}), Amount.of(1)
NO_MACS: Mapping[Measure, Amount] = {"macs": NOTHING}


def sum_amounts(amounts: Iterable[Amount]) -> Amount:
    """Return a sum."""
    terms, listed = Counter[Monomial](), list(amounts)
    every = dict(zip(map(id, listed), listed, strict=True))  # nodes that cost the same have one
    for same, count in Counter(map(id, listed)).items():
        for monomial, factor in every[same].terms.items():
            terms[monomial] += factor * count
    return Amount({monomial: factor for monomial, factor in terms.items() if factor})


class _Power(str):
    """Some equal atoms of a product, as `sequence_length**2`."""

    __slots__ = ()
    __repr__ = str.__str__


def bytes_of(value: Value, shapes: Shapes) -> Expr:
    """Return the bytes of a tensor, packed as ONNX stores it; an UnknownError says that dtype or rank is not known."""
    tensor = shapes[value]
    if isinstance(tensor, TensorSequence):
        raise UnknownError(f"'{value.name}' is a sequence")
    if tensor.dims is None:
        raise UnknownError(shapes.reason(value) or f"the rank of '{value.name}' is not known")
    bits = BITS.get(tensor.dtype)
    if bits is None:
        dtype = dtype_name(tensor.dtype) if tensor.dtype else "unknown"
        raise UnknownError(f"the dtype of '{value.name}' is {dtype}, which has no fixed size")
    return _count_bytes(tensor.dims, bits)


@lru_cache(maxsize=8192)  # layers repeat
def _count_bytes(dims: Dims, bits: int) -> Expr:
    return ceil_div(dims_product(dims) * bits, 8) if bits % 8 else dims_product(dims) * (bits // 8)


def _bytes_moved(node: Node, shapes: Shapes) -> Expr:
    """Return the bytes that a node reads and writes: each input read once, each output written once.

    Nothing counts for a node that gives its input another shape, which no runtime copies; an operator that picks
    elements reads as many as it gives. Weights count as they are stored: int4 as half a byte.
    """
    if node.operator in VIEWS or node.is_op("Constant"):
        return const(0)
    read = list[Value]()
    for index, value in enumerate(node.inputs):
        if index == 0 and node.operator in READ_IN_PART:
            read += node.results
        elif value is not None and not (index == 0 and node.operator in SHAPE_ONLY):
            read.append(value)
    return sum((bytes_of(value, shapes) for value in (*read, *node.results)), start=const(0))


def node_dims(node: Node, shapes: Shapes) -> NodeFacts:
    """Return a node with the dims of its inputs and outputs."""
    inputs, outputs = ([None if each is None else shapes[each] for each in x] for x in (node.inputs, node.outputs))
    return NodeFacts(node, inputs, outputs)


def count_macs(node: Node, shapes: Shapes) -> Expr | None:
    """Return how many multiply-accumulates a node does: 0 where it is none of these operators, None where unknown."""
    rule = MACS.get(node.operator)
    try:
        return const(0) if rule is None else rule(node_dims(node, shapes))
    except (UnknownError, TooComplexError, ValueError):  # outgrown bounds; a rank that no model has that runs
        return None


class NodeCost(NamedTuple):
    """The costs of a node, all of its runs together."""

    node: Node
    costs: Mapping[Measure, Amount]  # what is known, by measure
    unknown: Mapping[Measure, str]  # why the others are not, by measure


class Branch(NamedTuple):
    """A branch of an If, and its costs; `reason` says why it cannot run, "" if it can."""

    node: Node
    name: str
    costs: tuple[NodeCost, ...]
    is_counted: bool
    reason: str


class Steps(NamedTuple):
    """Work that runs one step after the other."""

    node: Node
    steps: Amount | None  # how many steps, None where that is not known
    reason: str  # why it is not
    costs: tuple[NodeCost, ...]  # of all steps


class NodeCosts(Struct):
    """The costs of the nodes of a model, with its branches and its sequential work."""

    nodes: list[NodeCost] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    sequential: list[Steps] = field(default_factory=list)


def node_costs(shapes: Shapes, sizes: Mapping[str, int], measures: Sequence[Measure] = MEASURES) -> NodeCosts:
    """Return the costs of every node of a model that runs; the dearer branch of an If is that at the sizes of symbols.

    All measures are counted where branches are compared.
    """
    compares = len(measures) < len(MEASURES) and any(node.bodies for node in all_nodes(shapes.model.scopes))
    walk = _Walk(shapes, sizes, MEASURES if compares else measures)
    walk.costs.nodes = walk.scope(shapes.model.graph, ONCE, "")
    return walk.costs


def function_scopes(model: Model) -> Mapping[tuple[str, str, str], Scope]:
    """Return the scopes of a model's functions, by domain, name and overload."""
    functions = zip(model.proto.functions, model.scopes[1:], strict=True)
    return {(function.domain, function.name, function.overload): scope for function, scope in functions}


class Choice(NamedTuple):
    """The branch of an If that runs; `is_certain` if its condition is constant, else the sizes say so."""

    name: str
    is_certain: bool


def chosen_branches(shapes: Shapes, sizes: Mapping[str, int]) -> Mapping[Node, Choice]:
    """Return which branch runs of each If whose condition is constant, and of each merged decoder.

    At sizes with a past, a merged decoder runs the branch that reads it.
    """
    chosen = {}
    for node in find_nodes(shapes.model.scopes, "If"):
        condition = shapes[node.input(0)]
        data = condition.data if condition.may_have_data else None
        value = element_number(data.ravel()[0]) if data is not None and data.size == 1 else None
        if value is not None:
            chosen[node] = Choice("then_branch" if value else "else_branch", is_certain=True)
    roles = shapes.model.roles
    pasts = [shapes.dims(past) for past, entry in roles.pasts.items() if not roles.is_cross(entry)]
    has_past = any(dims is not None and all(Amount.of(dim).at(sizes) != 0 for dim in dims) for dims in pasts)
    for decoder in roles.merged:
        name = decoder.cache_branch if has_past else decoder.first_branch
        chosen.setdefault(decoder.node, Choice(name, is_certain=False))
    return chosen


class _Walk:
    """A walk over the scopes, each as often as it is called; `times` is None, with a reason, where that is unknown."""

    def __init__(self, shapes: Shapes, sizes: Mapping[str, int], measures: Sequence[Measure]) -> None:
        self.shapes, self.sizes, self.measures = shapes, sizes, measures
        self.functions, self.chosen = function_scopes(shapes.model), chosen_branches(shapes, sizes)
        self.running: list[Scope] = []
        self.work = 0
        self.amounts: dict[Expr, tuple[Amount, str]] = {}
        self.known: dict[object, Mapping[Measure, Amount]] = {}  # layers repeat
        self.costs = NodeCosts()

    def scope(self, scope: Scope, times: Amount | None, reason: str) -> list[NodeCost]:
        check_time()
        if scope.parent is not None or self.running:
            self.work += len(scope.nodes)
        nodes = in_order(scope) if scope.problems else scope.nodes
        return [cost for node in nodes for cost in self.node(node, times, reason)]

    def node(self, node: Node, times: Amount | None, reason: str) -> Iterable[NodeCost]:
        function = self.functions.get((node.domain, node.op_type, node.proto.overload)) if self.functions else None
        if self.work > MAX_WORK:
            return [_unknown_cost(node, "the bodies and functions around it are too many nodes")]
        if function is not None:
            return self.call(node, function, times, reason)
        if node.bodies and node.is_op("If"):
            return self.branches(node, times, reason)
        if "body" in node.bodies and node.is_op("Loop", "Scan"):
            return self.loop(node, node.bodies["body"], times, reason)
        if node.operator in RECURRENT:
            return self.recurrent(node, times, reason)
        return [self.single(node, times, reason)]

    def single(self, node: Node, times: Amount | None, reason: str) -> NodeCost:
        if node.bodies:
            return _unknown_cost(node, f"how often {node.operator} runs what is inside is not known")
        if times is None:
            return _unknown_cost(node, reason)
        if self.measures == ("macs",) and node.operator in OPERATIONS and node.operator not in MACS:
            return NodeCost(node, NO_MACS, NOTHING_UNKNOWN)
        like = self.likeness(node)
        if times is ONCE and (known := self.known.get(like)) is not None:
            return NodeCost(node, known, NOTHING_UNKNOWN)
        sizes = node_dims(node, self.shapes)
        rules: Mapping[Measure, Callable[[], Expr]] = {
            "macs": lambda: _count_by_rule(sizes, MACS),
            "operations": lambda: _count_by_rule(sizes, OPERATIONS),
            "bytes_moved": lambda: _bytes_moved(node, self.shapes),
        }
        costs: dict[Measure, Amount] = {}
        unknown: dict[Measure, str] = {}
        for measure in self.measures:
            try:
                cost, why = self.amount(rules[measure]())
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
        """Return what the costs of a node depend on: its operator and attributes, and the tensors that it works on."""
        known: Mapping[Any, object] = self.shapes.table
        tensors = map(known.get, (*node.inputs, *node.outputs))
        return node.signature, len(node.inputs), len(node.operands), *map(id, tensors)

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
            if node.is_op("Scan"):
                steps = self.scan_length(node)
            else:
                limit, start = (None if (each := node.input(at)) is None else self.shapes[each] for at in (0, 1))
                steps = count_iterations(limit, start, body)
        except FAILURES as error:
            return None, str(error)
        if steps is None:
            return None, f"the number of iterations of {node.op_type} '{node.path}' depends on data"
        amount = Amount.of(steps)
        why = self.unknown_symbols(amount)
        return (None, f"the number of iterations of {node.op_type} '{node.path}': {why}") if why else (amount, "")

    def scan_length(self, node: Node) -> Expr | None:
        count = node.attr("num_scan_inputs", 0) or 0
        if node.scope.opset() < 9 or not 0 < count <= len(node.inputs):
            return None
        axes = node.attr("scan_input_axes", ()) or (0,)
        return node_dims(node, self.shapes).dims(len(node.inputs) - count)[axes[0]]

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


def _count_by_rule(sizes: NodeFacts, rules: Mapping[str, Rule]) -> Expr:
    operator = sizes.node.operator
    if operator in UNCOUNTED and rules is OPERATIONS:
        raise UnknownError(UNCOUNTED[operator])
    if operator in rules:
        return rules[operator](sizes)
    if rules is OPERATIONS or (operator not in OPERATIONS and operator not in UNCOUNTED):
        raise UnknownError(f"there is no rule for {operator}")
    return const(0)
