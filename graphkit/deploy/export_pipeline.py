"""An export: its models by their roles in a pipeline, and what its configurations say of tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from graphkit.analysis.architecture import architecture
from graphkit.analysis.model_fit import first_states
from graphkit.analysis.model_interface import MANIFEST
from graphkit.contract.host_contract import Generation
from graphkit.deploy.export_inputs import (
    drop_idle_inputs,
    grow_window_caches,
    pad_states,
    pass_positions,
    share_dim_names,
    start_with_encoder,
    takes_positions,
)
from graphkit.equivalence.originals import Originals
from graphkit.equivalence.result import GRADES
from graphkit.equivalence.stages import Stage, prove_stages
from graphkit.errors import ModelError, UsageError
from graphkit.graph.dataflow import find_readers
from graphkit.graph.operator_traits import COMPARING, MEASURING
from graphkit.graph.roles import Role, declared_rank, dim_at
from graphkit.graph.view import Node, Value, find_nodes, walk_breadth_first
from graphkit.io.byte_source import shown_path
from graphkit.io.read import CONFIGURATIONS, find_beside
from graphkit.model import Model, load
from graphkit.ops.tensor import Array, element_number
from graphkit.passes.control_flow.merged_decoders import split_merged
from graphkit.passes.npu.cache_interface import FLOAT_TYPES
from graphkit.passes.npu.host_inputs import id_input, is_unmasked_product
from graphkit.passes.state.join_encoder import chain_models
from graphkit.passes.state.static_cache import count_slots, find_slot_axes
from graphkit.rewrite import Editor, NewNode
from graphkit.rewrite.fixpoint import Rewrite, run_to_fixpoint
from graphkit.rewrite.host_values import find_dependences
from graphkit.rewrite.new_interface import (
    NewInput,
    drop_dead_inputs,
    with_inputs,
    with_interface,
    with_names,
    with_outputs,
)
from graphkit.shapes import infer, symbol
from graphkit.shapes.constraints.failing_sizes import SizeCheck, find_triggers
from graphkit.shapes.input_dims import input_dims

LOGITS = "logits"
SOURCES: tuple[Role, ...] = ("encoder tokens", "audio", "image")  # roles of what an encoder reads
MASK_LENGTH = "source_mask_length"  # the dim of a decoder's mask that counts what the encoder's input does
TRIED = (61, 7)  # lengths of a mask and of an output that are not equal, and no multiple of each other
PLAIN = ("encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx", "decoder_model_merged.onnx")
WINDOWS = ("sliding_window", "attention_chunk_size", "attention_window_size", "window_size")
ROLES = {
    "encoder": "encoder",
    "vision": "encoder",
    "other": "encoder",
    "recurrent": "encoder",
    "recurrent decoder": "step",
    "first-step decoder": "first",
    "decoder with past": "step",
    "decoder-only": "step",
    "merged decoder": "merged",
}
STATES, READS = "last_hidden_state", "encoder_hidden_states"
KEYS = {"pad": "pad_token_id", "start": "decoder_start_token_id", "first": "bos_token_id", "ends": "eos_token_id"}
MOST = (1 << 31) - 1  # what every language counts to
UNSET = (
    "exponential_decay_length_penalty", "sequence_bias", "constraints", "force_words_ids", "stop_strings", "max_time",
    "watermarking_config", "dola_layers", "language", "task",
)  # fmt: skip
OFF = ("do_sample", "renormalize_logits", "remove_invalid_values", "token_healing", "return_timestamps")
NONE = ("diversity_penalty", "penalty_alpha", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size")
ONE = ("num_beam_groups", "repetition_penalty", "encoder_repetition_penalty", "guidance_scale")
NOT_FOLLOWED = {  # settings that change tokens, each with the value that changes nothing, as null does
    **dict.fromkeys(UNSET), **dict.fromkeys(OFF, False), **dict.fromkeys(NONE, 0), **dict.fromkeys(ONE, 1),
}  # fmt: skip


class Pipeline(Struct, frozen=True, eq=False):
    """The models that run together."""

    encoder: Model | None  # the model that runs once for a source; None for a decoder-only model with a cache
    first: Model | None  # the decoder of the first step; `step` itself where one model serves, None without a decoder
    step: Model | None  # the decoder of later steps, None without a decoder that keeps a cache or a state
    merged: bool  # whether the decoder is a merged one, both `first` and `step`
    settings: TokenSettings  # what the export says of tokens
    halves: tuple[Model, ...] = ()  # the two models that `first` is made of, where the logits have a model of their own
    parts: tuple[Model, ...] = ()  # models that a caller runs beside, such as an encoder of pictures, or of embeddings
    is_apart: bool = False  # whether a caller runs the encoder too, and gives its states to `first`
    sliding: Model | None = None  # the decoder as it was exported, where caches of a window were let grow; or None

    @property
    def models(self) -> tuple[Model, ...]:
        return self.originals.models

    @property
    def originals(self) -> Originals:
        first, head = self.halves or (self.first, None)
        if self.is_apart and self.encoder is not None:
            return Originals(None, first, self.step, head=head, parts=(self.encoder,))
        return Originals(self.encoder, first, self.step, head=head, parts=self.parts, sliding=self.sliding)

    @property
    def changes(self) -> tuple[str, ...]:
        """What is another in the decoder than in the export, a sentence each."""
        return ("caches that keep a window's tokens alone grow, as the others do",) if self.sliding is not None else ()

    def with_encoder_apart(self) -> Pipeline:
        """Return the pipeline with an encoder that its caller runs; refuse one that cannot be told apart."""
        encoder, first, step = self.encoder, self.first, self.step
        if encoder is None and _has_encoder(first, step) and first is not None:
            encoder, first = take_encoder_apart(first, SOURCES)
        if encoder is None or first is None or first is step:
            raise UsageError("--encode-apart: it has no encoder, whose states a first step would read")
        return replace(self, encoder=encoder, first=first, is_apart=True)

    def from_steps(self) -> Pipeline:
        """Return the pipeline without a first step that only reads what later ones can read token by token.

        It is so where these keep recurrent state, and where it reads no tokens, or prompts of one length. An encoder in
        the first step becomes a model of its own. Positions that a caller gives are refused: no later step takes them.
        """
        if self.encoder is not None or self.first is None or self.step is None or self.step is self.first:
            return self
        if _has_encoder(self.first, self.step):
            return replace(self.with_encoder_apart(), is_apart=False)
        if not (self.step.roles.states or self.halves or has_fixed_prompt(self.first)):
            return self
        if takes_positions(self.first, self.step):
            ahead = self.halves[0] if self.halves else self.first
            problem = "the caller says where the tokens of a prompt stand, and steps only count on"
            hint = f"bundle it, or lower {self.step.name} alone, for texts without pictures"
            raise UsageError(f"{ahead.name}: {problem} - {hint}")
        step = drop_idle_inputs(share_dim_names(self.step, self.first))
        return replace(self, first=step, step=step, halves=())

    def with_decoders(self) -> Pipeline:
        """Return the pipeline with its merged decoder split, one name for each size, and the encoder's masks."""
        first, step = self.first, self.step
        if self.merged and step is not None:
            branches = split_merged(step)
            first, step = branches.first, branches.with_past
        encoder = self.encoder
        if first is not None and step is not None:
            tokens = first.roles.first("tokens") or first.roles.first("embeddings")
            dims = (input_dims(first).get(tokens.name) if tokens is not None else None) or ()
            is_one = first is step
            is_named = bool(dims) and (dims[0].constant is not None or "batch" in str(dims[0]))
            batch = dims[0] if is_named else None if is_one else symbol("batch")
            step = drop_idle_inputs(share_dim_names(step, first, batch))
            first = step if is_one else pad_states(drop_idle_inputs(share_dim_names(first, batch=batch)), step)
            if takes_positions(first, step):
                first, step = pass_positions(first, step)
            if encoder is not None:
                encoder = share_dim_names(encoder, batch=batch)
                first, step = (_with_mask_length(encoder, decoder) for decoder in (first, step))
        return replace(self, encoder=encoder, first=first, step=step, merged=False)

    def check_static_cache(self, path: Path) -> None:
        """Refuse a static cache whose mask may show slots that are still to come, or hide others by a window."""
        if (step := self.step) is None or not step.roles.has_slots:
            return
        masks = [value for value in step.roles.all("mask") if declared_rank(value) == 4]
        settings = decoder_settings(read_settings(path, "config.json"))
        slots, is_used = count_slots(step, self.first or step), settings.get("use_sliding_window") is not False
        windows = [size for name in WINDOWS if type(size := settings.get(name)) is int]
        if masks and is_used and any(slots is None or size < slots for size in windows):
            raise UsageError(
                f"{step.name}: '{masks[0].name}' is made by the caller, and config.json has a window that it may hide "
                "more by - export it with a cache that grows"
            )
        shapes = infer(step)
        known = find_dependences(step, shapes)
        lengths = {(shapes[past].dims or ())[axis] for past, axis in find_slot_axes(step).items()}
        for node in step.graph.nodes:
            scores = node.input(0) if node.is_op("Softmax") else None
            if scores is None or not lengths & {*(shapes[scores].dims or ())[-1:]} or not known[scores].data:
                continue
            readers = [reader for reader, _ in node.result().consumers if reader.is_op("Mul", "Where")]
            behind = [known[each] for reader in readers for each in reader.operands if each in known]
            if any(not each.data and each.inputs for each in behind):
                continue  # weights that a mask makes 0
            if is_unmasked_product(scores, known, shapes, by_symbols=False):
                raise UsageError(
                    f"{step.name}: '{node.label}' (Softmax) reads the same slots at each position: nothing that is "
                    "added to its scores follows the position, as where an exporter froze a mask - export it with a "
                    "cache that grows"
                )


def find_pipeline(path: Path) -> Pipeline:
    """Return the models of a folder, or one model; UsageError for none, or for several of one role."""
    split: tuple[tuple[Model, ...], tuple[Model, ...]] = (), ()
    if not path.is_dir():
        model = load(path)
        by_role = {pipeline_role(model): model}
    else:
        models = folder_models(path)
        used = [drop_idle_inputs(each) if each.roles.first("embeddings") is not None else each for each in models]
        if (found := _find_halves(used)) is None:
            by_role = models_by_role(path, models)
        else:
            language, head, decode = found
            link = {head.graph.inputs[0].name: _hidden_output(language).name}
            joined = with_names(chain_models("prefill", (language, head), link), {head.graph.outputs[0].name: LOGITS})
            by_role = {"first": joined, "step": decode}
            split = (language, head), tuple(model for model in used if model not in found)
    merged = by_role.get("merged")
    first, step = (merged, merged) if merged is not None else (by_role.get("first"), by_role.get("step"))
    if first is not None and step is not None and first.roles.logits is None and not first.roles.all("tokens"):
        first = start_with_encoder(first, step)
    exported = step
    step = grow_window_caches(step) if first is None and step is not None else step
    if first is not None and step is None:
        raise UsageError(
            f"{shown_path(path)}: it has a decoder of the first step and none of later steps - export both"
        )
    encoder = by_role.get("encoder")
    if encoder is None and not _has_encoder(first, step) and any(map(_reads_encoder, (first, step))):
        problem = "it has a decoder that reads an encoder, and no encoder - export it too"
        decoder = first or step
        if decoder is not None and (sources := decoder.roles.all(*SOURCES)):
            problem = (
                f"{decoder.name} has the encoder in it, which reads '{sources[0].name}', and would run it at each step "
                "- export encoder and decoder as two models"
            )
        raise UsageError(f"{shown_path(path)}: {problem}")
    settings = read_token_settings(path, has_encoder=encoder is not None and step is not None)
    words = step.roles.vocabulary if step is not None else None
    most = max(settings.tokens["start"] or 0, min(settings.ends, default=0))  # of several ends one may be there
    if words is not None and most >= words:
        problem = f"config.json or generation_config.json says token {most}, and its vocabulary has {words}"
        raise UsageError(f"{shown_path(path)}: {problem} - put those of this model there")
    pad = settings.tokens["pad"]
    for each in (encoder, step):  # where the export does not say, comparisons of ids in a model do
        if pad is None and each is not None and each.roles.decoder is None:
            pad = padding_token(each)
    settings = replace(settings, tokens={**settings.tokens, "pad": pad})
    sliding = exported if exported is not step else None
    return Pipeline(encoder, first or step, step, merged is not None, settings, *split, sliding=sliding)


def has_fixed_prompt(model: Model | None) -> bool:
    """Whether a decoder reads prompts of one length alone, of several tokens; of recurrent ones, by what nodes need."""
    tokens = model.roles.first("tokens") if model is not None else None
    size = dim_at(tokens, 1)
    if model is None or tokens is None or isinstance(size, int) or model.roles.cache:
        return isinstance(size, int) and size > 1
    shapes = infer(model)
    rules = {rule.name: rule for rule in find_triggers(shapes).rules if rule.is_exact}
    rule = rules.get(dims[1].declared) if (dims := shapes[tokens].dims) is not None and len(dims) > 1 else None
    return rule is not None and rule.least == rule.most and rule.least > 1


def _reads_encoder(model: Model | None) -> bool:
    if model is None:
        return False
    states = model.roles.all("encoder state", "encoder tokens", "encoder mask")
    return bool(states) or any(model.roles.is_cross(entry) for entry in model.roles.pasts.values())


def _has_encoder(first: Model | None, step: Model | None) -> bool:
    """Whether the first step has the encoder in it, and later ones read nothing of it but a cache and a mask."""
    if first is None or step is None or first is step or first.roles.first("encoder state") is not None:
        return False
    return bool(first.roles.all(*SOURCES)) and not drop_idle_inputs(step).roles.all("encoder state", *SOURCES)


def changed_by(pipeline: Pipeline, rewrite: Rewrite) -> Pipeline:
    """Return a pipeline whose models a rewrite has changed; the same where it changes nothing."""
    made = {model: run_to_fixpoint(model, [rewrite]).model for model in pipeline.models}
    if all(model is before for before, model in made.items()):
        return pipeline
    parts = pipeline.encoder, pipeline.first, pipeline.step
    encoder, first, step = (None if part is None else made[part] for part in parts)
    return replace(pipeline, encoder=encoder, first=first, step=step)


def used_models(paths: Sequence[Path]) -> list[Path]:
    """Return the models that an export is made of: those with exporters' names, and none merged beside its parts."""
    named = [path for path in paths if path.name in PLAIN]
    if len(named) < 2:
        return list(paths)
    pair = {"decoder_model.onnx", "decoder_with_past_model.onnx"} <= {path.name for path in named}
    return [path for path in named if not (pair and path.name == "decoder_model_merged.onnx")]


def _find_halves(models: Sequence[Model]) -> tuple[Model, Model, Model] | None:
    """Return the model of a prompt that gives hidden states, what makes logits of them, and that of later steps.

    Exporters of models for pictures and text write the first so, as its embeddings come from several models.
    """
    firsts = [m for m in models if m.roles.cache and not m.roles.pasts and m.roles.first("embeddings") is not None]
    steps = [model for model in models if model.roles.pasts and model.roles.logits is not None]
    if len(firsts) != 1 or len(steps) != 1 or firsts[0].roles.logits is not None:
        return None
    if [*firsts[0].roles.outputs.values()].count("present") + 1 != len(firsts[0].graph.outputs):
        return None  # which of several outputs the head reads is not known
    (first,), (step,) = firsts, steps
    width, words = (dim_at(value, -1) for value in (_hidden_output(first), step.roles.logits))
    heads = [
        model
        for model in models
        if model not in (first, step) and len(model.graph.inputs) == len(model.graph.outputs) == 1
        if (dim_at(model.graph.inputs[0], -1), dim_at(model.graph.outputs[0], -1)) == (width, words)
    ]
    return (first, heads[0], step) if len(heads) == 1 else None


def _hidden_output(first: Model) -> Value:
    return next(value for value, role in first.roles.outputs.items() if role != "present")


def folder_models(folder: Path) -> list[Model]:
    """Return the models in a folder that an export is made of."""
    if not (paths := used_models(sorted(folder.glob("*.[oO][nN][nN][xX]")))):
        raise UsageError(f"{shown_path(folder)}: it holds no .onnx file - name the folder of an export, or a model")
    return [load(path) for path in paths]


def models_by_role(folder: Path, models: Sequence[Model]) -> dict[str, Model]:
    """Return the models of an export as `encoder`, `first`, `step` and `merged`, as many as there are."""
    started = [m for m in models if not m.roles.cache and any(first_states(m, step) for step in models)]
    by_role: dict[str, Model] = {}
    components = read_settings(folder, MANIFEST).get("components")
    parts = components.values() if isinstance(components, dict) else ()
    listed = {str(part.get("file")) for part in parts if isinstance(part, dict)}
    for model in sorted(models, key=lambda model: model.name not in listed):
        # it reads a prompt at once, as a step of recurrent state does token by token
        role = "first" if model in started else pipeline_role(model)
        if role in by_role and role == "encoder" and all(each.roles.logits for each in (model, by_role[role])):
            raise UsageError(
                f"{shown_path(folder)}: no decoder here gives a cache to keep - export it with use_cache=True"
            )
        if role in by_role and by_role[role].name in listed and model.name not in listed:
            continue  # such as a fold of it, which lies beside it
        if role in by_role:
            problem = f"{by_role[role].name} and {model.name} are both for the same step"
            hint = "move one elsewhere" if _find_halves(models) is None else "make a bundle of it"
            raise UsageError(f"{shown_path(folder)}: {problem} - {hint}")
        by_role[role] = model
    return by_role


def pipeline_role(model: Model) -> str:
    """Return `encoder`, `first`, `step` or `merged`."""
    role, roles = ROLES[architecture(model).role], model.roles
    return "encoder" if role == "step" and not roles.pasts and not roles.states else role


def has_shorter_output(encoder: Model) -> bool:
    """Whether an encoder has a mask of its input, which is no text, and an output of another length."""
    if encoder.roles.all("tokens", "encoder tokens", "embeddings"):
        return False
    mask, output = encoder.roles.first("mask"), encoder.roles.encoder_state
    if mask is None or output is None:
        return False
    shapes = infer(encoder)
    mask_dims, output_dims = shapes[mask].dims, shapes[output].dims
    return mask_dims is None or output_dims is None or mask_dims[1:2] != output_dims[1:2]


def _with_mask_length(encoder: Model, decoder: Model) -> Model:
    """Return a decoder whose mask of the source has a length of its own, which exporters declare as that of the states.

    The runtime of an export passes the encoder's mask on as it is, so that its length is that of the encoder's input.
    Refuse a decoder whose nodes need a mask as long as the encoder's output, which nothing makes.
    """
    mask = decoder.roles.first("encoder mask")
    tensor = infer(decoder)[mask] if mask is not None and has_shorter_output(encoder) else None
    if mask is None or tensor is None or tensor.dims is None or len(tensor.dims) < 2:
        return decoder
    declared, dims = dim_at(mask, 1), (tensor.dims[0], symbol(MASK_LENGTH), *tensor.dims[2:])
    made = with_interface(decoder, {mask.name: NewInput(mask.name, tensor.dtype, dims)}, {})
    sizes = {MASK_LENGTH: TRIED[0], str(declared): TRIED[1]}
    if isinstance(declared, str) and (fault := SizeCheck(made).fault(sizes)):
        raise UsageError(
            f"{decoder.name}: its '{mask.name}' must be as long as the output of {encoder.name}, whose own mask is "
            f"longer ({fault}) - export both together"
        )
    return made


def compared_tokens(model: Model) -> list[int]:
    """Return the constants with which a model compares its token ids, in node order."""
    numbers = (element_number(element) for _, _, data in _token_comparisons(model) for element in data.ravel())
    return list(dict.fromkeys(token for token in numbers if token is not None and token >= 0))


def padding_token(model: Model) -> int | None:
    """Return the token that a model tells padding by, None for none; one that it looks for, or counts, is another."""
    for node, ids, data in _token_comparisons(model):
        is_of_tokens = node.is_op("Equal") and node.scope is model.graph and model.roles.of(ids) == "tokens"
        uses = find_readers(node.result(), lambda user, _: user.is_op("Cast")) if is_of_tokens else ()
        if not is_of_tokens or data.size != 1 or any(user.is_op("ArgMax", "ReduceSum") for user, _ in uses):
            continue
        if (token := element_number(data.item())) is not None:
            return token
    return None


def _token_comparisons(model: Model) -> Iterator[tuple[Node, Value, Array]]:
    shapes = infer(model)
    for node in find_nodes(model.scopes, *COMPARING):
        pair = node.input(0), node.input(1)
        for value, constants in (pair, pair[::-1]):
            ids = id_input(value)
            if ids is None or model.roles.of(ids) not in ("tokens", "encoder tokens") or constants is None:
                continue
            if (data := shapes[constants].data) is not None:
                yield node, ids, data


class TokenSettings(Struct, frozen=True):
    """What an export says of tokens: `pad` and `start`, which of them end a sequence, and how they are chosen."""

    tokens: Mapping[str, int | None]
    ends: tuple[int, ...] = ()
    generation: Generation = field(default_factory=Generation)


def read_token_settings(path: Path, *, has_encoder: bool) -> TokenSettings:
    """Return what the configurations beside models say of tokens; ModelError for one that is no JSON.

    A decoder that has an encoder starts with the token that begins a text where nothing says otherwise.
    """
    named, configuration = read_generation(path), read_settings(path, "config.json")
    files = named, decoder_settings(configuration)
    ids = {name: next((ids for file in files if (ids := read_tokens(file.get(key)))), ()) for name, key in KEYS.items()}
    starts = ids["start"] or (ids["first"] if has_encoder else ())
    tokens = {"pad": next(iter(ids["pad"]), None), "start": starts[0] if len(starts) == 1 else None}
    if image := read_tokens(configuration.get("image_token_id", configuration.get("image_token_index"))):
        tokens["image"] = image[0]
    of_generation = _Settings(named or files[1])
    if len(starts) > 1:
        of_generation.noted.append(KEYS["start"])
    return TokenSettings(tokens, ids["ends"], of_generation.generation(tokens["start"], ids["ends"]))


def read_generation(path: Path) -> Mapping[str, object]:
    """Return what generation_config.json says, or else the same settings of genai_config.json."""
    named, _, of_genai = (read_settings(path, name) for name in CONFIGURATIONS)
    parts = (of_genai.get(name) for name in ("model", "search"))
    return named or {key: value for part in parts if isinstance(part, dict) for key, value in part.items()}


def read_settings(path: Path, name: str) -> Mapping[str, object]:
    """Return a configuration in JSON beside models, or above their folder `onnx`, empty where there is none.

    Raises ModelError for one that cannot be read.
    """
    file = find_beside(path if path.is_dir() else path.parent, [name]).get(name)
    if file is None:
        return {}
    try:
        return {**json.loads(file.read_text(encoding="utf-8"))}
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise ModelError(
            f"it cannot be read: {error}", file=shown_path(file), hint="mend it or move it away"
        ) from error


def decoder_settings(configuration: Mapping[str, object]) -> Mapping[str, object]:
    """Return a model's configuration, with the settings of its decoder where it has none itself."""
    parts = (configuration.get(name) for name in ("text_config", "decoder"))
    decoder: Mapping[str, object] = next((part for part in parts if isinstance(part, dict)), {})
    return {**decoder, **{name: value for name, value in configuration.items() if value is not None}}


def read_tokens(entry: object) -> tuple[int, ...]:
    """Return the tokens of an entry, which is one or a list of them."""
    listed = entry if isinstance(entry, list) else [entry]
    return tuple(dict.fromkeys(token for token in listed if type(token) is int and 0 <= token <= MOST))


class _Settings:
    """The settings of a configuration, of which those that no host follows are noted by name."""

    def __init__(self, plain: Mapping[str, object]) -> None:
        self.plain = plain
        self.noted = [name for name, usual in NOT_FOLLOWED.items() if plain.get(name) not in (None, usual)]

    def generation(self, start: int | None, ends: tuple[int, ...]) -> Generation:
        first, early = self._read_tokens("forced_bos_token_id"), self.plain.get("early_stopping")
        if len(first) > 1:
            self.noted.append("forced_bos_token_id")
        if early not in (None, True, False, "never"):
            self.noted.append("early_stopping")
        penalty, given = 1.0, self.plain.get("length_penalty")
        if isinstance(given, int | float) and abs(given) <= MOST:  # nor is it NaN
            penalty = float(given)
        elif given is not None:
            self.noted.append("length_penalty")
        longest, fewest = self._count("max_length"), self._count("min_new_tokens")
        return Generation(
            prompt=self._prompt_tokens(start),
            max_length=longest if longest != 20 else None,  # the default, which is no setting
            max_new_tokens=self._count("max_new_tokens") or None,
            min_length=(self._count("min_length") or 0) if fewest is None else 0,  # which `min_new_tokens` replaces
            min_new_tokens=fewest or 0,
            forced_bos_token_id=first[0] if len(first) == 1 else None,
            forced_eos_token_id=self._read_tokens("forced_eos_token_id"),
            bad_words_ids=tuple(dict.fromkeys(self._bad_words(ends))),
            suppress_tokens=self._read_tokens("suppress_tokens"),
            begin_suppress_tokens=self._read_tokens("begin_suppress_tokens"),
            num_beams=self._count("num_beams") or 1,
            length_penalty=penalty,
            early_stopping="never" if early == "never" else early in (True,),
            not_followed=tuple(sorted(dict.fromkeys(self.noted))),
        )

    def _count(self, name: str) -> int | None:
        entry = self.plain.get(name)
        if type(entry) is int and entry >= 0:
            return min(entry, MOST)
        if entry is not None:
            self.noted.append(name)
        return None

    def _read_tokens(self, name: str) -> tuple[int, ...]:
        entry = self.plain.get(name)
        listed = entry if isinstance(entry, list) else [] if entry is None else [entry]
        if any(type(token) is not int or token > MOST for token in listed):
            self.noted.append(name)
        return read_tokens(listed)

    def _bad_words(self, ends: tuple[int, ...]) -> Iterator[int]:
        """Yield the words of one token that never come; an end token is none, and longer words are not followed."""
        words = self.plain.get("bad_words_ids")
        for word in words if isinstance(words, list) else [words] if words is not None else []:
            ids = read_tokens(word)
            if not isinstance(word, list) or len(word) != 1 or not ids:
                self.noted.append("bad_words_ids")
            elif ids[0] not in ends:
                yield ids[0]

    def _prompt_tokens(self, start: int | None) -> tuple[int, ...]:
        """Return the tokens behind the start token: those of a given start, or those that are forced one by one.

        A model of speech in several languages would first have to hear which one it is: that is not followed.
        """
        given = self.plain.get("decoder_input_ids")
        given = given[0] if isinstance(given, list) and len(given) == 1 and isinstance(given[0], list) else given
        if given is not None:
            if not (tokens := _ids_in_order(given)):
                self.noted.append("decoder_input_ids")
            return tokens[1:] if tokens[:1] == (start,) else tokens
        forced, silent = self.plain.get("forced_decoder_ids"), self.plain.get("no_timestamps_token_id")
        pairs = forced if isinstance(forced, list) else []
        tokens = _ids_in_order([pair[1] for pair in pairs if isinstance(pair, list) and len(pair) == 2])
        is_whole = pairs == [[place, token] for place, token in enumerate(tokens, start=1)]
        if forced is not None and not (is_whole and isinstance(forced, list)):
            self.noted.append("forced_decoder_ids")
            return ()
        if self.plain.get("lang_to_id") and not tokens:
            self.noted.append("lang_to_id")
            return ()
        if type(silent) is int and (start, *tokens)[-1] != silent and not self.plain.get("return_timestamps"):
            return (*tokens, *read_tokens(silent))
        return tokens


def _ids_in_order(listed: object) -> tuple[int, ...]:
    """Return a list of tokens, which may come twice; none where it has anything else."""
    tokens = listed if isinstance(listed, list) else []
    return tuple(tokens) if all(type(token) is int and 0 <= token <= MOST for token in tokens) else ()


def take_encoder_apart(first: Model, sources: Sequence[Role]) -> tuple[Model, Model]:
    """Return the encoder in a first step, and what is left of that, which reads the encoder's states.

    The states are the last value [batch, length, width] through which all goes that the decoder and its caches get of
    the source, but for its shape and its mask. One model behind the other is proven to be the first step bit for bit,
    or refused. `sources` are the roles of what an encoder reads.
    """
    source, states = first.roles.all(*sources)[0], _find_states(first, sources)
    hint = f"export the encoder beside it as encoder.onnx, or bundle {first.name} as it is"
    if states is None:
        raise UsageError(
            f"{first.name}: it has the encoder in it, and no one value [batch, length, width] is all that its decoder "
            f"reads of it - {hint}"
        )
    tensor, dims = infer(first)[states], infer(first)[source].dims or ()
    assert tensor.dims is not None
    encoder = with_outputs(first, [(states.name, NewInput(STATES, tensor.dtype, tensor.dims))])
    rest = with_inputs(first, {states: NewInput(READS, tensor.dtype, tensor.dims)})
    editor = Editor(rest)
    for node, _ in rest.graph.values[source.name].consumers if dims[:2] == tensor.dims[:2] else ():
        if node.is_op("Shape") and node.scope is rest.graph:  # which the states tell as well
            start, end = node.attr("start", 0), node.attr("end", len(dims))
            if start is not None and end is not None and 0 <= start <= end <= 2:
                kept = {"start": start, "end": end}
                editor.replace(node, NewNode("Shape", [READS], [node.result().name], kept, like=node))
    rest = drop_dead_inputs(editor.result())
    (proof,) = prove_stages([Stage("rest", "encoder apart", first, rest, stands_for={READS: states.name})])
    if not proof.is_proven or set(proof.proven.values()) != {GRADES[0]}:
        why = proof.unproven or "it is equal in exact arithmetic alone"
        raise UsageError(f"{first.name}: its encoder is not proven to be one by itself: {why} - {hint}")
    return encoder, rest


def _find_states(first: Model, sources: Sequence[Role]) -> Value | None:
    """Return the last value through which all goes that the decoder and the outputs get of the source."""
    import networkx as nx  # which a decoder with its encoder inside alone needs

    roles, shapes = first.roles, infer(first)
    given, tokens = roles.all(*sources), roles.all("tokens", "embeddings")

    def made_of(value: Value) -> Iterator[Value | None]:
        return (out for node, _ in value.consumers if not node.is_op(*MEASURING) for out in node.outputs)

    decoded, encoded = set(walk_breadth_first(tokens, made_of)), set(walk_breadth_first(given, made_of))
    flow: nx.DiGraph[Value | str] = nx.DiGraph()
    begin, end = "begin", "end"
    flow.add_edges_from((begin, value) for value in given)
    for value in encoded - decoded:
        if value in first.graph.outputs:
            flow.add_edge(value, end)
        for out in filter(None, made_of(value)):
            flow.add_edge(value, end if out in decoded else out)
    if end not in flow:
        return None
    before = nx.immediate_dominators(flow, begin)
    gate = before[end]
    while isinstance(gate, Value):
        if shapes[gate].dtype in FLOAT_TYPES and len(shapes[gate].dims or ()) == 3:
            return gate
        gate = before[gate]
    return None
