"""Leaks of a lowering: outputs that change with the contents of padding and unused slots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from graphkit.deploy.contract import Port
from graphkit.verify.cause_search import with_attributes
from graphkit.verify.lowering_scene import Scene

__all__ = ["NOISE", "STEPS", "leaks"]

STEPS = 4  # that are looked into
NOISE = 3.0  # standard deviation of what takes the place of something that must not count


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

    def noisy(port: Port, ids: Sequence[int], fed: np.ndarray) -> np.ndarray:
        if (port.kind, port.by) != ("embedding", "source"):
            return fed
        rows = fed.reshape(size, -1).copy()
        rows[len(ids) :] = rng.normal(0, NOISE, rows[len(ids) :].shape)
        return np.asarray(rows.reshape(fed.shape))

    with with_attributes(scene.host, alter=noisy):
        once, steps = (any(map(scene.differ, a, b)) for a, b in zip(_run(scene), plain, strict=True))
    if once:
        yield "What padding holds changes what runs once for a source: the mask over the source does nothing there."
    elif steps:
        yield "What padding holds changes the logits: the mask over the source does nothing in the step."


def _unread(scene: Scene, plain: tuple[list[np.ndarray], list[np.ndarray]]) -> Iterator[str]:
    """Yield masks over a shorter sound without which everything is the same to the last bit."""
    for method in scene.host.contract.methods:
        for port in method.inputs:
            if port.kind != "source_mask":
                continue
            with scene.host.altered(port, lambda _, mask: 0 * mask):
                runs = zip(_run(scene), plain, strict=True)
            if all(np.array_equal(a, b) for alike in runs for a, b in zip(*alike, strict=True)):
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
