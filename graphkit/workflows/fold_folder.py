"""Fold the models of a folder, such as a pair of decoders: all are written together, over one file of weights."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import ClassVar

from graphkit.errors import UsageError
from graphkit.io.byte_source import shown_path
from graphkit.io.export_files import find_beside
from graphkit.io.transaction import made_folder
from graphkit.model import Model, load
from graphkit.model_diff.page_pair import page_rewrites
from graphkit.options import FoldOptions
from graphkit.progress import Progress, portion_of
from graphkit.render.document_blocks import Block, Heading, Prose, outcome, size_text, table
from graphkit.render.result import Result
from graphkit.runtime.session import check_files
from graphkit.save import check_targets, resolve_placement, save_models, unused_text
from graphkit.shapes import DimSpec, declarations
from graphkit.shapes.graph_inputs import Inputs
from graphkit.verify.rewrite_proof import RewriteProof
from graphkit.workflows.file_proof import FileRewrite
from graphkit.workflows.fold_file import FoldedFile, FoldReport
from graphkit.workflows.split_decoder_file import SplitFile, copied_text

DATA_NAME = "shared.onnx_data"


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
