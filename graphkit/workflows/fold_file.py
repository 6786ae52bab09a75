"""Fold a model file: rewrite, write, prove, report."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, cast

from graphkit.analysis.cost_changes import CostChange, cost_change_blocks
from graphkit.analysis.shape_ops import Change, changes_table
from graphkit.analysis.tensor_shapes import RemainingShapes, remaining_shapes
from graphkit.errors import count_things
from graphkit.graph.operator_traits import SHAPE_OPERATORS
from graphkit.graph.view import all_nodes
from graphkit.model import Model, ModelLike, as_model
from graphkit.options import FoldOptions
from graphkit.passes.fold_pipeline import fold
from graphkit.passes.shapes.declare_shapes import FreezeDims, with_shapes
from graphkit.progress import Progress, time_limit
from graphkit.render.document_blocks import Block, Heading, Prose
from graphkit.rewrite.base import ROUNDING, Declined, Outcome, PassChange, change_blocks, declined_blocks
from graphkit.shapes import declarations
from graphkit.shapes.constraints.failing_sizes import check_sizes
from graphkit.shapes.graph_inputs import Inputs
from graphkit.verify.rewrite_proof import RewriteProof, proof_blocks, proof_outcome
from graphkit.workflows.file_proof import FileReport, FileRewrite

OTHERS = ("Transpose", "Identity", "Constant", "Cast")  # further operators that folding removes


@dataclass(frozen=True)
class FoldReport(FileReport):
    """The result of a fold.

    Attributes:
        frozen: Dims that were frozen to numbers.
        counts: Operators of shape computations in the graph and its bodies; the last two rows count the nodes there
            that compute shapes, and all of them. The nodes of functions have a row before these.
        changes: One sentence for each change.
        declined: The parts that stayed unchanged, and why.
        notes: Declared dims that contradict what the nodes compute, in one sentence.
        remaining: The Shape nodes that stay, except in bodies that were left unchanged.
        proof: The proof, None if it was not run.
        unused: Data files of the replaced model that the new one does not use.
        costs: Costs before and after.
        declared: How many tensors got a declaration of their inferred shape.
    """

    title: ClassVar[str] = "Fold"
    source: str
    files: tuple[str, ...]
    frozen: tuple[str, ...]
    counts: tuple[Change, ...]
    changes: tuple[str, ...]
    declined: tuple[Declined, ...]
    notes: tuple[str, ...]
    remaining: RemainingShapes
    proof: RewriteProof | None
    unused: tuple[str, ...] = ()
    costs: tuple[CostChange, ...] = ()
    declared: int = 0
    models: tuple[Model, Model] | None = field(default=None, repr=False, compare=False, metadata={"in_json": False})

    def done(self) -> str:
        """Return what was done, in a sentence."""
        if not self.changes:
            reason = f": {self.declined[0]}" if self.declined else " because there is nothing to fold"
            return f"Nothing was folded{reason}."
        counts = [f"{row.op} {row.before:,} -> {row.after:,}" for row in self.counts[-2:]]
        return f"Folded: {'; '.join(counts)}."

    def blocks(self) -> Iterator[Block]:
        yield proof_outcome(self.done(), self.proof)
        frozen = f"Frozen: {', '.join(self.frozen)}." if self.frozen else "No input dim was frozen."
        shapes = f", with the shapes of {count_things(self.declared, 'tensor(s)')}" if self.declared else ""
        yield Prose(f"Wrote {' and '.join(self.files)}{shapes}. {frozen}")
        yield from self.notices()
        yield changes_table(self.counts)
        yield Heading("What stays")
        yield from self.remaining.blocks()
        yield from declined_blocks(self.declined)
        yield from change_blocks(self.changes)
        yield from proof_blocks(self.proof, "the file is")
        yield from cost_change_blocks(self.costs)


def fold_file(
    model: ModelLike,
    output: str | os.PathLike[str],
    options: FoldOptions = FoldOptions(),
    *,
    progress: Progress = lambda _: None,
) -> FoldReport:
    """Fold a model, write it, and prove it.

    Args:
        model: The model, or its path.
        output: The file to write; with shared weights, NAME_data is written beside it.
        options: How to fold.
        progress: Called with the name of each step before it starts.

    Returns:
        The report; `report.proof.passed` says whether the proof holds. The file gets its name when the proof has
        ended, whether it holds or not.

    Raises:
        UsageError: An input or a symbol does not exist, or the model cannot run at the numbers.
        OutOfTimeError: Folding takes longer than the limit of time, where one is given.
        OutputError: The files cannot be written; nothing is left behind.
        ModelError: The weights are missing, or onnxruntime cannot run the model.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     graphkit.fold_file("example:causal-attention", f"{folder}/folded.onnx").proof.passed
        True
    """
    rewrite = FileRewrite(as_model(model), Path(output), options, progress)
    rewrite.check()
    folded = FoldedFile.of(rewrite)
    written, proof = rewrite.write(folded.model, folded.prove)
    return folded.report(written, proof, written.unused)


@dataclass(frozen=True)
class FoldedFile:
    """A model that was folded and is to be written.

    Attributes:
        outcome: The folded model, and what changed.
        model: The same, with the shapes of its tensors declared.
    """

    rewrite: FileRewrite
    outcome: Outcome
    model: Model
    declared: int

    @classmethod
    def of(cls, rewrite: FileRewrite) -> FoldedFile:
        """Fold a model. Raises UsageError, OutOfTimeError: see `fold_file`."""
        model, options = rewrite.model, cast(FoldOptions, rewrite.options)
        rewrite.progress("folding")
        with time_limit(f"{model.label}: folding", options.limits.seconds):
            declared = declarations(model).model
            if sizes := Inputs(declared, options.spec).numbers:
                check_sizes(declared, options.spec, sizes)
            outcome = fold(model, options.spec, options)
            return cls(rewrite, outcome, *with_shapes(outcome.model))

    def prove(self, file: Path) -> RewriteProof:
        """Prove the written file."""
        return self.rewrite.prove(file, error=ROUNDING if cast(FoldOptions, self.rewrite.options).fuse else 0.0)

    def report(self, written: Iterable[Path], proof: RewriteProof | None, unused: Iterable[Path] = ()) -> FoldReport:
        """Return the report of a model that was written; unused are data files of a model that it replaced."""
        model, outcome = self.rewrite.model, self.outcome
        changes = [change for change in outcome.changes if isinstance(change, PassChange)]
        frozen = [change for change in changes if change.step == FreezeDims.name()]
        return FoldReport(
            source=model.name,
            files=tuple(path.name for path in written),
            frozen=tuple(change.text for change in frozen),
            counts=_count_operators(model, outcome.model),
            changes=tuple(change for change in outcome.changes if change not in frozen),
            declined=outcome.declined,
            notes=declarations(model).notes,
            remaining=remaining_shapes(outcome.model, without={declined.where for declined in outcome.declined}),
            proof=proof,
            unused=tuple(path.name for path in unused),
            costs=self.rewrite.costs(outcome.model if declarations(outcome.model).model is outcome.model else None),
            declared=self.declared,
            models=(model, outcome.model),
        )


def _count_operators(before: Model, after: Model) -> tuple[Change, ...]:
    graphs = [list(all_nodes((model.graph,))) for model in (before, after)]
    was, now = (Counter(node.op_type for node in nodes if not node.domain) for nodes in graphs)
    rows = [Change(op, was[op], now[op]) for op in (*SHAPE_OPERATORS, *OTHERS) if was[op] or now[op]]
    if before.proto.functions or after.proto.functions:
        rows.append(Change("nodes of functions", *(sum(1 for _ in all_nodes(m.scopes[1:])) for m in (before, after))))
    plumbing = (
        sum(node.is_op(*SHAPE_OPERATORS) and model.shape_tensors.works_on_shapes(node) for node in nodes)
        for model, nodes in zip((before, after), graphs, strict=True)
    )
    return (*rows, Change("nodes that compute shapes", *plumbing), Change("all nodes", *map(len, graphs)))
