"""Float16: the constants of wider floats that float16 can only hold as infinity, or as zero.

A conversion that rounds each constant makes a mask's floor of -3.4e38 -inf, and an epsilon of 1e-12 zero. What a node
computes may overflow too, but that depends on data: `graphkit compare` tells it from runs of both models.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from msgspec import Struct
from onnx import TensorProto

from graphkit.analysis.findings import Finding, Judged
from graphkit.dtypes import inline_array
from graphkit.graph.view import all_nodes, all_scopes
from graphkit.model import ModelLike, as_model
from graphkit.render.result import tabled


class Lost(Struct, frozen=True):
    """A number that float16 does not have."""

    number: float  # the number; of a tensor with several, that of the largest magnitude
    becomes: str  # the nearest float16: "inf", "-inf" or "0"
    constants: tuple[str, ...]  # the tensors, or the nodes that hold them
    readers: tuple[str, ...]  # the operators that read them, the most frequent first

    @property
    def where(self) -> str:
        """The first constant, and who reads them."""
        more = f" and {len(self.constants) - 1:,} more" if len(self.constants) > 1 else ""
        return f"{self.constants[0]}{more}, read by {', '.join(self.readers)}"


@dataclass(frozen=True)
class Float16Losses(Judged):
    """The constants that float16 cannot hold; those that stay in files are not read."""

    title: ClassVar[str] = "Float16"
    lost: tuple[Lost, ...] = field(
        metadata=tabled(
            "Number:code | Constants:note | In float16:number | Constants:number",
            cells=lambda lost: (f"{lost.number:.6g}", lost.where, lost.becomes, len(lost.constants)),
            empty="Float16 can hold all constants of the graph; weights in files are not read.",
        )
    )

    def found(self) -> tuple[Finding, ...]:
        findings = []
        for lost in self.lost:
            number, becomes, count = f"{lost.number:.6g}", lost.becomes, len(lost.constants)
            text = f"{number} becomes {becomes} in float16: {lost.where}"
            findings.append(Finding("float16", f"{number} becomes {becomes} ({count:,})", text, number, count))
        return tuple(findings)

    def remarks(self) -> Iterator[str]:
        becomes = {lost.becomes for lost in self.lost}
        if becomes & {"inf", "-inf"}:
            yield "A product of infinity and 0, and a Softmax of nothing but -inf, is NaN."
        if "0" in becomes:
            yield "An epsilon that becomes 0 no longer keeps a division from dividing by 0."
        yield "Replace these numbers by ones that float16 has, from 6e-8 to 65504, before a conversion."


def float16_losses(model: ModelLike) -> Float16Losses:
    """Return the constants that become infinity or zero in float16, those numbers first that the most constants lose.

    Zeros are told where all elements of a tensor become zero, because a single weight of a matrix can do without.

    Example:
        >>> graphkit.float16_losses(graphkit.load("example:causal-attention")).lost
        ()
    """
    model = as_model(model)
    values = [value for scope in all_scopes(model.scopes) for value in scope.values.values()]
    fillers = [node for node in all_nodes(model.scopes) if node.is_op("ConstantOfShape")]
    held = [(value.name, value.constant, [node for node, _ in value.consumers]) for value in values]
    held += [(node.path, node.attr("value", TensorProto), [node]) for node in fillers]
    constants: dict[tuple[float, str], list[str]] = defaultdict(list)
    readers: dict[tuple[float, str], Counter[str]] = defaultdict(Counter)
    for name, tensor, reading in held:
        if reading and tensor is not None and (key := _lost_number(tensor)) is not None:
            constants[key].append(name)
            readers[key].update(node.operator for node in reading)
    losses = [
        Lost(*key, tuple(names), tuple(op for op, _ in readers[key].most_common())) for key, names in constants.items()
    ]
    return Float16Losses(tuple(sorted(losses, key=lambda lost: (-len(lost.constants), lost.number))))


def _lost_number(tensor: TensorProto) -> tuple[float, str] | None:
    """Return the number that a tensor loses in float16, and its value there."""
    array = inline_array(tensor) if tensor.data_type in (TensorProto.FLOAT, TensorProto.DOUBLE) else None
    finite = array[np.isfinite(array)] if array is not None else np.empty(0)
    if not finite.size:
        return None
    number = float(finite[np.abs(finite).argmax()])
    with np.errstate(over="ignore", under="ignore"):
        nearest = np.float16(number)
    if np.isinf(nearest):
        return number, "inf" if number > 0 else "-inf"
    return (number, "0") if nearest == 0 != number else None
