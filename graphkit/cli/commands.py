"""The commands of the command line, each of which is imported when it runs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import click

from graphkit import __version__
from graphkit.cli.remote_options import reads_models

__all__ = ["app", "every_command"]

# Their modules, in the order of the list. All but those of `LISTING` read models, which may be on a server.
COMMANDS: Mapping[str, str] = {
    "report": "report_command",
    "survey": "survey_command",
    "shapes": "shape_commands",
    "nodes": "node_and_weight_commands",
    "weights": "node_and_weight_commands",
    "costs": "cost_command",
    "view": "view_command",
    "program": "shape_commands",
    "fold": "rewrite_commands",
    "split-merged": "rewrite_commands",
    "extract": "rewrite_commands",
    "rename": "rewrite_commands",
    "set-dims": "rewrite_commands",
    "convert-opset": "rewrite_commands",
    "lower": "deploy_commands",
    "contract": "deploy_commands",
    "bundle": "deploy_commands",
    "rewrite": "rewrite_commands",
    "explain": "list_commands",
    "verify": "proof_commands",
    "compare": "proof_commands",
    "diff": "diff_command",
    "targets": "list_commands",
    "schema": "list_commands",
    "examples": "list_commands",
    "completion": "shell_completion",
}
LISTING = ("contract", "explain", "targets", "schema", "examples", "completion")


class _Commands(click.Group):
    """The group of all commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            module = import_module(f"graphkit.cli.{COMMANDS[cmd_name]}")
            command: click.Command = getattr(module, cmd_name.replace("-", "_"))
            self.add_command(command if cmd_name in LISTING else reads_models(command), cmd_name)
        return self.commands[cmd_name]


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
def app() -> None:
    """Analyse and rewrite ONNX graphs without touching their weights."""


def every_command() -> dict[str, click.Command]:
    """Return all commands by name, in the order of the list."""
    context = click.Context(app)
    return {name: command for name in COMMANDS if (command := app.get_command(context, name)) is not None}
