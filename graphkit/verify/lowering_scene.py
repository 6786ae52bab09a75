"""The scene of a lowering: one sequence through the oracle, and a host whose inputs and unused places may change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from graphkit.deploy.contract import Method, Port, sound_axis
from graphkit.deploy.hosts import Host
from graphkit.deploy.hosts.method_feeds import Inputs
from graphkit.deploy.hosts.numpy_host import Ids, Tokens, source_and_inputs
from graphkit.errors import ModelError
from graphkit.graph.cache_entries import Slot
from graphkit.graph.declared_types import declared_type
from graphkit.graph.roles import dim_at
from graphkit.model import Model
from graphkit.runtime.isolated_session import IsolatedSession
from graphkit.shapes.constraints.failing_sizes import SizeCheck
from graphkit.shapes.constraints.symbol_sizes import symbol_roles
from graphkit.verify.first_difference import Differ, order
from graphkit.verify.oracle import Oracle
from graphkit.verify.originals import Originals

__all__ = [
    "NOISE",
    "STEPS",
    "AlteredHost",
    "IsolatedMethods",
    "OneSequence",
    "Scene",
    "cache_order",
    "leaks",
    "nearest_length",
    "padding_note",
]


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
        """The KV cache; empty before the first token."""
        return self._oracle.cache

    def nearest_source(self, length: int) -> int | None:
        """Return the length of a source at which the encoder runs that is nearest to this one, None for none."""
        encoder = self.originals.encoder
        return length if encoder is None else nearest_length(encoder, length)

    def start(self, source: Sequence[int], user: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the encoder on token ids, or on the user's inputs, and return its outputs by name."""
        self._is_started = False
        return self._oracle.encode(self._inputs(source, user))

    def fed_once(self, source: Sequence[int], user: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the encoder's feed for a source; it does not run."""
        return self._oracle.encoder_feed(self._inputs(source, user))

    def _inputs(self, source: Sequence[int], user: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        encoder = self.originals.encoder
        tokens = () if encoder is None else encoder.roles.all("tokens", "encoder tokens")
        return {**{value.name: np.array([source]) for value in tokens}, **self._shortened(user)}

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
    longest: int,
    differ: Callable[[np.ndarray, np.ndarray], bool],
) -> Iterator[str]:
    """Yield a sentence if a sound without zeros behind it gives other logits, as where time is normalized over.

    Args:
        reference: The original, of whose sound a part is valid.
        user: The sound, longer than that part.
        token: What the decoder starts with.
        longest: How long the sound is with its zeros.
        differ: Whether an array is not another, that being the second.
    """
    valid = reference.valid
    if valid is None or valid >= longest or reference.originals.step is None:
        return
    found = []
    try:
        for reference.is_cut in (False, True):
            reference.start([], user)
            found.append(reference.step(token))
    except ModelError:  # it does not run at that length
        return
    finally:
        reference.is_cut = False
    padded, cut = found
    if padded.shape == cut.shape and differ(cut, padded):
        apart = float(np.abs(cut.astype(np.float64) - padded.astype(np.float64)).max())
        yield (
            f"The original depends on how far a sound is padded, whatever its mask says: the first logits of one of "
            f"{valid:,} places differ by {apart:.1e} without padding. Host and models give what it gives for sounds "
            f"that zeros make {longest:,} places long."
        )


STEPS = 4  # that are looked into
NOISE = 3.0  # standard deviation of what takes the place of something that must not count

Alter = Callable[[Port, Sequence[int], np.ndarray], np.ndarray]


class AlteredHost(Host):
    """A host whose inputs can be altered, of which one sequence is looked at.

    The other sequences of a batch get random tokens, and sources of random lengths: they must not matter.

    Attributes:
        alter: Gives another array for an input, from the port, the token ids and the array; None for none.
        sequence: The sequence that is looked at.
        vocabulary: How many tokens there are.
        sound: How many samples or frames of its sound are valid; None for all, or for no sound.
    """

    sound: int | None = None
    alter: Alter | None = None
    sequence: int = 0
    vocabulary: int = 1
    rng = np.random.default_rng(0)

    def start(
        self, source: Tokens | Inputs = (), /, inputs: Inputs | None = None, **named: npt.ArrayLike
    ) -> dict[str, np.ndarray]:
        """Run a source in its sequence, and return its outputs."""
        source, user = source_and_inputs(source, inputs, named)
        if self.batch == 1:
            return super().start(source, self._cut(user))
        most = self.contract.sizes["source"] if self.contract.takes_text else 0
        rows: list[Sequence[int]] = [
            self._random(int(self.rng.integers(1, most + 1))) if most else [] for _ in range(self.batch)
        ]
        rows[self.sequence] = source  # type: ignore[assignment]
        if self.sound is not None:
            longest = self.contract.sizes["sound"]
            valid = [int(length) for length in self.rng.integers(self.least_sound, longest + 1, self.batch)]
            valid[self.sequence] = self.sound
            return {name: self.own(array) for name, array in super().start(valid, user).items()}
        return {name: self.own(array) for name, array in super().start(rows if most else (), user).items()}

    @property
    def hides_states(self) -> bool:
        """Whether only the decoder tells which positions are valid: those of a shorter sound."""
        return (
            self.sound is not None and self.sound < self.contract.sizes["sound"] and self.contract.sizes["capacity"] > 0
        )

    @property
    def least_sound(self) -> int:
        """The fewest samples or frames of a sound of which a position is valid."""
        return max(1, self.contract.sizes.get("stride", 1) - self.contract.sizes.get("offset", 0))

    def _cut(self, user: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the user's inputs with sounds cut behind their valid part."""
        cut = dict(user)
        for port in (port for method in self.contract.methods for port in method.inputs if port.is_sound):
            if self.sound is not None and port.name in cut:
                axis = sound_axis(port, self.contract.sizes["sound"])
                cut[port.name] = np.take(cut[port.name], range(self.sound), axis)
        return cut

    def step(self, token: int | Sequence[int]) -> np.ndarray:
        """Run a token in its sequence, and return its logits."""
        if self.batch == 1:
            return super().step(token)
        rows = self._random(self.batch)
        rows[self.sequence] = token  # type: ignore[assignment]
        return np.asarray(super().step(rows)[self.sequence])

    def own(self, array: np.ndarray) -> np.ndarray:
        """Return the part of the sequence that is looked at, all of it where the batch is the caller's."""
        if self.batch == 1:
            return array
        part = array.shape[0] // self.batch
        return array[self.sequence * part : (self.sequence + 1) * part]

    def _random(self, count: int) -> list[int]:
        return [int(token) for token in self.rng.integers(0, self.vocabulary, count)]

    def _input(self, port: Port, ids: Ids) -> np.ndarray:
        made = super()._input(port, ids)
        if self.alter is None:
            return made
        if self.batch == 1 or port.source is None or port.source.kind != "embedding":
            return self.alter(port, ids[self.sequence], made).astype(made.dtype, copy=False)
        parts = np.split(made.reshape(-1), self.batch)
        parts[self.sequence] = self.alter(port, ids[self.sequence], parts[self.sequence]).reshape(-1)
        return np.concatenate(parts).reshape(port.shape)


class IsolatedMethods:
    """Methods in a process that may die.

    Args:
        folder: Of their files.

    Attributes:
        models: What runs in place of a file, by method.
        fed: What each method was fed last.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models: Mapping[str, Model] = {}
        self.fed: dict[str, Mapping[str, np.ndarray]] = {}
        self._opened: dict[str, tuple[Model | None, IsolatedSession]] = {}

    def __call__(self, method: Method, feed: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Run a method."""
        model, opened = self.models.get(method.name), self._opened.get(method.name)
        if opened is None or opened[0] is not model:
            opened = model, IsolatedSession(self.folder / method.file if model is None else model)
            self._opened[method.name] = opened
        self.fed[method.name] = {name: array.copy() for name, array in feed.items()}
        return opened[1].run(feed)


@dataclass(frozen=True, eq=False)
class Scene:
    """A case of both pipelines, in which causes are sought.

    Attributes:
        host: The host.
        reference: The original pipeline.
        source: Token ids of the source.
        tokens: What the decoder is given.
        user: Inputs that the caller makes.
        differ: Whether an array is not what it should be, that being the second.
    """

    host: AlteredHost
    reference: OneSequence
    source: list[int]
    tokens: list[int]
    user: Mapping[str, np.ndarray]
    differ: Differ

    @property
    def own(self) -> Mapping[str, np.ndarray]:
        """The inputs in `user` of the sequence that is looked at."""
        return {name: self.host.own(array) for name, array in self.user.items()}


def leaks(scene: Scene, rng: np.random.Generator) -> Iterator[str]:
    """Yield the leaks, a sentence each: outputs that change with padding or unused slots."""
    plain = _run(scene)
    if scene.source:
        yield from _padding(scene, rng, plain)
    if scene.host.hides_states:
        yield from _unread(scene, plain)
    _, noisy = _run(scene, rng)
    if any(map(scene.differ, noisy, plain[1])):
        yield "What unused slots of the cache hold changes the logits: the mask over the slots does nothing."


def _padding(scene: Scene, rng: np.random.Generator, plain: tuple[list[np.ndarray], list[np.ndarray]]) -> Iterator[str]:
    size = scene.host.contract.sizes["source"]

    def noisy(port: Port, ids: Sequence[int], made: np.ndarray) -> np.ndarray:
        if port.source is None or (port.source.kind, port.source.by) != ("embedding", "source"):
            return made
        rows = made.reshape(size, -1).copy()
        rows[len(ids) :] = rng.normal(0, NOISE, rows[len(ids) :].shape)
        return np.asarray(rows.reshape(made.shape))

    scene.host.alter = noisy
    once, steps = (any(map(scene.differ, one, two)) for one, two in zip(_run(scene), plain, strict=True))
    scene.host.alter = None
    if once:
        yield "What padding holds changes what runs once for a source: the mask over the source does nothing there."
    elif steps:
        yield "What padding holds changes the logits: the mask over the source does nothing in the step."


def _unread(scene: Scene, plain: tuple[list[np.ndarray], list[np.ndarray]]) -> Iterator[str]:
    """Yield masks over a shorter sound without which everything is the same to the last bit."""
    for method in scene.host.contract.methods:
        for port in method.inputs:
            if port.source is None or port.source.kind != "source_mask":
                continue
            scene.host.alter = lambda each, _, made, port=port: 0 * made if each is port else made
            runs = zip(_run(scene), plain, strict=True)
            scene.host.alter = None
            if all(np.array_equal(one, two) for alike in runs for one, two in zip(*alike, strict=True)):
                yield f"'{port.name}' of {method.name} changes nothing: the mask over the source does nothing there."


def _run(scene: Scene, rng: np.random.Generator | None = None) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the outputs for a source at valid positions, and the logits of steps; `rng` fills unused slots."""
    host, length = scene.host, len(scene.source)
    outputs = host.start(scene.source, scene.user)
    for name, state in host.state.items():
        if rng is not None and host.axis[name] is not None:
            state[...] = rng.normal(0, NOISE, state.shape)
    written = {port.name for method in host.contract.methods for port in method.outputs if port.writes}
    size = host.contract.sizes["source"]
    once = [array for name, array in outputs.items() if name not in written]
    valid = [array[:, :length] if length and array.shape[1:2] == (size,) else array for array in once]
    return valid, [host.step(token) for token in scene.tokens[:STEPS]]


def cache_order(scene: Scene, names: Mapping[str, Slot]) -> Iterator[str]:
    """Yield how a host's state differs from the original's cache, on which each step is right."""
    scene.reference.start(scene.source, scene.own)
    scene.host.start(scene.source, scene.user)
    steps = max(1, min(STEPS, scene.host.contract.sizes["capacity"]) - 1)  # a slot is left for what is one too far
    for token in scene.tokens[:steps]:
        scene.reference.step(token)
        scene.host.step(token)
    cache = scene.reference.cache
    for name, state in scene.host.state.items():
        axis, known = scene.host.axis[name], cache[names[name]]
        part = state[tuple(slice(size) for size in known.shape)]
        if part.shape != known.shape or scene.differ(part, known):
            yield f"Each step is right on the cache of the original: {order(name, state, known, axis, scene.differ)}"
            return
