"""Multiply-accumulates of architectures, worked out from their configurations; and exports of them with random weights.

    PYTHON benchmarks/architectures.py FOLDER

PYTHON is that of an environment with torch, transformers and onnx. `costs.py formulas` counts what it writes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["FORMULAS"]

# Each formula sums products of matrices: of a layer of s queries over t positions, 4·s·d² is what its queries, keys,
# values and outputs take where s = t, 2·s·t·d the scores and what they weigh, 2·s·d·f the two of a feed-forward.


def attention(s: int, t: int, d: int, keys: int | None = None) -> int:
    """Return the products of an attention of `s` queries over `t` positions, of which `keys` are projected anew."""
    return 2 * s * d * d + 2 * (t if keys is None else keys) * d * d + 2 * s * t * d


def feed_forward(s: int, d: int, f: int) -> int:
    """Return the two products of a feed-forward layer."""
    return 2 * s * d * f


def vit() -> int:
    """ViT-Tiny with 4 layers, 224 pixels: 196 patches of 16·16·3 and a class token."""
    d, f, layers, patches = 192, 768, 4, 196
    s = patches + 1
    return patches * 16 * 16 * 3 * d + layers * (attention(s, s, d) + feed_forward(s, d, f)) + d * 1000


def swin() -> int:
    """Swin, 2 stages of 2 layers, width 48, windows of 7 by 7 positions, 224 pixels in patches of 4."""
    total, s, d, window = 56 * 56 * 4 * 4 * 3 * 48, 56 * 56, 48, 49
    for stage in range(2):
        total += 2 * (4 * s * d * d + 2 * s * window * d + feed_forward(s, d, 4 * d))
        if stage == 0:  # four positions become one of twice the width
            s, d = s // 4, 2 * d
            total += s * 2 * d * d
    return total + d * 10


def whisper() -> int:
    """Whisper, dims of tiny: 1,500 frames, 4 layers of each, 16 tokens without a cache."""
    d, f, layers, frames, s, vocabulary = 384, 1536, 4, 1500, 16, 1000
    convolutions = 3000 * 80 * 3 * d + frames * d * 3 * d
    encoder = layers * (attention(frames, frames, d) + feed_forward(frames, d, f))
    decoder = layers * (attention(s, s, d) + attention(s, frames, d) + feed_forward(s, d, f))
    return convolutions + encoder + decoder + s * d * vocabulary


def lstm() -> int:
    """Two bidirectional layers of 128 over 32 steps of 64, and a classifier of 10 at each."""
    steps, layers = 32, ((64, 128), (256, 128))
    return sum(2 * steps * 4 * h * (i + h) for i, h in layers) + steps * 256 * 10


def moe() -> int:
    """16 tokens, each sent to 2 of 8 experts of two products each, by a router."""
    s, d, f, experts, sent = 16, 64, 256, 8, 2
    return s * d * experts + sent * feed_forward(s, d, f)


def marian_encoder() -> int:
    """Opus-MT's encoder, 128 tokens."""
    return 6 * (attention(128, 128, 512) + feed_forward(128, 512, 2048))


def marian_step() -> int:
    """A step of Opus-MT's decoder: 1 token after a past of 128, and a source of 128 whose keys are known."""
    d = 512
    each = attention(1, 129, d, keys=1) + attention(1, 128, d, keys=0) + feed_forward(1, d, 2048)
    return 6 * each + d * 59_514


def gemma() -> int:
    """A step of Gemma 3 270M: 1 token after 128; 4 heads of 256 share keys and values, three products to 2,048."""
    d, heads, width, f, t, vocabulary = 640, 4, 256, 2048, 129, 262_144
    each = 2 * d * heads * width + 2 * d * width + 2 * heads * width * t + 3 * d * f
    rotary = 2 * 128  # two tables of angles: a position times 128 frequencies
    return 18 * each + d * vocabulary + rotary


def detr() -> int:
    """DETR with a ResNet-50 at 224 pixels: 7 by 7 positions, 100 queries, 6 layers of each, 91 classes and a box."""
    d, f, s, q = 256, 2048, 49, 100
    total = 112 * 112 * 3 * 7 * 7 * 64
    size, before = 56, 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            step = stride if block == 0 else 1
            after = size // step
            total += size**2 * before * width + after**2 * 9 * width**2 + after**2 * width * 4 * width
            if block == 0:
                total += after**2 * before * 4 * width
            size, before = after, 4 * width
    total += s * 2048 * d
    total += 6 * (attention(s, s, d) + feed_forward(s, d, f))
    total += 6 * (attention(q, q, d) + attention(q, s, d) + feed_forward(q, d, f))
    return total + q * d * 92 + q * (d * d * 2 + d * 4)


FORMULAS: Mapping[str, Callable[[], int]] = {
    function.__name__: function
    for function in (vit, swin, whisper, lstm, moe, marian_encoder, marian_step, gemma, detr)
}  # by name of the export, or of the file that stands for it


def main() -> None:
    """Write those of the exports that torch, transformers and onnx make."""
    import onnx
    import torch
    import transformers
    from onnx import TensorProto, helper

    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)

    def export(
        name: str,
        model: torch.nn.Module,
        arguments: tuple[torch.Tensor, ...],
        inputs: list[str],
        *,
        traces: bool = True,
    ) -> None:
        path, opset = folder / f"{name}.onnx", 17 if traces else 18
        with torch.no_grad():
            torch.onnx.export(
                model.eval(),
                arguments,
                path,
                input_names=inputs,
                opset_version=opset,
                dynamo=not traces,
                external_data=False,
            )

    class First(torch.nn.Module):
        def __init__(self, model: torch.nn.Module, names: list[str]) -> None:
            super().__init__()
            self.model, self.names = model, names

        def forward(self, *values: torch.Tensor) -> torch.Tensor:
            return self.model(**dict(zip(self.names, values, strict=True)), use_cache=False).logits

    class Image(torch.nn.Module):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return self.model(pixels).logits

    class Recurrent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = torch.nn.LSTM(64, 128, 2, bidirectional=True)
            self.out = torch.nn.Linear(256, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.lstm(x)[0])

    config = transformers.ViTConfig(
        hidden_size=192, num_hidden_layers=4, num_attention_heads=3, intermediate_size=768, num_labels=1000
    )
    pixels = torch.randn(1, 3, 224, 224)
    export("vit", Image(transformers.ViTForImageClassification(config)), (pixels,), ["pixels"])
    shifted = transformers.SwinConfig(
        image_size=224, embed_dim=48, depths=[2, 2], num_heads=[3, 6], window_size=7, num_labels=10
    )
    export("swin", Image(transformers.SwinForImageClassification(shifted)), (pixels,), ["pixels"])
    speech = transformers.WhisperConfig(
        vocab_size=1000,
        d_model=384,
        encoder_layers=4,
        decoder_layers=4,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=1536,
        decoder_ffn_dim=1536,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    names = ["input_features", "decoder_input_ids"]
    features, tokens = torch.randn(1, 80, 3000), torch.randint(3, 900, (1, 16))
    whole = transformers.WhisperForConditionalGeneration(speech)
    export("whisper", First(whole, names), (features, tokens), names, traces=False)
    export("lstm", Recurrent(), (torch.randn(32, 1, 64),), ["x"])

    def weights(name: str, *dims: int) -> onnx.TensorProto:
        return helper.make_tensor(name, TensorProto.FLOAT, dims, torch.randn(*dims).flatten().tolist())

    nodes = [
        helper.make_node("MatMul", ["x", "router"], ["scores"]),
        helper.make_node("MoE", ["x", "scores", "up", "", "down"], ["y"], domain="com.microsoft", k=2),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [16, 64]) for name in ("x", "y")]
    stored = [weights("router", 64, 8), weights("up", 8, 256, 64), weights("down", 8, 64, 256)]
    graph = helper.make_graph(nodes, "moe", values[:1], values[1:], stored)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "moe.onnx")


if __name__ == "__main__":
    main()
