"""Masks that are added to scores: equalities that hold where scores are finite, and small beside their masks.

A Softmax gives 0 for a score that is far below another one of its row, however far. So a loose term stands for scores
up to those that are masked: each element is the same, or at most `MASKED` in both. A Softmax over the last axis gives
the same for loose scores, if each row has one that counts. Operators that keep this are faithful; any other one gets
the exact terms, and an output of the model is proven by these alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from onnx import NodeProto, helper

from graphkit.dtypes import FLOATS
from graphkit.graph.operator_traits import names
from graphkit.graph.view import Node
from graphkit.shapes.tensor import Dims
from graphkit.verify.equivalence import flat
from graphkit.verify.equivalence.application import Application
from graphkit.verify.equivalence.axioms import Axiom, Result
from graphkit.verify.equivalence.movement import expands_to
from graphkit.verify.equivalence.terms import Term

__all__ = ["ASSUMPTIONS", "FINITE_AXIOMS", "MASKED", "is_blind", "is_faithful"]

MASKED = -1000.0  # exp of it is 0, also in float64, and also where scores that count are some hundreds lower
# Between the largest and the least of such constants, all together: more would make masked scores count.
REACH = -MASKED / 2
DEPTH = 64  # nodes that are looked through for them
EVERY = names("Max Min Concat")
SCALING = names("Mul Div")
ONE = names("Cast Expand Identity Slice Squeeze Unsqueeze Reshape Transpose")  # whose elements are those of one input


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
        return _is_small(app, app.args)
    if op in EVERY:
        return True
    if op == "Where":
        return index > 0
    if op in SCALING:
        return _is_scaled(app, index)
    if op == "Transpose" and (app.attr("perm", ()) or (0,))[-1] != len(term.dims) - 1:
        return False  # its rows are columns, which may be masked as a whole
    return op in ONE and index == 0 and term.dims[-1:] == app.dims[-1:]


class Reach(NamedTuple):
    """By how much constants change scores that count, at most and at least, and the largest number that masks."""

    most: float = 0.0
    least: float = 0.0
    masked: float = -np.inf

    def times(self, factor: float) -> Reach:
        """Return the reach of scores that are multiplied."""
        return Reach(*(each * factor for each in self))


UNKNOWN_REACH = Reach(np.inf, -np.inf, np.inf)


def _is_small(app: Application, terms: Sequence[Term | None]) -> bool:
    """Whether constants change the sum of some scores by little beside what masks."""
    reach = _sum(app, terms, {})
    return reach.most - reach.least <= REACH


def _is_scaled(app: Application, index: int) -> bool:
    """Whether a node multiplies scores by a number, and those that are masked stay so."""
    factor = _factor(app, app.node.operator, app.args)
    if factor is None or factor[0] != index:
        return False
    reach = _reach(app, app.args[index], {}).times(factor[1])
    return reach.most - reach.least <= REACH and reach.masked <= MASKED


def _factor(app: Application, op: str, terms: Sequence[Term | None]) -> tuple[int, float] | None:
    """Return which term is multiplied by a positive number, and that number."""
    for index, term in enumerate(terms if len(terms) == 2 else ()):
        if term is None or not term.is_constant or (op == "Div" and not index):
            continue
        array = app.tools.constants.array(term)
        if array is not None and array.size == 1 and 0 < (number := array.item()) < np.inf:
            return 1 - index, 1 / number if op == "Div" else number
    return None


def _sum(app: Application, terms: Sequence[Term | None], known: dict[Term, Reach], depth: int = 0) -> Reach:
    """Return the reach of the sum of terms."""
    found = [_reach(app, term, known, depth + 1) for term in terms if term is not None]
    most, least = sum(each.most for each in found), sum(each.least for each in found)
    return Reach(most, least, max((each.masked for each in found), default=-np.inf))


def _reach(app: Application, term: Term | None, known: dict[Term, Reach], depth: int = 0) -> Reach:
    """Return the reach of a term; `known` holds those that were looked at."""
    if depth > DEPTH or term is None:
        return UNKNOWN_REACH
    if term not in known:
        known[term] = UNKNOWN_REACH
        parts = term.args[1:] if term.op == "Where" else term.args[:1] if term.op in ONE else term.args
        if term.is_constant:
            known[term] = _reach_of_constant(app.tools.constants.array(term))
        elif term.op == "Add":
            known[term] = _sum(app, term.args, known, depth)
        elif term.op in SCALING and (factor := _factor(app, term.op, term.args)) is not None:
            known[term] = _reach(app, term.args[factor[0]], known, depth + 1).times(factor[1])
        elif term.op in (*ONE, *EVERY, "Where"):
            found = [_reach(app, part, known, depth + 1) for part in parts]
            most, least, masked = zip(*found, strict=True)
            known[term] = Reach(max(most), min(least), max(masked))
        else:
            known[term] = Reach()
    return known[term]


def _reach_of_constant(array: np.ndarray | None) -> Reach:
    if array is None or np.isnan(array).any():
        return UNKNOWN_REACH
    counts = array[array > MASKED].astype(np.float64)
    masked = array[array <= MASKED].astype(np.float64)
    return Reach(float(counts.max(initial=0.0)), float(counts.min(initial=0.0)), float(masked.max(initial=-np.inf)))


def raised(app: Application) -> Result:
    """Take a mask that is raised to a number that masks for the mask."""
    pairs = (app.args, app.args[::-1])
    for mask, floor in (pair for pair in pairs if len(pair) == 2):
        if mask is None or floor is None or app.dims is None or not _masks(app, floor) or not _is_small(app, [mask]):
            continue
        if _varies(mask.dims, app.dims) and expands_to(mask.dims or (), app.dims):
            return app.tools.movement.expand(mask, app.dims)
    return None


def filled(app: Application) -> Result:
    """Take a Where that fills scores for an Add to them."""
    condition, *ends = (app.arg(index) for index in range(3))
    if condition is None or app.dtype not in FLOATS or app.dims is None or not _varies(condition.dims, app.dims):
        return None
    low = [end is not None and _masks(app, end) for end in ends]
    if low[0] == low[1] or _hides_a_row(app, condition, is_hidden=low[0]):
        return None
    scores = ends[low[0]]
    if scores is None or scores.dims is None or not _is_small(app, [scores]):
        return None
    zero, fill = _number(app, 0.0), _fill(app)
    mask = _applied(app, "Where", [condition, *((fill, zero) if low[0] else (zero, fill))], condition.dims)
    if mask is None or _is_zero(app, scores):
        return None if mask is None else app.tools.movement.expand(mask, app.dims)
    return _applied(app, "Add", [scores, mask], app.dims)


def _hides_a_row(app: Application, condition: Term, *, is_hidden: bool) -> bool:
    """Whether a constant condition fills a row as a whole: nothing counts there."""
    array = app.tools.constants.array(condition) if condition.is_constant else None
    return array is not None and bool((array == is_hidden).all(axis=-1).any())


def added(app: Application) -> Result:
    """Take one number for all that mask in a constant that is added."""
    args = [None if term is None else _lowered(app, term) for term in app.args]
    if args == list(app.args) or not _is_small(app, app.args):
        return None
    return _applied(app, "Add", args, app.dims)


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


def _masks(app: Application, term: Term) -> bool:
    """Whether all elements of a term are one number that masks."""
    while term.op in ("Expand", "Reshape") and term.args[0] is not None:
        term = term.args[0]
    array = app.tools.constants.array(term) if term.is_constant and term.dtype in FLOATS else None
    return array is not None and bool(array.size) and bool((array <= MASKED).all())


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


def _applied(app: Application, op: str, args: list[Term | None], dims: Dims | None) -> Term | None:
    """Return the normal form of another operator on terms."""
    if op == "Where" and all(arg is not None and arg.is_constant for arg in args):
        condition, *ends = (app.tools.constants.array(arg) for arg in args if arg is not None)
        if condition is not None and ends[0] is not None and ends[1] is not None:
            return app.tools.constants.of_array(np.where(condition, ends[0], ends[1]), app.dtype)
    version = {"Where": 9, "Add": 7}[op]
    node = Node(NodeProto(op_type=op, name=app.node.proto.name, output=["y"]), app.node.scope, app.node.index)
    made = replace(app, node=node, attributes=(("", 0, version),), args=args, index=0, dims=dims)
    found = flat.elementwise(made)
    return found if isinstance(found, Term) else None


FINITE_AXIOMS = (
    Axiom("masks raised", "A mask whose least element still masks is the mask, where something counts in each row.",
          frozenset({"Max"}), raised),
    Axiom("masks filled in", "Scores that a number is filled in for are scores that it is added to.",
          frozenset({"Where"}), filled),
    Axiom("masks added", "What a constant adds to scores that do not count may be any number that masks.",
          frozenset({"Add"}), added),
)  # fmt: skip
ASSUMPTIONS = (
    Axiom("no NaN", "A Softmax of finite scores, of which one counts in each row, gives no NaN.",
          frozenset({"Where"}), guarded),
)  # fmt: skip
