"""The dims that a model's inputs declare, as expressions: the one reading of a declaration, and of its texts.

No runtime checks what a dim is called. So a text is a name, whatever it looks like (`-1`, `3`, `2*n`), except for an
expression in names of other dims, as exporters write it (`past + 1`, `floor(h/2)`): that is taken at its
word. A dim without a name, or with one that begins with `?`, is the symbol `INPUT.AXIS`. In an expression the name of a
symbol that is no word is in quotes: `'batch-size' + 1`.

A name may stand for dims that differ: exporters call the numbers of texts and of pictures `batch`, or height and width
`dyn`. Dims of one name are one symbol where the roles of their inputs say that they mean the same, such as the batch of
tokens, masks and caches, or where a node relates them. The others are symbols `INPUT.AXIS`. That a name is one size is
still a claim: at a node that broadcasts, one of the dims may be 1.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import Literal

from msgspec import Struct
from onnx import TensorShapeProto

from graphkit.graph.declared_types import Dim, declared_type
from graphkit.graph.names import group_pairs
from graphkit.graph.roles import MASKS, Role, Roles
from graphkit.graph.view import Value, as_text
from graphkit.model import Model
from graphkit.symbolic.algebra import ceil_div, floor_div, lower, maximum, minimum, modulo
from graphkit.symbolic.expr import WORD, Bound, Expr, TooComplexError, const, symbol

Place = tuple[str, int]  # an input, and an axis
Group = tuple[Place, ...]  # dims of one name that are one symbol
Groups = Mapping[str, Sequence[Group]]  # by the name
DimNames = Literal["apart", "related", "named"]  # what texts tell of dims: nothing, or that they are equal
OF_SEQUENCES: tuple[Role, ...] = (
    "tokens", "embeddings", "mask", "positions", "token types",
    "encoder tokens", "encoder mask", "encoder state", "past", "state",
)  # fmt: skip


class DeclaredInputs(Struct, frozen=True, eq=False):
    """The dims of the inputs that are tensors."""

    dims: Mapping[str, tuple[Expr, ...] | None]  # of each input, None where its rank is unknown
    groups: Mapping[str, tuple[Group, ...]]  # the dims that each name stands for

    @classmethod
    def of(
        cls,
        model: Model,
        groups: Groups,
        names: Mapping[str, str] = MappingProxyType({}),
        taken: Mapping[str, Collection[Place]] = MappingProxyType({}),
        *,
        apart: bool = False,
    ) -> DeclaredInputs:
        """Return the dims of a model, with one symbol for each group of dims: the first of a name has that itself.

        Inputs may have other `names`, for `INPUT.AXIS`. `taken` is what has a name, here and in another model, by these
        names of inputs: nothing else gets it. With `apart`, expressions too are symbols of their own.
        """
        taken = taken or {name: {place for group in parts for place in group} for name, parts in groups.items()}

        def own_symbol(group: Group, least: Bound | None = None) -> Expr:
            origins = [(names.get(name, name), axis) for name, axis in group]
            called = "{}.{}".format(*origins[0])
            while not {*taken.get(called, ())} <= {*origins}:
                called += "'"
            return symbol(called, least)

        known: dict[Place, Expr] = {}
        for name, (first, *others) in groups.items():
            known |= dict.fromkeys(first, symbol(name))
            for group in others:
                known |= dict.fromkeys(group, own_symbol(group, lower(symbol(name))))

        def read(place: Place, text: Dim) -> Expr:
            dim = None if text is None else known.get(place) or read_dim(text, groups)
            if dim is None or (apart and dim.constant is None and place not in known):
                return own_symbol((place,), None if dim is None else lower(dim))
            return dim

        dims = {
            name: None if texts is None else tuple(read((name, axis), text) for axis, text in enumerate(texts))
            for name, texts in declared_texts(model)
        }
        return cls(dims, {name: tuple(parts) for name, parts in groups.items()})

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols of the dims that have a name, without those in expressions, which are among them."""
        return frozenset(str(self.at(group[0]).name) for parts in self.groups.values() for group in parts)

    def place_of(self, name: str) -> Place | None:
        """Return the dim that is `INPUT.AXIS`, None for any other name."""
        input_name, _, axis = name.rpartition(".")
        known = self.dims.get(input_name) or ()
        return (input_name, int(axis)) if axis.isdecimal() and int(axis) < len(known) else None

    def at(self, place: Place) -> Expr:
        """Return the dim of an input whose rank is known."""
        return (self.dims[place[0]] or ())[place[1]]


def read_dim(text: str | bytes | int, names: Collection[str]) -> Expr:
    """Return the dim that a text stands for in a model whose inputs declare some names; a number is itself."""
    if isinstance(text, int):
        return Expr.of(text)
    text = as_text(text)
    dim = symbol(text) if text in names else parse(text)
    return dim if dim.symbols else symbol(text)


def declare_dim(declared: TensorShapeProto.Dimension, dim: Expr, names: Collection[str] = ()) -> None:
    """Declare a dim, of which `read_dim` reads the same: it stays open where its text would be the name of another."""
    declared.ClearField("value")
    size, text = dim.constant, dim.declared
    if size is None and (dim.name is not None or text not in names):
        declared.dim_param = text
    elif size is not None and -(1 << 63) <= size < 1 << 63:  # no tensor can have any other
        declared.dim_value = size


def input_dims(model: Model) -> Mapping[str, tuple[Expr, ...] | None]:
    """Return the dims of each input that is a tensor, None where its rank is unknown."""
    return declared_inputs(model).dims


@lru_cache(maxsize=16)
def declared_inputs(model: Model) -> DeclaredInputs:
    """Return the dims that the inputs of a model declare."""
    inputs = {value.name: value for value in model.graph.inputs}
    unread = {value.name for value in model.graph.inputs if not value.consumers} - {v.name for v in model.graph.outputs}
    meanings: dict[str, dict[Meaning, list[Place]]] = {}
    for (name, axis), text in sorted(_named_dims(model), key=lambda entry: entry[0][0] in unread):
        parts = meanings.setdefault(text, {})
        meaning = next(iter(parts), UNREAD) if name in unread else _dim_meaning(model.roles, inputs[name], axis)
        parts.setdefault(meaning, []).append((name, axis))
    lengths = {tuple(places) for parts in meanings.values() for key, places in parts.items() if key in LENGTHS}
    groups = {text: [tuple(places) for places in parts.values()] for text, parts in meanings.items()}
    if any(len(parts) > 1 and not lengths.issuperset(parts) for parts in groups.values()):
        from graphkit.shapes.infer import related_groups  # which infers shapes, of inputs that this reads

        # nodes of the original relate the dims of its rewrites too, whose inputs are the same, but never vice versa
        key = (tuple(each.SerializeToString() for each in model.proto.graph.input), str(groups))
        if key not in model.related_dims:
            model.related_dims[key] = related_groups(model, groups, lengths)
        groups = {name: list(parts) for name, parts in model.related_dims[key].items()}
    for listed in groups.values():
        listed.sort(key=lambda group: all(model.roles.of(inputs[name]) in MASKS for name, _ in group))
    return DeclaredInputs.of(model, groups)


def claimed_inputs(model: Model) -> DeclaredInputs:
    """Return the dims that inputs declare, where those of one name are equal, but for lengths that roles tell apart."""
    read, inputs = declared_inputs(model), {value.name: value for value in model.graph.inputs}
    groups: dict[str, list[Group]] = {}
    for name, parts in read.groups.items():
        lengths = [part for part in parts if _dim_meaning(model.roles, inputs[part[0][0]], part[0][1]) in LENGTHS]
        one = [*lengths[:1], *(part for part in parts if part not in lengths)]
        groups[name] = [tuple(place for part in one for place in part), *lengths[1:]]
    is_same = all(len(groups[name]) == len(parts) for name, parts in read.groups.items())
    return read if is_same else DeclaredInputs.of(model, groups)


def named_inputs(model: Model) -> DeclaredInputs:
    """Return the dims that inputs declare, where something else says that those of one name are equal."""
    places = group_pairs((name, place) for place, name in _named_dims(model))
    return DeclaredInputs.of(model, {name: [tuple(parts)] for name, parts in places.items()})


def declared_texts(model: Model) -> Iterator[tuple[str, tuple[Dim, ...] | None]]:
    """Yield each input that is a tensor, with its dims, None for those that have no name."""
    for value in model.graph.inputs:
        if (kind := declared_type(value)) is not None:
            named = (None if str(dim).startswith("?") else dim for dim in kind.dims or ())
            yield value.name, None if kind.dims is None else tuple(named)


def _named_dims(model: Model) -> Iterator[tuple[Place, str]]:
    dims_of = ((name, enumerate(dims or ())) for name, dims in declared_texts(model))
    texts = [((name, axis), dim) for name, dims in dims_of for axis, dim in dims if isinstance(dim, str)]
    names = {text for _, text in texts}
    expressions = {text for text in names if _is_expression(text, names)}
    expressions = {text for text in expressions if _is_expression(text, names - expressions)}
    yield from ((place, text) for place, text in texts if text not in expressions)


def _is_expression(text: str, names: Collection[str]) -> bool:
    """Whether a text is an expression in names of other dims, such as the sum of two."""
    dim = parse(text)
    return bool(dim.symbols) and dim.name is None and all(name in names for name in dim.symbols)


Meaning = tuple[str, str | int]  # of an axis, by the roles of inputs; or an input, and an axis
UNREAD: Meaning = "", "unread"  # such a dim is whatever others of its name are
LENGTHS: tuple[Meaning, ...] = (("", "sequence"), ("", "past"), ("", "total"), ("", "encoder"))  # never one, by a name


def _dim_meaning(roles: Roles, value: Value, axis: int) -> Meaning:
    role = roles.of(value)
    if role not in OF_SEQUENCES:
        return value.name, axis
    meant = roles.axis(value, axis)
    # without a past, a mask is over the tokens
    return "", "sequence" if meant == "total" and not roles.pasts else meant


def read_alike(
    before: Model,
    after: Model,
    names: Mapping[str, str] = MappingProxyType({}),
    *,
    dims: DimNames = "related",
    computed: Collection[str] = (),
) -> tuple[DeclaredInputs, DeclaredInputs]:
    """Return the dims of a model and of its rewrite, so that what is one symbol in the one is so in the other.

    Dims of one name in both are one symbol where they are one in the original: those that nodes or roles of inputs
    relate, or all, if `dims` says so; or no two, and expressions are symbols of their own too. Dims that the rewrite
    calls unlike each other, or gives different numbers, are not one in the original either. A new input has the symbols
    of its names. `names` are those that inputs of the rewrite have in the original; `computed` inputs of the original
    have dims of others, by their names.
    """

    def origin(place: Place) -> Place:
        return names.get(place[0], place[0]), place[1]

    texts = {origin((name, at)): dim for name, known in declared_texts(after) for at, dim in enumerate(known or ())}
    numbers: dict[Place, int] = {}
    groups: dict[str, list[Group]] = {}
    for name, parts in declared_inputs(before).groups.items():
        keyed: dict[tuple[int, Dim], list[Place]] = {}
        for number, group in enumerate(parts):
            own = [place for place in group if place[0] not in computed]
            usual = next((texts[place] for place in own if place in texts), None)
            for place in own:
                numbers[place] = {"apart": len(numbers), "related": number, "named": 0}[dims]
                keyed.setdefault((numbers[place], texts.get(place, usual)), []).append(place)
        keys = sorted(keyed, key=lambda key: isinstance(key[1], int))  # a name stays with dims that are no numbers
        groups |= {name: [tuple(keyed[key]) for key in keys]} if keys else {}
    numbered: dict[str, dict[int, list[Place]]] = {}
    for place, name in _named_dims(after):
        numbered.setdefault(name, {}).setdefault(numbers.get(origin(place), 0), []).append(place)
    others = {name: [tuple(parts[number]) for number in sorted(parts)] for name, parts in numbered.items()}
    taken: dict[str, set[Place]] = {}
    for each in (groups, others):
        for name, listed in each.items():
            places = [place for group in listed for place in group]
            taken.setdefault(name, set()).update(places if each is groups else map(origin, places))
    first = DeclaredInputs.of(before, groups, taken=taken, apart=dims == "apart")
    return first, DeclaredInputs.of(after, others, names, taken, apart=dims == "apart")


MAX_LENGTH, MAX_DEPTH = 400, 64
MAX_NUMBER = 1 << 63
QUOTED = r"'(?:[^']|'')*'"
TOKEN = re.compile(rf"\s*(\d+|{WORD}|{QUOTED}|\*\*|//|[-+*/%(),])")
HYPHENATED = re.compile(r"^[^']*[A-Za-z_]-[A-Za-z_]")  # a name, no difference: exporters put spaces around a minus
OPERATORS: Mapping[type[ast.operator], Callable[[Expr, Expr], Expr]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.FloorDiv: floor_div,
    ast.Mod: modulo,
}
FUNCTIONS: Mapping[str, Callable[..., Expr]] = {
    "floordiv": floor_div, "cleandiv": floor_div, "ceildiv": ceil_div, "ceiltointdiv": ceil_div,
    "mod": modulo, "pythonmod": modulo, "min": minimum, "max": maximum,
}  # fmt: skip
ROUNDING = {"floor": floor_div, "ceil": ceil_div, "ceiling": ceil_div}


class _NotAnExpressionError(Exception):
    pass


def parse(text: str) -> Expr:
    """Return the expression that a dim's name stands for, or a symbol of that name.

    Example:
        >>> from graphkit.shapes import parse
        >>> print(parse("floor(height/2) + 1"))
        height // 2 + 1
    """
    text = text.strip()
    if len(text) <= MAX_LENGTH and not HYPHENATED.search(text):
        try:
            source, names = _read_tokens(text)
            return _evaluate_node(ast.parse(source, mode="eval").body, names, MAX_DEPTH)
        except (_NotAnExpressionError, TooComplexError, ZeroDivisionError, SyntaxError, RecursionError, MemoryError):
            pass
    return symbol(text)


def _read_tokens(text: str) -> tuple[str, dict[str, str]]:
    """Return a text in the syntax of Python, with words of its own for names, and the name of each."""
    tokens: list[str] = []
    names: dict[str, str] = {}
    position = 0
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            raise _NotAnExpressionError
        token, position = match[1], match.end()
        if token.isdigit():
            tokens.append(str(min(int(token), MAX_NUMBER + 1)))
        elif token[0].isalpha() or token[0] in "_'":
            tokens.append(f"n{len(names)}")
            names[tokens[-1]] = token
        else:
            tokens.append(token)
    return " ".join(tokens), names


def _evaluate_node(node: ast.expr, names: Mapping[str, str], depth: int) -> Expr:
    if not depth:
        raise _NotAnExpressionError

    def value(inner: ast.expr) -> Expr:
        return _evaluate_node(inner, names, depth - 1)

    match node:
        case ast.Constant(value=int(number)) if number <= MAX_NUMBER:
            return const(number)
        case ast.Name(id=name):
            token = names[name]
            return symbol(token[1:-1].replace("''", "'") if token[0] == "'" else token)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -value(inner)
        case ast.BinOp(left=base, op=ast.Pow(), right=ast.Constant(value=int(exponent))) if exponent in (1, 2, 3, 4):
            return prod([value(base)] * exponent, start=const(1))
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in OPERATORS:
            return OPERATORS[type(operator)](value(left), value(right))
        case ast.Call(ast.Name(id=name), [ast.BinOp(left=dividend, op=ast.Div(), right=divisor)], []):
            rounded = ROUNDING.get(names[name].lower())
            if rounded is not None:
                return rounded(value(dividend), value(divisor))
        case ast.Call(ast.Name(id=name), args, []):
            called, values = names[name].lower(), list(map(value, args))
            if called in ROUNDING and len(values) == 1:
                return values[0]  # floor of an integer
            if called in FUNCTIONS and (len(values) == 2 or (len(values) > 2 and called in ("min", "max"))):
                return FUNCTIONS[called](*values)
    raise _NotAnExpressionError
