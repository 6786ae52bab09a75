"""Runs of an original model at legal sizes and at edges, and their coverage."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from graphkit.graph.names import count_things
from graphkit.graph.roles import MASKS
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.runtime.isolation import current_limits
from graphkit.runtime.session import RunError, Runner
from graphkit.shapes import Expr, symbol
from graphkit.shapes.constraints.dim_equalities import fed_inputs
from graphkit.shapes.constraints.legal_sizes import LegalSizes, Variable
from graphkit.verify.comparator import Output, compare_outputs, element_counts
from graphkit.verify.critical_sizes import Threshold, find_thresholds, lengths_of
from graphkit.verify.input_elements import NAMES, USUAL, Defaults, Draw, Kind, Padding
from graphkit.verify.input_generator import InputGenerator, TooLargeError, is_flag
from graphkit.verify.rewrite_proof import RunSizes, SkippedRun
from graphkit.verify.run_sizes import MAX_COST, MOST, ONE, ROWS, Edge, Edges, Proposal, propose_assignments

__all__ = [
    "KINDS",
    "Feeder",
    "LevelRuns",
    "Run",
    "RunRecord",
    "at_both_levels",
    "coverage_text",
    "proof_caveats",
    "run_empty",
    "run_original",
    "run_with",
    "unsteady_runs",
]

ENOUGH = 5  # assignments; fewer are worth a note
STATIC_RUNS = 3  # where all dims are fixed: other values each time
MAX_ATTEMPTS = 40
NUMBERS: Mapping[Padding, str] = {"above": "numbers in masks above 1", "below": "numbers in masks below 0"}
FURTHER, NO_TIME = "further sizes and values", "for which the limit of time leaves no time"
MAX_FLAGS = 2  # flags of which all combinations are run
MAX_EMPTY = 16  # dims that are tried at 0, and legal sizes that are looked through for each
KINDS: tuple[Kind, ...] = ("edges", "extremes", "not finite")
Flags = dict[str, bool]


@dataclass(frozen=True, eq=False)
class Run(RunSizes):
    """A feed, and the original's outputs for it.

    Attributes:
        empty: The dims that are 0 there, although they count from 1 on elsewhere.
    """

    seed: int
    expected: Mapping[str, Output]
    draw: Draw = USUAL
    empty: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunRecord:
    """The sizes and flags that an original runs at.

    Attributes:
        skipped: Those at which onnxruntime fails.
        notes: What to know of them, a sentence each.
        uncovered: Edges at which it fails, and why.
        fatal: The runs that end the process, and how, the edges not among them.
        empty: Runs at which a dim is 0, for each dim that may be, and at which all of these are.
        refused: Runs at which dims are 0, and it fails.
        unlike: Runs at which dims of one name differ.
    """

    runs: list[Run] = field(default_factory=list)
    skipped: list[SkippedRun] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    uncovered: dict[str, str] = field(default_factory=dict)
    fatal: list[tuple[Run, str]] = field(default_factory=list)
    empty: list[Run] = field(default_factory=list)
    refused: list[Run] = field(default_factory=list)
    unlike: list[Run] = field(default_factory=list)


class Feeder:
    """Makes the inputs of a model at its legal sizes, from a seed; arrays that are given stand for generated ones.

    Args:
        model: The original.
        legal: The sizes at which both run.
        given: Arrays for inputs.
        seed: Of the generator.
        others: What was made of the original: numbers that these models compare with are edges too.
        kinds: Kinds of edges of values to try.
        is_unpadded: Whether masks hide nothing.
    """

    def __init__(
        self,
        model: Model,
        legal: LegalSizes,
        given: Mapping[str, np.ndarray],
        seed: int,
        *,
        others: Sequence[Model] = (),
        kinds: Sequence[Kind] = KINDS,
        is_unpadded: bool = False,
    ) -> None:
        self.sizes, self.given, self.kinds = legal, given, kinds
        self.inputs: Mapping[str, Value] = fed_inputs(model)
        self.models = (model, *others)
        most = current_limits().inputs()
        self.maker = InputGenerator(model, seed, others=others, most=most, is_unpadded=is_unpadded)
        self.defaults = Defaults.of(model, others)
        self.lengths = lengths_of(model)
        merged = model.roles.decoder
        self.reading = {} if merged is None else {merged.condition.input.name: merged.cache_when}
        self.flag_shapes = {} if merged is None else {merged.condition.input.name: merged.condition.shape}

    def flags(self) -> list[Flags]:
        """Return the combinations of flags to run, at least one."""
        names = [*(name for name, value in self.inputs.items() if is_flag(value)), *self.reading]
        values = {name: self._flag_values(name) for name in dict.fromkeys(names)}
        if sum(len(choices) > 1 for choices in values.values()) > MAX_FLAGS:
            return [{name: choices[at] for name, choices in values.items()} for at in (0, -1)]
        return [dict(zip(values, flags, strict=True)) for flags in itertools.product(*values.values())]

    def _flag_values(self, name: str) -> tuple[bool, ...]:
        """Return the values that a flag gets: that of its array where one is given."""
        return (bool(self.given[name].all()),) if name in self.given else (False, True)

    def legal(self, flags: Flags) -> LegalSizes:
        """Return the legal sizes with these flags."""
        return self.sizes.for_branch(is_first=self.is_first(flags), reads_past=self._reads_past(flags))

    def _reads_past(self, flags: Flags) -> bool:
        return any(flags.get(name) == flag for name, flag in self.reading.items())

    def is_first(self, flags: Flags) -> bool:
        """Whether a merged decoder runs its first step with these flags."""
        return any(flags.get(name) == (not flag) for name, flag in self.reading.items())

    @cached_property
    def thresholds(self) -> tuple[Threshold, ...]:
        """The constants that dims meet; those of the rewritten model alone come first."""
        original, *others = map(find_thresholds, self.models)
        return (*(met for rewritten in others for met in rewritten if met not in original), *original)

    def unlike(self, dims: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """Yield sizes at which dims of one name differ: no runtime checks that they are equal."""
        roles, places = self.models[0].roles, dict[str, dict[tuple[str, int], list[str]]]()
        for name, value in self.inputs.items():
            role = roles.of(value)
            for axis, dim in enumerate((self.sizes.inputs[name] or ()) if value.consumers else ()):
                if dim.name is not None:
                    kinds = places.setdefault(dim.name, {})
                    kinds.setdefault((name if role == "other" else role, axis), []).append(f"{name}.{axis}")
        for shared, kinds in places.items():
            for others in [*kinds.values()][1:]:
                for size in {1, 2 * dims[shared]} - {dims[shared]}:
                    yield {**dims, **dict.fromkeys(others, size)}

    def again(self, run: Run) -> dict[str, np.ndarray]:
        """Return the inputs of a run once more."""
        return self.feed(run.dims, run.flags, run.seed, run.draw)

    def edges(
        self,
        flags: Flags,
        usual: Sequence[dict[str, int]],
        differing: Sequence[tuple[Expr, Expr]] = (),
        *,
        only_differing: bool = False,
    ) -> Iterator[Edge]:
        """Yield the edges to try, after sizes at which the model ran; expressions that differ somewhere make some."""
        legal, is_first = self.legal(flags), self.is_first(flags)
        has_past = not is_first and any(variable.role == "past" for variable in legal.variables)

        def kinds(dims: Mapping[str, int]) -> dict[Kind, int]:
            input_shapes = self.sizes.shapes(dims, is_first=is_first)
            shapes = {name: shape for name, shape in input_shapes.items() if name not in self.given}
            draws_by_kind = {kind: self.maker.draws(kind, shapes) for kind in self.kinds}
            return {kind: draws for kind, draws in draws_by_kind.items() if draws}

        if only_differing:
            yield from Edges(
                legal=legal,
                usual=usual,
                lengths=self.lengths,
                thresholds=(),
                kinds=kinds,
                has_past=has_past,
                has_masks=False,
                differing=differing,
            ).of_differing()
            return
        may_be_empty = not self.maker.counts_masks and not self.maker.is_unpadded
        has_masks = may_be_empty and bool(self.maker.model.roles.all(*MASKS))
        thresholds = self.thresholds if legal.variables else ()
        yield from Edges(
            legal=legal,
            usual=usual,
            lengths=self.lengths,
            thresholds=thresholds,
            kinds=kinds,
            has_past=has_past,
            has_masks=has_masks,
            has_float_masks=has_masks and self.maker.has_float_masks,
            has_numbers=self.maker.takes_numbers,
            differing=differing,
        )
        if self.defaults.arrays and usual:
            draw = Draw.usual(1)
            yield Edge("defaults of inputs", tuple(usual[:2]), replace(draw, overridden=True))

    @property
    def is_exact(self) -> bool:
        """Whether both models are to give the same at all edges of values."""
        return set(self.kinds) == set(KINDS)

    def at(self, legal: LegalSizes) -> Feeder:
        """Return a feeder for other sizes."""
        return Feeder(self.models[0], legal, self.given, self.maker.seed, is_unpadded=self.maker.is_unpadded)

    def shapes(self, run: Run) -> dict[str, tuple[int, ...] | None]:
        """Return the shapes of the inputs of a run."""
        return self.sizes.shapes(run.dims, is_first=self.is_first(run.flags))

    def rows(self, run: Run) -> int:
        """Return how many rows the masks have in a run."""
        shapes = self.shapes(run)
        mask_shapes = [shapes.get(value.name) for value in self.maker.model.roles.all(*MASKS)]
        return max((shape[0] for shape in mask_shapes if shape), default=0)

    def edged(self, draw: Draw) -> list[str]:
        """Return the inputs that get edges with a draw."""
        return [value.name for value in self.maker.model.roles.inputs if self.maker.has_edges(value, draw)]

    def feed(self, dims: Mapping[str, int], flags: Flags, seed: int, draw: Draw = USUAL) -> dict[str, np.ndarray]:
        """Return the inputs of a run."""
        is_first = self.is_first(flags)
        shapes = self.sizes.shapes(dims, is_first=is_first)
        booleans = {
            name: np.full(self.flag_shapes.get(name, shapes.get(name) or ()), flag) for name, flag in flags.items()
        }
        past = 0 if is_first else self.sizes.past_size(dims)
        feed = self.maker.arrays(shapes, past=past, given={**self.given, **booleans}, seed=seed, draw=draw)
        overridden = self.defaults.overridden(draw) if draw.overridden else {}
        return {**overridden, **feed, **booleans}  # a condition with a default is fed too


@dataclass(frozen=True)
class LevelRuns:
    """How to run a model again: its session, made when it is needed, and its feeds."""

    open: Callable[[], Runner]
    feed: Callable[[Run], Mapping[str, np.ndarray]]


def run_original(
    session: Runner,
    feeder: Feeder,
    count: int,
    *,
    has_edges: bool = True,
    differing: Sequence[tuple[Expr, Expr]] = (),
) -> RunRecord:
    """Run a model at so many assignments, if there are as many, with each combination of flags, and at edges.

    Edges are sizes too at which expressions of two models differ.

    Raises:
        ModelError: No input can be made for it.
    """
    record = RunRecord()
    for flags in feeder.flags():
        run_with(session, feeder, flags, count, record, has_edges=has_edges, differing=differing)
        run_empty(session, feeder, flags, record)
    return record


def unsteady_runs(session: Runner, feeder: Feeder, runs: Sequence[Run]) -> list[Run]:
    """Return the runs whose outputs differ when they are run again, after others than at first.

    onnxruntime accepts some dims that an operator does not allow, and then gives what was in memory before.
    """
    unsteady: set[Run] = set()
    for run in (*reversed(runs), *runs):
        repeated = session.run(feeder.again(run))
        if not all(difference.within(0.0) for difference in compare_outputs(run.expected, repeated)):
            unsteady.add(run)
    return [run for run in runs if run in unsteady]


def run_with(
    session: Runner,
    feeder: Feeder,
    flags: Flags,
    count: int,
    record: RunRecord,
    *,
    has_edges: bool = True,
    differing: Sequence[tuple[Expr, Expr]] = (),
) -> None:
    """Run a model at so many assignments with one combination of flags, then at edges, and add the runs to `record`."""
    legal, successes, cost = feeder.legal(flags), list[dict[str, int]](), 0
    end = time.monotonic() + current_limits().search()
    for seed, proposal in enumerate(_propose_sizes(legal, feeder, flags, successes, has_edges=has_edges)):
        if seed and time.monotonic() > end:
            record.uncovered[FURTHER] = NO_TIME
            return
        dims, draw = proposal.dims, Draw.usual(seed)
        try:
            expected = session.run(feeder.feed(dims, flags, seed, draw))
        except (RunError, TooLargeError) as error:
            if not proposal.is_probe:
                record.skipped.append(SkippedRun(dims, flags, error.problem))
            if isinstance(error, RunError) and error.signal:
                record.fatal.append((Run(dims, flags, seed, {}, draw), error.problem))
            if isinstance(error, RunError) and error.is_final:
                break
            continue
        successes.append(dims)
        cost += legal.cost(dims)
        record.runs.append(Run(dims, flags, seed, expected, draw))
        if len(successes) == count or cost > MAX_COST:
            break
    if successes and (has_edges or differing):
        edges = feeder.edges(flags, list(successes), differing, only_differing=not has_edges)
        _run_edges(session, feeder, flags, edges, successes, record, end)
    if successes and has_edges:
        dims = min(successes, key=lambda dims: (sum(size < 2 for size in dims.values()), legal.cost(dims)))
        for unlike in feeder.unlike(dims):
            with suppress(RunError, TooLargeError):
                expected = session.run(feeder.feed(unlike, flags, 0))
                record.unlike.append(Run(unlike, flags, 0, expected))
    if legal.variables and len(successes) < min(count, ENOUGH):
        where = "".join(f" with {name}={str(flag).lower()}" for name, flag in flags.items())
        few = {0: "No sizes were", 1: "Only one set of sizes was"}.get(
            len(successes), f"Only {len(successes)} sets of sizes were"
        )
        record.notes.append(f"{few} found at which it runs{where}.")


def _run_edges(
    session: Runner,
    feeder: Feeder,
    flags: Flags,
    edges: Iterator[Edge],
    usual: Sequence[dict[str, int]],
    record: RunRecord,
    end: float,
) -> None:
    """Run a model at edges of sizes and values until a time; those at which it fails are not covered."""
    if min(map(feeder.legal(flags).cost, usual)) > MOST:
        record.uncovered["edges of sizes and values"] = "which take too long at the only sizes at which it runs"
        return
    for seed, edge in enumerate(edges, start=MAX_ATTEMPTS):
        if time.monotonic() > end:
            record.uncovered[FURTHER] = NO_TIME
            return
        reason, runs = "at which the original fails" if edge.choices else "which take too long", len(record.runs)
        for dims in edge.choices:
            for draw in edge.draw.milder(feeder.edged(edge.draw)):
                if (expected := _run_outputs(session, feeder, flags, dims, seed, draw)) is None:
                    continue
                if "empty" in draw.padding and not feeder.is_exact and not _all_finite(expected):
                    reason = "at which the original gives no numbers"
                    continue
                record.runs.append(Run(dims, flags, seed, expected, draw, elements=_special_elements(draw)))
                if not draw.only:
                    break
            has_run = len(record.runs) > runs or reason.endswith("no numbers")
            if has_run or (
                edge.draw.kind != "usual" and _run_outputs(session, feeder, flags, dims, seed, USUAL) is not None
            ):
                break  # the sizes are legal, other ones teach nothing
        if len(record.runs) == runs and edge.what:
            record.uncovered.setdefault(edge.what, reason)


def _run_outputs(
    session: Runner, feeder: Feeder, flags: Flags, dims: Mapping[str, int], seed: int, draw: Draw
) -> Mapping[str, Output] | None:
    """Return what a model gives, None where it fails."""
    try:
        return session.run(feeder.feed(dims, flags, seed, draw))
    except (RunError, TooLargeError):
        return None


def run_empty(session: Runner, feeder: Feeder, flags: Flags, record: RunRecord) -> None:
    """Run a model with each dim at 0, then with all that it takes: no length is too short for a caller."""
    legal = feeder.sizes.for_branch(is_first=feeder.is_first(flags), reads_past=False)
    known = [run.dims for run in record.runs if run.flags == flags]
    usual, taken = min(known, key=legal.cost, default={}), list[Variable]()
    variables = [each for each in legal.variables[:MAX_EMPTY] if known and each.name not in legal.bounded]
    for number, empty in enumerate([*([each] for each in variables), taken]):
        names = tuple(each.name for each in empty)
        if (empty is taken and len(taken) < 2) or any(all(dims.get(name) == 0 for name in names) for dims in known):
            continue
        shorter = tuple(replace(each, low=0) if each in empty else each for each in legal.variables)
        wish = replace(legal, variables=shorter).near({**usual, **dict.fromkeys(names, 0)})
        few = itertools.islice(wish, MAX_EMPTY)
        dims = next((dims for dims in few if not any(dims[name] for name in names)), None)
        if dims is None:
            continue
        try:
            expected = session.run(feeder.feed(dims, flags, number))
        except RunError as error:
            record.refused.append(Run(dims, flags, number, {}, empty=names))
            if error.signal or error.timed_out:  # the next one may end the process, too
                return
            continue
        taken += empty if empty is not taken else []
        record.empty.append(Run(dims, flags, number, expected, empty=names))


def at_both_levels(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that count at the default level: fusions may treat values that are not finite as they like."""
    steady = (run for run in runs if not run.empty and run.draw.kind in ("usual", "edges"))
    return [run for run in steady if not {"empty", *NUMBERS} & {*run.draw.padding}]


def _all_finite(outputs: Mapping[str, Output]) -> bool:
    return all(elements == finite for elements, finite in map(element_counts, outputs.values()))


def _special_elements(draw: Draw) -> str:
    """Return the special elements of a draw, in words."""
    if draw.overridden:
        return "defaults overridden"
    masks = {"empty": "rows of masks that hide all", **NUMBERS}
    return NAMES.get(draw.kind, next((text for padding, text in masks.items() if padding in draw.padding), ""))


def _propose_sizes(
    legal: LegalSizes, feeder: Feeder, flags: Flags, successes: list[dict[str, int]], *, has_edges: bool
) -> Iterator[Proposal]:
    if not legal.variables:
        return iter([Proposal({}, False)] * (STATIC_RUNS if feeder.inputs else 1))
    rows = ROWS if has_edges else (ONE, *ROWS)
    proposals = propose_assignments(
        legal, successes, lengths=feeder.lengths, is_first=feeder.is_first(flags), rows=rows
    )
    return itertools.islice(proposals, MAX_ATTEMPTS)


MAX_DIMS = 6
PADDINGS: Mapping[Padding, str] = {
    "full": "without padding", "right": "padded on the right", "left": "padded on the left", "holes": "with holes",
    "empty": "that hide all",
}  # fmt: skip


def coverage_text(feeder: Feeder, runs: Sequence[Run]) -> str:
    """Return the coverage of runs: sizes, masks, edges of values; "" without runs."""
    if not runs:
        return ""
    parts = [_sizes_text(runs), _masks_text(feeder, runs), _values_text(runs)]
    return "; ".join(filter(None, parts))


def _sizes_text(runs: Sequence[Run]) -> str:
    ends: dict[str, tuple[int, int]] = {}
    for run in runs:
        for name, size in run.dims.items():
            low, high = ends.get(name, (size, size))
            ends[name] = min(low, size), max(high, size)
    texts = [f"{symbol(name)} {low:,}" + (f" to {high:,}" if low < high else "") for name, (low, high) in ends.items()]
    more = [f"{count_things(len(texts) - MAX_DIMS, 'dim(s)')} more"] if len(texts) > MAX_DIMS else []
    return ", ".join([*texts[:MAX_DIMS], *more])


def _masks_text(feeder: Feeder, runs: Sequence[Run]) -> str:
    masks = feeder.maker.model.roles.all(*MASKS)
    if not masks:
        return ""
    if feeder.maker.is_unpadded:
        return "masks without padding"
    if feeder.maker.counts_masks:
        return "masks without padding and padded on the right"
    rows = (feeder.rows(run) for run in runs)
    seen = {run.draw.row(row) for run, count in zip(runs, rows, strict=True) for row in range(count)}
    return f"masks {', '.join(text for padding, text in PADDINGS.items() if padding in seen)}"


def _values_text(runs: Sequence[Run]) -> str:
    return ", ".join(dict.fromkeys(run.elements for run in runs if run.elements))


def proof_caveats(feeder: Feeder, record: RunRecord, *, is_exact: bool) -> tuple[str, ...]:
    """Return the gaps of a proof, and why they exist."""
    gaps = [f"{gap}, {why}" for gap, why in record.uncovered.items()]
    if feeder.maker.is_unpadded and feeder.maker.model.roles.all(*MASKS):
        gaps.append("masks with padding, of which the rewrite takes there to be none")
    if feeder.defaults.kept:
        gaps.append(f"other values of {', '.join(feeder.defaults.kept)} than the default")
    if steering := feeder.maker.counting:
        verb = "decides" if len(steering) == 1 else "decide"
        gaps.append(f"large numbers for {', '.join(steering)}, which {verb} sizes, counts or loops")
    if not is_exact and feeder.maker.has_kind("extremes"):
        gaps.append("extreme values, NaN and infinities, where rounding decides")
    return tuple(gaps)
