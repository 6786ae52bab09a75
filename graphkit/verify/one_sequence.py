"""The original pipeline of a lowering: one sequence through the oracle, text without padding, token by token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from graphkit.errors import ModelError
from graphkit.graph.kv import Slot
from graphkit.graph.roles import dim_at
from graphkit.verify.nearest import nearest_length
from graphkit.verify.oracle import Oracle
from graphkit.verify.originals import Originals

__all__ = ["OneSequence"]


class OneSequence:
    """The oracle for one sequence.

    Args:
        originals: The models.

    Attributes:
        valid: How many samples or frames of a sound are valid: zeros follow, and the encoder's mask says so; None for
            all that it gets.
        is_cut: Whether a sound ends with what is valid, instead of zeros.
    """

    valid: int | None = None
    is_cut: bool = False

    def __init__(self, originals: Originals) -> None:
        self.originals = originals
        self._oracle = Oracle(originals)
        self._is_started = False

    @property
    def cache(self) -> Mapping[Slot, np.ndarray]:
        """What is past; empty before the first token."""
        return self._oracle.cache

    def nearest_source(self, length: int) -> int | None:
        """Return the length of a source at which the encoder runs that is nearest to this one, None for none."""
        encoder = self.originals.encoder
        return length if encoder is None else nearest_length(encoder, length)

    def start(self, source: Sequence[int], user: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the encoder on token ids, or on what the user gives, and return its outputs, by name."""
        self._is_started = False
        return self._oracle.encode(self._inputs(source, user))

    def fed_once(self, source: Sequence[int], user: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return what the encoder is fed for a source; it does not run."""
        return self._oracle.encoder_feed(self._inputs(source, user))

    def _inputs(self, source: Sequence[int], user: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        encoder = self.originals.encoder
        tokens = () if encoder is None else encoder.roles.all("tokens", "encoder tokens")
        return {**{value.name: np.array([source]) for value in tokens}, **self._shortened(user)}

    def fed(self, token: int) -> dict[str, np.ndarray]:
        """Return what the decoder would be fed for one token, what is past included; it does not run."""
        return self._oracle.later_feed(np.array([[token]]))

    def _shortened(self, user: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Return what the user gives with a sound as a feature extractor pads it, and its mask."""
        encoder = self.originals.encoder
        if self.valid is None or encoder is None:
            return user
        mask = encoder.roles.first("mask")
        sounds = [value for value in encoder.roles.all("audio") if value.name in user]
        if mask is None or not sounds:
            raise ModelError("it takes no sound of which a part is valid", file=encoder.label)
        made, length = dict(user), 0
        for value in sounds:
            array = made[value.name] = user[value.name].copy()
            axis = next((at for at in range(1, array.ndim) if dim_at(value, at) == dim_at(mask, 1)), 1)
            np.moveaxis(array, axis, 0)[self.valid :] = 0
            if self.is_cut:
                array = made[value.name] = np.take(array, range(self.valid), axis)
            length = array.shape[axis]
        made[mask.name] = (np.arange(length) < self.valid).astype(np.int64)[None]
        return made

    def step(self, token: int) -> np.ndarray:
        """Run one token and return its logits."""
        ids = np.array([[token]])
        logits = self._oracle.step(ids) if self._is_started else self._oracle.first(ids, np.ones_like(ids))
        self._is_started = True
        last: np.ndarray = logits.reshape(-1, logits.shape[-1])[-1]
        return last
