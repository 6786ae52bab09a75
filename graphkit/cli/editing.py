"""Commands that edit models: extract, rename, set-dims, convert-opset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from graphkit.cli.completing import complete_place
from graphkit.cli.options import (
    SizeWords,
    dim_option,
    float16_tolerance_option,
    format_option,
    input_option,
    limit_options,
    model_argument,
    no_verify_option,
    output_option,
    overwrite_option,
    weights_option,
)
from graphkit.cli.output import progress_on_terminal, proving
from graphkit.cli.piping import destination, finish, load

if TYPE_CHECKING:
    from graphkit.rewrite.base import Pass
    from graphkit.runtime.limits import Limits
    from graphkit.save import Placement

__all__ = ["convert_opset", "extract", "rename", "set_dims"]

T = TypeVar("T")


output_file = output_option("OUT", "Output file.", required=True)
short_output_file = click.option(
    "-o", "output", type=click.Path(path_type=Path), metavar="OUT", required=True, help="Output file."
)


def edit_options(command: Callable[..., Pass]) -> Callable[..., None]:
    """Let a command that returns a pass edit a model by it, with the options of all edits but -o."""

    @model_argument
    @weights_option
    @no_verify_option
    @overwrite_option
    @float16_tolerance_option
    @limit_options
    @format_option
    @wraps(command)
    def wrapped(
        *,
        model: str,
        output: Path,
        weights: Placement,
        no_verify: bool,
        overwrite: bool,
        tolerance: float | None,
        limits: Limits,
        format: str,
        **others: object,
    ) -> None:
        output, weights = destination(output, weights)
        with proving(limits, not no_verify), progress_on_terminal() as progress:
            from graphkit.shapes import AS_DECLARED
            from graphkit.workflows.edit import edit_file
            from graphkit.workflows.proven import RewriteOptions

            step = command(**others)
            options = RewriteOptions(AS_DECLARED, weights, not no_verify, overwrite, tolerance, limits)
            progress(f"reading {model}")
            made = edit_file(load(model), output, step, options, progress=progress)
        finish(made, format, f"{output} is")

    return wrapped


@click.command(short_help="Write a subgraph as a model of its own, and prove it.")
@click.option(
    "--to",
    metavar="NAME",
    multiple=True,
    required=True,
    shell_complete=complete_place,
    help="A value or node to end at; repeatable.",
)
@click.option(
    "--from",
    "begin",
    metavar="NAME",
    multiple=True,
    shell_complete=complete_place,
    help="A value or node to begin at; repeatable. Default: the inputs of the model.",
)
@output_file
@edit_options
def extract(to: Sequence[str], begin: Sequence[str]) -> Pass:
    """Write a subgraph as a model of its own, and prove it against the whole.

    MODEL is a model file, or example:NAME. A value that --from names becomes an input. A node stands for its outputs
    after --to, and for what it reads after --from, so that it is in the subgraph.
    """
    from graphkit.passes.interface.extract_subgraph import ExtractSubgraph

    return ExtractSubgraph(tuple(to), tuple(begin))


def pairs_option(
    name: str, metavar: str, text: str, parameter: str | None = None
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Return an option of pairs that can be given several times."""
    return click.option(f"--{name}", parameter or name, metavar=metavar, multiple=True, help=f"{text}; repeatable.")


def read_renames(texts: Sequence[str], option: str) -> Iterator[tuple[str, str]]:
    """Yield the old and the new names of an option; the last = divides, so that old names may have one.

    Raises:
        UsageError: A text is not OLD=NEW.
    """
    from graphkit.errors import UsageError

    for text in texts:
        old, _, new = text.rpartition("=")
        if not (old and new):
            hint = "; the file to write is -o OUT" if option == "--output" else ""
            raise UsageError(f"{option} {text}: is not OLD=NEW - write it as in {option} x=y{hint}")
        yield old, new


@click.command(short_help="Rename inputs, outputs, symbols and values.")
@pairs_option("input", "OLD=NEW", "Rename an input")
@pairs_option("output", "OLD=NEW", "Rename an output", "output_names")
@pairs_option("dim", "OLD=NEW", "Rename a symbol of dims, or name a dim without one, such as x.0=batch")
@pairs_option("value", "OLD=NEW", "Rename any value of the main graph")
@short_output_file
@edit_options
def rename(input: Sequence[str], output_names: Sequence[str], dim: Sequence[str], value: Sequence[str]) -> Pass:
    """Rename inputs, outputs and symbols of dims, wherever they occur, and prove the result.

    MODEL is a model file, or example:NAME. A symbol that the graph forces to equal the renamed one gets the same name.
    """
    from graphkit.errors import UsageError
    from graphkit.passes.interface.rename import Rename

    given = ((input, "--input"), (output_names, "--output"), (value, "--value"), (dim, "--dim"))
    inputs, outputs, values, dims = (tuple(read_renames(texts, option)) for texts, option in given)
    if not (inputs or outputs or values or dims):
        raise UsageError("there is nothing to rename - give --input, --output, --dim or --value, such as --dim N=batch")
    return Rename(inputs, outputs, values, dims)


@click.command("set-dims", short_help="Declare sizes for dims of the inputs.")
@dim_option
@input_option
@output_file
@edit_options
def set_dims(dim: Sequence[str], input: Sequence[str]) -> Pass:
    """Declare sizes for dims of the inputs, and all that follows from them, and prove the result.

    MODEL is a model file, or example:NAME. Nodes stay; `graphkit fold --dim` folds what no longer varies.
    """
    from graphkit.errors import UsageError
    from graphkit.passes.interface.set_dims import SetDims

    spec = SizeWords(dim, input, ()).read()
    if not (spec.dims or spec.inputs):
        raise UsageError("there is nothing to set - give --dim or --input, such as --dim batch_size=1")
    return SetDims(spec.dims, spec.inputs)


@click.command("convert-opset", short_help="Convert a model to another opset, and prove it.")
@click.option("--to", "version", type=int, required=True, metavar="N", help="The version of the operator set.")
@output_file
@edit_options
def convert_opset(version: int) -> Pass:
    """Convert a model to another version of ONNX's operator set, and prove the result.

    MODEL is a model file, or example:NAME. Where graphkit does not know what became of an operator, and for an older
    version, onnx's own converter is taken, if the proof of its result holds.
    """
    from graphkit.passes.opset.convert_opset import ConvertOpset

    return ConvertOpset(version)
