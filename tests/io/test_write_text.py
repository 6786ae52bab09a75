from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest

from graphkit.errors import OutputError
from graphkit.io.transaction import write_text


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"weights")
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_writes_utf8_with_plain_line_ends(tmp_path: Path) -> None:
    write_text(tmp_path / "report.md", "é\n→\n")
    assert (tmp_path / "report.md").read_bytes() == "é\n→\n".encode()
    assert names(tmp_path) == ["report.md"]


def test_writes_what_utf8_cannot_hold_as_an_escape(tmp_path: Path) -> None:
    write_text(tmp_path / "report.md", "a\udcffb")
    assert (tmp_path / "report.md").read_bytes() == rb"a\udcffb"


def test_replaces_an_earlier_file(tmp_path: Path, model: Path) -> None:
    (tmp_path / "report.md").write_text("old and longer")
    write_text(tmp_path / "report.md", "new", [model, tmp_path / "missing"])
    assert (tmp_path / "report.md").read_text() == "new"
    assert names(tmp_path) == ["model.onnx", "report.md"]


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_mode_is_that_of_a_new_file(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    write_text(tmp_path / "report.md", "new")
    assert (tmp_path / "report.md").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_text(Path("report.md"), "new")
    assert (tmp_path / "report.md").read_text() == "new"


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/report.md")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "report.md").read_text() == "new"


@pytest.mark.parametrize("failing", ["mkdir", "open", "replace"])
def test_a_failure_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "report.md"
    path.write_text("old")
    monkeypatch.setattr(Path, failing, fail)
    with pytest.raises(OutputError) as caught:
        write_text(path, "new")
    monkeypatch.undo()
    assert str(caught.value) == f"{path}: cannot be written: No space left on device - check the folder"
    assert path.read_text() == "old"
    assert names(tmp_path) == ["report.md"]


@pytest.mark.parametrize("interrupted", ["mkdir", "open", "replace"])
def test_an_interruption_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: str
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, interrupted, interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_text(tmp_path / "report.md", "new")
    assert names(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = os.fork()
    if not child:
        monkeypatch.setattr(Path, "replace", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        write_text(tmp_path / "report[1].md", "x" * 100_000)
        os._exit(0)
    os.waitpid(child, 0)
    assert len(names(tmp_path)) == 1
    write_text(tmp_path / "report.md", "of another name")
    assert len(names(tmp_path)) == 2
    write_text(tmp_path / "report[1].md", "new")
    assert names(tmp_path) == ["report.md", "report[1].md"]


@pytest.mark.parametrize("way", ["path", "dots", "symbolic link", "hard link"])
def test_refuses_an_input(tmp_path: Path, model: Path, way: str) -> None:
    output = tmp_path / "output.md"
    if way == "path":
        output = model
    elif way == "dots":
        output = tmp_path / ".." / tmp_path.name / "model.onnx"
    elif way == "symbolic link":
        output.symlink_to(model)
    else:
        output.hardlink_to(model)
    with pytest.raises(OutputError) as caught:
        write_text(output, "report", [tmp_path / "other.onnx", model])
    assert str(caught.value) == f"{output}: is an input, which is never overwritten - name another output"
    assert model.read_bytes() == b"weights"


def test_refuses_the_file_that_an_input_links_to(tmp_path: Path, model: Path) -> None:
    (tmp_path / "link.onnx").symlink_to(model)
    with pytest.raises(OutputError, match="is an input, which is never overwritten"):
        write_text(model, "report", [tmp_path / "link.onnx"])


def test_refuses_a_folder(tmp_path: Path) -> None:
    with pytest.raises(OutputError) as caught:
        write_text(tmp_path, "report")
    assert str(caught.value) == f"{tmp_path}: is a folder - name a file in it"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_refuses_what_is_not_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputError, match="pipe: is not a regular file - name one, or leave the output out to print"):
        write_text(tmp_path / "pipe", "report")
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("missing/report.md", "No such file or directory"),
        ("model.onnx/report.md", "Not a directory"),
        ("n" * 300, "File name too long"),
    ],
)
def test_refuses_a_place_that_is_none(tmp_path: Path, model: Path, output: str, reason: str) -> None:
    path = tmp_path / output
    with pytest.raises(OutputError) as caught:
        write_text(path, "report", [model])
    assert str(caught.value) == f"{path}: cannot be written: {reason} - check the folder"
    assert names(tmp_path) == ["model.onnx"]
