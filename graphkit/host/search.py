"""Search for tokens with a bundle: greedy, and by beams."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np

from graphkit.errors import UsageError

__all__ = ["Stepper", "beam_search", "end_tokens", "greedy_search"]


class Stepper(Protocol):
    """What a search needs of a bundle."""

    def step(self, tokens: np.ndarray) -> np.ndarray:
        """Return the logits after one more token of each row, [rows, 1, vocabulary]."""

    def reorder(self, rows: Sequence[int]) -> None:
        """Let each row be a copy of another."""


def end_tokens(end: int | Sequence[int]) -> tuple[int, ...]:
    """Return the tokens of which any ends a row: one, or several."""
    return (end,) if isinstance(end, (int, np.integer)) else tuple(end)


def greedy_search(bundle: Stepper, logits: np.ndarray, steps: int, ends: Collection[int]) -> list[list[int]]:
    """Return the most likely token of each row, again and again.

    Args:
        bundle: What steps.
        logits: Those of the first token, [rows, vocabulary].
        steps: The most tokens.
        ends: The tokens of which any ends a row.
    """
    found: list[list[int]] = [[] for _ in logits]
    done = np.zeros(len(logits), bool)
    for step in range(steps):
        tokens = logits.argmax(-1)
        for row, token in enumerate(tokens.tolist()):
            if not done[row]:
                found[row].append(token)
        done |= np.isin(tokens, list(ends))
        if done.all() or step == steps - 1:
            break
        logits = bundle.step(tokens)[:, -1]
    return found


def beam_search(bundle: Stepper, logits: np.ndarray, steps: int, ends: Collection[int], beams: int) -> list[list[int]]:
    """Return the tokens of the best beam of each row: the largest mean of log probabilities.

    The arguments are those of `greedy_search`, and how many beams each row has. A row ends when it has as many ended
    beams as beams; those that are open at the last step count too.
    """
    rows, vocabulary = logits.shape
    if beams > vocabulary:
        raise UsageError(f"{beams} beams, and there are {vocabulary} tokens - give fewer beams")
    bundle.reorder(np.repeat(np.arange(rows), beams).tolist())
    scores = np.full((rows, beams), -np.inf)
    scores[:, 0] = 0
    open_ones: list[list[list[int]]] = [[[] for _ in range(beams)] for _ in range(rows)]
    ended: list[list[tuple[float, list[int]]]] = [[] for _ in range(rows)]
    chances = np.repeat(_log_softmax(logits), beams, axis=0)
    for step in range(steps):
        total = (scores.reshape(-1, 1) + chances).reshape(rows, -1)
        sources, tokens = np.zeros((rows, beams), np.int64), np.zeros((rows, beams), np.int64)
        for row in range(rows):
            best = np.argsort(-total[row], kind="stable")[: 2 * beams]
            kept = 0
            for place in best.tolist():
                beam, token = divmod(place, vocabulary)
                text = [*open_ones[row][beam], token]
                if token in ends:
                    ended[row].append((float(total[row, place]) / len(text), text))
                    continue
                if kept < beams:
                    sources[row, kept], tokens[row, kept], scores[row, kept] = beam, token, total[row, place]
                    kept += 1
            if kept < beams:  # a vocabulary of few tokens
                scores[row, kept:] = -np.inf
            open_ones[row] = [[*open_ones[row][int(sources[row, b])], int(tokens[row, b])] for b in range(beams)]
        if step == steps - 1 or all(len(each) >= beams for each in ended):
            break
        bundle.reorder((sources + np.arange(rows)[:, None] * beams).reshape(-1).tolist())
        chances = _log_softmax(bundle.step(tokens.reshape(-1))[:, -1])
    for row in range(rows):
        if len(ended[row]) < beams:
            ended[row] += [(float(scores[row, b]) / len(text), text) for b, text in enumerate(open_ones[row])]
    return [max(each, key=lambda found: found[0])[1] for each in ended]


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    shifted: np.ndarray = wide - wide.max(-1, keepdims=True)
    result: np.ndarray = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result
