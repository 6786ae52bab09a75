"""Output that nobody takes, and signals: one clear line, an exit code, and nothing half written."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from graphkit.cli.output import make_tolerant
from graphkit.progress import STOPPING

EXAMPLE = "example:merged-decoder"
REPORT, PROGRAM, EXPLAIN, HELP = (
    ("report", EXAMPLE, "--only", "interface"),
    ("program", EXAMPLE),
    ("explain",),
    ("--help",),
)


def commands(*quick: tuple[str, ...]) -> list[object]:
    """Return commands as parameters of a test, those slow that are not among these."""
    return [
        pytest.param(command, id=" ".join(command), marks=[] if command in quick else pytest.mark.slow)
        for command in (REPORT, PROGRAM, EXPLAIN, HELP)
    ]


def started(*arguments: object, stdout: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "graphkit", *map(str, arguments)]
    return subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE)


@pytest.mark.cases("--help")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device here")
@pytest.mark.parametrize("arguments", commands(REPORT, HELP))
def test_a_full_disk_is_one_line(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        process = started(*arguments, stdout=full.fileno())
        _, errors = process.communicate()
    assert process.returncode == 2
    assert errors.decode() == ("Error: the output cannot be written: No space left on device - check where it goes\n")


@pytest.mark.cases("--help")
@pytest.mark.skipif(os.name != "posix", reason="pipes are those of POSIX")
@pytest.mark.parametrize("arguments", commands(PROGRAM, HELP))
def test_a_reader_that_is_gone_ends_it_quietly(arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = started(*arguments, stdout=writing)
    os.close(writing)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (141, b"")


@pytest.mark.skipif(os.name != "posix", reason="the shell is that of POSIX")
def test_a_closed_output_is_no_defect() -> None:
    ran = subprocess.run(
        ["sh", "-c", f"'{sys.executable}' -m graphkit explain >&-"], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")


# the command line, to which a signal comes while it writes the data file
STOPPED = """
import os, signal, sys
import graphkit.save
from graphkit.cli import main
copy, first = graphkit.save._copy_piece, getattr(signal, sys.argv[1])
def stop(*arguments):
    result = copy(*arguments)
    os.kill(os.getpid(), first)
    os.kill(os.getpid(), signal.SIGTERM)  # an impatient user
    return result
graphkit.save._copy_piece = stop
sys.argv[:] = ["graphkit", *sys.argv[2:]]
main()
"""


@pytest.mark.cases("fold-SIGINT-130")
@pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX")
@pytest.mark.parametrize(("command", "name", "code"), [("fold", "SIGINT", 130), ("split-merged", "SIGTERM", 143)])
def test_a_signal_leaves_nothing_behind(command: str, name: str, code: int, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    output = folder if command == "split-merged" else tmp_path / "out.onnx"
    arguments = [sys.executable, "-c", STOPPED, name, command, EXAMPLE, "-o", str(output)]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (code, "")
    assert ran.stderr == f"Error: stopped by {name} - no file is left half written\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "latin-1"])
def test_a_stream_of_another_encoding_gets_lines_in_ascii(encoding: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    make_tolerant(stream)
    stream.write("Size\n────\n██ 漢\n")
    stream.flush()
    assert cast(io.BytesIO, stream.buffer).getvalue() == b"Size\n----\n## \\u6f22\n"


def test_standard_output_is_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphkit.cli import main

    handlers, stream = {number: signal.getsignal(number) for number in STOPPING}, sys.stdout
    monkeypatch.setattr(sys, "argv", ["graphkit", "--version"])
    try:
        with pytest.raises(SystemExit):
            main()
        assert sys.stdout is stream
    finally:  # for `main` handles signals until its process ends
        for number, handler in handlers.items():
            signal.signal(number, handler)
