"""The oracle of one sequence: a source, then one token after the other; the lengths of sources that it runs at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np

from graphkit.errors import ModelError
from graphkit.graph.cache_entries import Slot
from graphkit.graph.declared_types import declared_type
from graphkit.graph.names import counted
from graphkit.graph.roles import dim_at
from graphkit.model import Model
from graphkit.shapes.constraints.failing_sizes import SizeCheck
from graphkit.shapes.constraints.symbol_sizes import symbol_roles
from graphkit.verify.oracle import Oracle
from graphkit.verify.originals import Originals

__all__ = ["OneSequence", "nearest_length", "padding_note"]


class OneSequence:
    """The oracle for one sequence.

    Args:
        originals: The models.

    Attributes:
        valid: How many samples or frames of a sound are valid: zeros follow, and the encoder's mask says so; None for
            all that it gets.
        is_cut: Whether a sound ends with what is valid, instead of zeros.
        needs_no_zeros: Whether the original has given NaN for a sound with zeros behind it.
    """

    valid: int | None = None
    is_cut: bool = False
    needs_no_zeros: bool = False

    def __init__(self, originals: Originals) -> None:
        self.originals = originals
        self._oracle = Oracle(originals)
        self._is_started = False

    @property
    def cache(self) -> Mapping[Slot, np.ndarray]:
        """The KV cache; empty before the first token."""
        return self._oracle.cache

    def nearest_source(self, length: int) -> int | None:
        """Return the length of a source at which the encoder runs that is nearest to this one, None for none."""
        encoder = self.originals.encoder
        return length if encoder is None else nearest_length(encoder, length)

    def start(self, source: Sequence[int], user: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the encoder on token ids, or on the user's inputs, and return its outputs by name.

        Of a sound with zeros behind it they are given as far as there are any for the sound alone; where the zeros
        make them NaN, they are those for the sound alone.
        """
        self._is_started = False
        alone = {} if self.valid is None or self.is_cut else self._alone(source, user)
        outputs = self._oracle.encode(self._inputs(source, user))
        for name, array in alone.items():
            outputs[name] = outputs[name][tuple(map(slice, array.shape))]
            if np.isnan(outputs[name]).any() and not np.isnan(array).any():
                outputs[name], self.needs_no_zeros = array, True
        return outputs

    def _alone(self, source: Sequence[int], user: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of the encoder for a sound without zeros behind it; none if it does not run."""
        self.is_cut = True
        try:
            return self._oracle.encode(self._inputs(source, user))
        except ModelError:
            return {}
        finally:
            self.is_cut = False

    def fed_once(self, source: Sequence[int], user: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the encoder's feed for a source; it does not run."""
        return self._oracle.encoder_feed(self._inputs(source, user))

    def _inputs(self, source: Sequence[int], user: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        encoder = self.originals.encoder
        tokens = () if encoder is None else encoder.roles.all("tokens", "encoder tokens")
        if len(source):
            user = {name: self._beside(source, name, array) for name, array in user.items()}
        return {**{value.name: np.array([source]) for value in tokens}, **self._shortened(user)}

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

    def _shortened(self, user: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Return the user's inputs with a sound as a feature extractor pads it, and its mask."""
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
            array = shortened[value.name] = user[value.name].copy()
            axis = next((at for at in range(1, array.ndim) if dim_at(value, at) == dim_at(mask, 1)), 1)
            np.moveaxis(array, axis, 0)[self.valid :] = 0
            if self.is_cut:
                array = shortened[value.name] = np.take(array, range(self.valid), axis)
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


REACH = 1024  # how far a length is looked for at which the original runs


@lru_cache(maxsize=4)
def _size_check(encoder: Model) -> SizeCheck:
    return SizeCheck(encoder)


def nearest_length(encoder: Model, length: int) -> int | None:
    """Return the length of a source at which an encoder runs that is nearest to this one, None for none."""
    ids = encoder.roles.first("tokens")
    declared = declared_type(ids) if ids is not None else None
    fixed = declared.dims[-1] if declared is not None and declared.dims else None
    if isinstance(fixed, int):
        return fixed
    roles = symbol_roles(encoder)
    names = frozenset(name for name, role in roles.items() if role in ("encoder", "sequence", "total"))
    rows = dict.fromkeys((name for name in roles if roles[name] == "batch"), 1)
    return _size_check(encoder).nearest(rows, names, length, REACH)


def padding_note(
    reference: OneSequence,
    user: Mapping[str, np.ndarray],
    token: int,
    lengths: Iterable[int],
    differ: Callable[[np.ndarray, np.ndarray], bool],
) -> Iterator[str]:
    """Yield a sentence if a sound without zeros behind it gives other results, as where time is normalized over.

    Args:
        reference: The original; how much of its sound is valid changes.
        user: The sound with its zeros, as long as the largest length.
        token: What the decoder starts with.
        lengths: How much of it to take; lengths at which the original does not run tell nothing.
        differ: Whether an array is not another, that being the second.
    """
    *shorter, longest = sorted(lengths)
    differing = [(apart, valid) for valid in shorter if (apart := _apart(reference, user, token, valid, differ)) > 0]
    if reference.needs_no_zeros:
        yield "The original gives NaN where zeros follow a sound, and was compared without them."
    elif differing:
        apart, valid = max(differing)
        results = "results" if reference.originals.step is None else "first logits"
        yield (
            f"That is for sounds that zeros make {counted(longest, 'place(s)')} long, whatever the mask says: the "
            f"{results} of one of {counted(valid, 'place(s)')} differ by {apart:.1e} without these zeros."
        )


def _apart(
    reference: OneSequence,
    user: Mapping[str, np.ndarray],
    token: int,
    valid: int,
    differ: Callable[[np.ndarray, np.ndarray], bool],
) -> float:
    """Return how far the results for a sound with zeros and without are apart; 0 if they are equal or unknown."""
    reference.valid, results = valid, list[list[np.ndarray]]()
    try:
        for reference.is_cut in (False, True):
            outputs = reference.start([], user)
            is_whole = reference.originals.step is None
            results.append(list(outputs.values()) if is_whole else [reference.step(token)])
    except ModelError:  # it does not run at that length
        return 0.0
    finally:
        reference.is_cut = False
    pairs = [(padded, cut) for padded, cut in zip(*results, strict=True) if padded.shape == cut.shape]
    distances = [
        np.abs(cut.astype(np.float64) - padded).max(initial=0.0) for padded, cut in pairs if differ(cut, padded)
    ]
    return float(max(distances, default=0.0))
