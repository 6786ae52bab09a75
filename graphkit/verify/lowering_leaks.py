"""Leaks of a lowering: outputs that change with the contents of padding and unused slots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from graphkit.deploy.contract import Port
from graphkit.model import Model
from graphkit.verify.cause_search import with_attributes
from graphkit.verify.input_generator import ExportInputs, InputSpec
from graphkit.verify.lowering_scene import AlteredHost, IsolatedMethods, Scene
from graphkit.verify.one_sequence_oracle import OneSequence
from graphkit.verify.originals import Originals
from graphkit.verify.tolerances import LOWERING_TOLERANCE, ColumnTolerance, computes_in_half

__all__ = ["NOISE", "STEPS", "find_leaks", "sound_lengths", "zeros_change_results"]

STEPS = 4  # that are looked into
NOISE = 3.0  # standard deviation of what takes the place of something that must not count


def find_leaks(scene: Scene, rng: np.random.Generator) -> Iterator[str]:
    """Yield the leaks, a sentence each: outputs that change with padding or unused slots."""
    plain = _run_padded(scene)
    if scene.source:
        yield from _find_padding_leaks(scene, rng, plain)
    if scene.host.hides_states:
        yield from _find_unread_masks(scene, plain)
    _, noisy = _run_padded(scene, rng)
    if any(map(scene.differ, noisy, plain[1])):
        yield "What unused slots of the cache hold changes the logits: the mask over the slots does nothing."


def zeros_change_results(originals: Originals, models: Mapping[str, Model], folder: Path) -> bool:
    """Whether zeros behind a sound make results of lowered models others than the original's, or nothing tells.

    Args:
        originals: The models as they were exported.
        models: The lowered models, by their method.
        folder: The folder of `contract.json` and the tables.

    Raises:
        ModelError: A lowered model does not load or run.
    """
    run, inputs = IsolatedMethods(folder), ExportInputs(originals.models, np.random.default_rng(0))
    run.models = models
    host, reference = AlteredHost(folder, run, unchecked=True), OneSequence(originals)
    users = [port for method in host.contract.methods for port in method.inputs if port.kind == "user"]
    user = {port.name: inputs.array(InputSpec(port.name, port.dtype), port.shape) for port in users}
    allowance = ColumnTolerance(LOWERING_TOLERANCE, is_half=any(map(computes_in_half, originals.models)))
    scene, is_known = Scene(host, reference, [], [1], user, allowance), False
    for length in sound_lengths(host, reference)[:-1]:
        host.sound = reference.valid = length
        if reference.alone([], scene.own):
            is_known = True
            if max(scene.distances(), default=0.0) > 1:
                return True
    return not is_known


def sound_lengths(host: AlteredHost, reference: OneSequence) -> list[int]:
    """Return lengths of a sound to try, up to the longest one; those at which the original runs where that is known."""
    sizes, least = host.contract.sizes, host.least_sound
    most = sizes["sound"]
    tried = (least, most // 3, most // 3 + sizes["stride"] // 2, (least + most) // 2, most - 1)
    legal = [reference.nearest_source(length) or length for length in tried]
    return sorted({length for length in legal if least <= length < most} | {most})


def _find_padding_leaks(
    scene: Scene, rng: np.random.Generator, plain: tuple[list[np.ndarray], list[np.ndarray]]
) -> Iterator[str]:
    size = scene.host.contract.sizes["source"]

    def noisy(port: Port, ids: Sequence[int], fed: np.ndarray) -> np.ndarray:
        if (port.kind, port.by) != ("embedding", "source"):
            return fed
        rows = fed.reshape(size, -1).copy()
        rows[len(ids) :] = rng.normal(0, NOISE, rows[len(ids) :].shape)
        return np.asarray(rows.reshape(fed.shape))

    with with_attributes(scene.host, alter=noisy):
        once, steps = (any(map(scene.differ, a, b)) for a, b in zip(_run_padded(scene), plain, strict=True))
    if once:
        yield "What padding holds changes what runs once for a source: the mask over the source does nothing there."
    elif steps:
        yield "What padding holds changes the logits: the mask over the source does nothing in the step."


def _find_unread_masks(scene: Scene, plain: tuple[list[np.ndarray], list[np.ndarray]]) -> Iterator[str]:
    """Yield masks over a shorter sound without which everything is the same to the last bit."""
    for method in scene.host.contract.methods:
        for port in method.inputs:
            if port.kind != "source_mask":
                continue
            with scene.host.altered(port, lambda _, mask: 0 * mask):
                runs = zip(_run_padded(scene), plain, strict=True)
            if all(np.array_equal(a, b) for alike in runs for a, b in zip(*alike, strict=True)):
                yield f"'{port.name}' of {method.name} changes nothing: the mask over the source does nothing there."


def _run_padded(scene: Scene, rng: np.random.Generator | None = None) -> tuple[list[np.ndarray], list[np.ndarray]]:
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
