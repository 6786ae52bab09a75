"""Read a model into terms: each node applied to the terms of its inputs, brought to normal form by the axioms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property, partial

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from onnx import NodeProto, TensorProto, helper

from graphkit.dtypes import FLOATS, INTEGERS
from graphkit.equivalence.application import Application, Context, Names, Reading, Run, Tools, attributes_of
from graphkit.equivalence.axioms import Axiom
from graphkit.equivalence.cutting import WRITES
from graphkit.equivalence.movement import leading_ones
from graphkit.equivalence.sizes import RequiredProducts, required_equalities
from graphkit.equivalence.spelling import draws_random_numbers, spell_alike
from graphkit.equivalence.terms import Key, Term
from graphkit.errors import ModelError
from graphkit.graph import operator_traits
from graphkit.graph.dataflow import in_order
from graphkit.graph.operator_traits import BLIND, BLIND_IN_SECOND, FAITHFUL, FAITHFUL_IN_ALL
from graphkit.graph.view import Node, Scope, Value
from graphkit.model import Model
from graphkit.ops.rule_context import UnknownError
from graphkit.ops.tensor import Dims, Ratio, Tensor, as_size, has_elements
from graphkit.progress import check_time
from graphkit.shapes import Expr, Shapes, is_known, symbol
from graphkit.shapes.inferred_shapes import Rewriter, rewriter_of
from graphkit.symbolic.expr import INF, OPERATIONS, Atom, Call, Symbol

# Dtype, dims and elements of a model's values, in expressions that both models share.

OWN_UNKNOWN = "?rewritten:"  # before what is unknown in the rewritten model, and not known to be that of the original


class Facts(Struct, frozen=True):
    """What is known of a value: its dtype, its dims, and its elements where they are known."""

    dtype: int
    dims: Dims | None
    # the sizes and the elements of a small integer tensor
    elements: tuple[tuple[int, ...], tuple[Expr, ...]] | None = None


class ValueFacts:
    """What is known of values, in the words of the original.

    An expression that is unknown in the rewritten model is that of the original where the same term was read there. A
    dim is, too, where a node of the same operator reads the same dims there, and the same shape.
    """

    def __init__(self, shapes: Shapes, required: RequiredProducts, original: _Reader | None) -> None:
        self.shapes, self.required, self.original = shapes, required, original
        self.by_term: dict[Term, Facts] = {}
        self.unknown: dict[Term, Sequence[Expr]] = {}  # elements, some of which are not known
        self.symbols: dict[str, Expr] = {}
        self.rewriter: Rewriter
        self.rewriter = rewriter_of(required_equalities(shapes)) if original is None else original.facts.rewriter

    def _in_original_words(self, expr: Expr) -> Expr:
        if expr.constant is not None:
            return expr
        if self.symbols or (self.original is not None and not is_known(expr)):
            expr = expr.map_atoms(self._original_atom)
        return self.required.expr(self.rewriter.expr(expr))

    def _original_atom(self, atom: Atom) -> Expr:
        if isinstance(atom, Call):
            return OPERATIONS[atom.op](*(arg.map_atoms(self._original_atom) for arg in atom.args))
        if atom.name[:1] == "?" and atom.name not in self.symbols and self.original is not None:
            self.symbols[atom.name] = symbol(f"{OWN_UNKNOWN}{atom.name[1:]}", atom.lower, atom.upper)
        found = self.symbols.get(atom.name, Expr.from_atom(atom))
        return as_size(found, int(atom.lower)) if atom.upper == INF and atom.lower >= 0 else found

    def of(self, value: Value, raw: Term, shaped: Callable[[], Hashable | None] = lambda: None) -> Facts:
        """Return a value as it is read; unknown expressions are those of its term where it was read first.

        `raw` is the term of its node before any axiom, and `shaped` gives what its dims depend on: see `shaped_by`.
        """
        tensor = self.shapes.first.get(value) or Tensor(0, None)
        data = tensor.data if tensor.dtype in INTEGERS and tensor.may_have_data else None
        listed = None if data is None else data.ravel().tolist()
        before = None if self.original is None else self.original.facts.by_term.get(raw)
        before = before or self.by_term.get(raw)
        if before is not None:
            self._match_unknown(tensor.dims or (), before.dims or ())
            if listed is not None:
                unknown = self.original.facts.unknown if self.original is not None else self.unknown
                self._match_unknown(listed, before.elements[1] if before.elements is not None else unknown.get(raw, ()))
        known = None if before is None else before.dims
        key = shaped() if known is None and not all(map(is_known, tensor.dims or ())) else None
        if key is not None:
            known = self.by_shape.get(key)
            self._match_unknown(tensor.dims or (), known or ())
        dims = None if tensor.dims is None else tuple(self._in_original_words(dim) for dim in tensor.dims)
        if dims is not None and known is not None and len(known) == len(dims):
            own = [any(name.startswith(OWN_UNKNOWN) for name in dim.symbols) for dim in dims]
            dims = tuple(theirs if new else mine for mine, theirs, new in zip(dims, known, own, strict=True))
        elements = None
        if data is not None and listed is not None and all(isinstance(each, (int, Expr)) for each in listed):
            exprs = tuple(self._in_original_words(Expr.of(each)) for each in listed)
            if not any(map(has_elements, exprs)):  # dims are small; an element of an input may overflow
                elements = data.shape, exprs
            else:
                self.unknown[raw] = exprs
        if key is not None and dims is not None:
            self.by_shape.setdefault(key, dims)
        found = self.by_term[raw] = Facts(tensor.dtype, dims, elements)
        return found

    @cached_property
    def by_shape(self) -> dict[Hashable, Dims]:
        """The dims of outputs by what they depend on, in the original first; only few models need them."""
        found: dict[Hashable, Dims] = {}
        for app in (run.application for run in (self.original.result.runs if self.original is not None else ())):
            key = shaped_by(app.node, app.attributes, app.args, app.index)
            if key is not None and app.dims is not None:
                found.setdefault(key, app.dims)
        return found

    def _match_unknown(self, mine: Sequence[object], theirs: Sequence[Expr]) -> None:
        """Take the original's expressions for those that are unknown here."""
        for each, other in zip(mine, theirs, strict=False):
            atom = each.atom if isinstance(each, Expr) else None
            if isinstance(atom, Symbol) and atom.name[:1] == "?":
                self.symbols.setdefault(atom.name, other)


def shaped_by(node: Node, attributes: Key, args: Sequence[Term | None], index: int) -> Hashable | None:
    """Return what the dims of an output depend on: the dims of inputs, and the terms of those whose value makes dims.

    It is None where they may depend on elements of other inputs, and where some dims are not known.
    """
    if operator_traits.broadcasts_inputs(node):
        return broadcast_dims(args)
    if node.operator not in operator_traits.SHAPED:
        return None
    by_value = operator_traits.value_inputs(node)
    key: list[Hashable] = [node.operator, attributes, index]
    for at, term in enumerate(args):
        if term is not None and at not in by_value and at < len(node.inputs):
            if term.dims is None:
                return None
            key.append(term.dims)
        else:
            key.append(term)
    return tuple(key)


def broadcast_dims(args: Sequence[Term | None]) -> Hashable | None:
    """Return what the dims of a broadcast depend on, and whether it fails, however often and in which order they come.

    It is None where some dims are not known.
    """
    terms = [term for term in args if term is not None]
    dims = [term.dims for term in terms if term.dims is not None]
    if len(dims) < len(terms):
        return None
    return "broadcast", max(map(len, dims), default=0), frozenset(each[leading_ones(each) :] for each in dims) - {()}


# The normal form of what a node gives: its term once the axioms are applied.


class NormalForms:
    """Brings the nodes of a model to normal form; a rewritten model takes over what is known of its original."""

    def __init__(self, shapes: Shapes, tools: Tools, axioms: Sequence[Axiom], original: NormalForms | None) -> None:
        self.shapes, self.tools, self.axioms = shapes, tools, axioms
        # by the term of an output before any axiom, and whether the sign of zeros in it matters: what is known of it,
        # its normal form, and how often each axiom was used for that
        self.known: dict[tuple[Term, bool], tuple[Facts, Term, Mapping[str, int]]]
        self.known = {} if original is None else original.known
        self.free_elements = free_elements(shapes)
        self.by_operator: dict[str, list[Axiom]] = {}

    def of(self, app: Application, raw: Term, facts: Facts) -> Term:
        """Return the normal form of an output, that of the same term with the same facts where one is known."""
        terms = self.tools.terms
        key = raw, app.has_sign
        if (known := self.known.get(key)) is not None and known[0] == facts:
            for name, times in known[2].items():
                terms.note(name, times)
            return known[1]
        terms.recent.clear()
        if (term := self.elements(facts)) is not None:
            terms.note("elements")
        else:
            term = self._normal(app, raw)
        self.known[key] = facts, term, dict(terms.recent)
        return term

    def _normal(self, app: Application, raw: Term) -> Term:
        op = app.node.operator
        if self._counts_elements(app):
            raw.nearly = "its dims are elements that may be large, and what is computed from these may wrap around"
            return raw
        if op not in self.by_operator:
            self.by_operator[op] = [each for each in self.axioms if each.operators is None or op in each.operators]
        for axiom in self.by_operator[op]:
            try:
                found = axiom.function(app)
            except UnknownError as reason:
                found = str(reason)
            if isinstance(found, Term):
                self.tools.terms.note(axiom.name)
                return found
            if found:
                raw.nearly = f"{axiom.name}: {found}"
        return raw

    def _counts_elements(self, app: Application) -> bool:
        """Whether a node makes dims of unknown elements, whose expressions do not hold where integers wrap around."""
        value = app.node.outputs[app.index]
        known = self.shapes.first
        if not self.free_elements or value is None or value not in known or not operator_traits.value_inputs(app.node):
            return False
        source = known.get(app.node.operand(0))
        there = source.dims or () if source is not None else ()
        new = (dim for dim in known[value].dims or () if dim not in there)
        elements = (each for dim in new for each in dim.walk_symbols() if each.upper != INF)  # others are sizes
        return any(each.name in self.free_elements for each in elements)

    def elements(self, facts: Facts) -> Term | None:
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


def free_elements(shapes: Shapes) -> frozenset[str]:
    """Return the names of unknown elements, such as those of an input, that are not first known as dims of a tensor.

    A dim is small, and so is what models compute from it. An element of an input may be any number: the shape engine
    takes `4 * x // 4` for `x`, which does not hold where the product wraps around.
    """
    dims: set[str] = set()
    free: set[str] = set()
    for tensor in dict.fromkeys(tensor for value, tensor in shapes.first.items() if value.tensor is None):
        dims.update(name for dim in tensor.dims or () for name in dim.symbols if name not in free)
        elements = tensor.elements or () if tensor.may_have_data else ()
        for expr in (each.dividend if isinstance(each, Ratio) else each for each in elements):
            names = expr.symbols if isinstance(expr, Expr) else ()
            free.update(name for name in names if name[:1] == "?" and name not in dims)
    return frozenset(free)


# The sign of zeros: which operators give the same bits for 0 and -0, and which give zeros of another sign at most.

# which are another term where the sign of zeros does not matter
CHANGING = operator_traits.operator_set("Add Sub Max Min Where")


def is_blind(app: Application, index: int) -> bool:
    """Whether the sign of zeros in an input makes no difference."""
    op, constants = app.node.operator, app.tools.constants
    if op == "Pow" and index == 0 and (exponent := app.arg(1)) is not None:
        return constants.is_all(exponent, 2.0)
    if op in ("Add", "Sub") and app.dtype in FLOATS and app.node.scope.opset() >= 7:
        return constants.has_no_zero(app.arg(1 - index))  # 0 + y and -0 + y are y
    if op in ("Cast", "QuantizeLinear"):  # a float of 8 bits has a sign of zeros, too
        return index == 0 and app.dtype in INTEGERS
    return (index == 0 and op in BLIND) or op in operator_traits.COMPARING or (index == 1 and op in BLIND_IN_SECOND)


def is_faithful(app: Application, index: int) -> bool:
    """Whether the sign of zeros in an input makes a difference for the sign of zeros alone."""
    op = app.node.operator
    if op == "Cast":
        return app.dtype in FLOATS
    if op in WRITES:
        return index in operator_traits.COPIED[op]
    return index in (range(len(app.args)) if op in FAITHFUL_IN_ALL else (0,) if op in FAITHFUL else ())


Pair = tuple["_Reader", "_Reader"]  # an original and its rewrite


def read_pair(
    models: tuple[Model, Model],
    shapes: tuple[Shapes, Shapes],
    tools: Tools,
    names: Names,
    axioms: Sequence[Axiom],
    exact: Pair | None = None,
    whenever_read: Callable[[Shapes, Reading], None] = lambda *_: None,
) -> Pair:
    """Read the main graphs of an original and its rewrite by some axioms, and call a function with each reading.

    That is bit for bit, or in exact arithmetic where it is given how both were read bit for bit.
    """
    known = exact or (None, None)
    tools.reals.is_original = True
    first = _Reader(models[0], shapes[0], tools, {}, axioms, original=None, exact=known[0])
    whenever_read(shapes[0], first.result)
    tools.reals.is_original = False
    second = _Reader(models[1], shapes[1], tools, names, axioms, original=first, exact=known[1])
    whenever_read(shapes[1], second.result)
    return first, second


class _Reader:
    """The terms of a model: of an original, or of the rewrite of one; `exact` is how it was read bit for bit."""

    def __init__(
        self,
        model: Model,
        shapes: Shapes,
        tools: Tools,
        names: Names,
        axioms: Sequence[Axiom],
        *,
        original: _Reader | None,
        exact: _Reader | None,
    ) -> None:
        self.model, self.result, self.tools, self.names = model, Reading(model), tools, names
        self.side = 0 if original is None else 1
        self.facts = ValueFacts(shapes, tools.required, original)
        self.forms: NormalForms = NormalForms(shapes, tools, axioms, None if original is None else original.forms)
        self.unsigned: dict[Value, Term] = {}  # the terms of values up to the sign of zeros, where these are others
        self.exact = None if exact is None else exact.result.values
        # What is equal bit for bit is so in exact arithmetic.
        self.of_exact: dict[Term, Term] = {} if original is None else original.of_exact
        self.bodied = Counter[Term]()  # how many nodes with bodies have the same inputs
        self.read_graph()

    def read_graph(self) -> None:
        graph = self.model.graph
        for value in graph.inputs:
            if value.tensor is not None and self.model.proto.ir_version < 4:
                self.result.values[value] = self.constant(value.tensor)
                continue
            raw = self.tools.terms.make("Input", (self.names.get(value.name, value.name),), (), 0, None)
            facts = self.facts.of(value, raw)
            raw.dtype, raw.dims = facts.dtype, facts.dims
            self.result.values[value] = self.forms.elements(facts) or raw
        self.read_scope(graph, ())
        for value in graph.outputs:
            self.term(value)  # which must be there

    def constant(self, tensor: TensorProto) -> Term:
        return self.tools.constants.of_tensor(self.model, tensor)

    def term(self, value: Value) -> Term:
        if value not in self.result.values:
            raise ModelError(f"'{value.name}' is read, and nothing before that gives it", file=self.model.file)
        return self.result.values[value]

    def read_scope(self, scope: Scope, context: Context) -> None:
        for value in scope.initializers:
            if value.kind != "initializer":
                continue
            if value.tensor is not None:
                self.result.values[value] = self.constant(value.tensor)
            elif value.sparse is not None:
                terms = tuple(map(self.constant, (value.sparse.values, value.sparse.indices)))
                self.result.values[value] = self.tools.terms.make("Sparse", tuple(value.sparse.dims), terms, 0, None)
        for node in in_order(scope) if scope.problems else scope.nodes:
            self.read_node(node, context)

    def read_node(self, node: Node, context: Context) -> None:
        check_time()
        self.result.nodes.append(node)
        if node.constant is not None and node.outputs[0] is not None:
            self.result.values[node.outputs[0]] = self.constant(node.constant)
            return
        args = [None if value is None else self.term(value) for value in node.inputs]
        if node.is_op("If") and args and args[0] is not None:
            self.read_if(node, args[0], context)
            return
        node = _as_cast(node, args)
        args = args[: len(node.inputs)]
        attributes = attributes_of(node, self.constant)
        if not node.domain:
            spelling = spell_alike(node, attributes, args, self.tools.constants)
            if spelling != (attributes, args):
                self.tools.terms.note("one spelling for all versions")
            attributes, args = spelling
        attributes, operands = self.with_bodies(node, attributes, args, context)
        is_exact = self.exact is None
        for index, value in enumerate(node.outputs):
            if value is not None:
                raw = self.tools.terms.make(node.operator, (*attributes, index), operands, 0, None)
                facts = self.facts.of(value, raw, partial(shaped_by, node, attributes, args, index))
                reads = partial(Application, has_sign=is_exact, is_real=not is_exact, tools=self.tools)
                app = reads(node, attributes, args, index, dtype=facts.dtype, dims=facts.dims)
                self.read_output(app, raw, facts, value, context)

    def read_output(self, app: Application, raw: Term, facts: Facts, value: Value, context: Context) -> None:
        raw.dtype = raw.dtype or facts.dtype
        raw.dims = raw.dims if raw.dims is not None else facts.dims
        raw.origins[self.side] = raw.origins[self.side] or f"{app.node.path} ({app.node.operator})"
        if self.exact is None:
            term = self.read_signs(app, raw, facts, value)
        else:
            exact = self.exact.get(value, raw)
            term = self.of_exact.get(exact) or self.forms.of(app, raw, facts)
            self.of_exact[exact] = term
        self.result.runs.append(Run(context, self.without_signs(raw, app), app, term))
        for each in (term, *term.args):
            if each is not None and each.op not in ("Input", "Constant", "Elements"):
                each.origins[self.side] = each.origins[self.side] or raw.origins[self.side]
        self.result.values[value] = term

    def read_signs(self, app: Application, raw: Term, facts: Facts, value: Value) -> Term:
        """Return the term of an output, and remember that up to the sign of zeros where it is another one."""
        bare, signed = list(app.args), list(app.args)
        for index, source in enumerate(app.node.inputs):
            found = self.unsigned.get(source) if source is not None and not app.node.bodies else None
            if found is not None and is_blind(app, index):
                bare[index] = signed[index] = found
            elif found is not None and is_faithful(app, index):
                bare[index] = found
        term = self.with_args(app, raw, facts, signed)
        if bare != signed or (app.dtype in FLOATS and app.node.operator in CHANGING):
            other = self.with_args(replace(app, has_sign=False), raw, facts, bare)
            if other is not term and not term.is_constant:  # as a rewrite that folds it has it
                self.unsigned[value] = other
        return term

    def without_signs(self, raw: Term, app: Application) -> Term:
        """Return the term of a node on what it reads up to the sign of zeros, by which no operator fails."""
        if self.unsigned.keys().isdisjoint(app.node.inputs):
            return raw
        values = zip(app.node.inputs, app.args, strict=False)
        args = [arg if value is None else self.unsigned.get(value, arg) for value, arg in values]
        return self.tools.terms.make(app.node.operator, (*app.attributes, app.index), args, app.dtype, app.dims)

    def with_args(self, app: Application, raw: Term, facts: Facts, args: list[Term | None]) -> Term:
        """Return the normal form of a node with other arguments."""
        if args != list(app.args):
            raw = self.tools.terms.make(app.node.operator, (*app.attributes, app.index), args, app.dtype, app.dims)
            app = replace(app, args=args)
        return self.forms.of(app, raw, facts)

    def read_if(self, node: Node, condition: Term, context: Context) -> None:
        array = self.tools.constants.array(condition) if condition.is_constant else None
        then, otherwise = (node.bodies[name] for name in ("then_branch", "else_branch"))
        if array is not None and array.size == 1:
            body, dead = (then, otherwise) if array.ravel()[0] else (otherwise, then)
            self.result.unread.append(dead)
            self.read_scope(body, context)
            self.tools.terms.note("a known condition")
            for value, inner in zip(node.outputs, body.outputs, strict=False):
                if value is not None:
                    self.result.values[value] = self.term(inner)
                    if inner in self.unsigned:
                        self.unsigned[value] = self.unsigned[inner]
            return
        self.read_scope(then, (*context, (condition, "then")))
        self.read_scope(otherwise, (*context, (condition, "else")))
        for value, one, other in zip(node.outputs, then.outputs, otherwise.outputs, strict=False):
            if value is None:
                continue
            raw = self.tools.terms.make("If", (), (condition, self.term(one), self.term(other)), 0, None)
            facts = self.facts.of(value, raw)
            raw.dtype, raw.dims = facts.dtype, raw.dims if raw.dims is not None else facts.dims
            raw.origins[self.side] = raw.origins[self.side] or f"{node.path} (If)"
            self.result.values[value] = raw

    def with_bodies(
        self, node: Node, attributes: Key, args: list[Term | None], context: Context
    ) -> tuple[Key, list[Term | None]]:
        """Return the key of a node besides its inputs, and its operands, which outputs of its bodies belong to."""
        schema = operator_traits.schema_of(node)
        # Its number of outputs may mean something: more of a BatchNormalization mean training before version 14, of a
        # MaxPool another kernel, and onnxruntime refuses to run an Attention with a past without a present.
        is_by_outputs = schema is None or (schema.outputs and schema.max_output > 64)
        if is_by_outputs or node.is_op("BatchNormalization", "MaxPool") or (node.is_op("Attention") and any(args[4:6])):
            given = tuple(index for index, value in enumerate(node.outputs) if value is not None)
            attributes = (*attributes, ("outputs", given, len(node.outputs) if is_by_outputs else 0))
        if draws_random_numbers(node.proto):
            attributes = (*attributes, ("random", _scope_place(node.scope), tuple(node.proto.output)))
        if node.proto.overload:
            attributes = (*attributes, ("overload", node.proto.overload))
        if not node.bodies:
            return attributes, args
        attributes, signature = self.signature(node, attributes, args)
        terms, operands, start = self.tools.terms, list(args), len(self.result.runs)
        for name, body in sorted(node.bodies.items()):
            for index, value in enumerate(body.inputs):
                if value.tensor is not None or value.sparse is not None:
                    reason = f"'{value.name}', an input of {name} of {node.path}, has a default"
                    raise ModelError(reason, file=self.model.file)
                place = terms.make("Place in a body", (name, index), (signature,), 0, None)
                facts = self.facts.of(value, place)  # equal where the bodies are: by induction over the iterations
                key = (name, index, facts.dtype, facts.dims)
                self.result.values[value] = terms.make("Input of a body", key, (signature,), facts.dtype, facts.dims)
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
            whole = (*context[:depth], (finished, context[depth][1]), *context[depth + 1 :])
            runs[at] = replace(runs[at], context=whole)


def _scope_place(scope: Scope) -> tuple[object, ...]:
    """Return where a scope stands: names of nodes may be those that others have by their index."""
    if (owner := scope.owner) is None:
        return ()
    body = next(name for name, each in owner.bodies.items() if each is scope)
    return (*_scope_place(owner.scope), owner.proto.name or owner.index, body)


def _as_cast(node: Node, args: Sequence[Term | None]) -> Node:
    like = args[1] if node.is_op("CastLike") and len(args) == 2 else None
    if like is None or not like.dtype:
        return node
    proto = NodeProto(op_type="Cast", name=node.proto.name, input=node.proto.input[:1], output=node.proto.output)
    proto.attribute.append(helper.make_attribute("to", like.dtype))
    proto.attribute.extend(attribute for attribute in node.proto.attribute)
    cast = Node(proto, node.scope, node.index)
    cast.connect(node.inputs[:1], node.outputs)
    return cast
