"""Which dims of one name the nodes of a model relate: a node needs them to be equal, or computes with both at one axis.

That is where a name tells something. Dims of one name that no node relates may differ, whatever they are called.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import combinations

from graphkit.graph.operator_traits import PICKING, PRESERVING, joined_parts, operator_set
from graphkit.graph.view import all_nodes
from graphkit.model import Model
from graphkit.shapes.graph_inputs import Inputs
from graphkit.shapes.infer import infer_from, infer_roughly
from graphkit.shapes.inferred_shapes import Shapes
from graphkit.shapes.input_dims import DeclaredInputs, Group, Groups, Place
from graphkit.symbolic.expr import Call, Expr, TooComplexError

# The dims of whose inputs go together in other ways.
APART = PRESERVING | PICKING | operator_set("Einsum Gemm MatMul OneHot")


def related_groups(model: Model, groups: Groups, apart: Collection[Group]) -> dict[str, list[Group]]:
    """Return groups of dims of one name, joined where a node relates them, but for those that are to stay apart."""
    declared = DeclaredInputs.of(model, groups)
    inputs = Inputs(model, declared=declared)
    joined = _join_groups(_zero_differences(infer_roughly(model, inputs)), declared, groups, apart)
    if any(len(parts) > 1 for parts in joined.values()):  # what further passes learn may relate others
        joined = _join_groups(_zero_differences(infer_from(model, inputs)), declared, groups, apart)
    return joined


def _join_groups(
    known_facts: Iterable[Expr], declared: DeclaredInputs, groups: Groups, apart: Collection[Group]
) -> dict[str, list[Group]]:
    symbols = {declared.at(group[0]): (name, group in apart) for name, parts in groups.items() for group in parts}
    facts = list(known_facts)
    one: dict[str, Expr] = {}  # the symbol that another one equals, by its name
    while equal := next(filter(None, (_equal_symbols(fact, symbols) for fact in facts)), None):
        one |= equal
        facts = [fact.substitute(equal) for fact in facts]
    joined: dict[str, dict[Expr, list[Place]]] = {name: {} for name in groups}
    for name, parts in groups.items():
        for group in parts:
            known = declared.at(group[0])
            while known.name in one:
                known = one[known.name]
            joined[name].setdefault(known, []).extend(group)
    return {name: [tuple(places) for places in parts.values()] for name, parts in joined.items()}


def _equal_symbols(fact: Expr, symbols: Mapping[Expr, tuple[str, bool]]) -> dict[str, Expr]:
    """Return symbols of one name that a fact says to be equal: two of them, or else as many as there are."""
    by_name: dict[str, list[Expr]] = {}
    for known, (name, is_apart) in symbols.items():
        if known.symbols <= fact.symbols:
            by_name.setdefault(name, []).insert(0 if is_apart else len(symbols), known)
    pairs = [pair for known in by_name.values() for pair in combinations(known, 2) if not symbols[pair[1]][1]]
    if any(_cuts_dim(fact, first.symbols | second.symbols) for first, second in pairs):
        return {}
    every = {str(second.name): first for first, second in reversed(pairs)}
    choices = [*({str(second.name): first} for first, second in pairs), every]
    return next((choice for choice in choices if fact.terms and fact.substitute(choice) == 0), {})


def _cuts_dim(expr: Expr, names: Collection[str]) -> bool:
    """Whether one of two dims is divided by the other: what is cut into pieces is as large as all of these, always."""
    calls = [atom for monomial, _ in expr.terms for atom in monomial if isinstance(atom, Call)]
    divisions = [call for call in calls if call.op in ("//", "%")]
    is_cut = any({*names} <= call.args[0].symbols | call.args[1].symbols for call in divisions)
    return is_cut or any(_cuts_dim(arg, names) for call in calls for arg in call.args)


def _zero_differences(shapes: Shapes) -> Iterator[Expr]:
    """Yield differences that are 0 wherever nodes run, or where they do not broadcast."""
    noted = (*shapes.equalities, *shapes.broadcasts)
    pairs = dict.fromkeys([*((fact.left, fact.right) for fact in noted), *_at_one_axis(shapes)])
    for left, right in pairs:
        with suppress(TooComplexError):
            difference = left - right
            if len(difference.symbols) > 1:
                yield difference


def _at_one_axis(shapes: Shapes) -> Iterator[tuple[Expr, Expr]]:
    """Yield the dims of inputs of one node that are at the same axis, where it computes with both."""
    for node in all_nodes(shapes.model.scopes):
        if node.operator in APART:
            continue
        every = [dims for value in node.operands if (dims := shapes[value].dims) is not None and len(dims) > 1]
        joined = node.axis(len(every[0])) if joined_parts(node) and every else None
        for left, right in combinations(every, 2):
            yield from (pair for axis, pair in enumerate(zip(left, right, strict=False)) if axis != joined)
