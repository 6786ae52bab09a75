"""The notebooks run: one in a Jupyter kernel, as everybody runs them, the others in this process, which is faster."""

from __future__ import annotations

import ast
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pytest
from nbclient import NotebookClient

from graphkit.render.result import Result

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
IN_KERNEL = FOLDER / "02-split-a-merged-decoder.ipynb"


def test_a_notebook_runs_in_a_kernel() -> None:
    notebook = nbformat.read(IN_KERNEL, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(FOLDER)}}).execute()


def run_cell(source: str, names: dict[str, object]) -> None:
    """Run a cell, and show the value of its last expression."""
    *statements, last = ast.parse(source).body
    if not isinstance(last, ast.Expr):
        exec(compile(source, "a cell", "exec"), names)
        return
    exec(compile(ast.Module(statements, []), "a cell", "exec"), names)
    value = eval(compile(ast.Expression(last.value), "a cell", "eval"), names)
    assert repr(value)
    if isinstance(value, Result):
        assert value._repr_html_()


def draw() -> None:
    """Draw a figure as far as it can be without a screen."""
    plt.gcf().canvas.draw()
    plt.close()


@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if path != IN_KERNEL], ids=lambda path: path.stem)
def test_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    monkeypatch.setattr(plt, "show", draw)
    plt.switch_backend("agg")
    names: dict[str, object] = {"__name__": "__main__"}
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            run_cell(cell.source, names)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_without_outputs(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]
