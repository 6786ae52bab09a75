"""Sizes of symbols that follow from others: by the equalities of a graph, or of a model and its rewrite.

Only linear equalities that hold wherever the model runs count. Two dims that broadcast may differ, for one of them may
be 1. A folded model has numbers where its original has symbols.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from graphkit.dtypes import dtype_name
from graphkit.errors import UsageError
from graphkit.graph.declared_types import declared_type
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.ops.registry import forget_on_registration
from graphkit.shapes import Expr, Relation, const, infer, symbol
from graphkit.shapes.constraints.legal_sizes import legal_sizes
from graphkit.shapes.constraints.node_constraints import Values
from graphkit.shapes.graph_inputs import AS_DECLARED, DimSpec, Inputs
from graphkit.shapes.input_dims import input_dims, read_alike
from graphkit.symbolic.algebra import Row, fixed_sizes, linear_row, reduce_rows, solve_symbol
from graphkit.symbolic.expr import TooComplexError

RANK_OF = "?rank of "  # before the name of a value of unknown rank


def equal_symbols(model: Model) -> dict[str, tuple[str, ...]]:
    """Return, for each symbol of the inputs, those that it always equals, itself included, in the order of inputs."""
    names, rows = _symbols_and_relations(model)
    known = reduce_rows(rows, names[::-1])
    classes: dict[frozenset[tuple[str, Fraction]], list[str]] = {}
    for name in names:
        row = known.get(name, {})
        meaning = {symbol: -factor for symbol, factor in row.items() if symbol != name} if row else {name: Fraction(1)}
        classes.setdefault(frozenset(meaning.items()), []).append(name)
    return {name: tuple(members) for members in classes.values() for name in members}


def needed_size(model: Model, name: str) -> Expr | None:
    """Return what a symbol of the inputs must be, in others, None where no node says so."""
    names, rows = _symbols_and_relations(model)
    known = reduce_rows(rows, [name, *(other for other in names if other != name)])
    return solve_symbol(name, known, {other: symbol(other) for other in names})


def sizes_beside(model: Model, name: str) -> list[Expr]:
    """Return what a symbol is if nothing broadcasts, or by the role of a mask: it spans past and new tokens."""
    legal, shapes = legal_sizes(model), infer(model)
    totals = [legal.past + legal.tokens] if legal.past and legal.tokens and symbol(name) in legal.totals else []
    sides = [side for fact in shapes.broadcasts for side in ((fact.left, fact.right), (fact.right, fact.left))]
    return [*totals, *(right for left, right in sides if left.name == name)]


def forced_sizes(model: Model, sizes: Mapping[str, int]) -> dict[str, Fraction]:
    """Return the sizes of the other symbols that follow from some; a fraction or a negative one is impossible."""
    names, rows = _symbols_and_relations(model, DimSpec(ranges=tuple((name, None, None) for name in sizes)))
    known: list[Row] = [{name: Fraction(1), "": Fraction(-size)} for name, size in sizes.items()]
    together = reduce_rows([*known, *rows], names)
    if "" in together:
        names = [*sizes, *{name: None for row in rows for name in row if name}]
        broken = next(row for at, row in enumerate(rows, 1) if "" in reduce_rows([*known, *rows[:at]], names))
        text = ", ".join(f"{name}={size}" for name, size in sizes.items())
        needed = " = ".join((_side_text(broken, 1), _side_text(broken, -1)))
        raise UsageError(f"{model.label}: it cannot run with {text}: the graph needs {needed} - give other sizes")
    return {name: size for name, size in fixed_sizes(together).items() if name and name not in sizes}


def _side_text(row: Row, sign: int) -> str:
    """Return the terms of an equation that have a sign, in words of an expression."""
    terms = [(name, abs(factor)) for name, factor in row.items() if factor * sign > 0]
    texts = [f"{factor}*{name}" if name and factor != 1 else name or str(factor) for name, factor in terms]
    return " + ".join(texts) or "0"


@lru_cache(maxsize=8)  # an oracle asks for each input of each call
def _symbols_and_relations(model: Model, spec: DimSpec = AS_DECLARED) -> tuple[Sequence[str], Sequence[Row]]:
    """Return the symbols in the order of the inputs, and the relations that hold between them."""
    legal = legal_sizes(model, spec)
    dims = (dim for dims in legal.inputs.values() for dim in dims or ())
    names = dict.fromkeys(symbol.name for dim in dims for symbol in dim.walk_symbols())
    rows: list[Row] = []
    for relation in legal.relations:
        with suppress(TooComplexError):
            row = linear_row(relation.left - relation.right) if relation.relation == "==" else None
            rows += [row] if row else []
    return tuple(names), tuple(rows)


forget_on_registration(_symbols_and_relations.cache_clear)


class Pair(NamedTuple):
    """A dim of an input, and the size that it must have."""

    name: str
    dim: Expr
    size: Expr


def fed_inputs(model: Model) -> dict[str, Value]:
    """Return the inputs without a default, which must be fed, by name."""
    return {value.name: value for value in model.graph.inputs if value.tensor is None}


Dims = Sequence[Expr] | None  # None where the rank is not known


def fixed_by(
    original: Model, rewritten: Model, spec: DimSpec = AS_DECLARED, computed: Mapping[str, Dims] = MappingProxyType({})
) -> tuple[list[Pair], DimSpec]:
    """Return the dims of `original` that its rewritten model fixes, with the size of each, by the symbols of a spec.

    A symbol of the rewritten model stands for a dim of the original. If it occurs twice, the two dims are equal. Inputs
    of the rewritten model may be values that the original computes, with the dims in `computed`. Dims of one name that
    differ in the rewritten model have symbols of their own in the spec that is returned. A UsageError says that the
    rewritten model has another input, or one of another dtype, rank or size.
    """
    pairs: list[Pair] = []
    theirs, ours = fed_inputs(rewritten), fed_inputs(original)
    first, now = (read.dims for read in read_alike(original, rewritten))
    usual = ((name, axis, dim) for name, dims in input_dims(original).items() for axis, dim in enumerate(dims or ()))
    apart = [f"{name}.{axis}" for name, axis, dim in usual if dim != (first[name] or ())[axis]]
    spec = DimSpec.of(ranges=dict.fromkeys(apart, (None, None))) | spec
    was = Inputs(original, spec).symbolic
    labels = original.label, rewritten.label
    for name in theirs:
        if name in computed:  # nothing follows where a run fails for another rank or number
            before, after = computed[name], now.get(name)
            if before is None and after is not None:
                pairs.append(Pair(name, symbol(f"{RANK_OF}{name}"), const(len(after))))
            elif before is not None and after is not None and len(before) == len(after):
                both = [Pair(name, *pair) for pair in zip(before, after, strict=True)]
                pairs += [pair for pair in both if pair.dim.constant is None or pair.size.constant is None]
            continue
        if name not in ours:
            has_default = any(value.name == name for value in original.graph.inputs)
            reason = f"has no default, as it has in {labels[0]}" if has_default else f"is none of {labels[0]}"
            raise UsageError(f"{labels[1]}: its input '{name}' {reason} - compare other models")
        kinds = declared_type(ours[name]), declared_type(theirs[name])
        if kinds[0] is not None and kinds[1] is not None and kinds[0].dtype != kinds[1].dtype:
            raise _unlike_error(name, (dtype_name(kinds[0].dtype), dtype_name(kinds[1].dtype)), labels)
        before, after = was.get(name), now.get(name)
        if before is None or after is None:
            continue
        numbers = zip(before, after, strict=False)
        is_other = any(a.constant is not None and b.constant is not None and a != b for a, b in numbers)
        if len(before) != len(after) or is_other:
            raise _unlike_error(name, (f"[{', '.join(map(str, before))}]", f"[{', '.join(map(str, after))}]"), labels)
        pairs += [Pair(name, *pair) for pair in zip(before, after, strict=True)]
    meanings: dict[str, Expr] = {}
    for pair in pairs:
        if pair.size.name is not None:
            meanings.setdefault(pair.size.name, pair.dim)
    known = [Pair(name, dim, size.substitute(meanings)) for name, dim, size in pairs if size.symbols <= meanings.keys()]
    return [pair for pair in known if pair.dim != pair.size], spec


def _unlike_error(name: str, kinds: tuple[str, str], labels: tuple[str, str]) -> UsageError:
    where = " and ".join(f"{kind} in {label}" for kind, label in zip(kinds, labels, strict=True))
    return UsageError(f"input '{name}' is {where} - compare models of the same inputs")


def solve_dims(pairs: Iterable[Pair], dims: Mapping[str, int]) -> tuple[dict[str, int], list[Relation]]:
    """Return the sizes that pairs and dims fix, and the relations that stay open; UsageError for contradictions."""
    numbers = dict(dims)
    todo = [(pair, Relation.equal(pair.dim, pair.size)) for pair in pairs]
    while todo:
        todo = [(pair, relation.substitute(numbers).against_zero()) for pair, relation in todo]
        for pair, relation in todo:
            if not relation.symbols and not Values.at({}).is_met(relation).all():
                names = sorted(pair.dim.symbols | pair.size.symbols)
                where = ", ".join(f"{name}={numbers[name]}" for name in names if name in numbers)
                problem = f"a dim of input '{pair.name}' is {pair.dim} - it cannot be {pair.size}"
                raise UsageError(f"{problem} with {where}" if where else problem)
        todo = [(pair, relation) for pair, relation in todo if relation.symbols]
        found: dict[str, int] = {}
        for _, relation in todo:
            name, *others = relation.symbols
            size = relation.forced_size() if not others else None
            if size is not None and size < 0:
                raise UsageError(f"'{name}' would be {size} - give sizes that fit together")
            if size is not None:
                found[name] = size
        if not found:
            break
        numbers.update(found)
    return numbers, [relation for _, relation in todo]
