"""The real exports in tests/models."""

from __future__ import annotations

from pathlib import Path

__all__ = ["MODELS", "MODEL_NAMES"]

MODELS = Path(__file__).parent / "models"
MODEL_NAMES = sorted(path.relative_to(MODELS).as_posix().removesuffix(".onnx.xz") for path in MODELS.rglob("*.xz"))
