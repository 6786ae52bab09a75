"""Split a merged decoder file: split, write the two models, prove them, report."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from graphkit.analysis.cost_changes import BeforeAndAfter, CostChange, cost_change_blocks
from graphkit.analysis.kv_cache import KVCache, kv_cache
from graphkit.analysis.model_interface import Interface, interface
from graphkit.analysis.typical_sizes import TYPICAL
from graphkit.io.read import find_beside
from graphkit.io.transaction import made_folder
from graphkit.model import ModelLike, as_model, load
from graphkit.options import SplitOptions, SplitProofOptions
from graphkit.passes.control_flow.merged_decoders import split_merged
from graphkit.progress import Progress, portion_of, with_share
from graphkit.render.document_blocks import Block, Heading, Prose, table
from graphkit.save import check_targets, save_models, unused_text
from graphkit.shapes import declarations
from graphkit.verify.latency import costs_before_and_after
from graphkit.verify.rewrite_proof import ProvenReport, SplitProof, proof_blocks, proof_outcome
from graphkit.verify.split_verifier import verify_split
from graphkit.workflows.file_proof import WRITTEN, SplitFile, copied_text

FIRST_NAME, PAST_NAME = "decoder_model.onnx", "decoder_with_past_model.onnx"
DATA_NAME = "decoder_shared.onnx_data"


@dataclass(frozen=True)
class SplitReport(ProvenReport):
    """The result of a split.

    Attributes:
        condition: The input that was removed.
        weights: Where the weights are.
        first, with_past: Interfaces of the two models.
        first_changes, with_past_changes: One sentence for each change.
        first_cache, with_past_cache: Contracts of the KV caches.
        notes: Declared dims of the source that contradict what its nodes compute, in one sentence.
        proof: The proof, None if it was not run.
        unused: Data files of the replaced models that the new ones do not use.
        copied: The configurations and the files of the tokenizer, which are copied from beside the merged decoder.
        encoder: The model beside the merged decoder that is named as an encoder, where the pair has none; "" for none.
        costs: Costs of the merged decoder and of each of the two, at the sizes of its step.
    """

    title: ClassVar[str] = "Split"
    source: str
    condition: str
    before: tuple[SplitFile, ...]
    after: tuple[SplitFile, ...]
    weights: str
    first: Interface
    with_past: Interface
    first_changes: tuple[str, ...]
    with_past_changes: tuple[str, ...]
    first_cache: KVCache
    with_past_cache: KVCache
    notes: tuple[str, ...]
    proof: SplitProof | None
    unused: tuple[str, ...] = ()
    copied: tuple[str, ...] = ()
    encoder: str = ""
    costs: tuple[CostChange, ...] = ()

    def blocks(self) -> Iterator[Block]:
        yield proof_outcome(f"Split on {self.condition} into {FIRST_NAME} and {PAST_NAME}.", self.proof)
        rows = [("before", f.name, f.bytes) for f in self.before] + [("after", f.name, f.bytes) for f in self.after]
        yield table("When | File:code | Bytes:number", rows)
        before = sum(f.bytes or 0 for f in self.before)
        after = sum(f.bytes or 0 for f in self.after)
        if self.weights == "in-place":
            yield Prose(f"{after:,} bytes written. The weights stay in the files above: keep them beside the models.")
        elif before:
            yield Prose(f"{after / before:.3f} times the bytes of the merged model.")
        if self.copied:
            yield Prose(copied_text(self.copied))
        if self.encoder:
            copy = f"copy {self.encoder} to the pair before you fold or run it"
            yield Prose(f"Its encoder lies beside the source: {copy}.")
        if self.unused:
            yield Prose(unused_text(self.unused))
        yield from (Prose(note, "warning") for note in self.notes)
        yield Heading("KV strategy")
        yield Prose(
            f"Run {FIRST_NAME} once, on the prompt. Then run {PAST_NAME} for each token, with the previous token "
            f"as input_ids. The input {self.condition} was removed."
        )
        for feed in self.with_past_cache.feeds:
            if feed.present:
                yield Prose(f"Feed back after every step: {feed.present} becomes {feed.past}.")
            else:
                yield Prose(f"Keep from step 1 for all later steps: {feed.past} comes from {FIRST_NAME}.")
        for name, ports, changes in (
            (FIRST_NAME, self.first, self.first_changes),
            (PAST_NAME, self.with_past, self.with_past_changes),
        ):
            yield Heading(name)
            yield from (Prose(change) for change in changes)
            yield from ports.blocks()
        yield from proof_blocks(self.proof, "the files are")
        yield from cost_change_blocks(self.costs)


def split_file(
    model: ModelLike,
    folder: str | os.PathLike[str],
    options: SplitOptions = SplitOptions(),
    *,
    progress: Progress = lambda _: None,
) -> SplitReport:
    """Split a merged decoder into two files in a folder, and prove them.

    Args:
        model: The merged decoder, or its path.
        folder: Where `decoder_model.onnx` and `decoder_with_past_model.onnx` go, the data file beside them, and copies
            of configurations and files of a tokenizer that it does not have.
        options: How to split.
        progress: Called with the name of each step before it starts.

    Returns:
        The report; `report.proof.passed` says whether the proof holds. The files get their names when the proof has
        ended, whether it holds or not.

    Raises:
        UsageError: The model is not a merged decoder, with the reason.
        OutputError: The files cannot be written; nothing is left behind.
        ModelError: The weights are missing, or onnxruntime cannot run a model.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     graphkit.split_file("example:merged-decoder", folder, graphkit.SplitOptions(verify=False)).condition
        'use_cache_branch'
    """
    model, folder = as_model(model), Path(folder)
    if folder.is_dir():
        names = [*([DATA_NAME] if options.weights == "shared" else []), FIRST_NAME, PAST_NAME]
        check_targets([folder / name for name in names], [model], overwrite=options.overwrite)
    progress("splitting")
    split = split_merged(model, condition=options.condition, keep_names=options.keep_names)
    source = model.path.parent if model.path is not None else folder
    copied = {name: path for name, path in find_beside(source).items() if not (folder / name).exists()}
    proofs: list[SplitProof] = []

    def prove(stage: Path) -> None:
        progress(with_share(WRITTEN, "proving"))
        pair = load(stage / FIRST_NAME), load(stage / PAST_NAME)
        asked = SplitProofOptions(steps=options.steps, tolerance=options.tolerance, limits=options.limits)
        proofs.append(verify_split(model, *pair, asked, progress=portion_of(progress, WRITTEN, 1.0)))

    progress("writing")
    with made_folder(folder):
        saved = save_models(
            {folder / FIRST_NAME: split.first, folder / PAST_NAME: split.with_past},
            weights=options.weights,
            data_name=DATA_NAME,
            others={folder / name: path.read_bytes() for name, path in copied.items()},
            overwrite=options.overwrite,
            before=prove if options.verify else None,
        )
    written, proof = saved, proofs[0] if proofs else None
    first, with_past = load(folder / FIRST_NAME), load(folder / PAST_NAME)
    progress("counting costs")
    return SplitReport(
        source=model.name,
        condition=split.condition,
        before=tuple(map(SplitFile.of, model.files)),
        after=tuple(SplitFile.of(path) for path in written if path.name not in copied),
        weights=options.weights,
        first=interface(first),
        with_past=interface(with_past),
        first_changes=split.first_changes,
        with_past_changes=split.with_past_changes,
        first_cache=kv_cache(first),
        with_past_cache=kv_cache(with_past),
        notes=declarations(model).notes,
        proof=proof,
        unused=tuple(path.name for path in written.unused),
        copied=tuple(copied),
        encoder="" if model.label.startswith("example:") or _encoder_beside(folder) else _encoder_beside(source),
        costs=tuple(
            costs_before_and_after(
                BeforeAndAfter([model], part, wish={"past": past}),
                what=part.name,
                timed=options.time,
                limits=options.limits,
                provider=options.provider,
            )
            for part, past in ((first, 0), (with_past, TYPICAL["past"]))
        ),
    )


def _encoder_beside(folder: Path) -> str:
    return next((path.name for path in sorted(folder.glob("encoder*.onnx"))), "")
