"""All commands of the command line in the order of its list, and the small ones that list passes, targets and more."""

from __future__ import annotations

import os
import shutil
from functools import cache
from importlib import import_module
from pathlib import Path

import click

from graphkit import __version__
from graphkit.cli.flags import Format, output_format_option, output_option
from graphkit.cli.output import put, put_list, show
from graphkit.cli.remote_options import reads_models
from graphkit.cli.shell_completion import complete_example, complete_explained, complete_target

__all__ = ["app", "command_of", "examples", "explain", "schema", "targets"]


@click.command()
@click.argument("name", metavar="[PASS|FINDING]", required=False, shell_complete=complete_explained)
@output_option("FILE", "Write it to a file.")
def explain(name: str | None, output: Path | None) -> None:
    """Explain a pass or a kind of finding, or list all passes and findings.

    PASS is one of the passes, or package.module:Pass. FINDING is a kind of finding, such as merged-if: what it is, why
    it hurts, where it was seen, what to do.
    """
    from graphkit.analysis.findings import KIND_NAMES, KINDS, finding_page
    from graphkit.cli.rewrite_commands import current_folder_importable
    from graphkit.passes import PASSES
    from graphkit.passes.pipeline import explain as explain_pass
    from graphkit.render.document_blocks import printable

    if name is None:
        passes = [(kind.name(), (kind.__doc__ or "").splitlines()[0]) for kind in PASSES]
        put_list([*passes, *((kind.name, f"Finding: {kind.says}.") for kind in KINDS)], output)
        return
    if name in KIND_NAMES:
        put(finding_page(name), output)
        return
    with current_folder_importable():
        text = explain_pass(name)
    put("".join(f"{printable(line)}\n" for line in text.splitlines()), output)


@click.command(short_help="List the NPU compilers to lint for, or the facts about one.")
@click.argument("target", metavar="[NAME|FILE]", required=False, shell_complete=complete_target)
@output_format_option
def targets(target: str | None, format: str) -> None:
    """List the NPU compilers that models can be linted for, or the facts about one, with sources.

    NAME is a target of the list. FILE is a TOML file of your own.
    """
    from graphkit.analysis.target_facts import target_facts
    from graphkit.analysis.target_facts import targets as every_target
    from graphkit.deploy.targets import load_target

    show(every_target() if target is None else target_facts(load_target(target)), Format(format))


@click.command(short_help="List the models that ship with graphkit, or copy them.")
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_example)
@click.option("--copy", "folder", metavar="FOLDER", type=click.Path(path_type=Path), help="Copy them to a folder.")
@output_option("FILE", "Write the list to a file.")
def examples(names: tuple[str, ...], folder: Path | None, output: Path | None) -> None:
    """List the models that ship with graphkit, or copy them to a folder, as FOLDER/NAME.onnx.

    NAME is one of the list, with or without `example:`; all of them by default.
    """
    from graphkit.errors import OutputError
    from graphkit.examples import EXAMPLES, resolve
    from graphkit.io.transaction import made_folder, transaction

    chosen = list(dict.fromkeys(name.removeprefix("example:") for name in names or EXAMPLES))
    sources = {name: resolve(f"example:{name}") for name in chosen}
    if folder is not None:
        copies = {folder / path.name: path for path in sources.values()}
        hint = "name another folder"
        if taken := next(filter(os.path.lexists, copies), None):
            raise OutputError(f"{taken}: exists - {hint}")
        with made_folder(folder), transaction([*copies], key=next(iter(copies)), overwrite=False, hint=hint) as place:
            for target, path in copies.items():
                shutil.copyfile(path, place(target))
    put_list(
        [(f"example:{name}" if folder is None else f"{folder / name}.onnx", EXAMPLES[name]) for name in chosen], output
    )


@click.command(short_help="Print the JSON Schema of an output, or list the schemas.")
@click.argument("name", metavar="[NAME]", required=False)
@output_option("FILE", "Write to a file.")
def schema(name: str | None, output: Path | None) -> None:
    """Print the JSON Schema of a command's JSON, or list the schemas.

    The JSON itself names its schema, such as "report/1". contract and bundle are for contract.json and bundle.json.
    """
    from graphkit.workflows.output_schemas import SCHEMAS, schema_text

    put("".join(f"{known}\n" for known in SCHEMAS) if name is None else schema_text(name), output)


# The module of each command, which is imported when the command runs, or help lists it
HOMES = {
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
    "explain": "commands",
    "verify": "proof_commands",
    "compare": "proof_commands",
    "diff": "diff_command",
    "targets": "commands",
    "schema": "commands",
    "examples": "commands",
    "completion": "shell_completion",
}
WITHOUT_MODELS = {"contract", "explain", "targets", "schema", "examples", "completion"}


@cache
def command_of(name: str) -> click.Command:
    """Return the command of a name, with the options of those that read models on servers."""
    command: click.Command = getattr(import_module(f"graphkit.cli.{HOMES[name]}"), name.replace("-", "_"))
    return command if name in WITHOUT_MODELS else reads_models(command)


def __getattr__(name: str) -> object:
    if name != "COMMANDS":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return tuple(map(command_of, HOMES))


class _Commands(click.Group):
    """The commands, in the order of `HOMES`."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        return list(HOMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        return command_of(cmd_name) if cmd_name in HOMES else None


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def app() -> None:
    """Analyse and rewrite ONNX graphs without touching their weights."""
