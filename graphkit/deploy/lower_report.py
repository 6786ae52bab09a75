"""The report of a lowering."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from graphkit.analysis.blockers import Blockers
from graphkit.analysis.costs.cost_changes import CostChange, cost_change_blocks
from graphkit.analysis.verdict import asked_options
from graphkit.deploy.compiler_judges import Judgements
from graphkit.deploy.contract import Contract
from graphkit.deploy.lowered_contract import Lowered
from graphkit.graph.names import count_things
from graphkit.render.document_blocks import Block, Column, Heading, Prose
from graphkit.render.document_blocks import Table as Rows
from graphkit.shapes import infer
from graphkit.verify.deployment_proofs import LoweringProof
from graphkit.verify.rewrite_proof import ProvenReport, proof_outcome

__all__ = ["DATA", "GUIDE", "LowerReport", "LoweredFile", "lowered_file"]

GUIDE, DATA = "HOST.md", "weights.onnx_data"


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
class LowerReport(ProvenReport):
    """The result of a lowering.

    Attributes:
        source: What was lowered.
        target: For which target.
        files: The models.
        tables: The files that the host looks rows up in, with their bytes.
        state_bytes: Bytes of the state that the host keeps.
        proof: None where it was not run.
        judged: What the judges of the user say, None where there are none.
        notes: What else to know, a sentence each.
        data: The file of weights that do not fit into the models, "" for none.
        costs: Costs of each model, before and after.
    """

    title: ClassVar[str] = "Lowering"
    source: str
    target: str
    files: tuple[LoweredFile, ...]
    tables: Mapping[str, int]
    state_bytes: int
    proof: LoweringProof | None
    judged: Judgements | None = None
    notes: tuple[str, ...] = ()
    data: str = ""
    costs: tuple[CostChange, ...] = ()

    def heading(self) -> str:
        return f"{super().heading()} for {self.target}"

    def findings(self) -> tuple[str, ...]:
        return (*self._refused_texts(), *super().findings(), *self._judge_findings())

    def _refused_texts(self) -> tuple[str, ...]:
        return tuple(
            f"{file.name}: {_refused_text(file, self.target)}" for file in self.files if file.blockers.blockers
        )

    def _judge_findings(self) -> tuple[str, ...]:
        return self.judged.findings() if self.judged is not None else ()

    def _target_verdict(self) -> str:
        """Return how many nodes the target refuses, and of how many no source says."""
        files = [file.blockers for file in self.files]
        refused, unknown = (
            sum(len(blockers.blockers) for blockers in files),
            sum(blockers.open_nodes for blockers in files),
        )
        open_ = (
            f"of {unknown:,} of {count_things(sum(blockers.nodes for blockers in files), 'node(s)')} no source says"
            if unknown
            else ""
        )
        if refused:
            return f"refuses {count_things(refused, 'node(s)')}" + (f"; {open_}" if open_ else "")
        return f"is not known to refuse anything: {open_} whether it takes them" if open_ else "refuses nothing"

    def blocks(self) -> Iterator[Block]:
        models = count_things(len(self.files), "model(s)")
        done = f"Lowered to {models} for {self.target}, which {self._target_verdict()}."
        yield proof_outcome(done, self.proof, faults=(*self._refused_texts(), *self._judge_findings()))
        names = [*(file.name for file in self.files), *([self.data] if self.data else [])]
        yield Prose(
            f"Wrote {', '.join([*names, *self.tables, Contract.FILE, GUIDE])}. {GUIDE} says what the host does."
        )
        yield Rows(
            (
                Column("Model", "code"),
                Column("Nodes", "number"),
                Column("Highest rank", "number"),
                Column("Inputs", "number"),
                Column("Outputs", "number"),
                Column("Blockers", "number"),
                Column("Unknown", "number"),
            ),
            [
                (f.name, f.nodes, f.rank, f.inputs, f.outputs, len(f.blockers.blockers), f.blockers.open_nodes)
                for f in self.files
            ],
        )
        if self.state_bytes:
            yield Prose(f"The host keeps {self.state_bytes:,} bytes of state.")
        yield from map(Prose, self.notes)
        for file in self.files:
            if file.blockers.blockers or file.blockers.unknown:
                refused = "refuses" if file.blockers.blockers else "may refuse"
                yield Heading(f"What {self.target} {refused} of {file.name}")
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
        yield from cost_change_blocks(self.costs)


def _refused_text(file: LoweredFile, target: str) -> str:
    refused = file.blockers.blockers
    options = asked_options(file.blockers)
    counts = {option: sum(obstacle.pass_name == name for obstacle in refused) for name, option in options.items()}
    hints = [f"{count} of which {option} removes" for option, count in counts.items() if count]
    return ", ".join([f"{target} refuses {count_things(len(refused), 'node(s)')}", *hints])


def lowered_file(part: Lowered) -> LoweredFile:
    """Return the report's entry of a lowered model."""
    shapes = infer(part.model)
    ranks = [len(dims) for value in shapes if (dims := shapes[value].dims) is not None]
    graph = part.model.graph
    return LoweredFile(
        name=part.method.file,
        nodes=len(graph.nodes),
        rank=max(ranks, default=0),
        inputs=len(graph.inputs),
        outputs=len(graph.outputs),
        blockers=part.blockers,
        changes=part.changes,
    )
