"""Sizes that an exporter froze are named; models whose sizes are fixed on purpose are not."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import proto_of
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
from real_models import DISTINCT, params, unpacked_export
from sessions import run

from graphkit.analysis.comparison import compare
from graphkit.analysis.model_fit import fit
from graphkit.analysis.model_interface import MANIFEST, FrozenSize, check_frozen_sizes, frozen_sizes
from graphkit.analysis.report import ReportOptions, report
from graphkit.deploy.make_bundle import BundleOptions, bundle_folder
from graphkit.errors import UsageError
from graphkit.model import Model, load

RealModel = Callable[[str], Model]

CONSTANTS = {"table": np.ones((9, 8), np.float32), "head": np.ones((8, 9), np.float32), "one": np.array([1])}
ROW = "row = Gather(table, input_ids)  logits = MatMul(row, head)  new = Unsqueeze(row, one)"
GROWS = "present_0_key = Concat<axis = 2>(past_0_key, new)"
ROLLS = "a, b = Split<axis = 2, num_outputs = 2>(past_0_key)  present_0_key = Concat<axis = 2>(b, a)"
KEEPS = "present_0_key = Identity(past_0_key)"
OPEN = "float[b, 1, p, 8] past_0_key"
MASK = "int64[b, p_and_s] attention_mask"


def model_of(inputs: str, present: str = "b, 1, t, 8", logits: str = "b, s, 9", body: str = GROWS) -> Model:
    """Return a decoder in ONNX text, in which a dim called `n7` is called by the number 7."""
    outputs = f"float[{logits}] logits, float[{present}] present_0_key"
    proto = proto_of(f"({inputs}) => ({outputs}) {{ {ROW} {body} }}", **CONSTANTS)
    for dim in itertools.chain.from_iterable(value.type.tensor_type.shape.dim for value in proto.graph.input):
        if dim.dim_param[:1] == "n" and dim.dim_param[1:].isdigit():
            dim.dim_param = dim.dim_param[1:]
    return Model.from_proto(proto)


def rows_of(model: Model) -> list[FrozenSize]:
    return list(frozen_sizes(model).rows)


def found(model: Model) -> list[tuple[str, str]]:
    return [(row.kind, row.where) for row in rows_of(model)]


def of_one_token() -> Model:
    return model_of(f"int64[b, 1] input_ids, {MASK}, float[b, 1, 1, 8] past_0_key", "b, 1, 2, 8")


def test_a_past_of_one_length_is_a_fault() -> None:
    (row,) = rows_of(of_one_token())
    assert (row.kind, row.size, row.where, row.ports) == ("frozen-past", 1, "1 token", "past_0_key [b, 1, 1, 8]")
    assert row.text == "this decoder runs only after exactly 1 token: its past was exported with that length"
    assert row.advice.startswith("export it anew with a dynamic dim for the length of the past")
    verdict = report(of_one_token(), ReportOptions(only=("verdict",)))
    assert "! runs only after a past of one length: 1 token (interface)" in verdict.to_text(80)
    assert len(verdict.findings()) == 1


NAMED = f"int64[b, n1] input_ids, {MASK}, float[b, 1, n7, 8] past_0_key"


@pytest.mark.parametrize(
    ("inputs", "present", "logits"),
    [
        pytest.param(NAMED, "b, 1, 8, 8", "b, s, 9", id="one new token"),
        pytest.param(NAMED.replace("n1", "s"), "b, 1, 8, 8", "b, s, 9", id="tokens are open"),
        pytest.param(NAMED.replace("n7", "n11").replace("n1]", "n8]"), "b, 1, 12, 8", "b, 1, 9", id="the whole text"),
    ],
)
def test_a_past_that_is_called_by_its_length_and_grows_to_a_number_is_a_fault(
    inputs: str, present: str, logits: str
) -> None:
    """CPM-Ant: the input's dim is called '11', and the output has 12."""
    row = rows_of(model_of(inputs, present, logits))[0]
    assert (row.kind, row.size) == ("frozen-past", 11 if "n11" in inputs else 7)


def test_a_past_that_is_called_by_a_number_and_grows_to_a_name_is_open() -> None:
    model = model_of(NAMED, "b, 1, t, 8")
    assert found(model) == []
    proto = model_of(NAMED, "b, 1, t, 8").proto
    proto.graph.output[1].type.tensor_type.shape.dim[2].dim_param = "8"
    assert found(Model.from_proto(proto)) == []


def test_onnxruntime_refuses_a_past_of_another_length() -> None:
    feeds = {"input_ids": np.array([[3]]), "attention_mask": np.ones((1, 3), np.int64)}
    assert len(run(of_one_token(), {**feeds, "past_0_key": np.zeros((1, 1, 1, 8), np.float32)})) == 2
    with pytest.raises(InvalidArgument, match="Got: 2 Expected: 1"):
        run(of_one_token(), {**feeds, "past_0_key": np.zeros((1, 1, 2, 8), np.float32)})


@pytest.mark.parametrize("body", [ROLLS, KEEPS])
def test_a_cache_that_nothing_new_reaches_is_a_fault(body: str) -> None:
    (row,) = rows_of(model_of(f"int64[b, s] input_ids, {MASK}, {OPEN}", "b, 1, p, 8", body=body))
    assert (row.kind, row.ports) == ("lost-write", "past_0_key [b, 1, p, 8]")
    assert row.advice == "export it anew so that each step gives its new keys and values back"


def test_a_cache_of_cross_attention_comes_back_as_it_was() -> None:
    encoder = "float[b, source, 8] encoder_hidden_states"
    assert rows_of(model_of(f"int64[b, s] input_ids, {encoder}, {OPEN}", "b, 1, p, 8", body=KEEPS)) == []


@pytest.mark.parametrize(
    ("inputs", "present", "logits", "expected"),
    [
        pytest.param(f"int64[1, s] input_ids, {OPEN}", "1, 1, t, 8", "1, s, 9", "a batch of 1", id="batch"),
        pytest.param(f"int64[n2, s] input_ids, {OPEN}", "2, 1, t, 8", "2, s, 9", "a batch of 2", id="spelled batch"),
        pytest.param(f"int64[b, 7] input_ids, {MASK}, {OPEN}", "b, 1, t, 8", "b, 7, 9", "7 tokens", id="tokens"),
        pytest.param(f"int64[b, n7] input_ids, {MASK}, {OPEN}", "b, 1, t, 8", "b, 7, 9", "7 tokens", id="spelled"),
        pytest.param(
            f"int64[b, s] input_ids, int64[b, 9] attention_mask, {OPEN}",
            "b, 1, t, 8",
            "b, s, 9",
            "a mask of 9",
            id="mask",
        ),
    ],
)
def test_a_size_that_is_fixed_while_others_are_open_is_a_note(
    inputs: str, present: str, logits: str, expected: str
) -> None:
    model = model_of(inputs, present, logits)
    assert found(model) == [("frozen-size", expected)]
    verdict = report(model, ReportOptions(only=("verdict",))).to_text(80)
    assert f"- sizes are those of the exporter's example: {expected} (interface)" in verdict


def test_a_source_as_long_as_its_caches_is_a_note() -> None:
    inputs = "int64[b, s] decoder_input_ids, int64[b, n7] encoder_attention_mask, float[b, 1, p, 8] past_0_decoder_key"
    outputs = "float[b, s, 9] logits, float[b, 1, t, 8] present_0_decoder_key, float[b, 1, 7, 8] present_0_encoder_key"
    body = f"""{ROW.replace("input_ids", "decoder_input_ids")}
        present_0_decoder_key = Concat<axis = 2>(past_0_decoder_key, new)  present_0_encoder_key = Neg(new)"""
    proto = proto_of(f"({inputs}) => ({outputs}) {{ {body} }}", **CONSTANTS)
    proto.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "7"
    model = Model.from_proto(proto)
    assert found(model) == [("frozen-size", "a source of 7")]
    with pytest.raises(
        UsageError, match=r"every source has exactly 7 positions, .* anew with a dynamic dim for the source"
    ):
        check_frozen_sizes([model], 1)


def test_rows_without_a_mask_are_a_note() -> None:
    (row,) = rows_of(model_of(f"int64[b, s] input_ids, {OPEN}"))
    assert (row.kind, row.size) == ("no-mask", 0)
    assert row.text == "no mask: the rows of a batch have to be of one length, for padding would count as tokens"


@pytest.mark.parametrize(
    ("tokens", "mask", "rotates", "expected"),
    [
        ("b, s", f"{MASK}, ", 1, [("lost-positions", "rows of input_ids")]),
        ("b, s", "", 1, [("no-mask", "rows of input_ids")]),
        ("b, s", f"{MASK}, ", 0, []),
        ("b, 1", f"{MASK}, ", 1, []),
        ("1, s", f"{MASK}, ", 1, [("frozen-size", "a batch of 1")]),
    ],
)
def test_positions_of_a_prompt_that_are_not_read_are_a_note(
    tokens: str, mask: str, rotates: int, expected: Sequence[tuple[str, str]]
) -> None:
    inputs = f"int64[{tokens}] input_ids, {mask}int64[{tokens}] position_ids, {OPEN}"
    body = f"""present_0_key = Concat<axis = 2>(past_0_key, new)  total = Constant<value_int = 1>()
        lengths = Cast<to = 6>(total)  y, k, v = com.microsoft.GroupQueryAttention<num_heads = 1, kv_num_heads = 1,
        do_rotary = {rotates}>(row, row, row, , , lengths, lengths, table, table, position_ids)"""
    assert found(model_of(inputs, body=body, logits=f"{tokens}, 9")) == expected


@pytest.mark.parametrize(
    ("inputs", "present", "logits"),
    [
        pytest.param(f"int64[b, s] input_ids, {MASK}, {OPEN}", "b, 1, t, 8", "b, s, 9", id="all open"),
        pytest.param(f"int64[b, 1] input_ids, {MASK}, {OPEN}", "b, 1, t, 8", "b, 1, 9", id="a step"),
        pytest.param(
            "int64[1, 7] input_ids, int64[1, 16] attention_mask, float[1, 1, 16, 8] past_0_key",
            "1, 1, 16, 8", "1, 7, 9", id="all fixed",
        ),
        pytest.param(f"int64[n2, n3] input_ids, {MASK}, {OPEN}", "b, 1, t, 8", "n, s, 9", id="numbers that are names"),
    ],
)  # fmt: skip
def test_a_model_without_frozen_sizes_has_no_finding(inputs: str, present: str, logits: str) -> None:
    assert rows_of(model_of(inputs, present, logits)) == []


def test_inputs_of_unknown_rank_are_no_sizes() -> None:
    proto = model_of(f"int64[b, s] input_ids, {MASK}, {OPEN}").proto
    for value in proto.graph.input:
        value.type.tensor_type.ClearField("shape")
    assert {row.kind for row in rows_of(Model.from_proto(proto))} <= {"no-mask"}


@pytest.mark.parametrize("name", params(DISTINCT))
def test_real_models_that_run_at_all_sizes_have_no_finding(name: str, real_model: RealModel) -> None:
    if not name.startswith("cache-styles"):  # which have no mask
        assert rows_of(real_model(name)) == []


@pytest.mark.parametrize(
    ("name", "file", "expected"),
    [
        ("llava-one", "decode", [("frozen-size", "a batch of 1")]),
        ("gemma3_text", "decode", [("no-mask", "rows of input_ids")]),
        ("qwen3-padded", "prefill", []),
        ("marian-multi", "decode", []),
        ("llama-static", "decode", []),
    ],
)
def test_exports_of_transformers(name: str, file: str, expected: Sequence[tuple[str, str]], tmp_path: Path) -> None:
    model = load(unpacked_export(name, tmp_path) / f"{file}.onnx")
    assert found(model) == expected
    advice = {"a batch of 1": "from an example of two rows", "rows of input_ids": "with a padded row"}
    assert all(advice[row.where] in row.advice for row in rows_of(model))


def test_an_example_of_two_rows_is_no_way_out_where_there_was_one(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text("{}")
    for rows, way in {"1": "from an example of two rows, or with explicit", "n2": "with explicit"}.items():
        proto = model_of(f"int64[{rows}, s] input_ids, {OPEN}", f"{rows[-1]}, 1, t, 8", f"{rows[-1]}, s, 9").proto
        onnx.save(proto, tmp_path / "m.onnx")
        assert [row.advice for row in rows_of(load(tmp_path / "m.onnx"))] == [f"export it anew {way} dynamic_shapes"]


def without(name: str, parts: Sequence[str], folder: Path) -> list[str]:
    """Return the sentences on parts that an export of transformers has not got."""
    unpacked_export(name, folder)
    for part in parts:
        (folder / f"{part}.onnx").unlink()
    return [text.partition(": ")[0] for text in fit([load(path) for path in sorted(folder.glob("*.onnx"))]).absent]


def test_parts_that_an_export_has_not_got_are_named(tmp_path: Path) -> None:
    parts = ["embed_tokens", "image_encoder"]
    assert without("llava-one", [], tmp_path / "whole") == []
    assert without("llava-one", parts, tmp_path / "bare") == ["no embedding table", "no encoder of pictures"]
    assert without("llava-one", parts[1:], tmp_path / "blind") == ["no encoder of pictures"]
    assert without("marian-multi", [], tmp_path / "pair") == []
    assert without("marian-multi", ["encoder"], tmp_path / "alone") == ["no encoder", "no encoder"]
    (tmp_path / "alone" / MANIFEST).unlink()
    models = [load(path) for path in sorted((tmp_path / "alone").glob("*.onnx"))]
    assert fit(models).absent == ()


def test_the_verdict_on_a_folder_names_the_sizes(tmp_path: Path) -> None:
    for name, file in (("decode", of_one_token()), ("prefill", model_of(f"int64[b, s] input_ids, {MASK}, {OPEN}"))):
        onnx.save(file.proto, tmp_path / f"{name}.onnx")
    (tmp_path / MANIFEST).write_text(json.dumps({}))
    verdict = compare([tmp_path / "decode.onnx", tmp_path / "prefill.onnx"])
    assert "! runs only after a past of one length: decode (1 token) (interface)" in verdict.to_text(80)
    assert (
        "with input_ids of three tokens, with multi_token_decode=True, or"
        in rows_of(load(tmp_path / "decode.onnx"))[0].advice
    )


def test_a_bundle_of_a_past_of_one_length_is_refused(tmp_path: Path) -> None:
    onnx.save(of_one_token().proto, tmp_path / "decode.onnx")
    with pytest.raises(UsageError, match=r"^decode\.onnx: this decoder runs only after exactly 1 token: .* anew with"):
        bundle_folder(tmp_path / "decode.onnx", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_another_batch_than_that_of_the_export_is_refused(tmp_path: Path) -> None:
    folder = unpacked_export("llava-one", tmp_path)
    with pytest.raises(UsageError, match=r"every run takes exactly 1 row, .* give --batch 1, or export it anew from"):
        bundle_folder(folder, tmp_path / "bundle", BundleOptions(batch=2))


@pytest.mark.parametrize(("declared", "rows"), [(1, ["at most 4 tokens"]), (2, ["at most 8 tokens"]), ("c", [])])
def test_a_loop_over_chunks_that_is_unrolled_is_named_with_the_tokens_that_it_is_right_for(
    declared: int | str, rows: list[str]
) -> None:
    """Transformers 5 unrolls the loop of a linear attention: past the chunks of the example, positions stay zeros."""
    chunks = (
        "s = Shape<start = 1>(input_ids)  more = Add(s, three)  count = Div(more, four)  zeros = Expand(zero, count)"
    )
    proto = proto_of(
        f"(int64[b, s] input_ids, {MASK}, {OPEN}) => (float[b, s, 9] logits, float[b, 1, t, 8] present_0_key, "
        f"float[c] sum) {{ {ROW} {GROWS} {chunks}  sum = Neg(zeros) }}",
        **CONSTANTS, three=np.array([3]), four=np.array([4]), zero=np.float32(0),
    )  # fmt: skip
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("zeros", onnx.TensorProto.FLOAT, [declared]))
    assert found(Model.from_proto(proto)) == [("frozen-size", where) for where in rows]
