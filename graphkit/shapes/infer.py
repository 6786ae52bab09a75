"""Infer the shape of every tensor of a model, in one pass over its nodes.

Graph inputs have the dims that they declare; all else follows from the operators, never from declared types of values
or outputs: exporters' declarations are often wrong (a first-step decoder may declare `past_sequence_length + 1`).
What no rule knows is unknown, whatever it is declared as. A body is inferred where its node stands, a function at each
call. What must be equal for the model to run is noted, and simplifies the result at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import onnx
from onnx import AttributeProto

from graphkit.dtypes import FLOATS, INTEGERS
from graphkit.errors import ModelError
from graphkit.graph.order import in_order
from graphkit.graph.view import Node, Scope, Value
from graphkit.model import Model
from graphkit.shapes.context import Finding, InferenceContext
from graphkit.shapes.dim_spec import AS_DECLARED, Bounds, DimSpec
from graphkit.shapes.equalities import replacement, rewriter_of, simplified
from graphkit.shapes.expr import Expr, TooComplexError, const, symbol
from graphkit.shapes.fallback import infer_node
from graphkit.shapes.inputs import Inputs
from graphkit.shapes.learned_ranges import learned_ranges, merged
from graphkit.shapes.node_view import UnknownError
from graphkit.shapes.registration import forget_on_registration
from graphkit.shapes.relations import Requirement
from graphkit.shapes.results import Shapes
from graphkit.shapes.rules import RULES
from graphkit.shapes.sequence import agreed
from graphkit.shapes.tensor import MAX_ELEMENTS, Array, Tensor, array_of, is_known, unknown

__all__ = ["infer", "infer_from"]

MAX_PASSES = 4
MAX_CALLS = 30  # functions in functions
MAX_REASON = 300  # characters
MAX_WORK = 200_000  # nodes of bodies and functions inferred, as often as they are


def infer(
    model: Model,
    spec: DimSpec = AS_DECLARED,
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    ranges: Mapping[str, Bounds] | None = None,
    values: Mapping[str, object] | None = None,
) -> Shapes:
    """Return the shape of every tensor.

    Args:
        model: The model.
        spec: What is known of the input dims; `dims`, `inputs` and `ranges` add to it.
        dims: Numbers for symbols, such as `{"batch_size": 1}`.
        inputs: Shapes of graph inputs, such as `{"pixel_values": (1, 3, 800, 800)}`; symbols in them get those numbers.
        ranges: Bounds of symbols, such as `{"sequence_length": (1, 512)}`; None for an open end.
        values: Elements of graph inputs, such as `{"use_cache_branch": True}`.

    Raises:
        UsageError: An input or a symbol does not exist, or the numbers contradict each other.
    """
    spec = spec | DimSpec.of(dims, inputs, ranges)
    if spec == AS_DECLARED and not values:
        return _as_declared(model)
    return infer_from(model, Inputs(model, spec, values))


@lru_cache(maxsize=1)  # one model is asked about several times in a row
def _as_declared(model: Model) -> Shapes:
    return infer_from(model, Inputs(model))


forget_on_registration(_as_declared.cache_clear)


def infer_from(model: Model, given: Inputs) -> Shapes:
    """Return the shape of every tensor, from what is known of the inputs."""
    equal: list[tuple[Expr, Expr]] = []
    facts = _Facts([], [])
    first: _Engine | None = None
    for _ in range(MAX_PASSES):
        engine = _Engine(model, given, equal)
        engine.run_main()
        first = first or engine
        if engine.is_complete() or not engine.learn(equal):
            break
        facts.add(engine)
    facts.add(engine)
    return engine.finish(facts, first or engine)


@dataclass(frozen=True)
class _Facts:
    """What all passes found necessary; a later pass, which builds on it, does not see it again."""

    equalities: list[Requirement]
    inequalities: list[Requirement]

    def add(self, engine: _Engine) -> None:
        found = (self.equalities, engine.equalities), (self.inequalities, engine.inequalities)
        for known, more in found:
            said = {(fact.scope, str(fact)) for fact in known}
            known.extend(fact for fact in more if (fact.scope, str(fact)) not in said)


class _Engine:
    """The table of what is known, filled node by node."""

    def __init__(self, model: Model, given: Inputs, equal: Sequence[tuple[Expr, Expr]]) -> None:
        self.model, self.given = model, given
        self.rewriter = rewriter_of(equal)
        self.table: dict[Value, Tensor] = {}
        self.reasons: dict[str, str] = {}
        self.findings: list[Finding] = []
        self.equalities: list[Requirement] = []
        self.broadcasts: list[Requirement] = []
        self.inequalities: list[Requirement] = []
        self.bound: Mapping[str, AttributeProto] = {}
        self.work = 0
        self.running: list[Scope] = []  # the functions around, outermost first
        self.body: Scope | None = None  # the innermost body around that may not run
        self.certain: set[Scope] = {model.graph}  # what runs whenever the model does
        self.seen_functions: dict[Value, Tensor] = {}
        functions = zip(model.proto.functions, model.scopes[1:], strict=True)
        self.functions = {(f.domain, f.name, f.overload): (f, scope) for f, scope in functions}

    # What rules ask of it

    @property
    def file(self) -> str | None:
        return str(self.model.path) if self.model.path else None

    def new_symbol(self, label: str, reason: str, low: float) -> Expr:
        name = f"?{len(self.reasons)}.{label}"
        self.reasons[name] = reason
        return symbol(name, low)

    def note_finding(self, node: Node, message: str) -> None:
        self.findings.append(Finding(node.path, message, self.body))

    def note_equal(self, node: Node, left: Expr, right: Expr) -> None:
        self.equalities.append(Requirement(left, "==", right, node))

    def note_broadcast(self, node: Node, left: Expr, right: Expr) -> None:
        self.broadcasts.append(Requirement(left, "==", right, node))

    def note_least(self, node: Node, expr: Expr, least: int) -> None:
        self.inequalities.append(Requirement(expr, ">=", const(least), node))

    def mark(self) -> tuple[int, ...]:
        return len(self.findings), len(self.equalities), len(self.broadcasts), len(self.inequalities)

    def rewind(self, mark: tuple[int, ...]) -> None:
        every = (self.findings, self.equalities, self.broadcasts, self.inequalities)
        for notes, length in zip(every, mark, strict=True):
            del notes[length:]  # type: ignore[attr-defined]

    def load(self, tensor: onnx.TensorProto) -> Tensor:
        count = math.prod(tensor.dims)
        is_followed = count <= MAX_ELEMENTS and (tensor.data_type in INTEGERS or tensor.data_type in FLOATS)
        loader = self._loader(tensor) if is_followed else None
        many = f"it has more than {MAX_ELEMENTS} elements"
        reason = "" if is_followed else many if count > MAX_ELEMENTS else "elements of its dtype are not followed"
        return Tensor(tensor.data_type, tuple(tensor.dims), None, reason, loader)

    def _loader(self, tensor: onnx.TensorProto) -> Callable[[], Array | None]:
        def load() -> Array | None:
            try:
                array = self.model.array(tensor)
            except ModelError:  # its data file is missing
                return None
            to = float if tensor.data_type in FLOATS else int
            return array_of([to(element) for element in array.ravel().tolist()], array.shape)

        return load

    def run_body(self, body: Scope, inputs: Sequence[Tensor], *, is_certain: bool = True) -> list[Tensor]:
        for index, value in enumerate(body.inputs):
            self.table[value] = inputs[index] if index < len(inputs) else unknown("the body is given no such input")
        around = self.body
        if not is_certain:
            self.body = body
        elif around is None and not self.running:
            self.certain.add(body)
        try:
            self.run_scope(body)
        finally:
            self.body = around
        return [self.known(value) for value in body.outputs]

    def contradiction(self, body: Scope) -> str:
        return next((finding.message for finding in self.findings if finding.body is body), "")

    # Walking

    def run_main(self) -> None:
        graph = self.model.graph
        for value in graph.inputs:
            constant = value.tensor if self.model.proto.ir_version < 4 else None
            self.table[value] = self.given.tensor(value, self.new_symbol) if constant is None else self.load(constant)
        self.run_scope(graph)

    def run_scope(self, scope: Scope) -> None:
        for value in scope.initializers:
            if value.kind != "initializer":
                continue
            if value.tensor is not None:
                self.table[value] = self.load(value.tensor)
            elif value.sparse is not None:
                self.table[value] = Tensor(value.sparse.values.data_type, value.sparse.dims, None, "it is sparse")
        for node in in_order(scope) if scope.problems else scope.nodes:
            self.run_node(node)

    def known(self, value: Value) -> Tensor:
        found = self.table.get(value)
        return found if found is not None else unknown(f"'{value.name}' is not defined before it is used")

    def run_node(self, node: Node) -> None:
        inputs = [None if value is None else self.known(value) for value in node.inputs]
        ctx = InferenceContext(node, inputs, self._attributes(node), self)
        try:
            results = self._results(ctx)
        except UnknownError as reason:
            results = [unknown(_traced(node, str(reason))) for _ in node.outputs]
        except (TooComplexError, ArithmeticError, LookupError, ValueError) as error:
            results = [unknown(f"{node.label} does not fit {node.operator}: {error}") for _ in node.outputs]
        for index, value in enumerate(node.outputs):
            if value is not None:
                found = results[index] if index < len(results) else unknown(f"{node.label} has no such output")
                self.table[value] = found if found.dims is None else self.rewriter.tensor(found)

    def _attributes(self, node: Node) -> Mapping[str, AttributeProto]:
        if not self.running:
            return node.attributes
        given = {name: self.bound.get(one.ref_attr_name, one) for name, one in node.attributes.items()}
        return {name: attribute for name, attribute in given.items() if not attribute.ref_attr_name}

    def _results(self, ctx: InferenceContext) -> list[Tensor]:
        node = ctx.node
        self.work += node.scope is not self.model.graph
        if self.work > MAX_WORK:
            raise UnknownError("the bodies and functions around it take too long")
        function = self.functions.get((node.domain, node.op_type, node.proto.overload)) if self.functions else None
        if function is not None:
            return self._call(ctx, *function)
        rule = RULES.get(node.operator)
        if rule is None:
            return infer_node(ctx)
        results = rule(ctx)
        return results if isinstance(results, list) else [results]

    def _call(self, ctx: InferenceContext, function: onnx.FunctionProto, scope: Scope) -> list[Tensor]:
        if scope in self.running:
            raise UnknownError("the function calls itself, at once or through others")
        if len(self.running) >= MAX_CALLS:
            raise UnknownError("functions call each other too deep")
        defaults = {attribute.name: attribute for attribute in function.attribute_proto}
        outer, self.bound = self.bound, {**defaults, **ctx.attributes}
        self.running.append(scope)
        try:
            missing = unknown("it is left out at this call")
            given = [missing if tensor is None else tensor for tensor in ctx.inputs]
            results = self.run_body(scope, given + [missing] * (len(scope.inputs) - len(given)))
        finally:
            self.running.pop()
            self.bound = outer
        self._remember(scope)
        return results

    def _remember(self, scope: Scope) -> None:
        """Keep what all calls of a function agree on."""
        for inner in scope.walk():
            for value in inner.values.values():
                if (now := self.table.get(value)) is not None:
                    before = self.seen_functions.get(value)
                    self.seen_functions[value] = now if before is None else agreed(before, now)

    def is_complete(self) -> bool:
        """Whether every dim is known, and as plain as can be."""
        return not self.reasons and not self.equalities

    def learn(self, equal: list[tuple[Expr, Expr]]) -> bool:
        """Take what the main graph's nodes need for the next pass, and return whether that is anything new."""
        main = self.model.graph
        equalities = [
            one for one in self.equalities if one.scope is main and is_known(one.left) and is_known(one.right)
        ]
        pairs = dict.fromkeys((one.left, one.right) for one in equalities)
        fresh = [pair for pair in pairs if pair not in equal and replacement(*pair) is not None]
        learned = learned_ranges([*(one for one in self.inequalities if one.scope is main), *equalities])
        equal += fresh
        ranges = merged({}, learned, self.given.symbols)
        if ranges is None:
            return bool(fresh)
        before = self.given.symbols
        self.given.narrowed(ranges)
        now = {name: expr for name, expr in self.given.symbols.items() if expr != before[name]}
        equal[:] = [(left.substitute(now), right.substitute(now)) for left, right in equal]
        return True

    def finish(self, facts: _Facts, first: _Engine) -> Shapes:
        self.table.update(self.seen_functions)
        first.table.update(first.seen_functions)
        return Shapes(
            self.model,
            simplified(self.table, self.equalities),
            self.reasons,
            tuple(dict.fromkeys(self.findings)),
            tuple(facts.equalities),
            tuple(facts.inequalities),
            first.table,
            frozenset(self.certain),
            tuple(first.broadcasts),
        )


def _traced(node: Node, reason: str) -> str:
    """Return a reason with the node that met it, unless the nodes that it names already are many: chains are long."""
    return reason if len(reason) > MAX_REASON else f"{node.label}: {reason}"
