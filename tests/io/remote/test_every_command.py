"""Each command that reads models takes a URL, and says what it says of the file; a fault is one clear error."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from layers import layered
from range_server import Site

import graphkit
from graphkit.cli.commands import every_command
from graphkit.io.remote import remote_file

Command = Callable[..., tuple[object, str, str]]
OUT = ("-o", "out.onnx")
PROOF = "--no-verify"
WORDS: dict[str, tuple[str, ...]] = {  # after the model, which is a merged decoder for some
    "report": ("--format", "json"),
    "survey": ("-o", "out.parquet", "--jobs", "1"),
    "shapes": (),
    "nodes": (),
    "weights": (),
    "costs": (),
    "program": (),
    "fold": (*OUT, PROOF),
    "split-merged": ("-o", "out", PROOF),
    "merge-decoders": ("with_past.onnx", *OUT, PROOF),
    "extract": ("--to", "model.layers.1.out", *OUT, PROOF),
    "rename": ("--input-name", "x=y", *OUT, PROOF),
    "set-dims": ("--dim", "batch=2", *OUT, PROOF),
    "convert-opset": ("--to", "18", *OUT, PROOF),
    "lower": ("-o", "out", "--dim", "batch=2", PROOF, "--download"),
    "bundle": ("-o", "out", "--max-cache", "5", PROOF, "--download"),
    "genai": ("-o", "out", "--max-length", "40", "--download"),
    "transformers-js": ("-o", "out", "--download"),
    "rewrite": ("-p", "fold-constants", *OUT, PROOF),
    "verify": ("MODEL", "--dim", "batch=2"),
    "compare": ("MODEL", "--dim", "batch=2"),
    "diff": ("MODEL",),
}
DECODERS = ("split-merged", "bundle")
SLOW = ("survey", *DECODERS, "merge-decoders", "genai", "transformers-js")
MODELS = {
    **dict.fromkeys(DECODERS, "decoder_model_merged.onnx"),
    **dict.fromkeys(("genai", "transformers-js"), "decoder.onnx"),
    "merge-decoders": "first.onnx",
}


def test_the_list_has_every_command_that_reads_models() -> None:
    assert set(WORDS) == {
        each.name for each in every_command().values() if any(option.name == "download" for option in each.params)
    }


@pytest.fixture(scope="module")
def contents(model_file: Callable[[str], Path]) -> dict[str, bytes]:
    """Return the files of an export by name, and a merged decoder with its halves."""
    contents = {
        "model.onnx": layered(2).SerializeToString(),
        "decoder_model_merged.onnx": model_file("gpt2-tiny/decoder_model_merged").read_bytes(),
        "decoder.onnx": model_file("qwen2-tiny/model").read_bytes(),
        "generation_config.json": b'{"eos_token_id": 1}',
        "config.json": b'{"model_type": "qwen2"}',
    }
    halves = graphkit.split_merged(onnx.load_from_string(contents["decoder_model_merged.onnx"]))
    for name, half in (("first.onnx", halves.first), ("with_past.onnx", halves.with_past)):
        contents[name] = half.to_proto().SerializeToString()
    return contents


@pytest.fixture
def place(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, contents: dict[str, bytes]) -> Site:
    """The models in the current folder, and the same ones on a server, which are large beside a request."""
    for module, name in ((remote_file, "FIRST"), (remote_file, "SMALL_FILE"), (remote_file, "STEP")):
        monkeypatch.setattr(module, name, 2048)
    monkeypatch.chdir(tmp_path)
    for name, content in contents.items():
        Path(name).write_bytes(content)
        site.put(f"/{name}", content)
    return site


def told(run: Command, name: str, model: str) -> tuple[object, str, str, dict[str, bytes]]:
    """Run a command; return its exit code, what it says and what it writes, without the name of the model."""
    code, said, errors = run(name, model, *(model if word == "MODEL" else word for word in WORDS[name]))
    file = model.rpartition("/")[2]
    said = " ".join(re.sub(r"\d+\.\d s", "... s", said.replace(model, file)).split())  # a long name wraps lines
    written = {}
    for path in sorted(path for path in Path().rglob("*") if path.is_file() and str(path).startswith("out")):
        if path.suffix != ".parquet":
            written[str(path)] = path.read_bytes().replace(model.encode(), file.encode())
        path.unlink()
    shutil.rmtree("out", ignore_errors=True)
    return code, said, errors, written


@pytest.mark.cases(6)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in WORDS])
def test_what_a_command_says_of_a_url_is_what_it_says_of_the_file(place: Site, run: Command, name: str) -> None:
    model = MODELS.get(name, "model.onnx")
    if name == "split-merged":  # which copies what lies beside a file
        Path("config.json").unlink()
        Path("generation_config.json").unlink()
    local = told(run, name, model)
    remote = told(run, name, f"{place.base}/{model}")
    assert (local[0], local[2]) == (0, "")
    assert remote == local
    assert place.asked


@pytest.mark.cases(8)
@pytest.mark.parametrize("name", WORDS)
def test_a_fault_of_the_server_is_one_clear_error(place: Site, run: Command, name: str) -> None:
    status = (404, 403)[[*WORDS].index(name) % 2]
    place.fault, place.status = "status", status
    model = f"{place.base}/model.onnx"
    code, said, errors, written = told(run, name, model)
    problem = "is not there - check the URL" if status == 404 else "the server answers 403 (Forbidden) - ask for access"
    if name == "survey":  # a row with its error
        assert (code, errors) == (0, "")
        assert said.startswith("1 model in out.parquet, 1 error, ")
    else:
        assert (code, said, errors.count("\n"), written) == (2, "", 1, {})
        assert errors.startswith(f"Error: {model}: {problem}")
