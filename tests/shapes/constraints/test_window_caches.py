"""Caches that keep a window's length beside one that grows, as the model builder of onnxruntime-genai makes them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest
from builders import model_of
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
from sessions import run

from graphkit.equivalence import check_equivalence
from graphkit.model import Model
from graphkit.shapes import infer
from graphkit.shapes.constraints.failing_sizes import find_triggers
from graphkit.shapes.constraints.legal_sizes import legal_sizes

INPUTS = """float[b, s, 32] q, float[b, s, 16] k, int64[b, total] attention_mask,
    float[b, 1, slots, size] past_0_key, float[b, 1, slots, size] past_0_value,
    float[b, 1, past, size] past_1_key, float[b, 1, past, size] past_1_value"""
BODY = """
    ones = ReduceSum <keepdims = 0> (attention_mask, one)  last = Sub (ones, one)  lengths = Cast <to = 6> (last)
    shape = Shape (attention_mask)  count = Gather (shape, at)  size32 = Cast <to = 6> (count)
    x, present_0_key, present_0_value = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1,
        local_window_size = WINDOW, sliding_window_cache = 1> (q, k, k, past_0_key, past_0_value, lengths, size32)
    y, present_1_key, present_1_value = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1>
        (x, k, k, past_1_key, past_1_value, lengths, size32)
"""


def decoder(window: int, kept: str = "b, 1, total_slots, size") -> Model:
    outputs = f"float[b, s, 32] y, float[{kept}] present_0_key, float[{kept}] present_0_value"
    outputs += ", float[b, 1, total, size] present_1_key, float[b, 1, total, size] present_1_value"
    body = BODY.replace("WINDOW", str(window))
    return model_of(f"({INPUTS}) => ({outputs}) {{ {body} }}", 21, one=np.array([1]), at=np.array(1))


def test_such_a_cache_has_at_least_the_slots_of_its_window() -> None:
    model = decoder(4096)
    rules = {rule.name: str(rule) for rule in find_triggers(infer(model)).rules}
    assert rules == {"slots": "4096 or more", "size": "only 16"}
    assert str(legal_sizes(model).past) == "past"


@pytest.mark.parametrize(
    ("slots", "outcome"), [(7, pytest.raises(InvalidArgument, match="KV cache capacity")), (8, nullcontext())]
)
def test_onnxruntime_says_so(slots: int, outcome: AbstractContextManager[object]) -> None:
    sizes = {"past_0_key": slots, "past_0_value": slots, "past_1_key": 0, "past_1_value": 0}
    caches = {name: np.zeros((1, 1, size, 16), np.float32) for name, size in sizes.items()}
    rows = {name: np.ones((1, 3, size), np.float32) for name, size in (("q", 32), ("k", 16))}
    with outcome:
        run(decoder(8), {**rows, **caches, "attention_mask": np.ones((1, 3), np.int64)})


def test_other_declarations_of_what_it_gives_are_proven() -> None:
    found = check_equivalence(decoder(8), decoder(8, "b, 1, slots, 16"))
    assert {output.exactness for output in found.outputs} == {"bit for bit"}, str(found)


def test_a_present_that_is_declared_with_a_rank_that_it_does_not_have_tells_nothing() -> None:
    pairs = ("float[b, 1, past, 4] past_key_values_0_{}", "float[b, 1, total, 4] present_0_{}")
    caches, outputs = (", ".join(map(pair.format, ("key", "value"))) for pair in pairs)
    sums = " ".join(
        f"present_0_{each} = ReduceSum <keepdims = 0> (past_key_values_0_{each})" for each in ("key", "value")
    )
    text = f"(int64[b, s] input_ids, {caches}) => (float[b, s, 8] logits, {outputs})"
    model = model_of(f"{text} {{ logits = Gather (table, input_ids) {sums} }}", 18, table=np.ones((16, 8), np.float32))
    assert str(legal_sizes(model).past) == "past"
