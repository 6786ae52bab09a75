"""Print results in the width and colours of the terminal, and show the current step."""

from __future__ import annotations

import codecs
import contextlib
import gc
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import click

from graphkit.cli.flags import FULL, REPORT_FILE, Format
from graphkit.errors import GraphkitError, ModelError, OutputError, UsageError
from graphkit.progress import Limits, share_of

if TYPE_CHECKING:
    from graphkit.model import Model
    from graphkit.render.result import Result
    from graphkit.save import Placement

MINUTES = 100  # seconds from which a time is told in minutes
SURE = 0.05  # of the work has to be done before anything is said of the rest
TABLE_WIDTH = 160  # of tables in files and pipes, so that a row is a line for grep
LINES = {"\N{BOX DRAWINGS LIGHT HORIZONTAL}": "-", "\N{FULL BLOCK}": "#"}  # that graphkit draws, in ASCII
IN_ASCII = "graphkit.in_ascii"  # how a stream is told to write what its encoding lacks
STREAM = "-"
OBJECTS = 100  # of each node, in all facts about it: none of them is garbage before the command ends


def print_line(text: str, *, is_error: bool = False) -> None:
    """Print a line with its control characters escaped, because names in it may come from a model."""
    from graphkit.render.document_blocks import printable

    (sys.stderr if is_error else sys.stdout).write(f"{printable(text)}\n")


def show_result(
    result: Result, chosen: str, *commands: Sequence[str], is_list: bool = False, has_lines: bool = True, below: int = 0
) -> None:
    """Print a result on one screen, with the commands to run next, or all of it with --full.

    Where the command was given a file for it, the file has all. Text has the width of the terminal, and colours only on
    a terminal; COLUMNS sets the width. `commands` are words after `graphkit`. A pipe gets every row of a list; with
    `has_lines` the screen has a line for each section (see `Brief`), and below it so many lines that the command
    prints.
    """
    context = click.get_current_context(silent=True)
    meta = {} if context is None else context.meta
    file = meta.get(REPORT_FILE)
    if context is not None and file is not None:
        from graphkit.io.transaction import write_text

        write_text(file, render_result(result, Format(chosen)), _named_files(context) if file.exists() else ())
    elif chosen != Format.text:
        sys.stdout.write(render_result(result, Format(chosen)))
        return
    from rich.console import Console

    from graphkit.render.terminal import Brief, Rendered, as_text

    console = Console(highlight=False)
    is_full = meta.get(FULL, False) or (is_list and file is None and not console.is_terminal)
    words = tuple(shlex.join(("graphkit", *words)) for words in commands)
    below += file is not None
    shown = result if is_full else Brief(result, console.width, words, has_lines, below)
    if console.is_terminal:
        Rendered(shown).print_on(console)
    else:
        asked = "COLUMNS" in os.environ
        sys.stdout.write(as_text(shown, console.width, table_width=console.width if asked else TABLE_WIDTH))
    if file is not None:
        print_line(f"Wrote {file}.")


def render_result(result: Result, chosen: Format) -> str:
    """Return a result as written to a file. Raises UsageError where CSV is asked for, and there is no table."""
    from graphkit.render.terminal import as_text

    writers = {Format.markdown: result.to_markdown, Format.json: result.to_json, Format.html: result.to_html}
    writers[Format.csv] = result.to_csv
    if chosen not in writers:
        return as_text(result, table_width=TABLE_WIDTH)
    if not (written := writers[chosen]()):
        raise UsageError("there is no table in this result, and CSV has tables alone - take another --format")
    return written


def put_text(words: str, output: Path | None, read: Iterable[Path] = (), *, is_told: bool = True) -> None:
    """Write a text to a file, which is none of those that were read, and say so; or else print it."""
    if output is None:
        sys.stdout.write(words)
        return
    from graphkit.io.transaction import write_text

    write_text(output, words, sorted(read))
    if is_told:
        print_line(f"Wrote {output}.")


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


def start_prover(limits: Limits, verify: bool = True) -> contextlib.AbstractContextManager[object]:
    """Start the process that models run in early, so that it is ready for the first run."""
    if not verify:
        return contextlib.nullcontext()
    from graphkit.runtime.isolation import shared_isolation

    return shared_isolation(limits)


def make_tolerant(stream: TextIO) -> None:
    """Let a stream of another encoding write lines in ASCII, and other characters that it lacks as escapes."""
    codecs.register_error(IN_ASCII, _in_ascii)
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors=IN_ASCII)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(LINES.get(c) or c.encode("ascii", "backslashreplace").decode() for c in lacking), error.end


class _Output:
    """A stream whose failure is an OutputError."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with _failing_errors():
            return self._stream.write(text)

    def flush(self) -> None:
        with _failing_errors():
            self._stream.flush()


@contextlib.contextmanager
def written_out() -> Iterator[None]:
    """Flush everything that is printed inside. Raises OutputError where the output cannot be written."""
    before = sys.stdout
    with contextlib.ExitStack() as stack:
        # a stdout that is closed is None
        stream = before or stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        sys.stdout = cast(TextIO, _Output(stream))
        try:
            try:
                yield
            finally:
                sys.stdout.flush()
        except OutputError:
            with contextlib.suppress(OSError, ValueError):  # nothing is left to be written when the process ends
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)
            raise
        finally:
            sys.stdout = before


@contextlib.contextmanager
def _failing_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"the output cannot be written: {error.strerror} - check where it goes") from error


def load_model(name: str) -> Model:
    """Read a model without its weights from a file, or from standard input, where it waits in a temporary file.

    Raises UsageError where standard input is a terminal, or is read twice; ModelError where the model cannot be read,
    or has data in other files, which standard input cannot bring.
    """
    from graphkit.io.byte_source import INPUT
    from graphkit.model import load as load_file

    if name != STREAM:
        model = load_file(name)
        gc.set_threshold(max(gc.get_threshold()[0], OBJECTS * len(model.proto.graph.node)))
        return model
    from graphkit.io.byte_source import copy_stream, stream_file

    context = click.get_current_context().find_root()
    if context.meta.setdefault(INPUT, False):
        raise UsageError(f"{INPUT} is named twice - it brings one model, so name a file for the other one")
    context.meta[INPUT] = True
    if sys.stdin is None or sys.stdin.closed:
        raise UsageError(f"{INPUT} is closed, from which no model comes - name a model file, or pipe one in")
    if sys.stdin.isatty():
        raise UsageError(f"{INPUT} is a terminal, from which no model comes - name a model file, or pipe one in")
    path = context.with_resource(stream_file(INPUT))
    copy_stream(sys.stdin.buffer, path)
    try:
        model = load_file(path)
    except ModelError as error:
        hint = error.hint
        raise ModelError(
            error.problem, file=INPUT, offset=error.offset, tensor=error.tensor, node=error.node, hint=hint
        ) from error
    if model.source.data_files:
        location = model.source.data_files[0].location
        problem = f"it keeps weights in another file, '{location}', which standard input cannot bring"
        raise ModelError(problem, file=INPUT, hint="name the model file, or write it with --weights inline first")
    return model


def model_path(name: str) -> str:
    """Return the path of a model; for `-` that of the temporary file that it waits in, once it was read."""
    return name if name != STREAM else str(load_model(name).path)


def output_destination(output: Path, weights: Placement) -> tuple[Path, Placement]:
    """Return the file to write a model to, and where its weights go; for `-` a temporary file with the weights inside.

    Raises UsageError where standard output is a terminal, or the weights are wanted elsewhere.
    """
    if str(output) != STREAM:
        return output, weights
    from click.core import ParameterSource

    from graphkit.io.byte_source import OUTPUT, stream_file

    if sys.stdout.isatty():
        raise UsageError(f"{OUTPUT} is a terminal, which shows no model - pipe it on, or name a file with -o")
    context = click.get_current_context()
    asked = context.params.get("weights")
    if context.get_parameter_source("weights") is ParameterSource.COMMANDLINE and asked != "inline":
        raise UsageError(f"--weights {asked}: {OUTPUT} takes weights inline - leave the option out")
    root = context.find_root()
    root.meta[OUTPUT] = path = root.with_resource(stream_file(OUTPUT))
    return path, "inline"


def finish_rewrite(result: Result, format: str, files: str, *commands: Sequence[str]) -> None:
    """Show the result; where its proof does not hold, say that the files are kept, and exit with 1.

    A model for standard output goes there at the very end, where nothing has failed, and its report to standard error.
    """
    from graphkit.io.byte_source import OUTPUT

    path = click.get_current_context().find_root().meta.get(OUTPUT)
    with contextlib.nullcontext() if path is None else contextlib.redirect_stdout(sys.stderr):
        show_result(result, format, *(() if path is not None or result.findings() else commands))
    if result.findings():
        outcome = f"{files} kept, unverified" if path is None else f"Nothing is written to {OUTPUT}"
        proof = getattr(result, "proof", None)
        told = proof.failure_text() if proof is not None and not proof.passed else "The proof failed."
        print_line(f"{told} {outcome}.", is_error=True)
        raise SystemExit(1)
    if path is not None:
        sys.stdout.flush()
        with path.open("rb") as file, _failing_errors():
            shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.buffer.flush()
