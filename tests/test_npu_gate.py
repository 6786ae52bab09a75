"""How `make npu-gate` judges what the compilers say; the compilers themselves are not asked here."""

from __future__ import annotations

import sys
from pathlib import Path

import gate
import numpy as np
import pytest
from cases import Case
from gate import Bounds, Row, compared, difference, losses, refusals, verdict
from tools import Ended, Tools, judged

from graphkit.targets import load_target

VELA = "Accelerator configuration               Ethos_U65_256\nCPU operators = {} (2.3%)\nNPU operators = 524 (97.7%)\n"


@pytest.mark.parametrize(
    ("ended", "operators", "failure"),
    [
        (Ended("", VELA.format(0)), {"ethos-u": 1}, ""),
        (Ended("", VELA.format(12)), {"ethos-u": 2, "GATHER": 1}, "12 CPU operators: GATHER 1"),
        (Ended("", VELA.format("1,200")), {"ethos-u": 2}, "1200 CPU operators: "),
        (Ended("", VELA.format(0)), {"ethos-u": 1, "CAST": 2}, "0 CPU operators: CAST 2"),
        (Ended("", VELA.format(0)), {}, "0 CPU operators: "),  # it wrote nothing
        (Ended("", "done"), {"ethos-u": 1}, "Vela does not say `CPU operators =`"),
        (Ended("vela: SIGSEGV: ", VELA.format(0)), {"ethos-u": 1}, "vela: SIGSEGV: "),
    ],
)
def test_vela_passes_a_model_that_the_npu_runs_alone(ended: Ended, operators: dict[str, int], failure: str) -> None:
    assert judged(ended, operators).failure == failure


def test_a_compiler_that_crashes_fails(tmp_path: Path) -> None:
    (tmp_path / "vela").write_text(
        f"#!{sys.executable}\nimport os\nprint('CPU operators = 0', flush=True)\nos.abort()\n"
    )
    (tmp_path / "vela").chmod(0o755)
    found = Tools(tmp_path).vela(tmp_path / "m.tflite", "ethos-u85-256", tmp_path)
    assert found.failure == "vela: SIGABRT: CPU operators = 0"


def test_targets_refuse_operators_and_ranks() -> None:
    told = {"operators": {"ADD": 3, "GATHER": 1, "SELECT_V2": 2}, "rank": 5, "dtypes": ["float32"]}
    assert list(refusals(load_target("mediatek-litert"), told)) == ["GATHER 1", "SELECT_V2 2", "rank 5"]
    assert list(refusals(load_target("mt8371"), told)) == ["rank 5"]
    assert list(refusals(load_target("mediatek-litert"), {**told, "operators": {"ADD": 3}, "rank": 4})) == []


def test_outputs_are_compared_in_the_order_of_the_model(tmp_path: Path) -> None:
    logits, key = np.array([[1.0, 9.0, 2.0]], np.float32), np.ones((1, 2), np.float32)
    case = Case("step", tmp_path / "step.onnx", scores=0, outputs=[{"logits": logits, "key": key}] * 2)
    np.savez(tmp_path / "same.npz", output_0=np.stack([logits] * 2), output_1=np.stack([key] * 2))
    assert compared(case, tmp_path / "same.npz") == (0.0, 1.0, pytest.approx(1.0))
    np.savez(
        tmp_path / "other.npz",
        output_0=np.stack([logits, logits[:, ::-1].copy()[:, [1, 0, 2]]]),
        output_1=np.stack([key] * 2),
    )
    worst, share, cosine = compared(case, tmp_path / "other.npz")
    assert worst > 0.1
    assert share == 0.5
    assert cosine < 0.99


def test_nan_is_no_agreement() -> None:
    assert not difference(np.array([np.nan]), np.array([1.0])) <= 1e-4
    assert difference(np.zeros(2), np.zeros(3)) == float("inf")


def test_the_gate_is_open_when_the_control_passes(capsys: pytest.CaptureFixture[str]) -> None:
    lowered, control = Case("step", Path("a")), Case("frozen", Path("b"), is_control=True)
    broken = ("12 CPU operators",)
    assert verdict([lowered, control], [Row("step"), Row("frozen", failures=broken)]) == 0
    assert verdict([lowered, control], [Row("step"), Row("frozen")]) == 1
    assert verdict([lowered, control], [Row("step", failures=broken), Row("frozen", failures=broken)]) == 1
    assert (gate.PLACEMENT, gate.QUALITY) == (1, 3)
    assert "must fail, or the gate is open" in capsys.readouterr().out


def test_quality_is_another_answer_than_placement(capsys: pytest.CaptureFixture[str]) -> None:
    lowered, control = Case("step", Path("a")), Case("frozen", Path("b"), is_control=True)
    broken, lossy = ("12 CPU operators",), ("int8 keeps 0.25 of the tokens, below 0.8",)
    controls = Row("frozen", failures=broken)
    assert verdict([lowered, control], [Row("step", int8="0.84", quality=lossy), controls]) == gate.QUALITY
    told = capsys.readouterr().out
    assert "| step |  | 0.84 |  |  |  | passes | fails |\n| frozen |  |  |  |  |  | fails |  |" in told
    assert "step: int8 keeps 0.25 of the tokens, below 0.8" in told
    assert verdict([lowered, control], [Row("step", failures=broken, quality=lossy), controls]) == gate.PLACEMENT
    assert verdict([lowered], [Row("step", int8="0.999")]) == 0
    assert "| step |  | 0.999 |  |  |  | passes | passes |" in capsys.readouterr().out
    assert verdict([lowered], [Row("step", failures=broken)]) == gate.PLACEMENT
    assert "| fails | not measured |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("cosine", "tokens", "expected"),
    [
        (0.84, 0.25, ["int8 keeps a cosine of 0.8400, below 0.99", "int8 keeps 0.25 of the tokens, below 0.8"]),
        (0.99, 0.8, []),
        (0.999, None, []),
        (0.5, None, ["int8 keeps a cosine of 0.5000, below 0.99"]),
        (float("nan"), 1.0, ["int8 keeps a cosine of nan, below 0.99"]),
    ],
)
def test_bounds_of_quality(cosine: float, tokens: float | None, expected: list[str]) -> None:
    assert list(Bounds().failures(cosine, tokens)) == expected


def test_what_int8_loses_is_measured_on_its_outputs(tmp_path: Path) -> None:
    wanted = np.eye(4, dtype=np.float32)
    case = Case("step", tmp_path / "step.onnx", scores=0, outputs=[{"logits": row[None]} for row in wanted])
    assert list(losses(case, tmp_path, Bounds())) == []  # int8 did not run, which is told elsewhere
    np.savez(tmp_path / "int8.npz", output_0=np.roll(wanted, 1, axis=1)[:, None])
    assert list(losses(case, tmp_path, Bounds())) == [
        "int8 keeps a cosine of 0.0000, below 0.99", "int8 keeps 0.00 of the tokens, below 0.8"
    ]  # fmt: skip
    case.is_control = True
    assert list(losses(case, tmp_path, Bounds())) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sources", "3"], "3 sources are too few to calibrate on - give at least 16"),
        (["--least-tokens", "80"], "80 is no share - give a number from 0 to 1"),
    ],
)
def test_too_few_sources_and_bounds_that_are_none_are_refused(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gate.py", "--tools", "nowhere", *words])
    with pytest.raises(SystemExit) as ended:
        gate.main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_what_vela_made_is_told_in_words() -> None:
    assert judged(Ended("", VELA.format(0)), {"ethos-u": 1}).told() == "0 on the CPU, 1 ethos-u"
    assert judged(Ended("", VELA.format(12)), {"GATHER": 1}).told() == "12 CPU operators: GATHER 1"
