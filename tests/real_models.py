"""The real exports in tests/models."""

from __future__ import annotations

import lzma
from pathlib import Path

__all__ = ["MODELS", "MODEL_NAMES", "PIPELINES", "unpacked"]

MODELS = Path(__file__).parent / "models"
MODEL_NAMES = sorted(path.relative_to(MODELS).as_posix().removesuffix(".onnx.xz") for path in MODELS.rglob("*.xz"))
PIPELINES = {
    "marian-tiny": ("encoder_model", "decoder_model_merged"),
    "t5-tiny": ("encoder_model", "decoder_model_merged"),
    "qwen2-tiny": ("model",),
}


def unpacked(name: str, folder: Path) -> Path:
    """Write the models of a pipeline to a folder, and return that."""
    folder.mkdir(exist_ok=True)
    for file in PIPELINES[name]:
        content = lzma.decompress((MODELS / name / f"{file}.onnx.xz").read_bytes())
        (folder / f"{file}.onnx").write_bytes(content)
    return folder
