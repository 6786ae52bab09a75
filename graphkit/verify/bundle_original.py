"""The originals of a bundle as a pipeline with a growing cache, for several rows with padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import helper

from graphkit.errors import ModelError
from graphkit.graph.kv import Slot
from graphkit.graph.types import declared_type
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.runtime.isolated import IsolatedSession
from graphkit.verify.decoding import Decoder
from graphkit.verify.original_pipeline import Originals, empty_past

__all__ = ["GrowingPipeline"]


class GrowingPipeline:
    """Encoder and decoder as they were exported: what is past is joined to what is new at each step.

    Args:
        originals: The models.
        optimize: Whether onnxruntime may fuse operators.

    Raises:
        ModelError: onnxruntime does not load one.
    """

    def __init__(self, originals: Originals, *, optimize: bool) -> None:
        first, step = originals.first, originals.step
        assert first is not None
        assert step is not None
        encoder = originals.encoder
        self.optimize = optimize
        self.encoder = None if encoder is None else self._opened(encoder)
        self.encoder_model = encoder
        opened = self._opened(first)
        later = opened if first is step else self._opened(step)
        self.decoder = Decoder(first, step, opened, later)
        self.cache: dict[Slot, np.ndarray] = {}
        self.given: dict[str, np.ndarray] = {}  # what decoders read of the encoder, by role
        self.mask = np.ones((0, 0), np.int64)

    def _opened(self, model: Model) -> IsolatedSession:
        """Return a session; prepacking picks other kernels, whose last digits differ, and goes with fusions."""
        source = model if model.path is None else model.path
        return IsolatedSession(source, optimize=self.optimize, prepack=self.optimize)

    def start(self, tokens: np.ndarray, mask: np.ndarray, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Run the encoder, and the decoder on its first tokens; return the logits, [batch, tokens, vocabulary]."""
        self.mask = mask
        self.given = {}
        if self.encoder is not None and self.encoder_model is not None:
            roles = self.encoder_model.roles
            own = roles.first("mask")
            feed = dict(inputs)
            if own is not None and own.name not in feed:  # the bundle has no padding there
                feed[own.name] = np.ones(next(iter(inputs.values())).shape[:2], _dtype(own))
            outputs = self.encoder.run(feed)
            states = [value.name for value, role in roles.outputs.items() if role == "encoder state"]
            self.given["encoder state"] = outputs[states[0] if states else next(iter(outputs))]
            hidden = self.given["encoder state"].shape[:2]
            is_fitting = own is not None and feed[own.name].shape == hidden
            self.given["encoder mask"] = feed[own.name] if own is not None and is_fitting else np.ones(hidden, np.int64)
        model = self.decoder.first
        feed = self._feed(model, tokens, mask)
        empty = {value.name: array for value, array in empty_past(model, len(tokens)).items()}
        outputs, self.cache = self.decoder.start({**feed, **empty})
        return self._logits(model, outputs)

    def step(self, tokens: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        """Run the decoder on the next tokens, [batch, tokens]; return their logits."""
        tokens = tokens.reshape(len(self.mask), -1)
        self.mask = np.concatenate([self.mask, np.ones_like(tokens) if mask is None else mask], 1)
        model = self.decoder.later
        outputs, self.cache = self.decoder.step(self._feed(model, tokens, self.mask), self.cache)
        return self._logits(model, outputs)

    def reorder(self, rows: Sequence[int]) -> None:
        """Let each row be a copy of another."""
        chosen = np.asarray(rows)
        batch = {entry.slot: self._batch(value) for value, entry in self.decoder.later.roles.pasts.items()}
        self.cache = {slot: np.take(array, chosen, batch.get(slot, 0)) for slot, array in self.cache.items()}
        self.given = {role: array[chosen] for role, array in self.given.items()}
        self.mask = self.mask[chosen]

    def _batch(self, value: Value) -> int:
        roles = self.decoder.later.roles
        declared = declared_type(value)
        axes = range(len(declared.dims or ())) if declared is not None else ()
        return next((axis for axis in axes if roles.axis(value, axis) == "batch"), 0)

    def _feed(self, model: Model, tokens: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
        feed, count = {}, tokens.shape[1]
        positions = np.maximum(np.cumsum(mask, 1) - 1, 0)[:, -count:]
        for value, role in model.roles.inputs.items():
            declared = declared_type(value)
            if role in ("past", "condition") or declared is None:
                continue
            made = {"tokens": tokens, "mask": mask, "positions": positions, **self.given}.get(role)
            if made is None:
                raise ModelError(f"what to feed to its input '{value.name}' is not known", file=model.label)
            feed[value.name] = made.astype(helper.tensor_dtype_to_np_dtype(declared.dtype))
        return feed

    def _logits(self, model: Model, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        if model.roles.logits is None:
            raise ModelError("no output is known to be logits", file=model.label, hint="name it 'logits'")
        return np.asarray(outputs[model.roles.logits.name])


def _dtype(value: Value) -> np.dtype:
    declared = declared_type(value)
    assert declared is not None
    return np.dtype(helper.tensor_dtype_to_np_dtype(declared.dtype))
