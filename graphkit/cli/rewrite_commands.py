"""Commands that write one model, or a pair of decoders: fold, rewrite, split-merged, extract, rename, and others."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from msgspec import Struct, structs

from graphkit.cli.flags import Asked, complete, format_option, model_argument, output_option, takes_options
from graphkit.cli.output import finish_rewrite, load_model, output_destination, progress_on_terminal, start_prover
from graphkit.errors import UsageError
from graphkit.options import SIZES, TIME, Flag, FoldOptions, RewriteOptions, SplitOptions
from graphkit.progress import Progress

if TYPE_CHECKING:
    from graphkit.model import Model
    from graphkit.render.result import Result
    from graphkit.rewrite.base import Pass

LATER_STEPS = "decoder_with_past_model.onnx"  # a pair that a program decodes with
output_file = output_option("OUT", "Output file.", required=True)
RENAMED = {
    "input": "Rename an input",
    "output": "Rename an output",
    "dim": "Rename a symbol of dims, or one dim, such as x.0=batch",
    "value": "Rename any value",
}  # kinds of names, which complete their options, and the help of these


class Job(Struct, frozen=True):
    """The work of a command that writes a model: source, output file and options."""

    name: str
    output: Path
    options: Any
    progress: Progress

    def model(self) -> Model:
        """Read the model."""
        self.progress(f"reading {self.name}")
        return load_model(self.name)


def writes_model(
    kind: type[RewriteOptions], without: Collection[Flag] = ()
) -> Callable[[Callable[..., Result]], Callable[..., None]]:
    """Let a command, which takes a `Job`, write one model, prove it and show its report; without some flags."""

    def decorate(command: Callable[..., Result]) -> Callable[..., None]:
        @model_argument
        @output_file
        @takes_options(kind, without=without)
        @format_option
        @wraps(command)
        def run_command(*, model: str, output: Path, options: Asked[RewriteOptions], format: str, **words: Any) -> None:
            output, weights = output_destination(output, options.words["weights"])
            with start_prover(options.limits, options.verify), progress_on_terminal() as progress:
                report = command(Job(model, output, options.read(weights=weights), progress), **words)
            then: list[tuple[str, ...]] = [("report", str(output))]
            if (output / LATER_STEPS).is_file():
                then.append(("contract", str(output), "--loop", "-o", "loop.py"))
            finish_rewrite(report, format, f"{output} is", *then)

        return cast(Callable[..., None], run_command)

    return decorate


@click.command("fold", short_help="Fold shape computations, and prove the result.")
@writes_model(FoldOptions)
def fold(job: Job) -> Result:
    """Fold shape computations: static shapes become constants, dynamic ones are computed once.

    MODEL is a model file, or example:NAME. It may be a folder of models, such as a split decoder: then OUT is a folder,
    and weights that models share are stored once.
    """
    if os.path.isdir(job.name):
        from graphkit.workflows.fold_file import fold_folder

        return fold_folder(job.name, job.output, job.options, progress=job.progress)
    from graphkit.workflows.fold_file import fold_file

    return fold_file(job.model(), job.output, job.options, progress=job.progress)


@click.command("rewrite")
@click.option(
    "--passes",
    "-p",
    metavar="PASSES",
    required=True,
    shell_complete=complete("passes"),
    help="Comma-separated passes, such as name{option=value},name.",
)
@writes_model(RewriteOptions)
def rewrite(job: Job, passes: str) -> Result:
    """Run a pipeline of passes, and prove the file that it wrote.

    MODEL is a model file, or example:NAME. `graphkit explain passes` lists the passes; a pass of your own is
    package.module:Pass. --dim, --input and --range say at which dims to prove; the pass freeze-dims freezes them.
    """
    from graphkit.passes.registry import parse_pipeline
    from graphkit.workflows.rewrite_file import rewrite_file

    with current_folder_importable():
        pipeline = parse_pipeline(passes)
    return rewrite_file(job.model(), job.output, pipeline, job.options, progress=job.progress)


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


@click.command("split-merged", short_help="Split a merged decoder in two, and prove the pair.")
@model_argument
@output_option("DIR", "Output folder. Default: the folder of the model.")
@takes_options(SplitOptions)
@format_option
def split_merged(model: str, output: Path | None, options: Asked[SplitOptions], format: str) -> None:
    """Split a merged decoder into one model for the first step and one for later steps, and prove the pair.

    MODEL is a merged decoder, or example:NAME.
    """
    with start_prover(options.limits, options.verify), progress_on_terminal() as progress:
        from graphkit.workflows.split_decoder_file import split_file

        loaded = load_model(model)
        folder = output if output is not None else _model_folder(loaded)
        report = split_file(loaded, folder, options.read(), progress=progress)
    is_pair_alone = len(list(folder.glob("*.onnx"))) == len(("first step", "later steps"))
    then = ("fold", str(folder), "-o", f"{folder}.folded") if is_pair_alone else ("report", str(folder))
    finish_rewrite(report, format, f"The files in {folder} are", then)


@click.command("merge-decoders", short_help="Merge a pair of decoders into one, and prove it.")
@writes_model(RewriteOptions, without=(*SIZES, TIME))
@click.argument("with_past", shell_complete=complete("model"))
def merge_decoders(job: Job, with_past: str) -> Result:
    """Merge two decoders into one model, in which an If on use_cache_branch chooses, and prove both branches.

    MODEL is the decoder of the first step, WITH_PAST that of later steps.
    """
    from graphkit.passes.control_flow.merged_decoders import MergeDecoders

    return _run_edit(job, MergeDecoders(load_model(with_past)))


def _model_folder(model: Model) -> Path:
    from graphkit.examples import example_name
    from graphkit.io.byte_source import INPUT, source_of

    is_here = model.path is not None and source_of(model.path).is_local
    if model.path is None or not is_here or example_name(model.path) or model.label == INPUT:
        problem = "is an example that ships with graphkit"
        if model.label == INPUT or not is_here:
            problem = "has no folder here"
        raise UsageError(f"{model.label}: {problem} - name an output folder with -o")
    return model.path.parent


def _run_edit(job: Job, step: Pass) -> Result:
    from graphkit.workflows.rewrite_file import edit_file

    return edit_file(job.model(), job.output, step, job.options, progress=job.progress)


@click.command("extract", short_help="Write a subgraph as a model of its own, and prove it.")
@click.option(
    "--to",
    metavar="NAME",
    multiple=True,
    required=True,
    shell_complete=complete("place"),
    help="A value or node to end at; repeatable.",
)
@click.option(
    "--from",
    "begin",
    metavar="NAME",
    multiple=True,
    shell_complete=complete("place"),
    help="A value or node to begin at; repeatable. Default: the inputs of the model.",
)
@writes_model(RewriteOptions, without=SIZES)
def extract(job: Job, to: Sequence[str], begin: Sequence[str]) -> Result:
    """Write a subgraph as a model of its own, and prove it against the whole.

    MODEL is a model file, or example:NAME. A value that --from names becomes an input. After --to, a node
    stands for its outputs. After --from it stands for its inputs, so that the node itself is in the subgraph.
    """
    from graphkit.passes.interface.extract_subgraph import ExtractSubgraph

    return _run_edit(job, ExtractSubgraph(tuple(to), tuple(begin)))


def rename_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option of pairs for each kind of name."""
    for name, text in reversed(RENAMED.items()):
        more: Any = {"metavar": "OLD=NEW", "multiple": True, "help": f"{text}; repeatable."}
        command = click.option(f"--{name}-name", shell_complete=complete(name), **more)(command)
    return command


def read_renames(texts: Sequence[str], flag: str) -> Iterator[tuple[str, str]]:
    """Yield the old and the new names of an option; the last = divides, so that old names may have one."""
    for text in texts:
        old, _, new = text.rpartition("=")
        if not (old and new):
            raise UsageError(f"{flag} {text}: is not OLD=NEW - write it as in {flag} x=y")
        yield old, new


@click.command("rename", short_help="Rename inputs, outputs, symbols and values.")
@rename_options
@click.option("--names", is_flag=True, help="Name dims by what they are: batch, sequence, past, source, total.")
@writes_model(RewriteOptions, without=(*SIZES, TIME))
def rename(job: Job, names: bool, **texts: Sequence[str]) -> Result:
    """Rename inputs, outputs and symbols of dims, wherever they occur, and prove the result.

    MODEL is a model file, or example:NAME. A symbol that the graph forces to equal the renamed one gets the same name.
    """
    from graphkit.passes.interface.rename import Rename, dims_by_role

    pairs = {name: tuple(read_renames(texts[f"{name}_name"], f"--{name}-name")) for name in RENAMED}
    if names:
        pairs["dim"] = tuple((dict(dims_by_role(job.model())) | dict(pairs["dim"])).items())
    elif not any(pairs.values()):
        flags = ", ".join(f"--{name}-name" for name in RENAMED)
        raise UsageError(f"there is nothing to rename - give one of {flags}, such as --dim-name N=batch")
    return _run_edit(job, Rename(pairs["input"], pairs["output"], pairs["value"], pairs["dim"]))


@click.command("set-dims", short_help="Declare sizes for dims of the inputs.")
@writes_model(RewriteOptions, without=SIZES[2:])
def set_dims(job: Job) -> Result:
    """Declare sizes for dims of the inputs, and all that follows from them, and prove the result.

    MODEL is a model file, or example:NAME. Nodes stay; `graphkit fold --dim` folds what no longer varies.
    """
    from graphkit.passes.shapes.declare_shapes import SetDims
    from graphkit.shapes import AS_DECLARED

    spec = job.options.spec
    if spec == AS_DECLARED:
        raise UsageError("there is nothing to set - give --dim or --input, such as --dim batch_size=1")
    step = SetDims(spec.dims, spec.inputs)
    return _run_edit(structs.replace(job, options=replace(job.options, spec=AS_DECLARED)), step)


@click.command("convert-opset", short_help="Convert a model to another opset, and prove it.")
@click.option("--to", "version", type=int, required=True, metavar="N", help="The version of the operator set.")
@writes_model(RewriteOptions, without=SIZES)
def convert_opset(job: Job, version: int) -> Result:
    """Convert a model to another version of ONNX's operator set, and prove the result.

    MODEL is a model file, or example:NAME. For an operator whose changes graphkit does not know, it takes the converter
    of onnx itself, if the proof of its result holds.
    """
    from graphkit.passes.opset.convert_opset import ConvertOpset

    return _run_edit(job, ConvertOpset(version))
