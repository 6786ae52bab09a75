"""The npm package graphkit-host gives PyTorch's tokens, and does in Node what the hosts in Python do."""

from __future__ import annotations

import json
import lzma
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from npm_packages import JAVASCRIPT, ONNXRUNTIME, install_packages
from real_models import MODELS, export_cases, unpacked, unpacked_export
from speech import FEATURES, speech

import graphkit
from graphkit.hosts import Host
from graphkit.hosts.token_search import SamplingOptions

pytestmark = pytest.mark.slow  # it installs onnxruntime for JavaScript, and needs its registry
END, IMAGE = 2, 119
BUNDLED = (
    "gemma3_text",
    "lfm2",
    "llama-indexput",
    "llama-static",
    "llava-one",
    "mamba2",
    "marian-multi",
    "qwen3-padded",
)
LOWERED = ("gemma3_text", "lfm2", "mamba2", "marian-multi", "qwen3-padded")
Calls = Sequence[Sequence[object]]


@pytest.fixture(scope="session")
def modules() -> Path:
    """A folder with onnxruntime for Node and for pages."""
    return install_packages(*ONNXRUNTIME)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with exports, bundles and lowered folders, each made once."""
    folder = tmp_path_factory.mktemp("made")
    for name in {*BUNDLED, *LOWERED}:
        unpacked_export(name, folder / f"{name}.export")
    for name in BUNDLED:
        options = graphkit.BundleOptions(batch=1 if name == "llava-one" else 2, verify=False)
        graphkit.bundle_folder(folder / f"{name}.export", folder / f"{name}.bundle", options)
    for name in LOWERED:
        lowered = graphkit.LowerOptions(src_len=16, max_cache_len=32, verify=False)
        graphkit.lower_folder(folder / f"{name}.export", folder / f"{name}.lowered", lowered)
    return folder


def in_node(modules: Path, jobs: Sequence[tuple[str, Path, Calls]], runtime: str = "onnxruntime-node") -> Any:
    """Return what the package says to calls: of a job, the class, the folder, and each method with what it is given."""
    plan = {"modules": str(modules), "index": (JAVASCRIPT / "index.mjs").as_uri(), "runtime": runtime}
    plan["jobs"] = [{"kind": kind, "folder": str(folder), "calls": plain(calls)} for kind, folder, calls in jobs]
    script = Path(__file__).with_name("calls_in_node.mjs")
    ran = subprocess.run(["node", script], input=json.dumps(plan), capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def plain(value: Any) -> Any:
    """Return what a call is given as JSON."""
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.name, "dims": value.shape, "data": value.reshape(-1).tolist()}
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def array_of(said: Mapping[str, Any]) -> np.ndarray:
    return np.array(said["data"]).reshape(said["dims"])


def cut(row: Sequence[int]) -> list[int]:
    """Return tokens up to the one that ends them, behind which PyTorch pads."""
    tokens = [int(token) for token in row]
    return tokens[: tokens.index(END) + 1] if END in tokens else tokens


def cases_of(made: Path, name: str) -> list[dict[str, Any]]:
    """Return the cases of an export that its bundle takes."""
    cases = export_cases(made / f"{name}.export")
    has_mask = name in ("marian-multi", "qwen3-padded")
    return [case for case in cases if (has_mask or not case["padded"]) and (name != "llava-one" or case["batch"] == 1)]


def bundle_calls(name: str, cases: Sequence[dict[str, Any]]) -> Calls:
    options: list[dict[str, Any]] = [{"maxNewTokens": case["tokens"].shape[1]} for case in cases]
    for case, chosen in zip(cases, options, strict=True):
        if name in ("marian-multi", "qwen3-padded") and (mask := case["inputs"].get("attention_mask")) is not None:
            chosen["mask"] = mask
    return [["generate", case["inputs"]["input_ids"], chosen] for case, chosen in zip(cases, options, strict=True)]


@pytest.mark.parametrize("runtime", ["onnxruntime-node", "onnxruntime-web"])
def test_bundles_and_lowered_folders_give_the_tokens_of_pytorch(modules: Path, made: Path, runtime: str) -> None:
    jobs: list[tuple[str, Path, Calls]] = []
    expected = []
    for name in BUNDLED:
        if name != "llava-one":
            cases = cases_of(made, name)
            jobs.append(("Bundle", made / f"{name}.bundle", bundle_calls(name, cases)))
            expected.append([[cut(row) for row in case["tokens"]] for case in cases])
    for name in LOWERED:
        cases = [case for case in cases_of(made, name) if case["batch"] == 1 and not case["padded"]]
        calls = []
        for case in cases:
            ids, options = case["inputs"]["input_ids"][0], {"maxNewTokens": case["tokens"].shape[1]}
            if name == "marian-multi":
                calls.append(["generate", ids, {**options, "prompt": case["prompt"]}])
            else:
                calls.append(["generate", [], {**options, "prompt": ids}])
        jobs.append(("Host", made / f"{name}.lowered", calls))
        expected.append([[cut(row) for row in case["tokens"]] for case in cases])
    found = in_node(modules, jobs, runtime)
    assert [[[cut(row) for row in said] for said in each] for each in found] == expected
    assert sum(map(len, expected)) > 30


def test_pictures_reach_the_prompt_by_the_parts_of_a_bundle(modules: Path, made: Path) -> None:
    """As a caller does it: rows of the picture, in the place of those of the token that stands for it."""
    folder = made / "llava-one.bundle"
    cases = cases_of(made, "llava-one")
    parts = [
        call
        for case in cases
        for call in (
            ["run", "embed_tokens", {"input_ids": case["inputs"]["input_ids"]}],
            ["run", "image_encoder", {"pixel_values": case["inputs"]["pixel_values"]}],
        )
    ]
    (said,) = in_node(modules, [("Bundle", folder, [*parts, ["run", "hear"]])])
    assert said.pop() == 'GraphkitError: no "hear": the bundle has ["prefill","step","embed_tokens","image_encoder"]'
    calls = []
    for case, texts, pictures in zip(cases, said[::2], said[1::2], strict=True):
        rows = array_of(texts["output"]).astype(np.float32)
        rows[case["inputs"]["input_ids"] == IMAGE] = array_of(pictures["output"])
        calls.append(["generate", rows, {"maxNewTokens": case["tokens"].shape[1]}])
    (found,) = in_node(modules, [("Bundle", folder, calls)])
    assert [cut(rows[0]) for rows in found] == [cut(case["tokens"][0]) for case in cases]


def test_steps_read_a_prompt_of_which_the_first_step_takes_one_token(modules: Path, made: Path) -> None:
    python = graphkit.Bundle(made / "marian-multi.bundle")
    source = {"input_ids": np.array([[5, 6, 7], [8, 9, 2]])}
    tokens = [[3, 8, 9], [3, 4, 5]]
    calls = [
        ["encode", {**source, "tokens": tokens}, {"allLogits": True}],
        ["encode", {**source, "tokens": tokens}],
        ["step", [4, 4]],
        ["generate", source["input_ids"], {"prompt": tokens, "maxNewTokens": 5}],
    ]
    ((whole, last, after, given),) = in_node(modules, [("Bundle", made / "marian-multi.bundle", calls)])
    expected = python.encode(tokens, source, all_logits=True)
    assert expected.shape[1] == 3
    np.testing.assert_allclose(array_of(whole), expected, rtol=0, atol=2e-5)
    np.testing.assert_allclose(array_of(last), expected[:, -1:], rtol=0, atol=2e-5)
    np.testing.assert_allclose(array_of(after), python.step([4, 4]), rtol=0, atol=2e-5)
    assert given == python.generate(source["input_ids"], prompt=tokens, max_new_tokens=5)


def test_tokens_are_drawn_as_in_python(modules: Path, made: Path) -> None:
    sampling = {"seed": 7, "temperature": 1.5, "topK": 40, "topP": 0.9}
    options = SamplingOptions(7, 1.5, 40, 0.9)
    ids = [[5, 6, 7], [8, 9, 3]]
    bundled, lowered = made / "qwen3-padded.bundle", made / "gemma3_text.lowered"
    jobs: list[tuple[str, Path, Calls]] = [
        ("Bundle", bundled, [["generate", ids, {"maxNewTokens": 12, "eos": [], "sampling": sampling}]]),
        ("Host", lowered, [["generate", [], {"prompt": ids[0], "maxNewTokens": 12, "eos": [], "sampling": sampling}]]),
    ]
    ((of_bundle,), (of_host,)) = in_node(modules, jobs)
    assert of_bundle == graphkit.Bundle(bundled).generate(ids, max_new_tokens=12, eos=[], sampling=options)
    assert of_host == [Host(lowered).generate(None, ids[0], 12, [], sampling=options)]
    assert len(set(of_bundle[0])) > 3


@pytest.mark.parametrize("name", ["marian-multi", "mamba2", "llama-static"])
def test_a_bundle_goes_on_from_a_snapshot(modules: Path, made: Path, name: str) -> None:
    check_snapshots(modules, "Bundle", made / f"{name}.bundle", [[5, 6, 7, 8, 9]], {})


def test_a_host_goes_on_from_a_snapshot(modules: Path, made: Path) -> None:
    check_snapshots(modules, "Host", made / "lfm2.lowered", [], {"prompt": [5, 6, 7]})


def check_snapshots(modules: Path, kind: str, folder: Path, ids: object, options: Mapping[str, object]) -> None:
    calls = [["resumes", ids, {**options, "eos": []}, [8, 9, 4]]]
    ((said,),) = in_node(modules, [(kind, folder, calls)])
    assert said["found"] == said["expected"]
    assert said["again"] == said["expected"][0]
    assert said["expected"][0] != said["expected"][1]
    what = "bundle" if kind == "Bundle" else "folder"
    assert said["foreign"] == f"GraphkitError: the snapshot is of another {what}"


def test_a_caller_is_told_of_each_token_and_may_abort(modules: Path, made: Path) -> None:
    bundled, lowered = made / "marian-multi.bundle", made / "gemma3_text.lowered"
    plans: list[tuple[str, Path, object, dict[str, object]]] = [
        ("Bundle", bundled, [[5, 6, 7], [8, 9, 2]], {"maxNewTokens": 6, "eos": []}),
        ("Host", lowered, [], {"maxNewTokens": 6, "eos": [], "prompt": [5, 6, 7]}),
    ]
    jobs = [(kind, at, [["tokens", ids, options], ["aborts", ids, options]]) for kind, at, ids, options in plans]
    jobs[0][2].append(["tokens", [[5, 6, 7]], {"maxNewTokens": 6, "beams": 2}])
    of_bundle, of_host = in_node(modules, jobs)
    for said, aborted in (of_bundle[:2], of_host):
        assert said["told"] == [[row[:count] for row in said["found"]] for count in range(1, 7)]
        assert aborted["said"] == aborted["early"] == "AbortError: This operation was aborted"
        assert aborted["told"] == 2
        assert aborted["after"] == said["found"]
    assert of_bundle[2]["told"][-1] == of_bundle[2]["found"]


def test_a_static_cache_goes_back_to_fewer_tokens(modules: Path, made: Path) -> None:
    calls = [["prefill", {"tokens": [[5, 6, 7]]}], ["step", 8], ["step", 9], ["rewind", 3], ["step", 8], ["rewind", 9]]
    calls += [["prefill", {"tokens": [[5, 6, 7]]}], ["rewind", 2]]
    jobs = [("Bundle", made / f"{name}.bundle", calls) for name in ("llama-static", "lfm2")]
    static, rolling = in_node(modules, jobs)
    assert static[1] == static[4]
    assert static[5] == "GraphkitError: 9 tokens cannot stay of 4"
    assert re.fullmatch(r"GraphkitError: state .* cannot go back to what it was after 2 .*", rolling[7])


def test_a_caller_is_told_how_much_of_a_folder_has_come(modules: Path, made: Path) -> None:
    jobs = []
    for kind, folder in (("Bundle", made / "qwen3-padded.bundle"), ("Host", made / "qwen3-padded.lowered")):
        jobs.append((kind, folder, [["progress", folder.as_uri()]]))
    for runtime in ("onnxruntime-node", "onnxruntime-web"):
        for (_, folder, _), (said,) in zip(jobs, in_node(modules, jobs, runtime), strict=True):
            told = said["told"]
            files = {file.name: file.stat().st_size for file in folder.iterdir()}
            read = sum(size for name, size in files.items() if not name.endswith((".json", ".md")))
            assert {step["total"] for step in told} == {read}
            assert [step["loaded"] for step in told] == sorted(step["loaded"] for step in told)
            assert told[-1]["loaded"] == read
            assert {step["file"] for step in told} <= set(files)
            assert said["said"] == "AbortError: This operation was aborted"
            assert said["proxy"].startswith("GraphkitError: onnxruntime-web moves the state into its worker")


# One state of each kind that no cache is: the last frame, and an average that decays; the sum begins with numbers.
HEARING = """<ir_version: 8, opset_import: ["" : 17]>
hear (float[batch, frames, 2] audio, float[batch, 1, 2] last, float[1, batch, 2] mean, float[batch, 2] sum)
=> (float[batch, frames, 2] out, float[batch, 1, 2] last_out, float[1, batch, 2] mean_out, float[batch, 2] sum_out)
<float[1] half = {0.5}, int64[1] from = {-1}, int64[1] to = {9223372036854775807}, int64[1] axis = {1},
int64[1] first = {0}> {
    all = Concat <axis = 1> (last, audio)
    last_out = Slice (all, from, to, axis)
    before = Slice (all, first, from, axis)
    both = Add (before, audio)
    one = ReduceMean <axes = [1], keepdims = 0> (both)
    row = Unsqueeze (one, first)
    old = Mul (mean, half)
    new = Mul (row, half)
    mean_out = Add (old, new)
    turned = Transpose <perm = [1, 0, 2]> (mean_out)
    sum_out = Add (sum, one)
    wide = Unsqueeze (sum_out, axis)
    near = Add (both, turned)
    out = Add (near, wide)
}
"""


@pytest.mark.parametrize("when", ["step", "once"])
def test_states_of_other_kinds_are_those_of_python(modules: Path, tmp_path: Path, when: str) -> None:
    """From numbers of each element, in fewer rows than there are; several runs, copies of rows, and a new start."""
    export = tmp_path / "export"
    export.mkdir()
    onnx.save(onnx.parser.parse_model(HEARING), export / "hear.onnx")
    np.save(export / "sum.npy", np.array([[1.5, -2]], np.float32))
    text = f'[[method]]\nname = "hear"\nwhen = "{when}"\nmodels = ["hear.onnx"]\n'
    for name, initial in (("last", "0.25"), ("mean", "0"), ("sum", '"sum.npy"')):
        text += f'[[state]]\nname = "{name}"\ninitial = {initial}\n'
        text += f'read = {{ hear = "{name}" }}\nwrite = {{ hear = "{name}_out" }}\n'
    (export / "bundle.toml").write_text(text)
    graphkit.bundle_folder(export, tmp_path / "bundle", graphkit.BundleOptions(batch=3, verify=False))
    random, python, expected = np.random.default_rng(5), graphkit.Bundle(tmp_path / "bundle"), []
    calls: list[list[Any]] = []
    for rows, order in ((1, [0, 0]), (2, [1, 0, 1]), (3, [2]), (1, None), (2, None)):
        audio = random.standard_normal((rows, 4, 2)).astype(np.float32)
        calls.append(["run", "hear", {"audio": audio}])
        expected.append(python.run("hear", audio=audio)["out"])
        if order is None:
            calls.append(["reset"])
            python.reset()
        else:
            calls.append(["reorder", order])
            python.reorder(order)
    (said,) = in_node(modules, [("Bundle", tmp_path / "bundle", calls)])
    for found, array in zip(said[::2], expected, strict=True):
        np.testing.assert_allclose(array_of(found["out"]), array, rtol=0, atol=1e-6)


def test_two_caches_have_lengths_of_their_own(modules: Path, tmp_path: Path, model_file: Callable[[str], Path]) -> None:
    export = tmp_path / "pair"
    export.mkdir()
    for name in ("draft", "target"):
        (export / f"{name}.onnx").write_bytes(model_file("qwen2-tiny/model").read_bytes())
    lines = (
        f'[[method]]\nname = "{name}"\nmodels = ["{name}.onnx"]\ncache = "{name}"\n' for name in ("draft", "target")
    )
    (export / "bundle.toml").write_text("".join(lines))
    graphkit.bundle_folder(export, tmp_path / "bundle", graphkit.BundleOptions(max_cache=16, verify=False))
    runs = [("draft", 5), ("target", 8), ("draft", 6), ("draft", 7), ("target", 9)]
    calls: list[list[Any]] = [["run", name, {"tokens": [[token]]}] for name, token in runs]
    calls += [
        ["rewind", 1, "draft.past_length"],
        ["run", "draft", {"tokens": [[9]]}],
        ["rewind", 4, "target.past_length"],
    ]
    calls += [["run", "target", {"tokens": [[3, 4]]}], ["rewind", 1, "odd"]]
    (said,) = in_node(modules, [("Bundle", tmp_path / "bundle", calls)])
    python = graphkit.Bundle(tmp_path / "bundle")
    expected = [python.run(name, [[token]])["logits"] for name, token in runs]
    python.rewind(1, "draft.past_length")
    expected += [python.run("draft", [[9]])["logits"], python.run("target", [[3, 4]])["logits"]]
    found = [array_of(each["logits"]) for each in said if isinstance(each, dict)]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5)
    assert said[7] == "GraphkitError: 4 tokens cannot stay of 2"
    assert said[9].startswith('GraphkitError: no length "odd": the bundle has ["draft.past_length",')


@pytest.mark.parametrize("name", ["causal", "window", "whisper-tiny"])
def test_caches_are_full_as_they_are_in_python(modules: Path, bundle_of: Callable[[str], Path], name: str) -> None:
    """Slots, a ring of a sliding window, and an encoder of sounds, to the last slot and past it."""
    folder = bundle_of(name)
    python, random, inputs = graphkit.Bundle(folder), np.random.default_rng(0), {}
    once = python.contract.method("once")
    assert once is not None
    for port in once.inputs:
        if port.kind == "user" and "mask" not in port.name:
            shape = [2 if dim == "batch" else 5 if isinstance(dim, str) else dim for dim in port.shape]
            inputs[port.name] = random.standard_normal(shape).astype(np.float32)
    calls: list[list[Any]] = [["start", {**inputs, "tokens": [[1], [2]]}], *(["step", [at, 3]] for at in range(4))]
    calls += [["reorder", [1, 0, 1]], *(["step", [at, 3, 5]] for at in range(4))]
    (said,) = in_node(modules, [("Bundle", folder, calls)])
    expected = [python.start([[1], [2]], inputs), *(python.step([at, 3]) for at in range(4))]
    python.reorder([1, 0, 1])
    expected += [python.step([at, 3, 5]) for at in range(3)]
    for one, other in zip(filter(None, said[:-1]), expected, strict=True):
        np.testing.assert_allclose(array_of(one), other, rtol=0, atol=2e-5)
    assert said[-1].startswith("GraphkitError: 9 tokens do not fit into 8 slots")


@pytest.mark.parametrize(("name", "batch"), [("marian-tiny", 1), ("t5-tiny", 2)])
def test_a_lowered_encoder_decoder_gives_what_it_gives_in_python(
    modules: Path, tmp_path: Path, name: str, batch: int
) -> None:
    """Sources and prompts of several lengths; the logits of each step, for tokens tell little of small models."""
    options = graphkit.LowerOptions(src_len=8, max_cache_len=6, batch=batch, verify=False)
    graphkit.lower_folder(unpacked(name, tmp_path / "export"), tmp_path / "out", options)
    host = Host(tmp_path / "out")
    sources, prompts = [[5, 6, 7, 8], [9]][:batch], [[3], [3, 4, 7]][:batch]
    calls: list[list[object]] = [["generate", sources, {"prompt": prompts, "maxNewTokens": 4, "eos": []}]]
    calls += [["start", sources], *(["step", [token] * batch] for token in range(7)), ["step", [1] * batch]]
    ((tokens, _, *steps, full),) = in_node(modules, [("Host", tmp_path / "out", calls)])
    assert tokens == host.generate_batch(sources, prompts, 4, [])
    host.start(sources)
    for token, said in enumerate(steps):
        np.testing.assert_allclose(said, host.step([token] * batch).reshape(batch, -1), rtol=0, atol=2e-5)
    assert full == "GraphkitError: the cache is full: it has 6 slots"


def test_a_lowered_text_encoder_pools_as_pytorch_does(modules: Path, tmp_path: Path) -> None:
    pooled, jobs, expected = MODELS.parent / "deploy" / "pooled", [], []
    for name in ("first-eos", "siglip"):
        export = tmp_path / name
        export.mkdir()
        (export / "config.json").write_text('{"bos_token_id": 97, "eos_token_id": 98, "pad_token_id": 1}')
        (export / "model.onnx").write_bytes(lzma.decompress((pooled / f"{name}.onnx.xz").read_bytes()))
        options = graphkit.LowerOptions(src_len=16, verify=False)
        graphkit.lower_folder(export / "model.onnx", tmp_path / f"{name}.out", options)
        cases = json.loads((pooled / f"{name}.json").read_text())
        jobs.append(("Host", tmp_path / f"{name}.out", [["start", case["ids"]] for case in cases]))
        expected.append([case["embedding"] for case in cases])
    for found, wanted in zip(in_node(modules, jobs), expected, strict=True):
        name = next(iter(found[0]))
        np.testing.assert_allclose([said[name]["data"] for said in found], wanted, rtol=0, atol=1e-5)


def test_a_lowered_model_takes_shorter_sounds_and_refuses_what_it_does_not_know(modules: Path, tmp_path: Path) -> None:
    export = speech(tmp_path / "export")
    options = graphkit.LowerOptions(src_len=8, max_cache_len=6, verify=False)
    graphkit.lower_folder(export, tmp_path / "out", options)
    host = Host(tmp_path / "out")
    most = host.contract.sizes["sound"]
    sounds = [np.random.default_rng(3).standard_normal((1, count, FEATURES)).astype(np.float32) for count in (most, 5)]
    calls: list[list[object]] = []
    for sound in sounds:
        calls += [
            ["start", [], {"input_features": sound}],
            ["step", 3],
            ["start", [4], {"input_features": sound}],
            ["step", 3],
        ]
    calls += [["start", [], {"input_features": sounds[0], "odd": 1}], ["start", [99]]]
    ((*found, odd, long),) = in_node(modules, [("Host", tmp_path / "out", calls)])
    for at, sound in enumerate(sounds):
        for valid, said in (([], found[4 * at + 1]), ([4], found[4 * at + 3])):
            host.start(valid, input_features=sound)
            np.testing.assert_allclose(said, [host.step(3)], rtol=0, atol=2e-5)
    assert odd.startswith('GraphkitError: the models have no input "odd": they take ["input_features"')
    assert long == f"GraphkitError: the sound has 99 valid places - it takes 1 to {most}"


def test_half_precision_numbers_are_those_of_numpy() -> None:
    if shutil.which("node") is None:
        pytest.skip("there is no Node")
    numbers = [0, 1, -100, -65504, 1e-8, 6e-8, 0.1, 2049, 2051, -1e4, 3.14159, 5.96e-8, 6.1e-5, 65519, 1023.75]
    script = f"""globalThis.Float16Array = undefined;
        const {{ elementOf, widened }} = await import('{(JAVASCRIPT / "values.mjs").as_uri()}');
        const bits = Uint16Array.from({numbers}, (number) => elementOf('float16', number));
        console.log(JSON.stringify([[...bits], [...widened(bits)]]));"""
    command = ["node", "--input-type=module", "-e", script]
    bits, wide = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)
    halves = np.array(numbers, np.float16)
    assert bits == halves.view(np.uint16).tolist()
    assert wide == halves.astype(float).tolist()


def test_the_package_holds_its_sources_types_and_licence_alone() -> None:
    if shutil.which("npm") is None:
        pytest.skip("there is no npm")
    command = ["npm", "pack", "--dry-run", "--json"]
    packed = subprocess.run(command, cwd=JAVASCRIPT.parent, capture_output=True, text=True, check=True, timeout=60)
    (package,) = json.loads(packed.stdout)
    files = {file["path"] for file in package["files"]}
    modules = {f"src/{file.name}" for file in JAVASCRIPT.iterdir()}
    assert files == {"LICENSE", "README.md", "package.json", *modules}
    assert package["version"] == graphkit.__version__
    assert (JAVASCRIPT.parent / "LICENSE").read_bytes() == (JAVASCRIPT.parents[2] / "LICENSE").read_bytes()


CALLS = """
import * as ort from "onnxruntime-common";
import { Bundle, GraphkitError, Host, type Sampling } from "graphkit-host";
const sampling: Sampling = { seed: 7n, topP: 0.9 };
const bundle = await Bundle.open(ort, "/b", { session: { executionProviders: ["webgpu"] }, checksums: true });
const rows: number[][] = await bundle.generate([[1, 2]], { sampling, onToken: async ([row]) => row.at(-1) });
const audio = new ort.Tensor("float32", [1], [1]), frames = { dims: [1], data: new BigInt64Array(1) };
const logits = await bundle.encode({ input_ids: [[1, 2]], tokens: 4, audio, frames }, { allLogits: true });
bundle.restore(structuredClone(bundle.snapshot()));
const host = await Host.open(ort, new URL("file:///x"), { progress: ({ loaded, total }) => loaded / total });
const size: number = (await host.step([1]))[0].length + logits.data.length + rows.length;
await host.start([1], { input_features: new Float32Array(size) });
// @ts-expect-error
await host.generate([1], { beams: 2 });
// @ts-expect-error
new Bundle();
try { await bundle.fork().release(); } catch (error) { if (error instanceof GraphkitError) error.message; }
"""


def test_types_take_the_calls_that_there_are_and_no_others(tmp_path: Path) -> None:
    modules = install_packages("typescript@5.9", "onnxruntime-common@1.30") / "node_modules"
    (tmp_path / "node_modules").mkdir()
    for name in ("typescript", "onnxruntime-common"):
        (tmp_path / "node_modules" / name).symlink_to(modules / name)
    (tmp_path / "node_modules" / "graphkit-host").symlink_to(JAVASCRIPT.parent)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "use.ts").write_text(CALLS)
    options = ["--strict", "--noEmit", "--module", "nodenext", "--target", "es2022", "--lib", "es2023,dom"]
    compiler = modules / "typescript" / "bin" / "tsc"
    command = ["node", compiler, *options, "use.ts"]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (checked.returncode, checked.stdout) == (0, "")
