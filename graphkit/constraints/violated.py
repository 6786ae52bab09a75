"""Which node of a model does not run at given sizes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import numpy as np

from graphkit.constraints.collect import collect
from graphkit.model import Model
from graphkit.shapes import infer

__all__ = ["SizeCheck"]


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
