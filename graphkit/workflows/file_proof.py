"""The proof of a rewritten file against its original, and of the claims of the passes that made it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from msgspec import Struct, structs

from graphkit.analysis.cost_changes import BeforeAndAfter, CostChange, cost_change, stored_bytes
from graphkit.graph.declared_types import declared_type
from graphkit.graph.names import family_labels, join_words
from graphkit.io.byte_source import source_of
from graphkit.matching.interfaces import compare_ports
from graphkit.model import Model, ModelLike, load
from graphkit.options import RewriteOptions, RewriteProofOptions
from graphkit.progress import Progress, portion_of, with_share
from graphkit.render.document_blocks import Block, Heading, Prose
from graphkit.rewrite.base import ALWAYS, Pass, PassChange, Premise, copy_proto, keep_members
from graphkit.save import Saved, check_targets, resolve_placement, save_models, unused_text
from graphkit.shapes.constraints.dim_equalities import fed_inputs
from graphkit.verify.rewrite_proof import ProvenReport, RewriteProof, proof_blocks

T = TypeVar("T")
REWRITTEN, WRITTEN, PROVEN = 0.1, 0.25, 0.95  # shares of the work that are done then, of a model with large weights


class SplitFile(Struct, frozen=True):
    """A file before or after, and its bytes; None where it is missing."""

    name: str
    bytes: int | None

    @classmethod
    def of(cls, path: Path) -> SplitFile:
        """Return the facts about a file."""
        source = source_of(path)
        return cls(path.name, source.size if path.exists() or not source.is_local else None)


def copied_text(names: Sequence[str]) -> str:
    """Return a sentence about files that are copied, "" for none."""
    return f"Wrote {join_words(names)} too, copied from beside the source." if names else ""


class Claim(Struct, frozen=True):
    """A claim about a rewrite: wherever its premise holds, it gives the results of the original."""

    premise: Premise = ALWAYS
    error: float = 0.0  # the largest error of a node, 0 where results are equal to the last bit
    drops_outputs: bool = False  # whether outputs may be missing
    drops_rounding: bool = False  # whether nothing changes but that quantised data is no longer rounded
    # the passes that changed the set or the meaning of inputs and outputs; they claim nothing
    interface: tuple[str, ...] = ()

    @classmethod
    def of(cls, passes: Sequence[Pass], changes: Sequence[str], model: Model) -> Claim:
        """Return the joint claim about a model of the passes that changed something."""
        names = {change.step for change in changes if isinstance(change, PassChange)}
        active = [step for step in passes if step.name() in names]
        premise = ALWAYS
        for step in active:
            premise |= step.premise()
        return cls(
            premise,
            max((step.error_for(model) for step in active), default=0.0),
            any(step.drops_outputs for step in active),
            bool(active) and all(step.drops_rounding for step in active),
            tuple(dict.fromkeys(step.name() for step in active if step.changes_interface)),
        )


class Evidence(Struct, frozen=True):
    """The result of a proof, or why there is none."""

    proof: RewriteProof | None = None
    unproven: str = ""  # why nothing is proven, "" where there is a proof or nobody asked for one
    failures: tuple[str, ...] = ()  # unclaimed changes of the passes, a sentence each
    notes: tuple[str, ...] = ()  # the limits of the proof, a sentence each

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks to show."""
        if not self.unproven and not self.failures:
            yield from proof_blocks(self.proof, "the file is")
            return
        yield Heading("Proof")
        if self.unproven:
            yield Prose(f"Nothing is proven: {self.unproven}.", "warning")
        yield from (Prose(failure, "warning") for failure in self.failures)


NO_BOUND = (
    "and no bound tells how far results may move where data is no longer rounded - give --tolerance to compare them as "
    "a whole"
)
NOT_ALONE = Evidence(
    unproven=f"other passes changed the model beside the one that takes roundings away, {NO_BOUND}, or run it first, "
    "by itself"
)


class FileReport(ProvenReport):
    """The report of a rewrite, the result of which was written to a file and proven."""

    notes: tuple[str, ...]
    unused: tuple[str, ...]
    models: tuple[Model, Model] | None  # before and after, for a page that shows both

    def graphs(self) -> Sequence[Mapping[str, object]]:
        """Return the graphs before and after, with the nodes of each that are in the other one."""
        from graphkit.model_diff.page_pair import page_pair

        return () if self.models is None else page_pair(self.models, ("the original", "the result"))

    def notices(self) -> Iterator[Block]:
        """Yield the notes, and the data files that are no longer used."""
        yield from (Prose(note, "warning") for note in self.notes)
        if self.unused:
            yield Prose(unused_text(self.unused))


class FileRewrite(Struct, frozen=True):
    """A rewrite of a model, the result of which goes to a file."""

    model: Model
    output: Path
    options: RewriteOptions
    progress: Progress  # called with the name of each step before it starts

    def check(self) -> None:
        """Check before any work that the file can be written, and that the weights are there to be copied or run."""
        output, options = self.output, self.options
        placement = resolve_placement(options.weights, [self.model])
        data = [output.with_name(f"{output.name}_data")] if placement == "shared" else []
        check_targets([*data, output], [self.model], overwrite=options.overwrite)
        if options.verify or placement != "in-place":  # data in place need not be there yet
            from graphkit.runtime.session import check_files

            check_files(self.model)
        if options.verify:
            from graphkit.runtime.isolation import start_ahead

            start_ahead()

    def write(self, rewritten: Model, proof: Callable[[Path], T]) -> tuple[Saved, T | None]:
        """Write the result, and prove it before it gets its name: a run that breaks off leaves all as it was.

        Return the files, and what `proof` says of the file that it is given; None where none is asked for.
        """
        proofs: list[T] = []
        self.progress(with_share(REWRITTEN, "writing"))
        options = self.options
        saved = save_models(
            {self.output: rewritten},
            weights=options.weights,
            overwrite=options.overwrite,
            before=(lambda stage: proofs.append(proof(stage / self.output.name))) if options.verify else None,
        )
        return saved, proofs[0] if proofs else None

    def costs(self, rewritten: Model | None = None, files: Collection[Path] = ()) -> tuple[CostChange, ...]:
        """Count the costs of the original and of the written file, and time them if that is asked for.

        The shapes of the rewritten model may be known, where it declares the same dims of inputs as the file. `files`
        are those that were written.
        """
        self.progress(with_share(PROVEN, "counting costs"))
        options = self.options
        if rewritten is not None and not options.time:
            has_all = len(files) == 1 and options.weights != "in-place"  # weights too
            size = self.output.stat().st_size if has_all else stored_bytes(load(self.output))
            return (cost_change(BeforeAndAfter([self.model], rewritten, options.spec, written_bytes=size)),)
        models = BeforeAndAfter([self.model], load(self.output), options.spec)
        if not options.time:
            return (cost_change(models),)
        from graphkit.verify.latency import costs_before_and_after

        return (costs_before_and_after(models, timed=True, limits=options.limits, provider=options.provider),)

    @property
    def proof_progress(self) -> Progress:
        """The progress of the proof."""
        return portion_of(self.progress, WRITTEN, PROVEN)

    @property
    def original(self) -> ModelLike:
        """The file of the original, the model where it is another one in memory."""
        return self.model if self.model.path is None or self.model.is_edited else self.model.path

    def prove(self, file: Path, *, premise: Premise = ALWAYS, error: float = 0.0) -> RewriteProof:
        """Prove that the written file gives the results of the original, where the premise of the passes holds.

        The error is the largest of a node, 0 where results are equal to the last bit. Raises UsageError where the
        inputs differ, or the options name a symbol or an input that does not exist; ModelError where the weights are
        missing, or onnxruntime cannot run the original.
        """
        from graphkit.verify.comparator import error_tolerance
        from graphkit.verify.rewrite_verifier import verify_rewrite

        options = self.options
        is_default = options.tolerance is None and error > 0
        arrays = {}  # of inputs that are always one value; a dim that is not fixed is 1
        for value in self.model.graph.inputs:
            declared = declared_type(value) if value.name in premise.values else None
            if declared is not None:
                shape = tuple(dim if isinstance(dim, int) else 1 for dim in declared.dims or ())
                arrays[value.name] = np.full(shape, premise.values[value.name], declared.numpy_dtype)
        asked = RewriteProofOptions(
            values=arrays,
            is_unpadded=premise.is_unpadded,
            tolerance=error_tolerance(self.model, error) if is_default else options.tolerance,
            of_magnitude=is_default,
            exact=not error,
            limits=options.limits,
        )
        return verify_rewrite(self.original, file, premise.spec | options.spec, asked, progress=self.proof_progress)

    def judge(self, rewritten: Model, file: Path, claim: Claim) -> Evidence:
        """Prove the claims of passes about the written file, where they can be proven.

        Raises UsageError where the options name a symbol or an input that does not exist; ModelError where the weights
        are missing, or onnxruntime cannot run the original.
        """
        inputs = compare_ports([*fed_inputs(self.model).values()], [*fed_inputs(rewritten).values()])
        outputs = compare_ports(self.model.graph.outputs, rewritten.graph.outputs)
        changes = [
            ([value.name for value in inputs.new], "input", "new"),
            (inputs.retyped_names, "input", "of another dtype or rank"),
            ([value.name for value in outputs.new], "output", "new"),
        ]
        changed = [_change_sentence(names, kind, change) for names, kind, change in changes if names]
        gone = [value.name for value in outputs.lost]
        if claim.interface:
            texts = [*changed, *_are_gone("output", gone)]
            why = f"{' and '.join(claim.interface)} changed the interface" + (f" ({'; '.join(texts)})" if texts else "")
            return Evidence(unproven=f"{why}, and the two models cannot be compared on the same inputs")
        if changed or (gone and not claim.drops_outputs):
            failures = [f"The interface has changed, which no pass claims to do: {text}." for text in changed]
            failures += [f"{text}, which no pass claims to do." for text in _are_gone("Output", gone)]
            return Evidence(failures=tuple(failures))
        if gone and not rewritten.graph.outputs:
            return Evidence(unproven="no output is left to compare")
        notes = tuple(f"{text}." for text in _are_gone("Output", gone))
        if math.isinf(claim.error) and self.options.tolerance is None:
            return self._prove_unrounded(rewritten, file, claim.premise) if claim.drops_rounding else NOT_ALONE
        compared = self
        if gone:
            proto = copy_proto(self.model)
            keep_members(proto.graph.output, [info.name not in gone for info in proto.graph.output])
            compared = structs.replace(self, model=self.model.with_proto(proto))
        return Evidence(compared.prove(file, premise=claim.premise, error=claim.error), notes=notes)

    def _prove_unrounded(self, rewritten: Model, file: Path, premise: Premise) -> Evidence:
        """Prove that products of floats are those of the original, and measure the effect of rounding."""
        from graphkit.verify.quantized_rounding import TOLERANCE, as_rounded, join_proofs, merged_branches
        from graphkit.verify.rewrite_verifier import verify_rewrite

        pairs = []
        for flags, *models in merged_branches(self.model, rewritten):
            two = as_rounded(*models)
            if isinstance(two, str):
                return Evidence(unproven=f"the model has {two}; {NO_BOUND}")
            pairs.append((flags, two))
        written = structs.replace(self, model=rewritten).prove(file, premise=premise)
        if not written.passed:
            return Evidence(written, notes=("The written file is compared with the result in memory.",))
        asked = RewriteProofOptions(tolerance=TOLERANCE, of_magnitude=True, exact=True, limits=self.options.limits)
        spec = premise.spec | self.options.spec
        proofs = [(flags, verify_rewrite(*two, spec, asked, progress=self.proof_progress)) for flags, two in pairs]
        proof = join_proofs(proofs)
        whole = structs.replace(self, options=replace(self.options, tolerance=math.inf)).prove(file, premise=premise)
        moved = max((output.absolute or 0.0 for output in whole.outputs), default=0.0)
        note = (
            "The proof rounds the data of each product as the original does, and compares the products and all that "
            f"is between them. Without these roundings, results differ from those of the original by up to {moved:.2g}."
        )
        return Evidence(replace(proof, failures=(*proof.failures, *whole.failures)), notes=(note,))


def _are_gone(kind: str, names: Sequence[str]) -> list[str]:
    return [_change_sentence(names, kind, "gone")] if names else []


def _change_sentence(names: Sequence[str], kind: str, predicate: str) -> str:
    ending, verb = ("s", "are") if len(names) > 1 else ("", "is")
    return f"{kind}{ending} {family_labels(names)} {verb} {predicate}"
