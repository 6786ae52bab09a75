"""Models on standard input and output."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import graphkit.io.byte_source
import graphkit.workflows.fold_file
from graphkit.cli import main
from graphkit.model import Model, load
from graphkit.rewrite.base import Outcome

EXAMPLE = Path(graphkit.__file__).parent / "examples" / "causal-attention.onnx"


class Ran(NamedTuple):
    code: object
    out: bytes
    err: str


Run = Callable[..., Ran]


class Terminal(io.TextIOWrapper):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def piped(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the command line in this process, with bytes on standard input; nothing is left of what waited on disk."""
    waiting = tmp_path / "waiting"
    waiting.mkdir()
    monkeypatch.setattr(graphkit.io.byte_source.tempfile, "tempdir", str(waiting))

    def call(given: bytes, *arguments: object, kind: type[io.TextIOWrapper] = io.TextIOWrapper) -> Ran:
        monkeypatch.setattr(sys, "argv", ["graphkit", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", kind(io.BytesIO(given)))
        with pytest.raises(SystemExit) as stop:
            main()
        assert not list(waiting.iterdir())
        out, err = capsysbinary.readouterr()
        return Ran(stop.value.code, out, err.decode())

    return call


def test_a_model_goes_through_two_commands(piped: Run) -> None:
    folded = piped(EXAMPLE.read_bytes(), "fold", "-", "-o", "-")
    assert folded.code == 0
    assert "Wrote standard output, with" in folded.err
    proto = onnx.load_model_from_string(folded.out)
    assert not any(tensor.external_data for tensor in proto.graph.initializer)
    report = piped(folded.out, "report", "-", "--only", "summary")
    assert (report.code, report.err) == (0, "")
    assert report.out.decode().startswith("standard input\n")


@pytest.mark.parametrize("command", [("shapes", "-"), ("program", "-"), ("verify", "-", EXAMPLE, "--runs", "1")])
def test_what_reads_a_model_reads_standard_input(piped: Run, command: tuple[object, ...]) -> None:
    ran = piped(EXAMPLE.read_bytes(), *command)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out


def test_an_edit_reads_and_writes_pipes(piped: Run) -> None:
    ran = piped(EXAMPLE.read_bytes(), "extract", "-", "--to", "logits", "--from", "/norm/LayerNormalization", "-o", "-")
    assert ran.code == 0
    assert [node.op_type for node in onnx.load_model_from_string(ran.out).graph.node] == [
        "LayerNormalization",
        "MatMul",
    ]


def test_nothing_is_written_where_the_proof_fails(piped: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(model: Model, *_: object, **__: object) -> Outcome:
        proto = model.restore()
        proto.graph.node[-1].input[0] = proto.graph.node[-1].input[1]
        proto.graph.node[-1].op_type = "Sub"
        return Outcome(Model.from_proto(proto))

    monkeypatch.setattr(graphkit.workflows.fold_file, "fold", wrong)
    ran = piped(b"", "fold", EXAMPLE, "-o", "-")
    assert (ran.code, ran.out) == (1, b"")
    assert ran.err.endswith("The proof failed. Nothing is written to standard output.\n")


@pytest.mark.parametrize(
    ("given", "command", "error"),
    [
        (b"", ("report", "-"), "standard input: is empty - fetch or export it again"),
        (
            b"PK\x03\x04....",
            ("shapes", "-"),
            "standard input: is a zip archive (a PyTorch checkpoint?), not an ONNX model - unpack it, or export the "
            "model to ONNX first",
        ),
        (
            b"",
            ("verify", "-", "-"),
            "standard input: is empty - fetch or export it again",
        ),
        (
            EXAMPLE.read_bytes(),
            ("report", "-", "-"),
            "standard input is named twice - it brings one model, so name a file for the other one",
        ),
        (
            EXAMPLE.read_bytes(),
            ("extract", "-", "--to", "nothing", "-o", "-"),
            "standard input: there is no value or node 'nothing' - `graphkit shapes` lists the values",
        ),
        (
            EXAMPLE.read_bytes(),
            ("fold", "-", "-o", "-", "--weights", "shared"),
            "--weights shared: standard output takes weights inline - leave the option out",
        ),
        (
            EXAMPLE.read_bytes(),
            ("split-merged", "-"),
            "standard input: has no folder here - name an output folder with -o",
        ),
    ],
)
def test_what_cannot_come_or_go_through_a_pipe_is_one_error(
    piped: Run, given: bytes, command: tuple[object, ...], error: str
) -> None:
    assert piped(given, *command) == Ran(2, b"", f"Error: {error}\n")


def test_weights_in_place_of_standard_input_are_refused(piped: Run, tmp_path: Path) -> None:
    ran = piped(EXAMPLE.read_bytes(), "fold", "-", "-o", tmp_path / "out.onnx", "--weights", "in-place", "--no-verify")
    assert ran.code == 2
    assert f"{tmp_path}: is not the folder of standard input, and data in place" in ran.err


def test_a_model_with_data_in_other_files_is_refused(piped: Run, tmp_path: Path) -> None:
    proto = load(EXAMPLE).restore()
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros(2000, np.float32), "large"))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data")
    assert piped((tmp_path / "m.onnx").read_bytes(), "report", "-") == Ran(
        2,
        b"",
        "Error: standard input: it keeps weights in another file, 'm.data', which standard input cannot bring - name "
        "the model file, or write it with --weights inline first\n",
    )


def test_a_terminal_is_refused(piped: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert piped(b"", "report", "-", kind=Terminal) == Ran(
        2, b"", "Error: standard input is a terminal, from which no model comes - name a model file, or pipe one in\n"
    )
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert piped(b"", "fold", EXAMPLE, "-o", "-") == Ran(
        2, b"", "Error: standard output is a terminal, which shows no model - pipe it on, or name a file with -o\n"
    )


def test_a_disk_without_room_is_one_error(piped: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(graphkit.io.byte_source.tempfile, "mkdtemp", full)
    ran = piped(EXAMPLE.read_bytes(), "report", "-")
    assert ran.code == 2
    assert "No space left on device - name a folder with more space in TMPDIR" in ran.err


def test_a_stream_without_end_is_one_error(piped: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphkit.io.byte_source, "MAX_PROTO", 1000)
    assert piped(EXAMPLE.read_bytes(), "report", "-") == Ran(
        2,
        b"",
        "Error: standard input: more than 1,000 bytes, which is the most that a protobuf has - name the model file, "
        "whose weights may lie in files of their own\n",
    )
