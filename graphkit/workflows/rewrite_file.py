"""Rewrite a model file by passes: run them, write the result, prove their claims, report."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from graphkit.analysis.costs.cost_changes import CostChange, cost_change_blocks
from graphkit.analysis.shape_ops import Change, changes_table
from graphkit.graph.view import all_nodes
from graphkit.model import Model, ModelLike, as_model
from graphkit.options import RewriteOptions
from graphkit.passes.registry import parse_pipeline
from graphkit.progress import Progress, time_limit
from graphkit.render.document_blocks import Block, Heading, Prose
from graphkit.rewrite.base import Declined, Pass, change_blocks, declined_blocks, run_passes
from graphkit.shapes import declarations
from graphkit.verify.rewrite_proof import RewriteProof, proof_outcome
from graphkit.workflows.file_proof import Claim, Evidence, FileReport, FileRewrite

__all__ = ["RewriteReport", "rewrite_file"]


@dataclass(frozen=True)
class RewriteReport(FileReport):
    """The result of a rewrite by passes.

    Attributes:
        passes: The names of the passes, in order.
        counts: The operators of which there are more or fewer; the last row counts all nodes.
        changes: One sentence for each change.
        declined: The parts that stayed unchanged, and why.
        notes: Declared dims that contradict what the nodes compute, in one sentence; the limits of the proof.
        proof: The proof, None if it was not run.
        unproven: Why nothing can be proven, "" where that can or was not asked for.
        failures: Unclaimed changes of the passes, a sentence each.
        unused: Data files of the replaced model that the new one does not use.
        costs: Costs before and after.
    """

    title: ClassVar[str] = "Rewrite"
    source: str
    files: tuple[str, ...]
    passes: tuple[str, ...]
    counts: tuple[Change, ...]
    changes: tuple[str, ...]
    declined: tuple[Declined, ...]
    notes: tuple[str, ...]
    proof: RewriteProof | None
    unproven: str = ""
    failures: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    costs: tuple[CostChange, ...] = ()
    models: tuple[Model, Model] | None = field(default=None, repr=False, compare=False, metadata={"in_json": False})

    def findings(self) -> tuple[str, ...]:
        return (*self.failures, *super().findings())

    def blocks(self) -> Iterator[Block]:
        nodes = f"{self.counts[-1].before:,} -> {self.counts[-1].after:,} nodes" if self.counts else "as many nodes"
        done = f"{', '.join(self.passes)}: {nodes}."
        yield proof_outcome(done, self.proof, faults=self.failures, unproven=self.unproven)
        if not self.changes:
            yield Prose("No pass changed anything.", "warning" if self.declined else "plain")
        yield Prose(f"Wrote {' and '.join(self.files)}.")
        yield from self.notices()
        yield changes_table(self.counts)
        if self.changes:
            yield from change_blocks(self.changes)
        if self.declined:
            yield Heading("What stays")
            yield from declined_blocks(self.declined)
        yield from Evidence(self.proof, self.unproven, self.failures).blocks()
        yield from cost_change_blocks(self.costs)


def rewrite_file(
    model: ModelLike,
    output: str | os.PathLike[str],
    passes: str | Sequence[Pass],
    options: RewriteOptions = RewriteOptions(),
    *,
    progress: Progress = lambda _: None,
) -> RewriteReport:
    """Run passes on a model, write the result, and prove it.

    What passes claim is proven: equal results, within their `largest_error`, wherever their premise holds, such as a
    size that `freeze-dims` gave a symbol. Of a pass that changes the interface on purpose, nothing is claimed, and the
    report says so.

    Args:
        model: The model, or its path.
        output: The file to write; with shared weights, NAME_data is written beside it.
        passes: The passes in order, or a text that names them: see `graphkit.parse_pipeline`.
        options: How to write and how to prove; its `spec` says at which dims to prove.
        progress: Called with the name of each step before it starts.

    Returns:
        The report; `report.proof.passed` says whether the proof holds. The file gets its name when the proof has
        ended, whether it holds or not.

    Raises:
        UsageError: A pass or an option does not exist or does not fit the model.
        OutOfTimeError: Rewriting takes longer than the limit of time, where one is given.
        PassError: A pass of your own cannot be imported, or raises an exception.
        OutputError: The files cannot be written; nothing is left behind.
        ModelError: The weights are missing, or onnxruntime cannot run the model.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     graphkit.rewrite_file("example:causal-attention", f"{folder}/out.onnx", "pow-to-mul").proof.passed
        True
    """
    pipeline = parse_pipeline(passes) if isinstance(passes, str) else tuple(passes)
    rewrite = FileRewrite(model := as_model(model), Path(output), options, progress)
    rewrite.check()
    progress("rewriting")
    with time_limit(f"{model.label}: rewriting", options.limits.seconds):
        outcome = run_passes(model, pipeline)
    claim = Claim.of(pipeline, outcome.changes, model)
    written, evidence = rewrite.write(outcome.model, lambda file: rewrite.judge(outcome.model, file, claim))
    evidence = evidence or Evidence()
    return RewriteReport(
        source=model.name,
        files=tuple(path.name for path in written),
        passes=tuple(step.name() for step in pipeline),
        counts=_count_operators(model, outcome.model),
        changes=outcome.changes,
        declined=outcome.declined,
        notes=(*declarations(model).notes, *evidence.notes),
        proof=evidence.proof,
        unproven=evidence.unproven,
        failures=evidence.failures,
        unused=tuple(path.name for path in written.unused),
        costs=rewrite.costs(),
        models=(model, outcome.model),
    )


def _count_operators(before: Model, after: Model) -> tuple[Change, ...]:
    was, now = (Counter(node.operator for node in all_nodes(model.scopes)) for model in (before, after))
    rows = [Change(op, was[op], now[op]) for op in sorted(was | now) if was[op] != now[op]]
    return (*rows, Change("all nodes", was.total(), now.total()))
