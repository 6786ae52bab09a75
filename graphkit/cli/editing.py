"""Commands that edit models: extract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from graphkit.cli.options import (
    float16_tolerance_option,
    format_option,
    limit_options,
    model_argument,
    no_verify_option,
    output_option,
    overwrite_option,
    weights_option,
)
from graphkit.cli.output import progress_on_terminal, proving
from graphkit.cli.piping import destination, finish, load

if TYPE_CHECKING:
    from graphkit.rewrite.base import Pass
    from graphkit.runtime.limits import Limits
    from graphkit.save import Placement

__all__ = ["extract"]

T = TypeVar("T")


def edit_options(command: Callable[..., Pass]) -> Callable[..., None]:
    """Let a command that returns a pass edit a model by it, with the options of all edits."""

    @model_argument
    @output_option("OUT", "Output file.", required=True)
    @weights_option
    @no_verify_option
    @overwrite_option
    @float16_tolerance_option
    @limit_options
    @format_option
    @wraps(command)
    def wrapped(
        *,
        model: str,
        output: Path,
        weights: Placement,
        no_verify: bool,
        overwrite: bool,
        tolerance: float | None,
        limits: Limits,
        format: str,
        **others: object,
    ) -> None:
        output, weights = destination(output, weights)
        with proving(limits, not no_verify), progress_on_terminal() as progress:
            from graphkit.workflows.edit import EditOptions, edit_file

            step = command(**others)
            options = EditOptions(weights, not no_verify, overwrite, tolerance, limits)
            progress(f"reading {model}")
            made = edit_file(load(model), output, step, options, progress=progress)
        finish(made, format, f"{output} is")

    return wrapped


@click.command()
@click.option("--to", metavar="NAME", multiple=True, required=True, help="A value or node to end at; repeatable.")
@click.option(
    "--from",
    "begin",
    metavar="NAME",
    multiple=True,
    help="A value or node to begin at; repeatable. Default: the inputs of the model.",
)
@edit_options
def extract(to: Sequence[str], begin: Sequence[str]) -> Pass:
    """Write a subgraph as a model of its own, and prove it against the whole.

    MODEL is a model file, or example:NAME. A value that --from names becomes an input. A node stands for its outputs
    after --to, and for what it reads after --from, so that it is in the subgraph.
    """
    from graphkit.passes.interface.extract_subgraph import ExtractSubgraph

    return ExtractSubgraph(tuple(to), tuple(begin))
