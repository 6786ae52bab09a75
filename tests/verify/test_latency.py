"""Latency before and after a rewrite: both run in turns; where they cannot, the report says why."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

from graphkit.analysis.cost_changes import BeforeAndAfter
from graphkit.model import load
from graphkit.runtime.session import IsolatedSession
from graphkit.shapes import DimSpec
from graphkit.verify import latency
from graphkit.verify.latency import costs_before_and_after

HEAD = '<ir_version: 10, opset_import: ["" : 21, "own" : 1]>'
TEXT = "g (float[n, 16] x, float[16, 8] w) => (float[m, 8] y) { a = Relu (x) y = MatMul (a, w) }"


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "ROUNDS", 3)
    monkeypatch.setattr(latency, "UNCOUNTED", 1)


def saved(path: Path, text: str = TEXT) -> Path:
    onnx.save(onnx.parser.parse_model(f"{HEAD} {text}"), path)
    return path


def test_both_run_in_turns_on_the_same_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    run = IsolatedSession.run

    def noted(self: IsolatedSession, feed: dict[str, object]) -> object:
        runs.append((Path(self.label).name, feed["x"]))
        return run(self, feed)  # type: ignore[arg-type]

    monkeypatch.setattr(IsolatedSession, "run", noted)
    models = [load(saved(tmp_path / name)) for name in ("a.onnx", "b.onnx")]
    change = costs_before_and_after(BeforeAndAfter(models[:1], models[1], DimSpec.of({"n": 5})), timed=True)
    assert change.latency is not None
    assert (change.latency.rounds, change.latency.threads, change.untimed) == (3, 1, "")
    assert 0 < change.latency.low <= change.latency.ratio <= change.latency.high
    assert min(change.latency.before_ms, change.latency.after_ms) > 0
    assert [name for name, _ in runs] == ["a.onnx", "b.onnx"] * 4
    assert all(feed is runs[0][1] for _, feed in runs)
    assert runs[0][1].shape == (5, 16)


def test_nothing_runs_unless_it_is_asked_for(tmp_path: Path) -> None:
    model = load(saved(tmp_path / "a.onnx"))
    change = costs_before_and_after(BeforeAndAfter([model], model))
    assert (change.latency, change.untimed, change.before is None) == (None, "", False)


def test_a_model_that_onnxruntime_does_not_know(tmp_path: Path) -> None:
    text = "g (float[n, 16] x) => (float[n, 16] y) { y = own.Secret (x) }"
    models = [load(saved(tmp_path / name, text)) for name in ("a.onnx", "b.onnx")]
    change = costs_before_and_after(BeforeAndAfter(models[:1], models[1]), timed=True)
    assert change.latency is None
    assert "onnxruntime does not load it" in change.untimed
    assert change.before is not None


def test_an_original_that_was_replaced(tmp_path: Path) -> None:
    model = load(saved(tmp_path / "a.onnx"))
    change = costs_before_and_after(BeforeAndAfter([model], load(tmp_path / "a.onnx")), timed=True)
    assert change.untimed.endswith("a.onnx: it has replaced the original - name another file to write")


def test_the_time_ends_the_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "SECONDS", 0)
    monkeypatch.setattr(latency, "FEWEST", 2)
    models = [load(saved(tmp_path / name)) for name in ("a.onnx", "b.onnx")]
    change = costs_before_and_after(BeforeAndAfter(models[:1], models[1]), timed=True)
    assert change.latency is not None
    assert change.latency.rounds == 2


def test_a_merged_decoder_runs_the_branch_of_its_sizes() -> None:
    model = load("example:merged-decoder")
    for past in (0, 8):
        spec = DimSpec.of({"past_decoder_sequence_length": past})
        ((sized,), _) = BeforeAndAfter([model], model, spec).choose_sizes()
        feed = latency._timed_feed(model, sized)
        assert bool(feed["use_cache_branch"].all()) == (past > 0)


def test_both_run_on_the_provider_that_is_asked_for(tmp_path: Path) -> None:
    models = [load(saved(tmp_path / name)) for name in ("a.onnx", "b.onnx")]
    change = costs_before_and_after(BeforeAndAfter(models[:1], models[1]), timed=True, provider="cuda")
    assert change.latency is None
    assert change.untimed.startswith("provider 'cuda' is not installed")
    assert costs_before_and_after(BeforeAndAfter(models[:1], models[1]), timed=True).latency is not None
