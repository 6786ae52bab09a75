"""Caches in other layouts: stacked by layer, and with fewer axes; the numbers are the same."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser
from sessions import run

from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.passes.npu.cache_interface import ReduceCacheRank, StackCaches


def model_of(text: str) -> Model:
    return Model.from_proto(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}'))


LAYERS = model_of("""g (float[2, 3, 4, 5] k0, float[2, 3, 4, 5] k1) => (float[2, 3, 1, 5] n0, float[2, 3, 1, 5] n1, y) {
    n0 = ReduceMax <axes = [2]> (k0) n1 = ReduceMin <axes = [2]> (k1) y = Sub (k0, k1) }""")
IN, OUT = (("k0", "keys"), ("k1", "keys")), (("n0", "keys"), ("n1", "keys"))


def test_a_stack_holds_the_caches_of_its_layers() -> None:
    caches = np.random.default_rng(0).normal(size=(2, 2, 3, 4, 5)).astype(np.float32)
    n0, n1, y = run(LAYERS.proto, {"k0": caches[0], "k1": caches[1]})
    made = StackCaches(IN, OUT).run(LAYERS).model
    assert [value.name for value in made.graph.outputs] == ["keys_new", "y"]
    stacked = caches.transpose(0, 1, 3, 2, 4).reshape(2, 2, 4, 15)  # [layers, batch, slots, heads * head_dim]
    new, same = run(made.proto, {"keys": stacked})
    np.testing.assert_array_equal(same, y)
    np.testing.assert_array_equal(new, np.stack([n0, n1]).transpose(0, 1, 3, 2, 4).reshape(2, 2, 1, 15))


REFUSED = {
    "nothing of that name": (StackCaches((("k2", "keys"),)), "there is no 'k2' to stack"),
    "members that are not alike": (StackCaches((), (("n0", "keys"), ("y", "keys"))), "'keys' has members that are not"),
    "a name that is taken": (StackCaches((("k0", "n"), ("k1", "n"))), "'n0' begins as 'n' does - name the stack anew"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_stack_is_refused(case: str) -> None:
    step, message = REFUSED[case]
    with pytest.raises(UsageError, match=message):
        step.run(LAYERS)


HIGH = model_of("""g (float[3, 2, 2, 4, 8] past) => (float[3, 2, 2, 1, 8] new) {
    new = ReduceMax <axes = [3]> (past) }""")


def test_a_cache_of_fewer_axes_holds_the_same_bytes() -> None:
    outcome = ReduceCacheRank(4, (("past", 3),), (("new", "past"),)).run(HIGH)
    assert [(match.past, match.axis, match.outputs) for match in outcome.matches] == [("past", 2, {"new": "new_4d"})]
    past = np.random.default_rng(0).normal(size=(3, 2, 2, 4, 8)).astype(np.float32)
    (new,), (low,) = run(HIGH.proto, {"past": past}), run(outcome.model.proto, {"past": past.reshape(6, 2, 4, 8)})
    assert low.shape == (6, 2, 1, 8)
    assert low.tobytes() == new.tobytes()


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (
            ReduceCacheRank(2, (("past", 3),), (("new", "past"),)),
            "past: its slots have no axis of their own with 2 axes",
        ),
        (ReduceCacheRank(4, (("past", 3),)), "new: it is no cache of known slots"),
    ],
)
def test_other_models_keep_their_axes(step: ReduceCacheRank, reason: str) -> None:
    outcome = step.run(HIGH)
    assert (outcome.model, list(map(str, outcome.declined)), outcome.matches) == (HIGH, [reason], ())
