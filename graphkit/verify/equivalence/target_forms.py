"""Axioms of forms that targets accept: copies that a Concat joins, quotients, and signs that move into a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from onnx import NodeProto, helper

from graphkit.dtypes import FLOATS
from graphkit.graph.view import Node
from graphkit.shapes.tensor import Dims
from graphkit.verify.equivalence import flat
from graphkit.verify.equivalence.application import Application
from graphkit.verify.equivalence.movement import JOINED, expands_to
from graphkit.verify.equivalence.terms import Term, unreshaped

__all__ = ["copies", "reciprocal", "signs"]

Result = Term | str | None


def copies(app: Application) -> Result:
    """Repeat a tensor along an axis of 1, where a Concat joins copies of it."""
    first = app.arg(0)
    if first is None or first.dims is None or app.dims is None or len(app.args) < 2:
        return None
    axis = app.axis(app.attr("axis", int), len(first.dims))
    if axis is None or first.dims[axis] != 1 or any(part is not first for part in app.args):
        return None
    if not expands_to(first.dims, app.dims):
        return None
    return app.tools.movement.expand(first, app.dims)


def reciprocal(app: Application) -> Result:
    """Divide 1 by what a Reciprocal is of."""
    if app.dtype not in FLOATS or app.dims is None:
        return None
    one = app.tools.constants.of_array(np.ones((), FLOATS[app.dtype]), app.dtype)
    return _applied(app, "Div", [one, app.arg(0)], app.dims)


def signs(app: Application) -> Result:
    """Let the table that scales joined parts have the signs of those that are negated, as in a rotation."""
    if app.dtype not in FLOATS or app.dims is None:
        return None
    for scaled, table in (app.args, app.args[::-1]):
        if scaled is None or table is None or scaled.dims is None or table.dims is None:
            continue
        if (found := _unsigned(app, scaled, scaled.dims)) is None:
            continue
        plain, factors = found
        if not _takes(table.dims, factors.shape):
            return "its table is the same for all parts"
        signed = _product(app, [table, app.tools.constants.of_array(factors, app.dtype)], table.dims)
        return None if signed is None else _product(app, [plain, signed], app.dims)
    return None


def _takes(dims: Dims, signs: tuple[int, ...]) -> bool:
    """Whether a table has its dims still when it is multiplied by signs."""
    return len(dims) >= len(signs) and all(sign in (1, dim) for dim, sign in zip(dims[::-1], signs[::-1], strict=False))


def _unsigned(app: Application, term: Term, dims: Dims) -> tuple[Term, np.ndarray] | None:
    """Return joined parts without their signs, and the signs, with dims that broadcast; None where none is negated."""
    move, inner = app.tools.movement, unreshaped(term)
    if (joined := move.joined(term)) is not None:
        axis, listed = joined
        behind = [1] * (len(dims) - axis - 1)
    elif inner is None or inner.op != "Concat" or inner.attributes != JOINED or inner.dims is None:
        return None
    else:
        axis, listed, behind = 1, [part for part in inner.args if part is not None], []
    found = _signs(app, axis, listed)
    if found is None:
        return None
    plain, numbers = found
    signs = np.array(numbers, helper.tensor_dtype_to_np_dtype(app.dtype))
    if joined is not None:
        return move.concat(plain, axis, dims), signs.reshape(-1, *behind)
    assert inner is not None
    assert inner.dims is not None
    repeated = _repeated(signs, inner.dims[2].constant, dims)
    return None if repeated is None else (move.reshape(move.concat(plain, 1, inner.dims), dims), repeated)


def _repeated(signs: np.ndarray, behind: int | None, dims: Dims) -> np.ndarray | None:
    """Return the signs of interleaved parts along the last axes: those whose elements they repeat evenly along."""
    count, sizes = 1, list[int]()
    for dim in dims[::-1]:
        if not behind or not dim.constant:
            return None
        sizes.insert(0, dim.constant)
        count *= dim.constant
        if count % (len(signs) * behind) == 0:
            whole = np.tile(np.repeat(signs, behind), count // (len(signs) * behind)).reshape(sizes)
            return _narrowed(whole)
    return None


def _narrowed(array: np.ndarray) -> np.ndarray:
    """Return an array with dims of 1 along which its elements are the same, without leading ones."""
    for axis in range(array.ndim):
        first = array.take([0], axis)
        array = first if (array == first).all() else array
    return array.reshape(array.shape[next((axis for axis, size in enumerate(array.shape) if size != 1), array.ndim) :])


def _signs(app: Application, axis: int, parts: Sequence[Term]) -> tuple[list[Term], list[int]] | None:
    """Return parts without their signs, and the sign of each element along the axis; None where none is negated."""
    plain, numbers = [], list[int]()
    for part in parts:
        inner = unreshaped(part)
        assert part.dims is not None
        length = part.dims[axis].constant
        if length is None or inner is None:
            return None
        source = inner.args[0] if inner.op == "Neg" else None
        plain.append(part if source is None else app.tools.movement.reshape(source, part.dims))
        numbers += [1 if source is None else -1] * length
    return (plain, numbers) if -1 in numbers else None


def _product(app: Application, args: list[Term | None], dims: Dims) -> Term | None:
    """Return the normal form of a product."""
    arrays = [None if arg is None or not arg.is_constant else app.tools.constants.array(arg) for arg in args]
    if arrays[0] is not None and arrays[1] is not None:
        return app.tools.constants.of_array(arrays[0] * arrays[1], app.dtype)
    return _applied(app, "Mul", args, dims)


def _applied(app: Application, op: str, args: list[Term | None], dims: Dims) -> Term | None:
    """Return the normal form of an elementwise operator of two inputs on terms."""
    node = Node(NodeProto(op_type=op, name=app.node.proto.name, output=["y"]), app.node.scope, app.node.index)
    made = replace(app, node=node, attributes=(("", 0, 7),), args=args, index=0, dims=dims)
    found = flat.elementwise(made)
    return found if isinstance(found, Term) else None
