"""Weight list: every initializer and constant with its dtype, shape, bytes, place and readers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from onnx import SparseTensorProto, TensorProto

from graphkit.dtypes import dtype_name
from graphkit.graph.declared_types import shape_text
from graphkit.graph.find_by_name import in_order
from graphkit.graph.name_families import by_family, expanded, families, in_short
from graphkit.graph.names import counted
from graphkit.graph.view import Value
from graphkit.io.external import extent
from graphkit.io.tensors import payload_size
from graphkit.model import Model, ModelLike, as_model
from graphkit.render.document_blocks import Block, Prose, Table, table
from graphkit.render.result import Result

__all__ = ["WeightList", "WeightOrder", "WeightRow", "weight_list"]

WIDE = 60  # characters of a family's name
WeightOrder = Literal["file", "bytes", "name"]


@dataclass(frozen=True)
class WeightRow:
    """An initializer, or the value of a Constant node.

    Attributes:
        name: Its name in `scope`.
        scope: Path of the scope, "" for the main graph.
        shape: Its dims; of a sparse tensor, those that it stands for.
        bytes: Bytes of its data, None where its dtype has no fixed size.
        place: The file with its data: "" for that of the model.
        readers: The nodes that read it, by path; outputs of graphs are none.
    """

    name: str
    scope: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int | None
    place: str
    readers: tuple[str, ...]


@dataclass(frozen=True)
class WeightList(Result):
    """The initializers and constants of a model.

    Attributes:
        by: Their order; with "bytes", families of the text have the most bytes first, too.
    """

    title: ClassVar[str] = "Weights"
    computed: ClassVar[tuple[str, ...]] = ("bytes",)
    rows: tuple[WeightRow, ...]
    by: WeightOrder = field(default="file", metadata={"in_json": False})

    @property
    def bytes(self) -> int:
        """Bytes of all of them."""
        return sum(row.bytes or 0 for row in self.rows)

    def blocks(self) -> Iterator[Block]:
        yield Prose(f"{counted(len(self.rows), 'tensor(s)')}, {self.bytes:,} bytes.")
        rows = list(self._families())
        if self.by == "bytes":
            rows.sort(key=lambda row: -(row[4] or 0))
        if rows:
            yield table("Tensor:code | Dtype | Shape:code | Times:number | Bytes:number | Read by:note", rows)

    def csv_tables(self) -> Iterator[Table]:
        rows = [
            (row.scope, row.name, row.dtype, shape_text(row.shape), row.bytes, row.place, "; ".join(row.readers))
            for row in self.rows
        ]
        yield table("Scope:code | Tensor:code | Dtype | Shape:code | Bytes:number | File | Read by:code", rows)

    def _families(self) -> Iterator[tuple[str, str, str, int, int | None, str]]:
        """Yield a row for each family of names of one dtype, shape and size."""
        named = {f"{row.scope}::{row.name}" if row.scope else row.name: row for row in self.rows}
        cells = ((name, (row.dtype, shape_text(row.shape), row.bytes)) for name, row in named.items())
        for label, (dtype, shape, size), count in by_family(cells):
            names = list(expanded(label)) if count > 1 else [label]
            shown = label if count == 1 or len(label) <= WIDE else f"{names[0]} and {count - 1:,} more"
            readers = in_short(families(reader for name in names for reader in named[name].readers))
            yield shown, dtype, shape, count, None if size is None else size * count, f"read by {readers or 'no node'}"


def weight_list(model: ModelLike, *, by: WeightOrder = "file") -> WeightList:
    """List the initializers and constants of a model. Their data is not read.

    Args:
        model: The model, or its path.
        by: The order: that of the file, the most bytes first, or names.

    Returns:
        A row for each of them, and how many bytes they have together.

    Example:
        >>> graphkit.weight_list(graphkit.load("example:causal-attention"), by="bytes").rows[0].shape
        (64, 16)
    """
    model = as_model(model)
    rows = [_row(model, value) for value in in_order(model.scopes) if value.is_constant]
    if by == "bytes":
        rows.sort(key=lambda row: -(row.bytes or 0))
    elif by == "name":
        rows.sort(key=lambda row: (row.scope, row.name))
    return WeightList(tuple(rows), by)


def _row(model: Model, value: Value) -> WeightRow:
    sparse = value.sparse or (
        None if value.producer is None else value.producer.attr("sparse_value", SparseTensorProto)
    )
    tensors = [sparse.values, sparse.indices] if sparse is not None else [value.constant or TensorProto()]
    sizes = [payload_size(tensor) for tensor in tensors]
    dims = sparse.dims if sparse is not None else tensors[0].dims
    return WeightRow(
        name=value.name,
        scope=value.scope.path,
        dtype=dtype_name(tensors[0].data_type) if tensors[0].data_type else "?",
        shape=tuple(dims),
        bytes=None if None in sizes else sum(size or 0 for size in sizes),
        place=_place(model, tensors[0]),
        readers=tuple(dict.fromkeys(node.path for node, _ in value.consumers)),
    )


def _place(model: Model, tensor: TensorProto) -> str:
    """Return the name of the file with the data of a tensor, "" for that of the model."""
    if tensor.data_location != TensorProto.EXTERNAL:
        return ""
    location = extent(tensor).location
    return "" if location == model.name else location
