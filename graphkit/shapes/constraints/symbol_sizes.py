"""Sizes for the symbols in the dims of a model's inputs that fit together.

The roles of inputs and the names of symbols tell the role of a symbol. A dim that is an expression
(`past_sequence_length + sequence_length`) follows from its symbols.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec import Struct

from graphkit.graph.roles import MASKS, Axis
from graphkit.model import Model
from graphkit.shapes import DimSpec, Expr, infer
from graphkit.shapes.input_dims import input_dims
from graphkit.symbolic.expr import Call, Symbol

OTHER = 5  # size of a symbol without a known role
LENGTHS: tuple[Axis, ...] = ("sequence", "encoder", "other")  # roles of symbols that others have, too


class Sizes(Struct, frozen=True):
    """The sizes to run a model at."""

    batch: int = 1  # number of sequences
    sequence: int = 1  # new tokens of each sequence
    past: int = 0  # positions in the KV cache
    encoder: int = 4  # positions of the encoder's output
    symbols: tuple[tuple[str, int], ...] = ()  # sizes of symbols by name, which take precedence

    def __str__(self) -> str:
        text = f"batch {self.batch}, sequence {self.sequence}, past {self.past}, encoder {self.encoder}"
        return text + "".join(f", {name} {size}" for name, size in self.symbols)


def symbol_roles(model: Model, dims: Mapping[str, tuple[Expr, ...] | None] | None = None) -> dict[str, Axis]:
    """Return the role of each symbol in the dims of a model's inputs, by default the declared ones."""
    roles: dict[str, Axis] = {}
    inputs, dims = model.roles.inputs, dims or input_dims(model)
    known = sorted(inputs, key=lambda value: (inputs[value] != "past", inputs[value] in MASKS))
    for value in known:  # the cache first, masks last: their dims may be those of the tokens
        for axis, dim in enumerate(dims.get(value.name) or ()):
            if dim.name is not None:
                roles.setdefault(dim.name, model.roles.axis(value, axis))
    for value in inputs:
        for dim in (dims.get(value.name) or ()) if inputs[value] != "past" else ():
            for name in sorted(dim.symbols):
                roles.setdefault(name, _by_name(name))
    if not model.roles.cache and {"other", "total"} & set(roles.values()):
        for group in (tied & roles.keys() for tied in tied_symbols(model)):  # others have numbers
            of_group = {roles[name] for name in group}
            role = next((role for role in LENGTHS if role in of_group), None)  # a sound's mask counts what it does
            roles |= {name: role for name in group if role is not None and roles[name] in ("other", "total")}
        if "other" in roles.values():  # what an unknown length has of its own need not count the tokens
            roles = {name: "other" if role == "total" else role for name, role in roles.items()}
    if model.roles.has_slots:  # of which a mask has as many
        roles = {name: "past" if role == "total" else role for name, role in roles.items()}
    return roles


def tied_symbols(model: Model) -> tuple[frozenset[str], ...]:
    """Return the symbols of the inputs that nodes broadcast to each other, or need to be equal.

    A mask of a sound may be read by its sum alone. Then it is as long as the sound.
    """
    roles, shapes, dims = model.roles, infer(model), input_dims(model)
    names = {dim.name for value in roles.inputs for dim in dims.get(value.name) or () if dim.name is not None}
    meetings = [(fact.left, fact.right) for fact in (*shapes.broadcasts, *shapes.equalities)]
    groups = _join_groups(names & _symbols_that_meet(meeting) for meeting in meetings)
    if not roles.cache and (sound := roles.first("audio")) is not None:
        known = map(dims.get, (value.name for value in (sound, *roles.all("mask", "encoder mask"))))
        lengths = [each[1] for each in known if each is not None and len(each) > 1]
        tied = frozenset[str]().union(*groups)
        untied = {name for length in lengths[1:] for name in length.symbols - tied}
        groups = _join_groups([*groups, lengths[0].symbols | untied] if lengths else groups)
    return groups


def _join_groups(groups: Iterable[Collection[str]]) -> tuple[frozenset[str], ...]:
    """Return groups of at least two names; those that share one are one."""
    known: list[frozenset[str]] = []
    for group in map(frozenset, groups):
        if len(group) > 1:
            sharing = [each for each in known if each & group]
            known = [each for each in known if each not in sharing] + [group.union(*sharing)]
    return tuple(known)


def _symbols_that_meet(sides: tuple[Expr, Expr]) -> set[str]:
    """Return the symbols of two dims that meet: these, or those whose squares they are."""
    powers = [monomial for dim in sides for monomial, factor in dim.terms if factor == 1 and len(dim.terms) == 1]
    if len(powers) == 2 and len(powers[0]) == len(powers[1]) > 1 and all(len(set(atoms)) == 1 for atoms in powers):
        return {atoms[0].name for atoms in powers if isinstance(atoms[0], Symbol)}
    return {name for dim in sides for name in _broadcast_symbols(dim)}


def _broadcast_symbols(dim: Expr) -> Iterator[str]:
    """Yield the symbol that a dim is, or those whose dims broadcast to it, or are cut to it."""
    if isinstance(dim.atom, Call) and dim.atom.op in ("max", "min"):
        for argument in dim.atom.args:
            yield from _broadcast_symbols(argument)
    elif dim.name is not None:
        yield dim.name


def with_empty_past(spec: DimSpec, model: Model, roles: Mapping[str, Axis]) -> DimSpec:
    """Return a spec in which a past may be empty unless it has slots from the start or the given one says otherwise."""
    names = () if model.roles.has_slots else [name for name, role in roles.items() if role == "past"]
    empty = {name: (0, None) for name in names if name not in spec.numbers}
    return DimSpec.of(ranges=empty) | spec


def _by_name(name: str) -> Axis:
    words: tuple[tuple[str, Axis], ...] = (("past", "past"), ("batch", "batch"), ("total", "total"))
    words += (("encoder", "encoder"), ("seq", "sequence"))
    return next((role for word, role in words if word in name), "other")


def symbol_sizes(model: Model, sizes: Sizes, roles: Mapping[str, Axis] | None = None) -> dict[str, int]:
    """Return a size for each symbol in the declared shapes of a model's inputs, by the roles of the symbols."""
    roles = symbol_roles(model) if roles is None else roles
    past = sizes.past if model.roles.pasts else 0
    by_role: dict[Axis, int] = {"batch": sizes.batch, "sequence": sizes.sequence, "past": sizes.past}
    by_role |= {"encoder": sizes.encoder, "total": sizes.sequence + past}
    return {**{name: by_role.get(role, OTHER) for name, role in roles.items()}, **dict(sizes.symbols)}


def input_shapes(
    model: Model, sizes: Sizes, roles: Mapping[str, Axis] | None = None
) -> dict[str, tuple[int, ...] | None]:
    """Return the shape of each input at these sizes, None if its rank is unknown.

    The mask of a decoder spans past and new tokens, even if a merged decoder declares the length that one branch
    needs.
    """
    symbols, dims = symbol_sizes(model, sizes, roles), input_dims(model)
    shapes: dict[str, tuple[int, ...] | None] = {}
    for value in model.roles.inputs:
        known = dims.get(value.name)
        shapes[value.name] = None if known is None else tuple(_evaluate_dim(dim, symbols) for dim in known)
        if known is not None and model.roles.spans_past(value) and known[1].constant is None:
            shapes[value.name] = _evaluate_dim(known[0], symbols), sizes.past + sizes.sequence
    return shapes


def _evaluate_dim(dim: Expr, symbols: Mapping[str, int]) -> int:
    return max(dim.evaluate({name: symbols.get(name, OTHER) for name in dim.symbols}), 0)
