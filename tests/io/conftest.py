from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from graphkit.errors import ModelError
from graphkit.model import load


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Write bytes to a file of a folder of its own."""

    def write(content: bytes, name: str = "model.onnx") -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


@pytest.fixture
def refused() -> Callable[..., ModelError]:
    """Load a file that must be refused: in less than five seconds of processor time, by name, and with a hint."""

    def attempt(path: Path, threshold: int = 1024) -> ModelError:
        begin = time.process_time()
        with pytest.raises(ModelError) as caught:
            _ = load(path, threshold=threshold).scopes
        assert time.process_time() - begin < 5
        error = caught.value
        assert error.file == str(path)
        assert error.hint
        assert str(error).startswith(f"{path}")
        assert str(error).endswith(f"{error.problem} - {error.hint}")
        return error

    return attempt
