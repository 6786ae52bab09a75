"""Decoders step by step: merged ones, pairs, and decoder-only models; and the greedy loop of all proofs.

The layout of the KV cache comes from the interface analysis: what a present feeds, what is constant after the
first step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from graphkit.errors import ModelError, UsageError
from graphkit.graph.cache_entries import Slot
from graphkit.model import Model, ModelLike, as_model
from graphkit.runtime.session import IsolatedSession, Runner

__all__ = ["Decoded", "Decoder", "decode_greedily"]


@dataclass(frozen=True)
class Decoded:
    """The tokens and logits of a loop.

    Attributes:
        tokens: int64 [batch, steps], the token of the largest logit at each step.
        logits: For each step the logits of the last position, [batch, vocabulary].
    """

    tokens: np.ndarray
    logits: tuple[np.ndarray, ...]

    def steps(self) -> Iterator[dict[str, np.ndarray]]:
        """Yield the logits and the tokens of each step."""
        for logits, tokens in zip(self.logits, self.tokens.T, strict=True):
            yield {"logits": logits, "tokens": tokens}


@dataclass
class Decoder:
    """One or two models that decode step by step.

    Attributes:
        first: The model of the first step; for a merged or decoder-only model the same as `later`.
    """

    first: Model
    later: Model
    first_session: Runner
    later_session: Runner

    @classmethod
    def open(
        cls, first: ModelLike, later: ModelLike | None = None, *, optimize: bool = False, threads: int = 0
    ) -> Decoder:
        """Return a decoder of one model (merged, decoder-only) or of a pair.

        Raises:
            UsageError: A model was not read from a file.
            ModelError: onnxruntime does not load it.
        """
        models = [as_model(model) for model in (first, later) if model is not None]
        paths = [model.path for model in models if model.path is not None]
        if len(paths) != len(models):
            raise UsageError("a model that was never written cannot be run - save it first")
        sessions = [IsolatedSession(path, optimize=optimize, threads=threads) for path in paths]
        return cls(models[0], models[-1], sessions[0], sessions[-1])

    def start(self, feed: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[Slot, np.ndarray]]:
        """Run the first step and return its outputs and the cache."""
        outputs = self.first_session.run(self._with_condition(feed, later=False))
        cache = {e.slot: outputs[e.present.name] for e in self.first.roles.cache if e.present is not None}
        return outputs, cache

    def step(
        self, feed: Mapping[str, np.ndarray], cache: dict[Slot, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[Slot, np.ndarray]]:
        """Run a later step with a cache and return its outputs and the next cache."""
        roles = self.later.roles
        for value, entry in roles.pasts.items():
            if entry.slot not in cache:
                problem = "no output of the first step gives this past"
                raise ModelError(problem, file=self.later.label, tensor=value.name)
        past = {value.name: cache[entry.slot] for value, entry in roles.pasts.items()}
        outputs = self.later_session.run(self._with_condition({**feed, **past}, later=True))
        changing = [(e.slot, e.present) for e in roles.cache if e.present is not None and e.present not in roles.empty]
        updates = {slot: outputs[present.name] for slot, present in changing}
        return outputs, {**cache, **updates}

    def _with_condition(self, feed: Mapping[str, np.ndarray], *, later: bool) -> dict[str, np.ndarray]:
        merged = self.later.roles.decoder
        if merged is None:
            return dict(feed)
        condition = merged.condition
        return {**feed, condition.input.name: np.full(condition.shape, merged.cache_when == later)}


def decode_greedily(
    logits: np.ndarray, step: Callable[[np.ndarray], np.ndarray], steps: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the most likely token of each row, and the logits that it is chosen by, step by step.

    It is the greedy loop of all proofs, and shares nothing with the searches of hosts, which are checked against it.

    Args:
        logits: Those of the first token, [batch, vocabulary].
        step: Returns the logits after one more token of each row.
        steps: Tokens to choose.
    """
    for number in range(steps):
        tokens = np.asarray(logits.argmax(-1).astype(np.int64))
        yield tokens, logits
        if number + 1 < steps:
            logits = step(tokens)
