"""Rules for the legal sizes of dims, as people would say them: `multiples of 32 from 32`.

A rule is read off the preconditions of all nodes, which are evaluated at every size of one symbol up to a bound, and
then tried far beyond that bound and together with other symbols at other legal sizes. A symbol whose legal sizes depend
on those of others has no rule. Where two symbols may leave their rules together, as the height and the width of an
image of so many patches, the rules say that there are other sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphkit.ops.preconditions import Bools
from graphkit.shapes.constraints.evaluate_constraints import Assignment
from graphkit.shapes.constraints.size_grid import Grid, with_ties

__all__ = ["SizeRule", "size_rules"]

SPAN = 1024  # sizes that are all evaluated
LONGEST = SPAN // 4  # period that is looked for
BEYOND = 64  # periods beyond them that are tried
TOGETHER = 24  # sizes of the other symbols that are tried with each
FACTORS = (2, 3, 4, 8)
MAX_CELLS = 1 << 22  # preconditions times sizes, at most


@dataclass(frozen=True)
class SizeRule:
    """The legal sizes of a dim, whatever the sizes of others are.

    Attributes:
        name: The symbol.
        step, least, most: The multiples of a number from `least` to `most` are legal; `most` is None without a bound.
        less, more: So much less, and so much more, than any of them is legal too.
        is_exact: Whether no other size is.
    """

    name: str
    step: int
    least: int
    most: int | None
    less: int = 0
    more: int = 0
    is_exact: bool = True

    def __str__(self) -> str:
        others = "" if self.is_exact else ", and some others"
        if self.least == self.most:
            return f"only {self.least}" if self.is_exact else f"{self.least}{others}"
        end = "" if self.most is None else f" to {self.most}"
        if self.step == 1:
            return f"{self.least}{end or ' or more'}{others}"
        parts = [f"up to {number} {word}" for number, word in ((self.less, "less"), (self.more, "more")) if number]
        around = f", or {' or '.join(parts)}" if parts else ""
        return f"multiples of {self.step} from {self.least}{end}{around}{others}"


def size_rules(grid: Grid, base: Assignment, names: Collection[str]) -> tuple[SizeRule, ...]:
    """Return the rules of symbols that are more than a bound from above, or that they must not be 0.

    Args:
        grid: The preconditions of a model.
        base: Sizes that meet all of them.
        names: The symbols.
    """
    shared = [place for place in grid.shared if place.scope.parent is None]
    free = [name for name in base if name in names and name not in grid.ties]
    if not shared or len(shared) * SPAN * max(len(free), 1) > MAX_CELLS:
        return ()
    legal = _Legal(Grid(shared, grid.symbols), base)
    rules = {name: rule for name in free if (rule := legal.rule(name)) is not None}
    independent = {name: rule for name, rule in rules.items() if legal.is_independent(name, rules)}
    informative = [rule for rule in independent.values() if rule.step > 1 or rule.least > max(legal.low(rule.name), 1)]
    coupled = {
        name for pair in itertools.combinations(informative, 2) if legal.has_others(*pair) for name in _rule_names(pair)
    }
    telling = [rule for rule in informative if rule.name not in coupled or rule.least != rule.most]
    return tuple(replace(rule, is_exact=rule.is_exact and rule.name not in coupled) for rule in telling)


def _rule_names(rules: Sequence[SizeRule]) -> list[str]:
    return [rule.name for rule in rules]


class _Legal:
    """Which sizes meet all preconditions."""

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
        low, high = self.low(name), self.grid.symbols[name].upper
        sizes = [size for size in range(low, low + SPAN) if size <= high]
        is_legal = self.at(name, sizes)
        legal = [size for size, met in zip(sizes, is_legal.tolist(), strict=True) if met]
        rule = _describe_rule(name, legal, low, sizes[-1])
        return rule if rule is not None and self._holds_beyond(rule, sizes[-1]) else None

    def _holds_beyond(self, rule: SizeRule, last: int) -> bool:
        """Whether a rule holds at sizes far beyond those that it was read off."""
        if self.grid.symbols[rule.name].upper <= last:
            return True
        period = max(rule.step, 1)
        far = [*range(last + 1, last + 1 + 2 * period), *(period * ((last * k) // period) for k in range(2, BEYOND))]
        far += [size + step for size in far[2 * period :] for step in (-1, 1)]
        return _agrees_with_rule(rule, far, self.at(rule.name, far))

    def is_independent(self, name: str, rules: Mapping[str, SizeRule]) -> bool:
        """Whether the rule of a symbol also holds beside other legal sizes of the other symbols, with a rule or not."""
        random = np.random.default_rng(0)
        rule = rules[name]
        multiples = _sizes_inside(rule, random)
        sizes = [*range(self.low(name), self.low(name) + 64), *multiples, *(size + 1 for size in multiples)]
        for _ in range(TOGETHER):
            others = {
                symbol: int(random.choice(_sizes_inside(rules[symbol], random))) for symbol in rules if symbol != name
            }
            if not _agrees_with_rule(rule, sizes, self.at(name, sizes, others)):
                return False
        free = [symbol for symbol in self.base if symbol not in rules and symbol not in self.grid.ties]
        beside = [{symbol: self.base[symbol] + step} for symbol in free for step in (1, 2)]
        return all(
            not legal.any() or _agrees_with_rule(rule, sizes, legal)
            for legal in (self.at(name, sizes, x) for x in beside)
        )

    def has_others(self, first: SizeRule, second: SizeRule) -> bool:
        """Whether two symbols may both have sizes that their rules do not allow: one half as large, the other twice."""
        pairs = itertools.product(
            _sizes_outside(first, self.low(first.name)), _sizes_outside(second, self.low(second.name))
        )
        sizes = [
            with_ties({**self.base, first.name: first_size, second.name: second_size}, self.grid.ties)
            for first_size, second_size in pairs
        ]
        return bool(sizes) and not bool(self.grid.bad(sizes).any(axis=0).all())


def _sizes_outside(rule: SizeRule, low: int) -> list[int]:
    """Return sizes that a rule does not allow, which are parts and multiples of the least that it allows."""
    near = [rule.least * number for number in FACTORS] + [rule.least // number for number in FACTORS]
    near += [rule.least + step for step in (-1, 1, -2, 2)]
    return [size for size in dict.fromkeys(near) if size >= max(low, 1) and not _allows_size(rule, size)]


def _sizes_inside(rule: SizeRule, random: np.random.Generator) -> list[int]:
    """Return a few sizes that a rule allows."""
    count = 24 if rule.most is None else max((rule.most - rule.least) // rule.step + 1, 1)
    return [rule.least, *(rule.least + rule.step * int(k) for k in random.integers(0, count, 8))]


def _agrees_with_rule(rule: SizeRule, sizes: Sequence[int], is_legal: Bools) -> bool:
    """Whether sizes are legal where a rule says so; where it is not exact, others may be as well."""
    allowed = np.array([_allows_size(rule, size) for size in sizes], np.bool_)
    return bool((is_legal[allowed]).all() and (not rule.is_exact or not is_legal[~allowed].any()))


def _allows_size(rule: SizeRule, size: int) -> bool:
    below = (size + rule.less) // rule.step * rule.step
    near = [multiple for multiple in (below, below - rule.step) if -rule.less <= size - multiple <= rule.more]
    return any(rule.least <= multiple and (rule.most is None or multiple <= rule.most) for multiple in near)


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
        if is_open and hits[-1] + step <= last:
            continue
        if not is_open and len(hits) < 2 and len(legal) > 1:
            continue
        rule = SizeRule(name, step, hits[0], None if is_open else hits[-1])
        return _with_others(rule, allowed, low, last)
    return None


def _with_others(rule: SizeRule, allowed: set[int], low: int, last: int) -> SizeRule:
    """Return a rule of multiples with the other legal sizes added."""
    multiples = range(rule.least, (last if rule.most is None else rule.most) + 1, rule.step)
    inner = [size for size in multiples if low <= size - rule.step and size + rule.step <= last] or list(multiples)
    less, more = (
        min(_run_length(size, sign, allowed, rule.step) for size in inner) if rule.step > 1 else 0 for sign in (-1, 1)
    )
    wide = SizeRule(rule.name, rule.step, rule.least, rule.most, less, more)
    is_exact = all(_allows_size(wide, size) == (size in allowed) for size in range(low, last - rule.step))
    return SizeRule(
        name=rule.name, step=rule.step, least=rule.least, most=rule.most, less=less, more=more, is_exact=is_exact
    )


def _run_length(size: int, sign: int, allowed: set[int], step: int) -> int:
    """Return how many sizes beside one, on one side, are legal without a gap."""
    count = 0
    while count + 1 < step and size + sign * (count + 1) in allowed:
        count += 1
    return count
