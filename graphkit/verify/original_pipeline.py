"""The original pipeline of a lowering, run without padding, one sequence at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from onnx import helper

from graphkit.constraints.symbol_sizes import symbol_roles
from graphkit.constraints.violated import SizeCheck
from graphkit.errors import ModelError
from graphkit.graph.kv import Slot
from graphkit.graph.types import TensorType, declared_type
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.runtime.isolated import IsolatedSession
from graphkit.runtime.session import Runner
from graphkit.verify.decoding import Decoder

__all__ = ["Originals", "Reference", "empty_past", "nearest_length"]

REACH = 1024  # how far a length is looked for at which the original runs


@dataclass(frozen=True, eq=False)
class Originals:
    """The models that were lowered.

    Attributes:
        encoder: Or None.
        first: The decoder of the first step; for a decoder-only model the same as `step`; None without a decoder.
        step: The decoder of later steps, or None.
        is_changed: Whether they are no longer what their files say.
    """

    encoder: Model | None = None
    first: Model | None = None
    step: Model | None = None
    is_changed: bool = False

    @property
    def models(self) -> tuple[Model, ...]:
        """Those that there are."""
        return tuple(dict.fromkeys(model for model in (self.encoder, self.first, self.step) if model is not None))


def empty_past(model: Model, rows: int = 1) -> dict[Value, np.ndarray]:
    """Return a past of no positions, by input.

    Raises:
        ModelError: The shape of an input is not declared.
    """
    found = {}
    for value, entry in model.roles.pasts.items():
        declared = declared_type(value)
        if declared is None or declared.dims is None:
            raise ModelError(f"the shape of its input '{value.name}' is not declared", file=model.label)
        shape = [
            dim if isinstance(dim, int) else rows if model.roles.axis(value, axis) == "batch" else 1
            for axis, dim in enumerate(declared.dims)
        ]
        if entry.axis is not None:
            shape[entry.axis] = 0
        found[value] = np.zeros(shape, helper.tensor_dtype_to_np_dtype(declared.dtype))
    return found


@lru_cache(maxsize=4)
def _size_check(encoder: Model) -> SizeCheck:
    return SizeCheck(encoder)


def nearest_length(encoder: Model, length: int) -> int | None:
    """Return the length of a source at which an encoder runs that is nearest to this one, None for none."""
    roles = symbol_roles(encoder)
    names = frozenset(name for name, role in roles.items() if role in ("encoder", "sequence", "total"))
    rows = dict.fromkeys((name for name in roles if roles[name] == "batch"), 1)
    return _size_check(encoder).nearest(rows, names, length, REACH)


@dataclass
class Reference:
    """The original pipeline, unpadded, one sequence."""

    originals: Originals
    decoder: Decoder | None = field(init=False, default=None)
    encoder: Runner | None = field(init=False, default=None)
    source: list[int] = field(init=False, default_factory=list)
    user: Mapping[str, np.ndarray] = field(init=False, default_factory=dict)
    hidden: dict[str, np.ndarray] = field(init=False, default_factory=dict)
    cache: dict[Slot, np.ndarray] | None = field(init=False, default=None)
    past: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.originals.encoder is not None:
            self.encoder = self._session(self.originals.encoder)
        first, step = self.originals.first, self.originals.step
        if first is not None and step is not None:
            opened = self._session(first)
            later = opened if first is step else self._session(step)
            self.decoder = Decoder(first, step, opened, later)

    def _session(self, model: Model) -> IsolatedSession:
        return IsolatedSession(model if model.path is None or self.originals.is_changed else model.path)

    def nearest_source(self, length: int) -> int | None:
        """Return the length of a source at which the encoder runs that is nearest to this one, None for none."""
        encoder = self.originals.encoder
        return length if encoder is None else nearest_length(encoder, length)

    def start(self, source: list[int], user: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the encoder and return its outputs, by name."""
        self.source, self.user, self.cache, self.past = source, user, None, 0
        if self.encoder is None or self.originals.encoder is None:
            return {}
        given = self._feed(self.originals.encoder, source, 0)
        self.hidden = self.encoder.run(given)
        return self.hidden

    def step(self, token: int) -> np.ndarray:
        """Run one token and return its logits."""
        decoder = self.decoder
        assert decoder is not None
        is_merged = decoder.later.roles.decoder is not None
        if self.cache is None and (is_merged or decoder.first is not decoder.later):
            empty = {} if not is_merged else {value.name: past for value, past in empty_past(decoder.first).items()}
            model = decoder.first
            outputs, self.cache = decoder.start({**self._feed(model, [token], 0), **empty})
        else:
            model = decoder.later
            feed = self._feed(model, [token], self.past)
            if self.cache is None:
                pasts = decoder.later.roles.pasts
                self.cache = {pasts[value].slot: past for value, past in empty_past(decoder.later).items()}
            outputs, self.cache = decoder.step(feed, self.cache)
        self.past += 1
        if model.roles.logits is None:
            raise ModelError(
                "nothing tells which of its outputs is the logits", file=model.label, hint="name it 'logits'"
            )
        logits: np.ndarray = np.asarray(outputs[model.roles.logits.name])
        last: np.ndarray = logits.reshape(-1, logits.shape[-1])[-1]
        return last

    def _feed(self, model: Model, ids: Sequence[int], past: int) -> dict[str, np.ndarray]:
        feed = {}
        for value, role in model.roles.inputs.items():
            declared = declared_type(value)
            if role in ("past", "condition") or declared is None:
                continue
            kind = helper.tensor_dtype_to_np_dtype(declared.dtype)
            if value.name in self.user:
                feed[value.name] = self.user[value.name]
            elif role in ("tokens", "encoder tokens"):
                feed[value.name] = np.array([ids], kind)
            elif role == "positions":
                feed[value.name] = np.arange(past, past + len(ids), dtype=kind)[None]
            elif role == "token types":
                feed[value.name] = np.zeros((1, len(ids)), kind)
            elif role == "mask" and ids:
                feed[value.name] = np.ones((1, past + len(ids)), kind)
            elif role == "encoder mask":
                length = len(self.source) or next(iter(self.hidden.values())).shape[1]
                feed[value.name] = np.ones((1, length), kind)
            elif role in ("mask", "image mask"):
                feed[value.name] = np.ones(self._sizes(model, declared), kind)
            elif role == "encoder state":
                feed[value.name] = next(iter(self.hidden.values()))
            else:
                raise ModelError(f"what to feed to its input '{value.name}' is not known", file=model.label)
        return feed

    def _sizes(self, model: Model, declared: TensorType) -> list[int]:
        """Return the dims of an input, symbols as the inputs of the user have them; 1 for what these do not have."""
        known: dict[object, int] = {}
        for value in model.roles.inputs:
            given, array = declared_type(value), self.user.get(value.name)
            if given is not None and given.dims is not None and array is not None:
                known.update(zip(given.dims, array.shape, strict=True))
        return [dim if isinstance(dim, int) else known.get(dim, 1) for dim in declared.dims or ()]
