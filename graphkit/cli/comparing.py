"""The command that compares two models layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphkit.cli.completing import complete_model
from graphkit.cli.options import (
    SizeWords,
    limit_options,
    output_format_option,
    read_pairs,
    size_options,
)
from graphkit.cli.output import progress_on_terminal, proving, show

if TYPE_CHECKING:
    from graphkit.runtime.limits import Limits

__all__ = ["compare"]


@click.command(short_help="Compare two models layer by layer: where they part, and why.")
@click.argument("a", metavar="A", shell_complete=complete_model)
@click.argument("b", metavar="B", shell_complete=complete_model)
@click.option(
    "--map", "names", metavar="A_NAME=B_NAME", multiple=True, help="A tensor of A and what it is in B; repeatable."
)
@click.option(
    "--inputs", type=click.Path(path_type=Path), metavar="FILE", help="Arrays for inputs by name, an .npz file."
)
@size_options
@click.option("--bisect", is_flag=True, help="Measure only what a bisection for the first difference needs.")
@click.option("--by-order", is_flag=True, help="Match what is left within a module by order, where both have as many.")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0.0),
    help="Largest difference that counts as equal, times the largest magnitude where that is above 1. Default: 0.0001; "
    "0.01 where a model has float16 tensors.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the generated inputs.")
@limit_options
@output_format_option
def compare(
    a: str,
    b: str,
    names: Sequence[str],
    inputs: Path | None,
    sizes: SizeWords,
    bisect: bool,
    by_order: bool,
    tolerance: float | None,
    seed: int,
    limits: Limits,
    format: str,
) -> None:
    """Compare two models layer by layer: where they part, and why. Exits with 1 if they differ.

    A is the model that is right. B is the other one, or an .npz file of its tensors by name, such as a device or a run
    in PyTorch gives. A tensor of a name, or of a place in the graph, in both is compared; what is ambiguous is not.
    """
    with proving(limits), progress_on_terminal() as progress:
        from graphkit.workflows.compare import CompareOptions, compare_models

        told = tuple(read_pairs(names, "--map", str))
        options = CompareOptions(told, by_order, bisect, tolerance, seed, limits)
        found = compare_models(a, b, sizes.read(), options, inputs=inputs, progress=progress)
    show(found, format)
    if not found.passed:
        raise SystemExit(1)
