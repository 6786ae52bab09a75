"""Write an export as a folder for transformers.js: its models in `onnx/`, and its configurations beside that.

That runtime feeds inputs of fixed names and no others. Its cache begins with the size of the batch for a dim that is
called `batch_size`, and 0 for any other that is no number; each `present.…` is the next `past_key_values.…`.

Source: transformers.js 4.3, in src: configs.js, models/modeling_utils.js, models/session_config.js, utils/dtypes.js.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from onnx import TensorProto

from graphkit.analysis.model_interface import check_frozen_sizes
from graphkit.deploy.export_inputs import drop_idle_inputs
from graphkit.deploy.export_pipeline import find_pipeline, read_settings
from graphkit.errors import OutputError, UsageError
from graphkit.graph.declared_types import declared_dims, declared_type
from graphkit.graph.names import join_words, name_of
from graphkit.graph.roles import Role, dim_at
from graphkit.graph.view import all_nodes
from graphkit.io.byte_source import name_as_staged, shown_path
from graphkit.io.read import TOKENIZER, find_beside
from graphkit.io.transaction import made_folder, naming_errors
from graphkit.model import Model, load
from graphkit.options import RewriteProofOptions, SplitProofOptions, TransformersJsOptions
from graphkit.passes.control_flow.merged_decoders import CONDITION, declare_needs, merge_decoders, with_port_names
from graphkit.progress import Progress
from graphkit.render.document_blocks import Block, Heading, Prose, outcome, table
from graphkit.render.result import Result
from graphkit.rewrite.edits import remove_dead_code
from graphkit.rewrite.new_interface import with_interface, with_symbols
from graphkit.save import HINT, save_models
from graphkit.shapes import symbol
from graphkit.verify.comparator import QUANTIZING, has_float16
from graphkit.verify.rewrite_proof import RewriteProof, SplitProof
from graphkit.verify.rewrite_verifier import verify_rewrite
from graphkit.verify.split_verifier import verify_split

INPUTS: Mapping[Role, str] = {
    "tokens": "input_ids", "mask": "attention_mask", "token types": "token_type_ids", "positions": "position_ids",
    "image": "pixel_values", "image mask": "pixel_mask", "condition": CONDITION,
    "encoder mask": "encoder_attention_mask", "encoder state": "encoder_hidden_states",
}  # fmt: skip
OF_ENCODER: tuple[Role, ...] = ("tokens", "mask", "token types", "image", "image mask")
OF_DECODER: tuple[Role, ...] = ("tokens", "mask", "positions", "condition")
OF_BOTH: tuple[Role, ...] = ("tokens", "condition", "encoder mask", "encoder state")
PLAIN: tuple[Role, ...] = ("tokens", "mask", "token types", "positions", "encoder mask")  # int64 [rows, columns]
AS_THEY_ARE = ("input_features", "input_values", "num_logits_to_keep")  # inputs that it feeds by these names
SUFFIXES = {"fp32": "", "fp16": "_fp16", "q8": "_quantized", "q4": "_q4", "q4f16": "_q4f16"}  # of files, by dtype
LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_transformer_layers")  # keys of config.json
PROCESSOR = "preprocessor_config.json"
COPIED: tuple[str, ...] = (*TOKENIZER, "generation_config.json", PROCESSOR, "processor_config.json")
SETTINGS = "transformers.js_config"


@dataclass(frozen=True)
class TransformersJsReport(Result):
    """A folder for transformers.js that was written.

    Attributes:
        files: The files.
        names: What was renamed: a model, the name in the export, and the one that transformers.js knows.
        proofs: The proof of each model, none where they were not run.
        missing: Files that are not beside the export, and needed for what the models take.
        frozen: What the exporter froze, a sentence each.
    """

    title: ClassVar[str] = "Folder for transformers.js"
    source: str
    files: tuple[str, ...]
    names: tuple[tuple[str, str, str], ...]
    proofs: tuple[RewriteProof | SplitProof, ...]
    missing: tuple[str, ...] = field(default=(), metadata={"in_json": False})
    frozen: tuple[str, ...] = field(default=(), metadata={"in_json": False})

    def findings(self) -> tuple[str, ...]:
        return tuple(finding for proof in self.proofs for finding in proof.findings())

    def blocks(self) -> Iterator[Block]:
        models = [file for file in self.files if file.endswith(".onnx")]
        proofs = dict(zip(models, self.proofs, strict=True)) if self.proofs else {}
        proven = [f"{name}: {said[0].lower()}{said[1:]}" for name, proof in proofs.items() if (said := proof.proven())]
        unproven = () if self.proofs else ("not proven: the proof was not run",)
        yield outcome([f"Wrote {', '.join(self.files)}.", *proven], self.findings() or unproven)
        if self.missing:
            yield Prose(f"Not beside the export, and needed to feed it: {join_words(self.missing)}.", "warning")
        yield from (Prose(f"{sentence}.", "warning") for sentence in self.frozen)
        if self.names:
            yield Heading("Names")
            yield table("Model:code | In the export:code | For transformers.js:code", self.names)
        for name, proof in proofs.items():
            yield Heading(f"Proof of {name}")
            yield from proof.blocks()


def transformers_js_folder(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    options: TransformersJsOptions = TransformersJsOptions(),
    *,
    progress: Progress = lambda _: None,
) -> TransformersJsReport:
    """Write an export as a folder that `from_pretrained` of transformers.js loads.

    Two decoders are merged, inputs and outputs get the names that it knows, and `config.json` tells the dtypes.

    Args:
        path: The folder of an export, or a model; `config.json` is in it, or above a folder `onnx`.
        output: The folder to write, which does not exist.
        options: Whether to prove the models, and the limits of that.
        progress: Called with the name of each step before it starts.

    Returns:
        The report.

    Raises:
        UsageError: transformers.js cannot feed the export, with the reason.
        OutputError: The files cannot be written; nothing is left behind.
        ModelError: A model or a configuration is broken.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     saved = graphkit.load("example:causal-attention").save(f"{folder}/model.onnx")
        ...     written = pathlib.Path(folder, "config.json").write_text('{"model_type": "gpt2"}')
        ...     graphkit.transformers_js_folder(folder, f"{folder}/out").files
        ('config.json', 'onnx/model.onnx')
    """
    path, output = Path(path), Path(output)
    if output.exists():
        raise OutputError(f"{output}: exists - name a folder that does not")
    progress("reading")
    pipeline = find_pipeline(path)
    folder = path if path.is_dir() else path.parent
    copied = find_beside(folder, COPIED)
    settings = dict(read_settings(folder, "config.json"))
    if not settings:
        raise UsageError(f"{shown_path(folder)}: has no config.json, which transformers.js needs - put it there")
    if pipeline.parts:
        raise UsageError(f"{shown_path(folder)}: pictures beside text are not written - make a bundle of it")
    frozen = check_frozen_sizes(pipeline.models)
    encoder, steps = pipeline.encoder, dict.fromkeys((pipeline.first, pipeline.step))
    plain, decoders = [drop_idle_inputs(model) for model in steps if model is not None], list[Model]()
    counts = Counter(value.name for model in plain for value in model.graph.outputs)
    for model in plain:  # both have the same outputs, besides logits and caches
        others = {value.name for value, role in model.roles.outputs.items() if role not in ("logits", "present")}
        extra = {name for name in others if counts[name] < len(plain)}
        decoders.append(remove_dead_code(with_interface(model, {}, {}, extra)).model if extra else model)
    if encoder is None and decoders:  # for each kind of model it reads the number of layers by another name
        settings = dict.fromkeys(LAYERS, len({entry.slot.index for entry in decoders[-1].roles.cache})) | settings
    drafts = {} if encoder is None else {"encoder_model" if decoders else "model": [encoder]}
    drafts |= {"model" if encoder is None else "decoder_model_merged": decoders} if decoders else {}
    names, dtypes, data = list[tuple[str, str, str]](), dict[str, str](), dict[str, int]()
    proofs: list[RewriteProof | SplitProof] = []
    with (
        naming_errors([output], HINT),
        made_folder(output.parent),
        tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent) as work,
        name_as_staged(stage := Path(work) / "new", output),
    ):
        (stage / "onnx").mkdir(parents=True)
        for name, models in sorted(drafts.items()):
            progress(f"writing {name}")
            known = [_known_names(model, encoder) for model in models]
            names += sorted({(name, *pair) for each in known for pair in each.items() if pair[0] != pair[1]})
            halves = list[Model]()  # under its names, with `batch_size` for that of caches
            for model, ports in zip(models, known, strict=True):
                renamed = with_port_names(declare_needs(model), ports)
                batch = {dim_at(past, 0) for past in renamed.roles.pasts if renamed.roles.axis(past, 0) == "batch"}
                symbols = {dim: symbol("batch_size") for dim in batch if isinstance(dim, str) and dim != "batch_size"}
                halves.append(with_symbols(renamed, symbols) if symbols else renamed)
            merge = merge_decoders(*halves) if len(halves) == 2 else None
            whole = halves[0] if merge is None else merge.model
            _check_start(halves[0], whole, has_encoder=encoder is not None)
            operators, is_half = {node.op_type for node in all_nodes(whole.scopes)}, has_float16(whole)
            if "MatMulNBits" in operators:
                dtypes[name] = "q4f16" if is_half else "q4"
            else:
                dtypes[name] = "q8" if operators & QUANTIZING else "fp16" if is_half else "fp32"
            file = stage / "onnx" / f"{name}{SUFFIXES[dtypes[name]]}.onnx"
            data |= {file.name: len(save_models({file: whole}, weights="kept")) - 1}
            if options.verify and merge is not None:
                asked = SplitProofOptions(limits=options.limits)
                proofs.append(verify_split(load(file), merge.first, merge.with_past, asked, progress=progress))
            elif options.verify:
                told = RewriteProofOptions(names=tuple(known[0].items()), exact=True, limits=options.limits)
                proofs.append(verify_rewrite(models[0], file, options=told, progress=progress))
        more = {"dtype": dtypes, "use_external_data_format": {name: count for name, count in data.items() if count}}
        before = settings.get(SETTINGS)
        settings[SETTINGS] = {**before, **more} if isinstance(before, dict) else more
        (stage / "config.json").write_text(f"{json.dumps(settings, indent=2)}\n", encoding="utf-8")
        for name, source in copied.items():
            (stage / name).write_bytes(source.read_bytes())
        files = tuple(file.relative_to(stage).as_posix() for file in sorted(stage.rglob("*")) if file.is_file())
        stage.rename(output)
    roles = {role for models in drafts.values() for model in models for role in model.roles.inputs.values()}
    needed = (*(TOKENIZER[:2] if "tokens" in roles else ()), *((PROCESSOR,) if roles & {"image", "audio"} else ()))
    missing = tuple(name for name in COPIED if name in needed and name not in files)
    return TransformersJsReport(name_of(path), files, tuple(names), tuple(proofs), missing, frozen)


def _known_names(model: Model, encoder: Model | None) -> dict[str, str]:
    """Return the names that transformers.js has for the inputs and outputs of a model, by their own."""
    roles, names, is_encoder = model.roles, dict[str, str](), model is encoder
    # a decoder that reads an encoder gets the encoder's mask where it asks for its own
    has_mask = encoder is None or encoder.roles.first("mask") is None
    fed = OF_ENCODER if is_encoder else OF_DECODER if encoder is None else OF_BOTH
    for value, role in roles.inputs.items():
        kind = declared_type(value)
        is_plain = kind is not None and (kind.dtype, kind.rank) == (TensorProto.INT64, 2)
        if (role in fed or (role == "mask" and has_mask)) and (is_plain or role not in PLAIN):
            names[value.name] = INPUTS[role]
        elif role != "past" and value.name not in AS_THEY_ARE:
            problem = f"transformers.js feeds nothing for '{value.name}', as it is"
            raise UsageError(f"{model.label}: {problem} - export it without that input, or make a bundle of it")
    for entry in roles.cache:
        part = "" if encoder is None else "encoder." if roles.is_cross(entry) else "decoder."
        ports = {"past_key_values": entry.past, "present": entry.present}
        for begin, name in ((begin, port.name) for begin, port in ports.items() if port is not None):
            if len(entry.slot.index) != 1 or entry.slot.kind not in ("key", "value"):
                hint = "transformers.js takes the key or the value of one layer: export it with a cache of these"
                raise UsageError(f"{model.label}: '{name}' is something else - {hint}")
            names[name] = f"{begin}.{entry.slot.index[0]}.{part}{entry.slot.kind}"
    outputs = {role: value.name for value, role in roles.outputs.items()}
    names |= {outputs["logits"]: "logits"} if "logits" in outputs else {}
    names |= {outputs["encoder state"]: "last_hidden_state"} if is_encoder and "encoder state" in outputs else {}
    if len({*names.values()}) < len(names):
        raise UsageError(f"{model.label}: several inputs or outputs are one for transformers.js - export it anew")
    return names


def _check_start(first: Model, whole: Model, *, has_encoder: bool) -> None:
    """Refuse a decoder that cannot begin with a cache as transformers.js makes it."""
    if not has_encoder and isinstance(count := dim_at(first.roles.first("tokens"), 1), int):
        raise UsageError(f"{first.label}: takes {count} token(s) at a time, no prompt of any length - export it anew")
    for past in whole.roles.pasts:
        for at, dim in enumerate(declared_dims(past) or ()):
            is_fixed, axis = isinstance(dim, int), whole.roles.axis(past, at)
            if (axis == "past" and is_fixed) or (axis == "other" and not is_fixed and whole.roles.decoder is None):
                hint = "transformers.js begins with an empty cache that grows: export it with a dynamic one"
                raise UsageError(f"{first.label}: '{past.name}' has {dim or 'any number'} at axis {at} always - {hint}")
