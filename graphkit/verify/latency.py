"""Latency before and after a rewrite, in onnxruntime: both run in turns, in one process, with equal options."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from graphkit.analysis.cost_changes import BeforeAndAfter, CostChange, Latency, SizedModel, cost_change
from graphkit.analysis.node_costs import Amount
from graphkit.analysis.typical_sizes import indexed_dims
from graphkit.errors import GraphkitError, UsageError
from graphkit.model import Model
from graphkit.progress import DEFAULT_LIMITS, Limits
from graphkit.runtime.isolation import shared_isolation
from graphkit.runtime.providers import CPU, Provider
from graphkit.runtime.session import IsolatedSession, as_provider, as_read
from graphkit.shapes.constraints.legal_sizes import Sizes, symbol_roles
from graphkit.verify.input_generator import InputGenerator

ROUNDS, FEWEST, UNCOUNTED = 25, 5, 2
SECONDS = 10.0  # after which no further round begins, once there are the fewest
THREADS = 1
Feed = Mapping[str, np.ndarray]


def costs_before_and_after(
    models: BeforeAndAfter,
    *,
    what: str = "",
    timed: bool = False,
    limits: Limits = DEFAULT_LIMITS,
    provider: str = CPU.name,
) -> CostChange:
    """Count costs, which are called `what`, before and after a rewrite; with `timed`, measure the latency of both."""
    change = cost_change(models, what)
    if not timed or change.unknown:
        return change
    try:
        if any(model.path is not None and model.path == models.after.path for model in models.before):
            raise UsageError(f"{models.after.label}: it has replaced the original - name another file to write")
        with shared_isolation(limits):
            return replace(change, latency=_measure_latency(models, as_provider(provider)))
    except GraphkitError as error:
        return replace(change, untimed=str(error))


def _measure_latency(models: BeforeAndAfter, provider: Provider) -> Latency:
    originals, result = models.choose_sizes()
    before, after = models.before, models.after
    feeds = [_timed_feed(model, size_text) for model, size_text in zip(before, originals, strict=True)]
    with contextlib.ExitStack() as stack:
        runs = [*zip([stack.enter_context(_timed_session(model, provider)) for model in before], feeds, strict=True)]
        own, known = _timed_feed(after, result), {name: array for feed in feeds for name, array in feed.items()}
        shared, wanted = ({name: (a.shape, a.dtype) for name, a in each.items()} for each in (known, own))
        same = {name: known[name] for name in own} if wanted.items() <= shared.items() else own
        last = stack.enter_context(_timed_session(after, provider)), {**same, **models.values_at(result.sizes)}
        began, times = time.monotonic(), list[tuple[float, float]]()
        while len(times) < UNCOUNTED + ROUNDS:
            if len(times) >= UNCOUNTED + FEWEST and time.monotonic() - began > SECONDS:
                break
            times.append((sum(_time_run(session, feed) for session, feed in runs), _time_run(*last)))
    counted = times[UNCOUNTED:]
    ratios = [now / was for was, now in counted]
    was, now = (statistics.median(seconds) * 1000 for seconds in zip(*counted, strict=True))
    ratio, low, high = statistics.median(ratios), min(ratios), max(ratios)
    return Latency(was, now, ratio, low, high, rounds=len(counted), threads=THREADS, provider=provider.name)


def _timed_session(model: Model, provider: Provider) -> IsolatedSession:
    return IsolatedSession(as_read(model), optimize=True, threads=THREADS, provider=provider)


def _time_run(session: IsolatedSession, feed: Feed) -> float:
    session.run(feed)
    return session.took


def _timed_feed(model: Model, size_text: SizedModel) -> Feed:
    roles = symbol_roles(model)
    by_role: dict[str, int] = {role: size_text.known[name] for name, role in roles.items() if name in size_text.known}
    known = {role: by_role[role] for role in ("batch", "sequence", "past", "encoder") if role in by_role}
    sizes = Sizes(**known, symbols=tuple(size_text.known.items()))
    later = sizes.past > 0
    fixed_arrays = {
        decoder.condition.input.name: np.full(decoder.condition.shape, decoder.cache_when == later)
        for decoder in model.roles.merged
    }
    generator = InputGenerator(model)
    shapes = generator.shapes(sizes)
    rng = np.random.default_rng(0)
    for value in size_text.shapes.model.roles.inputs:  # what indexes computed tensors, such as the nodes of a graph
        dims = indexed_dims(value, size_text.shapes)
        if rows := [size for dim in dims if (size := Amount.of(dim).at(size_text.sizes))]:
            fixed_arrays[value.name] = generator.array(value, shapes.get(value.name), rng, bound=min(rows))
    return generator.arrays(shapes, past=sizes.past, given=fixed_arrays)
