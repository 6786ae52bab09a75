"""The options that several commands share, and how their values are parsed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from graphkit.cli.completing import complete_dim, complete_input, complete_model

if TYPE_CHECKING:
    from graphkit.runtime.limits import Limits
    from graphkit.save import Placement
    from graphkit.shapes import DimSpec

__all__ = [
    "PLACEMENTS", "REPORT_FILE", "REPORT_FORMATS", "Format", "SizeWords", "choice", "count_option", "dim_option",
    "float16_tolerance_option", "format_of", "format_option", "input_option", "limit_options", "model_argument",
    "no_verify_option", "output_format_option", "output_option", "overwrite_option", "read_limits", "read_pairs",
    "read_sizes", "rewrite_tolerance_option", "size_options", "steps_option", "tolerance_option", "weights_option",
]  # fmt: skip

T = TypeVar("T")
SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([kmgt]?b?)", re.IGNORECASE)
UNITS = {f"{prefix}{unit}": 1000**power for power, prefix in enumerate(("", "k", "m", "g", "t")) for unit in ("", "b")}


AS_IN = {
    "--dim": "batch_size=1",
    "--input": "input_ids=1x8",
    "--range": "sequence_length=1:512",
    "--map": "logits=output",
}  # examples of NAME=VALUE


class Format(str, Enum):
    """Formats of a report."""

    text = "text"
    markdown = "markdown"
    json = "json"
    html = "html"
    dot = "dot"
    mermaid = "mermaid"


SUFFIXES = {
    "": Format.text,
    ".txt": Format.text,
    ".md": Format.markdown,
    ".json": Format.json,
    ".html": Format.html,
    ".htm": Format.html,
    ".dot": Format.dot,
    ".gv": Format.dot,
    ".mmd": Format.mermaid,
}  # of files, and the format that they say
REPORT_FILE = "graphkit.report"  # key of the context under which the file for the report is kept
REPORT_FORMATS = (Format.text, Format.markdown, Format.json, Format.html)  # the formats of reports without a drawing
PLACEMENTS: tuple[Placement, ...] = ("kept", "shared", "in-place", "inline")
Command = TypeVar("Command", bound=Callable[..., object])


class _Choice(click.Choice[str]):
    """A choice that says which name may be meant."""

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:
        from graphkit.suggest import did_you_mean

        hint = did_you_mean(str(value), self.choices, " ").strip()
        return f"{super().get_invalid_choice_message(value, ctx)} {hint[:1].upper()}{hint[1:]}".rstrip()


def choice(names: Iterable[str]) -> click.Choice[str]:
    """Return the type of an option that takes one of these names."""
    return _Choice([str(getattr(name, "value", name)) for name in names])


def count_option(name: str, default: int | None, text: str) -> Callable[[Command], Command]:
    """Return an option that takes a number of at least 1."""
    return click.option(name, type=click.IntRange(min=1), default=default, show_default=default is not None, help=text)


def tolerance_option(default: float | None, text: str = "") -> Callable[[Command], Command]:
    """Return the option --tolerance; `text` states a default that depends on the model."""
    return click.option(
        "--tolerance",
        type=click.FloatRange(min=0.0),
        default=default,
        show_default=default is not None,
        help=f"Largest difference that still counts as equal.{text}",
    )


def output_option(metavar: str, text: str, *, required: bool = False) -> Callable[[Command], Command]:
    """Return the option --output."""
    path = click.Path(path_type=Path)
    return click.option("--output", "-o", type=path, metavar=metavar, required=required, help=text)


model_argument = click.argument("model", metavar="MODEL", shell_complete=complete_model)


def _weights_option(default: Placement) -> Callable[[Command], Command]:
    return click.option(
        "--weights",
        type=choice(PLACEMENTS),
        default=default,
        show_default=True,
        help="kept: inside the model where they are inside now, and it has up to 2 GB; else shared. shared: one data "
        "file that holds each tensor once. in-place: copies no weights, so the source must stay. inline: inside the "
        "models.",
    )


weights_option = _weights_option("kept")
shared_weights_option = _weights_option("shared")
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace existing files.")
steps_option = count_option("--steps", 8, "Number of greedy decoding steps in the proof of a split.")
float16_tolerance_option = tolerance_option(None, " Default: 0, or 0.01 for a model with float16 tensors.")
rewrite_tolerance_option = tolerance_option(
    None, " Default: 0, or 0.01 for a model with float16 tensors; more for passes that change results."
)
no_verify_option = click.option("--no-verify", is_flag=True, help="Skip the proof.")


def format_of(format: str | None, file: Path | None) -> Format:
    """Return the format that is asked for, else that which the suffix of a file says, else text.

    Raises:
        UsageError: The suffix says none.
    """
    if format is not None or file is None:
        return Format(format or Format.text)
    if (suffix := file.suffix.lower()) not in SUFFIXES:
        from graphkit.errors import OutputError, UsageError

        params = click.get_current_context().params
        words = [
            word for name, value in params.items() if name not in ("output", "report_file") for word in _words(value)
        ]
        if file.exists() and any(Path(word).exists() and file.samefile(word) for word in words):
            raise OutputError(f"{file}: is an input, which is never overwritten - name another output")
        known = ", ".join(name for name in SUFFIXES if name)
        raise UsageError(f"{file}: '{suffix}' says no format - take one of {known}, or name it with --format")
    return SUFFIXES[suffix]


def _words(value: object) -> Iterator[str]:
    """Yield the texts and paths of an argument."""
    for word in value if isinstance(value, tuple) else (value,):
        if isinstance(word, str | Path):
            yield str(word)


def report_option(*names: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Return the option --format, and one of these names for the file that `show` writes the report to."""

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        @click.option(
            *names, "report_file", type=click.Path(path_type=Path), metavar="FILE", help="Write the report to a file."
        )
        @click.option(
            "--format",
            "-f",
            type=choice(REPORT_FORMATS),
            help="Report format. Default: text, or the format that the suffix of its file names.",
        )
        @wraps(command)
        def wrapped(*, format: str | None, report_file: Path | None, **others: object) -> T:
            click.get_current_context().meta[REPORT_FILE] = report_file
            chosen = format_of(format, report_file)
            if report_file is not None:
                _check_report(report_file, others, replaces="--report" not in names)
            if chosen not in REPORT_FORMATS:
                from graphkit.errors import UsageError

                raise UsageError(
                    f"{report_file}: a {chosen.value} drawing is for `graphkit report` - take another suffix"
                )
            return command(format=chosen.value, **others)

        return wrapped

    return decorate


def _check_report(file: Path, others: Mapping[str, object], *, replaces: bool) -> None:
    """Check before any work that a report can be written to a file.

    Raises:
        OutputError: It is what the command makes, or exists and is not to be replaced, or its folder is not there.
    """
    from graphkit.errors import OutputError

    target, made = Path(os.path.realpath(file)), others.get("output")
    place = Path(os.path.realpath(made)) if isinstance(made, Path) else None
    if target == place:
        raise OutputError(f"{file}: is what the command makes - name another file for the report")
    if target.is_dir():
        raise OutputError(f"{file}: is a folder - name a file in it for the report")
    if not replaces and not others.get("overwrite") and target.is_file():
        raise OutputError(f"{file}: exists - name another file for the report, or replace it with --overwrite")
    folder = target.parent
    if not folder.is_dir() and folder != place:  # which the command makes
        raise OutputError(f"{folder}: is not a folder - create it, or name another file for the report")
    if folder.is_dir() and not os.access(folder, os.W_OK):
        raise OutputError(f"{file}: cannot be written: its folder takes no files - name another file for the report")


format_option = report_option("--report")  # where --output is what a command makes
output_format_option = report_option("--output", "-o")


class SizeWords(NamedTuple):
    """The unparsed texts of --dim, --input and --range. Parsing them needs imports, which are put off."""

    dim: Sequence[str]
    input: Sequence[str]
    range: Sequence[str]

    def read(self) -> DimSpec:
        """Parse the texts.

        Raises:
            UsageError: A text cannot be parsed, or names a symbol or an input twice.
        """
        from graphkit.rewrite.pass_options import parse_bounds, parse_shape, parse_size
        from graphkit.shapes import DimSpec

        return DimSpec(
            tuple(read_pairs(self.dim, "--dim", parse_size)),
            tuple(read_pairs(self.input, "--input", parse_shape)),
            tuple((name, *bounds) for name, bounds in read_pairs(self.range, "--range", parse_bounds)),
        )


def read_sizes(dim: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Parse the texts of --dim, where that is all that serves.

    Raises:
        UsageError: A text cannot be parsed, or names a symbol twice.
    """
    return SizeWords(dim, (), ()).read().dims


dim_option = click.option(
    "--dim",
    metavar="NAME=N",
    multiple=True,
    shell_complete=complete_dim,
    help="Set the size of a symbol; repeatable.",
)
input_option = click.option(
    "--input",
    metavar="NAME=AxBxC",
    multiple=True,
    shell_complete=complete_input,
    help="Set the shape of an input; repeatable.",
)


def size_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add the options --dim, --input and --range, which the command takes as `sizes`, a `SizeWords`."""

    @dim_option
    @input_option
    @click.option(
        "--range",
        metavar="NAME=LO:HI",
        multiple=True,
        shell_complete=complete_dim,
        help="Set bounds of a symbol; either may be left out; repeatable.",
    )
    @wraps(command)
    def wrapped(*, dim: Sequence[str], input: Sequence[str], range: Sequence[str], **others: object) -> T:
        return command(sizes=SizeWords(dim, input, range), **others)

    return wrapped


def limit_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add the options --timeout and --memory, which the command takes as `limits`, a `Limits`."""

    @click.option(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="Time limit for loading or running a model once, and for folding or rewriting it. Default: 60, plus 30 "
        "for each GB of weights; none for folding or rewriting.",
    )
    @click.option(
        "--memory",
        metavar="SIZE",
        help="Memory limit of a running model, without its weights, such as 2GB; Linux only. Default: a quarter of the "
        "machine's memory.",
    )
    @wraps(command)
    def wrapped(*, timeout: float | None, memory: str | None, **others: object) -> T:
        return command(limits=read_limits(timeout, memory), **others)

    return wrapped


def read_limits(timeout: float | None, memory: str | None) -> Limits:
    """Parse --timeout and --memory.

    Raises:
        UsageError: A value is not a time or a size, or this system cannot limit memory.
    """
    from graphkit.errors import UsageError
    from graphkit.runtime.limits import HAS_MEMORY_LIMIT, Limits

    if timeout is not None and not timeout > 0:
        raise UsageError(
            f"--timeout {timeout:g}: is not a time - write a positive number of seconds, such as --timeout 60"
        )
    if memory is None:
        return Limits(timeout)
    found = SIZE.fullmatch(memory.strip())
    size = int(float(found[1]) * UNITS[found[2].lower()]) if found is not None else 0
    if size < 1:
        raise UsageError(f"--memory {memory}: is not a size - write one such as --memory 2GB")
    if not HAS_MEMORY_LIMIT:
        raise UsageError("--memory: this system cannot limit the memory of a process - leave the option out")
    return Limits(timeout, size)


def _divided(text: str, option: str) -> tuple[str, str]:
    """Return the name and the value of NAME=VALUE; the last = divides, so that names may have one.

    What says a size may be written with : too, as onnxsim and Polygraphy do: then the last of both divides, and the one
    before it where a range has one itself.
    """
    at = text.rfind("=")
    if option in ("--dim", "--input"):
        at = max(at, text.rfind(":"))
    elif option == "--range" and at < 0:
        at = text.rfind(":", 0, max(text.rfind(":"), 0))
    return (text[:at], text[at + 1 :]) if at > 0 else ("", "")


def read_pairs(texts: Sequence[str], option: str, read: Callable[[str], T]) -> Iterator[tuple[str, T]]:
    """Yield the names and values of a repeatable option NAME=VALUE.

    Raises:
        UsageError: One cannot be read, or names something twice.
    """
    from graphkit.errors import UsageError

    names: set[str] = set()
    for text in texts:
        name, value = _divided(text, option)
        if not (name and value):
            raise UsageError(f"{option} {text}: is not NAME=VALUE - write it as in {option} {AS_IN[option]}")
        if name in names:
            raise UsageError(f"{option} {text}: '{name}' is given twice - give it once")
        names.add(name)
        try:
            yield name, read(value)
        except UsageError as error:
            raise UsageError(f"{option}: {error}") from error
