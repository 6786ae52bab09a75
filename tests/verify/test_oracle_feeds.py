from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from builders import model_of

from graphkit.verify.oracle import Oracle, Originals

DECODER = """(int64[b, s] input_ids, int64[b, s] position_ids, float[b, 1, past, 4] past_key_0)
  => (float[b, s, 9] logits, float[b, 1, total, 4] present_key_0) {
    word = Gather (words, input_ids) place = Gather (places, position_ids) x = Add (word, place)
    key = Unsqueeze (x, one) present_key_0 = Concat <axis = 2> (past_key_0, key)
    kept = ReduceMean <keepdims = 0> (present_key_0, axes) y = Add (x, kept) logits = MatMul (y, head)
}"""
CONSTANTS = {
    "words": np.arange(36, dtype=np.float32).reshape(9, 4),
    "places": np.arange(64, dtype=np.float32).reshape(16, 4),
    "head": np.ones((4, 9), np.float32),
    "one": np.array([1]),
    "axes": np.array([1, 2]),
}


def test_a_step_is_fed_what_it_would_be_fed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(DECODER, **CONSTANTS)
    oracle = Oracle(Originals(None, model, model))
    tokens, given = np.array([[3, 4]]), np.array([[5, 6]])
    oracle.start(tokens, np.ones_like(tokens), {"position_ids": given})
    assert oracle._decoder is not None
    session, fed = oracle._decoder.later_session, dict[str, np.ndarray]()
    run = session.run

    def record(feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        fed.update(feed)
        return run(feed)

    monkeypatch.setattr(session, "run", record)
    for token, position in ((7, 7), (8, 8)):
        foretold = oracle.later_feed(np.array([[token]]))
        oracle.step(np.array([[token]]))
        assert foretold["position_ids"].tolist() == [[position]]
        assert fed.keys() == foretold.keys()
        assert all(np.array_equal(fed[name], foretold[name]) for name in fed)
