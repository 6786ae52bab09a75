"""Sizes at which claims about nodes are tried: drawn from a seed, and near all numbers in them."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np

from graphkit.shapes.constraints.evaluate_constraints import Values, size_column
from graphkit.symbolic.expr import INF, Symbol
from graphkit.verify.equivalence.node_claims import STEPS, TIMES, Claim, least_size, sized_expressions

__all__ = ["Drawn", "Sizes", "drawn_sizes", "sizes_of"]

DRAWN = 240
SCANNED = 512  # sizes of one dim that are tried to make two expressions equal
# Sizes at which models change: small ones, odd ones, and those past what a few bits count.
SMALL = (0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 17, 33)
LARGER = (41, 59, 67, 131, 257, 299, 300, 301, 515, 1031)
NUMBERS = (*SMALL, *LARGER, 4097, 32767, 46341, 65535, 65537, (1 << 24) - 1, (1 << 24) + 1, (1 << 31) - 1)

Sizes = tuple[Values, int]  # sizes of many runs, and which of these
Drawn = Mapping[Hashable, Values]  # sizes by the symbols that they are for, and whether numbers may be large


def _claim_group(claim: Claim) -> tuple[Hashable, bool]:
    return frozenset(claim.symbols.values()), claim.is_of_numbers


def drawn_sizes(claims: Sequence[Claim], seed: int) -> Drawn:
    """Return sizes for claims: those of the same symbols have the same ones, near all numbers in them."""
    numbers: dict[tuple[Hashable, bool], set[int]] = {}
    symbols: dict[tuple[Hashable, bool], list[Symbol]] = {}
    for claim in claims:
        numbers.setdefault(_claim_group(claim), set()).update(claim.numbers)
        symbols.setdefault(_claim_group(claim), [claim.symbols[name] for name in sorted(claim.symbols)])
    return {group: _draw_sizes(symbols[group], numbers[group], group[1], seed) for group in numbers}


def _draw_sizes(symbols: Sequence[Symbol], numbers: set[int], is_of_numbers: bool, seed: int) -> Values:
    """Return sizes of symbols: their least ones; one for all; small ones and a larger one; or any."""
    rng = random.Random(f"{seed} {symbols} {sorted(numbers)}")
    near = sorted(number for number in numbers if is_of_numbers or 0 <= number <= LARGER[-1])
    rows = [[least_size(each) for each in symbols]]
    for turn in range(DRAWN if symbols else 0):
        pool = [*(NUMBERS if is_of_numbers else (*SMALL, *LARGER)), *near]
        pool += [rng.randrange(1, 1 << rng.randrange(2, 31 if is_of_numbers else 10)) for _ in range(12)]
        common, large = rng.choice(pool), rng.randrange(len(symbols))
        row = []
        for at, each in enumerate(symbols):
            if turn % 4 == 0:
                size = common
            elif turn % 4 == 1:
                size = least_size(each) + rng.randrange(8)
            else:
                size = rng.choice(pool if turn % 4 == 2 or at == large else SMALL)
            if each.upper < INF and rng.random() < 0.5:  # an element of a tensor, or a dim up to a size
                size = int(rng.choice((each.lower, each.upper))) + rng.choice((0, 1, -1))
            row.append(int(min(max(size, each.lower), each.upper)))
        rows.append(row)
    return Values(
        {each.name: size_column(listed) for each, listed in zip(symbols, zip(*rows, strict=True), strict=True)}
    )


def sizes_of(claim: Claim, drawn: Drawn) -> Iterator[Sizes]:
    """Yield the sizes at which a claim is tried, each once: those that were drawn, then some that make it run."""
    seen, values = set[tuple[int, ...]](), drawn[_claim_group(claim)]
    for several in chain([values], _equalise_sizes(claim, values)):
        rows, steps = np.flatnonzero(claim.legal(several)), claim.weights(several)[1]
        for row in (rows[np.argsort(steps[rows], kind="stable")] if steps[0] > STEPS / TIMES else rows).tolist():
            found = tuple(int(sizes[row]) for sizes in several.columns.values())
            if found not in seen:
                seen.add(found)
                yield several, row


def _equalise_sizes(claim: Claim, values: Values) -> Iterator[Values]:
    """Yield sizes of which one was changed, such that two expressions are equal that must be."""
    for row in range(values.count if claim.equal else 0):
        sizes = {name: int(several[row]) for name, several in values.columns.items()}
        for equal in claim.equal:
            names = sorted((equal.left.symbols | equal.right.symbols) & sizes.keys())
            name = names[row % len(names)] if names else ""
            if not name or len([*sized_expressions((equal.left, equal.right), values)]) < 2:
                continue
            symbol = claim.symbols[name]
            scanned = np.arange(least_size(symbol), int(min(symbol.upper, least_size(symbol) + SCANNED)) + 1)
            several = Values({**{each: size_column([size]) for each, size in sizes.items()}, name: scanned})
            if (places := np.flatnonzero(several.of(equal.left) == several.of(equal.right))).size:
                sizes[name] = int(scanned[places[row % places.size]])
        yield Values({name: size_column([size]) for name, size in sizes.items()})
