"""Give values and symbols of a model other names, wherever these occur: bodies, annotations, sharding included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx

from graphkit.graph.view import Scope, Value, body_graphs
from graphkit.model import Model
from graphkit.rewrite.base import copy_proto
from graphkit.shapes import Expr
from graphkit.shapes.input_dims import declare_dim, declared_inputs, read_dim

__all__ = ["declared_dims_in", "graphs_with_scopes", "with_symbols", "with_value_names"]


def with_value_names(model: Model, names: Mapping[Value, str]) -> Model:
    """Return a model in which some values have other names, which no other value has in any scope that sees them."""
    proto = copy_proto(model)
    for graph, scope in graphs_with_scopes(proto.graph, model.graph):
        _rename_graph(graph, scope, names)
    return model.with_proto(proto)


def with_symbols(model: Model, symbols: Mapping[str, Expr]) -> Model:
    """Return a model that declares other symbols, wherever it declares these, in expressions too."""
    proto, names = copy_proto(model), declared_inputs(model).groups
    for graph, _ in graphs_with_scopes(proto.graph, model.graph):
        for dim in declared_dims_in((*graph.input, *graph.output, *graph.value_info)):
            declared = read_dim(dim.dim_param, names)
            if declared.symbols & symbols.keys():
                declare_dim(dim, declared.substitute(symbols))
    return model.with_proto(proto)


def graphs_with_scopes(graph: onnx.GraphProto, scope: Scope) -> Iterator[tuple[onnx.GraphProto, Scope]]:
    """Yield a graph and its bodies, copies perhaps, with the scopes that they have in the view of the original."""
    yield graph, scope
    for proto, node in zip(graph.node, scope.nodes, strict=True):
        for (_, body), inner in zip(body_graphs(proto), node.bodies.values(), strict=True):
            yield from graphs_with_scopes(body, inner)


def declared_dims_in(infos: Iterable[onnx.ValueInfoProto]) -> Iterator[onnx.TensorShapeProto.Dimension]:
    """Yield the dims in declarations, those of tensors in sequences, maps and optional values included."""
    for info in infos:
        kind = info.type
        while (field := kind.WhichOneof("value")) is not None:
            inner = getattr(kind, field)
            if field in ("tensor_type", "sparse_tensor_type"):
                yield from inner.shape.dim
                break
            if field not in ("sequence_type", "optional_type", "map_type"):
                break
            kind = inner.value_type if field == "map_type" else inner.elem_type


def _rename_graph(graph: onnx.GraphProto, scope: Scope, names: Mapping[Value, str]) -> None:
    def now(name: str) -> str:
        value = scope.find(name) if name else None
        return name if value is None else names.get(value, name)

    for info in (*graph.input, *graph.output, *graph.value_info):
        info.name = now(info.name)
    for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
        tensor.name = now(tensor.name)
    for annotation in graph.quantization_annotation:
        annotation.tensor_name = now(annotation.tensor_name)
        for entry in annotation.quant_parameter_tensor_names:
            entry.value = now(entry.value)
    for proto, node in zip(graph.node, scope.nodes, strict=True):
        for field, values in ((proto.input, node.inputs), (proto.output, node.outputs)):
            if any(value in names for value in values):
                field[:] = ["" if value is None else names.get(value, value.name) for value in values]
        for device in proto.device_configurations:
            for sharding in device.sharding_spec:
                sharding.tensor_name = now(sharding.tensor_name)
