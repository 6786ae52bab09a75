"""A page for each JSON Schema: of what commands write, of `contract.json` and `bundle.json`."""

from __future__ import annotations

import re

from graphkit.workflows.output_schemas import SCHEMAS, schema_of, schema_text
from site_pages.markdown import contents, prose, table

__all__ = ["pages"]

PAGE = re.compile(r"docs/reference/(\w+)\.md")
CLASS = re.compile(r"(graphkit\.contract)\.(\w+)\b")
INDEX = """# JSON schemas

Each command with `--format json` writes a document that names its schema, such as `"schema": "report/1"`.
`graphkit schema NAME` prints the schema; these pages show the same text.

"""


def pages() -> dict[str, str]:
    """Return the page of each schema, and the list of them."""
    rows = [(f"[`{name}`]({name}.md)", _about(name)) for name in SCHEMAS]
    made = {"index.md": INDEX + table(("schema", "what it describes"), rows) + contents(SCHEMAS)}
    return made | {f"{name}.md": _page(name) for name in SCHEMAS}


def _about(name: str) -> str:
    """Return what a schema describes, with links to the pages that it names."""
    text = prose(str(schema_of(name).get("description", "")))
    text = PAGE.sub(r"[\1](../\1.md)", text)
    return CLASS.sub(lambda match: f"[`{match[0]}`](../python/{match[1]}.md#{match[2].lower()})", text)


def _page(name: str) -> str:
    return f"# {name}\n\n{_about(name)}\n\n```json\n{schema_text(name)}```\n"
