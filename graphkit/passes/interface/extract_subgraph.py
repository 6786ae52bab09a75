"""Take a subgraph out as a model of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import onnx
from onnx import helper

from graphkit.errors import UsageError, count_things
from graphkit.graph.declared_types import Dim, declared_dims, declared_type, type_text
from graphkit.graph.names import family_labels, find_value_or_node, free_name, names_in
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.passes.shapes.declare_shapes import InferOutputShapes
from graphkit.rewrite import Outcome, Pass, copy_proto, keep_members, replace_members
from graphkit.rewrite.base import Names
from graphkit.rewrite.edits import live_names, remove_dead_code
from graphkit.rewrite.new_interface import drop_dead_inputs
from graphkit.shapes import Expr, Shapes, declarations, infer, is_known, symbol


@dataclass(frozen=True)
class ExtractSubgraph(Pass):
    """Take out the subgraph between some values as a model of its own.

    Whatever the outputs need stays as it is, field by field: names, metadata, functions, weights where they lie. The
    values to begin at become inputs, with their inferred dtypes and dims, in the symbols of the original; a dim that
    depends on data is a symbol such as `u0`. Inputs of the original that are needed besides stay inputs. A node stands
    for its outputs where the subgraph ends, and for what it reads, constants apart, where it begins.

    Legality: the values and nodes exist in the main graph. Where the subgraph begins, each is a tensor of known dtype
    and rank that the outputs need.

    Before:

        agraph (float[N, 4] x) => (float[N, 4] y) {
            h = Exp (x)
            i = Neg (h)
            y = Abs (i)
        }

    After `extract-subgraph{outputs=i,inputs=h}`:

        agraph (float[N, 4] h) => (float[N, 4] i) {
            i = Neg (h)
        }

    Attributes:
        outputs: Values or nodes where it ends.
        inputs: Values or nodes where it begins; none for the inputs of the model.
    """

    changes_interface = True

    outputs: Names
    inputs: Names = ()

    def run(self, model: Model) -> Outcome:
        model.check_soundness()
        base = declarations(model).model
        cuts, ends, shapes = cut_values(base, self.inputs), _find_ends(base, self.outputs), infer(base)
        for value in cuts:
            _check_cut(value, ends, shapes, model.label)
        known = {name for value in shapes for dim in shapes[value].dims or () for name in dim.symbols}
        known |= {dim.dim_param for info in base.graph.infos.values() for dim in info.type.tensor_type.shape.dim}
        free = filter(lambda name: name not in known, (f"u{number}" for number in itertools.count()))
        unknown: dict[str, Expr] = {}
        new_inputs = []
        for value in cuts:
            if value.kind == "input":
                new_inputs.append(value.scope.infos[value.name])
                continue
            for name in sorted({name for dim in shapes[value].dims or () for name in dim.symbols if not is_known(dim)}):
                if name[:1] == "?" and name not in unknown:
                    unknown[name] = symbol(next(free))
            dims = [dim.substitute(unknown) for dim in shapes[value].dims or ()]
            sizes: list[Dim] = [dim.declared if (size := dim.constant) is None else size for dim in dims]
            new_inputs.append(_make_declaration(value, _known_dtype(value, shapes), sizes))
        new_outputs = [_declare_output(value, shapes, model.label) for value in ends]
        proto, taken = copy_proto(base), names_in(base.scopes)
        graph = proto.graph
        for value in cuts:
            if value.producer is not None:
                name = free_name(f"{value.name}_before", taken)
                taken.add(name)
                graph.node[value.producer.index].output[value.output_index] = name
        del proto.training_info[:]
        new_names = {info.name for info in new_inputs}
        replace_members(graph.input, [*new_inputs, *(info for info in graph.input if info.name not in new_names)])
        replace_members(graph.output, new_outputs)
        named = new_names | {info.name for info in new_outputs}
        keep_members(graph.value_info, [info.name not in named for info in graph.value_info])
        live, names = live_names(graph), [value.name for value in cuts]
        if missed := next((name for name in names if name not in live), ""):
            problem = f"no output that is asked for needs '{missed}', or only through other values"
            raise UsageError(f"{model.label}: {problem} where the subgraph begins - leave it out")
        made = InferOutputShapes().run(drop_dead_inputs(remove_dead_code(base.with_proto(proto)).model)).model
        was, now = (sum(len(scope.nodes) for scope in each.graph.walk()) for each in (model, made))
        changes = [f"{now:,} of {count_things(was, 'node(s)')} taken"]
        if names:
            changes.append(f"{count_things(len(names), 'value(s)')} to begin at: {family_labels(names)}")
        stay = [value.name for value in made.graph.inputs if value.tensor is None and value.name not in names]
        if stay and names:
            changes.append(f"{count_things(len(stay), 'input(s)')} of the model needed besides: {family_labels(stay)}")
        if model.proto.training_info:
            changes.append("the graphs for training left out")
        return Outcome(made, tuple(changes))


def cut_values(model: Model, names: Iterable[str]) -> tuple[Value, ...]:
    """Return the values at which a subgraph begins: those named, and the inputs of named nodes."""
    cuts: dict[Value, None] = {}
    for name in names:
        thing = find_value_or_node(model.scopes, name, model.label)
        if isinstance(thing, Value):
            _check_variable(thing, model.label)
            cuts[thing] = None
            continue
        if not (read := [value for value in thing.operands if not _is_constant(value)]):
            raise UsageError(f"{model.label}: node '{name}' reads nothing but constants - begin at another one")
        cuts.update(dict.fromkeys(read))
    return tuple(cuts)


def _find_ends(model: Model, names: Iterable[str]) -> tuple[Value, ...]:
    ends: dict[Value, None] = {}
    for name in names:
        thing = find_value_or_node(model.scopes, name, model.label)
        values = [thing] if isinstance(thing, Value) else thing.results
        for value in values:
            _check_variable(value, model.label)
            if value.producer is None:
                raise UsageError(f"{model.label}: '{value.name}' is an input, which nothing computes - end elsewhere")
        ends.update(dict.fromkeys(values))
    if not ends:
        raise UsageError("extract-subgraph: there is no output - name at least one value or node")
    return tuple(ends)


def _is_constant(value: Value) -> bool:
    return value.is_constant or value.tensor is not None or value.sparse is not None


def _check_variable(value: Value, label: str) -> None:
    if _is_constant(value):
        raise UsageError(f"{label}: '{value.name}' is a constant, which stays with its readers - name another value")


def _check_cut(value: Value, ends: Iterable[Value], shapes: Shapes, label: str) -> None:
    if value in ends:
        raise UsageError(f"{label}: '{value.name}' is both where the subgraph begins and where it ends - leave out one")
    info = value.scope.infos.get(value.name)
    if info is not None and info.type.WhichOneof("value") not in (None, "tensor_type"):
        kind = type_text(info.type)[0]
        raise UsageError(f"{label}: '{value.name}' is {kind}, and an input has to be a tensor - begin at another value")
    if value.kind != "input" and shapes[value].dims is None:
        reason = shapes.reason(value)
        raise UsageError(f"{label}: the rank of '{value.name}' is unknown: {reason} - begin at another value")
    if value.kind != "input" and not _known_dtype(value, shapes):
        raise UsageError(f"{label}: the dtype of '{value.name}' is unknown - begin at another value")


def _known_dtype(value: Value, shapes: Shapes) -> int:
    """Return the dtype of a value, 0 where it is unknown; onnxruntime loads no model that declares a wrong one."""
    declared = declared_type(value)
    return shapes[value].dtype or (0 if declared is None else declared.dtype)


def _declare_output(value: Value, shapes: Shapes, label: str) -> onnx.ValueInfoProto:
    """Return the declaration of a value to end at, with the dims open that are inferred, which is done later."""
    dims, dtype, info = shapes[value].dims, _known_dtype(value, shapes), value.scope.infos.get(value.name)
    is_declared = info is not None and info.HasField("type")
    if dims is None or not dtype:
        if info is None or not is_declared:
            reason = shapes.reason(value) or "nothing tells its dtype"
            raise UsageError(f"{label}: the type of '{value.name}' is unknown: {reason} - end at another value")
        return info
    known = declared_dims(value) if is_declared else None
    if known is None or len(known) != len(dims):
        known = (None,) * len(dims)
    pairs = zip(known, dims, strict=True)
    return _make_declaration(value, dtype, [None if is_known(dim) else claim for claim, dim in pairs])


def _make_declaration(value: Value, dtype: int, dims: Iterable[Dim]) -> onnx.ValueInfoProto:
    info = helper.make_tensor_value_info(value.name, dtype, list(dims))
    if (before := value.scope.infos.get(value.name)) is not None:
        info.doc_string = before.doc_string
        info.metadata_props.extend(before.metadata_props)
    return info
