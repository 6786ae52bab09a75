"""Addresses of nodes on the page of a report, so that lines of a log lead there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath
from urllib.parse import quote

from graphkit.analysis.report import Comparison, Report
from graphkit.graph.view import all_nodes, all_scopes
from graphkit.model import Model

__all__ = ["page_address"]

QUOTED = re.compile(r"'([^'\n]{1,400})'")
UNQUOTED = "!~*'()"  # by encodeURIComponent, with which `render/page/elements.mjs` makes addresses


def page_address(page: PurePath, result: Report | Comparison, text: str) -> str:
    """Return the address of the first node or value that a text names, "" if it names none of a model.

    Example:
        >>> report = graphkit.report("example:merged-decoder")
        >>> page_address(PurePath("page.html"), report, "'optimum::if' has two branches")
        'page.html#node=optimum%3A%3Aif'
    """
    reports = list(enumerate(result.reports))
    reports.sort(key=lambda each: not text.startswith(f"{each[1].model}: "))
    for name in QUOTED.findall(text):
        for number, report in reports:
            if report.source is not None and (kind := _kind_of_name(report.source, name)):
                model = f"model={number}&" if number else ""
                return f"{page}#{model}{kind}={quote(name, safe=UNQUOTED)}"
    return ""


def _kind_of_name(model: Model, name: str) -> str:
    """Return whether a name is that of a node or of a value, "" for any other name."""
    if any(node.path == name for node in all_nodes(model.scopes)):
        return "node"
    return "value" if name in _value_names(model) else ""


def _value_names(model: Model) -> Iterator[str]:
    for scope in all_scopes(model.scopes):
        for value in scope.values.values():
            yield from (value.name, f"{scope.path}::{value.name}")
