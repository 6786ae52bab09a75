"""Split a merged decoder into the decoder of the first step and the one of later steps, and merge two into one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import onnx
from msgspec import Struct
from onnx import TensorProto, helper

from graphkit import __version__
from graphkit.dtypes import dtype_name
from graphkit.errors import UsageError, count_things, did_you_mean
from graphkit.graph.declared_types import declared_type
from graphkit.graph.names import family_labels, free_name, names_in
from graphkit.graph.roles import Axis, MergedDecoder, Role, count_captured_values, dim_at, trace_condition
from graphkit.graph.view import Node, Value, all_nodes, all_scopes, branch_fault, functions_of
from graphkit.matching.value_numbering import ConstantNumbers
from graphkit.model import Model, ModelLike, as_model
from graphkit.passes.clean_up.redundant_nodes import DropEmptyOutputs, DropUnusedInputs, EliminateDeadCode
from graphkit.passes.control_flow.inline_constant_if import SpecializeInput
from graphkit.passes.shapes.declare_shapes import InferOutputShapes
from graphkit.rewrite import Declined, Outcome, Pass
from graphkit.rewrite.base import run_passes
from graphkit.rewrite.new_interface import with_symbols, with_value_names
from graphkit.shapes import Declarations, Expr, declarations, symbol
from graphkit.shapes.constraints.dim_equalities import forced_sizes
from graphkit.shapes.input_dims import declared_inputs, input_dims, read_dim

SUFFIX = re.compile(r"_merged(_\d+)?(?=$|_(scale|zero_point|quantized)$)")
MADE_BY = "graphkit.made_by"
CONDITION = "use_cache_branch"
SHARED: tuple[Axis, ...] = ("batch", "sequence", "past", "encoder", "total")
SAME: tuple[Role, ...] = ("tokens", "mask", "positions", "token types", "encoder mask", "encoder state")


class StripMergedSuffixes(Pass):
    """Strip the `_merged_0` and `_merged` that exporters append to weights that two decoders share.

    Legality: no other value in the model has the shorter name. Names that a quantiser derived from such a name
    (`..._merged_0_scale`) are shortened too. Inputs and outputs keep their names.

    Before:

        agraph (float[N] x) => (float[N] y) <float[1] w_merged_0 = {2.0}> {
            y = Add (x, w_merged_0)
        }

    After:

        agraph (float[N] x) => (float[N] y) <float[1] w = {2.0}> {
            y = Add (x, w)
        }
    """

    def run(self, model: Model) -> Outcome:
        proto = model.proto
        used = {name for scope in all_scopes(model.scopes) for name in scope.values}
        ports = {info.name for info in [*proto.graph.input, *proto.graph.output]}
        names, declined = dict[Value, str](), list[Declined]()
        for tensor in [*proto.graph.initializer, *(sparse.values for sparse in proto.graph.sparse_initializer)]:
            short = SUFFIX.sub("", tensor.name)
            if short == tensor.name or tensor.name in ports:
                continue
            if short in used:
                declined.append(Declined(tensor.name, f"'{short}' is in use"))
                continue
            used.add(short)
            names[model.graph.values[tensor.name]] = short
        changes = (count_things(len(names), "initializer(s) renamed"),) if names else ()
        return Outcome(with_value_names(model, names) if names else model, changes, tuple(declined))


class Split(Struct, frozen=True):
    """The two decoders of a merged one.

    Attributes:
        condition: The boolean input that is gone.
        cache_when: Its value on later steps.
        first_changes, with_past_changes: One sentence for each change.
    """

    condition: str
    cache_when: bool
    first: Model
    with_past: Model
    first_changes: tuple[str, ...]
    with_past_changes: tuple[str, ...]


def split_merged(model: ModelLike, *, condition: str | None = None, keep_names: bool = False) -> Split:
    """Return the decoders of a merged one, and the changes: `graphkit.split_merged(model).first` is the first step's.

    Args:
        model: A model with an If on a boolean input, one branch of which reads a KV cache.
        condition: Name of that input, if there are several.
        keep_names: Keep the suffix `_merged_0` in the names of shared weights.

    Raises:
        UsageError: The model is not a merged decoder, or `condition` is needed to choose one.

    Example:
        >>> made = graphkit.split_merged(graphkit.load("example:merged-decoder"))
        >>> made.condition, made.cache_when
        ('use_cache_branch', True)
    """
    model = as_model(model)
    declared = declarations(model)
    decoder = _choose_decoder(declared.model, condition)
    name, is_cached = decoder.condition.input.name, decoder.cache_when
    first, with_past = (_extract_branch(declared, name, when, keep_names) for when in (not is_cached, is_cached))
    decoders = _sign_part(first.model, "first step", model), _sign_part(with_past.model, "later steps", model)
    return Split(name, is_cached, *decoders, first.changes, with_past.changes)


def _extract_branch(declared: Declarations, name: str, value: bool, keep_names: bool) -> Outcome:
    steps = (SpecializeInput(name, value), DropEmptyOutputs(), EliminateDeadCode(), DropUnusedInputs())
    taken = run_passes(declared.model, steps)
    model = declarations(taken.model, is_branch=True).model if declared.corrections else taken.model
    named = run_passes(model, (InferOutputShapes(), *(() if keep_names else (StripMergedSuffixes(),))))
    return Outcome(named.model, (*taken.changes, *named.changes), (*taken.declined, *named.declined))


def _sign_part(result: Model, part: str, source: Model) -> Model:
    entries = {entry.key: entry for entry in result.proto.metadata_props}
    entry = entries.get(MADE_BY) or result.proto.metadata_props.add(key=MADE_BY)
    entry.value = f"graphkit {__version__}: split-merged of {source.name}, {part}"
    return result


def _choose_decoder(model: Model, condition: str | None) -> MergedDecoder:
    candidates: dict[str, MergedDecoder] = {}
    for decoder in model.roles.merged:
        candidates.setdefault(decoder.condition.input.name, decoder)
    if condition is not None:
        if condition in candidates:
            return candidates[condition]
        if condition not in model.graph.values:
            inputs = (value.name for value in model.graph.inputs)
            raise UsageError(f"{model.label}: no input '{condition}' - {did_you_mean(condition, inputs)}")
        command = f"`graphkit rewrite -p specialize-input{{input={condition},value=...}}`"
        hint = f"{_why_not(model)}; an If over something else can be decided by {command}"
        raise UsageError(f"{model.label}: no merged decoder on '{condition}' - {hint}")
    if len(candidates) > 1:
        raise UsageError(f"{model.label}: merged decoders on {', '.join(candidates)} - choose one with --condition")
    if not candidates:
        raise UsageError(f"{model.label}: is not a merged decoder: {_why_not(model)}")
    return next(iter(candidates.values()))


def _why_not(model: Model) -> str:
    if not (ifs := [node for node in all_nodes(model.scopes[:1]) if node.is_op("If")]):
        return "there is no If in it"
    if not model.roles.pasts:
        return "none of its inputs is a past of a KV cache"
    reasons = [f"'{node.path}' {_missing_in_branch(node, model)}" for node in ifs]
    return "; ".join(reasons[:3]) + (f"; and {len(reasons) - 3} more" if len(reasons) > 3 else "")


def _missing_in_branch(node: Node, model: Model) -> str:
    if (condition := trace_condition(node)) is None:
        return "has a condition that is computed, not an input"
    if (declared := declared_type(condition.input)) is None or declared.dtype != TensorProto.BOOL:
        kind = dtype_name(declared.dtype) if declared is not None else "of unknown type"
        return f"is on '{condition.input.name}', which is {kind}, not bool"
    if fault := branch_fault(node):
        return f"is broken: {fault}"
    reading = [name for name, body in node.bodies.items() if model.roles.pasts.keys() & count_captured_values(body)]
    return "reads the past in both branches" if reading else "reads no past in either branch"


class Merge(Struct, frozen=True):
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


@dataclass(frozen=True)
class MergeDecoders(Pass):
    """Merge the decoder of the first step, which this rewrites, with one of later steps, as `merge_decoders` does.

    It takes a model as an option, so that no text names this pass. Legality: the two fit together.
    """

    changes_interface = True

    with_past: Model

    def run(self, model: Model) -> Outcome:
        made = merge_decoders(model, self.with_past)
        return Outcome(made.model, (f"later steps are those of {self.with_past.name}", *made.changes))


def merge_decoders(first: ModelLike, with_past: ModelLike) -> Merge:
    """Return two decoders merged into one, as exporters write `decoder_model_merged.onnx`.

    Equal weights are stored once. On later steps the encoder's part of the cache is passed through, where exporters
    give tensors without elements. Where the two have other names for one role, that of later steps counts.

    Args:
        first: The decoder of the first step, which reads no past.
        with_past: The decoder of later steps.

    Raises:
        UsageError: They are no such decoders, or do not fit together: the reason says where.
        ModelError: A file of weights has shrunk.

    Example:
        >>> pair = graphkit.split_merged("example:merged-decoder")
        >>> graphkit.merge_decoders(pair.first, pair.with_past).model.roles.merged[0].condition.input.name
        'use_cache_branch'
    """
    first, later = as_model(first), as_model(with_past)
    if (misfit := next(_find_misfits(first, later), None)) is not None:
        raise UsageError(misfit)
    # inputs and outputs of the first step get the names of those of the same roles on later steps
    pairs = [(first.roles.logits, later.roles.logits)]
    for role in SAME:
        of_first, of_later = first.roles.all(role), later.roles.all(role)
        pairs += [(of_first[0], of_later[0])] if len(of_first) == len(of_later) == 1 else []
    given = {entry.slot: entry.present for entry in later.roles.cache}
    pairs += [(entry.present, given.get(entry.slot)) for entry in first.roles.cache]
    known = [{value.name for value in (*half.graph.inputs, *half.graph.outputs)} for half in (first, later)]
    same = [(mine.name, other.name) for mine, other in pairs if mine and other]
    names = {mine: other for mine, other in same if mine not in known[1] and other not in known[0]}
    ours, theirs = _share_symbols(declare_needs(with_port_names(first, names)), declare_needs(later))
    inputs, outputs = (_join_declarations(ours, theirs, ports) for ports in ("input", "output"))
    presents = {entry.slot: entry.present.name for entry in ours.roles.cache if entry.present is not None}
    pasts = {entry.slot: past.name for past, entry in theirs.roles.pasts.items() if entry.present is None}
    passed = {presents[slot]: past for slot, past in pasts.items() if slot in presents}
    for half, more in ((ours, set[str]()), (theirs, {*passed})):
        if missing := outputs.keys() - {value.name for value in half.graph.outputs} - more:
            hint = "take it out of the other decoder with graphkit extract --to"
            raise UsageError(f"{half.label}: has no output {family_labels(sorted(missing))} - {hint}")
    taken, shared, numbers = {*inputs, *outputs, CONDITION}, dict[int, str](), ConstantNumbers()
    weights = [_outer_names(half, taken, shared, numbers) for half in (ours, theirs)]
    named = [with_value_names(half, _free_names(half, taken, weights[at])) for at, half in enumerate((ours, theirs))]
    named[1] = ours.with_proto(ours.adopt(named[1]))
    proto, other = onnx.ModelProto(), later.proto
    proto.CopyFrom(first.proto)
    proto.graph.CopyFrom(onnx.GraphProto(name=first.proto.graph.name))
    proto.ir_version = max(proto.ir_version, other.ir_version)
    domains, functions = {entry.domain for entry in proto.opset_import}, [*proto.functions]
    proto.opset_import.extend(entry for entry in other.opset_import if entry.domain not in domains)
    proto.functions.extend(each for each in other.functions if each not in functions)
    metadata = {entry.key: entry.value for half in (other, proto) for entry in half.metadata_props}
    metadata[MADE_BY] = f"graphkit {__version__}: merge-decoders of {first.name} and {later.name}"
    helper.set_model_props(proto, metadata)
    tensors = {tensor.name: tensor for half in named for tensor in half.proto.graph.initializer}
    proto.graph.initializer.extend(tensors.values())
    proto.graph.input.extend([*inputs.values(), helper.make_tensor_value_info(CONDITION, TensorProto.BOOL, [1])])
    proto.graph.output.extend(outputs.values())
    node = proto.graph.node.add(op_type="If", name="merged_decoders", input=[CONDITION], output=outputs)
    for branch, before, half in (("then_branch", theirs, named[1]), ("else_branch", ours, named[0])):
        graph = _make_branch(before, half, {name: passed.get(name, "") for name in outputs}, taken)
        node.attribute.append(helper.make_attribute(branch, graph))
    changes = [f"{count_things(len(names), 'name(s)')} of the first step became those of later steps"] if names else []
    changes += [f"{count_things(sum(map(len, weights)) - len(tensors), 'equal weight(s)')} stored once"]
    changes += [f"passed through on later steps: {family_labels(passed)}"] if passed else []
    return Merge(ours.with_proto(proto), ours, theirs, tuple(changes))


def _find_misfits(first: Model, later: Model) -> Iterator[str]:
    order = "give the decoder of the first step, then that of later steps"
    for model in (first, later):
        if CONDITION in model.graph.values:
            yield f"{model.label}: has '{CONDITION}' already - {order}"
        for value in model.graph.inputs:
            if value.tensor is not None:
                yield f"{model.label}: its input '{value.name}' has a default - export it as a constant"
    for past in first.roles.pasts:
        yield f"{first.label}: reads a past, '{past.name}', and so is not of the first step - {order}"
    if not later.roles.pasts:
        yield f"{later.label}: none of its inputs is a past of a KV cache - {order}"
    versions = {entry.domain: entry.version for entry in first.proto.opset_import}
    for entry in later.proto.opset_import:
        if (version := versions.get(entry.domain, entry.version)) != entry.version:
            domain, hint = entry.domain or "ai.onnx", "convert one with graphkit convert-opset"
            yield f"{later.label}: has opset {entry.version} of {domain}, {first.label} has {version} - {hint}"
    functions = functions_of(first.proto)
    for key, each in functions_of(later.proto).items():
        if functions.get(key, each) != each:
            hint = "put functions into both graphs first: graphkit rewrite -p inline-functions"
            yield f"{later.label}: its function '{each.name}' is not that of {first.label} - {hint}"


def declare_needs(model: Model) -> Model:
    """Return a model that declares the dims that its nodes need of inputs, and those that they give outputs."""
    made = declarations(model).model
    sizes = {name: Expr.of(int(size)) for name, size in forced_sizes(made, {}).items() if size == int(size) > 0}
    return InferOutputShapes().run(with_symbols(made, sizes)).model


def with_port_names(model: Model, names: Mapping[str, str]) -> Model:
    """Return a model whose inputs and outputs have other names, for which inner values make room."""
    values = {model.graph.values[old]: new for old, new in names.items() if old != new}
    return with_value_names(model, _free_names(model, set(values.values()), values)) if values else model


def _free_names(model: Model, taken: Collection[str], names: Mapping[Value, str]) -> dict[Value, str]:
    """Return these new names of values, and free ones for all others that have a taken name, but for inputs."""
    used, found = {*names_in(model.scopes[:1]), *taken}, dict(names)
    for value in (value for scope in model.graph.walk() for name, value in scope.values.items() if name in taken):
        if value not in names and value not in model.graph.inputs:
            found[value] = free_name(value.name, used)
            used.add(found[value])
    return found


def _share_symbols(*halves: Model) -> Iterator[Model]:
    """Yield models that call dims of one meaning alike, as the first does, and no other dims."""
    shared: dict[str, Expr] = {}
    for half in halves:
        names: dict[str, Expr] = {}
        for value in half.graph.inputs:
            for at, dim in enumerate(input_dims(half).get(value.name) or ()):
                axis = half.roles.axis(value, at)
                meaning = axis if axis in SHARED else f"{value.name}.{at}"
                if dim.name is not None and dim.name not in names:
                    free = symbol(free_name(dim.name, {str(known) for known in shared.values()}))
                    names[dim.name] = shared.setdefault(meaning, free)
                elif dim.constant is not None and axis not in SHARED:  # a width that later steps may not read
                    shared.setdefault(meaning, dim)
        yield with_symbols(half, {old: new for old, new in names.items() if new.name != old})


def _join_declarations(first: Model, later: Model, ports: str) -> dict[str, onnx.ValueInfoProto]:
    """Return the declarations of the inputs or of the outputs of both, by name.

    Where they differ in a dim, that of later steps stays if it is that of the first step once the past is empty, and is
    left open otherwise.
    """
    growing = [entry for entry in later.roles.pasts.values() if not later.roles.is_cross(entry)]
    empty = {str(dim_at(entry.past, entry.axis)): 0 for entry in growing}
    ours, theirs = ({info.name: info for info in getattr(half.proto.graph, ports)} for half in (first, later))
    joint, groups = ours | theirs, [declared_inputs(half).groups for half in (first, later)]
    for name in ours.keys() & theirs.keys():
        kinds = [half[name].type.tensor_type for half in (ours, theirs)]
        if (kinds[0].elem_type, len(kinds[0].shape.dim)) != (kinds[1].elem_type, len(kinds[1].shape.dim)):
            raise UsageError(f"{later.label}: '{name}' has not the dtype and rank that it has in {first.label}")
        joint[name] = onnx.ValueInfoProto.FromString(theirs[name].SerializeToString())
        declared = joint[name].type.tensor_type.shape.dim
        pairs = zip(kinds, groups, strict=True)
        dims = [[read_dim(dim.dim_param or dim.dim_value, names) for dim in kind.shape.dim] for kind, names in pairs]
        for made, mine, other in zip(declared, *dims, strict=True):
            if mine not in (other, other.substitute(empty)):
                made.Clear()
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


def _make_branch(before: Model, half: Model, outputs: Mapping[str, str], taken: Collection[str]) -> onnx.GraphProto:
    """Return a decoder as a branch, without inputs and weights, which gives outputs, or else these inputs for them."""
    graph, used = onnx.GraphProto(), {*names_in(half.scopes[:1]), *taken}
    graph.CopyFrom(half.proto.graph)
    fed, inner = {info.name: info for info in graph.input}, {name for node in graph.node for name in node.output}
    given = {value.name: info for value, info in zip(before.graph.outputs, half.proto.graph.output, strict=True)}
    for field in (graph.input, graph.initializer, graph.output):
        del field[:]
    for name, source in outputs.items():
        graph.output.append(info := given.get(name) or fed[source])
        if info.name not in inner:  # a branch gives no value from outside as it is
            made = graph.output[-1].name = free_name(name, used)
            used.add(made)
            graph.node.append(helper.make_node("Identity", [info.name], [made]))
    return graph
