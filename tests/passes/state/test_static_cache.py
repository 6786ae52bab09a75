"""What a step writes into a static cache, given to its host alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rewriting import model_of
from sessions import run

from graphkit.deploy.export_pipeline import Pipeline, TokenSettings
from graphkit.errors import UsageError
from graphkit.graph.declared_types import declared_dims
from graphkit.model import Model
from graphkit.passes.state.static_cache import CountSlotsInUse, find_unequal_addend, join_new_rows
from graphkit.verify.oracle import assumed_inputs

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


STEP = """g (int64[b, 1] input_ids, int64[1] cache_position, float[b, 1, 5, 4] past_key_0,
    float[b, 1, 5, 4] past_value_0, float[9, 4] table, float[4, 9] head)
    => (float[b, 1, 9] logits, float[b, 1, 5, 4] present_key_0, float[b, 1, 5, 4] present_value_0)
    <int64[1] one = {1}, int64[5] slots = {0, 1, 2, 3, 4}, float zero = {0}, float floor = {-10000},
    float[5] frozen = {0, 0, -10000, -10000, -10000}> {
        x = Gather (table, input_ids)
        k = Unsqueeze (x, one)
        rows = Shape <end = 1> (input_ids)
        at = Expand (cache_position, rows)
        present_key_0 = TensorScatter <axis = 2> (past_key_0, k, at)
        present_value_0 = TensorScatter <axis = 2> (past_value_0, k, at)
        turned = Transpose <perm = [0, 1, 3, 2]> (present_key_0)
        scores = MatMul (k, turned)
        capped = Tanh (scores)
        is_past = LessOrEqual (slots, cache_position)
        mask = Where (is_past, zero, floor)
        masked = Add (capped, MASK)
        weights = Softmax (masked)
        mixed = MatMul (weights, present_value_0)
        y = Squeeze (mixed, one)
        logits = MatMul (y, head)
    }"""


def exported(step: Model) -> Pipeline:
    return Pipeline(encoder=None, first=step, step=step, merged=False, settings=TokenSettings({}))


FIRST = """g (NAME, bool[b, 1, q, "5"] attention_mask, float[9, 4] table) => (float[b, q, 4] logits,
    float[b, 1, 5, 4] past_key_0, float[b, 1, 5, 4] past_value_0) <int64[1] one = {1}, int64[1] two = {2},
    int64 zero = {0}, int64 step = {1}, int64[2] rest = {1, 5}, int64[1] four = {4}, float[1] nothing = {0}> {
        TOKENS
        k = Unsqueeze (x, one)
        b = Shape <end = 1> (x)
        all = Concat <axis = 0> (b, rest, four)
        slots = Expand (nothing, all)
        n = Shape <start = 1, end = 2> (x)
        last = Squeeze (n)
        places = Range (zero, last, step)
        at = Unsqueeze (places, one)
        to = Transpose <perm = [2, 0, 1, 3]> (slots)
        new = Transpose <perm = [2, 0, 1, 3]> (k)
        written = ScatterND (to, at, new)
        past_key_0 = Transpose <perm = [1, 2, 0, 3]> (written)
        doubled = Add (new, new)
        written_too = ScatterND (to, at, doubled)
        past_value_0 = Transpose <perm = [1, 2, 0, 3]> (written_too)
        turned = Transpose <perm = [0, 1, 3, 2]> (past_key_0)
        scores = MatMul (k, turned)
        open = Cast <to = 1> (attention_mask)
        closed = Log (open)
        masked = Add (scores, closed)
        weights = Softmax (masked)
        mixed = MatMul (weights, past_value_0)
        logits = Squeeze (mixed, one)
    }"""


@pytest.mark.parametrize(("name", "tokens", "is_text"), [
    ("int64[b, q] input_ids", "x = Gather (table, input_ids)", True),
    ("float[b, q, 4] inputs_embeds", "x = Identity (inputs_embeds)", False),
])  # fmt: skip
def test_a_first_step_makes_the_mask_of_a_text_itself(name: str, tokens: str, is_text: bool) -> None:
    """A picture before a text may see all of itself."""
    model = model_of(FIRST.replace("NAME", name).replace("TOKENS", tokens), opset=18)
    outcome = CountSlotsInUse(start=1, slots_first=1).run(model)
    why = "it may show a picture before a text all of itself"
    assert [declined.reason for declined in outcome.declined] == ([] if is_text else [why])
    names = [value.name for value in outcome.model.graph.inputs]
    assert names == (["input_ids", "table"] if is_text else ["inputs_embeds", "attention_mask", "table"])
    assert not any(value.kind == "undefined" for value in outcome.model.graph.values.values())


def test_a_mask_that_the_exporter_froze_is_refused(tmp_path: Path) -> None:
    """At each position but one it shows slots that hold nothing yet, or hides some that do."""
    follows, frozen = (model_of(STEP.replace("MASK", name), opset=24) for name in ("mask", "frozen"))
    assert follows.roles.has_slots
    exported(follows).check_static_cache(tmp_path)
    with pytest.raises(UsageError, match=r"\(Softmax\) reads the same slots at each position: nothing"):
        exported(frozen).check_static_cache(tmp_path)


def test_a_mask_that_is_multiplied_behind_the_softmax_follows_the_position(tmp_path: Path) -> None:
    parts = "weights = Softmax (capped) open = Cast <to = 1> (is_past) kept = Mul (weights, open)"
    text = STEP.replace("masked = Add (capped, MASK)\n        weights = Softmax (masked)", parts)
    exported(model_of(text.replace("MatMul (weights,", "MatMul (kept,"), opset=24)).check_static_cache(tmp_path)


def test_two_inputs_that_say_where_a_token_stands_are_told_to_be_taken_for_one() -> None:
    both = STEP.replace("int64[1] cache_position,", "int64[1] cache_position, int64[1] write_position,")
    one, two = (model_of(text.replace("MASK", "mask"), opset=24) for text in (STEP, both))
    assert list(assumed_inputs(one)) == []
    (told,) = assumed_inputs(two)
    assert told.startswith("'cache_position' and 'write_position' of the export are the caller's: all are taken to")


def test_a_constant_that_tells_slots_apart_is_found_in_their_scores() -> None:
    follows, frozen = (model_of(STEP.replace("MASK", name), opset=24) for name in ("mask", "frozen"))
    assert find_unequal_addend(follows, 5) is None
    assert find_unequal_addend(frozen, 5) is frozen.graph.values["frozen"]
    assert find_unequal_addend(frozen, 6) is None
