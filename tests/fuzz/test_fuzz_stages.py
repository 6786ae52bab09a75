"""A few changed models for each stage, the same ones each time; `fuzz_stages.py` tries as many as you like."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import onnx
import pytest
from mutators import MUTATORS, Mutator, mutate
from real_models import params
from seeds import deployed, small
from stages import STAGES, attempt

COUNT = 5
SECONDS = 60  # real ones for all models of a stage, which take about one
DEPLOYING = ("lower", "bundle")
KINDS = ("split", "dequantize", "lower", "fold")  # a stage of each list of models to change
SCRIPT = Path(__file__).parent / "fuzz_stages.py"
BASES = small()


@pytest.fixture
def _time_limit() -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError("it hangs")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)


@pytest.mark.usefixtures("_time_limit")
@pytest.mark.parametrize("stage", params(STAGES, slow=["diff"]))
def test_no_changed_model_breaks_a_stage(stage: str, tmp_path: Path) -> None:
    bases = deployed(real=False) if stage in DEPLOYING else BASES[-1:] if stage == "split" else BASES
    for seed in range(COUNT):
        attempt(stage, seed, bases, tmp_path)


@pytest.mark.slow
def test_the_script_finds_its_models_wherever_it_is_run(tmp_path: Path) -> None:
    stages = [word for stage in KINDS for word in ("--stage", stage)]
    ran = subprocess.run(
        [sys.executable, SCRIPT, *stages, "--count", "1"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.stdout.splitlines() == [f"{stage}: 1 models, 0 findings" for stage in KINDS]


def test_a_seed_is_a_model() -> None:
    for seed in range(20):
        first, second = (mutate(random.Random(seed), BASES[0]).SerializeToString(deterministic=True) for _ in range(2))
        assert first == second


@pytest.mark.parametrize("mutator", MUTATORS, ids=lambda mutator: mutator.__name__)
def test_every_mutator_changes_something(mutator: Mutator) -> None:
    for seed in range(200):
        rng = random.Random(seed)
        base, changed = rng.choice(BASES), onnx.ModelProto()
        changed.CopyFrom(base)
        mutator(rng, changed)
        if changed != base:
            return
    pytest.fail("it changes nothing")
