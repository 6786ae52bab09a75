"""Another interface for a model: values that become inputs, other outputs, other names of values and symbols."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx.numpy_helper
from msgspec import Struct
from onnx import helper

from graphkit.graph.names import find_value, free_name, names_in
from graphkit.graph.new_nodes import NewNode
from graphkit.graph.view import Scope, Value, graphs_with_scopes
from graphkit.model import Model
from graphkit.rewrite.base import copy_proto, drop_inputs, keep_members, replace_members
from graphkit.rewrite.edits import live_names, remove_dead_code
from graphkit.shapes import Expr
from graphkit.shapes.input_dims import declare_dim, declared_inputs, read_dim


def with_value_names(model: Model, names: Mapping[Value, str]) -> Model:
    """Return a model in which some values have other names, which no other value has in any scope that sees them."""
    proto = copy_proto(model)
    for graph, scope in graphs_with_scopes(proto.graph, model.graph):
        _rename_graph(graph, scope, names)
    return model.with_proto(proto)


def with_symbols(model: Model, symbols: Mapping[str, Expr]) -> Model:
    """Return a model that declares other symbols, wherever it declares these, in expressions too."""
    if not symbols:
        return model
    proto, names = copy_proto(model), declared_inputs(model).groups
    for graph, _ in graphs_with_scopes(proto.graph, model.graph):
        for dim in declared_dims_in((*graph.input, *graph.output, *graph.value_info)):
            declared = read_dim(dim.dim_param, names)
            if declared.symbols & symbols.keys():
                declare_dim(dim, declared.substitute(symbols))
    return model.with_proto(proto)


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


class NewInput(Struct, frozen=True):
    """An input to add."""

    name: str
    dtype: int
    dims: Sequence[Expr | int]
    text: str = ""

    def info(self) -> onnx.ValueInfoProto:
        """Return its declaration."""
        info = helper.make_tensor_value_info(self.name, self.dtype, [None] * len(self.dims), doc_string=self.text)
        for declared, dim in zip(info.type.tensor_type.shape.dim, self.dims, strict=True):
            declare_dim(declared, Expr.of(dim))
        return info


def with_inputs(model: Model, replaced: Mapping[Value, NewInput]) -> Model:
    """Return a model in which values of the main graph are inputs, without the nodes that this leaves unneeded.

    No body reads these values. Two of them may share an input.
    """
    proto = copy_proto(model)
    names = {value.name: new.name for value, new in replaced.items()}
    for node in proto.graph.node:
        for index, name in enumerate(node.input):
            if name in names:
                node.input[index] = names[name]
    free = names_in(model.scopes) | set(names.values())
    for name in dict.fromkeys(info.name for info in proto.graph.output if info.name in names):  # which inputs give now
        before = free_name(f"{name}_before", free)
        for node in proto.graph.node:
            node.output[:] = [before if out == name else out for out in node.output]
        proto.graph.node.append(helper.make_node("Identity", [names[name]], [name]))
    taken = {info.name for info in proto.graph.input}
    for new in dict.fromkeys(new.name for new in replaced.values()):
        if new not in taken:
            proto.graph.input.append(next(new_input for new_input in replaced.values() if new_input.name == new).info())
    return remove_dead_code(model.with_proto(proto)).model


def with_constants(model: Model, arrays: Mapping[str, np.ndarray]) -> Model:
    """Return a model in which some inputs are constants."""
    if not arrays:
        return model
    proto = copy_proto(model)
    drop_inputs(proto.graph, arrays.keys())
    for name, array in arrays.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
    return model.with_proto(proto)


def with_outputs(model: Model, outputs: Iterable[tuple[str, NewInput]]) -> Model:
    """Return a model that gives other outputs for these values, without unneeded nodes and dead inputs."""
    proto = copy_proto(model)
    del proto.graph.output[:]
    for name, output in outputs:
        if name != output.name:
            proto.graph.node.append(helper.make_node("Identity", [name], [output.name]))
        proto.graph.output.append(output.info())
    return drop_dead_inputs(remove_dead_code(model.with_proto(proto)).model)


def with_exposed(model: Model, names: Iterable[str]) -> Model:
    """Return a model that gives some values of its main graph besides its outputs, with the types that it declares."""
    proto = copy_proto(model)
    outputs = {info.name for info in proto.graph.output}
    declared = {info.name: info for info in proto.graph.value_info}
    for name in dict.fromkeys(names):
        find_value(model.scopes, name, model.label)
        if name not in outputs:
            proto.graph.output.append(declared.get(name, onnx.ValueInfoProto(name=name)))
            if name in declared:
                proto.graph.value_info.remove(declared[name])
    return model.with_proto(proto)


def with_first_output(model: Model, name: str) -> Model:
    """Return a model whose outputs begin with one of them; the order of the others stays."""
    if not any(value.name == name for value in model.graph.outputs[1:]):
        return model
    proto = copy_proto(model)
    replace_members(proto.graph.output, sorted(proto.graph.output, key=lambda info: info.name != name))
    return model.with_proto(proto)


def drop_dead_inputs(model: Model) -> Model:
    """Return a model without the inputs that nothing reads."""
    live = live_names(model.proto.graph)
    dead = {info.name for info in model.proto.graph.input if info.name not in live}
    if not dead:
        return model
    proto = copy_proto(model)
    drop_inputs(proto.graph, dead)
    return model.with_proto(proto)


def with_interface(
    model: Model,
    inputs: Mapping[str, NewInput],
    outputs: Mapping[str, NewInput],
    dropped: Collection[str] = (),
    nodes: Iterable[NewNode] = (),
) -> Model:
    """Return a model with other inputs and outputs, some dropped, and with further nodes at its end.

    An input or output takes the place of the one of that name, or comes last. Names may be read that no value has yet.
    """
    proto = copy_proto(model)
    proto.graph.node.extend(node.to_proto() for node in nodes)
    for infos, made in ((proto.graph.input, inputs), (proto.graph.output, outputs)):
        former = [info for info in infos if info.name not in dropped]
        present = {info.name for info in former}
        new = [made[info.name].info() if info.name in made else info for info in former]
        new += [each.info() for name, each in made.items() if name not in present and name not in dropped]
        replace_members(infos, new)
    return model.with_proto(proto)


def with_names(model: Model, names: Mapping[str, str]) -> Model:
    """Return a model whose main graph has other names of values, which no others have; two inputs may become one."""
    values = {model.graph.values[old]: new for old, new in names.items() if old in model.graph.values}
    renamed = with_value_names(model, values)
    last = {info.name: index for index, info in enumerate(renamed.proto.graph.input)}
    proto = renamed.proto  # a copy already
    keep_members(proto.graph.input, [last[info.name] == index for index, info in enumerate(proto.graph.input)])
    return model.with_proto(proto)
