"""Links from what is named between backticks to its page: commands, and passes."""

from __future__ import annotations

import re
from pathlib import Path

from graphkit.cli.commands import every_command
from graphkit.passes import PASSES

__all__ = ["linked", "pages_that_use", "pass_page"]

DOCS = Path(__file__).parents[1]
CODE = re.compile(r"(```.*?```)|(?<!\[)`([^`]+)`(?!\])", re.S)


def linked(text: str) -> str:
    """Return a text in Markdown of a page in a folder of `docs/reference`, its commands and passes as links."""
    return CODE.sub(lambda match: match[0] if match[1] else _link(match[0], match[2].split()), text)


def _link(code: str, words: list[str]) -> str:
    if words[0] == "graphkit" and len(words) > 1 and words[1] in every_command():
        return f"[{code}](../commands/{words[1]}.md)"
    passes = {kind.name(): kind for kind in PASSES}
    if len(words) == 1 and words[0] in passes and words[0] not in every_command():
        return f"[{code}](../passes/{pass_page(passes[words[0]].__module__)}.md#{words[0]})"
    return code


def pass_page(module: str) -> str:
    """Return the name of the page that shows the passes of a module."""
    return module.split(".")[2].replace("_", "-")


def pages_that_use(command: str) -> list[tuple[str, str]]:
    """Return the title of each page in which a command is run, and its address from a folder of `docs/reference`."""
    paths = [*sorted(DOCS.glob("tasks/*.md")), *sorted(DOCS.glob("reference/*.md"))]
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    runs = re.compile(rf"^\$ graphkit {command}\b(?!-)", re.M)
    used = [path for path, text in texts.items() if runs.search(text)]
    return [(texts[path].splitlines()[0].removeprefix("# "), _address(path)) for path in used]


def _address(path: Path) -> str:
    return f"../../{path.relative_to(DOCS).as_posix()}"
