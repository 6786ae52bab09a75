"""What a step writes into a static cache, given to its host alone."""

from __future__ import annotations

import numpy as np
import pytest
from rewriting import model_of
from sessions import run

from graphkit.graph.declared_types import declared_dims
from graphkit.model import Model
from graphkit.passes.state.static_cache import join_new_rows

ROWS = np.arange(2 * 3 * 5 * 4, dtype=np.float32).reshape(2, 3, 5, 4)
NEW = -np.ones((2, 3, 1, 4), np.float32)
WRITES = {
    "ScatterND": """
        at = Unsqueeze (place, last)
        first = Transpose <perm = [2, 0, 1, 3]> (key_cache)
        rows = Transpose <perm = [2, 0, 1, 3]> (new)
        written = ScatterND (first, at, rows)
        after = Transpose <perm = [1, 2, 0, 3]> (written)""",
    "ScatterElements": """
        at = Reshape (place, four)
        spread = Expand (at, like)
        after = ScatterElements <axis = 2> (key_cache, spread, new)""",
    "TensorScatter": """
        at = Expand (place, rows_of_batch)
        after = TensorScatter <axis = 2> (key_cache, new, at)""",
    "Where": """
        open = Equal (slots, place)
        chosen = Reshape (open, column)
        after = Where (chosen, new, key_cache)""",
}
CONSTANTS = """<int64[1] last = {1}, int64[4] four = {1, 1, 1, 1}, int64[4] like = {2, 3, 1, 4},
    int64[1] rows_of_batch = {2}, int64[5] slots = {0, 1, 2, 3, 4}, int64[4] column = {1, 1, 5, 1}>"""


def step(nodes: str, tokens: str = "1") -> Model:
    inputs = f"float[2, 3, 5, 4] key_cache, float[2, 3, {tokens}, 4] new, int64[1] place"
    outputs = "float[2, 3, 5, 4] after, float[2, 3, 5, 4] seen"
    return model_of(f"g ({inputs}) => ({outputs}) {CONSTANTS} {{ {nodes} seen = Abs (after) }}", opset=24)


@pytest.mark.parametrize("operator", WRITES)
def test_attention_reads_the_new_token_last_and_the_host_gets_it_alone(operator: str) -> None:
    outcome = join_new_rows(step(WRITES[operator]), {"key_cache": 2}, {})
    assert outcome.changes == ("1 cache written by the host",)
    made = outcome.model
    assert {value.name: declared_dims(value) for value in made.graph.inputs} == {
        "key_cache": (2, 3, 4, 4),
        "new": (2, 3, 1, 4),
    }
    assert [value.name for value in made.graph.outputs] == ["seen", "key_cache_new"]
    seen, given = run(made, {"key_cache": ROWS[:, :, :4], "new": NEW})
    np.testing.assert_array_equal(given, NEW)
    np.testing.assert_array_equal(seen, np.concatenate([ROWS[:, :, :4], np.ones_like(NEW)], 2))


def test_a_step_that_writes_several_tokens_is_declined() -> None:
    model = step("at = Expand (place, rows_of_batch) after = TensorScatter <axis = 2> (key_cache, new, at)", "2")
    outcome = join_new_rows(model, {"key_cache": 2}, {})
    assert [declined.reason for declined in outcome.declined] == ["it does not write one token: [2, 3, 2, 4]"]
    assert outcome.model is model


def test_a_cache_that_something_else_reads_is_declined() -> None:
    model = step(WRITES["TensorScatter"].replace("after =", "mean = ReduceMax (key_cache)\n after ="))
    (declined,) = join_new_rows(model, {"key_cache": 2}, {}).declined
    assert declined.reason == "it is not read by one node that writes its slots"


def test_caches_of_different_lengths_are_declined() -> None:
    other = "written = TensorScatter <axis = 1> (short, row, at)"
    inputs = "float[2, 3, 5, 4] key_cache, float[2, 3, 1, 4] new, int64[1] place, float[2, 3] short, float[2, 1] row"
    outputs = "float[2, 3, 5, 4] after, float[2, 3] written"
    model = model_of(f"g ({inputs}) => ({outputs}) {CONSTANTS} {{ {WRITES['TensorScatter']} {other} }}", opset=24)
    (declined,) = join_new_rows(model, {"key_cache": 2, "short": 1}, {}).declined
    assert (declined.where, declined.reason) == ("short", "caches have 3 and 5 slots, and a host counts one number")
