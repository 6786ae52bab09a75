"""Sizes to try for each symbol, the preconditions of a model at many assignments of them, and rules for legal sizes.

A rule such as `multiples of 32 from 32` is read off the preconditions of all nodes, which are evaluated at every size
of one symbol up to a bound, and then tried far beyond that bound and together with other symbols at other legal sizes.
A symbol whose legal sizes depend on those of others has no rule. Where two symbols may leave their rules together, as
the height and the width of an image of so many patches, the rules say that there are other sizes.
"""

from __future__ import annotations

import itertools
from bisect import bisect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from graphkit.graph.names import is_number
from graphkit.graph.view import Scope
from graphkit.ops.preconditions import FINE, Bools, Ints, Precondition
from graphkit.shapes import Expr, Relation
from graphkit.shapes.constraints.legal_sizes import Variable, search_nearest_sizes
from graphkit.shapes.constraints.node_constraints import Assignment, Constraint, SharedPrecondition, Values
from graphkit.symbolic.expr import Call, Symbol

SMALL = (0, 1, 2, 3, 4, 5, 7)  # above the least
USUAL = (8, 16, 32, 64, 128, 224, 256, 384, 512)  # sizes of images and windows
MAX_SIZE = 1 << 20
MAX_NUMBERS = 24  # taken from expressions
MAX_CANDIDATES = 4096
PAIRED = 8  # sizes of each symbol that are tried together with those of another one
Sizes = Mapping[str, Sequence[int]]  # to try, by symbol
Symbols = Mapping[str, Symbol]
Ties = Mapping[str, Expr]  # symbols that follow from others if every node is to run


def free_symbols(exprs: Iterable[Expr]) -> dict[str, Symbol]:
    """Return the symbols of the inputs' dims by name."""
    return {symbol.name: symbol for expr in exprs for symbol in expr.walk_symbols()}


def ties_of(preconditions: Iterable[Precondition], symbols: Symbols) -> dict[str, Expr]:
    """Return the symbols that follow from others if every node is to run: `total` is `past + sequence`."""
    ties: dict[str, Expr] = {}
    for precondition in preconditions:
        for left, right in precondition.equalities():
            for name, solution in _solved_symbols(left, right):
                expr = solution.substitute(ties)
                atoms = [atom for monomial, _ in expr.terms for atom in monomial]
                is_plain = bool(atoms) and all(isinstance(atom, Symbol) for atom in atoms)  # has a value at all sizes
                if is_plain and name in symbols and name not in ties and name not in expr.symbols:
                    ties = {tied_name: known.substitute({name: expr}) for tied_name, known in ties.items()}
                    ties[name] = expr
                    break
    return ties


def _solved_symbols(left: Expr, right: Expr) -> Iterator[tuple[str, Expr]]:
    for side, opposite in ((left, right), (right, left)):
        atom = side.atom
        if isinstance(atom, Symbol):
            yield atom.name, opposite
        elif isinstance(atom, Call) and atom.op == "max" and opposite in atom.args:
            for arg in atom.args:
                if arg != opposite:
                    yield from _solved_symbols(arg, opposite)


def with_ties(assignment: Assignment, ties: Ties) -> dict[str, int]:
    """Return an assignment with the symbols that follow from it."""
    result = dict(assignment)
    if ties:
        result.update({name: expr.evaluate(result) for name, expr in ties.items()})
    return result


def size_pools(preconditions: Iterable[Precondition], symbols: Symbols, ties: Ties) -> dict[str, list[int]]:
    """Return the sizes to try for each symbol: small ones, usual ones, and those next to numbers in expressions.

    A symbol that is in no precondition has none: its size makes no difference.
    """
    numbers: dict[str, set[int]] = {name: set() for name in symbols}
    named = {*ties, *(inner for tie in ties.values() for inner in tie.symbols)}
    for precondition in preconditions:
        constants = {n for expr in precondition.exprs for n in _numbers_in(expr) if 1 < n <= MAX_SIZE}
        names = precondition.symbols
        named |= names
        for name in names | {inner for tie in names & ties.keys() for inner in ties[tie].symbols}:
            if name in numbers:
                numbers[name] |= constants
    result: dict[str, list[int]] = {name: [] for name in symbols}
    for name, symbol in symbols.items():
        if name not in named:
            continue
        low = int(symbol.lower)
        near = [n + step for n in sorted(numbers[name])[-MAX_NUMBERS:] for step in (-1, 0, 1)]
        large = [2 * max(numbers[name], default=512) + 1]
        sizes = [low + step for step in SMALL] + near + list(USUAL) + large
        result[name] = [size for size in dict.fromkeys(sizes) if symbol.lower <= size <= symbol.upper]
    return result


def _numbers_in(expr: Expr) -> Iterator[int]:
    for monomial, factor in expr.terms:
        yield abs(factor)
        for atom in monomial:
            if isinstance(atom, Call):
                for arg in atom.args:
                    yield from _numbers_in(arg)


def candidate_sizes(base: Assignment, sizes: Sizes, ties: Ties, symbols: Symbols) -> list[dict[str, int]]:
    """Return assignments that differ from a base in one or two symbols, and in the symbols that follow from these."""
    free = [name for name in base if name not in ties and sizes[name]]
    others = [(name, size) for name in free for size in sizes[name] if size != base[name]]
    assignments = [dict(base), *(with_ties({**base, name: size}, ties) for name, size in others)]
    for first, second in combinations(free, 2):
        listed = {name: (*sizes[name][:PAIRED], *sizes[name][PAIRED:][-PAIRED:]) for name in (first, second)}
        few = [[size for size in some if size != base[name]] for name, some in listed.items()]
        assignments += [with_ties({**base, first: one, second: other}, ties) for one, other in product(*few)]
        if len(assignments) > MAX_CANDIDATES:
            break
    ends = {name: (symbol.lower, symbol.upper) for name, symbol in symbols.items()}
    return [one for one in assignments if all(ends[name][0] <= size <= ends[name][1] for name, size in one.items())]


MAX_VISITS = 4096  # sizes looked at for dims at which all is well
NAMED = (("batch", 2), ("channel", 3), ("height", 32), ("width", 32))  # the sizes to begin with, else small ones


class Grid:
    """The preconditions and symbols of a model."""

    def __init__(self, shared: Sequence[SharedPrecondition], symbols: Symbols, least: Assignment | None = None) -> None:
        self.least = least or {}
        preconditions = [place.precondition for place in shared]
        self.shared, self.symbols = shared, symbols  # the preconditions in the order in which their nodes run
        self.ties = ties_of(preconditions, symbols)  # what symbols follow from others if every node is to run
        self.sizes = size_pools(preconditions, symbols, self.ties)

    def outcomes(self, assignments: Sequence[Assignment], shared: Sequence[SharedPrecondition] = ()) -> Ints:
        """Return the outcome of each precondition, or of each of those in `shared`, at each assignment."""
        values = Values.of_all(assignments)
        return np.stack([values.outcome(place.precondition) for place in shared or self.shared])

    def bad(self, assignments: Sequence[Assignment], shared: Sequence[SharedPrecondition] = ()) -> Bools:
        """Return which precondition is not met at which assignment."""
        result: Bools = self.outcomes(assignments, shared) != FINE
        return result

    def first(self, bad: Bools) -> Bools:
        """Return where each precondition is the first violated one of its scope and of the scopes around it."""
        result = np.zeros_like(bad)
        before: dict[Scope, Bools] = {}
        nothing = np.zeros(bad.shape[1], np.bool_)
        for index, place in enumerate(self.shared):
            earlier = nothing
            scope: Scope | None = place.scope
            while scope is not None:
                earlier = earlier | before.get(scope, nothing)
                scope = scope.parent
            result[index] = bad[index] & ~earlier
            before[place.scope] = before.get(place.scope, nothing) | bad[index]
        return result

    def base(self, count: int | None = None) -> dict[str, int] | None:
        """Return usual sizes that meet the first `count` preconditions, None if none are found."""
        free = [name for name in self.symbols if name not in self.ties]
        follow = [Relation.equal(Expr.from_atom(self.symbols[name]), expr) for name, expr in self.ties.items()]
        constraints: list[Constraint] = [*follow, *(place.precondition for place in self.shared[:count])]
        wish = {name: self._guess_size(name) for name in self.symbols}
        for first in ((), USUAL):  # windows of a picture fit at few sizes, before which small ones use up the visits
            variables = [self._make_variable(name, first) for name in (*free, *self.ties)]
            assignment = next(search_nearest_sizes(variables, constraints, wish, MAX_VISITS), None)
            if assignment is not None:
                return {name: assignment[name] for name in self.symbols}
        return None

    def first_unmet(self) -> SharedPrecondition:
        """Return the first precondition that no assignment meets together with those before it, if there is no base."""
        return self.shared[bisect(range(1, len(self.shared)), False, key=lambda count: self.base(count) is None)]

    def _make_variable(self, name: str, first: Sequence[int]) -> Variable:
        symbol = self.symbols[name]
        return Variable(name, "other", int(symbol.lower), symbol.upper, (*first, *self.sizes[name]))

    def _guess_size(self, name: str) -> int:
        low, high = int(self.symbols[name].lower), self.symbols[name].upper
        if is_number(name):  # an exporter's name for a size that it knows
            return int(min(max(int(name), low), high))
        usual = next((size for part, size in NAMED if part in name), low and low + 2)
        return int(min(max(usual, low, self.least.get(name, low)), high))


SPAN = 1024  # sizes that are all evaluated
LONGEST = SPAN // 4  # period that is looked for
BEYOND = 64  # periods beyond them that are tried
TOGETHER = 24  # sizes of the other symbols that are tried with each
FACTORS = (2, 3, 4, 8)
MAX_CELLS = 1 << 22  # preconditions times sizes, at most


class SizeRule(Struct, frozen=True):
    """The legal sizes of a dim, whatever the sizes of others are."""

    name: str  # the symbol
    step: int  # the multiples of a number from `least` to `most` are legal; `most` is None without a bound
    least: int
    most: int | None
    less: int = 0  # so much less, and so much more, than any of them is legal too
    more: int = 0
    short: int = 0  # every size up to this is legal too, as one that fits into a chunk
    is_exact: bool = True  # whether no other size is
    shortest: int = 1  # the least of the short ones

    def __str__(self) -> str:
        others = "" if self.is_exact else ", and some others"
        if self.least == self.most:
            return f"only {self.least}" if self.is_exact else f"{self.least}{others}"
        end = "" if self.most is None else f" to {self.most}"
        if self.step == 1:
            return f"{self.least}{end or ' or more'}{others}"
        parts = [f"up to {number} {word}" for number, word in ((self.less, "less"), (self.more, "more")) if number]
        around = f", or {' or '.join(parts)}" if parts else ""
        from_least = "" if self.shortest == 1 else f"from {self.shortest} "
        below = f", or any {from_least or 'up '}to {self.short}" if self.short else ""
        return f"multiples of {self.step} from {self.least}{end}{around}{below}{others}"


def size_rules(grid: Grid, base: Assignment, names: Collection[str]) -> tuple[SizeRule, ...]:
    """Return the rules of symbols, beside sizes that meet all, that say more than a bound from above, or not 0."""
    shared = [place for place in grid.shared if place.scope.parent is None]
    free = [name for name in base if name in names and name not in grid.ties]
    if not shared or len(shared) * SPAN * max(len(free), 1) > MAX_CELLS:
        return ()
    legal = _Legal(Grid(shared, grid.symbols), base)
    rules = {name: rule for name in free if (rule := legal.rule(name)) is not None}
    independent = {name: rule for name, rule in rules.items() if legal.is_independent(name, rules)}
    informative = [rule for rule in independent.values() if rule.step > 1 or rule.least > max(legal.low(rule.name), 1)]
    pairs = [pair for pair in itertools.combinations(informative, 2) if legal.has_others(*pair)]
    coupled = {rule.name for pair in pairs for rule in pair}
    telling = [rule for rule in informative if rule.name not in coupled or rule.least != rule.most]
    return tuple(replace(rule, is_exact=rule.is_exact and rule.name not in coupled) for rule in telling)


class _Legal:
    def __init__(self, grid: Grid, base: Assignment) -> None:
        self.grid, self.base = grid, base

    def low(self, name: str) -> int:
        return int(self.grid.symbols[name].lower)

    def at(self, name: str, sizes: Sequence[int], others: Assignment | None = None) -> Bools:
        """Return at which sizes of a symbol all preconditions are met, with these sizes of the others."""
        around = {**self.base, **(others or {})}
        bad = self.grid.bad([with_ties({**around, name: size}, self.grid.ties) for size in sizes])
        return np.logical_not(bad.any(axis=0))

    def rule(self, name: str) -> SizeRule | None:
        """Return the rule for a symbol beside the sizes of the base, None where there is no simple one."""
        least, high, met = self.low(name), self.grid.symbols[name].upper, self.base[name]
        low = least if met < least + SPAN else met - SPAN // 2  # where long windows are the least that is legal
        shorter = range(least, low, SPAN)
        if len(shorter) > BEYOND or any(self.at(name, range(each, min(each + SPAN, low))).any() for each in shorter):
            return None  # of which no rule would tell
        sizes = [size for size in range(low, low + SPAN) if size <= high]
        is_legal = self.at(name, sizes)
        legal = [size for size, is_met in zip(sizes, is_legal.tolist(), strict=True) if is_met]
        rule = _describe_rule(name, legal, low, sizes[-1])
        return rule if rule is not None and self._holds_beyond(rule, sizes[-1]) else None

    def _holds_beyond(self, rule: SizeRule, last: int) -> bool:
        """Whether a rule holds at sizes far beyond those that it was read off."""
        upper = self.grid.symbols[rule.name].upper
        if upper <= last:
            return True
        period = max(rule.step, 1)
        far = [*range(last + 1, last + 1 + 2 * period), *(period * ((last * k) // period) for k in range(2, BEYOND))]
        far += [size + step for size in far[2 * period :] for step in (-1, 1)]
        if rule.most is not None:  # of which multiples may be legal
            far += [size for factor in range(2, BEYOND) if last < (size := rule.most * factor) <= upper]
        return _agrees_with_rule(rule, far, self.at(rule.name, far))

    def is_independent(self, name: str, rules: Mapping[str, SizeRule]) -> bool:
        """Whether the rule of a symbol also holds beside other legal sizes of the other symbols, with a rule or not."""
        random = np.random.default_rng(0)
        rule = rules[name]
        multiples = _sizes_inside(rule, random)
        sizes = [*range(self.low(name), self.low(name) + 64), *multiples, *(size + 1 for size in multiples)]
        for _ in range(TOGETHER):
            others = {key: int(random.choice(_sizes_inside(rules[key], random))) for key in rules if key != name}
            if not _agrees_with_rule(rule, sizes, self.at(name, sizes, others)):
                return False
        free = [symbol for symbol in self.base if symbol not in rules and symbol not in self.grid.ties]
        beside = [{symbol: self.base[symbol] + step} for symbol in free for step in (1, 2)]
        legal = (self.at(name, sizes, others) for others in beside)
        return all(not each.any() or _agrees_with_rule(rule, sizes, each) for each in legal)

    def has_others(self, first: SizeRule, second: SizeRule) -> bool:
        """Whether two symbols may both have sizes that their rules do not allow: one half as large, the other twice."""
        outside = [_sizes_outside(rule, self.low(rule.name)) for rule in (first, second)]
        pairs = [{**self.base, first.name: one, second.name: other} for one, other in product(*outside)]
        sizes = [with_ties(pair, self.grid.ties) for pair in pairs]
        return bool(sizes) and not bool(self.grid.bad(sizes).any(axis=0).all())


def _sizes_outside(rule: SizeRule, low: int) -> list[int]:
    """Return sizes that a rule does not allow, which are parts and multiples of the least that it allows."""
    near = [rule.least * number for number in FACTORS] + [rule.least // number for number in FACTORS]
    near += [rule.least + step for step in (-1, 1, -2, 2)]
    return [size for size in dict.fromkeys(near) if size >= max(low, 1) and not _allows_size(rule, size)]


def _sizes_inside(rule: SizeRule, random: np.random.Generator) -> list[int]:
    count = 24 if rule.most is None else max((rule.most - rule.least) // rule.step + 1, 1)
    return [rule.least, *(rule.least + rule.step * int(k) for k in random.integers(0, count, 8))]


def _agrees_with_rule(rule: SizeRule, sizes: Sequence[int], is_legal: Bools) -> bool:
    """Whether sizes are legal where a rule says so; where it is not exact, others may be as well."""
    allowed = np.array([_allows_size(rule, size) for size in sizes], np.bool_)
    return bool((is_legal[allowed]).all() and (not rule.is_exact or not is_legal[~allowed].any()))


def _allows_size(rule: SizeRule, size: int) -> bool:
    below = (size + rule.less) // rule.step * rule.step
    near = [multiple for multiple in (below, below - rule.step) if -rule.less <= size - multiple <= rule.more]
    is_near = any(rule.least <= multiple and (rule.most is None or multiple <= rule.most) for multiple in near)
    return is_near or rule.shortest <= size <= rule.short


def _describe_rule(name: str, legal: Sequence[int], low: int, last: int) -> SizeRule | None:
    """Return the rule that the legal sizes from `low` to `last` follow, None where there is no simple one."""
    if not legal:
        return None
    allowed = set(legal)
    is_open = bool(allowed & set(range(last - LONGEST, last + 1)))
    for step in range(1, LONGEST + 1):
        multiples = range(-(-max(low, 1) // step) * step, last + 1, step)
        hits = [size for size in multiples if size in allowed]
        if not hits or hits != list(range(hits[0], hits[-1] + 1, step)):
            continue
        is_telling = hits[-1] + step > last if is_open else (len(hits) > 1 or len(legal) < 2)
        if is_telling:
            return _with_others(SizeRule(name, step, hits[0], None if is_open else hits[-1]), allowed, low, last)
    return None


def _with_others(rule: SizeRule, allowed: set[int], low: int, last: int) -> SizeRule:
    """Return a rule of multiples with the other legal sizes added."""
    multiples = range(rule.least, (last if rule.most is None else rule.most) + 1, rule.step)
    inner = [size for size in multiples if low <= size - rule.step and size + rule.step <= last] or list(multiples)
    less, more = (
        min(_run_length(size, sign, allowed, rule.step) for size in inner) if rule.step > 1 else 0 for sign in (-1, 1)
    )
    wide = replace(rule, less=less, more=more)
    run = _run_length(0, 1, allowed, last + 1) if rule.step > 1 else 0
    wide = wide if all(_allows_size(wide, size) for size in range(1, run + 1)) else replace(wide, short=run)
    is_exact = all(_allows_size(wide, size) == (size in allowed) for size in range(low, last - rule.step))
    return replace(wide, is_exact=is_exact)


def _run_length(size: int, sign: int, allowed: set[int], step: int) -> int:
    count = 0
    while count + 1 < step and size + sign * (count + 1) in allowed:
        count += 1
    return count
