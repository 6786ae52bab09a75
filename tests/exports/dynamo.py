"""Export tiny models with torch.onnx's dynamo exporter: `python dynamo.py OUT FAMILY[-VARIANT] …`.

The cache is flat inputs and outputs of a small module around the model, as scripts of many projects do it.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from models import named, record, run_exports, sample, tiny_model
from torch.utils import _pytree as pytree
from transformers import DynamicCache, EncoderDecoderCache, StaticCache
from transformers.cache_utils import StaticLayer
from transformers.exporters.exporter_dynamo import register_cache_pytrees_for_model
from transformers.exporters.utils import get_leaf_tensors
from transformers.modeling_outputs import BaseModelOutput

VARIANTS = {
    "auto": "dims without names, caches with names of their own",
    "nopos": "no position_ids",
    "pair": "two files: a prompt without a past, and a step of one token",
    "static": "a static cache of 40 slots, written by transformers' StaticCache",
    "indexput": "a static cache, written as cache[:, :, positions] = new",
    "onehot": "a static cache, written by Where",
    "scatter": "a static cache, written by scatter along its slots",
}
SLOTS = 40
WRITES = {"static", "indexput", "onehot", "scatter"}
Tensors = list[torch.Tensor]


class WrittenLayer(StaticLayer):
    """A layer whose slots are written at positions that the host gives."""

    write = "indexput"
    positions: torch.Tensor

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **_more: Any) -> Any:
        self.keys = self._written(self.keys, key_states)
        self.values = self._written(self.values, value_states)
        return self.keys, self.values

    def _written(self, cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        if self.write == "indexput":
            cache = cache.clone()
            cache[:, :, self.positions] = new
            return cache
        if self.write == "scatter":
            return cache.scatter(2, self.positions[None, None, :, None].expand(new.shape), new)
        slots = torch.arange(SLOTS)[:, None] == self.positions[None]  # [slots, new]
        spread = torch.einsum("sn,bhnd->bhsd", slots.to(new.dtype), new)
        return torch.where(slots.any(1)[None, None, :, None], spread, cache)


class Flat(torch.nn.Module):
    """A model whose cache is a list of tensors."""

    def __init__(
        self, model: torch.nn.Module, names: list[str], make: Callable[[Tensors, dict[str, Any]], Any]
    ) -> None:
        super().__init__()
        self.model, self.names, self.make = model, names, make

    def forward(self, given: Tensors, state: Tensors) -> Tensors:
        inputs = dict(zip(self.names, given, strict=True))
        cache = self.make(state, inputs)
        if "encoder_hidden_states" in inputs:
            inputs["encoder_outputs"] = BaseModelOutput(inputs.pop("encoder_hidden_states"))
        inputs.pop("positions", None)
        result = self.model(**inputs, cache=cache, use_cache=True, return_dict=True)
        return [result.logits, *list(get_leaf_tensors(result.cache).values())]


class Encoder(torch.nn.Module):
    """An encoder, of which the last hidden state is asked for."""

    def __init__(self, encoder: torch.nn.Module, names: list[str]) -> None:
        super().__init__()
        self.encoder, self.names = encoder, names

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        return self.encoder(**dict(zip(self.names, given, strict=True)))[0]


def renamed(leaf: str, prefix: str) -> str:
    """Return the name of an input or output for a tensor of the cache: `layers.0.keys` is `past_key_values.0.key`."""
    where = {"self_attention_cache": "decoder.", "cross_attention_cache": "encoder."}
    parts = leaf.split(".")
    kind = next((kind for cache, kind in where.items() if cache in parts), "")
    layer = parts[parts.index("layers") + 1]
    rest = "_".join(parts[parts.index("layers") + 2 :])
    return f"{prefix}.{layer}.{kind}{ {'keys': 'key', 'values': 'value'}.get(rest, rest) }"


def write(module: torch.nn.Module, args: Any, file: Path, shapes: Any, inputs: list[str], outputs: list[str]) -> None:
    """Export a module to a file, with its weights inside."""
    program = torch.onnx.export(
        module.eval(), args, input_names=inputs, output_names=outputs, dynamic_shapes=shapes, dynamo=True, verbose=False
    )
    program.save(file, external_data=False)


def dims(tensors: Tensors, others: Tensors, names: dict[int, Any]) -> list[dict[int, Any]]:
    """Return the dims that differ between two runs, by what they became; the sizes of the first run name them."""
    return [
        {axis: names[size] for axis, size in enumerate(a.shape) if size != b.shape[axis]}
        for a, b in zip(tensors, others, strict=True)
    ]


def export(name: str, out: Path) -> None:
    """Write one export and what PyTorch generates with the same weights."""
    family, variants = named(name)
    model = tiny_model(family)
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    record(model, folder)
    register_cache_pytrees_for_model(model)
    if hasattr(model.config, "num_experts_per_tok"):
        model.set_experts_implementation("batched_mm")  # the default is an operator that ONNX has none for
    auto = "auto" in variants
    label = {
        size: torch.export.Dim.DYNAMIC if auto else text
        for size, text in ((2, "batch"), (4, "sequence"), (7, "past"), (8, "total"), (11, "total"), (13, "source"))
    }
    paired = model.config.is_encoder_decoder
    static = next((kind for kind in variants if kind in WRITES), "")
    runs = [run(model, *sizes) for sizes in ((2, 4, 7, 13), (3, 5, 9, 17))]
    if paired:
        source, other = runs[0]["source"], runs[1]["source"]
        shapes = (dims(list(source.values()), list(other.values()), label),)
        encoder = Encoder(model.get_encoder(), list(source))
        write(
            encoder,
            tuple(source.values()),
            folder / "encoder.onnx",
            {"given": tuple(shapes[0])},
            list(source),
            ["last_hidden_state"],
        )
    if static:
        export_static(model, folder, static, label)
        return
    steps = (
        [("model", 4, True)] if "pair" not in variants and not paired else [("prefill", 4, False), ("decode", 1, True)]
    )
    for file, new, has_past in steps:
        first, second = (given(each, new if new == 1 else each["new"], has_past, "nopos" in variants) for each in runs)
        cache, cache2 = (each["cache"] if has_past else None for each in runs)
        leaves = get_leaf_tensors(cache) if cache is not None else {}
        spec = pytree.tree_structure(cache)
        order = (
            [next(i for i, leaf in enumerate(leaves.values()) if leaf is each) for each in pytree.tree_leaves(cache)]
            if leaves
            else []
        )

        def make(state: Tensors, _: dict[str, Any], spec: Any = spec, order: list[int] = order) -> Any:
            if state:
                return pytree.tree_unflatten([state[i] for i in order], spec)
            return EncoderDecoderCache(DynamicCache(), DynamicCache()) if paired else new_cache(model)

        state, state2 = list(leaves.values()), list(get_leaf_tensors(cache2).values()) if leaves else []
        module = Flat(model, list(first), make)
        shapes = [dims(list(first.values()), list(second.values()), label), dims(state, state2, label)]
        with torch.no_grad():
            result = model(
                **{k: v for k, v in first.items() if k != "encoder_hidden_states"},
                **({"encoder_outputs": BaseModelOutput(first["encoder_hidden_states"])} if paired else {}),
                cache=copy.deepcopy(cache) if leaves else make([], {}),
                use_cache=True,
            )
        kept = list(get_leaf_tensors(result.cache))
        old, now = ("cache_in", "cache_out") if auto else ("past_key_values", "present")
        inputs = [*first, *(renamed(leaf, old) for leaf in leaves)]
        outputs = ["logits", *(renamed(leaf, now) for leaf in kept)]
        write(
            module,
            (list(first.values()), state),
            folder / f"{file}.onnx",
            {"given": shapes[0], "state": shapes[1]},
            inputs,
            outputs,
        )


def new_cache(model: Any) -> DynamicCache:
    """Return an empty cache: with all tokens where layers are attention alone, whatever their window is."""
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    plain = (
        kinds <= {"full_attention", "sliding_attention"}
        and not hasattr(model.config, "state_size")
        and not hasattr(model.config, "mamba_d_state")
    )
    return DynamicCache() if plain else DynamicCache(config=model.config)


def run(model: Any, batch: int, new: int, past: int, length: int) -> dict[str, Any]:
    """Return what a model has after a prompt of `past` tokens: its cache, and the source it read."""
    if not model.config.is_encoder_decoder:
        prompt = sample(model, batch, past)
        cache = new_cache(model)
        with torch.no_grad():
            cache = model(**prompt, cache=cache, use_cache=True).cache
        return {"batch": batch, "new": new, "past": past, "cache": cache}
    source = sample(model, batch, length)
    with torch.no_grad():
        hidden = model.get_encoder()(**source)[0]
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        mask = {"attention_mask": source["attention_mask"]} if "attention_mask" in source else {}
        tokens = torch.full((batch, past), 5)
        cache = model(
            decoder_input_ids=tokens, encoder_outputs=BaseModelOutput(hidden), **mask, cache=cache, use_cache=True
        ).cache
    return {"batch": batch, "new": new, "past": past, "cache": cache, "source": source, "hidden": hidden, "mask": mask}


def given(each: dict[str, Any], new: int, has_past: bool, nopos: bool) -> dict[str, torch.Tensor]:
    """Return the inputs of a run beside its cache."""
    batch, past = each["batch"], each["past"] if has_past else 0
    ids = torch.arange(batch * new).reshape(batch, new) % 90 + 5
    if "source" in each:
        return {"decoder_input_ids": ids, "encoder_hidden_states": each["hidden"], **each["mask"]}
    inputs = {"input_ids": ids, "attention_mask": torch.ones(batch, past + new, dtype=torch.long)}
    if not nopos:
        inputs["position_ids"] = torch.arange(past, past + new).repeat(batch, 1)
    return inputs


def export_static(model: Any, folder: Path, kind: str, label: dict[int, Any]) -> None:
    """Write one model that reads a prompt or a token, and writes its keys and values at positions."""
    cache = StaticCache(config=model.config, max_cache_len=SLOTS)
    with torch.no_grad():
        model(input_ids=torch.ones(2, 3, dtype=torch.long), cache=cache, use_cache=True)
    layers = len(cache.layers)
    state = [torch.zeros_like(each) for layer in cache.layers for each in (layer.keys, layer.values)]
    ids, positions = torch.arange(8).reshape(2, 4) + 5, torch.arange(3, 7)

    def make(state: Tensors, inputs: dict[str, Any]) -> Any:
        positions = inputs["positions"]
        inputs["position_ids"] = positions[None].expand(inputs["input_ids"].shape)
        cache = StaticCache(config=model.config, max_cache_len=SLOTS)
        for i in range(layers):
            layer = cache.layers[i]
            if kind != "static":
                layer = cache.layers[i] = WrittenLayer(SLOTS)
                layer.write, layer.positions = kind, positions
            layer.lazy_initialization(state[2 * i], state[2 * i + 1])
            layer.keys, layer.values = state[2 * i].clone(), state[2 * i + 1].clone()
            layer.cumulative_length = positions[0].clone()
        return cache

    class Static(Flat):
        def forward(self, given: Tensors, state: Tensors) -> Tensors:
            inputs = dict(zip(self.names, given, strict=True))
            cache = self.make(state, inputs)
            inputs.pop("positions")
            logits = self.model(**inputs, cache=cache, use_cache=True).logits
            return [logits, *(each for layer in cache.layers for each in (layer.keys, layer.values))]

    shapes = {"given": [{0: label[2], 1: label[4]}, {0: label[4]}], "state": [{0: label[2]} for _ in state]}
    names = [f"{kind}_cache.{i}" for i in range(layers) for kind in ("key", "value")]
    write(
        Static(model, ["input_ids", "positions"], make),
        ([ids, positions], state),
        folder / "model.onnx",
        shapes,
        ["input_ids", "cache_position", *names],
        ["logits", *(f"{each}.updated" for each in names)],
    )


if __name__ == "__main__":
    sys.exit(run_exports(export, __doc__, VARIANTS))
