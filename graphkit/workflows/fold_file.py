"""Fold a model file, or all models of a folder over one file of weights: rewrite, write, prove, report."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import ClassVar, cast

from msgspec import Struct

from graphkit.analysis.cost_changes import CostChange, cost_change_blocks
from graphkit.analysis.shape_ops import Change, changes_table
from graphkit.analysis.tensor_shapes import RemainingShapes, remaining_shapes
from graphkit.errors import UsageError, count_things
from graphkit.graph.operator_traits import SHAPE_OPERATORS
from graphkit.graph.view import all_nodes, find_nodes
from graphkit.io.byte_source import shown_path
from graphkit.io.read import find_beside
from graphkit.io.transaction import made_folder
from graphkit.model import Model, ModelLike, as_model, load
from graphkit.options import FoldOptions
from graphkit.passes.fold_pipeline import fold
from graphkit.passes.shapes.declare_shapes import FreezeDims, with_shapes
from graphkit.progress import Progress, portion_of, time_limit
from graphkit.render.document_blocks import Block, Heading, Prose, outcome, size_text, table
from graphkit.render.result import Result
from graphkit.rewrite.base import ROUNDING, Declined, Outcome, PassChange, change_blocks, declined_blocks
from graphkit.runtime.session import check_files
from graphkit.save import check_targets, resolve_placement, save_models, unused_text
from graphkit.shapes import DimSpec, declarations
from graphkit.shapes.graph_inputs import Inputs
from graphkit.verify.rewrite_proof import RewriteProof, proof_blocks, proof_outcome
from graphkit.workflows.file_proof import FileReport, FileRewrite, SplitFile, copied_text

OTHERS = ("Transpose", "Identity", "Constant", "Cast")  # further operators that folding removes
DATA_NAME = "shared.onnx_data"


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


class FoldedFile(Struct, frozen=True):
    """A model that was folded and is to be written."""

    rewrite: FileRewrite
    outcome: Outcome  # the folded model, and what changed
    model: Model  # the same, with the shapes of its tensors declared
    declared: int

    @classmethod
    def of(cls, rewrite: FileRewrite) -> FoldedFile:
        """Fold a model. Raises UsageError, OutOfTimeError: see `fold_file`."""
        model, options = rewrite.model, cast(FoldOptions, rewrite.options)
        rewrite.progress("folding")
        with time_limit(f"{model.label}: folding", options.limits.seconds):
            declared = declarations(model).model
            if sizes := Inputs(declared, options.spec).numbers:
                from graphkit.shapes.constraints.failing_sizes import check_sizes  # which sizes that are asked for need

                check_sizes(declared, options.spec, sizes)
            outcome = fold(model, options.spec, options)
            return cls(rewrite, outcome, *with_shapes(outcome.model))

    def prove(self, file: Path) -> RewriteProof:
        """Prove the written file."""
        return self.rewrite.prove(file, error=ROUNDING if cast(FoldOptions, self.rewrite.options).fuse else 0.0)

    def report(self, written: Iterable[Path], proof: RewriteProof | None, unused: Iterable[Path] = ()) -> FoldReport:
        """Return the report of a model that was written; unused are data files of a model that it replaced."""
        model, outcome, files = self.rewrite.model, self.outcome, list(written)
        is_declared = declarations(outcome.model).model is outcome.model
        changes = [change for change in outcome.changes if isinstance(change, PassChange)]
        frozen = [change for change in changes if change.step == FreezeDims.name()]
        return FoldReport(
            source=model.name,
            files=tuple(path.name for path in files),
            frozen=tuple(change.text for change in frozen),
            counts=_count_operators(model, outcome.model),
            changes=tuple(change for change in outcome.changes if change not in frozen),
            declined=outcome.declined,
            notes=declarations(model).notes,
            remaining=remaining_shapes(outcome.model, without={declined.where for declined in outcome.declined}),
            proof=proof,
            unused=tuple(path.name for path in unused),
            costs=self.rewrite.costs(outcome.model if is_declared else None, files),
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
        sum(map(model.shape_tensors.works_on_shapes, find_nodes((model.graph,), *SHAPE_OPERATORS)))
        for model in (before, after)
    )
    return (*rows, Change("nodes that compute shapes", *plumbing), Change("all nodes", *map(len, graphs)))


@dataclass(frozen=True)
class FolderFoldReport(Result):
    """The result of a fold of all models of a folder.

    Attributes:
        source: The folder.
        before, after: The models and their data, and the bytes of each.
        models: The report of each model.
        unused: Data files of replaced models that the new ones do not use.
        copied: The configurations and the files of the tokenizer, which are copied.
    """

    title: ClassVar[str] = "Fold"
    source: str
    before: tuple[SplitFile, ...]
    after: tuple[SplitFile, ...]
    models: tuple[FoldReport, ...]
    unused: tuple[str, ...] = ()
    copied: tuple[str, ...] = ()

    def heading(self) -> str:
        return f"{self.title} of {self.source}"

    def findings(self) -> tuple[str, ...]:
        return tuple(f"{report.source}: {failure}" for report in self.models for failure in report.findings())

    def graphs(self) -> Sequence[Mapping[str, object]]:
        from graphkit.model_diff.page_pair import page_rewrites  # which a page alone needs

        return page_rewrites([change for report in self.models for change in report.costs])

    def blocks(self) -> Iterator[Block]:
        lines = []
        for report in self.models:
            proven = f" {report.proof.proven()}" if report.proof is not None and report.proof.passed else ""
            lines.append(f"{report.source}: {report.done()}{proven}")
        unproven = [f"{each.source} is not proven: the proof was not run" for each in self.models if not each.proof]
        yield outcome(lines, (*self.findings(), *unproven))
        before, after = (sum(file.bytes or 0 for file in files) for files in (self.before, self.after))
        yield Prose(
            f"Wrote {', '.join(file.name for file in self.after)}: {size_text(after, 'B')}, "
            f"{size_text(before, 'B')} before. {copied_text(self.copied)}".rstrip()
        )
        if self.unused:
            yield Prose(unused_text(self.unused))
        rows = [("before", f.name, f.bytes) for f in self.before] + [("after", f.name, f.bytes) for f in self.after]
        yield table("When | File:code | Bytes:number", rows)
        for report in self.models:
            yield Heading(report.source)
            yield from report.blocks()


def fold_folder(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    options: FoldOptions = FoldOptions(),
    *,
    progress: Progress = lambda _: None,
) -> FolderFoldReport:
    """Fold all models of a folder, write them to another one, and prove each.

    Args:
        folder: The folder of the models, such as a split decoder or an export in parts.
        output: The folder to write to; weights that models share are stored once, unless all have their weights inside
            and keep them there. Configurations and files of the tokenizer are copied.
        options: How to fold; a symbol or an input that the `spec` names may be that of some of the models.
        progress: Called with the name of each step before it starts.

    Returns:
        The report, with one for each model.

    Raises:
        UsageError: The folder has no model, no model has an input or a symbol that is named, or one cannot run at the
            numbers.
        OutOfTimeError: Folding a model takes longer than the limit of time, where one is given.
        OutputError: The files cannot be written; nothing is left behind.
        ModelError: Weights are missing, or onnxruntime cannot run a model.

    Example:
        >>> import tempfile
        >>> options = graphkit.FoldOptions(verify=False)
        >>> with tempfile.TemporaryDirectory() as pair, tempfile.TemporaryDirectory() as folded:
        ...     split = graphkit.split_file("example:merged-decoder", pair, graphkit.SplitOptions(verify=False))
        ...     [file.name for file in graphkit.fold_folder(pair, folded, options).after]
        ['shared.onnx_data', 'decoder_model.onnx', 'decoder_with_past_model.onnx']
    """
    folder, output = Path(folder), Path(output)
    models = [load(path) for path in sorted(folder.glob("*.[oO][nN][nN][xX]"))]
    if not models:
        raise UsageError(f"{shown_path(folder)}: it holds no .onnx file - name the folder of an export, or a model")
    rewrites, count = list[FileRewrite](), len(models)
    for number, (model, spec) in enumerate(zip(models, _split_spec(models, options.spec), strict=True)):
        told = portion_of(progress, number / count, (number + 1) / count)
        rewrites.append(FileRewrite(model, output / model.name, replace(options, spec=spec), told))
    with made_folder(output):
        placement = resolve_placement(options.weights, models)
        data = [output / DATA_NAME] if placement == "shared" else []
        check_targets([*data, *(each.output for each in rewrites)], models, overwrite=options.overwrite)
        for model in models:
            check_files(model)
        folds = [FoldedFile.of(rewrite) for rewrite in rewrites]
        proofs: list[RewriteProof | None] = []
        copied = find_beside(folder)
        progress("writing")
        written = save_models(
            {folded.rewrite.output: folded.model for folded in folds},
            weights=placement,
            data_name=DATA_NAME,
            others={output / name: path.read_bytes() for name, path in copied.items()},
            overwrite=options.overwrite,
            before=(lambda stage: proofs.extend(each.prove(stage / each.rewrite.output.name) for each in folds))
            if options.verify
            else None,
        )
    shared = [path for path in written if path in data]
    return FolderFoldReport(
        source=shown_path(folder),
        before=tuple(map(SplitFile.of, dict.fromkeys(chain.from_iterable(model.files for model in models)))),
        after=tuple(SplitFile.of(path) for path in written if path.name not in copied),
        models=tuple(
            folded.report([*shared, folded.rewrite.output], proof)
            for folded, proof in zip(folds, proofs or [None] * len(folds), strict=True)
        ),
        unused=tuple(path.name for path in written.unused),
        copied=tuple(copied),
    )


def _split_spec(models: Sequence[Model], spec: DimSpec) -> list[DimSpec]:
    """Return the part of a specification for each model; the first one gets what concerns none, and says so."""
    every = [Inputs(declarations(model).model) for model in models]

    def concerns(inputs: Inputs, name: str) -> bool:
        is_dim = name in inputs.names or name in inputs.reading.groups or inputs.reading.place_of(name) is not None
        return is_dim or name in inputs.declared

    def takes(inputs: Inputs, name: str) -> bool:
        return concerns(inputs, name) or (inputs is every[0] and not any(concerns(each, name) for each in every))

    return [
        DimSpec(
            tuple(fact for fact in spec.dims if takes(inputs, fact[0])),
            tuple(fact for fact in spec.inputs if takes(inputs, fact[0])),
            tuple(fact for fact in spec.ranges if takes(inputs, fact[0])),
        )
        for inputs in every
    ]
