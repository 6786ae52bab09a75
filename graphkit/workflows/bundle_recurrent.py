"""Methods of models with recurrent state, as a `bundle.toml` would name them, with the states of each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from graphkit.analysis.pipeline_links import first_states
from graphkit.graph.roles import rank
from graphkit.model import Model, load
from graphkit.verify.chain_verifier import Chain
from graphkit.workflows.bundle_initial import Initial, read_initial
from graphkit.workflows.bundle_toml import BUNDLE_TOML, read_description

__all__ = ["method_chains", "recurrent_methods"]

GENERATED = ("init", "reorder")
CACHE = "kv"  # what the KV cache beside recurrent state is called


def method_chains(path: Path) -> tuple[tuple[Chain, ...], Initial]:
    """Return the methods that a `bundle.toml` names, or those of recurrent state, and initial values; none for others.

    Raises:
        TargetError, UsageError: The description is wrong.
        ModelError: A file is broken.
    """
    description = path / BUNDLE_TOML
    if description.is_file():
        return read_description(description), read_initial(description)
    return recurrent_methods(path), {}


def recurrent_methods(path: Path) -> tuple[Chain, ...]:
    """Return the methods of a model with recurrent state, or of a folder with one; none where there is no such model.

    The model is `step`. One that gives its state and takes none is `prefill`; others are called as their files are, and
    so is each of several models that have recurrent state.

    Raises:
        ModelError: A file is broken.
    """
    models = [load(file) for file in sorted(path.glob("*.onnx"))] if path.is_dir() else [load(path)]
    steps = [model for model in models if model.roles.states]
    if len(steps) != 1:
        return tuple(_method(_stem(model), "step", model) for model in models) if steps else ()
    (step,) = steps
    found = []
    for model in models:
        given = first_states(model, step) if model is not step else {}
        if given:
            states = {value.name: past.name for past, value in given.items()}
            found.append(_method("prefill", "once", model, states))
        elif model is not step:
            found.append(_method(_stem(model), "step", model))
    return (*(each for each in found if each.when == "once"), _method("step", "step", step), *_later(found))


def _later(found: Sequence[Chain]) -> Sequence[Chain]:
    return [each for each in found if each.when == "step"]


def _method(name: str, when: str, model: Model, writes: Mapping[str, str] | None = None) -> Chain:
    roles = model.roles
    reads = {entry.past.name: entry.past.name for entry in roles.states}
    after = {entry.next.name: entry.past.name for entry in roles.states}
    tokens = [value.name for value in roles.all("tokens") if rank(value) == 2]
    return Chain(
        name=name,
        when=when,
        models=(model,),
        links={},
        cache=CACHE if roles.pasts else "",
        reads=reads,
        writes=after if writes is None else writes,
        tokens=tokens[0] if len(tokens) == 1 else "",
    )


def _stem(model: Model) -> str:
    """Return the name of a model's file as that of a method."""
    name = re.sub(r"\W", "_", model.name.removesuffix(".onnx"))
    return name if name.isidentifier() and name not in GENERATED else f"run_{name}"
