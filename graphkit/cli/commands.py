"""The commands of the command line, each of which is imported when it runs, and their help.

Help tells on one screen the options that most people use; with --help-all each of them in full.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module

import click
from msgspec import structs

from graphkit import __version__
from graphkit.cli.flags import click_option, read_limits
from graphkit.errors import did_you_mean
from graphkit.io.urls import current_options, remote_options
from graphkit.options import TIMEOUT, Flag

FETCHING = {
    "--download": "Fetch the whole file of a model on a server before it is read.",
    "--no-cache": "Keep no graphs of models on servers, and use none that were kept.",
}  # flags, and their help
NAMES = 24  # columns of options in a help text


def reads_models(command: click.Command) -> click.Command:
    """Give a command the options for models on servers, which it need not know of."""
    if not any(option.name == "timeout" for option in command.params):
        reading = "Time limit for reading the graph of a model on a server. Default: 60."
        command = click_option(TIMEOUT.name, replace(TIMEOUT, help=reading), expose_value=False)(command)
    for spelling, text in FETCHING.items():
        command = click_option(spelling, Flag(help=text, kind="bool", is_rare=True), expose_value=False)(command)
    for option in command.params:
        if option.name in ("download", "no_cache", "timeout"):
            option.callback = _note_option
    return command


def _note_option(context: click.Context, option: click.Parameter, value: object) -> object:
    from graphkit.cli.output import print_line

    options = structs.replace(current_options(), notice=lambda text: print_line(f"Note: {text}", is_error=True))
    if option.name == "download":
        options = structs.replace(options, download=bool(value))
    elif option.name == "no_cache":
        options = structs.replace(options, cache=not value)
    elif isinstance(value, float) and (seconds := read_limits(value, None).seconds) is not None:
        options = structs.replace(options, timeout=seconds)
    context.with_resource(remote_options(options))
    return value


GROUPS: Mapping[str, Sequence[str]] = {
    "Look": ("report", "survey", "shapes", "nodes", "weights", "costs"),
    "Change": ("fold", "split-merged", "merge-decoders", "extract", "rename", "set-dims", "convert-opset"),
    "Deploy": ("lower", "bundle", "genai", "transformers-js", "contract"),
    "Check": ("verify", "compare", "diff"),
    "More": ("explain", "examples", "targets", "providers", "judges", "program", "rewrite", "schema", "completion"),
}
MODULES = dict(zip(GROUPS, ("read", "rewrite", "deploy", "proof", "list"), strict=True))  # of most commands
OTHERS = {"report": "report_command", "program": "read_commands", "rewrite": "rewrite_commands"}
OTHERS |= {"completion": "shell_completion"}
COMMANDS: Mapping[str, str] = {  # and their modules
    name: OTHERS.get(name, f"{MODULES[group]}_commands") for group, names in GROUPS.items() for name in names
}
# All others read models, which may be on a server
LISTING = ("contract", "explain", "targets", "providers", "judges", "schema", "examples", "completion")


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
        first, *others = inspect.cleandoc(command.help or "").split("\n\n")
        with formatter.indentation():  # what it does, and the first sentence about its arguments
            formatter.write_text("\n\n".join([first, *(re.split(r"(?<=\.)\s", text)[0] for text in others[:1])]))
        with formatter.section("Options"):
            formatter.write_dl([*_short_records(context)], col_max=NAMES)
    click.echo(formatter.getvalue().rstrip("\n"))
    context.exit()


def _short_records(context: click.Context) -> Iterator[tuple[str, str]]:
    """Yield the names of the options that most people use, and the first clause of what is said of each."""
    for option in context.command.params:
        is_rare = getattr(option, "is_rare", option.name == "help")  # the reader has found --help
        if not isinstance(option, click.Option) or is_rare:
            continue
        names = ", ".join(sorted(option.opts, key=len))
        text = re.split("[.;:] ", option.help or "")[0].rstrip(".") + "."
        if option.required:
            text = f"{text.rstrip('.')} (required)."
        if isinstance(option.type, click.Choice):
            metavar, text = "NAME", f"{text.rstrip('.')}: {', '.join(option.type.choices)}."
        else:
            metavar = "" if option.is_flag else (option.metavar or "N").partition("[")[0]
        yield f"{names} {metavar}".rstrip(), text


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
            add_help_options(command)
        return self.commands[cmd_name]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command to run: `report` for a model alone; else an error that says which may be meant."""
        name, *rest = args
        if name in COMMANDS or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        if not (name.startswith("example:") or name.endswith(".onnx") or os.path.isdir(name)):
            hint = did_you_mean(name, COMMANDS, "graphkit --help lists them")
            raise click.UsageError(f"no command '{name}' - {hint}", ctx)
        if other := next((word for word in rest if word.endswith(".onnx")), ""):
            raise click.UsageError(f"no command - write `graphkit fold {name} -o {other}` to fold a model", ctx)
        return super().resolve_command(ctx, ["report", *args])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by their groups, and the names alone of those that few need."""
        for group, names in GROUPS.items():
            with formatter.section(group):
                if group == "More":
                    formatter.write_text(", ".join(names))
                    continue
                commands = ((name, self.get_command(ctx, name)) for name in names)
                formatter.write_dl([(name, each.get_short_help_str(60)) for name, each in commands if each is not None])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
def app() -> None:
    """Analyse and rewrite ONNX graphs without touching their weights."""


def every_command() -> dict[str, click.Command]:
    """Return all commands by name, in the order of the list."""
    context = click.Context(app)
    return {name: command for name in COMMANDS if (command := app.get_command(context, name)) is not None}
