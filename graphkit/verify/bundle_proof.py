"""The findings of the proof of a bundle, ready to show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from graphkit.graph.names import counted
from graphkit.render.blocks import Block, Column, Prose, Table
from graphkit.render.result import Result

__all__ = ["BundleProof", "BundleRun"]


@dataclass(frozen=True)
class BundleRun:
    """One prompt through the originals and the bundle.

    Attributes:
        optimized: Whether onnxruntime fused operators, of both.
        rows: Rows.
        padded: Whether the last of them is padded.
        source: Positions of the source; 0 without an encoder.
        prompt: Tokens that the decoder starts with.
        steps: Steps after these, with given tokens.
        logits: The largest difference of logits at tokens that are no padding, over how far they vary where that is
            more than 1.
        failure: Why it fails, "" for nothing.
    """

    optimized: bool
    rows: int
    padded: bool
    source: int
    prompt: int
    steps: int
    logits: float
    failure: str


@dataclass(frozen=True)
class BundleProof(Result):
    """The proof that a bundle gives the results of its originals, and isolates its state.

    Attributes:
        tolerance: The largest difference that counts as equal; 0 where outputs have to be equal to the last bit.
        fused: The same where onnxruntime fuses operators, others in the bundle than in the originals.
        runs: The runs.
        checks: What else was tried, and what is wrong with it, "" for nothing.
        notes: What to know of the proof, a sentence each.
        causes: Why logits differ, a sentence each.
    """

    title: ClassVar[str] = "Proof"
    computed: ClassVar[tuple[str, ...]] = ("passed",)
    tolerance: float
    fused: float
    runs: tuple[BundleRun, ...]
    checks: Mapping[str, str]
    notes: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether it ran, and nothing is wrong."""
        return bool(self.runs) and not self.findings()

    def findings(self) -> tuple[str, ...]:
        """Return why the proof failed, a sentence each."""
        failures = [f"prompt of {run.prompt}, {run.rows} row(s): {run.failure}" for run in self.runs if run.failure]
        failures += [f"{name}: {fault}" for name, fault in self.checks.items() if fault]
        return (*failures, *self.causes, *(() if self.runs else ("nothing was run",)))

    def proven(self) -> str:
        """Return the proven statement, a sentence."""
        how = f"{counted(len(self.runs), 'run(s)')} and {counted(len(self.checks), 'check(s)')}"
        return f"Proven in {how}: the bundle gives what the originals give."

    def blocks(self) -> Iterator[Block]:
        """Yield the runs and the checks as tables, then causes and notes."""
        yield Table(
            (
                Column("onnxruntime"),
                Column("Rows", "number"),
                Column("Padded", "number"),
                Column("Source", "number"),
                Column("Prompt", "number"),
                Column("Steps", "number"),
                Column("Logits differ by", "number"),
                Column("Result"),
            ),
            [
                (
                    "default" if run.optimized else "plain",
                    run.rows,
                    int(run.padded) or None,
                    run.source or None,
                    run.prompt,
                    run.steps,
                    f"{run.logits:.1e}" if run.logits else "0",
                    run.failure or "equal",
                )
                for run in self.runs
            ],
        )
        rows = [(name, fault or "passed") for name, fault in self.checks.items()]
        yield Table((Column("Check"), Column("Result")), rows)
        yield from (Prose(cause, "warning") for cause in self.causes)
        yield from (Prose(note) for note in self.notes)
        if self.passed:
            exact = "to the last bit" if not self.tolerance else f"within {self.tolerance:g}"
            yield Prose(
                f"The bundle gives what the originals give: {exact} in plain onnxruntime, and within {self.fused:g} "
                "where onnxruntime fuses operators."
            )
