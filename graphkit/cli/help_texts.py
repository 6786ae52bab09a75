"""The help of a command: on one screen the options that most people use, with --help-all each of them in full."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

NAMES = 24  # columns of options


def add_help_options(command: click.Command) -> None:
    """Give a command --help, and --help-all where that has more to say."""
    texts = {("-h", "--help"): "Show this message, and exit.", ("--help-all",): "Show all options, and all about each."}
    for names, text in texts.items():
        option = click.Option(names, is_flag=True, is_eager=True, expose_value=False, help=text, callback=_show_help)
        command.params.append(option)


def _show_help(context: click.Context, option: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    command, formatter = context.command, context.make_formatter()
    if option.name == "help_all":
        command.format_help(context, formatter)
    else:
        command.format_usage(context, formatter)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(_short_text(command))
        with formatter.section("Options"):
            formatter.write_dl([*_short_records(context)], col_max=NAMES)
    click.echo(formatter.getvalue().rstrip("\n"))
    context.exit()


def _short_text(command: click.Command) -> str:
    """Return what a command does, and the first sentence about its arguments."""
    first, *others = inspect.cleandoc(command.help or "").split("\n\n")
    return "\n\n".join([first, *(re.split(r"(?<=\.)\s", text)[0] for text in others[:1])])


def _short_records(context: click.Context) -> Iterator[tuple[str, str]]:
    """Yield the names of the options that most people use, and the first clause of what is said of each."""
    for option in context.command.params:
        is_rare = getattr(option, "is_rare", option.name == "help")  # the reader has found --help
        if not isinstance(option, click.Option) or is_rare:
            continue
        names, text = (
            ", ".join(sorted(option.opts, key=len)),
            re.split("[.;:] ", option.help or "")[0].rstrip(".") + ".",
        )
        if option.required:
            text = f"{text.rstrip('.')} (required)."
        if isinstance(option.type, click.Choice):
            metavar, text = "NAME", f"{text.rstrip('.')}: {', '.join(option.type.choices)}."
        else:
            metavar = "" if option.is_flag else (option.metavar or "N").partition("[")[0]
        yield f"{names} {metavar}".rstrip(), text
