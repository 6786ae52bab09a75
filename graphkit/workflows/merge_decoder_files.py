"""Merge two decoder files into one: write it, prove each branch, report."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from graphkit.analysis.model_interface import Interface, interface
from graphkit.model import ModelLike, load
from graphkit.options import RewriteOptions, SplitProofOptions
from graphkit.passes.control_flow.merge_decoders import CONDITION, merge_decoders
from graphkit.progress import Progress
from graphkit.render.document_blocks import Block, Heading, Prose
from graphkit.shapes import declarations
from graphkit.verify.rewrite_proof import ProvenReport, SplitProof, proof_blocks, proof_outcome
from graphkit.verify.split_verifier import verify_split
from graphkit.workflows.file_proof import FileRewrite
from graphkit.workflows.split_decoder_file import SplitFile, file_size_blocks

__all__ = ["MergeReport", "merge_file"]


@dataclass(frozen=True)
class MergeReport(ProvenReport):
    """The result of a merge.

    Attributes:
        source: The names of the two decoders.
        changes: One sentence for each change.
        interface: Inputs and outputs of the merged decoder.
        notes: Declared dims of a source that contradict what its nodes compute, in one sentence.
        proof: The proof, None if it was not run.
    """

    title: ClassVar[str] = "Merge"
    source: str
    before: tuple[SplitFile, ...]
    after: tuple[SplitFile, ...]
    weights: str
    changes: tuple[str, ...]
    interface: Interface
    notes: tuple[str, ...]
    proof: SplitProof | None

    def blocks(self) -> Iterator[Block]:
        name = next(file.name for file in reversed(self.after))
        yield proof_outcome(f"Merged {self.source} into {name}.", self.proof)
        yield from file_size_blocks(self.before, self.after, self.weights)
        yield from (Prose(note, "warning") for note in self.notes)
        yield Prose(f"Feed {CONDITION} as false and an empty past on the first step, and as true on later steps.")
        yield from (Prose(f"{change[0].upper()}{change[1:]}.") for change in self.changes)
        yield Heading("Interface")
        yield from self.interface.blocks()
        yield from proof_blocks(self.proof, "the file is")


def merge_file(
    first: ModelLike,
    with_past: ModelLike,
    output: str | os.PathLike[str],
    options: RewriteOptions = RewriteOptions(),
    *,
    progress: Progress = lambda _: None,
) -> MergeReport:
    """Merge two decoders into one file, and prove it: see `graphkit.merge_decoders`.

    Each branch of the written file is compared with its decoder, as a split is, and both decode greedily.

    Args:
        first: The decoder of the first step, or its path.
        with_past: The decoder of later steps, or its path.
        output: The file to write; with shared weights, NAME_data is written beside it.
        options: How to write and how to prove.
        progress: Called with the name of each step before it starts.

    Returns:
        The report; `report.proof.passed` says whether the proof holds. The file gets its name when the proof has
        ended, whether it holds or not.

    Raises:
        UsageError: The two are no such decoders, or do not fit together, with the reason.
        OutputError: The file cannot be written; nothing is left behind.
        ModelError: The weights are missing, or onnxruntime cannot run a model.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = graphkit.split_file("example:merged-decoder", folder, graphkit.SplitOptions(verify=False))
        ...     pair = f"{folder}/decoder_model.onnx", f"{folder}/decoder_with_past_model.onnx"
        ...     graphkit.merge_file(*pair, f"{folder}/merged.onnx").proof.passed
        True
    """
    progress("merging")
    made = merge_decoders(first, with_past)
    rewrite = FileRewrite(made.model, Path(output), options, progress)
    rewrite.check()
    asked = SplitProofOptions(tolerance=options.tolerance, limits=options.limits)
    written, proof = rewrite.write(
        made.model,
        lambda file: verify_split(load(file), made.first, made.with_past, asked, progress=rewrite.proof_progress),
    )
    return MergeReport(
        source=f"{made.first.name} and {made.with_past.name}",
        before=tuple(SplitFile.of(path) for path in made.model.files),
        after=tuple(SplitFile.of(path) for path in written),
        weights=options.weights,
        changes=made.changes,
        interface=interface(load(output)),
        notes=tuple(dict.fromkeys(note for half in (made.first, made.with_past) for note in declarations(half).notes)),
        proof=proof,
    )
