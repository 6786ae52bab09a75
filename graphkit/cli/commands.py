"""All commands of the command line in the order of its list, and the small ones that list passes, targets and more."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import click

from graphkit import __version__
from graphkit.cli.cost_command import costs
from graphkit.cli.deploy_commands import bundle, contract, lower
from graphkit.cli.diff_command import diff
from graphkit.cli.flags import Format, output_format_option, output_option
from graphkit.cli.node_and_weight_commands import nodes, weights
from graphkit.cli.output import put, put_list, show
from graphkit.cli.proof_commands import compare, verify
from graphkit.cli.remote_options import reads_models
from graphkit.cli.report_command import report
from graphkit.cli.rewrite_commands import (
    convert_opset,
    current_folder_importable,
    extract,
    fold,
    rename,
    rewrite,
    set_dims,
    split_merged,
)
from graphkit.cli.shape_commands import program, shapes
from graphkit.cli.shell_completion import complete_example, complete_explained, complete_target, completion
from graphkit.cli.survey_command import survey
from graphkit.cli.view_command import view

__all__ = ["app", "examples", "explain", "schema", "targets"]


@click.command()
@click.argument("name", metavar="[PASS|FINDING]", required=False, shell_complete=complete_explained)
@output_option("FILE", "Write it to a file.")
def explain(name: str | None, output: Path | None) -> None:
    """Explain a pass or a kind of finding, or list all passes and findings.

    PASS is one of the passes, or package.module:Pass. FINDING is a kind of finding, such as merged-if: what it is, why
    it hurts, where it was seen, what to do.
    """
    from graphkit.analysis.findings import KIND_NAMES, KINDS, finding_page
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


COMMANDS = (
    reads_models(report),
    reads_models(survey),
    reads_models(shapes),
    reads_models(nodes),
    reads_models(weights),
    reads_models(costs),
    reads_models(view),
    reads_models(program),
    reads_models(fold),
    reads_models(split_merged),
    reads_models(extract),
    reads_models(rename),
    reads_models(set_dims),
    reads_models(convert_opset),
    reads_models(lower),
    contract,
    reads_models(bundle),
    reads_models(rewrite),
    explain,
    reads_models(verify),
    reads_models(compare),
    reads_models(diff),
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
