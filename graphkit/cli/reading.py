"""Commands that explain models: report, shapes, program, examples."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphkit.cli.options import DimOption, Format, InputOption, RangeOption, ReportFormat, read_sizes
from graphkit.cli.output import progress_on_terminal, rendered, show

if TYPE_CHECKING:
    from graphkit.analysis.report import HazardCheck
    from graphkit.render.result import Result

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


def report(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="Model files, folders of them, or example:NAME.")
    ],
    format: Annotated[
        Format | None, typer.Option("--format", "-f", help="Default: text, or what the suffix of --output says.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to a file.")] = None,
    only: Annotated[str, typer.Option(help="Sections to show, such as shape-ops,origins.")] = "",
    optimize: Annotated[bool, typer.Option("--optimize", help="Compare with the graph after onnxoptimizer.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Write out the lists in shape origins.")] = False,
    hash: Annotated[bool, typer.Option("--hash", help="Read all weights to find tied tensors.")] = False,
    context: Annotated[int, typer.Option(min=1, help="Positions for the memory of a KV cache.")] = 2048,
    check_hazards: Annotated[
        bool, typer.Option("--check-hazards", help="Run the model at the dims of each hazard, and beside them.")
    ] = False,
    group: Annotated[int, typer.Option(min=1, help="Group of shape origins to draw, with dot or mermaid.")] = 1,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if there are findings.")] = False,
) -> None:
    """Explain models: interface, KV cache, shape operators and origins, what if, hazards, control flow."""
    from graphkit.analysis.report import ReportOptions, compare
    from graphkit.analysis.report import report as analyse
    from graphkit.model import load

    sections = tuple(name.strip() for name in only.split(",") if name.strip())
    options = ReportOptions(sections, optimize, full, hash, context, _hazard_check() if check_hazards else None)
    chosen = format or (SUFFIXES.get(output.suffix.lower(), Format.text) if output else Format.text)
    with progress_on_terminal() as progress:
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
            typer.echo(f"Finding: {finding}", err=True)
        raise typer.Exit(1)


def _hazard_check() -> HazardCheck:
    from graphkit.verify.hazards import check_hazards

    return check_hazards


def _expanded(names: list[str]) -> list[str]:
    """Return the names, a folder as the models in it."""
    from graphkit.errors import UsageError

    found: list[str] = []
    for name in names:
        if not name:
            raise UsageError("an empty name - name a model file or a folder")
        folder = Path(name)
        if folder.is_dir():
            inside = sorted(str(path) for path in folder.glob("*.onnx"))
            if not inside:
                raise UsageError(f"{name}: no .onnx file in this folder - name a model file")
            found += inside
        else:
            found.append(name)
    return found


def _drawing(model: object, chosen: Format, group: int, optimize: bool) -> str:
    from graphkit.analysis.optimize import optimized
    from graphkit.analysis.origins import group_drawing
    from graphkit.model import Model
    from graphkit.render.dot import dot
    from graphkit.render.markdown import mermaid

    assert isinstance(model, Model)
    drawing = group_drawing(optimized(model) if optimize else model, group)
    return dot(drawing) if chosen is Format.dot else mermaid(drawing)


def examples() -> None:
    """List the models that ship with graphkit."""
    from graphkit.examples import EXAMPLES

    for name, description in EXAMPLES.items():
        typer.echo(f"example:{name}  {description}")


def shapes(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model file, or example:NAME.")],
    dim: DimOption = None,
    input: InputOption = None,
    range: RangeOption = None,
    why: Annotated[str | None, typer.Option(metavar="NAME", help="Tell where this tensor's shape comes from.")] = None,
    format: Annotated[ReportFormat, typer.Option("--format", "-f", help="Of the result.")] = ReportFormat.text,
) -> None:
    """Show the shape of every tensor as an expression in the input dims, or where one comes from."""
    from graphkit.analysis.tensor_shapes import tensor_shapes, why_shape
    from graphkit.model import load

    dims, inputs, ranges = read_sizes(dim, input, range)
    loaded = load(model)
    result: Result = (
        tensor_shapes(loaded, dims=dims, inputs=inputs, ranges=ranges)
        if why is None
        else why_shape(loaded, why, dims=dims, inputs=inputs, ranges=ranges)
    )
    show(result, Format(format.value))


class Language(str, Enum):
    """In what to write a shape program."""

    json = "json"
    python = "python"
    javascript = "javascript"


LANGUAGES = {".py": Language.python, ".js": Language.javascript, ".mjs": Language.javascript}


def program(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model file, or example:NAME.")],
    dim: DimOption = None,
    input: InputOption = None,
    range: RangeOption = None,
    language: Annotated[
        Language | None, typer.Option("--language", "-l", help="Default: json, or what the suffix of --output says.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to a file; .mjs makes an ES module.")
    ] = None,
) -> None:
    """Write what each node reads as a shape, from the shapes of the inputs: as data, or as a function."""
    from graphkit.io.write import write_text
    from graphkit.model import load
    from graphkit.shapes import program as make_program

    dims, inputs, ranges = read_sizes(dim, input, range)
    loaded = load(model)
    made = make_program(loaded, dims=dims, inputs=inputs, ranges=ranges)
    suffix = output.suffix.lower() if output is not None else ""
    chosen = language or LANGUAGES.get(suffix, Language.json)
    if chosen is Language.json:
        text = made.to_json()
    else:
        text = made.python() if chosen is Language.python else made.javascript(export=suffix == ".mjs")
    if output is None:
        sys.stdout.write(text)
    else:
        write_text(output, text, loaded.files)
