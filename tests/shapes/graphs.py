"""Small models from ONNX text."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

from graphkit.model import Model
from graphkit.shapes import Shapes, infer

HEAD = '<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1, "local" : 1, "custom" : 1]>\n'


def model(text: str, opset: int = 18, **constants: object) -> Model:
    """Return the model of a graph in ONNX text; keywords become initializers."""
    proto = onnx.parser.parse_model(HEAD.format(opset=opset) + text)
    for name, value in constants.items():
        array = np.array(value, np.float32 if isinstance(value, float) else None)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return Model.from_proto(proto)


def dims(text: str, opset: int = 18, **constants: object) -> str:
    """Return the dims of the first output."""
    found = shapes(text, opset, **constants)
    return str(found[found.model.graph.outputs[0]]).partition(" =")[0]


def shapes(text: str, opset: int = 18, **constants: object) -> Shapes:
    return infer(model(text, opset, **constants))
