"""Commands that explain models: report, shapes, program, examples."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphkit.cli.options import (
    Format,
    SizeWords,
    choice,
    count_option,
    format_option,
    limit_options,
    model_argument,
    output_option,
    size_options,
)
from graphkit.cli.output import progress_on_terminal, proving, rendered, say, show

if TYPE_CHECKING:
    from graphkit.analysis.sections import HazardCheck
    from graphkit.model import Model
    from graphkit.render.result import Result
    from graphkit.runtime.limits import Limits

__all__ = ["examples", "program", "report", "shapes"]

SUFFIXES = {
    ".md": Format.markdown,
    ".json": Format.json,
    ".html": Format.html,
    ".htm": Format.html,
    ".dot": Format.dot,
    ".gv": Format.dot,
    ".mmd": Format.mermaid,
}


@click.command()
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@click.option(
    "--format",
    "-f",
    type=choice(Format),
    help="Report format. Default: text, or the format that the suffix of --output names.",
)
@output_option("FILE", "Write the report to a file.")
@click.option(
    "--only", metavar="NAMES", default="", help="Comma-separated sections to show, such as shape-ops,origins."
)
@click.option("--optimize", is_flag=True, help="Compare the graph before and after onnxoptimizer.")
@click.option("--full", is_flag=True, help="Show the lists in shape origins in full.")
@click.option("--hash", is_flag=True, help="Read all weights to find tied tensors.")
@count_option("--context", 2048, "Number of positions at which to state the memory of a KV cache.")
@click.option(
    "--check-hazards", is_flag=True, help="Run the model at the dims of each hazard and at safe dims next to them."
)
@limit_options
@count_option("--group", 1, "Group of shape origins to draw with dot or mermaid.")
@click.option("--strict", is_flag=True, help="Exit with code 1 if there are findings.")
def report(
    models: Sequence[str],
    format: str | None,
    output: Path | None,
    only: str,
    optimize: bool,
    full: bool,
    hash: bool,
    context: int,
    check_hazards: bool,
    limits: Limits,
    group: int,
    strict: bool,
) -> None:
    """Explain models: their interface, KV cache, shape operators, shape origins, hazards and control flow.

    MODEL is a model file, a folder of them, or example:NAME.
    """
    from graphkit.analysis.report import compare
    from graphkit.analysis.report import report as analyse
    from graphkit.analysis.sections import ReportOptions
    from graphkit.model import load

    sections = tuple(name.strip() for name in only.split(",") if name.strip())
    options = ReportOptions(sections, optimize, full, hash, context, _hazard_check(limits) if check_hazards else None)
    by_suffix = SUFFIXES.get(output.suffix.lower(), Format.text) if output else Format.text
    chosen = Format(format) if format else by_suffix
    with proving(limits, check_hazards), progress_on_terminal() as progress:
        loaded = []
        for name in _expanded(models):
            progress(f"reading {name}")
            loaded.append(load(name))
        if chosen in (Format.dot, Format.mermaid):
            text = _drawing(loaded[0], chosen, group, optimize)
            result = None
        else:
            result = (
                analyse(loaded[0], options, progress=progress)
                if len(loaded) == 1
                else compare(loaded, options, progress=progress)
            )
            text = rendered(result, chosen, output)
    if output is not None:
        from graphkit.io.write import write_text

        write_text(output, text, [path for model in loaded for path in model.files])
    elif result is not None:
        show(result, chosen)
    else:
        sys.stdout.write(text)
    findings = result.findings() if result is not None else ()
    if strict and findings:
        for finding in findings:
            say(f"Finding: {finding}", is_error=True)
        raise SystemExit(1)


def _hazard_check(limits: Limits) -> HazardCheck:
    from graphkit.verify.hazards import check_hazards

    return partial(check_hazards, limits=limits)


def _expanded(names: Sequence[str]) -> list[str]:
    """Return the names, with each folder replaced by the models in it."""
    from graphkit.errors import UsageError

    found: list[str] = []
    for name in names:
        if not name:
            raise UsageError("a model name is empty - name a model file or a folder")
        if os.path.isdir(name):  # where Path.is_dir raises for a name that is too long
            inside = sorted(str(path) for path in Path(name).glob("*.onnx"))
            if not inside:
                raise UsageError(f"{name}: has no .onnx file in it - name a model file")
            found += inside
        else:
            found.append(name)
    return found


def _drawing(model: Model, chosen: Format, group: int, optimize: bool) -> str:
    from graphkit.analysis.optimize import optimized
    from graphkit.analysis.origins import group_drawing
    from graphkit.render.dot import dot
    from graphkit.render.markdown import mermaid

    drawing = group_drawing(optimized(model) if optimize else model, group)
    return dot(drawing) if chosen is Format.dot else mermaid(drawing)


@click.command()
def examples() -> None:
    """List the models that ship with graphkit."""
    from graphkit.examples import EXAMPLES

    for name, description in EXAMPLES.items():
        say(f"example:{name}  {description}")


@click.command()
@model_argument
@size_options
@click.option("--why", metavar="NAME", help="Show where the shape of this tensor comes from.")
@format_option
def shapes(model: str, sizes: SizeWords, why: str | None, format: str) -> None:
    """Show the shape of every tensor as an expression in the input dims, or explain one of them.

    MODEL is a model file, or example:NAME.
    """
    from graphkit.analysis.tensor_shapes import tensor_shapes, why_shape
    from graphkit.model import load

    spec = sizes.read()
    loaded = load(model)
    result: Result = tensor_shapes(loaded, spec) if why is None else why_shape(loaded, why, spec)
    show(result, format)


LANGUAGES = ("json", "python", "javascript")
LANGUAGE_OF = {".py": "python", ".js": "javascript", ".mjs": "javascript"}  # by suffix


@click.command()
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
    from graphkit.io.write import write_text
    from graphkit.model import load
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
    if output is None:
        sys.stdout.write(text)
    else:
        write_text(output, text, loaded.files)
