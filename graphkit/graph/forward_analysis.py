"""Forward analysis: a fact about each value, from those about the values that it is computed from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from graphkit.graph.view import Value

__all__ = ["ForwardAnalysis"]

Fact = TypeVar("Fact")
MAX_DEPTH = 100  # nodes one after the other, each with a few calls on the stack of Python


class ForwardAnalysis(ABC, Generic[Fact]):
    """Finds facts on demand, each once: only the values that a transfer function asks for are looked at.

    Args:
        unknown: The fact about a value of which nothing is known: one that is left out, one that is computed from
            itself, as in a broken model, and one behind too many nodes.
    """

    def __init__(self, unknown: Fact) -> None:
        self._unknown = unknown
        self._facts: dict[Value, Fact] = {}
        self._depth = 0

    def of(self, value: Value | None) -> Fact:
        """Return the fact about a value."""
        if value is None:
            return self._unknown
        if value not in self._facts and self._depth < MAX_DEPTH:
            self._facts[value] = self._unknown
            self._depth += 1
            try:
                self._facts[value] = self.transfer(value)
            finally:
                self._depth -= 1
        return self._facts.get(value, self._unknown)

    @abstractmethod
    def transfer(self, value: Value) -> Fact:
        """Return the fact about a value from those about the inputs of its producer, for which it calls `of`."""
