"""Packages of npm, kept outside the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

__all__ = ["JAVASCRIPT", "ONNXRUNTIME", "install_packages"]

JAVASCRIPT = Path(__file__).parents[2] / "packages" / "js" / "src"  # the package of this repository
ONNXRUNTIME = ("onnxruntime-node@1.30", "onnxruntime-web@1.30")  # these have TensorScatter


def install_packages(*packages: str) -> Path:
    """Return a folder whose `node_modules` has packages, each NAME@VERSION; skip the test where they cannot be had."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("there is no Node, or no npm")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path(tempfile.gettempdir()) / "graphkit-tests")
    folder = cache / "-".join(["graphkit", *(package.strip("@").replace("/", "-") for package in packages)])
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as made:
        (Path(made) / "package.json").write_text("{}")
        quickly = ["--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=0", "--fetch-timeout=20000"]
        try:
            subprocess.run(
                ["npm", "install", *quickly, *packages], cwd=made, check=True, capture_output=True, timeout=180
            )
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"{', '.join(packages)} cannot be installed: {error}")
        try:
            Path(made).rename(folder)
        except OSError:
            assert folder.is_dir()  # another process was first
        else:
            Path(made).mkdir()  # what the context removes
    return folder
