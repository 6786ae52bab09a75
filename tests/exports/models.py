"""Tiny models with random weights, and what PyTorch generates with them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tomllib
import torch
import transformers

__all__ = ["Sample", "has_pictures", "named", "record", "run_exports", "sample", "tiny_model"]

Sample = dict[str, torch.Tensor]
FAMILIES: dict[str, dict[str, dict[str, Any]]] = tomllib.loads(Path(__file__).with_name("families.toml").read_text())
SHARES = {  # what the families of a group share
    "decoder": ["decoder"],
    "experts": ["decoder", "experts"],
    "state": ["decoder"],
    "pair": ["pair"],
    "relative_pair": ["relative_pair"],
    "speech": ["pair"],
    "pictures": [],
}
KINDS = {
    "pair": "AutoModelForSeq2SeqLM",
    "relative_pair": "AutoModelForSeq2SeqLM",
    "pictures": "AutoModelForImageTextToText",
}
SPEECH = {
    "whisper": "WhisperForConditionalGeneration",
    "moonshine": "MoonshineForConditionalGeneration",
    "speech_to_text": "Speech2TextForConditionalGeneration",
}
NEW_TOKENS = 12
PICTURE = 119  # the token at whose places a picture's rows go
OWN_SCALE = (
    "A_log",
    "dt_bias",
    ".D",
    "time_decay",
    "time_first",
    "recurrent_param",
    "sqk",
    "s_gate",
    "lambda_1",
    "lambda_2",
    "logit_scale",
)  # which a recurrence or a normalised model needs


def tiny_model(family: str, tries: int = 36, **settings: Any) -> transformers.PreTrainedModel:
    """Return a model of two layers with random weights, whose greedy tokens vary and are no close calls."""
    best: tuple[float, Any] = (-1.0, None)
    for seed in range(tries):
        model = random_model(family, seed, settings)
        score = variety(model)
        if score > best[0]:
            best = score, model
        if score >= 1:
            break
    return best[1]


def variety(model: transformers.PreTrainedModel) -> float:
    """Return how far greedy tokens tell right from wrong: 1 or more where five differ and no two logits are close."""
    tokens, gaps = [], []
    for length in (5, 11):
        result = generate(model, sample(model, 1, length, seed=7))
        tokens.append(result.sequences[0, -len(result.logits) :].tolist())
        best = torch.cat(result.logits).topk(2).values
        gaps.append((best[:, 0] - best[:, 1]).min().item())
    different = min(len(set(row)) for row in tokens) - (tokens[0] == tokens[1])
    return min(different / 5, min(gaps) / 0.004, 1.0) + different / 100


def generate(model: transformers.PreTrainedModel, given: Sample) -> Any:
    """Return greedy tokens, and the logits of each."""
    options = {"do_sample": False, "num_beams": 1, "output_logits": True, "return_dict_in_generate": True}
    return model.generate(**given, **options, max_new_tokens=NEW_TOKENS)


def random_model(family: str, seed: int, settings: Mapping[str, Any]) -> transformers.PreTrainedModel:
    """Return a model with the weights of a seed.

    Where embeddings are tied, a model of small layers says the word that it read; so seeds differ in scale too.
    """
    torch.manual_seed(seed)
    embedding, gain = (0.8, 0.3, 0.1)[seed % 3], (1.5, 3.0, 6.0)[seed // 3 % 3]
    config = tiny_config(family, settings)
    if family in SPEECH:
        model = getattr(transformers, SPEECH[family])(config)
    else:
        group = group_of(family)
        model = getattr(transformers, KINDS.get(group, "AutoModelForCausalLM")).from_config(config)
    for name, weight in model.named_parameters():
        if name.endswith(OWN_SCALE):
            continue
        is_matrix = weight.dim() > 1
        scale = embedding if "emb" in name or "wte" in name else gain / weight[0].numel() ** 0.5
        with torch.no_grad():
            noise = torch.randn_like(weight) * (scale if is_matrix else 0.2)
            weight.copy_(((noise if is_matrix else weight + noise) * 128).round() / 128)  # which a file packs well
    model.generation_config.update(pad_token_id=0, eos_token_id=2)
    model.generation_config.max_length = None
    return model.eval()


def tiny_config(family: str, settings: Mapping[str, Any]) -> Any:
    """Return the configuration of a family: what its group shares, and what it has of its own."""
    group = group_of(family)
    values = dict(FAMILIES[group][family])
    if group == "pictures":
        is_square = family != "qwen2_vl"  # whose tower takes patches, and has names of its own
        values["vision_config"] = (FAMILIES["shared"]["tower"] if is_square else {}) | values["vision_config"]
        values["text_config"] = FAMILIES["shared"]["decoder"] | values["text_config"]
    else:
        for share in ["decoder"] if family == "moonshine" else SHARES[group]:
            values = FAMILIES["shared"][share] | values
    if group in {"pair", "speech"}:
        values |= {"forced_bos_token_id": None, "forced_eos_token_id": None}
    if family == "whisper":
        values |= {"suppress_tokens": None, "begin_suppress_tokens": None}
    if family == "mixtral":
        values["sliding_window"] = None
    return transformers.AutoConfig.for_model(family, **values | dict(settings))


def named(name: str) -> tuple[str, list[str]]:
    """Return the family, which may have hyphens of its own, and the variants of a name."""
    families = (each for group in SHARES for each in FAMILIES[group] if f"{name}-".startswith(f"{each}-"))
    family = max(families, key=len, default=name)
    return family, name[len(family) + 1 :].split("-")


def group_of(family: str) -> str:
    """Return the group of a family in `families.toml`."""
    return next(group for group in SHARES if family in FAMILIES[group])


def has_pictures(model: transformers.PreTrainedModel) -> bool:
    """Tell whether a model takes pictures beside text."""
    return model.config.model_type in FAMILIES["pictures"]


def sample(model: transformers.PreTrainedModel, batch: int, length: int, seed: int = 1, padded: bool = False) -> Sample:
    """Return what `generate` gets: prompts, sources, sounds or pictures with prompts; padding shortens the first."""
    family = model.config.model_type
    random = torch.Generator().manual_seed(seed + 100 * length + batch)
    ids = torch.randint(3, 110, (batch, length), generator=random)
    mask = torch.ones_like(ids)
    if family == "whisper":
        return {"input_features": torch.randn(batch, 8, 40, generator=random)}
    if family == "moonshine":
        return {"input_values": torch.randn(batch, 1000 + 500 * length, generator=random)}
    if family == "speech_to_text":
        sound = torch.randn(batch, 4 * length, 8, generator=random)
        return {"input_features": sound, "attention_mask": mask.repeat_interleave(4, 1)}
    if padded:
        side = slice(length - 3, None) if model.config.is_encoder_decoder else slice(0, 3)
        ids[0, side], mask[0, side] = 0, 0
    if not has_pictures(model):
        return {"input_ids": ids, "attention_mask": mask}
    if family == "qwen2_vl":
        start = torch.tensor([117, *[PICTURE] * 4, 116]).repeat(batch, 1)
        given = {"pixel_values": torch.randn(batch * 16, 96, generator=random)}
        given["image_grid_thw"] = torch.tensor([[1, 4, 4]]).repeat(batch, 1)
    else:
        places = 4 if family in {"idefics3", "smolvlm", "internvl", "aya_vision"} else 16
        start = torch.full((batch, places), PICTURE)
        frames = (1, 3, 16, 16) if family in {"idefics3", "smolvlm"} else (3, 16, 16)
        given = {"pixel_values": torch.randn(batch, *frames, generator=random)}
    ids = torch.cat([start, ids], 1)
    given |= {"input_ids": ids, "attention_mask": torch.cat([torch.ones_like(start), mask], 1)}
    if family == "qwen2_vl":
        given["mm_token_type_ids"] = (ids == PICTURE).long()
    if family == "paligemma":
        given["token_type_ids"] = torch.zeros_like(ids)
    return given


def record(model: transformers.PreTrainedModel, folder: Path, lengths: tuple[int, ...] = (5, 11)) -> None:
    """Write prompts, PyTorch's greedy tokens and its first logits beside an export (`io.json`, `io.npz`)."""
    cases: list[dict[str, Any]] = []
    arrays: dict[str, np.ndarray] = {}
    is_pair = model.config.is_encoder_decoder
    for batch, length, padded in [*((b, n, False) for b in (1, 2) for n in lengths), (2, lengths[-1], True)]:
        given = sample(model, batch, length, seed=7, padded=padded)
        result = generate(model, given)
        start = result.sequences.shape[1] - len(result.logits)
        case = {"batch": batch, "length": length, "padded": padded, "inputs": list(given)}
        case["prompt"] = result.sequences[0, :start].tolist() if is_pair else None
        arrays |= {f"{len(cases)}.{name}": value.numpy() for name, value in given.items()}
        arrays |= {f"{len(cases)}.tokens": result.sequences[:, start:].numpy()}
        arrays |= {f"{len(cases)}.logits": result.logits[0].numpy()}
        cases.append(case)
    np.savez(folder / "io.npz", **arrays)
    family = model.config.model_type
    (folder / "io.json").write_text(
        json.dumps({"family": family, "new_tokens": NEW_TOKENS, "cases": cases}, indent=1) + "\n"
    )
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)


def run_exports(export: Callable[[str, Path], None], text: str | None, variants: Mapping[str, str]) -> int:
    """Run the command line of a script; return 1 where it cannot write an export, whose folder gets an `error.txt`."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="+", help="FAMILY or FAMILY-VARIANT; variants: " + ", ".join(variants))
    options = parser.parse_args()
    torch.set_num_threads(1)
    failed = 0
    for name in options.names:
        try:
            export(name, options.out)
            print(name, flush=True)
        except Exception as error:  # one family that an exporter cannot write must not stop the others
            failed += 1
            cause = error.__cause__ or error
            (options.out / name).mkdir(parents=True, exist_ok=True)
            (options.out / name / "error.txt").write_text(f"{error}\n{type(cause).__name__}: {cause}\n")
            print(f"{name}: {type(cause).__name__}: {str(cause).strip()[:300]}", file=sys.stderr, flush=True)
    return 1 if failed else 0
