"""A host made of HOST.md alone feeds what the reference host feeds, for models of several families."""

from __future__ import annotations

import json
import lzma
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx.parser
import pytest
from guide_host import GuideHost
from real_models import MODELS, params, unpacked
from sessions import ALL, session_of

from graphkit.contract import Method, read_contract
from graphkit.contract.contract_writers import write_lowered_loop
from graphkit.deploy.lower import LowerOptions, lower_folder
from graphkit.errors import UsageError
from graphkit.hosts import Host

DEPLOY = Path(__file__).parents[1] / "deploy"
OPTIONS = LowerOptions(src_len=7, max_cache_len=5, verify=False)
FRAMES = """<ir_version: 9, opset_import: ["" : 17]>
g (float[batch, 8, 16] input_features) => (float[batch, 4, 32] last_hidden_state)
<int64[3] shape = {0, 4, 32}> { last_hidden_state = Reshape (input_features, shape) }"""


def export(name: str, folder: Path) -> Path:
    """Write an export to a folder."""
    if name in ("marian-tiny", "t5-tiny", "qwen2-tiny"):
        unpacked(name, folder)
        (folder / "config.json").write_text('{"eos_token_id": [1, 2], "decoder_start_token_id": 3, "pad_token_id": 4}')
        return folder
    packed = {
        "gpt2": MODELS / "gpt2-tiny" / "decoder_model_merged.onnx.xz",
        "gemma3": DEPLOY / "windowed" / "gemma3.onnx.xz",
        "clip": DEPLOY / "pooled" / "largest.onnx.xz",
        "clip by its end": DEPLOY / "pooled" / "first-eos.onnx.xz",
        "vit": MODELS / "vit-qdq" / "model.onnx.xz",
        "whisper": MODELS / "whisper-tiny" / "decoder_model_merged.onnx.xz",
    }[name]
    folder.mkdir()
    (folder / "model.onnx").write_bytes(lzma.decompress(packed.read_bytes()))
    if name.startswith("clip"):
        (folder / "config.json").write_text('{"eos_token_id": 98, "pad_token_id": 1}')
    if name == "whisper":
        onnx.save(onnx.parser.parse_model(FRAMES), folder / "encoder_model.onnx")
    return folder


def record(folder: Path) -> tuple[Host, list[tuple[str, dict[str, np.ndarray]]]]:
    """Return the reference host, and what it will have fed."""
    fed: list[tuple[str, dict[str, np.ndarray]]] = []
    sessions = {method.file: session_of(folder / method.file, ALL) for method in Host(folder).contract.methods}

    def run(method: Method, feed: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        fed.append((method.file, {name: array.copy() for name, array in feed.items()}))
        names = [port.name for port in method.outputs]
        return dict(zip(names, sessions[method.file].run(names, dict(feed)), strict=True))

    return Host(folder, run), fed


def compare(folder: Path, source: list[int], prompt: list[int], steps: int, **user: np.ndarray) -> list[int]:
    """Run both hosts, and return the tokens that both give."""
    host, fed = record(folder)
    guided = GuideHost(folder)
    tokens: list[int] = []
    if prompt:
        host.start(source, **user)
        guided.start(source, user)
        tokens = guided.generate(prompt, steps)
        for token in [*prompt, *tokens[:-1]]:
            logits = host.step(token)
        assert int(logits.argmax()) == tokens[-1]
    else:
        host.start(source, **user)
        guided.start(source, user)
    assert [file for file, _ in guided.fed] == [file for file, _ in fed]
    for (file, ours), (_, expected) in zip(guided.fed, fed, strict=True):
        assert set(ours) == set(expected), file
        for name, array in expected.items():
            assert (ours[name].dtype, ours[name].shape) == (array.dtype, array.shape), f"{file}: {name}"
            assert ours[name].tobytes() == array.tobytes(), f"{file}: {name}"
    return tokens


@pytest.fixture(scope="module")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Lower an export, once for all tests: these change nothing."""

    @cache
    def make(name: str) -> Path:
        folder = tmp_path_factory.mktemp("lowered")
        lower_folder(export(name, folder / "export"), folder / "out", OPTIONS)
        return folder / "out"

    return make


TEXTS = {"t5-tiny": [9], "whisper": [], "gemma3": [], "qwen2-tiny": []}


@pytest.mark.cases("qwen2-tiny")
@pytest.mark.parametrize("name", params(TEXTS, slow=["t5-tiny", "whisper", "gemma3"]))
def test_a_decoder_gets_what_the_reference_host_feeds(name: str, lowered: Callable[[str], Path]) -> None:
    """From the first token to the last place, where a state has no slot for what is new."""
    out = lowered(name)
    user = {"input_features": np.arange(128, dtype=np.float32).reshape(1, 8, 16)} if name == "whisper" else {}
    is_alone = not TEXTS[name] and name != "whisper"
    prompt = [3, 4] if is_alone else [3]
    tokens = compare(out, TEXTS[name], prompt, 99, **user)
    assert len(prompt) + len(tokens) == 7 or tokens[-1] in (1, 2)
    program = ModuleType("program")
    exec(write_lowered_loop("python", read_contract(out / "contract.json"), "out"), vars(program))
    assert program.Loop(out).generate(prompt, TEXTS[name], 99, user) == tokens


@pytest.mark.slow
def test_any_end_token_ends_it(lowered: Callable[[str], Path], tmp_path: Path) -> None:
    first, second = compare(lowered("qwen2-tiny"), [], [3, 4], 2)
    folder = export("qwen2-tiny", tmp_path / "export")
    (folder / "config.json").write_text(f'{{"eos_token_id": [249, {second}]}}')
    lower_folder(folder, tmp_path / "ended", OPTIONS)
    assert compare(tmp_path / "ended", [], [3, 4], 9) == [first, second]
    assert f"| `end` | 249, {second} |" in (tmp_path / "ended" / "HOST.md").read_text()


@pytest.mark.cases("clip by its end")
@pytest.mark.parametrize("name", ["clip", "clip by its end"])
def test_a_text_encoder_gets_what_the_reference_host_feeds(name: str, lowered: Callable[[str], Path]) -> None:
    out = lowered(name)
    for ids in ([5], [97, 8, 98, 8], [98, 3, 98, 7, 7, 90, 98]):
        compare(out, ids, [], 0)
    with pytest.raises(UsageError, match="out: it has no decoder, so that there is no loop"):
        write_lowered_loop("python", read_contract(out / "contract.json"), "out")


def test_a_vision_model_gets_what_the_caller_gives(tmp_path: Path) -> None:
    dims = (("num_channels", 3), ("height", 32), ("width", 32))
    lower_folder(export("vit", tmp_path / "export"), tmp_path / "out", replace(OPTIONS, dims=dims))
    (method,) = GuideHost(tmp_path / "out").methods
    shape = json.loads(method.inputs[0]["shape"])
    compare(tmp_path / "out", [], [], 0, pixel_values=np.ones(shape, np.float32))


def test_a_fault_in_the_guide_is_seen(lowered: Callable[[str], Path], tmp_path: Path) -> None:
    out = Path(shutil.copytree(lowered("qwen2-tiny"), tmp_path / "out"))
    text = (out / "HOST.md").read_text()
    for right, wrong in (("row position of", "row length - 1 of"), ("`position` is 5:", "`position` is 4:")):
        assert right in text
        (out / "HOST.md").write_text(text.replace(right, wrong))
        with pytest.raises((AssertionError, IndexError)):
            compare(out, [], [3, 4], 99)
