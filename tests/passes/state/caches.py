"""Run a decoder with a growing cache, and what `update-cache-in-place` makes of it, on the same tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from bundles import SLOTS, WINDOW
from sessions import session_of

from graphkit.graph.declared_types import declared_dims
from graphkit.model import Model

__all__ = ["Chunk", "grown", "in_slots", "seen"]

Chunk = tuple[np.ndarray, np.ndarray]  # tokens and mask, [batch, tokens] each
KEY, VALUE, MASK = "past_key_values.0.key", "past_key_values.0.value", "attention_mask_slots"
SPOILT = 7  # what unused slots of integers hold; those of floats hold NaN


def seen(rng: np.random.Generator, sizes: Sequence[int], rows: int) -> list[Chunk]:
    """Return chunks of these sizes; of several rows the last begins with padding."""
    chunks = [(rng.integers(1, 11, (rows, size)), np.ones((rows, size), np.int64)) for size in sizes]
    if rows > 1:
        chunks[0][1][-1, : sizes[0] // 2] = 0
    return chunks


def grown(model: Model, chunks: Sequence[Chunk]) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Return the logits of each chunk, and the cache at the end."""
    session, rows = session_of(model), len(chunks[0][0])
    cache = {name: np.zeros((rows, 2, 0, 4), np.float32) for name in (KEY, VALUE)}
    mask, found = np.zeros((rows, 0), np.int64), []
    for tokens, new in chunks:
        mask = np.concatenate([mask, new], 1)
        positions = np.maximum(mask.cumsum(1) - 1, 0)[:, -tokens.shape[1] :]
        feed = {"input_ids": tokens, "attention_mask": mask, "position_ids": positions, **cache}
        logits, *presents = session.run(None, feed)
        cache = dict(zip((KEY, VALUE), presents, strict=True))
        found.append(logits)
    return found, cache


def in_slots(models: Sequence[Model], chunks: Sequence[Chunk]) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Return the same of models with slots; the first is for the first chunk, the last for all others.

    Slots that come first are given as far as they are in use; they are returned where the past grows.
    """
    rows = len(chunks[0][0])
    sessions = [session_of(model) for model in models]
    state, axes = {}, {}
    for value in models[-1].graph.inputs:
        sizes = {"slots": SLOTS, f"slots_{WINDOW}": WINDOW, "batch": rows}
        dims = [dim if isinstance(dim, int) else sizes.get(dim or "", rows) for dim in declared_dims(value) or ()]
        if value.name in (KEY, VALUE):
            state[value.name] = np.full(dims, np.nan, np.float32)
        elif value.name == MASK:
            state[value.name] = np.full(dims, SPOILT, np.int64)
        if str((declared_dims(value) or [""])[0]).startswith("slots"):
            axes[value.name] = 1 if value.name == MASK else 2
    past, found = 0, []
    for place, (tokens, new) in enumerate(chunks):
        session = sessions[min(place, len(sessions) - 1)]
        past += tokens.shape[1]
        used = {name: array[:past] if name in axes else array for name, array in state.items()}
        feed = {"input_ids": tokens, "attention_mask": new, "past_length": np.array([past - tokens.shape[1]]), **used}
        wanted = {each.name for each in session.get_inputs()}
        given = session.run(None, {name: array for name, array in feed.items() if name in wanted})
        by_name = dict(zip((each.name for each in session.get_outputs()), given, strict=True))
        for name, array in used.items():
            array[...] = by_name[f"{name}_after"]
        found.append(by_name["logits"])
    return found, {name: np.moveaxis(array, 0, axes.get(name, 0)) for name, array in state.items()}
