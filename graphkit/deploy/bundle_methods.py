"""The methods of a bundle, made of the models of an export: they share one state, and each is a model."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace

from msgspec import Struct, structs

from graphkit.analysis.model_fit import given_states
from graphkit.deploy.deploy_sizes import fold_decoder
from graphkit.deploy.export_inputs import drop_idle_inputs, share_dim_names, takes_positions
from graphkit.deploy.export_pipeline import SOURCES, Pipeline
from graphkit.errors import UsageError
from graphkit.graph.cache_entries import CacheEntry, Slot
from graphkit.graph.roles import declared_rank, dim_at
from graphkit.graph.view import all_nodes
from graphkit.model import Model
from graphkit.options import Update
from graphkit.passes.attention.decompose_attention import ATTENTIONS, DecomposeAttention
from graphkit.passes.attention.share_kv_heads import ShareKvHeads
from graphkit.passes.fold_pipeline import fold
from graphkit.passes.npu.cache_interface import find_growths
from graphkit.passes.opset.convert_opset import ConvertOpset
from graphkit.passes.shapes.simplify_scatter import SimplifyScatter
from graphkit.passes.state.decode_step import KEPT, KeepLastLogits, SqueezeTokenAxis, UnpackLogitsWeight
from graphkit.passes.state.join_encoder import JoinEncoder
from graphkit.passes.state.static_cache import CountSlotsInUse, find_slot_axes, writes_rows
from graphkit.passes.state.update_cache_in_place import LENGTH, SINCE, UpdateCacheInPlace
from graphkit.rewrite.base import Outcome, Pass
from graphkit.rewrite.edits import NewNode
from graphkit.rewrite.fixpoint import run_to_fixpoint
from graphkit.rewrite.new_interface import NewInput, with_interface, with_names
from graphkit.shapes import infer
from graphkit.shapes.input_dims import input_dims

TOKENS = "decoder_input_ids"  # what a decoder beside an encoder calls its tokens
USUAL = ("prefill", "encode", "step", "init", "reorder")  # methods of bundles
WRITING = ("ScatterND", "TensorScatter")  # operators that write in place
Names = Mapping[str, str]
COUNTS: Names = {LENGTH: "length", KEPT: "kept"}  # inputs that passes have added, and their kinds


class MethodModel(Struct, frozen=True, eq=False):
    """A method on its way: a model, and which of its inputs and outputs are state."""

    name: str
    when: str  # `once` or `step`
    model: Model
    file: str
    reads: Names  # the state that each input is, by the name of the input
    writes: Names  # the state that each output is, by the name of the output
    kinds: Names  # what other inputs are: `tokens`, `mask`, `length`, `kept`, `source` of an encoder; else the user's
    whole: frozenset[str] = frozenset()  # the states that it replaces as a whole
    changes: tuple[str, ...] = ()
    length: str = LENGTH  # what the number of slots in use is called
    part: Model | None = None  # the model of the export that it is, if that has no state, such as an encoder of images
    is_exact: bool = True  # whether its results are those of the export to the last bit if onnxruntime fuses nothing


def derive_methods(pipeline: Pipeline, slots: int, update: Update) -> tuple[MethodModel, ...]:
    """Return the methods of an encoder-decoder, `encode` and `step`, or of a decoder-only model, `prefill` and `step`.

    The pipeline has its decoders apart. Refuse a cache that cannot be kept in so many slots.
    """
    first, step = pipeline.first, pipeline.step
    assert first is not None
    assert step is not None
    if pipeline.parts:
        return (*_method_pair(first, step, slots, update), *map(_part_method, pipeline.parts))
    if pipeline.encoder is None:
        is_pair = _takes_one(step) or (first is not step and bool(first.roles.all(*SOURCES)))
        return _method_pair(first, step, slots, update) if is_pair else _decoder_only(step, slots, update)
    if pipeline.is_apart:
        return (*_method_pair(first, step, slots, update), _part_method(pipeline.encoder, "encoder"))
    return _encoder_decoder(pipeline.encoder, first, step, slots, update)


def method_name(model: Model, taken: Collection[str]) -> str:
    """Return the name of a model's file as that of a method, which has none of some names."""
    name = re.sub(r"\W", "_", model.name.removesuffix(".onnx"))
    return name if name.isidentifier() and name not in taken else f"run_{name}"


def _part_method(model: Model, encoder: str = "") -> MethodModel:
    """Return the method of a model that has no state, such as an encoder of pictures; of an encoder, with its name."""
    name = encoder or method_name(model, USUAL)
    made, changes = fold_changes(share_dim_names(model))
    kinds = {value.name: "source" if encoder else "user" for value in made.graph.inputs if value.tensor is None}
    return MethodModel(name, "step", made, f"{name}.onnx", {}, {}, kinds=kinds, changes=changes, part=model)


class _Draft(Struct, frozen=True, eq=False):
    """A model in work, the changes so far, and whether its results are those of the export to the last bit."""

    model: Model
    changes: tuple[str, ...] = ()
    is_exact: bool = True

    def with_changes(self, model: Model, changes: Sequence[str], *, is_exact: bool = True) -> _Draft:
        return _Draft(model, (*self.changes, *changes), self.is_exact and is_exact)

    def method(self, name: str, when: str, reads: Names, writes: Names, kinds: Names, whole: Set[str]) -> MethodModel:
        made = MethodModel(name, when, self.model, f"{name}.onnx", reads, writes, kinds=kinds, whole=frozenset(whole))
        return structs.replace(made, changes=self.changes, is_exact=self.is_exact)


def _decoder_only(model: Model, slots: int, update: Update) -> tuple[MethodModel, ...]:
    prepared = _prepare_model(model, update)
    later = _in_place(prepared, UpdateCacheInPlace(slots, update), _slot_count(prepared.model))
    if not _takes_one(later.model):  # as it does where it has rings
        step = structs.replace(_decoder_method("step", "step", _last_logits(later), model), file="decode.onnx")
        return structs.replace(step, name="prefill", when="once"), step
    start = _in_place(prepared, UpdateCacheInPlace(slots, update, start=1))
    ringed = structs.replace(later, is_exact=False)  # a ring adds up its products in another order
    prefill = _decoder_method("prefill", "once", _last_logits(start), model)
    return prefill, _decoder_method("step", "step", ringed, model)


def _takes_one(step: Model) -> bool:
    return dim_at(step.roles.first("tokens"), 1) == 1


def _method_pair(first: Model, step: Model, slots: int, update: Update) -> tuple[MethodModel, ...]:
    """Return the methods of a decoder-only model whose first step is a model of its own, as old exports have it."""
    if first is step:
        raise UsageError(f"{step.label}: it takes one token at a time, and no model reads the prompt - export that too")
    later, after = kept_in_slots("step", "step", step, slots, update)
    prompt, kept = _with_kept_masks(_prepare_model(first, update), step)
    start = _starting_method(_last_logits(_start_in_place(prompt, later, slots, update)), prompt.model, step, kept)
    source = {value.name for value in first.roles.all("encoder mask", "encoder state", *SOURCES)}
    placed = {value.name for value in first.roles.all("positions", "mask")} if takes_positions(first, step) else set()
    known = {*start.reads, *start.kinds, *source, *placed}
    if unknown := [value.name for value in start.model.graph.inputs if value.name not in known]:
        raise UsageError(f"{first.label}: it is not known what '{unknown[0]}' is for - name it in a bundle.toml")
    has_encoder = bool(first.roles.all(*SOURCES))
    return start if has_encoder else structs.replace(start, name="prefill", file="prefill.onnx"), after


def _with_kept_masks(first: _Draft, step: Model) -> tuple[_Draft, dict[str, str]]:
    """Return a first step that gives the masks of the source which later ones read, and what these call each."""
    kept, outputs, nodes = dict[str, str](), dict[str, NewInput](), []
    for mask in step.roles.all("encoder mask"):
        own = first.model.roles.first("encoder mask")
        dims = input_dims(first.model).get(own.name) if own is not None else None
        if own is None or dims is None:
            raise UsageError(f"{first.model.name}: it has no mask of the source for '{mask.name}' of {step.name}")
        out = f"{own.name}_kept"
        outputs[out] = NewInput(out, infer(first.model)[own].dtype, dims)
        nodes.append(NewNode("Identity", [own.name], [out]))
        kept[out] = mask.name
    model = with_interface(first.model, {}, outputs, (), nodes) if kept else first.model
    return structs.replace(first, model=model), kept


def _encoder_decoder(encoder: Model, first: Model, step: Model, slots: int, update: Update) -> tuple[MethodModel, ...]:
    later, after = kept_in_slots("step", "step", _with_tokens(step), slots, update)
    ahead, behind = _prepare_model(encoder, update, first), _prepare_model(_with_tokens(first), update, encoder)
    reads = {name: _role_of_input(after.model, name) for name in after.reads}
    both = JoinEncoder(ahead.model, reads).run(behind.model)
    draft = _Draft(both.model, both.changes, ahead.is_exact and behind.is_exact)
    started = _last_logits(_start_in_place(draft, later, slots, update))
    return _starting_method(started, behind.model, step, dict(both.matches)), after


def _slot_count(step: Model) -> CountSlotsInUse | None:
    return CountSlotsInUse(slots_first=int(writes_rows(step))) if step.roles.has_slots else None


def _start_in_place(draft: _Draft, later: Model, slots: int, update: Update) -> _Draft:
    """Return a decoder of the first step whose cache is laid out as that of later steps."""
    static = find_slot_axes(later)
    own = {past: entry.axis for past, entry in later.roles.pasts.items() if not later.roles.is_cross(entry)}
    axes = {static.get(past, axis) for past, axis in own.items()}
    axis, count = axes.pop() if len(axes) == 1 else None, _slot_count(later)
    counted = None if count is None else replace(count, start=1, axis=axis if axis is not None else count.axis)
    return _in_place(draft, UpdateCacheInPlace(slots, update, rings=0, axis=axis), counted)


def _with_tokens(decoder: Model) -> Model:
    tokens = decoder.roles.first("tokens")
    return decoder if tokens is None or tokens.name == TOKENS else with_names(decoder, {tokens.name: TOKENS})


def fold_changes(model: Model) -> tuple[Model, tuple[str, ...]]:
    """Return a folded model, and the changes."""
    result = fold_decoder(model)
    return result, (f"folded: {len(result.graph.nodes):,} of {len(model.graph.nodes):,} nodes are left",)


def kept_in_slots(
    name: str, when: str, model: Model, slots: int, update: Update, reads: Mapping[str, str] = {}
) -> tuple[Model, MethodModel]:
    """Return a decoder, folded, and the method that it becomes, whose KV cache is kept in slots.

    `reads` are inputs that are state of another kind, and what that is called. Refuse a cache that cannot be kept so,
    or an input that is not known.
    """
    prepared = _prepare_model(model, update)
    later = _in_place(prepared, UpdateCacheInPlace(slots, update, rings=0), _slot_count(prepared.model))
    return prepared.model, _decoder_method(name, when, later, model, reads)


def unpacked_logits(method: MethodModel) -> MethodModel:
    """Return a method of one sequence at a time that does not have onnxruntime pack the matrix of its logits."""
    outcome = run_to_fixpoint(method.model, [UnpackLogitsWeight()])
    is_exact = method.is_exact and not outcome.changes
    return structs.replace(method, model=outcome.model, changes=(*method.changes, *outcome.changes), is_exact=is_exact)


def _prepare_model(model: Model, update: Update, *others: Model) -> _Draft:
    """Return a model folded, without copies of grouped heads, and with the operators that writing and others need."""
    result, changes = fold_changes(model)
    draft = _with_plain_attention(_Draft(result, changes))
    shared = run_to_fixpoint(draft.model, [ShareKvHeads()])
    draft = draft.with_changes(shared.model, shared.changes, is_exact=shared.model is draft.model)
    opset = max(SINCE[update], *(each.graph.opset() for each in (model, *others)))
    if draft.model.graph.opset() >= opset:
        return draft
    converted = _run_step(draft.model, ConvertOpset(opset))
    return draft.with_changes(fold(converted.model).model, converted.changes)


def _with_plain_attention(draft: _Draft) -> _Draft:
    """Return a model in which no attention joins a cache itself, and prompts have no padding where one did."""
    readers = (node for past in draft.model.roles.pasts for node, _ in past.consumers)
    if not any(node.operator in ATTENTIONS for node in readers):
        return draft
    outcome = run_to_fixpoint(draft.model, [DecomposeAttention(unpadded=True)])
    if outcome.declined:
        raise UsageError(f"{draft.model.name}: {DecomposeAttention.name()}: {outcome.declined[0]}")
    folded = drop_idle_inputs(fold(outcome.model).model)
    return draft.with_changes(folded, outcome.changes, is_exact=False)


def _in_place(draft: _Draft, step: UpdateCacheInPlace, count_slots: CountSlotsInUse | None = None) -> _Draft:
    outcome = _run_step(draft.model, count_slots if count_slots is not None else step)
    kept = fold(outcome.model, without=(SimplifyScatter,))  # a Concat would not write in place
    squeezed = run_to_fixpoint(kept.model, [SqueezeTokenAxis()])
    return draft.with_changes(squeezed.model, (*outcome.changes, *squeezed.changes))


def _last_logits(draft: _Draft) -> _Draft:
    """Return a method that gives the logits of as many tokens as its caller asks for, where it can be made so."""
    outcome = KeepLastLogits().run(draft.model)
    return draft.with_changes(outcome.model, outcome.changes)


def _run_step(model: Model, step: Pass) -> Outcome:
    outcome = step.run(model)
    if outcome.model is model:
        declined = outcome.declined
        reason = f"{declined[0]}" if declined else "it has no cache that grows"
        more = f", and {len(declined) - 1:,} more" if len(declined) > 1 else ""
        raise UsageError(f"{model.name}: {step.name()}: {reason}{more}{_way_out(model)}")
    return outcome


def _way_out(model: Model) -> str:
    """Return the advice for a cache that is rounded, that an attention joins itself, or that is moved or stacked."""
    advice, operators = "", {node.op_type for node in all_nodes(model.scopes)}
    if "QuantizeLinear" in operators:
        advice = "take the export back to floats: graphkit rewrite -p 'dequantize{qdq=true}'"
    elif any(operator.endswith("Attention") for operator in operators):
        advice = "export attention in plain operators"
    elif any(growth.new is None for growth in find_growths(model, infer(model), [])):
        advice = "lower it, which takes such a cache, or export it with new keys and values joined to it as it comes"
    return f" - {advice}" if advice else ""


def _decoder_method(name: str, when: str, draft: _Draft, original: Model, known: Mapping[str, str] = {}) -> MethodModel:
    """Return a method of a decoder, whose states are called as its past inputs are."""
    model = draft.model
    names = {value.name for value in model.graph.inputs}
    known = {name: state for name, state in known.items() if name in names}
    names -= known.keys()
    states = {each.past.name: each.next.name for each in original.roles.states if each.past.name in names}
    reads, writes, kinds = {**known, **{name: name for name in states}}, dict[str, str](), dict[str, str]()
    pasts = {value.name for value in original.roles.pasts}
    for value in model.graph.inputs:
        plain = value.name.removesuffix("_slots")
        role = _role_of_input(original, value.name)
        if value.name in reads:
            continue
        if value.name in pasts or role in ("encoder mask", "encoder state"):
            reads[value.name] = value.name
        elif plain != value.name and _role_of_input(original, plain) == "mask":
            reads[value.name] = plain
        elif value.name in COUNTS:
            kinds[value.name] = COUNTS[value.name]
        elif role in ("tokens", "mask"):
            kinds[value.name] = role
        else:
            raise UsageError(f"{original.name}: it is not known what '{value.name}' is for - name it in a bundle.toml")
    for value in model.graph.outputs:
        before = value.name.removesuffix("_after")
        if before != value.name and before in reads:
            writes[value.name] = reads[before]
    writes |= {after: before for before, after in states.items()}
    makers = {value.name: value.producer for value in model.graph.outputs}
    whole = {writes[name] for name, node in makers.items() if name in writes and not (node and node.is_op(*WRITING))}
    return draft.method(name, when, reads, writes, kinds, {*states, *(whole if original.roles.has_slots else ())})


def _role_of_input(model: Model, name: str) -> str:
    return next((role for value, role in model.roles.inputs.items() if value.name == name), "")


def check_masks(first: Model, step: Model) -> None:
    """Raise UsageError where later steps need a mask of the prompt that the first one does not have."""
    ranks = [{declared_rank(value) for value in each.roles.all("mask")} for each in (first, step)]
    if 2 in ranks[1] and ranks[0] == {4}:
        raise UsageError(
            f"{step.name}: it takes a mask for each token, and the first step one for each pair of tokens, of which "
            "none can be made - export them anew from a batch without padding"
        )


def _starting_method(draft: _Draft, first: Model, step: Model, kept: Mapping[str, str]) -> MethodModel:
    """Return the method that starts a sequence, whose states are called as the past inputs of the step are."""
    model = draft.model
    check_masks(first, step)
    pasts: dict[Slot, str] = {entry.slot: value.name for value, entry in step.roles.pasts.items()}
    presents = {entry.present.name: entry for entry in first.roles.cache if entry.present is not None}
    given = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
    states = {output.name: past.name for past, output in given_states(first, step).items() if output.name in given}
    own = {entry.past.name: states[entry.next.name] for entry in first.roles.states if entry.next.name in states}
    reads, writes, kinds = dict(own), {**kept, **states}, {}
    for value in model.graph.inputs:
        plain = value.name.removesuffix("_slots")
        if plain != value.name and plain in presents:
            reads[value.name] = _state_name(presents[plain], pasts)
        elif plain != value.name and _role_of_input(first, plain) == "mask":
            if _role_of_input(step, plain) != "mask":
                raise UsageError(f"no input of the decoder's later steps takes the mask '{plain}' of its first step")
            reads[value.name] = kinds[plain] = plain
        elif value.name == KEPT or _role_of_input(first, value.name) in ("tokens", "embeddings"):
            kinds[value.name] = "kept" if value.name == KEPT else "tokens"
    kinds = {name: "mask" if kind == name else kind for name, kind in kinds.items()}
    whole = {*kept.values(), *states.values()}
    for value in model.graph.outputs:
        before = value.name.removesuffix("_after")
        if before in reads:
            writes[value.name] = reads[before]
        elif before in presents:
            writes[value.name] = _state_name(presents[before], pasts)
            whole.add(writes[value.name])
    return draft.method("encode", "once", reads, writes, kinds, whole)


def _state_name(entry: CacheEntry, pasts: Mapping[Slot, str]) -> str:
    if entry.slot not in pasts:
        assert entry.present is not None
        raise UsageError(f"no input of the decoder's later steps takes '{entry.present.name}' of its first step")
    return pasts[entry.slot]
