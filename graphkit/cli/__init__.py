"""The command line, the only part of graphkit that prints.

Exit codes: 0 for success; 1 for findings with `--strict` or `--fail-on`, what is worse than a `--baseline`, or a failed
proof; 2 for bad input or an output that cannot be written; 130 and 143 when SIGINT or SIGTERM stops the process.
"""

from __future__ import annotations

import atexit
import gc
import sys

import click

from graphkit import __version__
from graphkit.cli.bundling import bundle
from graphkit.cli.comparing import compare
from graphkit.cli.completing import completion
from graphkit.cli.editing import convert_opset, extract, rename, set_dims
from graphkit.cli.lowering import contract, lower
from graphkit.cli.output import say
from graphkit.cli.reading import examples, report, targets
from graphkit.cli.rewriting import explain, fold, rewrite, split_merged, verify
from graphkit.cli.schemas import schema
from graphkit.cli.shapes import program, shapes
from graphkit.cli.streams import StoppedError, interruptible, tolerant, written_out
from graphkit.errors import GraphkitError

__all__ = ["app", "main"]

COMMANDS = (
    report,
    shapes,
    program,
    fold,
    split_merged,
    extract,
    rename,
    set_dims,
    convert_opset,
    lower,
    contract,
    bundle,
    rewrite,
    explain,
    verify,
    compare,
    targets,
    schema,
    examples,
    completion,
)


class _InOrder(click.Group):
    """A group that lists its commands in the order in which they are registered."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        return list(self.commands)


@click.group(
    cls=_InOrder,
    commands={command.name or "": command for command in COMMANDS},
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def app() -> None:
    """Analyse and rewrite ONNX graphs without touching their weights."""


def main() -> None:
    """Run the command line."""
    gc.set_threshold(500_000)  # a graph is many small objects that live as long as the process
    atexit.register(gc.freeze)  # so that the interpreter does not look through them once more at its end
    for stream in filter(None, (sys.stdout, sys.stderr)):
        tolerant(stream)
    try:
        with interruptible(), written_out():
            app(prog_name="graphkit")
    except GraphkitError as error:
        say(f"Error: {error}", is_error=True)
        raise SystemExit(2) from error
    except StoppedError as error:
        sys.stderr.write(f"Error: stopped by {error} - no file is left half written\n")
        raise SystemExit(128 + error.number) from None
