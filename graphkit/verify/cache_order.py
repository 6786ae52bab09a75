"""Slots or heads of a cache in another order than the original's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from graphkit.graph.kv import Slot
from graphkit.verify.lowering_scene import STEPS, Scene

__all__ = ["cache_order", "order"]

Differ = Callable[[np.ndarray, np.ndarray], bool]


def order(name: str, state: np.ndarray, known: np.ndarray, axis: int | None, differ: Differ) -> str:
    """Return how a state differs from the cache of the original, in a clause.

    Args:
        name: Of the state.
        state: What is kept, unused slots included.
        known: What the original keeps.
        axis: That of the slots; None for a state that does not grow.
        differ: Whether an array is not what it should be, that being the second.
    """
    if axis is not None:
        found = _places(differ, np.moveaxis(known, axis, 0), np.moveaxis(state, axis, 0))
        if found is not None:
            token, slot = next((token, slot) for token, slot in enumerate(found) if token != slot)
            return (
                f"cache slots are in another order: token {token} lies in slot {slot} of '{name}', not in slot {token}."
            )
    part = state[tuple(slice(size) for size in known.shape)]
    for other in range(1, known.ndim):
        if other != axis and part.shape == known.shape:
            found = _places(differ, np.moveaxis(known, other, 0), np.moveaxis(part, other, 0))
            if found is not None:
                return f"heads are permuted: along axis {other}, '{name}' has those of the original at places {found}."
    return f"'{name}' does not hold what the original keeps."


def _places(differ: Differ, known: np.ndarray, state: np.ndarray) -> list[int] | None:
    """Return where each part of an array is in another one, None where one is not there or all are in their places."""
    found = []
    for part in known:
        place = next((at for at, held in enumerate(state) if not differ(held, part)), None)
        if place is None:
            return None
        found.append(place)
    return found if found != list(range(len(found))) else None


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
