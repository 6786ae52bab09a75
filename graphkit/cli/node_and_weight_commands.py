"""Commands that list the parts of a model: nodes, weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from graphkit.cli.flags import Asked, model_argument, output_format_option, takes_options
from graphkit.cli.output import show_result
from graphkit.options import SIZES, Flag, as_declared, option

if TYPE_CHECKING:
    from graphkit.analysis.node_list import WeightOrder
    from graphkit.shapes import DimSpec

__all__ = ["nodes", "weights"]


@dataclass(frozen=True, kw_only=True)
class NodeFlags:
    """The nodes to list.

    Attributes:
        filter, op, module: See `graphkit.node_list`.
        spec: The dims at which to compute shapes.
    """

    filter: tuple[str, ...] = option(
        (),
        Flag(
            "--filter",
            "List nodes of such names or outputs only, as '/model/layers.0/*' or 'layers.{0-5}/*'; repeatable.",
            metavar="GLOB",
            is_repeatable=True,
        ),
    )
    op: tuple[str, ...] = option(
        (), Flag("--op", "List nodes of this operator only; repeatable.", metavar="OP", is_repeatable=True)
    )
    module: tuple[str, ...] = option(
        (),
        Flag(
            "--module",
            "List nodes of this module and those inside it only, as model/layers.0; repeatable.",
            metavar="PATH",
            is_repeatable=True,
        ),
    )
    spec: DimSpec = field(default_factory=as_declared, metadata={"flags": SIZES})


@click.command(short_help="List nodes with attributes, shapes and readers.")
@model_argument
@takes_options(NodeFlags)
@output_format_option
def nodes(model: str, options: Asked[NodeFlags], format: str) -> None:
    """List the nodes of a model with their attributes and the shapes of their outputs.

    MODEL is a model file, or example:NAME. Nodes that differ in a number of their names alone are one row of text; CSV
    and JSON have a row for each, with inputs, bytes and readers.
    """
    from graphkit.analysis.node_list import node_list
    from graphkit.cli.model_streams import load_model

    asked = options.read()
    listed = node_list(load_model(model), asked.spec, filters=asked.filter, ops=asked.op, modules=asked.module)
    show_result(listed, format)


@dataclass(frozen=True, kw_only=True)
class WeightFlags:
    """The order of weights.

    Attributes:
        by: See `graphkit.weight_list`.
    """

    by: WeightOrder = option(
        "file",
        Flag(
            "--by",
            "The order of the rows: as in the file, most bytes first, or by name.",
            choices=("file", "bytes", "name"),
        ),
    )


@click.command(short_help="List initializers and constants with bytes and readers.")
@model_argument
@takes_options(WeightFlags)
@output_format_option
def weights(model: str, options: Asked[WeightFlags], format: str) -> None:
    """List the initializers and constants of a model. Their data is not read.

    MODEL is a model file, or example:NAME. Tensors that differ in a number of their names alone are one row of text,
    with the bytes of all; CSV and JSON have a row for each.
    """
    from graphkit.analysis.node_list import weight_list
    from graphkit.cli.model_streams import load_model

    show_result(weight_list(load_model(model), by=options.read().by), format)
