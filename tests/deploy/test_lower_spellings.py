"""Spellings of decoders and encoders that exporters write: lowered and proven, or declined with a reason."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from quick_proofs import lower_by_runs
from sessions import run
from small_pipelines import (
    FILLED,
    VOCABULARY,
    WIDTH,
    decoder,
    encoder,
    encoder_text,
    half,
    saved,
    with_weights,
    with_wide_ports,
)

from graphkit.contract import read_contract
from graphkit.deploy.lower import LowerOptions, LowerReport, lower_folder
from graphkit.deploy.verify_folder import verify_folder
from graphkit.equivalence.originals import Originals
from graphkit.errors import ModelError, UsageError
from graphkit.hosts import Host
from graphkit.model import load
from graphkit.verify.lowering_verifier import verify_lowering

PLAIN = str(Path(__file__).parents[1] / "targets" / "plain-npu.toml")
OPTIONS = LowerOptions(target=PLAIN, src_len=6, max_cache_len=5)


def slow(*values: object) -> list[object]:
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow) for value in values
    ]


def lowered(model: onnx.ModelProto, folder: Path, options: LowerOptions = OPTIONS) -> LowerReport:
    return lower_by_runs(saved(model, folder / "model"), folder / "out", options)


def assert_done(report: LowerReport) -> None:
    assert report.findings() == ()
    assert report.proof is not None
    assert report.proof.passed
    assert max(file.rank for file in report.files) <= 4


ADDED = """
    bias = Where (future, lowest, nothing)
    sums = Add (scores, bias)
"""
OTHERS = {
    "of a padded past": """
        valid = Cast <to = 9> (attention_mask)
        hidden = Not (valid)
        axes = Concat <axis = 0> (one, two)
        wide = Unsqueeze (hidden, axes)
        either = Or (wide, future)
        sums = Where (either, lowest, scores)
        p = Softmax <axis = -1> (sums)
    """,
    "in a sliding window": """
        far = Sub (rows, three)
        old = LessOrEqual (columns, far)
        hidden = Or (old, future)
        bias = Where (hidden, lowest, nothing)
        sums = Add (scores, bias)
        p = Softmax <axis = -1> (sums)
    """,
    "guarded against NaN": """
        bias = Where (future, infinity, nothing)
        sums = Add (scores, bias)
        raw = Softmax <axis = -1> (sums)
        none = IsNaN (raw)
        p = Where (none, nothing, raw)
    """,
    "beside sinks, less the largest": f"""
        {ADDED}
        zeros = Mul (product_max, nothing)
        more = Concat <axis = -1> (sums, zeros)
        top = ReduceMax <axes = [-1], keepdims = 1> (more)
        shifted = Sub (more, top)
        all_p = Softmax <axis = -1> (shifted)
        p = Slice (all_p, zero, last, three_axis)
    """.replace(ADDED, f"product_max = ReduceMax <axes = [-1], keepdims = 1> (product) {ADDED}"),
    "weighed by the logarithm of its sum": f"""
        {ADDED}
        raw = Softmax <axis = -1> (sums)
        all = ReduceLogSumExp <axes = [-1], keepdims = 1> (sums)
        weight = Sigmoid (all)
        p = Mul (raw, weight)
    """,
    "by products": """
        allowed = Not (future)
        unit_mask = Cast <to = 1> (allowed)
        rest = Sub (unit, unit_mask)
        bias = Mul (rest, lowest)
        sums = Add (scores, bias)
        p = Softmax <axis = -1> (sums)
    """,
    "above the least number": """
        bias = Where (future, lowest, nothing)
        sums = Add (scores, bias)
        most = Max (sums, lowest)
        p = Softmax <axis = -1> (most)
    """,
    "not at all": "p = Softmax <axis = -1> (scores)",
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("masked", OTHERS.values(), ids=OTHERS)
def test_masks_over_a_cache(masked: str, tmp_path: Path) -> None:
    assert_done(lowered(decoder(masked), tmp_path))
    assert min(array.min() for array in floats(tmp_path / "out")) >= -1e9


def test_a_fixed_mask_beside_symbolic_tokens_is_no_contradiction(tmp_path: Path) -> None:
    assert_done(lowered(decoder(FILLED), tmp_path))
    (step,) = read_contract(tmp_path / "out" / "contract.json").methods
    assert {port.name: port.shape for port in step.inputs if port.name.endswith("embeds")} == {
        "inputs_embeds": (1, 1, 8),
        "position_embeds": (1, 1, 8),
    }


TEXT = "int64[batch, length] input_ids, int64[batch, length] attention_mask"
TABLE = "x = Gather (token_table, input_ids)"
MASKED = """
    valid = Cast <to = 9> (%MASK%)
    row = Unsqueeze (valid, one)
    bias = Where (row, nothing, lowest)
    masked = Add (scores, bias)
    p = Softmax <axis = -1> (masked)
"""
CAUSAL = """
    end = Shape <start = 1, end = 2> (input_ids)
    count = Squeeze (end)
    columns = Range (start, count, step)
    rows = Unsqueeze (columns, one)
    future = Greater (columns, rows)
    masked = Where (future, lowest, scores)
    p = Softmax <axis = -1> (masked)
"""
PADDED = MASKED.replace("%MASK%", "attention_mask")
FRAMES = """
    turned = Transpose <perm = [0, 2, 1]> (input_features)
    half = Conv <kernel_shape = [3], strides = [2], pads = [1, 1]> (turned, conv)
    x = Transpose <perm = [0, 2, 1]> (half)
"""
EVERY_OTHER = """
    end = Shape <start = 1> (attention_mask)
    half_mask = Slice (attention_mask, zero, end, one, two)
""" + MASKED.replace("%MASK%", "half_mask")


def test_a_sound_with_a_mask_may_be_shorter(tmp_path: Path) -> None:
    """Its mask is shorter than its input, as convolutions make it; the host makes it of the length of the sound."""
    inputs = "float[batch, frames, 8] input_features, int64[batch, frames] attention_mask"
    report = lowered(encoder(inputs, FRAMES, EVERY_OTHER), tmp_path, replace(OPTIONS, dims=(("frames", 11),)))
    assert_done(report)
    assert report.proof is not None
    assert [run.length for run in report.proof.runs] == [1, 3, 4, 6, 10, 11]
    contract = read_contract(tmp_path / "out" / "contract.json")
    assert {"source": 6, "sound": 11, "stride": 2, "offset": 1}.items() <= contract.sizes.items()
    (method,) = contract.methods
    assert [(port.name, port.shape) for port in method.inputs] == [
        ("input_features", (1, 11, 8)),
        ("attention_bias", (1, 1, 6)),
    ]


def test_a_mask_of_a_sound_whose_valid_positions_follow_no_stride_is_the_callers(tmp_path: Path) -> None:
    inputs = "float[batch, frames, 8] input_features, int64[batch, frames] attention_mask"
    grown = """
        all_counts = CumSum (attention_mask, one_axis)
        floats = Cast <to = 1> (all_counts)
        halves = Sqrt (floats)
        roots = Add (halves, halves)
        wholes = Cast <to = 7> (roots)
        last_count = ReduceMax <axes = [1], keepdims = 1> (wholes)
        places = Range (start, half_count, step)
        wide_mask = Less (places, last_count)
        half_mask = Cast <to = 7> (wide_mask)
    """
    count = "x_shape = Shape <start = 1, end = 2> (x) half_count = Squeeze (x_shape) one_axis = Identity (step)"
    masked = count + grown + MASKED.replace("%MASK%", "half_mask")
    report = lowered(encoder(inputs, FRAMES, masked), tmp_path, replace(OPTIONS, dims=(("frames", 11),)))
    assert report.proof is not None
    assert report.proof.passed
    assert len(report.proof.runs) == 4  # with other masks each
    (method,) = read_contract(tmp_path / "out" / "contract.json").methods
    assert [(port.name, port.kind, port.by) for port in method.inputs] == [
        ("input_features", "user", ""),
        ("attention_mask", "user", ""),
    ]


def test_an_image_counts_as_a_whole(tmp_path: Path) -> None:
    """A mask of pixels is no mask of a padded source, though it is one of integers."""
    inputs = "float[batch, 8, 4] pixel_values, int64[batch, 4] pixel_mask"
    x = "x = Transpose <perm = [0, 2, 1]> (pixel_values)"
    report = lowered(encoder(inputs, x, MASKED.replace("%MASK%", "pixel_mask")), tmp_path)
    assert_done(report)
    (method,) = read_contract(tmp_path / "out" / "contract.json").methods
    assert [port.name for port in method.inputs] == ["pixel_values"]


def test_a_mask_that_is_shorter_than_its_text_is_a_table(tmp_path: Path) -> None:
    x = f"""
    {TABLE.replace("x =", "words =")}
    words_end = Shape <start = 1, end = 2> (words)
    x = Slice (words, zero, words_end, one, two)
    """
    assert_done(lowered(encoder(TEXT, x, EVERY_OTHER), tmp_path))
    (method,) = read_contract(tmp_path / "out" / "contract.json").methods
    kinds = {port.name: port.source.kind for port in method.inputs if port.source is not None}
    assert kinds == {"inputs_embeds": "embedding", "attention_bias": "rows"}


ONE_NODE = """
    <ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    agraph (
        int64[batch, seq] input_ids, int64[batch, total] attention_mask,
        float[batch, 2, past, 16] "past_key_values.0.key", float[batch, 2, past, 16] "past_key_values.0.value"
    ) => (
        float[batch, seq, 8] logits,
        float[batch, 2, total, 16] "present.0.key", float[batch, 2, total, 16] "present.0.value"
    ) <int64[1] one = {1}, int64 second = {1}> {
        x = Gather (token_table, input_ids)
        q = MatMul (x, wq)
        k = MatMul (x, wk)
        v = MatMul (x, wv)
        valid = ReduceSum <keepdims = 0> (attention_mask, one)
        last = Sub (valid, one)
        lengths = Cast <to = 6> (last)
        dims = Shape (attention_mask)
        total_64 = Gather (dims, second)
        total_length = Cast <to = 6> (total_64)
        y, "present.0.key", "present.0.value" = com.microsoft.GroupQueryAttention
            <num_heads = 4, kv_num_heads = 2, do_rotary = 1, local_window_size = 3%MORE%>
            (q, k, v, "past_key_values.0.key", "past_key_values.0.value", lengths, total_length, cos, sin)
        logits = MatMul (y, head)
    }
"""


def one_node(more: str = "", text: str = ONE_NODE) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text.replace("%MORE%", more))
    rng = np.random.default_rng(0)
    dims = {"token_table": (11, 8), "wq": (8, 64), "wk": (8, 32), "wv": (8, 32), "head": (64, 8)}
    for name, shape in {**dims, "cos": (16, 8), "sin": (16, 8)}.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.normal(0, 1, shape).astype(np.float32), name))
    return model


def test_attention_that_is_one_node_is_computed_by_others(tmp_path: Path) -> None:
    assert_done(lowered(one_node(), tmp_path, replace(OPTIONS, batch=2)))
    (step,) = read_contract(tmp_path / "out" / "contract.json").methods
    kinds = {port.name: port.source.kind for port in step.inputs if port.source is not None}
    assert kinds["attention_bias"] == "slots_mask"
    assert {port.source.window for port in step.inputs if port.source is not None} == {0, 3}
    assert [kinds["position_values"], kinds["position_values_2"]] == ["rows", "rows"]


CAUSAL_NODE = """
    <ir_version: 10, opset_import: ["" : 23]>
    agraph (
        int64[batch, seq] input_ids, int64[batch, total] attention_mask,
        float[batch, 2, past, 16] "past_key_values.0.key", float[batch, 2, past, 16] "past_key_values.0.value"
    ) => (
        float[batch, seq, 8] logits,
        float[batch, 2, total, 16] "present.0.key", float[batch, 2, total, 16] "present.0.value"
    ) <int64[1] one = {1}, int64 zero = {0}, int64 second = {1}, float nothing = {0}, float lowest = {-3.4028235e38}> {
        x = Gather (token_table, input_ids)
        q = MatMul (x, wq)
        k = MatMul (x, wk)
        v = MatMul (x, wv)
        valid = Cast <to = 9> (attention_mask)
        of_queries = Unsqueeze (valid, one)
        kept = Unsqueeze (of_queries, one)
        dims = Shape (input_ids)
        new = Gather (dims, second)
        all_dims = Shape (attention_mask)
        total_length = Gather (all_dims, second)
        past_length = Sub (total_length, new)
        columns = Range (zero, total_length, second)
        places = Range (past_length, total_length, second)
        rows = Unsqueeze (places, one)
        causal = LessOrEqual (columns, rows)
        both = And (causal, kept)
        %MASK%
        y, "present.0.key", "present.0.value" = Attention <q_num_heads = 4, kv_num_heads = 2>
            (q, k, v, mask, "past_key_values.0.key", "past_key_values.0.value")
        logits = MatMul (y, head)
    }
"""


@pytest.mark.cases("mask = Identity (both)")
@pytest.mark.parametrize("mask", ["mask = Identity (both)", "mask = Where (both, nothing, lowest)"])
def test_a_mask_with_a_floor_leaves_no_query_without_keys(mask: str, tmp_path: Path) -> None:
    assert_done(lowered(one_node(text=CAUSAL_NODE.replace("%MASK%", mask)), tmp_path, replace(OPTIONS, batch=2)))
    kinds = {node.op_type for node in onnx.load(tmp_path / "out" / "step.onnx").graph.node}
    assert not kinds & {"Attention", "LessOrEqual", "ReduceMax", "Where"}


NORMED = """
    squares = Mul (words, words)
    mean = ReduceMean <keepdims = 1> (squares, last)
    root = Sqrt (mean)
    x = Div (words, root)
"""


def normed() -> onnx.ModelProto:
    text = encoder_text(TEXT, f"{TABLE.replace('x =', 'words =')}\n{NORMED}", PADDED).replace('"" : 17', '"" : 18')
    return with_weights(parser.parse_model(text), ("token_table", "wk"), {"last": np.array([-1])})


def test_the_models_are_spelled_for_the_opset_that_is_asked_for(tmp_path: Path) -> None:
    assert_done(lowered(normed(), tmp_path, replace(OPTIONS)))
    plain = read_contract(tmp_path / "out" / "contract.json")
    options = replace(OPTIONS, opset=17, overwrite=True)
    report = lower_folder(tmp_path / "model", tmp_path / "out", options)
    assert_done(report)
    assert report.proof is not None
    assert [stage.name for stage in report.proof.stages if stage.is_proven][-1] == "opset 17"
    model = onnx.load(tmp_path / "out" / "encoder.onnx")
    (mean,) = (node for node in model.graph.node if node.op_type == "ReduceMean")
    assert (model.opset_import[0].version, len(mean.input)) == (17, 1)
    contract = read_contract(tmp_path / "out" / "contract.json")
    assert contract.options == replace(plain.options, opset=17)
    assert replace(contract, files={}, proof=None, options=plain.options) == replace(plain, files={}, proof=None)
    assert verify_folder(tmp_path / "model", tmp_path / "out").passed


def test_an_opset_that_has_no_equal_of_a_node_is_refused(tmp_path: Path) -> None:
    text = encoder_text(TEXT, TABLE.replace("x =", "words =") + "\nx = LayerNormalization (words, gain)", PADDED)
    model = with_weights(parser.parse_model(text), ("token_table", "wk"), {"gain": np.ones(WIDTH, np.float32)})
    message = "encoder.onnx: convert-opset: .*onnx has no LayerNormalization before opset 17 - give another --opset"
    with pytest.raises(UsageError, match=message):
        lowered(model, tmp_path, replace(OPTIONS, opset=14))
    assert not (tmp_path / "out").exists()


def test_heads_that_queries_share_are_no_copies_of_a_reshaped_tensor(tmp_path: Path) -> None:
    """RKNN-Toolkit2 cannot build a Concat of one Reshape several times, between Reshapes."""
    assert lowered(one_node(), tmp_path, replace(OPTIONS, verify=False)).findings() == ()
    graph = onnx.load(tmp_path / "out" / "step.onnx").graph
    reshaped = {node.output[0] for node in graph.node if node.op_type == "Reshape"}
    copied = [node for node in graph.node if node.op_type == "Concat" and len({*node.input}) < len(node.input)]
    assert len(copied) == 2
    assert reshaped.isdisjoint({name for node in copied for name in node.input})


def test_attention_that_stays_one_node_is_named(tmp_path: Path) -> None:
    message = (
        r"model.onnx: decompose-attention: GroupQueryAttention#\d+: its qk_output is set, which has no plain "
        "spelling here - export attention in plain operators"
    )
    with pytest.raises(UsageError, match=message):
        lowered(one_node(", qk_output = 1"), tmp_path)


def test_a_mask_may_be_added_before_a_transpose(tmp_path: Path) -> None:
    masked = """
        turned = Transpose <perm = [1, 0]> (attention_mask)
        valid = Cast <to = 9> (turned)
        columns = Unsqueeze (valid, two)
        bias = Where (columns, nothing, lowest)
        aside = Transpose <perm = [2, 0, 1]> (scores)
        sums = Add (aside, bias)
        back = Transpose <perm = [1, 2, 0]> (sums)
        p = Softmax <axis = -1> (back)
    """
    assert_done(lowered(encoder(TEXT, TABLE, masked), tmp_path))


def test_text_beside_an_image_is_proven_at_several_lengths(tmp_path: Path) -> None:
    inputs = f"{TEXT}, float[batch, 1, 8] pixel_values"
    x = f"{TABLE.replace('x =', 'words =')}\nx = Add (words, pixel_values)"
    report = lowered(encoder(inputs, x, PADDED), tmp_path)
    assert_done(report)
    assert report.proof is not None
    assert [run.length for run in report.proof.runs] == [1, 2, 5, 6]


CHOICES = {
    "zeros for padding": "x = Where (counts, words, nothing)",
    "padding first": "pads = Not (counts) x = Where (pads, nothing, words)",
    "other data for padding": "others = Tanh (words) x = Where (counts, words, others)",
}


@pytest.mark.parametrize("target", ["ethos-u65", *slow("generic-npu")])
@pytest.mark.parametrize("chosen", CHOICES.values(), ids=CHOICES)
def test_a_choice_by_padding_alone_is_a_product_with_what_the_host_makes(
    chosen: str, target: str, tmp_path: Path
) -> None:
    x = f"""
    {TABLE.replace("x =", "words =")}
    known = Cast <to = 9> (attention_mask)
    counts = Unsqueeze (known, two)
    {chosen}
    """
    report = lowered(encoder(TEXT, x, PADDED), tmp_path, replace(OPTIONS, target=target))
    assert report.proof is not None
    assert report.proof.passed
    assert [obstacle.op for file in report.files for obstacle in file.blockers.blockers] == []
    (method,) = read_contract(tmp_path / "out" / "contract.json").methods
    assert {port.dtype for port in method.inputs} == {"float32"}


NORMALIZED = """
    squares = Mul (words, words)
    mean = ReduceMean <axes = [-1], keepdims = 1> (squares)
    positive = Add (epsilon, mean)
    root = Sqrt (positive)
    factor = %FACTOR%
    normal = Mul (words, factor)
    x = Mul (norm_weight, normal)
"""
RECIPROCAL, QUOTIENT = "Reciprocal (root)", "Div (unit, root)"


@pytest.mark.cases("rk3588-Div (unit, root)")
@pytest.mark.parametrize(
    ("target", "factor"),
    [
        ("ethos-u65", RECIPROCAL),
        ("rk3588", QUOTIENT),
        *slow(("rk3588", RECIPROCAL), ("qnn-htp", QUOTIENT)),
    ],
)
def test_a_norm_has_its_constants_on_the_right_and_no_root_of_its_own(factor: str, target: str, tmp_path: Path) -> None:
    x = f"{TABLE.replace('x =', 'words =')}\n{NORMALIZED.replace('%FACTOR%', factor)}"
    weight = np.linspace(0.5, 1.5, WIDTH, dtype=np.float32)
    more = {"norm_weight": weight, "epsilon": np.array(1e-6, np.float32), "unit": np.array(1, np.float32)}
    model = with_weights(parser.parse_model(encoder_text(TEXT, x, PADDED)), ("token_table", "wk"), more)
    report = lower_folder(saved(model, tmp_path / "model"), tmp_path / "out", replace(OPTIONS, target=target))
    assert report.proof is not None
    assert report.proof.passed
    assert report.files[0].blockers.blockers == ()
    graph = onnx.load(tmp_path / "out" / "encoder.onnx").graph
    left = {node.input[0] for node in graph.node if node.op_type in ("Add", "Mul")}
    assert left.isdisjoint({tensor.name for tensor in graph.initializer})
    names = [stage.name for stage in report.proof.stages if not stage.is_proven]
    assert names == ["masks that are added", "values of the host by rows"]


def test_what_depends_on_the_tokens_themselves_is_declined(tmp_path: Path) -> None:
    """Where the largest token is, as CLIP pools its text: alike for all texts of one repeated token."""
    x = f"""
    {TABLE.replace("x =", "words =")}
    at = ArgMax <axis = 1, keepdims = 1> (input_ids)
    moved = Cast <to = 1> (at)
    shift = Unsqueeze (moved, two)
    x = Add (words, shift)
    """
    with pytest.raises(UsageError, match="depends on which tokens there are"):
        lowered(encoder(TEXT, x, PADDED), tmp_path)


IN_PAIRS = """
    pairs = Reshape (words, shape_of_pairs)
    x = Reshape (pairs, shape_of_words)
"""


def test_lengths_at_which_the_original_does_not_run_are_left_out_of_the_proof(tmp_path: Path) -> None:
    x = f"{TABLE.replace('x =', 'words =')}\n{IN_PAIRS}"
    model = encoder(TEXT, x, PADDED)
    report = lowered(model, tmp_path)
    assert_done(report)
    assert report.proof is not None
    assert [run.length for run in report.proof.runs] == [2, 4, 6]
    assert report.proof.notes == ("The original does not run at every length up to 6: it was compared at 2, 4, 6.",)
    with pytest.raises(UsageError, match="the nearest length at which it runs is --src-len 4"):
        lowered(model, tmp_path / "odd", replace(OPTIONS, src_len=5))


def test_the_default_length_is_no_more_than_the_encoder_has(tmp_path: Path) -> None:
    """As in CLIP, which slices its positions: of a longer text, there are too few."""
    x = f"""
    {TABLE.replace("x =", "words =")}
    length = Shape <start = 1, end = 2> (input_ids)
    places = Slice (places_table, first_place, length)
    x = Add (words, places)
    """
    places = np.linspace(-1, 1, 6 * WIDTH, dtype=np.float32).reshape(6, WIDTH)
    model = with_weights(
        parser.parse_model(encoder_text(TEXT, x, PADDED)),
        ("token_table", "wk"),
        {"places_table": places, "first_place": np.array([0])},
    )
    assert_done(lowered(model, tmp_path, LowerOptions(target=PLAIN)))
    contract = read_contract(tmp_path / "out" / "contract.json")
    assert contract.sizes["source"] == 6
    with pytest.raises(UsageError, match="the nearest length at which it runs is --src-len 6"):
        lowered(model, tmp_path / "long", replace(OPTIONS, src_len=7))


def test_a_proof_without_padding_says_so(tmp_path: Path) -> None:
    report = lowered(encoder(TEXT, TABLE, PADDED), tmp_path, replace(OPTIONS, src_len=1))
    assert_done(report)
    assert report.proof is not None
    assert report.proof.notes == ("Every source had 1 token, which leaves no padding: it was not tested for leaks.",)


def test_padding_is_tested_where_there_are_two_lengths(tmp_path: Path) -> None:
    model = saved(encoder(TEXT, TABLE, PADDED), tmp_path / "model")
    lower_folder(model, tmp_path / "out", replace(OPTIONS, src_len=2, verify=False))
    plain = json.loads((tmp_path / "out" / "contract.json").read_text())
    (tmp_path / "out" / "contract.json").write_text(json.dumps({**plain, "floor": 0.0}))
    proof = verify_lowering(Originals(load(model / "model.onnx")), tmp_path / "out")
    assert "What padding holds changes what runs once for a source" in proof.causes[0]


def test_the_folder_that_one_is_in_has_its_name_in_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(saved(encoder(TEXT, TABLE, PADDED), tmp_path / "model"))
    report = lower_folder(".", tmp_path / "out", replace(OPTIONS, target="rk3588", verify=False))
    assert report.heading() == "Lowering of model for rk3588"


def test_a_length_of_text_is_given_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'length' is 6, not 9 - give --src-len 9"):
        lowered(encoder(TEXT, TABLE, PADDED), tmp_path, replace(OPTIONS, dims=(("length", 9),)))


def floats(folder: Path) -> list[np.ndarray]:
    """Return the constants of all models of a folder, and its tables."""
    models = [onnx.load(path) for path in folder.glob("*.onnx")]
    found = [numpy_helper.to_array(tensor) for model in models for tensor in model.graph.initializer]
    tables = read_contract(folder / "contract.json").tables
    found += [np.fromfile(folder / table.file, table.dtype) for table in tables]
    return [array for array in found if array.dtype.kind == "f" and array.size]


@pytest.mark.cases("<lambda>1-ethos-u85")
@pytest.mark.parametrize("target", ["ethos-u85", *slow("generic-npu")])
@pytest.mark.parametrize("make", [lambda: decoder(FILLED), lambda: encoder(TEXT, TABLE, CAUSAL)])
def test_masks_for_targets_that_take_8_bits_keep_a_scale(
    target: str, make: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    report = lowered(make(), tmp_path, replace(OPTIONS, target=target))
    assert report.proof is not None
    assert report.proof.passed
    assert read_contract(tmp_path / "out" / "contract.json").floor == -100
    assert min(array.min() for array in floats(tmp_path / "out")) >= -100


@pytest.mark.parametrize(("floor", "steps"), [(-1e9, "3,921,569"), (-1e4, "39")])
def test_a_floor_that_spoils_the_scale_of_a_quantised_target_is_refused(
    floor: float, steps: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=f"the steps of 8 bits would be {steps} apart"):
        lowered(decoder(FILLED), tmp_path, replace(OPTIONS, target="ethos-u65", mask_floor=floor))
    assert not (tmp_path / "out").exists()


BIASED = """
    end = Shape <start = 1, end = 2> (input_ids)
    count = Squeeze (end)
    columns = Range (start, count, step)
    rows = Unsqueeze (columns, one)
    far = Sub (columns, rows)
    nearness = Cast <to = 1> (far)
    relative = Mul (nearness, much)
    valid = Cast <to = 9> (attention_mask)
    row = Unsqueeze (valid, one)
    mask = Where (row, nothing, lowest)
    bias = Add (relative, mask)
    sums = Add (scores, bias)
    p = Softmax <axis = -1> (sums)
"""


@pytest.mark.parametrize(
    ("slope", "floor"),
    [
        (3.0, -100.0),
        (40.0, -1e9),
        *slow((40.0, -100.0), (3.0, -50.0), (40.0, -5000.0)),
    ],
)
def test_a_mask_with_a_bias_has_its_shape_at_any_floor(floor: float, slope: float, tmp_path: Path) -> None:
    """Biases of relative positions that a mask is added to, as in T5: the host makes the mask alone."""
    model = parser.parse_model(encoder_text(TEXT, TABLE, BIASED).replace("{1e5}", f"{{{slope}}}"))
    model = with_weights(model, ("token_table", "wk"))
    report = lowered(
        model, tmp_path, replace(OPTIONS, mask_floor=floor, verify=floor <= (-100 if slope < 10 else -255))
    )
    assert report.findings() == ()
    (method,) = read_contract(tmp_path / "out" / "contract.json").methods
    ports = {port.name: (port.shape, port.source and port.source.kind) for port in method.inputs}
    assert ports["attention_bias"] == ((1, 1, 6), "source_mask")


def test_a_floor_of_100_changes_no_bit_of_float_results(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 5).tolist()
    logits = {}
    for floor in (-1e9, -100.0):
        options = replace(OPTIONS, mask_floor=floor, verify=False)
        lowered(decoder(FILLED), tmp_path / str(floor), options)
        host = Host(tmp_path / str(floor) / "out", unchecked=True)
        host.start()
        logits[floor] = [host.step(token) for token in tokens]
    np.testing.assert_array_equal(logits[-1e9], logits[-100.0])


def test_a_floor_that_lets_masked_scores_count_fails_the_proof(tmp_path: Path) -> None:
    report = lowered(with_large_scores(decoder(FILLED)), tmp_path, replace(OPTIONS, target="qnn-htp", mask_floor=-50.0))
    assert report.proof is not None
    assert not report.proof.passed
    assert "give -" in report.notes[0]


def test_a_floor_is_what_the_user_says(tmp_path: Path) -> None:
    assert_done(lowered(decoder(FILLED), tmp_path, replace(OPTIONS, mask_floor=-5000.0)))
    assert read_contract(tmp_path / "out" / "contract.json").floor == -5000


def with_large_scores(model: onnx.ModelProto) -> onnx.ModelProto:
    for tensor in model.graph.initializer:
        if tensor.name == "wq":
            tensor.CopyFrom(numpy_helper.from_array(100 * numpy_helper.to_array(tensor), "wq"))
    return model


def test_a_floor_for_a_quantised_model_is_twice_the_largest_score_and_twenty_more(tmp_path: Path) -> None:
    report = lowered(with_large_scores(decoder(FILLED)), tmp_path, replace(OPTIONS, target="ethos-u65"))
    assert report.proof is not None
    assert report.proof.passed
    floor = read_contract(tmp_path / "out" / "contract.json").floor
    assert floor < -100
    assert min(array.min() for array in floats(tmp_path / "out")) >= floor
    found = re.fullmatch(r"Scores reach (\S+) in a run of random tokens, and masks add (-\d+)\.", *report.notes)
    assert found is not None
    assert float(found[2]) == floor
    assert 2 * float(found[1]) + 20 == pytest.approx(-floor, rel=0.02)


@pytest.mark.cases("decoder-options3-")
@pytest.mark.parametrize(
    ("make", "options", "told"),
    [
        (
            decoder,
            LowerOptions(target="ethos-u65"),
            r"Scores reach \S+ in a run of random tokens, and masks add -100\.",
        ),
        (
            lambda masked: with_large_scores(decoder(masked)),
            LowerOptions(target="ethos-u65", mask_floor=-50.0),
            r".*, and masks add -50: what is masked may count - give -\d+ with --mask-floor\.",
        ),
        (decoder, LowerOptions(target="generic-npu"), ""),  # a model for it may stay in floats
        (decoder, LowerOptions(target="mt8371"), ""),
        *slow(
            (
                lambda masked: with_large_scores(decoder(masked)),
                LowerOptions(target="qnn-htp", mask_floor=-50.0),
                r".*, and masks add -50: what is masked may count - give -\d+ with --mask-floor\.",
            )
        ),
    ],
)
def test_a_floor_that_is_enough_or_that_the_user_gives_stays(
    make: Callable[[str], onnx.ModelProto], options: LowerOptions, told: str, tmp_path: Path
) -> None:
    report = lowered(make(FILLED), tmp_path, replace(options, src_len=6, max_cache_len=5, verify=False))
    assert re.fullmatch(told, "".join(report.notes))
    assert read_contract(tmp_path / "out" / "contract.json").floor in (-100, -50, -1e9)


@pytest.mark.parametrize("make", [*slow(lambda: decoder(FILLED)), lambda: encoder(TEXT, TABLE, PADDED)])
def test_float16_is_compared_as_far_as_it_has_digits(make: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    report = lowered(half(make()), tmp_path)
    assert_done(report)
    assert report.proof is not None
    assert report.proof.tolerance == 2**-8
    assert read_contract(tmp_path / "out" / "contract.json").floor == -30000
    assert min(array.min() for array in floats(tmp_path / "out")) >= -30000


@pytest.mark.parametrize("make", [lambda: decoder(FILLED), *slow(lambda: encoder(TEXT, TABLE, PADDED))])
def test_float16_inside_is_too_where_inputs_and_outputs_are_float32(
    make: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    report = lowered(with_wide_ports(half(make())), tmp_path)
    assert_done(report)
    assert report.proof is not None
    assert report.proof.tolerance == 2**-8
    assert {state.dtype for state in read_contract(tmp_path / "out" / "contract.json").states} <= {"float32"}


@pytest.mark.parametrize("name", [pytest.param("stacked", marks=pytest.mark.slow), "bshd"])
def test_caches_that_are_moved_before_they_grow(name: str, model_file: Callable[[str], Path], tmp_path: Path) -> None:
    """All layers in one tensor of six axes; slots before heads."""
    report = lower_by_runs(model_file(f"cache-styles/{name}"), tmp_path / "out", OPTIONS)
    assert_done(report)
    contract = read_contract(tmp_path / "out" / "contract.json")
    written = {port.writes: port.shape for method in contract.methods for port in method.outputs if port.writes}
    for state in contract.states:
        assert state.axis is not None
        assert state.shape[state.axis] == OPTIONS.max_cache_len
        assert len(state.shape) == 4
        assert written[state.name] == tuple(1 if at == state.axis else dim for at, dim in enumerate(state.shape))


def test_a_cache_that_has_slots_from_the_start(model_file: Callable[[str], Path], tmp_path: Path) -> None:
    report = lower_by_runs(model_file("cache-styles/static-cache"), tmp_path / "out", LowerOptions())
    assert_done(report)
    (contract,) = [read_contract(tmp_path / "out" / "contract.json")]
    assert {state.shape for state in contract.states} == {(1, 4, 15, 8)}


def test_a_decoder_without_its_encoder_is_declined(model_file: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a decoder that reads an encoder, and no encoder"):
        lower_folder(model_file("whisper-tiny/decoder_model_merged"), tmp_path / "out", OPTIONS)


def test_bfloat16_is_declined(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is bfloat16, in which onnxruntime runs nothing on a CPU"):
        lowered(half(decoder(FILLED), onnx.TensorProto.BFLOAT16), tmp_path)


SUBTRACTED = """
    hidden = Cast <to = 1> (%HIDDEN%)
    amount = Mul (hidden, much)
    less = Sub (scores, amount)
    p = Softmax <axis = -1> (less)
"""


def test_a_mask_of_a_source_may_be_subtracted(tmp_path: Path) -> None:
    """It is no additive mask, but rows for each valid length."""
    masked = "none = Equal (attention_mask, start)\nrow = Unsqueeze (none, one)" + SUBTRACTED.replace("%HIDDEN%", "row")
    assert_done(lowered(encoder(TEXT, TABLE, masked), tmp_path))


AS_MANY = """
    count = ReduceSum <keepdims = 0> (attention_mask)
    places = Range (start, count, step)
    numbers = Cast <to = 1> (places)
    axes = Constant <value = int64[2] {1, 2}> ()
    each = Unsqueeze (numbers, axes)
    wide = Mul (scores, each)
    p = ReduceSum <keepdims = 1> (wide, zero)
"""


def test_values_whose_number_is_that_of_the_valid_tokens_are_declined(tmp_path: Path) -> None:
    """So it is where a text is spoken: each of its tokens takes a while."""
    with pytest.raises(UsageError, match="'each' has another size for each length of the tokens, and an NPU takes one"):
        lowered(encoder(TEXT, TABLE, AS_MANY), tmp_path, replace(OPTIONS, batch=1))


def test_a_mask_over_a_cache_that_is_subtracted_is_declined(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'amount' is as long as the cache, and not added to scores"):
        lowered(decoder(SUBTRACTED.replace("%HIDDEN%", "future")), tmp_path)


def test_a_mask_that_is_filled_into_what_may_be_infinite_is_declined_with_its_reason(
    tmp_path: Path,
) -> None:
    """As doge fills one into an exponential of the cached values."""
    filled = """
        grown = Exp (scores)
        kept = Where (future, infinity, grown)
        p = Softmax <axis = -1> (kept)
    """
    match = "'future' is as long as the cache, .* leaves .*'grown' may be infinite or NaN .* - bundle it instead"
    with pytest.raises(UsageError, match=match):
        lowered(decoder(filled), tmp_path)


def test_operators_of_an_older_opset_are_spelled_as_the_target_takes_them(tmp_path: Path) -> None:
    """A Gelu is one node until the opset is converted, and has an Erf then, which must be that of a quotient."""
    target, source = tmp_path / "own.toml", 'source = "graphkit"'
    where = 'where = { producers = { input = "Div" } }'
    erf = f'[[operators.facts]]\nis = "allowed"\nnames = ["Erf"]\n{source}\n{where}\n'
    limit = f"[max_opset]\nvalue = 19\n{source}\n"
    target.write_text(Path(PLAIN).read_text().replace("[operators]\n", f"{limit}\n[operators]\n", 1) + f"\n{erf}")
    text = encoder_text(
        "float[batch, length, 8] data", "x = Neg (data)", "g = Gelu (scores)\np = Softmax <axis = -1> (g)"
    )
    model = with_weights(parser.parse_model(text.replace("17]", "20]")), ("wk",))
    assert_done(lowered(model, tmp_path, LowerOptions(target=str(target), dims=(("batch", 1), ("length", 4)))))
    (path,) = (tmp_path / "out").glob("*.onnx")
    assert [node.op_type for node in load(path).graph.nodes if node.op_type in ("Div", "Erf")] == ["Div", "Erf"]


def renamed_logits(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a decoder whose logits are called 'output' and stand after the states."""
    for node in model.graph.node:
        node.output[:] = ["output" if name == "logits" else name for name in node.output]
    logits, *presents = model.graph.output
    logits.name = "output"
    last = onnx.ValueInfoProto.FromString(logits.SerializeToString())
    del model.graph.output[:]
    model.graph.output.extend([*presents, last])
    return model


def test_logits_are_told_by_their_role_and_come_first(tmp_path: Path) -> None:
    assert_done(lowered(renamed_logits(decoder(FILLED)), tmp_path))
    (step,) = read_contract(tmp_path / "out" / "contract.json").methods
    assert [port.name for port in step.outputs if not port.writes] == ["output"]
    assert step.outputs[0].name == "output"


def test_hidden_states_beside_the_logits_are_no_logits(tmp_path: Path) -> None:
    model = decoder(FILLED)
    hidden = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", "seq", 8])
    model.graph.output.insert(0, hidden)
    assert_done(lowered(model, tmp_path))


def test_positions_of_an_encoder_are_a_constant(tmp_path: Path) -> None:
    x = f"""
    {TABLE.replace("x =", "words =")}
    places = Gather (token_table, position_ids)
    x = Add (words, places)
    """
    assert_done(lowered(encoder(f"{TEXT}, int64[batch, length] position_ids", x, PADDED), tmp_path))
    (method,) = read_contract(tmp_path / "out" / "contract.json").methods
    assert [port.name for port in method.inputs] == ["inputs_embeds", "attention_bias"]
    assert method.became["position_ids"] == "nothing: its value is fixed"


@pytest.mark.parametrize("dims", ["batch, length", "batch"])
def test_ids_of_an_encoder_that_are_no_tokens_are_the_callers(dims: str, tmp_path: Path) -> None:
    x = f"""
    {TABLE.replace("x =", "words =")}
    {
        'languages = Gather (token_table, "lang/0")'
        if "," in dims
        else 'rows = Unsqueeze ("lang/0", one)  languages = Gather (token_table, rows)'
    }
    x = Add (words, languages)
    """
    model = encoder(f'{TEXT}, int64[{dims}] "lang/0"', x, PADDED)
    report = lowered(model, tmp_path)
    assert report.proof is not None
    assert report.proof.passed
    assert not any("lang/0" in caveat for caveat in report.proof.caveats)  # each row of the table may be asked for
    languages = np.full((1, 6) if "," in dims else (1,), 2)
    (given,) = Host(tmp_path / "out").start([3, 1, 2], {"lang/0": languages}).values()
    feed = {"input_ids": np.array([[3, 1, 2]]), "attention_mask": np.ones((1, 3), np.int64)}
    (expected,) = run(model, {**feed, "lang/0": languages[..., :3]})
    np.testing.assert_allclose(given[:, :3], expected, atol=1e-5)


@pytest.mark.cases("true-ends2")
@pytest.mark.parametrize(
    ("text", "ends"), [("[1, 106, 1]", (1, 106)), *slow(("-1", ())), ("true", ()), *slow(("7", (7,)))]
)
def test_any_of_several_tokens_ends_a_sequence(text: str, ends: tuple[int, ...], tmp_path: Path) -> None:
    folder = saved(decoder(FILLED), tmp_path / "model")
    (folder / "config.json").write_text(f'{{"eos_token_id": {text}}}')
    lower_folder(folder, tmp_path / "out", replace(OPTIONS, verify=False))
    assert read_contract(tmp_path / "out" / "contract.json").ends == ends


def test_a_configuration_that_is_too_deep_is_an_error(tmp_path: Path) -> None:
    folder = saved(decoder(FILLED), tmp_path / "model")
    (folder / "config.json").write_text("[" * 100_000)
    with pytest.raises(ModelError, match=r"config\.json: it cannot be read"):
        lower_folder(folder, tmp_path / "out", OPTIONS)


def test_a_floor_that_is_infinite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a mask floor of -1e\+39 is infinite in float32"):
        lowered(decoder(FILLED), tmp_path, replace(OPTIONS, mask_floor=-1e39))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"max_cache_len": 10**11},
            "--max-cache-len 100,000,000,000: what the host feeds is computed for each - give at most 65,536",
        ),
        ({"src_len": 0}, "--src-len 0: give at least 1"),
        ({"batch": 1 << 17}, "--batch 131,072: what the host feeds is computed for each - give at most 65,536"),
        ({"pad": 11}, "token 11 pads, but table 'encoder.inputs_embeds' has 11 rows - give another with --pad"),
    ],
)
def test_sizes_out_of_range_are_refused_before_anything_is_written(
    changed: dict[str, int], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        lowered(encoder(TEXT, TABLE, PADDED), tmp_path, replace(OPTIONS, **changed))
    assert not (tmp_path / "out").exists()


def test_the_folder_of_the_export_is_no_output(tmp_path: Path) -> None:
    folder = saved(decoder(FILLED), tmp_path / "model")
    with pytest.raises(UsageError, match="is the folder of the export, whose models it would be mixed with"):
        lower_folder(folder, tmp_path / "model" / ".." / "model", OPTIONS)


GELU = """
    scaled = Div (words, root)
    bent = Erf (scaled)
    more = Add (bent, unit)
    twice = Mul (words, more)
    x = Mul (twice, half)
"""
CONSTANTS = {"root": 1.41421356, "unit": 1.0, "half": 0.5}


def with_gelu(gelu: str = GELU) -> onnx.ModelProto:
    text = encoder_text(TEXT, f"{TABLE.replace('x =', 'words =')}\n{gelu}", PADDED)
    more = {name: np.array(number, np.float32) for name, number in CONSTANTS.items()}
    return with_weights(onnx.parser.parse_model(text), ("token_table", "wk"), more)


def test_a_gelu_is_computed_by_tanh_where_that_is_asked_for(tmp_path: Path) -> None:
    report = lowered(with_gelu(), tmp_path, replace(OPTIONS, target="ethos-u65", gelu_to_tanh=True))
    assert_done(report)
    assert not [node for node in onnx.load(tmp_path / "out" / "encoder.onnx").graph.node if node.op_type == "Erf"]
    found = re.fullmatch(
        r"Gelus are computed by tanh, which changes each by at most 0\.00048\. The proof is against the export with "
        r"that change\. Without it, what runs once differs by up to (\S+)\.",
        report.notes[-1],
    )
    assert found is not None
    assert 1e-5 < float(found[1]) < 1e-2


def test_a_gelu_stays_where_tanh_is_not_asked_for(tmp_path: Path) -> None:
    report = lowered(with_gelu(), tmp_path, replace(OPTIONS, target="ethos-u65"))
    assert report.findings() == ("encoder.onnx: ethos-u65 refuses 1 node, 1 of which --gelu-to-tanh removes",)


def test_an_erf_that_is_no_gelu_stays_where_tanh_is_asked_for(tmp_path: Path) -> None:
    model = with_gelu(GELU.replace("Mul (words, more)", "Neg (more)"))
    report = lowered(model, tmp_path, replace(OPTIONS, target="ethos-u65", gelu_to_tanh=True))
    assert [node.op_type for node in onnx.load(tmp_path / "out" / "encoder.onnx").graph.node].count("Erf") == 1
    assert report.notes[-1] == "No Gelu is computed by erf: --gelu-to-tanh changed nothing."


def test_weights_of_models_that_are_too_large_for_one_file_have_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = decoder(FILLED)
    wide = np.random.default_rng(5).normal(0, 0.1, (WIDTH, 512)).astype(np.float32)
    for name, array in {"wide": wide, "back": wide.T.copy()}.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    last = model.graph.node.pop()
    model.graph.node.append(onnx.helper.make_node("MatMul", ["y", "wide"], ["wider"]))
    model.graph.node.append(onnx.helper.make_node("MatMul", ["wider", "back"], ["narrow"]))
    model.graph.node.append(onnx.helper.make_node("MatMul", ["narrow", *last.input[1:]], last.output))
    folder = saved(model, tmp_path / "model")
    monkeypatch.setattr("graphkit.save.MAX_PROTO", 20_000)
    report = lower_by_runs(folder, tmp_path / "out", OPTIONS)
    assert_done(report)
    assert report.data == "weights.onnx_data"
    assert "step.onnx, weights.onnx_data, step.inputs_embeds.bin" in report.to_text()
    assert (tmp_path / "out" / "step.onnx").stat().st_size < 20_000 < (tmp_path / "out" / report.data).stat().st_size
    monkeypatch.undo()
    again = lower_folder(folder, tmp_path / "out", replace(OPTIONS, overwrite=True, verify=False))
    assert again.data == ""
    assert again.notes == ("weights.onnx_data is left from the replaced models; the new ones do not use it.",)


def test_a_batch_of_images_is_lowered(tmp_path: Path) -> None:
    inputs = "float[batch, 8, 4] pixel_values, int64[batch, 4] pixel_mask"
    x = "x = Transpose <perm = [0, 2, 1]> (pixel_values)"
    model = encoder(inputs, x, MASKED.replace("%MASK%", "pixel_mask"))
    assert_done(lowered(model, tmp_path, replace(OPTIONS, batch=3)))
    contract = read_contract(tmp_path / "out" / "contract.json")
    (method,) = contract.methods
    assert [port.shape for port in (*method.inputs, *method.outputs)] == [(3, 8, 4), (3, 4, 8)]
    assert contract.sizes["batch"] == 3


SHORTER = f"""
    {TABLE.replace("x =", "words =")}
    words_end = Shape <start = 1, end = 2> (words)
    x = Slice (words, zero, words_end, one, two)
"""
SEQUENCES: dict[str, tuple[Callable[[], onnx.ModelProto], dict[str, tuple[int, ...]]]] = {
    "a decoder": (lambda: decoder(FILLED), {"inputs_embeds": (3, 1, 8), "attention_bias": (1, 6)}),
    "text": (lambda: encoder(TEXT, TABLE, PADDED), {"inputs_embeds": (3, 6, 8), "attention_bias": (3, 1, 6)}),
    "a table of masks": (lambda: encoder(TEXT, SHORTER, EVERY_OTHER), {"attention_bias": (3, 1, 3)}),
    "no mask": (lambda: encoder(TEXT, TABLE, "p = Softmax <axis = -1> (scores)"), {"source_mask_3d": (3, 1, 6)}),
}


@pytest.mark.cases("no mask", "text")
@pytest.mark.parametrize(("make", "shapes"), SEQUENCES.values(), ids=SEQUENCES)
def test_a_batch_of_sequences_is_lowered(
    make: Callable[[], onnx.ModelProto], shapes: Mapping[str, tuple[int, ...]], tmp_path: Path
) -> None:
    report = lowered(make(), tmp_path, replace(OPTIONS, batch=3))
    assert_done(report)
    (method,) = read_contract(tmp_path / "out" / "contract.json").methods
    assert shapes.items() <= {port.name: port.shape for port in method.inputs}.items()


def test_a_sequence_that_reads_another_is_found(tmp_path: Path) -> None:
    """The masks over the source are those of the first sequence."""
    report = lowered(encoder(TEXT, TABLE, PADDED), tmp_path, replace(OPTIONS, batch=2, verify=False))
    proto = onnx.load(tmp_path / "out" / "encoder.onnx")
    first = onnx.helper.make_node("Slice", ["attention_bias", "from", "to"], ["first_bias"])
    for node in proto.graph.node:
        node.input[:] = ["first_bias" if name == "attention_bias" else name for name in node.input]
    proto.graph.node.insert(0, first)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), "from"))
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), "to"))
    onnx.save(proto, tmp_path / "out" / "encoder.onnx")
    original = load(tmp_path / "model" / "model.onnx")
    assert report.proof is None
    assert not verify_lowering(Originals(original), tmp_path / "out").passed


def test_sequences_that_do_not_lie_one_behind_the_other_are_declined(tmp_path: Path) -> None:
    x = f"""
        {TABLE.replace("x =", "words =")}
        turned = Transpose <perm = [1, 0]> (attention_mask)
        weights = Cast <to = 1> (turned)
        wide = Unsqueeze (weights, two)
        by_length = Transpose <perm = [1, 0, 2]> (words)
        known = Mul (by_length, wide)
        x = Transpose <perm = [1, 0, 2]> (known)
    """
    with pytest.raises(UsageError, match=r"does not hold the sequences of a batch one behind the other - lower with"):
        lowered(encoder(TEXT, x, PADDED), tmp_path, replace(OPTIONS, batch=3))


TURNED = """<ir_version: 8, opset_import: ["" : 17]>
    agraph (float[1, 8, 8, 16] pixel_values) => (float[1, 8, 8, 16] last_hidden_state) <
        int64[6] blocks = {2, 4, 2, 4, 4, 4}, int64[4] image = {1, 8, 8, 16}
    > {
        parts = Reshape (pixel_values, blocks)
        turned = Transpose <perm = [5, 3, 1, 4, 2, 0]> (parts)
        joined = Reshape (turned, image)
        last_hidden_state = Add (joined, pixel_values)
    }"""


@pytest.mark.parametrize(("target", "rank", "nodes"), [("webgpu", 6, 4), ("qnn-htp", 4, 6), ("generic-npu", 4, 6)])
def test_axes_that_a_target_takes_stay(target: str, rank: int, nodes: int, tmp_path: Path) -> None:
    """A Transpose of six axes that cannot merge is two of four: more nodes than a target that takes six needs.

    RKNN-Toolkit2 leaves one of the Reshapes around them on the CPU, whose planes have fewer than 8 elements.
    """
    (file,) = lowered(parser.parse_model(TURNED), tmp_path, LowerOptions(target=target, verify=False)).files
    refused = ["Reshape"] if target == "generic-npu" else []
    assert (file.rank, file.nodes, [each.op for each in file.blockers.blockers]) == (rank, nodes, refused)
