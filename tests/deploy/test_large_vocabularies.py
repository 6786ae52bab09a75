"""Workflows on models whose vocabulary and positions have the size that people's models have."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
import psutil
import pytest
from bundles import decoder, saved
from large_models import completed, export_of

from graphkit.contract.host_contract import Generation
from graphkit.deploy.lower import lower_folder
from graphkit.deploy.make_bundle import BundleOptions, bundle_folder
from graphkit.deploy.verify_folder import verify_folder
from graphkit.hosts.bundle_host import Bundle
from graphkit.hosts.numpy_host import Host
from graphkit.options import LowerOptions, Update
from graphkit.progress import HAS_MEMORY_LIMIT

Run = Callable[..., tuple[object, str, str]]
ExportOf = Callable[[str, int, int], Path]
IDS = [7, 19, 3, 61, 30]
NEW = 8  # tokens
MOST_MEMORY = 4e9


@pytest.fixture(scope="module")
def enlarged(tmp_path_factory: pytest.TempPathFactory) -> ExportOf:
    """Write an export of tests/models with so many words and positions, once."""
    folder = tmp_path_factory.mktemp("large")
    return cache(
        lambda name, words, positions: export_of(name, folder / f"{name}-{words}-{positions}", words, positions)
    )


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def greedy(export: Path, count: int, ids: list[int]) -> list[int]:
    """Return the tokens that an export chooses, each from all tokens before it, without a cache."""
    feed: dict[str, np.ndarray] = {}
    tokens, is_seq2seq = list(ids), (export / "encoder_model.onnx").exists()
    if is_seq2seq:
        encoder = session(export / "encoder_model.onnx")
        source = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64), **sound(export)}
        (feed["encoder_hidden_states"],) = encoder.run(
            None, {port.name: source[port.name] for port in encoder.get_inputs()}
        )
        feed["encoder_attention_mask"] = np.ones(feed["encoder_hidden_states"].shape[:2], np.int64)
        tokens = [0]
    model = session(next(path for path in sorted(export.glob("*.onnx")) if path.name != "encoder_model.onnx"))
    for _ in range(count):
        known = {
            **feed,
            "input_ids": np.array([tokens]),
            "attention_mask": np.ones((1, len(tokens)), np.int64),
            "position_ids": np.arange(len(tokens))[None],
            "use_cache_branch": np.array([False]),
        }
        for port in model.get_inputs():
            if port.name.startswith("past"):
                sizes = [size if isinstance(size, int) else int("batch" in size) for size in port.shape]
                known[port.name] = np.zeros(sizes, np.float32)
        logits = model.run(["logits"], {port.name: known[port.name] for port in model.get_inputs()})[0]
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[-count:]


def sound(export: Path) -> dict[str, np.ndarray]:
    """Return what an encoder of sound reads, nothing for other ones."""
    ports = session(export / "encoder_model.onnx").get_inputs()
    shapes = {port.name: port.shape[1:] for port in ports if port.name == "input_features"}
    return {
        name: np.random.default_rng(1).normal(0, 1, (1, *shape)).astype(np.float32) for name, shape in shapes.items()
    }


def generated(bundle: Path, export: Path) -> list[int]:
    """Return the tokens that a bundle chooses."""
    host = Bundle(bundle)
    if not (export / "encoder_model.onnx").exists():
        (tokens,) = host.generate([IDS], max_new_tokens=NEW, eos=[])
    elif inputs := sound(export):
        (tokens,) = host.generate(prompt=[[0]], inputs=inputs, max_new_tokens=NEW, eos=[])
    else:
        (tokens,) = host.generate([IDS], prompt=[[0]], max_new_tokens=NEW, eos=[])
    return tokens


def slow(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.slow
def test_a_bundle_of_many_words_is_proven(tmp_path: Path) -> None:
    export = saved(decoder(words=32_000, positions=4_096), tmp_path / "export")
    report = bundle_folder(export, tmp_path / "out")
    assert report.proof is not None
    assert report.proof.findings() == ()
    assert report.overview.contract.lengths[0].most == 2_048
    assert {run.prompt for run in report.proof.runs if not run.optimized} >= {1, 4, 2_047}
    assert {"steps of several tokens", "the logits of the last two tokens"} <= report.proof.checks.keys()
    assert generated(tmp_path / "out", export) == greedy(export, NEW, IDS)


@pytest.mark.cases("report-")
@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("fold", "MODEL", "-o", "OUT"), "Proven bit for bit at every size"),
        slow(("compare", "MODEL", "MODEL"), "All agree within 0.0001"),
        (("report", "MODEL"), "KV cache"),
        slow(("lower", "MODEL", "-o", "OUT"), "host and models give what the originals give"),
    ],
    ids=lambda value: "-".join(word.strip("-") for word in value if word.islower()) if isinstance(value, tuple) else "",
)
def test_a_workflow_takes_many_words(
    command: tuple[str, ...], says: str, enlarged: ExportOf, run: Run, tmp_path: Path
) -> None:
    model = enlarged("qwen2-tiny", 32_000, 4_096) / "model.onnx"
    named = {"MODEL": model, "OUT": tmp_path / "out"}
    code, out, _ = run(*(named.get(word, word) for word in command))
    assert (code, says in " ".join(out.split())) == (0, True), out


@pytest.mark.slow
def test_a_merged_decoder_of_many_words_is_split(enlarged: ExportOf, run: Run, tmp_path: Path) -> None:
    merged = enlarged("t5-tiny", 32_000, 4_096) / "decoder_model_merged.onnx"
    code, out, _ = run("split-merged", merged, "-o", tmp_path / "out")
    assert code == 0, out
    for file in ("decoder_model.onnx", "decoder_with_past_model.onnx"):
        assert f"{file}: proven bit for bit at every size" in " ".join(out.split())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "words", "slots"), [("qwen2-tiny", 32_000, 2_048), ("t5-tiny", 128_256, 64)])
@pytest.mark.filterwarnings("ignore::graphkit.errors.UnprovenWarning")
def test_a_host_of_many_words_chooses_the_tokens_of_the_export(
    name: str, words: int, slots: int, enlarged: ExportOf, tmp_path: Path
) -> None:
    export, out = enlarged(name, words, 4_096), tmp_path / "out"
    report = lower_folder(export, out, LowerOptions(max_cache_len=slots, verify=slots == 64))
    assert report.proof is None or report.proof.passed
    is_seq2seq = (export / "encoder_model.onnx").exists()
    source, prompt = (IDS, [0]) if is_seq2seq else ([], IDS)
    assert Host(out).generate(source, prompt, NEW, end=[], generation=Generation()) == greedy(export, NEW, IDS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words", "slots", "update"),
    [("qwen2-tiny", 32_000, 4_096, "tensor-scatter"), ("t5-tiny", 128_256, 2_048, "scatter-nd")],
)
def test_an_export_of_many_words_is_bundled_and_proven_again(
    name: str, words: int, slots: int, update: Update, enlarged: ExportOf, tmp_path: Path
) -> None:
    export, out = enlarged(name, words, 4_096), tmp_path / "out"
    options = BundleOptions(max_cache=slots, update=update, batch=1 if slots > 2_048 else 2)
    report = bundle_folder(export, out, options)
    assert report.proof is not None
    assert report.proof.findings() == ()
    assert verify_folder(export, out).findings() == ()
    assert generated(out, export) == greedy(export, NEW, IDS)


def memory_of(process: psutil.Process) -> int:
    """Return the bytes of memory that a process has, of what it shares its part."""
    try:
        return int(process.memory_full_info().pss)
    except (psutil.Error, OSError):  # it has ended
        return 0


def graphkit_run(*words: object) -> tuple[str, float]:
    """Run the command line; return what it prints, and the most memory that its processes had at a time."""
    process = subprocess.Popen(
        [sys.executable, "-m", "graphkit", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    most = [0]

    def watch() -> None:
        root = psutil.Process(process.pid)
        while process.poll() is None:
            with suppress(psutil.NoSuchProcess):  # it ends while it is looked at
                most[0] = max(most[0], sum(map(memory_of, (root, *root.children(recursive=True)))))
            time.sleep(0.1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    out, _ = process.communicate()
    watcher.join()
    assert process.returncode == 0, out
    return out, float(most[0])


@pytest.mark.slow
def test_a_model_of_real_size_goes_through_all_that_its_user_does(tmp_path: Path) -> None:
    files, out = ["encoder_model", "decoder_model_merged"], tmp_path / "out"
    export = completed("opus-mt-en-fr", files, tmp_path / "export")
    commands = {
        "fold": (export / "decoder_model_merged.onnx", "-o", tmp_path / "folded.onnx"),
        "bundle": (export, "-o", out),
        "verify": (export, out),
    }
    for command, words in commands.items():
        said, most = graphkit_run(command, *words)
        assert "failed" not in said
        assert most < MOST_MEMORY or not HAS_MEMORY_LIMIT, f"{command} takes {most:,.0f} bytes"
    assert generated(out, export) == greedy(export, NEW, IDS)
