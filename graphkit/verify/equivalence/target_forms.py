"""Axioms of forms that targets accept: quotients, and signs that move from a tensor into its table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import helper

from graphkit.dtypes import FLOATS
from graphkit.ops.tensor import Dims
from graphkit.verify.equivalence import flat
from graphkit.verify.equivalence.application import Application
from graphkit.verify.equivalence.movement import JOINED
from graphkit.verify.equivalence.terms import Term, without_reshape

__all__ = ["divide_one", "move_signs"]

Result = Term | str | None


def divide_one(app: Application) -> Result:
    """Divide 1 by what a Reciprocal is of."""
    if app.dtype not in FLOATS or app.dims is None:
        return None
    one = app.tools.constants.of_array(np.ones((), FLOATS[app.dtype]), app.dtype)
    return flat.apply_elementwise(app, "Div", [one, app.arg(0)], app.dims)


def move_signs(app: Application) -> Result:
    """Let the table that scales joined parts have the signs of those that are negated, as in a rotation."""
    if app.dtype not in FLOATS or app.dims is None:
        return None
    for scaled, table in (app.args, app.args[::-1]):
        if scaled is None or table is None or scaled.dims is None or table.dims is None:
            continue
        if (found := _without_signs(app, scaled, scaled.dims)) is None:
            continue
        plain, factors = found
        if not _table_takes_signs(table.dims, factors.shape):
            return "its table is the same for all parts"
        signed = flat.apply_elementwise(
            app, "Mul", [table, app.tools.constants.of_array(factors, app.dtype)], table.dims
        )
        return None if signed is None else flat.apply_elementwise(app, "Mul", [plain, signed], app.dims)
    return None


def _table_takes_signs(dims: Dims, signs: tuple[int, ...]) -> bool:
    """Whether a table has its dims still when it is multiplied by signs."""
    return len(dims) >= len(signs) and all(sign in (1, dim) for dim, sign in zip(dims[::-1], signs[::-1], strict=False))


def _without_signs(app: Application, term: Term, dims: Dims) -> tuple[Term, np.ndarray] | None:
    """Return joined parts without their signs, and the signs, with dims that broadcast; None where none is negated."""
    move, inner = app.tools.movement, without_reshape(term)
    if (joined := move.joined(term)) is not None:
        axis, listed = joined
        behind = [1] * (len(dims) - axis - 1)
    elif inner is None or inner.op != "Concat" or inner.attributes != JOINED or inner.dims is None:
        return None
    else:
        axis, listed, behind = 1, [part for part in inner.args if part is not None], []
    found = _split_signs(app, axis, listed)
    if found is None:
        return None
    plain, numbers = found
    signs = np.array(numbers, helper.tensor_dtype_to_np_dtype(app.dtype))
    if joined is not None:
        return move.concat(plain, axis, dims), signs.reshape(-1, *behind)
    assert inner is not None
    assert inner.dims is not None
    repeated = _repeat_signs(signs, inner.dims[2].constant, dims)
    return None if repeated is None else (move.reshape(move.concat(plain, 1, inner.dims), dims), repeated)


def _repeat_signs(signs: np.ndarray, behind: int | None, dims: Dims) -> np.ndarray | None:
    """Return the signs of interleaved parts along the last axes: those whose elements they repeat evenly along."""
    count, sizes = 1, list[int]()
    for dim in dims[::-1]:
        if not behind or not dim.constant:
            return None
        sizes.insert(0, dim.constant)
        count *= dim.constant
        if count % (len(signs) * behind) == 0:
            whole = np.tile(np.repeat(signs, behind), count // (len(signs) * behind)).reshape(sizes)
            return _narrow_array(whole)
    return None


def _narrow_array(array: np.ndarray) -> np.ndarray:
    """Return an array with dims of 1 along which its elements are the same, without leading ones."""
    for axis in range(array.ndim):
        first = array.take([0], axis)
        array = first if (array == first).all() else array
    return array.reshape(array.shape[next((axis for axis, size in enumerate(array.shape) if size != 1), array.ndim) :])


def _split_signs(app: Application, axis: int, parts: Sequence[Term]) -> tuple[list[Term], list[int]] | None:
    """Return parts without their signs, and the sign of each element along the axis; None where none is negated."""
    plain, numbers = [], list[int]()
    for part in parts:
        inner = without_reshape(part)
        assert part.dims is not None
        length = part.dims[axis].constant
        if length is None or inner is None:
            return None
        source = inner.args[0] if inner.op == "Neg" else None
        plain.append(part if source is None else app.tools.movement.reshape(source, part.dims))
        numbers += [1 if source is None else -1] * length
    return (plain, numbers) if -1 in numbers else None
