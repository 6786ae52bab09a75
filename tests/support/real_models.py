"""The real exports in tests/models."""

from __future__ import annotations

import lzma
from collections.abc import Iterable
from pathlib import Path

import pytest

__all__ = ["DISTINCT", "MODELS", "MODEL_NAMES", "PIPELINES", "params", "unpacked"]

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
