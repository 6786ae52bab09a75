"""The blocks of code on a Markdown page, and how they are run.

A page's blocks run in order, in one folder and one namespace:

- ``console``: each `$ command` prints what follows it, which may have such a line too, as a verdict does. `graphkit`
  runs in this process, as if 80 columns wide; other commands run in a shell. A command that fails, fails the test,
  unless it ends with `; echo $?`. `pip install` and `make` do not run: their extras and targets have to exist.
- ``python`` runs; ``pycon`` is a doctest.
- ``yaml``: its `run:` commands of graphkit run; what it gives this project's action has to be an input of it.
- ``rust``: a Rust compiler takes it, where one is there, beside the modules that the page wrote to a folder `src`.
- ``kotlin``: a Kotlin compiler takes it, where one is there, with the first program in Kotlin that the page wrote.
- ``toml``, and ``text`` that is a graph (`agraph ...`), are parsed.

In an output `...` stands for anything, on a line of its own for any lines. A comment right before a block, which
readers do not see, says what is special about it: `<!-- slow -->` where the slow suite runs it, and
`<!-- not run: REASON -->` where nothing does.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx.parser
import yaml
from asking_programs import compile_kotlin, compile_rust, has_compiler
from markdown_it import MarkdownIt

from graphkit.cli import main
from graphkit.io.toml import tomllib

__all__ = ["ROOT", "Block", "Page", "blocks", "pages"]

ROOT = Path(__file__).parents[2]
CONFIGURED = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
TARGETS = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
COMMENT = re.compile(r"<!-- (slow|not run: (?P<reason>.+?)) -->", re.S)
CODE = "; echo $?"
ELSEWHERE = {"_build", "notebooks", "maintainers"}  # of the last, tests/test_contributing.py runs the examples
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        language: What the block says after its fence, "" for one that says nothing or is indented.
        line: Where it begins in the file, from 1.
        reason: Why it is not run, "" where it is.
    """

    language: str
    text: str
    line: int
    is_slow: bool = False
    reason: str = ""


def pages() -> list[Path]:
    """Return the README, and the pages of the site that `make docs` does not make."""
    folder = ROOT / "docs"
    written = [path for path in folder.rglob("*.md") if not ELSEWHERE & {*path.relative_to(folder).parts[:-1]}]
    return [ROOT / "README.md", *sorted(path for path in written if len(path.relative_to(folder).parts) < 3)]


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a page, with what the comment right before each says."""
    comment = ""
    for token in MarkdownIt("commonmark").parse(text):
        if token.type in ("fence", "code_block") and not token.info.startswith("{toctree}"):
            found = COMMENT.fullmatch(comment)
            reason = (found["reason"] or "") if found else ""
            line = token.map[0] + 1 if token.map else 0
            yield Block(token.info, token.content, line, comment == "<!-- slow -->", reason)
        if token.nesting == 0:
            comment = token.content.strip() if token.type == "html_block" else ""


@dataclass
class Page:
    """What the blocks of a page share: the names of its Python, and the current folder."""

    path: Path
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})

    def run(self, block: Block) -> None:
        """Run a block.

        Raises:
            AssertionError: It prints something else, or is of a kind that nothing runs.
        """
        runner = {
            "console": self._console,
            "python": self._python,
            "pycon": self._pycon,
            "yaml": self._yaml,
            "rust": self._rust,
            "kotlin": self._kotlin,
            "toml": lambda block: tomllib.loads(block.text),
            "text": lambda block: onnx.parser.parse_graph(block.text),
        }.get("" if block.language == "text" and not block.text.startswith("agraph") else block.language)
        assert runner is not None, f"{self._place(block)}: a block of {block.language or 'no language'} cannot be run"
        runner(block)

    def _console(self, block: Block) -> None:
        lines = block.text.replace("\\\n", " ").splitlines()
        while lines:
            line = lines.pop(0)
            assert line.startswith("$ "), f"{self._place(block)}: a console begins with `$ `: {line!r}"
            printed = _printed(line[2:].strip()).strip("\n").splitlines()
            count = next((at for at, line in enumerate(lines) if line[:2] == "$ " and line not in printed), len(lines))
            shown, lines = lines[:count], lines[count:]
            ends = [shown, shown[:-1]] if shown[-1:] == ["..."] else [shown]  # what is left out may be nothing
            checker, got = doctest.OutputChecker(), _text(printed)
            if shown and not any(checker.check_output(_text(end), got, doctest.ELLIPSIS) for end in ends):
                example = doctest.Example(line, _text(shown))
                difference = checker.output_difference(example, got, doctest.REPORT_NDIFF)
                raise AssertionError(f"{self._place(block)}: {line}\n{difference}")

    def _python(self, block: Block) -> None:
        code = compile("\n" * block.line + block.text, str(self.path), "exec")
        with contextlib.redirect_stdout(io.StringIO()):
            exec(code, self.names)

    def _pycon(self, block: Block) -> None:
        test = doctest.DocTestParser().get_doctest(block.text, self.names, self.path.name, str(self.path), block.line)
        said = io.StringIO()
        failed = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.write, clear_globs=False).failed
        self.names.update(test.globs)
        assert not failed, said.getvalue()

    def _yaml(self, block: Block) -> None:
        for step in _steps(yaml.safe_load(block.text)):
            if step.get("uses", "").split("@")[0].endswith("/graphkit"):
                assert set(step.get("with", ())) <= set(ACTION["inputs"]), f"{self._place(block)}: no such input"
            for line in step.get("run", "").splitlines():
                _printed(line)

    def _rust(self, block: Block) -> None:
        if has_compiler("rustc"):
            compile_rust(block.text, next(Path.cwd().rglob("src"), Path.cwd()))

    def _kotlin(self, block: Block) -> None:
        if has_compiler("kotlinc"):
            written = next(Path.cwd().glob("*.kt"))
            Path("Block.kt").write_text(block.text, encoding="utf-8")
            compile_kotlin([written, Path("Block.kt")], Path.cwd())

    def _place(self, block: Block) -> str:
        return f"{self.path.relative_to(ROOT)}:{block.line}"


def _text(lines: Sequence[str]) -> str:
    """Return lines as one text, without spaces at their ends."""
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _steps(part: object) -> Iterator[dict[str, Any]]:
    """Yield the steps of a workflow, or of a part of one."""
    if isinstance(part, dict):
        if "run" in part or "uses" in part:
            yield part
        part = list(part.values())
    for each in part if isinstance(part, list) else ():
        yield from _steps(each)


def _printed(command: str) -> str:
    """Run a command, and return what it prints."""
    if command.startswith(("pip install", "make ")):
        _check_setup(command)
        return ""
    plain = command.removesuffix(CODE)
    words = shlex.split(plain, comments=True)
    if words[0] == "graphkit" and not {"|", ">", "<", "&&"} & {*words}:
        code, text = _graphkit(words)
    else:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            plain,
            shell=True,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PATH": path},
        )
        code, text = done.returncode, done.stdout
    if command != plain:
        return f"{text}{code}\n"
    assert code == 0, f"{command} ended with {code}\n{text}"
    return text


def _graphkit(words: Sequence[str]) -> tuple[int, str]:
    """Run graphkit in this process; return its exit code and what it prints, errors among it."""
    argv, sys.argv = sys.argv, list(words)
    text = io.StringIO()
    try:
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            main()
    except SystemExit as stop:
        return int(stop.code or 0), text.getvalue()
    finally:
        sys.argv = argv
    return 0, text.getvalue()


def _check_setup(command: str) -> None:
    """Check that an extra or a target exists, which setting up an environment would take too long to show."""
    for extras in re.findall(r"(?:graphkit|\.)\[([\w,]+)\]", command):
        assert set(extras.split(",")) <= set(CONFIGURED), f"{command}: no such extra"
    if command.startswith("make "):
        wanted = [word for word in shlex.split(command, comments=True)[1:] if "=" not in word]
        assert set(wanted) <= set(TARGETS), f"{command}: no such target"
