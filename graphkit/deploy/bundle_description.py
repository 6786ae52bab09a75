"""The methods of a bundle that is no pipeline: as a `bundle.toml` names them, or those of a model with recurrent state.

A method is a chain of models, of which some inputs and outputs are state:

[[method]]
name = "step"
models = ["features.onnx", "encoder.onnx"]    # each reads what those before it give, by name
links = { frames = "features" }               # or by links: the input, and the output that it becomes
tokens = "input_ids"                          # the input for tokens, so that `step` and `generate` take them

[[state]]
name = "hidden"
read = { step = "h_in" }                      # the input that it is, by method
write = { step = "h_out" }                    # the output that it becomes
initial = -1e38                               # 0 by default; or "FILE.npy", an array of one row

[[method]]
name = "draft"
models = ["draft.onnx"]
cache = "draft"                               # its KV cache is kept in slots, under this name
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import replace

from graphkit.analysis.model_fit import first_states
from graphkit.deploy.bundle_methods import MethodModel, fold_changes, kept_in_slots, method_name
from graphkit.deploy.export_inputs import drop_idle_inputs, pad_states, share_dim_names
from graphkit.deploy.export_pipeline import has_fixed_prompt
from graphkit.errors import UsageError
from graphkit.graph.roles import declared_rank, dim_at
from graphkit.io.byte_source import shown_path
from graphkit.io.toml import convert_toml, read_toml, toml_error
from graphkit.model import Model, load
from graphkit.options import Update
from graphkit.passes.state.join_encoder import chain_models
from graphkit.passes.state.update_cache_in_place import LENGTH
from graphkit.verify.described_bundle_verifier import Chain

Initial = Mapping[str, np.ndarray]  # by state: a number, or an array of one row
BUNDLE_TOML = "bundle.toml"
WHEN = ("once", "step")
GENERATED = ("init", "reorder")  # methods of every bundle, and their files
CACHE = "kv"  # the name of the KV cache beside recurrent state


class _Method(Struct, forbid_unknown_fields=True):
    name: str
    models: Annotated[tuple[str, ...], Meta(min_length=1)]
    when: Literal["once", "step"] = "step"
    links: Mapping[str, str] = {}
    cache: str = ""
    tokens: str = ""


class _State(Struct, forbid_unknown_fields=True):
    name: str
    read: Mapping[str, str] = {}
    write: Mapping[str, str] = {}
    initial: int | float | str | None = None


class _Description(Struct, forbid_unknown_fields=True):
    method: tuple[_Method, ...] = ()
    state: tuple[_State, ...] = ()


def read_description(path: Path) -> tuple[tuple[Chain, ...], Initial]:
    """Return the methods that a `bundle.toml` names, and initial values; refuse a key that is missing or wrong."""
    file = convert_toml(path, read_toml(path), _Description)
    methods = [_read_method(path, f"method[{number}]", row, file.state) for number, row in enumerate(file.method)]
    if not methods:
        raise UsageError(f"{shown_path(path)}: it names no method - write [[method]] with a name and its models")
    names = [method.name for method in methods]
    for state in file.state:
        if unknown := [name for name in (*state.read, *state.write) if name not in names]:
            raise UsageError(f"{shown_path(path)}: state '{state.name}' names '{unknown[0]}', which is no method")
    values = dict[str, np.ndarray]()
    for number, state in enumerate(file.state):
        key, initial = f"state[{number}].initial", state.initial
        if isinstance(initial, str):
            _check_file_name(path, key, initial)
            try:
                values[state.name] = np.asarray(np.load(path.parent / initial, allow_pickle=False))
            except (OSError, ValueError, EOFError) as error:
                problem = f"{initial[:40]!r} cannot be read: {error!s:.200}"
                raise toml_error(path, key, problem, "write it with numpy.save") from error
        elif initial is not None:
            values[state.name] = np.asarray(initial)
    return tuple(methods), values


def _read_method(path: Path, at: str, row: _Method, states: Sequence[_State]) -> Chain:
    if not row.name.isidentifier():
        problem = f"{row.name[:40]!r} is no name"
        raise toml_error(path, f"{at}.name", problem, "write letters, digits and underscores")
    if row.name.lower() in GENERATED:
        problem = f"'{row.name}' is a method that every bundle has"
        raise toml_error(path, f"{at}.name", problem, "name it anew")
    for file in row.models:
        _check_file_name(path, f"{at}.models", file)
    return Chain(
        name=row.name,
        when=row.when,
        models=tuple(load(path.parent / file) for file in row.models),
        links=row.links,
        cache=row.cache,
        reads={state.read[row.name]: state.name for state in states if row.name in state.read},
        writes={state.write[row.name]: state.name for state in states if row.name in state.write},
        tokens=row.tokens,
    )


def _check_file_name(path: Path, key: str, file: str) -> None:
    if Path(file).name != file:
        raise toml_error(path, key, f"{file[:40]!r} is not in the folder of the bundle.toml", "put it there")


def described_methods(described: tuple[Chain, ...], slots: int, update: Update) -> tuple[MethodModel, ...]:
    """Return the methods that a `bundle.toml` names, their caches in slots; refuse names that are not there."""
    methods = []
    for chain in described:
        method = _make_method(chain, slots, update)
        if chain.prompt is not None:  # whose place it takes
            change = f"reads prompts token by token, as {chain.prompt.name} reads those of one length alone"
            method = replace(method, changes=(*method.changes, change))
        methods.append(method)
    return tuple(methods)


def _make_method(method: Chain, slots: int, update: Update) -> MethodModel:
    model = chain_models(method.name, method.models, method.links)
    inputs = {value.name for value in model.graph.inputs}
    outputs = {value.name for value in model.graph.outputs}
    tokens = (method.tokens,) if method.tokens else ()
    ports = ((method.reads, inputs, "input"), (method.writes, outputs, "output"), (tokens, inputs, "input"))
    for names, there, what in ports:
        if missing := [name for name in names if name not in there]:
            has = ", ".join(sorted(there))
            raise UsageError(f"{method.name} has no {what} '{missing[0]}' - it has {has}")
    if not method.cache:
        folded, changes = fold_changes(model)
        kinds = {name: "tokens" if name == method.tokens else "user" for name in inputs - set(method.reads)}
        name, reads, writes = method.name, method.reads, method.writes
        plain = MethodModel(name, method.when, folded, f"{name}.onnx", reads, writes, kinds=kinds)
        return replace(plain, whole=frozenset(writes.values()), changes=changes)
    _, made = kept_in_slots(method.name, method.when, model, slots, update, method.reads)
    named, given = set(method.reads.values()), {value.name for value in made.model.graph.outputs}
    writes = {port: state for port, state in method.writes.items() if port in given}
    # the cache and its length have the names that the description gives
    names = {state: state if state in named else f"{method.cache}.{state}" for state in made.reads.values()}
    return replace(
        made,
        reads={port: names[state] for port, state in made.reads.items()},
        writes={**{port: names[state] for port, state in made.writes.items()}, **writes},
        whole=frozenset({*writes.values(), *(names[state] for state in made.whole if state in names)}),
        length=f"{method.cache}.{LENGTH}",
    )


def method_chains(path: Path) -> tuple[tuple[Chain, ...], Initial]:
    """Return the methods that a `bundle.toml` names, or those of recurrent state, and initial values."""
    description = path / BUNDLE_TOML
    is_there = description.is_file()
    chains, values = read_description(description) if is_there else (recurrent_methods(path), {})
    files = [chain.name.lower() for chain in chains]  # which are one where file names have no case
    if twice := next((chain.name for chain in chains if files.count(chain.name.lower()) > 1), ""):
        place = shown_path(description if is_there else path)
        raise UsageError(f"{place}: two methods are called '{twice}' - name one anew")
    return chains, values


def recurrent_methods(path: Path) -> tuple[Chain, ...]:
    """Return the methods of a model with recurrent state, or of a folder with one; none where there is no such model.

    The model is `step`. One that gives its state and takes none is `prefill`, unless it reads prompts of one length
    alone, which `step` reads token by token; others are called as their files are, and so is each of several models
    that have recurrent state.
    """
    models = [load(file) for file in sorted(path.glob("*.onnx"))] if path.is_dir() else [load(path)]
    prompt = _fixed_prompt(models)
    models = [model for model in models if model is not prompt]
    if any(model.roles.cache and not model.roles.pasts for model in models):  # decoders of the first and later steps
        return ()
    steps = [model for model in models if model.roles.states] or [
        m for m in models if len(models) == 1 and _reads_prompt(m)
    ]
    if len(steps) != 1:
        return tuple(_make_chain(method_name(model, GENERATED), "step", model) for model in models) if steps else ()
    (step,) = steps
    first = next((model for model in models if model is not step and first_states(model, step)), None)
    made = {step: drop_idle_inputs(share_dim_names(step, first or prompt))}
    if first is not None:
        made[first] = pad_states(drop_idle_inputs(share_dim_names(first)), made[step])
    models, step = [made.get(model, model) for model in models], made[step]
    methods = []
    for model in models:
        starts = first_states(model, step) if model is not step else {}
        if starts:
            states = {value.name: past.name for past, value in starts.items()}
            methods.append(_make_chain("prefill", "once", model, states))
        elif model is not step:
            methods.append(_make_chain(method_name(model, GENERATED), "step", model))
    once, later = ([method for method in methods if method.when == when] for when in WHEN)
    return (*once, replace(_make_chain("step", "step", step), prompt=prompt), *later)


def _fixed_prompt(models: Sequence[Model]) -> Model | None:
    """Return which of two decoders reads prompts of one length alone, as the other can read them token by token."""
    starting = [model for model in models if not (model.roles.pasts or model.roles.states)]
    prompts = [model for model in starting if len(models) == 2 and has_fixed_prompt(model)]
    if len(prompts) != 1:
        return None
    (step,) = (model for model in models if model is not prompts[0])
    return prompts[0] if prompts[0].roles.cache or first_states(prompts[0], step) else None


def _reads_prompt(model: Model) -> bool:
    """Whether a decoder with a cache reads a prompt token by token, as no other model does and it takes one alone."""
    roles, tokens = model.roles, model.roles.first("tokens")
    beside = roles.all("encoder state", "encoder tokens", "encoder mask") or any(map(roles.is_cross, roles.cache))
    return bool(roles.pasts) and not beside and tokens is not None and dim_at(tokens, 1) == 1


def _make_chain(name: str, when: str, model: Model, writes: Mapping[str, str] | None = None) -> Chain:
    roles = model.roles
    reads = {entry.past.name: entry.past.name for entry in roles.states}
    after = {entry.next.name: entry.past.name for entry in roles.states}
    tokens = [value.name for value in roles.all("tokens") if declared_rank(value) == 2]
    given, taken = after if writes is None else writes, tokens[0] if len(tokens) == 1 else ""
    return Chain(name, when, (model,), {}, CACHE if roles.pasts else "", reads, writes=given, tokens=taken)
