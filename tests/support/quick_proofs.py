"""Lowerings that the quick suite proves by runs alone, the slow one with normal forms of each stage, too."""

from __future__ import annotations

import os

import pytest
from properties import how_many

from graphkit.deploy.lower import LowerOptions, LowerReport, lower_folder

__all__ = ["lower_by_runs"]


def lower_by_runs(source: str | os.PathLike[str], output: str | os.PathLike[str], options: LowerOptions) -> LowerReport:
    """Lower a folder or model; in the quick suite without the proof of its stages, on which no runs depend."""
    with pytest.MonkeyPatch.context() as patch:
        if not how_many(0, 1):
            patch.setattr("graphkit.deploy.lower.prove_stages", lambda *_, **__: ())
        return lower_folder(source, output, options)
