"""Which node of a model does not run at given sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

import numpy as np

from graphkit.constraints.collect import collect
from graphkit.constraints.triggers import find_triggers
from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.shapes import DimSpec, infer

__all__ = ["SizeCheck", "check_sizes", "impossible"]


class SizeCheck:
    """Tells whether a model runs at sizes, as far as the preconditions of its nodes say.

    What depends on symbols without a size is not looked at: onnxruntime has the last word.
    """

    def __init__(self, model: Model) -> None:
        shared = collect(infer(model))
        self._known = [one for one in shared if one.scope is model.graph and not one.precondition.is_guess]

    def fault(self, sizes: Mapping[str, int]) -> str:
        """Return the first node that does not run and why, "" where none is known."""
        for one in self._known:
            condition = one.precondition
            if not condition.symbols or not condition.symbols <= sizes.keys():
                continue
            with suppress(ZeroDivisionError):
                values = [expr.evaluate(sizes) for expr in condition.exprs]
                if condition.outcome([np.array(value) for value in values]).any():
                    return f"'{one.nodes[0].path}': {condition.violation(values).problem}"
        return ""

    def nearest(self, sizes: Mapping[str, int], names: frozenset[str], start: int, reach: int) -> int | None:
        """Return the number nearest to `start`, at most `reach` away, at which it runs, None where there is none.

        These symbols get the number instead of their sizes.
        """
        for distance in range(reach + 1):
            for number in dict.fromkeys((start - distance, start + distance)):
                if number > 0 and not self.fault({**sizes, **dict.fromkeys(names, number)}):
                    return number
        return None


def check_sizes(model: Model, spec: DimSpec, sizes: Mapping[str, int]) -> None:
    """Check that a model runs where its inputs have the dims of a spec.

    Args:
        model: The model.
        spec: The dims.
        sizes: The sizes that symbols have there.

    Raises:
        UsageError: A node does not run.
    """
    for reason in _reasons(model, spec, sizes):
        raise impossible(model, sizes, reason)


def _reasons(model: Model, spec: DimSpec, sizes: Mapping[str, int]) -> Iterator[str]:
    for finding in infer(model, spec).contradictions:
        yield f"'{finding.node}': {finding.message}"
    if fault := SizeCheck(model).fault(sizes):
        yield fault


def impossible(model: Model, sizes: Mapping[str, int], reason: str) -> UsageError:
    """Return the error for sizes at which a model does not run."""
    given = ", ".join(f"{name}={size}" for name, size in sizes.items()) or "these shapes"
    legal = "; ".join(f"{rule.name}: {rule}" for rule in find_triggers(infer(model)).rules)
    hint = f"give other sizes ({legal})" if legal else "give other sizes"
    return UsageError(f"{model.label}: it cannot run with {given}: {reason} - {hint}")
