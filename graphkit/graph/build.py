"""Build the view of a ModelProto: its scopes, nodes and values."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from graphkit.errors import ModelError
from graphkit.graph.view import Kind, Node, Scope, Value, as_text, body_graphs

__all__ = ["build_scopes"]

MAX_NESTING = 32  # bodies in bodies: protobuf reads 100 messages in each other, and a body is three


def build_scopes(model: onnx.ModelProto, file: str | None = None) -> tuple[Scope, ...]:
    """Return the main graph's scope, then one for each function.

    Raises:
        ModelError: A name is not UTF-8, or bodies are nested too deeply.
    """
    builder = _Builder(file)
    opsets = _opsets(model.opset_import)
    main = Scope("", None, None, opsets)
    builder.fill_graph(main, model.graph)
    scopes = [main]
    for function in model.functions:
        scope = Scope(f"function {function.name}", None, None, {**opsets, **_opsets(function.opset_import)})
        scope.inputs = tuple(builder.define(scope, name, "input") for name in function.input)
        scope.infos = {info.name: info for info in function.value_info}
        builder.fill_nodes(scope, function.node)
        scope.outputs = tuple(builder.use(scope, name) for name in function.output)
        scopes.append(scope)
    return tuple(scopes)


def _opsets(imports: object) -> dict[str, int]:
    return {"" if entry.domain == "ai.onnx" else as_text(entry.domain): entry.version for entry in imports}  # type: ignore[attr-defined]


class _Builder:
    def __init__(self, file: str | None) -> None:
        self.file = file
        self.protos: dict[Scope, Sequence[onnx.NodeProto]] = {}
        self.later: dict[Scope, set[str]] = {}  # outputs of the nodes of a scope, where something is undefined

    def corrupt(self, problem: str, hint: str = "the file is corrupt; export it again") -> ModelError:
        return ModelError(problem, file=self.file, hint=hint)

    def define(self, scope: Scope, name: str, kind: Kind) -> Value:
        if type(name) is not str:  # protobuf gives bytes where a string is not UTF-8
            raise self.corrupt(f"the name {name!r:.60} is not UTF-8")
        if name in scope.values:
            self.note_twice(scope, name)
            return scope.values[name]
        value = scope.values[name] = Value(name, scope, kind)
        return value

    @staticmethod
    def note_twice(scope: Scope, name: str) -> None:
        scope.problems.append(f"'{name}' is defined twice")
        scope.twice.append(name)

    def use(self, scope: Scope, name: str) -> Value:
        value = scope.find(name)
        if value is None:
            scope = self.home(scope, name)
            value = self.define(scope, name, "undefined")
            scope.problems.append(f"'{name}' is used but never defined before")
        return value

    def home(self, scope: Scope, name: str) -> Scope:
        """Return the graph that defines a name further on, the one that uses it where none does."""
        around: Scope | None = scope
        while around is not None:
            if around not in self.later:
                self.later[around] = {output for node in self.protos[around] for output in node.output}
            if name in self.later[around]:
                return around
            around = around.parent
        return scope

    def fill_graph(self, scope: Scope, graph: onnx.GraphProto) -> None:
        if scope.depth > MAX_NESTING:
            problem = f"graphs are nested more than {MAX_NESTING} deep, which is more than protobuf can read"
            raise self.corrupt(problem, "export it with fewer If and Loop nodes in each other")
        for infos in (graph.value_info, graph.output, graph.input):
            scope.infos.update((info.name, info) for info in infos)
        scope.inputs = tuple(self.define(scope, info.name, "input") for info in graph.input)
        dense = [self.fill_initializer(scope, tensor.name, tensor, None) for tensor in graph.initializer]
        sparse = [self.fill_initializer(scope, s.values.name, None, s) for s in graph.sparse_initializer]
        scope.initializers = (*dense, *sparse)
        self.fill_nodes(scope, graph.node)
        scope.outputs = tuple(self.use(scope, info.name) for info in graph.output)

    def fill_initializer(
        self, scope: Scope, name: str, dense: onnx.TensorProto | None, sparse: onnx.SparseTensorProto | None
    ) -> Value:
        value = scope.values.get(name) or self.define(scope, name, "initializer")
        if value.tensor is not None or value.sparse is not None:
            self.note_twice(scope, name)
        value.tensor, value.sparse = dense, sparse
        return value

    def fill_nodes(self, scope: Scope, protos: Sequence[onnx.NodeProto]) -> None:
        self.protos[scope] = protos
        nodes = []
        for index, proto in enumerate(protos):
            node = Node(proto, scope, index)
            nodes.append(node)
            if type(node.op_type) is not str or type(proto.name) is not str:
                raise self.corrupt(f"node {index} has a name or operator that is not UTF-8")
            node.inputs = tuple(self.use(scope, name) if name else None for name in proto.input)
            for position, value in enumerate(node.inputs):
                if value is not None:
                    value.consumers.append((node, position))
            self.fill_bodies(node)
            node.outputs = tuple(self.produce(node, i, name) if name else None for i, name in enumerate(proto.output))
        scope.nodes = tuple(nodes)

    def produce(self, node: Node, position: int, name: str) -> Value:
        value = node.scope.values.get(name) if type(name) is str else None
        if value is None or value.kind != "undefined":
            value = self.define(node.scope, name, "node")
        if value.producer is None and value.kind in ("node", "undefined"):
            value.kind, value.producer, value.output_index = "node", node, position
        return value

    def fill_bodies(self, node: Node) -> None:
        bodies: dict[str, Scope] = {}
        for name, graph in body_graphs(node.proto):
            body = bodies[name] = Scope(f"{node.path}/{name}", node.scope, node, node.scope.opsets)
            self.fill_graph(body, graph)
        if bodies:
            node.bodies = bodies
