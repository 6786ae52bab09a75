"""Constants that scale and shift, from Add, Sub, Mul, Div, Neg and BatchNormalization: weights may take them up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from graphkit.dtypes import FLOATS
from graphkit.verify.equivalence import flat, movement
from graphkit.verify.equivalence.application import Application, Result
from graphkit.verify.equivalence.linear import changed
from graphkit.verify.equivalence.movement import product
from graphkit.verify.equivalence.near_constants import EXACT, Doubt, of_sum
from graphkit.verify.equivalence.scale_and_shift import Change, vector_of
from graphkit.verify.equivalence.terms import Term

__all__ = ["arithmetic", "batch_norm", "constant_of"]

STEPS = 3.0  # that make a factor of a scale, a variance and an epsilon


def constant_of(app: Application, term: Term | None) -> tuple[np.ndarray, Doubt] | None:
    """Return the elements of a constant of floats, without those that only repeat along an axis, and their doubt."""
    if term is None or app.dtype not in FLOATS:
        return None
    while term.op in ("Expand", "Reshape") and term.args[0] is not None and not term.is_constant:
        if term.op == "Reshape" and (term.args[0].op != "Expand" or product(term.args[0].args[0].dims or ()) != 1):  # type: ignore[union-attr]
            return None
        term = term.args[0]
    if not term.is_constant or term.dtype != app.dtype:
        return None
    bare = app.tools.movement.unexpanded(term)
    array = app.tools.constants.array(bare)
    return (array, app.tools.near.doubt_of(bare)) if array is not None and np.isfinite(array).all() else None


def arithmetic(app: Application) -> Result:
    """Scale and shift by constants: Add, Sub, Mul, Div and Neg."""
    op, left, right = app.node.op_type, app.arg(0), app.arg(1)
    if left is None or app.dims is None or app.dtype not in FLOATS or app.node.scope.opset() < 7:
        return None
    if any(term is not None and term.dtype != app.dtype for term in (left, right)):
        return None  # no model that runs
    if op == "Neg":
        return changed(app.tools, left, Change("Scaled", np.float64(-1), None)) if left.dims == app.dims else None
    for term, other, is_left in ((left, right, True), (right, left, False)):
        if term is None or other is None or term.is_constant or (known := constant_of(app, other)) is None:
            continue
        found = vector_of(known[0], len(app.dims))
        if found is None:
            near = app.tools.movement.unexpanded(other)
            if op in ("Mul", "Div") or Change("Shifted", known[0], None).is_moderate(app.dtype):
                near = app.tools.near.of_term(near, op)
            return flat.elementwise(replace(app, args=[term, near] if is_left else [near, term]))
        if not movement.expands_to(term.dims or app.dims, app.dims) or term.dims is None:
            return None
        if term.dims != app.dims:
            return None
        doubt = known[1] if isinstance(known[1], float) else known[1].reshape(found[0].shape)
        return _changed_by(app, op, term, Change("Scaled", *found, doubt), is_left=is_left)
    return None


def _changed_by(app: Application, op: str, term: Term, by: Change, *, is_left: bool) -> Term | str | None:
    if op in ("Mul", "Div") and not isinstance(by.doubt, float):
        return "its constant is a sum"
    if op == "Div" and (not is_left or not by.vector.all()):
        return None
    if op in ("Mul", "Div"):
        change = by if op == "Mul" else by.inverse()
    else:
        change = Change("Shifted", -by.vector if op == "Sub" and is_left else by.vector, by.axis, by.doubt)
    if not change.is_moderate(app.dtype):
        return "its constant is very large, or very small"
    if op == "Sub" and not is_left:
        term = changed(app.tools, term, Change("Scaled", np.float64(-1), None))
    return changed(app.tools, term, change)


def batch_norm(app: Application) -> Result:
    """Scale and shift channels by what a BatchNormalization has learnt."""
    data = app.arg(0)
    known = [constant_of(app, term) for term in app.args[1:]]
    arrays = [each[0] for each in known if each is not None]
    if data is None or data.dims is None or len(arrays) != 4 or len(known) != 4 or any(a.ndim > 1 for a in arrays):
        return "its parameters are not constant"
    if app.node.scope.opset() < 9 or any(app.node.outputs[1:]) or app.attr("training_mode", 0) or len(data.dims) < 2:
        return "it may learn"
    count = data.dims[1].constant
    if count is None or any(each.size not in (1, count) for each in arrays) or data.dtype != app.dtype:
        return "how many channels it has is not known"
    scale, bias, mean, variance = (np.broadcast_to(each.astype(np.float64), (count,)) for each in arrays)
    epsilon = float(np.float32(app.attr("epsilon", 1e-5) or 0.0))  # attributes are float32, as their defaults are
    with np.errstate(invalid="ignore", divide="ignore"):  # what a wrong variance makes is not moderate
        factor = scale / np.sqrt(variance + epsilon)
    moved = mean * factor
    doubts = STEPS, of_sum(bias, moved, (EXACT, STEPS + 1))
    changes = Change("Scaled", factor, 1, doubts[0]), Change("Shifted", bias - moved, 1, doubts[1])
    if not all(change.is_moderate(app.dtype) for change in changes):
        return "its parameters are very large, or very small"
    return changed(app.tools, changed(app.tools, data, changes[0]), changes[1])
