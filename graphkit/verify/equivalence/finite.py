"""Masks that are added to scores: equalities that hold where scores are finite, and small beside their masks.

A Softmax gives 0 for a score that is far below another one of its row, however far. So a loose term stands for scores
up to those that are masked: each element is the same, or at most `MASKED` in both. A Softmax over the last axis gives
the same for loose scores, if each row has one that counts. Operators that keep this are faithful; any other one gets
the exact terms, and an output of the model is proven by these alone.
"""

from __future__ import annotations

import numpy as np
from onnx import helper

from graphkit.dtypes import FLOATS
from graphkit.shapes.tensor import Dims
from graphkit.verify.equivalence import flat
from graphkit.verify.equivalence.application import Application
from graphkit.verify.equivalence.axioms import Axiom, Result
from graphkit.verify.equivalence.mask_reach import EVERY, MASKED, ONE, SCALING, counted, is_scaled, is_small, masks
from graphkit.verify.equivalence.movement import expands_to
from graphkit.verify.equivalence.terms import Term

__all__ = ["ASSUMPTIONS", "FINITE_AXIOMS", "is_blind", "is_faithful"]


def is_blind(app: Application, index: int) -> bool:
    """Whether a node gives the same for scores that are masked by other numbers: a Softmax over the last axis."""
    term = app.arg(0)
    if app.node.operator != "Softmax" or index or term is None or not term.dims:
        return False
    default = -1 if app.node.scope.opset() >= 13 else 1
    return app.axis(app.attr("axis", default), len(term.dims)) == len(term.dims) - 1


def is_faithful(app: Application, index: int) -> bool:
    """Whether a node gives the same for masked scores but for elements that it masks."""
    op, term = app.node.operator, app.arg(index)
    if term is None or term.dims is None or app.dims is None or app.dtype not in FLOATS or term.dtype not in FLOATS:
        return False
    if op == "Add":
        return is_small(app, app.args)
    if op in EVERY:
        return True
    if op == "Where":
        return index > 0
    if op in SCALING:
        return is_scaled(app)
    if op == "Transpose" and (app.attr("perm", ()) or (0,))[-1] != len(term.dims) - 1:
        return False  # its rows are columns, which may be masked as a whole
    return op in ONE and index == 0 and term.dims[-1:] == app.dims[-1:]


def raised(app: Application) -> Result:
    """Take a mask that is raised to a number that masks for the mask."""
    pairs = (app.args, app.args[::-1])
    for mask, floor in (pair for pair in pairs if len(pair) == 2):
        if mask is None or floor is None or app.dims is None or not masks(app, floor) or not is_small(app, [mask]):
            continue
        if _varies(mask.dims, app.dims) and expands_to(mask.dims or (), app.dims):
            return app.tools.movement.expand(mask, app.dims)
    return None


def filled(app: Application) -> Result:
    """Take a Where that fills scores for an Add to them."""
    condition, *ends = (app.arg(index) for index in range(3))
    if condition is None or app.dtype not in FLOATS or app.dims is None or not _varies(condition.dims, app.dims):
        return None
    low = [end is not None and masks(app, end) for end in ends]
    if low[0] == low[1] or _hides_a_row(app, condition, is_hidden=low[0]):
        return None
    scores = ends[low[0]]
    if scores is None or scores.dims is None or not is_small(app, [scores]):
        return None
    zero, fill = _number(app, 0.0), _fill(app)
    mask = flat.applied(app, "Where", [condition, *((fill, zero) if low[0] else (zero, fill))], condition.dims)
    if mask is None or _is_zero(app, scores):
        return None if mask is None else app.tools.movement.expand(mask, app.dims)
    return flat.applied(app, "Add", [scores, mask], app.dims)


def _hides_a_row(app: Application, condition: Term, *, is_hidden: bool) -> bool:
    """Whether a constant condition fills a row as a whole: nothing counts there."""
    array = app.tools.constants.array(condition) if condition.is_constant else None
    return array is not None and bool((array == is_hidden).all(axis=-1).any())


def added(app: Application) -> Result:
    """Take one number for all that mask in a constant that is added."""
    args = [None if term is None else _lowered(app, term) for term in app.args]
    if args == list(app.args) or not is_small(app, app.args):
        return None
    return flat.applied(app, "Add", args, app.dims)


def multiplied(app: Application) -> Result:
    """Take the lowest number for one that masks where a whole number is not 0."""
    found = counted(app, app.args)
    if found is None or app.dims is None or not _varies(found[0].dims, app.dims):
        return None
    return flat.applied(app, "Mul", [found[0], _fill(app)], app.dims)


def guarded(app: Application) -> Result:
    """Take a Softmax for the Where that replaces its NaN."""
    condition, *ends = (app.arg(index) for index in range(3))
    if condition is None or app.dims is None:
        return None
    test, kept = _bare(condition), 1
    if test.op == "Not" and test.args[0] is not None:
        test, kept = _bare(test.args[0]), 0
    tested, softmax = test.args[0] if test.op == "IsNaN" else None, ends[kept]
    if tested is None or softmax is None or tested.dims is None or softmax.dims != app.dims:
        return None
    is_same = app.tools.movement.reshape(softmax, tested.dims) is tested
    return softmax if is_same and condition.dims == app.dims and _bare(softmax).op == "Softmax of rows" else None


def _bare(term: Term) -> Term:
    inner = term.args[0] if term.op == "Reshape" else None
    return term if inner is None else inner


def _varies(dims: Dims | None, whole: Dims) -> bool:
    """Whether a mask has all elements along the last axis: one that has not masks whole rows."""
    return bool(dims) and bool(whole) and dims is not None and dims[-1] == whole[-1] != 1


def _is_zero(app: Application, term: Term) -> bool:
    array = app.tools.constants.array(term) if term.is_constant else None
    return array is not None and bool(array.size) and not array.any() and all(dim == 1 for dim in term.dims or ())


def _lowered(app: Application, term: Term) -> Term:
    """Return a constant mask with one number for all elements that mask."""
    array = app.tools.constants.array(term) if term.is_constant and app.dtype in FLOATS else None
    if array is None or not array.ndim or array.shape[-1] == 1 or not (array <= MASKED).any():
        return term
    if (array <= MASKED).all(axis=-1).any():
        return term  # nothing counts in a row
    lowered = np.where(array <= MASKED, np.finfo(array.dtype).min, array)
    return term if np.array_equal(lowered, array, equal_nan=True) else app.tools.constants.of_array(lowered, term.dtype)


def _fill(app: Application) -> Term:
    return _number(app, float(np.finfo(helper.tensor_dtype_to_np_dtype(app.dtype)).min))


def _number(app: Application, number: float) -> Term:
    return app.tools.constants.of_array(np.array(number, helper.tensor_dtype_to_np_dtype(app.dtype)), app.dtype)


FINITE_AXIOMS = (
    Axiom("masks raised", "A mask whose least element still masks is the mask, where something counts in each row.",
          frozenset({"Max"}), raised),
    Axiom("masks filled in", "Scores that a number is filled in for are scores that it is added to.",
          frozenset({"Where"}), filled),
    Axiom("masks added", "What a constant adds to scores that do not count may be any number that masks.",
          frozenset({"Add"}), added),
    Axiom("masks multiplied", "A number that masks where a whole number is not 0 may be any number that masks.",
          frozenset({"Mul"}), multiplied),
)  # fmt: skip
ASSUMPTIONS = (
    Axiom("no NaN", "A Softmax of finite scores, of which one counts in each row, gives no NaN.",
          frozenset({"Where"}), guarded),
)  # fmt: skip
