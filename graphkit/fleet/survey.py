"""The engine of a survey: which models are to be done, their rows from any executor, one table of them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from graphkit.deploy.targets import load_target
from graphkit.fleet.row_store import RowStore
from graphkit.fleet.survey_sources import revision_of
from graphkit.fleet.survey_task import Executor, SurveyTask, columns

__all__ = ["Survey", "survey"]


@dataclass(frozen=True)
class Survey:
    """The counts of a survey.

    Attributes:
        models: Rows of the table.
        kept: Those of an earlier run, whose models are the same.
        errors: Those of models that could not be read or analysed.
        seconds: The time that it took.
    """

    models: int
    kept: int
    errors: int
    seconds: float


def survey(
    models: Sequence[str],
    table: Path,
    executor: Executor,
    *,
    targets: Sequence[str] = (),
    folds: bool = False,
    retries: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Survey:
    """Write a table with a row for each model; models that an earlier run has done are not done again.

    Args:
        models: Paths or URLs, each once.
        table: The Parquet file.
        executor: The machines that the models are read on.
        targets: Targets to count blockers for.
        folds: Whether to count the nodes that compute shapes after a fold too.
        retries: Whether to do those again that were errors in an earlier table.
        progress: Called with how far it is.

    Returns:
        How many models there are, and how many of them are errors.

    Raises:
        UsageError, OutputError: See `RowStore`.
    """
    start = time.monotonic()
    facts = "".join(f"{name} {_digest(name)} " for name in targets) + ("folded" if folds else "")
    with RowStore(table, columns(targets), facts) as store:
        revisions = {model: revision_of(model) for model in models}
        done = store.done(revisions, retries=retries)
        errors = sum(done.values())
        waiting = (SurveyTask(model, revisions[model], tuple(targets), folds) for model in models if model not in done)
        for count, row in enumerate(executor.rows(waiting), 1):
            store.add(row)
            errors += row.get("error") is not None
            progress(_how_far(count, len(models) - len(done), errors, time.monotonic() - start))
        store.finish(revisions)
    return Survey(len(models), len(done), errors, time.monotonic() - start)


def _digest(target: str) -> str:
    return hashlib.sha256(repr(load_target(target)).encode()).hexdigest()


def _how_far(count: int, total: int, errors: int, seconds: float) -> str:
    rate = count / max(seconds, 1e-9)
    left = round((total - count) / rate)
    return f"{count:,} of {total:,} models, {rate:.1f} a second, {left // 60}:{left % 60:02} left, {errors:,} errors"
