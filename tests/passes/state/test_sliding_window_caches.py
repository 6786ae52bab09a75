"""Layers with a sliding window become rings, and not where something is in the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.checker
import pytest
from bundles import SLOTS, WINDOW, decoder
from caches import KEY, VALUE, grown, in_slots, seen
from rewriting import lines

from graphkit.graph.declared_types import declared_dims
from graphkit.model import Model, load
from graphkit.passes.state.update_cache_in_place import SINCE, Update, UpdateCacheInPlace

UPDATES: tuple[Update, ...] = ("tensor-scatter", "scatter-nd")
IN_RINGS = f"2 caches in rings of {WINDOW} slots"
MASK = "masked = Where (none, lowest, scores)"
# Ways to spell the same mask
SPELLINGS: Mapping[str, Mapping[str, str]] = {
    "Where over scores": {},
    "Where whose mask says what counts": {MASK: "counting = Not (none) masked = Where (counting, scores, lowest)"},
    "Add of a floor": {MASK: "floor = Where (none, lowest, nothing) masked = Add (scores, floor)"},
    "floor first": {MASK: "floor = Where (none, lowest, nothing) masked = Add (floor, scores)"},
    "two masks": {
        MASK: "floor = Where (wide, lowest, nothing) some = Add (scores, floor) masked = Where (hidden, lowest, some)"
    },
    "scores with a limit": {
        MASK: """share = Div (scores, root) bent = Tanh (share) capped = Mul (bent, root)
        masked = Where (none, lowest, capped)"""
    },
    "sinks": {
        "p = Softmax <axis = -1> (masked)": """wide_q = Shape <end = 3> (q) sink_dims = Concat <axis = 0> (wide_q, one)
        sinks = Expand (sink, sink_dims) every = Concat <axis = -1> (masked, sinks)
        weights = Softmax <axis = -1> (every) p = Slice (weights, first, last, last)""",
        "float root": "float[1, 2, 1, 1] sink = {0.5, -0.5}, int64[1] first = {0}, int64[1] last = {-1}, float root",
    },
    "a guard against NaN": {
        "mixed = MatMul (p,": "bad = IsNaN (p) good = Where (bad, nothing, p) mixed = MatMul (good,",
    },
}


def model_of(changes: Mapping[str, str] = {}, update: Update = "tensor-scatter", mask: str = "window") -> Model:
    return Model.from_proto(decoder(mask, max(SINCE[update], 17), changes))


def assert_same(model: Model, update: Update, sizes: Sequence[int], rows: int) -> Model:
    """Run tokens through a growing cache and through rings, and return the model of a step."""
    first, later = (UpdateCacheInPlace(SLOTS, update, start=start).run(model).model for start in (1, 0))
    chunks = seen(np.random.default_rng(2), sizes, rows)
    expected, _ = grown(model, chunks)
    actual, _ = in_slots([first, later], chunks)
    for one, other, (_, mask) in zip(expected, actual, chunks, strict=True):
        np.testing.assert_allclose(one[mask == 1], other[mask == 1], rtol=1e-6, atol=1e-5)
    return later


@pytest.mark.cases(3)
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize(("rows", "prompt"), [(1, 1), (2, 1), (2, 3), (2, 7)])
def test_a_ring_gives_what_a_growing_cache_gives(update: Update, rows: int, prompt: int) -> None:
    """Past its wrap, which a longer prompt is behind already."""
    made = assert_same(model_of(update=update), update, [prompt] + [1] * (SLOTS - prompt), rows)
    onnx.checker.check_model(made.proto)
    inputs = {value.name: declared_dims(value) for value in made.graph.inputs}
    is_first = update == "scatter-nd"
    assert inputs[KEY] == inputs[VALUE] == (("slots_3", "batch", 2, 4) if is_first else ("batch", 2, WINDOW, 4))
    assert inputs["input_ids"] == ("batch", 1)
    assert inputs["attention_mask_slots"] == (("slots", "batch") if is_first else ("batch", SLOTS))


@pytest.mark.cases(2)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_masks_are_followed_however_they_are_spelled(spelling: str) -> None:
    model = model_of(SPELLINGS[spelling])
    assert UpdateCacheInPlace(SLOTS).run(model).changes == ("2 caches of 8 slots", IN_RINGS)
    made = assert_same(model, "tensor-scatter", [2, 1, 1, 1, 1], 2)
    gathers = [line for line in lines(made) if " = Gather <axis: int = -1> " in line]
    assert len(gathers) == (2 if spelling == "two masks" else 1)


def test_what_a_mask_hides_within_the_window_stays_hidden_in_a_ring() -> None:
    """As attention in chunks does."""
    model = model_of(
        {
            "hidden = Or (future, behind)": """half = Mod (columns, pair) odd = Cast <to = 9> (half)
        outside = Or (future, behind) hidden = Or (outside, odd)""",
            "float root": "int64 pair = {2}, float root",
        }
    )
    assert UpdateCacheInPlace(SLOTS).run(model).changes == ("2 caches of 8 slots", IN_RINGS)
    assert_same(model, "tensor-scatter", [2, 1, 1, 1, 1, 1, 1], 2)


def test_lengths_that_an_exporter_declared_are_not_those_of_a_ring() -> None:
    """It calls the slots of all layers alike, and onnxruntime keeps what is declared alike in one buffer."""
    model = model_of()
    for name, dims in {"scores": ["batch", 2, "seq", "past + seq"], "product": ["batch", 2, "seq", None]}.items():
        model.proto.graph.value_info.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims))
    made = UpdateCacheInPlace(SLOTS).run(Model.from_proto(model.proto)).model
    assert [info.name for info in made.proto.graph.value_info if info.name in ("scores", "product")] == ["product"]


def test_a_ring_is_found_of_many_lengths() -> None:
    model = model_of()
    table = next(tensor for tensor in model.proto.graph.initializer if tensor.name == "position_table")
    table.CopyFrom(onnx.numpy_helper.from_array(np.zeros((200, 8), np.float32), table.name))
    assert UpdateCacheInPlace(200).run(Model.from_proto(model.proto)).changes[1] == IN_RINGS


def test_rings_are_found_without_the_weights(tmp_path: Path) -> None:
    onnx.save(
        decoder("window", 24),
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="m.data",
        size_threshold=200,
    )
    model = load(tmp_path / "m.onnx")
    (tmp_path / "m.data").unlink()
    assert UpdateCacheInPlace(SLOTS).run(model).changes[1] == IN_RINGS


BEHIND = "behind = LessOrEqual (columns, old)"
TAKEN_BY_NONE: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "no window": ("causal", {}),
    "every other token": (
        "causal",
        {
            "hidden = Identity (future)": """half = Mod (columns, pair)
        odd = Cast <to = 9> (half) hidden = Or (future, odd)""",
            "float root": "int64 pair = {2}, float root",
        },
    ),
    "a window and the first token": (
        "window",
        {
            BEHIND: """late = Greater (columns, zero)
        far = LessOrEqual (columns, old) behind = And (far, late)"""
        },
    ),
    "a window of all slots": (
        "window",
        {"old = Sub (rows, window)": "old = Sub (rows, much)", "float root": "int64 much = {8}, float root"},
    ),
    "a window that grows": (
        "window",
        {
            "old = Sub (rows, window)": """half = Div (rows, pair) old = Sub (half, window)""",
            "float root": "int64 pair = {2}, float root",
        },
    ),
    "the number of keys in a shape": (
        "window",
        {
            "product = MatMul (q, kt)": "",
            "scores = Div (product, root)": "",
            "columns = Range (zero, keys, unit)": """columns = Range (zero, keys, unit)
        many = Unsqueeze (keys, start) shape = Concat <axis = 0> (start, pair, four, many)
        keyed = Reshape (kt, shape) product = MatMul (q, keyed) scores = Div (product, root)""",
            "float root": "int64[1] pair = {2}, int64[1] four = {4}, int64[1] start = {0}, float root",
        },
    ),
    "keys that are measured": (
        "window",
        {
            "product = MatMul (q, kt)": """product = MatMul (q, kt)
        measured = Shape ("present.0.key") end_1 = Gather (measured, two) end = Squeeze (end_1)""",
            "rows = Unsqueeze (queries, one)": "ends = Range (past_length, end, unit) rows = Unsqueeze (ends, one)",
        },
    ),
    "another axis": (
        "window",
        {
            "p = Softmax <axis = -1> (masked)": """turned_scores = Transpose <perm = [0, 1, 3, 2]> (masked)
        q_last = Softmax <axis = 2> (turned_scores) p = Transpose <perm = [0, 1, 3, 2]> (q_last)"""
        },
    ),
    "a floor that is not low": (
        "window",
        {MASK: "masked = Where (none, shallow, scores)", "float root": "float shallow = {-9}, float root"},
    ),
    "a sink and all keys but the first": (
        "window",
        {
            "p = Softmax <axis = -1> (masked)": """wide_q = Shape <end = 3> (q)
        sink_dims = Concat <axis = 0> (wide_q, one) sinks = Expand (sink, sink_dims)
        every = Concat <axis = -1> (masked, sinks) weights = Softmax <axis = -1> (every)
        p = Slice (weights, one, end, lasts)""",
            "float root": """float[1, 2, 1, 1] sink = {0.5, -0.5}, int64[1] lasts = {-1},
        int64[1] end = {9223372036854775807}, float root""",
        },
    ),
    "values that something else reads": (
        "window",
        {"mixed = MatMul (p,": "most = ReduceMax (p) more = Mul (p, most) mixed = MatMul (more,"},
    ),
}


@pytest.mark.cases(4)
@pytest.mark.parametrize("case", TAKEN_BY_NONE)
def test_no_ring_is_made_where_the_last_tokens_would_not_do(case: str) -> None:
    mask, changes = TAKEN_BY_NONE[case]
    model = model_of(changes, mask=mask)
    outcome = UpdateCacheInPlace(SLOTS).run(model)
    assert outcome.changes == ("2 caches of 8 slots",)
    chunks = seen(np.random.default_rng(2), [3, 2, 1], 2)
    for one, other in zip(grown(model, chunks)[0], in_slots([outcome.model], chunks)[0], strict=True):
        np.testing.assert_array_equal(one, other)


def test_two_attentions_over_one_cache_keep_all_tokens() -> None:
    """One looks at a window, the other at everything."""
    more = """y0 = Add (x, flat) others = Where (future, lowest, scores) p2 = Softmax <axis = -1> (others)
        mixed2 = MatMul (p2, "present.0.value") turned2 = Transpose <perm = [0, 2, 1, 3]> (mixed2)
        flat2 = Reshape (turned2, joined) y = Add (y0, flat2)"""
    model = model_of({"y = Add (x, flat)": more})
    outcome = UpdateCacheInPlace(SLOTS).run(model)
    assert outcome.changes == ("2 caches of 8 slots",)


def test_rings_are_an_option() -> None:
    assert UpdateCacheInPlace(SLOTS, rings=0).run(model_of()).changes == ("2 caches of 8 slots",)
