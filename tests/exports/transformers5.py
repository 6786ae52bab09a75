"""Export tiny models with transformers 5's own exporter: `python transformers5.py OUT FAMILY[-VARIANT] …`."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import torch
from models import has_pictures, named, record, run_exports, sample, tiny_model
from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

VARIANTS = {
    "padded": "the traced batch has a padded row, so that the decoder takes an attention_mask",
    "one": "a batch of 1",
    "three": "decoder_input_ids of three tokens",
    "multi": "multi_token_decode=True",
    "static": "a static cache of 40 tokens",
    "fused": "ort_fusions='cpu'",
    "batched": "experts by batched_mm, whose shapes are known",
    "bare": "without the encoder, or the picture encoder and the embedding table, that are exported apart",
}
SOURCE = {"input_ids", "input_features", "input_values", "attention_mask"}


class PictureEncoder(torch.nn.Module):
    """What a model makes of a picture before its rows go between those of the text."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, **pictures: torch.Tensor) -> torch.Tensor:
        found = self.model.get_image_features(**pictures)
        found = getattr(found, "pooler_output", found)
        return torch.cat(list(found)) if isinstance(found, (list, tuple)) else found


class Embedding(torch.nn.Module):
    """The rows of a model's tokens."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.table = model.get_input_embeddings()

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.table(input_ids)


def export(name: str, out: Path) -> None:
    """Write one export and what PyTorch generates with the same weights."""
    family, variants = named(name)
    model = tiny_model(family)
    if "batched" in variants:
        model.set_experts_implementation("batched_mm")
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    record(model, folder)
    rules = copy.deepcopy(model.generation_config)
    given = sample(model, 1 if "one" in variants else 2, 7, padded="padded" in variants)
    if "three" in variants:
        start = model.generation_config.decoder_start_token_id
        given["decoder_input_ids"] = torch.tensor([[start, 5, 9], [start, 8, 4]])
    if "static" in variants:
        rules.cache_implementation, rules.max_cache_len = "static", 40
    config = OnnxConfig(dynamic=True, ort_fusions="cpu" if "fused" in variants else None)
    exporter, is_multi = OnnxExporter(), "multi" in variants
    exported = exporter.export_for_generation(
        model, given, config, generation_config=rules, multi_token_decode=is_multi
    )
    apart: dict[str, tuple[torch.nn.Module, dict[str, Any]]] = {}
    if model.config.is_encoder_decoder:
        keys = SOURCE - ({"attention_mask"} if family == "whisper" else set())
        apart["encoder"] = model.get_encoder(), {key: value for key, value in given.items() if key in keys}
    if has_pictures(model):
        pictures = {key: value for key, value in given.items() if key in {"pixel_values", "image_grid_thw"}}
        apart["image_encoder"] = PictureEncoder(model), pictures
        apart["embed_tokens"] = Embedding(model), {"input_ids": given["input_ids"]}
    if "bare" not in variants:
        for part, (module, inputs) in apart.items():
            exported.components[part] = exporter.export(module, inputs, config).components["model"]
    exported.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)


if __name__ == "__main__":
    sys.exit(run_exports(export, __doc__, VARIANTS))
