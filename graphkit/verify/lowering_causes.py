"""Causes of a lowering's differences: usual faults of a host's feeds, and symptoms where undoing none of them helps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from graphkit.deploy.contract import Method, Port
from graphkit.deploy.hosts import Host
from graphkit.deploy.hosts.host_arrays import slots_mask
from graphkit.graph.cache_entries import Slot
from graphkit.graph.view import all_scopes
from graphkit.verify.cause_search import CLEAR, Cause, find_sole_cause, is_mended, with_attributes
from graphkit.verify.first_difference import first_node, order
from graphkit.verify.lowering_differences import Facts
from graphkit.verify.lowering_leaks import NOISE, STEPS, leaks
from graphkit.verify.lowering_scene import AlteredHost, Changing, IsolatedMethods, Scene

__all__ = ["named"]

SHALLOW, FLOOR = -10.0, -1e4  # a floor that scores may be below, and one that they are not
CLOSE = 0.01  # relative, of what counts as the same number


def named(scene: Scene, calm: Scene | None, facts: Facts, rng: np.random.Generator) -> list[str]:
    """Return the causes of a failing case besides the known differences of the files.

    Args:
        scene: The case.
        calm: Another case, whose padding and unused slots are filled with noise; None for none.
        facts: What differs in the files; that is mended first.
        rng: Of the noise.
    """
    with facts.undone(scene.host, facts.sure):
        if facts.sure and is_mended(scene.distances()):
            return []
        causes = list(_fed(scene)) or ([] if calm is None else list(leaks(calm, rng))) or list(_lost(scene))
        suspects = (
            Cause("weights", str(fact), undo=partial(facts.undone, scene.host, (*facts.sure, fact)))
            for fact in facts.suspects
        )
        if not causes and (cause := find_sole_cause(scene.distances, suspects)):
            causes = [cause.text]
        return causes or [f"No simple cause; {_begin(scene, facts)}."]


def _fed(scene: Scene) -> Iterator[str]:
    """Yield the input faults that explain the encoder and the steps, else the symptoms of the steps."""
    was_wrong = not is_mended(scene.once())
    if was_wrong and (cause := find_sole_cause(scene.once, _changes(scene.host, "once"))):
        yield cause.text
    steps = _Steps.of(scene) if scene.tokens else None
    if steps is None:
        return
    if is_mended(steps.distances()):
        yield from () if was_wrong else steps.order()
    elif cause := find_sole_cause(steps.distances, _changes(scene.host, "step"), steps.shifts()):
        yield cause.text
    else:
        yield from steps.frozen()


def _ports(host: Host, when: str) -> Iterator[tuple[Method, Port]]:
    methods = [method for method in host.contract.methods if method.when == when]
    yield from ((method, port) for method in methods for port in method.inputs)


@dataclass(frozen=True, eq=False)
class _Moment:
    """A step of the original: the cache before it, and its logits."""

    token: int
    past: int
    cache: Mapping[Slot, np.ndarray]
    logits: np.ndarray


@dataclass(eq=False)
class _Steps:
    """The first steps of the original, each to be repeated by the host on the original's cache.

    Attributes:
        scene: The case.
        moments: The steps.
        names: Which place of the original's cache each state is.
    """

    scene: Scene
    moments: Sequence[_Moment]
    names: Mapping[str, Slot]

    @classmethod
    def of(cls, scene: Scene) -> _Steps | None:
        """Return the steps; None where a state has not the layout of the original's cache."""
        host, step = scene.host, scene.reference.originals.step
        windows = [port.source.window for _, port in _ports(host, "step") if port.source is not None]
        moments, most = list[_Moment](), max(STEPS, *(2 * window + STEPS for window in windows if window), 0)
        for past, token in enumerate(scene.tokens[:most]):  # more than a window is long
            before = dict(scene.reference.cache)
            logits = scene.reference.step(token)  # what does not grow in its cache is known before the first of them
            moments.append(_Moment(token, past, before or dict(scene.reference.cache), logits))
        pasts = {value.name: entry.slot for value, entry in step.roles.pasts.items()} if step is not None else {}
        names = {name: pasts[name] for name in host.state if pasts.get(name) in scene.reference.cache}
        fit = names.keys() == host.state.keys() and all(
            _fits(state, moments[0].cache[names[name]], host.axis[name]) for name, state in host.state.items()
        )
        return cls(scene, moments, names) if fit else None

    def distances(self) -> Iterator[float]:
        """Yield how far each step is from the original's, on the cache of the original."""
        return (self.scene.distance(self._logits(moment), moment.logits) for moment in self.moments)

    def _logits(self, moment: _Moment) -> np.ndarray:
        host = self.scene.host
        host.position = moment.past
        for name, state in host.state.items():
            state[...] = 0
            axis, known = host.axis[name], moment.cache[self.names[name]]
            if axis is None:
                state[tuple(slice(size) for size in known.shape)] = known
            else:
                np.moveaxis(state, axis, 0)[: moment.past] = np.moveaxis(known, axis, 0)[: moment.past]
        return np.array(host.step(moment.token))

    def _positions(self) -> Iterator[tuple[str, Port, np.ndarray]]:
        """Yield the inputs that are rows of positions: in words, as a port, and their table."""
        for method, port in _ports(self.scene.host, "step"):
            if port.kind == "rows" and port.by == "position":
                yield f"'{port.name}' of {method.name}", port, self.scene.host.tables[port.of]

    def shifts(self) -> Iterator[Cause]:
        """Yield rows of positions that are those of the next or the last position, where the table has these."""
        for name, port, rows in self._positions():
            for step, which in ((1, "after"), (-1, "before")):
                if any(0 <= moment.past + step < len(rows) for moment in self.moments):
                    words = f"Positions are off by one: {name} is right with the row of the position {which}."
                    yield Cause("positions", words, undo=partial(self._shifted, port, rows, step))

    @contextmanager
    def _shifted(self, port: Port, rows: np.ndarray, step: int) -> Iterator[None]:
        known = [moment for moment in self.moments if 0 <= moment.past + step < len(rows)]
        host = self.scene.host
        with with_attributes(self, moments=known), host.altered(port, _row(host, rows, step)):
            yield

    def order(self) -> Iterator[str]:
        """Yield how the host's state differs from the original's cache, on which each step is right."""
        scene = self.scene
        scene.start()
        steps = max(1, min(STEPS, scene.host.contract.sizes["capacity"]) - 1)  # a slot is left for what is one too far
        for token in scene.tokens[:steps]:
            scene.reference.step(token)
            scene.host.step(token)
        cache = scene.reference.cache
        for name, state in scene.host.state.items():
            axis, known = scene.host.axis[name], cache[self.names[name]]
            part = state[tuple(slice(size) for size in known.shape)]
            if part.shape != known.shape or scene.differ(part, known):
                where = order(name, state, known, axis, scene.differ)
                yield f"Each step is right on the cache of the original: {where}"
                return

    def frozen(self) -> Iterator[str]:
        """Yield positions that are the same at each step."""
        for name, port, rows in self._positions():
            if len(rows) > 1 and all(np.array_equal(row, rows[0]) for row in rows):
                yield f"Positions are frozen: all rows of the table of {name} are the same."
                return
            if self._ignores(port) and self._sees_past():
                yield f"Positions are frozen: {name} changes nothing."
                return
        if self._is_same_at_two_positions():
            yield "Positions are frozen: a token leaves the same in all slots, and in the original it does not."

    def _ignores(self, port: Port) -> bool:
        """Whether noise in place of an input leaves the logits of each step as they are, to the last bit."""
        plain, rng = [self._logits(moment) for moment in self.moments], np.random.default_rng(0)
        noise = rng.normal(0, NOISE, port.shape).astype(port.dtype)
        with with_attributes(self.scene.host, alter=lambda fed_port, _, fed: noise if fed_port is port else fed):
            return all(map(np.array_equal, plain, map(self._logits, self.moments)))

    def _sees_past(self) -> bool:
        """Whether noise in the cache clearly changes the logits: to a lone token, its position may mean nothing."""
        host, moment, rng, logits = self.scene.host, self.moments[-1], np.random.default_rng(1), list[np.ndarray]()
        for _ in range(2):
            host.position = moment.past
            for name, state in host.state.items():
                if host.axis[name] is not None:
                    state[...] = rng.normal(0, NOISE, state.shape)
            logits.append(host.step(moment.token).copy())
        return self.scene.distance(*logits) >= CLEAR

    def _is_same_at_two_positions(self) -> bool:
        """Whether a token leaves the same in two slots, where it clearly leaves something else in the original."""
        scene = self.scene
        scene.start()
        if scene.host.contract.sizes["capacity"] < 2:
            return False
        for _ in range(2):
            scene.host.step(scene.tokens[0])
            scene.reference.step(scene.tokens[0])
        for name, axis in scene.host.axis.items():
            if axis is not None:
                arrays = scene.host.state[name], scene.reference.cache[self.names[name]]
                mine, theirs = (np.moveaxis(array, axis, 0) for array in arrays)
                if np.array_equal(mine[0], mine[1]) and scene.distance(theirs[0], theirs[1]) >= CLEAR:
                    return True
        return False


def _fits(state: np.ndarray, known: np.ndarray, axis: int | None) -> bool:
    """Whether a state has the layout of the original's cache: its dtype and dims, with as many slots or more."""
    if known.ndim != state.ndim or known.dtype != state.dtype:
        return False
    dims = enumerate(zip(known.shape, state.shape, strict=True))
    return not any(
        known_dim > state_dim if axis is None else known_dim != state_dim and at != axis
        for at, (known_dim, state_dim) in dims
    )


def _changes(host: AlteredHost, when: str) -> Iterator[Cause]:
    """Yield the usual faults of the inputs of methods, each with the change that mends it."""
    for method, port in _ports(host, when):
        for words, change in _faults(host, port):
            yield Cause(
                "positions",
                words.format(name=f"'{port.name}' of {method.name}"),
                undo=partial(host.altered, port, change),
            )


def _faults(host: Host, port: Port) -> Iterator[tuple[str, Changing]]:
    source = port.source
    if source is None or source.kind not in ("embedding", "rows", "slots_mask", "source_mask"):
        return
    if source.kind in ("slots_mask", "source_mask"):
        yield from _masks(host, source.window)
        return
    rows = host.tables[source.of]
    if source.kind == "embedding":
        factor = float(np.sqrt(rows.shape[-1]))
        yield f"{{name}} is scaled twice: it is right divided by {factor:.6g}.", lambda _, fed: fed / factor
        yield f"{{name}} is not scaled: it is right times {factor:.6g}.", lambda _, fed: fed * factor
        if rows.ndim == 2 and source.by != "type":
            turned = np.asarray(rows).reshape(rows.shape[1:] + rows.shape[:1])

            def looked_up(ids: Sequence[int], fed: np.ndarray) -> np.ndarray:
                pad = [host.contract.tokens["pad"] or 0] * (fed.size // rows.shape[1] - len(ids))
                return np.asarray(turned.T[[*ids, *pad]])

            yield "The table of {name} is transposed: it has its columns where its rows should be.", looked_up
    elif source.by == "position":
        yield "Positions are added twice: the host feeds {name}, and the model adds them too.", lambda _, fed: 0 * fed
        yield "Positions are added twice: {name} is twice what it should be.", lambda _, fed: fed / 2
        yield "The host feeds another row of {name} than that of the position.", _row(host, rows, 0)


def _masks(host: Host, window: int) -> Iterator[tuple[str, Changing]]:
    """Yield masks over the slots without their window, and masks of a floor that hides."""
    if window:
        capacity, floor = host.contract.sizes["capacity"], host.contract.floor

        def whole(_: Sequence[int], mask: np.ndarray) -> np.ndarray:
            return np.broadcast_to(slots_mask(host.position, capacity, 0, floor), mask.shape)

        yield "The contract gives {name} a window that it does not have: it is right without one.", whole
    if host.contract.floor > SHALLOW:
        words = f"The floor of {{name}} hides nothing: it is right with {FLOOR:g}."
        yield words, lambda _, mask: np.where(mask == host.contract.floor, FLOOR, mask)


def _row(host: Host, rows: np.ndarray, step: int) -> Changing:
    return lambda _, fed: rows[place] if 0 <= (place := host.position + step) < len(rows) else fed


def _lost(scene: Scene) -> Iterator[str]:
    """Yield the constant of the original that all logits lack, or have twice: without its numbers they are right."""
    model = scene.reference.originals.step
    scene.start()
    pairs = list(scene.steps()) if model is not None else []
    if model is None or not pairs or any(expected.shape != actual.shape for expected, actual in pairs):
        return
    offset = pairs[0][0].astype(np.float64) - pairs[0][1]
    mended = [((expected - offset).astype(actual.dtype), actual) for expected, actual in pairs]
    if not is_mended(itertools.starmap(scene.distance, mended), max(itertools.starmap(scene.distance, pairs))):
        return
    for value in (value for scope in all_scopes(model.scopes) for value in scope.initializers):
        if value.tensor is None or int(np.prod(value.tensor.dims)) != offset.size:
            continue
        array = model.array(value.tensor).reshape(-1).astype(np.float64)
        for sign, fault in ((-1, "is lost"), (1, "is added twice")):
            if np.allclose(offset, sign * array, CLOSE, 1e-3 * np.abs(offset).max()):
                yield f"Logits are off by the same numbers at every step: '{value.name}' of the original {fault}."
                return


def _begin(scene: Scene, facts: Facts) -> str:
    """Return where the difference begins, in a clause."""
    assert isinstance(scene.host.run, IsolatedMethods)
    run, originals, models = scene.host.run, scene.reference.originals, {**facts.models, **scene.host.run.models}
    once = next((name for name in models if name != "step"), None)
    if not is_mended(scene.once()) and once is not None and originals.encoder is not None:
        export = originals.encoder, scene.reference.fed_once(scene.source, scene.own), ""
        return _at(first_node([export], models[once], run.fed[once], scene.differ, is_padded=True), models[once].name)
    step, begin = originals.step, ""
    for number, token in enumerate(scene.tokens):
        if step is None:
            break
        export = step, scene.reference.fed(token), ""
        logits = scene.host.step(token)
        if scene.differ(logits, scene.reference.step(token)):
            node = first_node([export], models["step"], run.fed["step"], scene.differ, is_padded=False)
            begin = begin or _at(node, models["step"].name)
            if number or originals.encoder is None:  # a decoder of later steps has no past of the source before
                return _at(node, models["step"].name)
    return begin or "the greedy tokens alone differ"


def _at(node: str, file: str) -> str:
    return f"it begins at '{node}' of {file}" if node else f"it is in {file}, or in what that is fed"
