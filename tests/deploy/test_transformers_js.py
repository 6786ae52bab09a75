"""A folder for transformers.js has its names and files; a stand-in that feeds as it does gives the export's tokens."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from bundles import decoder, saved
from onnx import TensorProto, helper
from real_models import unpacked, unpacked_export

import graphkit
from graphkit.deploy.transformers_js import TransformersJsReport, transformers_js_folder
from graphkit.errors import UsageError
from graphkit.examples import resolve
from graphkit.graph.declared_types import declared_dims
from graphkit.model import Model, load
from graphkit.options import TransformersJsOptions
from graphkit.passes.control_flow.merged_decoders import with_port_names
from graphkit.render.result import Result
from graphkit.verify import Decoder, decode

Run = Callable[..., tuple[object, str, str]]
ModelFile = Callable[[str], Path]
STEPS = 6
PROVEN = "Proven bit for bit at every size"


def configured(folder: Path, **more: object) -> Path:
    (folder / "config.json").write_text(json.dumps({"model_type": "some", **more}), encoding="utf-8")
    return folder


def made_folder(export: Path, output: Path, *, verify: bool = False) -> TransformersJsReport:
    return transformers_js_folder(export, output, TransformersJsOptions(verify=verify))


class StandIn:
    """Feeds a model as transformers.js 4.3 does: inputs by name, an empty cache, each present for its past."""

    def __init__(self, folder: Path, name: str) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        suffix = {"fp32": "", "fp16": "_fp16", "q8": "_quantized", "q4": "_q4"}
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))["transformers.js_config"]
        path = folder / "onnx" / f"{name}{suffix[settings['dtype'][name]]}.onnx"
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs = {port.name: port for port in self.session.get_inputs()}
        self.past: dict[str, np.ndarray] = {}

    def run(self, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        batch = len(feed["input_ids"])
        feed = {**feed, "use_cache_branch": np.array([bool(self.past)])}
        for name, port in self.inputs.items():
            if name.startswith("past_key_values") and not self.past:
                sizes = [dim if isinstance(dim, int) else batch if dim == "batch_size" else 0 for dim in port.shape]
                feed[name] = np.zeros(sizes, np.float32)
        feed |= self.past
        names = [port.name for port in self.session.get_outputs()]
        outputs = dict(zip(names, self.session.run(names, {n: feed[n] for n in self.inputs}), strict=True))
        for name, array in outputs.items():
            if name.startswith("present") and not ("encoder" in name and self.past):
                feed[name.replace("present", "past_key_values")] = array
        self.past = {name: array for name, array in feed.items() if name.startswith("past_key_values")}
        return outputs

    def tokens(self, ids: np.ndarray, mask: np.ndarray, more: dict[str, np.ndarray]) -> list[list[int]]:
        rows = []
        for _ in range(STEPS):
            places = np.maximum(mask.cumsum(1) - 1, 0) + (mask == 0)
            feed = {"input_ids": ids, "attention_mask": mask, "position_ids": places[:, -ids.shape[1] :], **more}
            ids = self.run(feed)["logits"][:, -1].argmax(-1)[:, None]
            rows.append(ids)
            mask = np.concatenate([mask, np.ones_like(ids)], 1)
        found: list[list[int]] = np.concatenate(rows, 1).tolist()
        return found


SOURCE, MASK = np.array([[5, 6, 7, 8], [9, 10, 11, 1]]), np.array([[1, 1, 1, 1], [1, 1, 1, 0]])
START = np.array([[4], [4]])


def expected_tokens(folder: Path) -> list[list[int]]:
    """What onnxruntime gives for the export as it is."""
    encoder = onnxruntime.InferenceSession(str(folder / "encoder_model.onnx"), providers=["CPUExecutionProvider"])
    (states,) = encoder.run(None, {"input_ids": SOURCE, "attention_mask": MASK})
    given = {"input_ids": START, "encoder_hidden_states": states, "encoder_attention_mask": MASK}
    merged = Decoder.open(folder / "decoder_model_merged.onnx")
    tokens: list[list[int]] = decode(merged, given=given, steps=STEPS).tokens.tolist()
    return tokens


@pytest.mark.slow
@pytest.mark.parametrize("way", ["merged", "split"])
def test_an_encoder_and_its_decoders_give_the_tokens_of_the_export(way: str, tmp_path: Path) -> None:
    export = configured(unpacked("t5-tiny", tmp_path / "export"))
    expected = expected_tokens(export)
    if way == "split":
        merged = export / "decoder_model_merged.onnx"
        graphkit.split_file(merged, export, graphkit.SplitOptions(verify=False))
        merged.unlink()
    made_folder(export, tmp_path / "out")
    encoder = StandIn(tmp_path / "out", "encoder_model").run({"input_ids": SOURCE, "attention_mask": MASK})
    more = {"encoder_hidden_states": encoder["last_hidden_state"], "encoder_attention_mask": MASK}
    found = StandIn(tmp_path / "out", "decoder_model_merged").tokens(START, np.ones_like(START), more)
    assert found == expected


def renamed(model: Model, path: Path) -> None:
    """Write a decoder-only model with names of its own."""
    names = {value.name: value.name.replace("past_key_values", "old_cache") for value in model.graph.inputs}
    names |= {value.name: value.name.replace("present", "new_cache") for value in model.graph.outputs}
    with_port_names(model, {**names, "input_ids": "ids", "logits": "scores.logits"}).save(path, weights="inline")


@pytest.mark.parametrize("has_own_names", [pytest.param(False, marks=pytest.mark.slow), True], ids=["plain", "renamed"])
def test_a_decoder_alone_gives_the_tokens_of_the_export_whatever_its_ports_are_called(
    has_own_names: bool, tmp_path: Path, model_file: ModelFile
) -> None:
    source = model_file("qwen2-tiny/model")
    (tmp_path / "export").mkdir()
    if has_own_names:
        renamed(load(source), tmp_path / "export" / "model.onnx")
    else:
        (tmp_path / "export" / "model.onnx").write_bytes(source.read_bytes())
    report = made_folder(configured(tmp_path / "export"), tmp_path / "out", verify=not has_own_names)
    assert not report.findings()
    assert [proof.proven().split(" (")[0] for proof in report.proofs] == [PROVEN][has_own_names:]
    assert (("model", "old_cache.0.key", "past_key_values.0.key") in report.names) == has_own_names
    ids = np.array([[3, 4, 5], [6, 7, 8]])
    expected = decode(Decoder.open(source), given={"input_ids": ids}, steps=STEPS).tokens.tolist()
    assert StandIn(tmp_path / "out", "model").tokens(ids, np.ones_like(ids), {}) == expected


def test_a_detector_needs_the_settings_of_its_pictures_and_no_tokenizer(tmp_path: Path) -> None:
    shutil.copy(resolve("example:detection"), configured(made(tmp_path / "export")) / "model.onnx")
    assert made_folder(tmp_path / "export", tmp_path / "out", verify=False).missing == ("preprocessor_config.json",)


def test_configurations_are_copied_and_say_what_the_models_are(tmp_path: Path, run: Run) -> None:
    export = configured(unpacked("marian-tiny", made(tmp_path / "export") / "onnx").parent, eos_token_id=0)
    for name in ("tokenizer.json", "generation_config.json", "preprocessor_config.json", "README.md"):
        (export / name).write_text(f'{{"about": "{name}"}}', encoding="utf-8")
    code, out, err = run("transformers-js", export / "onnx", "-o", tmp_path / "out", "--no-verify")
    assert (code, err) == (0, "")
    assert "Not beside the export, and needed to feed it: tokenizer_config.json." in " ".join(out.split())
    assert out.endswith(f"In JavaScript: from_pretrained('{tmp_path / 'out'}'), after env.localModelPath = '.'\n")
    files = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*"))
    assert files == [
        "config.json",
        "generation_config.json",
        "onnx/decoder_model_merged.onnx",
        "onnx/encoder_model.onnx",
        "preprocessor_config.json",
        "tokenizer.json",
    ]
    assert json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8")) == {
        "model_type": "some",
        "eos_token_id": 0,
        "transformers.js_config": {
            "dtype": {"encoder_model": "fp32", "decoder_model_merged": "fp32"},
            "use_external_data_format": {},
        },
    }


def test_weights_beside_a_model_are_where_transformers_js_looks_for_them(tmp_path: Path, model_file: ModelFile) -> None:
    load(model_file("qwen2-tiny/model")).save(configured(made(tmp_path / "export")) / "model.onnx", "shared")
    made_folder(tmp_path / "export", tmp_path / "out")
    settings = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))["transformers.js_config"]
    assert settings["use_external_data_format"] == {"model.onnx": 1}
    assert (tmp_path / "out" / "onnx" / "model.onnx_data").is_file()


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def with_node(op_type: str) -> onnx.ModelProto:
    model = decoder("causal")
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    if op_type == "DynamicQuantizeLinear":
        model.graph.node.append(helper.make_node(op_type, ["x"], ["a", "b", "c"]))
    else:
        sizes = {"K": 8, "N": 2, "bits": 4, "block_size": 16} if op_type == "MatMulNBits" else {}
        node = helper.make_node(op_type, ["x", "packed", "scales"], ["a"], domain="com.microsoft", **sizes)
        model.graph.node.append(node)
        model.graph.initializer.append(helper.make_tensor("packed", TensorProto.UINT8, [2, 1, 8], bytes(16), raw=True))
        model.graph.initializer.append(helper.make_tensor("scales", TensorProto.FLOAT, [2], [1, 1]))
    return model


@pytest.mark.parametrize(
    ("op_type", "file"),
    [
        ("MatMulNBits", "model_q4.onnx"),
        ("DynamicQuantizeLinear", "model_quantized.onnx"),
        ("DynamicQuantizeMatMul", "model_quantized.onnx"),
    ],
)
def test_a_file_is_called_by_the_dtype_of_its_weights(op_type: str, file: str, tmp_path: Path) -> None:
    report = made_folder(configured(saved(with_node(op_type), tmp_path / "export")), tmp_path / "out")
    assert f"onnx/{file}" in report.files


def with_output_of(model: onnx.ModelProto, op_type: str, **attributes: int) -> None:
    """Add an input of the positions, and an output that a node makes of it."""
    model.graph.input.append(helper.make_tensor_value_info("cache_position", TensorProto.INT64, ["seq"]))
    model.graph.node.append(helper.make_node(op_type, ["cache_position"], ["position"], **attributes))
    kind = TensorProto.FLOAT if op_type == "Cast" else TensorProto.INT64
    model.graph.output.append(helper.make_tensor_value_info("position", kind, ["seq"]))


def test_an_input_that_only_comes_out_again_is_left_out(tmp_path: Path) -> None:
    """As the lengths of sliding windows do in exports of transformers 5."""
    model = decoder("causal")
    with_output_of(model, "Identity")
    made_folder(configured(saved(model, tmp_path / "export")), tmp_path / "out", verify=True)
    kept = load(tmp_path / "out" / "onnx" / "model.onnx").graph
    assert not {"cache_position", "position"} & {value.name for value in (*kept.inputs, *kept.outputs)}


def test_the_files_that_are_missing_are_a_list_in_a_sentence() -> None:
    made = TransformersJsReport("whisper", ("config.json",), (), (), missing=("a.json", "b.json", "c.json"))
    assert "needed to feed it: a.json, b.json and c.json." in " ".join(made.to_text().split())


def test_the_layers_of_a_decoder_have_the_name_that_is_asked_for(tmp_path: Path) -> None:
    """transformers.js asks `num_layers` of EXAONE, of which transformers 5 writes `num_hidden_layers` alone."""
    export = configured(saved(decoder("causal"), tmp_path / "export"), n_layers=7)
    made_folder(export, tmp_path / "out")
    settings = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    keys = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_transformer_layers")
    assert [settings[key] for key in keys] == [1, 1, 1, 7, 1]


def test_an_input_that_transformers_js_does_not_feed_is_declined_by_name(tmp_path: Path) -> None:
    model = decoder("causal")
    with_output_of(model, "Cast", to=TensorProto.FLOAT)
    with pytest.raises(UsageError, match=r"transformers.js feeds nothing for 'cache_position'"):
        made_folder(configured(saved(model, tmp_path / "export")), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


@pytest.mark.slow
def test_decoders_of_transformers_5_are_one_model_without_what_one_of_them_gives_beside(tmp_path: Path) -> None:
    """Its first decoder gives the encoder's state back, and its second, which does not read that, no more."""
    made_folder(unpacked_export("marian-multi", tmp_path / "export"), tmp_path / "out")
    outputs = load(tmp_path / "out" / "onnx" / "decoder_model_merged.onnx").graph.outputs
    assert {value.name.split(".")[0] for value in outputs} == {"logits", "present"}


@pytest.mark.parametrize("write", [transformers_js_folder, graphkit.genai_folder])
def test_what_an_exporter_froze_is_told(write: Callable[..., Result], tmp_path: Path) -> None:
    export = unpacked_export("gemma3_text", tmp_path / "gemma3_text")
    no = {transformers_js_folder: TransformersJsOptions(verify=False)}.get(write, graphkit.GenaiOptions(verify=False))
    assert "No mask: the rows of a batch have to be of one length" in write(export, tmp_path / "out", no).to_markdown()


def test_a_decoder_that_goes_on_once_only_is_declined(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"runs only after exactly 1 token.*multi_token_decode=True"):
        made_folder(unpacked_export("marian", tmp_path / "export"), tmp_path / "out")


def test_a_cache_that_does_not_begin_empty_is_declined(tmp_path: Path) -> None:
    model = decoder("causal")
    for value in model.graph.input[3:]:
        value.type.tensor_type.shape.dim[2].dim_value = 7
    with pytest.raises(UsageError, match=r"'past_key_values.0.key' has 7 at axis 2 always - transformers.js begins"):
        made_folder(configured(saved(model, tmp_path / "export")), tmp_path / "out")


def test_the_batch_of_a_cache_gets_the_name_that_transformers_js_looks_for(tmp_path: Path) -> None:
    made_folder(configured(saved(decoder("causal"), tmp_path / "export")), tmp_path / "out")
    model = load(tmp_path / "out" / "onnx" / "model.onnx")
    dims = {value.name: declared_dims(value) for value in model.graph.inputs}
    assert (dims["past_key_values.0.key"] or ())[0] == "batch_size"


def test_an_export_without_a_configuration_is_declined(tmp_path: Path, run: Run) -> None:
    export = saved(decoder("causal"), tmp_path / "export")
    code, _, err = run("transformers-js", export, "-o", tmp_path / "out")
    assert (code, err) == (
        2,
        f"Error: {export}: has no config.json, which transformers.js needs - put it there\n",
    )


@pytest.mark.parametrize(("name", "problem"), [("nope", "cannot be opened"), ("empty", "it holds no .onnx file")])
def test_a_folder_without_models_is_named(name: str, problem: str, tmp_path: Path, run: Run) -> None:
    (tmp_path / "empty").mkdir()
    code, _, err = run("transformers-js", tmp_path / name, "-o", tmp_path / "out")
    assert (code, err.partition(problem)[0]) == (2, f"Error: {tmp_path / name}: ")


def test_a_model_for_pictures_is_declined_as_a_whole(tmp_path: Path, run: Run) -> None:
    folder = unpacked_export("paligemma-one", tmp_path / "export")
    code, _, err = run("transformers-js", folder, "-o", tmp_path / "out")
    problem = "pictures beside text are not written - make a bundle of it"
    assert (code, err) == (2, f"Error: {folder}: {problem}\n")


@pytest.mark.parametrize("place", ["tempfile.mkdtemp", "pathlib.Path.write_text", "graphkit.save.write_body"])
def test_a_folder_that_cannot_be_written_is_named_as_it_is_to_be(
    place: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / ".out-x" / "new"))

    export = configured(saved(decoder("causal"), tmp_path / "export"))
    monkeypatch.setattr(place, fail)
    code, _, err = run("transformers-js", export, "-o", tmp_path / "out", "--no-verify")
    assert code == 2
    assert err.startswith(f"Error: {tmp_path / 'out'}")
    assert "cannot be written: No space left on device - nothing was left behind" in err
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_a_folder_that_exists_is_never_written_over(tmp_path: Path, run: Run) -> None:
    export = configured(saved(decoder("causal"), tmp_path / "export"))
    code, _, err = run("transformers-js", export, "-o", export)
    assert (code, err) == (2, f"Error: {export}: exists - name a folder that does not\n")
