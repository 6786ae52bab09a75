"""The report of a lowering."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from graphkit.analysis.blockers import Blockers
from graphkit.render.blocks import Block, Column, Heading, Prose
from graphkit.render.blocks import Table as Rows
from graphkit.render.result import Result
from graphkit.shapes import infer
from graphkit.verify.lowering import LoweringProof
from graphkit.workflows.judge import Judgements
from graphkit.workflows.lowering import Lowered

__all__ = ["CONTRACT", "GUIDE", "LowerReport", "LoweredFile", "lowered_file"]

CONTRACT, GUIDE = "contract.json", "HOST.md"


@dataclass(frozen=True)
class LoweredFile:
    """A lowered model.

    Attributes:
        name: The file.
        nodes: Its nodes.
        rank: The highest rank of its tensors.
        inputs, outputs: How many.
        blockers: What the target still refuses.
        changes: What was done, a sentence each.
    """

    name: str
    nodes: int
    rank: int
    inputs: int
    outputs: int
    blockers: Blockers
    changes: tuple[str, ...]


@dataclass(frozen=True)
class LowerReport(Result):
    """What lowering made.

    Attributes:
        source: What was lowered.
        target: For which target.
        files: The models.
        tables: The files that the host looks rows up in, with their bytes.
        state_bytes: Bytes of the state that the host keeps.
        proof: None where it was not run.
        judged: What the judges of the user say, None where there are none.
        scores: What the largest score means for the floor of masks, in a sentence; "" where nothing asks for it.
    """

    title: ClassVar[str] = "Lowering"
    source: str
    target: str
    files: tuple[LoweredFile, ...]
    tables: Mapping[str, int]
    state_bytes: int
    proof: LoweringProof | None
    judged: Judgements | None = None
    scores: str = ""

    def heading(self) -> str:
        return f"Lowering of {self.source} for {self.target}"

    def findings(self) -> tuple[str, ...]:
        left = [
            f"{file.name}: {self.target} refuses {len(file.blockers.blockers):,} nodes"
            for file in self.files
            if file.blockers.blockers
        ]
        proven = self.proof.findings() if self.proof is not None else ()
        return (*left, *proven, *(self.judged.findings() if self.judged is not None else ()))

    def blocks(self) -> Iterator[Block]:
        names = [file.name for file in self.files]
        yield Prose(f"Wrote {', '.join([*names, *self.tables, CONTRACT, GUIDE])}. {GUIDE} says what the host does.")
        yield Rows(
            (
                Column("Model", "code"),
                Column("Nodes", "number"),
                Column("Highest rank", "number"),
                Column("Inputs", "number"),
                Column("Outputs", "number"),
                Column("Blockers", "number"),
            ),
            [(f.name, f.nodes, f.rank, f.inputs, f.outputs, len(f.blockers.blockers)) for f in self.files],
        )
        if self.state_bytes:
            yield Prose(f"The host keeps {self.state_bytes:,} bytes of state.")
        if self.scores:
            yield Prose(self.scores)
        for file in self.files:
            if file.blockers.blockers:
                yield Heading(f"What {self.target} refuses of {file.name}")
                yield from file.blockers.blocks()
        yield Heading("What was done")
        yield Rows(
            (Column("Model", "code"), Column("Change")),
            [(file.name, change) for file in self.files for change in file.changes],
        )
        yield Heading("Proof")
        if self.proof is None:
            yield Prose("Not run: the models are unverified.", "warning")
        else:
            yield from self.proof.blocks()
        if self.judged is not None:
            yield Heading(self.judged.heading())
            yield from self.judged.blocks()


def lowered_file(part: Lowered) -> LoweredFile:
    """Return what a report says of a lowered model."""
    shapes = infer(part.model)
    ranks = [len(dims) for value in shapes if (dims := shapes[value].dims) is not None]
    graph = part.model.graph
    return LoweredFile(
        part.method.file,
        len(graph.nodes),
        max(ranks, default=0),
        len(graph.inputs),
        len(graph.outputs),
        part.blockers,
        part.changes,
    )
