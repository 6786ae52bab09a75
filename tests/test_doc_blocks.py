"""Every block of code in the pages of the site runs, and prints what is shown."""

from __future__ import annotations

from pathlib import Path
from shutil import which

import pytest
from doc_blocks import ROOT, Block, Page, blocks, pages

NOT_RUN = 12  # blocks that are not run, each with its reason: fewer are better
PAGES = {path.relative_to(ROOT).as_posix(): [*blocks(path.read_text(encoding="utf-8"))] for path in pages()}
SLOW = [name for name, found in PAGES.items() if any(block.is_slow for block in found)]
QUICK = [name for name, found in PAGES.items() if any(not block.is_slow and not block.reason for block in found)]
QUICK = [name for name in QUICK if name not in SLOW[3:]]


def run_page(name: str, found: list[Block]) -> None:
    page = Page(ROOT / name)
    for block in found:
        if not block.reason:
            page.run(block)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.cases(10)
@pytest.mark.parametrize("name", QUICK)
def test_quick_blocks_of_a_page_run_and_print_what_is_shown(name: str) -> None:
    run_page(name, [block for block in PAGES[name] if not block.is_slow])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_all_blocks_of_a_page_run_and_print_what_is_shown(name: str) -> None:
    run_page(name, PAGES[name])


def test_few_blocks_are_not_run() -> None:
    reasons = [
        f"{name}:{block.line}: {block.reason}" for name, found in PAGES.items() for block in found if block.reason
    ]
    assert len(reasons) <= NOT_RUN, "\n".join(reasons)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def page_of(language: str, text: str) -> tuple[Page, Block]:
    (block,) = blocks(f"```{language}\n{text}\n```\n")
    return Page(ROOT / "README.md"), block


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("console", "$ graphkit examples\nnothing of this kind"),
        ("console", "$ graphkit report no-such-file.onnx"),
        ("console", "$ graphkit examples; echo $?\n...\n1"),
        ("console", "$ false"),
        ("console", "$ echo one\ntwo"),
        ("console", "an output alone"),
        ("console", "$ pip install 'onnx-graphkit[nothing]'"),
        ("console", "$ make nothing"),
        ("python", "assert 1 == 2"),
        ("pycon", ">>> 1 + 1\n3"),
        ("yaml", "- run: graphkit report no-such-file.onnx"),
        ("yaml", "- uses: OWNER/graphkit@main\n  with: {nothing: 1}"),
        pytest.param("rust", "fn main() { nothing }", marks=pytest.mark.skipif(not which("rustc"), reason="no rustc")),
        ("text", "an output alone"),
        ("", "a block of no language"),
    ],
)
def test_a_block_that_shows_what_is_not_so_fails(language: str, text: str) -> None:
    page, block = page_of(language, text)
    with pytest.raises(AssertionError):
        page.run(block)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("console", "$ graphkit examples\nexample:merged-decoder ...\n..."),
        ("console", "$ graphkit report nothing.onnx; echo $?\nError: ...\n2"),
        ("console", "$ echo one \\\n    two\none two\n$ echo three"),
        ("console", "$ pip install 'onnx-graphkit[remote]'\n$ make report MODEL=model.onnx  # on yours"),
        ("pycon", ">>> import graphkit\n>>> graphkit.load('example:encoder').name\n'encoder.onnx'"),
        ("yaml", "- uses: OWNER/graphkit@main\n  with: {models: models}\n- run: graphkit examples"),
        ("text", "agraph (float[N] x) => (float[N] y) { y = Neg (x) }"),
        ("toml", "a = 1"),
    ],
)
def test_a_block_that_shows_what_is_so_passes(language: str, text: str) -> None:
    page, block = page_of(language, text)
    page.run(block)


def test_a_comment_belongs_to_the_block_right_behind_it() -> None:
    text = "<!-- slow -->\n\n```python\na\n```\n\n<!-- not run: why -->\n\nText.\n\n```python\nb\n```\n\n    indented\n"
    assert [(block.language, block.is_slow, block.reason) for block in blocks(text)] == [
        ("python", True, ""),
        ("python", False, ""),
        ("", False, ""),
    ]
