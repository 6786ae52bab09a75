"""Wrong rewrites, a table of them: a proof catches each, and names what differs."""

from __future__ import annotations

import pytest
from small_models import model
from wrong_rewrites import PAIRS, Pair

from graphkit.verify.rewrite_verifier import verify_rewrite


@pytest.mark.parametrize("pair", PAIRS, ids=[pair.name for pair in PAIRS])
def test_a_wrong_rewrite_is_caught(pair: Pair) -> None:
    before, after = (model(text, **pair.constants) for text in (pair.before, pair.after))
    found = verify_rewrite(before, after)
    assert not found.passed
    assert pair.caught in "\n".join((*found.failures, *(str(run) for run in found.runs if run.failure)))
