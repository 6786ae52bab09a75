"""Fuzz the reader with libFuzzer, through atheris: by hand, for a bounded time.

    pip install atheris
    python tests/fuzz/fuzz_reader.py -max_total_time=180 -max_len=20000 -timeout=5

Any bytes must load, with scopes that build and a `restore` that equals what protobuf reads, or be refused
with a ModelError. Everything else, and everything that takes longer than 5 seconds, is a defect.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["graphkit"]):
    import onnx
    from google.protobuf.message import DecodeError

    from graphkit.errors import ModelError
    from graphkit.model import load

LARGEST_SEED = 20_000


def attempt(content: bytes, path: Path) -> None:
    path.write_bytes(content[1:])
    try:
        loaded = load(path, threshold=1 << content[0] % 12)
        _ = loaded.scopes
        restored = loaded.restore()
    except ModelError:
        return
    try:
        whole = onnx.ModelProto.FromString(content[1:])
    except DecodeError:
        return
    assert restored.SerializeToString(deterministic=True) == whole.SerializeToString(deterministic=True)


def write_seeds(corpus: Path) -> None:
    """Write the first seeds: the smaller models of the onnx package, for a cut one is only ever refused."""
    models = [path.read_bytes() for path in (Path(onnx.__file__).parent / "backend/test/data").rglob("*.onnx")]
    for number, model in enumerate(model for model in models if len(model) < LARGEST_SEED):
        (corpus / f"seed-{number}").write_bytes(bytes([number]) + model)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        corpus, path = Path(folder) / "corpus", Path(folder) / "model.onnx"
        corpus.mkdir()
        write_seeds(corpus)
        atheris.Setup([*sys.argv, str(corpus)], lambda content: attempt(content or b"\0", path))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
