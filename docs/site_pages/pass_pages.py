"""The gallery of passes: a page for each folder of them, with Before and After of each drawn side by side."""

from __future__ import annotations

import inspect
import re
import textwrap
from importlib import import_module
from itertools import groupby
from typing import NamedTuple

import onnx
from onnx import parser

from graphkit.passes import FOLDING, FUSING, PASSES
from graphkit.rewrite import Pass
from site_pages.graph_drawing import drawn
from site_pages.links import linked
from site_pages.markdown import contents, prose, table

__all__ = ["Example", "example", "pages"]

HEADER = '<ir_version: {ir}, opset_import: ["" : {opset}, "local" : 1]>\n'
EXAMPLE = re.compile(
    r"Before(?: \(opset (?P<opset>\d+)\))?:\n\n(?P<before>.*?)\n\n"
    r"\s*After(?: `(?P<call>[^`]*)`)?:\n\n(?P<after>.*?)(?:\n\n|\Z)",
    re.S,
)
ATTRIBUTES = re.compile(r"^Attributes:\n(?: {4}.*\n?)+", re.M)
INDEX = """# Passes

A pass is one rewrite of a graph. `graphkit rewrite MODEL -p NAME -o OUT` runs it, and proves the result.
`graphkit explain NAME` prints its description. Legality is the list of conditions without which a pass leaves a place
as it is. A test runs all examples: the pass makes the graph After of the graph Before.

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
    return (import_module(f"graphkit.passes.{folder}").__doc__ or "").splitlines()[0]


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
        return "[`fold`](../commands/fold.md)"
    if kind in FUSING:
        return "[`fold --fuse`](../commands/fold.md)"
    return "[`rewrite`](../commands/rewrite.md), or a command that needs it"


def _page(folder: str, kinds: list[type[Pass]]) -> str:
    return f"# {_heading(folder)}\n\n{prose(_title(folder))}\n\n" + "\n".join(map(_section, kinds))


def _section(kind: type[Pass]) -> str:
    """Return the docstring of a pass, its example drawn."""
    text = inspect.getdoc(kind) or ""
    match = EXAMPLE.search(text)
    assert match is not None
    shown = example(kind)
    before, after = shown.models()
    call = f"```console\n$ graphkit rewrite MODEL -p '{shown.call}' -o OUT\n```"
    says, options = _options(f"{text[: match.start()]}\n\n{text[match.end() :]}")
    return (
        f"## {kind.name()}\n\n{_body(says)}\n\n{call}\n\n"
        f'<div class="before-after">\n<figure><figcaption>Before</figcaption>{drawn(before)}</figure>\n'
        f"<figure><figcaption>After</figcaption>{drawn(after)}</figure>\n</div>\n\n"
        f"Before:\n\n```text\n{shown.before.strip()}\n```\n\nAfter:\n\n```text\n{shown.after.strip()}\n```\n\n{options}\n"
    )


def _options(text: str) -> tuple[str, str]:
    """Return a docstring without its list of attributes, and that as a list of definitions."""
    match = ATTRIBUTES.search(text)
    if match is None:
        return text, ""
    rows = re.findall(r"^    (\w[\w, ]*): (.*(?:\n {8}.*)*)", match[0], re.M)
    options = "\n\n".join(f"`{name}`\n: {prose(' '.join(says.split()))}" for name, says in rows)
    return text.replace(match[0], ""), f"**Options**\n\n{options}\n"


def _body(text: str) -> str:
    """Return paragraphs of a docstring: indented ones are code."""
    return "\n\n".join(_block(part) for part in re.split(r"\n{2,}", text.strip("\n")) if part.strip())


def _block(text: str) -> str:
    if text.startswith("    "):
        return f"```text\n{textwrap.dedent(text)}\n```"
    return linked(prose(text))
