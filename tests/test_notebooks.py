"""The notebooks run, and give what `reports/notebooks` shows: one in a Jupyter kernel, as everybody runs them, the
others in this process, which is faster.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from real_models import params
from rendered_notebooks import FOLDER, NOTEBOOKS, Rendered, of_kernel, rendered, run

RENDERED = FOLDER.parent / "reports" / "notebooks"
IN_KERNEL = FOLDER / "02-split-a-merged-decoder.ipynb"
ANYWHERE = [path.stem for path in NOTEBOOKS if path != IN_KERNEL]
NOISE = re.compile(r"-?\d+\\?\.\d+(e[-+]\d+)?")  # of floating point: the processor decides


def check(path: Path, made: Rendered) -> None:
    """Compare a notebook with what is committed, figures and digits of floating point apart."""
    committed = (RENDERED / f"{path.stem}.md").read_text(encoding="utf-8")
    committed, current = (NOISE.sub("0", text) for text in (committed, made.markdown))
    assert committed == current, f"reports/notebooks/{path.stem}.md is out of date: run `make reports` and look at it"
    assert [name for name in made.figures if not (RENDERED / name).is_file()] == []


@pytest.mark.slow
def test_a_notebook_runs_in_a_kernel(tmp_path: Path) -> None:
    notebook = nbformat.read(IN_KERNEL, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    check(IN_KERNEL, rendered(IN_KERNEL, of_kernel(notebook.cells)))


@pytest.mark.parametrize("name", params(ANYWHERE, slow=[name for name in ANYWHERE if name >= "03"]))
def test_a_notebook_runs_anywhere(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = FOLDER / f"{name}.ipynb"
    check(path, rendered(path, run(path)))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]


def test_every_notebook_is_rendered_and_nothing_else() -> None:
    assert {path.stem for path in RENDERED.glob("*.md")} == {path.stem for path in NOTEBOOKS}
    shown = "".join(path.read_text(encoding="utf-8") for path in RENDERED.glob("*.md"))
    assert [path.name for path in RENDERED.glob("*.svg") if f"({path.name})" not in shown] == []


def test_the_numbers_of_the_notebooks_have_no_gap() -> None:
    assert [int(path.stem[:2]) for path in NOTEBOOKS] == list(range(1, len(NOTEBOOKS) + 1))
