"""Axioms of forms that targets accept: copies that a Concat joins, and signs that move from a tensor into its table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from onnx import NodeProto, helper

from graphkit.dtypes import FLOATS
from graphkit.graph.view import Node
from graphkit.shapes.tensor import Dims
from graphkit.verify.equivalence import flat
from graphkit.verify.equivalence.application import Application
from graphkit.verify.equivalence.movement import expands_to
from graphkit.verify.equivalence.terms import Term

__all__ = ["copies", "signs"]

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


def signs(app: Application) -> Result:
    """Let the table that scales joined parts have the signs of those that are negated, as in a rotation."""
    if app.dtype not in FLOATS or app.dims is None:
        return None
    for scaled, table in (app.args, app.args[::-1]):
        if scaled is None or table is None or scaled.dims is None or table.dims is None:
            continue
        joined = app.tools.movement.joined(scaled)
        if joined is None or (found := _unsigned(app, *joined)) is None:
            continue
        axis = joined[0] - len(scaled.dims)
        if len(table.dims) < -axis or table.dims[axis] != scaled.dims[axis]:
            return "its table is the same for all parts"
        parts, numbers = found
        plain = app.tools.movement.concat(parts, joined[0], scaled.dims)
        factors = np.array(numbers, helper.tensor_dtype_to_np_dtype(app.dtype)).reshape(-1, *[1] * (-axis - 1))
        signed = _product(app, [table, app.tools.constants.of_array(factors, app.dtype)], table.dims)
        return None if signed is None else _product(app, [plain, signed], app.dims)
    return None


def _unsigned(app: Application, axis: int, parts: list[Term]) -> tuple[list[Term], list[int]] | None:
    """Return parts without their signs, and the sign of each element along the axis; None where none is negated."""
    plain, numbers = [], list[int]()
    for part in parts:
        inner = part.args[0] if part.op == "Reshape" else part
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
    node = Node(NodeProto(op_type="Mul", name=app.node.proto.name, output=["y"]), app.node.scope, app.node.index)
    made = replace(app, node=node, attributes=(("", 0, 7),), args=args, index=0, dims=dims)
    found = flat.elementwise(made)
    return found if isinstance(found, Term) else None
