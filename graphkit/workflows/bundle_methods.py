"""The methods of a bundle, made of the models of an export: they share one state, and each is a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from graphkit.errors import UsageError
from graphkit.graph.kv import CacheEntry, Slot
from graphkit.model import Model
from graphkit.passes.control_flow.split_merged import split_merged
from graphkit.passes.fold import fold
from graphkit.passes.fusion.share_kv_heads import ShareKvHeads
from graphkit.passes.opset.convert_opset import ConvertOpset
from graphkit.passes.state.slots import LENGTH, SINCE, Update
from graphkit.passes.state.update_cache_in_place import UpdateCacheInPlace
from graphkit.rewrite.base import Outcome, Pass
from graphkit.rewrite.fixpoint import run_to_fixpoint
from graphkit.rewrite.interface import with_names
from graphkit.workflows.bundle_encoder import joined
from graphkit.workflows.originals import Pipeline

__all__ = ["MethodModel", "derive_methods"]

TOKENS = "decoder_input_ids"  # what a decoder beside an encoder calls its tokens


@dataclass(frozen=True, eq=False)
class MethodModel:
    """A method on its way: a model, and which of its inputs and outputs are state.

    Attributes:
        name: What it is called.
        when: `once` or `step`.
        model: Its model.
        file: The file that the model goes to.
        reads: The state that each input is, by the name of the input.
        writes: The state that each output is, by the name of the output.
        kinds: What other inputs are: `tokens`, `mask` or `length`; the others are the user's.
        whole: The states that it replaces as a whole.
        changes: What was done, a sentence each.
        length: What the number of slots in use is called.
    """

    name: str
    when: str
    model: Model
    file: str
    reads: Mapping[str, str]
    writes: Mapping[str, str]
    kinds: Mapping[str, str]
    whole: frozenset[str] = frozenset()
    changes: tuple[str, ...] = field(default=())
    length: str = LENGTH

    @property
    def is_exact(self) -> bool:
        """Whether its results are those of the export to the last bit, where onnxruntime fuses nothing."""
        return not any(text.startswith(ShareKvHeads.name()) or " in rings " in text for text in self.changes)


def derive_methods(pipeline: Pipeline, slots: int, update: Update) -> tuple[MethodModel, ...]:
    """Return the methods of an encoder-decoder, `encode` and `step`, or of a decoder-only model, `prefill` and `step`.

    Args:
        pipeline: The models of the export, with a decoder.
        slots: Slots of the cache.
        update: What writes into them.

    Raises:
        UsageError: The cache of the decoder cannot be kept in slots, with the reason.
    """
    first, step = pipeline.first, pipeline.step
    assert first is not None
    assert step is not None
    if pipeline.merged:
        split = split_merged(step)
        first, step = split.first, split.with_past
    if pipeline.encoder is None:
        return _decoder_only(step, slots, update)
    return _encoder_decoder(pipeline.encoder, first, step, slots, update)


def _decoder_only(model: Model, slots: int, update: Update) -> tuple[MethodModel, ...]:
    prepared, changes = _prepared(model, update)
    later, done = _in_place(prepared, UpdateCacheInPlace(slots, update))
    step = _method("step", "step", "step.onnx", later, model, [*changes, *done])
    if not any("rings" in text for text in done):
        both = replace(step, file="decode.onnx")
        return replace(both, name="prefill", when="once"), both
    start, done = _in_place(prepared, UpdateCacheInPlace(slots, update, start=1))
    return _method("prefill", "once", "prefill.onnx", start, model, [*changes, *done]), step


def _encoder_decoder(encoder: Model, first: Model, step: Model, slots: int, update: Update) -> tuple[MethodModel, ...]:
    later, changes = _prepared(_with_tokens(step), update)
    later, done = _in_place(later, UpdateCacheInPlace(slots, update, rings=0))
    after = _method("step", "step", "step.onnx", later, _with_tokens(step), [*changes, *done])
    (ahead, _), (behind, _) = _prepared(encoder, update), _prepared(_with_tokens(first), update)
    wanted = {name: _role(after.model, name) for name in after.reads}
    both, kept = joined(ahead, behind, wanted)
    start, done = _in_place(both, UpdateCacheInPlace(slots, update, rings=0))
    start = fold(start).model
    return _encode(
        start, behind, step, kept, ["the encoder and the first step of the decoder are one model", *done]
    ), after


def _with_tokens(decoder: Model) -> Model:
    """Return a decoder whose tokens are called so that an encoder's are told apart."""
    tokens = decoder.roles.first("tokens")
    return decoder if tokens is None or tokens.name == TOKENS else with_names(decoder, {tokens.name: TOKENS})


def folded(model: Model) -> tuple[Model, list[str]]:
    """Return a model folded, and what was done."""
    result = fold(model).model
    before, after = (len(found.graph.nodes) for found in (model, result))
    return result, [f"folded: {after:,} of {before:,} nodes are left"]


def kept_in_slots(
    name: str, when: str, file: str, model: Model, slots: int, update: Update, reads: Mapping[str, str] = {}
) -> MethodModel:
    """Return a method of one decoder, whose KV cache is kept in slots.

    Args:
        name: What it is called.
        when: `once` or `step`.
        file: The file that its model goes to.
        model: The decoder.
        slots: How many.
        update: What writes into them.
        reads: Inputs that are state of another kind, and what that is called.

    Raises:
        UsageError: Its cache cannot be kept in slots, or an input is not known.
    """
    prepared, changes = _prepared(model, update)
    later, done = _in_place(prepared, UpdateCacheInPlace(slots, update, rings=0))
    return _method(name, when, file, later, model, [*changes, *done], reads)


def _prepared(model: Model, update: Update) -> tuple[Model, list[str]]:
    """Return a model folded, without copies of grouped heads, and with the operators that writing needs."""
    result, changes = folded(model)
    shared = run_to_fixpoint(result, [ShareKvHeads()])
    changes += shared.changes
    if shared.model.graph.opset() >= SINCE[update]:
        return shared.model, changes
    converted = _run(shared.model, ConvertOpset(SINCE[update]))
    return fold(converted.model).model, [*changes, *converted.changes]


def _in_place(model: Model, step: UpdateCacheInPlace) -> tuple[Model, list[str]]:
    outcome = _run(model, step)
    return fold(outcome.model).model, list(outcome.changes)


def _run(model: Model, step: Pass) -> Outcome:
    outcome = step.run(model)
    if outcome.model is model:
        declined = outcome.declined
        reason = f"{declined[0]}" if declined else "it has no cache that grows"
        more = f", and {len(declined) - 1:,} more" if len(declined) > 1 else ""
        raise UsageError(f"{model.name}: {step.name()}: {reason}{more}")
    return outcome


def _method(
    name: str,
    when: str,
    file: str,
    model: Model,
    original: Model,
    changes: list[str],
    known: Mapping[str, str] = {},
) -> MethodModel:
    """Return a method of a decoder, whose states are called as its past inputs are."""
    reads, writes, kinds = dict(known), dict[str, str](), dict[str, str]()
    pasts = {value.name for value in original.roles.pasts}
    for value in model.graph.inputs:
        plain = value.name.removesuffix("_slots")
        role = _role(original, value.name)
        if value.name in known:
            continue
        if value.name in pasts:
            reads[value.name] = value.name
        elif plain != value.name and _role(original, plain) == "mask":
            reads[value.name] = plain
        elif value.name == LENGTH:
            kinds[value.name] = "length"
        elif role in ("encoder mask", "encoder state"):
            reads[value.name] = value.name
        elif role in ("tokens", "mask"):
            kinds[value.name] = role
        else:
            raise UsageError(f"{original.name}: it is not known what '{value.name}' is for - name it in a bundle.toml")
    for value in model.graph.outputs:
        before = value.name.removesuffix("_after")
        if before != value.name and before in reads:
            writes[value.name] = reads[before]
    return MethodModel(name, when, model, file, reads, writes, kinds, changes=tuple(changes))


def _role(model: Model, name: str) -> str:
    return next((role for value, role in model.roles.inputs.items() if value.name == name), "")


def _encode(model: Model, first: Model, step: Model, kept: Mapping[str, str], changes: list[str]) -> MethodModel:
    """Return the method that starts a sequence, whose states are called as the past inputs of the step are."""
    pasts: dict[Slot, str] = {entry.slot: value.name for value, entry in step.roles.pasts.items()}
    presents = {entry.present.name: entry for entry in first.roles.cache if entry.present is not None}
    reads, writes, kinds = {}, dict(kept), {}
    for value in model.graph.inputs:
        plain = value.name.removesuffix("_slots")
        if plain != value.name and plain in presents:
            reads[value.name] = _state(presents[plain], pasts)
        elif plain != value.name and _role(first, plain) == "mask":
            if _role(step, plain) != "mask":
                raise UsageError(f"no input of the decoder's later steps takes the mask '{plain}' of its first step")
            reads[value.name] = kinds[plain] = plain
        elif value.name == TOKENS:
            kinds[value.name] = "tokens"
    kinds = {name: "mask" if kind == name else kind for name, kind in kinds.items()}
    whole = set(kept.values())
    for value in model.graph.outputs:
        before = value.name.removesuffix("_after")
        if before in reads:
            writes[value.name] = reads[before]
        elif value.name in presents:
            writes[value.name] = _state(presents[value.name], pasts)
            whole.add(writes[value.name])
    return MethodModel("encode", "once", model, "encode.onnx", reads, writes, kinds, frozenset(whole), tuple(changes))


def _state(entry: CacheEntry, pasts: Mapping[Slot, str]) -> str:
    if entry.slot not in pasts:
        assert entry.present is not None
        raise UsageError(f"no input of the decoder's later steps takes '{entry.present.name}' of its first step")
    return pasts[entry.slot]
