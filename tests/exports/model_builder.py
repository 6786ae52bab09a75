"""Export tiny models with onnxruntime-genai's model builder: `python model_builder.py OUT FAMILY[-VARIANT] …`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from models import named, record, run_exports, tiny_model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

VARIANTS = {"int4": "weights of 4 bits"}
WORDS = 120


def export(name: str, out: Path) -> None:
    """Write one export and what PyTorch generates with the same weights."""
    family, variants = named(name)
    model = tiny_model(family, num_attention_heads=2, num_key_value_heads=1, head_dim=16)  # which its kernel takes
    folder = out / name
    with TemporaryDirectory() as source:
        model.save_pretrained(source)
        words = Tokenizer(WordLevel({f"w{number}": number for number in range(WORDS)}, unk_token="w3"))
        PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w2").save_pretrained(source)
        precision = "int4" if "int4" in variants else "fp32"
        builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", source, "-o", str(folder)]
        subprocess.run([*builder, "-p", precision, "-e", "cpu", "-c", source], check=True)
    record(model, folder)


if __name__ == "__main__":
    sys.exit(run_exports(export, __doc__, VARIANTS))
