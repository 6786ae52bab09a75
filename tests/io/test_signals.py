"""Signals that ask a process to end, also where compiled code takes the exception for an error of its own."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import pytest

from graphkit.errors import ModelError
from graphkit.io.transaction import write_all_or_none
from graphkit.progress import STOPPING, StoppedError, check_stopped, raise_signals
from graphkit.runtime import session


def stop_unnoticed() -> None:
    """Send the signal that asks this process to end, and lose its exception."""
    with contextlib.suppress(StoppedError):
        signal.raise_signal(signal.SIGTERM)


def test_a_lost_signal_is_raised_again() -> None:
    with raise_signals():
        stop_unnoticed()
        with pytest.raises(StoppedError) as raised:
            check_stopped()
    assert raised.value.number == signal.SIGTERM


def test_handlers_are_as_before_afterwards() -> None:
    before = [signal.getsignal(number) for number in STOPPING]
    with raise_signals():
        assert signal.getsignal(signal.SIGTERM) not in before
    assert [signal.getsignal(number) for number in STOPPING] == before


def test_a_signal_is_forgotten_with_its_block() -> None:
    with raise_signals():
        stop_unnoticed()
    check_stopped()


def test_no_file_is_placed_after_a_lost_signal(tmp_path: Path) -> None:
    target = tmp_path / "model.onnx"

    def write() -> None:
        with write_all_or_none([target], key=target, overwrite=False, hint="check") as place:
            place(target).write_text("new")
            stop_unnoticed()

    with pytest.raises(StoppedError), raise_signals():
        write()
    assert list(tmp_path.iterdir()) == []


def test_a_signal_while_onnxruntime_loads_is_no_fault_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_model(*_: object, **__: object) -> None:
        stop_unnoticed()
        raise ImportError("while it is loaded")

    monkeypatch.setattr(session, "open_model", open_model)
    with pytest.raises(StoppedError), raise_signals():
        session.Session(tmp_path / "model.onnx")


def test_another_error_while_onnxruntime_loads_is_one(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_text("no model")
    with pytest.raises(ModelError, match="does not load it"), raise_signals():
        session.Session(tmp_path / "model.onnx")
