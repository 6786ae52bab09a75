"""Options that several commands share, and how they are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

if TYPE_CHECKING:
    from graphkit.runtime.limits import Limits
    from graphkit.save import Placement
    from graphkit.shapes import DimSpec

__all__ = [
    "PLACEMENTS",
    "REPORT_FORMATS",
    "Format",
    "SizeWords",
    "choice",
    "count_option",
    "float16_tolerance_option",
    "format_option",
    "limit_options",
    "model_argument",
    "no_verify_option",
    "output_option",
    "overwrite_option",
    "read_limits",
    "size_options",
    "steps_option",
    "tolerance_option",
    "weights_option",
]

T = TypeVar("T")
SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([kmgt]?b?)", re.IGNORECASE)
UNITS = {f"{prefix}{unit}": 1000**power for power, prefix in enumerate(("", "k", "m", "g", "t")) for unit in ("", "b")}


class Format(str, Enum):
    """How to write a report."""

    text = "text"
    markdown = "markdown"
    json = "json"
    html = "html"
    dot = "dot"
    mermaid = "mermaid"


REPORT_FORMATS = (Format.text, Format.markdown, Format.json, Format.html)  # of reports that have no drawing
PLACEMENTS: tuple[Placement, ...] = ("shared", "in-place", "inline")
Command = TypeVar("Command", bound=Callable[..., object])


def choice(names: Iterable[str]) -> click.Choice[str]:
    """Return the type of an option that takes one of these names."""
    return click.Choice([str(getattr(name, "value", name)) for name in names])


def count_option(name: str, default: int, text: str) -> Callable[[Command], Command]:
    """Return an option that takes a number of at least 1."""
    return click.option(name, type=click.IntRange(min=1), default=default, show_default=True, help=text)


def tolerance_option(default: float | None, text: str = "") -> Callable[[Command], Command]:
    """Return the option --tolerance; `text` says what its default is where that depends on the model."""
    return click.option(
        "--tolerance",
        type=click.FloatRange(min=0.0),
        default=default,
        show_default=default is not None,
        help=f"Largest difference that counts as equal.{text}",
    )


def output_option(metavar: str, text: str, *, required: bool = False) -> Callable[[Command], Command]:
    """Return the option --output."""
    path = click.Path(path_type=Path)
    return click.option("--output", "-o", type=path, metavar=metavar, required=required, help=text)


model_argument = click.argument("model", metavar="MODEL")
weights_option = click.option(
    "--weights",
    type=choice(PLACEMENTS),
    default="shared",
    show_default=True,
    help="shared: one data file, each tensor once. in-place: no weight is copied, the source must stay. inline: in the "
    "models themselves.",
)
format_option = click.option(
    "--format", "-f", type=choice(REPORT_FORMATS), default="text", show_default=True, help="Format of the report."
)
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace files that exist.")
steps_option = count_option("--steps", 8, "Greedy steps of the proof of a split.")
float16_tolerance_option = tolerance_option(None, " Default: 0; 0.01 where the model has float16 tensors.")
no_verify_option = click.option("--no-verify", is_flag=True, help="Do not run the proof.")


class SizeWords(NamedTuple):
    """What --dim, --input and --range say, as it is written: reading it takes imports, which can wait."""

    dim: Sequence[str]
    input: Sequence[str]
    range: Sequence[str]

    def read(self) -> DimSpec:
        """Return what they say.

        Raises:
            UsageError: One cannot be read, or names a symbol or an input twice.
        """
        from graphkit.rewrite.options import parse_bounds, parse_shape, parse_size
        from graphkit.shapes import DimSpec

        return DimSpec(
            tuple(_pairs(self.dim, "--dim", parse_size)),
            tuple(_pairs(self.input, "--input", parse_shape)),
            tuple((name, *bounds) for name, bounds in _pairs(self.range, "--range", parse_bounds)),
        )


def size_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add the options --dim, --input and --range, which the command takes as `sizes`, a `SizeWords`."""

    @click.option("--dim", metavar="NAME=N", multiple=True, help="Size of a symbol; repeatable.")
    @click.option("--input", metavar="NAME=AxBxC", multiple=True, help="Shape of an input; repeatable.")
    @click.option(
        "--range", metavar="NAME=LO:HI", multiple=True, help="Bounds of a symbol, either may be left open; repeatable."
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
        help="Time for one load or one run of a model. Default: 60, and 30 for each GB of its weights.",
    )
    @click.option(
        "--memory",
        metavar="SIZE",
        help="Memory for a model that runs, beyond its weights, such as 2GB; on Linux only. Default: a quarter of the "
        "machine's.",
    )
    @wraps(command)
    def wrapped(*, timeout: float | None, memory: str | None, **others: object) -> T:
        return command(limits=read_limits(timeout, memory), **others)

    return wrapped


def read_limits(timeout: float | None, memory: str | None) -> Limits:
    """Return what --timeout and --memory say.

    Raises:
        UsageError: It is no time or no size, or this system has no limit of memory.
    """
    from graphkit.errors import UsageError
    from graphkit.runtime.limits import HAS_MEMORY_LIMIT, Limits

    if timeout is not None and not timeout > 0:
        raise UsageError(f"--timeout {timeout:g}: is no time - write such as --timeout 60")
    if memory is None:
        return Limits(timeout)
    found = SIZE.fullmatch(memory.strip())
    size = int(float(found[1]) * UNITS[found[2].lower()]) if found is not None else 0
    if size < 1:
        raise UsageError(f"--memory {memory}: is no size - write such as --memory 2GB")
    if not HAS_MEMORY_LIMIT:
        raise UsageError("--memory: this system has no limit of memory for a process - leave it out")
    return Limits(timeout, size)


def _pairs(texts: Sequence[str], option: str, read: Callable[[str], T]) -> Iterator[tuple[str, T]]:
    from graphkit.errors import UsageError

    names: set[str] = set()
    for text in texts:
        name, separator, value = text.rpartition("=")
        if not (name and separator and value):
            raise UsageError(f"{option} {text}: is not NAME=VALUE - write such as {option} batch_size=1")
        if name in names:
            raise UsageError(f"{option} {text}: '{name}' is given twice - give it once")
        names.add(name)
        try:
            yield name, read(value)
        except UsageError as error:
            raise UsageError(f"{option}: {error}") from error
