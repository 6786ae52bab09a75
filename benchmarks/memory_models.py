"""Exports with random weights and open dims, whose peak memory `costs.py memory` measures.

    PYTHON benchmarks/memory_models.py FOLDER [NAME...]

PYTHON is that of an environment with torch, transformers and optimum-onnx.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers as t

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
BOTH = {"encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
LAYERS = {"encoder_layers": 2, "decoder_layers": 2, **BOTH}
STAGES = {"embedding_size": 16, "hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1]}
TEXT, TARGET, SIDES = {0: "batch", 1: "tokens"}, {0: "batch", 1: "targets"}, {2: "height", 3: "width"}

Dims = Mapping[str, Mapping[int, str]]  # open dims of inputs, by name


class Named(torch.nn.Module):
    """Takes tensors in the order of their names, and gives one."""

    def __init__(self, model: torch.nn.Module, names: Iterable[str]) -> None:
        super().__init__()
        self.model, self.names = model, [*names]

    def forward(self, *values: torch.Tensor) -> Any:
        """Return the first result of the model."""
        return self.model(**dict(zip(self.names, values, strict=True)))[0]


def detr() -> t.DetrForObjectDetection:
    """Return a DETR with a small ResNet."""
    backbone = {"backbone": None, "use_timm_backbone": False, "use_pretrained_backbone": False}
    found = t.ResNetConfig(**STAGES, out_features=["stage4"])
    return t.DetrForObjectDetection(
        t.DetrConfig(**backbone, backbone_config=found, d_model=32, num_queries=10, **LAYERS)
    )


def swin() -> t.SwinModel:
    """Return two stages of a Swin."""
    return t.SwinModel(t.SwinConfig(embed_dim=16, depths=[2, 2], num_heads=[2, 4]))


def t5() -> t.T5ForConditionalGeneration:
    """Return an encoder and a decoder of two layers."""
    config = t.T5Config(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=99, use_cache=False)
    return t.T5ForConditionalGeneration(config)


def bart() -> t.BartForConditionalGeneration:
    """Return an encoder and a decoder of two layers."""
    return t.BartForConditionalGeneration(t.BartConfig(d_model=64, vocab_size=99, use_cache=False, **LAYERS))


def mobilenet() -> t.MobileNetV2ForImageClassification:
    """Return a MobileNetV2 of 0.35 of its width."""
    return t.MobileNetV2ForImageClassification(t.MobileNetV2Config(depth_multiplier=0.35))


IMAGE, TEXTS = {"pixel_values": SIDES}, {"input_ids": TEXT, "decoder_input_ids": TARGET}
TRACED: Mapping[str, tuple[Callable[[], torch.nn.Module], Dims]] = {
    "bert": (lambda: t.BertModel(t.BertConfig(**SMALL, vocab_size=99)), {"input_ids": TEXT, "attention_mask": TEXT}),
    "t5": (t5, TEXTS),
    "bart": (bart, TEXTS),
    "swin": (swin, IMAGE),
    "detr": (detr, IMAGE),
    "convnext": (
        lambda: t.ConvNextForImageClassification(
            t.ConvNextConfig(hidden_sizes=STAGES["hidden_sizes"], depths=STAGES["depths"])
        ),
        IMAGE,
    ),
    "mobilenet": (mobilenet, {"pixel_values": {0: "batch"}}),
    "resnet": (lambda: t.ResNetForImageClassification(t.ResNetConfig(**STAGES)), IMAGE),
    "lstm": (lambda: torch.nn.LSTM(64, 128, 1, bidirectional=True), {"input": {0: "steps"}}),
}
EXPORTED: Mapping[str, tuple[Callable[[], t.PreTrainedModel], str]] = {
    "llama": (
        lambda: t.LlamaForCausalLM(t.LlamaConfig(**SMALL, num_key_value_heads=4, vocab_size=500)),
        "text-generation",
    ),
    "gpt2-step": (
        lambda: t.GPT2LMHeadModel(t.GPT2Config(n_embd=64, n_layer=2, n_head=4, n_positions=256, vocab_size=99)),
        "text-generation-with-past",
    ),
}  # by optimum, each in a folder of its name


def sample(name: str, dims: Mapping[int, str]) -> torch.Tensor:
    """Return an input to trace a model with."""
    if name == "pixel_values":
        return torch.randn(2 if 0 in dims else 1, 3, 64, 64)
    return torch.randn(32, 1, 64) if name == "input" else torch.ones(2, 8, dtype=torch.long)


def main(folder: Path, names: list[str]) -> None:
    """Write the exports of these names, or all."""
    from optimum.exporters.onnx import onnx_export_from_model

    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    for name in names or [*TRACED, *EXPORTED]:
        if name in EXPORTED:
            make, task = EXPORTED[name]
            onnx_export_from_model(make().eval(), output=folder / name, task=task, do_validation=False)
            continue
        made, dims = TRACED[name]
        with torch.no_grad():
            torch.onnx.export(
                Named(made().eval(), dims),
                tuple(sample(each, open_dims) for each, open_dims in dims.items()),
                folder / f"{name}.onnx",
                input_names=[*dims],
                dynamic_axes={each: dict(open_dims) for each, open_dims in dims.items()},
                opset_version=17,
                dynamo=False,
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
