"""Node list: every node with its operator, attributes, and the shapes of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from graphkit.analysis.costs.node_costs import FAILURES
from graphkit.analysis.costs.node_sizes import bytes_of
from graphkit.dtypes import dtype_name
from graphkit.errors import UsageError
from graphkit.graph.attribute_text import attribute_text
from graphkit.graph.declared_types import Dim, shape_text
from graphkit.graph.find_by_name import glob_test
from graphkit.graph.name_families import by_family, expanded
from graphkit.graph.names import counted, module_of, module_parts
from graphkit.graph.view import Node, Value, all_nodes, as_text
from graphkit.model import ModelLike, as_model
from graphkit.render.document_blocks import Block, Prose, Table, table
from graphkit.render.result import Result
from graphkit.shapes import AS_DECLARED, DimSpec, Shapes, declarations, infer
from graphkit.shapes.tensor import plain_dims
from graphkit.suggest import did_you_mean

__all__ = ["NodeList", "NodeRow", "TensorOf", "node_list"]


@dataclass(frozen=True)
class TensorOf:
    """A tensor that a node reads or gives.

    Attributes:
        name: Its name in the node's scope, "" for an input that is left out.
        dtype: Such as `float32`, "?" if unknown.
        shape: The dims: numbers, and expressions as text; None if even the rank is unknown.
        bytes: Its size, None where dtype or dims are not known as numbers.
        readers: How many inputs of nodes read it, in bodies too.
    """

    name: str
    dtype: str
    shape: tuple[Dim, ...] | None
    bytes: int | None
    readers: int


@dataclass(frozen=True)
class NodeRow:
    """A node.

    Attributes:
        node: Its name, or its operator and position if it has none, after the path of its scope.
        op: The operator, with its domain unless that is the default one.
        module: The module that it was exported from, "" where nothing tells.
        attributes: Names and values in a few words.
    """

    node: str
    op: str
    module: str
    attributes: tuple[tuple[str, str], ...]
    inputs: tuple[TensorOf, ...]
    outputs: tuple[TensorOf, ...]


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
        yield Prose(f"{counted(len(self.rows), 'node(s)')}{of_all}.")
        families = by_family((row.node, _cells(row)) for row in self.rows)
        if families:
            yield table(
                "Node:code | Op | Gives:code | Times:number | Attributes:note",
                [(label, op, outputs, count, attributes) for label, (op, outputs, attributes), count in families],
            )

    def csv_tables(self) -> Iterator[Table]:
        columns = "Node:code | Op | Module:code | Attributes | Reads:code | Gives:code | Bytes:number | Readers:number"
        yield table(columns, [_flat(row) for row in self.rows])


def _flat(row: NodeRow) -> tuple[str | int | None, ...]:
    """Return all that is known of a node in a row of plain cells."""
    sizes = [tensor.bytes for tensor in row.outputs]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    readers = sum(tensor.readers for tensor in row.outputs)
    return row.node, row.op, row.module, _attributes(row), _tensors(row.inputs), _tensors(row.outputs), total, readers


def _cells(row: NodeRow) -> tuple[str, str, str]:
    outputs = ", ".join(f"{tensor.dtype} {shape_text(tensor.shape)}" for tensor in row.outputs)
    return row.op, outputs, _attributes(row)


def _attributes(row: NodeRow) -> str:
    return ", ".join(f"{name} = {value}" for name, value in row.attributes)


def _tensors(tensors: Sequence[TensorOf]) -> str:
    named = (f"{tensor.name} {tensor.dtype} {shape_text(tensor.shape)}" if tensor.name else "" for tensor in tensors)
    return "; ".join(named)


def node_list(
    model: ModelLike,
    spec: DimSpec = AS_DECLARED,
    *,
    filters: Sequence[str] = (),
    ops: Sequence[str] = (),
    modules: Sequence[str] = (),
) -> NodeList:
    """List the nodes of a model.

    Args:
        model: The model, or its path.
        spec: The known facts about the input dims.
        filters: Globs such as `/model/layers.0/*`, or families such as `layers.{0-5}/*`: only nodes that one of them
            matches by name, or by that of an output.
        ops: Only nodes of these operators: `MatMul`, `com.microsoft.Attention`.
        modules: Only nodes of these modules and those inside them: `model/layers.0`, `model.layers.{0-5}.mlp`.

    Returns:
        A row for each node, with its attributes, inputs and outputs.

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
        shown = _matching(shown, [(glob, glob_test(glob)) for glob in filters], _names)
    if ops:
        shown = _matching(shown, [(op, op.__eq__) for op in ops], lambda node: (node.operator, node.op_type))
    if modules:
        shown = _matching(shown, [(module, _module_test(module)) for module in modules], lambda node: [module_of(node)])
    return NodeList(len(nodes), tuple(_row(shapes, node) for node in shown))


def _matching(
    nodes: Sequence[Node],
    tests: Sequence[tuple[str, Callable[[str], bool]]],
    names: Callable[[Node], Iterable[str]],
) -> list[Node]:
    """Return the nodes of which one of the names passes one of the tests.

    Raises:
        UsageError: A test, by the text that it was made of, is passed by no node.
    """
    matches: set[Node] = set()
    for text, test in tests:
        matched = [node for node in nodes if any(map(test, names(node)))]
        if not matched:
            hint = did_you_mean(text, (name for node in nodes for name in names(node)), "`graphkit nodes` lists them")
            raise UsageError(f"no node matches '{text}' - {hint}")
        matches.update(matched)
    return [node for node in nodes if node in matches]


def _names(node: Node) -> Iterator[str]:
    yield node.path
    yield from (value.name for value in node.results)


def _module_test(module: str) -> Callable[[str], bool]:
    """Return whether a module is this one or in it; exporters write both / and . between the parts of a path."""
    paths = {module_parts(name) for name in expanded(module)}
    return lambda candidate: any(module_parts(candidate)[: len(path)] == path for path in paths)


def _row(shapes: Shapes, node: Node) -> NodeRow:
    return NodeRow(
        node.path,
        node.operator,
        module_of(node),
        tuple((as_text(attribute.name), attribute_text(attribute)) for attribute in node.proto.attribute),
        tuple(_tensor(shapes, value) for value in node.inputs),
        tuple(_tensor(shapes, value) for value in node.results),
    )


def _tensor(shapes: Shapes, value: Value | None) -> TensorOf:
    if value is None:
        return TensorOf("", "?", None, None, 0)
    tensor = shapes[value]
    dims = plain_dims(tensor.dims)
    return TensorOf(
        value.name,
        dtype_name(tensor.dtype) if tensor.dtype else "?",
        dims,
        _bytes(shapes, value),
        len(value.consumers),
    )


def _bytes(shapes: Shapes, value: Value) -> int | None:
    """Return the size of a tensor, None where it is not known as a number."""
    try:
        return bytes_of(value, shapes).constant
    except FAILURES:
        return None
