"""A difference of two models, as each of them has it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Change"]


@dataclass(frozen=True)
class Change:
    """Something that differs.

    Attributes:
        what: Its name.
        before: What A has, None where A lacks it.
        after: What B has, None where B lacks it.
    """

    what: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.what}: {self.after} added"
        if self.after is None:
            return f"{self.what}: {self.before} removed"
        return f"{self.what}: {self.before} -> {self.after}"
