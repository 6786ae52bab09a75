"""A folder of many models, made anew for each test: real exports, changed copies of them, and hostile files."""

from __future__ import annotations

import lzma
import random
from pathlib import Path

import onnx
from builders import proto_of
from real_models import MODELS

__all__ = ["catalogue"]

REAL = ("t5-tiny/encoder_model", "qwen2-tiny/model", "gpt2-tiny/decoder_model_merged", "marian-tiny/encoder_model")
SMALL = (
    "(float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }",
    "(float[N, 4] x) => (float[M, K] y) { a = NonZero(x) y = Cast<to = 1>(a) }",
    "(float[N, 4] x) => (float[M] y) <int64[1] m = {-1}> { y = Reshape(x, m) }",
    "(float[A, B] x, float[B, C] w) => (float[A, C] y) { y = MatMul(x, w) }",
)


def catalogue(folder: Path, models: int, hostile: int, real: int = len(REAL)) -> list[str]:
    """Write so many models below a folder, hostile ones among them, and return the paths of the hostile ones."""
    random_of = random.Random(24)
    real_bytes = [lzma.decompress((MODELS / f"{name}.onnx.xz").read_bytes()) for name in REAL[:real]]
    small = [proto_of(text) for text in SMALL]
    for number in range(models - hostile):
        path = folder / f"{number % 10}" / f"m{number // 10}" / "model.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number % 25 == 0 and real_bytes:
            path.write_bytes(real_bytes[number // 25 % len(real_bytes)])
            continue
        copy = onnx.ModelProto()
        copy.CopyFrom(small[number % len(small)])
        copy.producer_name = f"exporter {number}"
        copy.graph.node[0].name = "n" * random_of.randrange(200)
        path.write_bytes(copy.SerializeToString())
    content = real_bytes[0] if real_bytes else small[3].SerializeToString()
    paths = [folder / "hostile" / f"{number}.onnx" for number in range(hostile)]
    for number, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        _spoil(path, content, number % 5, random_of)
    return [str(path) for path in paths]


def _spoil(path: Path, content: bytes, kind: int, random_of: random.Random) -> None:
    if kind == 0:
        path.write_bytes(content[: random_of.randrange(1, len(content) - 1)])
    elif kind == 1:
        path.write_bytes(random_of.randbytes(500))
    elif kind == 2:
        path.write_bytes(b"")
    elif kind == 3:
        path.write_bytes(b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f" + content)  # a graph of 2^63 bytes
    else:
        path.symlink_to("nowhere")
