"""What a caller does with a decoder, alike with an export and with its bundle: the logits of each of its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from graphkit.verify.bundle_prompts import Prompt

__all__ = ["Begin", "Calls", "Decoding", "decode_given_steps", "decode_reordered_rows", "last_alone", "several_at_once"]


class Decoding(Protocol):
    """A decoder that has begun: an oracle or a bundle."""

    def step(self, tokens: np.ndarray, *, mask: np.ndarray | None = None) -> np.ndarray:
        """Return the logits of the next tokens, whose mask is ones where none is given."""
        ...

    def reorder(self, rows: Sequence[int], /) -> None:
        """Let each row be a copy of another."""
        ...


Begin = Callable[[Prompt], np.ndarray]  # starts a decoder on a prompt
Calls = Callable[[Begin, Decoding], Sequence[np.ndarray]]  # decodes, and returns the logits of each call


def decode_given_steps(prompt: Prompt, begins: Begin, decoding: Decoding) -> list[np.ndarray]:
    """Decode a prompt and its steps."""
    logits = [begins(prompt), *(decoding.step(tokens) for tokens in prompt.steps)]
    return [prompt.counted(array, number) for number, array in enumerate(logits)]


def decode_reordered_rows(prompt: Prompt, rows: Sequence[int], begins: Begin, decoding: Decoding) -> list[np.ndarray]:
    """Decode two steps of a prompt whose rows have changed places."""
    begins(prompt)
    decoding.reorder(rows)
    return [decoding.step(tokens[rows]) for tokens in prompt.steps[:2]]


def last_alone(prompt: Prompt, begins: Begin, decoding: Decoding) -> list[np.ndarray]:
    """Decode the last token of a prompt, asking for its logits alone, and a step."""
    logits = begins(replace(prompt, all_logits=False))[:, -1:]
    return [logits, *(decoding.step(tokens) for tokens in prompt.steps[:1])]


def several_at_once(prompt: Prompt, begins: Begin, decoding: Decoding) -> list[np.ndarray]:
    """Decode a prompt, and its later steps with several tokens at once; return the logits of tokens that count."""
    begins(prompt)
    found = []
    for tokens, mask in prompt.chunks():
        logits = decoding.step(tokens, mask=mask if prompt.has_mask else None)
        found.append(logits if mask.all() else logits[mask[:, -logits.shape[1] :].astype(bool)])
    return found
