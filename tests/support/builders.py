"""Models of graphs in ONNX text, and a result of blocks, as most tests build them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx
from onnx import numpy_helper, parser

from graphkit.graph.view import Scope, build_scopes
from graphkit.model import Model
from graphkit.render.document_blocks import Block
from graphkit.render.result import Result

__all__ = ["Shown", "main_scope", "model_of", "model_with_constants", "proto_of"]

NUMBERS = ", ".join(f"int64[1] i{n} = {{{n}}}" for n in (0, 1, 2, 3, 4, 8))


def proto_of(
    graph: str, opset: int = 18, *, ir: int = 10, domains: Sequence[str] = (), **constants: object
) -> onnx.ModelProto:
    """Return the model of a graph in ONNX text, which may begin with its name.

    Args:
        graph: The text.
        opset: The version of ONNX's operators.
        ir: The version of the format.
        domains: Domains of other operators, of version 1.
        constants: Initializers; Python floats become float32.
    """
    imports = ", ".join((f'"" : {opset}', *(f'"{domain}" : 1' for domain in domains)))
    name = "g " if graph.lstrip().startswith("(") else ""
    proto = parser.parse_model(f"<ir_version: {ir}, opset_import: [{imports}]> {name}{graph}")
    for key, value in constants.items():
        array = np.asarray(value)
        is_python = not isinstance(value, np.ndarray | np.generic) and array.dtype == np.float64
        proto.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32) if is_python else array, key))
    return proto


def model_of(graph: str, opset: int = 18, *, ir: int = 10, domains: Sequence[str] = (), **constants: object) -> Model:
    """Return the model of a graph in ONNX text; see `proto_of`."""
    return Model.from_proto(proto_of(graph, opset, ir=ir, domains=domains, **constants))


def model_with_constants(io: str, body: str, opset: int = 18) -> Model:
    """Return a graph whose constants are i0 to i8, m1, and the scalars z and o."""
    constants = f"{NUMBERS}, int64[1] m1 = {{-1}}, int64 z = {{0}}, int64 o = {{1}}"
    return model_of(f"g {io} <{constants}> {{ {body} }}", opset, domains=("com.microsoft", "custom"))


def main_scope(graph: str) -> Scope:
    """Return the main graph of a text of opset 17."""
    return build_scopes(proto_of(graph, 17))[0]


@dataclass(frozen=True)
class Shown(Result):
    """A result of the blocks that it is given."""

    title: ClassVar[str] = "Title"
    parts: tuple[Block, ...]

    def blocks(self) -> Iterable[Block]:
        return self.parts
