"""Typical sizes of symbols of which an input tells more than a role: samples of audio, nodes and edges of a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from graphkit.graph.cache_entries import tokens
from graphkit.graph.declared_types import declared_type
from graphkit.graph.operator_traits import MOVING
from graphkit.graph.uses import readers
from graphkit.graph.view import Node, Value
from graphkit.shapes import Expr, Shapes
from graphkit.shapes.constraints.symbol_sizes import plain_symbol
from graphkit.shapes.graph_inputs import input_dims

__all__ = ["indexed_dims", "told_sizes"]

SAMPLES = 16_000  # of a second of speech
NODES, EDGES = 128, 512
PIXELS = 224
AUDIO = {"audio", "wav", "waveform", "waveforms", "speech", "samples"}
INDEXING = ("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND")


def told_sizes(shapes: Shapes) -> dict[str, int]:
    """Return a size for each symbol of a model's inputs that is one of these; what is called a batch is none."""
    sizes: dict[str, int] = {}
    inputs = shapes.model.roles.inputs
    for value, role in inputs.items():
        dims = input_dims(value) or ()
        if role == "image" and len(dims) == 4 and dims[3].constant in (1, 3) and dims[1].constant is None:
            sizes |= dict.fromkeys(_symbols(dims[1:3]), PIXELS)  # channels last
        if _is_raw_audio(value, dims, is_audio=role == "audio"):
            sizes |= dict.fromkeys(_symbols(dims[-1:]), SAMPLES)
    for value in inputs if not shapes.model.roles.pasts else ():  # rows of a cache are sequences of a batch
        rows = {name for name in _symbols(indexed_dims(value, shapes)) if "batch" not in name}
        if rows:
            sizes |= dict.fromkeys(_symbols(input_dims(value) or ()), EDGES) | dict.fromkeys(rows, NODES)
    return sizes


def _symbols(dims: Iterable[Expr]) -> list[str]:
    return [name for dim in dims if (name := plain_symbol(dim)) is not None]


def _is_raw_audio(value: Value, dims: tuple[Expr, ...], *, is_audio: bool) -> bool:
    """Whether an input is samples [batch, time] or [batch, 1, time], which features of audio are not."""
    declared = declared_type(value)
    is_mono = len(dims) == 2 or (len(dims) == 3 and dims[1].constant == 1)
    is_named = is_audio or bool(AUDIO & set(tokens(value.name)))
    return is_mono and is_named and declared is not None and declared.is_float


def indexed_dims(value: Value, shapes: Shapes) -> Iterator[Expr]:
    """Yield the dims along which the elements of an input index computed tensors: they are below each."""
    for node, index in readers(value, _passes):
        table = node.input(0) if index == 1 and node.is_op(*INDEXING) else None
        dims = shapes.dims(table) if table is not None and not table.is_constant else None
        axis = node.axis(len(dims or ()), name="batch_dims" if node.op_type.endswith("ND") else "axis")
        if dims is not None and axis is not None and _is_single(node, shapes):
            yield dims[axis]


def _passes(node: Node, index: int) -> bool:
    if node.is_op("Where"):  # negative indices count from the end
        return index > 0
    return node.operator in (*MOVING, "Cast") and (index == 0 or node.is_op("Concat"))


def _is_single(node: Node, shapes: Shapes) -> bool:
    """Whether one number is an index, which those of GatherND and ScatterND may have more of."""
    indices = node.input(1)
    dims = shapes.dims(indices) if indices is not None else None
    return not node.op_type.endswith("ND") or (bool(dims) and dims is not None and dims[-1].constant == 1)
