"""Merge the decoder of the first step and that of later steps into one: the inverse of `split_merged`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from graphkit import __version__
from graphkit.errors import UsageError
from graphkit.graph.name_families import family_labels
from graphkit.graph.names import count_things, free_name, names_in
from graphkit.graph.roles import Role, dim_at
from graphkit.graph.view import Value
from graphkit.matching.value_numbering import ConstantNumbers
from graphkit.model import Model, ModelLike, as_model
from graphkit.passes.control_flow.split_merged import MADE_BY
from graphkit.passes.shapes.declare_shapes import InferOutputShapes
from graphkit.rewrite.new_interface import with_symbols, with_value_names
from graphkit.shapes import Expr, declarations, infer, symbol
from graphkit.shapes.constraints.dim_equalities import forced_sizes
from graphkit.shapes.input_dims import declared_inputs, input_dims, read_dim

__all__ = ["CONDITION", "Merge", "merge_decoders"]

CONDITION = "use_cache_branch"
SAME: tuple[Role, ...] = ("tokens", "mask", "positions", "token types", "encoder mask", "encoder state")


@dataclass(frozen=True)
class Merge:
    """A merged decoder, and what it was made of.

    Attributes:
        model: An If on the boolean input `use_cache_branch`, which is true on later steps.
        first, with_past: The two decoders, with the names and dims that the merged one has; their nodes are the same.
        changes: One sentence for each change.
    """

    model: Model
    first: Model
    with_past: Model
    changes: tuple[str, ...]


def merge_decoders(first: ModelLike, with_past: ModelLike) -> Merge:
    """Merge two decoders into one, as exporters write `decoder_model_merged.onnx`.

    The inputs are those of both. Equal weights are stored once, by content. On later steps the encoder's part of the
    cache is passed through, where exporters give tensors without elements.

    Args:
        first: The decoder of the first step, which reads no past.
        with_past: The decoder of later steps. Where the two call an input or output of one role otherwise, its name
            counts.

    Returns:
        The merged decoder.

    Raises:
        UsageError: One is not such a decoder, or they do not fit together: the reason says where.
        ModelError: The weights are missing.

    Example:
        >>> pair = graphkit.split_merged("example:merged-decoder")
        >>> made = graphkit.merge_decoders(pair.first, pair.with_past)
        >>> made.model.roles.merged[0].condition.input.name
        'use_cache_branch'
    """
    first, later = as_model(first), as_model(with_past)
    _check_steps(first, later)
    names = _port_names(first, later)
    values = {first.graph.values[old]: new for old, new in names.items()}
    named = with_value_names(first, _free_names(first, set(names.values()), values)) if names else first
    ours, theirs = map(_declare_needs, (named, later))
    theirs = _declare_dims(theirs, _symbol_names(ours, theirs))
    inputs, outputs = (_join_declarations(ours, theirs, ports) for ports in ("input", "output"))
    presents = {entry.slot: entry.present.name for entry in ours.roles.cache if entry.present is not None}
    pasts = [(entry, past) for past, entry in theirs.roles.pasts.items() if entry.present is None]
    passed = {presents[entry.slot]: past.name for entry, past in pasts if entry.slot in presents}
    for half, more in ((ours, set[str]()), (theirs, {*passed})):
        if missing := outputs.keys() - {value.name for value in half.graph.outputs} - more:
            other = "take it out of the other decoder with graphkit extract --to"
            raise UsageError(f"{half.label}: has no output {family_labels(sorted(missing))} - {other}")
    taken, shared, numbers = {*inputs, *outputs, CONDITION}, dict[int, str](), ConstantNumbers()
    weights = [_outer_names(half, taken, shared, numbers) for half in (ours, theirs)]
    bodies = [
        with_value_names(half, _free_names(half, taken, outer))
        for half, outer in zip((ours, theirs), weights, strict=True)
    ]
    bodies[1] = ours.with_proto(ours.adopt(bodies[1]))
    branches = [
        _make_branch(half, body, outputs, passed, taken) for half, body in zip((ours, theirs), bodies, strict=True)
    ]
    proto = _join_headers(first, later)
    tensors = {tensor.name: tensor for body in bodies for tensor in body.proto.graph.initializer}
    proto.graph.initializer.extend(tensors.values())
    proto.graph.input.extend([*inputs.values(), helper.make_tensor_value_info(CONDITION, TensorProto.BOOL, [1])])
    proto.graph.output.extend(outputs.values())
    made = helper.make_node("If", [CONDITION], list(outputs), "merged_decoders")
    made.attribute.extend(map(helper.make_attribute, ("then_branch", "else_branch"), branches[::-1]))
    proto.graph.node.append(made)
    changes = [f"{count_things(len(names), 'name(s)')} of the first step became those of later steps"] if names else []
    changes += [f"{count_things(sum(map(len, weights)) - len(tensors), 'equal weight(s)')} stored once"]
    changes += [f"passed through on later steps: {family_labels(passed)}"] if passed else []
    return Merge(ours.with_proto(proto), ours, theirs, tuple(changes))


def _check_steps(first: Model, later: Model) -> None:
    order = "give the decoder of the first step, then that of later steps"
    for model in (first, later):
        if CONDITION in model.graph.values:
            raise UsageError(f"{model.label}: has '{CONDITION}' already - {order}")
    if pasts := list(first.roles.pasts):
        raise UsageError(f"{first.label}: reads a past, '{pasts[0].name}', and so is not of the first step - {order}")
    if not later.roles.pasts:
        raise UsageError(f"{later.label}: none of its inputs is a past of a KV cache - {order}")
    versions: dict[str, int] = {entry.domain: entry.version for entry in first.proto.opset_import}
    for entry in later.proto.opset_import:
        if versions.get(entry.domain, entry.version) != entry.version:
            raise UsageError(
                f"{later.label}: has opset {entry.version} of {entry.domain or 'ai.onnx'}, {first.label} has "
                f"{versions[entry.domain]} - convert one with graphkit convert-opset"
            )
    functions = {(each.domain, each.name, each.overload): each for each in first.proto.functions}
    for each in later.proto.functions:
        if functions.get((each.domain, each.name, each.overload), each) != each:
            raise UsageError(
                f"{later.label}: its function '{each.name}' is not that of {first.label} - "
                "put functions into both graphs first: graphkit rewrite -p inline-functions"
            )
    for model in (first, later):
        if defaults := [value.name for value in model.graph.inputs if value.tensor is not None]:
            raise UsageError(
                f"{model.label}: its input '{defaults[0]}' has a default - make it a constant: graphkit rewrite -p "
                f"specialize-input, or export it anew"
            )


def _port_names(first: Model, later: Model) -> dict[str, str]:
    """Return new names of inputs and outputs of the first step, which are those of the same roles on later steps."""
    pairs = [(first.roles.logits, later.roles.logits)]
    for role in SAME:
        ours, theirs = first.roles.all(role), later.roles.all(role)
        pairs += [(ours[0], theirs[0])] if len(ours) == len(theirs) == 1 else []
    presents = {entry.slot: entry.present for entry in later.roles.cache}
    pairs += [(entry.present, presents.get(entry.slot)) for entry in first.roles.cache]
    ports = [{value.name for value in (*half.graph.inputs, *half.graph.outputs)} for half in (first, later)]
    return {
        mine.name: other.name
        for mine, other in pairs
        if mine and other and mine.name not in ports[1] and other.name not in ports[0]
    }


def _free_names(model: Model, taken: Collection[str], names: Mapping[Value, str]) -> dict[Value, str]:
    """Return these new names of values, and free ones for all others that have a taken name, but for inputs."""
    used, found = {*names_in(model.scopes[:1]), *taken}, dict(names)
    kept = {*model.graph.inputs, *names}
    for scope in model.graph.walk():
        for value in scope.values.values():
            if value.name in taken and value not in kept:
                found[value] = free_name(value.name, used)
                used.add(found[value])
    return found


def _declare_needs(model: Model) -> Model:
    """Return a model that declares the dims that its nodes need of inputs, and those that they give outputs."""
    made = declarations(model).model
    sizes = {name: Expr.of(int(size)) for name, size in forced_sizes(made, {}).items() if size == int(size) > 0}
    return InferOutputShapes().run(_declare_dims(made, sizes)).model


def _declare_dims(model: Model, symbols: Mapping[str, Expr]) -> Model:
    return with_symbols(model, symbols) if symbols else model


def _symbol_names(first: Model, later: Model) -> dict[str, Expr]:
    """Return new symbols of later steps: those of the first step for the same dims, free ones where it has others."""
    ours, theirs, shapes = input_dims(first), input_dims(later), infer(first)
    presents = {entry.slot: entry.present for entry in first.roles.cache}
    names: dict[str, Expr] = {}
    for value in later.graph.inputs:
        entry = later.roles.pasts.get(value)
        known = ours.get(value.name) if entry is None else shapes[presents.get(entry.slot)].dims
        for at, (mine, other) in enumerate(zip(known or (), theirs.get(value.name) or (), strict=False)):
            axis = later.roles.axis(value, at)
            if other.name and axis not in ("past", "total") and (mine.name or (axis == "other" and not mine.symbols)):
                names.setdefault(other.name, mine)
    taken, read = (
        {name for dims in half.values() for dim in dims or () for name in dim.symbols} for half in (ours, theirs)
    )
    for name in sorted((taken & read) - names.keys()):
        names[name] = symbol(free_name(name, {*taken, *read}))
    return {old: new for old, new in names.items() if new.name != old}


def _join_declarations(first: Model, later: Model, ports: str) -> dict[str, onnx.ValueInfoProto]:
    """Return the declarations of the inputs or of the outputs of both, by name.

    Where they differ in a dim, that of later steps stays if it is that of the first step once the past is empty, and
    that of the first step if later steps take one size of it; any other dim is left open.

    Raises:
        UsageError: They differ in dtype or rank.
    """
    halves, sizes = (first, later), (dict[str, int](), dict[str, int]())
    for entry in later.roles.pasts.values():
        if not later.roles.is_cross(entry) and isinstance(grows := dim_at(entry.past, entry.axis), str):
            sizes[1][grows] = 0
    dims = [input_dims(half) for half in halves]
    for name, ours in dims[0].items():
        for pair in zip(ours or (), dims[1].get(name) or (), strict=False):
            for dim, other, known in zip(pair, pair[::-1], sizes, strict=True):
                if dim.name and other.constant is not None:
                    known[dim.name] = other.constant
    infos = [{info.name: info for info in getattr(half.proto.graph, ports)} for half in halves]
    joint = {**infos[0], **infos[1]}
    groups = [declared_inputs(half).groups for half in halves]
    for name in infos[0].keys() & infos[1].keys():
        kinds = [each[name].type.tensor_type for each in infos]
        if (kinds[0].elem_type, len(kinds[0].shape.dim)) != (kinds[1].elem_type, len(kinds[1].shape.dim)):
            raise UsageError(f"{later.label}: '{name}' has not the dtype and rank that it has in {first.label}")
        joint[name] = onnx.ValueInfoProto.FromString(infos[1][name].SerializeToString())
        for made, *each in zip(
            joint[name].type.tensor_type.shape.dim, *(kind.shape.dim for kind in kinds), strict=True
        ):
            mine, other = (read_dim(d.dim_param or d.dim_value, names) for d, names in zip(each, groups, strict=True))
            if mine not in (other, other.substitute(sizes[1])):
                made.CopyFrom(each[0] if mine.substitute(sizes[0]) == other else onnx.TensorShapeProto.Dimension())
    return joint


def _outer_names(half: Model, taken: set[str], shared: dict[int, str], numbers: ConstantNumbers) -> dict[Value, str]:
    """Return the names that weights have outside of the branches, one for equal ones, and note which are taken."""
    names = {}
    for value in half.graph.initializers:
        if value.tensor is not None:  # a sparse one stays in its branch
            number = numbers.of(half, value.tensor)
            names[value] = shared[number] = shared.get(number) or free_name(value.name, taken)
            taken.add(names[value])
    return names


def _make_branch(
    half: Model, body: Model, outputs: Collection[str], passed: Mapping[str, str], taken: Collection[str]
) -> onnx.GraphProto:
    """Return a decoder as a branch, without inputs and weights, in which no name is one from outside."""
    graph, used = onnx.GraphProto(), {*names_in(body.scopes[:1]), *taken}
    graph.CopyFrom(body.proto.graph)
    sources = {value.name: info for value, info in zip(half.graph.outputs, body.proto.graph.output, strict=True)}
    inner = {name for node in graph.node for name in node.output}
    fed = {info.name: info for info in graph.input}
    for field in (graph.input, graph.initializer, graph.output):
        del field[:]
    for name in outputs:
        info = sources.get(name) or fed[passed[name]]
        made = graph.output.add()
        made.CopyFrom(info)
        if info.name not in inner:  # a branch gives no value from outside as it is
            made.name = free_name(name, used)
            used.add(made.name)
            graph.node.append(helper.make_node("Identity", [info.name], [made.name]))
    return graph


def _join_headers(first: Model, later: Model) -> onnx.ModelProto:
    """Return a model without nodes that has the versions, functions and metadata of both."""
    proto = onnx.ModelProto()
    proto.CopyFrom(first.proto)
    proto.graph.Clear()
    proto.graph.name = first.proto.graph.name
    proto.ir_version = max(proto.ir_version, later.proto.ir_version)
    domains = {entry.domain for entry in proto.opset_import}
    proto.opset_import.extend(entry for entry in later.proto.opset_import if entry.domain not in domains)
    functions = [*proto.functions]
    proto.functions.extend(each for each in later.proto.functions if each not in functions)
    metadata = {entry.key: entry.value for half in (later, first) for entry in half.proto.metadata_props}
    metadata[MADE_BY] = f"graphkit {__version__}: merge-decoders of {first.name} and {later.name}"
    helper.set_model_props(proto, metadata)
    return proto
