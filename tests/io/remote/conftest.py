from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from range_server import Site, serving

if find_spec("aiohttp") is None or find_spec("fsspec") is None:  # the extra onnx-graphkit[remote]
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Site]:
    """A web server with no files yet; the cache is empty, and attempts follow each other at once."""
    monkeypatch.setattr("graphkit.io.remote.http_file.PAUSE", 0.001)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving() as served:
        yield served
