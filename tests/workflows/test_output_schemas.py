"""All JSON that graphkit writes equals its golden file and fits its JSON Schema, which allows nothing else."""

from __future__ import annotations

import copy
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
from bundles import decoder, saved
from golden_files import GOLDEN, Golden, check_golden, normalised

import graphkit
from graphkit.analysis.report import EXTRAS, SECTION_NAMES
from graphkit.cli import main
from graphkit.cli.commands import every_command
from graphkit.judges import judge_list
from graphkit.render.result import Result
from graphkit.workflows.output_schemas import SCHEMAS, SECTION_RESULTS, schema_of

MERGED, CAUSAL = "example:merged-decoder", "example:causal-attention"
FAST = ("--no-verify", "-o", "{out}")
# What each command writes, by the name of its schema: {out} and {json} are free paths, {bundle} is a bundle, {export} a
# model.
CASES: dict[str, dict[str, tuple[str, ...]]] = {
    "report": {
        "report": (CAUSAL,),
        "report of several": (MERGED, CAUSAL, "--only", "verdict,hazards,interface,kv-cache,control-flow"),
        "report of all": (MERGED, "--target", "generic-npu", "--hash", "--fail-on", "float16"),
        "report of a fit": ("{pair}", "--only", "verdict"),
        "bundle-overview": ("{bundle}",),
    },
    "costs": {"costs": (MERGED, "--range", "past_decoder_sequence_length=1:4")},
    "shapes": {"tensor-shapes": (CAUSAL,), "why-shape": (CAUSAL, "--why", "logits")},
    "nodes": {"node-list": (CAUSAL, "--module", "blocks.0", "--op", "MatMul")},
    "weights": {"weight-list": (CAUSAL, "--by", "bytes")},
    "fold": {
        "fold-report": (CAUSAL, "-o", "{out}"),
        "fold-report unverified": (CAUSAL, *FAST),
        "folder-fold-report": ("{pair}", "-o", "{out}"),
        "folder-fold-report unverified": ("{pair}", *FAST),
    },
    "split-merged": {"split-report": (MERGED, "-o", "{out}")},
    "merge-decoders": {
        "edit-report": ("{pair}/decoder_model.onnx", "{pair}/decoder_with_past_model.onnx", "-o", "{out}")
    },
    "extract": {"edit-report": (CAUSAL, "--to", "logits", "-o", "{out}")},
    "rename": {"edit-report": (CAUSAL, "--input-name", "input_ids=ids", *FAST)},
    "set-dims": {"edit-report": (CAUSAL, "--dim", "batch_size=2", *FAST)},
    "convert-opset": {"edit-report": (CAUSAL, "--to", "18", *FAST)},
    "lower": {"lower-report": (CAUSAL, "--src-len", "8", "-o", "{out}")},
    "bundle": {
        "bundle-report": ("{export}", "-o", "{out}", "--dry-run"),
        "bundle-report proven": ("{export}", "-o", "{out}", "--max-cache", "4", "--max-source", "4"),
    },
    "genai": {"genai-report": ("{cached}", "-o", "{out}", "--max-length", "40")},
    "transformers-js": {"transformers-js-report": ("{export}", "-o", "{out}")},
    "rewrite": {"rewrite-report": (CAUSAL, "-p", "eliminate-identity", "-o", "{out}")},
    "verify": {
        "rewrite-proof": (CAUSAL, CAUSAL, "--runs", "1"),
        "split-proof": (MERGED, "{pair}/decoder_model.onnx", "{pair}/decoder_with_past_model.onnx", "--steps", "1"),
    },
    "compare": {"model-comparison": (CAUSAL, CAUSAL)},
    "diff": {"model-diff": (CAUSAL, MERGED)},
    "targets": {"targets": (), "target-facts": ("ethos-u85",)},
    "providers": {"provider-list": ()},
    "judges": {"judge-list": ()},
}
WRITES = [(command, name) for command, cases in CASES.items() for name in cases]
SLOW = [  # whose proofs the reports of a split and of a fold have too
    ("verify", "split-proof"),
    ("merge-decoders", "edit-report"),
    ("fold", "folder-fold-report"),
]
FILES = {"lower": "contract.json", "bundle": "bundle.json"}  # that a command writes beside models, by command
PROGRAMS = {"merged": MERGED, "causal": CAUSAL}


def test_every_command_that_writes_json_is_here() -> None:
    options = {
        command.name: option
        for command in every_command().values()
        for option in command.params
        if option.name == "format"
    }
    formats = {name for name, option in options.items() if isinstance(option.type, click.Choice)}
    assert formats <= CASES.keys()


@cache
def validator(schema: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema_of(schema))


def written(
    command: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> str:
    monkeypatch.setattr(sys, "argv", ["graphkit", command, *words])
    with pytest.raises(SystemExit):
        main()
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def providers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let no provider but the CPU be here, and no judge, whatever is installed."""
    monkeypatch.setenv("GRAPHKIT_JUDGES", str(tmp_path / "judges"))
    monkeypatch.setattr(judge_list, "is_here", lambda known: "built in" if known.name == "cpu" else "")


@pytest.mark.cases(10)
@pytest.mark.parametrize(
    ("command", "name"),
    [pytest.param(*case, marks=pytest.mark.slow if case in SLOW else []) for case in WRITES],
    ids=lambda value: value.replace(" ", "-"),
)
def test_json_is_what_its_schema_says(
    command: str,
    name: str,
    tmp_path: Path,
    bundle_of: Callable[[str], Path],
    model_file: Callable[[str], Path],
    golden: Golden,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = CASES[command][name]
    (tmp_path / "export").mkdir()
    given = {"out": str(tmp_path / "out.onnx"), "json": str(tmp_path / "view.json")}
    if "{bundle}" in words:
        given["bundle"] = str(bundle_of("causal"))
    if "{export}" in words:
        saved(decoder("causal"), tmp_path / "export")
        given["export"] = str(tmp_path / "export")
        (tmp_path / "export" / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    if "{cached}" in words:
        given["cached"] = shutil.copy(model_file("qwen2-tiny/model"), tmp_path / "export" / "model.onnx")
        (tmp_path / "export" / "generation_config.json").write_text('{"eos_token_id": 1}', encoding="utf-8")
    if any("{pair}" in word for word in words):
        for one in ("decoder_model", "decoder_with_past_model"):
            given["pair"] = str(model_file(f"merged-decoder/{one}").parent)
    text = written(command, (*(word.format(**given) for word in words), "-f", "json"), capsys, monkeypatch)
    golden(golden_name(command, name), text)
    file = tmp_path / "out.onnx" / FILES.get(command, "")
    if file.suffix == ".json" and file.is_file():
        golden(file.stem, file.read_text(encoding="utf-8"))
        jsonschema.validate(json.loads(file.read_text(encoding="utf-8")), schema_of(file.stem))
    made = json.loads(text)
    schema = name.split(" ")[0]
    assert (made["graphkit"], made["schema"]) == (graphkit.__version__, f"{schema}/1")
    validator(schema).validate(made)
    assert not any(validator(schema).is_valid(spoiled) for spoiled in spoil(made))


def golden_name(command: str, name: str) -> str:
    return f"{command}.{name.replace(' ', '-')}"


def test_every_golden_file_is_compared() -> None:
    names = {golden_name(*case) for case in WRITES} | {Path(file).stem for file in FILES.values()}
    names |= {golden_name("program", name) for name in PROGRAMS}
    assert {path.stem for path in GOLDEN.glob("*.json")} == names


@pytest.mark.cases(13)
@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_a_golden_file_sees_each_change(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    check_golden(path.stem, text, writes=False)
    for name in re.findall(r'^ +"([\w-]+)": ', text, re.MULTILINE)[::20]:
        with pytest.raises(AssertionError, match="is not tests/golden"):
            check_golden(path.stem, normalised(text.replace(f'"{name}": ', f'"{name}s": ', 1)), writes=False)


def spoil(made: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield it with a property too many, with one too few, and with one of another type."""
    yield {**made, "weather": 1}
    last = list(made)[-1]
    yield {name: value for name, value in made.items() if name != last}
    spoiled = copy.deepcopy(made)
    spoiled[last] = {"weather": [made[last]]}
    yield spoiled


def test_a_program_is_what_its_schema_says(
    golden: Golden, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, model in PROGRAMS.items():
        text = written("program", (model,), capsys, monkeypatch)
        golden(golden_name("program", name), text)
        made = json.loads(text)
        jsonschema.validate(made, schema_of("program"))
        for spoiled in spoil(made):
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(spoiled, schema_of("program"))


def test_every_section_has_a_schema() -> None:
    assert {*SECTION_NAMES, *(section.name for section in EXTRAS), "blockers", "placement"} == SECTION_RESULTS.keys()


@pytest.mark.cases(15)
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_one(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema_of(name))


def test_a_result_by_itself_has_a_schema() -> None:
    for make in (graphkit.summary, graphkit.kv_cache, graphkit.origins, graphkit.what_if, graphkit.control_flow):
        made = make(graphkit.load(MERGED))
        assert isinstance(made, Result)
        jsonschema.validate(json.loads(made.to_json()), schema_of(made.schema()))


def test_the_command_prints_schemas(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made = json.loads(written("schema", ("report",), capsys, monkeypatch))
    assert made == schema_of("report")
    assert made["additionalProperties"] is False
    monkeypatch.setattr(sys, "argv", ["graphkit", "schema"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out.split() == list(SCHEMAS)


def test_an_unknown_schema(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["graphkit", "schema", "repotr"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert (stop.value.code, capsys.readouterr().err) == (2, "Error: no schema 'repotr' - did you mean 'report'?\n")
