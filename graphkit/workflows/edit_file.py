"""Change the interface or the opset of a model file: edit, write, prove, report."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from graphkit.analysis.costs.cost_changes import CostChange, cost_change_blocks
from graphkit.analysis.model_interface import Port, interface
from graphkit.errors import ModelError, UsageError
from graphkit.graph.declared_types import shape_text
from graphkit.graph.names import count_things
from graphkit.model import Model, ModelLike, as_model
from graphkit.options import RewriteOptions, RewriteProofOptions
from graphkit.passes.interface.extract_subgraph import ExtractSubgraph
from graphkit.passes.interface.rename import Rename
from graphkit.passes.opset.convert_opset import ConvertOpset, converted_by_onnx
from graphkit.passes.registry import parse_pipeline
from graphkit.progress import Progress, portion_of
from graphkit.render.document_blocks import Block, Heading, Prose, table
from graphkit.rewrite.base import Declined, MatchFailure, Outcome, Pass, group_reasons
from graphkit.shapes import declarations
from graphkit.verify.rewrite_proof import RewriteProof, proof_blocks, proof_outcome
from graphkit.verify.rewrite_verifier import verify_extract, verify_rewrite
from graphkit.workflows.file_proof import REWRITTEN, FileReport, FileRewrite

__all__ = ["EditReport", "edit_file"]

AGAIN = {ExtractSubgraph.name(): " --part", Rename.name(): " --map OLD=NEW"}  # flags that run the proof again, by pass


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
    proof: RewriteProof | None
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
            yield table(
                "Name:code | Dtype | Shape:note", [(p.label, p.dtype, shape_text(p.shape)) for p in ports], title=title
            )
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
    step = step if isinstance(step, Pass) else _only_pass(step)
    rewrite.check()
    outcome = _edit_model(rewrite, step)
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
        costs=() if isinstance(step, Rename) else rewrite.costs(),
        models=(model, outcome.model),
    )


def _only_pass(text: str) -> Pass:
    steps = parse_pipeline(text)
    if len(steps) > 1:
        raise UsageError(f"'{text}' names several passes - name one, or take rewrite_file")
    return steps[0]


def _edit_model(rewrite: FileRewrite, step: Pass) -> Outcome:
    """Run a pass on the original.

    Raises:
        UsageError: The pass declines it.
    """
    rewrite.progress("editing")
    outcome = step.run(rewrite.model)
    if outcome.declined and isinstance(step, ConvertOpset):
        outcome = _by_onnx(rewrite, step.version, outcome)
    if outcome.declined:
        raise _declined_error(rewrite.model, step, outcome, "nothing was written")
    return outcome


def _declined_error(model: Model, step: Pass, outcome: Outcome, hint: str) -> UsageError:
    reasons = "; ".join(group_reasons(outcome.declined))
    return UsageError(f"{model.label}: {step.name()} declines it: {reasons} - {hint}")


def _by_onnx(rewrite: FileRewrite, version: int, declined: Outcome) -> Outcome:
    """Convert a model that the pass declines by onnx's converter, if the proof holds; else return the declined outcome.

    Raises:
        UsageError: Nobody wants a proof.
    """
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


def _prove_edit(step: Pass, rewrite: FileRewrite, file: Path) -> RewriteProof:
    if not isinstance(step, (ExtractSubgraph, Rename)):
        return rewrite.prove(file, premise=step.premise(), error=step.error_for(rewrite.model))
    spec, progress = rewrite.options.spec, rewrite.proving
    asked = RewriteProofOptions(tolerance=rewrite.options.tolerance, exact=True, limits=rewrite.options.limits)
    if isinstance(step, ExtractSubgraph):
        return verify_extract(rewrite.original, file, spec, asked, progress=progress)
    names = tuple((old.name, new) for old, new in step.new_names(rewrite.model).items())
    asked = replace(asked, names=names, symbols=tuple(step.dims))
    return verify_rewrite(rewrite.original, file, spec, asked, progress=progress)
