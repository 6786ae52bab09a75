"""Surveys in this process, which take milliseconds."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from graphkit.fleet.model_row import model_row
from graphkit.fleet.survey import PartWriter, RowParts, Survey, survey_models
from graphkit.fleet.survey_task import RowOptions, SurveyTask, models_of
from graphkit.io.urls import is_url

__all__ = ["Here", "surveyed"]


class Here:
    """An executor that does tasks here, and stops after some."""

    def __init__(self, most: int = 10**6) -> None:
        self.most = most
        self.done: list[str] = []

    def run(self, tasks: Sequence[SurveyTask], parts: RowParts) -> Generator[tuple[int, int], None, None]:
        with PartWriter(parts) as writer:
            for task in tasks:
                if len(self.done) == self.most:
                    raise KeyboardInterrupt
                self.done.append(task.path)
                row = model_row(task)
                writer.add(row)
                yield 1, int("error" in row)


def surveyed(folder: Path, table: str, executor: Here | None = None, **options: Any) -> Survey:
    """Survey the models below a folder."""
    retries = options.pop("retries", False)
    models = models_of([str(folder / "m")], ())
    place = table if is_url(table) else str(folder / table)
    return survey_models(models, place, executor or Here(), RowOptions(**options), retries=retries)
