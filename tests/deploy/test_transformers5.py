"""Exports of transformers 5 are bundled and lowered, and give PyTorch's tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import model_of
from onnx import helper
from quick_proofs import lower_by_runs
from real_models import export_cases, unpacked_export

import graphkit
from graphkit.deploy.deploy_sizes import most_positions
from graphkit.deploy.export_inputs import drop_idle_inputs
from graphkit.deploy.export_pipeline import find_pipeline
from graphkit.deploy.lowering_checks import check_prompt
from graphkit.deploy.make_bundle import BundleExport
from graphkit.equivalence.originals import Originals
from graphkit.errors import UsageError
from graphkit.hosts.numpy_host import Host
from graphkit.passes.state.join_encoder import chain_models
from graphkit.rewrite.new_interface import with_names, with_symbols
from graphkit.shapes import const, symbol
from graphkit.shapes.constraints.legal_sizes import Sizes, symbol_roles
from graphkit.shapes.input_dims import input_dims
from graphkit.verify.bundle_verifier import verify_bundle
from graphkit.verify.input_generator import InputGenerator

slow = pytest.mark.slow
END = 2
IMAGE = 119  # the token in whose place rows of a picture go


def cut(row: np.ndarray) -> list[int]:
    """Return tokens up to the one that ends them, behind which PyTorch pads."""
    tokens = [int(token) for token in row]
    return tokens[: tokens.index(END) + 1] if END in tokens else tokens


def bundled(
    export: Path, folder: Path, *, batch: int = 2, slots: int | None = None, verify: bool = False
) -> graphkit.Bundle:
    options = graphkit.BundleOptions(batch=batch, max_cache=slots, verify=verify)
    report = graphkit.bundle_folder(export, folder, options)
    if verify:
        assert report.proof is not None
        assert report.proof.findings() == ()
    return graphkit.Bundle(folder, unchecked=True)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, graphkit.Bundle]]:
    """Return an export and its bundle, which is made once and not proven; tests change neither."""
    root = tmp_path_factory.mktemp("shared")

    @cache
    def make(name: str, batch: int = 2) -> tuple[Path, Path]:
        folder = root / f"{name}-{batch}"
        bundled(unpacked_export(name, folder / "export"), folder / "bundle", batch=batch)
        return folder / "export", folder / "bundle"

    def opened(name: str, batch: int = 2) -> tuple[Path, graphkit.Bundle]:
        export, folder = make(name, batch)
        return export, graphkit.Bundle(folder, unchecked=True)

    return opened


Shared = Callable[..., tuple[Path, graphkit.Bundle]]


def cases_of(export: Path) -> Iterator[dict[str, object]]:
    return (case for case in export_cases(export) if not case["padded"])


@pytest.mark.cases("mamba2", "lfm2")
@pytest.mark.parametrize(
    "name",
    [
        "qwen3-padded",
        "llama-static",
        "lfm2",
        "mamba2",
        *(pytest.param(name, marks=slow) for name in ("gemma3_text", "llama-indexput")),
    ],
)
def test_a_decoder_gives_the_tokens_of_pytorch(name: str, shared: Shared) -> None:
    export, bundle = shared(name)
    for case in cases_of(export):
        given = bundle.generate(case["inputs"]["input_ids"], max_new_tokens=case["tokens"].shape[1])
        assert [cut(np.array(row)) for row in given] == [cut(row) for row in case["tokens"]]


def take_mask_of_slots(export: Path) -> None:
    """Let the first step of a static cache take its mask, as it does where the traced batch is padded."""
    proto = onnx.load(export / "prefill.onnx", load_external_data=False)
    batch, tokens = (dim.dim_param for dim in proto.graph.input[0].type.tensor_type.shape.dim)
    mask = helper.make_tensor_value_info("attention_mask", onnx.TensorProto.BOOL, [batch, 1, tokens, "40"])
    proto.graph.input.append(mask)
    made = next(node.input[0] for node in proto.graph.node if node.op_type == "Not")
    for node in proto.graph.node:
        node.input[:] = [mask.name if name == made else name for name in node.input]
    onnx.save(proto, export / "prefill.onnx")


def test_a_first_step_that_takes_the_mask_of_a_static_cache_counts_its_slots_itself(tmp_path: Path) -> None:
    export = unpacked_export("llama-static", tmp_path / "export")
    take_mask_of_slots(export)
    bundle = bundled(export, tmp_path / "bundle")
    assert {state.update for state in bundle.contract.states} == {"slots"}
    for case in cases_of(export):
        given = bundle.generate(case["inputs"]["input_ids"], max_new_tokens=case["tokens"].shape[1])
        assert [cut(np.array(row)) for row in given] == [cut(row) for row in case["tokens"]]
    graphkit.lower_folder(export, tmp_path / "lowered", graphkit.LowerOptions(verify=False))
    assert [method.name for method in Host(tmp_path / "lowered", unchecked=True).contract.methods] == ["step"]


def test_a_step_of_a_static_cache_is_explained_and_folded_whole(tmp_path: Path) -> None:
    """Its cache is never empty, and a mask is as long as the slots are many."""
    step = unpacked_export("llama-static", tmp_path / "export") / "decode.onnx"
    assert [finding.kind for finding in graphkit.hazards(step).found()] == ["dims-apart"]
    roles = {"s17": "batch", "s53": "past", "attention_mask.3": "past", "2": "other", "8": "other"}
    assert symbol_roles(graphkit.load(step)) == roles
    maker = InputGenerator(graphkit.load(step))
    shapes = maker.shapes(Sizes(past=2))
    drawn = [maker.arrays(shapes, past=2, seed=seed) for seed in range(9)]
    in_use = {int(each[name]) for each in drawn for name in each if name.endswith("cumulative_length")}
    assert in_use == {0, 1}
    report = graphkit.fold_file(step, tmp_path / "folded.onnx")
    assert report.proof is not None
    assert report.proof.findings() == ()
    assert not graphkit.shape_ops(tmp_path / "folded.onnx").on_shapes


@pytest.mark.slow
def test_an_encoder_decoder_whose_first_step_takes_one_token_gives_the_tokens_of_pytorch(tmp_path: Path) -> None:
    export = unpacked_export("marian-multi", tmp_path / "export")
    bundle = bundled(export, tmp_path / "bundle")
    for case in export_cases(export):
        ids, mask = (case["inputs"].get(key) for key in ("input_ids", "attention_mask"))
        given = bundle.generate(ids, mask=mask, max_new_tokens=case["tokens"].shape[1])
        assert [cut(np.array(row)) for row in given] == [cut(row) for row in case["tokens"]]


@slow
def test_steps_read_the_tokens_that_the_first_step_does_not_take(tmp_path: Path) -> None:
    bundle = bundled(unpacked_export("marian-multi", tmp_path / "export"), tmp_path / "bundle", batch=1)
    ids, start = np.array([[5, 6, 7]]), [[3, 8, 9]]
    at_once = bundle.encode(start, input_ids=ids, all_logits=True)
    first = bundle.encode([[3]], input_ids=ids)
    np.testing.assert_array_equal(at_once, np.concatenate([first, bundle.step([8]), bundle.step([9])], 1))


@slow
def test_a_first_step_that_has_the_encoder_in_it_gives_the_tokens_of_pytorch(tmp_path: Path) -> None:
    export = unpacked_export("marian-multi", tmp_path / "export")
    inside_export(export, tmp_path / "inside")
    options = graphkit.LowerOptions(src_len=16, max_cache_len=32, verify=False)
    graphkit.lower_folder(tmp_path / "inside", tmp_path / "lowered", options)
    host = Host(tmp_path / "lowered", unchecked=True)
    assert [method.name for method in host.contract.methods] == ["encoder", "cross_kv", "step"]
    for case in cases_of(export):
        if len(case["tokens"]) == 1:
            steps = case["tokens"].shape[1]
            given = host.generate(case["inputs"]["input_ids"][0].tolist(), case["prompt"], steps, end=END)
            assert cut(np.array(given)) == cut(case["tokens"][0])
    bundle = bundled(tmp_path / "inside", tmp_path / "bundle")
    for case in export_cases(export):
        given = bundle.generate(
            case["inputs"]["input_ids"],
            mask=case["inputs"]["attention_mask"],
            prompt=[case["prompt"]] * len(case["tokens"]),
            max_new_tokens=case["tokens"].shape[1],
        )
        assert [cut(np.array(row[: len(cut(want))])) for row, want in zip(given, case["tokens"], strict=True)] == [
            cut(row) for row in case["tokens"]
        ]


def inside_export(export: Path, folder: Path) -> Path:
    """Write an export whose first step has the encoder in it."""
    encoder = with_names(graphkit.load(export / "encoder.onnx"), {"attention_mask": "mask"})
    prefill = graphkit.load(export / "prefill.onnx")
    link = {prefill.roles.all("encoder state")[0].name: encoder.graph.outputs[0].name}
    both = with_names(chain_models("prefill", (encoder, prefill), link), {"mask": "attention_mask"})
    told_apart = {name for dims in input_dims(both).values() for dim in dims or () for name in dim.symbols}
    both = with_symbols(both, {name: symbol(name.removeprefix("0/")) for name in told_apart})
    folder.mkdir()
    both.save(folder / "prefill.onnx")
    graphkit.load(export / "decode.onnx").save(folder / "decode.onnx")
    return folder


@pytest.mark.slow
def test_a_bundle_has_the_encoder_apart_where_that_is_asked_for(tmp_path: Path) -> None:
    export = unpacked_export("marian-multi", tmp_path / "export")
    source = inside_export(export, tmp_path / "inside")
    options = graphkit.BundleOptions(batch=2, encode_apart=True, verify=False)
    graphkit.bundle_folder(source, tmp_path / "bundle", options)
    bundle = graphkit.Bundle(tmp_path / "bundle", unchecked=True)
    assert [method.name for method in bundle.contract.methods][:3] == ["prefill", "step", "encoder"]
    for case in [*export_cases(export)][-1:]:
        ids, mask = (case["inputs"][key] for key in ("input_ids", "attention_mask"))
        states = bundle.run("encoder", input_ids=ids, attention_mask=mask)["last_hidden_state"]
        prompt = [case["prompt"]] * len(ids)
        given = bundle.generate(states, mask=mask, prompt=prompt, max_new_tokens=case["tokens"].shape[1])
        assert [cut(np.array(row[: len(cut(want))])) for row, want in zip(given, case["tokens"], strict=True)] == [
            cut(row) for row in case["tokens"]
        ]


@slow
def test_a_bundle_with_the_encoder_apart_is_verified_again_with_its_options(tmp_path: Path) -> None:
    export = unpacked_export("marian-multi", tmp_path / "export")
    graphkit.bundle_folder(export, tmp_path / "bundle", graphkit.BundleOptions(encode_apart=True))
    assert graphkit.verify_folder(export, tmp_path / "bundle").passed


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an export and its bundle with the encoder apart, which is not proven; a test changes a copy."""
    folder = tmp_path_factory.mktemp("apart")
    export = unpacked_export("marian-multi", folder / "export")
    graphkit.bundle_folder(export, folder / "bundle", graphkit.BundleOptions(encode_apart=True, verify=False))
    return folder


@slow
@pytest.mark.parametrize("fault", ["ignores its mask", "is off at long sources"])
def test_an_encoder_apart_that_gives_other_states_fails_the_proof(fault: str, apart: Path, tmp_path: Path) -> None:
    """The first step gets the states of the export, so that the encoder is compared by itself."""
    shutil.copytree(apart / "bundle", tmp_path / "bundle")
    model = onnx.load(tmp_path / "bundle" / "encoder.onnx", load_external_data=False)
    graph = model.graph
    if fault == "ignores its mask":
        for node in graph.node:
            node.input[:] = ["ones" if name == "attention_mask" else name for name in node.input]
        one = onnx.helper.make_tensor("one", onnx.TensorProto.INT64, [1], [1])
        graph.node.insert(0, onnx.helper.make_node("ConstantOfShape", ["dims"], ["ones"], value=one))
        graph.node.insert(0, onnx.helper.make_node("Shape", ["attention_mask"], ["dims"]))
    else:
        (states,) = graph.output
        node = next(node for node in graph.node if states.name in node.output)
        node.output[:] = ["right"]
        graph.initializer.append(onnx.helper.make_tensor("twenty", onnx.TensorProto.INT64, [], [20]))
        made = [("Size", ["input_ids"], "size"), ("Greater", ["size", "twenty"], "is_long")]
        for op_type, read, name in made:
            graph.node.append(onnx.helper.make_node(op_type, read, [name]))
        graph.node.append(onnx.helper.make_node("Cast", ["is_long"], ["by"], to=onnx.TensorProto.FLOAT))
        graph.node.append(onnx.helper.make_node("Add", ["right", "by"], [states.name]))
    onnx.save(model, tmp_path / "bundle" / "encoder.onnx")
    pipeline = BundleExport.of(apart / "export", apart=True).pipeline
    assert pipeline is not None
    proof = verify_bundle(pipeline.originals, tmp_path / "bundle", exact=False)
    assert any("the states of each prompt's source" in text for text in proof.findings()), proof.findings()


def test_a_decoder_without_an_encoder_has_none_to_take_apart(tmp_path: Path) -> None:
    export = unpacked_export("qwen3-padded", tmp_path / "export")
    with pytest.raises(UsageError, match="--encode-apart: it has no encoder"):
        graphkit.bundle_folder(export, tmp_path / "bundle", graphkit.BundleOptions(encode_apart=True))


def test_lowering_has_no_encoder_within_another_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leave out --no-encode-apart, or bundle the export"):
        graphkit.lower_folder(tmp_path, tmp_path / "lowered", graphkit.LowerOptions(encode_apart=False))
    with pytest.raises(UsageError, match=r"holds no \.onnx file"):
        graphkit.lower_folder(tmp_path, tmp_path / "lowered", graphkit.LowerOptions(encode_apart=True))


def planes(ids: np.ndarray) -> np.ndarray:
    """Return positions of Qwen2-VL for one picture of 2 by 2: count, time, height and width, [4, batch, tokens]."""
    first = int(np.argmax(ids[0] == IMAGE))
    behind = first + 2 + np.arange(ids.shape[1] - first - 4)
    picture = first + np.array([[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 0, 1]])
    places = [np.concatenate([np.arange(first), row, behind]) for row in picture]
    return np.stack([np.arange(ids.shape[1]), *places])[:, None]


@slow
def test_positions_count_on_from_a_picture_at_the_end_as_in_pytorch(shared: Shared) -> None:
    """The tokens are those of transformers 5.24 for the weights of the export, whose planes go on each by itself."""
    export, bundle = shared("qwen2_vl-one", 1)
    given = next(cases_of(export))["inputs"]
    ids = np.array([[97, 97, 80, 15, 60, 117, *[IMAGE] * 4]])
    rows = run_part(bundle, "embed_tokens", ids).copy()
    pixels = (given["pixel_values"], given["image_grid_thw"])
    rows[ids == IMAGE] = run_part(bundle, "image_encoder", *pixels).reshape(-1, rows.shape[-1])
    tokens = bundle.generate(rows, inputs={"position_ids": planes(ids)}, max_new_tokens=12)
    assert tokens == [[32, 13, 29, 16, 78, 119, 16, 13, 26, 59, 99, 48]]


def nothing(_: np.ndarray) -> dict[str, np.ndarray]:
    return {}


def in_planes(ids: np.ndarray) -> dict[str, np.ndarray]:
    return {"position_ids": planes(ids)}


def from_one(ids: np.ndarray) -> dict[str, np.ndarray]:
    """Return what PaliGemma's processor adds: positions from 1, and a prompt that sees all of itself."""
    count = ids.shape[1]
    return {"position_ids": np.arange(1, count + 1)[None], "attention_mask": np.ones((1, 1, count, count), np.bool_)}


@pytest.mark.cases("paligemma-one-from_one")
@pytest.mark.parametrize(
    ("name", "more"),
    [
        pytest.param("llava-one", nothing, marks=slow),
        ("qwen2_vl-one", in_planes),
        ("paligemma-one", from_one),
    ],
)
def test_a_model_for_pictures_and_text_gives_the_tokens_of_pytorch(
    name: str, more: Callable[[np.ndarray], dict[str, np.ndarray]], shared: Shared
) -> None:
    export, bundle = shared(name, 1)
    assert bundle.contract.tokens["image"] == IMAGE
    assert any(f"at tokens equal to {IMAGE}" in step for step in bundle.contract.loop)
    tried = 0
    for case in cases_of(export):
        ids = case["inputs"]["input_ids"]
        if len(ids) == 1:
            rows = run_part(bundle, "embed_tokens", ids).copy()
            names = ("pixel_values", "image_grid_thw")
            pixels = [case["inputs"][name] for name in names if name in case["inputs"]]
            rows[ids == IMAGE] = run_part(bundle, "image_encoder", *pixels).reshape(-1, rows.shape[-1])
            given = bundle.generate(rows, inputs=more(ids), max_new_tokens=case["tokens"].shape[1])
            assert [cut(np.array(row)) for row in given] == [cut(row) for row in case["tokens"]]
            tried += 1
    assert tried


def run_part(bundle: graphkit.Bundle, name: str, *arrays: np.ndarray) -> np.ndarray:
    method = next(method for method in bundle.contract.methods if method.name == name)
    feed = {port.name: array for port, array in zip(method.inputs, arrays, strict=True)}
    return bundle.run(name, feed)[method.outputs[0].name]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "slots"),
    [("qwen3-padded", 8), ("llama-static", None), ("lfm2", None)],
)
def test_a_bundle_is_proven_against_its_export(name: str, slots: int | None, tmp_path: Path) -> None:
    bundled(unpacked_export(name, tmp_path / "export"), tmp_path / "bundle", slots=slots, verify=True)


@slow
@pytest.mark.parametrize("name", ["qwen2_vl-one", "paligemma-one"])
def test_a_bundle_of_several_models_is_proven_against_its_export(name: str, tmp_path: Path) -> None:
    bundled(unpacked_export(name, tmp_path / "export"), tmp_path / "bundle", batch=1, verify=True)


@pytest.mark.parametrize(
    ("name", "slots"),
    [
        pytest.param("gemma3_text", 32, marks=slow),
        ("llama-builder", 22),
        ("gpt_oss-builder", 22),
        pytest.param("lfm2", 32, marks=slow),
        pytest.param("llama-static", None, marks=slow),
    ],
)
def test_a_lowered_decoder_gives_the_tokens_of_pytorch(name: str, slots: int | None, tmp_path: Path) -> None:
    export = unpacked_export(name, tmp_path / "export")
    report = lower_by_runs(export, tmp_path / "lowered", graphkit.LowerOptions(max_cache_len=slots))
    assert report.proof is not None
    assert report.proof.passed
    check_tokens(Host(tmp_path / "lowered"), export)


def check_tokens(host: Host, export: Path) -> None:
    for case in cases_of(export):
        if len(case["tokens"]) == 1:
            given = host.generate(None, case["inputs"]["input_ids"][0].tolist(), case["tokens"].shape[1])
            assert cut(np.array(given)) == cut(case["tokens"][0])


def test_of_models_of_one_role_the_one_that_the_exporter_lists_counts(tmp_path: Path) -> None:
    export = unpacked_export("qwen3-padded", tmp_path / "export")
    graphkit.fold_file(export / "decode.onnx", export / "a.onnx", graphkit.FoldOptions(verify=False))
    pipeline = find_pipeline(export)
    assert pipeline.step is not None
    assert pipeline.step.name == "decode.onnx"
    for content in ("{}", '{"components": [1]}', '{"components": {"decode": 1, "prefill": {"file": ["decode.onnx"]}}}'):
        (export / "export.json").write_text(content)
        with pytest.raises(UsageError, match=r"a.onnx and decode.onnx are both for the same step - move one elsewhere"):
            find_pipeline(export)


def test_dims_of_one_meaning_get_one_name(tmp_path: Path) -> None:
    pipeline = find_pipeline(unpacked_export("qwen3-padded", tmp_path / "export")).with_decoders()
    assert pipeline.first is not None
    assert pipeline.step is not None
    first, step = (
        {n: list(map(str, d or ())) for n, d in input_dims(m).items()} for m in (pipeline.first, pipeline.step)
    )
    assert len({dims[0] for dims in (*first.values(), *step.values())}) == 1
    assert first["input_ids"] == first["attention_mask"] == first["position_ids"]
    assert {tuple(dims) for name, dims in step.items() if "cache" in name} == {("batch", "2", step_past(step), "8")}


def step_past(dims: dict[str, list[str]]) -> str:
    return next(dims for name, dims in dims.items() if name.endswith("layers.0.keys"))[2]


def test_a_static_cache_has_the_slots_of_its_export(shared: Shared, tmp_path: Path) -> None:
    export, bundle = shared("llama-static")
    slots = {state.shape[0] for state in bundle.contract.states if state.update == "slots"}
    assert slots == {bundle.contract.lengths[0].most}
    with pytest.raises(UsageError, match=r"its cache has \d+ slots from the start, not 64 - leave out --max-cache"):
        graphkit.bundle_folder(export, tmp_path / "other", graphkit.BundleOptions(max_cache=64))


def test_a_static_cache_goes_back_to_fewer_tokens(shared: Shared) -> None:
    _, bundle = shared("llama-static")
    assert {state.update for state in bundle.contract.states} == {"slots"}  # the counters of the layers are none
    bundle.prefill([[5, 6, 7]])
    expected = bundle.step([8])
    bundle.step([9])
    bundle.rewind(3)
    np.testing.assert_array_equal(bundle.step([8]), expected)


def test_a_state_that_rolls_does_not_go_back(shared: Shared) -> None:
    _, bundle = shared("lfm2")
    bundle.prefill([[5, 6, 7, 8]])
    with pytest.raises(UsageError, match="cannot go back to what it was after 3 tokens - start again"):
        bundle.rewind(3)


def test_a_prompt_that_does_not_fill_a_state_leaves_zeros_before_it(shared: Shared) -> None:
    _, bundle = shared("lfm2")
    expected = bundle.prefill([[5, 6, 7, 8]], all_logits=True)
    for count in (1, 2):
        bundle.prefill([[5, 6, 7, 8][:count]])
        logits = [bundle.step([token]) for token in [5, 6, 7, 8][count:]]
        np.testing.assert_allclose(np.concatenate(logits, 1), expected[:, count:], rtol=1e-4, atol=1e-4)


def test_a_prompt_that_leaves_a_state_too_short_is_refused_where_steps_do_not_start_with_zeros(tmp_path: Path) -> None:
    export = unpacked_export("lfm2", tmp_path / "export")
    proto = onnx.load(export / "decode.onnx", load_external_data=False)
    for output in [info.name for info in proto.graph.output if "conv_states" in info.name]:
        node = next(node for node in proto.graph.node if output in node.output)
        node.output[0] = f"{output}_less"
        proto.graph.node.append(helper.make_node("Exp", [f"{output}_less"], [output]))
    onnx.save(proto, export / "decode.onnx")
    report = graphkit.bundle_folder(export, tmp_path / "bundle", graphkit.BundleOptions(verify=False))
    assert "Not all sizes run: tokens is 3 or more." in str(report)
    with pytest.raises(UsageError, match="at which the model does not run: tokens is 3 or more"):
        graphkit.Bundle(tmp_path / "bundle", unchecked=True).prefill([[5, 6]])
    with pytest.raises(UsageError, match=r"its logits differ by .* - bundle it, which runs both$"):
        graphkit.lower_folder(export, tmp_path / "lowered", graphkit.LowerOptions(max_cache_len=32))
    first, step = (graphkit.load(export / f"{name}.onnx") for name in ("prefill", "decode"))
    fixed = with_symbols(first, {str(input_dims(first)["input_ids"][1]): const(4)})
    with pytest.raises(UsageError, match=r"its logits differ by .* - export one decoder that reads prompts and steps$"):
        check_prompt(Originals(None, fixed, step))


def test_a_language_model_may_pass_the_length_of_a_window_through(tmp_path: Path) -> None:
    """As that of Aya Vision does, whose layers have a window; its head is another model."""
    export = unpacked_export("llava-one", tmp_path / "export")
    proto = onnx.load(export / "language_model.onnx", load_external_data=False)
    proto.graph.node.append(helper.make_node("Identity", ["window"], ["window_out"]))
    for ports, name in ((proto.graph.input, "window"), (proto.graph.output, "window_out")):
        ports.append(helper.make_tensor_value_info(name, onnx.TensorProto.INT64, []))
    onnx.save(proto, export / "language_model.onnx")
    pipeline = find_pipeline(export)
    assert [model.name for model in pipeline.parts] == ["embed_tokens.onnx", "image_encoder.onnx"]
    assert [model.name for model in pipeline.halves] == ["language_model.onnx", "lm_head.onnx"]


def test_how_to_export_experts_that_read_as_many_rows_as_data_sends_them(tmp_path: Path) -> None:
    export = unpacked_export("lfm2", tmp_path / "export")
    proto = onnx.load(export / "decode.onnx", load_external_data=False)
    at, product = next((at, node) for at, node in enumerate(proto.graph.node) if node.op_type == "MatMul")
    for name, number in (("nothing", 0), ("one", 1)):
        proto.graph.initializer.append(helper.make_tensor(name, onnx.TensorProto.INT64, [], [number]))
    proto.graph.node.insert(at, helper.make_node("Range", ["nothing", "one", "one"], ["sent"]))
    proto.graph.node.insert(at + 1, helper.make_node("Gather", [product.input[0], "sent"], ["rows"], axis=0))
    product.input[0] = "rows"
    onnx.save(proto, export / "decode.onnx")
    options = graphkit.LowerOptions(max_cache_len=16, verify=False)
    notes = graphkit.lower_folder(export, tmp_path / "lowered", options).notes
    assert any(
        note.endswith("call model.set_experts_implementation('batched_mm') before the export.") for note in notes
    )


def test_positions_of_one_new_token_limit_the_slots(tmp_path: Path) -> None:
    step = graphkit.load(unpacked_export("marian-multi", tmp_path / "export") / "decode.onnx")
    assert most_positions(step) == 64


def see_all(file: Path) -> None:
    """Let each token of a prompt see those behind it, too."""
    proto = onnx.load(file, load_external_data=False)
    compared = [node for node in proto.graph.node if node.op_type == "LessOrEqual"]
    for number, node in enumerate(compared):
        out, at = node.output[0], list(proto.graph.node).index(node) + 1
        node.output[0], names = f"seen_{number}", [f"seen_{number}", f"not_seen_{number}"]
        proto.graph.node.insert(at, helper.make_node("Not", names[:1], names[1:]))
        proto.graph.node.insert(at + 1, helper.make_node("Or", names, [out]))
    onnx.save(proto, file)


@pytest.mark.cases("llava-one-language_model")
@pytest.mark.parametrize(("name", "file"), [("gemma3_text", "prefill"), ("llava-one", "language_model")])
def test_a_prompt_whose_tokens_see_those_behind_them_is_not_lowered(name: str, file: str, tmp_path: Path) -> None:
    export = unpacked_export(name, tmp_path / "export")
    see_all(export / f"{file}.onnx")
    with pytest.raises(UsageError, match=r"after a prompt that it reads token by token its logits differ by"):
        graphkit.lower_folder(export, tmp_path / "lowered", graphkit.LowerOptions(max_cache_len=32))


def freeze_prompt(export: Path, name: str, tokens: int = 7) -> Path:
    """Return the file of a first step that is declared to read prompts of one length, as tracing of one leaves it."""
    proto = onnx.load(export / f"{name}.onnx")
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = tokens
    onnx.save(proto, export / f"{name}.onnx")
    return export / f"{name}.onnx"


@pytest.mark.cases("mamba2-None")
@pytest.mark.parametrize(("name", "slots"), [("mamba2", None), ("gemma3_text", 24)])
def test_steps_read_prompts_where_the_first_step_reads_one_length(name: str, slots: int | None, tmp_path: Path) -> None:
    export = unpacked_export(name, tmp_path / "export")
    freeze_prompt(export, "prefill")
    bundle = bundled(export, tmp_path / "bundle", batch=1, slots=slots, verify=True)
    report = graphkit.bundle_folder(export, tmp_path / "dry", graphkit.BundleOptions(dry_run=True))
    told = "reads prompts token by token, as prefill.onnx reads those of one length alone"
    assert told in [change for _, change in report.changes]
    cases = [case for case in cases_of(export) if len(case["tokens"]) == 1]
    for case in cases:
        given = bundle.generate(case["inputs"]["input_ids"], max_new_tokens=case["tokens"].shape[1])
        assert [cut(np.array(row)) for row in given] == [cut(row) for row in case["tokens"]]
    assert {case["inputs"]["input_ids"].shape[1] for case in cases} - {7}


def test_steps_do_not_read_prompts_of_a_first_step_whose_tokens_see_those_behind_them(tmp_path: Path) -> None:
    export = unpacked_export("gemma3_text", tmp_path / "export")
    see_all(freeze_prompt(export, "prefill"))
    with pytest.raises(UsageError, match=r"after a prompt that it reads token by token its logits differ by"):
        bundled(export, tmp_path / "bundle", batch=1, verify=True)


def test_a_mask_of_the_source_stays_one_without_the_state_of_the_encoder_beside_it() -> None:
    step = model_of(
        """(int64[N, F] attention_mask, int64[N, 1] decoder_input_ids, float[N, S, 8] encoder_hidden_states,
            float[N, 2, P, 4] "past_key_values.0.decoder.key")
        => (float[N, 1, 9] logits, float[N, 2, Q, 4] "present.0.decoder.key", int64[N, 1] frames)
        <int64[1] last = {-1}> {
            logits = Gather (table, decoder_input_ids)
            frames = ReduceSum (attention_mask, last)
            "present.0.decoder.key" =
                Concat <axis = 2> ("past_key_values.0.decoder.key", "past_key_values.0.decoder.key")
        }""",
        table=np.zeros((9, 9), np.float32),
    )
    assert [value.name for value in step.roles.all("encoder mask")] == ["attention_mask"]
    made = drop_idle_inputs(step)
    assert not made.roles.all("encoder state")
    assert [value.name for value in made.roles.all("encoder mask")] == ["encoder_attention_mask"]


def test_a_prompt_whose_positions_are_the_callers_is_not_lowered(tmp_path: Path) -> None:
    export = unpacked_export("qwen2_vl-one", tmp_path / "export")
    with pytest.raises(UsageError, match=r"language_model\.onnx: the caller says where the tokens of a prompt stand"):
        graphkit.lower_folder(export, tmp_path / "lowered", graphkit.LowerOptions(max_cache_len=32))


def test_later_positions_count_on_from_those_of_the_caller(shared: Shared) -> None:
    _, bundle = shared("paligemma-one", 1)
    rows, places = np.ones((1, 3, 32), np.float32), {"attention_mask": np.ones((1, 1, 3, 3), np.bool_)}
    bundle.prefill(rows, {**places, "position_ids": [[1, 2, 3]]})
    counted = bundle.step([7])
    bundle.prefill(rows, {**places, "position_ids": [[1, 2, 9]]})
    assert not np.allclose(bundle.step([7]), counted)
    assert bundle.state["position_ids"].tolist() == [[11]]


@slow
def test_a_static_cache_whose_mask_may_hide_the_past_is_declined(tmp_path: Path) -> None:
    export = unpacked_export("llama-static", tmp_path / "export")
    settings = json.loads((export / "config.json").read_text())
    (export / "config.json").write_text(json.dumps({**settings, "sliding_window": 4}))
    for deploy in (graphkit.bundle_folder, graphkit.lower_folder):
        with pytest.raises(UsageError, match=r"config\.json has a window that it may hide more by"):
            deploy(export, tmp_path / "out")
    (export / "config.json").write_text(json.dumps({**settings, "sliding_window": 40}))
    report = graphkit.lower_folder(export, tmp_path / "out")  # it hides nothing of 40 slots
    assert report.proof is not None
    assert "'attention_mask' of the export is the caller's: it is taken to hide nothing but" in report.proof.proven()


def test_a_lowered_static_cache_has_one_slot_less_and_the_new_token_beside(tmp_path: Path) -> None:
    export = unpacked_export("llama-static", tmp_path / "export")
    with pytest.raises(UsageError, match="its cache has 39 slots beside the new token from the start, not 32"):
        graphkit.lower_folder(export, tmp_path / "other", graphkit.LowerOptions(max_cache_len=32, verify=False))
    graphkit.lower_folder(export, tmp_path / "lowered", graphkit.LowerOptions(verify=False))
    host = Host(tmp_path / "lowered", unchecked=True)
    contract = host.contract
    assert (contract.sizes["capacity"], contract.sizes["positions"]) == (39, 40)
    assert contract.methods[0].became["position_ids"] == "position_values, position_values_2, attention_bias"
    check_tokens(host, export)


def test_a_growing_cache_is_no_static_one_whatever_is_declared(tmp_path: Path) -> None:
    export = unpacked_export("qwen3-padded", tmp_path / "export")
    step = onnx.load(export / "decode.onnx", load_external_data=False)
    types = {info.name.removeprefix("input."): info.type for info in step.graph.input}
    for info in step.graph.output:
        if (name := info.name.removeprefix("output.")) in types:
            info.type.CopyFrom(types[name])
    roles = graphkit.load(step).roles
    assert roles.pasts
    assert not any(entry.is_static for entry in roles.cache)


@slow
def test_a_floor_of_masks_is_as_deep_as_large_scores_need_it(tmp_path: Path) -> None:
    export = unpacked_export("marian-multi", tmp_path / "export")
    report = graphkit.lower_folder(export, tmp_path / "lowered", graphkit.LowerOptions(src_len=16, max_cache_len=32))
    assert report.proof is not None
    assert report.proof.passed
    assert "not 'output.cache.cross_attention_cache.layers.{0-1}.{keys|values}'." in str(report.proof.caveats)
    host = Host(tmp_path / "lowered")
    assert host.contract.floor < -100
    for case in export_cases(export):
        if len(case["tokens"]) == 1:
            given = host.generate(case["inputs"]["input_ids"][0].tolist(), steps=case["tokens"].shape[1])
            assert cut(np.array(given)) == cut(case["tokens"][0])


@pytest.mark.parametrize(
    "name",
    [pytest.param("llama-builder", marks=slow), "gpt_oss-builder"],  # with sinks, and caches of a window's tokens
)
def test_a_bundle_of_the_model_builder_has_attention_in_plain_operators_and_no_mask(name: str, tmp_path: Path) -> None:
    export = unpacked_export(name, tmp_path / "export")
    bundle = bundled(export, tmp_path / "bundle", verify=True)
    assert "mask" not in {port.kind for method in bundle.contract.methods for port in method.inputs}
    assert {state.update for state in bundle.contract.states} == {"slots", *["ring"] * ("gpt_oss" in name)}
    assert json.loads((tmp_path / "bundle" / "bundle.json").read_text())["proof"]["tolerance"] == 1e-4
    for case in cases_of(export):
        given = bundle.generate(case["inputs"]["input_ids"], max_new_tokens=case["tokens"].shape[1])
        assert [cut(np.array(row)) for row in given] == [cut(row) for row in case["tokens"]]


def test_whisper_of_the_model_builder_begins_with_its_encoder_and_nothing_past(tmp_path: Path) -> None:
    """Its encoder gives the cross-attention cache, and no model the logits of a first step."""
    export = unpacked_export("whisper-builder", tmp_path / "export")
    bundle = bundled(export, tmp_path / "bundle", verify=True)
    report = lower_by_runs(export, tmp_path / "lowered", graphkit.LowerOptions(max_cache_len=32))
    assert report.proof is not None
    assert report.proof.findings() == ()
    host = Host(tmp_path / "lowered")
    for case in cases_of(export):
        rows, count = case["tokens"].shape
        start, sound = [case["prompt"]] * rows, {"audio_features": case["inputs"]["input_features"]}
        logits, tokens = bundle.encode(start, **sound), []
        for _ in range(count):
            tokens.append(logits[:, -1].argmax(-1))
            logits = bundle.step(tokens[-1][:, None])
        assert list(map(cut, np.stack(tokens, 1))) == list(map(cut, case["tokens"]))
        if rows == 1:
            host.start(**sound)
            given = [*map(host.step, case["prompt"])][-1:]
            while len(given) < count:
                given.append(host.step(int(given[-1].argmax())))
            assert cut(np.array([logits.argmax() for logits in given])) == cut(case["tokens"][0])


def slide_all_caches(file: Path) -> None:
    """Let each layer of a decoder keep the last eight tokens alone."""
    model = onnx.load(file, load_external_data=False)
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            kept = [each for each in node.attribute if each.name not in ("local_window_size", "sliding_window_cache")]
            del node.attribute[:]
            slides = {"local_window_size": 8, "sliding_window_cache": 1}
            node.attribute.extend([*kept, *(helper.make_attribute(*each) for each in slides.items())])
    for info in (*model.graph.input, *model.graph.output):
        if info.name.startswith(("past", "present")):
            info.type.tensor_type.shape.dim[2].dim_param = "slots"
    onnx.save(model, file)


def test_caches_of_a_window_alone_grow_too(tmp_path: Path) -> None:
    export = unpacked_export("gpt_oss-builder", tmp_path / "export")
    slide_all_caches(export / "model.onnx")
    bundle = bundled(export, tmp_path / "bundle", verify=True)
    assert {state.update for state in bundle.contract.states} == {"ring"}


def test_caches_of_a_window_whose_shapes_are_not_known_are_declined(tmp_path: Path) -> None:
    export = unpacked_export("gpt_oss-builder", tmp_path / "export")
    model = onnx.load(export / "model.onnx", load_external_data=False)
    for info in model.graph.input:
        if info.name.startswith("past"):
            info.type.tensor_type.ClearField("shape")
    onnx.save(model, export / "model.onnx")
    with pytest.raises(UsageError, match=r"its sliding_window_cache is set, which has no plain spelling"):
        bundled(export, tmp_path / "bundle")


def test_a_bundle_refuses_an_attention_that_has_no_plain_spelling(tmp_path: Path) -> None:
    export = unpacked_export("llama-builder", tmp_path / "export")
    step = onnx.load(export / "model.onnx", load_external_data=False)
    for node in step.graph.node:
        if node.op_type == "GroupQueryAttention":
            node.attribute.append(helper.make_attribute("qk_output", 1))
    onnx.save(step, export / "model.onnx")
    with pytest.raises(UsageError, match=r"decompose-attention: .*its qk_output is set, which has no"):
        bundled(export, tmp_path / "bundle")


def test_a_layer_that_no_logits_follow_from_is_named(tmp_path: Path) -> None:
    export = unpacked_export("llama-builder", tmp_path / "export")
    model = onnx.load(export / "model.onnx", load_external_data=False)
    *_, before, last = (node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    for node in model.graph.node:
        node.input[:] = [before.output[0] if name == last.output[0] else name for name in node.input]
    onnx.save(model, export / "model.onnx")
    with pytest.raises(UsageError, match=r"no logits follow from 'past_key_values\.1\.key': a layer is cut off"):
        graphkit.lower_folder(export, tmp_path / "lowered", graphkit.LowerOptions(max_cache_len=22))


def test_a_decoder_of_rows_alone_needs_its_table(tmp_path: Path) -> None:
    export = unpacked_export("llama-builder", tmp_path / "export")
    model = onnx.load(export / "model.onnx", load_external_data=False)
    (lookup,) = (node for node in model.graph.node if "input_ids" in node.input)
    (ids,) = (info for info in model.graph.input if info.name == "input_ids")
    (table,) = (tensor for tensor in model.graph.initializer if tensor.name == lookup.input[0])
    dims = ["batch_size", "sequence_length", table.dims[1]]
    ids.CopyFrom(helper.make_tensor_value_info("inputs_embeds", onnx.TensorProto.FLOAT, dims))
    model.graph.node.remove(lookup)
    for node in model.graph.node:
        node.input[:] = ["inputs_embeds" if name == lookup.output[0] else name for name in node.input]
    onnx.save(model, export / "model.onnx")
    with pytest.raises(UsageError, match=r"rows of embeddings, and no tokens.* - export it with its table, or give"):
        graphkit.lower_folder(export, tmp_path / "out", graphkit.LowerOptions(max_cache_len=22))
    with pytest.raises(UsageError, match=r"not known what 'inputs_embeds' is for - name it in a bundle\.toml"):
        graphkit.bundle_folder(export, tmp_path / "out", graphkit.BundleOptions(max_cache=22))
    graphkit.lower_folder(export, tmp_path / "out", graphkit.LowerOptions(max_cache_len=22, verify=False))
    (step,) = Host(tmp_path / "out", unchecked=True).contract.methods
    assert [port.name for port in step.inputs if port.kind == "user"] == ["inputs_embeds"]


def negate_output(file: Path) -> None:
    """Let a model give its one output negated."""
    proto = onnx.load(file, load_external_data=False)
    (name,) = (info.name for info in proto.graph.output)
    for node in proto.graph.node:
        node.output[:] = [f"{out}_before" if out == name else out for out in node.output]
    proto.graph.node.append(helper.make_node("Neg", [f"{name}_before"], [name]))
    onnx.save(proto, file)


@slow
def test_what_a_part_gives_is_compared_where_its_sizes_depend_on_data(tmp_path: Path) -> None:
    export = unpacked_export("qwen2_vl-one", tmp_path / "export")
    bundled(export, tmp_path / "bundle", batch=1)
    negate_output(tmp_path / "bundle" / "image_encoder.onnx")
    proof = graphkit.verify_folder(export, tmp_path / "bundle")
    assert [finding for finding in proof.findings() if "image_encoder.onnx gives" in finding]


def test_a_prompt_of_rows_is_compared_whatever_other_tables_there_are(tmp_path: Path) -> None:
    export = unpacked_export("llava-one", tmp_path / "export")
    table = onnx.load(export / "embed_tokens.onnx")
    onnx.save(table, export / "other_table.onnx")
    with pytest.raises(UsageError, match=r"embed_tokens\.onnx and other_table\.onnx may make its 'inputs_embeds'"):
        graphkit.lower_folder(export, tmp_path / "lowered", graphkit.LowerOptions(max_cache_len=32))
