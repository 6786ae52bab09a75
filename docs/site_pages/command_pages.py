"""A page for each command, from what click knows of it: usage, help, options."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from graphkit.cli.commands import every_command
from site_pages.links import linked, pages_that_use
from site_pages.markdown import contents, prose, table

__all__ = ["pages"]


def pages() -> dict[str, str]:
    """Return the page of each command, and the list of them."""
    commands = every_command()
    rows = [(f"[`graphkit {name}`]({name}.md)", prose(each.get_short_help_str(200))) for name, each in commands.items()]
    index = (
        "# Commands\n\nEach command prints this with `--help-all`, and with `--help` what most people use. Exit codes "
        "are 0 where all is well, 1 for findings that fail a gate and for failed proofs, and 2 for bad input.\n\n"
        + table(("command", "what it does"), rows)
    )
    made = {"index.md": index + contents(commands)}
    return made | {f"{name}.md": _page(name, command) for name, command in commands.items()}


def _page(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"graphkit {name}")
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    help_text = "\n\n".join(_paragraph(part) for part in inspect.cleandoc(command.help or "").split("\n\n"))
    options = "".join(_options(command, context))
    used = "".join(f"- [{title}]({address})\n" for title, address in pages_that_use(name))
    examples = f"## Pages that use it\n\n{used}\n" if used else ""
    return f"# graphkit {name}\n\n```text\n{usage}\n```\n\n{help_text}\n\n{examples}## Options\n\n{options}"


def _paragraph(text: str) -> str:
    if text.startswith("\b\n"):  # which click prints as it is
        return f"```text\n{text.removeprefix(chr(8)).strip(chr(10))}\n```"
    return linked(prose(text))


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield each option and its help, as an item of a list of definitions."""
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and record[1]:
            yield f"`{record[0]}`\n: {prose(' '.join(record[1].split()))}\n\n"
