"""Commands that write models, and that prove them: fold, split-merged, rewrite, explain, verify."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphkit.cli.options import (
    DefaultToleranceOption,
    DimOption,
    Format,
    FormatOption,
    InputOption,
    OverwriteOption,
    RangeOption,
    ReportFormat,
    ToleranceOption,
    Weights,
    read_placement,
    read_sizes,
)
from graphkit.cli.output import progress_on_terminal, show

if TYPE_CHECKING:
    from graphkit.model import Model
    from graphkit.verify.proof import RewriteProof
    from graphkit.verify.split import SplitProof

__all__ = ["explain", "fold", "rewrite", "split_merged", "verify"]


def split_merged(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A merged decoder, or example:NAME.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Folder; default: that of the model.")
    ] = None,
    weights: Weights = "shared",
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Do not run the proof.")] = False,
    keep_names: Annotated[bool, typer.Option("--keep-names", help="Keep the _merged_0 of shared weights.")] = False,
    condition: Annotated[str | None, typer.Option(help="The boolean input, where there are several.")] = None,
    overwrite: OverwriteOption = False,
    steps: Annotated[int, typer.Option(min=1, help="Greedy steps of the proof.")] = 8,
    tolerance: ToleranceOption = 0.0,
    format: FormatOption = ReportFormat.text,
) -> None:
    """Split a merged If decoder into first step and later steps, and prove the pair."""
    from graphkit.model import load
    from graphkit.split import SplitOptions, split_file

    options = SplitOptions(read_placement(weights), not no_verify, keep_names, condition, overwrite, steps, tolerance)
    with progress_on_terminal() as progress:
        loaded = load(model)
        folder = output if output is not None else _folder(loaded)
        made = split_file(loaded, folder, options, progress=progress)
    show(made, Format(format.value))
    if made.findings():
        typer.echo(f"The proof failed. The files in {folder} are kept, unverified.", err=True)
        raise typer.Exit(1)


def _folder(model: Model) -> Path:
    from graphkit.errors import UsageError
    from graphkit.examples import example_name

    if model.path is None or example_name(model.path):
        raise UsageError(f"{model.label}: ships with graphkit - name a folder for the result with -o")
    return model.path.parent


def fold(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model file, or example:NAME.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="The file to write.")],
    dim: DimOption = None,
    input: InputOption = None,
    range: RangeOption = None,
    limit: Annotated[int, typer.Option(min=0, help="Bytes of the largest constant to make.")] = 1 << 20,
    no_fusions: Annotated[
        bool, typer.Option("--no-fusions", help="Fewer nodes, though onnxruntime's own fusions no longer find theirs.")
    ] = False,
    weights: Weights = "shared",
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Do not run the proof.")] = False,
    overwrite: OverwriteOption = False,
    tolerance: DefaultToleranceOption = None,
    format: FormatOption = ReportFormat.text,
) -> None:
    """Fold shape plumbing: what is static becomes constant, what is dynamic is computed once; --dim, --input freeze."""
    from graphkit.folding import FoldOptions, fold_file
    from graphkit.model import load

    dims, inputs, ranges = read_sizes(dim, input, range)
    bounds = tuple((name, low, high) for name, (low, high) in ranges.items())
    options = FoldOptions(
        tuple(dims.items()),
        tuple(inputs.items()),
        bounds,
        limit,
        read_placement(weights),
        not no_verify,
        overwrite,
        tolerance,
        not no_fusions,
    )
    with progress_on_terminal() as progress:
        progress(f"reading {model}")
        made = fold_file(load(model), output, options, progress=progress)
    show(made, Format(format.value))
    if made.findings():
        typer.echo(f"The proof failed. {output} is kept, unverified.", err=True)
        raise typer.Exit(1)


def rewrite(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model file, or example:NAME.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="The file to write.")],
    passes: Annotated[str, typer.Option("--passes", "-p", help="Passes, such as name{option=value},name.")],
    weights: Weights = "shared",
    overwrite: OverwriteOption = False,
) -> None:
    """Run a pipeline of passes; `graphkit explain` lists them."""
    from graphkit.model import load
    from graphkit.rewrite.base import run_passes
    from graphkit.rewrite.pipeline import parse_pipeline
    from graphkit.save import save_models

    pipeline = parse_pipeline(passes)
    outcome = run_passes(load(model), pipeline)
    for change in outcome.changes:
        typer.echo(change)
    for declined in outcome.declined:
        typer.echo(f"declined: {declined}")
    for path in save_models({output: outcome.model}, weights=read_placement(weights), overwrite=overwrite):
        typer.echo(f"wrote {path}")


def explain(
    name: Annotated[str | None, typer.Argument(metavar="[PASS]", help="A pass; without one, all are listed.")] = None,
) -> None:
    """Explain a pass, or list them all."""
    from graphkit.rewrite import PASSES
    from graphkit.rewrite.pipeline import explain as explain_pass

    if name is not None:
        typer.echo(explain_pass(name))
        return
    for kind in PASSES:
        typer.echo(f"{kind.name():27} {(kind.__doc__ or '').splitlines()[0]}")


def verify(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="ORIGINAL REWRITTEN | MERGED FIRST WITH_PAST",
            help="A model and what was made of it; or a merged decoder and the pair made of it.",
        ),
    ],
    dim: DimOption = None,
    input: InputOption = None,
    range: RangeOption = None,
    runs: Annotated[int, typer.Option(min=1, help="Sizes of the dims to run two models at.")] = 6,
    steps: Annotated[int, typer.Option(min=1, help="Greedy steps of three models.")] = 8,
    tolerance: DefaultToleranceOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the generated inputs.")] = 0,
    format: FormatOption = ReportFormat.text,
) -> None:
    """Prove a rewrite or a split: run original and result in onnxruntime, and compare. Exits with 1 if they differ."""
    from graphkit.errors import UsageError
    from graphkit.verify.rewrite import verify_rewrite
    from graphkit.verify.split import verify_split

    if len(models) not in (2, 3):
        raise UsageError("verify takes two models, original and rewritten; or three, merged, first step, later steps")
    if len(models) == 3 and (dim or input or range):
        raise UsageError("--dim, --input and --range are for two models - leave them out")
    proof: SplitProof | RewriteProof
    with progress_on_terminal() as progress:
        if len(models) == 3:
            from graphkit.model import load

            loaded = [load(name) for name in models]
            progress("proving")
            proof = verify_split(*loaded, steps=steps, tolerance=tolerance or 0.0, seed=seed)
        else:
            dims, inputs, ranges = read_sizes(dim, input, range)
            proof = verify_rewrite(
                models[0],
                models[1],
                dims=dims,
                inputs=inputs,
                ranges=ranges,
                tolerance=tolerance,
                seed=seed,
                runs=runs,
                progress=progress,
            )
    show(proof, Format(format.value))
    if not proof.passed:
        raise typer.Exit(1)
