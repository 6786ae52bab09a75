"""Folders for onnxruntime-genai: the configuration that is written, and what is declined."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from real_models import export_cases, unpacked, unpacked_export

import graphkit
from graphkit.cli.deploy_commands import genai
from graphkit.deploy.genai import genai_folder
from graphkit.errors import UsageError
from graphkit.options import GenaiOptions
from graphkit.verify.decoding import Decoder, decode

QUICK = GenaiOptions(verify=False)
GENERATION = {"eos_token_id": [2, 5], "bos_token_id": 1, "pad_token_id": 0, "do_sample": True, "top_k": 20}
ModelFile = Callable[[str], Path]


def export(folder: Path, models: dict[str, Path], **config: object) -> Path:
    """Write the folder of an export, and return it."""
    folder.mkdir()
    for name, path in models.items():
        shutil.copyfile(path, folder / f"{name}.onnx")
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 64, **config}))
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    return folder


def config_of(folder: Path) -> dict[str, dict]:
    return json.loads((folder / "genai_config.json").read_text())


@pytest.fixture
def qwen(model_file: ModelFile, tmp_path: Path) -> Path:
    return export(tmp_path / "qwen", {"model": model_file("qwen2-tiny/model")})


@pytest.fixture(scope="module")
def gpt2_halves(model_file: ModelFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt2") / "pair"
    split = graphkit.split_merged(model_file("gpt2-tiny/decoder_model_merged"))
    folder.mkdir()
    both = {"decoder_model": split.first, "decoder_with_past_model": split.with_past}
    graphkit.save_models({folder / f"{name}.onnx": model for name, model in both.items()})
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    return folder


@pytest.fixture
def gpt2_pair(gpt2_halves: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(gpt2_halves, tmp_path / "pair"))


def whisper_encoder(frames: int = 3000) -> onnx.ModelProto:
    """Return an encoder of two frames each, as wide as the decoder in `whisper-tiny`."""
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        agraph (float[batch_size, 16, {frames}] input_features) => (float[batch_size, length, 32] last_hidden_state) {{
            halved = AveragePool <kernel_shape = [2], strides = [2]> (input_features)
            frames = Transpose <perm = [0, 2, 1]> (halved)
            last_hidden_state = MatMul (frames, wide)
        }}"""
    )
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = frames // 2
    wide = np.random.default_rng(7).normal(0, 0.5, (16, 32)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(wide, "wide"))
    return model


@pytest.fixture(scope="module")
def whisper_parts(model_file: ModelFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = export(
        tmp_path_factory.mktemp("whisper") / "parts", {}, max_target_positions=32, max_position_embeddings=None
    )
    split = graphkit.split_merged(model_file("whisper-tiny/decoder_model_merged"))
    split.first.save(folder / "decoder_model.onnx")
    split.with_past.save(folder / "decoder_with_past_model.onnx")
    onnx.save(whisper_encoder(), folder / "encoder_model.onnx")
    return folder


@pytest.fixture
def whisper(whisper_parts: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whisper_parts, tmp_path / "whisper"))


def test_a_decoder_is_described_by_what_its_graph_and_its_configurations_say(qwen: Path, tmp_path: Path) -> None:
    (qwen / "tokenizer.json").write_text("{}")
    report = genai_folder(qwen, tmp_path / "out")
    assert config_of(tmp_path / "out") == {
        "model": {
            "type": "decoder",
            "vocab_size": 97,
            "decoder": {
                "filename": "model.onnx",
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "head_size": 8,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "position_ids": "position_ids",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
            "bos_token_id": 1,
            "eos_token_id": [2, 5],
            "pad_token_id": 0,
            "context_length": 64,
        },
        "search": {"do_sample": True, "max_length": 64, "past_present_share_buffer": False, "top_k": 20},
    }
    assert set(report.files) == {"model.onnx", "genai_config.json", "tokenizer.json"}
    assert report.notes == ()
    assert (tmp_path / "out" / "model.onnx").read_bytes() == (qwen / "model.onnx").read_bytes()


@pytest.mark.parametrize("size", [-5, 0, 10**30])
def test_a_length_that_no_text_has_is_not_taken(size: int, qwen: Path, tmp_path: Path) -> None:
    (qwen / "config.json").write_text(json.dumps({"max_position_embeddings": size}))
    with pytest.raises(UsageError, match="how long a text may be"):
        genai_folder(qwen, tmp_path / "out", QUICK)


def test_two_models_become_a_pipeline_over_one_file_of_weights(gpt2_pair: Path, tmp_path: Path) -> None:
    report = genai_folder(gpt2_pair, tmp_path / "out", GenaiOptions(max_length=40))
    model = config_of(tmp_path / "out")["model"]
    assert (model["type"], model["context_length"]) == ("decoder-pipeline", 40)
    (prefill,), (decode,) = (stage.items() for stage in model["decoder"]["pipeline"])
    assert prefill[0] == "prefill"
    assert (prefill[1]["run_on_prompt"], prefill[1]["run_on_token_gen"]) == (True, False)
    assert (decode[1]["run_on_prompt"], decode[1]["run_on_token_gen"]) == (False, True)
    caches = [f"present.{layer}.{kind}" for layer in range(2) for kind in ("key", "value")]
    assert prefill[1]["outputs"] == decode[1]["outputs"] == ["logits", *caches]
    assert "past_key_values.0.key" in decode[1]["inputs"]
    assert not [name for name in prefill[1]["inputs"] if "past" in name]
    assert (tmp_path / "out" / "weights.data").exists()
    assert any("One sequence at a time" in note for note in report.notes)


def test_caches_of_other_names_get_names_by_layer(qwen: Path, tmp_path: Path) -> None:
    model = graphkit.load(qwen / "model.onnx").to_proto()
    words = {"past_key_values.0.key": "first_key_cache_0", "past_key_values.1.key": "second_past_key_1"}
    for node in model.graph.node:
        node.input[:] = [words.get(name, name) for name in node.input]
    for info in model.graph.input:
        info.name = words.get(info.name, info.name)
    onnx.save(model, qwen / "model.onnx")
    genai_folder(qwen, tmp_path / "out")
    assert config_of(tmp_path / "out")["model"]["decoder"]["inputs"]["past_key_names"] == "past_key_values.%d.key"
    inputs = {value.name for value in graphkit.load(tmp_path / "out" / "model.onnx").graph.inputs}
    assert inputs >= {f"past_key_values.{layer}.key" for layer in range(2)}


@pytest.mark.slow
def test_the_encoder_of_whisper_gives_the_cache_of_the_cross_attention_and_is_proven(
    whisper: Path, tmp_path: Path
) -> None:
    report = genai_folder(whisper, tmp_path / "out")
    assert report.proof is not None
    assert report.proof.passed
    assert "Proven bit for bit at every size" in report.to_text()
    model = config_of(tmp_path / "out")["model"]
    assert (model["type"], model["context_length"]) == ("whisper", 32)
    assert model["encoder"]["hidden_size"] == 32
    assert model["encoder"]["outputs"] == {
        "encoder_hidden_states": "encoder_hidden_states",
        "cross_present_key_names": "present_cross.%d.key",
        "cross_present_value_names": "present_cross.%d.value",
    }
    assert model["decoder"]["inputs"]["cross_past_key_names"] == "past_cross.%d.key"
    encoder = graphkit.load(tmp_path / "out" / "encoder.onnx")
    assert [value.name for value in encoder.roles.inputs] == ["audio_features"]
    assert "present_cross.1.value" in {value.name for value in encoder.graph.outputs}


def test_a_decoder_that_takes_a_prompt_otherwise_is_declined(whisper: Path, tmp_path: Path) -> None:
    step = graphkit.load(whisper / "decoder_with_past_model.onnx").to_proto()
    for node in step.graph.node:  # no scores are hidden
        if node.op_type == "Softmax":
            node.op_type = "LogSoftmax"
    onnx.save(step, whisper / "decoder_with_past_model.onnx")
    with pytest.raises(UsageError, match="it takes a prompt of several tokens otherwise"):
        genai_folder(whisper, tmp_path / "out", QUICK)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "gpt2-tiny/decoder_model_merged",
            "both steps in an If, whose condition nothing feeds - first: graphkit split",
        ),
        ("example:causal-attention", "it has no KV cache - export a decoder with its cache"),
    ],
)
def test_a_model_that_it_cannot_run_is_declined_by_name(
    name: str, reason: str, model_file: ModelFile, tmp_path: Path
) -> None:
    path = graphkit.load(name).path if ":" in name else model_file(name)
    with pytest.raises(UsageError, match=reason):
        genai_folder(export(tmp_path / "export", {"model": path}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_encoder_of_text_is_declined(tmp_path: Path) -> None:
    folder = unpacked("marian-tiny", tmp_path / "marian")
    split = graphkit.split_merged(folder / "decoder_model_merged.onnx")
    split.first.save(folder / "decoder_model.onnx")
    split.with_past.save(folder / "decoder_with_past_model.onnx")
    with pytest.raises(UsageError, match="it runs Whisper, and Marian with recurrent state"):
        genai_folder(folder, tmp_path / "out")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("position_ids", "segment_ids", "it takes 'segment_ids', and is fed input_ids, attention_mask, position_ids"),
        ("attention_mask", "attention_mask", r"'attention_mask' is not \[batch, tokens\] of integers, 1 for what"),
        ("position_ids", "position_ids", r"'position_ids' is not \[batch, tokens\] of integers - "),
    ],
)
def test_what_it_does_not_feed_is_named(old: str, new: str, reason: str, qwen: Path, tmp_path: Path) -> None:
    model = graphkit.load(qwen / "model.onnx").to_proto()
    for info in model.graph.input:
        if info.name == old:
            info.name = new
        if info.name == new == old:
            info.type.tensor_type.shape.dim.add(dim_value=1)
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
    onnx.save(model, qwen / "model.onnx")
    with pytest.raises(UsageError, match=reason):
        genai_folder(qwen, tmp_path / "out")


def test_a_step_of_one_token_alone_is_declined(gpt2_pair: Path, tmp_path: Path) -> None:
    (gpt2_pair / "decoder_model.onnx").unlink()
    step = graphkit.load(gpt2_pair / "decoder_with_past_model.onnx").to_proto()
    for info in step.graph.input:
        if info.name in ("input_ids", "position_ids"):
            info.type.tensor_type.shape.dim[1].dim_value = 1
    onnx.save(step, gpt2_pair / "decoder_with_past_model.onnx")
    with pytest.raises(UsageError, match="it takes one token at a time"):
        genai_folder(gpt2_pair, tmp_path / "out", GenaiOptions(max_length=40))


@pytest.mark.parametrize(
    ("file", "reason"), [("generation_config.json", "which token ends a text"), ("config.json", "give --max-length")]
)
def test_what_no_configuration_says_is_asked_for(file: str, reason: str, qwen: Path, tmp_path: Path) -> None:
    (qwen / file).unlink()
    with pytest.raises(UsageError, match=reason):
        genai_folder(qwen, tmp_path / "out")


def test_settings_that_it_does_not_follow_are_named(qwen: Path, tmp_path: Path) -> None:
    settings = {"suppress_tokens": [7], "forced_eos_token_id": 0, "max_new_tokens": 0, "early_stopping": "never"}
    settings["top_p"] = math.nan
    (qwen / "generation_config.json").write_text(json.dumps({**GENERATION, **settings}))
    notes = genai_folder(qwen, tmp_path / "out").notes
    named = "suppress_tokens, forced_eos_token_id, early_stopping, top_p"
    assert notes[0] == f"It does not follow what generation_config.json says of {named}"
    assert "NaN" not in (tmp_path / "out" / "genai_config.json").read_text()


def test_the_command_says_how_to_load_the_folder(
    qwen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    genai.main([str(qwen), "-o", str(tmp_path / "out")], standalone_mode=False)
    printed = capsys.readouterr().out
    assert "A model of type decoder: model.onnx, genai_config.json." in printed
    assert "onnxruntime_genai.Model(" in printed


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("lfm2", "it takes 'input.cache.layers.0.conv_states.0', and is fed input_ids"),
        ("llama-static", "decode.onnx: .* its cache has all slots from the start"),
        ("paligemma-one", "decode.onnx: .* its prompts are rows of embeddings, in place of tokens"),
        ("marian-multi", "it runs Whisper, and Marian with recurrent state"),
    ],
)
def test_an_export_of_transformers_5_that_it_cannot_run_is_declined(name: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=reason):
        genai_folder(unpacked_export(name, tmp_path / name), tmp_path / "out")


def test_inputs_that_come_out_as_they_are_are_left_out(tmp_path: Path) -> None:
    genai_folder(unpacked_export("gemma3_text", tmp_path / "export"), tmp_path / "out", QUICK)
    for stage, count in (("prefill", 2), ("decode", 6)):
        onnx.checker.check_model(tmp_path / "out" / f"{stage}.onnx")
        assert len(graphkit.load(tmp_path / "out" / f"{stage}.onnx").roles.inputs) == count


def generated(folder: Path, prompt: np.ndarray, count: int) -> list[int]:
    """Return the tokens that onnxruntime-genai puts behind a prompt."""
    runtime = pytest.importorskip("onnxruntime_genai")
    model = runtime.Model(str(folder))
    options = runtime.GeneratorParams(model)
    options.set_search_options(max_length=prompt.shape[1] + count, do_sample=False)
    generator = runtime.Generator(model, options)
    generator.append_tokens(prompt.astype(np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)[prompt.shape[1] :]]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3-padded", "gemma3_text"])
def test_onnxruntime_genai_gives_the_tokens_of_pytorch(name: str, tmp_path: Path) -> None:
    export = unpacked_export(name, tmp_path / "export")
    genai_folder(export, tmp_path / "out")
    cases = [case for case in export_cases(export) if case["batch"] == 1]
    assert cases
    for case in cases:
        expected = case["tokens"][0].tolist()
        tokens = generated(tmp_path / "out", case["inputs"]["input_ids"], len(expected))
        assert tokens == expected[: len(tokens)]
        assert len(tokens) > 3


@pytest.mark.slow
def test_onnxruntime_genai_gives_the_tokens_of_onnxruntime(qwen: Path, tmp_path: Path) -> None:
    (qwen / "generation_config.json").write_text('{"eos_token_id": 1}')
    genai_folder(qwen, tmp_path / "out")
    prompt = np.random.default_rng(2).integers(6, 90, (1, 5))
    expected = decode(Decoder.open(qwen / "model.onnx"), steps=8, given={"input_ids": prompt}).tokens[0]
    tokens = generated(tmp_path / "out", prompt, 8)
    assert tokens == expected[: len(tokens)].tolist()
    assert len(tokens) > 1
