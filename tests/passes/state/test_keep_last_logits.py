"""Logits of the last tokens alone, where they are known to be a product that treats each token alike."""

from __future__ import annotations

import numpy as np
import pytest
from bundles import decoder
from rewriting import model_of
from sessions import run

from graphkit.graph.declared_types import declared_dims
from graphkit.model import Model
from graphkit.passes.state.decode_step import KEPT, KeepLastLogits

HEAD = "x = Gather (table, input_ids)\n"


def graph(nodes: str, outputs: str = "float[N, L, 6] logits") -> Model:
    tables = ["float[5, 4] table", "float[4, 6] w", "float[6] bias", "float[N, L, 6] of_token"]
    return model_of(f"g (int64[N, L] input_ids, {', '.join(tables)}) => ({outputs}) {{ {HEAD}{nodes} }}")


def operators(model: Model) -> list[str]:
    return [node.op_type for node in model.graph.nodes]


@pytest.mark.parametrize(("kept", "given"), [(0, 3), (1, 1), (2, 2), (3, 3), (9, 3)])
def test_as_many_logits_as_the_input_says(kept: int, given: int) -> None:
    model = Model.from_proto(decoder())
    made = KeepLastLogits().run(model).model
    assert declared_dims(made.graph.values["logits"]) == ("batch", KEPT, 11)
    rng = np.random.default_rng(0)
    feed: dict[str, np.ndarray] = {
        "input_ids": rng.integers(0, 11, (2, 3)),
        "attention_mask": np.ones((2, 5), np.int64),
        "position_ids": np.broadcast_to(np.arange(2, 5), (2, 3)),
        "past_key_values.0.key": rng.standard_normal((2, 2, 2, 4)).astype(np.float32),
        "past_key_values.0.value": rng.standard_normal((2, 2, 2, 4)).astype(np.float32),
    }
    whole = run(model, feed)
    last = run(made, {**feed, KEPT: np.array([kept])})
    assert last[0].shape == (2, given, 11)
    np.testing.assert_allclose(last[0], whole[0][:, -given:], rtol=0, atol=1e-5)
    for present, same in zip(whole[1:], last[1:], strict=True):
        np.testing.assert_array_equal(present, same)


def test_the_slice_stands_in_front_of_the_product() -> None:
    made = KeepLastLogits().run(graph("y = MatMul (x, w)\nz = Add (bias, y)\nlogits = Tanh (z)"))
    assert operators(made.model) == ["Gather", "Neg", "Slice", "MatMul", "Add", "Tanh"]
    assert made.changes == ("logits of the last tokens alone",)


def test_other_readers_of_the_hidden_state_still_read_all_of_it() -> None:
    text = "logits = MatMul (x, w)\nmean = ReduceMean <axes = [1]> (x)"
    model = graph(text, "float[N, L, 6] logits, float[N, 1, 4] mean")
    made = KeepLastLogits().run(model).model
    assert made.graph.values["mean"].producer is not None
    source = made.graph.values["mean"].producer.input(0)
    assert source is not None
    assert source.name == "x"


ALIKE = "its logits are not known to be a product that treats each token alike"
DECLINED = {
    "no logits": ("scores = MatMul (x, w)", "float[N, L, 6] scores", "no output is known to be logits"),
    "no product": ("logits = Softmax (x)", "float[N, L, 4] logits", ALIKE),
    "the tokens are mixed": (
        "y = MatMul (x, w)\ns = CumSum (y, axis)\nlogits = Tanh (s)",
        "float[N, L, 6] logits",
        ALIKE,
    ),
    "something else for each token": ("y = MatMul (x, w)\nlogits = Add (y, of_token)", "float[N, L, 6] logits", ALIKE),
    "a product with another matrix for each row": (
        "m = Transpose <perm = [0, 2, 1]> (x)\nlogits = MatMul (x, m)",
        "float[N, L, L] logits",
        ALIKE,
    ),
    "the logits are read": (
        "logits = MatMul (x, w)\nbest = ArgMax <axis = -1> (logits)",
        "float[N, L, 6] logits, int64[N, L, 1] best",
        ALIKE,
    ),
    "a value between is read": (
        "y = MatMul (x, w)\nlogits = Tanh (y)\nmean = ReduceMean <axes = [1]> (y)",
        "float[N, L, 6] logits, float[N, 1, 6] mean",
        ALIKE,
    ),
    "the name is taken": (
        "logits_kept = MatMul (x, w)\nlogits = Tanh (logits_kept)",
        "float[N, L, 6] logits",
        "'logits_kept' is a name in it already",
    ),
}


@pytest.mark.parametrize("name", DECLINED)
def test_what_it_declines(name: str) -> None:
    nodes, outputs, reason = DECLINED[name]
    if "axis" in nodes.replace("axis =", ""):
        nodes = f"axis = Constant <value_int = 1> ()\n{nodes}"
    model = graph(nodes, outputs)
    outcome = KeepLastLogits().run(model)
    assert outcome.model is model
    assert reason in str(outcome.declined[0])
