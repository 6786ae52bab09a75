"""Check that a rewritten model is equal to its original at every legal size and for every input.

Both models are read into one table of terms, over the same inputs, and brought to one normal form by the axioms. An
output is proven where both have the same term: bit for bit; else, when both are read again with axioms of real numbers,
in exact arithmetic, where nothing is claimed of rounding, overflow, NaN, infinities and the signs of zeros. What that
trusts: the axioms, and that the original loads. It shares nothing with the passes that rewrite models but the shape
engine, of which it believes no word that onnxruntime does not confirm: see `checked_facts`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from types import MappingProxyType

from msgspec.structs import replace

from graphkit.equivalence import interface, sizes
from graphkit.equivalence.application import Names, Reading, Tools
from graphkit.equivalence.axioms import AXIOMS, Axiom
from graphkit.equivalence.checked_facts import compare_facts
from graphkit.equivalence.failures import branch_faults, new_failures
from graphkit.equivalence.loading import loading_fault, whole_fault
from graphkit.equivalence.reader import Pair, read_pair
from graphkit.equivalence.result import GRADES, ComparedConstants, Equivalence, Exactness, ExprPair, OutputProof
from graphkit.equivalence.spelling import inline_model, kernel_fault
from graphkit.equivalence.terms import Constants, Term, Terms
from graphkit.errors import ModelError, UsageError
from graphkit.graph.dataflow import find_misfit
from graphkit.graph.declared_types import declared_dims
from graphkit.graph.names import family_labels, group_pairs, join_words, label_families
from graphkit.graph.view import Value, all_nodes, all_scopes, chain_end
from graphkit.matching.value_numbering import ConstantNumbers
from graphkit.model import Model, ModelLike, as_model
from graphkit.ops.rule_context import UnknownError
from graphkit.ops.tensor import MAX_ELEMENTS
from graphkit.progress import OutOfTimeError, time_limit
from graphkit.shapes import AS_DECLARED, DimSpec, Expr, Shapes, symbol
from graphkit.shapes.input_dims import DimNames, read_alike
from graphkit.symbolic.expr import INF, Bound, TooComplexError

Both = tuple[Shapes, Shapes]  # of the original and of the rewritten model


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
    axioms: Sequence[Axiom] = AXIOMS,
    real_axioms: Sequence[Axiom] | None = None,
    seed: int = 0,
    dims: DimNames = "related",
    computed: Sequence[str] = (),
    numbers: ConstantNumbers | None = None,
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
        real_axioms: Those that may be used in exact arithmetic; None for all.
        seed: Of the sizes at which the shape engine is compared with onnxruntime.
        dims: Which dims of the inputs that have one name are one size: see `graphkit.shapes.input_dims`.
        computed: Inputs of the original whose dims are those of its other ones, by their names.
        numbers: Those of large weights that another check has compared, which are not read again.

    Returns:
        For each output whether it is proven, or why it is unknown.

    Raises:
        ModelError: The meaning of a model is not certain: see `Model.check_soundness`.

    Example:
        >>> model = graphkit.load("example:causal-attention")
        >>> check_equivalence(model, graphkit.fold(model).model).is_proven
        True
    """
    models, names = (as_model(original), as_model(rewritten)), renamed or {}
    before, after = map(inline_model, models)
    try:
        declared = read_alike(before, after, names, dims=dims, computed=computed)
        constants = Constants(Terms(), numbers)
        fixed = {*(values or ()), *unread}
        of_inputs = interface.input_faults(before, after, names, fixed, constants, narrower=narrower, free=free)
        faults = chain(of_inputs, interface.output_faults(before, after, names, unwritten))
        if fault := next(faults, "") or loading_fault(*models):
            raise UnknownError(fault)
        common = partial(sizes.common_shapes, before, after, names, values or {}, narrower=narrower, free=free)
        for is_rough in (True, False) if dims == "apart" else (False,):
            shapes = common(declared=declared, is_rough=is_rough)
            if dims == "apart" and (name := _find_other_shape(*shapes, is_rough=is_rough)):
                raise UnknownError(f"where dims of one name differ, '{name}' has other dims in each model")
        if fault := kernel_fault(models[0], shapes[0]) or kernel_fault(models[1], shapes[1]):
            raise UnknownError(fault)
        tools = Tools.of(constants, sizes.RequiredProducts(sizes.required_equalities(shapes[0])))
        with compare_facts(seed) as facts:

            def begin_comparing(read: Shapes, reading: Reading) -> None:
                facts.begin(read, reading)
                facts.begin(shapes[1])

            exact = read_pair((before, after), shapes, tools, names, axioms, whenever_read=begin_comparing)
            found = _prove_outputs(exact, shapes, tools, names, real_axioms)
            if not found.proven:
                return found
            if fault := whole_fault(*models, has_dead=bool(exact[1].result.unread)):
                return found.unproven(fault)
            count, fault = facts.finish()
            if fault:
                return found.unproven(fault)
            if odd := next((limit for limit in found.limits if limit.is_impossible or limit.is_bounded), None):
                where = "no size" if odd.is_impossible else "not all sizes that are declared"
                return found.unproven(f"it would hold for {odd}, and so for {where}")
            claimed = [f"{place} = {dim}" for place, dim in _taken_at_their_word(shapes[1], names, free)]
            conditions = [*found.conditions, *map(str, found.limits)]
            conditions += interface.narrowed_dims(names, declared) if narrower else ()
            conditions += [*sizes.counting_conditions(*shapes), *(f"{claim}, as declared" for claim in claimed)]
            shared = (*_shared_dims(shapes[0], _read_inputs(shapes, names) - {*computed}), *claimed)
            return replace(found, conditions=tuple(conditions), compared=count, shared_dims=shared)
    except (TooComplexError, UnknownError) as error:
        return Equivalence.unknown((value.name for value in after.graph.outputs), str(error))


def _find_other_shape(before: Shapes, after: Shapes, *, is_rough: bool = False) -> str:
    """Return the name of what nodes of both models compute, in other dims, "" for none: to see it costs no reading.

    Rough shapes differ where a dim of one input is that of another: nothing that is learned makes these equal.
    """
    known = {value.name: before[value].dims for value in before.model.graph.values.values() if value.kind == "node"}
    others = ((value.name, after[value].dims) for value in after.model.graph.values.values() if value.kind == "node")
    for name, dims in others:
        if dims and (other := known.get(name)) and dims != other:
            names = [(one.name or "?", two.name or "?") for one, two in zip(dims, other, strict=False)]
            if not is_rough or any(one != two and "?" not in (one[0], two[0]) for one, two in names):
                return name
    return ""


def _read_inputs(shapes: Both, names: Names) -> set[str]:
    """Return the inputs that a node of either model reads, by their names in the original."""
    graphs = [each.model.graph for each in shapes]
    before, after = (
        [value.name for value in graph.inputs if value.consumers or value in graph.outputs] for graph in graphs
    )
    return {*before, *(names.get(name, name) for name in after)}


def _find_fault(pair: Pair, shapes: Both, names: Names, required: sizes.RequiredProducts) -> str:
    """Return the reason for which no output is proven, "" for none."""
    original, rewritten = (reader.result for reader in pair)
    for model, each in zip(("original", "rewritten model"), shapes, strict=True):
        if each.contradictions:
            return f"the {model} cannot run: {each.contradictions[0].message}"
    if any(scope.problems for scope in all_scopes(rewritten.model.scopes)):
        return "a node of the rewritten model stands before one that it reads"
    if odd := next((fault for each in (original, rewritten) for fault in interface.odd_flags(each.model)), ""):
        return odd
    if fault := next(branch_faults(original, rewritten), ""):
        return fault
    if not sizes.stacks_of_nothing(rewritten.model) <= sizes.stacks_of_nothing(original.model):
        return "a Loop that may have no iteration would stack outputs of other dims then"
    read = original.values, rewritten.values
    return next(interface.declared_faults((original.model, rewritten.model), shapes, names, required, read), "")


def _find_failures(pair: Pair) -> str:
    """Return which nodes of the rewritten model may fail where the original runs, "" for none."""
    failures = new_failures(*(reader.result for reader in pair))
    return f"the rewritten model may fail where the original runs: {', '.join(failures)}" if failures else ""


def _prove_outputs(
    exact: Pair, shapes: Both, tools: Tools, names: Names, real_axioms: Sequence[Axiom] | None
) -> Equivalence:
    """Return which outputs are equal, as far as terms tell: bit for bit, or else in exact arithmetic."""
    terms, constants = tools.terms, tools.constants
    fault = _find_fault(exact, shapes, names, tools.required)
    failing = _find_failures(exact)
    proofs = _compare_outputs(exact, shapes, names, fault or failing, "bit for bit", constants)
    used, compared = dict(terms.used), ComparedConstants()
    if not fault and any(proof.verdict != "proven" for proof in proofs):
        from graphkit.equivalence.linear import REAL  # which what is proven bit for bit needs not

        real_axioms = REAL if real_axioms is None else real_axioms
        terms.used.clear()
        real = read_pair((exact[0].model, exact[1].model), shapes, tools, names, real_axioms, exact)
        failing = failing and _find_failures(real)
        found = _compare_outputs(real, shapes, names, failing, "in exact arithmetic", constants)
        proofs = tuple(old if old.verdict == "proven" else new for old, new in zip(proofs, found, strict=True))
        used |= terms.used
        if any(proof.exactness == GRADES[1] for proof in proofs):
            compared = tools.reals.compared_constants()
    limits = sizes.size_limits(shapes, lambda expr: tools.required.expr(exact[0].facts.rewriter.expr(expr)))
    turns, conditions = sizes.turning_numbers(shapes, limits), _size_conditions(shapes[1])
    used = dict(sorted(used.items()))
    return Equivalence(proofs, used, conditions, limits, turns, len(terms.known), constants=compared)


def _compare_outputs(
    pair: Pair, shapes: Both, names: Names, fault: str, exactness: Exactness, constants: Constants
) -> tuple[OutputProof, ...]:
    original, rewritten = (reader.result for reader in pair)
    theirs = {value.name: value for value in original.model.graph.outputs}
    symbols, found = interface.new_symbols(original.model, rewritten.model, names), []
    for value in rewritten.model.graph.outputs:
        other = theirs[names.get(value.name, value.name)]
        terms = original.values[other], rewritten.values[value]
        declared = interface.output_fault(other, value, (shapes[0][other].dims, shapes[1][value].dims), symbols)
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
    found = set[tuple[str, Bound, Bound]]()
    for value in rewritten.model.graph.inputs:
        dims = rewritten.first[value].dims if value in rewritten.first else None
        for dim, text in zip(dims or (), declared_dims(value) or (), strict=False):
            called = text if isinstance(text, str) and dim.name else None  # one name of dims that may differ
            found |= {(called or each.name, each.lower, each.upper) for each in dim.walk_symbols()}
    return tuple(
        f"{name} = {low}" if low == high else f"{name} >= {low}" if high == INF else f"{low} <= {name} <= {high}"
        for name, low, high in sorted(found)
    )


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
    others = [dims for name, dims in shared.items() if name not in whole]
    labels = [(dims, [*label_families(dims)]) for dims in others]
    texts = (join_words(listed) if len(listed) < 4 else family_labels(dims) for dims, listed in labels)
    return (*first, *(f"equal {text}" for text in texts))


def _taken_at_their_word(shapes: Shapes, names: Names, free: Sequence[str]) -> list[tuple[str, Expr]]:
    """Return the dims that are expressions of other dims because an input says so: no runtime checks that."""
    inputs = [(value, shapes.first[value].dims or ()) for value in shapes.model.graph.inputs if value in shapes.first]
    return [
        (f"{names.get(value.name, value.name)}.{axis}", dim)
        for value, dims in inputs
        if value.name not in free
        for axis, dim in enumerate(dims)
        if dim.constant is None and dim.name is None
    ]


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
    where = next(filter(None, [each.origins[side] for each in (term, *term.args) if each is not None]), "")
    shape = "" if term.dims is None else f" [{', '.join(map(str, term.dims))}]"
    return f"{term.op}{shape}" + (f" at {where}" if where else "")


SECONDS = 20.0
KNOWN = ("Constant", "Elements")  # terms whose elements are known
ValuePair = tuple[Value, Value]
AlikeBy = Callable[[Value], Hashable]


def shared_values(
    a: Model, b: Model, numbers: ConstantNumbers, spec: DimSpec = AS_DECLARED, names_in_a: Names = MappingProxyType({})
) -> Iterator[ValuePair]:
    """Yield the values of two main graphs that are equal by their normal forms, in exact arithmetic at least.

    This says where to look, not that the models are equal: what `check_equivalence` checks of interfaces and of nodes
    that may fail is left out. Of several values with one form, those of one name belong together, then the first ones.
    What has known elements is left out, but for two values that nodes of one operator compute, and no other one has.
    There are none of models whose meaning is not certain, or that take long.

    With the `numbers` of the constants of both, large ones are not read again. The inputs of both have the sizes that
    `spec` gives those of `b`, and `names_in_a` says what these are called in `a`.
    """
    try:
        with time_limit("the search for equal values", SECONDS):
            found = list(_shared_pairs(a, b, numbers, spec, names_in_a))
    except (ModelError, OutOfTimeError, TooComplexError, UnknownError, UsageError):
        return
    yield from found


def _shared_pairs(
    a: Model, b: Model, numbers: ConstantNumbers, spec: DimSpec, names_in_a: Names
) -> Iterator[ValuePair]:
    from graphkit.equivalence.linear import REAL

    models = inline_model(a), inline_model(b)
    shapes = sizes.common_shapes(*models, names_in_a, None, narrower=True, spec=spec)
    if any(find_misfit(node) for each in models for node in all_nodes(each.scopes)):
        return
    tools = Tools.of(Constants(Terms(), numbers), sizes.RequiredProducts(sizes.required_equalities(shapes[0])))
    exact = read_pair(models, shapes, tools, names_in_a, AXIOMS)
    for first, second in (exact, read_pair(models, shapes, tools, names_in_a, REAL, exact)):
        yield from _pair_by_term(_by_term(a, first.result), _by_term(b, second.result))


def _pair_by_term(mine: Mapping[Term, list[Value]], theirs: Mapping[Term, list[Value]]) -> Iterator[ValuePair]:
    for term, values in mine.items():
        others = theirs.get(term, [])
        if term.op not in KNOWN:
            for key in KEYS:
                pairs = _pair_alike(values, others, key)
                yield from pairs.items()
                values = [value for value in values if value not in pairs]
                taken = {*pairs.values()}
                others = [other for other in others if other not in taken]
        elif len(values) == len(others) == 1:  # more are equal by chance, as shapes may be
            yield from _pair_alike(values, others, _operator_key).items()


def _pair_alike(values: Sequence[Value], others: Sequence[Value], key: AlikeBy) -> dict[Value, Value]:
    waiting = group_pairs((key(other), other) for other in others)
    return {value: found.pop(0) for value in values if (found := waiting.get(key(value)))}


def _operator_key(value: Value) -> Hashable:
    return None if value.producer is None else (value.producer.operator, len(value.producer.inputs))


# By what values of one form are told apart, the surest first.
KEYS: tuple[AlikeBy, ...] = (
    lambda value: (value.name, _operator_key(value)), _operator_key, lambda value: value.name, lambda _: None,
)  # fmt: skip


def _by_term(model: Model, reading: Reading) -> dict[Term, list[Value]]:
    """Return the values of a main graph that nodes compute, by term."""
    read = ((value.name, term) for value, term in reading.values.items() if value.scope is reading.model.graph)
    here = ((term, model.graph.values.get(name)) for name, term in read)  # None for what a function computes
    return group_pairs((term, value) for term, value in here if value is not None and value.producer is not None)
