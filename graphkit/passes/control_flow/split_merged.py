"""Split a merged decoder into the decoder of the first step and the one of later steps."""

from __future__ import annotations

import re
from dataclasses import dataclass

from onnx import TensorProto

from graphkit import __version__
from graphkit.dtypes import dtype_name
from graphkit.errors import UsageError, count_things, did_you_mean
from graphkit.graph.declared_types import declared_type
from graphkit.graph.roles import MergedDecoder, count_captured_values, trace_condition
from graphkit.graph.view import Node, Value, all_nodes, all_scopes, branch_fault
from graphkit.model import Model, ModelLike, as_model
from graphkit.passes.clean_up.redundant_nodes import DropEmptyOutputs, DropUnusedInputs, EliminateDeadCode
from graphkit.passes.control_flow.inline_constant_if import SpecializeInput
from graphkit.passes.shapes.declare_shapes import InferOutputShapes
from graphkit.rewrite import Declined, Outcome, Pass
from graphkit.rewrite.base import run_passes
from graphkit.rewrite.new_interface import with_value_names
from graphkit.shapes import Declarations, declarations

SUFFIX = re.compile(r"_merged(_\d+)?(?=$|_(scale|zero_point|quantized)$)")


@dataclass(frozen=True)
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


MADE_BY = "graphkit.made_by"


@dataclass(frozen=True)
class Split:
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
    """Split a merged decoder: `graphkit.split_merged(model).first` is the decoder of the first step.

    Args:
        model: A model with an If on a boolean input, one branch of which reads a KV cache.
        condition: Name of that input, if there are several.
        keep_names: Keep the suffix `_merged_0` in the names of shared weights.

    Returns:
        The two decoders, and what was changed.

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
    """Return the decoder of one branch, whose inputs declare the dims that this branch needs."""
    steps = (SpecializeInput(name, value), DropEmptyOutputs(), EliminateDeadCode(), DropUnusedInputs())
    taken = run_passes(declared.model, steps)
    model = declarations(taken.model, is_branch=True).model if declared.corrections else taken.model
    named = run_passes(model, (InferOutputShapes(), *(() if keep_names else (StripMergedSuffixes(),))))
    return Outcome(named.model, (*taken.changes, *named.changes), (*taken.declined, *named.declined))


def _sign_part(result: Model, part: str, source: Model) -> Model:
    """Note in the metadata which part of which model this is."""
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
    ifs = [node for node in all_nodes(model.scopes[:1]) if node.is_op("If")]
    if not ifs:
        return "there is no If in it"
    if not model.roles.pasts:
        return "none of its inputs is a past of a KV cache"
    reasons = [f"'{node.path}' {_missing_in_branch(node, model)}" for node in ifs]
    return "; ".join(reasons[:3]) + (f"; and {len(reasons) - 3} more" if len(reasons) > 3 else "")


def _missing_in_branch(node: Node, model: Model) -> str:
    condition = trace_condition(node)
    if condition is None:
        return "has a condition that is computed, not an input"
    declared = declared_type(condition.input)
    if declared is None or declared.dtype != TensorProto.BOOL:
        kind = dtype_name(declared.dtype) if declared is not None else "of unknown type"
        return f"is on '{condition.input.name}', which is {kind}, not bool"
    if fault := branch_fault(node):
        return f"is broken: {fault}"
    reading = [name for name, body in node.bodies.items() if model.roles.pasts.keys() & count_captured_values(body)]
    return "reads the past in both branches" if reading else "reads no past in either branch"
