"""Models on standard input and output, where `-` stands in the place of a file."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphkit.cli.output import print_line, show_result

if TYPE_CHECKING:
    from graphkit.model import Model
    from graphkit.render.result import Result
    from graphkit.save import Placement

__all__ = ["STREAM", "finish_rewrite", "load_model", "model_path", "output_destination"]

STREAM = "-"


def load_model(name: str) -> Model:
    """Read a model without its weights from a file, or from standard input, where it waits in a temporary file.

    Raises:
        UsageError: Standard input is a terminal, or is read twice.
        ModelError: The model cannot be read, or has data in other files, which standard input cannot bring.
    """
    from graphkit.errors import ModelError
    from graphkit.io.stream_files import INPUT
    from graphkit.model import load as load_file

    if name != STREAM:
        return load_file(name)
    path = _spool_input()
    try:
        model = load_file(path)
    except ModelError as error:
        hint = error.hint
        raise ModelError(
            error.problem, file=INPUT, offset=error.offset, tensor=error.tensor, node=error.node, hint=hint
        ) from error
    if model.source.data_files:
        location = model.source.data_files[0].location
        problem = f"it keeps weights in another file, '{location}', which standard input cannot bring"
        raise ModelError(problem, file=INPUT, hint="name the model file, or write it with --weights inline first")
    return model


def model_path(name: str) -> str:
    """Return the path of a model; for `-` that of the temporary file that it waits in, once it was read.

    Raises:
        UsageError, ModelError: See `load`.
    """
    return name if name != STREAM else str(load_model(name).path)


def _spool_input() -> Path:
    """Return the temporary file that standard input is copied to, which is removed when the command ends."""
    from graphkit.errors import UsageError
    from graphkit.io.stream_files import INPUT, copy_stream, stream_file

    context = click.get_current_context().find_root()
    if context.meta.setdefault(INPUT, False):
        raise UsageError(f"{INPUT} is named twice - it brings one model, so name a file for the other one")
    context.meta[INPUT] = True
    if sys.stdin is None or sys.stdin.closed:
        raise UsageError(f"{INPUT} is closed, from which no model comes - name a model file, or pipe one in")
    if sys.stdin.isatty():
        raise UsageError(f"{INPUT} is a terminal, from which no model comes - name a model file, or pipe one in")
    path = context.with_resource(stream_file(INPUT))
    copy_stream(sys.stdin.buffer, path)
    return path


def output_destination(output: Path, weights: Placement) -> tuple[Path, Placement]:
    """Return the file to write a model to, and where its weights go; for `-` a temporary file with the weights inside.

    Raises:
        UsageError: Standard output is a terminal, or the weights are wanted elsewhere.
    """
    if str(output) != STREAM:
        return output, weights
    from graphkit.io.stream_files import OUTPUT, stream_file

    _check_output()
    root = click.get_current_context().find_root()
    root.meta[OUTPUT] = path = root.with_resource(stream_file(OUTPUT))
    return path, "inline"


def finish_rewrite(result: Result, format: str, files: str) -> None:
    """Show the result; where its proof failed, say that the files are kept, and exit with 1.

    A model for standard output goes there at the very end, where nothing has failed, and its report to standard error.

    Raises:
        OutputError: Standard output cannot be written.
    """
    from graphkit.cli.output_streams import copied_out
    from graphkit.io.stream_files import OUTPUT

    path = click.get_current_context().find_root().meta.get(OUTPUT)
    with contextlib.nullcontext() if path is None else contextlib.redirect_stdout(sys.stderr):
        show_result(result, format)
    if result.findings():
        outcome = f"{files} kept, unverified" if path is None else f"Nothing is written to {OUTPUT}"
        print_line(f"The proof failed. {outcome}.", is_error=True)
        raise SystemExit(1)
    if path is not None:
        copied_out(path)


def _check_output() -> None:
    from click.core import ParameterSource

    from graphkit.errors import UsageError
    from graphkit.io.stream_files import OUTPUT

    if sys.stdout.isatty():
        raise UsageError(f"{OUTPUT} is a terminal, which shows no model - pipe it on, or name a file with -o")
    context = click.get_current_context()
    is_asked = context.get_parameter_source("weights") is ParameterSource.COMMANDLINE
    if is_asked and context.params["weights"] != "inline":
        raise UsageError(f"--weights {context.params['weights']}: {OUTPUT} takes weights inline - leave the option out")
