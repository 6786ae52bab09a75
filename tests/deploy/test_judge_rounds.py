"""Rounds with judges: what a compiler leaves on the CPU is rewritten, proven, and asked about again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import cast

import onnx
import pytest
from bundles import decoder, saved

from graphkit.contract import LoweredWith
from graphkit.contract.contract_files import read_contract
from graphkit.deploy import lower as lowering
from graphkit.deploy import lower_report
from graphkit.deploy.export_pipeline import find_pipeline
from graphkit.deploy.lower import lower_again, lower_folder
from graphkit.deploy.lower_report import Judgement, LowerReport
from graphkit.deploy.verify_folder import verify_folder
from graphkit.errors import UsageError
from graphkit.judges import JUDGES, Answer, Judge, PlacedNode, Trial
from graphkit.options import LowerOptions

NEGATIVE = {"y = Add (x, flat)": "minus = Neg (flat) y = Sub (x, minus)"}


@pytest.fixture
def lowered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LowerReport]:
    """Lower a decoder, asked about by a judge that leaves nodes of some operators on the CPU, or refuses "all"."""

    def lower(*refused: Collection[str], verify: bool = False) -> LowerReport:
        rounds = iter([*refused, *[refused[-1]] * lowering.ROUNDS])

        def ask(_: Judge, models: Sequence[Path], *, seconds: float, trials: Sequence[Trial]) -> Iterator[Answer]:
            assert seconds > 0
            assert len(trials) == len(models)
            left = next(rounds)
            for number, path in enumerate(models):
                nodes = onnx.load(path).graph.node
                placed = [PlacedNode(n.name, n.op_type, "cpu" if n.op_type in left else "device") for n in nodes]
                error = "no kernel" if "all" in left else ""
                yield Answer(number=number, error=error, nodes=() if error else tuple(placed), partitions=1)

        for module in (lowering, lower_report):
            monkeypatch.setattr(module, "find_judge", JUDGES.__getitem__)
        monkeypatch.setattr(lowering, "ask_judge", ask)
        saved(decoder(changes=NEGATIVE), tmp_path / "export")
        options = LowerOptions(target="webgpu", max_cache_len=8, judges=("webgpu",), verify=verify, overwrite=True)
        return lower_folder(tmp_path / "export", tmp_path / "out", options)

    return lower


@pytest.mark.slow
def test_what_a_judge_leaves_on_the_cpu_is_rewritten_and_asked_about_again(
    lowered: Callable[..., LowerReport], tmp_path: Path
) -> None:
    report = lowered(("Neg",), verify=True)
    assert report.notes[-2:] == (
        "Round 1: webgpu leaves 1 node on the CPU: Neg 1 (neg-to-mul).",
        "Round 2: webgpu leaves no node on the CPU.",
    )
    assert not report.findings()
    assert report.proof is not None
    assert report.proof.passed
    assert read_contract(tmp_path / "out" / "contract.json").options.passes == ("neg-to-mul",)
    again = verify_folder(tmp_path / "export", tmp_path / "out")
    assert again.stages == report.proof.stages


def test_a_node_that_no_pass_removes_is_named(lowered: Callable[..., LowerReport], tmp_path: Path) -> None:
    report = lowered(("Softmax", "Neg"))
    assert report.notes[-2:] == (
        "Round 1: webgpu leaves 2 nodes on the CPU: Softmax 1 (no rewrite known), Neg 1 (neg-to-mul).",
        "Round 2: webgpu leaves 1 node on the CPU: Softmax 1 (no rewrite known).",
    )
    assert report.findings() == ("step.onnx: `webgpu`: 1 of 21 nodes on the CPU: Softmax 1",)
    assert read_contract(tmp_path / "out" / "contract.json").options.passes == ("neg-to-mul",)


@pytest.mark.cases("later1")
@pytest.mark.parametrize("later", [pytest.param(("Mul", "MatMul"), marks=pytest.mark.slow), ("Softmax",), ("all",)])
def test_models_that_a_judge_takes_less_of_are_not_kept(
    later: Collection[str], lowered: Callable[..., LowerReport], tmp_path: Path
) -> None:
    report = lowered(("Neg",), later)
    assert report.notes[-1] == "That is no less, so that the models of round 1 were kept."
    assert "Neg" in {node.op_type for node in onnx.load(tmp_path / "out" / "step.onnx").graph.node}
    assert read_contract(tmp_path / "out" / "contract.json").options.passes == ()


def test_a_judge_that_leaves_nothing_is_asked_once(lowered: Callable[..., LowerReport]) -> None:
    report = lowered((), ("Neg",))
    assert not report.findings()
    assert not any("Round" in note for note in report.notes)


def settle(
    again: Callable[[frozenset[str]], frozenset[str]],
) -> tuple[frozenset[str], tuple[Judgement, ...], tuple[str, ...]]:
    """Settle with a judge on a lowering that is the names of its passes."""
    models = cast(Callable[[frozenset[str]], lowering.Models], lambda made: made)
    return lowering.settle_with_judges(frozenset[str](), again, models, ["npu"], 1.0, lambda _: None)


def test_passes_with_which_nothing_can_be_lowered_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def again(_: frozenset[str]) -> frozenset[str]:
        raise UsageError("step.onnx: convert-opset: no equal")

    found = lowering._Round((), Counter({("npu", "Neg", "neg-to-mul"): 1}))
    monkeypatch.setattr(lowering, "_ask_round", lambda *_: found)
    draft, _, notes = settle(again)
    assert (draft, notes[1:]) == (
        frozenset(),
        ("With neg-to-mul it cannot be lowered: step.onnx: convert-opset: no equal.",),
    )


def test_each_round_keeps_the_passes_of_those_before_and_takes_none_that_changes_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: list[dict[tuple[str, str, str], int]] = [
        {("npu", "Neg", "neg-to-mul"): 3, ("npu", "MatMulInteger", "dequantize"): 1},
        {("npu", "Reciprocal", "reciprocal-to-div"): 2},
        {},
    ]
    rounds = iter([lowering._Round((), Counter(each)) for each in left])
    monkeypatch.setattr(lowering, "_ask_round", lambda *_: next(rounds))
    monkeypatch.setattr(lowering, "_model_contents", lambda models: models)
    asked: list[frozenset[str]] = [frozenset()]

    def again(passes: frozenset[str]) -> frozenset[str]:
        asked.append(passes)
        return passes

    draft, _, _ = settle(again)
    assert asked[1:] == [{"neg-to-mul"}, {"neg-to-mul", "reciprocal-to-div"}]
    assert draft == asked[-1]


@pytest.mark.parametrize("name", ["os:system", "freeze-dims", "dequantize"])
def test_a_contract_names_no_pass_but_those_that_judges_ask_for(name: str, tmp_path: Path) -> None:
    saved(decoder(), tmp_path / "export")
    with pytest.raises(UsageError, match=f"'{name}' is no pass that a judge asks for"):
        lower_again(find_pipeline(tmp_path / "export"), LoweredWith(passes=("neg-to-mul", name)))
