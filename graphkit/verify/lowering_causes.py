"""The causes that the proof of a lowering knows: faults of what the host feeds, of files, and of what is kept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from graphkit.deploy.contract import Port
from graphkit.deploy.hosts.numpy_host import slots_mask
from graphkit.graph.view import all_scopes
from graphkit.verify.cause_search import Cause, find_sole_cause, is_mended, with_attributes
from graphkit.verify.first_difference import describe_order, first_node
from graphkit.verify.lowering_differences import Facts
from graphkit.verify.lowering_leaks import find_leaks
from graphkit.verify.lowering_scene import AlteredHost, Changing, IsolatedMethods, Scene

__all__ = ["find_lowering_causes"]

SHALLOW, FLOOR = -10.0, -1e4  # a floor that scores may be below, and one that they are not


def find_lowering_causes(scene: Scene, other: Scene | None, facts: Facts, rng: np.random.Generator) -> list[str]:
    """Return the causes of a failing case besides the known differences of the files.

    Args:
        scene: The case.
        other: Another case, whose padding and unused slots are filled with noise; None for none.
        facts: What differs in the files; that is mended first.
        rng: Of the noise.
    """
    with facts.undone(scene.host, facts.sure):
        if facts.sure and is_mended(scene.distances()):
            return []
        once = find_sole_cause(scene.once, _port_causes(scene.host, "once"), _file_causes(scene, facts))
        with once.undo() if once is not None else contextlib.nullcontext():
            rounds = _port_causes(scene.host, "step"), _file_causes(scene, facts), _constant_causes(scene)
            step = find_sole_cause(scene.distances, *rounds)
        causes = [cause.text for cause in (once, step) if cause is not None]
        causes = causes or list(_order_causes(scene)) or ([] if other is None else list(find_leaks(other, rng)))
        return causes or [f"No simple cause; {_where_it_begins(scene, facts)}."]


def _port_causes(host: AlteredHost, when: str) -> Iterator[Cause]:
    """Yield the usual faults of the inputs of methods, each with the change that undoes it."""
    for method in host.contract.methods:
        for port in method.inputs if method.when == when else ():
            for find in TABLE.get(port.kind, ()):
                for text, change in find(host, port):
                    name = f"'{port.name}' of {method.name}"
                    yield Cause("positions", text.format(name=name), undo=partial(host.altered, port, change))


Changes = Iterator[tuple[str, Changing]]


def _undo_scales(host: AlteredHost, port: Port) -> Changes:
    factor = float(np.sqrt(host.tables[port.of].shape[-1]))
    yield f"{{name}} is scaled twice: it is right divided by {factor:.6g}.", lambda _, fed: fed / factor
    yield f"{{name}} is not scaled: it is right times {factor:.6g}.", lambda _, fed: fed * factor


def _undo_positions(host: AlteredHost, port: Port) -> Changes:
    def looked_up(_: Sequence[int], fed: np.ndarray) -> np.ndarray:
        rows = host.tables[port.of]
        return rows[host.position] if host.position < len(rows) else fed

    if port.by == "position":
        yield "Positions are added twice: the host feeds {name}, and the model adds them too.", lambda _, fed: 0 * fed
        yield "Positions are added twice: {name} is twice what it should be.", lambda _, fed: fed / 2
        yield "The host feeds another row of {name} than that of the position.", looked_up


def _undo_masks(host: AlteredHost, port: Port) -> Changes:
    floor = host.contract.floor

    def without_window(_: Sequence[int], mask: np.ndarray) -> np.ndarray:
        return np.broadcast_to(slots_mask(host.position, host.contract.sizes["capacity"], 0, floor), mask.shape)

    if port.source is not None and port.source.window:
        yield "The contract gives {name} a window that it does not have: it is right without one.", without_window
    if floor > SHALLOW:
        text = f"The floor of {{name}} hides nothing: it is right with {FLOOR:g}."
        yield text, lambda _, mask: np.where(mask == floor, FLOOR, mask)
    text = "{name} is inverted: it is right with what is hidden and what is seen exchanged."
    yield text, lambda _, mask: np.where(mask == 0, np.asarray(floor, mask.dtype), np.asarray(0, mask.dtype))
    for step in (1, -1):
        text = f"{{name}} is shifted by one place: it is right with what is now at i {'-+'[step < 0]} 1."
        yield text, lambda _, mask, step=step: np.roll(mask, step, -1)  # type: ignore[misc]


TABLE: dict[str, tuple[Callable[[AlteredHost, Port], Changes], ...]] = {
    "embedding": (_undo_scales,),
    "rows": (_undo_positions,),
    "slots_mask": (_undo_masks,),
    "source_mask": (_undo_masks,),
}


def _file_causes(scene: Scene, facts: Facts) -> Iterator[Cause]:
    """Yield tables and weights that may be others than those of the export."""
    for fact in facts.suspects:
        yield Cause("weights", str(fact), undo=partial(facts.undone, scene.host, [fact]))


def _constant_causes(scene: Scene) -> Iterator[Cause]:
    """Yield the constants of the original that all logits may lack, or have twice."""
    model, step = scene.reference.originals.step, scene.host.step
    if model is None or not scene.tokens:
        return
    scene.start()
    size = step(scene.tokens[0]).size
    for value in (value for scope in all_scopes(model.scopes) for value in scope.initializers):
        if value.tensor is None or int(np.prod(value.tensor.dims)) != size:
            continue
        array = model.array(value.tensor).reshape(-1)
        for term, fault in ((array, "is lost"), (-array, "is added twice")):
            text = f"Logits are off by the same numbers at every step: '{value.name}' of the original {fault}."
            mended = partial(_add_term, step, term)
            yield Cause("offset", text, value.name, partial(with_attributes, scene.host, step=mended))


def _add_term(step: Callable[[int], np.ndarray], term: np.ndarray, token: int) -> np.ndarray:
    logits = step(token)
    return np.asarray(logits + term.reshape(logits.shape))


def _order_causes(scene: Scene) -> Iterator[str]:
    """Yield heads or slots of a state that are in another order, though all logits up to there are right."""
    step = scene.reference.originals.step
    entries = {value.name: entry.slot for value, entry in step.roles.pasts.items()} if step is not None else {}
    scene.start()
    for number, token in enumerate(scene.tokens if entries else (), start=1):
        logits = scene.host.step(token)
        if scene.differ(logits, scene.reference.step(token)):
            return
        for name, state in scene.host.state.items():
            known = scene.reference.cache.get(entries[name]) if name in entries else None
            if known is None or known.ndim != state.ndim or (np.array(known.shape) > state.shape).any():
                continue
            is_other = scene.differ(state[tuple(map(slice, known.shape))], known)
            if is_other and (text := describe_order(name, state, known, scene.differ)):
                yield f"The logits of step {number} are right, and what it keeps is not: {text}"
                return


def _where_it_begins(scene: Scene, facts: Facts) -> str:
    """Return where the difference begins, in a clause."""
    assert isinstance(scene.host.run, IsolatedMethods)
    run, originals, models = scene.host.run, scene.reference.originals, {**facts.models, **scene.host.run.models}
    once = next((name for name in models if name != "step"), None)
    if not is_mended(scene.once()) and once is not None and originals.encoder is not None:
        export = originals.encoder, scene.reference.fed_once(scene.source, scene.own), ""
        return _node_text(
            first_node([export], models[once], run.fed[once], scene.differ, is_padded=True), models[once].name
        )
    begin = ""
    for number, token in enumerate(scene.tokens if originals.step is not None else ()):
        assert originals.step is not None
        export = originals.step, scene.reference.fed(token), ""
        logits = scene.host.step(token)
        if scene.differ(logits, scene.reference.step(token)):
            node = first_node([export], models["step"], run.fed["step"], scene.differ, is_padded=False)
            begin = _node_text(node, models["step"].name)
            if number or originals.encoder is None:  # a decoder of later steps has no past of the source before
                return begin
    return begin or "the greedy tokens alone differ"


def _node_text(node: str, file: str) -> str:
    return f"it begins at '{node}' of {file}" if node else f"it is in {file}, or in what that is fed"
