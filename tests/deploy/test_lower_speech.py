"""Lowered models of sound: its valid length, what the strides make of it, both hosts, and the proof."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from builders import model_of
from onnx import helper, numpy_helper
from sessions import run
from speech import FEATURES, normalized_over_windows_of, speech

from graphkit.contract import read_contract
from graphkit.contract.contract_writers import WRITERS, write_guide
from graphkit.deploy import host_tables
from graphkit.deploy.deploy_sizes import Sound
from graphkit.deploy.lower import LowerOptions, lower_folder
from graphkit.equivalence.originals import Originals
from graphkit.errors import ModelError, UsageError
from graphkit.hosts import Host
from graphkit.model import load
from graphkit.verify.deployment_proofs import LoweringProof
from graphkit.verify.lowering_verifier import verify_lowering
from graphkit.verify.oracle import Oracle

PLAIN = str(Path(__file__).parents[1] / "targets" / "plain-npu.toml")
FRAMES, OPTIONS = 9, LowerOptions(target=PLAIN, src_len=9, max_cache_len=4)
EXAMPLE = Path(__file__).parents[2] / "examples" / "host-cpp"
PROGRAM = """
#include <iostream>
#include "host.hpp"
int main(int, char** words) {
    host::Host host(words[1], [](const HostMethod& method, const host::Tensors& inputs) {
        for (const host::Bytes& fed : inputs) std::cout.write(reinterpret_cast<const char*>(fed.data()), fed.size());
        host::Tensors outputs;
        for (std::size_t i = 0; i < method.output_count; i++) outputs.emplace_back(method.outputs[i].bytes, 0);
        return outputs;
    });
    host::Bytes sound((std::istreambuf_iterator<char>(std::cin)), std::istreambuf_iterator<char>());
    host.start({{}}, {{"input_features", sound}});
    try {
        host.start({{}}, {{"input_features", sound}, {"attention_mask", sound}});
    } catch (const std::invalid_argument& error) {
        std::cerr << error.what();
    }
}
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The export, and its lowered models without a proof."""
    folder = tmp_path_factory.mktemp("speech")
    source = speech(folder / "export")
    lower_folder(source, folder / "out", replace(OPTIONS, verify=False))
    return source, folder / "out"


@cache
def originals(source: Path) -> Originals:
    names = ("encoder_model", "decoder_model", "decoder_with_past_model")
    return Originals(*(load(source / f"{name}.onnx") for name in names))


def sound(length: int, rows: int = 1) -> np.ndarray:
    return np.random.default_rng(length).normal(0, 1, (rows, length, FEATURES)).astype(np.float32)


def expected(source: Path, lengths: list[int], array: np.ndarray) -> np.ndarray:
    """Return what the export gives for sounds with zeros behind them, whose masks say so: [batch, steps, logits]."""
    mask = (np.arange(FRAMES) < np.array(lengths)[:, None]).astype(np.int64)
    features = np.zeros((len(lengths), FRAMES, FEATURES), np.float32)
    features[:, : array.shape[1]] = array * mask[:, : array.shape[1], None]
    oracle, tokens = Oracle(originals(source)), np.full((len(lengths), 1), 3)
    first = oracle.start(tokens, np.ones_like(tokens), {"input_features": features, "attention_mask": mask})
    return np.concatenate([first, oracle.step(tokens + 1)], 1)


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        (lambda valid: np.arange(5) < (valid + 1) // 2, Sound(9, 2, 1)),
        (lambda valid: np.zeros(valid), None),
    ],
)
def test_a_rule_is_that_of_the_sounds_that_are_long_enough(
    values: Callable[[int], np.ndarray], rule: Sound | None
) -> None:
    def run(_: str, valid: int) -> dict[str, np.ndarray]:
        if valid < 5:
            raise ModelError("too short")
        return {"mask": values(valid)}

    assert host_tables._sound_rule(SimpleNamespace(run=run), 9) == rule  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="too short"):
        host_tables._sound_rule(SimpleNamespace(run=run), 4)  # type: ignore[arg-type]


@pytest.mark.slow
def test_lowered_models_of_sound_are_proven(tmp_path: Path) -> None:
    options = replace(OPTIONS, batch=2)
    report = lower_folder(speech(tmp_path / "export"), tmp_path / "out", options)
    assert report.findings() == ()
    assert report.proof is not None
    assert [run.length for run in report.proof.runs if run.is_sound] == [1, 3, 4, 5, 8, 9]


def test_the_contract_says_how_long_a_sound_is(folders: tuple[Path, Path]) -> None:
    contract = read_contract(folders[1] / "contract.json")
    assert {"source": 5, "sound": 9, "stride": 2, "offset": 1}.items() <= contract.sizes.items()
    kinds = {
        f"{method.name}.{port.name}": (port.source.kind, port.shape)
        for method in contract.methods
        for port in method.inputs
        if port.source is not None and port.source.kind in ("user", "source_mask")
    }
    assert kinds == {
        "encoder.input_features": ("user", (1, 9, 6)),
        "encoder.attention_bias": ("source_mask", (1, 1, 5)),
        "step.attention_bias_2": ("source_mask", (1, 1, 1, 5)),
    }
    words = write_guide(contract)
    assert "Fill the sound with zeros to 9 places, of which `valid` are its own." in words
    assert "Set `length` to `(valid + 1) / 2`, rounded down and at most 5." in words
    assert "the caller, and zeros behind what is valid" in words


@pytest.mark.cases("1", "8")
@pytest.mark.parametrize("length", [1, 2, 5, 8, 9])
def test_a_shorter_sound_gives_what_the_export_gives(length: int, folders: tuple[Path, Path]) -> None:
    host, array = Host(folders[1]), sound(length)
    host.start(input_features=array)
    actual = np.stack([host.step(3), host.step(4)])
    np.testing.assert_allclose(actual, expected(folders[0], [length], array)[0], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["self", "inputs"])
def test_inputs_in_a_mapping_may_have_any_name(name: str, folders: tuple[Path, Path], tmp_path: Path) -> None:
    """In the place of the source, behind it, or by keyword; also those that a parameter of `start` is called."""
    folder, array = shutil.copytree(folders[1], tmp_path / "out"), sound(5)
    renamed(folder, "input_features", name)
    host = Host(folder, unchecked=True)

    def check() -> None:
        actual = np.stack([host.step(3), host.step(4)])
        np.testing.assert_allclose(actual, expected(folders[0], [5], array)[0], atol=1e-4)

    host.start({name: array})
    check()
    host.start([5], {name: array})
    check()
    if name != "inputs":
        host.start(**{name: array})
        check()
        with pytest.raises(UsageError, match=f"^'{name}' is given twice - give it once$"):
            host.start({name: array}, **{name: array})


def renamed(folder: Path, old: str, new: str) -> None:
    """Rename an input of the encoder."""
    model = onnx.load(folder / "encoder.onnx")
    next(value for value in model.graph.input if value.name == old).name = new
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
    onnx.save(model, folder / "encoder.onnx")
    contract = folder / "contract.json"
    contract.write_text(contract.read_text().replace(f'"{old}"', f'"{new}"'))


@pytest.mark.slow
def test_a_batch_of_sounds_of_several_lengths(tmp_path: Path) -> None:
    source = speech(tmp_path / "export")
    lower_folder(source, tmp_path / "out", replace(OPTIONS, batch=2, verify=False))
    host, array = Host(tmp_path / "out"), sound(FRAMES, rows=2)
    host.start([4, 9], input_features=array)
    actual = np.stack([host.step([3, 3]), host.step([4, 4])], 1)
    np.testing.assert_allclose(actual, expected(source, [4, 9], array), atol=1e-4)


@pytest.mark.parametrize(
    ("source", "length", "reason"),
    [
        ((), 10, r"^the sound has 10 valid places - it takes 1 to 9$"),
        ((), 0, r"^the sound has 0 valid places - it takes 1 to 9$"),
        ([3, 4], 9, r"^there are 2 lengths of sounds - give 1$"),
        ([3], 10, r"^'input_features' is \[1, 10, 6\], and takes at most \[1, 9, 6\]$"),
    ],
)
def test_sounds_that_do_not_fit(source: tuple[int, ...], length: int, reason: str, folders: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match=reason):
        Host(folders[1]).start(source, input_features=sound(length))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An export that normalizes over time, and its lowered models without a proof."""
    folder = tmp_path_factory.mktemp("whole")
    source = speech(folder / "export")
    model = onnx.load(source / "encoder_model.onnx")
    place = next(i for i, node in enumerate(model.graph.node) if node.output[0] == "half")
    model.graph.node[place].output[0] = "half_before"
    mean = helper.make_node("ReduceMean", ["half_before"], ["mean"], axes=[2])
    model.graph.node.insert(place + 1, helper.make_node("Sub", ["half_before", "mean"], ["half"]))
    model.graph.node.insert(place + 1, mean)
    onnx.save(model, source / "encoder_model.onnx")
    lower_folder(source, folder / "out", replace(OPTIONS, verify=False))
    return source, folder / "out"


def test_a_sound_that_zeros_change_is_never_padded(whole: tuple[Path, Path]) -> None:
    contract = read_contract(whole[1] / "contract.json")
    (port,) = (port for port in contract.methods[0].inputs if port.kind == "user")
    assert not port.is_sound
    told = "The caller gives 9 places of sound, of which `valid` are its own: padding behind a shorter one changes"
    assert any(line.startswith(told) for line in contract.loop)
    reason = (
        r"^input 'input_features' is \[1, 5, 6\], and the model takes \[1, 9, 6\] - zeros behind a shorter sound would "
        r"change its results: lower again for its length with --dim, or pad it as the original's caller does"
    )
    for valid in ((), (5,)):
        with pytest.raises(UsageError, match=reason):
            Host(whole[1]).start(valid, input_features=sound(5))


@pytest.mark.cases("9")
@pytest.mark.parametrize("length", [1, 5, 9])
def test_a_sound_that_its_caller_pads_gives_what_the_export_gives(length: int, whole: tuple[Path, Path]) -> None:
    host, array = Host(whole[1]), np.zeros((1, FRAMES, FEATURES), np.float32)
    array[:, :length] = sound(length)
    host.start([length], input_features=array)
    actual = np.stack([host.step(3), host.step(4)])
    np.testing.assert_allclose(actual, expected(whole[0], [length], array)[0], atol=1e-4)
    host.start(input_features=array)  # without a number, all of it counts
    np.testing.assert_allclose(host.step(3), expected(whole[0], [FRAMES], array)[0, 0], atol=1e-4)


@pytest.mark.slow
def test_the_proof_says_that_a_sound_is_never_padded(whole: tuple[Path, Path], folders: tuple[Path, Path]) -> None:
    proof = verify_lowering(originals(whole[0]), whole[1])
    assert proof.passed, proof.findings()
    assert proof.caveats == ("It takes sounds of 9 places: zeros behind shorter ones change results.",)
    assert verify_lowering(originals(folders[0]), folders[1]).caveats == ()


def test_a_contract_that_pads_a_sound_that_zeros_change_fails(whole: tuple[Path, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(whole[1], tmp_path / "out")
    document = json.loads((folder / "contract.json").read_text())
    port = next(port for port in document["methods"][0]["inputs"] if port["name"] == "input_features")
    port["source"]["by"] = "source"
    (folder / "contract.json").write_text(json.dumps(document))
    assert not verify_lowering(originals(whole[0]), folder).passed


@pytest.mark.slow
def test_a_sound_is_never_padded_where_the_export_runs_at_some_lengths_only(tmp_path: Path) -> None:
    """Moonshine needs a window of samples: a third of a sound is too short for it, and all but one tells nothing."""
    source = speech(tmp_path / "export", normalized_over_windows_of(4))
    lower_folder(source, tmp_path / "out", replace(OPTIONS, src_len=16, verify=False))
    assert not Host(tmp_path / "out").pads_sounds
    proof = verify_lowering(originals(source), tmp_path / "out")
    assert proof.passed, proof.findings()


def test_results_are_those_for_the_sound_alone(tmp_path: Path) -> None:
    """Also where the export gives NaN for one with zeros behind it, as a Softmax of a row without keys does."""
    source = speech(tmp_path / "export")
    model = onnx.load(source / "encoder_model.onnx")
    place = next(i for i, node in enumerate(model.graph.node) if node.output[0] == "bias")
    model.graph.node[place].input[0] = "both"
    model.graph.node.insert(place, helper.make_node("And", ["row", "column"], ["both"]))
    model.graph.node.insert(place, helper.make_node("Unsqueeze", ["valid", "two"], ["column"]))
    next(each for each in model.graph.initializer if each.name == "lowest").CopyFrom(
        numpy_helper.from_array(np.float32(-np.inf), "lowest")
    )
    onnx.save(model, source / "encoder_model.onnx")
    report = lower_folder(source, tmp_path / "out", OPTIONS)
    assert report.findings() == ()
    host, array = Host(tmp_path / "out"), sound(5)
    host.start(input_features=array)
    assert np.isnan(expected(source, [5], array)).all()
    oracle, tokens = Oracle(originals(source)), np.array([[3]])
    alone = oracle.start(tokens, tokens**0, {"input_features": array, "attention_mask": np.ones((1, 5), np.int64)})
    np.testing.assert_allclose(host.step(3), alone[0, 0], atol=1e-4)


def broken(folders: tuple[Path, Path], folder: Path, file: str, name: str) -> LoweringProof:
    """Prove a copy in which an input is not read: the model has zeros for it, as if all of a sound counted."""
    shutil.copytree(folders[1], folder, dirs_exist_ok=True)
    model = onnx.load(folder / file)
    port = next(port for port in model.graph.input if port.name == name)
    dims = [dim.dim_value for dim in port.type.tensor_type.shape.dim]
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(dims, np.float32), "all_count"))
    model.graph.node.insert(0, helper.make_node("Mul", [name, "all_count"], ["unmasked"]))
    for node in list(model.graph.node)[1:]:
        node.input[:] = ["unmasked" if read == name else read for read in node.input]
    onnx.save(model, folder / file)
    return verify_lowering(originals(folders[0]), folder)


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("file", "name", "what", "cause"),
    [
        (
            "encoder.onnx",
            "attention_bias",
            "'last_hidden_state' differs by ",
            "'attention_bias' of encoder changes nothing: the mask over the source does nothing there.",
        ),
        (
            "step.onnx",
            "attention_bias_2",
            "logits differ by ",
            "'attention_bias_2' of step changes nothing: the mask over the source does nothing there.",
        ),
    ],
)
def test_a_mask_that_does_nothing_fails_the_proof(
    file: str, name: str, what: str, cause: str, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    proof = broken(folders, tmp_path / "out", file, name)
    assert not proof.passed
    assert all(run.length < FRAMES for run in proof.runs if run.failure)
    assert proof.findings()[0].startswith(f"sound of 1 places: {what}")
    assert proof.causes == (cause,)


@pytest.mark.slow
def test_the_host_in_c_fills_a_sound_as_this_one_does(folders: tuple[Path, Path], tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    fed: list[np.ndarray] = []
    contract = read_contract(folders[1] / "contract.json")

    def run(method, feed):  # type: ignore[no-untyped-def]
        fed.extend(feed.values())
        return {port.name: np.zeros(port.shape, port.dtype) for port in method.outputs}

    (tmp_path / "contract.h").write_text(WRITERS["c"](contract))
    (tmp_path / "main.cpp").write_text(PROGRAM)
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", str(tmp_path), "-I", str(EXAMPLE)]
    subprocess.run([compiler, *flags, str(tmp_path / "main.cpp"), "-o", str(tmp_path / "main")], check=True)
    for length in (2, 5, 9):
        fed.clear()
        Host(folders[1], run).start(input_features=sound(length))
        given = sound(length).tobytes()
        ran = subprocess.run([tmp_path / "main", folders[1]], input=given, capture_output=True, check=True)
        assert ran.stdout == b"".join(array.tobytes() for array in fed)
    assert ran.stderr.endswith(b"the models have no input 'attention_mask'")


MASKED_SOUND = """agraph (float[B, n] input_values, int64[C, n] attention_mask) => (float[B, frames, 8] y)
<int64[1] one = {1}, int64[1] last = {-1}, int64[1] front = {0}, int64 zero = {0}, int64 step = {1}, int64 four = {4},
 int64[1] width = {8}, int64[1] far = {-9223372036854775808}, float nothing = {0}> {
    channels = Unsqueeze (input_values, one)
    strided = Conv <strides = [4]> (channels, kernel)
    h = Transpose <perm = [0, 2, 1]> (strided)
    samples = ReduceSum <keepdims = 0> (attention_mask, last)
    positions = Div (samples, four)
    rows = Shape <start = 0, end = 1> (attention_mask)
    frames = Shape <start = 1, end = 2> (h)
    both = Concat <axis = 0> (rows, frames)
    zeros = ConstantOfShape (both)
    row_count = Squeeze (rows)
    row = Range (zero, row_count, step)
    end = Sub (positions, step)
    i = Unsqueeze (row, last)
    j = Unsqueeze (end, last)
    ends = Concat <axis = -1> (i, j)
    ones = Expand (marker, rows)
    marked = ScatterND (zeros, ends, ones)
    turned = Slice (marked, last, far, one, last)
    summed = CumSum (turned, step)
    counts = Slice (summed, last, far, one, last)
    valid = Cast <to = 9> (counts)
    is_padding = Not (valid)
    column = Unsqueeze (is_padding, last)
    tiled = Tile (column, repeats)
    dims = Shape (h)
    hidden = Expand (tiled, dims)
    by_axis = NonZero (hidden)
    at = Transpose <perm = [1, 0]> (by_axis)
    many = Shape <start = 0, end = 1> (at)
    nothings = Expand (nothing, many)
    kept = ScatterND (h, at, nothings)
    y = Add (kept, kept)
}"""


def test_a_mask_that_assigns_zeros_and_fails_for_too_short_a_sound_is_lowered(tmp_path: Path) -> None:
    """As torch exports the masks of wav2vec 2: a place of -2 is none, where no position is valid."""
    kernel = np.random.default_rng(0).normal(0, 1, (8, 1, 4)).astype(np.float32)
    model = model_of(MASKED_SOUND, kernel=kernel, repeats=np.array([1, 1, 8]), marker=np.float32(1))
    model.save(tmp_path / "model.onnx")
    report = lower_folder(tmp_path / "model.onnx", tmp_path / "out", LowerOptions(target=PLAIN, dims=(("n", 16),)))
    assert report.proof is not None
    assert report.proof.passed
    host = Host(tmp_path / "out")
    assert host.contract.methods[0].name == "encoder"
    sound = np.random.default_rng(1).normal(0, 1, (1, 9)).astype(np.float32)
    padded, mask = np.zeros((1, 16), np.float32), (np.arange(16) < 9).astype(np.int64)[None]
    padded[:, :9] = sound
    (expected,) = run(model.proto, {"input_values": padded, "attention_mask": mask})
    np.testing.assert_allclose(host.start(input_values=sound)["y"][:, :2], expected[:, :2], atol=1e-5)
