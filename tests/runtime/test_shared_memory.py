from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from graphkit.runtime import shared_memory as arena_module
from graphkit.runtime.shared_memory import Arena

VALUES = [
    np.float32(3).reshape(()),
    np.zeros((0, 3), np.int64),
    np.arange(6, dtype=">i2").reshape(2, 3),
    np.array(["é", "longer"]),
    np.array([b"a", b"bc"]),
    np.array([["a"], ["\n"]], dtype=object),
    np.zeros(0, dtype=object),
    np.array([1 + 2j]),
    np.array([True]),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{value.dtype}{value.shape}")
def test_an_array_comes_back_as_it_was(value: np.ndarray) -> None:
    arena = Arena()
    told, _ = arena.put(value)
    back = arena.get(told, copy=True)
    assert isinstance(back, np.ndarray)
    assert (back.dtype, back.shape) == (value.dtype, value.shape)
    assert np.array_equal(back, value)
    arena.close()


def test_a_dtype_that_numpy_does_not_know_comes_back() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    arena = Arena()
    told, _ = arena.put(np.array([1.5, 2], ml_dtypes.bfloat16))
    back = arena.get(told, copy=True)
    assert isinstance(back, np.ndarray)
    assert (str(back.dtype), list(back)) == ("bfloat16", [1.5, 2])
    arena.close()


def test_lists_dicts_and_plain_values_come_back() -> None:
    value = {"a": [1, 2.5, None, "b", True, {3: [np.int64(4)]}], "c": (), 5: {}}
    arena = Arena()
    told, _ = arena.put(value)
    assert arena.get(told, copy=True) == {"a": [1, 2.5, None, "b", True, {3: [4]}], "c": [], 5: {}}
    arena.close()


@pytest.mark.parametrize("value", [object(), [object()], np.array([object()])])
def test_what_is_no_value_is_refused(value: object) -> None:
    arena = Arena()
    with pytest.raises(TypeError, match="cannot be passed between processes"):
        arena.put(value)
    arena.close()


def test_it_grows_and_gives_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_module, "KEPT", 1 << 21)
    arena = Arena()
    for size in (10, 1_000_000, 5_000_000, 20):
        value = np.arange(size)
        told, _ = arena.put(value)
        assert np.array_equal(np.asarray(arena.get(told, copy=True)), value)
        arena.trim()
    arena.close()


def test_the_other_side_sees_it_however_it_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for named in (False, True) if sys.platform != "win32" else (True,):
        monkeypatch.setattr(arena_module, "NAMED", named)
        arena = Arena()
        assert bool(list(tmp_path.iterdir())) == named
        other = Arena(arena.place) if named else Arena(f"fd:{__import__('os').dup(int(arena.place[3:]))}")
        told, end = arena.put(np.arange(1000))
        more, _ = other.put(np.arange(500_000), end)
        assert np.array_equal(np.asarray(other.get(told, copy=False)), np.arange(1000))
        assert np.array_equal(np.asarray(arena.get(more, copy=True)), np.arange(500_000))
        other.close()
        arena.close()
        assert not list(tmp_path.iterdir())
