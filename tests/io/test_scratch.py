from __future__ import annotations

import gc
import tempfile
from pathlib import Path

import pytest

from graphkit.errors import OutputError
from graphkit.io.byte_source import Scratch


def test_bytes_are_kept_in_order_and_nothing_is_made_before() -> None:
    scratch = Scratch()
    assert scratch.append([b"ab", b"c"]) == (0, 3)
    assert scratch.append(part for part in (b"", b"de")) == (3, 2)
    assert scratch.path.read_bytes() == b"abcde"
    assert Scratch().location != scratch.location


def test_the_file_goes_with_its_owner() -> None:
    gc.freeze()  # what other tests left, through which a collection would walk
    scratch = Scratch()
    scratch.append([b"a"])
    folder = scratch.path.parent
    assert folder.is_dir()
    del scratch
    gc.collect()
    assert not folder.exists()


def test_no_room_is_an_error_that_says_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    monkeypatch.setattr(tempfile, "tempdir", str(missing))
    with pytest.raises(OutputError, match=r"missing: weights that change .* name a folder with more space in TMPDIR"):
        Scratch().append([b"a"])
