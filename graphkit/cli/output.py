"""Print results in the width and colours of the terminal, and show the current step."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from graphkit.cli.options import Format

if TYPE_CHECKING:
    from graphkit.render.result import Result
    from graphkit.runtime.limits import Limits

__all__ = ["progress_on_terminal", "proving", "rendered", "say", "show"]

TABLE_WIDTH = 160  # of tables in files and pipes, so that a row is a line for grep


def say(text: str, *, is_error: bool = False) -> None:
    """Print a line with its control characters escaped, because names in it may come from a model."""
    from graphkit.render.blocks import printable

    (sys.stderr if is_error else sys.stdout).write(f"{printable(text)}\n")


def show(result: Result, chosen: str) -> None:
    """Print a result. Text has the width of the terminal, and colours only on a terminal; COLUMNS sets the width."""
    if chosen != Format.text:
        sys.stdout.write(rendered(result, Format(chosen), None))
        return
    from rich.console import Console

    from graphkit.render.terminal import Rendered, text

    console = Console(highlight=False)
    if console.is_terminal:
        Rendered(result).print_on(console)
    else:
        asked = "COLUMNS" in os.environ
        sys.stdout.write(text(result, console.width, table_width=console.width if asked else TABLE_WIDTH))


def rendered(result: Result, chosen: Format, output: Path | None) -> str:
    """Return a result as written to a file, or as printed in a format other than text."""
    writers = {Format.markdown: result.to_markdown, Format.json: result.to_json, Format.html: result.to_html}
    if chosen in writers:
        return writers[chosen]()
    return result.to_text() if output is not None else ""


@contextlib.contextmanager
def progress_on_terminal() -> Iterator[Callable[[str], None]]:
    """Give a function that shows the current step on stderr if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.markup import escape

    from graphkit.render.blocks import printable

    with Console(stderr=True).status("") as status:
        yield lambda step: status.update(escape(printable(step)))


@contextlib.contextmanager
def proving(limits: Limits, wanted: bool = True) -> Iterator[None]:
    """Start the process that models run in early, so that it is ready for the first run."""
    if not wanted:
        yield
        return
    from graphkit.runtime.isolation import isolation

    with isolation(limits):
        yield
