"""The command line: parse, call, render, exit code. The only room that prints.

Exit codes: 0 done, 1 findings with `--strict` or a proof that fails, 2 bad input.
"""

from __future__ import annotations

import gc
import sys
from typing import Annotated, NoReturn

import typer

from graphkit import __version__
from graphkit.cli.reading import examples, program, report, shapes
from graphkit.cli.rewriting import explain, fold, rewrite, split_merged, verify
from graphkit.errors import GraphkitError

__all__ = ["app", "main"]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Analyse and rewrite ONNX graphs without touching their weights.",
)
for command in (report, shapes, program, fold, split_merged, rewrite, explain, verify, examples):
    app.command(command.__name__.replace("_", "-"))(command)


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


def _fail(error: GraphkitError) -> NoReturn:
    from graphkit.render.blocks import printable

    sys.stderr.write(f"Error: {printable(str(error))}\n")
    raise SystemExit(2) from error


def main() -> None:
    """Run the command line."""
    gc.set_threshold(100_000)  # a graph is many small objects that live as long as the process
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except GraphkitError as error:
        _fail(error)
