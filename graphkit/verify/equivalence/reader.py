"""Read a model into terms: each node applied to the terms of its inputs, brought to normal form by the axioms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from onnx import NodeProto, helper

from graphkit.dtypes import FLOATS, INTEGERS
from graphkit.errors import ModelError
from graphkit.graph.dataflow import in_order
from graphkit.graph.operator_traits import operator_set
from graphkit.graph.view import Node, Scope, Value
from graphkit.model import Model
from graphkit.shapes import Shapes
from graphkit.time_limit import check_time
from graphkit.verify.equivalence.application import Application, Tools, attributes_of, version_of
from graphkit.verify.equivalence.axioms import Axiom
from graphkit.verify.equivalence.inlining import draws_random_numbers
from graphkit.verify.equivalence.normal_forms import NormalForms
from graphkit.verify.equivalence.reading import Context, Reading, Run
from graphkit.verify.equivalence.terms import Key, Term
from graphkit.verify.equivalence.value_facts import Facts, ValueFacts, shaped_by
from graphkit.verify.equivalence.versions import spell_alike

__all__ = ["CHANGING", "is_blind", "is_faithful", "read_terms"]

# The sign of zeros: which operators give the same bits for 0 and -0, and which give zeros of another sign at most.
#
# -0 and 0 compare equal, but 1 / x tells them apart, so that `x + 0`, which makes 0 of -0, is x for some readers alone.
# An operator that is blind to the sign gives the same bits for both; a faithful one gives at most zeros of another
# sign.


COMPARISONS = operator_set("Equal Greater GreaterOrEqual Less LessOrEqual")
BLIND = COMPARISONS | operator_set(
    """
    Abs Cos Cosh DynamicQuantizeLinear Exp IsInf IsNaN QuantizeLinear ReduceL1 ReduceL2 ReduceSumSquare Shape Sigmoid
    Size Softmax Softplus
    """
)
EVERY = operator_set(
    "Add Sub Mul Sum Mean Max Min Where Concat MatMul Gemm"
)  # faithful in all inputs, others in the first
WRITTEN = {"ScatterND": (0, 2), "TensorScatter": (0, 1)}  # the data, and what is written into it
FAITHFUL = EVERY | operator_set(
    """
    AveragePool Ceil Clip Conv Div Elu Erf Expand Flatten Floor Gather Gelu GlobalAveragePool HardSwish Identity
    LayerNormalization LeakyRelu MaxPool Neg Pad ReduceMax ReduceMean ReduceMin ReduceSum Relu Reshape Round Sin
    Slice Split Sqrt Squeeze Tanh Tile Transpose Unsqueeze
    """
)
CHANGING = operator_set("Add Sub Max Min Where")  # which are another term where the sign of zeros does not matter


def is_blind(app: Application, index: int) -> bool:
    """Whether the sign of zeros in an input makes no difference."""
    op, constants = app.node.operator, app.tools.constants
    if op == "Pow" and index == 0 and (exponent := app.arg(1)) is not None:
        return constants.is_all(exponent, 2.0)
    if op in ("Add", "Sub") and app.dtype in FLOATS and app.node.scope.opset() >= 7:
        return constants.has_no_zero(app.arg(1 - index))  # 0 + y and -0 + y are y
    if op in ("Cast", "QuantizeLinear"):  # a float of 8 bits has a sign of zeros, too
        return index == 0 and app.dtype in INTEGERS
    return op in BLIND and (index == 0 or op in COMPARISONS)


def is_faithful(app: Application, index: int) -> bool:
    """Whether the sign of zeros in an input makes a difference for the sign of zeros alone."""
    op = app.node.operator
    if op == "Cast":
        return app.dtype in FLOATS
    return index in WRITTEN.get(op, range(len(app.args)) if op in EVERY else (0,) if op in FAITHFUL else ())


ONE_SPELLING = "one spelling for all versions"


def read_terms(
    model: Model,
    shapes: Shapes,
    tools: Tools,
    original: _Reader | None,
    names: Mapping[str, str],
    axioms: Sequence[Axiom],
    exact: _Reader | None = None,
) -> _Reader:
    """Read the main graph, in exact arithmetic or bit for bit.

    Args:
        model: The model.
        shapes: Its shapes.
        tools: The table of terms and what is beside it.
        original: The reading of the original where this is the rewritten model.
        names: What inputs are called in the original.
        axioms: Those that may be used.
        exact: The reading bit for bit, where terms are to be equal in exact arithmetic.
    """
    tools.reals.is_original = original is None
    known = (None, None, ()) if original is None else (original.facts, original.forms, original.result.runs)
    result, facts = Reading(model), ValueFacts(shapes, tools.required, known[0], known[2])
    reader = _Reader(result, tools, names, facts, NormalForms(shapes, tools, axioms, known[1]))
    if exact is not None:
        reader.exact, reader.of_exact = exact.result.values, {} if original is None else original.of_exact
    reader.side = 0 if original is None else 1
    reader.read_graph()
    return reader


class _Reader:
    def __init__(
        self, result: Reading, tools: Tools, names: Mapping[str, str], facts: ValueFacts, forms: NormalForms
    ) -> None:
        self.model, self.result, self.tools, self.names = result.model, result, tools, names
        self.facts, self.forms = facts, forms
        self.side = 0  # of the original
        self.unsigned: dict[Value, Term] = {}  # the terms of values up to the sign of zeros, where these are others
        self.exact: Mapping[Value, Term] | None = None  # the terms bit for bit, where this is exact arithmetic
        self.of_exact: dict[Term, Term] = {}  # what is equal bit for bit is so in exact arithmetic
        self.bodied = Counter[Term]()  # how many nodes with bodies have the same inputs

    def read_graph(self) -> None:
        graph = self.model.graph
        for value in graph.inputs:
            if value.tensor is not None and self.model.proto.ir_version < 4:
                self.define(value, self.constant(value))
                continue
            name = self.names.get(value.name, value.name)
            raw = self.tools.terms.make("Input", (name,), (), 0, None)
            facts = self.facts.of(value, raw)
            raw.dtype, raw.dims = facts.dtype, facts.dims
            self.define(value, self.forms.elements(facts) or raw)
        self.read_scope(graph, ())
        for value in graph.outputs:
            self.result.outputs[value.name] = self.term(value)

    def constant(self, value: Value) -> Term:
        assert value.tensor is not None
        return self.tools.constants.of_tensor(self.model, value.tensor)

    def define(self, value: Value, term: Term) -> None:
        self.result.values[value] = term

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
        if node.is_op("If") and args and args[0] is not None:
            self.read_if(node, args[0], context)
            return
        node = _as_cast(node, args)
        args = args[: len(node.inputs)]
        attributes = self.result.attributes[node] = attributes_of(
            node, partial(self.tools.constants.of_tensor, self.model)
        )
        if not node.domain:
            spelling = spell_alike(node, attributes, args, self.tools.constants)
            if spelling != (attributes, args):
                self.tools.terms.note(ONE_SPELLING)
            attributes, args = spelling
        attributes, operands = self.with_bodies(node, attributes, args, context)
        for index, value in enumerate(node.outputs):
            if value is None:
                continue
            self.read_output(node, (attributes, operands, args), index, value, context)

    def read_output(
        self,
        node: Node,
        applied: tuple[Key, list[Term | None], list[Term | None]],
        index: int,
        value: Value,
        context: Context,
    ) -> None:
        terms = self.tools.terms
        attributes, operands, args = applied
        raw = terms.make(node.operator, (*attributes, index), operands, 0, None)
        facts = self.facts.of(value, raw, partial(shaped_by, node, attributes, args, index))
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
            has_sign=self.exact is None,
            is_real=self.exact is not None,
        )
        if self.exact is None:
            term = self.read_signs(app, raw, facts, value)
        else:
            exact = self.exact.get(value, raw)
            term = self.of_exact.get(exact) or self.forms.of(app, raw, facts)
            self.of_exact[exact] = term
        self.result.runs.append(Run(context, raw, app, term))
        for each in (term, *term.args):
            if each is not None and each.op not in ("Input", "Constant", "Elements"):
                each.origins[self.side] = each.origins[self.side] or raw.origins[self.side]
        self.define(value, term)

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

    def with_args(self, app: Application, raw: Term, facts: Facts, args: list[Term | None]) -> Term:
        """Return the normal form of a node with other arguments."""
        if args != list(app.args):
            raw = self.tools.terms.make(app.node.operator, (*app.attributes, app.index), args, app.dtype, app.dims)
        return self.forms.of(replace(app, args=args), raw, facts)

    def read_if(self, node: Node, condition: Term, context: Context) -> None:
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
                    self.define(value, self.term(inner))
                    if inner in self.unsigned:
                        self.unsigned[value] = self.unsigned[inner]
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
            facts = self.facts.of(value, raw)
            raw.dtype, raw.dims = facts.dtype, raw.dims if raw.dims is not None else facts.dims
            raw.origins[self.side] = raw.origins[self.side] or f"{node.path} (If)"
            self.define(value, raw)

    def with_bodies(
        self, node: Node, attributes: Key, args: list[Term | None], context: Context
    ) -> tuple[Key, list[Term | None]]:
        """Return the key of a node besides its inputs, and its operands, which outputs of its bodies belong to."""
        schema = version_of(node)[1]
        if schema is None or (schema.outputs and schema.max_output > 64):  # its number of outputs may mean something
            attributes = (*attributes, ("outputs", tuple(value is not None for value in node.outputs)))
        if node.is_op("BatchNormalization") and any(node.outputs[1:]):  # before version 14 this means training
            attributes = (*attributes, ("outputs", True))
        if node.is_op("MaxPool"):  # onnxruntime has another kernel for one that gives indices
            attributes = (*attributes, ("outputs", len(node.outputs) > 1 and node.outputs[1] is not None))
        if node.is_op("Attention") and any(args[4:6]):  # onnxruntime refuses to run a past without a present
            attributes = (*attributes, ("outputs", tuple(value is not None for value in node.outputs)))
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


def _scope_place(scope: Scope) -> tuple[object, ...]:
    """Return where a scope stands: names of nodes may be those that others have by their index."""
    owner = scope.owner
    if owner is None:
        return ()
    body = next(name for name, each in owner.bodies.items() if each is scope)
    return (*_scope_place(owner.scope), owner.proto.name or owner.index, body)


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
