"""Greedy search for tokens with a bundle, and the interface of a bundle for any search."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np

from graphkit.deploy.hosts.token_rules import FREE, TokenRules

__all__ = ["Stepper", "end_tokens", "greedy_search"]


class Stepper(Protocol):
    """The interface of a bundle for a search."""

    def step(self, tokens: np.ndarray) -> np.ndarray:
        """Return the logits after one more token of each row, [rows, 1, vocabulary]."""

    def reorder(self, rows: Sequence[int]) -> None:
        """Let each row be a copy of another."""


def end_tokens(end: int | Sequence[int]) -> tuple[int, ...]:
    """Return the tokens of which any ends a row: one, or several."""
    return (end,) if isinstance(end, (int, np.integer)) else tuple(end)


def greedy_search(
    bundle: Stepper, logits: np.ndarray, steps: int, ends: Collection[int], rules: TokenRules = FREE
) -> list[list[int]]:
    """Return the most likely token of each row, again and again.

    Args:
        bundle: What steps.
        logits: Those of the first token, [rows, vocabulary].
        steps: The most tokens.
        ends: The tokens of which any ends a row.
        rules: Which tokens may follow.
    """
    found: list[list[int]] = [[] for _ in logits]
    done = np.zeros(len(logits), bool)
    for step in range(steps):
        tokens = rules.allowed(logits, step).argmax(-1)
        for row, token in enumerate(tokens.tolist()):
            if not done[row]:
                found[row].append(token)
        done |= np.isin(tokens, list(ends))
        if done.all() or step == steps - 1:
            break
        logits = bundle.step(tokens)[:, -1]
    return found
