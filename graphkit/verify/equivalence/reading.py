"""Read a model into terms: each node applied to the terms of its inputs, brought to normal form by the axioms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from onnx import NodeProto, helper

from graphkit.dtypes import FLOATS, INTEGERS
from graphkit.errors import ModelError
from graphkit.graph.dataflow import in_order
from graphkit.graph.operator_traits import RANDOM, value_inputs
from graphkit.graph.view import Node, Scope, Value
from graphkit.model import Model
from graphkit.shapes import Expr, Shapes, is_known, symbol
from graphkit.shapes.learned_facts import Rewriter, rewriter_of
from graphkit.shapes.symbols import Symbol
from graphkit.shapes.tensor import Dims, Tensor
from graphkit.time_limit import check_time
from graphkit.verify.equivalence.application import Application, Tools, attributes_of, version_of
from graphkit.verify.equivalence.axioms import Axiom
from graphkit.verify.equivalence.free_elements import free_elements
from graphkit.verify.equivalence.looseness import Looseness
from graphkit.verify.equivalence.required_products import required_equalities
from graphkit.verify.equivalence.terms import Key, Term
from graphkit.verify.equivalence.versions import spelled

__all__ = ["Context", "Facts", "Reading", "Run", "read"]

Context = tuple[tuple[Term, str], ...]  # the conditions under which a node runs, outermost first
NO_AXIOMS: frozenset[str] = frozenset()
OWN_UNKNOWN = "?rewritten:"  # before what is unknown in the rewritten model, and not known to be that of the original
ONE_SPELLING = "one spelling for all versions"


@dataclass(frozen=True)
class Facts:
    """An output of a node: its term, its shape, and its elements where they are known.

    Attributes:
        elements: Those of a small integer tensor, with its sizes.
    """

    dtype: int
    dims: Dims | None
    elements: tuple[tuple[int, ...], tuple[Expr, ...]] | None = None


@dataclass(frozen=True, eq=False)
class Normal:
    """The normal form of an output of a node, to be taken again where both models have that.

    Attributes:
        facts: What is known of the output.
        sources: The loose terms of the node's inputs.
        term: The normal form.
        loose: The loose term, None where it is the same.
        axioms: How often each axiom was used.
    """

    facts: Facts
    sources: tuple[Term | None, ...]
    term: Term
    loose: Term | None
    axioms: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Run:
    """A node that runs under conditions.

    Attributes:
        raw: Its term before any axiom.
        normal: Its term in normal form.
    """

    context: Context
    raw: Term
    application: Application
    normal: Term

    @property
    def core(self) -> Term:
        """The normal form without the Reshape around it."""
        inner = self.normal.args[0] if self.normal.op == "Reshape" else None
        return self.normal if inner is None else inner


@dataclass
class Reading:
    """A model as terms.

    Attributes:
        outputs: The terms of the graph's outputs, by name.
        runs: Each node that runs.
        axioms: The names of the axioms that each value's normal form took.
        loose: The terms of values up to the sign of zeros, or up to rounding, where these are other terms.
        unread: Branches that never run.
        nodes: Those that run, of all scopes.
        attributes: Their attributes, but for those of constants and of an If.
        obstacles: For the terms of a node that may not read a loose one, that one, and why not.
    """

    model: Model
    outputs: dict[str, Term] = field(default_factory=dict)
    values: dict[Value, Term] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    axioms: dict[Value, frozenset[str]] = field(default_factory=dict)
    loose: dict[Value, Term] = field(default_factory=dict)
    unread: list[Scope] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    attributes: dict[Node, Key] = field(default_factory=dict)
    obstacles: dict[Term, tuple[Term, str]] = field(default_factory=dict)


def read(
    model: Model,
    shapes: Shapes,
    tools: Tools,
    original: _Reader | None,
    names: Mapping[str, str],
    axioms: Sequence[Axiom],
    looseness: Looseness,
) -> _Reader:
    """Read the main graph; `original` is the reading of the original where this is the rewritten model."""
    tools.near.is_original = original is None
    reader = _Reader(model, shapes, tools, original=original, names=names, axioms=axioms, looseness=looseness)
    reader.read_graph()
    return reader


class _Reader:
    def __init__(
        self,
        model: Model,
        shapes: Shapes,
        tools: Tools,
        original: _Reader | None,
        names: Mapping[str, str],
        axioms: Sequence[Axiom],
        looseness: Looseness,
    ) -> None:
        self.model, self.shapes, self.tools, self.original, self.names = model, shapes, tools, original, names
        self.result = Reading(model)
        self.side = 0 if original is None else 1
        self.facts: dict[Term, Facts] = {}
        self.symbols: dict[str, Expr] = {}
        self.bodied = Counter[Term]()  # how many nodes with bodies have the same inputs
        self.free_elements = free_elements(shapes)
        self.rewriter: Rewriter = rewriter_of(required_equalities(shapes)) if original is None else original.rewriter
        self.normals: dict[Term, Normal] = {} if original is None else original.normals
        self.by_operator: dict[str, list[Axiom]] = {}
        self.axioms, self.looseness = axioms, looseness
        self.loosening = frozenset().union(*(axiom.operators or () for axiom in looseness.axioms))

    # Facts

    def expr(self, expr: Expr) -> Expr:
        """Return an expression in the words of the original."""
        if expr.constant is not None:
            return expr
        if self.original is not None:
            for name in expr.symbols:
                if name[:1] == "?" and name not in self.symbols:
                    found = next(each for each in expr.walk_symbols() if each.name == name)
                    self.symbols[name] = symbol(f"{OWN_UNKNOWN}{name[1:]}", found.lower, found.upper)
        if self.symbols:
            expr = expr.substitute(self.symbols)
        return self.tools.required.expr(self.rewriter.expr(expr))

    def known(self, value: Value, raw: Term) -> Facts:
        """Return a value as it is read; unknown expressions are those of its term where it was read first."""
        tensor = self.shapes.first.get(value) or Tensor(0, None)
        data = tensor.data if tensor.dtype in INTEGERS and tensor.may_have_data else None
        listed = None if data is None else data.ravel().tolist()
        before = None if self.original is None else self.original.facts.get(raw)
        before = self.facts.get(raw) if before is None else before
        if before is not None:
            self.match(tensor.dims or (), before.dims or ())
            if listed is not None and before.elements is not None:
                self.match(listed, before.elements[1])
        dims = None if tensor.dims is None else tuple(self.expr(dim) for dim in tensor.dims)
        if dims is not None and before is not None and before.dims is not None and len(before.dims) == len(dims):
            dims = tuple(theirs if _is_own(mine) else mine for mine, theirs in zip(dims, before.dims, strict=True))
        elements = None
        if data is not None and listed is not None and all(isinstance(each, (int, Expr)) for each in listed):
            exprs = tuple(self.expr(Expr.of(each)) for each in listed)
            if all(is_known(each) for each in exprs):  # dims are small; an element of an input may overflow
                elements = data.shape, exprs
        found = self.facts[raw] = Facts(tensor.dtype, dims, elements)
        return found

    def match(self, mine: Sequence[object], theirs: Sequence[Expr]) -> None:
        """Take the original's expressions for those that are unknown here."""
        for each, other in zip(mine, theirs, strict=False):
            atom = each.atom if isinstance(each, Expr) else None
            if isinstance(atom, Symbol) and atom.name[:1] == "?" and atom.name not in self.symbols:
                self.symbols[atom.name] = other

    # Walking

    def read_graph(self) -> None:
        graph = self.model.graph
        for value in graph.inputs:
            if value.tensor is not None and self.model.proto.ir_version < 4:
                self.define(value, self.constant(value))
                continue
            name = self.names.get(value.name, value.name)
            raw = self.tools.terms.make("Input", (name,), (), 0, None)
            facts = self.known(value, raw)
            raw.dtype, raw.dims = facts.dtype, facts.dims
            self.define(value, self.as_elements(facts) or raw)
        self.read_scope(graph, ())
        for value in graph.outputs:
            self.result.outputs[value.name] = self.term(value)

    def constant(self, value: Value) -> Term:
        assert value.tensor is not None
        return self.tools.constants.of_tensor(self.model, value.tensor)

    def define(self, value: Value, term: Term, axioms: frozenset[str] = NO_AXIOMS) -> None:
        self.result.values[value] = term
        self.result.axioms[value] = axioms

    def term(self, value: Value) -> Term:
        if value not in self.result.values:
            raise ModelError(f"'{value.name}' is read, and nothing before that gives it", file=self.model.file)
        return self.result.values[value]

    def read_scope(self, scope: Scope, context: Context) -> None:
        for value in scope.initializers:
            if value.kind != "initializer":
                continue
            if value.tensor is not None:
                self.define(value, self.constant(value))
            elif value.sparse is not None:
                parts = (value.sparse.values, value.sparse.indices)
                terms = tuple(self.tools.constants.of_tensor(self.model, part) for part in parts)
                self.define(value, self.tools.terms.make("Sparse", tuple(value.sparse.dims), terms, 0, None))
        for node in in_order(scope) if scope.problems else scope.nodes:
            self.read_node(node, context)

    def read_node(self, node: Node, context: Context) -> None:
        check_time()
        self.result.nodes.append(node)
        if node.constant is not None and node.outputs[0] is not None:
            term = self.tools.constants.of_tensor(self.model, node.constant)
            self.define(node.outputs[0], term)
            return
        args = [None if value is None else self.term(value) for value in node.inputs]
        before = _union({self.result.axioms[value] for value in node.inputs if value is not None})
        if node.is_op("If") and args and args[0] is not None:
            self.read_if(node, args[0], context, before)
            return
        node = _as_cast(node, args)
        args = args[: len(node.inputs)]
        attributes = self.result.attributes[node] = attributes_of(
            node, partial(self.tools.constants.of_tensor, self.model)
        )
        if not node.domain:
            spelling = spelled(node, attributes, args, self.tools.constants)
            if spelling != (attributes, args):
                self.tools.terms.note(ONE_SPELLING)
                before |= {ONE_SPELLING}
            attributes, args = spelling
        attributes, operands = self.with_bodies(node, attributes, args, context)
        for index, value in enumerate(node.outputs):
            if value is None:
                continue
            self.read_output(node, (attributes, operands, args), index, value, context, before)

    def read_output(
        self,
        node: Node,
        applied: tuple[Key, list[Term | None], list[Term | None]],
        index: int,
        value: Value,
        context: Context,
        before: frozenset[str],
    ) -> None:
        terms = self.tools.terms
        attributes, operands, args = applied
        raw = terms.make(node.operator, (*attributes, index), operands, 0, None)
        facts = self.known(value, raw)
        raw.dtype = raw.dtype or facts.dtype
        raw.dims = raw.dims if raw.dims is not None else facts.dims
        raw.origins[self.side] = raw.origins[self.side] or f"{node.path} ({node.operator})"
        app = Application(
            node=node,
            attributes=attributes,
            args=args,
            index=index,
            dtype=facts.dtype,
            dims=facts.dims,
            tools=self.tools,
        )
        term = self.normal_form(app, raw, facts, value)
        self.result.runs.append(Run(context, raw, app, term))
        for each in (term, *term.args):
            if each is not None and each.op not in ("Input", "Constant", "Elements"):
                each.origins[self.side] = each.origins[self.side] or raw.origins[self.side]
        self.define(value, term, before if terms.recent.keys() <= before else before.union(terms.recent))

    def normal_form(self, app: Application, raw: Term, facts: Facts, value: Value) -> Term:
        """Return the normal form of an output, that of the same term with the same facts where one is known."""
        terms, loose = self.tools.terms, self.result.loose
        found = [loose.get(source) for source in app.node.inputs if source is not None] if loose else []
        sources = tuple(found) if any(found) else ()
        terms.recent.clear()
        known = self.normals.get(raw)
        if known is not None and known.facts == facts and known.sources == sources:
            for name, times in known.axioms.items():
                terms.note(name, times)
            if known.loose is not None:
                loose[value] = known.loose
            return known.term
        term = self.as_elements(facts)
        if term is not None:
            terms.note("elements")
        elif sources or (app.dtype in FLOATS and app.node.operator in self.loosening):
            term = self.with_loose(app, raw, value)
        else:
            term = self.normal(app, raw)
        self.normals[raw] = Normal(facts, sources, term, loose.get(value), dict(terms.recent))
        return term

    def with_loose(self, app: Application, raw: Term, value: Value) -> Term:
        """Return the exact term of an output, and remember its loose term where that is another one."""
        blind, loose = list(app.args), list(app.args)
        obstacle: tuple[Term, str] | None = None
        for index, source in enumerate(app.node.inputs):
            found = self.result.loose.get(source) if source is not None else None
            if found is None or app.node.bodies:
                continue
            if self.looseness.is_blind(app, index):
                blind[index] = loose[index] = found
            elif self.looseness.is_faithful(
                replace(app, args=[*app.args[:index], found, *app.args[index + 1 :]]), index
            ):
                loose[index] = found
            elif reason := self.looseness.obstacle(app, index):
                obstacle = found, f"{app.node.path} ({app.node.operator}) reads {reason}"
        term = self.applied(app, raw, blind)
        if term.is_constant:  # as a rewrite that folds it has it
            return term
        other = self.loosened(replace(app, args=loose))
        if other is None and loose != blind:
            other = self.applied(app, raw, loose)
        if other is not None and other is not term:
            self.result.loose[value] = other
        if obstacle is not None:
            self.result.obstacles |= dict.fromkeys((term, other or term), obstacle)
        return term

    def loosened(self, app: Application) -> Term | None:
        """Return the term that an axiom makes of a node on loose terms."""
        for axiom in self.looseness.axioms:
            if axiom.operators is None or app.node.operator in axiom.operators:
                found = axiom.function(app)
                if isinstance(found, Term):
                    self.tools.terms.note(axiom.name)
                    return found
        return None

    def applied(self, app: Application, raw: Term, args: Sequence[Term | None]) -> Term:
        """Return the normal form of a node with other arguments."""
        if list(args) == list(app.args):
            return self.normal(app, raw)
        made = self.tools.terms.make(app.node.operator, (*app.attributes, app.index), args, app.dtype, app.dims)
        return self.normal(replace(app, args=args), made)

    def normal(self, app: Application, raw: Term) -> Term:
        op = app.node.operator
        if self.counts_elements(app):
            raw.nearly = "its dims are elements that may be large, and what is computed from these may wrap around"
            return raw
        if op not in self.by_operator:
            self.by_operator[op] = [each for each in self.axioms if each.operators is None or op in each.operators]
        for axiom in self.by_operator[op]:
            found = axiom.function(app)
            if isinstance(found, Term):
                self.tools.terms.note(axiom.name)
                return found
            if found:
                raw.nearly = f"{axiom.name}: {found}"
        return raw

    def counts_elements(self, app: Application) -> bool:
        """Whether a node makes dims of unknown elements, whose expressions do not hold where integers wrap around."""
        value = app.node.outputs[app.index]
        if not self.free_elements or value is None or value not in self.shapes.first:
            return False
        symbols = {name for dim in self.shapes.first[value].dims or () for name in dim.symbols}
        return not self.free_elements.isdisjoint(symbols) and bool(value_inputs(app.node))

    def as_elements(self, facts: Facts) -> Term | None:
        """Return the term of a small integer tensor whose elements are all known."""
        if facts.elements is None:
            return None
        shape, elements = facts.elements
        if all(each.constant is not None for each in elements):
            try:
                array = np.array([int(each) for each in elements], helper.tensor_dtype_to_np_dtype(facts.dtype))
            except OverflowError:
                return None
            return self.tools.constants.of_array(array.reshape(shape), facts.dtype)
        return self.tools.terms.make("Elements", (facts.dtype, shape, elements), (), facts.dtype, shape)

    # Bodies

    def read_if(self, node: Node, condition: Term, context: Context, before: frozenset[str]) -> None:
        array = self.tools.constants.array(condition) if condition.is_constant else None
        branches = [node.bodies.get(name) for name in ("then_branch", "else_branch")]
        if array is not None and array.size == 1:
            body, dead = branches if array.ravel()[0] else branches[::-1]
            assert body is not None
            assert dead is not None
            self.result.unread.append(dead)
            self.read_scope(body, context)
            self.tools.terms.note("a known condition")
            for value, inner in zip(node.outputs, body.outputs, strict=False):
                if value is not None:
                    self.define(value, self.term(inner), before | self.result.axioms[inner] | {"a known condition"})
                    if inner in self.result.loose:
                        self.result.loose[value] = self.result.loose[inner]
            return
        for body, name in zip(branches, ("then", "else"), strict=True):
            assert body is not None
            self.read_scope(body, (*context, (condition, name)))
        then, otherwise = branches
        assert then is not None
        assert otherwise is not None
        for value, one, other in zip(node.outputs, then.outputs, otherwise.outputs, strict=False):
            if value is None:
                continue
            raw = self.tools.terms.make("If", (), (condition, self.term(one), self.term(other)), 0, None)
            facts = self.known(value, raw)
            raw.dtype, raw.dims = facts.dtype, raw.dims if raw.dims is not None else facts.dims
            raw.origins[self.side] = raw.origins[self.side] or f"{node.path} (If)"
            self.define(value, raw, before | self.result.axioms[one] | self.result.axioms[other])
            if one in self.result.loose or other in self.result.loose:
                pair = [self.result.loose.get(each, self.term(each)) for each in (one, other)]
                made = self.tools.terms.make("If", (), (condition, *pair), facts.dtype, facts.dims)
                self.result.loose[value] = made

    def with_bodies(
        self, node: Node, attributes: Key, args: list[Term | None], context: Context
    ) -> tuple[Key, list[Term | None]]:
        """Return the key of a node besides its inputs, and its operands, which outputs of its bodies belong to."""
        schema = version_of(node)[1]
        if schema is None or (schema.outputs and schema.max_output > 64):  # its number of outputs may mean something
            attributes = (*attributes, ("outputs", tuple(value is not None for value in node.outputs)))
        if node.is_op("BatchNormalization") and any(node.outputs[1:]):  # before version 14 this means training
            attributes = (*attributes, ("outputs", True))
        if node.is_op("Attention") and any(args[4:6]):  # onnxruntime refuses to run a past without a present
            attributes = (*attributes, ("outputs", tuple(value is not None for value in node.outputs)))
        if node.operator in RANDOM or node.op_type.startswith("Random"):
            attributes = (*attributes, ("random", node.scope.path, tuple(node.proto.output)))
        if node.proto.overload:
            attributes = (*attributes, ("overload", node.proto.overload))
        if not node.bodies:
            return attributes, args
        attributes, signature = self.signature(node, attributes, args)
        terms, operands, start = self.tools.terms, list(args), len(self.result.runs)
        for name, body in sorted(node.bodies.items()):
            for index, value in enumerate(body.inputs):
                place = terms.make("Place in a body", (name, index), (signature,), 0, None)
                facts = self.known(value, place)  # equal where the bodies are: by induction over the iterations
                key = (name, index, facts.dtype, facts.dims)
                self.define(value, terms.make("Input of a body", key, (signature,), facts.dtype, facts.dims))
            self.read_scope(body, (*context, (signature, name)))
            attributes = (*attributes, (name, len(body.inputs), len(body.outputs)))
            operands += [self.term(value) for value in body.outputs]
        attributes = (*attributes, len(args))
        self.finish(start, len(context), terms.make(f"{node.operator} with bodies", attributes, operands, 0, None))
        return attributes, operands

    def signature(self, node: Node, attributes: Key, args: Sequence[Term | None]) -> tuple[Key, Term]:
        """Return the attributes of a node with bodies, and the term to which the inputs of these belong.

        Nodes with the same inputs may have other bodies: each has inputs of its own, and belongs to the node of the
        original that comes as late among such ones.
        """
        term = self.tools.terms.make(f"{node.operator} around", attributes, args, 0, None)
        self.bodied[term] += 1
        if (count := self.bodied[term]) > 1:
            attributes = (*attributes, ("number", count))
            term = self.tools.terms.make(f"{node.operator} around", attributes, args, 0, None)
        return attributes, term

    def finish(self, start: int, depth: int, finished: Term) -> None:
        """Let nodes in bodies run under the node as it is with these, not under its inputs alone."""
        runs = self.result.runs
        for at in range(start, len(runs)):
            context = runs[at].context
            runs[at] = replace(
                runs[at], context=(*context[:depth], (finished, context[depth][1]), *context[depth + 1 :])
            )


def _union(sets: Set[frozenset[str]]) -> frozenset[str]:
    """Return the union of sets, one of them where it has all."""
    largest = max(sets, key=len, default=NO_AXIOMS)
    return largest if all(each <= largest for each in sets) else largest.union(*sets)


def _is_own(expr: Expr) -> bool:
    return any(name.startswith(OWN_UNKNOWN) for name in expr.symbols)


def _as_cast(node: Node, args: Sequence[Term | None]) -> Node:
    """Return a CastLike as the Cast that it is."""
    like = args[1] if node.is_op("CastLike") and len(args) == 2 else None
    if like is None or not like.dtype:
        return node
    proto = NodeProto(op_type="Cast", name=node.proto.name, input=node.proto.input[:1], output=node.proto.output)
    proto.attribute.append(helper.make_attribute("to", like.dtype))
    proto.attribute.extend(attribute for attribute in node.proto.attribute)
    cast = Node(proto, node.scope, node.index)
    cast.inputs, cast.outputs = node.inputs[:1], node.outputs
    return cast
