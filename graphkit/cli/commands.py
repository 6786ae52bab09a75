"""All commands of the command line, in the order in which they are listed."""

from __future__ import annotations

import click

from graphkit import __version__
from graphkit.cli.completing import completion
from graphkit.cli.listing import examples, explain, schema, targets
from graphkit.cli.lowering import bundle, contract, lower
from graphkit.cli.proving import compare, verify
from graphkit.cli.report import report
from graphkit.cli.rewriting import convert_opset, extract, fold, rename, rewrite, set_dims, split_merged
from graphkit.cli.shapes import program, shapes

__all__ = ["app"]

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
