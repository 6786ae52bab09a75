"""The real exports in tests/models."""

from __future__ import annotations

import json
import lzma
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

__all__ = [
    "DISTINCT",
    "EXPORTS",
    "MODELS",
    "MODEL_NAMES",
    "PIPELINES",
    "UNLIKE",
    "export_cases",
    "params",
    "unpacked",
    "unpacked_export",
]

MODELS = Path(__file__).parents[1] / "models"
MODEL_NAMES = sorted(path.relative_to(MODELS).as_posix().removesuffix(".onnx.xz") for path in MODELS.rglob("*.xz"))
REPEATED = {  # whose layers a smaller model of tests/models has too
    "nllb-600m/decoder_model",
    "nllb-600m/decoder_model_merged",
    "nllb-600m/decoder_with_past_model",
    "nllb-tiny/decoder_model_quantized",
    "nllb-tiny/decoder_with_past_model_quantized",
    "opus-mt-en-fr/decoder_model",
    "opus-mt-en-fr/decoder_model_merged",
    "opus-mt-en-fr/decoder_with_past_model",
    "opus-mt-en-fr/encoder_model",
}
EXPORTS = sorted(path.stem for path in (MODELS / "exports").glob("*.zip"))  # which tests/exports makes
UNLIKE = (  # one of each kind: encoders, decoders, caches, branches, loops, quantised, of other domains; all are small
    "bert-fill-mask/model", "cache-styles/static-cache", "cache-styles/two-stacked", "faster-rcnn/model",
    "gpt2-tiny/decoder_model_merged", "llama-int4/model", "merged-decoder/decoder_with_past_model", "patchtst/model",
    "qwen2-tiny/model", "search/beamsearch-gpt2", "search/loop-greedy", "t5-tiny/encoder_model", "vit-qdq/model",
)  # fmt: skip
DISTINCT = [name for name in MODEL_NAMES if name not in REPEATED]
PIPELINES = {
    "marian-tiny": ("encoder_model", "decoder_model_merged"),
    "t5-tiny": ("encoder_model", "decoder_model_merged"),
    "qwen2-tiny": ("model",),
}


def params(names: Iterable[str], slow: Iterable[str] = ()) -> list[object]:
    """Return models as parameters of a test: slow for those that repeat a smaller one, and for others that it names."""
    marked = {*REPEATED, *slow}
    return [pytest.param(name, marks=pytest.mark.slow) if name in marked else name for name in names]


def unpacked(name: str, folder: Path) -> Path:
    """Write the models of a pipeline to a folder, and return that."""
    folder.mkdir(exist_ok=True)
    for file in PIPELINES[name]:
        content = lzma.decompress((MODELS / name / f"{file}.onnx.xz").read_bytes())
        (folder / f"{file}.onnx").write_bytes(content)
    return folder


def unpacked_export(name: str, folder: Path) -> Path:
    """Write an export of `EXPORTS` to a folder, and return that."""
    with zipfile.ZipFile(MODELS / "exports" / f"{name}.zip") as archive:
        archive.extractall(folder)
    return folder


def export_cases(folder: Path) -> list[dict[str, Any]]:
    """Return what PyTorch made of an export: the `inputs` of each case, its greedy `tokens` and first `logits`."""
    with np.load(folder / "io.npz") as file:
        arrays = dict(file)
    cases = json.loads((folder / "io.json").read_text())["cases"]
    for number, case in enumerate(cases):
        case["inputs"] = {name: arrays[f"{number}.{name}"] for name in case["inputs"]}
        case |= {name: arrays[f"{number}.{name}"] for name in ("tokens", "logits")}
    return cases
