"""Beam search by the rule of transformers' `generate`, each row by itself, whatever else is in its batch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from graphkit.deploy.contract.contract_parts import EarlyStopping
from graphkit.deploy.hosts.greedy_search import Stepper
from graphkit.deploy.hosts.token_rules import FREE, TokenRules
from graphkit.errors import UsageError

__all__ = ["BeamOptions", "beam_search"]


@dataclass(frozen=True)
class BeamOptions:
    """How to search, by the names of transformers' `generate`.

    Attributes:
        beams: Beams of each row.
        length_penalty: The exponent of the length that the sum of log probabilities is divided by.
        early_stopping: When a row is done. True: when as many beams have ended as there are. False: when, besides, no
            open beam is better at its present length than the worst of these. "never": the same, at the length that an
            open beam can reach, where longer ones are preferred.
    """

    beams: int
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False


@dataclass(frozen=True)
class _Beam:
    score: float
    tokens: tuple[int, ...] = ()
    source: int = 0  # the beam that it goes on from


@dataclass
class _Row:
    """The beams of one row, the best first."""

    options: BeamOptions
    steps: int
    open: list[_Beam]
    ended: list[_Beam] = field(default_factory=list)
    is_done: bool = False

    def advance(self, chances: np.ndarray, ends: Collection[int]) -> None:
        """Let the beams go on by a token.

        Args:
            chances: Log probabilities of the next token of each beam, [beams, vocabulary].
            ends: The tokens that end a beam.
        """
        beams = self.options.beams
        candidates = _best_beams(self.open, chances, max(2, 1 + len(ends)) * beams)
        length = len(candidates[0].tokens)
        has_ended = [length == self.steps or candidate.tokens[-1] in ends for candidate in candidates]
        if not self.is_done:
            ranked = zip(candidates[:beams], has_ended, strict=False)  # the others are there to go on with
            ended = (beam for beam, ends_here in ranked if ends_here and (beam.score > -np.inf or not self.ended))
            self.ended += [self._final(beam, length) for beam in ended]
            self.ended = sorted(self.ended, key=lambda beam: -beam.score)[:beams]
        going_on = [beam for beam, ends_here in zip(candidates, has_ended, strict=True) if not ends_here]
        spare = _Beam(-np.inf, (*self.open[0].tokens, 0))  # where too few go on
        self.open = [*going_on, *[spare] * beams][:beams]
        self.is_done = self.is_done or self._ends(length)

    def _final(self, beam: _Beam, length: int) -> _Beam:
        return _Beam(beam.score / length**self.options.length_penalty, beam.tokens)

    def _ends(self, length: int) -> bool:
        """Whether no open beam counts any longer."""
        options = self.options
        if length == self.steps:
            return True
        if len(self.ended) < options.beams or self.ended[-1].score == -np.inf:
            return False
        if options.early_stopping is True:
            return True
        is_reached = options.early_stopping == "never" and options.length_penalty > 0
        best = self.open[0].score / (self.steps if is_reached else length) ** options.length_penalty
        return not best > self.ended[-1].score


def beam_search(
    bundle: Stepper,
    logits: np.ndarray,
    steps: int,
    ends: Collection[int],
    options: BeamOptions,
    rules: TokenRules = FREE,
) -> list[list[int]]:
    """Return the tokens of the best beam of each row, its end token included.

    Args:
        bundle: What steps.
        logits: Those of the first token, [rows, vocabulary].
        steps: The most tokens.
        ends: The tokens of which any ends a beam.
        options: How to search.
        rules: Which tokens may follow.

    Raises:
        UsageError: There are more beams than tokens.
    """
    (count, vocabulary), beams = logits.shape, options.beams
    if beams > vocabulary:
        raise UsageError(f"{beams} beams, and there are {vocabulary} tokens - give fewer beams")
    bundle.reorder(np.repeat(np.arange(count), beams).tolist())
    first = [_Beam(0.0), *[_Beam(-np.inf)] * (beams - 1)]
    rows = [_Row(options, steps, list(first)) for _ in range(count)]
    chances = np.repeat(rules.allowed(_log_softmax(logits), 0), beams, axis=0)
    for given in range(1, steps + 1):
        for row, row_chances in zip(rows, chances.reshape(count, beams, vocabulary), strict=True):
            row.advance(row_chances, ends)
        if all(row.is_done for row in rows):
            break
        bundle.reorder([at * beams + beam.source for at, row in enumerate(rows) for beam in row.open])
        tokens = np.array([beam.tokens[-1] for row in rows for beam in row.open])
        chances = rules.allowed(_log_softmax(bundle.step(tokens)[:, -1]), given)
    return [list(row.ended[0].tokens) for row in rows]


def _best_beams(beams: list[_Beam], chances: np.ndarray, count: int) -> list[_Beam]:
    """Return the beams that are most likely with one more token, the best first; of equals, that of the first token."""
    totals = (np.array([beam.score for beam in beams])[:, None] + chances).reshape(-1)
    count = min(count, totals.size)
    least = np.partition(totals, totals.size - count)[totals.size - count]
    places = np.flatnonzero(totals >= least)
    places = places[np.argsort(-totals[places], kind="stable")][:count]
    best = []
    for place in places.tolist():
        source, token = divmod(place, chances.shape[1])
        best.append(_Beam(float(totals[place]), (*beams[source].tokens, token), source))
    return best


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    shifted: np.ndarray = wide - wide.max(-1, keepdims=True)
    result: np.ndarray = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result
