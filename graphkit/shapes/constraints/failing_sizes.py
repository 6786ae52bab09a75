"""Find the smallest legal sizes at which a model does not run as meant, and the node that does not.

The search tries sizes that differ in one or two symbols from sizes at which every precondition is met. A direction is a
symbol that grows, shrinks or becomes 0. A trigger is the nearest sizes in a direction that violate a precondition, with
the first node that fails there. Later nodes are not tested because their dims mean nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from graphkit.errors import UsageError
from graphkit.graph.names import is_number
from graphkit.model import Model
from graphkit.ops.preconditions import FAILS, FINE, WRONG, Bools
from graphkit.shapes import DimSpec, Expr, Shapes, infer, is_known
from graphkit.shapes.constraints.node_constraints import Assignment, SharedPrecondition, collect_preconditions
from graphkit.shapes.constraints.size_grid import (
    Grid,
    SizeRule,
    candidate_sizes,
    free_symbols,
    size_rules,
    with_ties,
)

MAX_WORK = 1 << 15  # symbols in preconditions, times the squares of those in each: how the time to search grows
STEPS = 64  # sizes tried at once between one that is fine and one that is not
ABOVE = (*range(1, 513), 1000, 1024, 1 << 16)  # steps beyond a size, to see whether all larger ones fail
Direction = tuple[tuple[str, str], ...]  # (symbol, "more", "less", "none" or "other") of each that changes


class Trigger(Struct, frozen=True, eq=False):
    """Sizes at which a precondition is the first that is not met."""

    shared: SharedPrecondition  # the precondition and the nodes that share it
    dims: Assignment  # a size for each symbol of the inputs
    fine: Assignment  # sizes near them at which every precondition is met
    # the symbols in which `dims` and `fine` differ, without those that only follow from others
    changed: tuple[str, ...]
    matters: tuple[str, ...]  # the symbols whose sizes make the difference between `dims` and `fine`
    is_wrong: bool  # whether the node gives a wrong shape instead of failing
    is_limit: bool  # whether larger sizes of the only changed symbol fail too, whatever the others are
    also: tuple[SharedPrecondition, ...] = ()  # preconditions that are violated there or further on, but not nearer


class Triggers(Struct, frozen=True, eq=False):
    """The result of a search."""

    triggers: tuple[Trigger, ...]  # in the order of directions, those of one symbol first
    base: Assignment | None  # sizes that meet all preconditions, None if none were found
    ties: Mapping[str, Expr]  # symbols that follow from others if every node is to run
    # if there is no base, the first precondition that no sizes meet together with those before it
    unmet: tuple[SharedPrecondition, ...] = ()
    obstacle: str = ""  # why nothing was searched, "" if something was
    # the legal sizes of symbols, where they are more than a bound from above; `base` follows them
    rules: tuple[SizeRule, ...] = ()


def find_triggers(shapes: Shapes) -> Triggers:
    """Return the sizes at which a model fails or gives a wrong shape, and some that are well; or why none is known.

    Example:
        >>> from graphkit.shapes.constraints import find_triggers
        >>> from graphkit.shapes import infer
        >>> find_triggers(infer(graphkit.load("example:causal-attention"))).triggers[0].dims["sequence_length"]
        33
    """
    inputs = [shapes.first.get(value) or shapes[value] for value in shapes.model.graph.inputs]
    symbols = free_symbols(dim for tensor in inputs for dim in tensor.dims or () if is_known(dim))
    shared = [place for place in collect_preconditions(shapes) if place.precondition.symbols <= symbols.keys()]
    if not shared:
        return Triggers((), {}, {})
    named = [place.precondition.symbols for place in shared]
    count = len(frozenset().union(*named))
    if count * sum(len(names) ** 2 for names in named) > MAX_WORK:
        return Triggers((), None, {}, (), f"{count:,} symbols and {len(shared):,} preconditions are too many to try")
    certain = [place for place in shared if not place.precondition.is_guess]
    dims = (dim for value in shapes.model.graph.inputs for dim in shapes[value].dims or ())
    learned = {name: int(symbol.lower) for name, symbol in free_symbols(dims).items() if symbol.lower > 0}
    grid = Grid(certain or shared, symbols, learned)
    base = grid.base() or (None if certain else grid.base(0))
    if base is None:
        return Triggers((), None, grid.ties, (grid.first_unmet(),))
    shared = [each for each in shared if not each.precondition.is_guess or not Grid([each], symbols).bad([base]).any()]
    if not shared:
        return Triggers((), base, {})
    sizes = Grid(shared, symbols).sizes
    grid = Grid(shared, {name: symbol for name, symbol in symbols.items() if sizes[name]})  # the others change nothing
    start = {name: base[name] for name in grid.symbols}
    known = {name for name, size in start.items() if is_number(name) and int(name) == size}  # which are no sizes to try
    triggers = [trigger for trigger in _Search(grid, start).triggers() if known.isdisjoint(trigger.changed)]
    whole = [replace(trigger, dims={**base, **trigger.dims}, fine={**base, **trigger.fine}) for trigger in triggers]
    positive = [trigger for trigger in triggers if not any(trigger.dims[name] == 0 for name in trigger.changed)]
    sized = {name for trigger in positive for name in trigger.changed}
    rules = tuple(rule for rule in size_rules(grid, start, sized) if rule.name not in known)
    multiples = {rule.name: rule.least for rule in rules if start[rule.name] % rule.step}
    plain = {**base, **with_ties({**start, **multiples}, grid.ties)}
    best = base if grid.bad([{name: plain[name] for name in start}]).any() else plain
    return Triggers(tuple(whole), best, grid.ties, rules=rules)


class _Search:
    def __init__(self, grid: Grid, base: Assignment) -> None:
        self.grid, self.base = grid, base
        tried = candidate_sizes(base, grid.sizes, grid.ties, grid.symbols)[1:]
        # one symbol does not follow from the others: mistakes that a caller can make
        tried += [{**base, name: size} for name in grid.ties for size in grid.sizes[name] if size != base[name]]
        self.places: dict[Direction, list[Assignment]] = {}
        changes = [(self.changed_symbols(sizes), sizes) for sizes in tried]
        for names, sizes in sorted(changes, key=lambda change: self.distance(*change)):
            direction = tuple((name, self._size_sign(name, sizes[name])) for name in names)
            self.places.setdefault(direction, []).append(sizes)
        self.told: set[int] = set()  # preconditions that some trigger reports

    def changed_symbols(self, assignment: Assignment) -> tuple[str, ...]:
        """Return the symbols that differ from the base, and those that should follow from others but do not."""
        expected = self.base
        if self.grid.ties:
            follows = with_ties(assignment, self.grid.ties)
            expected = {**expected, **{name: follows[name] for name in self.grid.ties}}
        return tuple([name for name, size in assignment.items() if size != expected[name]])

    def _size_sign(self, name: str, size: int) -> str:
        if name in self.grid.ties:
            return "other"
        return "none" if not size else "more" if size > self.base[name] else "less"

    def distance(self, names: Iterable[str], assignment: Assignment) -> int:
        return sum(abs(assignment[name] - self.base[name]) for name in names)

    def triggers(self) -> Iterator[Trigger]:
        """Yield the triggers of each direction of one symbol, then those that only two symbols show."""
        for direction in sorted(self.places, key=lambda direction: len(direction) > 1):
            yield from self.of(direction, self.places[direction])

    def of(self, direction: Direction, tried: Sequence[Assignment]) -> Iterator[Trigger]:
        """Yield the nearest triggers of a direction, in each branch: failures, then wrong shapes."""
        for outcome in (FAILS, WRONG):
            first = self.first(tried, outcome)
            unreported: Bools = np.asarray(first.any(axis=1))
            if len(direction) > 1:  # leave out triggers of a single symbol
                unreported[sorted(self.told)] = False
            while unreported.any():
                place = int(np.flatnonzero(first[unreported].any(axis=0))[0])
                yield from self.nearest(direction, tried[place], unreported, outcome)

    def first(self, tried: Sequence[Assignment], outcome: int) -> Bools:
        """Return where each precondition is the first that is not met, with that outcome."""
        outcomes = self.grid.outcomes(tried)
        result: Bools = self.grid.first(outcomes != FINE) & (outcomes == outcome)
        return result

    def nearest(self, direction: Direction, dims: Assignment, unreported: Bools, outcome: int) -> Iterator[Trigger]:
        """Yield the triggers at the nearest sizes, and remove the sizes they report from `unreported`."""
        beside: Assignment = dict(self.base)
        for name, _ in direction:
            dims, beside = self.shrunk(dims, name, unreported, outcome)
        bad = self.grid.bad([dims])[:, 0]
        hits = np.flatnonzero(self.first([dims], outcome)[:, 0] & unreported).tolist()
        for index in hits:
            companions = [at for at in self.together(index) if (bad | unreported)[at] and at not in hits]
            also = [at for at in companions if at not in self.told]
            yield self.trigger(index, direction, dims, beside, also, outcome)
            unreported[companions] = False
            self.told.update(companions)
        unreported[hits] = False
        self.told.update(hits)

    def trigger(
        self, index: int, direction: Direction, dims: Assignment, beside: Assignment, also: list[int], outcome: int
    ) -> Trigger:
        changed = tuple(name for name, _ in direction)
        fine = dict(self.base) if self.grid.bad([beside])[self.together(index)].any() else beside
        matters = tuple(name for name in dims if name in changed or self.matters(index, name, dims, fine))
        is_limit = direction[0][1] == "more" and self._fails_above(index, dims, changed)
        shared, *others = (self.grid.shared[at] for at in (index, *also))
        is_wrong = outcome == WRONG
        return Trigger(shared, dims, fine, changed, matters, is_wrong=is_wrong, is_limit=is_limit, also=tuple(others))

    def together(self, index: int) -> list[int]:
        """Return the preconditions of nodes that run when one does: of its scope, of those around it and in it."""
        scope = self.grid.shared[index].scope
        pairs = enumerate(self.grid.shared)
        return [at for at, place in pairs if scope.contains(place.scope) or place.scope.contains(scope)]

    def shrunk(self, dims: Assignment, name: str, unreported: Bools, outcome: int) -> tuple[Assignment, Assignment]:
        """Return sizes with one symbol as near to the base as possible, and those just before them."""
        good, bad = self.base[name], dims[name]
        while abs(bad - good) > 1:
            sizes: list[int] = sorted(set(np.linspace(good, bad, STEPS).astype(np.int64).tolist()))
            ordered = sizes if bad > good else sizes[::-1]
            first = self.first([self.with_size(dims, name, size) for size in ordered], outcome)
            hits = np.flatnonzero(first[unreported].any(axis=0))
            if not len(hits) or not hits[0]:
                break
            good, bad = ordered[hits[0] - 1], ordered[hits[0]]
        return self.with_size(dims, name, bad), self.with_size(dims, name, good)

    def with_size(self, dims: Assignment, name: str, size: int) -> Assignment:
        changed = {**dims, name: size}
        return changed if name in self.grid.ties else with_ties(changed, self.grid.ties)

    def matters(self, index: int, name: str, dims: Assignment, fine: Assignment) -> bool:
        """Whether another size of a symbol would change the outcome of a precondition."""
        if not any(name in expr.symbols for expr in self.grid.shared[index].precondition.told):
            return False
        low = int(self.grid.symbols[name].lower)
        sizes = [low, low + 1, low + 2, 4 * dims[name] + 1]
        place = [self.grid.shared[index]]
        bad = self.grid.bad([self.with_size(dims, name, size) for size in sizes], place)
        good = self.grid.bad([self.with_size(fine, name, size) for size in sizes], place)
        return not bad.all() or bool(good.any())

    def _fails_above(self, index: int, dims: Assignment, changed: tuple[str, ...]) -> bool:
        """Whether all larger sizes fail, with the other symbols unchanged, smaller or larger."""
        if len(changed) > 1:
            return False
        name = changed[0]
        larger = {symbol: 64 * (size + ABOVE[-1]) for symbol, size in dims.items()}  # beside a size that is far less
        smaller = {symbol: int(self.grid.symbols[symbol].lower) for symbol in dims}
        above = [self.with_size(dims, name, dims[name] + step) for step in ABOVE]
        around = [self.with_size(symbol, name, 4 * dims[name] + ABOVE[-1]) for symbol in (larger, smaller)]
        fails = self.grid.bad(above).any(axis=0).all()
        return bool(fails and self.grid.bad(around, [self.grid.shared[index]]).all())


def sizes_that_run(model: Model, names: Collection[str]) -> dict[str, int]:
    """Return sizes of these symbols at which every node runs; none of a symbol for which the search finds none."""
    base = find_triggers(infer(model)).base if names else None
    return {name: size for name, size in (base or {}).items() if name in names}


class SizeCheck:
    """Tells whether a model runs at sizes, as far as the preconditions of its nodes say.

    Preconditions on symbols without a size are not checked: onnxruntime has the last word.
    """

    def __init__(self, model: Model) -> None:
        shared = collect_preconditions(infer(model))
        self._known = [place for place in shared if place.scope is model.graph and not place.precondition.is_guess]

    def fault(self, sizes: Mapping[str, int]) -> str:
        """Return the first node that does not run and why, "" where none is known."""
        for place in self._known:
            condition = place.precondition
            if not condition.symbols or not condition.symbols <= sizes.keys():
                continue
            with suppress(ZeroDivisionError):
                values = [expr.evaluate(sizes) for expr in condition.exprs]
                if condition.outcome([np.array(value) for value in values]).any():
                    return f"'{place.nodes[0].path}': {condition.violation(values).problem}"
        return ""

    def nearest(self, sizes: Mapping[str, int], names: frozenset[str], start: int, reach: int) -> int | None:
        """Return the number nearest to `start`, at most `reach` away, at which it runs, None where there is none.

        These symbols get the number instead of their sizes.
        """
        for distance in range(reach + 1):
            for number in dict.fromkeys((start - distance, start + distance)):
                if number > 0 and not self.fault({**sizes, **dict.fromkeys(names, number)}):
                    return number
        return None


def check_sizes(model: Model, spec: DimSpec, sizes: Mapping[str, int]) -> None:
    """Raise UsageError where a model does not run with inputs of a spec, and these sizes of symbols."""
    reasons = (f"'{finding.node}': {finding.message}" for finding in infer(model, spec).contradictions)
    if reason := next(reasons, "") or SizeCheck(model).fault(sizes):
        raise impossible_sizes_error(model, sizes, reason)


def impossible_sizes_error(model: Model, sizes: Mapping[str, int], reason: str) -> UsageError:
    """Return the error for sizes at which a model does not run."""
    text = ", ".join(f"{name}={size}" for name, size in sizes.items()) or "these shapes"
    legal = "; ".join(f"{rule.name}: {rule}" for rule in find_triggers(infer(model)).rules)
    hint = f"give other sizes ({legal})" if legal else "give other sizes"
    return UsageError(f"{model.label}: it cannot run with {text}: {reason} - {hint}")
