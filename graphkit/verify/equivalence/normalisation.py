"""LayerNormalization and the nodes that compute one: both are a normalisation of rows, scaled and shifted."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from graphkit.shapes import const
from graphkit.verify.equivalence.application import Application, Result
from graphkit.verify.equivalence.movement import count_elements
from graphkit.verify.equivalence.products import apply_operator
from graphkit.verify.equivalence.terms import Term, without_reshape

__all__ = ["normalise_layer", "normalise_rows"]


def normalise_layer(app: Application) -> Result:
    """A LayerNormalization is a normalisation, scaled and shifted."""
    data, scale, bias = app.arg(0), app.arg(1), app.arg(2)
    if data is None or data.dims is None or scale is None or app.index or app.dims != data.dims:
        return None
    epsilon = app.attr("epsilon", 1e-5)
    if app.attr("axis", -1) not in (-1, len(data.dims) - 1) or not epsilon or app.attr("stash_type", 1) != 1:
        return "it is not over the last axis"
    if app.dtype != TensorProto.FLOAT:
        return None
    normal = _normalised_term(app, data, float(epsilon))
    scaled = apply_operator(app, "Mul", [normal, scale], app.dims)
    return scaled if bias is None or scaled is None else apply_operator(app, "Add", [scaled, bias], app.dims)


def _normalised_term(app: Application, data: Term, epsilon: float) -> Term:
    assert data.dims is not None
    rows = (count_elements(data.dims[:-1]), data.dims[-1])
    rounded = float(np.float32(epsilon))
    made = app.tools.terms.make("Normalised", (rounded,), (app.tools.movement.reshape(data, rows),), app.dtype, rows)
    return app.tools.movement.reshape(made, data.dims)


def normalise_rows(app: Application) -> Result:
    """(x - mean) / sqrt(mean of squares + epsilon) is a normalisation."""
    left, right = app.arg(0), app.arg(1)
    if app.dtype != TensorProto.FLOAT or left is None or right is None or app.dims is None:
        return None
    pairs = ((left, right),) if app.node.op_type == "Div" else ((left, right), (right, left))
    for centred, deviation in pairs:
        root = without_reshape(deviation)
        if app.node.op_type == "Mul":
            root = _inverted_term(app, root)
        if root is None or root.op != "Sqrt" or centred.dims != app.dims or not app.dims:
            continue
        if deviation.dims != (*app.dims[:-1], const(1)):
            continue
        found = _match_moments(app, centred, without_reshape(root.args[0]))
        if found is not None:
            data, epsilon = found
            return _normalised_term(app, app.tools.movement.reshape(data, app.dims), epsilon)
    return None


def _inverted_term(app: Application, term: Term | None) -> Term | None:
    if term is None:
        return None
    source = term.args[0] if term.args else None
    if term.op != "Div" or source is None or not source.is_constant:
        return None
    one = app.tools.constants.array(source)
    return without_reshape(term.args[1]) if one is not None and (one == 1).all() else None


def _match_moments(app: Application, centred: Term, positive: Term | None) -> tuple[Term, float] | None:
    """Return the normalised term, and epsilon; None where the terms are not those of a normalisation."""
    if positive is None or positive.op != "Shifted" or positive.args[1] is None:
        return None
    epsilon = app.tools.constants.array(positive.args[1])
    mean_square = without_reshape(positive.args[0])
    difference = without_reshape(centred)
    if epsilon is None or epsilon.ndim or epsilon <= 0 or difference is None or difference.op != "Sub":
        return None
    if (
        mean_square is None
        or mean_square.op != "ReduceMean of rows"
        or not _is_square(app, mean_square.args[0], centred)
    ):
        return None
    data, mean = difference.args[0], without_reshape(difference.args[1])
    if data is None or mean is None or mean.op != "ReduceMean of rows" or data.dims is None:
        return None
    rows = mean.args[0]
    assert rows is not None
    assert centred.dims is not None
    width = centred.dims[-1]
    if rows.dims is None or rows.dims[-1] != width or app.tools.movement.reshape(data, rows.dims) is not rows:
        return None
    beside = difference.args[1]
    if data.dims != rows.dims or beside is None or beside.dims != (rows.dims[0], const(1)):
        return None
    return app.tools.movement.reshape(data, centred.dims), float(epsilon)


def _is_square(app: Application, term: Term | None, base: Term) -> bool:
    """Whether rows are the square of a term."""
    inner = without_reshape(term)
    if inner is None or base.dims is None or term is None or term.dims is None or term.dims[-1] != base.dims[-1]:
        return False
    source, other = (*inner.args, None)[:2]
    if source is None or source.dims is None or app.tools.movement.reshape(base, source.dims) is not source:
        return False
    if inner.op == "Mul":
        return other is source
    exponent = (
        app.tools.constants.array(other) if inner.op == "Pow" and other is not None and other.is_constant else None
    )
    return exponent is not None and exponent.size == 1 and float(exponent.reshape(-1)[0]) == 2
