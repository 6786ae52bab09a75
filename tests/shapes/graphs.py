"""Small models from ONNX text."""

from __future__ import annotations

from functools import partial

from builders import model_of

from graphkit.shapes import Shapes, infer

model = partial(model_of, domains=("com.microsoft", "local", "custom"))


def dims(text: str, opset: int = 18, **constants: object) -> str:
    """Return the dims of the first output."""
    found = shapes(text, opset, **constants)
    return str(found[found.model.graph.outputs[0]]).partition(" =")[0]


def shapes(text: str, opset: int = 18, **constants: object) -> Shapes:
    return infer(model(text, opset, **constants))
