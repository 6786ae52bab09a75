"""The engine of a survey: which models are to be done, their rows from any executor, one table of them."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from graphkit.fleet import storage
from graphkit.fleet.row_store import RowParts, RowStore
from graphkit.fleet.survey_task import RowOptions, SurveyTask, row_name, table_columns

DEFAULT = RowOptions()


class Executor(Protocol):
    """The machines that tasks run on."""

    def run(self, tasks: Sequence[SurveyTask], parts: RowParts) -> Generator[tuple[int, int], None, None]:
        """Do tasks in any order, and put their rows into parts.

        No model makes it raise.

        Yields:
            How many more are done, and how many of them are errors.

        Raises:
            GraphkitError: Machines are lost, or cannot write rows; what is done is kept.
        """


@dataclass(frozen=True)
class Survey:
    """The counts of a survey."""

    models: int  # rows of the table
    kept: int  # those of an earlier run, whose models are the same
    errors: int  # those of models that could not be read or analysed
    seconds: float  # the time that it took


def survey_models(
    models: Mapping[str, str],
    table: str,
    executor: Executor,
    options: RowOptions = DEFAULT,
    *,
    retries: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Survey:
    """Write a table with a row for each model; models that an earlier run has done are not done again.

    Args:
        models: Paths or URLs, each with a text that changes with the file, "" where that is unknown.
        table: The path or URL of the Parquet file.
        executor: The machines that the models are read on.
        options: How rows are made.
        retries: Whether to do those again that were errors in an earlier table.
        progress: Called with how far it is.

    Raises:
        UsageError, OutputError: See `RowStore`.
        GraphkitError: See `Executor`.
    """
    start = time.monotonic()
    facts = ""
    for name in options.targets:
        from graphkit.targets import load_target  # which a survey without targets need not wait for

        facts += f"{name} {hashlib.sha256(repr(load_target(name)).encode()).hexdigest()} "
    facts += ("folded " if options.folds else "") + ("reports" if options.reports else "")
    with RowStore(table, table_columns(options.targets), facts) as store:
        if options.reports:
            with storage.output_errors(storage.shown_place(options.reports), "name another table"):
                storage.make_folder(options.reports)
        revisions = {row_name(model): revision for model, revision in models.items()}
        kept = store.done(revisions, options.reports, retries=retries)
        tasks = [SurveyTask(path, revision, options) for path, revision in models.items() if row_name(path) not in kept]
        done, errors = 0, sum(kept.values())
        with contextlib.closing(executor.run(tasks, store.parts)) as counts:
            for more, broken in counts:
                done, errors = done + more, errors + broken
                rate = done / max(time.monotonic() - start, 1e-9)
                minutes, seconds = divmod(round((len(tasks) - done) / rate), 60)
                left = f"{minutes}:{seconds:02} left, {errors:,} errors"
                progress(f"{done:,} of {len(tasks):,} models, {rate:.1f} a second, {left}")
        store.finish(revisions)
    return Survey(len(revisions), len(kept), errors, time.monotonic() - start)
