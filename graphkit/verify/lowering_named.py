"""Names for what is wrong with a lowering: only what mends the difference where it is undone, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from graphkit.verify.begins import first_node
from graphkit.verify.lowering_causes import causes, is_wrong_once
from graphkit.verify.lowering_facts import Fact, Facts
from graphkit.verify.lowering_leaks import leaks
from graphkit.verify.lowering_scene import IsolatedMethods, Scene
from graphkit.verify.lowering_signs import lost_bias

__all__ = ["named"]


def named(scene: Scene, calm: Scene | None, facts: Facts, rng: np.random.Generator) -> list[str]:
    """Return what else is wrong where a case fails, besides what surely differs in the files.

    Args:
        scene: The case.
        calm: Another case, whose padding and unused slots are filled with noise; None for none.
        facts: What differs in the files; that is mended first.
        rng: Of the noise.
    """
    try:
        facts.undo(scene.host, facts.sure)
        if facts.sure and _is_right(scene):
            return []
        found = list(causes(scene))
        if not found and calm is not None:
            found += leaks(calm, rng)
        found = found or list(_lost(scene)) or list(_suspected(scene, facts))
        facts.undo(scene.host, facts.sure)
        return found or [f"No simple cause; {_begin(scene, facts)}."]
    finally:
        facts.undo(scene.host, ())


def _pairs(scene: Scene) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the logits of host and original at each step of a case."""
    scene.reference.start(scene.source, scene.own)
    scene.host.start(scene.source, scene.user)
    for token in scene.tokens:
        yield scene.host.step(token), scene.reference.step(token)


def _is_right(scene: Scene) -> bool:
    hidden = scene.reference.start(scene.source, scene.own)
    if is_wrong_once(scene, scene.host.start(scene.source, scene.user), hidden):
        return False
    return not any(scene.differ(*pair) for pair in _pairs(scene)) if _decodes(scene) else True


def _decodes(scene: Scene) -> bool:
    return scene.reference.originals.step is not None


def _lost(scene: Scene) -> Iterator[str]:
    """Yield the constant without which, or with which twice, the logits are right."""
    model = scene.reference.originals.step
    pairs = list(_pairs(scene)) if model is not None else []
    if model is None or not pairs or any(one.shape != two.shape for one, two in pairs):
        return
    apart = [one.astype(np.float64) - two.astype(np.float64) for one, two in pairs]
    found = lost_bias(model, apart, float(np.abs(apart[0]).max()) * 1e-4)
    if found and not any(scene.differ((one - apart[0]).astype(two.dtype), two) for one, two in pairs):
        yield found


def _suspected(scene: Scene, facts: Facts) -> Iterator[str]:
    """Yield the one suspect that mends the difference alone."""

    def mends(fact: Fact) -> bool:
        facts.undo(scene.host, (*facts.sure, fact))
        return _is_right(scene)

    mending = [fact for fact in facts.suspects if mends(fact)]
    if len(mending) == 1:
        yield str(mending[0])


def _begin(scene: Scene, facts: Facts) -> str:
    """Return where the difference begins, in a clause."""
    assert isinstance(scene.host.run, IsolatedMethods)
    originals, models = scene.reference.originals, {**facts.models, **scene.host.run.models}
    hidden = scene.reference.start(scene.source, scene.own)
    is_wrong = is_wrong_once(scene, scene.host.start(scene.source, scene.user), hidden)
    once = next((name for name in models if name != "step"), None)
    if is_wrong and once is not None and originals.encoder is not None:
        feed = scene.reference.fed_once(scene.source, scene.own)
        exports, fed = [(originals.encoder, feed, "")], scene.host.run.fed[once]
        node = first_node(exports, models[once], fed, scene.differ, is_padded=True)
        return _at(node, models[once].name)
    step, found = originals.step, ""
    for number, token in enumerate(scene.tokens if step is not None else ()):
        feed = scene.reference.fed(token)
        logits = scene.host.step(token)
        if scene.differ(logits, scene.reference.step(token)):
            assert step is not None
            fed = scene.host.run.fed["step"]
            node = first_node([(step, feed, "")], models["step"], fed, scene.differ, is_padded=False)
            found = found or _at(node, models["step"].name)
            if number or originals.encoder is None:  # a decoder of later steps has no past of the source before
                return _at(node, models["step"].name)
    return found or "the greedy tokens alone differ"


def _at(node: str, file: str) -> str:
    return f"it begins at '{node}' of {file}" if node else f"it is in {file}, or in what that is fed"
