"""The findings of the proof of a split, ready to show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from graphkit.graph.names import count_things
from graphkit.render.document_blocks import Block, Prose, Table, outcome, table
from graphkit.render.result import Result
from graphkit.verify.equivalence.equivalence_summary import EquivalenceSummary
from graphkit.verify.rewrite_proof import LevelProof, WeightProof

__all__ = ["BranchProof", "LoopProof", "SplitProof"]

MAX_SKIPPED = 3  # runs that fail in the merged decoder to write out


@dataclass(frozen=True)
class BranchProof:
    """One branch of the merged decoder against the model made of it.

    Attributes:
        model: Which of the two.
        skipped: Sizes at which the merged decoder itself fails.
        absolute, relative: The largest differences; None where the model does not run, or what differs is no number.
        weights: Its weights against those of the merged decoder.
        level: The model at onnxruntime's default level.
        notes: What to know of it, a sentence each.
        failures: Why the proof failed, a sentence each.
        coverage: The sizes, masks and edges of values at which both ran, in words.
        caveats: What the runs could not cover, a clause each.
        equivalence: Its outputs that are equal to the branch's at every legal size and for every input.
    """

    model: str
    outputs: int = 0
    runs: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    absolute: float | None = None
    relative: float | None = None
    weights: WeightProof = field(default_factory=WeightProof)
    level: LevelProof = field(default_factory=LevelProof)
    notes: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    coverage: str = ""
    caveats: tuple[str, ...] = ()
    equivalence: EquivalenceSummary = field(default_factory=EquivalenceSummary)

    @property
    def is_equal(self) -> bool:
        """Whether it ran, and nothing differs by more than the tolerance."""
        return bool(self.runs) and not self.failures

    def proven(self) -> str:
        """Return the proven statement, a sentence."""
        equal = "within the tolerance" if self.absolute else "to the last bit"
        tested = f"{count_things(self.outputs, 'output(s)')} equal {equal}"
        largest = f"relative difference of {self.relative:.3g}" if self.relative else ""
        statement = self.equivalence.headline(tested, len(self.runs), largest=largest, caveats=self.caveats)
        return f"{self.model}: {statement[0].lower()}{statement[1:]}"


@dataclass(frozen=True)
class LoopProof:
    """The pair against the merged decoder, decoding greedily.

    Attributes:
        prompt: Tokens of the prompt.
        steps: Steps decoded; 0 for a loop that was not run.
        absolute: The largest difference of logits, None where it did not get that far.
        failure: The first step that differs, or why the loop does not run; "" for nothing.
        note: Why there is none to run, "" for nothing.
    """

    prompt: int
    steps: int
    absolute: float | None
    failure: str
    note: str = ""


@dataclass(frozen=True)
class SplitProof(Result):
    """The proof that a pair of decoders gives the results of the merged one.

    Attributes:
        tolerance: Largest difference, absolute or relative, that counts as equal without optimizations.
        branches: First step and later steps.
        notes: What to know of the merged decoder, a sentence each.
    """

    title: ClassVar[str] = "Proof"
    computed: ClassVar[tuple[str, ...]] = ("passed",)
    tolerance: float
    branches: tuple[BranchProof, ...]
    loop: LoopProof
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing is missing, and nothing differs by more than the tolerance."""
        return all(branch.is_equal for branch in self.branches) and not self.loop.failure

    def findings(self) -> tuple[str, ...]:
        failures = [f"{branch.model}: {failure}" for branch in self.branches for failure in branch.failures]
        return (*failures, *([f"decoding loop: {self.loop.failure}"] if self.loop.failure else []))

    def proven(self) -> str:
        """Return the proven statement, a sentence for each model and one for the loop."""
        steps = count_things(self.loop.steps, "greedy step(s)")
        loop = [f"The two decode {steps} as the merged decoder does."] if self.loop.steps else []
        return " ".join([*(branch.proven() for branch in self.branches), *loop])

    def blocks(self) -> Iterator[Block]:
        yield outcome([self.proven() if self.passed else "The proof failed."], self.findings())
        for branch in self.branches:
            if branch.coverage:
                yield Prose(f"Covered of {branch.model}: {branch.coverage}.")
            yield from branch.equivalence.blocks(branch.model)
        yield self._plain_table()
        if any(branch.level.runs for branch in self.branches):
            yield self._level_table()
        yield from sum((branch.weights for branch in self.branches), WeightProof()).blocks()
        for branch in self.branches:
            for sizes in branch.skipped[:MAX_SKIPPED]:
                yield Prose(f"{branch.model}: the merged decoder itself fails at {sizes}.")
            if len(branch.skipped) > MAX_SKIPPED:
                yield Prose(f"So it does at {len(branch.skipped) - MAX_SKIPPED} more.")
            yield from (Prose(f"{branch.model}: {note}") for note in branch.notes)
        yield from (Prose(note) for note in (*self.notes, self.loop.note) if note)
        for failure in self.findings():
            yield Prose(failure, "warning")

    def _plain_table(self) -> Table:
        rows: list[tuple[str, int | None, int, str | None, str | None, str]] = [
            (b.model, b.outputs, len(b.runs), _number_text(b.absolute), _number_text(b.relative), _result_text(b))
            for b in self.branches
        ]
        loop = self.loop
        if loop.steps:
            name = f"greedy loop from {count_things(loop.prompt, 'token(s)')}, {count_things(loop.steps, 'step(s)')}"
            rows.append((name, None, 1, _number_text(loop.absolute), None, _verdict_text(not loop.failure)))
        return table(
            "What | Outputs:number | Runs:number | Max abs:number | Max rel:number | Result",
            rows,
            title=f"Against the merged decoder, without graph optimizations (tolerance {self.tolerance:g})",
        )

    def _level_table(self) -> Table:
        rows = [
            (b.model, b.level.runs, b.level.result, _verdict_text(not b.level.failure))
            for b in self.branches
            if b.level.runs
        ]
        allowed = max(branch.level.tolerance for branch in self.branches)
        return table(
            "What | Runs:number | Largest difference | Result",
            rows,
            title=f"At onnxruntime's default level (tolerance {allowed:g} of the largest magnitude)",
        )


def _number_text(value: float | None) -> str | None:
    return f"{value:.3g}" if value is not None else None


def _result_text(branch: BranchProof) -> str:
    return _verdict_text(branch.is_equal) if branch.runs else "not run"


def _verdict_text(is_equal: bool) -> str:
    return "equal" if is_equal else "differs"
