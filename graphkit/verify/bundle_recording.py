"""The recorded results of a bundle's originals: the logits of prompts, steps and other calls, and chosen tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from graphkit.deploy.hosts.token_search import BeamOptions, Stepper, beam_search, greedy_search
from graphkit.errors import GraphkitError
from graphkit.verify.bundle_calls import decode_reordered_rows, several_at_once
from graphkit.verify.bundle_prompts import Prompt
from graphkit.verify.candidate_sessions import tell_each
from graphkit.verify.decoding import decode_greedily
from graphkit.verify.oracle import Oracle
from graphkit.verify.originals import Originals

__all__ = ["Recording", "Search", "begin_prompt", "record_originals", "search_of", "search_tokens"]

Search = Callable[[Stepper, np.ndarray, int, Collection[int]], list[list[int]]]


@dataclass(frozen=True, eq=False)
class Recording:
    """The results of the originals at one level.

    Attributes:
        logits: Of each prompt: those of the prompt, [rows, tokens or 1, vocabulary], and of each step.
        tokens: Of each search, by its number of beams: the tokens of each row.
        reordered: The logits of steps after the rows of the first prompt of two rows have changed places.
        chunks: Of prompts that have a step of several tokens, by their number: the logits of such steps; none where
            the export does not run on several.
    """

    logits: Sequence[Sequence[np.ndarray]]
    tokens: Mapping[int, list[list[int]]]
    reordered: Sequence[np.ndarray]
    chunks: Mapping[int, Sequence[np.ndarray]]


def record_originals(
    originals: Originals,
    prompts: Sequence[Prompt],
    *,
    optimize: bool,
    beams: Sequence[int] = (),
    steps: int = 0,
    rows: Sequence[int] = (),
    several: Sequence[int] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> Recording:
    """Decode the prompts with the originals.

    Args:
        originals: The models.
        prompts: What to decode, with given tokens for the steps.
        optimize: Whether onnxruntime may fuse operators.
        beams: Numbers of beams to search for tokens with, from the first row of the first prompt.
        steps: The most tokens of a search.
        rows: The row that each row becomes; none where a bundle takes one row alone.
        several: Numbers of prompts to decode once more with several tokens in a step, where the export takes these.
        progress: Called with the name of each step before it starts.

    Raises:
        ModelError: A model is broken, or onnxruntime cannot run it.
    """
    name = f"proving: the export, {'default' if optimize else 'plain'} level"
    has_long = not all(prompt.all_logits for prompt in prompts)
    oracle = Oracle(originals, optimize=optimize, prepack=optimize, can_choose=has_long)
    logits = [
        [begin_prompt(oracle, prompt), *(oracle.step(tokens) for tokens in prompt.steps)]
        for prompt in tell_each(prompts, name, progress, "prompt", lambda prompt: prompt.work)
    ]
    begins, first = partial(begin_prompt, oracle), prompts[0].first_row()
    tokens = {width: search_tokens(oracle, begins(first)[:, -1], steps, width) for width in beams}
    pair = next((prompt for prompt in prompts if len(prompt.tokens) == 2 and prompt.steps), None)
    moved = decode_reordered_rows(pair, rows, begins, oracle) if rows and pair is not None else []
    try:
        chunks = {number: several_at_once(prompts[number], begins, oracle) for number in several}
    except GraphkitError:  # a decoder that takes one token at a time
        chunks = {}
    return Recording(logits, tokens, moved, chunks)


def search_tokens(oracle: Oracle, logits: np.ndarray, steps: int, beams: int) -> list[list[int]]:
    """Return the tokens that the originals choose; for more than one beam by the beam search of hosts."""
    if beams > 1:
        return search_of(beams)(oracle, logits, steps, ())
    chosen = [tokens for tokens, _ in decode_greedily(logits, lambda tokens: oracle.step(tokens)[:, -1], steps)]
    return [list(map(int, row)) for row in zip(*chosen, strict=True)]


def search_of(beams: int) -> Search:
    """Return the search with so many beams; one beam is greedy."""
    return greedy_search if beams == 1 else partial(beam_search, options=BeamOptions(beams))


def begin_prompt(oracle: Oracle, prompt: Prompt) -> np.ndarray:
    """Return the logits of each token of a prompt, or of the last one alone."""
    return oracle.start(prompt.tokens, prompt.mask, prompt.inputs, last=None if prompt.all_logits else 1)
