"""Which dims of one name the nodes of a model relate: a node needs them to be equal, or computes with both at one axis.

That is where a name tells something. Dims of one name that no node relates may differ, whatever they are called.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import combinations

from graphkit.graph.operator_traits import MOVING, names
from graphkit.graph.view import all_nodes
from graphkit.model import Model
from graphkit.shapes.constraints.legal_sizes import concatenated
from graphkit.shapes.expr import Call, Expr
from graphkit.shapes.expr_limits import TooComplexError
from graphkit.shapes.graph_inputs import Inputs
from graphkit.shapes.infer import infer_from
from graphkit.shapes.inferred_shapes import Shapes
from graphkit.shapes.input_dims import DeclaredInputs, Group

__all__ = ["related_groups"]

APART = MOVING | names("Einsum Gemm MatMul OneHot")  # the dims of whose inputs go together in other ways


def related_groups(
    model: Model, groups: Mapping[str, Sequence[Group]], apart: Collection[Group]
) -> dict[str, list[Group]]:
    """Return groups of dims of one name, joined where a node relates them, but for two that are to stay apart."""
    declared = DeclaredInputs.of(model, groups)
    joined = {name: list(parts) for name, parts in groups.items()}
    facts = list(_facts(infer_from(model, Inputs(model, declared=declared))))
    symbols = {group: declared.at(group[0]) for parts in groups.values() for group in parts}
    kept = {symbols[group] for group in apart}
    while (found := _first(facts, joined, symbols, kept)) is not None:
        name, left, right = found
        first, second = sorted((left, right), key=lambda group: symbols[group] not in kept)
        both = (*first, *second)
        symbols[both] = symbols[first]
        joined[name] = [both if group == left else group for group in joined[name] if group != right]
        facts = [fact.substitute({str(symbols[second].name): symbols[first]}) for fact in facts]
    return joined


def _first(
    facts: Sequence[Expr], groups: Mapping[str, Sequence[Group]], symbols: Mapping[Group, Expr], kept: Collection[Expr]
) -> tuple[str, Group, Group] | None:
    """Return the first two groups that a fact relates, and their name."""
    for fact in facts:
        for name, parts in groups.items():
            known = [group for group in parts if symbols[group].symbols <= fact.symbols]
            for left, right in combinations(known, 2):
                if {symbols[left], symbols[right]} <= set(kept):
                    continue
                if fact.substitute({str(symbols[right].name): symbols[left]}) == 0:
                    return name, left, right
    return None


def _facts(shapes: Shapes) -> Iterator[Expr]:
    """Yield differences that are 0 wherever nodes run, or where they do not broadcast.

    A tensor that is cut into pieces is as large as all of these: that needs a divisor, and no equal dims.
    """
    noted = [*shapes.equalities, *shapes.broadcasts, *concatenated(shapes)]
    pairs = dict.fromkeys([*((fact.left, fact.right) for fact in noted), *_at_one_axis(shapes)])
    for left, right in pairs:
        with suppress(TooComplexError):
            difference = left - right
            if len(difference.symbols) > 1 and not _divides(difference):
                yield difference


def _at_one_axis(shapes: Shapes) -> Iterator[tuple[Expr, Expr]]:
    """Yield the dims of inputs of one node that are at the same axis, where it computes with both."""
    for node in all_nodes(shapes.model.scopes):
        if node.operator in APART or node.bodies or node.op_type.startswith("Scatter"):
            continue
        every = [dims for value in node.operands if (dims := shapes[value].dims) is not None and len(dims) > 1]
        for left, right in combinations(every, 2):
            yield from zip(left, right, strict=False)


def _divides(expr: Expr) -> bool:
    calls = [atom for monomial, _ in expr.terms for atom in monomial if isinstance(atom, Call)]
    return any(call.op in ("//", "%") or any(map(_divides, call.args)) for call in calls)
