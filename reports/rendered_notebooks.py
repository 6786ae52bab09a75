"""Run a notebook in this process, and render it with its outputs as Markdown."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import matplotlib.pyplot as plt
import nbformat

__all__ = ["FOLDER", "NOTEBOOKS", "Output", "Rendered", "of_kernel", "rendered", "run"]

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
TEMPORARY = re.compile(
    rf"{re.escape(tempfile.gettempdir())}/tmp(?:\w|\\_)+"
)  # what notebooks write into; Markdown escapes _


@dataclass(frozen=True)
class Output:
    """What a cell gave: text, Markdown, or a figure as SVG."""

    kind: Literal["text", "markdown", "figure"]
    text: str


@dataclass
class Rendered:
    """A notebook as Markdown, and its figures by file name."""

    markdown: str
    figures: dict[str, str] = field(default_factory=dict)


def run(path: Path) -> list[list[Output]]:
    """Run a notebook in this process, and return what each of its cells gave."""
    plt.switch_backend("agg")
    names: dict[str, object] = {"__name__": "__main__"}
    cells = nbformat.read(path, as_version=4).cells
    return [list(_run_cell(cell.source, names)) if cell.cell_type == "code" else [] for cell in cells]


def of_kernel(cells: Sequence[Any]) -> list[list[Output]]:
    """Return what the cells of a notebook gave that a kernel ran."""
    return [list(map(_of_kernel, cell.get("outputs", ()))) for cell in cells]


def rendered(path: Path, outputs: Sequence[Sequence[Output]]) -> Rendered:
    """Return a notebook with its outputs as Markdown."""
    made, parts = Rendered(""), [f"<!-- `make reports` makes this of notebooks/{path.name} -->"]
    for cell, given in zip(nbformat.read(path, as_version=4).cells, outputs, strict=True):
        parts.append(cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```")
        for output in given:
            if output.kind == "figure":
                name = f"{path.stem}-{len(made.figures) + 1}.svg"
                made.figures[name] = output.text
                parts.append(f"![A figure]({name})")
            else:
                parts.append(_lower(output.text) if output.kind == "markdown" else f"```text\n{output.text}\n```")
    made.markdown = TEMPORARY.sub("FOLDER", "\n\n".join(parts)) + "\n"
    return made


def _run_cell(source: str, names: dict[str, object]) -> Iterator[Output]:
    """Run a cell, and give what it prints, the figures that it shows and the value of its last expression."""
    *statements, last = ast.parse(source).body
    is_value = isinstance(last, ast.Expr)
    printed, figures = io.StringIO(), list[str]()
    show, plt.show = plt.show, lambda: figures.append(_figure())
    value = None
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(ast.Module(statements if is_value else [*statements, last], []), "a cell", "exec"), names)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "a cell", "eval"), names)
    finally:
        plt.show = show
    yield from (Output("figure", figure) for figure in figures)
    if printed.getvalue():
        yield Output("text", printed.getvalue().rstrip())
    if hasattr(value, "_repr_markdown_"):
        yield Output("markdown", value._repr_markdown_().rstrip())
    elif value is not None:
        yield Output("text", repr(value))


def _figure() -> str:
    """Return the figure as SVG that is the same each time, and close it."""
    file = io.StringIO()
    with plt.rc_context({"svg.hashsalt": "graphkit", "svg.fonttype": "none"}):
        plt.gcf().savefig(file, format="svg", metadata={"Date": None}, bbox_inches="tight")
    plt.close()
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _of_kernel(output: Any) -> Output:
    if output.output_type == "stream":
        return Output("text", output.text.rstrip())
    if "text/markdown" in output.data:
        return Output("markdown", output.data["text/markdown"].rstrip())
    return Output("text", output.data["text/plain"])


def _lower(markdown: str) -> str:
    """Return Markdown whose headings are below those of a notebook."""
    return re.sub(r"^(#+) ", r"##\1 ", markdown, flags=re.M)
