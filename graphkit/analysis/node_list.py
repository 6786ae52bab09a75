"""Lists for scripts: nodes with attributes and tensors, and initializers and constants with their readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from msgspec import Struct
from onnx import SparseTensorProto, TensorProto

from graphkit.analysis.node_costs import FAILURES, bytes_of
from graphkit.dtypes import dtype_name
from graphkit.errors import UsageError, count_things, did_you_mean
from graphkit.graph.declared_types import Dim, attribute_text, shape_text
from graphkit.graph.names import (
    by_family,
    expand_label,
    glob_test,
    in_order,
    in_short,
    label_families,
    module_of,
    module_parts,
)
from graphkit.graph.view import Node, Value, all_nodes, as_text
from graphkit.io.byte_source import external_extent
from graphkit.io.tensors import payload_size
from graphkit.model import Model, ModelLike, as_model
from graphkit.ops.tensor import plain_dims
from graphkit.render.document_blocks import Block, Prose, Table, table, table_of
from graphkit.render.result import Result
from graphkit.shapes import AS_DECLARED, DimSpec, Shapes, declarations, infer

WIDE = 60  # characters of a family's name
WeightOrder = Literal["file", "bytes", "name"]


class TensorOf(Struct, frozen=True):
    """A tensor that a node reads or gives."""

    name: str  # its name in the node's scope, "" for an input that is left out
    dtype: str  # such as `float32`, "?" if unknown
    shape: tuple[Dim, ...] | None  # the dims: numbers, and expressions as text; None if even the rank is unknown
    bytes: int | None  # its size, None where dtype or dims are not known as numbers
    readers: int  # how many inputs of nodes read it, in bodies too

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} {shape_text(self.shape)}" if self.name else ""


class NodeRow(Struct, frozen=True):
    """A node."""

    node: str  # its name, or its operator and position if it has none, after the path of its scope
    op: str  # the operator, with its domain unless that is the default one
    module: str  # the module that it was exported from, "" where nothing tells
    attributes: tuple[tuple[str, str], ...]  # names and values in a few words
    inputs: tuple[TensorOf, ...]
    outputs: tuple[TensorOf, ...]

    @property
    def attributes_text(self) -> str:
        return ", ".join(f"{name} = {value}" for name, value in self.attributes)


@dataclass(frozen=True)
class NodeList(Result):
    """Nodes, in the order of the file; those of a body follow after all of the graph that it is in.

    Attributes:
        nodes: How many nodes the model has.
    """

    title: ClassVar[str] = "Nodes"
    nodes: int
    rows: tuple[NodeRow, ...]

    def blocks(self) -> Iterator[Block]:
        of_all = "" if len(self.rows) == self.nodes else f" of {self.nodes:,}"
        yield Prose(f"{count_things(len(self.rows), 'node(s)')}{of_all}.")
        gives = [", ".join(f"{out.dtype} {shape_text(out.shape)}" for out in row.outputs) for row in self.rows]
        rows = zip(self.rows, gives, strict=True)
        if families := by_family((row.node, (row.op, given, row.attributes_text)) for row, given in rows):
            yield table(
                "Node:code | Op | Gives:code | Times:number | Attributes:note",
                [(label, op, outputs, count, attributes) for label, (op, outputs, attributes), count in families],
            )

    def csv_tables(self) -> Iterator[Table]:
        columns = "Node:code | Op | Module:code | Attributes | Reads:code | Gives:code | Bytes:number | Readers:number"
        rows = []
        for row in self.rows:
            sizes = [tensor.bytes for tensor in row.outputs]
            total = None if None in sizes else sum(size or 0 for size in sizes)
            tensors = ("; ".join(map(str, of)) for of in (row.inputs, row.outputs))
            readers = sum(tensor.readers for tensor in row.outputs)
            rows.append((row.node, row.op, row.module, row.attributes_text, *tensors, total, readers))
        yield table(columns, rows)


def node_list(
    model: ModelLike,
    spec: DimSpec = AS_DECLARED,
    *,
    filters: Sequence[str] = (),
    ops: Sequence[str] = (),
    modules: Sequence[str] = (),
) -> NodeList:
    """Return a row for each node of a model, with its attributes, inputs and outputs.

    Args:
        model: The model, or its path.
        spec: The known facts about the input dims.
        filters: Globs such as `/model/layers.0/*`, or families such as `layers.{0-5}/*`: only nodes that one of them
            matches by name, or by that of an output.
        ops: Only nodes of these operators: `MatMul`, `com.microsoft.Attention`.
        modules: Only nodes of these modules and those inside them: `model/layers.0`, `model.layers.{0-5}.mlp`.

    Raises:
        UsageError: A filter, an operator or a module matches no node.

    Example:
        >>> graphkit.node_list(graphkit.load("example:causal-attention"), ops=["Softmax"]).rows[0].attributes
        (('axis', '-1'),)
    """
    shapes = infer(declarations(as_model(model)).model, spec)
    nodes = list(all_nodes(shapes.model.scopes))
    shown: Sequence[Node] = nodes
    if filters:
        shown = _matching_nodes(
            shown, {glob: glob_test(glob) for glob in filters}, lambda n: (n.path, *(value.name for value in n.results))
        )
    if ops:
        shown = _matching_nodes(shown, {op: op.__eq__ for op in ops}, lambda n: (n.operator, n.op_type))
    if modules:
        shown = _matching_nodes(shown, {name: _module_test(name) for name in modules}, lambda n: (module_of(n),))
    rows = []
    for node in shown:
        attributes = tuple((as_text(each.name), attribute_text(each)) for each in node.proto.attribute)
        inputs, outputs = (tuple(_tensor_of(shapes, value) for value in of) for of in (node.inputs, node.results))
        rows.append(NodeRow(node.path, node.operator, module_of(node), attributes, inputs, outputs))
    return NodeList(len(nodes), tuple(rows))


def _matching_nodes(
    nodes: Sequence[Node], tests: Mapping[str, Callable[[str], bool]], names: Callable[[Node], Sequence[str]]
) -> list[Node]:
    """Return the nodes of which one of the names passes one of the tests, by the text that each was made of."""
    matches: set[Node] = set()
    for text, test in tests.items():
        matched = [node for node in nodes if any(map(test, names(node)))]
        if not matched:
            hint = did_you_mean(text, (name for node in nodes for name in names(node)), "`graphkit nodes` lists them")
            raise UsageError(f"no node matches '{text}' - {hint}")
        matches.update(matched)
    return [node for node in nodes if node in matches]


def _module_test(module: str) -> Callable[[str], bool]:
    """Return whether a module is this one or in it; exporters write both / and . between the parts of a path."""
    paths = {module_parts(name) for name in expand_label(module)}
    return lambda candidate: any(module_parts(candidate)[: len(path)] == path for path in paths)


def _tensor_of(shapes: Shapes, value: Value | None) -> TensorOf:
    if value is None:
        return TensorOf("", "?", None, None, 0)
    tensor = shapes[value]
    dims = plain_dims(tensor.dims)
    try:
        size = bytes_of(value, shapes).constant
    except FAILURES:
        size = None
    return TensorOf(value.name, dtype_name(tensor.dtype) if tensor.dtype else "?", dims, size, len(value.consumers))


class WeightRow(Struct, frozen=True):
    """An initializer, or the value of a Constant node."""

    name: str  # its name in `scope`
    scope: str  # path of the scope, "" for the main graph
    dtype: str
    shape: tuple[int, ...]  # its dims; of a sparse tensor, those that it stands for
    bytes: int | None  # bytes of its data, None where its dtype has no fixed size
    place: str  # the file with its data: "" for that of the model
    readers: tuple[str, ...]  # the nodes that read it, by path; outputs of graphs are none

    @property
    def read_by(self) -> str:
        return "; ".join(self.readers)


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
        return sum(row.bytes or 0 for row in self.rows)

    def blocks(self) -> Iterator[Block]:
        yield Prose(f"{count_things(len(self.rows), 'tensor(s)')}, {self.bytes:,} bytes.")
        named = {f"{row.scope}::{row.name}" if row.scope else row.name: row for row in self.rows}
        cells = ((name, (row.dtype, shape_text(row.shape), row.bytes)) for name, row in named.items())
        rows = []
        for label, (dtype, shape, size), count in by_family(cells):
            names = list(expand_label(label)) if count > 1 else [label]
            shown = label if count == 1 or len(label) <= WIDE else f"{names[0]} and {count - 1:,} more"
            readers = in_short(label_families(reader for name in names for reader in named[name].readers))
            total = None if size is None else size * count
            rows.append((shown, dtype, shape, count, total, f"read by {readers or 'no node'}"))
        if self.by == "bytes":
            rows.sort(key=lambda row: -(row[4] or 0))
        if rows:
            yield table("Tensor:code | Dtype | Shape:code | Times:number | Bytes:number | Read by:note", rows)

    def csv_tables(self) -> Iterator[Table]:
        headings = "Scope:code | Tensor:code=name | Dtype | Shape:code | Bytes:number | File=place"
        yield table_of(f"{headings} | Read by:code=read_by", self.rows)


def weight_list(model: ModelLike, *, by: WeightOrder = "file") -> WeightList:
    """Return a row for each initializer and constant of a model, whose data is not read, and the bytes of all.

    Args:
        model: The model, or its path.
        by: The order: that of the file, the most bytes first, or names.

    Example:
        >>> graphkit.weight_list(graphkit.load("example:causal-attention"), by="bytes").rows[0].shape
        (64, 16)
    """
    model = as_model(model)
    rows = [_weight_row(model, value) for value in in_order(model.scopes) if value.is_constant]
    if by == "bytes":
        rows.sort(key=lambda row: -(row.bytes or 0))
    elif by == "name":
        rows.sort(key=lambda row: (row.scope, row.name))
    return WeightList(tuple(rows), by)


def _weight_row(model: Model, value: Value) -> WeightRow:
    sparse = value.sparse or (
        None if value.producer is None else value.producer.attr("sparse_value", SparseTensorProto)
    )
    tensors = [sparse.values, sparse.indices] if sparse is not None else [value.constant or TensorProto()]
    sizes = [payload_size(tensor) for tensor in tensors]
    dims = sparse.dims if sparse is not None else tensors[0].dims
    is_external = tensors[0].data_location == TensorProto.EXTERNAL
    place = external_extent(tensors[0]).location if is_external else ""
    return WeightRow(
        name=value.name,
        scope=value.scope.path,
        dtype=dtype_name(tensors[0].data_type) if tensors[0].data_type else "?",
        shape=tuple(dims),
        bytes=None if None in sizes else sum(size or 0 for size in sizes),
        place="" if place == model.name else place,
        readers=tuple(dict.fromkeys(node.path for node, _ in value.consumers)),
    )
