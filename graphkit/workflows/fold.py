"""Fold a model file: rewrite, write, prove, report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from graphkit.analysis.remaining_shapes import RemainingShapes, remaining_shapes
from graphkit.analysis.shape_ops import SHAPE_OPS, Change, changes_table, shape_ops
from graphkit.graph.view import all_nodes
from graphkit.model import Model, load
from graphkit.passes.fold import FOLD_LIMIT, fold
from graphkit.render.blocks import Block, Heading, Prose, table
from graphkit.render.result import Result
from graphkit.rewrite.base import grouped
from graphkit.runtime.limits import DEFAULT_LIMITS, Limits
from graphkit.runtime.session import check_files
from graphkit.save import Placement, save_models, unused_text
from graphkit.shapes import AS_DECLARED, DimSpec, declarations
from graphkit.verify.evidence import proof_blocks
from graphkit.verify.proof import RewriteProof
from graphkit.verify.rewrite import fusing_tolerance, verify_rewrite

__all__ = ["FoldOptions", "FoldReport", "fold_file"]

OTHERS = ("Transpose", "Identity", "Constant", "Cast")  # what folding removes besides
SHOWN_DECLINED = 20


@dataclass(frozen=True)
class FoldOptions:
    """How to fold.

    Attributes:
        spec: What is known about the input dims; its sizes and shapes are frozen.
        limit: Size limit in bytes of a new constant; all of them together may add 64 times as much.
        weights: Where the weights go: see `graphkit.save.save_models`.
        verify: Whether to run the proof.
        overwrite: Replace existing files.
        tolerance: Largest difference that still counts as equal; see `graphkit.verify.verify_rewrite`.
        limits: Time and memory that a model may take in the proof.
        keep_fusions: Whether to keep the nodes that onnxruntime's own fusions look for.
        fuse: Whether constants go into weights, and onnxruntime's fusions are given up; the proof has a tolerance
            then, by default `fusing_tolerance`, relative to the largest magnitude in an output.
    """

    spec: DimSpec = AS_DECLARED
    limit: int = FOLD_LIMIT
    weights: Placement = "shared"
    verify: bool = True
    overwrite: bool = False
    tolerance: float | None = None
    limits: Limits = DEFAULT_LIMITS
    keep_fusions: bool = True
    fuse: bool = False


@dataclass(frozen=True)
class FoldReport(Result):
    """The result of a fold.

    Attributes:
        frozen: Dims that were frozen to numbers.
        counts: Operators of shape computations; the last two rows count the nodes that compute shapes, and all nodes.
        changes: One sentence for each change.
        declined: What stayed unchanged, and why.
        notes: Declared dims that contradict what the nodes compute, in one sentence.
        remaining: The Shape nodes that stay, except in bodies that were left unchanged.
        proof: The proof, None if it was not run.
        unused: Data files of the replaced model that the new one does not use.
    """

    title: ClassVar[str] = "Fold"
    source: str
    files: tuple[str, ...]
    frozen: tuple[str, ...]
    counts: tuple[Change, ...]
    changes: tuple[str, ...]
    declined: tuple[str, ...]
    notes: tuple[str, ...]
    remaining: RemainingShapes
    proof: RewriteProof | None
    unused: tuple[str, ...] = ()

    def findings(self) -> tuple[str, ...]:
        return self.proof.findings() if self.proof is not None else ()

    def heading(self) -> str:
        return f"Fold of {self.source}"

    def blocks(self) -> Iterator[Block]:
        frozen = f"Frozen: {', '.join(self.frozen)}." if self.frozen else "As dynamic as before."
        if not self.changes:
            reason = f": {self.declined[0]}" if self.declined else " because there is nothing to fold"
            yield Prose(f"Nothing was folded{reason}.", "warning" if self.declined else "plain")
        yield Prose(f"Wrote {' and '.join(self.files)}. {frozen}")
        yield from (Prose(note, "warning") for note in self.notes)
        if self.unused:
            yield Prose(unused_text(self.unused))
        yield changes_table(self.counts)
        yield Heading("What stays")
        yield from self.remaining.blocks()
        declined = grouped(self.declined)
        yield from (Prose(text) for text in declined[:SHOWN_DECLINED])
        if len(declined) > SHOWN_DECLINED:
            yield Prose(f"... and {len(declined) - SHOWN_DECLINED:,} more in the JSON report.")
        yield Heading("What was done")
        steps = [change.partition(": ") for change in self.changes]
        yield table("Pass | Change", [(name, text) for name, _, text in steps])
        yield from proof_blocks(self.proof, "the file is")


def fold_file(
    model: Model | str | Path,
    output: str | Path,
    options: FoldOptions = FoldOptions(),
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> FoldReport:
    """Fold a model, write it, and prove it.

    Args:
        model: The model, read from a file, or the path of that file.
        output: The file to write; with shared weights, NAME_data is written beside it.
        options: How to fold.
        progress: Called with the name of each step before it starts.

    Returns:
        The report; `report.proof.passed` says whether the proof holds. The file stays in any case.

    Raises:
        UsageError: An input or a symbol does not exist, or the numbers contradict each other.
        OutputError: The files cannot be written; nothing is left behind.
        ModelError: The weights are missing, or onnxruntime cannot run the model.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     graphkit.fold_file("example:causal-attention", f"{folder}/folded.onnx").proof.passed
        True
    """
    model, output = model if isinstance(model, Model) else load(model), Path(output)
    if options.verify:
        check_files(model)
    progress("folding")
    outcome = fold(model, options.spec, limit=options.limit, keep_fusions=options.keep_fusions, fuse=options.fuse)
    progress("writing")
    written = save_models({output: outcome.model}, weights=options.weights, overwrite=options.overwrite)
    proof = _proof(model, output, options, progress) if options.verify else None
    frozen = tuple(c.removeprefix("freeze-dims: ") for c in outcome.changes if c.startswith("freeze-dims: "))
    return FoldReport(
        model.name,
        tuple(path.name for path in written),
        frozen,
        _counts(model, outcome.model),
        tuple(change for change in outcome.changes if not change.startswith("freeze-dims: ")),
        tuple(map(str, outcome.declined)),
        declarations(model).notes,
        remaining_shapes(outcome.model, without={declined.where for declined in outcome.declined}),
        proof,
        tuple(path.name for path in written.unused),
    )


def _proof(model: Model, output: Path, options: FoldOptions, progress: Callable[[str], None]) -> RewriteProof:
    is_default = options.fuse and options.tolerance is None
    return verify_rewrite(
        model.path if model.path is not None else model,
        output,
        options.spec,
        tolerance=fusing_tolerance(model) if is_default else options.tolerance,
        of_magnitude=is_default,
        limits=options.limits,
        progress=progress,
    )


def _counts(before: Model, after: Model) -> tuple[Change, ...]:
    was, now = (Counter(node.op_type for node in all_nodes(m.scopes) if not node.domain) for m in (before, after))
    rows = [Change(op, was[op], now[op]) for op in (*SHAPE_OPS, *OTHERS) if was[op] or now[op]]
    plumbing = (shape_ops(before).on_shapes, shape_ops(after).on_shapes)
    nodes = [sum(1 for _ in all_nodes(m.scopes)) for m in (before, after)]
    return (*rows, Change("nodes that compute shapes", *plumbing), Change("all nodes", *nodes))
