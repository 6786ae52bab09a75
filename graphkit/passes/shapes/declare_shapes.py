"""Declare dtypes and dims: those that are inferred, and sizes that the dims of the inputs are to have.

Frozen dims are hidden from bodies that cannot run at them. At the dims of a decode step the first step's branch of a
merged decoder may be impossible: a mask of 6 meets one token. The model is sound, for that branch is not run; yet
onnxruntime infers shapes in it while it loads, and refuses the file. Therefore the branch reads outer values reshaped
to zeros, which copy all dims, and are computed from a value known only at run time. The branch computes the same, or
fails in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import onnx
from msgspec.structs import replace

from graphkit.errors import count_things
from graphkit.graph.declared_types import declared_type
from graphkit.graph.new_nodes import make_reshape
from graphkit.graph.roles import count_captured_values
from graphkit.graph.view import Node, Scope, Value, graphs_with_scopes
from graphkit.model import Model
from graphkit.ops.tensor import Tensor
from graphkit.rewrite import Declined, Editor, NewNode, Outcome, Pass, Premise, copy_proto
from graphkit.shapes import Expr, Shapes, declarations, infer, is_known, symbol
from graphkit.shapes.constraints.dim_equalities import forced_sizes
from graphkit.shapes.graph_inputs import DimSpec, Inputs, InputShapes, SymbolRanges, SymbolSizes
from graphkit.shapes.input_dims import DeclaredInputs, claimed_inputs, declare_dim, declared_inputs, read_dim

MAX_TEXT = 200  # characters of a dim that anybody wants to read
INT64 = onnx.TensorProto.INT64


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
        if not (changed := declare_outputs(model, proto, infer(model))):
            return Outcome(model)
        change = count_things(len(changed), "output(s) redeclared with the inferred dims")
        return Outcome(model.with_proto(proto), (change,))


def declare_outputs(model: Model, proto: onnx.ModelProto, shapes: Shapes) -> list[str]:
    """Declare the inferred dims of the outputs in a copy of a model, and return the names of those that change.

    A dim that is as the inputs claim, by dims of one name, stays.
    """
    read, claimed, changed = declared_inputs(model), claimed_inputs(model), []
    groups = [group for parts in read.groups.values() for group in parts] if claimed is not read else []
    claims = {str(read.at(group[0]).name): claimed.at(group[0]) for group in groups}
    for output, value in zip(proto.graph.output, model.graph.outputs, strict=True):
        if (dims := shapes[value].dims) is not None and output.type.HasField("tensor_type"):
            before = output.SerializeToString(deterministic=True)
            _declare_tensor(output.type.tensor_type, dims, read, claims)
            changed += [output.name] if output.SerializeToString(deterministic=True) != before else []
    return changed


def _declare_tensor(
    tensor: onnx.TypeProto.Tensor,
    dims: Sequence[Expr],
    read: DeclaredInputs,
    claims: Mapping[str, Expr] = MappingProxyType({}),
) -> None:
    """Declare the dims that follow from names of the inputs, in the spelling that is there if that is equal."""
    if not tensor.HasField("shape") or len(tensor.shape.dim) != len(dims):
        tensor.shape.Clear()
        for _ in dims:
            tensor.shape.dim.add()
    symbols = read.symbols
    for declared, dim in zip(tensor.shape.dim, dims, strict=True):
        before = read_dim(declared.dim_param, read.groups) if declared.dim_param else None
        if dim.symbols <= symbols and before not in (dim, dim.substitute(claims)):
            declare_dim(declared, dim, read.groups)
        elif before is not None and dim != before and not before.symbols <= symbols:
            declared.ClearField("dim_param")


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
    """Return a model that declares its shapes, unless they contradict each other, and how many are new or other."""
    base = declarations(model).model
    shapes = infer(base)
    if shapes.contradictions:
        return model, 0
    proto, declarer = copy_proto(base), _Declarer(shapes, declared_inputs(base))
    count = len(declare_outputs(base, proto, shapes))
    for graph, scope in graphs_with_scopes(proto.graph, base.graph):
        if not any(body.contains(scope) for body in shapes.impossible):
            count += declarer.graph(scope, graph)
    return (base.with_proto(proto), count) if count else (base, 0)


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
        if (info := infos.get(name)) is None or not info.HasField("type"):
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


def hide_frozen_dims(model: Model, bodies: Collection[Scope], shapes: Shapes) -> Model:
    """Return a model that hides its frozen dims from subgraphs that cannot run at those sizes."""
    editor = Editor(model)
    for body in bodies:
        if not any(outer is not body and outer.contains(body) for outer in bodies):
            _shield_body(editor, body, shapes)
    return editor.result()


def _shield_body(editor: Editor, body: Scope, shapes: Shapes) -> None:
    if (owner := body.owner) is None or not owner.is_op("If", "Loop"):
        return
    source = owner.input(0)  # a number that is known at run time only: an If's condition, or the counter of a Loop
    if owner.is_op("Loop"):
        source = body.inputs[0] if body.inputs else None
    elif source is None or source.tensor is not None or source.is_constant or not editor.is_visible(source, body):
        return
    ranks: dict[Value, int] = {}
    readers: dict[Value, dict[Node, None]] = {}
    for value in count_captured_values(body):
        inner = dict.fromkeys(node for node, _ in value.consumers if body.contains(node.scope))
        is_computed = value.tensor is None and not value.is_constant
        if (rank := shapes[value].rank) and is_computed and all(editor.is_visible(value, node.scope) for node in inner):
            ranks[value], readers[value] = rank, inner
    if source is None or not ranks:
        return

    def insert(node: NewNode, name: str) -> str:
        name = editor.unique_name(name)
        editor.insert_first(body, replace(node, outputs=[name], name=name))
        return name

    number = insert(NewNode("Cast", [source], [], {"to": INT64}), f"{source.name}/number")
    copies: dict[int, str] = {}
    for rank in sorted(set(ranks.values())):
        zeros = editor.integers([0] * rank, f"dims/{','.join(['0'] * rank)}")
        copies[rank] = insert(NewNode("Mul", [number, zeros], []), f"{source.name}/copy_{rank}")
    for value, rank in ranks.items():
        name = insert(make_reshape(value, copies[rank]), f"{value.name}/any_shape")
        for node in readers[value]:
            editor.set_inputs(node, {index: name for index, operand in enumerate(node.inputs) if operand is value})


@dataclass(frozen=True)
class FreezeDims(Pass):
    """Freeze dims of the inputs to numbers, by symbol or by the shape of an input.

    A symbol is frozen everywhere, including expressions such as `past_sequence_length + 1`; the shape of an input is
    solved for its symbols. Declared types of outputs and inner values follow from the operators. Freezing a dim also
    freezes all that is computed from it, such as position ids and causal masks.

    Legality: the symbols and inputs exist, and the numbers do not contradict each other.

    Before:

        agraph (float[N, L] x, float[N] z) => (float[N, L] y) {
            y = Neg (x)
        }

    After `freeze-dims{dims=N=3}`:

        agraph (float[3, L] x, float[3] z) => (float[3, L] y) {
            y = Neg (x)
        }

    Attributes:
        dims: Sizes of symbols: `batch_size=1;sequence_length=8`.
        inputs: Shapes of inputs: `pixel_values=1x3x800x800`.
        ranges: Bounds of symbols, (name, least, largest), None for an open end.
    """

    dims: SymbolSizes = ()
    inputs: InputShapes = ()
    ranges: SymbolRanges = field(default=(), kw_only=True)

    def premise(self) -> Premise:
        return Premise(DimSpec(self.dims, self.inputs, self.ranges))

    def run(self, model: Model) -> Outcome:
        spec = self.premise().spec
        input_shapes, inputs = spec.shapes, Inputs(model, spec)
        numbers = inputs.numbers
        declared = {value.name: declared_type(value) for value in model.graph.inputs}
        unranked = [name for name in input_shapes if (known := declared[name]) is None or known.dims is None]
        if not numbers and not unranked:
            return Outcome(model)
        shapes, proto, frozen = infer(model, spec), copy_proto(model), _Frozen(declared_inputs(model), inputs)
        for info in proto.graph.input:
            if (dims := shapes[info.name].dims) is not None:
                frozen.declare_input(info, dims)
        outputs = {info.name for info in proto.graph.output}
        for graph, scope in graphs_with_scopes(proto.graph, model.graph):
            is_dead, is_body = any(body.contains(scope) for body in shapes.impossible), scope.parent is not None
            for info in (*(graph.input if is_body else ()), *graph.output, *graph.value_info):
                frozen.follow(info, scope, None if is_dead else shapes, is_inner=is_body or info.name not in outputs)
        changes = [f"{symbol(name)} is {number}" for name, number in numbers.items()]
        changes += [f"{name} is {'x'.join(map(str, input_shapes[name])) or 'a scalar'}" for name in unranked]
        made = model.with_proto(proto)
        if shapes.impossible and not shapes.contradictions:  # it has to load though some of its bodies cannot run
            pairs = zip(made.graph.walk(), model.graph.walk(), strict=True)
            made = hide_frozen_dims(made, [now for now, before in pairs if before in shapes.impossible], infer(made))
        return Outcome(made, tuple(changes))


class _Frozen:
    """Declares dims that are numbers now, given those of the inputs as they are declared, and with numbers."""

    def __init__(self, read: DeclaredInputs, inputs: Inputs) -> None:
        self.names, self.inputs = read.groups, inputs
        places = ((name, place) for name, parts in read.groups.items() for group in parts for place in group)
        self.frozen = {name for name, place in places if inputs.at(place).name in inputs.numbers}

    def declare_input(self, info: onnx.ValueInfoProto, dims: Sequence[Expr]) -> None:
        """Declare the dims of an input that have frozen symbols in them, or the rank that it had not."""
        tensor, before = info.type.tensor_type, self.inputs.symbolic.get(info.name)
        if info.type.HasField("tensor_type") and not tensor.HasField("shape"):
            tensor.shape.SetInParent()
            for _ in dims:
                tensor.shape.dim.add()
        for declared, dim, old in zip(tensor.shape.dim, dims, before or dims, strict=False):
            is_open = declared.WhichOneof("value") is None and dim.constant is not None
            if is_open or old.symbols & self.inputs.numbers.keys():
                declare_dim(declared, dim, self.names)

    def follow(self, info: onnx.ValueInfoProto, scope: Scope, shapes: Shapes | None, *, is_inner: bool) -> None:
        """Declare the dims with frozen symbols anew; those that the engine does not know are left open.

        Of an inner value, other dims are left open too where the engine does not know that they are what is declared.
        """
        tensor = info.type.tensor_type
        is_frozen = [bool(read_dim(dim.dim_param, self.names).symbols & self.frozen) for dim in tensor.shape.dim]
        if not any(is_frozen):
            return
        value = scope.values.get(info.name)
        dims = shapes[value].dims if value is not None and shapes is not None else None
        known: Sequence[Expr | None] = [None] * len(is_frozen) if dims is None or len(dims) != len(is_frozen) else dims
        for declared, dim, is_due in zip(tensor.shape.dim, known, is_frozen, strict=True):
            if is_due and dim is not None and is_known(dim):
                declare_dim(declared, dim, self.names)
            elif is_due or (is_inner and declared.HasField("dim_value") and dim != declared.dim_value):
                declared.ClearField("value")  # a number that the exporter wrote may hold at its own sizes alone


@dataclass(frozen=True)
class SetDims(Pass):
    """Declare sizes for dims of the inputs, by symbol or by the shape of an input, where the graph can run with them.

    It is `freeze-dims` with two things added: a symbol whose size the graph forces gets it too, and outputs declare
    what follows. Nodes stay: `graphkit fold --dim` goes on to fold what no longer varies. Input dims that contradict
    the nodes are put right first.

    Legality: the symbols and inputs exist, the sizes do not contradict each other, and no node needs others.

    Before:

        agraph (float[4, N] x, float[M, 8] z) => (float[4, 8] y) {
            y = MatMul (x, z)
        }

    After `set-dims{dims=N=2}`:

        agraph (float[4, 2] x, float[2, 8] z) => (float[4, 8] y) {
            y = MatMul (x, z)
        }

    Attributes:
        dims: Sizes of symbols: `batch_size=1;sequence_length=8`.
        inputs: Shapes of inputs: `pixel_values=1x3x800x800`.
    """

    dims: SymbolSizes = ()
    inputs: InputShapes = ()

    def run(self, model: Model) -> Outcome:
        from graphkit.shapes.constraints.failing_sizes import check_sizes, impossible_sizes_error  # no fold needs them

        model.check_soundness()
        base = declarations(model).model
        spec = self.premise().spec
        numbers = Inputs(base, spec).numbers
        forced = forced_sizes(base, numbers)
        for name, size in forced.items():
            if size < 0 or size.denominator != 1:
                raise impossible_sizes_error(base, numbers, f"'{name}' would have to be {size}")
        sizes = {**numbers, **{name: int(size) for name, size in forced.items()}}
        check_sizes(base, DimSpec.of(sizes, spec.shapes, spec.bounds), sizes)
        frozen = FreezeDims(tuple(sizes.items()), self.inputs, ranges=spec.ranges).run(base)
        if frozen.model is base:
            return Outcome(model)
        result = InferOutputShapes().run(frozen.model)
        known = [f"{symbol(name)} is {size}" for name, size in forced.items()]
        asked_for = [change for change in frozen.changes if change not in known]
        notes = [f"{change}, for the graph forces it" for change in known]
        return Outcome(result.model, (*asked_for, *notes, *result.changes))

    def premise(self) -> Premise:
        empty = tuple((name, 0, None) for name, size in self.dims if not size)  # a size that is asked for is in range
        return Premise(DimSpec(self.dims, self.inputs, empty))
