"""Commands about shapes: shapes, program."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphkit.cli.flags import Asked, choice_type, model_argument, output_format_option, output_option, takes_options
from graphkit.cli.output import print_line, put_text, show_result
from graphkit.options import OVERWRITE, SIZES, WEIGHTS, Flag, as_declared, option, switch

if TYPE_CHECKING:
    from graphkit.model import Model
    from graphkit.render.result import Result
    from graphkit.save import Placement
    from graphkit.shapes import DimSpec

__all__ = ["program", "shapes"]

LANGUAGES = ("json", "python", "javascript")
LANGUAGE_OF = {".py": "python", ".js": "javascript", ".mjs": "javascript"}  # by suffix


@dataclass(frozen=True, kw_only=True)
class SizeFlags:
    """The dims at which to compute shapes."""

    spec: DimSpec = field(default_factory=as_declared, metadata={"flags": SIZES})


@dataclass(frozen=True, kw_only=True)
class ShapeFlags(SizeFlags):
    """The shapes to show, and the model to write with them.

    Attributes:
        filter: Patterns of the names of tensors and nodes to show.
        constants: Whether to show initializers.
        why: The tensor to explain.
        write: The file to write the model to, with the shapes declared in it.
        weights: Where its weights go.
        overwrite: Whether to replace existing files.
    """

    filter: tuple[str, ...] = option(
        (),
        Flag(
            "--filter",
            "Show tensors of such names or nodes only, as '/model/layers.0/*' or 'present.{0-5}.key'; repeatable.",
            metavar="GLOB",
            is_repeatable=True,
        ),
    )
    constants: bool = option(False, switch("--constants", "Show initializers, and what follows from them alone, too."))
    why: str | None = option(None, Flag("--why", "Show where the shape of this tensor comes from.", metavar="NAME"))
    write: Path | None = option(
        None, Flag("--write", "Write the model with the shapes declared in it.", Path, metavar="OUT")
    )
    weights: Placement = option("kept", WEIGHTS)
    overwrite: bool = option(False, OVERWRITE)


@click.command(short_help="Show every shape as an expression in the input dims.")
@model_argument
@takes_options(ShapeFlags)
@output_format_option
def shapes(model: str, options: Asked[ShapeFlags], format: str) -> None:
    """Show the shape of every tensor as an expression in the input dims, or explain one of them.

    MODEL is a model file, or example:NAME. --write declares the proven shapes in a copy, so that viewers show them.
    """
    from graphkit.analysis.tensor_shapes import tensor_shapes, why_shape
    from graphkit.cli.model_streams import finish_rewrite, load_model, output_destination
    from graphkit.errors import UsageError

    asked, loaded = options.read(), load_model(model)
    if asked.why is not None and (asked.filter or asked.constants):
        raise UsageError("--filter and --constants are for the list of shapes - leave them out beside --why")
    result: Result = (
        tensor_shapes(loaded, asked.spec, filters=asked.filter, constants=asked.constants)
        if asked.why is None
        else why_shape(loaded, asked.why, asked.spec)
    )
    if asked.write is None:
        show_result(result, format)
        return
    write, weights = output_destination(asked.write, asked.weights)
    _write_shapes(loaded, write, weights, asked)
    finish_rewrite(result, format, f"{write} is")


def _write_shapes(model: Model, output: Path, weights: Placement, options: ShapeFlags) -> None:
    from graphkit.errors import UsageError
    from graphkit.passes.shapes.declare_shapes import DeclareShapes

    if options.spec != as_declared():
        raise UsageError(
            "--write declares what holds at all sizes - freeze sizes with graphkit fold, which does it too"
        )
    outcome = DeclareShapes().run(model)
    for declined in outcome.declined:
        raise UsageError(f"{model.label}: {declined}")
    saved = outcome.model.save(output, weights, overwrite=options.overwrite)
    changes = "; ".join(outcome.changes) or "everything was declared already"
    print_line(f"Wrote {' and '.join(path.name for path in saved)}: {changes}.", is_error=True)


@click.command(short_help="Write the shape computation as JSON, Python or JavaScript.")
@model_argument
@takes_options(SizeFlags)
@click.option(
    "--language",
    "-l",
    type=choice_type(LANGUAGES),
    help="The language to write. Default: json, or the one that the suffix of --output names.",
)
@output_option("FILE", "Write to a file; .mjs makes an ES module.")
def program(model: str, options: Asked[SizeFlags], language: str | None, output: Path | None) -> None:
    """Write the shape computation of a model, from input shapes to every shape that a node reads.

    MODEL is a model file, or example:NAME.
    """
    from graphkit.cli.model_streams import load_model
    from graphkit.shapes import program as make_program

    spec = options.read().spec
    loaded = load_model(model)
    shape_program = make_program(loaded, spec)
    suffix = output.suffix.lower() if output is not None else ""
    chosen = language or LANGUAGE_OF.get(suffix, "json")
    if chosen == "json":
        text = shape_program.to_json()
    else:
        text = shape_program.python() if chosen == "python" else shape_program.javascript(export=suffix == ".mjs")
    put_text(text, output, loaded.files)
