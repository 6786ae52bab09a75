"""The choice of tokens as transformers' `generate` has it: an export's rules, greedy search, sampling, and beams."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from msgspec import Struct, field

from graphkit.contract.host_contract import EarlyStopping, Generation
from graphkit.errors import GenerationWarning, ModelError, UsageError
from graphkit.hosts.method_feeds import warn_once

OF_PROMPT = ("decoder_input_ids", "decoder_start_token_id", "forced_decoder_ids", "language", "lang_to_id", "task")


class TokenRules(Struct, frozen=True):
    """Which tokens may follow, which depends on how many there are alone."""

    generation: Generation  # the rules
    ends: Collection[int]  # the tokens of which any ends a sequence
    prompt: int  # how many tokens the decoder begins with
    steps: int  # the most tokens to give

    def allowed_scores(self, scores: np.ndarray, given: int) -> np.ndarray:
        """Return scores, [..., vocabulary], that are minus infinity at tokens that may not follow so many others."""
        rules, length = self.generation, self.prompt + given
        first = rules.forced_bos_token_id
        forced: Collection[int] = (first,) if first is not None and length == 1 else ()
        if given == self.steps - 1:
            forced = rules.forced_eos_token_id or forced
        barred = list(rules.suppress_tokens)
        if given == (self.prompt == 1 and first is not None):
            barred += rules.begin_suppress_tokens
        if not forced:
            is_short = length < rules.min_length or given < rules.min_new_tokens
            barred += [*rules.bad_words_ids, *(self.ends if is_short else ())]
        if not forced and not barred:
            return scores
        chosen: np.ndarray = np.array(scores, np.float32 if scores.dtype.itemsize < 4 else scores.dtype)
        if forced:
            chosen.fill(-np.inf)
            chosen[..., _tokens_below(chosen.shape[-1], forced)] = 0
        chosen[..., _tokens_below(chosen.shape[-1], barred)] = -np.inf
        return chosen


FREE = TokenRules(Generation(), (), 0, 0)  # all may follow


def _tokens_below(vocabulary: int, tokens: Iterable[int]) -> list[int]:
    return [token for token in tokens if 0 <= token < vocabulary]


def most_new_tokens(generation: Generation, asked: int | None, prompt: int) -> int:
    """Return how many tokens to give behind a prompt of so many; UsageError where nobody says so, or says none."""
    longest, name = generation.max_length, "max_length"
    steps = asked if asked is not None else generation.max_new_tokens
    if steps is None:
        if longest is None:
            raise UsageError("the export does not say how many tokens to give - give max_new_tokens")
        steps = longest - prompt
    if steps < 1:
        of_export = f": {name} of the export is {longest}, and the prompt has {prompt}" if asked is None else ""
        raise UsageError(f"{steps} tokens{of_export} - give max_new_tokens of at least 1")
    return steps


def warn_of_settings(generation: Generation, folder: Path, *, has_beams: bool, has_prompt: bool) -> None:
    """Warn, once for each folder of models, of what the export's own `generate` does otherwise.

    The caller may say how to search (`has_beams`), or what the decoder begins with (`has_prompt`).
    """
    if caveat := generation.caveat(has_beams=has_beams, without=OF_PROMPT if has_prompt else ()):
        warn_once(f"{folder}: {caveat}", GenerationWarning, 5)


class Stepper(Protocol):
    """The interface of a bundle for a search."""

    def step(self, tokens: np.ndarray) -> np.ndarray:
        """Return the logits after one more token of each row, [rows, 1, vocabulary]."""

    def reorder(self, rows: Sequence[int]) -> None:
        """Let each row be a copy of another."""


def end_tokens(end: int | Sequence[int]) -> tuple[int, ...]:
    """Return the tokens of which any ends a row: one, or several."""
    return (end,) if isinstance(end, (int, np.integer)) else tuple(end)


class SamplingOptions(Struct, frozen=True):
    """How to draw tokens, by the names of transformers' `generate`; the hosts in JavaScript draw the same."""

    seed: int  # chooses the numbers that tokens are drawn by; row `n` of a batch draws as a row alone with `seed + n`
    temperature: float = 1.0  # what logits are divided by
    top_k: int = 0  # how many of the likeliest tokens may be drawn; 0 for all
    top_p: float = 1.0  # the likeliest tokens whose probabilities reach this may be drawn; 1 for all

    def __post_init__(self) -> None:
        is_whole = all(isinstance(number, int | np.integer) for number in (self.seed, self.top_k))
        if not (is_whole and 0 < self.temperature < np.inf and self.top_k >= 0 and 0 < self.top_p <= 1):
            bounds = "a finite temperature above 0, a whole top_k of at least 0, and a top_p above 0, up to 1"
            raise UsageError(f"{self}: give a whole seed, {bounds}")

    def draw(self, scores: np.ndarray, row: int, given: int) -> int:
        """Return a token for a row that has so many, from its scores, [vocabulary]; of equals at a bound, all count."""
        wide = scores.astype(np.float64)
        weights = np.exp((wide - max(wide.max(), np.finfo(np.float64).min)) / self.temperature)
        if 0 < self.top_k < len(weights):
            weights[weights < np.sort(weights)[-self.top_k]] = 0
        if self.top_p < 1:
            ranked = np.sort(weights)[::-1]
            sums = ranked.cumsum()
            weights[weights < ranked[np.searchsorted(sums, self.top_p * sums[-1])]] = 0
        sums = weights.cumsum()
        if np.isnan(sums[-1]):
            raise ModelError("the logits are NaN, so no token can be drawn")
        place = int(np.searchsorted(sums, uniform_number(int(self.seed) + row, given) * sums[-1], "right"))
        return min(place, int(np.searchsorted(sums, sums[-1])))  # the last that may be drawn


def choose_token(scores: np.ndarray, row: int, given: int, sampling: SamplingOptions | None) -> int:
    """Return the token that a row goes on with, of so many before it: the most likely one, or one that is drawn."""
    return int(scores.argmax()) if sampling is None else sampling.draw(scores, row, given)


def uniform_number(seed: int, place: int) -> float:
    """Return a number of a sequence, from 0 to below 1: the upper 53 bits of what SplitMix64 gives."""
    bits = (seed + (place + 1) * 0x9E3779B97F4A7C15) % (1 << 64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ bits >> shift) * factor % (1 << 64)
    return ((bits ^ bits >> 31) >> 11) / (1 << 53)


def greedy_search(
    bundle: Stepper,
    logits: np.ndarray,
    steps: int,
    ends: Collection[int],
    rules: TokenRules = FREE,
    sampling: SamplingOptions | None = None,
) -> list[list[int]]:
    """Return the most likely token of each row, or one that is drawn, again and again.

    The first follows from the logits, [rows, vocabulary]; there are `steps` tokens at most, and any of `ends` ends a
    row.
    """
    found: list[list[int]] = [[] for _ in logits]
    done = np.zeros(len(logits), bool)
    for step in range(steps):
        scores = rules.allowed_scores(logits, step)
        tokens = np.array([choose_token(each, row, step, sampling) for row, each in enumerate(scores)])
        for row, token in enumerate(tokens.tolist()):
            if not done[row]:
                found[row].append(token)
        done |= np.isin(tokens, list(ends))
        if done.all() or step == steps - 1:
            break
        logits = bundle.step(tokens)[:, -1]
    return found


class BeamOptions(Struct, frozen=True):
    """How to search, by the names of transformers' `generate`."""

    beams: int  # beams of each row
    length_penalty: float = 1.0  # the exponent of the length that the sum of log probabilities is divided by
    # when a row is done. True: when as many beams have ended as there are. False: when, besides, no open beam is better
    # at its present length than the worst of these. "never": the same, at the length that an open beam can reach, where
    # longer ones are preferred
    early_stopping: EarlyStopping = False


class _Beam(Struct, frozen=True):
    score: float
    tokens: tuple[int, ...] = ()
    source: int = 0  # the beam that it goes on from


class _Row(Struct):
    """The beams of one row, the best first."""

    options: BeamOptions
    steps: int
    open: list[_Beam]
    ended: list[_Beam] = field(default_factory=list)
    is_done: bool = False

    def advance(self, chances: np.ndarray, ends: Collection[int]) -> None:
        """Let the beams go on by a token, of these log probabilities, [beams, vocabulary]; some tokens end a beam."""
        beams = self.options.beams
        candidates = _best_beams(self.open, chances, max(2, 1 + len(ends)) * beams)
        length = len(candidates[0].tokens)
        has_ended = [length == self.steps or candidate.tokens[-1] in ends for candidate in candidates]
        if not self.is_done:
            ranked = zip(candidates[:beams], has_ended, strict=False)  # the others are there to go on with
            ended = (beam for beam, ends_here in ranked if ends_here and (beam.score > -np.inf or not self.ended))
            self.ended += [_Beam(beam.score / length**self.options.length_penalty, beam.tokens) for beam in ended]
            self.ended = sorted(self.ended, key=lambda beam: -beam.score)[:beams]
        going_on = [beam for beam, ends_here in zip(candidates, has_ended, strict=True) if not ends_here]
        spare = _Beam(-np.inf, (*self.open[0].tokens, 0))  # where too few go on
        self.open = [*going_on, *[spare] * beams][:beams]
        self.is_done = self.is_done or self._ends(length)

    def _ends(self, length: int) -> bool:
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
    """Return the tokens of the best beam of each row, its end token included; for arguments see `greedy_search`.

    Raises UsageError where there are more beams than tokens.
    """
    (count, vocabulary), beams = logits.shape, options.beams
    if beams > vocabulary:
        raise UsageError(f"{beams} beams, and there are {vocabulary} tokens - give fewer beams")
    bundle.reorder(np.repeat(np.arange(count), beams).tolist())
    first = [_Beam(0.0), *[_Beam(-np.inf)] * (beams - 1)]
    rows = [_Row(options, steps, list(first)) for _ in range(count)]
    chances = np.repeat(rules.allowed_scores(_log_softmax(logits), 0), beams, axis=0)
    for given in range(1, steps + 1):
        for row, row_chances in zip(rows, chances.reshape(count, beams, vocabulary), strict=True):
            row.advance(row_chances, ends)
        if all(row.is_done for row in rows):
            break
        bundle.reorder([at * beams + beam.source for at, row in enumerate(rows) for beam in row.open])
        tokens = np.array([beam.tokens[-1] for row in rows for beam in row.open])
        chances = rules.allowed_scores(_log_softmax(bundle.step(tokens)[:, -1]), given)
    return [list(row.ended[0].tokens) for row in rows]


def _best_beams(beams: list[_Beam], chances: np.ndarray, count: int) -> list[_Beam]:
    """Return the beams that are most likely with one more token, the best first; of equals, that of the first token."""
    totals = (np.array([beam.score for beam in beams])[:, None] + chances).reshape(-1)
    if np.isnan(totals).any():
        raise ModelError("the logits are NaN, so no beam is the best")
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
