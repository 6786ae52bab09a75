"""Check that a rewritten model is equal to its original at every legal size and for every input.

Both models are read into one table of terms, over the same inputs, and brought to one normal form by the axioms. An
output is proven where both have the same term: bit for bit; else, when both are read again with axioms of real numbers,
in exact arithmetic, where nothing is claimed of rounding, overflow, NaN, infinities and the signs of zeros. What that
trusts: the axioms, the hash of constants, and that the original loads. It shares nothing with the passes that rewrite
models but the shape engine, of which it believes no word that onnxruntime does not confirm: see `checked_facts`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from onnx import TensorProto

from graphkit.graph.declared_types import declared_dims, declared_type
from graphkit.graph.name_families import family_labels, label_families
from graphkit.graph.names import join_words
from graphkit.graph.traversal import chain_end
from graphkit.graph.view import Node, Scope, all_scopes
from graphkit.matching.value_numbering import ConstantNumbers
from graphkit.model import Model, ModelLike, as_model
from graphkit.ops.tensor import MAX_ELEMENTS
from graphkit.shapes import Expr, Shapes, symbol
from graphkit.shapes.input_dims import DimNames, read_alike
from graphkit.symbolic.expr import INF, Bound, TooComplexError
from graphkit.verify.equivalence.application import Reading, Tools
from graphkit.verify.equivalence.axioms import Axiom
from graphkit.verify.equivalence.checked_facts import check_facts
from graphkit.verify.equivalence.failures import new_failures
from graphkit.verify.equivalence.interface import (
    declared_faults,
    input_faults,
    narrowed_dims,
    new_symbols,
    odd_flags,
    output_fault,
    output_faults,
)
from graphkit.verify.equivalence.loading import loading_fault, whole_fault
from graphkit.verify.equivalence.movement import count_elements
from graphkit.verify.equivalence.reader import EXACT, REAL, read_terms
from graphkit.verify.equivalence.result import Equivalence, Exactness, ExprPair, OutputProof
from graphkit.verify.equivalence.sizes import (
    RequiredProducts,
    common_shapes,
    counting_conditions,
    required_equalities,
    size_limits,
    stacks_of_nothing,
    turning_numbers,
)
from graphkit.verify.equivalence.spelling import inline_model, kernel_fault
from graphkit.verify.equivalence.terms import Constants, Term, Terms

__all__ = ["check_equivalence"]

# The first place where two terms differ, in words.


def find_difference(left: Term, right: Term) -> str:
    """Return where the terms of both models begin to differ, and which axiom nearly held there."""
    left, right = innermost_difference(left, right)
    nearly = [term.nearly for term in (left, right) if term.nearly]
    text = f"{_term_text(left, 0)} of the original and {_term_text(right, 1)} of the rewritten model differ"
    return f"{text}; nearly {nearly[0]}" if nearly else text


def differing_exprs(left: Term, right: Term, constants: Constants) -> tuple[ExprPair, ...]:
    """Return the dims and integers of the first pair of terms that differs, where they are other expressions."""
    both = [_term_expressions(term, constants) for term in innermost_difference(left, right)]
    alike = [lists for lists in zip(*both, strict=True) if len({*map(len, lists)}) == 1]
    pairs = (pair for lists in alike for pair in zip(*lists, strict=True))
    return tuple(dict.fromkeys((one, other) for one, other in pairs if one != other))


def _term_expressions(term: Term, constants: Constants) -> tuple[list[Expr], list[Expr], list[Expr]]:
    """Return the dims of a term, the expressions in its attributes, and its elements."""
    elements: list[Expr] = list(term.attributes[2]) if term.op == "Elements" else []  # type: ignore[call-overload]
    array = constants.array(term) if term.is_constant else None
    if array is not None and array.dtype.kind in "iu" and array.size <= MAX_ELEMENTS:
        elements = [Expr.of(int(each)) for each in array.ravel()]
    return list(term.dims or ()), [each for each in term.attributes if isinstance(each, Expr)], elements


def innermost_difference(left: Term, right: Term) -> tuple[Term, Term]:
    """Return the innermost pair that differs; operands that both have are left out, as operands may change places."""
    return chain_end((left, right), _inner_difference)


def _inner_difference(terms: tuple[Term, Term]) -> tuple[Term, Term] | None:
    """Return the first operands of two terms that differ, those of one operator first; None if the terms differ."""
    left, right = terms
    if (left.op, left.attributes) != (right.op, right.attributes) or len(left.args) != len(right.args):
        return None
    lefts = [arg for arg in left.args if arg is not None and arg not in right.args]
    rights = [arg for arg in right.args if arg is not None and arg not in left.args]
    alike = [(first, second) for first in lefts for second in rights if first.op == second.op]
    return next(iter(alike or zip(lefts, rights, strict=False)), None)


def _term_text(term: Term, side: int) -> str:
    where = term.origins[side] or next(
        (arg.origins[side] for arg in term.args if arg is not None and arg.origins[side]), ""
    )
    shape = "" if term.dims is None else f" [{', '.join(map(str, term.dims))}]"
    return f"{term.op}{shape}" + (f" at {where}" if where else "")


# Faults of bodies that keep a model from being loaded or run as it says, though its terms are those of the original.
#
# onnxruntime loads many a model that ONNX does not allow, and then reads memory that nothing was written to, or takes a
# value of the graph around for one of the same name in a body.


def branch_faults(original: Reading, rewritten: Reading) -> Iterator[str]:
    """Yield the faults of each If that the rewritten model reads."""
    for reading in (original, rewritten):
        yield from _shadowing_initializers(reading.model.graph)
        yield from _output_faults(reading)
    yield from _undeclared_counters(original, rewritten)
    conditions = {original.values[node.inputs[0]] for node in _if_nodes(original) if node.inputs and node.inputs[0]}
    for node in _if_nodes(rewritten):
        condition = node.inputs[0] if node.inputs else None
        term = None if condition is None else rewritten.values[condition]
        if len(node.inputs) != 1 or term is None or not _is_one_bool(term, term in conditions):
            yield f"the condition of {node.path} is not one bool"
        for name, body in node.bodies.items():
            yield from (f"{name} of {node.path} {fault}" for fault in _body_faults(node, body))
        if any(len(set(dtypes)) > 1 for dtypes in _branch_dtypes(rewritten, node)):
            yield f"the branches of {node.path} give other dtypes"


def _shadowing_initializers(scope: Scope) -> Iterator[str]:
    """Yield the initializers of bodies that have the name of a value around, which a node may read in their place."""
    for body in scope.walk():
        around = body.parent
        while around is not None:
            for name in body.values.keys() & around.values.keys():
                if body.values[name].kind == "initializer":
                    yield f"'{name}', an initializer of {body.path}, has the name of a value around it"
            around = around.parent


def _output_faults(reading: Reading) -> Iterator[str]:
    """Yield what bodies give twice, and inputs that they give as they are, where onnxruntime does not copy them.

    Nothing is written for what a Scan gives so, and a Loop counts up where its counter stands.
    """
    for node in reading.nodes:
        for name, body in node.bodies.items() if node.is_op("If", "Scan") else ():
            twice = [value.name for value, times in Counter(body.outputs).items() if times > 1]
            yield from (f"{name} of {node.path} gives '{value}' twice" for value in twice)
        for name, body in node.bodies.items() if node.is_op("Loop", "Scan") else ():
            shared = {*(body.inputs if node.is_op("Scan") else body.inputs[:1])}
            inputs = [value.name for value in body.outputs if value in shared]
            yield from (f"{name} of {node.path} gives its input '{value}' as it is" for value in inputs)


def _undeclared_counters(original: Reading, rewritten: Reading) -> Iterator[str]:
    """Yield the counters and conditions of Loops without declared dims, where all those of the original have them."""
    known = {index for _, index in _without_dims(original)}
    for body, index in _without_dims(rewritten):
        if index not in known:
            yield f"'{body.inputs[index].name}' of {body.path} has no declared dims, which onnxruntime asks for"


def _without_dims(reading: Reading) -> Iterator[tuple[Scope, int]]:
    loops = [node for node in reading.nodes if node.is_op("Loop")]
    for body in (body for node in loops for body in node.bodies.values()):
        for index, value in enumerate(body.inputs[:2]):
            declared = declared_type(value)
            if declared is None or declared.dims is None:
                yield body, index


def _if_nodes(reading: Reading) -> list[Node]:
    return [node for node in reading.nodes if node.is_op("If")]


def _is_one_bool(term: Term, is_known: bool) -> bool:
    """Whether a condition is one bool; of how many elements one is that the original has too does not matter."""
    is_one = is_known or (term.dims is not None and count_elements(term.dims) == 1)
    return is_one and term.dtype == TensorProto.BOOL


def _body_faults(node: Node, body: Scope) -> Iterator[str]:
    if body.inputs:
        yield "has inputs"
    if len(body.outputs) != len(node.proto.output):
        yield f"has {len(body.outputs)} outputs, not {len(node.proto.output)}"
    yield from (f"gives '{value.name}' of the graph around" for value in body.outputs if value.scope is not body)


def _branch_dtypes(reading: Reading, node: Node) -> Iterator[list[int]]:
    """Yield the known dtypes of each output in the branches that are read."""
    for values in zip(*(body.outputs for body in node.bodies.values()), strict=False):
        terms = [reading.values[value] for value in values if value in reading.values]
        yield [term.dtype for term in terms if term.dtype]


def check_equivalence(
    original: ModelLike,
    rewritten: ModelLike,
    *,
    narrower: bool = False,
    values: Mapping[str, object] | None = None,
    renamed: Mapping[str, str] | None = None,
    unread: Sequence[str] = (),
    unwritten: Sequence[str] = (),
    free: Sequence[str] = (),
    axioms: Sequence[Axiom] = EXACT,
    real_axioms: Sequence[Axiom] = REAL,
    seed: int = 0,
    dims: DimNames = "related",
    computed: Sequence[str] = (),
    compared: ConstantNumbers | None = None,
) -> Equivalence:
    """Check whether a rewritten model gives the outputs of its original, at every size and for every input.

    Args:
        original: The original, or its path.
        rewritten: What was made of it, or its path.
        narrower: Whether the rewritten model may take fewer sizes, and the proof is about those that it declares.
        values: Elements of inputs of the original, such as `{"use_cache_branch": True}`, which the rewritten model may
            lack.
        renamed: What inputs and outputs of the rewritten model are called in the original.
        unread: Inputs of the original that the rewritten model may lack.
        unwritten: Outputs of the original that the rewritten model may lack.
        free: Inputs of the rewritten model that the original lacks: what they hold must not matter.
        axioms: The equalities that may be used bit for bit.
        real_axioms: Those that may be used in exact arithmetic.
        seed: Of the sizes at which the shape engine is compared with onnxruntime.
        dims: Which dims of the inputs that have one name are one size: see `graphkit.shapes.input_dims`.
        computed: Inputs of the original whose dims are those of its other ones, by their names.
        compared: Large weights that another check has compared, which are not read again.

    Returns:
        For each output whether it is proven, or why it is unknown.

    Raises:
        ModelError: The meaning of a model is not certain: see `Model.check_soundness`.

    Example:
        >>> model = graphkit.load("example:causal-attention")
        >>> check_equivalence(model, graphkit.fold(model).model).is_proven
        True
    """
    check = _Check(
        original=as_model(original),
        rewritten=as_model(rewritten),
        narrower=narrower,
        values=values or {},
        names=renamed or {},
        unread=unread,
        unwritten=unwritten,
        free=free,
        axioms=axioms,
        real_axioms=real_axioms,
        seed=seed,
        dims=dims,
        computed=computed,
        compared=compared,
    )
    try:
        return check.run()
    except TooComplexError as error:
        return _unknown_equivalence(check.rewritten, str(error))


@dataclass(frozen=True, eq=False, kw_only=True)
class _Check:
    """What `check_equivalence` is asked."""

    original: Model
    rewritten: Model
    narrower: bool
    values: Mapping[str, object]
    names: Mapping[str, str]
    unread: Sequence[str]
    unwritten: Sequence[str]
    free: Sequence[str]
    axioms: Sequence[Axiom]
    real_axioms: Sequence[Axiom]
    seed: int
    dims: DimNames
    computed: Sequence[str]
    compared: ConstantNumbers | None

    def run(self) -> Equivalence:
        names, free, narrower = self.names, self.free, self.narrower
        before, after = inline_model(self.original), inline_model(self.rewritten)
        declared = read_alike(before, after, names, dims=self.dims, computed=self.computed)
        terms = Terms()
        constants = Constants(terms, (before, after), compared=self.compared)
        fixed = {*self.values, *self.unread}
        faults = list(input_faults(before, after, names, fixed, constants, narrower=narrower, free=free))
        faults += output_faults(before, after, names, self.unwritten)
        if fault := next(iter(faults), "") or loading_fault(self.original, self.rewritten):
            return _unknown_equivalence(after, fault)
        shapes = common_shapes(before, after, names, self.values, narrower=narrower, free=free, declared=declared)
        if isinstance(shapes, str):
            return _unknown_equivalence(after, shapes)
        if fault := kernel_fault(self.original, shapes[0]) or kernel_fault(self.rewritten, shapes[1]):
            return _unknown_equivalence(after, fault)
        tools = Tools.of(constants, RequiredProducts(required_equalities(shapes[0])))
        first = read_terms(before, shapes[0], tools, None, {}, self.axioms)
        second = read_terms(after, shapes[1], tools, first, names, self.axioms)
        fault = _find_fault(first.result, second.result, *shapes, names, tools.required)
        proofs = _prove_outputs(first.result, second.result, shapes, names, fault, "bit for bit", constants)
        used = dict(terms.used)
        if not fault and any(proof.verdict != "proven" for proof in proofs):
            terms.used.clear()
            real = read_terms(before, shapes[0], tools, None, {}, self.real_axioms, first)
            other = read_terms(after, shapes[1], tools, real, names, self.real_axioms, second)
            found = _prove_outputs(real.result, other.result, shapes, names, "", "in exact arithmetic", constants)
            proofs = tuple(old if old.verdict == "proven" else new for old, new in zip(proofs, found, strict=True))
            used |= terms.used
        limits = size_limits(shapes, lambda expr: tools.required.expr(first.facts.rewriter.expr(expr)))
        turns, sizes = turning_numbers(shapes, limits), _size_conditions(shapes[1])
        result = Equivalence(proofs, dict(sorted(used.items())), sizes, limits, turns, len(terms.known))
        if not result.proven:
            return result
        compared, fault = check_facts(((first.result, shapes[0]), (second.result, shapes[1])), self.seed)
        if fault := fault or whole_fault(self.original, self.rewritten, has_dead=bool(second.result.unread)):
            return result.unproven(fault)
        if odd := next((limit for limit in limits if limit.is_impossible or limit.is_bounded), None):
            where = "no size" if odd.is_impossible else "not all sizes that are declared"
            return result.unproven(f"it would hold for {odd}, and so for {where}")
        equal = narrowed_dims(names, declared) if narrower else ()
        claimed = _taken_at_their_word(shapes[1], names, free)
        conditions = (*sizes, *map(str, limits), *equal, *counting_conditions(*shapes))
        conditions += tuple(f"{place} = {dim}, as declared" for place, dim in claimed)
        shared = (*_shared_dims(shapes[0], self._read(shapes)), *(f"{place} = {dim}" for place, dim in claimed))
        is_real = any(proof.exactness == "in exact arithmetic" for proof in proofs)
        return replace(
            result,
            conditions=conditions,
            compared=compared,
            shared_dims=shared,
            constants=tools.reals.compared_constants() if is_real else result.constants,
        )

    def _read(self, shapes: tuple[Shapes, Shapes]) -> set[str]:
        """Return the inputs that a node of either model reads, without those whose dims are known to be others'."""
        before, after = (
            [value.name for value in each.model.graph.inputs if value.consumers or value in each.model.graph.outputs]
            for each in shapes
        )
        return {*before, *(self.names.get(name, name) for name in after)} - {*self.computed}


def _unknown_equivalence(rewritten: Model, reason: str) -> Equivalence:
    outputs = [OutputProof(value.name, "unknown", reason=reason) for value in rewritten.graph.outputs]
    return Equivalence(tuple(outputs))


def _find_fault(
    original: Reading,
    rewritten: Reading,
    before: Shapes,
    after: Shapes,
    names: Mapping[str, str],
    required: RequiredProducts,
) -> str:
    """Return the reason for which no output is proven, "" for none."""
    if before.contradictions:
        return f"the original cannot run: {before.contradictions[0].message}"
    if after.contradictions:
        return f"the rewritten model cannot run: {after.contradictions[0].message}"
    if any(scope.problems for scope in all_scopes(rewritten.model.scopes)):
        return "a node of the rewritten model stands before one that it reads"
    if odd := next((fault for each in (original, rewritten) for fault in odd_flags(each.model)), ""):
        return odd
    if fault := next(branch_faults(original, rewritten), ""):
        return fault
    if not stacks_of_nothing(rewritten.model) <= stacks_of_nothing(original.model):
        return "a Loop that may have no iteration would stack outputs of other dims then"
    if failures := new_failures(original, rewritten):
        return f"the rewritten model may fail where the original runs: {', '.join(failures)}"
    read = original.values, rewritten.values
    return next(declared_faults(original.model, rewritten.model, before, after, names, required, read), "")


def _prove_outputs(
    original: Reading,
    rewritten: Reading,
    shapes: tuple[Shapes, Shapes],
    names: Mapping[str, str],
    fault: str,
    exactness: Exactness,
    constants: Constants,
) -> tuple[OutputProof, ...]:
    theirs = {value.name: value for value in original.model.graph.outputs}
    symbols, found = new_symbols(original.model, rewritten.model, names), []
    for value in rewritten.model.graph.outputs:
        other = theirs[names.get(value.name, value.name)]
        terms = original.values[other], rewritten.values[value]
        declared = output_fault(other, value, (shapes[0][other].dims, shapes[1][value].dims), symbols)
        if terms[0] is not terms[1]:
            reason = f"{find_difference(*terms)}; {fault}" if fault else find_difference(*terms)
            odd = differing_exprs(*terms, constants)
            found.append(OutputProof(value.name, "unknown", reason=reason, differing=odd))
        elif fault or declared:
            found.append(OutputProof(value.name, "unknown", reason=fault or declared))
        else:
            found.append(OutputProof(value.name, "proven", exactness))
    return tuple(found)


def _size_conditions(rewritten: Shapes) -> tuple[str, ...]:
    """Return the sizes that a proof is about."""
    found = set[tuple[str, Bound, Bound]]()
    for value in rewritten.model.graph.inputs:
        dims = rewritten.first[value].dims if value in rewritten.first else None
        for dim, text in zip(dims or (), declared_dims(value) or (), strict=False):
            called = text if isinstance(text, str) and dim.name else None  # one name of dims that may differ
            found |= {(called or each.name, each.lower, each.upper) for each in dim.walk_symbols()}
    return tuple(_bounds_text(*each) for each in sorted(found))


def _bounds_text(name: str, low: Bound, high: Bound) -> str:
    """Return the sizes of a dim, such as `n >= 1`, `1 <= n <= 8` or `n = 4`."""
    if low == high:
        return f"{name} = {low}"
    return f"{name} >= {low}" if high == INF else f"{low} <= {name} <= {high}"


def _shared_dims(shapes: Shapes, read: Container[str]) -> tuple[str, ...]:
    """Return which dims of inputs are taken for one size: no runtime checks what they are called."""
    places: dict[str, list[str]] = {}
    called: dict[str, int] = {}  # how many dims a name is declared for
    for value in shapes.model.graph.inputs:
        known = shapes.first[value].dims if value.name in read and value in shapes.first else None
        for axis, (dim, text) in enumerate(zip(known or (), declared_dims(value) or (), strict=False)):
            called[str(text)] = called.get(str(text), 0) + 1
            if dim.name is not None:
                places.setdefault(dim.name, []).append(f"{value.name}.{axis}")
    shared = {name: dims for name, dims in places.items() if len(dims) > 1}
    whole = [name for name, dims in shared.items() if len(dims) == called.get(name)]
    first = [f"one {join_words([str(symbol(name)) for name in whole])}"] if whole else []
    return (*first, *(f"equal {_places_text(dims)}" for name, dims in shared.items() if name not in whole))


def _places_text(dims: Sequence[str]) -> str:
    labels = [*label_families(dims)]
    return join_words(labels) if len(labels) < 4 else family_labels(dims)


def _taken_at_their_word(shapes: Shapes, names: Mapping[str, str], free: Sequence[str]) -> list[tuple[str, Expr]]:
    """Return the dims that are expressions of other dims because an input says so: no runtime checks that."""
    inputs = [(value, shapes.first[value].dims or ()) for value in shapes.model.graph.inputs if value in shapes.first]
    return [
        (f"{names.get(value.name, value.name)}.{axis}", dim)
        for value, dims in inputs
        if value.name not in free
        for axis, dim in enumerate(dims)
        if dim.constant is None and dim.name is None
    ]
