"""Facts that say in few conditions what a judge answered about many models of one operator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from graphkit.analysis.target_lint import has_planes
from graphkit.judges.cases import Observation

MOST = 4  # conditions of an operator, any of which is enough
PLANES = (8, 16, 32)  # elements by which devices lay out tensors
LOSS = 2  # how many models that are taken a condition may lose for one that is refused
Where = Mapping[str, Any]  # a condition as a target file has it


class Atom(NamedTuple):
    """A part of a condition: a key of a target file, the name of what it is about, and the value."""

    key: str
    name: str = ""
    value: Any = True

    def holds(self, of: Observation) -> bool:
        """Whether it holds of an observation, as a target file means it."""
        name, value = self.name, self.value
        if self.key == "static":
            return not of.is_dynamic
        if self.key == "readers":
            return bool(of.readers == value)
        if self.key == "dtypes":  # of the first input
            return bool(next(iter(of.dtypes.values())) in value)
        if self.key == "dtypes_of":
            return bool(of.dtypes.get(name, value[0]) in value)
        if self.key == "attributes":
            return bool(of.attributes.get(name) == value)
        if self.key == "producers":
            return bool(of.producers.get(name) == value)
        if self.key == "values":  # one that is left out has its default
            return name not in of.dtypes or of.values.get(name) == value
        if self.key == "planes_of":
            return len(of.dims) == 2 and has_planes(*of.dims, value)
        if self.key == "constant":
            return name not in of.dtypes or name in of.constant
        if self.key == "computed":
            return name not in of.constant
        if self.key == "absent":
            return name not in of.dtypes
        bound, _, what = self.key.partition("_")
        number = of.rank if what == "rank" else of.since
        return bool(number <= value if bound == "max" else number >= value)


@dataclass(frozen=True)
class FittedFact:
    """What is said of an operator."""

    verdict: str  # as in a target file
    conditions: tuple[Where, ...]  # one of them must hold; none where it is always so
    taken: int  # how many models were
    refused: int
    wrong: int  # of these, how many the conditions do not tell right


def fit_fact(observations: Sequence[Observation]) -> FittedFact | None:
    """Return what the observations of one operator say, None where no runtime takes any."""
    known = [each for each in observations if each.taken is not None]
    taken, refused = ([each for each in known if each.taken is verdict] for verdict in (True, False))
    if not known:
        return None
    fact = FittedFact("allowed", (), _count(taken), _count(refused), 0)
    if not refused or not taken:
        return replace(fact, verdict="allowed" if taken else "refused")
    conditions: list[list[Atom]] = []
    left = taken
    while left and len(conditions) < MOST:
        atoms = _fit_condition(left, refused)
        kept = [each for each in left if not all(atom.holds(each) for atom in atoms)]
        wrong = _count(each for each in refused if all(atom.holds(each) for atom in atoms))
        if len(kept) == len(left) or wrong > _count(left) - _count(kept):
            break
        conditions.append(atoms)
        left = kept
    held = (each for each in refused if any(all(atom.holds(each) for atom in atoms) for atoms in conditions))
    wrong = _count(left) + _count(held)
    if not conditions or wrong * 2 > min(fact.taken, fact.refused) + (fact.taken + fact.refused) // 4:
        return replace(fact, verdict="unknown", wrong=_count(known))
    return replace(fact, conditions=tuple(_as_where(atoms) for atoms in conditions if all(conditions)), wrong=wrong)


def _count(observations: Iterable[Observation]) -> int:
    return sum(each.count for each in observations)


def _fit_condition(taken: Sequence[Observation], refused: Sequence[Observation]) -> list[Atom]:
    """Return a condition that as many of the taken ones have, and as few of the refused ones."""
    atoms: list[Atom] = []
    while refused:
        best, gain = None, 0.0
        for atom in _possible_atoms(taken, refused):
            excluded = _count(each for each in refused if not atom.holds(each))
            lost = _count(each for each in taken if not atom.holds(each))
            if lost < _count(taken) and excluded - LOSS * lost * bool(lost) > 0 and excluded / (1 + lost) > gain:
                best, gain = atom, excluded / (1 + lost)
        if best is None:
            break
        atoms.append(best)
        taken = [each for each in taken if best.holds(each)]
        refused = [each for each in refused if best.holds(each)]
    return atoms


def _possible_atoms(taken: Sequence[Observation], refused: Sequence[Observation]) -> Iterator[Atom]:
    """Yield what may be said of the taken ones, the plainest first."""
    names = dict.fromkeys(name for each in taken for name in each.dtypes)
    firsts = sorted({next(iter(each.dtypes.values())) for each in taken})
    yield Atom("static")
    yield Atom("dtypes", value=tuple(firsts))
    yield from (Atom("dtypes", value=(dtype,)) for dtype in firsts)
    for name in names:
        dtypes = tuple(sorted({each.dtypes[name] for each in taken if name in each.dtypes}))
        yield Atom("dtypes_of", name, dtypes)
        yield from (Atom("dtypes_of", name, (dtype,)) for dtype in dtypes)
    for key, numbers in (("version", {each.since for each in taken}), ("rank", {each.rank for each in taken})):
        yield from (Atom(f"{bound}_{key}", value=number) for number in sorted(numbers) for bound in ("max", "min"))
    yield from (Atom("absent", name) for name in dict.fromkeys(name for each in refused for name in each.dtypes))
    yield from (Atom(key, name) for name in names for key in ("constant", "computed"))
    yield from dict.fromkeys(Atom("readers", value=each.readers) for each in taken if each.readers)
    yield from dict.fromkeys(Atom("producers", *pair) for each in taken for pair in each.producers.items())
    yield from dict.fromkeys(Atom("values", *pair) for each in taken for pair in each.values.items())
    yield from (Atom("planes_of", value=number) for number in PLANES)
    yield from dict.fromkeys(Atom("attributes", *pair) for each in taken for pair in each.attributes.items())


def _as_where(atoms: Iterable[Atom]) -> Where:
    where: dict[str, Any] = {}
    for key, name, value in atoms:
        if key in ("dtypes_of", "attributes", "producers", "values"):
            where.setdefault(key, {})[name] = value
        elif key in ("constant", "computed", "absent"):
            where.setdefault(key, []).append(name)
        else:  # a later one says more: it is of what the earlier ones hold of
            where[key] = value
    return where
