"""Which sizes to try: legal ones, small, and telling - an empty past, odd numbers, a batch, beyond a sliding window.

The rows of `ROWS` are tried first, with the lengths that matter to the model. A wish that is not legal gives the
nearest legal size; sizes at which the model does not run teach nothing but are replaced: by sizes that models are often
exported at, then by changing one size of an assignment that did run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from graphkit.constraints.assignment_search import Variable
from graphkit.constraints.evaluate import Assignment
from graphkit.constraints.legal_sizes import LegalSizes
from graphkit.constraints.symbol_sizes import Role
from graphkit.verify.lengths import Lengths

__all__ = ["MAX_COST", "Proposal", "Row", "assignments", "wish_of"]

MAX_COST = 100_000_000  # elements that a model computes in one run
MAX_DEAR = 3  # assignments of a higher cost to try, the cheapest first
NO_LENGTHS = Lengths()
LONG, END = -1, -2  # lengths of the model's own: past its windows, and up to the end of its table of positions


class Row(NamedTuple):
    """Sizes that go well together."""

    batch: int
    sequence: int
    past: int
    encoder: int


class Proposal(NamedTuple):
    """An assignment to run at.

    Attributes:
        is_probe: Whether it only asks where a table ends: it may be past it.
    """

    dims: dict[str, int]
    is_probe: bool


ROWS = (
    Row(1, 7, 0, 5),  # a prompt
    Row(2, 1, 4, 3),  # a step
    Row(3, 1, 0, 1),
    Row(1, 3, 9, 7),  # several tokens at once
    Row(1, 1, LONG, 33),
    Row(1, LONG, 0, 6),
    Row(1, 1, END, 4),
    Row(2, 5, 1, 4),
    Row(2, 2, 6, 2),
    Row(4, 4, 3, 9),
)
COMMON = (32, 64, 16, 128, 8, 224, 256, 512, 10)  # sizes that models are exported at


def assignments(
    legal: LegalSizes,
    successes: Sequence[Assignment],
    *,
    lengths: Lengths = NO_LENGTHS,
    is_first: bool = False,
    max_cost: int = MAX_COST,
) -> Iterator[Proposal]:
    """Yield legal assignments, each once, the most telling first.

    Args:
        legal: What is legal.
        successes: Those that ran; the caller adds to it while it iterates.
        lengths: Lengths that matter to this model.
        is_first: Whether a merged decoder runs the branch that does not read the past.
        max_cost: Elements computed, above which an assignment is only tried where none ran.
    """
    tried: list[dict[str, int]] = []
    dear: list[dict[str, int]] = []
    for choices in _wishes(legal, successes, lengths, is_first):
        known = len(successes)
        for wish in choices:
            found = _nearest(legal, wish, tried)
            if found is None:
                continue
            if legal.cost(found) > max_cost:
                dear.append(found)
                continue
            tried.append(found)
            yield Proposal(found, wish is not choices[-1])
            if len(successes) > known:
                break
    if not successes:
        yield from (Proposal(found, False) for found in sorted(dear, key=legal.cost)[:MAX_DEAR])


Choices = Sequence[dict[str, int]]  # of these one that runs is enough


def _wishes(legal: LegalSizes, successes: Sequence[Assignment], lengths: Lengths, is_first: bool) -> Iterator[Choices]:
    has_past = not is_first and any(variable.role == "past" for variable in legal.variables)
    for number, row in enumerate(ROWS):
        if row.sequence == LONG and not has_past:  # the row before was that
            continue
        choices = {LONG: lengths.beyond, END: lengths.ends}
        special = next((choices[size] for size in (row.past, row.sequence) if size in choices), (0,))
        yield [_wish(legal, _sizes(row, length, has_past), number) for length in special]
    common, varied = _common(legal), _variations(legal, successes)
    for pair in itertools.zip_longest(common, varied):
        yield from ([wish] for wish in pair if wish is not None)


def wish_of(legal: LegalSizes, row: Row, number: int, has_past: bool) -> dict[str, int]:
    """Return the sizes of a row as a wish for each symbol."""
    return _wish(legal, _sizes(row, 0, has_past), number)


def _sizes(row: Row, length: int, has_past: bool) -> dict[Role, int]:
    """Return a size for each role, with a length that is the model's own where the row wants one."""
    sequence = length if row.sequence < 0 else row.sequence
    past = row.past
    if past < 0:
        past = length - (row.past == END)  # the new token takes the last row
        sequence = sequence if has_past else length
    return {
        "batch": row.batch,
        "sequence": sequence,
        "past": max(past, 0),
        "encoder": row.encoder,
        "total": sequence + (past if has_past else 0),
        "channels": 3,
    }


def _wish(legal: LegalSizes, sizes: Mapping[Role, int], number: int) -> dict[str, int]:
    """Return a wish for each symbol; one that is fixed speaks for the others of its role."""
    wish: dict[str, int] = {}
    for place, variable in enumerate(legal.variables):
        if variable.role in sizes:
            wish[variable.name] = legal.fixed_roles.get(variable.role, sizes[variable.role])
        else:
            choices = _interesting(variable)
            wish[variable.name] = choices[(number + place) % len(choices)]
    return wish


def _interesting(variable: Variable) -> list[int]:
    """Return sizes for an image, or for a symbol of which nothing is known, upwards from its least."""
    base = max(variable.low, 32 if variable.role == "space" else 5)
    return [base, 2 * base, base + 1, base + base // 2 + 1, base + 7, base + base // 4 + 8]


def _common(legal: LegalSizes) -> Iterator[dict[str, int]]:
    for size in COMMON:
        sizes: dict[Role, int] = {"batch": 1, "past": 0, "channels": 3}
        sizes.update(dict.fromkeys(("sequence", "total", "encoder", "other", "space"), size))
        yield _wish(legal, sizes, 0)


def _variations(legal: LegalSizes, successes: Sequence[Assignment]) -> Iterator[dict[str, int] | None]:
    """Yield assignments that ran, with the sizes of one role changed; None while nothing ran."""
    yield from itertools.takewhile(lambda _: not successes, itertools.repeat(None, len(COMMON)))
    roles = list(dict.fromkeys(variable.role for variable in legal.variables if variable.role != "total"))
    for step in (1, 2, 3, 5, 8, 16, -1, -2):
        for base, role in itertools.product(list(successes), roles):
            changed = (role, "total") if role in ("sequence", "past") else (role,)
            yield {v.name: base[v.name] + (step if v.role in changed else 0) for v in legal.variables}


def _nearest(legal: LegalSizes, wish: Mapping[str, int], tried: Iterable[dict[str, int]]) -> dict[str, int] | None:
    """Return the first legal assignment near a wish that was not tried, None where a search finds none."""
    known = {tuple(sorted(assignment.items())) for assignment in tried}
    found = itertools.islice(legal.near(wish), len(known) + 1)
    return next((one for one in found if tuple(sorted(one.items())) not in known), None)
