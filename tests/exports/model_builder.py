"""Export tiny models with onnxruntime-genai's model builder: `python model_builder.py OUT FAMILY[-VARIANT] …`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
from models import named, record, run_exports, tiny_model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, WhisperFeatureExtractor

VARIANTS = {"int4": "weights of 4 bits"}
WORDS = 120


def export(name: str, out: Path) -> None:
    """Write one export and what PyTorch generates with the same weights."""
    family, variants = named(name)
    heads = {} if family == "whisper" else {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    model = tiny_model(family, **heads)  # which its kernel takes
    folder = out / name
    with TemporaryDirectory() as source:
        model.save_pretrained(source)
        words = Tokenizer(WordLevel({f"w{number}": number for number in range(WORDS)}, unk_token="w3"))
        PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w2").save_pretrained(source)
        precision = "int4" if "int4" in variants else "fp32"
        builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", source, "-o", str(folder)]
        if family == "whisper":
            WhisperFeatureExtractor(feature_size=model.config.num_mel_bins).save_pretrained(source)
        subprocess.run([*builder, "-p", precision, "-e", "cpu", "-c", source], check=True)
    if family == "whisper":
        for file in folder.glob("*.onnx"):
            declare_positions(file, model.config.max_source_positions)
    record(model, folder)


def declare_positions(file: Path, positions: int) -> None:
    """Declare as many positions of the encoder as a tiny one has: the builder says those of 30 seconds of sound."""
    model = onnx.load(file, load_external_data=False)
    for info in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_value in (1500, 3000):
                dim.dim_value = positions * dim.dim_value // 1500
    onnx.save(model, file)


if __name__ == "__main__":
    sys.exit(run_exports(export, __doc__, VARIANTS))
