"""Commands that list what there is: passes and findings, targets, providers, examples, JSON Schemas."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from graphkit.cli.flags import Format, complete, output_format_option, output_option
from graphkit.cli.output import put_list, put_text, show_result
from graphkit.cli.rewrite_commands import current_folder_importable
from graphkit.errors import OutputError, UsageError


@click.command()
@click.argument("name", metavar="[FINDING|PASS|passes]", required=False, shell_complete=complete("explained"))
@output_option("FILE", "Write it to a file.")
def explain(name: str | None, output: Path | None) -> None:
    """Explain a kind of finding or a pass, or list all kinds of findings.

    FINDING is a kind of finding, such as merged-if: what it is, why it hurts, where it was seen, what to do. PASS is
    one of those that `graphkit explain passes` lists, or package.module:Pass.
    """
    from graphkit.analysis.findings import KIND_NAMES, KINDS, finding_page
    from graphkit.passes.registry import PASSES
    from graphkit.passes.registry import pass_help as explain_pass
    from graphkit.render.document_blocks import printable

    if name in (None, "passes"):
        passes = [(kind.name(), (kind.__doc__ or "").splitlines()[0]) for kind in PASSES]
        put_list(passes if name else [(kind.name, kind.says) for kind in KINDS], output)
        return
    if name in KIND_NAMES:
        put_text(finding_page(name), output)
        return
    with current_folder_importable():
        text = explain_pass(name, KIND_NAMES)
    put_text("".join(f"{printable(line)}\n" for line in text.splitlines()), output)


@click.command(short_help="List the compilers to lint for, show the facts about one, or measure them.")
@click.argument("words", metavar="[NAME|FILE|measure NAME [MODEL]...]", nargs=-1, shell_complete=complete("target"))
@click.option(
    "--facts",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where measure writes the facts. Default: NAME.toml.",
)
@output_format_option
def targets(words: tuple[str, ...], facts: Path | None, format: str) -> None:
    """List the compilers that models can be linted for, or the facts about one, with sources.

    NAME is a target of the list. FILE is a TOML file of your own.

    `targets measure NAME` asks the compiler itself about some thousands of models of one operator, and about the nodes
    of the MODELs, if any, by themselves and in place. It writes the facts to NAME.toml, or to --facts.
    """
    from graphkit.analysis.target_facts import target_facts
    from graphkit.analysis.target_facts import targets as every_target
    from graphkit.cli.output import print_line, progress_on_terminal
    from graphkit.io.transaction import write_text
    from graphkit.model import load
    from graphkit.targets import load_target

    if words[:1] == ("measure",) and len(words) > 1:
        from graphkit.judges.measure import measure_target

        models = list(map(load, words[2:]))
        with progress_on_terminal() as progress:
            text = measure_target(words[1], models, progress=progress)
        path = facts or Path(f"{words[1]}.toml")
        write_text(path, text, [file for model in models for file in model.files])
        print_line(f"Wrote {path}; see it with: graphkit targets {path}")
        return
    if len(words) > 1 or words == ("measure",):
        raise UsageError(f"targets {' '.join(words)}: name one target, or measure one: targets measure NAME [MODEL]...")
    show_result(target_facts(load_target(words[0])) if words else every_target(), Format(format))


@click.command(short_help="List the devices that onnxruntime can run models on.")
@output_format_option
def providers(format: str) -> None:
    """List the execution providers of onnxruntime that are here, and how to install the others."""
    from graphkit.judges.judge_list import list_providers

    show_result(list_providers(), Format(format))


@click.group(invoke_without_command=True, short_help="List the compilers to ask, or install one.")
@output_format_option
@click.pass_context
def judges(context: click.Context, format: str) -> None:
    """List the compilers that can be asked where they would place a model, or install one.

    `graphkit lower --judge NAME` asks one. Each has an environment of its own in the user's cache, or in the folder
    that GRAPHKIT_JUDGES names.
    """
    from graphkit.judges.judge_list import list_judges

    if context.invoked_subcommand is None:
        show_result(list_judges(), Format(format))


@judges.command("install", short_help="Install a compiler into an environment of its own.")
@click.argument("name", shell_complete=complete("judge"))
@click.option("--yes", is_flag=True, help="Accept its licence and its size, and ask nothing.")
@click.option("--python", metavar="PATH", default=sys.executable, help="The Python to make it with. Default: this one.")
def install(name: str, yes: bool, python: str) -> None:
    """Install a compiler into an environment of its own, with pip; NAME is one that `graphkit judges` lists."""
    from graphkit.cli.output import print_line
    from graphkit.judges import install_judge, named_judge

    judge = named_judge(name)
    print_line(f"{judge.about}: {', '.join(judge.packages)}")
    print_line(f"Licence: {judge.licence}. Size: about {judge.megabytes:,} MB, in {judge.folder}.")
    if not yes and not (sys.stdin.isatty() and click.confirm("Install it, and accept its licence?")):
        raise UsageError("nothing is installed - answer y, or give --yes")
    made = install_judge(name, python)
    print_line(f"Installed {made.compiler} {made.version}. Ask it with: graphkit lower ... --judge {name}")


@click.command(short_help="List the models that ship with graphkit, or copy them.")
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete("example"))
@click.option("--copy", "folder", metavar="FOLDER", type=click.Path(path_type=Path), help="Copy them to a folder.")
@output_option("FILE", "Write the list to a file.")
def examples(names: tuple[str, ...], folder: Path | None, output: Path | None) -> None:
    """List the models that ship with graphkit, or copy them to a folder, as FOLDER/NAME.onnx.

    NAME is one of the list, with or without `example:`; all of them by default.
    """
    from graphkit.examples import EXAMPLES, resolve
    from graphkit.io.transaction import made_folder, write_all_or_none

    chosen = list(dict.fromkeys(name.removeprefix("example:") for name in names or EXAMPLES))
    sources = {name: resolve(f"example:{name}") for name in chosen}
    if folder is not None:
        copies = {folder / path.name: path for path in sources.values()}
        hint = "name another folder"
        if taken := next(filter(os.path.lexists, copies), None):
            raise OutputError(f"{taken}: exists - {hint}")
        first, *_ = copies
        with made_folder(folder), write_all_or_none([*copies], key=first, overwrite=False, hint=hint) as place:
            for target, path in copies.items():
                shutil.copyfile(path, place(target))
    places = {name: f"example:{name}" if folder is None else f"{folder / name}.onnx" for name in chosen}
    put_list([(place, EXAMPLES[name]) for name, place in places.items()], output)


@click.command(short_help="Print the JSON Schema of an output, or list the schemas.")
@click.argument("name", metavar="[NAME]", required=False)
@output_option("FILE", "Write to a file.")
def schema(name: str | None, output: Path | None) -> None:
    """Print the JSON Schema of a command's JSON, or list the schemas.

    The JSON itself names its schema, such as "report/1". contract and bundle are for contract.json and bundle.json.
    """
    from graphkit.workflows.output_schemas import SCHEMAS, schema_text

    put_text("".join(f"{known}\n" for known in SCHEMAS) if name is None else schema_text(name), output)
