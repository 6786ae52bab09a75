"""Integer expressions over named symbols, in a normal form: equal expressions compare equal.

An expression is a polynomial with integer coefficients over atoms; an atom is a symbol or a call of `//`, `%`,
`min` or `max` on expressions. Symbols carry their bounds, so that `(a*b) // b` can become `a` where b >= 1.
`algebra` makes calls and simplifies them; `bounds` finds the bounds of expressions.
Why not sympy: on all dim operations of one inference, sympy 1.14 takes 3 to 23 times as long (Marian, Gemma, DETR,
Swin) and decides nothing by bounds; `import sympy` alone (0.25 s) takes longer than inferring any of these models.

As text, sums begin with a positive term, and `//` and `%` stand in parentheses inside others. A name that is no word is
in quotes, so that `parse` of a text gives the expression again.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from numbers import Integral
from typing import Literal
from weakref import WeakValueDictionary

MAX_TERMS = 48
MAX_DEGREE = 16  # atoms of a product
MAX_ARGS = 8  # of a min or max
MAX_SIZE = 160  # atoms, those in the arguments of calls included
MAX_NUMBER = 1 << 64  # no dim, and no element of an integer tensor, is larger
MAX_TEXT = 2000  # characters of a call


class TooComplexError(ArithmeticError):
    """An expression has grown too large to be read or used."""


Bound = int | float  # an integer, or an infinity
INF = math.inf
WORD = r"[A-Za-z_][A-Za-z0-9_.:]*"
BARE = re.compile(rf"{WORD}|\?.*", re.DOTALL)  # what is unknown has a name that begins with `?`


class Symbol:
    """A named integer with its known range. Equal symbols are identical."""

    __slots__ = ("__weakref__", "key", "lower", "name", "text", "upper")
    _known: WeakValueDictionary[tuple[str, Bound, Bound], Symbol] = WeakValueDictionary()
    size = 1  # atoms in it

    name: str
    lower: Bound
    upper: Bound
    key: tuple[int, str, Bound, Bound]
    text: str

    def __new__(cls, name: str, lower: Bound, upper: Bound) -> Symbol:
        """Return the one symbol of this name and these bounds."""
        known = cls._known.get((name, lower, upper))
        if known is None:
            known = super().__new__(cls)
            known.name, known.lower, known.upper = name, lower, upper
            known.key = (0, name, lower, upper)
            known.text = name if BARE.fullmatch(name) else "'" + name.replace("'", "''") + "'"
            cls._known[(name, lower, upper)] = known
        return known

    def __reduce__(self) -> tuple[type[Symbol], tuple[str, Bound, Bound]]:
        return Symbol, (self.name, self.lower, self.upper)

    def __repr__(self) -> str:
        return self.text

    def evaluate(self, assignment: Mapping[str, int]) -> int:
        """Return its value; KeyError if it has none."""
        return assignment[self.name]


Operation = Literal["//", "%", "min", "max"]
FUNCTIONS: Mapping[Operation, Callable[..., int]] = {"//": operator.floordiv, "%": operator.mod, "min": min, "max": max}


class Call:
    """An operation on expressions that is not a polynomial. Equal calls are identical."""

    __slots__ = ("__weakref__", "args", "interval", "key", "op", "size")
    _known: WeakValueDictionary[tuple[str, tuple[Expr, ...]], Call] = WeakValueDictionary()

    op: Operation
    args: tuple[Expr, ...]
    key: tuple[int, str, Bound, Bound]
    interval: tuple[Bound, Bound] | None
    size: int

    def __new__(cls, op: Operation, args: tuple[Expr, ...]) -> Call:
        """Return the only call of this operation with these arguments; TooComplexError if they are too many."""
        known = cls._known.get((op, args))
        if known is None:
            text = _call_text(op, args)
            if len(args) > MAX_ARGS:
                raise TooComplexError(f"a {op} of more than {MAX_ARGS} expressions")
            if len(text) > MAX_TEXT:
                raise TooComplexError("an expression of too many nested operations")
            known = super().__new__(cls)
            known.op, known.args, known.interval = op, args, None
            known.size = 1 + sum(atom.size for arg in args for monomial, _ in arg.terms for atom in monomial)
            known.key = (1, text, 0, 0)
            cls._known[(op, args)] = known
        return known

    def __reduce__(self) -> tuple[type[Call], tuple[str, tuple[Expr, ...]]]:
        return Call, (self.op, self.args)

    def __repr__(self) -> str:
        return self.key[1]

    def evaluate(self, assignment: Mapping[str, int]) -> int:
        """Return its value; KeyError if a symbol has none, ZeroDivisionError if a divisor is 0."""
        return FUNCTIONS[self.op](*[arg.evaluate(assignment) for arg in self.args])


Atom = Symbol | Call
Monomial = tuple[Atom, ...]  # sorted by key, an atom repeated for its power; () for the constant term


class Expr:
    """An integer expression. Immutable; `==` is equality of normal forms, with an int too."""

    __slots__ = ("__dict__", "_hash", "terms")

    terms: tuple[tuple[Monomial, int], ...]  # (monomial, coefficient) pairs, the highest degree first

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash: int | None = None

    @staticmethod
    def of(value: Expr | int) -> Expr:
        """Return an expression for a value; ValueError if it is not an integer."""
        if isinstance(value, Expr):
            return value
        if type(value) is not int and not isinstance(value, Integral):
            raise ValueError(f"{value} is not an integer")
        return const(value)

    @staticmethod
    def from_terms(terms: Mapping[Monomial, int]) -> Expr:
        """Return the sum of coefficients times monomials; TooComplexError if it is too large."""
        nonzero = [(monomial, factor) for monomial, factor in terms.items() if factor]
        if not nonzero or (len(nonzero) == 1 and not nonzero[0][0]):
            return const(nonzero[0][1] if nonzero else 0)
        if len(nonzero) > MAX_TERMS:
            raise TooComplexError("an expression of too many terms")
        for monomial, factor in nonzero:
            _check_number(factor)
            if len(monomial) > MAX_DEGREE:
                raise TooComplexError("a product of too many factors")
        if sum(atom.size for monomial, _ in nonzero for atom in monomial) > MAX_SIZE:
            raise TooComplexError("an expression of too many operations")
        if len(nonzero) > 1:
            # graded lexicographic order: admissible, so that polynomial division ends
            nonzero.sort(key=lambda term: (-len(term[0]), [atom.key for atom in term[0]]))
        return Expr(tuple(nonzero))

    @staticmethod
    def from_atom(atom: Atom) -> Expr:
        """Return the expression that is one atom."""
        return Expr((((atom,), 1),))

    @property
    def constant(self) -> int | None:
        """Its value if it is a number, else None."""
        if not self.terms:
            return 0
        monomial, factor = self.terms[0]
        return None if monomial else factor

    @property
    def atom(self) -> Atom | None:
        """The atom that it consists of, else None."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            return self.terms[0][0][0]
        return None

    @property
    def name(self) -> str | None:
        """The name of the symbol that it consists of, else None."""
        atom = self.atom
        return atom.name if isinstance(atom, Symbol) else None

    @property
    def declared(self) -> str:
        """Its text as declarations have it: in these, a name alone needs no quotes."""
        return self.name or str(self)

    @cached_property
    def symbols(self) -> frozenset[str]:
        """The names in it."""
        return frozenset(atom.name for atom in self.walk_symbols())

    def walk_symbols(self) -> Iterable[Symbol]:
        """Yield the symbol of each occurrence."""
        for monomial, _ in self.terms:
            for atom in monomial:
                if isinstance(atom, Symbol):
                    yield atom
                else:
                    for arg in atom.args:
                        yield from arg.walk_symbols()

    def evaluate(self, assignment: Mapping[str, int]) -> int:
        """Return its value; KeyError if a symbol has none, ZeroDivisionError if a divisor is 0."""
        total = 0
        for monomial, factor in self.terms:
            total += factor * math.prod([atom.evaluate(assignment) for atom in monomial])
        return total

    def substitute(self, assignment: Mapping[str, Expr | int]) -> Expr:
        """Return the expression with symbols replaced, simplified anew."""
        if not self.symbols & assignment.keys():
            return self
        return self.map_atoms(lambda atom: _substitute_atom(atom, assignment))

    def map_atoms(self, function: Callable[[Atom], Expr]) -> Expr:
        """Return the expression with each atom replaced by the result of a function, simplified anew."""
        total = const(0)
        for monomial, factor in self.terms:
            total = total + math.prod(map(function, monomial), start=const(factor))
        return total

    def __add__(self, other: Expr | int) -> Expr:
        if type(other) is int:
            other = const(other)
        elif not isinstance(other, Expr):
            return NotImplemented
        if not self.terms:
            return other
        if not other.terms:
            return self
        terms = dict(self.terms)
        for monomial, factor in other.terms:
            terms[monomial] = terms.get(monomial, 0) + factor
        return Expr.from_terms(terms)

    __radd__ = __add__

    def __neg__(self) -> Expr:
        value = self.constant
        return const(-value) if value is not None else Expr(tuple((m, -factor) for m, factor in self.terms))

    def __sub__(self, other: Expr | int) -> Expr:
        return self + -other

    def __rsub__(self, other: int) -> Expr:
        return -self + other

    def __mul__(self, other: Expr | int) -> Expr:
        if type(other) is int:
            other = const(other)
        elif not isinstance(other, Expr):
            return NotImplemented
        left, right = self.constant, other.constant
        if left is not None:
            return other._scale_terms(left) if right is None else const(left * right)
        if right is not None:
            return self._scale_terms(right)
        if len(self.terms) * len(other.terms) > MAX_TERMS**2:
            raise TooComplexError("a product of too many terms")
        terms: dict[Monomial, int] = {}
        for monomial, factor in self.terms:
            for other_monomial, other_factor in other.terms:
                product = tuple(sorted(monomial + other_monomial, key=operator.attrgetter("key")))
                terms[product] = terms.get(product, 0) + factor * other_factor
        return Expr.from_terms(terms)

    __rmul__ = __mul__

    def _scale_terms(self, factor: int) -> Expr:
        return self if factor == 1 else Expr.from_terms({monomial: k * factor for monomial, k in self.terms})

    def __floordiv__(self, other: Expr | int) -> Expr:
        return OPERATIONS["//"](self, other)

    def __rfloordiv__(self, other: int) -> Expr:
        return const(other) // self

    def __mod__(self, other: Expr | int) -> Expr:
        return OPERATIONS["%"](self, other)

    def __rmod__(self, other: int) -> Expr:
        return const(other) % self

    def __int__(self) -> int:
        if self.constant is None:
            raise ValueError(f"{self} is not a number")
        return self.constant

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Expr):
            return self is other or self.terms == other.terms
        return isinstance(other, int) and self.constant == other

    def __hash__(self) -> int:
        if self._hash is None:
            value = self.constant
            self._hash = hash(self.terms if value is None else value)
        return self._hash

    def __reduce__(self) -> tuple[type[Expr], tuple[object]]:
        return Expr, (self.terms,)

    def __repr__(self) -> str:
        return f"Expr({self})"

    def __str__(self) -> str:
        return sum_text(self.terms)


# The functions that make a simplified call, by operation; `algebra` enters them.
OPERATIONS: dict[Operation, Callable[..., Expr]] = {}


def _substitute_atom(atom: Atom, assignment: Mapping[str, Expr | int]) -> Expr:
    if isinstance(atom, Symbol):
        return Expr.of(assignment[atom.name]) if atom.name in assignment else Expr.from_atom(atom)
    return OPERATIONS[atom.op](*(arg.substitute(assignment) for arg in atom.args))


_SMALL = {n: Expr((((), n),) if n else ()) for n in range(-64, 1025)}


def const(value: int) -> Expr:
    """Return a number as an expression; TooComplexError if it does not fit into an integer tensor.

    Example:
        >>> from graphkit.shapes import const
        >>> const(3) + 1 == 4
        True
    """
    known = _SMALL.get(value)
    if known is not None:
        return known
    _check_number(value)
    return Expr((((), int(value)),))


def _check_number(value: int) -> None:
    if not -MAX_NUMBER <= value <= MAX_NUMBER:
        raise TooComplexError("a number of more than 64 bits")


def symbol(name: str, lower: Bound | None = None, upper: Bound = INF) -> Expr:
    """Return a symbol, by default at least 1, or at least 0 if its name starts with `past`.

    Example:
        >>> from graphkit.shapes import symbol
        >>> print(symbol("sequence_length") + 1)
        sequence_length + 1
    """
    if lower is None:
        lower = 0 if name.startswith("past") else 1
    return Expr.from_atom(Symbol(name, lower, upper))


INFIX = ("//", "%")


def sum_text(terms: Sequence[tuple[Sequence[object], int]]) -> str:
    """Return a sum of terms as text."""
    if not terms:
        return "0"
    first = next((index for index, (_, factor) in enumerate(terms) if factor > 0), 0)
    text = _term_text(*terms[first])
    for monomial, factor in (*terms[:first], *terms[first + 1 :]):
        text += f" - {_term_text(monomial, -factor)}" if factor < 0 else f" + {_term_text(monomial, factor)}"
    return text


def _call_text(op: str, args: Sequence[Expr]) -> str:
    if op not in INFIX:
        return f"{op}({', '.join(map(str, args))})"
    plain = [arg.constant is not None or (arg.atom is not None and not _is_infix(arg.atom)) for arg in args]
    left, right = (str(arg) if is_plain else f"({arg})" for arg, is_plain in zip(args, plain, strict=True))
    return f"{left} {op} {right}"


def _term_text(monomial: Sequence[object], factor: int) -> str:
    if not monomial:
        return str(factor)
    if len(monomial) == 1 and factor == 1:
        return repr(monomial[0])
    parts = [f"({atom!r})" if _is_infix(atom) else repr(atom) for atom in monomial]
    sign = "-" if factor < 0 else ""
    return sign + "*".join(parts if abs(factor) == 1 else [str(abs(factor)), *parts])


def _is_infix(atom: object) -> bool:
    return getattr(atom, "op", "") in INFIX
