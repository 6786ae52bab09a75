"""Declare inferred dtypes and dims: those of the outputs, or those of every tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx

from graphkit.graph.names import count_things
from graphkit.graph.view import Scope, body_graphs
from graphkit.model import Model
from graphkit.ops.tensor import Tensor
from graphkit.rewrite import Declined, Outcome, Pass, copy_proto
from graphkit.shapes import Expr, Shapes, declarations, infer
from graphkit.shapes.input_dims import DeclaredInputs, declare_dim, declared_inputs, read_dim

__all__ = ["DeclareShapes", "InferOutputShapes", "declare_outputs", "with_shapes"]


@dataclass(frozen=True)
class InferOutputShapes(Pass):
    """Declare the dims of the outputs anew, as far as they follow from the inputs.

    A rewrite can leave an output with dims that refer to a removed input, or that only held in another branch. The
    inferred dims are declared, in the spelling of the old declaration if it is equal. A dim that cannot be inferred
    stays as declared if all its symbols are dims of inputs; otherwise it is left open.

    Before:

        agraph (float[N, 4] x) => (float[past, 4] y) {
            y = Neg (x)
        }

    After:

        agraph (float[N, 4] x) => (float[N, 4] y) {
            y = Neg (x)
        }
    """

    def run(self, model: Model) -> Outcome:
        proto = copy_proto(model)
        changed = declare_outputs(model, proto, infer(model))
        if not changed:
            return Outcome(model)
        return Outcome(
            model.with_proto(proto), (count_things(len(changed), "output(s) redeclared with the inferred dims"),)
        )


def declare_outputs(model: Model, proto: onnx.ModelProto, shapes: Shapes) -> list[str]:
    """Declare the inferred dims of the outputs in a copy of a model, and return the names of those that change."""
    read, changed = declared_inputs(model), []
    for output, value in zip(proto.graph.output, model.graph.outputs, strict=True):
        dims = shapes[value].dims
        if dims is not None and output.type.HasField("tensor_type"):
            before = output.SerializeToString(deterministic=True)
            _declare_tensor(output.type.tensor_type, dims, read)
            changed += [output.name] if output.SerializeToString(deterministic=True) != before else []
    return changed


def _declare_tensor(tensor: onnx.TypeProto.Tensor, dims: tuple[Expr, ...], read: DeclaredInputs) -> None:
    """Declare the dims that follow from names of the inputs, in the spelling that is there if that is equal."""
    if not tensor.HasField("shape") or len(tensor.shape.dim) != len(dims):
        tensor.shape.Clear()
        for _ in dims:
            tensor.shape.dim.add()
    symbols = read.symbols
    for declared, dim in zip(tensor.shape.dim, dims, strict=True):
        text = str(declared.dim_param)
        before = read_dim(text, read.groups) if text else None
        if dim.symbols <= symbols and dim != before:
            declare_dim(declared, dim, read.groups)
        elif before is not None and dim != before and not before.symbols <= symbols:
            declared.ClearField("dim_param")


MAX_TEXT = 200  # characters of a dim that anybody wants to read


@dataclass(frozen=True)
class DeclareShapes(Pass):
    """Declare the inferred dtype and dims of every tensor that a node computes, so that viewers show them.

    Dims are numbers, or expressions in the symbols of the inputs. A dim that depends on data is left open, and what a
    model declares of a tensor of unknown rank stays. Outputs are declared as `infer-output-shapes` declares them, and
    inputs whose declarations contradict the nodes as these need them.

    Legality: the shapes of the model do not contradict each other. Bodies that cannot run, and functions, whose tensors
    have other shapes at each call, stay as they are.

    Before:

        agraph (float[N, 4] x) => (float[N, 4] y) {
            h = Transpose (x)
            y = Transpose (h)
        }

    After:

        agraph (float[N, 4] x) => (float[N, 4] y) <float[4, N] h> {
            h = Transpose (x)
            y = Transpose (h)
        }
    """

    def run(self, model: Model) -> Outcome:
        made, count = with_shapes(model)
        if contradictions := infer(declarations(model).model).contradictions:
            why = "no shape is declared, because the shapes of the model contradict each other: "
            return Outcome(model, declined=tuple(Declined(f.node, why + f.message) for f in contradictions))
        return Outcome(made, (count_things(count, "tensor(s) declared with the inferred shape"),) if count else ())


def with_shapes(model: Model) -> tuple[Model, int]:
    """Return a model that declares the shapes of its tensors, and how many declarations are new or other than before.

    A model whose shapes contradict each other stays as it is.
    """
    base = declarations(model).model
    shapes = infer(base)
    if shapes.contradictions:
        return model, 0
    proto, declarer = copy_proto(base), _Declarer(shapes, declared_inputs(base))
    count = len(declare_outputs(base, proto, shapes))
    count += sum(declarer.graph(scope, graph) for scope, graph in _runnable_graphs(base, proto, shapes))
    return (base.with_proto(proto), count) if count else (base, 0)


def _runnable_graphs(model: Model, proto: onnx.ModelProto, shapes: Shapes) -> Iterator[tuple[Scope, onnx.GraphProto]]:
    """Yield each graph that can run, as the view and as the proto."""
    pending = [(model.graph, proto.graph)]
    while pending:
        scope, graph = pending.pop()
        yield scope, graph
        for node, copy in zip(scope.nodes, graph.node, strict=True):
            bodies = [(node.bodies[name], body) for name, body in body_graphs(copy)]
            pending += [(inner, body) for inner, body in bodies if inner not in shapes.impossible]


class _Declarer:
    """Declares tensors; many have the same dims, which are written out once."""

    def __init__(self, shapes: Shapes, read: DeclaredInputs) -> None:
        self.shapes, self.read = shapes, read
        self._known: dict[tuple[Expr, ...], onnx.TensorShapeProto | None] = {}

    def graph(self, scope: Scope, graph: onnx.GraphProto) -> int:
        """Declare the tensors of one graph, and return how many declarations are new or other than before."""
        is_main = scope.parent is None
        infos = {info.name: info for info in (*graph.value_info, *(() if is_main else graph.output))}
        done = set(scope.outputs) if is_main else set()
        values = (value for node in scope.nodes for value in node.results)
        computed = [value for value in values if value.constant is None and value not in done]
        return sum(self._declare(self.shapes[value], value.name, infos, graph) for value in computed)

    def _declare(
        self, inferred: Tensor, name: str, infos: Mapping[str, onnx.ValueInfoProto], graph: onnx.GraphProto
    ) -> bool:
        if not inferred.dtype or inferred.dims is None or (shape := self._shape_proto(inferred.dims)) is None:
            return False
        info = infos.get(name)
        if info is None or not info.HasField("type"):
            tensor = (graph.value_info.add(name=name) if info is None else info).type.tensor_type
            tensor.elem_type = inferred.dtype
            tensor.shape.CopyFrom(shape)
            return True
        if not info.type.HasField("tensor_type"):
            return False
        before = info.SerializeToString(deterministic=True)
        info.type.tensor_type.elem_type = inferred.dtype
        _declare_tensor(info.type.tensor_type, inferred.dims, self.read)
        return bool(info.SerializeToString(deterministic=True) != before)

    def _shape_proto(self, dims: tuple[Expr, ...]) -> onnx.TensorShapeProto | None:
        """Return the declaration of dims, None where it is more than anybody reads."""
        if dims not in self._known:
            tensor = onnx.TypeProto.Tensor()
            _declare_tensor(tensor, dims, self.read)
            is_short = all(len(dim.dim_param) <= MAX_TEXT for dim in tensor.shape.dim)
            self._known[dims] = tensor.shape if is_short else None
        return self._known[dims]
