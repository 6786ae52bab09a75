"""Every public function takes a model or its path."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import graphkit

PACKAGES = ("graphkit", "graphkit.shapes", "graphkit.verify")
NARROW = {"Model", "Model | None", "Sequence[Model]", "Path", "str | Path", "Path | None"}
EXAMPLE = "example:causal-attention"


def parameters() -> Iterator[tuple[str, str, str]]:
    """Yield the name of each public function or constructor, the name of each parameter, and its type."""
    for package in map(importlib.import_module, PACKAGES):
        for name in package.__all__:
            found = getattr(package, name)
            if inspect.isfunction(found):
                for parameter in inspect.signature(found).parameters.values():
                    yield name, parameter.name, str(parameter.annotation)


def test_no_public_function_takes_a_model_alone() -> None:
    assert [found for found in parameters() if found[2] in NARROW] == []


class Place(os.PathLike[str]):
    """A path that is neither a text nor a Path."""

    def __fspath__(self) -> str:
        return EXAMPLE


TAKING = [
    getattr(graphkit, name)
    for name, first, kind in dict.fromkeys(parameters())
    if (first, kind) in {("model", "ModelLike"), ("merged", "ModelLike")} and hasattr(graphkit, name)
]


def others(function: Callable[..., object], folder: Path) -> dict[str, object]:
    """Return what a function needs besides a model."""
    known = {
        "target": "mt8371",
        "name": "logits",
        "passes": (),
        "output": folder / "out.onnx",
        "found": graphkit.hazards(EXAMPLE),
        "graph": graphkit.to_graphsurgeon(EXAMPLE),
    }
    needed = inspect.signature(function).parameters.values()
    return {each.name: known[each.name] for each in needed if each.default is each.empty and each.name != "model"}


@pytest.mark.parametrize(
    "function", [one for one in TAKING if one.__name__ not in ("split_file", "split_merged", "verify_split")]
)
def test_a_path_does_where_a_model_does(function: Callable[..., object], tmp_path: Path) -> None:
    found = function(model=Place(), **others(function, tmp_path))
    if isinstance(found, graphkit.Result) and not hasattr(found, "files"):
        assert found.to_dict() == function(model=graphkit.load(EXAMPLE), **others(function, tmp_path)).to_dict()


def test_several_paths_do_where_several_models_do() -> None:
    names = ["example:causal-attention", "example:merged-decoder"]
    models = [graphkit.load(name) for name in names]
    assert graphkit.fit(names) == graphkit.fit(models)
    options = graphkit.ReportOptions(only=("summary",))
    assert graphkit.compare(names, options).to_text() == graphkit.compare(models, options).to_text()
