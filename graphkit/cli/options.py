"""Options that several commands share, and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from graphkit.save import Placement

__all__ = [
    "DefaultToleranceOption",
    "DimOption",
    "Format",
    "FormatOption",
    "InputOption",
    "OverwriteOption",
    "RangeOption",
    "ReportFormat",
    "ToleranceOption",
    "Weights",
    "read_placement",
    "read_sizes",
]

T = TypeVar("T")


class Format(str, Enum):
    """How to write a report."""

    text = "text"
    markdown = "markdown"
    json = "json"
    html = "html"
    dot = "dot"
    mermaid = "mermaid"


class ReportFormat(str, Enum):
    """How to write a report that has no drawing of its own."""

    text = "text"
    markdown = "markdown"
    json = "json"
    html = "html"


DimOption = Annotated[list[str] | None, typer.Option("--dim", metavar="NAME=N", help="Size of a symbol; repeatable.")]
InputOption = Annotated[
    list[str] | None, typer.Option("--input", metavar="NAME=AxBxC", help="Shape of an input; repeatable.")
]
RangeOption = Annotated[
    list[str] | None, typer.Option("--range", metavar="NAME=LO:HI", help="Bounds of a symbol, either open; repeatable.")
]


Weights = Annotated[
    str,
    typer.Option(
        help="shared: one data file, each tensor once. in-place: none is copied, the source must stay. inline: in the "
        "models themselves."
    ),
]
FormatOption = Annotated[ReportFormat, typer.Option("--format", "-f", help="Of the report.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")]
DefaultToleranceOption = Annotated[
    float | None,
    typer.Option(
        "--tolerance", min=0.0, help="Largest difference that counts as equal. Default: 0; 0.01 with float16 in it."
    ),
]
ToleranceOption = Annotated[
    float, typer.Option("--tolerance", min=0.0, help="Largest difference that counts as equal.")
]


def read_sizes(
    dim: list[str] | None, input: list[str] | None, range: list[str] | None
) -> tuple[dict[str, int], dict[str, tuple[int, ...]], dict[str, tuple[int | None, int | None]]]:
    """Return what --dim, --input and --range say."""
    from graphkit.rewrite.options import parse_bounds, parse_shape, parse_size

    return (
        dict(_pairs(dim, "--dim", parse_size)),
        dict(_pairs(input, "--input", parse_shape)),
        dict(_pairs(range, "--range", parse_bounds)),
    )


def _pairs(texts: list[str] | None, option: str, read: Callable[[str], T]) -> Iterator[tuple[str, T]]:
    from graphkit.errors import UsageError

    names: set[str] = set()
    for text in texts or ():
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


def read_placement(name: str) -> Placement:
    """Return where weights go.

    Raises:
        UsageError: There is no such placement.
    """
    from graphkit.errors import UsageError

    if name not in ("shared", "in-place", "inline"):
        raise UsageError(f"no placement '{name}' of weights - there are: shared, in-place, inline")
    return name  # type: ignore[return-value]
