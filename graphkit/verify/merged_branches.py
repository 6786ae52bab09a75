"""The two branches of a merged decoder and of its rewrite, each compared as a model without bodies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from graphkit.model import Model
from graphkit.passes.control_flow.inline_constant_if import SpecializeInput
from graphkit.verify.comparator import largest_measured
from graphkit.verify.equivalence.equivalence_summary import EquivalenceSummary
from graphkit.verify.rewrite_proof import LevelProof, RewriteProof

__all__ = ["Branch", "join_proofs", "merged_branches"]


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


def merged_branches(original: Model, rewritten: Model) -> Iterator[Branch]:
    """Yield the branches of merged decoders, or both models as they are."""
    condition = original.roles.first("condition")
    if condition is None:
        yield Branch({}, original, rewritten)
        return
    for flag in (False, True):
        bind = SpecializeInput(condition.name, flag)
        yield Branch({condition.name: flag}, bind.run(original).model, bind.run(rewritten).model)


def join_proofs(proofs: Sequence[tuple[Branch, RewriteProof]]) -> RewriteProof:
    """Return the proof of all branches as one; its outputs say of which branch they are."""
    (_, first), *others = (_flag_proof(*each) for each in proofs)
    for _, proof in others:
        first = _add_proofs(first, proof)
    return first


def _flag_proof(branch: Branch, proof: RewriteProof) -> tuple[Branch, RewriteProof]:
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


def _add_proofs(proof: RewriteProof, later: RewriteProof) -> RewriteProof:
    count, failures = len(proof.runs), proof.weights.failures + later.weights.failures
    outputs = (replace(output, worst=output.worst and output.worst + count) for output in later.outputs)
    return replace(
        proof,
        runs=proof.runs + later.runs,
        skipped=proof.skipped + later.skipped,
        outputs=(*proof.outputs, *outputs),
        weights=replace(max(proof.weights, later.weights, key=lambda weights: weights.equal), failures=failures),
        level=_add_levels(proof.level, later.level),
        notes=_join_texts(proof.notes, later.notes),
        failures=proof.failures + later.failures,
        coverage="; ".join(_join_texts((proof.coverage,), (later.coverage,))),
        caveats=_join_texts(proof.caveats, later.caveats),
        interface=_join_texts(proof.interface, later.interface),
        equivalence=_add_summaries(proof.equivalence, later.equivalence),
    )


def _add_levels(level: LevelProof, later: LevelProof) -> LevelProof:
    return LevelProof(
        level.runs + later.runs,
        max(level.tolerance, later.tolerance),
        largest_measured(level.scaled, later.scaled),
        largest_measured(level.reference, later.reference),
        level.failure or later.failure,
        level.note or later.note,
    )


def _add_summaries(summary: EquivalenceSummary, later: EquivalenceSummary) -> EquivalenceSummary:
    axioms = {
        name: summary.axioms.get(name, 0) + later.axioms.get(name, 0) for name in {**summary.axioms, **later.axioms}
    }
    conditions = _join_texts(summary.conditions, later.conditions)
    proven, unproven = {**summary.proven, **later.proven}, {**summary.unproven, **later.unproven}
    limits, compared = _join_texts(summary.limits, later.limits), max(summary.compared, later.compared)
    constants = summary.constants + later.constants
    return EquivalenceSummary(proven, unproven, axioms, conditions, limits, compared, constants=constants)


def _join_texts(texts: Sequence[str], more_texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*texts, *more_texts)))
