"""Make the files of the hub come from a web server of this machine."""

from __future__ import annotations

import time

import pytest

constants = pytest.importorskip("huggingface_hub.constants")
file_download = pytest.importorskip("huggingface_hub.file_download")


def files_come_from(monkeypatch: pytest.MonkeyPatch, base: str) -> None:
    for module in (constants, file_download):  # releases before 1.0 read the second
        template = base + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)


def attempts_follow_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the pauses from the library's attempts, which last 23 seconds; there are as many attempts."""
    monkeypatch.setattr(time, "sleep", lambda _: None)
