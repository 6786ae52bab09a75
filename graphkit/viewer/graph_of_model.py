"""The graphs of a model as Model Explorer reads them: the main graph with all bodies in it, and one for each function.

Weights and constants are no nodes: what reads one says so. The nodes of a body are in a group of the node that it
belongs to, which takes the body's results; a node that calls a function leads to the graph of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from graphkit.dtypes import dtype_name
from graphkit.graph.attribute_text import attribute_text, tensor_text
from graphkit.graph.declared_types import shape_text
from graphkit.graph.names import count_things
from graphkit.graph.view import Node, Scope, Value, as_text
from graphkit.model import Model
from graphkit.model_diff.node_matching import function_keys
from graphkit.ops.tensor import plain_dims
from graphkit.shapes import Shapes
from graphkit.viewer.explorer_format import Graph, GraphNode, GroupNodeConfig, IncomingEdge, KeyValue, MetadataItem
from graphkit.viewer.namespaces import Namespaces, find_namespaces
from graphkit.viewer.node_ids import NodeIds

__all__ = ["graph_ids", "model_graphs"]

ENDS = ("Inputs", "Outputs")  # the groups of the inputs and outputs of a graph
REPEATED = ("#e8f0fe", "#4285f4")  # background and border of a group of repeated layers
LONGEST = 1000  # characters of a line
Lines = Callable[[Node], Sequence[tuple[str, str]]]


def graph_ids(model: Model, label: str) -> dict[Scope, str]:
    """Return the ids of the main graph, which is called as the model, and of each function; two models share none."""
    ids = {model.graph: label}
    for (domain, name, overload), scope in function_keys(model).items():
        ids[scope] = f"{label}: function {'.'.join(filter(None, (domain, name, overload)))}"
    return ids


def model_graphs(
    shapes: Shapes, names: Mapping[Scope, str], ids: NodeIds, lines: Lines, about: Mapping[str, str]
) -> list[Graph]:
    """Return the graphs of a model.

    Args:
        shapes: Its shapes.
        names: The ids of its graphs.
        ids: The ids of its nodes.
        lines: Gives what is known of a node besides, as names and texts.
        about: What to know of the model as a whole.
    """
    return [_Maker(shapes, scope, names, ids, lines, about).graph() for scope in names]


class _Maker:
    """Makes the graph of the main graph, or of a function."""

    def __init__(
        self,
        shapes: Shapes,
        scope: Scope,
        names: Mapping[Scope, str],
        ids: NodeIds,
        lines: Lines,
        about: Mapping[str, str],
    ) -> None:
        self.shapes, self.scope, self.ids, self.lines, self.about = shapes, scope, ids, lines, about
        self.name = names[scope]
        self.functions = {key: names[body] for key, body in function_keys(shapes.model).items()}
        self.spaces: Namespaces = find_namespaces(scope)

    def graph(self) -> Graph:
        nodes = [*self.inputs(self.scope, ENDS[0]), *self.nodes(), *self.outputs()]
        configs = [GroupNodeConfig(f"^{_escape_namespace(space)}$", *REPEATED) for space in self.spaces.repeated]
        return Graph(self.name, nodes, self.attributes(), configs)

    def nodes(self) -> Iterator[GraphNode]:
        for scope in self.scope.walk():
            if scope is not self.scope:
                yield from self.inputs(scope, self.spaces.of_scope[scope])
            yield from (self.node(node) for node in scope.nodes if not node.is_op("Constant"))

    def node(self, node: Node) -> GraphNode:
        called = self.functions.get((node.domain, node.op_type, node.proto.overload))
        attributes = [
            (as_text(each.name), attribute_text(each)) for each in node.proto.attribute if not _is_graph(each)
        ]
        edges, constants = self.reads(node.inputs)
        for name, body in node.bodies.items():
            for at, value in enumerate(body.outputs):
                edges += self.edge(value, f"{name} {at}")
        return GraphNode(
            self.ids.of[node],
            node.op_type,
            self.spaces.of_node[node],
            _attribute_lines([("node", node.path), *_domain_line(node), *attributes, *constants, *self.lines(node)]),
            incomingEdges=edges,
            outputsMetadata=[self.output(at, value) for at, value in enumerate(node.outputs) if value is not None],
            inputsMetadata=[_tensor_tag(str(at), value) for at, value in enumerate(node.inputs) if value is not None],
            subgraphIds=[] if called is None else [called],
        )

    def reads(self, values: Sequence[Value | None]) -> tuple[list[IncomingEdge], list[tuple[str, str]]]:
        """Return the edges of what a node reads, and the constants."""
        edges, constants = [], []
        for at, value in enumerate(values):
            if value is None:
                continue
            edges += self.edge(value, str(at))
            if value.is_constant:
                tensor = value.constant
                text = tensor_text(tensor) if tensor is not None else "sparse, or not known"
                constants.append((f"input {at}", f"{value.name}: {text}"))
        return edges, constants

    def edge(self, value: Value, at: str) -> list[IncomingEdge]:
        """Return the edge to a value, none to a constant."""
        if value.is_constant:
            return []
        source = self.ids.of.get(value.producer if value.producer is not None else value)
        return [] if source is None else [IncomingEdge(source, str(value.output_index), at)]

    def output(self, at: int, value: Value) -> MetadataItem:
        tensor, reason = self.shapes[value], self.shapes.reason(value)
        lines = [
            ("__tensor_tag", value.name),
            ("shape", shape_text(plain_dims(tensor.dims))),
            ("dtype", dtype_name(tensor.dtype) if tensor.dtype else "?"),
        ]
        if tensor.values_text:
            lines.append(("value", tensor.values_text))
        return MetadataItem(str(at), _attribute_lines([*lines, *([("unknown", reason)] if reason else [])]))

    def inputs(self, scope: Scope, space: str) -> Iterator[GraphNode]:
        """Yield a node for each input; that of a body reads what its node is given."""
        for at, value in enumerate(scope.inputs):
            if value.is_constant:
                continue
            source = _body_input_source(scope, at)
            edges = [] if source is None else self.edge(source, "0")
            about = _attribute_lines([("name", value.name)])
            yield GraphNode(self.ids.of[value], "Input", space, about, edges, [self.output(0, value)])

    def outputs(self) -> Iterator[GraphNode]:
        for at, value in enumerate(self.scope.outputs):
            edges, constants = self.reads([value])
            about = _attribute_lines([("name", value.name), *constants])
            tags = [_tensor_tag("0", value)]
            yield GraphNode(self.ids.of[self.scope, at], "Output", ENDS[1], about, edges, inputsMetadata=tags)

    def attributes(self) -> dict[str, dict[str, str]]:
        """Return what is known of groups: how many nodes are in them, and which layers they repeat."""
        counts: dict[str, int] = {}
        for node, space in self.spaces.of_node.items():
            if not node.is_op("Constant"):
                for inner in _namespaces_around(space):
                    counts[inner] = counts.get(inner, 0) + 1
        about = {space: {"size": count_things(count, "node(s)")} for space, count in counts.items()}
        for space, text in self.spaces.repeated.items():
            about.setdefault(space, {})["repeated layers"] = text[:LONGEST]
        return {**about, "": {**self.about, **about.get("", {})}}


def _namespaces_around(space: str) -> Iterator[str]:
    """Yield a namespace and those around it, "" last."""
    while space:
        yield space
        space = space.rpartition("/")[0]
    yield ""


def _body_input_source(body: Scope, at: int) -> Value | None:
    """Return what a node gives an input of its body, None where nothing, or the number of the iteration."""
    node = body.owner
    if node is None or (node.is_op("Loop") and at == 0):
        return None
    return node.input(at + (node.is_op("Scan") and node.scope.opset() < 9))


def _domain_line(node: Node) -> list[tuple[str, str]]:
    return [("domain", node.domain)] if node.domain else []


def _is_graph(attribute: object) -> bool:
    return attribute.HasField("g") or len(attribute.graphs) > 0  # type: ignore[attr-defined]


def _tensor_tag(at: str, value: Value) -> MetadataItem:
    return MetadataItem(at, _attribute_lines([("__tensor_tag", value.name)]))


def _attribute_lines(lines: Sequence[tuple[str, str]]) -> list[KeyValue]:
    return [KeyValue(name, text if len(text) <= LONGEST else f"{text[:LONGEST]}...") for name, text in lines]


def _escape_namespace(space: str) -> str:
    """Return a namespace as a regular expression of JavaScript."""
    return "".join(f"\\{character}" if character in r"\^$.*+?()[]{}|/-" else character for character in space)
