"""Which sizes to try: legal ones, small, and telling - an empty past, odd numbers, a batch, beyond a sliding window.

The rows of `ROWS` are tried first. A wish that is not legal gives the nearest legal size; sizes at which the model
does not run teach nothing but are replaced: by sizes that models are often exported at, then by changing one size of
an assignment that did run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from onnx import TensorProto

from graphkit.graph.view import all_nodes
from graphkit.model import Model
from graphkit.verify.sizes import Role
from graphkit.verify.space import Assignment, Space, Variable

__all__ = ["MAX_COST", "assignments", "threshold"]

MAX_COST = 100_000_000  # elements that a model computes in one run
MAX_VISITS = 20_000  # assignments looked at to find a legal one
MAX_DOMAIN = 256
MAX_THRESHOLD = 4096
LONG = -1


class Row(NamedTuple):
    """Sizes that go well together."""

    batch: int
    sequence: int
    past: int
    encoder: int


ROWS = (
    Row(1, 7, 0, 5),  # a prompt
    Row(2, 1, 4, 3),  # a step
    Row(3, 1, 0, 1),
    Row(1, 3, 9, 7),  # several tokens at once
    Row(2, 5, 1, 4),
    Row(1, 1, LONG, 6),
    Row(2, 2, 6, 2),
    Row(4, 4, 3, 9),
)
COMMON = (32, 64, 16, 128, 8, 224, 256, 512, 10)  # sizes that models are exported at
BRANCHING = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Sub", "Add", "Min", "Max", "Clip", "Trilu")


def assignments(
    space: Space, successes: Sequence[Assignment], *, long: int = 19, max_cost: int = MAX_COST
) -> Iterator[dict[str, int]]:
    """Yield legal assignments, each once, the most telling first.

    Args:
        space: What is legal.
        successes: Those that ran; the caller adds to it while it iterates.
        long: A length that is long for this model.
        max_cost: Elements computed, above which an assignment is only tried where none ran.
    """
    tried: list[dict[str, int]] = []
    dear: list[dict[str, int]] = []
    for wish in _wishes(space, successes, long):
        found = _nearest(space, wish, tried)
        if found is None:
            continue
        tried.append(found)
        if space.cost(found) > max_cost:
            dear.append(found)
        else:
            yield found
    if not successes:
        yield from sorted(dear, key=space.cost)


def _wishes(space: Space, successes: Sequence[Assignment], long: int) -> Iterator[dict[str, int]]:
    yield from _rows(space, long)
    common, varied = _common(space), _variations(space, successes)
    for pair in itertools.zip_longest(common, varied):
        yield from (wish for wish in pair if wish is not None)


def _rows(space: Space, long: int) -> Iterator[dict[str, int]]:
    has_past = any(variable.role == "past" for variable in space.variables)
    for number, row in enumerate(ROWS):
        sequence = long if row.past == LONG and not has_past else row.sequence
        past = long if row.past == LONG else row.past
        sizes: Mapping[Role, int] = {
            "batch": row.batch,
            "sequence": sequence,
            "past": past,
            "encoder": row.encoder,
            "total": sequence + (past if has_past else 0),
            "channels": 3,
        }
        yield _wish(space, sizes, number)


def _wish(space: Space, sizes: Mapping[Role, int], number: int) -> dict[str, int]:
    """Return a wish for each symbol; one that is fixed speaks for the others of its role."""
    wish: dict[str, int] = {}
    for place, variable in enumerate(space.variables):
        if variable.role in sizes:
            wish[variable.name] = space.fixed_roles.get(variable.role, sizes[variable.role])
        else:
            choices = _interesting(variable)
            wish[variable.name] = choices[(number + place) % len(choices)]
    return wish


def _interesting(variable: Variable) -> list[int]:
    """Return sizes for an image, or for a symbol of which nothing is known, upwards from what it may be."""
    base = max(variable.low, 32 if variable.role == "space" else 5)
    return [base, 2 * base, base + 1, base + base // 2 + 1, base + 7, base + base // 4 + 8]


def _common(space: Space) -> Iterator[dict[str, int]]:
    for size in COMMON:
        sizes: dict[Role, int] = {"batch": 1, "past": 0, "channels": 3}
        sizes.update(dict.fromkeys(("sequence", "total", "encoder", "other", "space"), size))
        yield _wish(space, sizes, 0)


def _variations(space: Space, successes: Sequence[Assignment]) -> Iterator[dict[str, int] | None]:
    """Yield what ran with the sizes of one role changed; None while nothing ran."""
    yield from itertools.takewhile(lambda _: not successes, itertools.repeat(None, len(COMMON)))
    roles = list(dict.fromkeys(variable.role for variable in space.variables if variable.role != "total"))
    for step in (1, 2, 3, 5, 8, 16, -1, -2):
        for base, role in itertools.product(list(successes), roles):
            changed = (role, "total") if role in ("sequence", "past") else (role,)
            yield {v.name: base[v.name] + (step if v.role in changed else 0) for v in space.variables}


def _nearest(space: Space, wish: Mapping[str, int], tried: Iterable[dict[str, int]]) -> dict[str, int] | None:
    """Return the first legal assignment near a wish that was not tried, None where a search finds none."""
    known = {tuple(sorted(assignment.items())) for assignment in tried}
    found = itertools.islice(_search(space, wish, 0, {}, [MAX_VISITS]), len(known) + 1)
    return next((dict(one) for one in found if tuple(sorted(one.items())) not in known), None)


def _search(
    space: Space, wish: Mapping[str, int], depth: int, chosen: dict[str, int], visits: list[int]
) -> Iterator[dict[str, int]]:
    """Yield legal assignments, depth first, each symbol's sizes from the one wished for outwards."""
    if depth == len(space.variables):
        yield chosen
        return
    variable = space.variables[depth]
    names = {*chosen, variable.name}
    facts = [fact for fact in space.facts if variable.name in fact.symbols and fact.symbols <= names]
    forced = [size for fact in facts if fact.is_equality and (size := fact.forced(chosen, variable.name)) is not None]
    for size in dict.fromkeys(forced) if forced else _domain(variable, wish.get(variable.name)):
        visits[0] -= 1
        if visits[0] < 0:
            return
        now = {**chosen, variable.name: size}
        if variable.low <= size <= variable.high and all(fact.holds(now) for fact in facts):
            yield from _search(space, wish, depth + 1, now, visits)


def _domain(variable: Variable, wish: int | None) -> Iterator[int]:
    """Yield sizes, the one wished for first, the others by distance; of images multiples of powers of two before.

    A wish that is too small is one for so much above the least; of images one that is too large for as much below.
    """
    low, wished, most, is_free = variable.low, wish or 0, variable.high, variable.role in ("space", "other")
    high = int(min(most, max(2 * low, low + MAX_DOMAIN)))
    if wished < low:
        wished = low + max(wished, 0)
    start = int(most - (wished - most) % (most - low + 1) if is_free and wished > most else min(wished, most))
    seen = {start}
    yield start
    for divisor in (32, 16, 8, 1) if is_free else (1,):
        sizes = range(-(-low // divisor) * divisor, high + 1, divisor)
        for size in sorted(sizes, key=lambda size: abs(size - start)):
            if size not in seen:
                seen.add(size)
                yield size


def threshold(model: Model) -> int:
    """Return a length beyond which a model may behave otherwise, such as its sliding window; 16 where none shows.

    That is the largest number, up to a few thousand, that positions are compared with or cut at.
    """
    found = [16]
    for node in all_nodes(model.scopes):
        if node.is_op(*BRANCHING):
            numbers = (value.constant for value in node.inputs if value is not None)
            scalars = [t for t in numbers if t is not None and t.data_type in (TensorProto.INT32, TensorProto.INT64)]
            found += [abs(int(model.array(t).reshape(-1)[0])) for t in scalars if list(t.dims) in ([], [1])]
        elif (window := node.attributes.get("local_window_size")) is not None:
            found.append(window.i)
    return max(size for size in found if size <= MAX_THRESHOLD)
