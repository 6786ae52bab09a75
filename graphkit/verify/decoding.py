"""Greedy decoding: a small loop for merged decoders, pairs, and decoder-only models.

The layout of the KV cache comes from the interface analysis: what a present feeds, what is constant after the
first step. The loop is for proofs and measurements, not for serving.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from graphkit.analysis.architecture import TOKEN_INPUT
from graphkit.constraints.symbol_sizes import Sizes
from graphkit.errors import ModelError, UsageError
from graphkit.graph.kv import CacheEntry, Slot, cache_entries
from graphkit.graph.merged import MergedDecoder, merged_decoders
from graphkit.model import Model
from graphkit.runtime.session import Runner, Session
from graphkit.verify.inputs import InputMaker

__all__ = ["Decoded", "Decoder", "decode"]


PROMPT = Sizes(batch=2, sequence=3, encoder=5)


@dataclass(frozen=True)
class Decoded:
    """What a loop gave.

    Attributes:
        tokens: int64 [batch, steps], the token of the largest logit at each step.
        logits: For each step the logits of the last position, [batch, vocabulary].
    """

    tokens: np.ndarray
    logits: tuple[np.ndarray, ...]


@dataclass
class Decoder:
    """One or two models that decode step by step.

    Attributes:
        first: The model of the first step; for a merged or decoder-only model the same as `later`.
        later: The model of later steps.
        first_session, later_session: Their sessions.
    """

    first: Model
    later: Model
    first_session: Runner
    later_session: Runner
    _merged: MergedDecoder | None = field(init=False)
    _entries: tuple[CacheEntry, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._merged = next(merged_decoders(self.later.graph), None)
        self._entries = cache_entries(self.later.graph)

    @classmethod
    def open(cls, first: Model, later: Model | None = None, *, optimize: bool = False, threads: int = 0) -> Decoder:
        """Return a decoder of one model (merged, decoder-only) or of a pair.

        Raises:
            UsageError: A model was not read from a file.
            ModelError: onnxruntime does not load it.
        """
        models = [first] if later is None else [first, later]
        paths = [model.path for model in models if model.path is not None]
        if len(paths) != len(models):
            raise UsageError("a model that was never written cannot be run - save it first")
        sessions = [Session(path, optimize=optimize, threads=threads) for path in paths]
        return cls(models[0], models[-1], sessions[0], sessions[-1])

    def start(self, feed: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[Slot, np.ndarray]]:
        """Run the first step and return its outputs and the cache."""
        outputs = self.first_session.run(self._condition(feed, later=False))
        entries = cache_entries(self.first.graph)
        cache = {e.slot: outputs[e.present.name] for e in entries if e.present is not None}
        return outputs, cache

    def step(
        self, feed: Mapping[str, np.ndarray], cache: dict[Slot, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[Slot, np.ndarray]]:
        """Run a later step with a cache and return its outputs and the next cache."""
        past = {e.past.name: self._take(cache, e) for e in self._entries if e.past is not None}
        outputs = self.later_session.run(self._condition({**feed, **past}, later=True))
        changing = [e for e in self._entries if e.present is not None and not self._constant(e)]
        updates = {e.slot: outputs[e.present.name] for e in changing if e.present is not None}
        return outputs, {**cache, **updates}

    def _take(self, cache: Mapping[Slot, np.ndarray], entry: CacheEntry) -> np.ndarray:
        if entry.slot not in cache:
            name = entry.past.name if entry.past is not None else ""
            raise ModelError("no output of the first step gives this past", file=self.later.label, tensor=name)
        return cache[entry.slot]

    def _constant(self, entry: CacheEntry) -> bool:
        return self._merged is not None and entry.present in self._merged.zero_length

    def _condition(self, feed: Mapping[str, np.ndarray], *, later: bool) -> dict[str, np.ndarray]:
        if self._merged is None:
            return dict(feed)
        condition = self._merged.condition
        return {**feed, condition.input.name: np.full(condition.shape, self._merged.cache_when == later)}


def decode(
    decoder: Decoder,
    *,
    sizes: Sizes = PROMPT,
    steps: int = 8,
    seed: int = 0,
    given: Mapping[str, np.ndarray] | None = None,
    like: Model | None = None,
) -> Decoded:
    """Decode greedily.

    Args:
        decoder: What decodes.
        sizes: Batch, length of the prompt and of the encoder's output; the past starts empty.
        steps: Tokens to make for each sequence, the first step's included.
        seed: Of the generated inputs.
        given: Inputs by name to take instead, such as `encoder_hidden_states` or `input_ids`.
        like: The model for which inputs are generated, where another decoder is to get the same; it has them all.

    Raises:
        ModelError: The model has no logits or no token input, or fails.
    """
    prompt = Sizes(sizes.batch, sizes.sequence, 0, sizes.encoder, sizes.symbols)
    feed = InputMaker(like or decoder.first, seed).make(prompt, given)
    tokens_name = _token_input(decoder.first)
    feed = {name: _without_padding(name, array) for name, array in feed.items()}
    outputs, cache = decoder.start(_only(feed, decoder.first))
    constant = {name: array for name, array in feed.items() if name.startswith("encoder")}
    later, later_tokens = InputMaker(like or decoder.later, seed), _token_input(decoder.later)
    past = feed[tokens_name].shape[1]
    tokens, logits = [], []
    for number in range(steps):
        last = _logits(outputs, decoder)[:, -1]
        logits.append(last)
        tokens.append(last.argmax(-1).astype(np.int64))
        if number + 1 < steps:
            now = Sizes(sizes.batch, 1, past, sizes.encoder, sizes.symbols)
            ids = tokens[-1][:, None].astype(feed[tokens_name].dtype)
            feed_now = later.make(now, {**constant, later_tokens: ids})
            feed_now = {name: _without_padding(name, array) for name, array in feed_now.items()}
            outputs, cache = decoder.step(_only({**feed_now, **constant}, decoder.later), cache)
            past += 1
    return Decoded(np.stack(tokens, 1), tuple(logits))


def _only(arrays: Mapping[str, np.ndarray], model: Model) -> dict[str, np.ndarray]:
    names = {value.name for value in model.graph.inputs}
    return {name: array for name, array in arrays.items() if name in names}


def _without_padding(name: str, array: np.ndarray) -> np.ndarray:
    """Return a decoder's mask without padding: the tokens that the loop adds are all real."""
    return np.ones_like(array) if "mask" in name and "encoder" not in name else array


def _token_input(model: Model) -> str:
    names = [value.name for value in model.graph.inputs if TOKEN_INPUT.search(value.name)]
    if not names:
        raise ModelError("no input takes token ids", file=model.label, hint="only decoders can decode")
    return names[0]


def _logits(outputs: Mapping[str, np.ndarray], decoder: Decoder) -> np.ndarray:
    for name, value in outputs.items():
        if "logits" in name and value.ndim == 3:
            return value
    raise ModelError("no output is logits [batch, sequence, vocabulary]", file=decoder.later.label)
