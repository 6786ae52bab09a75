"""Which sizes to try: legal ones, small, and telling - an empty past, odd numbers, a batch, beyond a sliding window.

The rows of `ROWS` are tried first, with the lengths that matter to the model. A wish that is not legal gives the
nearest legal size; sizes at which the model does not run teach nothing but are replaced: by sizes that models are often
exported at, then by changing one size of an assignment that did run.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from math import prod
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from graphkit.graph.roles import MASKS, Axis
from graphkit.shapes import Expr, infer
from graphkit.shapes.constraints.legal_sizes import LegalSizes, Variable
from graphkit.shapes.constraints.node_constraints import Assignment, Values, size_column
from graphkit.verify.feeder import Feeder, Lengths, Threshold
from graphkit.verify.input_elements import BY_ROW, FLOAT_MASKS, NAMES, Draw, Padding

MAX_COST = 100_000_000  # elements that a model computes in one run
MAX_DEAR = 3  # assignments of a higher cost to try, the cheapest first
NO_LENGTHS = Lengths()
LONG, END = -1, -2  # lengths of the model's own: past its windows, and up to the end of its table of positions
ALL_SIZES = 4096  # up to which all sizes are tried
POWERS = range(13, 27)  # of 2, beside which sizes are tried too
MAX_PAIRS = 8  # of expressions that may differ
MAX_BASES = 2  # assignments of which a dim is changed


class Row(NamedTuple):
    """Sizes that go well together."""

    batch: int
    sequence: int
    past: int
    encoder: int


class Proposal(NamedTuple):
    """An assignment to run at."""

    dims: dict[str, int]
    is_probe: bool  # whether it only asks where a table ends: it may be past it


ROWS = (
    Row(1, 7, 0, 5),  # a prompt
    Row(2, 1, 4, 3),  # a step
    Row(3, 1, 0, 1),
    Row(1, 3, 9, 7),  # several tokens at once
    Row(1, 1, LONG, 33),
    Row(1, LONG, 0, 6),
    Row(1, 1, END, 4),
    Row(2, 5, 1, 4),
    Row(2, 2, 6, 2),
    Row(4, 4, 3, 9),
)
ONE = Row(2, 5, 1, 4)  # where one run is enough: nothing is empty, and no two sizes are equal
COMMON = (32, 64, 16, 128, 8, 224, 256, 512, 10)  # sizes that models are exported at
COST = 1_000_000  # elements that one such run may compute, or what the dearest of the usual runs computes
TELLING = 4_000_000  # the same of one at which numbers turn
MOST = 20_000_000  # elements that such a run computes at most
LARGEST = (65_539, 16_411, 4_099, 1_031, 515, 259, 131, 67, 19, 9)  # past what 16 bits count, and the lengths of tables
PARITIES = (0, 1)  # added to each of them: halves, and what wraps, differ at odd sizes alone, or at even ones
MAX_THRESHOLDS = 4
LARGEST_UNCOUNTED = 100  # rows of a batch, where nothing tells how much a run computes
DRAWN_SIZES = 6
ROOMY, SMALL = Row(24, 6, 3, 6), Row(6, 6, 3, 6)  # a length that is the batch is a trap of its own
NUMBERS: tuple[tuple[Padding, ...], ...] = (("full", "above", "left", "above"), ("full", "below", "left", "below"))
EMPTY: tuple[Padding, ...] = ("empty", "full", "left", "empty", "right", "full")  # a single row is empty too
SHORT = Row(2, 1, 2, 1)
MAX_DRAWS = 6  # of one kind, where inputs hold few elements


def propose_assignments(
    legal: LegalSizes,
    successes: Sequence[Assignment],
    *,
    lengths: Lengths = NO_LENGTHS,
    is_first: bool = False,
    max_cost: int = MAX_COST,
    rows: Sequence[Row] = ROWS,
) -> Iterator[Proposal]:
    """Yield legal assignments, each once, the most telling first, those of `rows` before others.

    `successes` are those that ran; the caller adds to it while it iterates. One of which more than `max_cost` elements
    are computed is only tried where none ran. `is_first` says whether a merged decoder runs the branch that does not
    read the past.
    """
    tried: set[tuple[tuple[str, int], ...]] = set()
    dear: list[dict[str, int]] = []
    for choices in _wish_sizes(legal, successes, lengths, is_first, rows):
        known = len(successes)
        for wish in choices:
            nearest = itertools.islice(legal.near(wish), len(tried) + 1)
            assignment = next((dims for dims in nearest if tuple(sorted(dims.items())) not in tried), None)
            if assignment is None:
                continue
            if legal.cost(assignment) > max_cost:
                dear.append(assignment)
                continue
            tried.add(tuple(sorted(assignment.items())))
            yield Proposal(assignment, wish is not choices[-1])
            if len(successes) > known:
                break
    if not successes:
        yield from (Proposal(assignment, False) for assignment in sorted(dear, key=legal.cost)[:MAX_DEAR])


def _wish_sizes(
    legal: LegalSizes, successes: Sequence[Assignment], lengths: Lengths, is_first: bool, rows: Sequence[Row]
) -> Iterator[Sequence[dict[str, int]]]:
    """Yield wishes, of each sequence of which one that runs is enough."""
    has_past = not is_first and any(variable.role == "past" for variable in legal.variables)
    for number, row in enumerate(rows):
        if row.sequence == LONG and not has_past:  # the row before was that
            continue
        choices = {LONG: lengths.beyond, END: lengths.ends}
        special = next((choices[size] for size in (row.past, row.sequence) if size in choices), (0,))
        yield [_wish_of_symbols(legal, _sizes_by_role(row, length, has_past), number) for length in special]
    lengths_alike: tuple[Axis, ...] = ("sequence", "total", "encoder", "other", "space")
    common = (
        _wish_of_symbols(legal, {"batch": batch, "past": 0, "channels": 3, **dict.fromkeys(lengths_alike, size)}, 0)
        for batch, size in itertools.product((1, 2), COMMON)
    )
    for pair in itertools.zip_longest(common, _vary_sizes(legal, successes)):
        yield from ([wish] for wish in pair if wish is not None)


def _sizes_by_role(row: Row, length: int, has_past: bool) -> dict[Axis, int]:
    """Return a size for each role, with a length that is the model's own where the row wants one."""
    sequence = length if row.sequence < 0 else row.sequence
    past = row.past
    if past < 0:
        past = length - (row.past == END)  # the new token takes the last row
        sequence = sequence if has_past else length
    return {
        "batch": row.batch,
        "sequence": sequence,
        "past": max(past, 0),
        "encoder": row.encoder,
        "total": sequence + (past if has_past else 0),
        "channels": 3,
    }


def _wish_of_symbols(legal: LegalSizes, sizes: Mapping[Axis, int], number: int) -> dict[str, int]:
    """Return a wish for each symbol; one that is fixed speaks for the others of its role."""
    wish: dict[str, int] = {}
    for place, variable in enumerate(legal.variables):
        if variable.role in sizes:
            wish[variable.name] = legal.fixed_roles.get(variable.role, sizes[variable.role])
        else:
            base = max(variable.low, 32 if variable.role == "space" else 5)
            choices = [base, 2 * base, base + 1, base + base // 2 + 1, base + 7, base + base // 4 + 8]
            wish[variable.name] = choices[(number + place) % len(choices)]
    return wish


def _vary_sizes(legal: LegalSizes, successes: Sequence[Assignment]) -> Iterator[dict[str, int] | None]:
    """Yield assignments that ran, with the sizes of one role changed; None while nothing ran."""
    yield from itertools.takewhile(lambda _: not successes, itertools.repeat(None, 2 * len(COMMON)))
    roles = list(dict.fromkeys(variable.role for variable in legal.variables if variable.role != "total"))
    for step in (1, 2, 3, 5, 8, 16, -1, -2):
        for base, role in itertools.product(list(successes), roles):
            changed = (role, "total") if role in ("sequence", "past") else (role,)
            yield {v.name: base[v.name] + (step if v.role in changed else 0) for v in legal.variables}


class Edge(Struct, frozen=True):
    """A run that is worth trying."""

    what: str  # what is not covered where it fails, "" for sizes: where the original fails nothing can differ
    choices: tuple[dict[str, int], ...]  # sizes, the first that run are enough; none where all take too long
    draw: Draw


class Edges:
    """The edges to try of a model, after the usual sizes at which it ran.

    Where expressions of both models differ that normal forms leave open, these sizes are edges.
    """

    def __init__(
        self,
        feeder: Feeder,
        flags: dict[str, bool],
        usual: Sequence[dict[str, int]],
        differing: Sequence[tuple[Expr, Expr]] = (),
    ) -> None:
        self.feeder, self.usual, self.differing = feeder, usual, differing
        self.legal, self.is_first, self.lengths = feeder.legal(flags), feeder.is_first(flags), feeder.lengths
        self.has_past = not self.is_first and any(variable.role == "past" for variable in self.legal.variables)
        self.tried: list[dict[str, int]] = []
        self.number = len(usual)

    def __iter__(self) -> Iterator[Edge]:
        if self.legal.variables:
            yield from self.where_models_differ()
            yield from self._of_sizes(chain(self._large_sizes(), self._sizes_at_thresholds()))
        yield from self._edges_of_values(self.number)
        if self.feeder.defaults.arrays and self.usual:
            yield Edge("defaults of inputs", tuple(self.usual[:2]), replace(Draw.usual(1), overridden=True))

    def where_models_differ(self) -> Iterator[Edge]:
        """Yield those at sizes at which expressions of both models differ."""
        return self._of_sizes(self._sizes_that_differ())

    def _of_sizes(self, found: Iterable[tuple[str, list[dict[str, int]]]]) -> Iterator[Edge]:
        """Yield edges of sizes, each with a draw of its own, from what is not covered without them and the choices."""
        for gap, choices in found:
            self.number += 1
            self.tried.extend(choices[:1])
            if choices or gap:
                yield Edge(gap, tuple(choices), Draw.usual(self.number))

    @property
    def budget(self) -> int:
        """The elements that a run may compute."""
        return min(max(COST, *(self.legal.cost(dims) for dims in self.usual)), MOST)

    def _edges_of_values(self, number: int) -> Iterator[Edge]:
        batches = [variable.name for variable in self.legal.variables if variable.role == "batch"]
        nearest: Iterable[dict[str, int]] = [{}]
        if self.legal.variables:
            wishes = (self.legal.near(self._wish(row)) for row in (ROOMY, SMALL))
            nearest = chain.from_iterable(itertools.islice(wish, 1) for wish in wishes)
        roomy = next((dims for dims in nearest if self.legal.cost(dims) <= self.budget), None)
        ran = sorted(self.usual, key=lambda dims: (-max((dims[n] for n in batches), default=1), self.legal.cost(dims)))
        choices = (*([roomy] if roomy is not None else []), *ran[:2]) or ({},)
        start = number % len(BY_ROW)
        mixed = (*BY_ROW[start:], *BY_ROW[:start])
        feeder, maker = self.feeder, self.feeder.maker
        every = feeder.sizes.shapes(choices[0], is_first=self.is_first)
        shapes = {name: shape for name, shape in every.items() if name not in feeder.given}
        kinds = {kind: draws for kind in feeder.kinds if (draws := maker.draws(kind, shapes))}
        has_masks = not maker.counts_masks and not maker.is_unpadded and bool(maker.model.roles.all(*MASKS))
        has_float_masks = has_masks and maker.has_float_masks
        for kind, draws in kinds.items():
            padding = EMPTY if kind == "extremes" and has_masks else mixed
            for at in range(min(draws, MAX_DRAWS)):
                yield Edge(NAMES[kind], choices, Draw(kind, padding, at))
        if has_masks and (has_float_masks or "extremes" not in kinds):
            for at in range(FLOAT_MASKS if has_float_masks else 1):
                yield Edge("rows of masks that hide all", choices, Draw(padding=EMPTY, number=number + at))
        if maker.takes_numbers:  # no caller need give them, and the original may fail
            for padding in NUMBERS:
                yield Edge("", choices, Draw(padding=padding, number=number - number % 3 + 1))

    def _sizes_that_differ(self) -> Iterator[tuple[str, list[dict[str, int]]]]:
        for dims in differing_sizes(self.differing, self.legal, self.usual):
            is_cheap = self.legal.cost(dims) <= max(self.budget, TELLING) and self._cost(dims) <= MOST
            yield "sizes that could tell the models apart", [dims] if is_cheap else []

    def _large_sizes(self) -> Iterator[tuple[str, list[dict[str, int]]]]:
        roles = {variable.role for variable in self.legal.variables}
        for largest in ([size + parity for size in LARGEST] for parity in PARITIES):
            if "batch" in roles:
                batches = [size for size in largest if self._is_counted or size < LARGEST_UNCOUNTED]
                yield "", self._affordable_sizes(Row(size, 2, 1, 3) for size in batches)
            lengths = [size for size in largest if not self.lengths.ends or size < self.lengths.ends[-1]]
            rows = (Row(1, size, 0, 3 if "sequence" in roles else size) for size in lengths)
            if roles - {"batch", "past"}:
                yield "", self._affordable_sizes(rows, others=lengths)
            if self.has_past:
                yield "", self._affordable_sizes(Row(2, 1, size, size) for size in lengths)
        names = (value.name for model in self.feeder.models for value in model.graph.values.values())
        draw = np.random.default_rng(zlib.crc32("\n".join(names).encode()))
        for size in map(int, np.exp2(draw.uniform(3, 12, DRAWN_SIZES))):
            row = Row(1, size, 0, size) if roles - {"batch", "past"} else Row(size, 2, 1, 3)
            if row.batch == 1 or self._is_counted or size < LARGEST_UNCOUNTED:
                yield "", self._affordable_sizes([row], others=[size])
        for row, size in ((SMALL, SMALL.batch), (SHORT, SHORT.sequence)):
            yield "", self._affordable_sizes([row], others=[size])

    def _sizes_at_thresholds(self) -> Iterator[tuple[str, list[dict[str, int]]]]:
        for threshold in list(dict.fromkeys(self.feeder.thresholds))[:MAX_THRESHOLDS]:
            for size in (threshold.size, threshold.size + 1, threshold.size + threshold.size // 3 + 2):
                legal_dims = [dims for wish in self._wishes_at_threshold(threshold, size) for dims in self._legal(wish)]
                cheap = [dims for dims in legal_dims if self.legal.cost(dims) <= self.budget]
                if not any(size in (dims.get(name) for name in threshold.symbols) for dims in self.usual):
                    yield f"sizes past {threshold.size}" if legal_dims and not cheap else "", cheap[:2]

    def _wishes_at_threshold(self, threshold: Threshold, size: int) -> Iterator[dict[str, int]]:
        base = self._wish(Row(2, 2, 1, 3))
        known = [variable.name for variable in self.legal.variables if variable.name in threshold.symbols]
        free = [variable.name for variable in self.legal.variables if variable.role not in ("batch", "total")]
        for name in known or free:
            rest = sum(base[dim] for dim in known if dim != name)
            yield {**base, name: size if len(known) < 2 else max(size - rest, 1)}

    def _affordable_sizes(self, rows: Iterable[Row], others: Sequence[int] = ()) -> list[dict[str, int]]:
        affordable: list[dict[str, int]] = []
        for place, row in enumerate(rows):
            wish = self._wish(row)
            if others:
                free = {variable.name for variable in self.legal.variables if variable.role in ("other", "space")}
                wish.update(dict.fromkeys(free, others[place]))
            affordable += [dims for dims in self._legal(wish) if self._cost(dims) <= self.budget]
        return affordable

    def _cost(self, dims: dict[str, int]) -> int:
        shapes = self.legal.shapes(dims, is_first=self.is_first).values()
        return self.legal.cost(dims) + sum(prod(shape) for shape in shapes if shape is not None)

    @cached_property
    def _is_counted(self) -> bool:
        shapes = infer(self.feeder.models[0])
        return all(shapes[value].is_known for value in shapes if value.kind == "node" and not value.is_constant)

    def _wish(self, row: Row) -> dict[str, int]:
        return _wish_of_symbols(self.legal, _sizes_by_role(row, 0, self.has_past), 0)

    def _legal(self, wish: Mapping[str, int]) -> list[dict[str, int]]:
        nearest = next(iter(self.legal.near(wish)), None)
        return [nearest] if nearest is not None and nearest not in (*self.usual, *self.tried) else []


def differing_sizes(
    pairs: Sequence[tuple[Expr, Expr]], legal: LegalSizes, usual: Sequence[Mapping[str, int]]
) -> Iterator[dict[str, int]]:
    """Yield the least legal sizes, of one dim each, at which expressions differ that are equal at all usual ones."""
    names = {variable.name for variable in legal.variables} | legal.fixed.keys()
    for left, right in [pair for pair in pairs if pair[0].symbols | pair[1].symbols <= names][:MAX_PAIRS]:
        if any(_differing_sizes(left, right, {**legal.fixed, **dims}).any() for dims in usual):
            continue
        for dims in usual[:MAX_BASES]:
            for variable in legal.variables:
                if variable.name in left.symbols | right.symbols:
                    yield from _least_sizes(left, right, legal, dims, variable)


def _least_sizes(
    left: Expr, right: Expr, legal: LegalSizes, dims: Mapping[str, int], variable: Variable
) -> Iterator[dict[str, int]]:
    """Yield legal sizes with the least size of a dim at which two expressions differ, if there is one."""
    near = [(1 << power) + step for power in POWERS for step in (-1, 0, 1)]
    sizes = np.array([*range(variable.low, ALL_SIZES + 1), *(size for size in near if size >= variable.low)])
    fixed = {**legal.fixed, **dims}
    places = np.flatnonzero(_differing_sizes(left, right, fixed, {variable.name: sizes}))
    if not places.size:
        return
    same, odd = (int(sizes[max(place, 0)]) for place in (places[0] - 1, places[0]))
    while odd - same > 1:  # between those that were tried
        middle = (same + odd) // 2
        is_odd = _differing_sizes(left, right, {**fixed, variable.name: middle}).any()
        same, odd = (same, middle) if is_odd else (middle, odd)
    sizes_near = next(iter(legal.near({**dims, variable.name: odd})), None)
    if sizes_near is not None and _differing_sizes(left, right, {**legal.fixed, **sizes_near}).any():
        yield sizes_near


def _differing_sizes(left: Expr, right: Expr, dims: Assignment, varied: Mapping[str, np.ndarray] = {}) -> np.ndarray:
    values = Values({**{name: size_column([size]) for name, size in dims.items()}, **varied})
    return np.asarray(values.of(left) != values.of(right))
