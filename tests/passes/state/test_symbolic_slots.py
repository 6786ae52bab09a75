"""Slots that are a symbol may be fewer than there can be, and nothing that is in use changes."""

from __future__ import annotations

import numpy as np
from bundles import SLOTS, decoder
from caches import KEY, VALUE
from rewriting import model_of
from sessions import run

from graphkit.graph.types import declared_dims
from graphkit.model import Model
from graphkit.passes.state.update_cache_in_place import UpdateCacheInPlace


def test_symbolic_slots_may_be_fewer() -> None:
    model = Model.from_proto(decoder(opset=24))
    made = UpdateCacheInPlace(SLOTS, symbolic=1).run(model).model
    dims = {value.name: declared_dims(value) for value in (*made.graph.inputs, *made.graph.outputs)}
    for name in (KEY, f"{KEY}_after"):
        assert dims[name] == ("batch", 2, "slots", 4)
    assert dims["attention_mask_slots"] == dims["attention_mask_slots_after"] == ("batch", "slots")
    rows, random = 2, np.random.default_rng(2)
    feed = {
        "input_ids": np.array([[3], [5]]),
        "attention_mask": np.ones((rows, 1), np.int64),
        "past_length": np.array([2]),
    }
    full = {name: random.standard_normal((rows, 2, SLOTS, 4)).astype(np.float32) for name in (KEY, VALUE)}
    full["attention_mask_slots"] = np.array([[0] + [1] * (SLOTS - 1)] * rows)
    few = {name: array[:, :3] if array.ndim == 2 else array[:, :, :3] for name, array in full.items()}
    for one, other in zip(run(made, {**feed, **full}), run(made, {**feed, **few}), strict=True):
        used = np.s_[:, :3] if other.ndim == 2 else np.s_[:, :, :3]
        np.testing.assert_array_equal(one if one.shape == other.shape else one[used], other)


def test_symbolic_slots_have_a_name_of_their_own() -> None:
    text = """g (int64[slots, L] input_ids, float[slots, 2, past, 4] past_key_0, float[slots, 2, L, 4] k)
    => (float[slots, 2, all, 4] present_key_0) { present_key_0 = Concat <axis = 2> (past_key_0, k) }"""
    model = model_of(text, 24, 11)
    made = UpdateCacheInPlace(8, symbolic=1).run(model).model
    past = next(value for value in made.graph.inputs if value.name == "past_key_0")
    assert declared_dims(past) == ("slots", 2, "slots_2", 4)
