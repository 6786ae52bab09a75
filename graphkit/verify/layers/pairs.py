"""Tensors of two models that match, and their arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.graph.view import Value
from graphkit.verify.layers.arrays import ArrayFile
from graphkit.verify.layers.side import Side
from graphkit.verify.layers.stepping import Steps

__all__ = ["Pair", "Reader"]


@dataclass(frozen=True, eq=False)
class Pair:
    """A tensor of A and its match: a tensor of B, or the name of a dump.

    Attributes:
        a: The tensor.
        b: What it is in B.
        how: What they were matched by.
    """

    a: Value
    b: Value | str
    how: str

    @property
    def theirs(self) -> str:
        """The name in B."""
        return self.b if isinstance(self.b, str) else self.b.name


class Reader:
    """Gives the arrays of pairs.

    Args:
        pairs: What may be asked for.
        a: The model A.
        b: The model B, or its dumps.
        all_asked: Whether all of them will be.

    Attributes:
        steps: How often it was asked.
    """

    def __init__(self, pairs: Sequence[Pair], a: Side, b: Side | ArrayFile, *, all_asked: bool = True) -> None:
        self.steps = 0
        self.one = Steps(a, a.feed, [pair.a for pair in pairs], all_asked=all_asked)
        self.two: Steps | ArrayFile
        if isinstance(b, ArrayFile):
            self.two = b
        else:
            theirs = [pair.b for pair in pairs if isinstance(pair.b, Value)]
            self.two = Steps(b, b.feed, theirs, all_asked=all_asked)

    def read(self, some: Sequence[Pair]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Return the arrays of some pairs."""
        self.steps += 1
        mine = self.one.values([pair.a for pair in some])
        if isinstance(self.two, ArrayFile):
            return zip(mine, map(self.two.beside, [pair.theirs for pair in some], mine), strict=True)
        return zip(mine, self.two.values([pair.b for pair in some if isinstance(pair.b, Value)]), strict=True)

    def keep(self) -> None:
        """Remember the tensors computed for them, to go on from there."""
        for steps in (self.one, self.two):
            if isinstance(steps, Steps):
                steps.keep()

    def back(self) -> None:
        """Go on from the tensors remembered last."""
        for steps in (self.one, self.two):
            if isinstance(steps, Steps):
                steps.back()
