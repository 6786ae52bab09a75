"""Runs of an original model at legal sizes and at edges, and their coverage."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from graphkit.graph.roles import MASKS
from graphkit.runtime.isolation import current_limits
from graphkit.runtime.session import RunError, Runner
from graphkit.shapes import Expr, symbol
from graphkit.shapes.constraints.legal_sizes import LegalSizes, Variable
from graphkit.suggest import count_things
from graphkit.verify.comparator import Output, compare_outputs, element_counts
from graphkit.verify.feeder import Feeder, Flags, Run
from graphkit.verify.input_elements import NAMES, USUAL, Draw, Padding
from graphkit.verify.input_generator import TooLargeError
from graphkit.verify.rewrite_proof import SkippedRun
from graphkit.verify.run_sizes import MAX_COST, MOST, ONE, ROWS, Edge, Proposal, find_edges, propose_assignments

ENOUGH = 5  # assignments; fewer are worth a note
STATIC_RUNS = 3  # where all dims are fixed: other values each time
MAX_ATTEMPTS = 40
NUMBERS: Mapping[Padding, str] = {"above": "numbers in masks above 1", "below": "numbers in masks below 0"}
SPECIAL: Mapping[Padding, str] = {"empty": "rows of masks that hide all", **NUMBERS}
FURTHER, NO_TIME = "further sizes and values", "for which the limit of time leaves no time"
MAX_EMPTY = 16  # dims that are tried at 0, and legal sizes that are looked through for each


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


@dataclass(frozen=True)
class LevelRuns:
    """How to run a model again: its session, made when it is needed, and its feeds."""

    open: Callable[[], Runner]
    feed: Callable[[Run], Mapping[str, np.ndarray]]


def run_original(
    session: Runner, feeder: Feeder, count: int, *, has_edges: bool = True, differing: Sequence[tuple[Expr, Expr]] = ()
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
        edges = find_edges(feeder, flags, list(successes), differing, only_differing=not has_edges)
        _run_edges(session, feeder, flags, edges, successes, record, end)
    if successes and has_edges:
        dims = min(successes, key=lambda dims: (sum(size < 2 for size in dims.values()), legal.cost(dims)))
        for unlike in feeder.unlike(dims):
            with suppress(RunError, TooLargeError):
                expected = session.run(feeder.feed(unlike, flags, 0))
                record.unlike.append(Run(unlike, flags, 0, expected))
    if legal.variables and len(successes) < min(count, ENOUGH):
        where = "".join(f" with {name}={str(flag).lower()}" for name, flag in flags.items())
        known = {0: "No sizes were", 1: "Only one set of sizes was"}
        few = known.get(len(successes), f"Only {len(successes)} sets of sizes were")
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
            for draw in edge.draw.milder(feeder.edged_inputs(edge.draw)):
                if (expected := _run_outputs(session, feeder, flags, dims, seed, draw)) is None:
                    continue
                counts = map(element_counts, expected.values())
                if "empty" in draw.padding and not feeder.is_exact and any(n != finite for n, finite in counts):
                    reason = "at which the original gives no numbers"
                    continue
                found = [text for padding, text in SPECIAL.items() if padding in draw.padding]
                special = ["defaults overridden"] * draw.overridden + [NAMES.get(draw.kind, ""), *found]
                elements = next(filter(None, special), "")
                record.runs.append(Run(dims, flags, seed, expected, draw, elements=elements))
                if not draw.only:
                    break
            if len(record.runs) > runs or reason.endswith("no numbers"):
                break
            if edge.draw.kind != "usual" and _run_outputs(session, feeder, flags, dims, seed, USUAL) is not None:
                break  # the sizes are legal, other ones teach nothing
        if len(record.runs) == runs and edge.what:
            record.uncovered.setdefault(edge.what, reason)


def _run_outputs(
    session: Runner, feeder: Feeder, flags: Flags, dims: Mapping[str, int], seed: int, draw: Draw
) -> Mapping[str, Output] | None:
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


def _propose_sizes(
    legal: LegalSizes, feeder: Feeder, flags: Flags, successes: list[dict[str, int]], *, has_edges: bool
) -> Iterator[Proposal]:
    if not legal.variables:
        return iter([Proposal({}, False)] * (STATIC_RUNS if feeder.inputs else 1))
    is_first, rows = feeder.is_first(flags), ROWS if has_edges else (ONE, *ROWS)
    proposals = propose_assignments(legal, successes, lengths=feeder.lengths, is_first=is_first, rows=rows)
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
    values = ", ".join(dict.fromkeys(run.elements for run in runs if run.elements))
    return "; ".join(filter(None, [_sizes_text(runs), _masks_text(feeder, runs), values]))


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


def proof_caveats(feeder: Feeder, record: RunRecord, *, is_exact: bool) -> tuple[str, ...]:
    """Return the gaps of a proof, and why they exist."""
    gaps = [f"{gap}, {why}" for gap, why in record.uncovered.items()]
    if feeder.maker.is_unpadded and feeder.maker.model.roles.all(*MASKS):
        gaps.append("masks with padding, of which the rewrite takes there to be none")
    if feeder.defaults.kept:
        gaps.append(f"other values of {', '.join(feeder.defaults.kept)} than the default")
    if steering := feeder.maker.counting_inputs:
        verb = "decides" if len(steering) == 1 else "decide"
        gaps.append(f"large numbers for {', '.join(steering)}, which {verb} sizes, counts or loops")
    if not is_exact and feeder.maker.has_kind("extremes"):
        gaps.append("extreme values, NaN and infinities, where rounding decides")
    return tuple(gaps)
