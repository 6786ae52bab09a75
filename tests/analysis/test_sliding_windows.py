"""Sliding windows are found in the masks of a decoder, never longer or shorter than what attention sees."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import model_of
from bundles import WINDOW, decoder
from real_models import unpacked_export

import graphkit
from graphkit.analysis.sliding_windows import find_windows
from graphkit.model import Model

RealModel = Callable[[str], Model]
PAST = '"past_key_values.0.key"'


def windows(model: Model) -> dict[str, int]:
    return {entry.past.name: window for entry, window in find_windows(model).items() if entry.past is not None}


def test_gemma_keeps_28_megabytes_for_2048_tokens_with_its_windows(real_model: RealModel) -> None:
    found = graphkit.kv_cache(real_model("gemma-270m/model"))
    assert [(window.tokens, window.layers, window.bytes_per_token) for window in found.windows] == [(512, 15, 30_720)]
    per_layer = 2 * 256 * 4  # key and value, head dim 256, float32
    assert found.memory[0].windowed == per_layer * (3 * 2048 + 15 * 512) == 28_311_552
    assert found.memory[1].windowed == per_layer * (3 * 8192 + 15 * 512)


@pytest.mark.parametrize("part", ["decode", "prefill"])
def test_an_export_of_transformers_has_the_window_of_its_configuration(part: str, tmp_path: Path) -> None:
    export = unpacked_export("gemma3_text", tmp_path)
    configuration = json.loads((export / "config.json").read_text())
    model = graphkit.load(export / f"{part}.onnx")
    sliding = configuration["layer_types"].count("sliding_attention")
    found = graphkit.kv_cache(model).windows
    expected = [(configuration["sliding_window"], sliding)] if model.roles.pasts else []
    assert [(window.tokens, window.layers) for window in found] == expected


def logits(model: onnx.ModelProto, keys: np.ndarray) -> np.ndarray:
    length = keys.shape[2]
    feed = {
        "input_ids": np.array([[4]]),
        "attention_mask": np.ones((1, length + 1), np.int64),
        "position_ids": np.array([[length]]),
        "past_key_values.0.key": keys,
        "past_key_values.0.value": keys[..., ::-1].copy(),
    }
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = {value.name for value in session.get_inputs()}
    return np.asarray(session.run(["logits"], {name: each for name, each in feed.items() if name in names})[0])


def test_a_window_is_the_tokens_that_decide_in_onnxruntime() -> None:
    proto = decoder("window")
    assert set(windows(Model.from_proto(proto)).values()) == {WINDOW}
    keys = np.random.default_rng(0).normal(size=(1, 2, 9, 4)).astype(np.float32)
    for back in range(1, 9):  # how far before the new token
        changed = keys.copy()
        changed[:, :, -back] += 1
        assert np.array_equal(logits(proto, keys), logits(proto, changed)) == (back >= WINDOW)


def test_a_window_is_found_after_a_fold_too() -> None:
    assert set(windows(graphkit.fold(Model.from_proto(decoder("window"))).model).values()) == {WINDOW}


UNKNOWN: Mapping[str, Mapping[str, str]] = {
    "no mask but that of the future": {"Or (future, behind)": "Or (future, future)"},
    "an input may show what is behind": {
        "hidden = Or (future, behind)": """counted = Cast <to = 9> (input_ids)
        shown = Not (counted)
        some = And (behind, shown)
        hidden = Or (future, some)"""
    },
    "the distance is not known": {"old = Sub (rows, window)": "old = Sub (rows, input_ids)"},
    "up to some length, all counts": {
        "hidden = Or (future, behind)": """most = Constant <value = int64 {1000}> ()
        long = Greater (keys, most)
        far = And (behind, long)
        hidden = Or (future, far)"""
    },
    "between two lengths, all counts": {
        "hidden = Or (future, behind)": """few = Constant <value = int64 {530}> ()
        most = Constant <value = int64 {600}> ()
        short = Less (keys, few)
        long = Greater (keys, most)
        outside = Or (short, long)
        far = And (behind, outside)
        hidden = Or (future, far)"""
    },
    "the first tokens are taken for later ones": {
        "future = Greater (columns, rows)": """eight = Constant <value = int64 {8}> ()
        late = Max (columns, eight)
        future = Greater (columns, rows)""",
        "LessOrEqual (columns, old)": "LessOrEqual (late, old)",
    },
    "it is a chunk, which begins anew": {
        "old = Sub (rows, window)": "chunk = Div (rows, window)\n        old = Mul (chunk, window)"
    },
}


@pytest.mark.parametrize("changes", UNKNOWN.values(), ids=UNKNOWN)
def test_what_does_not_hide_for_sure_is_no_window(changes: Mapping[str, str]) -> None:
    proto = decoder("window", changes=changes)
    assert windows(Model.from_proto(proto)) == {}
    assert graphkit.kv_cache(Model.from_proto(proto)).windows == ()


def test_a_mask_says_nothing_of_values_that_probabilities_meet_by_their_other_axis() -> None:
    turned = 'other = Transpose <perm = [0, 1, 3, 2]> (p)\n    mixed = MatMul (other, "present.0.value")'
    proto = decoder("window", changes={'mixed = MatMul (p, "present.0.value")': turned})
    assert windows(Model.from_proto(proto)) == {"past_key_values.0.key": WINDOW}


@pytest.mark.parametrize(("read", "window"), [("present_key", 7), ("joined", 8)])
def test_a_step_sees_what_a_cut_cache_keeps_and_the_new_token_too_where_it_reads_it_before(
    read: str, window: int
) -> None:
    graph = """
    (float[B, 1, 4] q, float[B, P, 4] past_key, float[B, 1, 4] k) => (float[B, 1, 4] y, float[B, M, 4] present_key) {
        joined = Concat <axis = 1> (past_key, k)
        start = Constant <value = int64[1] {-7}> ()
        end = Constant <value = int64[1] {9223372036854775807}> ()
        axis = Constant <value = int64[1] {1}> ()
        present_key = Slice (joined, start, end, axis)
        turned = Transpose <perm = [0, 2, 1]> (%READ%)
        scores = MatMul (q, turned)
        p = Softmax <axis = -1> (scores)
        y = MatMul (p, %READ%)
    }"""
    model = model_of(graph.replace("%READ%", read))
    assert windows(model) == {"past_key": window}
    bytes_per_token = 4 * 4  # four floats
    assert [memory.windowed for memory in graphkit.kv_cache(model).memory] == [7 * bytes_per_token] * 2


def test_an_attribute_says_the_window_of_grouped_query_attention() -> None:
    graph = """
    (float[B, S, 8] q, float[B, S, 4] k, float[B, S, 4] v, float[B, 1, P, 4] "past_key_values.0.key",
     float[B, 1, P, 4] "past_key_values.0.value", int32[B] lengths, int32 total) => (
     float[B, S, 8] y, float[B, 1, T, 4] "present.0.key", float[B, 1, T, 4] "present.0.value") {
        y, "present.0.key", "present.0.value" = com.microsoft.GroupQueryAttention
            <num_heads = 2, kv_num_heads = 1, local_window_size = 6>
            (q, k, v, "past_key_values.0.key", "past_key_values.0.value", lengths, total)
    }"""
    assert set(windows(model_of(graph, domains=["com.microsoft"])).values()) == {6}
    everything = graph.replace(", local_window_size = 6", "")
    assert windows(model_of(everything, domains=["com.microsoft"])) == {}


def test_models_without_windows_say_only_the_full_figure(real_model: RealModel) -> None:
    for name in ("gpt2-tiny/decoder_model_merged", "qwen2-tiny/model"):
        found = graphkit.kv_cache(real_model(name))
        assert found.windows == ()
        assert [memory.windowed for memory in found.memory] == [memory.bytes for memory in found.memory]
        assert "windows" not in found.to_text()
