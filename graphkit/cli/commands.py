"""All commands of the command line, in the order in which they are listed."""

from __future__ import annotations

import click

from graphkit import __version__
from graphkit.cli.bundling import bundle
from graphkit.cli.comparing import compare
from graphkit.cli.completing import completion
from graphkit.cli.editing import convert_opset, extract, rename, set_dims
from graphkit.cli.lowering import contract, lower
from graphkit.cli.reading import examples, report, targets
from graphkit.cli.rewriting import explain, fold, rewrite, split_merged, verify
from graphkit.cli.schemas import schema
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
