"""What CI services read of a report: SARIF, JUnit XML, lock files, the action and the hook of the repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import onnx
import pytest
import yaml
from builders import proto_of
from junitparser import Error, Failure, JUnitXml
from sarif_pydantic import Sarif

from graphkit.analysis.findings import KIND_NAMES
from graphkit.graph.names import paths_below
from graphkit.workflows.output_schemas import schema_of

ROOT = Path(__file__).parents[1]
Run = Callable[..., tuple[object, str, str]]
MERGED, CAUSAL = "example:merged-decoder", "example:causal-attention"
PLAIN = "(float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }"
LONGER = "(float[N, 4] x) => (float[N, 4] y) { z = Relu(x) y = Relu(z) }"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two models of one name, and a broken one."""
    for name in ("a", "b c"):
        (tmp_path / "m" / name).mkdir(parents=True)
        onnx.save(proto_of(PLAIN), tmp_path / "m" / name / "model.onnx")
    return tmp_path / "m"


def broken(folder: Path) -> Path:
    path = folder / "broken.onnx"
    path.write_bytes(b"\x08")
    return path


def test_findings_as_sarif(run_report: Run, folder: Path) -> None:
    broken(folder)
    code, out, _ = run_report("m", "-r", MERGED, "--only", "verdict", "-o", "findings.sarif")
    assert (code, out.splitlines()[-1]) == (2, "Wrote findings.sarif.")
    text = (folder.parent / "findings.sarif").read_text()
    log = Sarif.model_validate_json(text, strict=False)
    (run_of,) = log.runs
    assert log.version == "2.1.0"
    assert [rule.id for rule in run_of.tool.driver.rules] == [*KIND_NAMES, "unreadable-model"]
    rules = [(result.rule_id, result.level.value) for result in run_of.results]
    assert rules[0] == ("unreadable-model", "error")
    assert ("merged-if", "warning") in rules
    assert ("shape-chains", "note") in rules
    for result in json.loads(text)["runs"][0]["results"]:
        assert [*KIND_NAMES, "unreadable-model"][result["ruleIndex"]] == result["ruleId"]
    places = {r.locations[0].physical_location.artifact_location.uri for r in run_of.results}
    assert places == {"m/broken.onnx", MERGED}


def test_the_address_of_a_model_is_relative_and_quoted(run_report: Run, folder: Path) -> None:
    onnx.save(proto_of("(float[N, 4] x) => (float[M, 4] y) { a = NonZero(x) y = Relu(x) }"), folder / "b c" / "é.onnx")
    _, out, _ = run_report(folder / "b c", "--only", "verdict", "-f", "sarif")
    places = {
        place["physicalLocation"]["artifactLocation"]["uri"]
        for result in json.loads(out)["runs"][0]["results"]
        for place in result["locations"]
    }
    assert places == {"m/b%20c/%C3%A9.onnx"}


def test_findings_as_junit(run_report: Run, folder: Path) -> None:
    broken(folder)
    code, _, _ = run_report("m", "-r", MERGED, CAUSAL, "--only", "verdict", "-o", "junit.xml")
    assert code == 2
    parsed = JUnitXml.fromfile(str(folder.parent / "junit.xml"))
    suites = {suite.name: suite for suite in parsed}
    assert suites.keys() == {"m/a/model.onnx", "m/b c/model.onnx", MERGED, CAUSAL, "m/broken.onnx", "fit"}
    for suite in suites.values():  # the counts that it states are those of its cases
        stated = (suite.tests, suite.failures, suite.errors)
        suite.update_statistics()
        assert stated == (suite.tests, suite.failures, suite.errors)
    failed = {case.name for case in suites[MERGED] if any(isinstance(what, Failure) for what in case.result)}
    assert failed == {"merged-if", "zero-length-kv", "unknown-shapes"}
    assert suites["m/a/model.onnx"].failures == 0
    assert [type(what) for case in suites["m/broken.onnx"] for what in case.result] == [Error]
    assert (parsed.failures, parsed.errors) == (3, 1)


def test_a_text_from_a_model_is_no_markup(run_report: Run, folder: Path) -> None:
    proto = proto_of("(float[N, 4] x) => (float[M, 4] y) { a = NonZero(x) y = Relu(a) }")
    proto.graph.node[0].name = "<failure>\x01&\x1b[31m"
    onnx.save(proto, folder / "a" / "model.onnx")
    run_report(folder / "a", "--only", "verdict", "-o", "junit.xml")
    assert "&lt;failure&gt;\\x01&amp;" in (folder.parent / "junit.xml").read_text()
    JUnitXml.fromfile(str(folder.parent / "junit.xml"))


def test_a_bundle_and_other_commands_have_no_such_files(run_report: Run, tmp_path: Path) -> None:
    (tmp_path / "bundle.json").write_text("{}")
    assert run_report(tmp_path, "-f", "sarif")[2] == (
        f"Error: {tmp_path} is a bundle, which has no findings - take another --format\n"
    )


def test_a_lock_file_is_a_baseline(run_report: Run, folder: Path) -> None:
    assert run_report("m", "-r", "--only", "summary", "--lock", "graphkit.lock")[::2] == (0, "")
    lock = folder.parent / "graphkit.lock"
    plain = json.loads(lock.read_text())
    jsonschema.validate(plain, schema_of("verdict-lock"))
    assert [model["model"] for model in plain["models"]] == ["a/model.onnx", "b c/model.onnx"]
    folder.rename(folder.with_name("moved"))
    assert run_report("moved", "-r", "--baseline", "graphkit.lock", "--only", "verdict")[::2] == (0, "")
    onnx.save(proto_of(LONGER), folder.with_name("moved") / "b c" / "model.onnx")
    code, _, err = run_report("moved", "-r", "--baseline", "graphkit.lock", "--only", "verdict")
    assert (code, err.splitlines()[0]) == (1, "Grown: moved/b c/model.onnx: nodes: from 1 to 2")


def test_models_of_one_name_are_told_apart_by_their_path_below_the_folder(run_report: Run, tmp_path: Path) -> None:
    """The ends of their paths do not tell them apart where the folder itself has moved."""
    for name, text in (("a", PLAIN), ("x/a", LONGER)):
        (tmp_path / "m" / name).mkdir(parents=True)
        onnx.save(proto_of(text), tmp_path / "m" / name / "model.onnx")
    for file in ("graphkit.lock", "base.json"):
        option = ("--lock", file) if file.endswith("lock") else ("-o", file)
        assert run_report("m", "-r", "--only", "verdict", *option)[0] == 0
    (tmp_path / "m").rename(tmp_path / "moved")
    for file in ("graphkit.lock", "base.json"):
        assert run_report("moved", "-r", "--baseline", file, "--only", "verdict")[::2] == (0, "")


def test_no_lock_file_is_written_where_a_model_is_broken(run_report: Run, folder: Path) -> None:
    broken(folder)
    code, _, err = run_report("m", "-r", "--lock", "graphkit.lock", "--only", "verdict")
    assert code == 2
    assert err.splitlines()[0] == "Error: graphkit.lock: is not written, as not every model has a report"
    assert not (folder.parent / "graphkit.lock").exists()


def test_a_spoilt_lock_file(run_report: Run, folder: Path) -> None:
    run_report("m", "-r", "--lock", "graphkit.lock", "--only", "verdict")
    lock = folder.parent / "graphkit.lock"
    plain = json.loads(lock.read_text())
    plain["models"][0]["findings"] = [{"kind": 1, "key": "", "count": 1}]
    lock.write_text(json.dumps(plain))
    code, _, err = run_report("m", "-r", "--baseline", "graphkit.lock", "--only", "verdict")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("Error: graphkit.lock: it has no verdict, or is no whole report")


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["m/a/x.onnx", "m/b/x.onnx"], ["a/x.onnx", "b/x.onnx"]),
        (["m/x.onnx"], ["x.onnx"]),
        (["m/x.onnx", "m/a/x.onnx"], ["x.onnx", "a/x.onnx"]),
        (["/r/mm/x.onnx", "/r/m/x.onnx"], ["mm/x.onnx", "m/x.onnx"]),
    ],
)
def test_paths_below_the_common_folder(paths: list[str], expected: list[str]) -> None:
    assert list(paths_below(paths).values()) == expected


@pytest.mark.slow
def test_the_step_of_the_action(folder: Path, tmp_path: Path) -> None:
    """Its last step is run as a runner does, with the inputs in the environment; the first one installs graphkit."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    install, step = action["runs"]["steps"]
    assert install["run"] == '"$PYTHON" -m pip install --quiet "$GRAPHKIT"'
    values = {name: str(given.get("default", "")) for name, given in action["inputs"].items()}
    values |= {"models": str(folder), "python": sys.executable, "sarif": "out.sarif"}
    env = {key: values[text.removeprefix("${{ inputs.").removesuffix(" }}")] for key, text in step["env"].items()}
    onnx.save(proto_of("(float[N, 4] x) => (float[M, K] y) { a = NonZero(x) y = Relu(x) }"), folder / "faulty.onnx")
    bash = shutil.which("bash")
    assert bash is not None
    words = [bash, "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    ran = subprocess.run(words, cwd=tmp_path, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    log = json.loads((tmp_path / "out.sarif").read_text())
    assert (ran.returncode, [result["ruleId"] for result in log["runs"][0]["results"]]) == (1, ["unknown-shapes"])


def test_the_hook_names_a_command_that_exists(run_report: Run, folder: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    program, command, *options = hook["entry"].split()
    assert (program, command) == ("graphkit", "report")
    assert run_report(*options, *sorted(folder.rglob("*.onnx")))[0] == 0
    assert run_report(*options, MERGED, CAUSAL)[0] == 1
