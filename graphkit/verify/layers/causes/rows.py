"""Rows of a table: positions, or embeddings, that were added twice, not at all, or looked up one too far."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from graphkit.graph.view import Value
from graphkit.verify.layers.causes.case import Case, Cause, Part
from graphkit.verify.layers.structure import FLOATS, constant_array, known

__all__ = ["rows"]

MAX_ROWS = 32  # rows of a tensor that are looked for
CHUNK = 1 << 22  # elements of a table


class _Table(NamedTuple):
    """A table of the models, and how often each reads it nearby."""

    value: Value
    array: np.ndarray
    in_a: bool
    in_b: bool


def rows(case: Case) -> Iterator[Cause]:
    """Yield how the rows of a difference are rows of a table."""
    if case.is_integer or case.x.shape != case.y.shape or not case.x.ndim or not case.x.size:
        return
    for table in _tables(case):
        for sign in (1.0, -1.0):
            found = _found(table.array, sign * case.difference, case)
            if found is not None:
                yield _added(case, table, sign, found)
                return
        mine, theirs = (_found(table.array, array, case) for array in (case.x, case.y))
        if mine is not None and theirs is not None:
            yield _looked_up(table, mine, theirs)
            return
        moved = _moved(table.array, case)
        if moved is not None:
            yield moved_cause(table, moved)
            return


def _tables(case: Case) -> Iterator[_Table]:
    """Yield the tables with rows of this length; those of one name once."""
    width, seen = case.x.shape[-1], set[str]()
    for part in (case.a, case.b):
        for value in _constants(part) if part is not None else ():
            tensor = known(value)
            is_table = tensor is not None and tensor.data_type in FLOATS and len(tensor.dims) == 2
            if tensor is None or not is_table or tensor.dims[1] != width or value.name in seen or tensor.dims[0] < 2:
                continue
            assert part is not None
            seen.add(value.name)
            yield _Table(value, constant_array(part.side.model, tensor), *_reads(case, value.name))


def _constants(part: Part) -> list[Value]:
    """Return the constants that a model looks rows up in, or adds parts of."""
    nodes = [node for node in part.side.nodes if node.is_op("Gather", "Slice", "Add", "GatherND", "Expand")]
    return [value for node in nodes for value in node.inputs if value is not None and known(value) is not None]


def _reads(case: Case, name: str) -> tuple[bool, bool]:
    """Whether A, and whether B, computes the tensor from this table in a few steps."""
    parts = (case.a, case.b)
    mine, theirs = (part is not None and any(value.name == name for value in part.read) for part in parts)
    return mine, theirs


def _found(table: np.ndarray, array: np.ndarray, case: Case) -> list[int] | None:
    """Return which row of a table each row of a tensor is, None where one is none."""
    wanted = array.reshape(-1, array.shape[-1])[:MAX_ROWS]
    result = []
    for row in wanted:
        at = _nearest(table, row)
        if at is None or float(np.abs(table[at] - row).max()) > min(case.most, 0.02 * float(np.abs(row).max())):
            return None
        result.append(at)
    return result


def _nearest(table: np.ndarray, row: np.ndarray) -> int | None:
    """Return the row of a table that is nearest to another, None for one of zeros."""
    if not np.any(row):
        return None
    best, at = np.inf, None
    step = max(1, CHUNK // table.shape[1])
    for start in range(0, len(table), step):
        apart = np.abs(table[start : start + step] - row).max(axis=1)
        place = int(apart.argmin())
        if apart[place] < best:
            best, at = float(apart[place]), start + place
    return at


def _moved(table: np.ndarray, case: Case) -> int | None:
    """Return by how many rows B looks further than A, where the difference is that of two rows of a table."""
    if table.size > CHUNK:
        return None
    steps = table[1:].astype(np.float64) - table[:-1]
    if _found(steps, -case.difference, case) is not None:
        return 1
    return -1 if _found(steps, case.difference, case) is not None else None


def moved_cause(table: _Table, moved: int) -> Cause:
    """Return the cause of rows that are looked up one too far, or one too early."""
    where = "after" if moved > 0 else "before"
    text = f"off by one: B adds the rows of '{table.value.name}' that stand one {where} those of A"
    return Cause("positions", f"{text}.", table.value.name)


def _looked_up(table: _Table, mine: list[int], theirs: list[int]) -> Cause:
    steps = {two - one for one, two in zip(mine, theirs, strict=True)}
    name = table.value.name
    if len(steps) == 1:
        (step,) = steps
        close = "off by one: " if abs(step) == 1 else ""
        text = f"{close}A looks up rows {_ends(mine)} of '{name}', B rows {_ends(theirs)}"
    else:
        text = f"A and B look up other rows of '{name}': {_ends(mine)} and {_ends(theirs)}"
    return Cause("positions", f"{text}.", name)


def _added(case: Case, table: _Table, sign: float, found: list[int]) -> Cause:
    length = case.x.shape[-2] if case.x.ndim > 1 else 1
    is_counting = all(b == a + 1 for a, b in itertools.pairwise(found[:length]))
    what = f"rows {_ends(found[:length])} of '{table.value.name}'"
    kind = f"positions ({what})" if is_counting and length > 1 else what
    more, less = ("A", "B") if sign > 0 else ("B", "A")
    adds_less = table.in_b if sign > 0 else table.in_a
    text = f"{more} adds {kind} twice, {less} once" if adds_less else f"{more} adds {kind}, and {less} does not"
    return Cause("positions", f"{text}.", table.value.name)


def _ends(numbers: list[int]) -> str:
    if len(numbers) > 3 and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers[:4])) + (", ..." if len(numbers) > 4 else "")
