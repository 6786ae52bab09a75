"""Write an export as a folder for onnxruntime-genai: its models, `genai_config.json`, and the files of its tokenizer.

That runtime feeds tokens, a mask over past and new tokens, their positions, and a key and a value for each layer, which
it makes as long as all tokens. What an export takes besides is named, and no folder is written.

Source: onnxruntime-genai 0.18: src/config.h, and in src/models kv_cache.cpp, position_inputs.cpp, whisper.cpp,
marian.cpp and decoder_only_pipeline.cpp.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from onnx import TensorProto

from graphkit.analysis.cost_changes import CostChange
from graphkit.analysis.model_interface import check_frozen_sizes
from graphkit.deploy.export_inputs import drop_idle_inputs
from graphkit.deploy.export_pipeline import (
    MOST,
    Pipeline,
    decoder_settings,
    find_pipeline,
    read_generation,
    read_settings,
    read_tokens,
)
from graphkit.dtypes import dtype_name
from graphkit.errors import UsageError
from graphkit.graph.declared_types import declared_type
from graphkit.graph.names import name_of
from graphkit.graph.roles import Role
from graphkit.io.byte_source import shown_path
from graphkit.io.read import TOKENIZER, find_beside
from graphkit.io.transaction import made_folder
from graphkit.model import Model
from graphkit.options import GenaiOptions, RewriteProofOptions
from graphkit.passes.fold_pipeline import fold
from graphkit.passes.interface.extract_subgraph import ExtractSubgraph
from graphkit.passes.interface.rename import Rename
from graphkit.passes.state.join_encoder import compose_models
from graphkit.progress import Progress
from graphkit.render.document_blocks import Block, Prose, outcome
from graphkit.rewrite.new_interface import with_exposed, with_names
from graphkit.runtime.session import IsolatedSession
from graphkit.save import save_models
from graphkit.shapes import Expr, infer
from graphkit.verify.rewrite_proof import ProvenReport, RewriteProof, proof_blocks, proof_outcome
from graphkit.verify.rewrite_verifier import verify_extract

FED: Mapping[Role, str] = {"tokens": "input_ids", "mask": "attention_mask", "positions": "position_ids"}
SIDES = {False: ("past_key_values", "present"), True: ("past_cross", "present_cross")}  # of the cross-attention or not
FRAMES = 3000  # of a sound, which Whisper always has
SOUND, STATE = "audio_features", "encoder_hidden_states"
CONTEXT = (
    "max_position_embeddings", "n_positions", "max_target_positions", "n_ctx", "max_seq_len", "seq_length",
    "context_length",
)  # fmt: skip
SEARCH = (
    "do_sample", "min_length", "num_beams", "repetition_penalty", "length_penalty", "early_stopping",
    "no_repeat_ngram_size", "top_k", "top_p", "temperature",
)  # fmt: skip
IGNORED = (
    "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id", "forced_decoder_ids",
    "bad_words_ids", "min_new_tokens", "max_new_tokens",
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
    progress: Progress = lambda _: None,
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
    pipeline = find_pipeline(path)
    draft = _draft_folder(pipeline, path)
    frozen = check_frozen_sizes(pipeline.models)
    config, notes = _make_config(draft.sections, folder, options.max_length)
    notes += frozen
    found = find_beside(folder, TOKENIZER)
    if "tokenizer.json" not in found:
        notes.append("No tokenizer.json is beside the export: onnxruntime_genai.Tokenizer needs one, Model does not")
    contents = {name: file.read_bytes() for name, file in found.items()}
    contents["genai_config.json"] = f"{json.dumps(config, indent=2)}\n".encode()
    proof = None
    if draft.pair is not None and options.verify:
        proof = verify_extract(*draft.pair, options=RewriteProofOptions(limits=options.limits), progress=progress)
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
    return GenaiReport(name_of(path), str(draft.sections["type"]), files, tuple(notes), proof)


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
    if pipeline.parts or step.roles.has_slots:
        rows = "its prompts are rows of embeddings, in place of tokens"
        raise _refusal(step, rows if pipeline.parts else "its cache has all slots from the start")
    if pipeline.encoder is not None:
        return _draft_whisper(pipeline.encoder, first, step)
    model = _with_usual_names(step, FED)
    decoder, words = _read_decoder(model)
    if first is step:
        _check_several(model, "export the model that reads the prompt too")
        sections = {"type": "decoder", "vocab_size": words, "decoder": {"filename": "model.onnx", **decoder}}
        return _Draft({"model.onnx": model}, sections)
    first = _with_usual_names(first, FED)
    if lost := {value.name for value in first.graph.outputs} - {value.name for value in model.graph.outputs}:
        raise _refusal(first, f"no step gives '{min(lost)}' too")
    stages: list[object] = []
    for name, part in (("prefill", first), ("decode", model)):
        runs = {"filename": f"{name}.onnx", "run_on_prompt": part is first, "run_on_token_gen": part is model}
        inputs, outputs = ([value.name for value in values] for values in (part.roles.inputs, part.graph.outputs))
        stages.append({name: {**runs, "inputs": inputs, "outputs": outputs}})
    sections = {"type": "decoder-pipeline", "vocab_size": words, "decoder": {**decoder, "pipeline": stages}}
    return _Draft({"prefill.onnx": first, "decode.onnx": model}, sections)


def _check_several(step: Model, hint: str) -> None:
    if (dims := infer(step)[step.roles.all("tokens")[0]].dims) is None or dims[1].constant == 1:
        raise _refusal(step, "it takes one token at a time, and a prompt has several", hint)


def _draft_whisper(encoder: Model, first: Model, step: Model) -> _Draft:
    audio, hidden, states = encoder.roles.first("audio"), encoder.roles.encoder_state, first.roles.all("encoder state")
    if audio is None or hidden is None or len(states) != 1:
        problem = "of decoders beside an encoder it runs Whisper, and Marian with recurrent state (marian-ssru)"
        raise _refusal(step, problem)
    dims = infer(encoder)[audio].dims
    is_whole = dims is not None and len(dims) == 3 and dims[1].constant and dims[2].constant in (None, FRAMES)
    if not is_whole or len(encoder.roles.inputs) > 1:
        raise _refusal(encoder, f"it has to take {FRAMES:,} frames, and nothing else")
    step = _with_usual_names(step, {"tokens": "input_ids"})
    _check_several(step, "export it with optimum, whose later steps take several")
    first = _with_usual_names(first, {"tokens": "input_ids", "encoder state": STATE})
    decoder, words = _read_decoder(step)
    ends = tuple(value.name for value in first.graph.outputs if value.name.startswith(SIDES[True]))
    cut = fold(ExtractSubgraph(outputs=ends).run(fold(first).model).model).model
    part = with_exposed(compose_models(encoder, cut, {STATE: hidden.name}, "encoder/"), [f"encoder/{hidden.name}"])
    part = with_names(part, {f"encoder/{hidden.name}": STATE, f"encoder/{audio.name}": SOUND})
    if left := [value.name for value in part.roles.inputs if value.name != SOUND]:
        raise _refusal(first, f"the cache of its cross-attention depends on '{left[0]}'")

    def run(model: Model, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        dtypes = {value.name: dtype_name(infer(model)[value].dtype) for value in model.graph.inputs}
        with IsolatedSession(model) as session:
            return session.run({name: array.astype(dtypes[name]) for name, array in feed.items()})

    generator = np.random.default_rng(0)
    prompt = generator.integers(0, words, (1, 5))
    bins = int((infer(part)[part.graph.values[SOUND]].dims or ())[1])
    heard = run(part, {SOUND: generator.standard_normal((1, bins, FRAMES))})
    expected = run(first, {"input_ids": prompt, STATE: heard[STATE]})
    feed = {"input_ids": prompt}
    for value, entry in step.roles.pasts.items():
        is_cross = step.roles.is_cross(entry)
        name = value.name.replace(*SIDES[is_cross])
        feed[value.name] = heard[name] if is_cross else expected[name][:, :, :0]
    logits, right = run(step, feed)["logits"], expected["logits"]
    if not np.allclose(logits, right, rtol=0, atol=0.01 * np.abs(right).max()):
        raise _refusal(step, "it takes a prompt of several tokens otherwise than the model of the first step does")
    (_, _, width) = infer(part)[part.graph.values[STATE]].dims or (None, None, None)
    section = {key: number for key, number in decoder.items() if key not in ("inputs", "outputs")}
    section |= {"filename": "encoder.onnx", "hidden_size": width.constant if width else None, "inputs": {SOUND: SOUND}}
    section["outputs"] = {STATE: STATE, **_cache_names("cross_present", SIDES[True][1])}
    decoder["inputs"] |= _cache_names("cross_past", SIDES[True][0])
    sections = {"encoder": section, "decoder": {"filename": "decoder.onnx", **decoder}}
    models = {"encoder.onnx": part, "decoder.onnx": step}
    return _Draft(models, {"type": "whisper", "vocab_size": words, **sections}, (first, cut))


def _cache_names(key: str, name: str) -> dict[str, str]:
    return {f"{key}_{kind}_names": f"{name}.%d.{kind}" for kind in ("key", "value")}


def _read_decoder(step: Model) -> tuple[dict[str, Any], int]:
    """Return the section of the configuration of a decoder that has the usual names, and its vocabulary."""
    shapes, roles = infer(step), step.roles
    lengths = shapes[roles.all("tokens")[0]].dims or ()
    own = [entry for entry in roles.cache if not roles.is_cross(entry)]
    section: dict[str, Any] = {"num_hidden_layers": len(own) // 2}
    kinds: dict[tuple[int, ...], tuple[int | None, int | None]] = {}
    for entry in own:
        past, present = (shapes[value].dims if value else None for value in (entry.past, entry.present))
        if past is None or present is None or len(past) != 4 or not _has_grown(present[2], past[2], lengths[1]):
            name = next(value.name for value in (entry.past, entry.present) if value)
            raise _refusal(step, f"'{name}' is not [batch, heads, past, size], and longer by the new tokens afterwards")
        heads, size = present[1].constant, present[3].constant
        if kinds.setdefault(entry.slot.index, (heads, size)) != (heads, size):
            raise _refusal(step, "keys and values of a layer have several sizes")
        section |= {"num_attention_heads": heads, "num_key_value_heads": heads, "head_size": size}
    scores = shapes[step.graph.values["logits"]].dims or ()
    if len(scores) != 3 or scores[1] not in (lengths[1], 1) or (words := scores[2].constant) is None:
        raise _refusal(step, "its logits are not [batch, tokens, vocabulary]")
    fed = {value.name: value.name for value in roles.inputs if value not in roles.pasts}
    section["inputs"] = fed | _cache_names("past", SIDES[False][0])
    section["outputs"] = {"logits": "logits", **_cache_names("present", SIDES[False][1])}
    return section, words


def _has_grown(present: Expr, past: Expr, tokens: Expr) -> bool:
    """Whether a cache gets as long as past and new tokens, or as a mask of these."""
    sizes = {**dict.fromkeys(past.symbols, 11), **dict.fromkeys(tokens.symbols, 7)}
    total = past.evaluate(sizes) + tokens.evaluate(sizes)
    return past.constant is None and present.evaluate(dict.fromkeys(present.symbols, total) | sizes) == total


def _with_usual_names(model: Model, fed: Mapping[Role, str]) -> Model:
    """Return a decoder whose inputs and outputs are called as the configuration has them, once all of them are fed."""
    model = drop_idle_inputs(model)
    names, dtypes = dict[str, str](), set()
    for value, role in model.roles.inputs.items():
        if role == "past":
            continue
        declared, name = declared_type(value), fed.get(role, "")
        if not name or name in names.values() or declared is None:
            raise _refusal(model, f"it takes '{value.name}', and is fed {', '.join(fed.values())} and the cache alone")
        is_plain = declared.rank == 2 and declared.dtype in (TensorProto.INT32, TensorProto.INT64)
        if role in FED and (not is_plain or model.roles.polarities.get(value) == "pads"):
            ones = ", 1 for what counts" if role == "mask" else ""
            raise _refusal(model, f"its '{value.name}' is not [batch, tokens] of integers{ones}")
        names[value.name] = name
        dtypes |= {declared.dtype} if role in ("mask", "positions") else set()
    if "input_ids" not in names.values() or len(dtypes) > 1 or model.roles.logits is None:
        problem = "mask and positions differ in dtype" if len(dtypes) > 1 else "it makes no logits of tokens"
        raise _refusal(model, problem)
    names[model.roles.logits.name] = "logits"
    for entry in model.roles.cache:
        for side, part in zip(SIDES[model.roles.is_cross(entry)], (entry.past, entry.present), strict=True):
            if part is not None and (len(entry.slot.index) != 1 or entry.slot.kind not in ("key", "value")):
                raise _refusal(model, f"'{part.name}' is not the key or the value of a layer")
            names |= {part.name: f"{side}.{entry.slot.index[0]}.{entry.slot.kind}"} if part is not None else {}
    return Rename(values=tuple(names.items())).run(model).model


def _make_config(sections: Mapping[str, Any], folder: Path, context: int | None) -> tuple[dict[str, object], list[str]]:
    text, generation = decoder_settings(read_settings(folder, "config.json")), read_generation(folder)
    settings = {**text, **{key: value for key, value in generation.items() if value is not None}}
    ends, pads, begins = (read_tokens(settings.get(f"{name}_token_id")) for name in ("eos", "pad", "bos"))
    sizes = (size for key in CONTEXT if type(size := settings.get(key)) is int and 0 < size <= MOST)
    context = context or next(sizes, None)
    if not ends or context is None:
        missing = "which token ends a text - add eos_token_id to generation_config.json"
        missing = "how long a text may be - give --max-length" if ends else missing
        raise UsageError(f"{shown_path(folder)}: nothing beside the models says {missing}")
    tokens = {"bos_token_id": (begins or ends)[0], "eos_token_id": list(ends), "pad_token_id": (pads or ends)[0]}
    usual = {"do_sample": False, "max_length": context, "past_present_share_buffer": False}
    numbers = ((key, generation.get(key)) for key in SEARCH)
    given = {key: number for key, number in numbers if isinstance(number, int | float) and abs(number) <= MOST}
    notes, unset = [], {"min_new_tokens": 0, "max_new_tokens": 0}  # of the others, 0 is a token
    ignored = [key for key in IGNORED if generation.get(key) not in (None, [], unset.get(key))]
    # such as "never", of early_stopping, or numbers that JSON has not
    ignored += [key for key in SEARCH if generation.get(key) is not None and key not in given]
    if ignored:
        notes.append(f"It does not follow what generation_config.json says of {', '.join(ignored)}")
    if sections["type"] == "decoder-pipeline":
        notes.append("One sequence at a time: of several, it takes each new token for a prompt")
    elif sections["type"] == "decoder" and not {*FED.values()} <= {*sections["decoder"]["inputs"]}:
        notes.append("It takes no mask, or no positions: all sequences of a batch have to be of one length")
    return {"model": {**sections, **tokens, "context_length": context}, "search": usual | given}, notes
