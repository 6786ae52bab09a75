"""`graphkit report` as a gate in CI: --strict, --fail-on and --baseline."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphkit.analysis.findings import KIND_NAMES
from graphkit.analysis.report import Report, ReportOptions, report
from graphkit.analysis.report_gate import read_baseline
from graphkit.cli import main
from graphkit.errors import UsageError
from graphkit.model import load

MERGED, CAUSAL = "example:merged-decoder", "example:causal-attention"
VERDICT = ("--only", "verdict")
Run = Callable[..., tuple[object, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def call(*arguments: object) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["graphkit", "report", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        return (stop.value.code, *capsys.readouterr())

    return call


def saved(path: Path, body: str, dims: str = "N, 4") -> Path:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[{dims}] x) => (y) {{ {body} }}'
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def test_strict_fails_on_faults_and_not_on_notes(run: Run) -> None:
    code, _, err = run(MERGED, *VERDICT, "--strict")
    assert code == 1
    assert [line.split(": ")[0] for line in err.splitlines()] == ["Finding"] * 3
    assert run(CAUSAL, "--strict")[::2] == (0, "")


@pytest.mark.cases("merged-if, kv-cache-2", "zero-length-kv-1")
@pytest.mark.parametrize(
    ("kinds", "count"),
    [("merged-if", 1), ("zero-length-kv", 1), ("merged-if, kv-cache", 2), ("hazards", 2), ("fit,never-runs", 0)],
)
def test_fail_on_takes_kinds_and_sections(run: Run, kinds: str, count: int) -> None:
    code, _, err = run(MERGED, *VERDICT, "--fail-on", kinds)
    assert (code, len(err.splitlines())) == (int(count > 0), count)


def test_fail_on_shows_the_section_that_it_needs(run: Run) -> None:
    code, out, _ = run(CAUSAL, "--only", "architecture", "--fail-on", "float16")
    assert code == 0
    assert "Float16" in out
    assert run(MERGED, "--only", "architecture", "--fail-on", "float16")[0] == 1


def test_fail_on_what_is_no_kind(run: Run) -> None:
    assert run(CAUSAL, "--fail-on", "weather") == (
        2,
        "",
        f"Error: --fail-on weather: no such kind of finding - choose from {', '.join(KIND_NAMES)}\n",
    )


def test_models_that_do_not_fit(run: Run, model_file: Callable[[str], Path]) -> None:
    files = [model_file(f"merged-decoder/{name}") for name in ("decoder_with_past_model",)]
    other = model_file("marian-tiny/encoder_model")
    code, _, err = run(*files, other, *VERDICT, "--fail-on", "fit")
    assert code == 1
    assert err.startswith("Finding: ")


def baseline(run: Run, path: Path, *models: object, options: tuple[object, ...] = VERDICT) -> Path:
    assert run(*models, *options, "-o", path)[::2] == (0, "")
    return path


def test_nothing_is_worse_than_before(run: Run, tmp_path: Path) -> None:
    for model in (MERGED, CAUSAL):
        written = baseline(run, tmp_path / "base.json", model)
        code, out, err = run(model, *VERDICT, "--baseline", written)
        assert (code, err, out.splitlines()[-1]) == (0, "", f"Nothing is worse than in {written}.")


def test_a_baseline_is_that_of_a_file_wherever_it_lies(run: Run, tmp_path: Path) -> None:
    before = saved(tmp_path / "before.onnx", "s = Shape(x) y = Reshape(x, s)")
    (tmp_path / "elsewhere").mkdir()
    after = saved(tmp_path / "elsewhere" / "after.onnx", 'z = Relu(x) ["t"] s = Shape(z) y = Reshape(z, s)')
    written = baseline(run, tmp_path / "base.json", before)
    code, _, err = run(after, "--baseline", written)
    assert (code, err.splitlines()) == (
        1,
        [
            f"Grown: {after}: nodes: from 2 to 3",
            f"Grown: {after}: bytes: from {before.stat().st_size} to {after.stat().st_size}",
        ],
    )


def test_findings_that_are_new_or_have_grown(run: Run, tmp_path: Path) -> None:
    before = saved(tmp_path / "m.onnx", "a = NonZero(x) y = Relu(a)")
    written = baseline(run, tmp_path / "base.json", before)
    after = saved(tmp_path / "m.onnx", "a = NonZero(x) b = Relu(a) c = Relu(b) y = Unique(c)")
    code, _, err = run(after, "--baseline", written)
    lines = [line for line in err.splitlines() if ": nodes: " not in line and ": bytes: " not in line]
    assert code == 1
    assert lines[0] == (
        f"Grown: {after}: shapes not known before a run, 3 tensors behind NonZero 'NonZero#0': from 2 to 3"
    )
    assert lines[1].startswith(f"New: {after}: 1 tensor of unknown shape from 'y' on: ")


def test_node_names_do_not_matter(run: Run, tmp_path: Path) -> None:
    before = saved(tmp_path / "m.onnx", '["one"] a = NonZero(x) ["two"] y = Relu(a)')
    written = baseline(run, tmp_path / "base.json", before)
    saved(tmp_path / "m.onnx", '["n_7"] b = NonZero(x) ["n_8"] y = Relu(b)')
    assert run(before, "--baseline", written)[::2] == (0, "")


def test_models_of_a_folder_are_found_by_name(run: Run, tmp_path: Path) -> None:
    written = baseline(run, tmp_path / "base.json", MERGED, CAUSAL)
    assert run(CAUSAL, MERGED, *VERDICT, "--baseline", written)[::2] == (0, "")


def test_models_of_one_name_are_found_by_their_folders(run: Run, tmp_path: Path) -> None:
    bodies = {"encoder": "y = Relu(x)", "decoder": "s = Shape(x) y = Reshape(x, s)"}
    for build, name in itertools.product(("old", "new"), bodies):
        (tmp_path / build / name).mkdir(parents=True)
        saved(tmp_path / build / name / "model.onnx", bodies[name])
    written = baseline(run, tmp_path / "base.json", *(tmp_path / "old" / name / "model.onnx" for name in bodies))
    again = [tmp_path / "new" / name / "model.onnx" for name in reversed(bodies)]
    assert run(*again, *VERDICT, "--baseline", written)[::2] == (0, "")
    saved(again[1], "a = Relu(x) y = Relu(a)")
    code, _, err = run(*again, *VERDICT, "--baseline", written)
    assert (code, err.splitlines()[0]) == (1, f"Grown: {again[1]}: nodes: from 1 to 2")


def test_a_model_that_is_reported_on_twice(run: Run, tmp_path: Path) -> None:
    written = baseline(run, tmp_path / "base.json", CAUSAL, CAUSAL)
    assert run(CAUSAL, CAUSAL, *VERDICT, "--baseline", written)[::2] == (0, "")


@pytest.mark.parametrize("option", ["-o base.json", "--lock graphkit.lock"])
def test_a_model_that_is_new_fails_with_its_name_and_how_to_accept_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m").mkdir()
    saved(Path("m/one.onnx"), "y = Relu(x)")
    assert run("m", *VERDICT, *option.split())[0] == 0
    saved(Path("m/two.onnx"), "s = Shape(x) y = Reshape(x, s)", "N, 4, 2")
    code, _, err = run("m", *VERDICT, "--baseline", option.split()[1])
    path = Path("m") / "two.onnx"
    assert (code, err) == (1, f"New model: {path}\nAccept it with: graphkit report m --only verdict {option}\n")
    assert run("m", *VERDICT, *option.split())[0] == 0  # the line, which replaces the baseline
    assert run("m", *VERDICT, "--baseline", option.split()[1])[::2] == (0, "")


def test_models_that_are_gone_or_changed_role_do_not_hide_the_others(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("m", "m/sub"):
        Path(folder).mkdir()
    for name in ("m/a", "m/b", "m/sub/c"):
        saved(Path(f"{name}.onnx"), "y = Relu(x)")
    assert run("m", "-r", *VERDICT, "--lock", "lock")[0] == 0
    Path("m/b.onnx").rename("m/one.onnx")
    Path("m/sub/c.onnx").unlink()
    saved(Path("m/a.onnx"), "z = Relu(x) y = Relu(z)")
    code, _, err = run("m", "-r", *VERDICT, "--baseline", "lock")
    accept = "Accept it with: graphkit report m -r --only verdict --lock lock"
    new, changed = Path("m") / "one.onnx", Path("m") / "a.onnx"
    first = [f"New model: {new}", "Gone: b.onnx, which lock has", "Gone: sub/c.onnx, which lock has"]
    assert (code, err.splitlines()[:4], err.splitlines()[-1]) == (
        1,
        [*first, f"Grown: {changed}: nodes: from 1 to 2"],
        accept,
    )
    new.write_bytes(b"broken")  # what cannot be read is an error, and not gone as well
    code, _, err = run("m", "-r", *VERDICT, "--baseline", "lock")
    assert (code, [line.split(":")[0] for line in err.splitlines()]) == (
        2,
        ["Error", "Gone", "Gone", "Grown", "Grown", "Accept it with"],
    )
    plain = json.loads(Path("lock").read_text())
    for model in plain["models"]:
        model["role"] = "vision"
    Path("lock").write_text(json.dumps(plain))
    code, _, err = run("m/a.onnx", *VERDICT, "--baseline", "lock")
    assert (code, err.splitlines()[-2].split(" from ")[0]) == (1, f"Other role: {changed}:")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


def places(plain: Any) -> list[tuple[Any, Any]]:
    """Return each container in a JSON value with each of its keys."""
    keys = list(plain) if isinstance(plain, dict) else range(len(plain)) if isinstance(plain, list) else ()
    return [pair for key in keys for pair in ((plain, key), *places(plain[key]))]


@given(data=st.data())
@settings(max_examples=120)
def test_any_value_in_a_baseline_is_taken_or_one_error(
    made: tuple[Report, str], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    report, text = made
    plain = json.loads(text)
    container, key = data.draw(st.sampled_from(places(plain)))
    if data.draw(st.booleans()):
        del container[key]
    else:
        container[key] = data.draw(JSON)
    path = tmp_path_factory.getbasetemp() / "baseline.json"
    path.write_text(json.dumps(plain))
    with contextlib.suppress(UsageError):
        assert all("\n" not in line for line in read_baseline(path).regressions(report))


@pytest.fixture(scope="module")
def made() -> tuple[Report, str]:
    found = report(load(CAUSAL), ReportOptions(only=("verdict",)))
    return found, found.to_json()


def without_verdict(plain: Any) -> None:
    plain["models"][0]["sections"] = {}


def of_version_2(plain: Any) -> None:
    plain["schema"] = "report/2"


def without_hazards(plain: Any) -> None:
    plain["models"][0]["sections"]["verdict"]["sections"].remove("hazards")


def for_a_target(plain: Any) -> None:
    plain["models"][0]["sections"]["verdict"]["target"] = "mt8371"


def with_a_count_in_words(plain: Any) -> None:
    plain["findings"][0]["count"] = "many"


def with_nodes_in_words(plain: Any) -> None:
    plain["models"][0]["sections"]["verdict"]["nodes"] = "many"


def without_a_target(plain: Any) -> None:
    del plain["models"][0]["sections"]["verdict"]["target"]


def with_odd_findings(plain: Any) -> None:
    plain["findings"] = [1]


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (without_verdict, "it has no verdict, or is no whole report - write it with `graphkit report MODEL -o"),
        (of_version_2, "it is no report of the version report/1, but 'report/2' - write it with"),
        (without_hazards, "it was written without hazards - write it with the same options"),
        (for_a_target, "it is for mt8371, and this report for none - write it with the same options"),
        (with_a_count_in_words, "it has no verdict, or is no whole report"),
        (with_nodes_in_words, "it has no verdict, or is no whole report"),
        (without_a_target, "it has no verdict, or is no whole report"),
        (with_odd_findings, "it has no verdict, or is no whole report"),
        (lambda plain: plain.clear(), "it is no report of the version report/1, but None"),
    ],
)
def test_a_bad_baseline(run: Run, tmp_path: Path, spoil: Callable[[Any], None], says: str) -> None:
    written = baseline(run, tmp_path / "base.json", CAUSAL)
    plain = json.loads(written.read_text())
    spoil(plain)
    written.write_text(json.dumps(plain))
    code, _, err = run(CAUSAL, *VERDICT, "--baseline", written)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"Error: {written}: {says}")


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '"x"', "[" * 100_000])
def test_a_baseline_that_is_no_report(run: Run, tmp_path: Path, text: str) -> None:
    written = tmp_path / "base.json"
    written.write_text(text)
    code, out, err = run(CAUSAL, "--baseline", written)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_a_baseline_that_is_not_there(run: Run, tmp_path: Path) -> None:
    code, out, err = run(CAUSAL, "--baseline", tmp_path / "base.json")
    assert (code, out) == (2, "")
    assert err.startswith(f"Error: {tmp_path / 'base.json'}: it cannot be read as a baseline: ")
