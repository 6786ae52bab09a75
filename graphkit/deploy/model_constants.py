"""The constants of models as a host needs them: ports by role, what is carried from run to run, and the KV cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import cast

from msgspec import structs

from graphkit.analysis.findings import kind_of
from graphkit.analysis.kv_cache import kv_cache
from graphkit.analysis.model_fit import given_states
from graphkit.analysis.model_interface import frozen_sizes
from graphkit.analysis.sliding_windows import cut_caches, find_windows
from graphkit.contract.contract_writers import (
    DIMS,
    Constant,
    Constants,
    ModelPorts,
    Row,
    general_numbers,
    model_rows,
    rules_beside,
    shape_row,
)
from graphkit.deploy.export_pipeline import folder_models, models_by_role, pipeline_role, read_token_settings
from graphkit.dtypes import dtype_name
from graphkit.graph.declared_types import Dim, declared_dims, hinted_type
from graphkit.graph.roles import Axis
from graphkit.graph.view import Value
from graphkit.model import Model, load
from graphkit.shapes import infer

RUNS = {"encoder": "encoder", "first": "first", "step": "step", "merged": "step"}
SOURCES = {  # who makes an input of a decoder, by its role
    "tokens": "tokens",
    "mask": "mask",
    "positions": "positions",
    "token types": "zeros",
    "condition": "cached",
    "encoder tokens": "source",
    "encoder mask": "source_mask",
}
OF_ENCODER = {"tokens": "source", "mask": "source_mask", "token types": "zeros"}
OF_AXES: Mapping[Axis, str] = {"sequence": "tokens", "encoder": "source"}


def model_constants(path: Path) -> Constants:
    """Return the constants of a model, or of those in a folder: an encoder, decoders of the first and later steps."""
    if path.is_dir():
        by_role = models_by_role(path, folder_models(path))
    else:
        model = load(path)
        by_role = {pipeline_role(model): model}
    models = {role: by_role[role] for role in RUNS if role in by_role}
    decoder = next((models[role] for role in ("merged", "step", "first") if role in models), None)
    carried = _carried_values(models, decoder) if decoder is not None else {}
    readers = ((model, value) for model in models.values() for value in carried if value in model.roles.inputs)
    states = {carried[value]: (model, value) for model, value in readers}

    def port_rows(role: str, values: Iterable[Value]) -> list[Row]:
        places = {name: place for place, name in enumerate(states)}
        return [_port_row(models[role], value, role, places.get(carried.get(value, ""), -1)) for value in values]

    rows = [
        ModelPorts(role, each.name, RUNS[role], port_rows(role, each.roles.inputs), port_rows(role, each.graph.outputs))
        for role, each in models.items()
    ]
    settings = read_token_settings(path, has_encoder="encoder" in models and decoder is not None)
    logits = decoder.roles.logits if decoder is not None else None
    dims = infer(decoder)[logits].dims if decoder is not None and logits is not None else None
    vocabulary = dims[-1].constant if dims else None
    numbers = general_numbers(settings.tokens, settings.ends, settings.generation.prompt, vocabulary)
    arrays, fault = model_rows(rows), f"{path.name}: it has no decoder of later steps, so that there is no loop"
    if decoder is not None:
        numbers += _cache_numbers(decoder)
        arrays["states"] = "State", [_state_row(*state) for state in states.values()]
        arrays["windows"] = "Window", [structs.asdict(window) for window in kv_cache(decoder).windows]
        is_static = any(e.is_static and not decoder.roles.is_cross(e) for e in decoder.roles.pasts.values())
        static = f"{path.name}: its caches have all slots from the start - make a bundle of it" if is_static else ""
        if cut := [entry.past.name for entry in cut_caches(decoder) if entry.past is not None]:
            static = f"{path.name}: its cache '{cut[0]}' keeps the last tokens alone - write the loop of it by hand"
        begun = arrays["states"][1] if "first" not in models else []  # those that a loop has to give a first value
        for row in begun:
            if DIMS["other"] in cast("list[int]", row["dims"]):
                what = f"nothing says how large '{row['name']}' ({row['shape']}) is in all dims"
                static = f"{path.name}: {what} - give them with graphkit set-dims"
        for frozen in frozen_sizes(decoder).rows:
            static = f"{decoder.name}: {frozen}" if kind_of(frozen.kind).is_fault else static
        fault = fault if decoder is models.get("first") else static
    return Constants(path.name, tuple(numbers), arrays, rules_beside(settings.generation), fault)


def _carried_values(models: Mapping[str, Model], decoder: Model) -> dict[Value, str]:
    """Return the name of the state that inputs and outputs are: that of the input of the last decoder."""
    roles = decoder.roles
    pairs: list[tuple[Value, Value | None]] = [(past, past) for past in roles.pasts]
    for past, entry in roles.pasts.items():
        like = (each for model in models.values() for each in model.roles.cache if each.slot == entry.slot)
        pairs += [(past, each.present) for each in like]
    pairs += [(entry.past, value) for entry in roles.states for value in (entry.past, entry.next)]
    pairs += given_states(models["first"], decoder).items() if "first" in models else ()
    readers = [value for model in models.values() for value in model.roles.all("encoder state")]
    if "encoder" in models and readers:
        pairs += [(readers[-1], value) for value in (*readers, models["encoder"].roles.encoder_state)]
    return {value: past.name for past, value in pairs if value is not None}


def _port_row(model: Model, value: Value, role: str, state: int) -> Row:
    is_input, of_role = value in model.roles.inputs, model.roles.of(value)
    source = (OF_ENCODER if role == "encoder" else SOURCES).get(of_role, "caller") if is_input else of_role
    if model.roles.polarities.get(value, "keeps") in ("pads", "adds"):
        source = "zeros"  # nothing is padded
    if is_input and state < 0 and all(node.is_op("Identity") for node, _ in value.consumers):
        source = "zeros"  # nothing reads it
    row = _typed_row(model, value, role)
    dims = row["dims"]
    if of_role == "mask" and role != "encoder" and isinstance(dims, list):
        is_by_token = dims[-2:-1] not in ([], [1], [DIMS["batch"]])  # it says what each new token sees
        source = "caller" if is_by_token else source
    return {**row, "source": "state" if state >= 0 else source, "state": state}


def _typed_row(model: Model, value: Value, role: str = "", after: Value | None = None) -> Row:
    declared, following = (None if each is None else hinted_type(each) for each in (value, after))
    shape = (declared.dims if declared is not None else None) or ()
    numbers = (following.dims if following is not None else None) or shape
    dims = []
    for at, (dim, number) in enumerate(zip(shape, numbers, strict=False)):
        axis = model.roles.axis(value, at) if value in model.roles.inputs else _axis_of_output(model, value, at, dim)
        name = "source" if role == "encoder" and axis in ("sequence", "total") else OF_AXES.get(axis, axis)
        known = number if name not in DIMS or name == "other" else None  # exporters call numbers by names, as '8'
        dims.append(dim if isinstance(dim, int) else known if isinstance(known, int) else DIMS.get(name, DIMS["other"]))
    return {**shape_row(value.name, dtype_name(declared.dtype) if declared else "", shape), "dims": dims}


def _axis_of_output(model: Model, value: Value, at: int, dim: Dim) -> Axis:
    """Return what a dim of an output counts: what that of an input of the same name does."""
    roles = model.roles
    if any(entry.present is value and entry.past is not None and entry.axis == at for entry in roles.cache):
        return "total"
    named = ((each, at, name) for each in roles.inputs for at, name in enumerate(declared_dims(each) or ()))
    axes = (roles.axis(each, at) for each, at, name in named if name == dim)
    return next(axes, "other") if isinstance(dim, str) else "other"


def _state_row(model: Model, value: Value) -> Row:
    if (entry := model.roles.pasts.get(value)) is None:
        after = next((each.next for each in model.roles.states if each.past is value), None)
        rule, axis, window = "kept" if after is None else "replaced", None, 0
    else:
        rule = "kept" if model.roles.is_cross(entry) else "slots" if entry.is_static else "grows"
        after, axis, window = entry.present, entry.axis, find_windows(model).get(entry, 0)
    more: Row = {"axis": -1 if axis is None else axis, "rule": rule, "window": window, "prefix": 0, "offset": -1}
    return {**_typed_row(model, value, after=after), **more}


def _cache_numbers(decoder: Model) -> Iterator[Constant]:
    cache = kv_cache(decoder)
    texts = {
        "layers": "Layers of the cache; -1 where that is not known, as below.",
        "kv_heads": "Heads of keys and values in a layer.",
        "head_dim": "Numbers of a head.",
        "bytes_per_token": "Bytes that a token adds to the cache of a sequence.",
        "bytes_per_encoder_token": "Bytes that a position of the source adds.",
    }
    for name, text in texts.items():
        size = getattr(cache, name)
        yield Constant(f"kv_{name.removeprefix('kv_')}", -1 if size is None else size, text)
    for memory in cache.memory[:1]:
        yield Constant("kv_context", memory.context, "So many tokens of a sequence take the bytes below.")
        yield Constant("kv_context_bytes", memory.bytes, "In full.")
        yield Constant("kv_context_bytes_in_windows", memory.windowed, "With no more than the windows.")
