"""Typical sizes: those of raw audio, of graphs and of images with their channels last; models run at them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from builders import model_of
from real_models import UNLIKE

from graphkit.analysis import typical_sizes
from graphkit.analysis.cost_changes import BeforeAndAfter, SizedModel
from graphkit.model import Model, load
from graphkit.shapes import AS_DECLARED
from graphkit.shapes.constraints.legal_sizes import search_nearest_sizes
from graphkit.verify import latency
from graphkit.verify.latency import costs_before_and_after

GRAPH = """(float[{nodes}, 4] x, int64[2, edges] edge_index{more}) => (float[{nodes}, 4] y)
<int64 first = {{0}}, int64 last = {{1}}> {{
    from = Gather <axis = 0> (edge_index, first)
    to = Gather <axis = 0> (edge_index, last)
    told = Gather <axis = 0> (x, from)
    rows = Unsqueeze (to, axis)
    y = ScatterND <reduction = "add"> (x, rows, told)
}}"""


def graph(nodes: str = "nodes", more: str = "") -> Model:
    return model_of(GRAPH.format(nodes=nodes, more=more), 18, axis=np.array([1]))


def sizes(model: Model) -> dict[str, int]:
    return dict(SizedModel.of(model, AS_DECLARED, {}).sizes)


def test_dims_of_one_name_are_of_one_size_where_the_model_runs_so() -> None:
    """130 tokens would do as well, beside a state of 26 rows."""
    text = """(float[b, t, 3] x, float[1, b, 2] state) => (float[5, 1, b, 2] y) {
        rows = Transpose <perm = [1, 0, 2]> (x) lines = Reshape (rows, steps)
        y = GRU <hidden_size = 2> (lines, w, r, , , state)
    }"""
    weights = {"w": np.ones((1, 6, 3), np.float32), "r": np.ones((1, 6, 2), np.float32)}
    assert sizes(model_of(text, 18, steps=np.array([5, -1, 3]), **weights)) == {"b": 1, "t": 5, "state.1": 1}


def test_dims_of_one_name_differ_where_the_model_runs_so_alone() -> None:
    """Lengths that 4 divides, beside one of 3 at most."""
    text = """(float[n, 3] a, float[n, 2] b) => (float[4, k] y, float[n, 5] z) {
        y = Reshape (a, rows) s = Shape <start = 0, end = 1> (b) length = Squeeze (s)
        places = Range (zero, length, one) z = Gather (table, places)
    }"""
    numbers = {"rows": np.array([4, -1]), "zero": np.array(0), "one": np.array(1), "table": np.ones((3, 5), np.float32)}
    found = sizes(model_of(text, 18, **numbers))
    assert found["n"] % 4 == 0
    assert 1 <= found["b.0"] <= 3


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (graph(), {"nodes": 128, "edges": 512}),
        (graph(more=", float[edges, 2] weights"), {"nodes": 128, "edges": 512}),
        (graph("batch_size"), {"batch_size": 1, "edges": 128}),
        (graph("9"), {"edges": 128}),
    ],
)
def test_nodes_and_edges_of_a_graph(model: Model, expected: dict[str, int]) -> None:
    assert sizes(model) == expected


@pytest.mark.parametrize("nodes", ["nodes", "3"])
def test_indices_of_nodes_are_legal_where_latency_is_measured(nodes: str) -> None:
    found = costs_before_and_after(BeforeAndAfter([graph(nodes)], graph(nodes)), timed=True)
    assert (found.untimed, found.latency is not None) == ("", True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(float[b, t] input_values) => (float[b, t] y) { y = Tanh (input_values) }", 16_000),
        ("(float[b, 1, t] waveform) => (float[b, 1, t] y) { y = Tanh (waveform) }", 16_000),
        ("(float[b, 80, t] input_features) => (float[b, 80, t] y) { y = Tanh (input_features) }", 128),  # of a spectrum
        ("(float[b, t] x) => (float[b, t] y) { y = Tanh (x) }", 128),
        ("(int64[b, t] audio_ids) => (int64[b, t] y) { y = Neg (audio_ids) }", 128),
    ],
)
def test_samples_of_audio(text: str, expected: int) -> None:
    assert sizes(model_of(text)) == {"b": 1, "t": expected}


@pytest.mark.parametrize(("stride", "samples"), [(320, 16_000), (512, 16_384)])
def test_samples_of_audio_fit_strides(stride: int, samples: int) -> None:
    shape = f"<int64[3] s = {{0, -1, {stride}}}>"
    text = f"(float[b, t] audio) => (float[b, n, {stride}] y) {shape} {{ y = Reshape (audio, s) }}"
    assert sizes(model_of(text)) == {"b": 1, "t": samples}


def test_images_with_their_channels_last_are_square() -> None:
    text = "(float[b, h, w, 3] image) => (float[b, h, w, 3] y) { y = Tanh (image) }"
    assert sizes(model_of(text)) == {"b": 1, "h": 224, "w": 224}


def test_a_mask_of_a_decoder_spans_past_and_new_tokens(model_file: Callable[[str], Path]) -> None:
    found = sizes(load(model_file("llama-int4/model")))  # whose table of angles has 128 positions
    assert (found["past_sequence_length"], found["sequence_length"], found["total_sequence_length"]) == (127, 1, 128)


@pytest.mark.slow
@pytest.mark.parametrize("name", UNLIKE)
def test_models_run_at_typical_sizes(
    name: str, model_file: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latency, "ROUNDS", 1)
    monkeypatch.setattr(latency, "UNCOUNTED", 0)
    file = model_file(name)
    copy = Path(shutil.copy(file, tmp_path / "copy.onnx"))
    found = costs_before_and_after(BeforeAndAfter([load(file)], load(copy)), timed=True)
    if "is missing" in found.untimed:
        pytest.skip(found.untimed)
    if name == "search/beamsearch-gpt2":  # its input max_length, 20 here, has to be more than the tokens
        assert "max_length (20) shall be greater than input sequence length (128)" in found.untimed
    else:
        assert found.untimed == ""


def test_a_search_that_found_nothing_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = Mock(side_effect=search_nearest_sizes)
    monkeypatch.setattr(typical_sizes, "search_nearest_sizes", searches)
    twice_and_thrice = "a = Concat <axis = 0> (x, x) b = Concat <axis = 0> (x, x, x)"
    sizes(model_of(f"(float[n] x) => (y) {{ {twice_and_thrice} y = Add (a, b) }}", 17))
    assert searches.call_count == 1
