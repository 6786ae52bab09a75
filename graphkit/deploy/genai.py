"""Write an export as a folder for onnxruntime-genai: its models, `genai_config.json`, and the files of its tokenizer.

That runtime feeds tokens, a mask over past and new tokens, their positions, and a key and a value for each layer, which
it makes as long as all tokens. What an export takes besides is named, and no folder is written.

Source: onnxruntime-genai 0.18: src/config.h, and in src/models kv_cache.cpp, position_inputs.cpp, whisper.cpp,
marian.cpp and decoder_only_pipeline.cpp.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from onnx import TensorProto

from graphkit.analysis.costs.cost_changes import CostChange
from graphkit.deploy.export_pipeline import Pipeline, decoder_settings, find_pipeline, read_settings, read_tokens
from graphkit.dtypes import dtype_name
from graphkit.errors import UsageError
from graphkit.graph.declared_types import declared_type
from graphkit.graph.names import name_of
from graphkit.graph.roles import Role
from graphkit.graph.view import Value
from graphkit.io.stream_files import shown_path
from graphkit.io.transaction import made_folder
from graphkit.model import Model
from graphkit.options import GenaiOptions, RewriteProofOptions
from graphkit.passes.fold_pipeline import fold
from graphkit.passes.interface.extract_subgraph import ExtractSubgraph
from graphkit.passes.state.join_encoder import compose_models
from graphkit.render.document_blocks import Block, Prose, outcome
from graphkit.rewrite.new_interface import with_exposed, with_names
from graphkit.runtime.session import IsolatedSession
from graphkit.save import save_models
from graphkit.shapes import Expr, const, infer
from graphkit.verify.rewrite_proof import ProvenReport, RewriteProof, proof_blocks, proof_outcome
from graphkit.verify.rewrite_verifier import verify_extract

__all__ = ["GenaiReport", "genai_folder"]

FED: Mapping[Role, str] = {"tokens": "input_ids", "mask": "attention_mask", "positions": "position_ids"}
USUAL = (("past", "past_key_values.%d"), ("present", "present.%d"))
CACHE = {f"{side}_{kind}_names": f"{name}.{kind}" for side, name in USUAL for kind in ("key", "value")}
LONGEST = 60  # bytes of a name in the cache
FRAMES = 3000  # of a sound, which Whisper always has
SOUND, STATE = "audio_features", "encoder_hidden_states"
CONTEXT = ("max_position_embeddings", "n_positions", "max_target_positions", "n_ctx", "max_seq_len", "seq_length")
SEARCH = (
    "do_sample", "min_length", "num_beams", "repetition_penalty", "length_penalty", "early_stopping",
    "no_repeat_ngram_size", "top_k", "top_p", "temperature",
)  # fmt: skip
IGNORED = (
    "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id", "forced_decoder_ids",
    "bad_words_ids", "min_new_tokens", "max_new_tokens",
)  # fmt: skip
TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "chat_template.jinja",
)  # fmt: skip
BUNDLE = "graphkit bundle may run it"


@dataclass(frozen=True)
class GenaiReport(ProvenReport):
    """A folder for onnxruntime-genai that was written.

    Attributes:
        source: The export.
        kind: What onnxruntime-genai calls this type of model.
        files: The files, with those of the tokenizer.
        notes: What to know, a sentence each.
        proof: The proof of the part of Whisper's decoder that joins the encoder; all other models are copied.
    """

    title: ClassVar[str] = "Folder for onnxruntime-genai"
    source: str
    kind: str
    files: tuple[str, ...]
    notes: tuple[str, ...]
    proof: RewriteProof | None = None
    costs: tuple[CostChange, ...] = ()

    def blocks(self) -> Iterator[Block]:
        done, is_made = f"A model of type {self.kind}: {', '.join(self.files)}.", self.kind == "whisper"
        copied = "The models are those of the export; at most names were changed."
        joins = f"{done} What joins the encoder is a part of the decoder."
        yield proof_outcome(joins, self.proof) if is_made else outcome([done, copied], ())
        yield from (Prose(f"{note}.") for note in self.notes)
        yield from proof_blocks(self.proof, "what joins the encoder is") if is_made else ()


def genai_folder(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    options: GenaiOptions = GenaiOptions(),
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> GenaiReport:
    """Write an export as a folder that `onnxruntime_genai.Model` loads.

    A decoder is copied. Where one model reads the prompt and another each token, both go into a pipeline, over one file
    of weights. Whisper's encoder gives the cache of the cross-attention too: what it takes of the decoder is proven.

    Returns:
        The report.

    Raises:
        UsageError: onnxruntime-genai cannot run the export, with the reason; or nothing says where a text ends.
        OutputError: The files cannot be written; nothing is left behind.
        ModelError: A model or a configuration is broken.
    """
    path, output = Path(path), Path(output)
    folder = path if path.is_dir() else path.parent
    if output.resolve() == folder.resolve():
        raise UsageError(f"{output} is the folder of the export - name another one")
    progress("reading")
    draft = _draft_folder(find_pipeline(path), path)
    folders = (folder, folder.parent) if folder.name == "onnx" else (folder,)
    config, notes = _make_config(draft.sections, folders, options.context)
    found = {name: place / name for place in reversed(folders) for name in TOKENIZER if (place / name).is_file()}
    if "tokenizer.json" not in found:
        notes.append("No tokenizer.json is beside the export: onnxruntime_genai.Tokenizer needs one, Model does not")
    contents = {name: file.read_bytes() for name, file in found.items()}
    contents["genai_config.json"] = f"{json.dumps(config, indent=2)}\n".encode()
    proof = None
    if draft.pair is not None and options.verify:
        told = RewriteProofOptions(limits=options.limits)
        proof = verify_extract(*draft.pair, options=told, progress=progress)
    progress("writing")
    with made_folder(output):
        saved = save_models(
            {output / name: model for name, model in draft.models.items()},
            weights="kept" if len(draft.models) == 1 else "shared",
            data_name="weights.data",
            others={output / name: content for name, content in contents.items()},
            overwrite=options.overwrite,
        )
    files = tuple(file.name for file in saved)
    kind = str(draft.sections["type"])
    return GenaiReport(name_of(path), kind, files, tuple(notes), proof)


class _Draft(NamedTuple):
    models: Mapping[str, Model]  # by file
    sections: Mapping[str, Any]  # of the configuration
    pair: tuple[Model, Model] | None = None  # Whisper's first decoder, and the part of it that joins the encoder


def _refusal(model: Model | None, problem: str, hint: str = BUNDLE) -> UsageError:
    return UsageError(f"{model.name if model else 'the export'}: onnxruntime-genai does not run it: {problem} - {hint}")


def _draft_folder(pipeline: Pipeline, path: Path) -> _Draft:
    step, first = pipeline.step, pipeline.first
    if pipeline.merged:
        problem = "it has both steps in an If, whose condition nothing feeds"
        raise _refusal(step, problem, f"first: graphkit split-merged {shown_path(path)} -o PAIR")
    if step is None or first is None or not step.roles.pasts:
        model = step or first or pipeline.encoder
        if model is not None and model.roles.states:
            raise _refusal(model, "it has recurrent state in place of a KV cache")
        raise _refusal(model, "it has no KV cache", "export a decoder with its cache")
    if pipeline.encoder is not None:
        return _draft_whisper(pipeline.encoder, first, step)
    model, decoder, words = _read_decoder(step, FED)
    if first is step:
        sections = {"type": "decoder", "vocab_size": words, "decoder": {"filename": "model.onnx", **decoder}}
        return _Draft({"model.onnx": _several_tokens(model)}, sections)
    first = _with_names_of(first, model)
    _read_ports(first, FED)
    stages = [
        {
            name: {
                "filename": f"{name}.onnx",
                "run_on_prompt": part is first,
                "run_on_token_gen": part is model,
                "inputs": [value.name for value in part.roles.inputs],
                "outputs": [value.name for value in part.graph.outputs],
            }
        }
        for name, part in (("prefill", first), ("decode", model))
    ]
    sections = {"type": "decoder-pipeline", "vocab_size": words, "decoder": {**decoder, "pipeline": stages}}
    return _Draft({"prefill.onnx": first, "decode.onnx": model}, sections)


def _several_tokens(step: Model, hint: str = "export the model that reads the prompt too") -> Model:
    dims = infer(step)[step.roles.all("tokens")[0]].dims
    if dims is None or dims[1].constant == 1:
        raise _refusal(step, "it takes one token at a time, and a prompt has several", hint)
    return step


def _draft_whisper(encoder: Model, first: Model, step: Model) -> _Draft:
    audio, hidden, states = encoder.roles.first("audio"), encoder.roles.encoder_state, first.roles.all("encoder state")
    if audio is None or hidden is None or len(states) != 1:
        problem = "of decoders beside an encoder it runs Whisper, and Marian with recurrent state (marian-ssru)"
        raise _refusal(step, problem)
    dims = infer(encoder)[audio].dims
    is_whole = dims is not None and len(dims) == 3 and dims[1].constant and dims[2].constant in (None, FRAMES)
    if not is_whole or len(encoder.roles.inputs) > 1:
        raise _refusal(encoder, f"it does not take {FRAMES:,} frames, and nothing else")
    step = _several_tokens(step, "export it with optimum, whose later steps take several")
    step, decoder, words = _read_decoder(step, {"tokens": "input_ids"})
    step, pasts = _name_cache(step, is_cross=True)
    first, cross = _name_cache(first, is_cross=True)
    ends = tuple(entry.present.name for entry in first.roles.cache if entry.present and first.roles.is_cross(entry))
    cut = fold(ExtractSubgraph(outputs=ends).run(fold(first).model).model).model

    def with_encoder(model: Model) -> Model:
        both = compose_models(encoder, model, {states[0].name: hidden.name}, "encoder/")
        exposed = with_exposed(both, [f"encoder/{hidden.name}"])
        return with_names(exposed, {f"encoder/{hidden.name}": STATE, f"encoder/{audio.name}": SOUND})

    part = with_encoder(cut)
    if left := [value.name for value in part.roles.inputs if value.name != SOUND]:
        raise _refusal(first, f"the cache of its cross-attention depends on '{left[0]}'")
    _check_prompt(part, first, step, words)
    width = (infer(part)[part.graph.values[STATE]].dims or (const(0),))[-1]
    decoder["inputs"] |= {f"cross_{key}": name for key, name in pasts.items() if "past" in key}
    outputs = {f"cross_{key}": name for key, name in cross.items() if "present" in key}
    section = {key: number for key, number in decoder.items() if key not in ("inputs", "outputs")}
    section |= {"filename": "encoder.onnx", "hidden_size": int(width), "inputs": {SOUND: SOUND}}
    section["outputs"] = {STATE: STATE, **outputs}
    sections = {"encoder": section, "decoder": {"filename": "decoder.onnx", **decoder}}
    models = {"encoder.onnx": part, "decoder.onnx": step}
    return _Draft(models, {"type": "whisper", "vocab_size": words, **sections}, (first, cut))


def _check_prompt(part: Model, first: Model, step: Model, words: int) -> None:
    """Check, in one run, that later steps with nothing past give a prompt the logits that the first step gives it."""

    def run(model: Model, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        with IsolatedSession(model) as session:
            return session.run(feed)

    def random(model: Model, role: Role, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        value = model.roles.all(role)[0]
        numbers = generator.integers(0, words, shape) if role == "tokens" else generator.standard_normal(shape)
        return {value.name: numbers.astype(dtype_name(infer(model)[value].dtype))}

    generator = np.random.default_rng(0)
    heard = run(part, random(part, "audio", (1, int((infer(part)[part.roles.all("audio")[0]].dims or ())[1]), FRAMES)))
    prompt = random(first, "tokens", (1, 5))
    expected = run(first, prompt | {first.roles.all("encoder state")[0].name: heard[STATE]})
    names = {entry.slot: entry.present.name for entry in first.roles.cache if entry.present}
    feed = {step.roles.all("tokens")[0].name: next(iter(prompt.values()))}
    for value, entry in step.roles.pasts.items():
        name = names[entry.slot]
        feed[value.name] = heard[name] if step.roles.is_cross(entry) else expected[name][:, :, :0]
    logits, right = run(step, feed)[_logits(step).name], expected[_logits(first).name]
    if not np.allclose(logits, right, rtol=0, atol=0.01 * np.abs(right).max()):
        raise _refusal(step, "it takes a prompt of several tokens otherwise than the model of the first step does")


def _read_decoder(step: Model, fed: Mapping[Role, str]) -> tuple[Model, dict[str, Any], int]:
    """Return a decoder whose cache has names by layer, its section of the configuration, and its vocabulary."""
    step, cache = _name_cache(step, is_cross=False)
    inputs, shapes, roles = _read_ports(step, fed), infer(step), step.roles
    lengths = shapes[roles.all("tokens")[0]].dims or ()
    own = [entry for entry in roles.cache if not roles.is_cross(entry)]
    section: dict[str, Any] = {"num_hidden_layers": len(own) // 2}
    rows = set()
    for entry in own:
        past, present = (shapes[value].dims if value else None for value in (entry.past, entry.present))
        if past is None or present is None or len(past) != 4 or not _has_grown(present[2], past[2], lengths[1]):
            name = next(value.name for value in (entry.past, entry.present) if value)
            raise _refusal(step, f"'{name}' is not [batch, heads, past, size], and longer by the new tokens afterwards")
        heads, size = present[1].constant, present[3].constant
        section |= {"num_attention_heads": heads, "num_key_value_heads": heads, "head_size": size}
        rows.add(past[2])
    if len(rows) > 1:
        raise _refusal(step, "the caches of its layers have several lengths")
    logits = _logits(step)
    scores = shapes[logits].dims or ()
    if len(scores) != 3 or scores[1] not in (lengths[1], 1) or (words := scores[2].constant) is None:
        raise _refusal(step, f"its '{logits.name}' is not [batch, tokens, vocabulary]")
    section["inputs"] = inputs | {key: name for key, name in cache.items() if "past" in key}
    section["outputs"] = {"logits": logits.name} | {key: name for key, name in cache.items() if "present" in key}
    return step, section, words


def _logits(model: Model) -> Value:
    if model.roles.logits is None:
        raise _refusal(model, "it gives no logits")
    return model.roles.logits


def _has_grown(present: Expr, past: Expr, tokens: Expr) -> bool:
    """Whether a cache gets as long as past and new tokens, or as a mask of these."""
    sizes = {**dict.fromkeys(past.symbols, 11), **dict.fromkeys(tokens.symbols, 7)}
    total = past.evaluate(sizes) + tokens.evaluate(sizes)
    return past.constant is None and present.evaluate(dict.fromkeys(present.symbols, total) | sizes) == total


def _read_ports(model: Model, fed: Mapping[Role, str]) -> dict[str, str]:
    """Return the input of each kind that is fed, besides the cache."""
    ports: dict[str, str] = {}
    dtypes = set()
    for value, role in model.roles.inputs.items():
        if role == "past":
            continue
        declared, key = declared_type(value), fed.get(role, "")
        if not key or key in ports:
            raise _refusal(model, f"it takes '{value.name}', and is fed {', '.join(fed.values())} and the cache alone")
        is_plain = (
            declared is not None and declared.rank == 2 and declared.dtype in (TensorProto.INT32, TensorProto.INT64)
        )
        if not is_plain or model.roles.polarities.get(value) == "pads":
            raise _refusal(model, f"its '{value.name}' is not [batch, tokens] of integers, 1 for what counts")
        ports[key] = value.name
        dtypes |= {declared.dtype} if declared is not None and role != "tokens" else set()
    if "input_ids" not in ports or len(dtypes) > 1:
        raise _refusal(model, "mask and positions differ in dtype" if len(dtypes) > 1 else "it takes no token ids")
    return ports


def _name_cache(model: Model, *, is_cross: bool) -> tuple[Model, dict[str, str]]:
    """Return a model whose cache, that of the cross-attention or the other, has names by layer, and their patterns."""
    found: dict[str, dict[int, Value]] = {key: {} for key in CACHE}
    for entry in model.roles.cache:
        for side, value in (("past", entry.past), ("present", entry.present)):
            if value is None or model.roles.is_cross(entry) != is_cross:
                continue
            if len(entry.slot.index) != 1 or entry.slot.kind not in ("key", "value"):
                raise _refusal(model, f"'{value.name}' is not the key or the value of a layer")
            found[f"{side}_{entry.slot.kind}_names"][entry.slot.index[0]] = value
    usual = {key: name.replace("%d", "%d.encoder") if is_cross else name for key, name in CACHE.items()}
    patterns = {key: _find_pattern(values) or usual[key] for key, values in found.items() if values}
    names = {v.name: patterns[key] % layer for key, values in found.items() for layer, v in values.items()}
    return with_names(model, {old: new for old, new in names.items() if old != new}), patterns


def _find_pattern(values: Mapping[int, Value]) -> str:
    """Return the pattern of names by layer, "" where they have none that onnxruntime-genai takes."""
    layer, first = next(iter(values.items()))
    for match in re.finditer(r"\d+", first.name):
        made = f"{first.name[: match.start()]}%d{first.name[match.end() :]}"
        is_named = all(made.replace("%d", str(number)) == value.name for number, value in values.items())
        if is_named and int(match[0]) == layer and made.count("%") == 1 and len(made) < LONGEST:
            return made
    return ""


def _with_names_of(first: Model, step: Model) -> Model:
    """Return the model of the prompt, with the names of the one of later steps."""
    presents = {entry.slot: entry.present for entry in step.roles.cache}
    pairs = [(entry.present, presents.get(entry.slot)) for entry in first.roles.cache]
    if lost := [value.name for value, other in pairs if value is not None and other is None]:
        raise _refusal(first, f"no step takes its '{lost[0]}'")
    pairs += [(first.roles.first(role), step.roles.first(role)) for role in FED]
    pairs.append((first.roles.logits, step.roles.logits))
    return with_names(first, {old.name: new.name for old, new in pairs if old and new and old.name != new.name})


def _make_config(
    sections: Mapping[str, Any], folders: tuple[Path, ...], context: int | None
) -> tuple[dict[str, object], list[str]]:
    """Return the configuration, and what to know."""
    plain, generation = (
        next((found for place in folders if (found := read_settings(place / name))), {})
        for name in ("config.json", "generation_config.json")
    )
    text = decoder_settings(plain)
    settings = {**text, **{key: value for key, value in generation.items() if value is not None}}
    ends, pads, begins = (read_tokens(settings.get(f"{name}_token_id")) for name in ("eos", "pad", "bos"))
    context = context or next((size for key in CONTEXT if type(size := text.get(key)) is int), None)
    if not ends or context is None:
        what = (
            "how long a text may be: give --context" if ends else "which token ends a text: add generation_config.json"
        )
        raise UsageError(f"{shown_path(folders[0])}: nothing beside the models says {what.replace(':', ' -', 1)}")
    tokens = {"bos_token_id": (begins or ends)[0], "eos_token_id": list(ends), "pad_token_id": (pads or ends)[0]}
    usual = {"do_sample": False, "max_length": context, "past_present_share_buffer": False}
    search = usual | {key: generation[key] for key in SEARCH if isinstance(generation.get(key), int | float)}
    notes = []
    if ignored := [key for key in IGNORED if generation.get(key) not in (None, [], 0)]:
        notes.append(f"It does not follow what generation_config.json says of {', '.join(ignored)}")
    if sections["type"] == "decoder-pipeline":
        notes.append("One sequence at a time: of several, it takes each new token for a prompt")
    elif sections["type"] == "decoder" and not {*FED.values()} <= {*sections["decoder"]["inputs"]}:
        notes.append("It takes no mask, or no positions: all sequences of a batch have to be of one length")
    return {"model": {**sections, **tokens, "context_length": context}, "search": search}, notes
