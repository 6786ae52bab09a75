"""The command for many models: survey."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphkit.cli.flags import FULL, Asked, Format, complete, format_of, takes_options
from graphkit.cli.output import print_line, progress_on_terminal, put_text, render_result, show_result
from graphkit.errors import UsageError, count_things
from graphkit.options import LIMITS, option
from graphkit.progress import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from graphkit.fleet.survey import Executor
    from graphkit.fleet.survey_task import RowOptions

SERVER_SHARE = 0.9  # of the time of a model, after which a slow server is the error


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
        _run_survey(asked, sources, output)


def _run_survey(asked: SurveyFlags, sources: Sequence[str], output: str | None) -> None:
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
