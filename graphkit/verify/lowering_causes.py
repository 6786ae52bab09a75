"""Why host and lowered models differ from the originals: each usual mistake is undone, to see whether that mends it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.deploy.contract import Method, Port
from graphkit.deploy.hosts import Host
from graphkit.deploy.hosts.host_arrays import slots_mask
from graphkit.graph.cache_entries import Slot
from graphkit.graph.view import all_scopes
from graphkit.model import Model
from graphkit.verify.first_difference import first_node
from graphkit.verify.lowering_differences import Fact, Facts
from graphkit.verify.lowering_scene import NOISE, STEPS, AlteredHost, IsolatedMethods, Scene, cache_order, leaks

__all__ = ["causes", "is_wrong_once", "lost_bias", "named"]

SHALLOW, FLOOR = -10.0, -1e4  # a floor that scores may be below, and one that they are not
Changing = Callable[[Sequence[int], np.ndarray], np.ndarray]
Change = tuple[str, Changing]


@dataclass(frozen=True, eq=False)
class _Moment:
    """A step of the original: the cache before it, and its logits."""

    token: int
    past: int
    cache: Mapping[Slot, np.ndarray]
    logits: np.ndarray


def causes(scene: Scene) -> Iterator[str]:
    """Yield the causes of a difference, a sentence each: changes that mend it, else its symptoms."""
    hidden = scene.reference.start(scene.source, scene.own)
    outputs = scene.host.start(scene.source, scene.user)
    once = list(_ports(scene, "once"))
    was_wrong = is_wrong_once(scene, outputs, hidden)
    if was_wrong:
        yield from _mending(
            scene, once, lambda: not is_wrong_once(scene, scene.host.start(scene.source, scene.user), hidden)
        )
    if not scene.tokens:
        return
    moments = _moments(scene)
    names = _slots(scene)
    if names is None or not _fits(scene.host, moments[0], names):
        return

    def is_right() -> bool:
        return all(_is_right(scene, moment, names) for moment in moments)

    if is_right():
        yield from () if was_wrong else cache_order(scene, names)
        return
    steps = list(_ports(scene, "step"))
    found = list(_mending(scene, steps, is_right)) or list(_shifted(scene, steps, moments, names))
    yield from found or _frozen(scene, steps, moments, names)


def is_wrong_once(scene: Scene, outputs: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> bool:
    """Whether the outputs of the method that runs once are wrong, at valid positions."""
    if scene.host.hides_states:
        return False
    parts = {name: tuple(slice(size) for size in array.shape) for name, array in wanted.items()}
    return any(name not in outputs or scene.differ(outputs[name][parts[name]], wanted[name]) for name in wanted)


def _ports(scene: Scene, when: str) -> Iterator[tuple[Method, Port]]:
    for method in scene.host.contract.methods:
        if method.when == when:
            yield from ((method, port) for port in method.inputs)


def _moments(scene: Scene) -> list[_Moment]:
    """Return the first steps of the original, more than a window is long.

    What does not grow in its cache is known before the first of them.
    """
    moments = []
    windows = [port.source.window for _, port in _ports(scene, "step") if port.source is not None]
    steps = max(STEPS, *(2 * window + STEPS for window in windows if window)) if any(windows) else STEPS
    for past, token in enumerate(scene.tokens[:steps]):
        before = dict(scene.reference.cache)
        logits = scene.reference.step(token)
        moments.append(_Moment(token, past, before or dict(scene.reference.cache), logits))
    return moments


def _slots(scene: Scene) -> dict[str, Slot] | None:
    """Return which place of the original's cache each state is, None where one is none."""
    step = scene.reference.originals.step
    pasts = {value.name: entry.slot for value, entry in step.roles.pasts.items()} if step is not None else {}
    known = set(scene.reference.cache)
    names = {name: pasts[name] for name in scene.host.state if pasts.get(name) in known}
    return names if names.keys() == scene.host.state.keys() else None


def _fits(host: Host, moment: _Moment, names: Mapping[str, Slot]) -> bool:
    """Whether states have the layout of the original's cache."""
    for name, state in host.state.items():
        known, axis = moment.cache[names[name]], host.axis[name]
        if known.ndim != state.ndim or known.dtype != state.dtype:
            return False
        dims = zip(known.shape, state.shape, strict=True)
        if any(one > two if axis is None else one != two and at != axis for at, (one, two) in enumerate(dims)):
            return False
    return True


def _is_right(scene: Scene, moment: _Moment, names: Mapping[str, Slot]) -> bool:
    """Whether a step gives the logits of the original, on the cache of the original."""
    host = scene.host
    host.position = moment.past
    for name, state in host.state.items():
        state[...] = 0
        axis, known = host.axis[name], moment.cache[names[name]]
        if axis is None:
            state[tuple(slice(size) for size in known.shape)] = known
        else:
            np.moveaxis(state, axis, 0)[: moment.past] = np.moveaxis(known, axis, 0)[: moment.past]
    return not scene.differ(host.step(moment.token), moment.logits)


def _mending(scene: Scene, ports: Sequence[tuple[Method, Port]], is_right: Callable[[], bool]) -> Iterator[str]:
    """Yield the change of the inputs that mends the difference, where only one does."""
    found = [
        words.format(name=f"'{port.name}' of {method.name}")
        for method, port in ports
        for words, change in _changes(scene.host, port)
        if _with(scene.host, port, change, is_right)
    ]
    yield from found if len(found) == 1 else ()


def _shifted(
    scene: Scene, ports: Sequence[tuple[Method, Port]], moments: Sequence[_Moment], names: Mapping[str, Slot]
) -> Iterator[str]:
    """Yield that the rows of positions are those of the next or the last position, where the table has these."""
    for (method, port), (step, which) in itertools.product(ports, ((1, "after"), (-1, "before"))):
        source = port.source
        if source is None or source.kind != "rows" or source.by != "position":
            continue
        rows = scene.host.tables[source.of]
        known = [moment for moment in moments if 0 <= moment.past + step < len(rows)]

        def is_right(known: Sequence[_Moment] = known) -> bool:
            return bool(known) and all(_is_right(scene, moment, names) for moment in known)

        if _with(scene.host, port, _row(scene.host, rows, step), is_right):
            words = f"'{port.name}' of {method.name} is right with the row of the position {which}"
            yield f"Positions are off by one: {words}."
            return


def _with(host: AlteredHost, port: Port, change: Changing, is_right: Callable[[], bool]) -> bool:
    """Whether it is right with an input changed."""

    def alter(one: Port, ids: Sequence[int], made: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(change(ids, made)).reshape(made.shape) if one is port else made

    host.alter = alter
    try:
        return is_right()
    finally:
        host.alter = None


def _changes(host: Host, port: Port) -> Iterator[Change]:
    """Yield the possible faults of an input, each with the change that mends it."""
    source = port.source
    if source is None or source.kind not in ("embedding", "rows", "slots_mask", "source_mask"):
        return
    if source.kind in ("slots_mask", "source_mask"):
        yield from _masks(host, source.window)
        return
    rows = host.tables[source.of]
    if source.kind == "embedding":
        factor = float(np.sqrt(rows.shape[-1]))
        yield f"{{name}} is scaled twice: it is right divided by {factor:.6g}.", lambda _, made: made / factor
        yield f"{{name}} is not scaled: it is right times {factor:.6g}.", lambda _, made: made * factor
        is_by_token = rows.ndim == 2 and source.by != "type"
        turned = np.asarray(rows).reshape(rows.shape[1:] + rows.shape[:1]) if is_by_token else None
        if turned is not None:

            def looked_up(ids: Sequence[int], made: np.ndarray) -> np.ndarray:
                pad = [host.contract.tokens["pad"] or 0] * (made.size // rows.shape[1] - len(ids))
                return np.asarray(turned.T[[*ids, *pad]])

            yield "The table of {name} is transposed: it has its columns where its rows should be.", looked_up
    elif source.by == "position":
        yield "Positions are added twice: the host feeds {name}, and the model adds them too.", lambda _, made: 0 * made
        yield "Positions are added twice: {name} is twice what it should be.", lambda _, made: made / 2
        yield "The host feeds another row of {name} than that of the position.", _row(host, rows, 0)


def _masks(host: Host, window: int) -> Iterator[Change]:
    """Yield masks over the slots without their window, and masks of a floor that hides."""
    if window:
        capacity, floor = host.contract.sizes["capacity"], host.contract.floor

        def whole(_: Sequence[int], made: np.ndarray) -> np.ndarray:
            return np.broadcast_to(slots_mask(host.position, capacity, 0, floor), made.shape)

        yield "The contract gives {name} a window that it does not have: it is right without one.", whole
    if host.contract.floor > SHALLOW:
        words = f"The floor of {{name}} hides nothing: it is right with {FLOOR:g}."
        yield words, lambda _, made: np.where(made == host.contract.floor, FLOOR, made)


def _row(host: Host, rows: np.ndarray, step: int) -> Changing:
    return lambda _, made: rows[place] if 0 <= (place := host.position + step) < len(rows) else made


def _frozen(
    scene: Scene, ports: Sequence[tuple[Method, Port]], moments: Sequence[_Moment], names: Mapping[str, Slot]
) -> Iterator[str]:
    """Yield positions that are the same at each step."""
    rng = np.random.default_rng(0)
    for method, port in ports:
        source = port.source
        if source is None or source.kind != "rows" or source.by != "position":
            continue
        rows, name = scene.host.tables[source.of], f"'{port.name}' of {method.name}"
        if len(rows) > 1 and all(np.array_equal(row, rows[0]) for row in rows):
            yield f"Positions are frozen: all rows of the table of {name} are the same."
            return
        noise = rng.normal(0, NOISE, port.shape).astype(port.dtype)
        _is_right(scene, moments[-1], names)
        plain = scene.host.given[_logits(method)]
        scene.host.alter = lambda one, _, made, port=port, noise=noise: noise if one is port else made
        _is_right(scene, moments[-1], names)
        scene.host.alter = None
        ignored = np.array_equal(plain, scene.host.given[_logits(method)])
        if ignored and _sees_past(scene, moments[-1], method, rng):
            yield f"Positions are frozen: {name} changes nothing."
            return
    if _is_same_at_two_positions(scene, names):
        yield "Positions are frozen: a token leaves the same in all slots, and in the original it does not."


def _sees_past(scene: Scene, moment: _Moment, method: Method, rng: np.random.Generator) -> bool:
    """Whether the contents of the cache change the logits: to a lone token, its position may mean nothing."""
    host, found = scene.host, list[np.ndarray]()
    for _ in range(2):
        host.position = moment.past
        for name, state in host.state.items():
            if host.axis[name] is not None:
                state[...] = rng.normal(0, NOISE, state.shape)
        host.step(moment.token)
        found.append(host.given[_logits(method)].copy())
    return not np.array_equal(found[0], found[1])


def _logits(method: Method) -> str:
    return f"{method.name}/{next(port.name for port in method.outputs if not port.writes)}"


def _is_same_at_two_positions(scene: Scene, names: Mapping[str, Slot]) -> bool:
    """Whether a token leaves the same in two slots where it leaves something else in the original."""
    scene.host.start(scene.source, scene.user)
    scene.reference.start(scene.source, scene.own)
    if scene.host.contract.sizes["capacity"] < 2:
        return False
    for _ in range(2):
        scene.host.step(scene.tokens[0])
        scene.reference.step(scene.tokens[0])
    cache = scene.reference.cache
    for name, axis in scene.host.axis.items():
        if axis is not None:
            mine, theirs = (np.moveaxis(x, axis, 0) for x in (scene.host.state[name], cache[names[name]]))
            if np.array_equal(mine[0], mine[1]) and scene.differ(theirs[0], theirs[1]):
                return True
    return False


def named(scene: Scene, calm: Scene | None, facts: Facts, rng: np.random.Generator) -> list[str]:
    """Return the causes of a failing case besides the known differences of the files.

    Args:
        scene: The case.
        calm: Another case, whose padding and unused slots are filled with noise; None for none.
        facts: What differs in the files; that is mended first.
        rng: Of the noise.
    """
    try:
        facts.undo(scene.host, facts.sure)
        if facts.sure and _is_case_right(scene):
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


def _is_case_right(scene: Scene) -> bool:
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
        return _is_case_right(scene)

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


CLOSE = 0.01  # relative, of what counts as the same number


def _offset(differences: Sequence[np.ndarray], tolerance: float) -> np.ndarray | None:
    """Return the offset of the logits if it is the same at every step, else None."""
    offset = differences[0] if differences else None
    if offset is None or not all(np.allclose(one, offset, CLOSE, 10 * tolerance) for one in differences):
        return None
    return offset


def lost_bias(model: Model, differences: Sequence[np.ndarray], tolerance: float) -> str:
    """Return which constant of the original the logits lack, or have twice, in a sentence; "" for none."""
    offset = _offset(differences, tolerance)
    for value in (value for scope in all_scopes(model.scopes) for value in scope.initializers):
        tensor = value.tensor
        if offset is None or tensor is None or int(np.prod(tensor.dims)) != offset.size:
            continue
        array = model.array(tensor).reshape(-1).astype(np.float64)
        for sign, what in ((-1, "is lost"), (1, "is added twice")):
            if np.allclose(offset, sign * array, CLOSE, 10 * tolerance):
                return f"Logits are off by the same numbers at every step: '{value.name}' of the original {what}."
    return ""
