"""Pipelines lowered for an NPU: fixed shapes, the contract, the reference host, and its port to C++."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from real_models import MODELS, params, unpacked
from small_pipelines import FILLED, decoder, half, saved

from graphkit.cli import app
from graphkit.contract import Generation, Method, Source, read_contract
from graphkit.contract.contract_writers import WRITERS
from graphkit.deploy.host_tables import is_bias_and_mask
from graphkit.deploy.lower import LowerOptions, LowerReport, lower_folder
from graphkit.errors import ModelError, OutputError, UsageError
from graphkit.hosts import Host, numpy_host
from graphkit.model import load
from graphkit.shapes import infer
from graphkit.workflows.output_schemas import schema_of

EXAMPLE = MODELS.parents[1] / "examples" / "host-cpp"
OPTIONS = LowerOptions(src_len=6, max_cache_len=5)
BATCHES = {"t5-tiny": 2}
REFUSED = {  # heads of fewer than 8
    "small": {("Reshape", "rk3588")},
    "t5-tiny": set(),
}


@pytest.fixture(scope="module", params=params(["small", "t5-tiny"], slow=["t5-tiny"]))
def lowered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, LowerReport]:
    folder = tmp_path_factory.mktemp("models") / request.param
    source = saved(decoder(FILLED), folder) if request.param == "small" else unpacked(request.param, folder)
    output = tmp_path_factory.mktemp("lowered") / "out"
    options = replace(OPTIONS, batch=BATCHES.get(request.param, 1))
    return source, output, lower_folder(source, output, options)


def test_host_and_lowered_models_give_what_the_originals_give(lowered: tuple[Path, Path, LowerReport]) -> None:
    _, _, report = lowered
    assert report.proof is not None
    assert report.proof.findings() == ()
    assert report.proof.passed
    assert {run.steps for run in report.proof.runs} == {6}  # to a full cache, and one more
    assert max(run.logits or 0 for run in report.proof.runs) < 1e-5


def test_the_report_says_the_sizes_and_the_tokens_that_nobody_does(lowered: tuple[Path, Path, LowerReport]) -> None:
    source, _, report = lowered
    has_encoder = len(report.files) > 1
    source_length = ", --src-len 6" if has_encoder else ""
    tokens = "pad (0 is taken), start and end" if has_encoder else "end"
    keys = "pad_token_id, decoder_start_token_id and eos_token_id" if has_encoder else "eos_token_id"
    assert report.settings == (
        f"The sizes are --batch {BATCHES.get(source.name, 1)}{source_length} and --max-cache-len 5.",
        f"Tokens that the export does not say: {tokens}; {keys} in config.json or generation_config.json would.",
    )
    assert report.settings[0] in " ".join(report.to_text().split())


def test_the_proof_says_when_tokens_tell_nothing(lowered: tuple[Path, Path, LowerReport]) -> None:
    _, _, report = lowered
    assert report.proof is not None
    note = "The original chooses one token all the way: here equal tokens tell nothing, and logits do."
    tell_nothing = {run.tokens for run in report.proof.runs} == {1}
    assert tell_nothing == (note in report.proof.notes)


def test_all_shapes_are_fixed_and_nothing_takes_token_ids(lowered: tuple[Path, Path, LowerReport]) -> None:
    _, output, _ = lowered
    for method in read_contract(output / "contract.json").methods:
        model = load(output / method.file)
        shapes = infer(model)
        assert all(dim.constant is not None for value in shapes for dim in shapes[value].dims or ())
        assert {port.dtype for port in method.inputs} == {"float32"}
        assert not [node for node in model.graph.nodes if node.is_op("Shape", "Gather", "Range", "If")]


def test_the_target_refuses_small_heads_alone(lowered: tuple[Path, Path, LowerReport]) -> None:
    source, _, report = lowered
    refused = {(one.op, one.reason) for file in report.files for one in file.blockers.blockers}
    assert refused == REFUSED[source.name]
    assert max(file.rank for file in report.files) <= 4


def test_the_contract_names_each_input_once_and_reads_back(lowered: tuple[Path, Path, LowerReport]) -> None:
    _, output, _ = lowered
    contract = read_contract(output / "contract.json")
    assert json.loads(contract.to_json()) == json.loads((output / "contract.json").read_text())
    for method in contract.methods:
        model = load(output / method.file)
        assert [port.name for port in method.inputs] == [value.name for value in model.graph.inputs]
        assert [port.name for port in method.outputs] == [value.name for value in model.graph.outputs]
    grown = {port.writes for method in contract.methods for port in method.outputs if port.writes}
    assert grown == {state.name for state in contract.states}
    guide = (output / "HOST.md").read_text()
    fed = [port for method in contract.methods for port in method.inputs if port.source is not None]
    assert all(f"`{port.name}`" in guide for port in fed if port.source is None or port.source.kind != "state")


def test_the_contract_follows_its_schema(lowered: tuple[Path, Path, LowerReport]) -> None:
    _, output, _ = lowered
    schema = schema_of("contract")
    plain = json.loads((output / "contract.json").read_text())
    jsonschema.validate(plain, schema)
    del plain["methods"][0]["inputs"][0]["source"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(plain, schema)


def test_the_host_decodes_and_says_when_the_cache_is_full(lowered: tuple[Path, Path, LowerReport]) -> None:
    _, output, _ = lowered
    host = Host(output)
    sources = [[5, 6, 7]] * host.batch if host.contract.sizes["source"] else []
    tokens = host.generate_batch(sources, [[3]] * host.batch, steps=4)
    assert [len(each) for each in tokens] == [4] * host.batch
    assert tokens == Host(output).generate_batch(sources, [[3]] * host.batch, steps=4)
    assert host.batch > 1 or tokens == [host.generate(sources[0] if sources else [], [3], steps=4)]
    host.start(sources)
    for token in range(6):
        host.step([token] * host.batch)
    with pytest.raises(UsageError, match="the cache is full: it has 5 slots"):
        host.step([1] * host.batch)


@pytest.mark.slow
def test_sequences_of_a_batch_are_decoded_as_each_is_alone(tmp_path: Path) -> None:
    """Sources and prompts of several lengths; a sequence that is at its end waits for the others."""
    source = unpacked("t5-tiny", tmp_path / "model")
    for batch in (1, 2):
        lower_folder(source, tmp_path / str(batch), replace(OPTIONS, batch=batch, verify=False))
    alone, both = Host(tmp_path / "1"), Host(tmp_path / "2")
    sources, prompts = [[5, 6, 7, 8], [9]], [[3], [3, 4, 7]]
    expected = [alone.generate(*given, 3) for given in zip(sources, prompts, strict=True)]
    assert both.generate_batch(sources, prompts, 3) == expected
    both.start(sources)
    logits = both.step([3, 4])
    for ids, token, row in zip(sources, (3, 4), logits, strict=True):
        alone.start(ids)
        np.testing.assert_allclose(row, alone.step(token), atol=1e-5)


def test_a_batch_takes_as_many_sequences_as_it_has(tmp_path: Path) -> None:
    lower_folder(saved(decoder(FILLED), tmp_path / "model"), tmp_path / "out", replace(OPTIONS, batch=2, verify=False))
    host = Host(tmp_path / "out", unchecked=True)
    with pytest.raises(UsageError, match="there are tokens of 1 sequences - give those of 2"):
        host.step(1)
    with pytest.raises(UsageError, match="there are 3 sequences of tokens as prompt - give 2"):
        host.generate_batch([], [[1], [2], [3]], 2)
    with pytest.raises(UsageError, match=r"the models run 2 sequences at a time - call generate_batch\(\)"):
        host.generate([], [1], 2)
    assert "The models run 2 sequences at a time" in (tmp_path / "out" / "HOST.md").read_text()


def test_a_start_token_that_the_contract_does_not_know_is_asked_for(lowered: tuple[Path, Path, LowerReport]) -> None:
    host = Host(lowered[1])
    assert host.contract.tokens["start"] is None
    with pytest.raises(UsageError, match="the contract does not know it, so give the number"):
        host.generate_batch([[5]] * host.batch, [[host.contract.tokens["start"]]] * host.batch, steps=1)  # type: ignore[list-item]


def test_a_token_that_the_table_has_no_row_for_is_refused(lowered: tuple[Path, Path, LowerReport]) -> None:
    host = Host(lowered[1])
    for token in (-1, 1 << 40):
        host.start([[5]] * host.batch if host.contract.sizes["source"] else [])
        with pytest.raises(UsageError, match=rf"has rows 0 to \d+, and the tokens are \[{token}\]"):
            host.step([token] * host.batch)


def compiled(folder: Path) -> Path:
    """Return the program that runs the host in C++ on recorded outputs."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    app(["contract", str(folder), "-o", str(folder / "contract.h")], standalone_mode=False)
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", str(folder)]
    command = [compiler, *flags, str(EXAMPLE / "replay.cpp"), "-o", str(folder / "replay")]
    subprocess.run(command, check=True, timeout=300)
    return folder / "replay"


@pytest.fixture(scope="module")
def replay(lowered: tuple[Path, Path, LowerReport]) -> Path:
    return compiled(lowered[1])


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 6])
def test_the_host_in_cpp_feeds_the_same_bytes(
    length: int, lowered: tuple[Path, Path, LowerReport], replay: Path, tmp_path: Path
) -> None:
    assert_same_bytes(lowered[1], replay, tmp_path, length)


RULES = (
    {
        "forced_bos_token_id": 2,
        "begin_suppress_tokens": [5, 1],
        "forced_eos_token_id": 0,
        "max_length": 6,
        "min_new_tokens": 4,
    },
    {"suppress_tokens": [1, 4, 999], "min_length": 5, "bad_words_ids": [[2]], "max_new_tokens": 5},
)


@pytest.mark.slow
@pytest.mark.parametrize(("rules", "dtype"), zip(RULES, ("float32", "float16"), strict=True))
def test_the_host_in_cpp_follows_the_rules_of_the_export(rules: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    model = half(decoder(FILLED)) if dtype == "float16" else decoder(FILLED)
    source, folder = saved(model, tmp_path / "model"), tmp_path / "out"
    (source / "generation_config.json").write_text(json.dumps({**rules, "eos_token_id": [0, 7]}))
    lower_folder(source, folder, replace(OPTIONS, verify=False))
    (method,) = read_contract(folder / "contract.json").methods
    assert method.outputs[0].dtype == dtype
    tokens = assert_same_bytes(folder, compiled(folder), tmp_path, None)
    assert tokens != Host(folder).generate_batch([], [[3]], 5, generation=Generation())


def assert_same_bytes(folder: Path, replay: Path, tmp_path: Path, length: int | None) -> list[list[int]]:
    """Decode with both hosts, the one in C++ on what models gave the other, and compare tokens, inputs and states.

    Without a length there are as many tokens as the contract says.
    """
    models = numpy_host.Host(folder).run
    fed, recorded = tmp_path / "fed", tmp_path / "recorded"

    def run(method: Method, feed: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        outputs = models(method, feed)
        with (tmp_path / "expected").open("ab") as file:
            file.writelines(feed[port.name].tobytes() for port in method.inputs)
        with recorded.open("ab") as file:
            file.writelines(outputs[port.name].tobytes() for port in method.outputs)
        return outputs

    host = Host(folder, run)
    sources: list[list[int]] = []
    if length is not None and host.contract.sizes["source"]:
        sources = [[5 + token for token in range(max(1, length - place))] for place in range(host.batch)]
    steps = length if sources or length is None else 6  # to a full cache, and one more
    tokens = host.generate_batch(sources, [[3]] * host.batch, steps, host.contract.ends)
    words = [replay, folder, recorded, fed, str(steps or 0), "3", *(",".join(map(str, source)) for source in sources)]
    printed = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300).stdout
    assert [int(token) for token in printed.split()] == [token for each in tokens for token in each]
    states = b"".join(host.state[state.name].tobytes() for state in host.contract.states)
    assert fed.read_bytes() == (tmp_path / "expected").read_bytes() + states
    return tokens


CHECK = """
#include "host.hpp"
int main(int count, char** words) {
    host::say_unproven(words[1]);
    try {
        host::check_files(words[1], count > 2);
    } catch (const std::exception& error) {
        std::cerr << error.what();
        return 1;
    }
}
"""


@pytest.mark.slow
def test_the_host_in_cpp_checks_files(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    lower_folder(saved(decoder(FILLED), tmp_path / "model"), folder, replace(OPTIONS, verify=False))
    (folder / "contract.h").write_text(WRITERS["c"](read_contract(folder / "contract.json")))
    (tmp_path / "check.cpp").write_text(CHECK)
    words = ["c++", "-std=c++17", "-I", folder, "-I", EXAMPLE, tmp_path / "check.cpp", "-o", tmp_path / "check"]
    subprocess.run(words, check=True, timeout=300)

    def said(*more: str) -> str:
        found = subprocess.run(
            [tmp_path / "check", folder, *more], capture_output=True, text=True, timeout=300, check=False
        )
        first, _, rest = found.stderr.partition("\n")
        assert first == f"{folder}: its proof failed or was not run"
        assert found.returncode == bool(rest)
        return rest

    assert said() == said("checksums") == ""
    for file in ("step.onnx", "HOST.md"):
        content = (folder / file).read_bytes()
        (folder / file).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert said() == ""
        assert said("checksums") == f"{file} has another SHA-256"
        (folder / file).write_bytes(content + b" ")
        text = f"{file} has {len(content) + 1} bytes, and the contract records {len(content)}"
        assert said("checksums") == text
        assert said() == (text if file.endswith(".onnx") else "")
        (folder / file).write_bytes(content)
    (folder / "step.onnx").unlink()
    assert said() == "step.onnx is missing"


def test_the_host_in_cpp_refuses_what_the_other_refuses(
    lowered: tuple[Path, Path, LowerReport], replay: Path, tmp_path: Path
) -> None:
    sizes = read_contract(lowered[1] / "contract.json").sizes
    source = [",".join(["5"] * 7)] * sizes["batch"] if sizes["source"] else []
    (tmp_path / "recorded").touch()
    words = [replay, lowered[1], tmp_path / "recorded", tmp_path / "fed", "1", "-1", *source]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    assert re.match("Error: (the source takes 1 to 6 tokens|row -1: table step.inputs_embeds has)", done.stderr)


def test_nothing_is_written_over(tmp_path: Path) -> None:
    source, folder = saved(decoder(FILLED), tmp_path / "models"), tmp_path / "out"
    folder.mkdir()
    (folder / "step.onnx").write_bytes(b"mine")
    with pytest.raises(OutputError, match="exists - name another output with -o, or replace it with --overwrite"):
        lower_folder(source, folder, replace(OPTIONS, verify=False))
    assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("step.onnx", b"mine")]


def test_a_folder_without_models_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no \.onnx file"):
        lower_folder(tmp_path, tmp_path / "out")


def test_two_models_for_one_step_are_refused(tmp_path: Path) -> None:
    source = saved(decoder(FILLED), tmp_path / "models")
    shutil.copy(source / "model.onnx", source / "other.onnx")
    with pytest.raises(UsageError, match=r"model\.onnx and other\.onnx are both for the same step"):
        lower_folder(source, tmp_path / "out")


def test_states_that_no_machine_has_room_for_are_refused(
    lowered: tuple[Path, Path, LowerReport], tmp_path: Path
) -> None:
    plain = json.loads((lowered[1] / "contract.json").read_text())
    shape = [1 << 24, 1 << 20]
    plain["states"].append(
        {"name": "huge", "dtype": "float32", "shape": shape, "axis": None, "bytes": 4 * shape[0] * shape[1]}
    )
    for table in plain["tables"]:
        shutil.copy(lowered[1] / table["file"], tmp_path)
    (tmp_path / "contract.json").write_text(json.dumps(plain))
    with pytest.raises(
        ModelError, match=r"its states, inputs and outputs take [0-9,]+ bytes, more than this machine has"
    ):
        Host(tmp_path, unchecked=True)


def test_a_contract_of_another_version_is_refused(lowered: tuple[Path, Path, LowerReport], tmp_path: Path) -> None:
    plain = json.loads((lowered[1] / "contract.json").read_text())
    plain["version"] = 99
    (tmp_path / "contract.json").write_text(json.dumps(plain))
    with pytest.raises(ModelError, match="it is a contract of version 99 - make it again with `graphkit lower`"):
        Host(tmp_path)


@pytest.mark.slow
def test_biases_of_relative_positions_are_static_beside_a_mask_of_the_length(tmp_path: Path) -> None:
    """As rows for each length they would take heads * length ** 3 numbers: 1.7 MB here, 4.3 GB for 8 heads at 512."""
    source, out = unpacked("t5-tiny", tmp_path / "model"), tmp_path / "out"
    lower_folder(source, out, replace(OPTIONS, src_len=48, verify=False))
    contract = read_contract(out / "contract.json")
    (bias,) = (port for port in contract.methods[0].inputs if port.name == "attention_bias")
    assert (bias.source, bias.shape) == (Source("source_mask"), (1, 1, 1, 48))
    assert [table.name for table in contract.tables if table.name.startswith("encoder")] == ["encoder.inputs_embeds"]
    assert (out / "encoder.onnx").stat().st_size < (source / "encoder_model.onnx").stat().st_size + 4 * 4 * 48**2


@pytest.mark.parametrize(
    ("place", "value", "expected"),
    [((0, 0), 1.5, True), ((0, 1), -1e9, False), ((2, 0), 2.5, False), ((2, 2), 0.0, False), ((0, 2), -1e5, True)],
)
def test_a_bias_and_a_mask_are_told_apart(place: tuple[int, int], value: float, expected: bool) -> None:
    """What counts is as it is without padding, in all rows, and what pads is masked."""
    full = np.full((3, 3), 1.5, np.float32)
    found = full.copy()
    found[:, 2] = -1e9
    found[place] = value
    assert is_bias_and_mask(found, full, 2) == expected
    assert not is_bias_and_mask(found[:2], full, 2)
