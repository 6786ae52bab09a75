"""The result of a check for equivalence: of each output whether it is proven, and how exactly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from math import gcd
from typing import Literal, get_args

from msgspec import Struct, field
from msgspec.structs import replace

from graphkit.shapes import Expr
from graphkit.symbolic.algebra import lower, upper
from graphkit.symbolic.expr import INF, Symbol, TooComplexError

Exactness = Literal["bit for bit", "in exact arithmetic"]
GRADES: tuple[str, ...] = get_args(Exactness)  # the most exact first

LEAST_SIZES = 8  # at which what is said of a node must hold, if it depends on sizes
ROUNDED = "float16 is rounded after each node, by one kernel for each operator"  # a condition
ExprPair = tuple[Expr, Expr]  # of the original and of the rewritten model


class ComparedConstants(Struct, frozen=True):
    """The computed constants that a proof compared with their exact values."""

    count: int = 0
    largest: float = 0.0  # the largest difference, relative to the magnitude of the constant

    def __str__(self) -> str:
        constants = "1 computed constant agrees" if self.count == 1 else f"{self.count:,} computed constants agree"
        exact = "its exact value" if self.count == 1 else "their exact values"
        return f"{constants} with {exact} to {self.largest:.1g}" if self.largest else f"{constants} with {exact}"


class OutputProof(Struct, frozen=True):
    """The result for one output."""

    name: str
    verdict: Literal["proven", "unknown"]
    exactness: Exactness | Literal[""] = ""  # how exactly it is equal, "" where that is unknown
    reason: str = ""  # why it is unknown, "" where it is proven
    differing: tuple[ExprPair, ...] = ()  # dims and integers of the first terms that differ, where these are others

    def __str__(self) -> str:
        return f"{self.name}: proven {self.exactness}" if self.verdict == "proven" else f"{self.name}: {self.reason}"


class SizeLimit(Struct, frozen=True):
    """A number that must be at most another one, as what is known holds only up to that."""

    expr: Expr  # an expression without a constant term, whose factors share no divisor
    most: int

    @classmethod
    def of(cls, expr: Expr, most: int) -> SizeLimit:
        """Return the limit in its plainest form: `2*n - 4 <= 9` is `n <= 6`."""
        added = sum(factor for monomial, factor in expr.terms if not monomial)
        rest = expr - added
        shared = gcd(*(factor for _, factor in rest.terms)) or 1
        plain = Expr.from_terms({monomial: factor // shared for monomial, factor in rest.terms})
        return cls(plain, (most - added) // shared)

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether it holds at sizes, or may: one of its dims has none, or the model divides by 0 there."""
        try:
            return not self.expr.symbols <= sizes.keys() or self.expr.evaluate(sizes) <= self.most
        except ZeroDivisionError:
            return True

    def up_to(self, size: int) -> SizeLimit:
        """Return it for dims that are at most so large."""
        symbols = [*self.expr.walk_symbols()]
        most = {each: max(each.lower, min(each.upper, size)) for each in symbols}
        dims = {each.name: Expr.from_atom(Symbol(each.name, each.lower, most[each])) for each in symbols}
        return SizeLimit(self.expr.substitute(dims), self.most)

    @property
    def is_certain(self) -> bool:
        """Whether it holds at all sizes."""
        return upper(self.expr) <= self.most

    @property
    def is_bounded(self) -> bool:
        """Whether its dims are declared up to a size."""
        return all(each.upper < INF for each in self.expr.walk_symbols())

    @property
    def is_impossible(self) -> bool:
        """Whether it holds at no size."""
        return lower(self.expr) > self.most

    def implies(self, other: SizeLimit) -> bool:
        """Whether another limit holds wherever this one does."""
        with suppress(TooComplexError):
            return self.most <= other.most and lower(self.expr - other.expr) >= 0
        return False

    def __str__(self) -> str:
        return f"{-self.expr} >= {-self.most:,}" if upper(self.expr) <= 0 else f"{self.expr} <= {self.most:,}"


class Equivalence(Struct, frozen=True):
    """Whether a rewritten model gives the outputs of an original, wherever that runs."""

    outputs: tuple[OutputProof, ...]  # one for each output of the rewritten model
    used: Mapping[str, int] = field(default_factory=dict)  # how often each axiom was used, in both models together
    conditions: tuple[str, ...] = ()  # the sizes that the proof is about, such as `batch >= 1`
    limits: tuple[SizeLimit, ...] = ()  # those of its conditions that hold at some legal sizes alone
    turns: tuple[ExprPair, ...] = ()  # numbers that are others beyond some sizes, each with what it is up to these
    terms: int = 0  # how many distinct terms both models have
    compared: int = 0  # of how many kinds of nodes onnxruntime confirmed what the shape engine says of them
    shared_dims: tuple[str, ...] = ()  # which dims of the inputs it takes for one size, such as `one batch`
    # those that were compared with their exact values, where an output is proven in exact arithmetic
    constants: ComparedConstants = field(default_factory=ComparedConstants)

    @classmethod
    def unknown(cls, outputs: Iterable[str], reason: str) -> Equivalence:
        """Return that nothing is known of outputs, for one reason."""
        return cls(tuple(OutputProof(name, "unknown", reason=reason) for name in outputs))

    @property
    def is_proven(self) -> bool:
        """Whether all outputs are proven."""
        return bool(self.outputs) and all(output.verdict == "proven" for output in self.outputs)

    @property
    def proven(self) -> tuple[OutputProof, ...]:
        """The outputs that are proven."""
        return tuple(output for output in self.outputs if output.verdict == "proven")

    @property
    def strength(self) -> tuple[int, int]:
        """How much is proven: of how many outputs, and how exactly."""
        return len(self.proven), -max((GRADES.index(output.exactness) for output in self.proven), default=0)

    @property
    def differing(self) -> tuple[ExprPair, ...]:
        """The dims and integers that differ first, of all outputs, and the numbers that turn, each pair once."""
        return tuple(dict.fromkeys((*(pair for output in self.outputs for pair in output.differing), *self.turns)))

    def at(self, tried: Sequence[Mapping[str, int]]) -> Equivalence:
        """Return what is proven of sizes that were tried: nothing where a limit holds at none of them."""
        odd = [limit for limit in self.limits if tried and not any(map(limit.holds, tried))]
        where = "and so at none of the sizes that were tried"
        return self.unproven(f"it would hold for {odd[0]}, {where}") if odd else self

    def up_to(self, size: int) -> Equivalence:
        """Return what is proven of dims that are at most so large: nothing where a limit does not hold at all sizes."""
        if odd := [limit for limit in self.limits if not limit.up_to(size).is_certain]:
            return self.unproven(f"it would hold for {odd[0]}, and not at all sizes up to {size:,}")
        gone = {*map(str, self.limits)}
        return replace(self, limits=(), conditions=tuple(each for each in self.conditions if each not in gone))

    def without_rounding(self) -> Equivalence:
        """Return what is proven in exact arithmetic, of models that are rounded at other places than at each node."""
        proven = (
            replace(each, exactness="in exact arithmetic") if each.verdict == "proven" else each
            for each in self.outputs
        )
        return replace(self, outputs=tuple(proven), conditions=tuple(c for c in self.conditions if c != ROUNDED))

    def unproven(self, reason: str) -> Equivalence:
        """Return it with no output proven, for a reason."""
        outputs = (
            OutputProof(each.name, "unknown", reason=reason) if each.verdict == "proven" else each
            for each in self.outputs
        )
        return Equivalence(tuple(outputs), self.used, limits=self.limits, turns=self.turns)

    def __str__(self) -> str:
        return "\n".join(map(str, self.outputs))
