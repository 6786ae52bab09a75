"""Compilers of open source are asked: `make judge-test` installs them, and runs these tests.

Each takes small exports, lowered for its target, as a whole; places nodes where the target's file says; and those that
run models give the tokens of the originals.
"""

from __future__ import annotations

import lzma
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import onnx.parser
import pytest
from placement import predictions
from real_models import MODELS as REAL
from real_models import unpacked

from graphkit.analysis.node_placement import number_nodes
from graphkit.deploy.lower import LowerOptions, lower_folder
from graphkit.judges import JUDGES, SWIFTSHADER, Answer, Judge, ask_judge, judge_environment
from graphkit.judges.measure import MEASURED
from graphkit.model import Model
from graphkit.passes.fold_pipeline import fold
from graphkit.targets import load_target

TARGETS = ("webgpu", "openvino", "ethos-u65")
MODELS = ("qwen2-tiny", "t5-tiny")
SIZES = LowerOptions(src_len=6, max_cache_len=5, verify=False, overwrite=True)
SECONDS = 300.0
EXPORTS = {
    "bert-fill-mask/model": {"batch_size": 1, "sequence_length": 6},
    "patchtst/model": {"batch_size": 1, "sequence_length": 32},
    "qwen2-tiny/model": {"batch_size": 1, "sequence_length": 6, "past_sequence_length": 3},
    "t5-tiny/encoder_model": {"batch_size": 1, "encoder_sequence_length": 6},
}
# of which Vela leaves nodes to the CPU; of the exports its converters take none
MIXED = """<ir_version: 8, opset_import: ["" : 17]> g (float[1, 4, 8] x, float[1, 4, 8] z)
    => (float[1, 4, 8] y, float[1, 4, 8] w) { sum = Add (x, z) y = Relu (sum) low = Cos (x) w = Mul (low, z) }"""

NO_DEVICE = "the provider finds no device on this machine"


class Lowered(NamedTuple):
    """An export, and what it was lowered to."""

    source: Path
    output: Path

    @property
    def models(self) -> list[Path]:
        return sorted(self.output.glob("*.onnx"))


@cache
def is_there(name: str) -> str:
    """Return why a judge cannot be asked here, "" where it can; it fails where that is our fault."""
    judge = JUDGES[name]
    if not judge.version:
        return f"{name} is not installed - run: make judge-test"
    if name == "webgpu" and not (SWIFTSHADER / "vk_swiftshader_icd.json").exists():
        return f"no software adapter for WebGPU in {SWIFTSHADER} - apt-get install chromium libvulkan1"
    if name == "openvino":  # which takes processors of Intel alone
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "mixed.onnx"
            path.write_bytes(onnx.parser.parse_model(MIXED).SerializeToString())
            (answer,) = ask_judge(judge, [path], seconds=SECONDS)
        return f"{name}: {answer.error}" if NO_DEVICE in answer.error else ""
    return ""


def judge_of(target: str) -> Judge:
    judge = JUDGES[MEASURED[target].judge]
    if why := is_there(judge.name):
        pytest.skip(why)
    return judge


def ask(target: str, models: list[Path], device: str = "") -> list[Answer]:
    return list(ask_judge(judge_of(target), models, seconds=SECONDS, as_it_is=True, device=device))


@pytest.fixture(scope="module")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Lowered]:
    """Lower an export for a target, once."""

    @cache
    def lower(name: str, target: str) -> Lowered:
        folder = tmp_path_factory.mktemp(f"{name}-{target}")
        source = unpacked(name, folder / name)
        lower_folder(source, folder / "out", replace(SIZES, target=target))
        return Lowered(source, folder / "out")

    return lower


@pytest.mark.parametrize(
    ("target", "name"), [*((target, name) for target in TARGETS[:2] for name in MODELS), ("ethos-u65", "t5-tiny")]
)
def test_lowered_models_go_whole_and_where_the_target_says(
    target: str, name: str, lowered: Callable[[str, str], Lowered]
) -> None:
    judge_of(target)
    models = lowered(name, target).models
    for path, answer in zip(models, ask(target, models), strict=True):
        assert answer.fault == ""
        assert answer.partitions == (None if target == "webgpu" else 1)
        assert {said for _, _, said in predictions(path, load_target(target))} == {"device"}


def exports(folder: Path, target: str) -> list[Path]:
    """Return models of fixed dims that nobody lowered; of the exports Vela's converters take none."""
    if target.startswith("ethos"):
        models = [Model.from_proto(onnx.parser.parse_model(MIXED))]
    else:
        models = []
        for name, dims in EXPORTS.items():
            path = folder / name.replace("/", "-")
            path.write_bytes(lzma.decompress((REAL / f"{name}.onnx.xz").read_bytes()))
            models.append(fold(path, dims=dims).model)
    paths = [folder / f"{index}.onnx" for index in range(len(models))]
    for path, model in zip(paths, models, strict=True):
        number_nodes(model).save(path)
    return paths


@pytest.mark.parametrize("target", TARGETS)
def test_nodes_of_exports_go_where_the_target_says(target: str, tmp_path: Path) -> None:
    judge_of(target)
    paths, facts = exports(tmp_path, target), load_target(target)
    places = set[str]()
    for path, answer in zip(paths, ask(target, paths, MEASURED[target].device), strict=True):
        assert not answer.error
        said = {name: place for name, _, place in predictions(path, facts) if name in answer.places}
        assert said == {name: place for name, place in answer.places.items() if name in said}
        places |= set(said.values())
    assert places == ({"device"} if target == "openvino" else {"device", "cpu"})


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("target", ["webgpu", "openvino"])
def test_lowered_models_give_the_tokens_of_the_originals_there(
    target: str, name: str, lowered: Callable[[str, str], Lowered], tmp_path: Path
) -> None:
    judge = judge_of(target)
    (site,) = judge.folder.glob("lib/python3*/site-packages")
    for path in site.glob("onnxruntime_ep_*"):  # the plug-in alone, for the onnxruntime that is here
        (tmp_path / path.name).symlink_to(path)
    search = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    source, output = lowered(name, target)
    words = [sys.executable, "-m", "graphkit", "verify", str(source), str(output), "--provider", target]
    ran = subprocess.run(
        words, env=judge_environment() | {"PYTHONPATH": search}, capture_output=True, check=False, encoding="utf-8"
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert f"what the originals give on {target}" in " ".join(ran.stdout.split())
