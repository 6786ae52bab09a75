"""Commands that look at models, and write none: shapes, program, costs, nodes, weights; and survey, for many models."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from graphkit.cli.flags import (
    FULL,
    Asked,
    Format,
    choice_type,
    complete,
    format_of,
    model_argument,
    output_format_option,
    output_option,
    takes_options,
)
from graphkit.cli.output import print_line, progress_on_terminal, put_text, render_result, show_result
from graphkit.errors import UsageError, count_things
from graphkit.options import LIMITS, OVERWRITE, WEIGHTS, By, as_declared, option, sizes_option
from graphkit.progress import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from graphkit.analysis.node_list import WeightOrder
    from graphkit.fleet.survey import Executor
    from graphkit.fleet.survey_task import RowOptions
    from graphkit.render.result import Result
    from graphkit.save import Placement
    from graphkit.shapes import DimSpec


LANGUAGES = ("json", "python", "javascript", "py", "js")
LANGUAGE_OF = {".py": "python", ".js": "javascript", ".mjs": "javascript"}  # by suffix
TOP = 20  # rows, but of JSON
SERVER_SHARE = 0.9  # of the time of a model, after which a slow server is the error


@dataclass(frozen=True, kw_only=True)
class SizeFlags:
    """The dims at which to compute shapes."""

    spec: DimSpec = sizes_option()


@dataclass(frozen=True, kw_only=True)
class ShapeFlags(SizeFlags):
    """The shapes to show, and the model to write with them."""

    filter: tuple[str, ...] = option(
        (),
        "Show tensors of such names or nodes only, as '/model/layers.0/*' or 'present.{0-5}.key'; repeatable.",
        metavar="GLOB",
    )
    constants: bool = option(False, "Show initializers, and what follows from them alone, too.", is_rare=True)
    why: str | None = option(
        None, "Show where the shape of this tensor, or of what this node gives, comes from.", metavar="NAME"
    )
    write: Path | None = option(None, "Write the model with the shapes declared in it.", metavar="OUT")
    weights: Placement = option("kept", WEIGHTS)
    overwrite: bool = option(False, OVERWRITE)


@click.command(short_help="Show every shape as an expression in the input dims.")
@model_argument
@takes_options(ShapeFlags)
@output_format_option
def shapes(model: str, options: Asked[ShapeFlags], format: str) -> None:
    """Show the shape of every tensor as an expression in the input dims, or explain one of them.

    MODEL is a model file, or example:NAME. --write declares the proven shapes in a copy, so that viewers show them.
    """
    from graphkit.analysis.tensor_shapes import tensor_shapes, why_shape
    from graphkit.cli.output import finish_rewrite, load_model, output_destination

    asked, loaded = options.read(), load_model(model)
    if asked.why is not None and (asked.filter or asked.constants):
        raise UsageError("--filter and --constants are for the list of shapes - leave them out beside --why")
    result: Result = (
        tensor_shapes(loaded, asked.spec, filters=asked.filter, constants=asked.constants)
        if asked.why is None
        else why_shape(loaded, asked.why, asked.spec)
    )
    if asked.write is None:
        click.get_current_context().meta[FULL] |= asked.why is not None  # the chain, whose end tells most
        show_result(result, format, is_list=True)
        return
    write, weights = output_destination(asked.write, asked.weights)
    if asked.spec != as_declared():
        hint = "freeze sizes with graphkit fold, which does it too"
        raise UsageError(f"--write declares what holds at all sizes - {hint}")
    from graphkit.passes.shapes.declare_shapes import DeclareShapes

    outcome = DeclareShapes().run(loaded)
    for declined in outcome.declined:
        raise UsageError(f"{loaded.label}: {declined}")
    saved = outcome.model.save(write, weights, overwrite=asked.overwrite)
    changes = "; ".join(outcome.changes) or "everything was declared already"
    print_line(f"Wrote {' and '.join(path.name for path in saved)}: {changes}.", is_error=True)
    finish_rewrite(result, format, f"{write} is")


@click.command(short_help="Write the shape computation as JSON, Python or JavaScript.")
@model_argument
@takes_options(SizeFlags)
@click.option(
    "--language",
    "-l",
    type=choice_type(LANGUAGES),
    help="The language to write. Default: json, or the one that the suffix of --output names.",
)
@output_option("FILE", "Write to a file; .mjs makes an ES module.")
def program(model: str, options: Asked[SizeFlags], language: str | None, output: Path | None) -> None:
    """Write the shape computation of a model, from input shapes to every shape that a node reads.

    MODEL is a model file, or example:NAME.
    """
    from graphkit.cli.output import load_model
    from graphkit.shapes import program as make_program

    spec = options.read().spec
    loaded = load_model(model)
    shape_program = make_program(loaded, spec)
    suffix = output.suffix.lower() if output is not None else ""
    chosen = LANGUAGE_OF.get(f".{language}", language) or LANGUAGE_OF.get(suffix, "json")
    if chosen == "json":
        text = shape_program.to_json()
    else:
        text = shape_program.python() if chosen == "python" else shape_program.javascript(export=suffix == ".mjs")
    put_text(text, output, loaded.files)


@dataclass(frozen=True, kw_only=True)
class CostFlags(SizeFlags):
    """The dims at which to count costs, and the rows to show."""

    by: By = option("layer", "Rows for repeated layers, modules, operators or nodes.", choices=get_args(By))
    top: int | None = option(None, f"Number of rows. Default: {TOP}; all in JSON.")


@click.command(short_help="Count the costs of a model: MACs, bytes, peak memory, by layer.")
@model_argument
@takes_options(CostFlags)
@output_format_option
def costs(model: str, options: Asked[CostFlags], format: str) -> None:
    """Count parameters, multiply-accumulates, other operations, bytes moved and peak memory, by layer.

    MODEL is a model file, or example:NAME. Numbers are at the sizes of --dim and --input, and at typical ones of other
    dims. --range NAME=LO:HI adds the costs at sizes between.
    """
    from graphkit.analysis.model_costs import costs as count_costs
    from graphkit.cli.output import load_model

    asked = options.read()
    top = TOP if asked.top is None and format != Format.json else asked.top
    show_result(count_costs(load_model(model), asked.spec, by=asked.by, top=top), format, is_list=True)


@dataclass(frozen=True, kw_only=True)
class NodeFlags:
    """The nodes to list."""

    filter: tuple[str, ...] = option(
        (),
        "List nodes of such names or outputs only, as '/model/layers.0/*' or 'layers.{0-5}/*'; repeatable.",
        metavar="GLOB",
    )
    op: tuple[str, ...] = option((), "List nodes of this operator only; repeatable.", metavar="OP")
    module: tuple[str, ...] = option(
        (), "List nodes of this module and those inside it only, as model/layers.0; repeatable.", metavar="PATH"
    )
    spec: DimSpec = sizes_option()


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
    from graphkit.cli.output import load_model

    asked = options.read()
    listed = node_list(load_model(model), asked.spec, filters=asked.filter, ops=asked.op, modules=asked.module)
    show_result(listed, format, is_list=True)


@dataclass(frozen=True, kw_only=True)
class WeightFlags:
    """The order of weights."""

    by: WeightOrder = option(
        "file",
        "The order of the rows: as in the file, most bytes first, or by name.",
        choices=("file", "bytes", "name"),
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
    from graphkit.cli.output import load_model

    show_result(weight_list(load_model(model), by=options.read().by), format, is_list=True)


@dataclass(frozen=True, kw_only=True)
class SurveyFlags:
    """Flags of a survey: how each model is read, or which part of a table is shown."""

    jobs: int | None = option(None, "Number of processes. Default: one for each processor.")
    target: tuple[str, ...] = option(
        (), "Count the nodes that keep each model from a target; repeatable.", metavar="NAME"
    )
    after_fold: bool = option(False, "Fold each model, and count the nodes that compute shapes once more.")
    reports: bool = option(False, "Write a page about each model too, which the page of the table leads to.")
    retry: bool = option(False, "Read the models again that were errors in an earlier table.", is_rare=True)
    table: str | None = option(None, "Show a table, the worst first.", name="--show", metavar="TABLE.parquet")
    where: tuple[str, ...] = option(
        (),
        "Show only the models that meet a condition, such as nodes>1000, or have a kind of finding; repeatable.",
        metavar="COND",
    )
    sort: tuple[str, ...] = option((), "Sort by a column, -COLUMN for the largest first; repeatable.", metavar="COL")
    rows: int = option(16, "Number of rows to show; a file has all of them.", is_rare=True)
    scheduler: str | None = option(
        None, "Read the models on the workers of a Dask scheduler.", metavar="tcp://HOST:PORT", is_rare=True
    )
    dask: bool = option(False, "Read them on Dask workers of this machine, --jobs of them.", is_rare=True)
    limits: Limits = option(DEFAULT_LIMITS, *LIMITS)


@click.command(short_help="Make one table of many models, a row each.")
@click.argument("sources", metavar="SOURCE...", nargs=-1, shell_complete=complete("model"))
@click.option(
    "--output", "-o", metavar="FILE", help="The table to write, TABLE.parquet or a URL; with --show the page or report."
)
@takes_options(SurveyFlags)
def survey(sources: Sequence[str], options: Asked[SurveyFlags], output: str | None) -> None:
    """Make one table of many models: a row each, with the facts of its verdict, or its error.

    SOURCE is a folder with all folders in it, a pattern, a model, a URL, a text file of these, or - for such lines on
    standard input. Each model is read in a process of its own, which may crash, here or on the workers of a Dask
    cluster. A survey that was stopped continues; models that have not changed are not read again.
    """
    asked = options.read()
    if asked.table is not None:
        _show_table(asked, asked.table, sources, Path(output) if output else None)
    else:
        from graphkit.fleet.survey import survey_models as run
        from graphkit.fleet.survey_table import kind_lines
        from graphkit.fleet.survey_task import models_of

        if not sources:
            raise UsageError("no models to survey - name a folder, a pattern, or a list of models")
        if output is None or not output.endswith(".parquet"):
            raise UsageError(f"{output or 'the table'}: is no Parquet file - name the table with -o TABLE.parquet")
        if asked.where or asked.sort:
            raise UsageError("--where and --sort are for a table - name one with --show")
        executor = _make_executor(asked)
        models = models_of(sources, sys.stdin or ())
        with progress_on_terminal() as progress:
            totals = run(models, output, executor, _row_options(asked, output), retries=asked.retry, progress=progress)
        kept_text = f", {totals.kept:,} of them from an earlier run" if totals.kept else ""
        models_text, errors_text = count_things(totals.models, "model(s)"), count_things(totals.errors, "error(s)")
        print_line(f"{models_text} in {output}{kept_text}, {errors_text}, {totals.seconds:.1f} s.")
        lines = [*kind_lines(output)]
        for line in lines:
            print_line(line)
        show = f"$ graphkit survey --show {shlex.quote(output)}"
        print_line(show)
        for line in lines[:1]:  # the models that have what is worst
            print_line(f"{show} --where {line.rpartition('(')[2].removesuffix(')')}")


def _make_executor(asked: SurveyFlags) -> Executor:
    from graphkit.fleet.local_pool import LocalPool

    if asked.scheduler is None and not asked.dask:
        return LocalPool(asked.jobs or 0, asked.limits)
    if asked.scheduler is not None and (asked.dask or asked.jobs):
        raise UsageError("--scheduler has workers already - leave out --dask and --jobs, or the scheduler")
    try:
        from graphkit.fleet.dask_pool import DaskPool
    except ImportError as error:
        raise UsageError("--scheduler and --dask need distributed - pip install 'onnx-graphkit[fleet]'") from error
    return DaskPool(asked.scheduler, asked.jobs or 0, asked.limits)


def _row_options(asked: SurveyFlags, table: str) -> RowOptions:
    from graphkit.fleet import storage
    from graphkit.fleet.survey_task import RowOptions
    from graphkit.io.urls import current_options

    remote = current_options()
    seconds = remote.timeout * SERVER_SHARE
    pages = f"{storage.absolute_place(table).removesuffix('.parquet')}.reports" if asked.reports else ""
    return RowOptions(
        targets=asked.target,
        folds=asked.after_fold,
        reports=pages,
        download=remote.download,
        cache=remote.cache,
        timeout=seconds,
    )


def _show_table(asked: SurveyFlags, table: str, sources: Sequence[str], output: Path | None) -> None:
    from graphkit.fleet.survey_table import survey_table

    if sources:
        raise UsageError(f"{sources[0]}: --show shows a table, and reads no models - leave it out, or the option")
    chosen = format_of(None, output)
    if output is not None and chosen not in (Format.text, Format.markdown, Format.json, Format.html, Format.csv):
        raise UsageError(f"{output}: a {chosen.value} file is for `graphkit report` - take another suffix")
    place = str(output.parent) if output else ""
    table_result = survey_table(
        table,
        where=asked.where,
        sort=asked.sort,
        most=None if output else asked.rows,
        folder=place,
        is_narrow=output is None,
    )
    if output is None:
        click.get_current_context().meta[FULL] = True  # as many rows as are asked for
        show_result(table_result, chosen)
        read = survey_table(table, where=[*asked.where, "error="], sort=asked.sort, most=1)
        for worst in read.rows:  # of an error there is no report
            print_line(f"$ graphkit report {shlex.quote(str(worst[0]))}")
    else:
        put_text(render_result(table_result, chosen), output, [Path(table)])
