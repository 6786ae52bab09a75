"""Rows of states by products with one-hot rows: the same numbers, or the reason why not."""

from __future__ import annotations

import numpy as np
import pytest
from builders import model_of
from sessions import run

from graphkit.errors import UsageError
from graphkit.passes.npu.host_inputs import PoolRowByOneHot

ROWS = model_of("""g (float[2, 3, 4] states, int64[2, 2] places, int64[1] first) => (flat, row) {
    flat = GatherND <batch_dims = 0> (states, places) row = Gather <axis = 1> (states, first) }""")


def test_products_give_the_rows_that_nodes_took() -> None:
    states = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    feed = {"states": states, "places": np.array([[0, 2], [1, 2]]), "first": np.array([2])}
    names = (("flat", "states"), ("row", "states")), (("flat", "pooling"), ("row", "pooling"))
    outcome = PoolRowByOneHot(*names).run(ROWS)
    assert [value.name for value in outcome.model.graph.inputs] == ["states", "pooling"]
    assert len(outcome.changes) == 2
    pooling = np.zeros((2, 1, 3), np.float32)
    pooling[:, :, 2] = 1
    for made, expected in zip(run(outcome.model, {"states": states, "pooling": pooling}), run(ROWS, feed), strict=True):
        np.testing.assert_array_equal(made, expected)


REFUSED = {
    "nothing of that name": (PoolRowByOneHot((("none", "states"),), (("none", "p"),)), "there is no value 'none'"),
    "no input for a row": (PoolRowByOneHot((("row", "states"),)), "has no new input - name a row"),
    "an input that is there": (PoolRowByOneHot((("row", "states"),), (("row", "first"),)), "has no new input"),
    "states of two dims": (PoolRowByOneHot((("row", "flat"),), (("row", "p"),)), "no row of 'flat'"),
    "an input as a row": (PoolRowByOneHot((("states", "states"),), (("states", "p"),)), "no node gives 'states' alone"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_row_that_is_none_is_refused(case: str) -> None:
    step, message = REFUSED[case]
    with pytest.raises(UsageError, match=message):
        step.run(ROWS)
