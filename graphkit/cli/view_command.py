"""The command that shows models in Model Explorer: view."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from graphkit.cli.flags import REPORT_FILE, Asked, Format, format_option, model_argument, takes_options
from graphkit.cli.output import progress_on_terminal, show_result
from graphkit.cli.shape_commands import SizeFlags
from graphkit.cli.shell_completion import complete_model
from graphkit.options import BLOCKED_BY, OVERWRITE, Flag, option, switch

__all__ = ["view"]


@dataclass(frozen=True, kw_only=True)
class ViewFlags(SizeFlags):
    """The findings to show, and where.

    Attributes:
        target: The target whose blockers are shown.
        errors: The JSON of a comparison whose errors are shown.
        export: The file to write what Model Explorer reads to.
        overwrite: Whether to replace files that exist.
        port: The port of the page, None for a free one.
        browser: Whether to open the page in a browser.
    """

    target: str | None = option(None, BLOCKED_BY)
    errors: Path | None = option(
        None, Flag("--errors", "Show the errors in the JSON of graphkit compare.", Path, metavar="FILE.json")
    )
    export: Path | None = option(
        None,
        Flag(
            "--export",
            "Write what Model Explorer reads, and serve nothing: the graphs to this file, findings beside it.",
            Path,
            metavar="FILE.json",
        ),
    )
    overwrite: bool = option(False, OVERWRITE)
    port: int | None = option(
        None, Flag("--port", "Port of the page. Default: a free one from 8080 on.", int, least=1, most=65535)
    )
    browser: bool = option(True, switch("--no-browser", "Print the address of the page, and open no browser."))


@click.command(short_help="Show a model, or two side by side, in Model Explorer.")
@model_argument
@click.argument("other", metavar="[OTHER]", required=False, shell_complete=complete_model)
@takes_options(ViewFlags)
@format_option
def view(model: str, other: str | None, options: Asked[ViewFlags], format: str) -> None:
    """Show a model in Google's Model Explorer, by module, with costs, shapes and findings as overlays.

    MODEL is a model file, or example:NAME. OTHER is shown beside it: nodes that match are selected together. Needs
    graphkit[view], unless --export writes the files for a Model Explorer elsewhere.
    """
    from graphkit.cli.model_streams import load_model
    from graphkit.errors import UsageError

    asked = options.read()
    is_report = format != Format.text or click.get_current_context().meta.get(REPORT_FILE) is not None
    if asked.export is None and (is_report or asked.overwrite):
        raise UsageError("--format, --report and --overwrite are for --export - leave them out, or name a file with it")
    if asked.export is not None and (asked.port is not None or not asked.browser):
        raise UsageError("--port and --no-browser are for a page, and --export serves none - leave them out")
    first, second = load_model(model), load_model(other) if other is not None else None
    with progress_on_terminal() as progress:
        from graphkit.viewer.make_view import view as make_view

        progress("looking at the graph")
        shown_view = make_view(first, second, asked.spec, target=asked.target, errors=asked.errors)
    if asked.export is not None:
        from graphkit.viewer.export_view import export_view

        read = [path for path in (asked.errors,) if path is not None]
        models = [drawn for drawn in (first, second) if drawn is not None]
        show_result(export_view(shown_view, models, asked.export, read=read, overwrite=asked.overwrite), format)
        return
    from graphkit.io.signals import ended_by_interrupt
    from graphkit.viewer.export_view import ANY_PORT, serve_view

    with ended_by_interrupt():
        serve_view(shown_view, port=asked.port or ANY_PORT, opens_browser=asked.browser)
