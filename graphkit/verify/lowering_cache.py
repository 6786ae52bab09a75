"""How what a host keeps differs from the cache of the original: slots or heads in another order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphkit.graph.kv import Slot
from graphkit.verify.cache_order import order
from graphkit.verify.lowering_scene import STEPS, Scene

__all__ = ["cache_order"]


def cache_order(scene: Scene, names: Mapping[str, Slot]) -> Iterator[str]:
    """Yield how what the host keeps differs from the cache of the original, where each step is right on that."""
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
