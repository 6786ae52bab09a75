"""Runs beyond the usual sizes: large batches, long sequences, both sides of thresholds; and runs at edges of values.

What a run costs is estimated before it is tried, so that they take about as long together as the usual ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from graphkit.constraints.legal_sizes import LegalSizes
from graphkit.verify.assignments import Row, wish_of
from graphkit.verify.draws import BY_ROW, NAMES, Draw, Kind, Padding
from graphkit.verify.lengths import Lengths
from graphkit.verify.thresholds import Threshold

__all__ = ["MOST", "Edge", "Edges"]

COST = 1_000_000  # elements that one such run may compute, or what the dearest of the usual runs computes
MOST = 20_000_000  # elements that such a run computes at most
LARGEST = (65_539, 16_411, 4_099, 1_031, 515, 259, 131, 67, 19)  # past what 16 bits count, and the lengths of tables
LARGE_BATCHES = (67, 17, 9)
MAX_THRESHOLDS = 4
ROOMY, SMALL = Row(24, 6, 3, 6), Row(6, 6, 3, 6)  # a length that is the batch is a trap of its own
EMPTY: tuple[Padding, ...] = ("full", "empty", "left", "empty", "right", "full")
SHORT = Row(2, 1, 2, 1)
MAX_DRAWS = 6  # of one kind, where inputs hold few elements


@dataclass(frozen=True)
class Edge:
    """A run that is worth trying.

    Attributes:
        what: What is not covered where it fails, "" for sizes: at those at which the original fails nothing can differ.
        choices: Sizes, the first that run are enough; none where all take too long.
    """

    what: str
    choices: tuple[dict[str, int], ...]
    draw: Draw


@dataclass(frozen=True)
class Edges:
    """The facts of a model that decide which edges to try.

    Attributes:
        usual: The sizes at which the original ran.
        tried: Those that were tried besides.
        kinds: Returns the kinds of edges that its inputs have at some sizes, with the draws that show them all.
    """

    legal: LegalSizes
    usual: Sequence[dict[str, int]]
    lengths: Lengths
    thresholds: Sequence[Threshold]
    kinds: Callable[[Mapping[str, int]], Mapping[Kind, int]]
    has_past: bool
    has_masks: bool
    tried: list[dict[str, int]] = field(default_factory=list)

    def __iter__(self) -> Iterator[Edge]:
        number = len(self.usual)
        if self.legal.variables:
            for what, choices in (*self._large(), *self._thresholds()):
                number += 1
                self.tried.extend(choices[:1])
                if choices or what:
                    yield Edge(what, tuple(choices), Draw.usual(number))
        yield from self._values(number)

    @property
    def budget(self) -> int:
        """The elements that a run may compute."""
        return min(max(COST, *(self.legal.cost(dims) for dims in self.usual)), MOST)

    def _values(self, number: int) -> Iterator[Edge]:
        dims = self._first([self._at(ROOMY), self._at(SMALL)]) or min(self.usual, key=self.legal.cost, default={})
        start = number % len(BY_ROW)
        mixed = (*BY_ROW[start:], *BY_ROW[:start])
        kinds = self.kinds(dims)
        for kind, draws in kinds.items():
            padding = EMPTY if kind == "extremes" and self.has_masks else mixed
            for at in range(min(draws, MAX_DRAWS)):
                yield Edge(NAMES[kind], (dims,), Draw(kind, padding, at))
        if self.has_masks and "extremes" not in kinds:
            yield Edge("rows of masks that are all zeros", (dims,), Draw(padding=EMPTY, number=number))

    def _large(self) -> Iterator[tuple[str, list[dict[str, int]]]]:
        yield "", self._affordable(Row(size, 2, 1, 3) for size in LARGE_BATCHES)
        lengths = [size for size in LARGEST if not self.lengths.ends or size < self.lengths.ends[-1]]
        has_sequence = any(variable.role == "sequence" for variable in self.legal.variables)
        rows = (Row(1, size, 0, 3 if has_sequence else size) for size in lengths)
        yield "", self._affordable(rows, others=lengths)
        if self.has_past:
            yield "", self._affordable(Row(2, 1, size, size) for size in lengths)
        for row, size in ((SMALL, SMALL.batch), (SHORT, SHORT.sequence)):
            yield "", self._affordable([row], others=[size])

    def _thresholds(self) -> Iterator[tuple[str, list[dict[str, int]]]]:
        for threshold in list(dict.fromkeys(self.thresholds))[:MAX_THRESHOLDS]:
            for size in (threshold.size, threshold.size + 1):
                found = [dims for wish in self._wishes(threshold, size) for dims in self._legal(wish)]
                cheap = [dims for dims in found if self.legal.cost(dims) <= self.budget]
                if not any(size in (dims.get(name) for name in threshold.symbols) for dims in self.usual):
                    yield f"sizes past {threshold.size}" if found and not cheap else "", cheap[:2]

    def _wishes(self, threshold: Threshold, size: int) -> Iterator[dict[str, int]]:
        """Yield sizes at which a threshold is met: of the dims that are said to meet it, or of lengths."""
        base = wish_of(self.legal, Row(2, 2, 1, 3), 0, self.has_past)
        known = [variable.name for variable in self.legal.variables if variable.name in threshold.symbols]
        free = [variable.name for variable in self.legal.variables if variable.role not in ("batch", "total")]
        for name in known or free:
            rest = sum(base[other] for other in known if other != name)
            yield {**base, name: size if len(known) < 2 else max(size - rest, 1)}

    def _affordable(self, rows: Iterable[Row], others: Sequence[int] = ()) -> list[dict[str, int]]:
        """Return the first two sizes that cost little enough, and are larger than those that were tried."""
        found: list[dict[str, int]] = []
        for place, row in enumerate(rows):
            wish = wish_of(self.legal, row, 0, self.has_past)
            if others:
                free = {one.name for one in self.legal.variables if one.role in ("other", "space")}
                wish.update(dict.fromkeys(free, others[place]))
            found += [dims for dims in self._legal(wish) if self.legal.cost(dims) <= self.budget]
            if len(found) > 1:
                break
        return found

    def _first(self, choices: Iterable[dict[str, int] | None]) -> dict[str, int] | None:
        return next((one for one in choices if one is not None and self.legal.cost(one) <= self.budget), None)

    def _at(self, row: Row) -> dict[str, int] | None:
        if not self.legal.variables:
            return {}
        return next(iter(self.legal.near(wish_of(self.legal, row, 0, self.has_past))), None)

    def _legal(self, wish: Mapping[str, int]) -> list[dict[str, int]]:
        found = next(iter(self.legal.near(wish)), None)
        return [found] if found is not None and found not in (*self.usual, *self.tried) else []
