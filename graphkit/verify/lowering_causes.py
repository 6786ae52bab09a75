"""The causes that the proof of a lowering knows: faults of what the host feeds, of files, and of what is kept."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from graphkit.contract import Contract, Port
from graphkit.equivalence.originals import Originals
from graphkit.errors import count_things
from graphkit.graph.dataflow import find_lookups, table_entries
from graphkit.graph.declared_types import declared_type
from graphkit.graph.mask_polarity import make_open_mask
from graphkit.graph.roles import Role
from graphkit.graph.view import Value, all_nodes, all_scopes
from graphkit.hosts.numpy_host import slots_mask
from graphkit.model import Model, load
from graphkit.shapes.constraints.legal_sizes import Sizes
from graphkit.verify.cause_search import (
    Cause,
    Export,
    array_relations,
    describe_difference,
    find_sole_cause,
    first_node,
    is_mended,
    run_part,
    with_attributes,
)
from graphkit.verify.deployment_proofs import TableProof
from graphkit.verify.input_generator import InputGenerator
from graphkit.verify.lowering_case import AlteredHost, Changing, IsolatedMethods, LoweringCase, find_leaks
from graphkit.verify.weight_comparison import WrongAttribute, WrongWeight, find_wrong_parts, mend_models

Changes = Iterator[tuple[str, Changing]]
CHUNK = 4096  # ids of a run
ROLES: Mapping[str, tuple[Role, ...]] = {
    "source": ("tokens", "encoder tokens"), "token": ("tokens",), "type": ("token types",), "position": ("positions",),
}  # fmt: skip
AFTER = ("Cast", "DequantizeLinear", "Identity")  # what a lookup's rows may go through before they are an input
LEAST_HIDING = -1e4  # what is added to scores that do not count is at most this, in any export
MOST = 1 << 24  # elements of all candidates for a row
SHOWN = 3  # rows


def find_lowering_causes(
    case: LoweringCase, other: LoweringCase | None, facts: Facts, rng: np.random.Generator
) -> list[str]:
    """Return the causes of a failing case besides the known differences of the files, which are mended first.

    In `other`, another case if there is one, padding and unused slots are filled with noise of `rng`.
    """
    with facts.undone(case.host, facts.sure):
        if facts.sure and is_mended(case.distances()):
            return []
        once = find_sole_cause(case.once, _port_causes(case.host, "once"), _file_causes(case, facts))
        with once.undo() if once is not None else contextlib.nullcontext():
            step = find_sole_cause(case.distances, _port_causes(case.host, "step"), _file_causes(case, facts))
        causes = [cause.text for cause in (once, step) if cause is not None]
        causes = causes or list(_order_causes(case)) or ([] if other is None else list(find_leaks(other, rng)))
        return causes or [f"No simple cause; {_where_it_begins(case, facts)}."]


def _port_causes(host: AlteredHost, when: str) -> Iterator[Cause]:
    for method in host.contract.methods:
        for port in method.inputs if method.when == when else ():
            for text, change in UNDOING[port.kind](host, port) if port.kind in UNDOING else ():
                text = text.format(name=f"'{port.name}' of {method.name}")
                yield Cause("positions", text, undo=partial(host.alter_input, port, change))


def _undo_scales(host: AlteredHost, port: Port) -> Changes:
    factor = float(np.sqrt(host.tables[port.of].shape[-1]))
    yield f"{{name}} is scaled twice: it is right divided by {factor:.6g}.", lambda _, fed: fed / factor
    yield f"{{name}} is not scaled: it is right times {factor:.6g}.", lambda _, fed: fed * factor


def _undo_positions(host: AlteredHost, port: Port) -> Changes:
    if port.by == "position":
        rows = host.tables[port.of]
        yield "Positions are added twice: the host feeds {name}, and the model adds them too.", lambda _, fed: 0 * fed
        yield "Positions are added twice: {name} is twice what it should be.", lambda _, fed: fed / 2
        text = "The host feeds another row of {name} than that of the position."
        yield text, lambda _, fed: rows[host.position] if host.position < len(rows) else fed


def _undo_masks(host: AlteredHost, port: Port) -> Changes:
    floor, slots = host.contract.floor, host.contract.sizes["capacity"]
    if port.source is not None and port.source.window:
        text = "The contract gives {name} a window that it does not have: it is right without one."
        yield text, lambda _, mask: np.broadcast_to(slots_mask(host.position, slots, 0, floor), mask.shape)
    text = "{name} is inverted: it is right with what is hidden and what is seen exchanged."
    yield text, lambda _, mask: np.where(mask == 0, np.asarray(floor, mask.dtype), np.asarray(0, mask.dtype))
    for step in (1, -1):
        text = f"{{name}} is shifted by one place: it is right with what is now at i {'-+'[step < 0]} 1."
        yield text, lambda _, mask, step=step: np.roll(mask, step, -1)  # type: ignore[misc]


UNDOING: dict[str, Callable[[AlteredHost, Port], Changes]] = {
    "embedding": _undo_scales, "rows": _undo_positions, "slots_mask": _undo_masks, "source_mask": _undo_masks,
}  # fmt: skip


def _file_causes(case: LoweringCase, facts: Facts) -> Iterator[Cause]:
    for fact in facts.suspects:
        yield Cause("weights", str(fact), undo=partial(facts.undone, case.host, [fact]))


def _order_causes(case: LoweringCase) -> Iterator[str]:
    """Yield heads or slots of a state that are in another order, though all logits up to there are right."""
    step = case.reference.originals.step
    entries = {value.name: entry.slot for value, entry in step.roles.pasts.items()} if step is not None else {}
    case.start()
    for actual, expected in case.steps() if entries else ():
        if case.differ(actual, expected):
            return
        for name, state in case.host.state.items():
            known = case.reference.cache.get(entries[name]) if name in entries else None
            if known is None or known.ndim != state.ndim or (np.array(known.shape) > state.shape).any():
                continue
            if not case.differ(state[tuple(map(slice, known.shape))], known):
                continue
            right = np.zeros_like(state)  # as unused slots, which are in the state too, hold zeros
            right[tuple(map(slice, known.shape))] = known
            for relation in array_relations(right, state, ("the original", f"'{name}'")):
                is_alike = relation.expected.shape == relation.actual.shape
                if is_alike and not case.differ(relation.actual, relation.expected):
                    step_number = case.host.position
                    yield f"The logits of step {step_number} are right, and what it keeps is not: {relation.text}."
                    return


def _where_it_begins(case: LoweringCase, facts: Facts) -> str:
    assert isinstance(case.host.run, IsolatedMethods)
    run, originals, models = case.host.run, case.reference.originals, {**facts.models, **case.host.run.models}
    once = next((name for name in models if name != "step"), None)

    def begins_in(export: Export, method: str, *, is_padded: bool) -> str:
        file = models[method].name
        node = first_node([export], models[method], run.fed[method], case.differ, is_padded=is_padded)
        return f"it begins at '{node}' of {file}" if node else f"it is in {file}, or in what that is fed"

    if not is_mended(case.once()) and once is not None and originals.encoder is not None:
        export = originals.encoder, case.reference.fed_once(case.source, case.own), ""
        return begins_in(export, once, is_padded=True)
    begin = ""
    tokens = case.walk_tokens(case.host, case.reference)
    for number, token in enumerate(tokens if originals.step is not None else ()):
        assert originals.step is not None
        export = originals.step, case.reference.oracle.later_feed(np.array([[token]])), ""
        if case.differ(case.host.step(token), case.reference.step(token)):
            begin = begins_in(export, "step", is_padded=False)
            if number or originals.encoder is None:  # a decoder of later steps has no past of the source before
                return begin
    return begin or "the greedy tokens alone differ"


class ComparedTable(Struct, frozen=True, eq=False):
    """A table of the host beside the rows of the export."""

    name: str
    table: np.ndarray
    right: np.ndarray  # the rows that it should have
    wrong: np.ndarray  # which rows differ
    source: str = ""  # the tensor of the export that has the right ones
    compared: int = 0  # how many of the first rows were compared; others have nothing that they could be compared with

    @property
    def is_sure(self) -> bool:
        """Whether most rows are right: else it may be stored in another way than the export's, and mean the same."""
        wrong = self.wrong[: len(self.table)]
        return 2 * int(wrong.sum()) <= len(wrong)

    @property
    def proof(self) -> TableProof:
        """How far its rows are those of the export."""
        rows = len(self.right) if self.wrong.any() else len(self.table)
        return TableProof(self.name, rows, *((0, "") if self.wrong.any() else (self.compared, self.source)))

    def __str__(self) -> str:
        rows, source = np.flatnonzero(self.wrong), self.source
        missing = max(0, len(self.right) - len(self.table))
        if missing == len(rows):
            lacks = f"{count_things(missing, 'row(s)')} of '{source}', from row {rows[0]:,} on"
            return f"Table '{self.name}' lacks {lacks}."
        which = ", ".join(f"{row:,}" for row in rows[:SHOWN]) + (", ..." if len(rows) > SHOWN else "")
        differ = f"row {which} differs" if len(rows) == 1 else f"{len(rows):,} rows differ, {which},"
        how = "" if self.is_sure else f": {describe_difference(self.right, self.table, ('the export', 'the table'))}"
        return f"Table '{self.name}' is not what the export looks up: {differ} from '{source}'{how}."


def compared_tables(
    originals: Originals, contract: Contract, tables: Mapping[str, np.ndarray]
) -> Iterator[ComparedTable]:
    """Yield the tables beside the export.

    A table that the export looks ids up in is compared row by row with its own lookup, run on all ids. Rows of
    positions and lengths are compared with the tensors of the export that depend on these alone: with the one that
    most rows equal. Of a table that equals none of them the runs tell.
    """
    for method in contract.methods:
        first = originals.encoder if originals.encoder is not None else originals.first
        model = originals.step if method.when == "step" else first
        for port in method.inputs:
            source = port.source
            if model is None or source is None or source.kind not in ("embedding", "rows"):
                continue
            table = tables[source.of]
            compared = _looked_up(model, table, ROLES.get(source.by, ()), is_whole=source.kind == "embedding")
            if compared is None and source.kind == "rows":
                compared = _by_number(model, contract, port, table)
            nothing = ComparedTable(source.of, table, table, np.zeros(len(table), bool))
            yield nothing if compared is None else replace(compared, name=source.of)


def _looked_up(model: Model, table: np.ndarray, roles: Sequence[Role], *, is_whole: bool) -> ComparedTable | None:
    """Compare a table with the export's lookups by ids of some roles; None where these give no such rows.

    With `is_whole` it needs a row for each id that the export takes: only positions may end before.
    """
    comparisons: list[ComparedTable] = []
    for ids in model.roles.all(*roles):
        for node, rows in find_lookups(ids):
            count, value = table_entries(node, rows), node.outputs[0]
            while value is not None and count is not None and count >= len(table):
                compared = _of_ids(model, value, ids, table, count if is_whole else len(table))
                comparisons += [compared] if compared is not None else []
                after = [reader for reader, at in value.consumers if at == 0 and reader.is_op(*AFTER)]
                value = after[0].outputs[0] if after else None
    return min(comparisons, key=lambda comparison: int(comparison.wrong.sum()), default=None)


def _of_ids(model: Model, value: Value, ids: Value, table: np.ndarray, count: int) -> ComparedTable | None:
    """Compare a table with so many rows of the export; those that it lacks are wrong."""
    if (declared := declared_type(ids)) is None:
        return None
    kind, rank = declared.numpy_dtype, len(declared.dims or ())

    def feeds() -> Iterator[dict[str, np.ndarray]]:
        for first in range(0, count, CHUNK):
            numbers = np.arange(first, min(first + CHUNK, count), dtype=kind)
            yield {ids.name: numbers.reshape((1,) * (rank - 1) + (-1,))}

    rows = [array for run in run_part(model, [value], feeds()) for array in run.values()]
    size = count * math.prod(table.shape[1:])
    if any(array.dtype != table.dtype for array in rows) or sum(array.size for array in rows) != size:
        return None
    right = np.concatenate([array.reshape(-1, *table.shape[1:]) for array in rows])
    wrong = [_differing_rows(right[: len(table)], table), np.ones(count - len(table), bool)]
    return ComparedTable("", table, right, np.concatenate(wrong), value.name, len(table))


def _differing_rows(right: np.ndarray, table: np.ndarray) -> np.ndarray:
    mine, theirs = (np.ascontiguousarray(each).reshape(len(each), -1).view(np.uint8) for each in (right, table))
    return np.asarray((mine != theirs).any(axis=1))


def _by_number(model: Model, contract: Contract, port: Port, table: np.ndarray) -> ComparedTable | None:
    if port.by in ("largest_id", "first_token", "valid_length") and table[0].size == len(table):
        right = np.eye(len(table), dtype=table.dtype).reshape(table.shape)
        wrong = _differing_rows(right, table)
        if port.by != "valid_length" or 2 * wrong.sum() < len(table):
            return ComparedTable("", table, right, wrong, "the places of a source", len(table))
    is_step = port.by == "position"
    source, most = max(1, contract.sizes["source"]), min(contract.sizes["positions"], len(table))
    runs = _tensor_runs(
        model,
        range(most) if is_step else range(1, len(table) + 1),
        lambda number: Sizes(1, 1, number, source) if is_step else Sizes(1, number, 0, number),
        lambda a: a.dtype.kind == "f" and _place_row(a, table[0], 0, contract, is_step=is_step) is not None,
    )
    rows = {row.tobytes() for row in table}

    def known_rows(compared: ComparedTable) -> tuple[int, int]:
        """Return how many rows are in their places, and how many of the right ones are anywhere."""
        return int((~compared.wrong).sum()), len(rows & {row.tobytes() for row in compared.right})

    names = (runs or ({},))[0]
    candidates = (_best_match(table, [run.get(name) for run in runs], contract, port, name) for name in names)
    best = max((each for each in candidates if each is not None), key=known_rows, default=None)
    return best if best is not None and 2 * max(known_rows(best)) >= len(best.wrong) else None


def _best_match(
    table: np.ndarray, arrays: Sequence[np.ndarray | None], contract: Contract, port: Port, name: str
) -> ComparedTable | None:
    right, wrong = np.array(table), np.zeros(len(table), bool)
    is_step = port.by == "position"
    for row, array in enumerate(arrays):
        expected_row = None if array is None else _place_row(array, table[row], row, contract, is_step=is_step)
        if expected_row is None:
            return None
        right[row] = expected_row
        wrong[row] = expected_row.tobytes() != table[row].tobytes()
    if len(arrays) > 1 and not wrong.all() and all(np.array_equal(right[0], later) for later in right[1:]):
        return None  # a constant is equal to any row that is like it
    return ComparedTable("", table, right, wrong, name, len(arrays))


def _place_row(
    array: np.ndarray, row: np.ndarray, number: int, contract: Contract, *, is_step: bool
) -> np.ndarray | None:
    """Return the expected row of an array of the export; None where the dims do not fit."""
    if array.dtype != row.dtype:
        return None
    array = np.where(array <= LEAST_HIDING, np.asarray(contract.floor, row.dtype), array)
    if array.size == row.size:
        return array.reshape(row.shape)
    if array.ndim != row.ndim:
        return None
    axes = [axis for axis in range(row.ndim) if row.shape[axis] != array.shape[axis]]
    placed = np.array(row)
    if is_step:  # what is past comes first, the new token last, and what is between counts for nothing
        if len(axes) != 1 or array.shape[axes[0]] != number + 1 or number >= row.shape[axes[0]]:
            return None
        moved, old = np.moveaxis(placed, axes[0], -1), np.moveaxis(array, axes[0], -1)
        moved[...] = contract.floor
        moved[..., :number], moved[..., -1] = old[..., :number], old[..., -1]
        return placed
    if any(array.shape[axis] != number + 1 or array.shape[axis] > row.shape[axis] for axis in axes):
        return None
    placed[tuple(slice(size) for size in array.shape)] = array  # what padding sees does not count
    if array.shape[-1] != row.shape[-1]:
        padding = [*(slice(size) for size in array.shape[:-1]), slice(array.shape[-1], None)]
        placed[tuple(padding)] = contract.floor
    return placed


def _tensor_runs(
    model: Model, numbers: range, sizes: Callable[[int], Sizes], fits: Callable[[np.ndarray], bool]
) -> list[dict[str, np.ndarray]]:
    """Return the tensors that depend on no data, for each number of positions; nothing where they do not run.

    What does not fit for the first of them is not computed again.
    """
    known, maker = _without_data(model), InputGenerator(model)
    masks = {value.name: polarity for value, polarity in maker.model.roles.polarities.items()}

    def feeds(counts: range) -> Iterator[dict[str, np.ndarray]]:
        for count in counts:
            zeros = {}
            for name, shape in maker.shapes(sizes(count)).items():
                declared = declared_type(maker.model.graph.values[name])
                if shape is not None and declared is not None and declared.is_float:
                    zeros[name] = np.zeros(shape, declared.numpy_dtype)
            feed = maker.make(sizes(count), zeros)
            yield {name: make_open_mask(array, masks[name]) if name in masks else array for name, array in feed.items()}

    runs: list[dict[str, np.ndarray]] = [{} for _ in numbers]
    for scope in all_scopes(model.scopes):
        values = [value for value in scope.values.values() if value in known]
        first = next(run_part(model, values, feeds(numbers[:1])), {}) if values else {}
        fitting = [value for value in values if value.name in first and fits(first[value.name])]
        for run, arrays in zip(runs, run_part(model, fitting, feeds(numbers)) if fitting else (), strict=False):
            run.update(arrays)
            if sum(array.size for array in run.values()) > MOST:
                return []
    return runs


def _without_data(model: Model) -> set[Value]:
    """Return the computed tensors that follow from sizes, masks and positions, and from nothing else."""
    kinds: dict[Value, int] = {}  # 0: constant, 1: follows from these, 2: from data

    def kind_of(value: Value) -> int:
        if value.producer is not None:
            return kinds.get(value, 2)
        if value.tensor is not None or value.sparse is not None:
            return 0
        declared = declared_type(value)
        is_data = declared is None or declared.is_float or model.roles.of(value) in ("tokens", "encoder tokens")
        return 2 if is_data else 1

    for node in all_nodes(model.scopes):
        kind = max((kind_of(value) for value in node.inputs if value is not None), default=0)
        if node.bodies:
            kind = 2
        elif node.is_op("Shape", "Size"):
            kind = min(kind, 1)
        kinds.update((value, kind) for value in node.outputs if value is not None)
    return {value for value, kind in kinds.items() if kind == 1}


Mendable = ComparedTable | WrongWeight | WrongAttribute


class Facts(Struct, frozen=True, eq=False):
    """The differences of the files."""

    sure: tuple[Mendable, ...]  # what is surely another than that of the export
    suspects: tuple[Mendable, ...]  # what may be, and is named only where undoing it mends the difference
    tables: Mapping[str, np.ndarray]
    models: Mapping[str, Model]  # the lowered models, by method
    proofs: tuple[TableProof, ...]  # the tables that are right as far as they were compared

    @contextmanager
    def undone(self, host: AlteredHost, facts: Sequence[Mendable]) -> Iterator[None]:
        """Let a host run with these mended, besides what is mended already."""
        assert isinstance(host.run, IsolatedMethods)
        tables = {**host.tables, **{fact.name: fact.right for fact in facts if isinstance(fact, ComparedTable)}}
        known, wrong = host.run.models, [fact for fact in facts if not isinstance(fact, ComparedTable)]
        models = {**known, **mend_models({**self.models, **known}, wrong)}
        with with_attributes(host, tables=tables), with_attributes(host.run, models=models):
            yield


def facts_of(originals: Originals, folder: Path, contract: Contract, host: AlteredHost) -> Facts:
    """Compare the files of a lowering with its export."""
    models = {method.name: load(folder / method.file) for method in contract.methods}
    tables = list(compared_tables(originals, contract, host.tables))
    differences: list[Mendable] = [table for table in tables if table.wrong.any()]
    differences += find_wrong_parts(originals.models, models.values())
    sure, suspects = (tuple(fact for fact in differences if fact.is_sure == is_sure) for is_sure in (True, False))
    proofs: dict[str, TableProof] = {}  # of a table that several methods read, the one that says the least
    for proof in (table.proof for table in tables):
        proofs[proof.name] = min(proofs.get(proof.name, proof), proof, key=lambda each: each.compared)
    return Facts(sure, suspects, host.tables, models, tuple(proofs.values()))
