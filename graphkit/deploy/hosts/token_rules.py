"""The tokens that may come next by an export's own rules, as those of transformers' `generate` have them."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from graphkit.deploy.contract.contract_parts import Generation
from graphkit.errors import GenerationWarning, UsageError

__all__ = ["FREE", "TokenRules", "most_new_tokens", "warn_of_settings"]

OF_PROMPT = ("decoder_input_ids", "decoder_start_token_id", "forced_decoder_ids", "language", "lang_to_id", "task")


@dataclass(frozen=True)
class TokenRules:
    """Which tokens may follow, which depends on how many there are alone.

    Attributes:
        generation: The rules.
        ends: The tokens of which any ends a sequence.
        prompt: How many tokens the decoder begins with.
        steps: The most tokens to give.
    """

    generation: Generation
    ends: Collection[int]
    prompt: int
    steps: int

    def allowed(self, scores: np.ndarray, given: int) -> np.ndarray:
        """Return scores, [..., vocabulary], that are minus infinity at tokens that may not follow so many others."""
        rules, length = self.generation, self.prompt + given
        forced: Collection[int] = ()
        if rules.forced_bos_token_id is not None and length == 1:
            forced = (rules.forced_bos_token_id,)
        if given == self.steps - 1:
            forced = rules.forced_eos_token_id or forced
        barred = list(rules.suppress_tokens)
        if given == (self.prompt == 1 and rules.forced_bos_token_id is not None):
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
    """Return how many tokens to give behind a prompt of so many: as many as are asked for, or as the export says.

    Raises:
        UsageError: Neither says so, or it is none.
    """
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
    """Warn, once for each folder, of what the export's own `generate` does otherwise.

    Args:
        generation: The rules.
        folder: Of the models.
        has_beams: Whether the caller says how to search.
        has_prompt: Whether the caller says what the decoder begins with.
    """
    if caveat := generation.caveat(has_beams=has_beams, without=OF_PROMPT if has_prompt else ()):
        _warn_caveat(folder, caveat)


@cache
def _warn_caveat(folder: Path, caveat: str) -> None:
    warnings.warn(f"{folder}: {caveat}", GenerationWarning, stacklevel=5)
