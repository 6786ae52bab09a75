"""B is a multiple of A, has an offset, lacks a term, or adds other rows of a table: arithmetic between two tensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from graphkit.graph.view import Node, Value
from graphkit.matching.graph_side import known
from graphkit.verify.layers.causes.case import Case, Cause, Part
from graphkit.verify.layers.compared_model import FLOATS, constant_array
from graphkit.verify.layers.measuring import plain

__all__ = ["offset", "rows", "scale", "terms"]


def offset(case: Case) -> Iterator[Cause]:
    """Yield the constant offset that explains a difference, with the initializer that has these values."""
    if case.x.shape != case.y.shape or not case.x.size:
        return
    mean = float(case.difference.mean())
    if (case.is_integer or case.x.size > 1) and case.explains(case.difference - mean):
        yield _even(case, mean)
        return
    for axis in reversed(range(case.x.ndim)):
        column = case.difference.mean(axis=tuple(at for at in range(case.x.ndim) if at != axis), keepdims=True)
        if not case.explains(case.difference - column):
            continue
        named = _added_constant(case, column.ravel())
        if named is not None:
            yield named
            return
        if column.size < case.x.size:
            text = f"constant offset: along axis {axis}, B differs from A by the same numbers everywhere"
            yield Cause("offset", f"{text}, up to {case.largest:.4g}; no initializer of either has them.")
            return


def _even(case: Case, mean: float) -> Cause:
    if case.is_integer:
        more = f"{abs(mean):g} {'less' if mean > 0 else 'more'}"
        close = "; positions, or a length, are off by one" if abs(mean) == 1 else ""
        return Cause("offset", f"constant offset: B has {more} than A in every element{close}.")
    named = _added_constant(case, np.array([mean]))
    if named is not None:
        return named
    more = f"{abs(mean):.4g} {'less' if mean > 0 else 'more'}"
    return Cause(
        "offset", f"constant offset: B has {more} than A in every element; no initializer of either has this value."
    )


def _added_constant(case: Case, column: np.ndarray) -> Cause | None:
    """Return the cause where a constant of one of the models has these values."""
    for part, sign, name in ((case.a, 1.0, "A"), (case.b, -1.0, "B"), (case.b, 1.0, "B"), (case.a, -1.0, "A")):
        constant = None if part is None else _equal(part, sign * column, case)
        if constant is not None:
            return Cause(
                "offset", f"constant offset: {_added_text(case, constant, column, sign, name)}.", constant.name
            )
    return None


def _equal(part: Part, column: np.ndarray, case: Case) -> Value | None:
    return next((value for value, array in part.floats(column.size) if case.explains(array.ravel() - column)), None)


def _added_text(case: Case, constant: Value, column: np.ndarray, sign: float, owner: str) -> str:
    more, less = (("A", case.a), ("B", case.b)) if sign > 0 else (("B", case.b), ("A", case.a))
    if owner != more[0]:  # it is known only where it is missing
        return f"{more[0]} has the initializer '{constant.name}' of {owner} once more than {owner}"
    same = None if less[1] is None else _equal(less[1], sign * column, case)  # of the same name may be other numbers
    if same is not None and same.name == constant.name:
        return f"{more[0]} adds the initializer '{constant.name}' twice, {less[0]} once"
    return f"{more[0]} adds its initializer '{constant.name}', and {less[0]} does not"


CLOSE = 1e-3  # relative, of factors


class _Factor(NamedTuple):
    """A number that a node multiplies by."""

    value: Value
    factor: float
    node: Node


def scale(case: Case) -> Iterator[Cause]:
    """Yield the scale that explains a difference, with the initializer that it comes from."""
    if case.is_integer or case.x.shape != case.y.shape or case.x.size < 2:
        return
    squares = float((case.x * case.x).sum())
    factor = float((case.x * case.y).sum()) / squares if squares else 0.0
    if factor and case.explains(case.y - factor * case.x):
        yield _whole(case, factor)
        return
    for axis in reversed(range(case.x.ndim)):
        others = tuple(at for at in range(case.x.ndim) if at != axis)
        below = (case.x * case.x).sum(axis=others, keepdims=True)
        factors = (case.x * case.y).sum(axis=others, keepdims=True) / np.where(below > 0, below, 1.0)
        if case.explains(case.y - factors * case.x):
            named = _factor_constant(case, factors.ravel())
            if named is not None or factors.size < case.x.size:
                text = f"scale: along axis {axis}, B is a multiple of A by the same factors everywhere"
                yield named or Cause("scale", f"{text}; no initializer of either has them.")
            return


def _whole(case: Case, factor: float) -> Cause:
    text = f"scale: B is {factor:.6g} times A"
    parts = [("A", case.a), *([("B", case.b)] if case.b is not None else [])]
    for owner, part in parts:
        for scaling in _factors(part):
            name, operation = scaling.value.name, f"{scaling.node.op_type} by '{scaling.value.name}' of {owner}"
            if math.isclose(scaling.factor, factor, rel_tol=CLOSE):
                is_known = owner == "A" or any(math.isclose(x.factor, factor, rel_tol=CLOSE) for x in _factors(case.a))
                return Cause("scale", f"{text}: {_more(operation, is_known)}.", name)
            if math.isclose(scaling.factor * factor, 1.0, rel_tol=CLOSE):
                return Cause("scale", f"{text}: B lacks the {operation}, or A applies it twice.", name)
    return Cause("scale", f"{text}; no constant nearby has that factor.")


def _more(operation: str, is_known: bool) -> str:
    return f"B applies the {operation} twice" if is_known else f"B applies the {operation}, and A does not"


def _factors(part: Part) -> Iterator[_Factor]:
    """Yield the single numbers that nodes nearby, readers included, multiply or divide by."""
    readers = [node for node, _ in part.value.consumers]
    for node in (*part.nodes, *readers):
        for place, value in enumerate(node.inputs if node.is_op("Mul", "Div") else ()):
            tensor = known(value) if value is not None else None
            if value is None or tensor is None or tensor.data_type not in FLOATS or (node.is_op("Div") and not place):
                continue
            array = constant_array(part.side.model, tensor)
            if array.size == 1 and (number := float(array.ravel()[0])):
                yield _Factor(value, 1 / number if node.op_type == "Div" else number, node)


def _factor_constant(case: Case, factors: np.ndarray) -> Cause | None:
    for owner, part in (("A", case.a), ("B", case.b)):
        for value, array in part.floats(factors.size) if part is not None else ():
            flat = array.ravel().astype(np.float64)
            if np.allclose(flat, factors, rtol=CLOSE, atol=1e-6):
                text = f"B multiplies by the initializer '{value.name}' of {owner} once more than A"
                return Cause("scale", f"scale: {text}.", value.name)
            if np.allclose(flat * factors, 1.0, rtol=CLOSE, atol=1e-6):
                text = f"B does not multiply by the initializer '{value.name}' of {owner}"
                return Cause("scale", f"scale: {text}.", value.name)
    return None


def terms(case: Case) -> Iterator[Cause]:
    """Yield the tensors nearby that are the difference, or that B has instead."""
    if case.is_integer or case.x.shape != case.y.shape:
        return
    parts = [(case.a, 1.0, "A", "B"), *([(case.b, -1.0, "B", "A")] if case.b is not None else [])]
    for part, sign, more, less in parts:
        for value, array in _fitting(part, case.x):
            if case.explains(case.difference - sign * array):
                yield Cause("term", f"{more} adds its tensor '{value.name}'{_what(value)}, and {less} {_how(case)}.")
                return
            if case.explains(case.difference + sign * array):
                yield Cause("term", f"{less} adds the tensor '{value.name}' of {more} once more than {more}.")
                return
    for value, array in _fitting(case.a, case.x):
        if array.shape == case.y.shape and case.explains(case.y - array):
            yield Cause("term", f"B has what A has in '{value.name}': what A computes from that is left out.")
            return


def _how(case: Case) -> str:
    return "does not" if case.b is None or case.a.value.producer is not None else "does not too"


def _what(value: Value) -> str:
    node = value.producer
    return " (a residual)" if len(value.consumers) > 1 and node is not None else ""


def _fitting(part: Part, x: np.ndarray) -> Iterator[tuple[Value, np.ndarray]]:
    """Yield the tensors nearby that may be a term of one: floats that broadcast to it, and are not all zero."""
    for value, array in part.arrays.items():
        if array.dtype.kind == "f" and array.size and array.any() and _broadcasts(array.shape, x.shape):
            yield value, plain(array)


def _broadcasts(dims: tuple[int, ...], to: tuple[int, ...]) -> bool:
    return len(dims) <= len(to) and all(d in (1, t) for d, t in zip(dims[::-1], to[::-1], strict=False))


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
            row_numbers = _table_rows(table.array, sign * case.difference, case)
            if row_numbers is not None:
                yield _added(case, table, sign, row_numbers)
                return
        rows_a, rows_b = (_table_rows(table.array, array, case) for array in (case.x, case.y))
        if rows_a is not None and rows_b is not None:
            yield _looked_up(table, rows_a, rows_b)
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


def _table_rows(table: np.ndarray, array: np.ndarray, case: Case) -> list[int] | None:
    """Return which row of a table each row of a tensor is, None where one is none."""
    tensor_rows = array.reshape(-1, array.shape[-1])[:MAX_ROWS]
    result = []
    for row in tensor_rows:
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
    if _table_rows(steps, -case.difference, case) is not None:
        return 1
    return -1 if _table_rows(steps, case.difference, case) is not None else None


def moved_cause(table: _Table, moved: int) -> Cause:
    """Return the cause of rows that are looked up one too far, or one too early."""
    where = "after" if moved > 0 else "before"
    text = f"off by one: B adds the rows of '{table.value.name}' that stand one {where} those of A"
    return Cause("positions", f"{text}.", table.value.name)


def _looked_up(table: _Table, rows_a: list[int], rows_b: list[int]) -> Cause:
    steps = {row_b - row_a for row_a, row_b in zip(rows_a, rows_b, strict=True)}
    name = table.value.name
    if len(steps) == 1:
        (step,) = steps
        close = "off by one: " if abs(step) == 1 else ""
        text = f"{close}A looks up rows {_ends(rows_a)} of '{name}', B rows {_ends(rows_b)}"
    else:
        text = f"A and B look up other rows of '{name}': {_ends(rows_a)} and {_ends(rows_b)}"
    return Cause("positions", f"{text}.", name)


def _added(case: Case, table: _Table, sign: float, row_numbers: list[int]) -> Cause:
    length = case.x.shape[-2] if case.x.ndim > 1 else 1
    is_counting = all(b == a + 1 for a, b in itertools.pairwise(row_numbers[:length]))
    rows_text = f"rows {_ends(row_numbers[:length])} of '{table.value.name}'"
    kind = f"positions ({rows_text})" if is_counting and length > 1 else rows_text
    more, less = ("A", "B") if sign > 0 else ("B", "A")
    adds_less = table.in_b if sign > 0 else table.in_a
    text = f"{more} adds {kind} twice, {less} once" if adds_less else f"{more} adds {kind}, and {less} does not"
    return Cause("positions", f"{text}.", table.value.name)


def _ends(numbers: list[int]) -> str:
    if len(numbers) > 3 and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers[:4])) + (", ..." if len(numbers) > 4 else "")
