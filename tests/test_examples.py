from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import onnx.checker
import pytest

import graphkit.examples
from graphkit.errors import UsageError
from graphkit.examples import EXAMPLES, example_name, resolve
from graphkit.model import load

Run = Callable[..., tuple[object, str, str]]
COPIED = ("encoder", "merged-decoder")
FOLDER = Path(graphkit.examples.__file__).parent


def test_every_model_of_the_folder_is_an_example() -> None:
    assert {path.stem for path in FOLDER.glob("*.onnx")} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_a_file_of_the_package(name: str) -> None:
    assert resolve(f"example:{name}") == FOLDER / f"{name}.onnx"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_a_valid_model(name: str) -> None:
    onnx.checker.check_model(onnx.load(resolve(f"example:{name}")), full_check=True)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_labelled_by_its_name(name: str) -> None:
    assert load(f"example:{name}").label == f"example:{name}"


@pytest.mark.parametrize("path", ["model.onnx", "examples/model.onnx", "c:model.onnx", "examples"])
def test_another_path_stays_as_it_is(path: str) -> None:
    assert resolve(path) == Path(path)


def test_a_path_object_may_name_an_example() -> None:
    assert resolve(Path("example:merged-decoder")) == FOLDER / "merged-decoder.onnx"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("", f"there are {', '.join(EXAMPLES)}"),
        ("nope", f"there are {', '.join(EXAMPLES)}"),
        ("../examples/merged-decoder", "did you mean 'merged-decoder'?"),
        ("merged-decoder.onnx", "did you mean 'merged-decoder'?"),
    ],
)
def test_an_unknown_example_is_an_error(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(f"example:{name}")
    assert str(caught.value) == f"no example '{name}' - {hint}"


@pytest.mark.parametrize("path", [Path("merged-decoder.onnx"), FOLDER / "__init__.py", FOLDER / "other.onnx"])
def test_another_file_is_not_an_example(path: Path) -> None:
    assert example_name(path) is None


def test_examples_are_copied(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "translation"
    code, shown, _ = run("examples", "encoder", "example:merged-decoder", "--copy", folder)
    assert code == 0
    assert [line.split("  ")[0] for line in shown.splitlines()] == [f"{folder / name}.onnx" for name in COPIED]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        f"{name}.onnx": resolve(f"example:{name}").read_bytes() for name in COPIED
    }


def test_a_file_is_not_replaced_by_an_example(run: Run, tmp_path: Path) -> None:
    (tmp_path / "encoder.onnx").write_text("mine")
    code, _, error = run("examples", "merged-decoder", "encoder", "--copy", tmp_path)
    assert (code, error) == (2, f"Error: {tmp_path / 'encoder.onnx'}: exists - name another folder\n")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_only_examples_are_copied(run: Run, tmp_path: Path) -> None:
    code, _, error = run("examples", "encode", "--copy", tmp_path / "new")
    assert (code, error) == (2, "Error: no example 'encode' - did you mean 'encoder' or 'decode'?\n")
    assert not (tmp_path / "new").exists()
