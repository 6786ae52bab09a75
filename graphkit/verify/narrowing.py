"""Dims that a model made of another one fixes, or takes for equal: whether the original takes other sizes too."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from graphkit.model import Model
from graphkit.runtime.session import RunError, Runner
from graphkit.shapes import Expr, Relation, infer, is_known
from graphkit.shapes.constraints.dim_equalities import Pair
from graphkit.shapes.constraints.evaluate_constraints import Values
from graphkit.shapes.graph_inputs import Inputs
from graphkit.verify.input_generator import TooLargeError
from graphkit.verify.original_runs import Feeder, Flags
from graphkit.verify.run_sizes import assignments

__all__ = ["computed_dims", "narrowing", "unknown_pairs"]

MAX_OTHERS = 6  # sizes to look through for those that a rewritten model does not take


def narrowing(
    session: Callable[[], Runner],
    fixed: Sequence[Pair],
    asked: Mapping[str, int],
    whole: Callable[[], Feeder],
    flags: Sequence[Flags] = (),
) -> list[Pair]:
    """Return the dims that a model fixes though nobody asked for that, and its original takes others.

    Args:
        session: Opens the original, where it has to run.
        fixed: The dims, with the size of each.
        asked: Sizes that somebody asked for, by symbol.
        whole: Gives what makes inputs at all sizes of the original.
        flags: Those to run with; by default all.
    """
    relations = [(pair, Relation.equal(pair.dim, pair.size).substitute(asked).against_zero()) for pair in fixed]
    todo = [(pair, relation) for pair, relation in relations if relation.symbols]
    if not todo:
        return []
    feeder, opened = whole(), session()
    return [pair for pair, relation in todo if _takes_others(opened, feeder, relation, flags or feeder.flags())]


def _takes_others(session: Runner, feeder: Feeder, relation: Relation, choices: Sequence[Flags]) -> bool:
    """Whether a model runs at sizes that do not meet a relation."""
    for flags in choices:
        proposals = itertools.islice(assignments(feeder.legal(flags), []), MAX_OTHERS)
        others = [one.dims for one in proposals if not Values.at(one.dims).is_met(relation).all()]
        for dims in others[:2]:
            try:
                session.run(feeder.feed(dims, flags, 0))
            except (RunError, TooLargeError):
                continue
            return True
    return False


def computed_dims(model: Model, names: Sequence[str]) -> dict[str, Sequence[Expr] | None]:
    """Return the dims that a model computes of some values, in the symbols of its inputs; None for an unknown rank."""
    if not names:
        return {}
    shapes, symbols = infer(model), Inputs(model).symbols
    found = {name: shapes[model.graph.values[name]].dims for name in names if name in model.graph.values}
    return {name: None if dims is None else [dim.substitute(symbols) for dim in dims] for name, dims in found.items()}


def unknown_pairs(pairs: Sequence[Pair]) -> list[Pair]:
    """Return those of which no size of an input tells whether they hold: dims that depend on data."""
    return [pair for pair in pairs if not (is_known(pair.dim) and is_known(pair.size))]
