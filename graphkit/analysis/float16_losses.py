"""Float16: the constants of wider floats that float16 can only hold as infinity, or as zero.

A conversion that rounds each constant makes a mask's floor of -3.4e38 -inf, and an epsilon of 1e-12 zero. What a node
computes may overflow too, but that depends on data: `graphkit compare` tells it from runs of both models.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from onnx import TensorProto

from graphkit.analysis.findings import Finding, Judged
from graphkit.graph.view import Node, all_nodes, all_scopes
from graphkit.io.tensors import inline_array
from graphkit.model import Model, ModelLike, as_model
from graphkit.render.document_blocks import Block, Prose, table

__all__ = ["Float16Losses", "Lost", "float16_losses"]

WIDER = (TensorProto.FLOAT, TensorProto.DOUBLE)


@dataclass(frozen=True)
class Lost:
    """A number that float16 does not have.

    Attributes:
        number: The number; of a tensor with several, that of the largest magnitude.
        becomes: The nearest float16: "inf", "-inf" or "0".
        constants: The tensors, or the nodes that hold them.
        readers: The operators that read them, the most frequent first.
    """

    number: float
    becomes: str
    constants: tuple[str, ...]
    readers: tuple[str, ...]


@dataclass(frozen=True)
class Float16Losses(Judged):
    """The constants that float16 cannot hold; those that stay in files are not read."""

    title: ClassVar[str] = "Float16"
    lost: tuple[Lost, ...]

    def found(self) -> tuple[Finding, ...]:
        return tuple(_finding(loss) for loss in self.lost)

    def blocks(self) -> Iterator[Block]:
        if not self.lost:
            yield Prose("Float16 can hold all constants of the graph; weights in files are not read.")
            return
        yield table(
            "Number:code | Constants:note | In float16:number | Constants:number",
            [(f"{loss.number:.6g}", _where(loss), loss.becomes, len(loss.constants)) for loss in self.lost],
        )
        becomes = {loss.becomes for loss in self.lost}
        if becomes & {"inf", "-inf"}:
            yield Prose("A product of infinity and 0, and a Softmax of nothing but -inf, is NaN.")
        if "0" in becomes:
            yield Prose("An epsilon that becomes 0 no longer keeps a division from dividing by 0.")
        yield Prose("Replace these numbers by ones that float16 has, from 6e-8 to 65504, before a conversion.")


def _finding(loss: Lost) -> Finding:
    number, constants = f"{loss.number:.6g}", len(loss.constants)
    text = f"{number} becomes {loss.becomes} in float16: {_where(loss)}"
    return Finding("float16", f"{number} becomes {loss.becomes} ({constants:,})", text, number, constants)


def _where(loss: Lost) -> str:
    more = f" and {len(loss.constants) - 1:,} more" if len(loss.constants) > 1 else ""
    return f"{loss.constants[0]}{more}, read by {', '.join(loss.readers)}"


def float16_losses(model: ModelLike) -> Float16Losses:
    """Find the constants that become infinity or zero in float16.

    Zeros are told where all elements of a tensor become zero, because a single weight of a matrix can do without.

    Args:
        model: The model, whose weights are not read.

    Returns:
        The numbers that are lost, those of the most constants first.

    Example:
        >>> graphkit.float16_losses(graphkit.load("example:causal-attention")).lost
        ()
    """
    model = as_model(model)
    constants: dict[tuple[float, str], list[str]] = defaultdict(list)
    readers: dict[tuple[float, str], Counter[str]] = defaultdict(Counter)
    for name, tensor, reading in _constants(model):
        if reading and (key := _lost(tensor)) is not None:
            constants[key].append(name)
            readers[key].update(node.operator for node in reading)
    losses = [
        Lost(number, becomes, tuple(names), tuple(op for op, _ in readers[number, becomes].most_common()))
        for (number, becomes), names in constants.items()
    ]
    return Float16Losses(tuple(sorted(losses, key=lambda loss: (-len(loss.constants), loss.number))))


def _constants(model: Model) -> Iterator[tuple[str, TensorProto, list[Node]]]:
    """Yield each constant with its name and the nodes that read it."""
    for scope in all_scopes(model.scopes):
        for value in scope.values.values():
            if (tensor := value.constant) is not None:
                yield value.name, tensor, [node for node, _ in value.consumers]
    for node in all_nodes(model.scopes):
        if node.is_op("ConstantOfShape") and (filling := node.attr("value", TensorProto)) is not None:
            yield node.path, filling, [node]


def _lost(tensor: TensorProto) -> tuple[float, str] | None:
    """Return the number that a tensor loses in float16, and its value there."""
    array = inline_array(tensor) if tensor.data_type in WIDER else None
    if array is None or not array.size:
        return None
    finite = array[np.isfinite(array)]
    if not finite.size:
        return None
    number = float(finite[np.abs(finite).argmax()])
    with np.errstate(over="ignore", under="ignore"):
        nearest = np.float16(number)
    if np.isinf(nearest):
        return number, "inf" if number > 0 else "-inf"
    return (number, "0") if nearest == 0 != number else None
