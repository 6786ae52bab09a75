"""The findings of the proofs of a lowering and of a bundle, ready to show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from msgspec import Struct

from graphkit.equivalence.bundles import ALL_METHODS, bundle_blocks
from graphkit.equivalence.equivalence_summary import EquivalenceSummary, share_texts
from graphkit.equivalence.stages import StageProof, proven_throughout
from graphkit.errors import count_things
from graphkit.render.document_blocks import Block, Prose, table
from graphkit.verify.rewrite_proof import Proof

NOT_COMPARED: Mapping[str, Mapping[str, str]] = {"not compared": {}}  # what is proven where there was no time
Proven = TypeVar("Proven", bound="LoweringProof | BundleProof")


class SourceRun(Struct, frozen=True):
    """One source, or one prompt, through both pipelines."""

    length: int  # tokens of the source; 0 without one
    encoder: float | None = None  # the largest difference of what runs once, at valid positions; None without it
    steps: int = 0  # steps decoded with given tokens
    logits: float | None = None  # the largest difference of logits over these, None without a decoder
    greedy: int = 0  # steps decoded greedily
    tokens: int = 0  # different tokens among those that the original chose greedily
    others: int = 0  # greedy tokens that are others than the original's, where both are as good within the tolerance
    failure: str = ""  # why it fails, "" for nothing
    token: int | None = None  # the special token that was tried at several places of source and decoding, or None
    is_sound: bool = False  # whether the length counts samples or frames of a sound, behind which are zeros

    def where(self) -> str:
        """Return which source it is, in words that stand before a failure."""
        if self.token is not None:
            return f"token {self.token} "
        if self.is_sound:
            return f"sound of {self.length:,} places: "
        return f"source of {count_things(self.length, 'token(s)')}: " if self.length else ""


class TableProof(Struct, frozen=True):
    """How a table of the host compares with the export, row by row."""

    name: str
    rows: int
    compared: int  # how many of them, from the first on, are byte by byte those of the export
    source: str  # the tensor of the export that has these rows, "" where there is none to compare with

    @property
    def is_proven(self) -> bool:
        """Whether every row is that of the export."""
        return self.compared == self.rows

    def proven(self) -> str:
        """Return which rows are those of the export, a clause."""
        if not self.compared:
            return "nothing to compare with: left to the runs"
        return "by rows" if self.is_proven else f"the first {self.compared:,} by rows"


@dataclass(frozen=True)
class LoweringProof(Proof):
    """The proof that host and lowered models give the results of the originals.

    Attributes:
        tolerance: The largest difference that counts as equal, times how far an output varies where that is above 1.
        runs: The runs, by length of the source.
        causes: What the differences look like, a sentence each.
        notes: What to know of the proof, a sentence each.
        caveats: Where the lowered models give what a user of the original may not expect, a sentence each.
        stages: What normal forms show of each stage of the lowering; none of files that its export does not give again.
        tables: The tables of the host whose rows are those of a tensor of the export; that it is the right tensor, the
            runs tell, so that there are none where one fails, and none where weights may be others.
        provider: Where the lowered models ran; the originals ran on the CPU.
    """

    tolerance: float
    runs: tuple[SourceRun, ...]
    causes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    stages: tuple[StageProof, ...] = ()
    tables: tuple[TableProof, ...] = ()
    provider: str = "cpu"

    def findings(self) -> tuple[str, ...]:
        """Return why the proof failed, a sentence each."""
        failures = [run.where() + run.failure for run in self.runs if run.failure]
        return (*failures, *self.causes, *(() if self.runs else ("nothing was run",)))

    def proven_outputs(self) -> Mapping[str, Mapping[str, str]]:
        """Return the outputs that all stages of the lowering prove, and how exactly, by method."""
        return proven_throughout(self.stages) if all(stage.in_time for stage in self.stages) else NOT_COMPARED

    def proven(self) -> str:
        """Return the runs and the proven outputs, a sentence each."""
        tested = f"Tested in {count_things(len(self.runs), 'run(s)')}: host and models give what the originals give"
        tested += f"{_where_text(self.provider, self.tolerance)}."
        tested = " ".join((tested, *self.caveats))
        by_rows = sum(table.is_proven for table in self.tables)
        whole = sum(stage.is_proven for stage in self.stages)
        proven = [f"{whole:,} of {count_things(len(self.stages), 'stage(s)')}"] if self.stages else []
        proven += [f"by rows {by_rows:,} of {count_things(len(self.tables), 'table(s)')}"] if self.tables else []
        return f"{tested} Proven: {', '.join(proven)}." if proven else tested

    def blocks(self) -> Iterator[Block]:
        """Yield what holds, the runs as a table, then their findings."""
        if self.passed:
            yield Prose(self.proven())
        sizes = [["" if n is None else f"{n:.1e}" for n in (run.encoder, run.logits)] for run in self.runs]
        rows = [
            (run.length or None, run.token, encoder, run.steps, logits, run.greedy, run.failure or "equal")
            for run, (encoder, logits) in zip(self.runs, sizes, strict=True)
        ]
        heads = "Source:number | Token:number | Encoder:number | Steps:number | Logits:number | Greedy:number | Result"
        yield table(heads, rows)
        if self.stages:
            yield Prose("By normal forms, each stage gives for every input what the model before it gives:")
            stages = []
            for stage in self.stages:
                share = share_texts(Counter(stage.proven.values()), len(stage.outputs)) or "nothing"
                share += "" if stage.at_every_size or not stage.proven else ", at its sizes"
                stages.append((stage.model, stage.name, share, stage.unproven))
            yield table("Model:code | Stage | Proven | Left to the runs", stages)
        if conditions := dict.fromkeys(each for stage in self.stages for each in stage.conditions):
            yield Prose(f"That holds for {', '.join(conditions)}.")
        if self.tables:
            yield Prose("Rows of the host's tables, each beside that of the export, byte by byte:")
            proven = [(each.name, each.rows, each.proven(), each.source) for each in self.tables]
            yield table("Table:code | Rows:number | Proven | Those of:code", proven)
        yield from (Prose(cause, "warning") for cause in self.causes)
        yield from (Prose(note) for note in (*self.caveats, *self.notes))
        if self.passed:
            yield Prose(
                f"Host and lowered models give what the originals give, within {self.tolerance:g}, or "
                f"{self.tolerance:g} times how far an output varies where that is more than 1."
            )


def _where_text(provider: str, tolerance: float) -> str:
    return "" if provider == "cpu" else f" on {provider}, within {tolerance:g}"


def with_device(proof: Proven, device: Proven) -> Proven:
    """Return a proof with that of the same folder on a device: what failed there, or how far it was tested."""
    findings = tuple(f"on {device.provider}: {finding}" for finding in device.findings())
    proven = f"On {device.provider}: {device.proven()}"
    notes = () if findings else (proven, *(note for note in device.notes if note not in proof.notes))
    return replace(proof, causes=(*proof.causes, *findings), notes=(*proof.notes, *notes))


class BundleRun(Struct, frozen=True, kw_only=True):
    """One prompt through the originals and the bundle."""

    optimized: bool  # whether onnxruntime fused operators, of both
    rows: int
    padded: bool = False  # whether the last of them is padded
    source: int = 0  # positions of the source; 0 without an encoder
    prompt: int = 0  # tokens that the decoder starts with
    steps: int  # steps after these, with given tokens
    logits: float  # the largest difference of logits that are no padding, over how far they vary where that is above 1
    failure: str  # why it fails, "" for nothing
    is_wide: bool = False  # whether both ran in float32, though they are of float16


@dataclass(frozen=True)
class BundleProof(Proof):
    """The proof that a bundle gives the results of its originals, and isolates its state.

    Attributes:
        tolerance: The largest difference that counts as equal; 0 where outputs have to be equal to the last bit.
        fused: The same where onnxruntime fuses operators, others in the bundle than in the originals.
        runs: The runs.
        checks: What else was tried, and what is wrong with it, "" for nothing.
        notes: What to know of the proof, a sentence each.
        causes: Why logits differ, a sentence each.
        equivalence: The outputs of each method that are equal at every legal size and for every input.
        provider: Where the bundle ran; the originals ran on the CPU.
    """

    tolerance: float
    fused: float
    runs: tuple[BundleRun, ...]
    checks: Mapping[str, str]
    notes: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    equivalence: Mapping[str, EquivalenceSummary] = field(default_factory=dict)
    provider: str = "cpu"

    def findings(self) -> tuple[str, ...]:
        """Return why the proof failed, a sentence each."""
        failures = [f"prompt of {run.prompt}, {run.rows} row(s): {run.failure}" for run in self.runs if run.failure]
        failures += [f"{name}: {fault}" for name, fault in self.checks.items() if fault]
        return (*failures, *self.causes, *(() if self.runs else ("nothing was run",)))

    def proven_outputs(self) -> Mapping[str, Mapping[str, str]]:
        """Return how exactly each output is equal that normal forms show to be, by method."""
        if ALL_METHODS in self.equivalence:
            return NOT_COMPARED
        return {method: shown.proven for method, shown in self.equivalence.items() if shown.proven}

    def proven(self) -> str:
        """Return the proven statement, a sentence."""
        worst = max((run.logits for run in self.runs), default=0.0)
        return EquivalenceSummary.join_parts(self.equivalence).headline(
            f"the bundle gives what the originals give{_where_text(self.provider, self.fused)}",
            len(self.runs),
            checks=len(self.checks),
            largest=f"difference of {worst:.3g}" if worst else "",
            models=[*self.equivalence],
        )

    def blocks(self) -> Iterator[Block]:
        """Yield what holds, the runs and the checks as tables, then causes and notes."""
        if self.passed:
            yield Prose(self.proven())
        rows = []
        for r in self.runs:
            sizes = r.rows, int(r.padded) or None, r.source or None, r.prompt, r.steps
            apart, result = f"{r.logits:.1e}" if r.logits else "0", "equal in float32" if r.is_wide else "equal"
            rows.append(("default" if r.optimized else "plain", *sizes, apart, r.failure or result))
        yield table(
            "onnxruntime | Rows:number | Padded:number | Source:number | Prompt:number | Steps:number | "
            "Logits differ by:number | Result",
            rows,
        )
        yield table("Check | Result", [(name, fault or "passed") for name, fault in self.checks.items()])
        yield from bundle_blocks(self.equivalence)
        yield from (Prose(cause, "warning") for cause in self.causes)
        yield from (Prose(note) for note in self.notes)
        if self.passed and self.provider != "cpu":
            yield Prose(f"The bundle gives on {self.provider} what the originals give, within {self.fused:g}.")
        elif self.passed:
            exact = "to the last bit" if not self.tolerance else f"within {self.tolerance:g}"
            is_wide = any(run.is_wide for run in self.runs)
            where = " That is in float32, where float16 rounds nothing." if is_wide else ""
            yield Prose(
                f"The bundle gives what the originals give: {exact} in plain onnxruntime, and within {self.fused:g} "
                f"where onnxruntime fuses operators.{where}"
            )
