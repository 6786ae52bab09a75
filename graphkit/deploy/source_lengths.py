"""The lengths of its source at which an encoder runs."""

from __future__ import annotations

from collections.abc import Mapping

from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.shapes import infer
from graphkit.shapes.constraints.failing_sizes import SizeCheck, find_triggers
from graphkit.shapes.constraints.symbol_sizes import symbol_roles

__all__ = ["MAX_REACH", "SourceLengths", "check_source"]

MAX_REACH = 4096  # how far a length is looked for at which a model runs


class SourceLengths:
    """Tells at which lengths of its source an encoder runs, where no dim by name says so."""

    def __init__(self, encoder: Model, batch: int, dims: Mapping[str, int]) -> None:
        roles = symbol_roles(encoder)
        named = {name for name, role in roles.items() if role in ("encoder", "sequence", "total")}
        self.lengths = frozenset(named - dims.keys())
        self.numbers = {**{name: batch for name, role in roles.items() if role == "batch"}, **dims}
        self.check = SizeCheck(encoder)

    def fault(self, length: int) -> str:
        """Return why it does not run at a length, "" where nothing is known."""
        return self.check.fault({**self.numbers, **dict.fromkeys(self.lengths, length)}) if self.lengths else ""

    def most(self, length: int) -> int | None:
        """Return the largest length up to one at which it runs; None where it runs at none that was tried."""
        tried = range(length, max(length - MAX_REACH, 0), -1)
        return next((size for size in tried if not self.fault(size)), None)

    def nearest(self, length: int) -> int | None:
        """Return the nearest length at which it runs, None where there is none near."""
        return self.check.nearest(self.numbers, self.lengths, length, MAX_REACH)


def check_source(encoder: Model, batch: int, source: int, dims: Mapping[str, int]) -> None:
    """Check that an encoder runs at some length of the source up to the longest one of a bundle.

    Raises:
        UsageError: It does not, with the least length at which it does.
    """
    check = SourceLengths(encoder, batch, dims)
    if check.most(source) is not None:
        return
    rules = {str(rule) for rule in find_triggers(infer(encoder)).rules if rule.name in check.lengths}
    legal = f"legal lengths: {rules.pop()}; " if len(rules) == 1 else ""
    nearest = check.nearest(source)
    hint = "a longer one with --max-source" if nearest is None else f"--max-source {nearest} or more"
    raise UsageError(
        f"{encoder.name} does not run with a source of {source}, nor of less: {check.fault(source)} - "
        f"{legal}give {hint}"
    )
