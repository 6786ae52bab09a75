from __future__ import annotations

import subprocess
import sys

import pytest

import graphkit

HEAVY = ("networkx", "numpy", "onnx", "onnx_graphsurgeon", "onnxoptimizer", "onnxruntime", "rich", "click")


def loaded_by(statement: str) -> set[str]:
    """Return the top-level modules that a statement loads in a fresh interpreter."""
    code = f"import sys\n{statement}\nprint(*sorted(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in ran.stdout.split()}


@pytest.fixture(scope="module")
def package() -> set[str]:
    return loaded_by("import graphkit")


@pytest.fixture(scope="module")
def command_line() -> set[str]:
    return loaded_by("import graphkit.cli")


@pytest.mark.parametrize("module", HEAVY)
def test_importing_graphkit_does_not_load(module: str, package: set[str]) -> None:
    assert module not in package


@pytest.mark.parametrize("module", [name for name in HEAVY if name not in ("rich", "click")])
def test_importing_the_command_line_does_not_load(module: str, command_line: set[str]) -> None:
    assert module not in command_line


def test_a_command_does_not_load_what_reads_from_servers() -> None:
    assert loaded_by("import graphkit.cli.commands").isdisjoint({"email", "http", "ssl"})


def test_loading_a_model_does_not_load_what_renders() -> None:
    loaded = loaded_by("import graphkit; graphkit.load('example:causal-attention').shape_tensors")
    assert loaded.isdisjoint({"networkx", "onnx_graphsurgeon", "onnxoptimizer", "onnxruntime", "rich", "click"})


@pytest.mark.parametrize("name", graphkit.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(graphkit, name) is not None


def test_public_names_are_listed_by_dir() -> None:
    assert set(graphkit.__all__) <= set(dir(graphkit))


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="No graphkit attribute nope"):
        graphkit.nope  # noqa: B018
