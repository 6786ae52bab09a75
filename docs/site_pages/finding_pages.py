"""A page for each kind of finding, that of `graphkit explain`, and the list of them."""

from __future__ import annotations

import re

from graphkit.analysis.findings import KIND_NAMES, KINDS, Kind, finding_page
from site_pages.links import linked
from site_pages.markdown import contents, table

__all__ = ["pages"]

THREAD = re.compile(r"\b([\w.-]+/[\w.-]+)#(\d+)")
INDEX = """# Findings

Each finding of a report has a kind. The worst kinds come first in this list, and in a verdict. The page of a kind says
what it is, why it hurts, where it was seen, and what to do. `graphkit explain KIND` prints the same page, and SARIF
contains it. `--fail-on KIND,...` fails a build that has such findings, and `--strict` one that has any fault. How to
set that up is in [a gate for CI](../../tasks/ci-gate.md).

"""


def pages() -> dict[str, str]:
    """Return the page of each kind, and the list of them."""
    rows = [
        (f"[`{kind.name}`]({kind.name}.md)", kind.says, f"`{kind.section}`", "fault" if kind.is_fault else "note")
        for kind in KINDS
    ]
    index = INDEX + table(("kind", "in a verdict", "section", "fault or note"), rows) + contents(KIND_NAMES)
    return {"index.md": index} | {f"{kind.name}.md": _page(kind) for kind in KINDS}


def _page(kind: Kind) -> str:
    """Return a page, its threads as links."""
    text = linked(THREAD.sub(r"[\1#\2](https://github.com/\1/issues/\2)", finding_page(kind.name)))
    gate = "fault: `--strict` fails on it" if kind.is_fault else f"note: `--fail-on {kind.name}` fails on it"
    shown = linked(f"`graphkit report MODEL --only {kind.section}`")
    return f"{text}\n## In a report\n\n{shown} shows where it is. It is a {gate}.\n"
