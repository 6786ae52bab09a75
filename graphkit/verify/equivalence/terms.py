"""Terms: the values that a model computes, each distinct one once, so that equal terms of two models are one object.

A term is an operator, its attributes and its arguments. Besides, it has what is known of it: dtype and dims, which are
no part of its identity unless its operator (a Reshape, a constant) is determined by them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

import numpy as np

from graphkit.ops.tensor import Dims
from graphkit.shapes import Expr

__all__ = ["Key", "Term", "Terms", "without_reshape"]

Key = tuple[Hashable, ...]


class Term:
    """One node of the shared graph of terms. Equal terms are identical.

    Attributes:
        number: The order in which terms were made, the original's first.
        op: An operator, with its domain unless that is the default one; or `Input`, `Constant`, `Elements`.
        attributes: What else determines it: attributes, version, output index, target dims.
        dims: None if some are not known.
        origins: The node that it stands for in the original and in the rewritten model, "" if in none.
        nearly: Which axiom nearly held for it, and what was missing.
    """

    __slots__ = ("args", "attributes", "dims", "dtype", "nearly", "number", "op", "origins")

    def __init__(self, number: int, op: str, attributes: Key, args: tuple[Term | None, ...]) -> None:
        self.number, self.op, self.attributes, self.args = number, op, attributes, args
        self.dtype = 0
        self.dims: Dims | None = None
        self.origins = ["", ""]
        self.nearly = ""

    def __repr__(self) -> str:
        return f"Term({self.op}#{self.number})"

    @property
    def is_constant(self) -> bool:
        """Whether its bytes are known, or where they lie."""
        return self.op == "Constant"


@dataclass
class Terms:
    """The table of all terms.

    Attributes:
        arrays: The elements of constants that are small.
        used: How often each axiom changed something.
        recent: The same since it was last cleared.
    """

    known: dict[Key, Term] = field(default_factory=dict)
    arrays: dict[Term, np.ndarray] = field(default_factory=dict)
    used: Counter[str] = field(default_factory=Counter)
    recent: Counter[str] = field(default_factory=Counter)

    def make(
        self,
        op: str,
        attributes: Key,
        args: Iterable[Term | None],
        dtype: int,
        dims: Iterable[Expr | int] | None,
    ) -> Term:
        """Return the term of an operator on arguments, the one that is there if there is one."""
        listed = tuple(args)
        while listed and listed[-1] is None:
            listed = listed[:-1]
        key = (op, attributes, listed)
        term = self.known.get(key)
        if term is None:
            term = self.known[key] = Term(len(self.known), op, attributes, listed)
            term.dtype = dtype
        if term.dims is None and dims is not None:
            term.dims = tuple(Expr.of(dim) for dim in dims)
        return term

    def note(self, axiom: str, times: int = 1) -> None:
        """Count uses of an axiom."""
        self.used[axiom] += times
        self.recent[axiom] += times


def without_reshape(term: Term | None) -> Term | None:
    """Return what a Reshape reads, and any other term as it is."""
    return term.args[0] if term is not None and term.op == "Reshape" else term
