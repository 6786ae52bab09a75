"""The two branches of a merged decoder and of its rewrite, each compared as a model without bodies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from graphkit.model import Model
from graphkit.passes.control_flow.specialize_input import SpecializeInput
from graphkit.verify.comparator import largest
from graphkit.verify.equivalence.equivalence_summary import EquivalenceSummary
from graphkit.verify.rewrite_proof import LevelProof, RewriteProof

__all__ = ["Branch", "branches", "joined"]


@dataclass(frozen=True, eq=False)
class Branch:
    """A branch of an original and of its rewrite.

    Attributes:
        flags: The value of the input that decides for it, by name; none of a model that has no branches.
    """

    flags: Mapping[str, bool]
    original: Model
    rewritten: Model

    @property
    def where(self) -> str:
        """When it runs, in words."""
        return ", ".join(f"{name}={str(flag).lower()}" for name, flag in self.flags.items())


def branches(original: Model, rewritten: Model) -> Iterator[Branch]:
    """Yield the branches of merged decoders, or both models as they are."""
    condition = original.roles.first("condition")
    if condition is None:
        yield Branch({}, original, rewritten)
        return
    for flag in (False, True):
        bind = SpecializeInput(condition.name, flag)
        yield Branch({condition.name: flag}, bind.run(original).model, bind.run(rewritten).model)


def joined(proofs: Sequence[tuple[Branch, RewriteProof]]) -> RewriteProof:
    """Return the proof of all branches as one; its outputs say of which branch they are."""
    (_, first), *others = (_flagged(*each) for each in proofs)
    for _, proof in others:
        first = _added(first, proof)
    return first


def _flagged(branch: Branch, proof: RewriteProof) -> tuple[Branch, RewriteProof]:
    """Return a proof whose runs, outputs and failures name its branch."""
    if not branch.flags:
        return branch, proof

    def named(name: str) -> str:
        return f"{name} ({branch.where})"

    summary = proof.equivalence
    return branch, replace(
        proof,
        runs=tuple(replace(run, flags={**run.flags, **branch.flags}) for run in proof.runs),
        skipped=tuple(replace(run, flags={**run.flags, **branch.flags}) for run in proof.skipped),
        outputs=tuple(replace(output, name=named(output.name)) for output in proof.outputs),
        failures=tuple(f"{branch.where}: {failure}" for failure in proof.failures),
        equivalence=replace(
            summary,
            proven={named(name): exactness for name, exactness in summary.proven.items()},
            unproven={named(name): why for name, why in summary.unproven.items()},
        ),
    )


def _added(one: RewriteProof, other: RewriteProof) -> RewriteProof:
    count, failures = len(one.runs), one.weights.failures + other.weights.failures
    later = (replace(output, worst=output.worst and output.worst + count) for output in other.outputs)
    return replace(
        one,
        runs=one.runs + other.runs,
        skipped=one.skipped + other.skipped,
        outputs=(*one.outputs, *later),
        weights=replace(max(one.weights, other.weights, key=lambda weights: weights.equal), failures=failures),
        level=_level(one.level, other.level),
        notes=_union(one.notes, other.notes),
        failures=one.failures + other.failures,
        coverage="; ".join(_union((one.coverage,), (other.coverage,))),
        caveats=_union(one.caveats, other.caveats),
        interface=_union(one.interface, other.interface),
        equivalence=_summary(one.equivalence, other.equivalence),
    )


def _level(one: LevelProof, other: LevelProof) -> LevelProof:
    return LevelProof(
        one.runs + other.runs,
        max(one.tolerance, other.tolerance),
        largest(one.scaled, other.scaled),
        largest(one.reference, other.reference),
        one.failure or other.failure,
        one.note or other.note,
    )


def _summary(one: EquivalenceSummary, other: EquivalenceSummary) -> EquivalenceSummary:
    axioms = {name: one.axioms.get(name, 0) + other.axioms.get(name, 0) for name in {**one.axioms, **other.axioms}}
    conditions = _union(one.conditions, other.conditions)
    return EquivalenceSummary({**one.proven, **other.proven}, {**one.unproven, **other.unproven}, axioms, conditions)


def _union(one: Sequence[str], other: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*one, *other)))
