"""Print results in the width and colours of the terminal, and show the current step."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphkit.cli.flags import REPORT_FILE, Format

if TYPE_CHECKING:
    from graphkit.render.result import Result
    from graphkit.runtime.limits import Limits

__all__ = ["print_line", "progress_on_terminal", "put_list", "put_text", "render_result", "show_result", "start_prover"]

MINUTES = 100  # seconds from which a time is told in minutes
SURE = 0.05  # of the work has to be done before anything is said of the rest
TABLE_WIDTH = 160  # of tables in files and pipes, so that a row is a line for grep


def print_line(text: str, *, is_error: bool = False) -> None:
    """Print a line with its control characters escaped, because names in it may come from a model."""
    from graphkit.render.document_blocks import printable

    (sys.stderr if is_error else sys.stdout).write(f"{printable(text)}\n")


def show_result(result: Result, chosen: str) -> None:
    """Print a result, or write it to the file that the command was given for it.

    Text has the width of the terminal, and colours only on a terminal; COLUMNS sets the width.
    """
    context = click.get_current_context(silent=True)
    if context is not None and (file := context.meta.get(REPORT_FILE)) is not None:
        from graphkit.io.transaction import write_text

        write_text(file, render_result(result, Format(chosen)), _named_files(context) if file.exists() else ())
        return
    if chosen != Format.text:
        sys.stdout.write(render_result(result, Format(chosen)))
        return
    from rich.console import Console

    from graphkit.render.terminal import Rendered, as_text

    console = Console(highlight=False)
    if console.is_terminal:
        Rendered(result).print_on(console)
    else:
        asked = "COLUMNS" in os.environ
        sys.stdout.write(as_text(result, console.width, table_width=console.width if asked else TABLE_WIDTH))


def render_result(result: Result, chosen: Format) -> str:
    """Return a result as written to a file.

    Raises:
        UsageError: CSV is asked for, and there is no table.
    """
    from graphkit.errors import UsageError
    from graphkit.render.terminal import as_text

    writers = {
        Format.markdown: result.to_markdown,
        Format.json: result.to_json,
        Format.html: result.to_html,
        Format.csv: result.to_csv,
    }
    if chosen not in writers:
        return as_text(result, table_width=TABLE_WIDTH)
    written = writers[chosen]()
    if not written:
        raise UsageError("there is no table in this result, and CSV has tables alone - take another --format")
    return written


def put_text(words: str, output: Path | None, read: Iterable[Path] = ()) -> None:
    """Write a text to a file, which is none of those that were read, or else print it."""
    if output is None:
        sys.stdout.write(words)
        return
    from graphkit.io.transaction import write_text

    write_text(output, words, sorted(read))


def put_list(rows: Sequence[tuple[str, str]], output: Path | None) -> None:
    """Write names and their descriptions, a line for each; on a terminal, text that is too wide wraps below itself."""
    edge = max(len(name) for name, _ in rows) + 2
    lines = [f"{name:{edge}}{text}" for name, text in rows]
    if output is None and sys.stdout.isatty():
        room, below = shutil.get_terminal_size().columns, " " * edge
        lines = [
            textwrap.fill(line, room, subsequent_indent=below, break_long_words=False, break_on_hyphens=False)
            for line in lines
        ]
    put_text("".join(f"{line}\n" for line in lines), output)


def _named_files(context: click.Context) -> Iterator[Path]:
    """Yield the files that the arguments of a command name: models with their data, and files in folders."""
    from graphkit.errors import GraphkitError
    from graphkit.model import load

    values = [value for name, value in context.params.items() if name != "report_file"]
    words = [word for value in values for word in (value if isinstance(value, tuple) else [value])]
    for path in (Path(word) for word in words if isinstance(word, str | Path) and os.path.lexists(word)):
        inside = sorted(path.iterdir()) if path.is_dir() else [path]
        yield from (file for file in inside if file.suffix not in (".md", ".html", ".txt"))
        for model in (file for file in inside if file.suffix == ".onnx"):
            with contextlib.suppress(GraphkitError):
                yield from load(model).files


@contextlib.contextmanager
def progress_on_terminal() -> Iterator[Callable[[str], None]]:
    """Give a function that shows the current step, and how long the command runs, on stderr if that is a terminal.

    Where a step says which share of the work is done, that is shown, and about how much time is left.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if not sys.stderr.isatty() or console.is_dumb_terminal:  # which cannot take a line back
        yield lambda _: None
        return
    from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
    from rich.table import Column
    from rich.text import Text

    from graphkit.progress import share_of
    from graphkit.render.document_blocks import printable

    class Left(ProgressColumn):
        """The share of the work that is done, and the time that the rest takes if it goes on as until then."""

        def render(self, task: Task) -> Text:
            share, told = task.completed, task.fields["told"]
            left = told / share * (1 - share) - ((task.elapsed or 0.0) - told) if share >= SURE else 0.0
            time_left = f"{left / 60:.0f} min" if left >= MINUTES else f"{left:.0f} s"
            return Text(f"{share:.0%}" + (f", {time_left} left" if left >= 1 else "") if share else "")

    spinner = SpinnerColumn("dots" if console.encoding.startswith("utf") else "line")
    words = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
    with Progress(spinner, words, TimeElapsedColumn(), Left(), console=console, transient=True) as shown:
        task = shown.add_task("starting", total=None, told=0.0)

        def show_step(step: str) -> None:
            shown.update(task, description=printable(step))
            if (share := share_of(step)) is not None:
                shown.update(task, completed=max(share, shown.tasks[0].completed), told=shown.tasks[0].elapsed)

        yield show_step


@contextlib.contextmanager
def start_prover(limits: Limits, verify: bool = True) -> Iterator[None]:
    """Start the process that models run in early, so that it is ready for the first run."""
    if not verify:
        yield
        return
    from graphkit.runtime.isolation import shared_isolation

    with shared_isolation(limits):
        yield
