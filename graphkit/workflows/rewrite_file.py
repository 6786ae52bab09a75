"""Rewrite a model file by passes, change its interface or opset, merge decoders: run, write, prove, report."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from graphkit.analysis.cost_changes import CostChange, cost_change_blocks
from graphkit.analysis.model_interface import Port, interface
from graphkit.analysis.shape_ops import Change, changes_table
from graphkit.errors import ModelError, UsageError, count_things
from graphkit.graph.declared_types import shape_text
from graphkit.graph.view import all_nodes
from graphkit.model import Model, ModelLike, as_model, load
from graphkit.options import RewriteOptions, RewriteProofOptions, SplitProofOptions
from graphkit.passes.control_flow.merged_decoders import MergeDecoders, merge_decoders
from graphkit.passes.interface.extract_subgraph import ExtractSubgraph
from graphkit.passes.interface.rename import Rename
from graphkit.passes.opset.convert_opset import ConvertOpset, converted_by_onnx
from graphkit.passes.registry import parse_pipeline
from graphkit.progress import Progress, portion_of, time_limit
from graphkit.render.document_blocks import Block, Heading, Prose, table
from graphkit.rewrite.base import (
    Declined,
    MatchFailure,
    Outcome,
    Pass,
    change_blocks,
    declined_blocks,
    group_reasons,
    run_passes,
)
from graphkit.shapes import declarations
from graphkit.verify.rewrite_proof import RewriteProof, SplitProof, proof_blocks, proof_outcome
from graphkit.verify.rewrite_verifier import verify_extract, verify_rewrite
from graphkit.verify.split_verifier import verify_split
from graphkit.workflows.file_proof import REWRITTEN, Claim, Evidence, FileReport, FileRewrite

AGAIN = {ExtractSubgraph.name(): " --part", Rename.name(): " --map OLD=NEW"}  # flags that run the proof again, by pass


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
    was, now = (Counter(node.operator for node in all_nodes(each.scopes)) for each in (model, outcome.model))
    rows = [Change(op, was[op], now[op]) for op in sorted(was | now) if was[op] != now[op]]
    return RewriteReport(
        source=model.name,
        files=tuple(path.name for path in written),
        passes=tuple(step.name() for step in pipeline),
        counts=(*rows, Change("all nodes", was.total(), now.total())),
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


@dataclass(frozen=True)
class EditReport(FileReport):
    """The result of an edit.

    Attributes:
        edit: The pass that made it.
        changes: One sentence for each change.
        inputs, outputs: The declarations of the written model, families of names together.
        notes: Declared dims of the original that contradict what its nodes compute, in one sentence.
        proof: The proof, None if it was not run.
        unused: Data files of the replaced model that the new one does not use.
        costs: Costs before and after; none where only names change.
    """

    title: ClassVar[str] = "Edit"
    source: str
    edit: str
    files: tuple[str, ...]
    changes: tuple[str, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    notes: tuple[str, ...]
    proof: RewriteProof | SplitProof | None
    unused: tuple[str, ...] = ()
    costs: tuple[CostChange, ...] = ()
    models: tuple[Model, Model] | None = field(default=None, repr=False, compare=False, metadata={"in_json": False})

    def heading(self) -> str:
        return f"{super().heading()} by {self.edit}"

    def blocks(self) -> Iterator[Block]:
        done = count_things(len(self.changes), "change(s)") if self.changes else "nothing had to change"
        yield proof_outcome(f"{self.edit}: {done}.", self.proof)
        yield Prose(f"Wrote {' and '.join(self.files)}.")
        yield from (Prose(f"{change}.") for change in self.changes)
        yield from self.notices()
        yield Heading("Interface")
        for title, ports in (("Inputs", self.inputs), ("Outputs", self.outputs)):
            rows = [(port.label, port.dtype, shape_text(port.shape)) for port in ports]
            yield table("Name:code | Dtype | Shape:note", rows, title=title)
        yield from proof_blocks(self.proof, "the file is", AGAIN.get(self.edit, ""))
        yield from cost_change_blocks(self.costs)


def edit_file(
    model: ModelLike,
    output: str | os.PathLike[str],
    step: Pass | str,
    options: RewriteOptions = RewriteOptions(),
    *,
    progress: Progress = lambda _: None,
) -> EditReport:
    """Run a pass that changes the interface or the opset of a model, write the result, and prove it.

    Args:
        model: The model, or its path.
        output: The file to write; with shared weights, NAME_data is written beside it.
        step: The pass, or a text that names it: see `graphkit.parse_pipeline`. A declined model is an error, and
            nothing is written.
        options: How to write and how to prove.
        progress: Called with the name of each step before it starts.

    Returns:
        The report; `report.proof.passed` says whether the proof holds. The file gets its name when the proof has
        ended, whether it holds or not.

    Raises:
        UsageError: The pass does not fit the model, or declines it.
        OutputError: The files cannot be written; nothing is left behind.
        ModelError: The weights are missing, or onnxruntime cannot run the model.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     out = f"{folder}/out.onnx"
        ...     graphkit.edit_file("example:causal-attention", out, "set-dims{dims=batch_size=1}").proof.passed
        True
    """
    rewrite = FileRewrite(model := as_model(model), Path(output), options, progress)
    if not isinstance(step, Pass):
        text, (step, *others) = step, parse_pipeline(step)
        if others:
            raise UsageError(f"'{text}' names several passes - name one, or take rewrite_file")
    rewrite.check()
    progress("editing")
    outcome = step.run(model)
    if outcome.declined and isinstance(step, ConvertOpset):
        outcome = _by_onnx(rewrite, step.version, outcome)
    if outcome.declined:
        raise _declined_error(model, step, outcome, "nothing was written")
    written, proof = rewrite.write(outcome.model, lambda file: _prove_edit(step, rewrite, file))
    after = interface(outcome.model)
    return EditReport(
        source=model.name,
        edit=step.name(),
        files=tuple(path.name for path in written),
        changes=outcome.changes,
        inputs=after.inputs,
        outputs=after.outputs,
        notes=declarations(model).notes,
        proof=proof,
        unused=tuple(path.name for path in written.unused),
        costs=() if isinstance(step, (Rename, MergeDecoders)) else rewrite.costs(),
        models=(model, outcome.model),
    )


def _declined_error(model: Model, step: Pass, outcome: Outcome, hint: str) -> UsageError:
    reasons = "; ".join(group_reasons(outcome.declined))
    return UsageError(f"{model.label}: {step.name()} declines it: {reasons} - {hint}")


def _by_onnx(rewrite: FileRewrite, version: int, declined: Outcome) -> Outcome:
    """Convert a model that the pass declines by onnx's converter, if the proof holds; else return what was declined."""
    model, options, progress = rewrite.model, rewrite.options, rewrite.progress
    if not options.verify:
        hint = "onnx's converter may know it, and is taken only with the proof: leave out --no-verify"
        raise _declined_error(model, ConvertOpset(version), declined, hint)
    progress("converting with onnx")
    try:
        converted = converted_by_onnx(model, version)
        progress("proving what onnx made")
        proof_options = RewriteProofOptions(tolerance=options.tolerance, exact=True, limits=options.limits)
        proof = verify_rewrite(model, converted, options=proof_options, progress=portion_of(progress, 0.0, REWRITTEN))
    except (MatchFailure, ModelError) as error:
        reason = error.problem if isinstance(error, ModelError) else str(error)
    else:
        if proof.passed:
            return Outcome(converted, (f"opset {model.graph.opset()} became {version}, by onnx's converter",))
        reason = f"its proof fails: {proof.failures[0]}"
    return Outcome(model, declined=(*declined.declined, Declined("onnx's converter", reason)))


def _prove_edit(step: Pass, rewrite: FileRewrite, file: Path) -> RewriteProof | SplitProof:
    if isinstance(step, MergeDecoders):
        made, options = merge_decoders(rewrite.model, step.with_past), rewrite.options
        told = SplitProofOptions(tolerance=options.tolerance, limits=options.limits)
        return verify_split(load(file), made.first, made.with_past, told, progress=rewrite.proof_progress)
    if not isinstance(step, (ExtractSubgraph, Rename)):
        return rewrite.prove(file, premise=step.premise(), error=step.error_for(rewrite.model))
    spec, progress = rewrite.options.spec, rewrite.proof_progress
    asked = RewriteProofOptions(tolerance=rewrite.options.tolerance, exact=True, limits=rewrite.options.limits)
    if isinstance(step, ExtractSubgraph):
        return verify_extract(rewrite.original, file, spec, asked, progress=progress)
    names = tuple((old.name, new) for old, new in step.new_names(rewrite.model).items())
    asked = replace(asked, names=names, symbols=tuple(step.dims))
    return verify_rewrite(rewrite.original, file, spec, asked, progress=progress)
