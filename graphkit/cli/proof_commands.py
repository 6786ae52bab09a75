"""Commands that prove and compare models: verify, compare, diff."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphkit.cli.flags import Asked, complete, output_format_option, takes_options
from graphkit.cli.output import load_model, model_path, print_line, progress_on_terminal, show_result, start_prover
from graphkit.errors import UsageError, did_you_mean
from graphkit.model_diff import COSTS, SECTIONS
from graphkit.options import (
    CompareOptions,
    DiffOptions,
    FolderOptions,
    RewriteProofOptions,
    SplitProofOptions,
    as_declared,
    option,
    sizes_option,
)
from graphkit.progress import Progress

if TYPE_CHECKING:
    from graphkit.shapes import DimSpec
    from graphkit.verify.deployment_proofs import BundleProof, LoweringProof
    from graphkit.verify.rewrite_proof import RewriteProof, SplitProof

    Proof = BundleProof | LoweringProof | RewriteProof | SplitProof

ANY = "any"


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(RewriteProofOptions, SplitProofOptions, FolderOptions):
    """How to prove two models, a split or a folder."""

    spec: DimSpec = sizes_option()
    part: bool = option(False, "The second model is a part of the first, as graphkit extract writes one.")

    def check(self, models: int) -> None:
        """Check that options apply to the kind of proof. Raises UsageError where one is not."""
        if self.tokens_rate is not None or self.record:
            raise UsageError("--tokens-rate and --record are for what lower or bundle wrote - name an export and OUT")
        if models not in (2, 3):
            raise UsageError(
                "verify takes two models (original, rewritten) or three (merged, first step, later steps) - name these"
            )
        if models == 3:
            self.check_no_pair()
        if models == 3 and self.provider != "cpu":
            raise UsageError("--provider is for two models or a folder - prove the split, then each model on a device")
        if self.part and self.names:
            raise UsageError("a part has the names of the whole - leave out --part or --map")

    def check_no_pair(self) -> None:
        """Check that there are no options that apply to two models only. Raises UsageError where there is one."""
        if self.spec != as_declared() or self.part or self.names:
            raise UsageError("--dim, --input, --range, --part and --map apply to two models only - leave them out")


@click.command(short_help="Prove that two models, a split, a lowered folder or a bundle give the same.")
@click.argument(
    "models",
    metavar="ORIGINAL REWRITTEN | MERGED FIRST WITH_PAST | EXPORT OUT",
    nargs=-1,
    required=True,
    shell_complete=complete("model"),
)
@takes_options(VerifyOptions)
@output_format_option
def verify(models: Sequence[str], options: Asked[VerifyOptions], format: str) -> None:
    """Prove a rewrite, a split or a folder: run original and result in onnxruntime, and exit with 1 if they differ.

    Takes two models, an original and its rewrite; three, a merged decoder and the pair that it was split into; or an
    export, a folder or a model, and OUT, which graphkit lower or bundle made of it. Only --record writes anything.
    """
    with start_prover(options.limits), progress_on_terminal() as progress:
        proof = _prove_models(models, options.read(), progress)
    is_pair = len(models) == 2 and not Path(models[1]).is_dir()
    show_result(proof, format, *([("compare", *models)] if is_pair and not proof.passed else []))
    if not proof.passed:
        if Path(models[-1]).is_dir():
            print_line(f"The proof failed: {proof.findings()[0]}.", is_error=True)
        raise SystemExit(1)


def _prove_models(models: Sequence[str], options: VerifyOptions, progress: Progress) -> Proof:
    if len(models) == 2 and Path(models[1]).is_dir():
        from graphkit.cli.deploy_commands import fetched_export
        from graphkit.deploy.verify_folder import verify_folder

        options.check_no_pair()
        with fetched_export(model_path(models[0])) as export:
            return verify_folder(export, models[1], options, progress=progress)
    options.check(len(models))
    if len(models) == 3:
        from graphkit.verify.split_verifier import verify_split

        merged, first, with_past = (load_model(name) for name in models)
        progress("proving")
        return verify_split(merged, first, with_past, options, progress=progress)
    from graphkit.verify.rewrite_verifier import verify_extract, verify_rewrite

    prove = verify_extract if options.part else verify_rewrite
    original, rewritten = map(model_path, models)
    return prove(original, rewritten, options.spec, options, progress=progress)


@dataclass(frozen=True, kw_only=True)
class CompareFlags(CompareOptions):
    """How to compare, and on which inputs."""

    inputs: Path | None = option(None, "Arrays for inputs by name, an .npz file.", metavar="FILE")
    spec: DimSpec = sizes_option()


@click.command(short_help="Compare two models layer by layer: where they part, and why.")
@click.argument("a", metavar="A", shell_complete=complete("model"))
@click.argument("b", metavar="B", shell_complete=complete("model"))
@takes_options(CompareFlags)
@output_format_option
def compare(a: str, b: str, options: Asked[CompareFlags], format: str) -> None:
    """Compare two models layer by layer: where they part, and why. Exits with 1 if they differ.

    A is the model that is right. B is the other one, or an .npz file of its tensors by name, such as a device or a run
    in PyTorch gives. Tensors match by name, by what they compute, or by their place in the graph; ambiguous ones are
    not compared.
    """
    with start_prover(options.limits), progress_on_terminal() as progress:
        from graphkit.workflows.compare_models import compare_models

        asked = options.read()
        comparison = compare_models(a, b, asked.spec, asked, inputs=asked.inputs, progress=progress)
    then = ("verify", a, b) if comparison.passed else ("diff", a, b)
    show_result(comparison, format, *([] if Path(b).suffix.lower() == ".npz" else [then]))
    if not comparison.passed:
        raise SystemExit(1)


@dataclass(frozen=True, kw_only=True)
class DiffFlags(DiffOptions):
    """The differences to list, and those that fail."""

    fail_on: str = option(
        "",
        "Exit with code 1 if there are differences in these sections, or more findings, blockers or costs in B. "
        f"Sections: {', '.join((*SECTIONS, COSTS))}; {ANY} stands for all but {COSTS}.",
        metavar="SECTION,...",
    )

    def failing(self) -> frozenset[str]:
        """Return the sections in which a difference fails. Raises UsageError where there is no section of a name."""
        names = [name.strip() for name in self.fail_on.split(",") if name.strip()]
        for name in names:
            if name not in (ANY, *SECTIONS, COSTS):
                raise UsageError(f"--fail-on {name}: no such section - {did_you_mean(name, (ANY, *SECTIONS, COSTS))}")
        if "blockers" in names and self.target is None:
            raise UsageError("--fail-on blockers: blockers are those for a target - name one with --target")
        return frozenset((*SECTIONS, *names) if ANY in names else names)


@click.command(short_help="List the differences between the files of two models.")
@click.argument("a", metavar="A", shell_complete=complete("model"))
@click.argument("b", metavar="B", shell_complete=complete("model"))
@takes_options(DiffFlags)
@output_format_option
def diff(a: str, b: str, options: Asked[DiffFlags], format: str) -> None:
    """List the differences between the files of two models: interface, operator sets, nodes, weights, shapes, findings.

    Nodes match by name and by what they compute, so that other names of values and another order of nodes are no
    difference. Nothing runs: graphkit compare tells by how much the results differ, and where that begins.
    """
    asked = options.read()
    failing = asked.failing()
    if folder := next((name for name in (a, b) if os.path.isdir(name)), ""):
        hint = "name one in it; report FOLDER -r with --lock, and then with --baseline, tells what has become worse"
        raise UsageError(f"{folder}: is a folder, and diff compares two models - {hint}")
    with progress_on_terminal() as progress:
        from graphkit.model_diff.model_diff import diff as differences

        progress("comparing")
        model_diff = differences(load_model(a), load_model(b), asked)
    show_result(model_diff, format, ("compare", a, b))
    reasons = model_diff.failing(failing)
    for name in reasons:
        print_line(f"Differs: {name}", is_error=True)
    if reasons:
        raise SystemExit(1)
