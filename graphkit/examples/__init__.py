"""Small real models that ship with graphkit, named `example:NAME` wherever a path is wanted."""

from __future__ import annotations

import os
from pathlib import Path

from graphkit.errors import UsageError, did_you_mean

__all__ = ["EXAMPLES", "example_name", "resolve"]

EXAMPLES: dict[str, str] = {
    "merged-decoder": "a Marian decoder (1 layer), both generation steps merged under one If",
    "causal-attention": "a 2-layer causal language model with Shape chains, embedding, masked_fill and tril",
    "encoder": "a Marian encoder (1 layer), whose output the merged decoder takes",
    "detection": "a Table Transformer of tiny dims: ResNet, encoder and decoder over images of any height and width",
    "sliding-window": "a Gemma 3 of tiny dims: one layer attends to the last 8 tokens, the other one to all",
    "prefill": "a Qwen 3 of tiny dims as transformers 5 exports it: the model of a prompt",
    "decode": "the same: the model of each token after the prompt",
}


def resolve(path: str | os.PathLike[str]) -> Path:
    """Return the path of a model; `example:NAME` means a file of this package.

    Raises:
        UsageError: There is no example of that name.
    """
    prefix, colon, name = os.fspath(path).partition(":")
    if prefix != "example" or not colon:
        return Path(path)
    if name not in EXAMPLES:
        raise UsageError(f"no example '{name}' - {did_you_mean(name, EXAMPLES)}")
    return Path(__file__).parent / f"{name}.onnx"


def example_name(path: Path) -> str | None:
    """Return `example:NAME` for the path of an example, else None."""
    is_example = path.parent == Path(__file__).parent and path.stem in EXAMPLES
    return f"example:{path.stem}" if is_example else None
