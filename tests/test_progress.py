"""Progress says which share of the work is done, whatever parts the work has, and never goes back on a terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from bundles import decoder, saved

import graphkit
from graphkit.deploy.make_bundle import BundleOptions, bundle_folder
from graphkit.options import LowerOptions
from graphkit.progress import portion_of, share_of, with_share
from graphkit.verify.proof_engine import tell_each


def shares_of(work: Callable[[Callable[[str], None]], object]) -> list[float]:
    """Return the shares that some work tells."""
    steps: list[str] = []
    work(steps.append)
    return [share for step in steps if (share := share_of(step)) is not None]


def test_the_share_of_a_portion_is_one_of_the_whole() -> None:
    told: list[str] = []
    inner = portion_of(portion_of(told.append, 0.5, 1.0), 0.5, 1.0)
    inner(with_share(0.5, "half"))
    inner("no share")
    assert told == ["half", "no share"]
    assert [share_of(step) for step in told] == [0.875, None]


def test_items_of_more_work_have_a_larger_share() -> None:
    told: list[str] = []
    assert [*tell_each([1, 3], "counting", told.append, work=float)] == [1, 3]
    assert told == ["counting: run 1 of 2", "counting: run 2 of 2"]
    assert [share_of(step) for step in told] == [0.0, 0.25]


MODEL = "example:causal-attention"
SLOTS = BundleOptions(max_cache=8)
FUSED = graphkit.FoldOptions(fuse=True)
Work = Callable[[str, Path, Callable[[str], None]], object]
WORK: dict[str, tuple[str, Work]] = {
    "fold": (MODEL, lambda source, out, told: graphkit.fold_file(source, out, progress=told)),
    "fuse": (
        MODEL,
        lambda source, out, told: graphkit.fold_file(source, out, FUSED, progress=told),
    ),
    "split": ("example:merged-decoder", lambda source, out, told: graphkit.split_file(source, out, progress=told)),
    "lower": (
        "export",
        lambda source, out, told: graphkit.lower_folder(source, out, LowerOptions(max_cache_len=8), progress=told),
    ),
}


@pytest.mark.cases("fold", "lower")
@pytest.mark.parametrize("name", WORK)
def test_the_shares_of_a_workflow_grow_from_its_beginning_to_its_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(decoder("causal"), Path("export"))
    source, work = WORK[name]
    check_shares(shares_of(lambda told: work(source, Path("out"), told)), is_sorted=name != "split")


def check_shares(shares: list[float], *, is_sorted: bool = True) -> None:
    """Check that shares grow: those of a split need not, whose models take turns in each part."""
    assert shares[0] <= 0.35
    assert shares[-1] >= 0.75
    assert all(0 <= share <= 1 for share in shares)
    if is_sorted:
        assert shares == sorted(shares)


def test_each_check_of_a_bundle_is_a_step_with_a_share_of_its_own_and_shares_grow(tmp_path: Path) -> None:
    steps: list[str] = []
    report = bundle_folder(
        saved(decoder("causal"), tmp_path / "export"), tmp_path / "out", SLOTS, progress=steps.append
    )
    assert report.proof is not None
    check_shares([share for step in steps if (share := share_of(step)) is not None])
    shares = {share_of(step) for step in steps if step.startswith("checking: ")}
    assert len(shares) == len(report.proof.checks) - 1  # that of the weights reads files, before the others
