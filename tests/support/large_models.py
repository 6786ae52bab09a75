"""Exports of tests/models with a vocabulary and positions of real size; stubs among them, completed."""

from __future__ import annotations

import lzma
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import onnx
from bundles import audio_encoder
from onnx import numpy_helper
from real_models import MODELS
from stubs import complete

__all__ = ["WORDS", "completed", "export_of"]

WORDS = {"qwen2-tiny": 97, "gpt2-tiny": 96, "marian-tiny": 256, "t5-tiny": 97, "whisper-tiny": 131}  # as committed
POSITIONS = ("embed_positions", "wpe")  # in the names of tables of positions
OTHERS = ("attn", "mlp", "fc")  # in the names of weights that are as wide as a vocabulary by chance


def export_of(name: str, folder: Path, words: int, positions: int = 2048) -> Path:
    """Write an export of tests/models to a folder, with so many words and positions, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted((MODELS / name).glob("*.onnx.xz")):
        proto = onnx.load_from_string(lzma.decompress(file.read_bytes()))
        onnx.save(_enlarged(proto, WORDS[name], words, positions), folder / file.name.removesuffix(".xz"))
    if name == "whisper-tiny":
        onnx.save(audio_encoder(), folder / "encoder_model.onnx")
    return folder


def completed(name: str, files: Iterable[str], folder: Path) -> Path:
    """Write the files of a stub of tests/models to a folder, with weights drawn as the missing ones were spread."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        complete(MODELS / name / f"{file}.onnx.xz", folder).rename(folder / f"{file}.onnx")
    return folder


def _enlarged(model: onnx.ModelProto, words: int, more_words: int, positions: int) -> onnx.ModelProto:
    """Give a model of so many words more of them, and its tables so many positions."""
    rng = np.random.default_rng(3)
    for tensor in model.graph.initializer:
        dims = list(tensor.dims)
        if any(part in tensor.name for part in POSITIONS):
            dims[0] = positions
        elif words in dims and not any(part in tensor.name for part in OTHERS):
            dims[dims.index(words)] = more_words
        if dims != list(tensor.dims):
            array = numpy_helper.to_array(tensor)
            drawn = rng.normal(array.mean(), array.std(), dims).astype(array.dtype)
            tensor.CopyFrom(numpy_helper.from_array(drawn, tensor.name))
    for graph in _graphs(model.graph):
        del graph.value_info[:]
        for output in graph.output:
            dims = output.type.tensor_type.shape.dim
            if output.name.startswith("logits") and dims and dims[-1].dim_value == words:
                dims[-1].dim_value = more_words
    return model


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)
