"""README, site and notebooks have no sentences of more than 30 words, outside of the cells of tables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
MOST = 30  # words; code between backticks is one, and so is an arrow of code
FOLDERS = (
    "graphkit/analysis/finding_pages",
    "docs",
    "docs/start-here",
    "docs/tasks",
    "docs/explanations",
    "docs/maintainers",
    "docs/reference",
)
PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md"]
PAGES += [f"{folder}/{path.name}" for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.md"))]
WORD = re.compile(r"\w[\w'.,-]*")
SHOWN = {"code_inline": "code", "softbreak": " ", "hardbreak": " "}


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a page, each with the line that its paragraph begins at."""
    in_cell = False
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type in ("th_open", "td_open", "th_close", "td_close"):
            in_cell = token.nesting == 1
        if token.type == "inline" and not in_cell and token.map is not None:
            parts = token.children or []
            words = "".join(SHOWN.get(part.type, part.content if part.type == "text" else "") for part in parts)
            for sentence in re.split(r"(?<=[.!?])\s+", words):
                yield token.map[0] + 1, re.sub(r"code( → code)+", "code", sentence)


def too_long(text: str) -> list[str]:
    return [f"{line}: {said}" for line, said in sentences(text) if len(WORD.findall(said)) > MOST]


@pytest.mark.parametrize("name", PAGES)
def test_no_sentence_of_a_page_is_too_long(name: str) -> None:
    assert too_long((ROOT / name).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_no_sentence_of_a_notebook_is_too_long(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    assert texts
    assert [said for text in texts for said in too_long(text)] == []


@pytest.mark.parametrize("text", ["{}", "- {}\n", "A short one. {} Another."])
def test_a_long_sentence_is_found(text: str) -> None:
    assert too_long(text.format("word " * 30 + "word.")) != []
    assert too_long(text.format("word " * 29 + "word.")) == []


def test_a_cell_of_a_table_is_no_sentence() -> None:
    assert too_long(f"| a |\n|---|\n| {'word ' * 40} |\n") == []
