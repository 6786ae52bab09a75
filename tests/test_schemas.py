"""Everything that graphkit writes as JSON is what its JSON Schema says, and a schema allows nothing else."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
from bundles import decoder, saved

import graphkit
from graphkit.analysis.sections import SECTION_NAMES
from graphkit.cli import COMMANDS, main
from graphkit.render.result import Result
from graphkit.workflows.schemas import SCHEMAS, SECTION_RESULTS, schema_of

MERGED, CAUSAL = "example:merged-decoder", "example:causal-attention"
FAST = ("--no-verify", "-o", "{out}")
# What each command writes, by the name of its schema: {out} is a free path, {bundle} a bundle, {export} a model.
CASES: dict[str, dict[str, tuple[str, ...]]] = {
    "report": {
        "report": (CAUSAL,),
        "report of several": (MERGED, CAUSAL, "--only", "verdict,hazards,interface,kv-cache,control-flow"),
        "report of all": (MERGED, "--target", "generic-npu", "--hash", "--fail-on", "float16"),
        "report of a fit": ("{pair}", "--only", "verdict"),
        "bundle-overview": ("{bundle}",),
    },
    "shapes": {"tensor-shapes": (CAUSAL,), "why-shape": (CAUSAL, "--why", "logits")},
    "fold": {"fold-report": (CAUSAL, "-o", "{out}"), "fold-report unverified": (CAUSAL, *FAST)},
    "split-merged": {"split-report": (MERGED, "-o", "{out}")},
    "extract": {"edit-report": (CAUSAL, "--to", "logits", "-o", "{out}")},
    "rename": {"edit-report": (CAUSAL, "--input", "input_ids=ids", *FAST)},
    "set-dims": {"edit-report": (CAUSAL, "--dim", "batch_size=2", *FAST)},
    "convert-opset": {"edit-report": (CAUSAL, "--to", "18", *FAST)},
    "lower": {"lower-report": (CAUSAL, "--src-len", "8", "-o", "{out}")},
    "bundle": {
        "bundle-report": ("{export}", "-o", "{out}", "--dry-run"),
        "bundle-report proven": ("{export}", "-o", "{out}", "--max-cache", "4", "--max-source", "4"),
    },
    "rewrite": {"rewrite-report": (CAUSAL, "-p", "eliminate-identity", "-o", "{out}")},
    "verify": {"rewrite-proof": (CAUSAL, CAUSAL, "--runs", "1")},
    "compare": {"model-comparison": (CAUSAL, CAUSAL)},
    "targets": {"targets": (), "target-facts": ("ethos-u85",)},
}
WRITES = [(command, name) for command, cases in CASES.items() for name in cases]


def test_every_command_that_writes_json_is_here() -> None:
    options = {command.name: option for command in COMMANDS for option in command.params if option.name == "format"}
    formats = {name for name, option in options.items() if isinstance(option.type, click.Choice)}
    assert formats <= CASES.keys()


@cache
def validator(schema: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema_of(schema))


def written(
    command: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Any:
    monkeypatch.setattr(sys, "argv", ["graphkit", command, *words])
    with pytest.raises(SystemExit):
        main()
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("command", "name"), WRITES, ids=lambda value: value.replace(" ", "-"))
def test_json_is_what_its_schema_says(
    command: str,
    name: str,
    tmp_path: Path,
    bundle_of: Callable[[str], Path],
    model_file: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = CASES[command][name]
    (tmp_path / "export").mkdir()
    given = {"out": str(tmp_path / "out.onnx")}
    if "{bundle}" in words:
        given["bundle"] = str(bundle_of("causal"))
    if "{export}" in words:
        saved(decoder("causal"), tmp_path / "export")
        given["export"] = str(tmp_path / "export")
    if "{pair}" in words:
        for one in ("decoder_model", "decoder_with_past_model"):
            given["pair"] = str(model_file(f"merged-decoder/{one}").parent)
    made = written(command, (*(word.format(**given) for word in words), "-f", "json"), capsys, monkeypatch)
    schema = name.split(" ")[0]
    assert (made["graphkit"], made["schema"]) == (graphkit.__version__, f"{schema}/1")
    validator(schema).validate(made)
    assert not any(validator(schema).is_valid(spoiled) for spoiled in spoil(made))


def spoil(made: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield it with a property too many, with one too few, and with one of another type."""
    yield {**made, "weather": 1}
    last = list(made)[-1]
    yield {name: value for name, value in made.items() if name != last}
    spoiled = copy.deepcopy(made)
    spoiled[last] = {"weather": [made[last]]}
    yield spoiled


def test_a_program_is_what_its_schema_says(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for model in (MERGED, CAUSAL):
        made = written("program", (model,), capsys, monkeypatch)
        jsonschema.validate(made, schema_of("program"))
        for spoiled in spoil(made):
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(spoiled, schema_of("program"))


def test_every_section_has_a_schema() -> None:
    assert {*SECTION_NAMES, "float16", "blockers"} == SECTION_RESULTS.keys()


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_one(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema_of(name))


def test_a_result_by_itself_has_a_schema() -> None:
    for make in (graphkit.summary, graphkit.kv_cache, graphkit.origins, graphkit.what_if, graphkit.control_flow):
        made = make(graphkit.load(MERGED))
        assert isinstance(made, Result)
        jsonschema.validate(json.loads(made.to_json()), schema_of(made.schema()))


def test_the_command_prints_schemas(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made = written("schema", ("report",), capsys, monkeypatch)
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
