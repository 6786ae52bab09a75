"""The command line: parse, call, render, exit code. The only module that prints.

Exit codes: 0 done, 1 findings with `--strict`, 2 bad input.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from graphkit import __version__
from graphkit.errors import GraphkitError

if TYPE_CHECKING:
    from graphkit.render.result import Result

__all__ = ["app", "main"]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Analyse and rewrite ONNX graphs without touching their weights.",
)


class Format(str, Enum):
    """How to write a report."""

    text = "text"
    markdown = "markdown"
    json = "json"
    html = "html"
    dot = "dot"
    mermaid = "mermaid"


SUFFIXES = {
    ".md": Format.markdown,
    ".json": Format.json,
    ".html": Format.html,
    ".htm": Format.html,
    ".dot": Format.dot,
    ".gv": Format.dot,
    ".mmd": Format.mermaid,
}


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"graphkit {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""


@app.command()
def report(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Model files, or example:NAME.")],
    format: Annotated[
        Format | None, typer.Option("--format", "-f", help="Default: text, or what the suffix of --output says.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to a file.")] = None,
    only: Annotated[str, typer.Option(help="Sections to show, such as shape-ops,origins.")] = "",
    optimize: Annotated[bool, typer.Option("--optimize", help="Compare with the graph after onnxoptimizer.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Write out the lists in shape origins.")] = False,
    hash: Annotated[bool, typer.Option("--hash", help="Read all weights to find tied tensors.")] = False,
    context: Annotated[int, typer.Option(min=1, help="Positions for the memory of a KV cache.")] = 2048,
    group: Annotated[int, typer.Option(min=1, help="Group of shape origins to draw, with dot or mermaid.")] = 1,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if there are findings.")] = False,
) -> None:
    """Explain models: interface, KV cache, shape operators and origins, control flow."""
    from graphkit.analysis.report import ReportOptions, compare
    from graphkit.analysis.report import report as analyse
    from graphkit.model import load

    sections = tuple(name.strip() for name in only.split(",") if name.strip())
    options = ReportOptions(sections, optimize, full, hash, context)
    chosen = format or (SUFFIXES.get(output.suffix.lower(), Format.text) if output else Format.text)
    with _progress() as progress:
        loaded = []
        for name in models:
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
            text = _rendered(result, chosen, output)
    if output is not None:
        from graphkit.io.write import write_text

        write_text(output, text, [path for model in loaded for path in model.files])
    elif result is not None and chosen is Format.text:
        from rich.console import Console

        Console(highlight=False).print(result)
    else:
        sys.stdout.write(text)
    findings = result.findings() if result is not None else ()
    if strict and findings:
        for finding in findings:
            typer.echo(f"Finding: {finding}", err=True)
        raise typer.Exit(1)


@app.command()
def examples() -> None:
    """List the models that ship with graphkit."""
    from graphkit.examples import EXAMPLES

    for name, description in EXAMPLES.items():
        typer.echo(f"example:{name}  {description}")


def _rendered(result: Result, chosen: Format, output: Path | None) -> str:
    if chosen is Format.markdown:
        return result.to_markdown()
    if chosen is Format.json:
        return result.to_json()
    if chosen is Format.html:
        return result.to_html()
    return result.to_text() if output is not None else ""


def _drawing(model: object, chosen: Format, group: int, optimize: bool) -> str:
    from graphkit.analysis.optimize import optimized
    from graphkit.analysis.origins import group_drawing
    from graphkit.model import Model
    from graphkit.render.dot import dot
    from graphkit.render.markdown import mermaid

    assert isinstance(model, Model)
    drawing = group_drawing(optimized(model) if optimize else model, group)
    return dot(drawing) if chosen is Format.dot else mermaid(drawing)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Give a function that shows the current step on stderr, where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("") as status:
        yield lambda step: status.update(escape(step))


def _fail(error: GraphkitError) -> NoReturn:
    from graphkit.render.blocks import printable

    sys.stderr.write(f"Error: {printable(str(error))}\n")
    raise SystemExit(2) from error


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except GraphkitError as error:
        _fail(error)
