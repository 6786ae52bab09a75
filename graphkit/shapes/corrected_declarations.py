"""Correct declared dims of inputs that contradict the requirements of the nodes.

Some exporters declare the past as long as `past_sequence_length + sequence_length`, or the mask as long as the tokens.
With such dims the model runs only without new tokens, or not at all. If the nodes restrict the lengths more than the
declarations do, each length gets a symbol of its own, the shapes are inferred anew, and equalities then tell the length
of each mask. Lengths that the nodes do not decide stay as declared.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from graphkit.graph.declared_types import declared_type, shape_text
from graphkit.graph.names import family_labels
from graphkit.graph.roles import Role, count_captured_values, declared_rank
from graphkit.graph.view import Scope
from graphkit.model import Model, ModelLike, as_model
from graphkit.ops.registry import forget_on_registration
from graphkit.ops.tensor import is_known
from graphkit.shapes.graph_inputs import Inputs
from graphkit.shapes.infer import infer, infer_from
from graphkit.shapes.inferred_shapes import Shapes
from graphkit.shapes.input_dims import declare_dim, declared_texts, input_dims, read_dim
from graphkit.symbolic.algebra import Row, fixed_sizes, linear_equations, reduce_rows, solve_symbol
from graphkit.symbolic.expr import Expr, const, symbol

Kind = Literal["tokens", "past", "encoder", "mask", "encoder mask", "positions"]
KINDS: Mapping[Role, Kind] = {  # of the second axis
    "tokens": "tokens",
    "embeddings": "tokens",
    "mask": "mask",
    "encoder mask": "encoder mask",
    "positions": "positions",
    "token types": "positions",
    "encoder tokens": "encoder",
    "encoder state": "encoder",
}
ORDER: Sequence[Kind] = ("tokens", "encoder", "past", "positions", "mask", "encoder mask")
FOLLOWING = ("mask", "encoder mask", "positions")  # lengths that follow from others


class Length(Struct, frozen=True):
    """A length that one input declares as a dim, or several declare alike."""

    kind: Kind
    places: tuple[tuple[str, int], ...]  # the inputs, with the axis of each
    declared: Expr
    name: str  # its own symbol: the declared one unless another length has it


def find_lengths(model: Model) -> tuple[Length, ...]:
    """Return the lengths of a decoder's inputs that are not numbers, tokens first."""
    places_of: dict[tuple[Kind, str], list[tuple[str, int]]] = {}
    given = {value.name for value in model.graph.inputs if value.tensor is None}
    texts = {name: enumerate(dims or ()) for name, dims in declared_texts(model) if name in given}
    dims = {  # each text at its word: a past is called `past + sequence`
        name: tuple(symbol(f"{name}.{axis}") if dim is None else read_dim(dim, ()) for axis, dim in listed)
        for name, listed in texts.items()
    }
    for kind, name, axis in sorted(_length_places(model), key=lambda place: ORDER.index(place[0])):
        if dims[name][axis].constant is None:
            alone = name if kind in FOLLOWING else ""
            places_of.setdefault((kind, f"{alone}{dims[name][axis]}"), []).append((name, axis))
    others = {(name, axis): dim for name, known in dims.items() for axis, dim in enumerate(known)}
    for place in itertools.chain(*places_of.values()):
        del others[place]
    taken = {name for dim in others.values() for name in dim.symbols}
    result: list[Length] = []
    for (kind, _), places in places_of.items():
        (input_name, axis), *_ = places
        declared = dims[input_name][axis]
        symbol_name = _own_name(kind, declared, taken) or _usual_name(kind, result, taken) or f"{input_name}.{axis}"
        taken.add(symbol_name)
        result.append(Length(kind, tuple(places), declared, symbol_name))
    return tuple(result)


def _own_name(kind: Kind, declared: Expr, taken: Collection[str]) -> str | None:
    """Return a symbol of the declared dim that nothing else has, preferably that of the past."""
    if kind in FOLLOWING and declared.name is None:
        return None
    names = sorted(declared.symbols, key=lambda name: ("past" not in name, name))
    return next((name for name in names if name not in taken), None)


def _usual_name(kind: Kind, before: Sequence[Length], taken: Collection[str]) -> str | None:
    """Return the usual name of such a length. All lengths of the encoder share one name."""
    if kind == "encoder" and (name := next((length.name for length in before if length.kind == kind), None)):
        return name
    tokens = next((length.name for length in before if length.kind == "tokens"), "sequence_length")
    name = {"past": f"past_{tokens}", "encoder": "encoder_sequence_length"}.get(kind)
    return name if name not in taken else None


def _length_places(model: Model) -> Iterator[tuple[Kind, str, int]]:
    for past, entry in model.roles.pasts.items():
        if entry.axis is not None:
            yield "encoder" if model.roles.is_cross(entry) else "past", past.name, entry.axis
    for value, role in model.roles.inputs.items() if model.roles.cache else ():
        kind, count = KINDS.get(role), declared_rank(value)
        if kind is not None and (count == 2 or (count == 3 and role in ("embeddings", "encoder state"))):
            yield kind, value.name, 1


INDEPENDENT = ("tokens", "past", "encoder")


class Correction(Struct, frozen=True):
    """A declared dim that contradicts the nodes."""

    inputs: tuple[str, ...]
    declared: str  # their declared shape
    needed: str  # the shape that the nodes need
    why: str = ""  # the shape that they need in each branch of a merged decoder, "" if both need the same

    def __str__(self) -> str:
        return f"{family_labels(self.inputs)} is {self.needed}{self.why}, not {self.declared}"


class Declarations(Struct, frozen=True):
    """A model whose inputs declare the dims that its nodes need.

    Attributes:
        model: The corrected model, the same one if nothing is wrong.
    """

    model: Model
    corrections: tuple[Correction, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """One sentence if a declaration is wrong, else none."""
        if not self.corrections:
            return ()
        return (f"Declared dims contradict what the nodes compute: {'; '.join(map(str, self.corrections))}.",)


def declarations(model: ModelLike, *, is_branch: bool = False) -> Declarations:
    """Return a model with the dims of inputs declared as its nodes need them.

    Args:
        model: The model, or its path.
        is_branch: Whether it was one branch of a merged decoder. Then masks get the length that they have in it.

    Example:
        >>> from graphkit.shapes import declarations
        >>> declarations("example:causal-attention").corrections
        ()
    """
    return _correct_declarations(as_model(model), is_branch)


@lru_cache(maxsize=4)  # a workflow asks about one model several times
def _correct_declarations(model: Model, is_branch: bool) -> Declarations:
    known = find_lengths(model)
    if not known or not (is_branch or _is_suspicious(model, known)):
        return Declarations(model)
    named = {place: length.name for length in known for place in length.places}
    shapes = infer_from(model, Inputs(model, renamed=named))
    branches = list(_branch_scopes(model))
    facts = [(name, _required_equalities(shapes, scopes)) for name, scopes in branches]
    needs = [_required_length(length, known, facts, is_branch=is_branch) for length in known]
    corrections = tuple(_make_corrections(model, known, needs))
    if not corrections:
        return Declarations(model)
    proto = copy.deepcopy(model.proto)
    infos = {info.name: info for info in proto.graph.input}
    for length, (need, _) in zip(known, needs, strict=True):
        for name, axis in length.places if str(need) != str(length.declared) else ():
            declare_dim(infos[name].type.tensor_type.shape.dim[axis], need)
    corrected = model.with_proto(proto)
    shapes, lengths = infer(corrected), find_lengths(corrected)
    if any(_excludes_sizes(shapes, scopes, lengths) for _, scopes in _branch_scopes(corrected)):
        return Declarations(model)  # the corrected declarations would be no better
    return Declarations(corrected, corrections)


forget_on_registration(_correct_declarations.cache_clear)


def _is_suspicious(model: Model, known: Sequence[Length]) -> bool:
    """Whether a mask is declared as long as the tokens, or declarations exclude sizes that must be legal."""
    inputs = input_dims(model)
    claims = {place: length.declared for length in known for place in length.places}
    if any((inputs[name] or ())[axis].symbols != dim.symbols for (name, axis), dim in claims.items()):
        return True
    shapes = infer(model)
    return any(_excludes_sizes(shapes, scopes, known) for _, scopes in _branch_scopes(model))


Branch = tuple[str, frozenset[Scope]]


def _branch_scopes(model: Model) -> Iterator[Branch]:
    """Yield the scopes that run together: each branch of a merged decoder, or else the main graph."""
    merged = model.roles.decoder
    if merged is None:
        yield "", frozenset({model.graph})
        return
    around = [scope for scope in model.graph.walk() if scope.contains(merged.node.scope)]
    for name in (merged.first_branch, merged.cache_branch):
        yield name, frozenset({*around, merged.node.bodies[name]})


def _required_equalities(shapes: Shapes, scopes: Collection[Scope]) -> list[Row]:
    needed = (fact for fact in (*shapes.equalities, *shapes.broadcasts) if fact.scope in scopes)
    pairs = dict.fromkeys((fact.left, fact.right) for fact in needed if is_known(fact.left) and is_known(fact.right))
    return [row for pair in pairs for row in linear_equations(*pair)]


def _excludes_sizes(shapes: Shapes, scopes: Collection[Scope], known_lengths: Sequence[Length]) -> bool:
    """Whether the numbers of new tokens, past and encoder positions cannot be chosen freely."""
    if any(finding.body is None or finding.body in scopes for finding in shapes.findings):
        return True
    main = shapes.model.graph
    read = {value.name for body in scopes if body is not main for value in count_captured_values(body)}
    read |= {each.name for each in main.inputs if any(node.scope in scopes for node, _ in each.consumers)}
    free: dict[str, Expr] = {}  # by kind
    for length in known_lengths:
        if length.kind in INDEPENDENT and read.intersection(name for name, _ in length.places):
            if any(kind != length.kind and dim.symbols & length.declared.symbols for kind, dim in free.items()):
                return True
            free.setdefault(length.kind, length.declared)
    rows = [row for dim in free.values() for row in linear_equations(dim, const(0))]
    facts = _required_equalities(shapes, scopes)
    names = sorted({name for row in (*facts, *rows) for name in row if name})
    known = reduce_rows(facts, names)
    if any(size < (0 if "past" in name else 1) for name, size in fixed_sizes(known).items()):
        return True
    # how many of the sums can be chosen freely if others are 0
    with_known = reduce_rows([*known.values(), *({n: f for n, f in row.items() if n} for row in rows)], names)
    count = len(with_known) - len(known) - ("" in with_known and "" not in known)
    return "" in known or len(rows) < len(free) or count < len(free)


def _required_length(
    length: Length, known: Sequence[Length], branches: Sequence[tuple[str, list[Row]]], *, is_branch: bool
) -> tuple[Expr, str]:
    """Return the required value of a length, a symbol of its own if branches differ, and the length in each branch."""
    symbol_of_length = symbol(length.name)
    if length.kind not in FOLLOWING:
        return symbol_of_length, ""
    others = [independent for independent in known if independent.kind not in FOLLOWING]
    symbols = {independent.name: symbol(independent.name) for independent in others}
    order = [independent.name for independent in known if independent.name not in symbols]
    order.sort(key=lambda name: name != length.name)  # the length itself comes first
    results: dict[str, Expr] = {}
    for name, facts in branches:
        tail = sorted({name for row in facts for name in row if name and name not in order}, key=lambda n: "past" in n)
        if (dim := solve_symbol(length.name, reduce_rows(facts, [*order, *tail]), symbols)) is not None:
            results[name] = dim
    distinct = set(results.values())
    if not distinct:  # a mask that no node decides spans past and new tokens
        first = {each.kind: each for each in reversed(known)}
        tokens, past = first.get("tokens"), first.get("past")
        if length.kind != "mask" or tokens is None:
            return length.declared, ""
        if is_branch and length.declared == symbol_of_length:
            return symbol(tokens.name) + (symbol(past.name) if past is not None else 0), ""
        if past is not None and length.declared.symbols == tokens.declared.symbols:
            return symbol_of_length, " (past and new tokens)"
        return length.declared, ""
    if len(distinct) == 1 or length.kind == "encoder mask":  # the encoder's length is one, by many names
        return next(iter(results.values())), ""
    return symbol_of_length, f" ({', '.join(f'{dim} in {name}' for name, dim in results.items())})"


def _make_corrections(model: Model, known: Sequence[Length], needs: Sequence[tuple[Expr, str]]) -> Iterator[Correction]:
    for length, (need, why) in zip(known, needs, strict=True):
        if str(need) == str(length.declared):
            continue
        families: dict[tuple[str, str], list[str]] = {}
        for name, axis in length.places:
            declared = declared_type(next(value for value in model.graph.inputs if value.name == name))
            dims = list((declared.dims if declared is not None else None) or ())
            before = shape_text(tuple(dims))
            dims[axis] = str(need)
            families.setdefault((before, shape_text(tuple(dims))), []).append(name)
        for (before, after), names in families.items():
            yield Correction(tuple(names), before, after, why)
