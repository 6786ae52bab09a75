"""The gallery of passes: a page for each folder of them, with Before and After of each drawn side by side."""

from __future__ import annotations

import inspect
import re
import textwrap
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import onnx
from onnx import parser

from graphkit.passes import FOLDING, FUSING, PASSES
from graphkit.rewrite import Pass
from site_pages.graph_drawing import drawn
from site_pages.markdown import contents, prose, table

__all__ = ["Example", "example", "pages"]

HEADER = '<ir_version: {ir}, opset_import: ["" : {opset}, "local" : 1]>\n'
EXAMPLE = re.compile(
    r"Before(?: \(opset (?P<opset>\d+)\))?:\n\n(?P<before>.*?)\n\n"
    r"\s*After(?: `(?P<call>[^`]*)`)?:\n\n(?P<after>.*?)(?:\n\n|\Z)",
    re.S,
)
INDEX = """# Passes

`graphkit rewrite MODEL -p NAME -o OUT` runs a pass and proves what it makes; `graphkit explain NAME` prints its text.
The examples are run by a test: the pass makes the second graph of the first.

"""


class Example(NamedTuple):
    """The example of a docstring: its texts, the opset of the first, and how the pass is called."""

    before: str
    after: str
    opset: int
    call: str

    def models(self) -> tuple[onnx.ModelProto, onnx.ModelProto]:
        """Return the model before and the one after."""
        header = HEADER.format(opset=self.opset, ir=8 if self.opset < 20 else 11)
        return parser.parse_model(header + self.before), parser.parse_model(header + self.after)


def example(kind: type[Pass]) -> Example:
    """Return the Before and After of the docstring of a pass.

    Raises:
        ValueError: It has none.
    """
    match = EXAMPLE.search(inspect.getdoc(kind) or "")
    if match is None:
        raise ValueError(f"{kind.name()} has no Before and After in its docstring")
    before, after = (textwrap.dedent(match[part]) for part in ("before", "after"))
    return Example(before, after, int(match["opset"] or 17), match["call"] or kind.name())


def pages() -> dict[str, str]:
    """Return a page for each folder of `graphkit/passes`, and the list of all passes."""
    folders = {name: list(kinds) for name, kinds in groupby(sorted(PASSES, key=_folder), key=_folder)}
    index = INDEX + "".join(_list(name, kinds) for name, kinds in folders.items()) + contents(map(_file, folders))
    return {"index.md": index} | {f"{_file(name)}.md": _page(name, kinds) for name, kinds in folders.items()}


def _folder(kind: type[Pass]) -> str:
    return kind.__module__.split(".")[2]


def _file(folder: str) -> str:
    return folder.replace("_", "-")


def _title(folder: str) -> str:
    package = Path(inspect.getfile(PASSES[0])).parents[1] / folder / "__init__.py"
    return package.read_text(encoding="utf-8").strip().strip('"').splitlines()[0]


def _list(folder: str, kinds: list[type[Pass]]) -> str:
    rows = [
        (f"[`{kind.name()}`]({_file(folder)}.md#{kind.name()})", prose(_first(kind)), _run_by(kind)) for kind in kinds
    ]
    return f"## {_heading(folder)}\n\n" + table(("pass", "what it does", "run by"), rows) + "\n"


def _heading(folder: str) -> str:
    return {"npu": "NPU", "state": "state"}.get(folder, folder.replace("_", " ")).capitalize().replace("Npu", "NPU")


def _first(kind: type[Pass]) -> str:
    return (inspect.getdoc(kind) or "").splitlines()[0]


def _run_by(kind: type[Pass]) -> str:
    if kind in FOLDING:
        return "`fold`"
    return "`fold --fuse`" if kind in FUSING else "its name, or a command that needs it"


def _page(folder: str, kinds: list[type[Pass]]) -> str:
    return f"# {_heading(folder)}\n\n{prose(_title(folder))}\n\n" + "\n".join(map(_section, kinds))


def _section(kind: type[Pass]) -> str:
    """Return the docstring of a pass, its example drawn."""
    text = inspect.getdoc(kind) or ""
    match = EXAMPLE.search(text)
    assert match is not None
    shown = example(kind)
    before, after = shown.models()
    call = f"`graphkit rewrite MODEL -p '{shown.call}' -o OUT`"
    return (
        f"## {kind.name()}\n\n{_body(text[: match.start()])}\n\n{call}\n\n"
        f'<div class="before-after">\n<figure><figcaption>Before</figcaption>{drawn(before)}</figure>\n'
        f"<figure><figcaption>After</figcaption>{drawn(after)}</figure>\n</div>\n\n"
        f"```text\n{shown.before.strip()}\n\n{shown.after.strip()}\n```\n\n{_body(text[match.end() :])}\n"
    )


def _body(text: str) -> str:
    """Return paragraphs of a docstring: indented ones are code, a list of attributes is a list of definitions."""
    return "\n\n".join(_block(part) for part in re.split(r"\n{2,}", text.strip("\n")) if part.strip())


def _block(text: str) -> str:
    if text.startswith("    "):
        return f"```text\n{textwrap.dedent(text)}\n```"
    if not text.startswith("Attributes:"):
        return prose(text)
    rows = re.findall(r"^    (\w[\w, ]*): (.*(?:\n {8}.*)*)", text, re.M)
    return "**Options**\n\n" + "\n\n".join(f"`{name}`\n: {prose(' '.join(says.split()))}" for name, says in rows)
