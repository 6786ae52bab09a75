"""The command that counts the costs of a model: costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import click

from graphkit.cli.flags import Asked, Format, model_argument, output_format_option, takes_options
from graphkit.cli.output import show_result
from graphkit.cli.shape_commands import SizeFlags
from graphkit.options import By, Flag, count, option

__all__ = ["costs"]

TOP = 20  # rows, but of JSON


@dataclass(frozen=True, kw_only=True)
class CostFlags(SizeFlags):
    """The dims at which to count costs, and the rows to show.

    Attributes:
        by: What the rows are.
        top: How many of them.
    """

    by: By = option(
        "layer", Flag("--by", "Rows for repeated layers, modules, operators or nodes.", choices=get_args(By))
    )
    top: int | None = option(None, count("--top", f"Number of rows. Default: {TOP}; all in JSON."))


@click.command(short_help="Count the costs of a model: MACs, bytes, peak memory, by layer.")
@model_argument
@takes_options(CostFlags)
@output_format_option
def costs(model: str, options: Asked[CostFlags], format: str) -> None:
    """Count parameters, multiply-accumulates, other operations, bytes moved and peak memory, by layer.

    MODEL is a model file, or example:NAME. Numbers are at the sizes of --dim and --input, and at typical ones of other
    dims. --range NAME=LO:HI adds the costs at sizes between.
    """
    from graphkit.analysis.costs.model_costs import costs as count_costs
    from graphkit.cli.model_streams import load_model

    asked = options.read()
    top = TOP if asked.top is None and format != Format.json else asked.top
    show_result(count_costs(load_model(model), asked.spec, by=asked.by, top=top), format)
