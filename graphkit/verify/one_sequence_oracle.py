"""The oracle of one sequence: a source, then one token after the other; the lengths of sources that it runs at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from graphkit.errors import ModelError
from graphkit.graph.cache_entries import Slot
from graphkit.graph.roles import dim_at
from graphkit.verify.oracle import Oracle
from graphkit.verify.originals import Originals
from graphkit.verify.probe_inputs import fixed_length, nearest_length

__all__ = ["OneSequence"]


class OneSequence:
    """The oracle for one sequence.

    Args:
        originals: The models.

    Attributes:
        valid: How many samples or frames of a sound are valid; None for all that it gets.
        is_cut: Whether a sound ends with what is valid; else what follows stays, and the encoder's mask says so.
        pad: The token that pads a text for an encoder that takes a fixed number of them.
        fixed: This number, None where there is none.
    """

    valid: int | None = None
    is_cut: bool = True
    pad: int = 0

    def __init__(self, originals: Originals) -> None:
        self.originals = originals
        self._oracle = Oracle(originals)
        self._is_started = False
        self.fixed = None if originals.encoder is None else fixed_length(originals.encoder)

    @property
    def cache(self) -> Mapping[Slot, np.ndarray]:
        """The KV cache; empty before the first token."""
        return self._oracle.cache

    def nearest_source(self, length: int) -> int | None:
        """Return the length of a source at which the encoder runs that is nearest to this one, None for none."""
        encoder = self.originals.encoder
        return length if encoder is None or self.fixed is not None else nearest_length(encoder, length)

    def start(self, source: Sequence[int], user: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the encoder on token ids, or on the user's inputs, and return its outputs by name.

        Those for a sound of which a part is valid end with the last position that there is for this part alone.
        """
        self._is_started = False
        if self.valid is None:
            return self._oracle.encode(self._inputs(source, user))
        alone = self.alone(source, user)
        if self.is_cut and alone:
            return alone
        outputs = self._oracle.encode(self._inputs(source, user, is_cut=False))
        return {n: array[tuple(map(slice, alone[n].shape))] if n in alone else array for n, array in outputs.items()}

    def alone(self, source: Sequence[int], user: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of the encoder for the valid part of a sound; none if it does not run."""
        try:
            return self._oracle.encode(self._inputs(source, user, is_cut=True))
        except ModelError:
            return {}

    def fed_once(self, source: Sequence[int], user: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the encoder's feed for a source; it does not run."""
        return self._oracle.encoder_feed(self._inputs(source, user, is_cut=self.is_cut))

    def _inputs(
        self, source: Sequence[int], user: Mapping[str, np.ndarray], *, is_cut: bool = False
    ) -> dict[str, np.ndarray]:
        encoder = self.originals.encoder
        tokens = () if encoder is None else encoder.roles.all("tokens", "encoder tokens")
        if self.fixed is not None and 0 < len(source) < self.fixed:
            return self._padded_inputs(source, user)
        if len(source):
            user = {name: self._beside(source, name, array) for name, array in user.items()}
        return {**{value.name: np.array([source]) for value in tokens}, **self._shorten_inputs(user, is_cut=is_cut)}

    def _padded_inputs(self, source: Sequence[int], user: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the inputs for a text that is padded to the length that an encoder takes, with its mask."""
        assert self.originals.encoder is not None
        assert self.fixed is not None
        roles, padded = self.originals.encoder.roles, [*source, *[self.pad] * (self.fixed - len(source))]
        inputs = {**user, **{value.name: np.array([padded]) for value in roles.all("tokens", "encoder tokens")}}
        for mask in roles.all("mask"):
            if mask.name not in user and self._oracle.encoder_inputs is not None:
                elements = self._oracle.encoder_inputs.elements(mask)
                inputs[mask.name] = np.where(np.arange(self.fixed) < len(source), *elements)[None]
        return inputs

    def _beside(self, source: Sequence[int], name: str, array: np.ndarray) -> np.ndarray:
        """Return an input of the user cut to the length of the source along the axes on which it follows that."""
        probe = self._oracle.encoder_inputs
        for axis in range(1, array.ndim):
            if probe is not None and array.shape[axis] > len(source) and (name, axis) in probe.following:
                array = np.take(array, range(len(source)), axis)
        return array

    def fed(self, token: int) -> dict[str, np.ndarray]:
        """Return the decoder's feed for one token, its KV cache included; it does not run."""
        return self._oracle.later_feed(np.array([[token]]))

    def _shorten_inputs(self, user: Mapping[str, np.ndarray], *, is_cut: bool) -> Mapping[str, np.ndarray]:
        """Return the user's inputs with the mask of their sound, which ends with what is valid or has that hidden."""
        encoder = self.originals.encoder
        if self.valid is None or encoder is None:
            return user
        mask = encoder.roles.first("mask")
        sounds = [value for value in encoder.roles.all("audio") if value.name in user]
        probe = self._oracle.encoder_inputs
        if mask is None or not sounds or probe is None:
            raise ModelError("it takes no sound of which a part is valid", file=encoder.label)
        shortened, length = dict(user), 0
        for value in sounds:
            array = user[value.name]
            axis = next((at for at in range(1, array.ndim) if dim_at(value, at) == dim_at(mask, 1)), 1)
            if is_cut:
                array = shortened[value.name] = np.take(array, range(self.valid), axis)
            elif self.is_cut:  # it does not run on that part alone
                array = shortened[value.name] = array.copy()
                np.moveaxis(array, axis, 0)[self.valid :] = 0
            length = array.shape[axis]
        shortened[mask.name] = np.where(np.arange(length) < self.valid, *probe.elements(mask))[None]
        return shortened

    def step(self, token: int) -> np.ndarray:
        """Run one token and return its logits."""
        ids = np.array([[token]])
        logits = self._oracle.step(ids) if self._is_started else self._oracle.first(ids, np.ones_like(ids))
        self._is_started = True
        last: np.ndarray = logits.reshape(-1, logits.shape[-1])[-1]
        return last
