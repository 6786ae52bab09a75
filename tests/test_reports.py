from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from real_models import params

from graphkit.render.result import Result

FOLDER = Path(__file__).parent.parent / "reports"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("regenerate", FOLDER / "regenerate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FILES = sorted(path.name for path in FOLDER.iterdir() if path.suffix in (".md", ".html"))
NOISE = re.compile(r"\d(\\?\.\d+)?e-0[6-9]")  # of float32 at the default level: the processor decides
WRITERS: dict[str, Callable[[Result], str]] = {".md": Result.to_markdown, ".html": Result.to_html}
SCRIPT = script()
SLOW = (
    "detr-resnet-50-quantized",
    "gemma-270m",
    "marian-tiny-bundle",
    "marian-tiny-fold",
    "marian-tiny-mt8371",
    "nllb-600m-merged",
    "nllb-tiny-split",
    "opus-mt-en-fr-bundle",
)


def test_every_report_is_committed_in_both_formats() -> None:
    assert sorted(f"{name}{suffix}" for name in SCRIPT.NAMES for suffix in WRITERS) == FILES


@pytest.mark.cases("opus-mt")
@pytest.mark.parametrize("name", params(SCRIPT.NAMES, slow=SLOW))
def test_a_report_is_what_its_model_gives_now(name: str) -> None:
    made = SCRIPT.made(name)
    for suffix, write in WRITERS.items():
        committed = (FOLDER / f"{name}{suffix}").read_text(encoding="utf-8")
        committed, current = (NOISE.sub("0", text) for text in (committed, write(made)))
        assert committed == current, f"reports/{name}{suffix} is out of date: run `make reports` and look at it"
