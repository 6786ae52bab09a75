"""A page for each kind of finding, that of `graphkit explain`, and the list of them."""

from __future__ import annotations

import re

from graphkit.analysis.finding_pages import finding_page
from graphkit.analysis.findings import KIND_NAMES, KINDS, Kind
from site_pages.markdown import contents, table

__all__ = ["pages"]

THREAD = re.compile(r"\b([\w.-]+/[\w.-]+)#(\d+)")
INDEX = """# Findings

What a report finds wrong has a kind. The worst come first in this list, and in a verdict. The page of a kind says what
it is, why it hurts, where it was seen, and what to do. `graphkit explain KIND` prints the same page; SARIF carries it.
`--fail-on KIND,...` fails a build on it; `--strict` fails on all kinds that are faults.

"""


def pages() -> dict[str, str]:
    """Return the page of each kind, and the list of them."""
    rows = [
        (f"[`{kind.name}`]({kind.name}.md)", kind.says, f"`{kind.section}`", "yes" if kind.is_fault else "no, a note")
        for kind in KINDS
    ]
    index = INDEX + table(("kind", "in a verdict", "section", "a fault"), rows) + contents(KIND_NAMES)
    return {"index.md": index} | {f"{kind.name}.md": _page(kind) for kind in KINDS}


def _page(kind: Kind) -> str:
    """Return a page, its threads as links."""
    text = THREAD.sub(r"[\1#\2](https://github.com/\1/issues/\2)", finding_page(kind.name))
    is_fault = "It is a fault" if kind.is_fault else "It is a note"
    return f"{text}\n{is_fault}, shown in the section `{kind.section}` of a report.\n"
