"""The pages of the site that are made from the code and from notebooks, so that each fact has one source."""

from __future__ import annotations

from collections.abc import Callable

from site_pages import (
    command_pages,
    finding_pages,
    judge_pages,
    notebook_pages,
    pass_pages,
    python_pages,
    schema_pages,
    target_pages,
)

__all__ = ["GENERATED"]

# A folder of `docs`, and what makes its pages: their names and their text.
GENERATED: dict[str, Callable[[], dict[str, str]]] = {
    "reference/commands": command_pages.pages,
    "reference/python": python_pages.pages,
    "reference/passes": pass_pages.pages,
    "reference/findings": finding_pages.pages,
    "reference/targets": target_pages.pages,
    "reference/judges": judge_pages.pages,
    "reference/schemas": schema_pages.pages,
    "notebooks": notebook_pages.pages,
}
