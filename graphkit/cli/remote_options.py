"""Options of every command that reads models, for those on servers: --download, --no-cache and --timeout."""

from __future__ import annotations

from dataclasses import replace

import click

from graphkit.cli.flags import click_option, read_limits
from graphkit.io.remote.options import current_options, remote_options
from graphkit.options import TIMEOUT, switch

__all__ = ["reads_models"]

DOWNLOAD = switch("--download", "Fetch the whole file of a model on a server before it is read.")
NO_CACHE = switch("--no-cache", "Keep no graphs of models on servers, and use none that were kept.")


def reads_models(command: click.Command) -> click.Command:
    """Give a command the options for models on servers, which it need not know of."""
    if not any(option.name == "timeout" for option in command.params):
        command = click_option(TIMEOUT, None, expose_value=False)(command)
    for flag in (DOWNLOAD, NO_CACHE):
        command = click_option(flag, False, expose_value=False)(command)
    for option in command.params:
        if option.name in ("download", "no_cache", "timeout"):
            option.callback = _note_option
    return command


def _note_option(context: click.Context, option: click.Parameter, value: object) -> object:
    """Let models on servers be read as an option says, as long as its command runs."""
    options = replace(current_options(), notice=_say_notice)
    if option.name == "download":
        options = replace(options, download=bool(value))
    elif option.name == "no_cache":
        options = replace(options, cache=not value)
    elif isinstance(value, float) and (seconds := read_limits(value, None).seconds) is not None:
        options = replace(options, timeout=seconds)
    context.with_resource(remote_options(options))
    return value


def _say_notice(sentence: str) -> None:
    from graphkit.cli.output import print_line

    print_line(f"Note: {sentence}", is_error=True)
