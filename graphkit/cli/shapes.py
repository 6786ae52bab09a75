"""Commands about shapes: shapes, program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphkit.cli.completing import complete_tensor
from graphkit.cli.options import (
    SizeWords,
    choice,
    model_argument,
    output_format_option,
    output_option,
    overwrite_option,
    size_options,
    weights_option,
)
from graphkit.cli.output import put, say, show

if TYPE_CHECKING:
    from graphkit.model import Model
    from graphkit.render.result import Result
    from graphkit.save import Placement

__all__ = ["program", "shapes"]

LANGUAGES = ("json", "python", "javascript")
LANGUAGE_OF = {".py": "python", ".js": "javascript", ".mjs": "javascript"}  # by suffix


@click.command(short_help="Show every shape as an expression in the input dims.")
@model_argument
@size_options
@click.option(
    "--filter",
    "filters",
    metavar="GLOB",
    multiple=True,
    help="Show tensors of such names or nodes only, as '/model/layers.0/*' or 'present.{0-5}.key'; repeatable.",
)
@click.option("--constants", is_flag=True, help="Show initializers, and what follows from them alone, too.")
@click.option(
    "--why",
    metavar="NAME",
    shell_complete=complete_tensor,
    help="Show where the shape of this tensor comes from.",
)
@click.option(
    "--write", type=click.Path(path_type=Path), metavar="OUT", help="Write the model with the shapes declared in it."
)
@weights_option
@overwrite_option
@output_format_option
def shapes(
    model: str,
    sizes: SizeWords,
    filters: Sequence[str],
    constants: bool,
    why: str | None,
    write: Path | None,
    weights: Placement,
    overwrite: bool,
    format: str,
) -> None:
    """Show the shape of every tensor as an expression in the input dims, or explain one of them.

    MODEL is a model file, or example:NAME. --write makes viewers show the shapes: it declares what is proven of them.
    """
    from graphkit.analysis.tensor_shapes import tensor_shapes, why_shape
    from graphkit.cli.piping import destination, finish, load
    from graphkit.errors import UsageError

    spec = sizes.read()
    loaded = load(model)
    if why is not None and (filters or constants):
        raise UsageError("--filter and --constants are for the list of shapes - leave them out beside --why")
    result: Result = (
        tensor_shapes(loaded, spec, filters=filters, constants=constants)
        if why is None
        else why_shape(loaded, why, spec)
    )
    if write is None:
        show(result, format)
        return
    write, weights = destination(write, weights)
    _write_shapes(loaded, sizes, write, weights, overwrite)
    finish(result, format, f"{write} is")


def _write_shapes(model: Model, sizes: SizeWords, output: Path, weights: Placement, overwrite: bool) -> None:
    from graphkit.errors import UsageError
    from graphkit.passes.shapes.declare_shapes import DeclareShapes

    if any(sizes):
        raise UsageError(
            "--write declares what holds at all sizes - freeze sizes with graphkit fold, which does it too"
        )
    outcome = DeclareShapes().run(model)
    for declined in outcome.declined:
        raise UsageError(f"{model.label}: {declined}")
    saved = outcome.model.save(output, weights, overwrite=overwrite)
    changes = "; ".join(outcome.changes) or "everything was declared already"
    say(f"Wrote {' and '.join(path.name for path in saved)}: {changes}.", is_error=True)


@click.command(short_help="Write the shape computation as JSON, Python or JavaScript.")
@model_argument
@size_options
@click.option(
    "--language", "-l", type=choice(LANGUAGES), help="Default: json, or the language that the suffix of --output names."
)
@output_option("FILE", "Write to a file; .mjs makes an ES module.")
def program(model: str, sizes: SizeWords, language: str | None, output: Path | None) -> None:
    """Write the shape computation of a model, from input shapes to every shape that a node reads.

    MODEL is a model file, or example:NAME.
    """
    from graphkit.cli.piping import load
    from graphkit.shapes import program as make_program

    spec = sizes.read()
    loaded = load(model)
    made = make_program(loaded, spec)
    suffix = output.suffix.lower() if output is not None else ""
    chosen = language or LANGUAGE_OF.get(suffix, "json")
    if chosen == "json":
        text = made.to_json()
    else:
        text = made.python() if chosen == "python" else made.javascript(export=suffix == ".mjs")
    put(text, output, loaded.files)
