"""What the elements of constants say of zeros: whether there are any, and of which sign."""

from __future__ import annotations

import numpy as np

from graphkit.verify.equivalence.application import Application
from graphkit.verify.equivalence.terms import Term

__all__ = ["has_no_minus_zero", "has_no_zero", "is_all"]


def has_no_zero(app: Application, term: Term | None) -> bool:
    """Whether it is a constant without 0 and -0."""
    source = None if term is None else _moved(term)
    array = app.tools.constants.array(source) if source is not None and source.is_constant else None
    return array is not None and array.dtype.kind == "f" and bool(array.all())


def has_no_minus_zero(app: Application, term: Term) -> bool:
    """Whether no element is -0, which a 0 that is added makes 0."""
    source = _moved(term)
    array = app.tools.constants.array(source) if source.is_constant else None
    return array is not None and array.dtype.kind == "f" and not (np.signbit(array) & (array == 0)).any()


def is_all(app: Application, term: Term, number: float) -> bool:
    """Whether a constant has nothing but a number, its sign included."""
    term = _moved(term)
    if not term.is_constant:
        return False
    array = app.tools.constants.array(term)
    if array is None or not array.size or not (array == number).all():
        return False
    return array.dtype.kind in "iub" or bool((np.signbit(array) == np.signbit(number)).all())


def _moved(term: Term) -> Term:
    """Return the term whose elements a term only moves."""
    while term.op in ("Expand", "Reshape", "Slice", "Strided", "Transpose") and term.args[0] is not None:
        term = term.args[0]
    return term
