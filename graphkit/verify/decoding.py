"""Greedy decoding: a small loop for merged decoders, pairs, and decoder-only models.

The layout of the KV cache comes from the interface analysis: what a present feeds, what is constant after the
first step. The loop is for proofs and measurements, not for serving.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike

from graphkit.errors import ModelError
from graphkit.graph.cache_entries import Slot
from graphkit.graph.mask_polarity import make_open_mask
from graphkit.graph.roles import Role
from graphkit.model import Model, ModelLike, as_model
from graphkit.progress import FEW_RUNS
from graphkit.runtime.session import IsolatedSession, Runner, as_read
from graphkit.shapes.constraints.legal_sizes import Sizes
from graphkit.verify.input_generator import InputGenerator

PROMPT = Sizes(batch=2, sequence=3, encoder=5)


class Decoded(Struct, frozen=True):
    """The tokens and logits of a loop."""

    tokens: np.ndarray  # int64 [batch, steps], the token of the largest logit at each step
    logits: tuple[np.ndarray, ...]  # for each step the logits of the last position, [batch, vocabulary]

    def steps(self) -> Iterator[dict[str, np.ndarray]]:
        """Yield the logits and the tokens of each step."""
        for logits, tokens in zip(self.logits, self.tokens.T, strict=True):
            yield {"logits": logits, "tokens": tokens}


class Decoder(Struct):
    """One or two models that decode step by step."""

    first: Model  # the model of the first step; for a merged or decoder-only model the same as `later`
    later: Model
    first_session: Runner
    later_session: Runner

    @classmethod
    def open(
        cls, first: ModelLike, later: ModelLike | None = None, *, optimize: bool = False, threads: int = 0
    ) -> Decoder:
        """Return a decoder of one model (merged, decoder-only) or of a pair."""
        models = [as_model(model) for model in (first, later) if model is not None]
        options: dict[str, Any] = {"optimize": optimize, "threads": threads, "held_runs": FEW_RUNS}
        sessions = [IsolatedSession(as_read(model), **options) for model in models]
        return cls(models[0], models[-1], sessions[0], sessions[-1])

    def start(self, feed: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[Slot, np.ndarray]]:
        """Run the first step and return its outputs and the cache."""
        outputs = self.first_session.run(self._with_condition(feed, later=False))
        return outputs, {e.slot: outputs[e.present.name] for e in self.first.roles.cache if e.present is not None}

    def step(
        self, feed: Mapping[str, np.ndarray], cache: dict[Slot, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[Slot, np.ndarray]]:
        """Run a later step with a cache and return its outputs and the next cache."""
        roles = self.later.roles
        pasts = roles.pasts.items()
        if lacking := next((value.name for value, entry in pasts if entry.slot not in cache), ""):
            raise ModelError("no output of the first step gives this past", file=self.later.label, tensor=lacking)
        past = {value.name: cache[entry.slot] for value, entry in pasts}
        outputs = self.later_session.run(self._with_condition({**feed, **past}, later=True))
        changing = [(e.slot, e.present) for e in roles.cache if e.present is not None and e.present not in roles.empty]
        return outputs, {**cache, **{slot: outputs[present.name] for slot, present in changing}}

    def _with_condition(self, feed: Mapping[str, np.ndarray], *, later: bool) -> dict[str, np.ndarray]:
        if (merged := self.later.roles.decoder) is None:
            return dict(feed)
        condition = merged.condition
        return {**feed, condition.input.name: np.full(condition.shape, merged.cache_when == later)}


def decode(
    decoder: Decoder,
    *,
    sizes: Sizes | None = None,
    steps: int = 8,
    seed: int = 0,
    given: Mapping[str, ArrayLike] | None = None,
    like: ModelLike | None = None,
) -> Decoded:
    """Decode greedily.

    Args:
        decoder: What decodes.
        sizes: Batch, length of the prompt and of the encoder's output; the past starts empty. Default: those of the
            arrays that are given, else 2, 3 and 5.
        steps: Tokens to make for each sequence, the first step's included.
        seed: Of the generated inputs.
        given: Inputs by name to take instead, such as `encoder_hidden_states` or `input_ids`.
        like: The model for which inputs are generated, where another decoder is to get the same; it has them all.

    Returns:
        The tokens, and the logits of each step.

    Raises:
        ModelError: The model has no logits or no token input, or fails.

    Example:
        >>> from graphkit.verify import Decoder, decode
        >>> decoder = Decoder.open("example:causal-attention")
        >>> decode(decoder, given={"input_ids": [[5, 7, 2]]}, steps=2).tokens.tolist()
        [[52, 29]]
    """
    first, second = (as_model(like or model) for model in (decoder.first, decoder.later))
    arrays = {name: np.asarray(value) for name, value in (given or {}).items()}
    if sizes is None:
        prompts = [*_inputs_by_role(arrays, decoder.first, "tokens").values()]
        encoded_roles: tuple[Role, ...] = ("encoder state", "encoder tokens", "encoder mask")
        encoded = [*_inputs_by_role(arrays, decoder.first, *encoded_roles).values()]
        batch = next(map(len, (*prompts, *encoded)), PROMPT.batch)
        length = prompts[0].shape[1] if prompts else PROMPT.sequence
        sizes = Sizes(batch, length, encoder=encoded[0].shape[1] if encoded else PROMPT.encoder)
    prompt = Sizes(sizes.batch, sizes.sequence, 0, sizes.encoder, sizes.symbols)
    feed = _without_padding(InputGenerator(first, seed).make(prompt, arrays), first)
    tokens_name = _token_input(decoder.first)
    outputs, cache = decoder.start(_inputs_of_model(feed, decoder.first))
    constant = _inputs_by_role(feed, first, "encoder mask", "encoder state", "encoder tokens")
    later, later_tokens = InputGenerator(second, seed), _token_input(decoder.later)
    past = feed[tokens_name].shape[1]

    def step(tokens: np.ndarray) -> np.ndarray:
        nonlocal cache, past
        now = Sizes(sizes.batch, 1, past, sizes.encoder, sizes.symbols)
        feed_now = later.make(now, {**constant, later_tokens: tokens[:, None].astype(feed[tokens_name].dtype)})
        feed_now = {**_without_padding(feed_now, second), **constant}
        outputs, cache = decoder.step(_inputs_of_model(feed_now, decoder.later), cache)
        past += 1
        return _logits_output(outputs, decoder.later)[:, -1]

    decoded = list(decode_greedily(_logits_output(outputs, decoder.first)[:, -1], step, steps))
    return Decoded(np.stack([tokens for tokens, _ in decoded], 1), tuple(logits for _, logits in decoded))


def decode_greedily(
    logits: np.ndarray, step: Callable[[np.ndarray], np.ndarray], steps: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the most likely token of each row, and the logits that it is chosen by, step by step.

    It is the greedy loop of all proofs, and shares nothing with the searches of hosts, which are checked against it.
    `logits` are those of the first token, [batch, vocabulary]; `step` returns those after one more token of each row.
    """
    for number in range(steps):
        tokens = np.asarray(logits.argmax(-1).astype(np.int64))
        yield tokens, logits
        if number + 1 < steps:
            logits = step(tokens)


def _inputs_of_model(arrays: Mapping[str, np.ndarray], model: Model) -> dict[str, np.ndarray]:
    names = {value.name for value in model.graph.inputs}
    return {name: array for name, array in arrays.items() if name in names}


def _inputs_by_role(arrays: Mapping[str, np.ndarray], model: Model, *roles: Role) -> dict[str, np.ndarray]:
    return {value.name: arrays[value.name] for value in model.roles.all(*roles) if value.name in arrays}


def _without_padding(feed: Mapping[str, np.ndarray], model: Model) -> dict[str, np.ndarray]:
    """Return inputs in which a decoder's mask has no padding: the tokens that the loop adds are all real."""
    polarities = {value.name: polarity for value, polarity in model.roles.polarities.items()}
    masks = _inputs_by_role(feed, model, "mask").items()
    return {**feed, **{name: make_open_mask(array, polarities[name]) for name, array in masks}}


def _token_input(model: Model) -> str:
    if (tokens := model.roles.first("tokens")) is None:
        raise ModelError("no input takes token ids", file=model.label, hint="only decoders can decode")
    return tokens.name


def _logits_output(outputs: Mapping[str, np.ndarray], model: Model) -> np.ndarray:
    if (logits := model.roles.logits) is not None and outputs[logits.name].ndim == 3:
        return outputs[logits.name]
    raise ModelError("no output is logits [batch, sequence, vocabulary]", file=model.label)
