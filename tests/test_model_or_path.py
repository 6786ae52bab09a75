"""Every public function takes a model or its path."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Iterator

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


@pytest.mark.parametrize(
    "function", [graphkit.interface, graphkit.shapes.infer, graphkit.fold], ids=lambda function: function.__name__
)
def test_a_path_does_where_a_model_does(function: Callable[[object], object]) -> None:
    assert str(function(Place())) == str(function(EXAMPLE)) == str(function(graphkit.load(EXAMPLE)))


def test_a_model_is_taken_as_it_is() -> None:
    model = graphkit.load(EXAMPLE)
    assert graphkit.as_model(model) is model


def test_several_paths_do_where_several_models_do() -> None:
    names = ["example:causal-attention", "example:merged-decoder"]
    assert graphkit.fit(names) == graphkit.fit([graphkit.load(name) for name in names])
    assert [row.model for row in graphkit.compare(names, graphkit.ReportOptions(only=("architecture",))).rows] == names
