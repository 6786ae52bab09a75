"""Commands that rewrite and prove models: fold, split-merged, rewrite, explain, verify."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphkit.cli.completing import complete_model, complete_passes
from graphkit.cli.options import (
    SizeWords,
    count_option,
    float16_tolerance_option,
    format_option,
    limit_options,
    model_argument,
    no_verify_option,
    output_format_option,
    output_option,
    overwrite_option,
    read_pairs,
    rewrite_tolerance_option,
    shared_weights_option,
    size_options,
    steps_option,
    tolerance_option,
    weights_option,
)
from graphkit.cli.output import progress_on_terminal, proving, put, put_list, say, show
from graphkit.cli.piping import destination, finish, load, model_path

if TYPE_CHECKING:
    from graphkit.model import Model
    from graphkit.runtime.limits import Limits
    from graphkit.save import Placement
    from graphkit.verify.rewrite_proof import RewriteProof
    from graphkit.verify.split import SplitProof

__all__ = ["explain", "fold", "rewrite", "split_merged", "verify"]


@click.command("split-merged", short_help="Split a merged decoder in two, and prove the pair.")
@model_argument
@output_option("DIR", "Output folder. Default: the folder of the model.")
@shared_weights_option
@no_verify_option
@click.option("--keep-names", is_flag=True, help="Keep the suffix _merged_0 in the names of shared weights.")
@click.option("--condition", metavar="NAME", help="The boolean input to split on, if there are several.")
@overwrite_option
@steps_option
@tolerance_option(0.0)
@limit_options
@format_option
def split_merged(
    model: str,
    output: Path | None,
    weights: Placement,
    no_verify: bool,
    keep_names: bool,
    condition: str | None,
    overwrite: bool,
    steps: int,
    tolerance: float,
    limits: Limits,
    format: str,
) -> None:
    """Split a merged decoder into one model for the first step and one for later steps, and prove the pair.

    MODEL is a merged decoder, or example:NAME.
    """
    with proving(limits, not no_verify), progress_on_terminal() as progress:
        from graphkit.workflows.split import SplitOptions, split_file

        options = SplitOptions(
            weights=weights,
            verify=not no_verify,
            keep_names=keep_names,
            condition=condition,
            overwrite=overwrite,
            steps=steps,
            tolerance=tolerance,
            limits=limits,
        )
        loaded = load(model)
        folder = output if output is not None else _folder(loaded)
        made = split_file(loaded, folder, options, progress=progress)
    finish(made, format, f"The files in {folder} are")


def _folder(model: Model) -> Path:
    from graphkit.errors import UsageError
    from graphkit.examples import example_name
    from graphkit.io.stream_files import INPUT

    if model.path is None or example_name(model.path) or model.label == INPUT:
        what = "has no folder" if model.label == INPUT else "is an example that ships with graphkit"
        raise UsageError(f"{model.label}: {what} - name an output folder with -o")
    return model.path.parent


@click.command(short_help="Fold shape computations, and prove the result.")
@model_argument
@output_option("OUT", "Output file.", required=True)
@size_options
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=1 << 20,
    show_default=True,
    help="Size limit in bytes of a new constant; all of them together may take 64 times as much.",
)
@click.option(
    "--no-fusions", is_flag=True, help="Remove more nodes, even those that onnxruntime's own fusions look for."
)
@click.option(
    "--fuse",
    is_flag=True,
    help="Put constants into the weights of Conv, Gemm and MatMul, those of one input into one, and a layer "
    "normalization, or attention without a mask, into one node; implies --no-fusions. Changes the last digits: the "
    "default tolerance is 1e-5 of the largest magnitude then.",
)
@weights_option
@no_verify_option
@overwrite_option
@float16_tolerance_option
@limit_options
@format_option
def fold(
    model: str,
    output: Path,
    sizes: SizeWords,
    limit: int,
    no_fusions: bool,
    fuse: bool,
    weights: Placement,
    no_verify: bool,
    overwrite: bool,
    tolerance: float | None,
    limits: Limits,
    format: str,
) -> None:
    """Fold shape computations: static shapes become constants, dynamic ones are computed once.

    MODEL is a model file, or example:NAME.
    """
    output, weights = destination(output, weights)
    with proving(limits, not no_verify), progress_on_terminal() as progress:
        from graphkit.workflows.fold import FoldOptions, fold_file

        spec = sizes.read()
        options = FoldOptions(
            spec=spec,
            weights=weights,
            verify=not no_verify,
            overwrite=overwrite,
            tolerance=tolerance,
            limits=limits,
            limit=limit,
            keep_fusions=not no_fusions,
            fuse=fuse,
        )
        progress(f"reading {model}")
        made = fold_file(load(model), output, options, progress=progress)
    finish(made, format, f"{output} is")


@click.command()
@model_argument
@output_option("OUT", "Output file.", required=True)
@click.option(
    "--passes",
    "-p",
    metavar="PASSES",
    required=True,
    shell_complete=complete_passes,
    help="Comma-separated passes, such as name{option=value},name.",
)
@size_options
@weights_option
@no_verify_option
@overwrite_option
@rewrite_tolerance_option
@limit_options
@format_option
def rewrite(
    model: str,
    output: Path,
    passes: str,
    sizes: SizeWords,
    weights: Placement,
    no_verify: bool,
    overwrite: bool,
    tolerance: float | None,
    limits: Limits,
    format: str,
) -> None:
    """Run a pipeline of passes, and prove the file that it wrote.

    MODEL is a model file, or example:NAME. `graphkit explain` lists the passes; a pass of your own is
    package.module:Pass. --dim, --input and --range say at which dims to prove; the pass freeze-dims freezes them.
    """
    output, weights = destination(output, weights)
    with proving(limits, not no_verify), progress_on_terminal() as progress:
        from graphkit.passes.pipeline import parse_pipeline
        from graphkit.workflows.proven import RewriteOptions
        from graphkit.workflows.rewrite import rewrite_file

        with current_folder_importable():
            pipeline = parse_pipeline(passes)
        options = RewriteOptions(sizes.read(), weights, not no_verify, overwrite, tolerance, limits)
        progress(f"reading {model}")
        made = rewrite_file(load(model), output, pipeline, options, progress=progress)
    finish(made, format, f"{output} is")


@contextlib.contextmanager
def current_folder_importable() -> Iterator[None]:
    """Let modules of the current folder be imported, as `python -m` does; later imports of theirs come after others."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)


@click.command()
@click.argument("name", metavar="[PASS]", required=False, shell_complete=complete_passes)
@output_option("FILE", "Write it to a file.")
def explain(name: str | None, output: Path | None) -> None:
    """Explain a pass, or list all passes.

    PASS is one of them, or package.module:Pass.
    """
    from graphkit.passes import PASSES
    from graphkit.passes.pipeline import explain as explain_pass
    from graphkit.render.blocks import printable

    if name is None:
        put_list([(kind.name(), (kind.__doc__ or "").splitlines()[0]) for kind in PASSES], output)
        return
    with current_folder_importable():
        text = explain_pass(name)
    put("".join(f"{printable(line)}\n" for line in text.splitlines()), output)


@click.command(short_help="Prove that two models, a split, a lowered folder or a bundle give the same.")
@click.argument(
    "models",
    metavar="ORIGINAL REWRITTEN | MERGED FIRST WITH_PAST | EXPORT OUT",
    nargs=-1,
    required=True,
    shell_complete=complete_model,
)
@size_options
@click.option("--part", is_flag=True, help="The second model is a part of the first, as graphkit extract writes one.")
@click.option(
    "--map",
    "renames",
    metavar="OLD=NEW",
    multiple=True,
    help="An input or output that has another name in the second model; repeatable.",
)
@count_option("--runs", 7, "Number of sets of dims at which two models are run.")
@steps_option
@float16_tolerance_option
@click.option(
    "--tokens-rate",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="For OUT: the share of greedy tokens that must be those of the export, such as 0.95 for models that were "
    "quantised since; outputs are compared only where --tolerance is given.",
)
@click.option("--record", is_flag=True, help="For OUT: write how the proof ended, and the checksums of the files.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the generated inputs.")
@limit_options
@output_format_option
def verify(
    models: Sequence[str],
    sizes: SizeWords,
    part: bool,
    renames: Sequence[str],
    runs: int,
    steps: int,
    tolerance: float | None,
    tokens_rate: float | None,
    record: bool,
    seed: int,
    limits: Limits,
    format: str,
) -> None:
    """Prove a rewrite, a split or a folder: run original and result in onnxruntime, and exit with 1 if they differ.

    Takes two models, an original and its rewrite; three, a merged decoder and the pair that it was split into; or an
    export, a folder or a model, and OUT, which graphkit lower or bundle made of it. Only --record writes anything.
    """
    from graphkit.errors import UsageError

    if len(models) == 2 and Path(models[1]).is_dir():
        from graphkit.workflows.verify_folder import FolderOptions, verify_folder

        if any(sizes) or part or renames:
            raise UsageError("--dim, --input, --range, --part and --map apply to two models only - leave them out")
        with proving(limits), progress_on_terminal() as progress:
            options = FolderOptions(tolerance, tokens_rate, record, seed, limits)
            found = verify_folder(model_path(models[0]), models[1], options, progress=progress)
        show(found, format)
        if not found.passed:
            say(f"The proof failed: {found.findings()[0]}.", is_error=True)
            raise SystemExit(1)
        return
    if tokens_rate is not None or record:
        raise UsageError("--tokens-rate and --record are for what lower or bundle wrote - name an export and OUT")
    if len(models) not in (2, 3):
        raise UsageError(
            "verify takes two models (original, rewritten) or three (merged, first step, later steps) - name these"
        )
    if len(models) == 3 and (any(sizes) or part or renames):
        raise UsageError("--dim, --input, --range, --part and --map apply to two models only - leave them out")
    if part and renames:
        raise UsageError("a part has the names of the whole - leave out --part or --map")
    proof: SplitProof | RewriteProof
    with proving(limits), progress_on_terminal() as progress:
        from graphkit.verify.rewrite import verify_extract, verify_rewrite
        from graphkit.verify.split import verify_split

        if len(models) == 3:
            loaded = [load(name) for name in models]
            progress("proving")
            proof = verify_split(
                *loaded, steps=steps, tolerance=tolerance or 0.0, seed=seed, limits=limits, progress=progress
            )
        else:
            told = {new: old for old, new in read_pairs(renames, "--map", str)}
            prove = verify_extract if part else partial(verify_rewrite, names=told)
            original, rewritten = map(model_path, models)
            proof = prove(
                original,
                rewritten,
                sizes.read(),
                tolerance=tolerance,
                seed=seed,
                runs=runs,
                limits=limits,
                progress=progress,
            )
    show(proof, format)
    if not proof.passed:
        raise SystemExit(1)
