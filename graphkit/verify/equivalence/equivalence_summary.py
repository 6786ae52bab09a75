"""Equality by normal forms as the proof of a rewrite reports it, beside its runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import get_args

from graphkit.errors import ModelError
from graphkit.graph.names import counted
from graphkit.model import Model
from graphkit.render.document_blocks import Block, Prose
from graphkit.shapes.expr_limits import TooComplexError
from graphkit.time_limit import OutOfTimeError, time_limit
from graphkit.verify.equivalence.axioms import AXIOMS, Exactness
from graphkit.verify.equivalence.check import check_equivalence

__all__ = ["EquivalenceSummary", "summarize_equivalence"]

SECONDS = 60.0  # after which the runs alone are the proof
MAX_SHOWN = 3  # outputs of which the report says why nothing is shown
GRADES: tuple[str, ...] = get_args(Exactness)  # the most exact first


@dataclass(frozen=True)
class EquivalenceSummary:
    """The outputs that normal forms show to be equal at every legal size and for every input.

    Attributes:
        proven: How exactly each of them is equal, by name.
        unproven: Why nothing is shown of the others, by name.
        axioms: How often each equality was used.
        conditions: The sizes that this is about, such as `batch >= 1`.
    """

    proven: Mapping[str, str] = field(default_factory=dict)
    unproven: Mapping[str, str] = field(default_factory=dict)
    axioms: Mapping[str, int] = field(default_factory=dict)
    conditions: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every output is proven."""
        return bool(self.proven) and not self.unproven

    @property
    def exactness(self) -> str:
        """How exactly all proven outputs are equal."""
        return max(self.proven.values(), key=GRADES.index, default="")

    def blocks(self) -> Iterator[Block]:
        """Yield the paragraphs of a report."""
        total = len(self.proven) + len(self.unproven)
        if self.proven:
            grades = Counter(self.proven.values())
            shares = ", ".join(f"{grades[grade]:,} {grade}" for grade in GRADES if grade in grades)
            conditions = f", for {', '.join(self.conditions)}" if self.conditions else ""
            yield Prose(
                f"By normal forms, at every legal size and for every input{conditions}: {shares}, of {total:,}."
            )
        loose = {axiom.name for axiom in AXIOMS if axiom.exactness != GRADES[0]}
        if used := [f"{name} ({count:,} times)" for name, count in self.axioms.items() if name in loose]:
            yield Prose(f"Equalities that are not bit for bit: {', '.join(used)}.")
        for name, reason in list(self.unproven.items())[:MAX_SHOWN]:
            yield Prose(f"Not proven at every size: '{name}': {reason}.")
        if len(self.unproven) > MAX_SHOWN:
            yield Prose(f"Nor are {counted(len(self.unproven) - MAX_SHOWN, 'other(s)')}.")


def summarize_equivalence(
    original: Model, rewritten: Model, *, narrower: bool, values: Mapping[str, object], seconds: float | None
) -> EquivalenceSummary:
    """Return what normal forms show of two models: see `graphkit.verify.equivalence.check_equivalence`.

    Args:
        original: The original.
        rewritten: Its rewrite, with the names of the original.
        narrower: Whether the rewrite takes fewer sizes.
        values: Arrays of inputs, by name.
        seconds: The time that this may take, None for a minute.
    """
    names = [value.name for value in rewritten.graph.outputs]
    try:
        with time_limit("the proof by normal forms", SECONDS if seconds is None else seconds):
            found = check_equivalence(original, rewritten, narrower=narrower, values=values)
    except (ModelError, OutOfTimeError, TooComplexError) as error:
        return EquivalenceSummary(unproven=dict.fromkeys(names, str(error)))
    return EquivalenceSummary(
        proven={output.name: output.exactness for output in found.outputs if output.verdict == "proven"},
        unproven={output.name: output.reason for output in found.outputs if output.verdict != "proven"},
        axioms=found.used,
        conditions=found.conditions,
    )
